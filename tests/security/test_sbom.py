# SPDX-License-Identifier: PostgreSQL
"""The bill of materials says what the binaries say: their hashes, the libraries that they name, and those with version, package and licence."""

import hashlib
import json
import os
import re
import subprocess

import pytest

from harness.nginx import BUILD
from harness.postgres import ROOT
from harness.release import VERSION

from .elf import needed

BILL = BUILD / "pgonce.spdx.json"
# What a sanitizer or a report of coverage brings along is not part of what is shipped.
BY_INSTRUMENTS = re.compile(r"lib(asan|ubsan|tsan|gcov)\.so")


@pytest.fixture(scope="module")
def bill():
    return json.loads(BILL.read_text())


def files(bill):
    return {file["fileName"].removeprefix("./"): file for file in bill["files"]}


def links(bill):
    """The libraries of each file, by its name."""
    sonames = {package["SPDXID"]: soname(package) for package in bill["packages"][1:]}
    named = {file["SPDXID"]: name for name, file in files(bill).items()}
    found = {name: set() for name in named.values()}
    for each in bill["relationships"]:
        if each["relationshipType"] == "DYNAMIC_LINK":
            found[named[each["spdxElementId"]]].add(sonames[each["relatedSpdxElement"]])
    return found


def soname(package):
    return package["comment"].removeprefix("provides ") if "comment" in package else package["name"]


def path_of(name):
    return next(path for path in (BUILD / folder / name for folder in ("cli", "lib", "gateway", "contract", "native")) if path.exists())


@pytest.mark.plain("the nginx module that is tried there is another build's: the system's nginx takes no sanitized one")
def test_everything_that_is_shipped_is_listed_with_its_hashes(bill):
    listed = files(bill)
    assert {"pgonce", f"libpgonce.so.{VERSION}", f"pgonce--{VERSION}.sql"} <= set(listed)
    assert ("ngx_http_once_module.so" in listed) == (BUILD / "gateway/ngx_http_once_module.so").exists()
    for name, file in listed.items():
        content = path_of(name).read_bytes()
        for checksum in file["checksums"]:
            assert hashlib.new(checksum["algorithm"], content).hexdigest() == checksum["checksumValue"], name


def test_each_binary_has_the_libraries_that_it_names_and_no_others(bill):
    for name, sonames in links(bill).items():
        # The loader is the C library's.
        assert sonames == ({each for each in needed(path_of(name)) if not each.startswith("ld-")} if not name.endswith(".sql") else set())
    assert len(links(bill)["pgonce"]) >= 10 and "libpq.so.5" in links(bill)["pgonce"]


def test_each_library_has_a_version_and_a_licence(bill):
    for package in bill["packages"]:
        if not BY_INSTRUMENTS.match(soname(package)):
            assert package.get("versionInfo"), package["name"]
            assert package["licenseDeclared"] != "NOASSERTION", f"say the licence of {soname(package)} in tools/sbom.py"


def test_a_version_is_that_of_the_package_that_is_installed(bill):
    checked = 0
    for package in bill["packages"]:
        if "externalRefs" in package:
            said = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package["name"]], capture_output=True, text=True, check=True).stdout
            assert package["versionInfo"] == said
            checked += 1
    assert checked >= 10 or not os.path.exists("/usr/bin/dpkg-query")


def test_the_table_of_dependencies_names_each_library_that_is_linked_and_none_that_is_not(bill):
    table = re.search(r"^## Dependencies\n(.*?)\n\n[^|]", (ROOT / "CONTRIBUTING.md").read_text(), re.S | re.M)[1]
    named = set(re.findall(r"\b(lib[a-z]+|jansson)\b", "\n".join(line.split("|")[1] for line in table.splitlines() if line.startswith("|"))))
    linked = {soname(package).split(".so")[0] for package in bill["packages"][1:] if not BY_INSTRUMENTS.match(soname(package))}
    assert {name.removeprefix("lib") for name in named} == {name.removeprefix("lib") for name in linked}


def test_references_lead_somewhere_and_identifiers_are_what_spdx_allows(bill):
    assert (bill["spdxVersion"], bill["dataLicense"]) == ("SPDX-2.3", "CC0-1.0")
    known = [bill["SPDXID"], *(each["SPDXID"] for each in bill["packages"] + bill["files"])]
    assert len(known) == len(set(known))
    for name in known:
        assert re.fullmatch(r"SPDXRef-[A-Za-z0-9.-]+", name)
    for each in bill["relationships"]:
        assert each["spdxElementId"] in known and each["relatedSpdxElement"] in known
    assert bill["packages"][0]["hasFiles"] == [file["SPDXID"] for file in bill["files"]]


def written(directory, epoch, binary):
    output = directory / f"bill-{epoch}"
    command = ["/usr/bin/python3", ROOT / "tools/sbom.py", "--release", VERSION, "--output", output, "--compiler", "cc", "--", binary]
    subprocess.run(command, check=True, env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)})
    return output.read_bytes()


def test_the_same_binaries_give_the_same_bytes_at_the_time_that_source_date_epoch_says(tmp_path):
    binary = BUILD / f"lib/libpgonce.so.{VERSION}"
    first, again, later = (written(tmp_path, epoch, binary) for epoch in (1700000000, 1700000000, 1700000001))
    assert first == again != later
    assert json.loads(first)["creationInfo"]["created"] == "2023-11-14T22:13:20Z"


def test_another_binary_gives_another_bill(tmp_path):
    """Its hash, and with it the name of the document."""
    binary = tmp_path / f"libpgonce.so.{VERSION}"
    content = (BUILD / f"lib/libpgonce.so.{VERSION}").read_bytes()
    bills = []
    for each in (content, content + b"x"):
        binary.write_bytes(each)
        bills.append(json.loads(written(tmp_path, 1, binary)))
    assert bills[0]["files"] != bills[1]["files"] and bills[0]["documentNamespace"] != bills[1]["documentNamespace"]


def test_what_is_installed_is_what_the_bill_describes(tmp_path, bill):
    installed = subprocess.run(["meson", "install", "--no-rebuild", "-C", BUILD, "--destdir", tmp_path], capture_output=True, text=True, check=False)
    assert installed.returncode == 0, installed.stdout + installed.stderr
    assert json.loads(next(tmp_path.rglob("pgonce.spdx.json")).read_text()) == bill
    for name in ("pgonce", f"libpgonce.so.{VERSION}", f"pgonce--{VERSION}.sql"):
        content = next(path for path in tmp_path.rglob(name) if path.is_file()).read_bytes()
        assert hashlib.sha256(content).hexdigest() == files(bill)[name]["checksums"][1]["checksumValue"], name
