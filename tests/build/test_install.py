# SPDX-License-Identifier: PostgreSQL
"""`make install` (tools/install.py): as an ordinary user, below a prefix of one's own, and under sudo. tests/cli/test_installed.py has what is installed."""

import contextlib
import os
import pathlib
import re
import shutil
import subprocess

import pytest

from harness.postgres import ROOT, private_directory, unprivileged
from harness.release import VERSION

QUICK = ["-Dcommand=disabled", "-Dgateway=disabled", "-Dtests=disabled", "-Dsbom=false", "-Doptimization=0", "-Ddebug=false"]
AS_USER = unprivileged()[0]  # of this test, or of the servers where root runs it


def run(*command, path=None, destdir=None, variables=None, **user):
    environment = {name: value for name, value in os.environ.items() if name != "DESTDIR"} | ({"DESTDIR": str(destdir)} if destdir else {})
    environment |= {"PATH": f"{path}:{environment['PATH']}"} if path else {}
    environment |= variables or {}
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, cwd=ROOT, timeout=600, env=environment, **user)


def install(build, prefix, **options):
    return run("/usr/bin/python3", "tools/install.py", build, prefix, **options)


def uninstall(build, prefix, **options):
    return run("/usr/bin/python3", "tools/install.py", "--remove", build, prefix, **options)


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
        assert "sudo make install" in done.stderr and "make install PREFIX=" in done.stderr and done.stderr.count("\n") == 1


def as_user(*paths):
    """Made by this test, and the user's."""
    for path in paths:
        os.lchown(path, os.stat(path.parents[0]).st_uid, os.stat(path.parents[0]).st_gid)


@pytest.fixture(scope="module")
def home(place):
    """Of a user who has something of his own in the prefix. Configuring a build for another prefix takes seconds: the tests share this one."""
    directory = private_directory("of my own ", parent=place)
    for path in (directory / "local", directory / "local/lib"):
        path.mkdir()
        as_user(path)
    (directory / "local/lib/mine").write_text("")
    return directory


def test_below_a_prefix_of_ones_own_nothing_is_written_outside_of_it(build, home):
    done = install(build, home / "local", **AS_USER)
    assert done.returncode == 0, done.stdout + done.stderr
    told = subprocess.run(["meson", "introspect", "--installed", build], capture_output=True, text=True, check=True).stdout
    installed = {path.name: path for path in files(home / "local")}
    assert told.count('": "') == told.count(f'": "{home}/local/') > 0
    assert {"libpgonce.so", "libpgonce.pc", "pgonce.h", "pgonce_batcher.h", "pgonce.control", f"pgonce--{VERSION}.sql"} <= set(installed)
    # Who looks there only when told to is named, with what to tell.
    for path in (installed["libpgonce.pc"].parent, installed["libpgonce.so"].parent, installed["pgonce.control"].parents[1]):
        assert str(path) in done.stdout, done.stdout
    if (build / "native/pgonce_native.so").exists():
        assert f"dynamic_library_path = '$libdir:{installed['pgonce_native.so'].parent}'" in done.stdout


def test_a_program_in_c_is_built_and_runs_with_what_pkg_config_says_of_a_prefix_with_spaces(build, home):
    assert install(build, home / "local", **AS_USER).returncode == 0
    (pc,) = home.rglob("libpgonce.pc")
    (home / "a.c").write_text("#include <pgonce.h>\n#include <stdio.h>\nint main(void) { puts(once_version()); return 0; }\n")
    # As it is typed: eval, since a shell does not unquote what a command has printed.
    typed = 'eval "gcc a.c -o a $(pkg-config --cflags --libs libpgonce)" && ./a'
    done = subprocess.run(["sh", "-c", typed], cwd=home, capture_output=True, text=True, check=False, env={**os.environ, "PKG_CONFIG_PATH": str(pc.parent), "LD_LIBRARY_PATH": str(pc.parents[1])})
    assert (done.returncode, done.stdout) == (0, f"{VERSION}\n"), done.stderr


def pretend(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def test_another_pgonce_that_would_be_found_first_is_named_in_one_line(build, home):
    prefix, older = home / "local", home / "old"
    pretend(prefix / "bin/pgonce", f"#!/bin/sh\necho 'pgonce {VERSION} (libpgonce {VERSION})'\n")
    pretend(older / "pgonce", "#!/bin/sh\necho 'pgonce 0.9.0 (libpgonce 0.9.0)'\n")
    (older / "libpgonce.so.0.9.0").write_text("")
    (older / "libpgonce.so.1").symlink_to("libpgonce.so.0.9.0")
    try:
        done = install(build, prefix, path=older, variables={"LD_LIBRARY_PATH": str(older)}, **AS_USER)
        assert done.returncode == 0, done.stderr
        program, library = done.stderr.splitlines()
        assert program == f"Warning: {older}/pgonce (0.9.0) comes before {prefix}/bin/pgonce in PATH: remove that one, or put {prefix}/bin before it."
        assert re.fullmatch(rf"Warning: programs in C .* load {older}/libpgonce\.so\.0\.9\.0, and not the one just installed in {prefix}/\S+: remove it, or set LD_LIBRARY_PATH={prefix}/\S+\.", library), library
        # In the right order there is nothing to say.
        (lib,) = {path.parent for path in prefix.rglob("libpgonce.so")}
        done = install(build, prefix, path=prefix / "bin", variables={"LD_LIBRARY_PATH": f"{lib}:{older}"}, **AS_USER)
        assert (done.returncode, done.stderr) == (0, "")
    finally:
        shutil.rmtree(older)
        shutil.rmtree(prefix / "bin")


def test_a_program_that_cannot_run_where_it_was_installed_is_told(build, home):
    pretend(home / "local/bin/pgonce", "#!/nonexistent\n")
    try:
        done = install(build, home / "local", **AS_USER)
        assert done.returncode == 1 and done.stderr.count("\n") == 1 and f"{home}/local/bin/pgonce is installed and does not run" in done.stderr, done.stderr
    finally:
        shutil.rmtree(home / "local/bin")


def test_uninstall_removes_what_was_installed_and_nothing_else(build, home):
    assert install(build, home / "local", **AS_USER).returncode == 0
    there = {path for path in (home / "local").rglob("*") if path.is_symlink() or path.is_file()}
    done = uninstall(build, home / "elsewhere", **AS_USER)
    assert done.returncode == 1 and f"pgonce was installed below {home}/local: type `make uninstall PREFIX='{home}/local'`" in done.stderr, done.stderr
    assert all(path.is_symlink() or path.exists() for path in there)
    done = uninstall(build, home / "local", **AS_USER)
    assert (done.returncode, done.stderr) == (0, "") and f"{len(there) - 1} files of pgonce are removed" in done.stdout, done.stdout
    left = [path for path in (home / "local").rglob("*") if not path.is_dir() or "pgonce" in path.name]
    assert left == [home / "local/lib/mine"], left


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
    source = build / f"contract/pgonce--{VERSION}.sql"  # made by each build
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


def test_uninstall_takes_the_destdir_that_install_had(build, place):
    destination = private_directory("staged-", parent=place)
    assert install(build, "/usr/local", destdir=destination, **AS_USER).returncode == 0
    done = uninstall(build, "/usr/local", **AS_USER)
    assert done.returncode == 1 and "was into a DESTDIR" in done.stderr and files(destination), done.stderr
    done = uninstall(build, "/usr/local", destdir=destination, **AS_USER)
    assert done.returncode == 0 and not files(destination), done.stderr
