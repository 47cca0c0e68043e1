#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""The software bill of materials, SPDX 2.3 in JSON: the built files, with their hashes, and each shared library that they are linked with, with its
real version, package and licence. The build calls it: sbom.py --release X --output FILE --compiler CC... -- BINARY...

It reads the binaries, not the build files. From the same binaries and libraries it writes the same bytes: its time is SOURCE_DATE_EPOCH, or
else the commit's."""
import argparse
import datetime
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import uuid

ROOT = pathlib.Path(__file__).resolve().parent.parent
# The licence of each library, as its own project says it; SPDX identifiers.
LICENCES = {
    "libc": "LGPL-2.1-or-later",
    "libcrypto": "Apache-2.0",
    "libcurl": "curl",
    "libjansson": "MIT",
    "libm": "LGPL-2.1-or-later",
    "libmicrohttpd": "LGPL-2.1-or-later",
    "libnats": "Apache-2.0",
    "libpq": "PostgreSQL",
    "librabbitmq": "MIT",
    "librdkafka": "BSD-2-Clause",
    "libssl": "Apache-2.0",
}


def said(*command):
    """A command's output; "" if it fails or does not exist."""
    if not shutil.which(command[0]):
        return ""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    return done.stdout.strip() if done.returncode == 0 else ""


def needed(binary):
    """The shared libraries that the loader looks for; none if the file is not a binary. The loader itself is the C library's."""
    with open(binary, "rb") as file:
        if file.read(4) != b"\x7fELF":
            return []
    found = re.findall(r"\(NEEDED\).*\[(.*)\]", subprocess.run(["readelf", "-W", "-d", binary], capture_output=True, text=True, check=True).stdout)
    return [soname for soname in found if not soname.startswith("ld-")]


def identifier(*words):
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(words))


def package_of(path):
    """(package, version, homepage, purl) from dpkg; None for a file that dpkg does not know."""
    for spelling in (path, re.sub("^/usr/lib", "/lib", path), re.sub("^/lib", "/usr/lib", path)):
        owner = said("dpkg-query", "-S", spelling).split(": ")[0].split(",")[0]
        if owner:
            break
    else:
        return None
    name, version, architecture, homepage = said("dpkg-query", "-W", "-f", "${Package}|${Version}|${Architecture}|${Homepage}", owner).split("|")
    distribution = re.search(r"^ID=\"?([^\"\n]+)", pathlib.Path("/etc/os-release").read_text(), re.M)[1] if os.path.exists("/etc/os-release") else "debian"
    purl = f"pkg:deb/{distribution}/{name}@{version.replace('+', '%2B').replace(':', '%3A')}?arch={architecture}"
    return name, version, homepage, purl


def library(soname, compiler):
    """A library's package, in SPDX's form."""
    path = os.path.realpath(said(*compiler, f"-print-file-name={soname}") or soname)
    stem = soname.split(".so")[0]
    package = package_of(path)
    described = {"SPDXID": identifier("Library", soname), "name": soname, "downloadLocation": "NOASSERTION", "filesAnalyzed": False}
    if package:
        name, version, homepage, purl = package
        described |= {"name": name, "versionInfo": version, "comment": f"provides {soname}"}
        described |= {"homepage": homepage} if homepage else {}
        described["externalRefs"] = [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}]
    else:
        version = said("pkg-config", "--modversion", stem) or said("pkg-config", "--modversion", stem.removeprefix("lib"))
        described |= {"versionInfo": version} if version else {}
    described |= {"licenseConcluded": "NOASSERTION", "licenseDeclared": LICENCES.get(stem, "NOASSERTION"), "copyrightText": "NOASSERTION"}
    return described


def built(binary):
    content = pathlib.Path(binary).read_bytes()
    return {
        "SPDXID": identifier("File", os.path.basename(binary)),
        "fileName": f"./{os.path.basename(binary)}",
        "fileTypes": ["BINARY" if content[:4] == b"\x7fELF" else "SOURCE"],
        "checksums": [{"algorithm": name, "checksumValue": hashlib.new(name, content).hexdigest()} for name in ("SHA1", "SHA256")],
        "licenseConcluded": "PostgreSQL",
        "licenseInfoInFiles": ["NOASSERTION"],
        "copyrightText": "NOASSERTION",
    }


def bill(release, compiler, binaries):
    files = [built(binary) for binary in binaries]
    links = {file["SPDXID"]: needed(binary) for file, binary in zip(files, binaries)}
    libraries = [library(soname, compiler) for soname in sorted({soname for each in links.values() for soname in each})]
    # SPDX: SHA-1 over the files' SHA-1s in order.
    verification = hashlib.sha1("".join(sorted(file["checksums"][0]["checksumValue"] for file in files)).encode()).hexdigest()
    pgonce = {
        "SPDXID": "SPDXRef-pgonce",
        "name": "pgonce",
        "versionInfo": release,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": True,
        "packageVerificationCode": {"packageVerificationCodeValue": verification},
        "hasFiles": [file["SPDXID"] for file in files],
        "licenseConcluded": "PostgreSQL",
        "licenseDeclared": "PostgreSQL",
        "licenseInfoFromFiles": ["NOASSERTION"],
        "copyrightText": "NOASSERTION",
        "primaryPackagePurpose": "APPLICATION",
    }
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-pgonce")]
    relations += [(file, "DYNAMIC_LINK", identifier("Library", soname)) for file, sonames in links.items() for soname in sorted(sonames)]
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or said("git", "log", "-1", "--format=%ct") or "0"
    document = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"pgonce-{release}",
        "comment": "Only libraries that the binaries name themselves are listed, not the libraries that these link in turn.",
        "creationInfo": {
            "created": datetime.datetime.fromtimestamp(int(epoch), datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "creators": ["Tool: pgonce-tools-sbom.py"],
        },
        "packages": [pgonce, *libraries],
        "files": files,
        "relationships": [{"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other} for one, kind, other in relations],
    }
    named = uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(document, sort_keys=True))
    return {**document, "documentNamespace": f"urn:uuid:{named}"}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--release", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--compiler", nargs="+", default=["cc"])
    parser.add_argument("binaries", nargs="+")
    options = parser.parse_args()
    text = json.dumps(bill(options.release, options.compiler, sorted(options.binaries, key=os.path.basename)), indent=1)
    pathlib.Path(options.output).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
