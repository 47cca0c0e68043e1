# SPDX-License-Identifier: PostgreSQL
"""`make release` (tools/release.py): what it refuses, what it makes, and that it makes the same bytes again. Most tests are of a small tree with the same
tools; the last ones release this tree."""

import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import time

import pytest

from harness.postgres import ROOT, private_directory, unprivileged, wait_until
from harness.release import VERSION

sys.path.insert(0, str(ROOT / "tools"))
import sources  # noqa: E402
import version  # noqa: E402

TOOLS = ("release.py", "sources.py", "version.py", "sbom_release.py")
CHANGES = "# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2026-12-01\n\n- It begins ([concepts](docs/why/concepts.md#words)).\n\n## [1.2.2] - 2026-11-01\n\n- Older.\n"
# What a part may notice of where and by whom it is built.
PART = """#!/bin/sh
umask >"$1/settings-1.2.3"
env | sed -n 's/^\\(TZ\\|LC_ALL\\|LANG\\|SOURCE_DATE_EPOCH\\|DESTDIR\\|MAKEFLAGS\\)=/&/p' | LC_ALL=C sort >>"$1/settings-1.2.3"
echo SELECT 1 >"$1/upgrade-1.sql"
"""
FILES = {
    ".gitignore": "/dist/\n/build*/\n__pycache__/\n*.pyc\n",
    "CHANGELOG.md": CHANGES,
    "docs/ä and b.md": "odd\n",
    "contract/releases.txt": "# Each release, and its contract.\n",
    "packaging/one/build": PART,
}
# And those that repeat the version, as they are.
PLACES = {path: (ROOT / path).read_text() for path, _ in version.PLACES} | {f"native/pgonce_native--{VERSION}.sql": "SELECT 1;\n"}
EXPECTED = ["Containerfile", "Containerfile.nginx", "RELEASE_NOTES.md", "SHA256SUMS", "pgonce-1.2.3.spdx.json", "pgonce-1.2.3.tar.xz", "settings-1.2.3", "upgrade-1.sql"]


def git(root, *command):
    environment = {**os.environ, "GIT_AUTHOR_DATE": "1700000000 +0000", "GIT_COMMITTER_DATE": "1700000000 +0000"}
    words = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main", "-C", str(root), *command]
    return subprocess.run(words, check=True, capture_output=True, text=True, env=environment).stdout


def write(root, path, text):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(0o755 if path.endswith("/build") else 0o644)


def make_tree(root):
    for path, text in (FILES | PLACES).items():
        write(root, path, text)
    for name in TOOLS:
        (root / "tools").mkdir(exist_ok=True)
        shutil.copy(ROOT / "tools" / name, root / "tools" / name)
    git(root, "init", "-q")
    git(root, "add", "-A")  # only what git knows gets the version
    version.write("1.2.3", root)
    commit(root)
    return root


def commit(root):
    git(root, "add", "-A")
    git(root, "commit", "-qm", "x")


@pytest.fixture
def tree(tmp_path):
    return make_tree(tmp_path / "tree")


def release(root, dist, *also, umask=None, **environment):
    plain = {name: value for name, value in os.environ.items() if name not in ("SOURCE_DATE_EPOCH", "MAKEFLAGS")}
    done = subprocess.run([sys.executable, "-B", root / "tools/release.py", dist, *also], capture_output=True, text=True, check=False, timeout=120,
                          env={**plain, **environment}, **({} if umask is None else {"umask": umask}))  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done


def content(dist):
    return {path.name: path.read_bytes() for path in dist.iterdir()}


def test_a_release_has_its_parts_the_source_notes_a_bill_and_checksums(tree):
    for stray in ("dist/old.pyc", "build/x", "tools/__pycache__/y.pyc"):
        write(tree, stray, "lies about")
    (tree / "dist/old.pyc").unlink()
    done = release(tree, tree / "dist")
    assert done.returncode == 0, done.stderr
    assert sorted(content(tree / "dist")) == EXPECTED
    assert {path.stat().st_mode & 0o777 for path in (tree / "dist").iterdir()} == {0o644}
    # As a user checks it, in the folder where the files are.
    checked = subprocess.run(["sha256sum", "-c", "--strict", "SHA256SUMS"], cwd=tree / "dist", capture_output=True, text=True, check=False)
    assert checked.returncode == 0 and checked.stdout.count(": OK") == len(EXPECTED) - 1, checked.stderr
    assert [line.split("  ")[1] for line in (tree / "dist/SHA256SUMS").read_text().splitlines()] == [name for name in EXPECTED if name != "SHA256SUMS"]
    notes = (tree / "dist/RELEASE_NOTES.md").read_text()
    assert notes.startswith("# pgonce 1.2.3 (2026-12-01)\n") and "- It begins (concepts (`docs/why/concepts.md`)).\n" in notes and "Older" not in notes
    with tarfile.open(tree / "dist/pgonce-1.2.3.tar.xz") as archive:
        told = {entry.name: entry for entry in archive}
    assert len(told) > 15 and sorted(told) == sorted(f"pgonce-1.2.3/{path}" for path in git(tree, "ls-files", "-z").split("\0") if path)
    assert {entry.mtime for entry in told.values()} == {1700000000} and {(entry.uid, entry.gid, entry.uname) for entry in told.values()} == {(0, 0, "")}
    assert told["pgonce-1.2.3/packaging/one/build"].mode == 0o755 and told["pgonce-1.2.3/meson.build"].mode == 0o644


def test_the_bill_names_each_file_with_its_hash_and_what_it_needs(tree):
    assert release(tree, tree / "dist").returncode == 0
    bill = json.loads((tree / "dist/pgonce-1.2.3.spdx.json").read_text())
    sums = dict(reversed(line.split("  ")) for line in (tree / "dist/SHA256SUMS").read_text().splitlines())
    listed = {each["packageFileName"]: each["checksums"][0]["checksumValue"] for each in bill["packages"] if "packageFileName" in each}
    assert listed == {name: digest for name, digest in sums.items() if not name.endswith(".spdx.json")}
    identifiers = [each["SPDXID"] for each in bill["packages"]]
    assert len(set(identifiers)) == len(identifiers)
    ends = {each[end] for each in bill["relationships"] for end in ("spdxElementId", "relatedSpdxElement")}
    assert ends == {*identifiers, "SPDXRef-DOCUMENT"}
    assert [each["externalRefs"][0]["referenceLocator"] for each in bill["packages"] if "Need" in each["SPDXID"]] == ["pkg:docker/debian"]


def test_it_may_be_built_again_into_the_same_folder(tree):
    assert release(tree, tree / "dist").returncode == 0
    before = content(tree / "dist")
    (tree / "dist/settings-1.2.3").write_text("broken")
    assert release(tree, tree / "dist").returncode == 0 and content(tree / "dist") == before


def test_the_same_bytes_for_another_user_in_another_folder_time_zone_locale_and_umask(tree, tmp_path):
    assert release(tree, tmp_path / "one", umask=0o022, TZ="UTC", LC_ALL="C").returncode == 0
    other = tmp_path / "a folder with spaces" / "ä"
    other.parent.mkdir()
    subprocess.run(["git", "clone", "-q", tree, other], check=True, umask=0o077)
    for number, path in enumerate(sorted(other.rglob("*"), reverse=True)):
        os.utime(path, (number, number))  # git asks nobody for the time of a file
    done = release(other, tmp_path / "two", umask=0o077, TZ="Asia/Kathmandu", LC_ALL="tr_TR.UTF-8", LANG="de_DE", HOME=str(tmp_path), DESTDIR="/nowhere", MAKEFLAGS="w")
    assert done.returncode == 0, done.stderr
    assert content(tmp_path / "one") == content(tmp_path / "two")


def test_an_unpacked_archive_makes_the_same_release_without_git(tree, tmp_path):
    assert release(tree, tmp_path / "one").returncode == 0
    with tarfile.open(tmp_path / "one/pgonce-1.2.3.tar.xz") as archive:
        archive.extractall(tmp_path)
    unpacked = tmp_path / "pgonce-1.2.3"
    for stray in ("dist/pgonce-1.2.3.tgz", "build/x", "build-run/y", "tools/__pycache__/y.pyc"):
        write(unpacked, stray, "lies about")
    # A clone around it, such as a distribution's, is not this project's.
    git(tmp_path, "init", "-q")
    done = release(unpacked, tmp_path / "two")
    assert done.returncode == 0, done.stderr
    assert content(tmp_path / "one") == content(tmp_path / "two")


def changed(path, old, new, committed=True):
    def apply(tree):
        text = (tree / path).read_text() if (tree / path).exists() else ""
        assert old in text
        write(tree, path, text.replace(old, new, 1))
        if committed:
            commit(tree)
    return apply


def holds(name):
    def apply(tree):
        write(tree, f"dist/{name}", "old")
    return apply


def two_of_a_name(tree):
    write(tree, "packaging/two/build", PART)
    commit(tree)


REFUSALS = {
    "a changed file": (changed("meson.build", "'pgonce'", "'pgonce' ", committed=False), "1 file(s) are changed or new, first meson.build: commit them"),
    "a new file": (changed("docs/new.md", "", "x", committed=False), "1 file(s) are changed or new, first docs/new.md: commit them"),
    "no section": (changed("CHANGELOG.md", "[1.2.3]", "[1.2.4]"), "CHANGELOG.md has no section [1.2.3]"),
    "an empty section": (changed("CHANGELOG.md", "- It begins ([concepts](docs/why/concepts.md#words)).\n", ""), "CHANGELOG.md has no section [1.2.3]"),
    "something unreleased": (changed("CHANGELOG.md", "[Unreleased]\n", "[Unreleased]\n\n- More.\n"), "CHANGELOG.md has lines under [Unreleased]"),
    "another version": (changed("clients/go/version.go", "1.2.3", "1.2.2"), "clients/go/version.go:6 has version 1.2.2, and meson.build 1.2.3: tools/version.py --set 1.2.3"),
    "an older release": (holds("pgonce_1.2.2_amd64.deb"), "dist holds pgonce_1.2.2_amd64.deb, which is not of 1.2.3: empty it"),
    "something else": (holds("notes.txt"), "dist holds notes.txt, which is not of 1.2.3: empty it"),
    "a file that it does not make": (holds("pgonce-1.2.3.rpm"), "dist holds pgonce-1.2.3.rpm, which this release does not have: empty it"),
    "a file in its place": (lambda tree: (tree / "dist").write_text(""), "dist is not a folder"),
    "two of a name": (two_of_a_name, "one and two both made settings-1.2.3: one must have another name"),
    "a part that fails": (changed("packaging/one/build", "umask", "echo no compiler; exit 3; umask"), "packaging/one/build failed, as it says above"),
    "a part that makes nothing": (changed("packaging/one/build", "umask", "exit 0; umask"), "packaging/one/build made nothing"),
    "a part that makes a folder": (changed("packaging/one/build", "umask", "mkdir $1/x; umask"), "packaging/one/build made a folder"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_what_is_not_ready_is_refused_with_one_line(tree, case):
    prepare, expected = REFUSALS[case]
    if case == "a file in its place":
        write(tree, ".gitignore", "/dist\n")
        commit(tree)
    prepare(tree)
    before = content(tree / "dist") if (tree / "dist").is_dir() else None
    done = release(tree, tree / "dist")
    assert done.returncode == 1 and expected in done.stderr, done.stderr
    told = [line for line in done.stderr.splitlines() if line.startswith("make release: ")]
    assert len(told) == 1 and (done.stderr.splitlines() == told or case == "a part that fails" and "no compiler" in done.stderr)
    assert (content(tree / "dist") if (tree / "dist").is_dir() else None) == before, "nothing is half made"


def test_a_part_that_fails_ends_the_others(tree, tmp_path):
    write(tree, "packaging/one/build", "#!/bin/sh\nexit 1\n")
    write(tree, "packaging/a/build", f"#!/bin/sh\necho $$ >{tmp_path}/pid\nexec sleep 100\n")
    commit(tree)
    began = time.monotonic()
    assert release(tree, tree / "dist", TMPDIR=str(tmp_path)).returncode == 1
    assert time.monotonic() - began < 50 and not list(tmp_path.glob("pgonce-release-*"))
    if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text():
        wait_until(lambda: not pathlib.Path("/proc", (tmp_path / "pid").read_text().strip()).exists(), "the end of the other part")


def test_packages_that_were_built_elsewhere_are_part_of_it(tree, tmp_path):
    also = tmp_path / "also"
    write(also, "control/DEBIAN/control", "Package: pgonce\nVersion: 1.2.3-1~deb13\nArchitecture: amd64\nMaintainer: a <a@b>\nDescription: x\nDepends: libpq5 (>= 16)\n")
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", also / "control", also], check=True, capture_output=True)
    shutil.rmtree(also / "control")
    done = release(tree, tree / "dist", also)
    assert done.returncode == 0, done.stderr
    assert sorted(content(tree / "dist")) == sorted([*EXPECTED, "pgonce_1.2.3-1~deb13_amd64.deb"])
    assert "pgonce_1.2.3-1~deb13_amd64.deb" in (tree / "dist/SHA256SUMS").read_text()
    told = (tree / "dist/pgonce-1.2.3.spdx.json").read_text()
    assert "pkg:deb/debian/pgonce@1.2.3-1~deb13?arch=amd64" in told and "pkg:deb/debian/libpq5" in told
    # Again, and without them: what the folder held is not of this release.
    assert release(tree, tree / "dist", also).returncode == 0
    done = release(tree, tree / "dist")
    assert done.returncode == 1 and "which this release does not have" in done.stderr


def test_a_folder_of_packages_that_holds_something_else_is_refused(tree, tmp_path):
    done = release(tree, tree / "dist", tmp_path / "none")
    assert done.returncode == 1 and "none is not a folder: ALSO= names one" in done.stderr
    write(tmp_path, "also/pgonce_1.2.2-1~deb13_amd64.deb", "")
    done = release(tree, tree / "dist", tmp_path / "also")
    assert done.returncode == 1 and "holds pgonce_1.2.2-1~deb13_amd64.deb, which is no Debian package of 1.2.3" in done.stderr
    assert not (tree / "dist").exists()


def test_a_time_that_is_no_number_is_refused(tree):
    done = release(tree, tree / "dist", SOURCE_DATE_EPOCH="now")
    assert done.returncode == 1 and done.stderr == "make release: SOURCE_DATE_EPOCH is no number: give it seconds since 1970, or unset it\n"


def test_the_archive_of_this_tree_has_all_of_it_and_knows_its_files_without_git(tmp_path):
    with tarfile.open(fileobj=io.BytesIO(sources.tar(ROOT, "pgonce", 1700000000))) as archive:
        archive.extractall(tmp_path)
    unpacked = tmp_path / "pgonce"
    assert sources.files(unpacked) == sources.files(ROOT)
    assert os.access(unpacked / ".ci/run", os.X_OK) and os.access(unpacked / "tools/setup.sh", os.X_OK)
    assert sources.epoch(unpacked) == (int(os.environ["SOURCE_DATE_EPOCH"]) if "SOURCE_DATE_EPOCH" in os.environ else 1700000000)


# ---- This tree, whole.


def clone(to, source=ROOT, user=None):
    """The last commit, as `make release` wants it, for this user."""
    subprocess.run(["git", "-c", f"safe.directory={source}", "clone", "-q", "--no-hardlinks", source, to], check=True, umask=0o022)
    if user:
        for path in (to, *to.rglob("*")):
            os.lchown(path, user["user"], user["group"])
    return to


def make(root, *words, umask=0o022, user=None, seconds=1500, **environment):
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PGONCE_", "PYTEST_", "MAKE")) and name != "SOURCE_DATE_EPOCH"}
    done = subprocess.run(["make", "-C", root, *words], capture_output=True, text=True, check=False, timeout=seconds, umask=umask, env={**plain, **environment},
                          **(user or {}))
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def place():
    directory = private_directory("pgonce-release-")
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def built(place):
    root = clone(place / "first")
    began = os.times().elapsed
    make(root, "release")
    return root / "dist", os.times().elapsed - began


@pytest.mark.whole
def test_make_release_makes_all_of_it_within_ten_minutes(built):
    dist, seconds = built
    assert seconds < 600
    names = set(content(dist))
    for ending in (".deb", ".tgz", ".whl", ".tar.gz", ".jar", "-sources.jar", "-javadoc.jar", ".zip", ".sql", ".tar.xz", ".spdx.json", "Containerfile", "RELEASE_NOTES.md"):
        assert any(name.endswith(ending) for name in names), f"no {ending} among {sorted(names)}"
    checked = subprocess.run(["sha256sum", "-c", "--strict", "--quiet", "SHA256SUMS"], cwd=dist, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


@pytest.mark.whole
def test_the_bill_of_materials_is_valid_spdx(built, tmp_path):
    dist, _ = built
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    fetched = subprocess.run([tmp_path / "venv/bin/pip", "install", "-q", "spdx-tools>=0.8"], capture_output=True, text=True, check=False)
    if fetched.returncode != 0:
        pytest.skip(f"spdx-tools cannot be fetched: {fetched.stderr[-200:]}")
    done = subprocess.run([tmp_path / "venv/bin/pyspdxtools", "-i", dist / f"pgonce-{VERSION}.spdx.json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.whole
def test_built_twice_it_is_the_same(built, place):
    """By another user, in another folder, with another umask, time zone and locale, and on a later day."""
    dist, _ = built
    (user,) = unprivileged()[:1]
    home = private_directory("home of another ", parent=place)
    root = clone(place / "a second folder", place / "first", user)
    make(root, "release", umask=0o077, user=user, TZ="Pacific/Kiritimati", LC_ALL="C.UTF-8", HOME=str(home))
    first, second = content(dist), content(root / "dist")
    assert sorted(first) == sorted(second)
    assert not [name for name in first if first[name] != second[name]]


@pytest.mark.whole
def test_the_unpacked_source_archive_builds_runs_and_makes_packages(built, place):
    dist, _ = built
    subprocess.run(["tar", "-xf", dist / f"pgonce-{VERSION}.tar.xz", "-C", place], check=True)
    root = pathlib.Path(place, f"pgonce-{VERSION}")
    try:
        told = make(root, "run")
        assert "exactly once" in told or "once" in told
    finally:
        make(root, "stop")
    make(root, "deb")
    packages = {path.name: path.read_bytes() for path in (root / "dist").glob("*.deb")}
    assert packages and packages == {name: data for name, data in content(dist).items() if name.endswith(".deb")}
    # Its quick tests of what is released find no git there, and need none.
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/packages/test_release_version.py", "-k", "not built"], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
