# SPDX-License-Identifier: PostgreSQL
"""The version has one home, meson.build. Whatever repeats it has the same, in the tree and in what is built."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from harness.postgres import ROOT
from harness.release import VERSION

sys.path.insert(0, str(ROOT / "tools"))
import sources  # noqa: E402

BUILD = pathlib.Path(os.environ.get("PGONCE_BUILD") or ROOT / "build")
# Not of pgonce: other people's packages, formats and addresses.
FOREIGN = re.compile(r"openmetrics|github\.com/|1\.0\.0\.0|BlueOak|spring-payments", re.I)


def version(root, *given):
    return subprocess.run([sys.executable, root / "tools/version.py", *given], capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    to = tmp_path_factory.mktemp("tree")
    for path in sources.files():
        (to / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, to / path)
    return to


@pytest.fixture
def tree(pristine):
    """What a test changes is put back."""
    changed = {}

    class Tree:
        root = pristine

        def replace(self, path, old, new):
            changed.setdefault(path, (pristine / path).read_text())
            text = (pristine / path).read_text()
            assert old in text, path
            (pristine / path).write_text(text.replace(old, new, 1))

    yield Tree()
    for path, text in changed.items():
        (pristine / path).write_text(text)


def test_all_of_the_tree_has_one_version():
    done = version(ROOT, "--check")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert version(ROOT).stdout == f"{VERSION}\n"


@pytest.mark.parametrize("path, old, new", [
    ("clients/go/version.go", f'"{VERSION}"', '"9.0.1"'),
    ("clients/java/pgonce/pom.xml", f"<version>{VERSION}<", "<version>9.0.1<"),
    ("contract/pgonce.control", f"'{VERSION}'", "'9.0.1'"),
    ("docs/start/install.md", "\n", "\nInstall pgonce-9.0.1.tgz, or pgonce@9.0.1.\n"),
    ("docs/reference/c.md", "\n", "\nIt is libpgonce.so.9.0.1.\n"),
])  # fmt: skip
def test_a_place_with_another_version_is_named(tree, path, old, new):
    tree.replace(path, old, new)
    done = version(tree.root, "--check")
    assert done.returncode == 1 and re.search(rf"^{path}:\d+ has version 9\.0\.1, and meson\.build {re.escape(VERSION)}$", done.stdout, re.M), done.stdout


def test_a_place_without_its_version_is_named(tree):
    tree.replace("clients/node/package.json", '"version"', '"was"')
    done = version(tree.root, "--check")
    assert done.returncode == 1 and done.stdout == "clients/node/package.json has no version where it is looked for: tools/version.py\n"


def test_one_command_writes_the_next_version_everywhere(tmp_path, pristine):
    """And no other spelling of the old one is left behind."""
    root = tmp_path / "tree"
    shutil.copytree(pristine, root)
    assert version(root, "--set", "9.8.7").returncode == 0
    done = version(root, "--check")
    assert (done.returncode, done.stdout, version(root).stdout) == (0, "", "9.8.7\n")
    left = []
    for path in sources.files(root):
        if path.endswith((".sum", "package-lock.json", ".png", "CHANGELOG.md")) or path.startswith(("tests/contract/upgrade/", "bench/", "contract/releases.txt")):
            continue
        for number, line in enumerate((root / path).read_bytes().decode(errors="replace").splitlines(), 1):
            if re.search(rf"(?<![\d.]){re.escape(VERSION)}(?!\d)", line) and not FOREIGN.search(f"{path} {line}"):
                left.append(f"{path}:{number}: {line.strip()}")
    assert not left, "\n".join(left)


def test_what_is_built_has_it():
    told = subprocess.run([BUILD / "cli/pgonce", "version"], capture_output=True, text=True, check=True).stdout
    assert told.startswith(f"pgonce {VERSION} (libpgonce {VERSION}, "), told
    soname = subprocess.run(["readelf", "-d", BUILD / f"lib/libpgonce.so.{VERSION}"], capture_output=True, text=True, check=True).stdout
    assert f"[libpgonce.so.{VERSION.split('.')[0]}]" in soname
    for page in ("pgonce.1", "pgonce-keep.1", "pgonce.conf.5"):
        (found,) = BUILD.rglob(page)
        assert re.search(rf'^\.TH .*"pgonce {re.escape(VERSION)}"', found.read_text(), re.M), page
