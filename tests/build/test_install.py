# SPDX-License-Identifier: PostgreSQL
"""`make install` (tools/install.py): as an ordinary user, below a prefix of one's own, and under sudo. tests/cli/test_installed.py has what is installed."""

import contextlib
import os
import pathlib
import shutil
import subprocess

import pytest

from harness.postgres import ROOT, private_directory, unprivileged

QUICK = ["-Dcommand=disabled", "-Dgateway=disabled", "-Dtests=disabled", "-Dsbom=false", "-Doptimization=0", "-Ddebug=false"]
AS_USER = unprivileged()[0]  # of this test, or of the servers where root runs it


def run(*command, path=None, destdir=None, **user):
    environment = {name: value for name, value in os.environ.items() if name != "DESTDIR"} | ({"DESTDIR": str(destdir)} if destdir else {})
    environment |= {"PATH": f"{path}:{environment['PATH']}"} if path else {}
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, cwd=ROOT, timeout=600, env=environment, **user)


def install(build, prefix, **options):
    return run("/usr/bin/python3", "tools/install.py", build, prefix, **options)


@pytest.fixture(scope="module")
def place():
    directory = private_directory("pgonce-install-")
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def build(place):
    """A build of an ordinary user, of the library and the extensions alone, on a machine without dpkg-dev."""
    programs = place / "programs"
    programs.mkdir()
    (programs / "dpkg-architecture").write_text("#!/bin/sh\nexit 1\n")
    (programs / "dpkg-architecture").chmod(0o755)
    done = run("tools/build.sh", place / "build", *QUICK, path=programs, **AS_USER)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return place / "build"


def files(directory):
    return {path for path in directory.rglob("*") if not path.is_dir()}


def test_a_place_that_may_not_be_written_is_named_with_what_to_type(build, place):
    locked = place / "locked"
    locked.mkdir(mode=0o555)
    for destdir in (None, locked):
        done = install(build, locked / "prefix" if not destdir else "/usr/local", destdir=destdir, **(AS_USER or {}))
        assert done.returncode == 1 and f"{locked} may not be written" in done.stderr, done.stderr
        assert "sudo make install" in done.stderr and "make install PREFIX=" in done.stderr and "Traceback" not in done.stderr


def test_below_a_prefix_of_ones_own_nothing_is_written_outside_of_it(build, place):
    home = private_directory("of my own ", parent=place)
    done = install(build, home / "local", **AS_USER)
    assert done.returncode == 0, done.stdout + done.stderr
    told = subprocess.run(["meson", "introspect", "--installed", build], capture_output=True, text=True, check=True).stdout
    installed = {path.name: path for path in files(home / "local")}
    assert told.count('": "') == told.count(f'": "{home}/local/') > 0
    assert {"libpgonce.so", "libpgonce.pc", "pgonce.h", "pgonce_batcher.h", "pgonce.control", "pgonce--1.0.0.sql"} <= set(installed)
    # Who looks there only when told to is named, with what to tell.
    for path in (installed["libpgonce.pc"].parent, installed["libpgonce.so"].parent, installed["pgonce.control"].parents[1]):
        assert str(path) in done.stdout, done.stdout
    if (build / "native/pgonce_native.so").exists():
        assert f"dynamic_library_path = '$libdir:{installed['pgonce_native.so'].parent}'" in done.stdout


def test_the_library_is_where_the_systems_loader_looks(build, place):
    multiarch = run("gcc", "-print-multiarch").stdout.strip()
    if not multiarch or not pathlib.Path("/usr/lib", multiarch).is_dir():
        pytest.skip("this system has no folder of libraries by architecture")
    destination = private_directory("destination-", parent=place)
    done = install(build, "/usr/local", destdir=destination, **AS_USER)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (destination / "usr/local/lib" / multiarch / "libpgonce.so.1").exists()
    assert (destination / "usr/local/lib" / multiarch / "pkgconfig/libpgonce.pc").exists()


def test_for_all_users_the_extension_goes_where_the_server_looks(build, place):
    destination = private_directory("destination-", parent=place)
    done = install(build, "/usr/local", destdir=destination, **AS_USER)
    assert done.returncode == 0, done.stdout + done.stderr
    sharedir = run("pg_config", "--sharedir").stdout.strip()
    assert pathlib.Path(f"{destination}{sharedir}/extension/pgonce.control").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, and a tree of somebody else")
def test_installing_as_root_leaves_a_build_that_its_owner_can_go_on_with(build, place):
    source = build / "contract/pgonce--1.0.0.sql"  # made by each build
    with contextlib.suppress(FileNotFoundError):
        source.unlink()
    owner = build.stat().st_uid
    for prefix in ("/opt/other", "/usr/local"):
        done = install(build, prefix, destdir=place / "of-root")
        assert done.returncode == 0, done.stdout + done.stderr
    assert {path.lstat().st_uid for path in (build, *build.rglob("*"))} == {owner}
    assert {path.lstat().st_uid for path in files(place / "of-root")} == {0}
    done = run("tools/build.sh", build, **AS_USER)
    assert done.returncode == 0, done.stdout + done.stderr
