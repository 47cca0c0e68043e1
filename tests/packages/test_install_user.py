# SPDX-License-Identifier: PostgreSQL
"""`make install` as people type it. tests/build/test_install.py has what an installation does; here is what stands in its way, each told in one line before
anything is built, and a whole installation in a home, without root."""

import json
import os
import pathlib
import pwd
import re
import shutil
import subprocess

import pytest

from harness.postgres import ROOT, private_directory, unprivileged
from harness.release import VERSION

AS_USER, USER = unprivileged()
NAME = USER.pw_name if USER else pwd.getpwuid(os.geteuid()).pw_name


@pytest.fixture(scope="module")
def place():
    directory = private_directory("pgonce-user-")
    yield directory
    subprocess.run(["chmod", "-R", "u+rwX", directory], check=False)
    shutil.rmtree(directory)


def make(place, target, *words, root=ROOT, seconds=60, user=None, **environment):
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "MAKE", "LD_")) and name not in ("DESTDIR", "PREFIX")}
    given = {**plain, "HOME": str(place), **environment}
    return subprocess.run(["make", "-s", "-C", root, target, *words], capture_output=True, text=True, check=False, timeout=seconds, cwd=place, env=given, **(AS_USER if user is None else user))


def told(done, task="make install"):
    """The one line, without make's own."""
    assert done.returncode != 0 and "Traceback" not in done.stderr, done.stderr
    lines = [line for line in done.stderr.splitlines() if not line.startswith("make")  or line.startswith(task + ": ")]
    assert len(lines) == 1 and lines[0].startswith(f"{task}: ") and not done.stdout, done.stdout + done.stderr
    return lines[0]


def test_the_usual_prefix_needs_root_and_says_what_to_type(place):
    if os.access("/usr/local", os.W_OK) and not AS_USER:
        pytest.skip("this user may write /usr/local")
    line = told(make(place, "install", f"BUILD={place}/none"))
    assert f"may not be written by {NAME}: type `sudo make install`, for all users of this machine, or `make install PREFIX=$HOME/.local`" in line
    assert not (place / "none").exists(), "it was refused before the build"


def test_another_prefix_is_part_of_what_to_type(place):
    locked = place / "locked for all"
    locked.mkdir()
    locked.chmod(0o555)
    line = told(make(place, "install", f"BUILD={place}/none", f"PREFIX={locked}/x"))
    assert f"{locked} may not be written by {NAME}: type `sudo make install PREFIX='{locked}/x'`" in line


def test_a_folder_that_may_not_even_be_looked_into_is_no_traceback(place):
    shut = place / "shut"
    shut.mkdir(mode=0o700)
    shut.chmod(0)
    assert "may not be written by" in told(make(place, "install", f"BUILD={place}/none", f"PREFIX={shut}/a/b"))


@pytest.mark.parametrize("given, expected", [
    ("PREFIX=", "PREFIX is '': it must be one folder"),
    ("PREFIX=/a:/b", "PREFIX is '/a:/b': it must be one folder, without a colon"),
    ("PREFIX=~nobody-of-this-name/x", "there is no such user: write the whole path"),
    ("PREFIX=/etc/passwd/x", "/etc/passwd is a file, and would have to be a folder"),
])  # fmt: skip
def test_a_prefix_that_is_no_folder_is_refused(place, given, expected):
    assert expected in told(make(place, "install", f"BUILD={place}/none", given))


def test_a_prefix_below_home_or_below_here_is_taken_as_a_shell_would(place):
    """It gets as far as the folder, which is shown by a refusal that names it."""
    (place / "mine").mkdir(exist_ok=True)
    (place / "mine").chmod(0o555)
    assert f"{place}/mine may not be written" in told(make(place, "install", f"BUILD={place}/none", "PREFIX=~/mine/x"))
    assert f"{place}/mine may not be written" in told(make(place, "install", f"BUILD={place}/none", "PREFIX=/x", "DESTDIR=~/mine"))
    # Relative to the source, where make is.
    assert "/etc may not be written" in told(make(place, "install", f"BUILD={place}/none", f"PREFIX={os.path.relpath('/etc/x', ROOT)}"))


def test_a_read_only_file_system_is_named_as_one(place):
    mounts = [line.split() for line in pathlib.Path("/proc/mounts").read_text().splitlines()]
    path = next((each[1] for each in mounts if "ro" in each[3].split(",") and os.path.isdir(each[1]) and os.access(each[1], os.X_OK)), None)
    if path is None and os.geteuid() == 0:
        path = str(place / "fixed")
        os.mkdir(path)
        # In namespaces of its own, which end with it.
        command = f'mount -t tmpfs -o ro none "{path}" && exec make -s -C "{ROOT}" install BUILD="{place}/none" PREFIX="{path}/x"'
        done = subprocess.run(["unshare", "-m", "sh", "-c", command], capture_output=True, text=True, check=False, timeout=60)
        if "unshare" in done.stderr or "mount:" in done.stderr:
            pytest.skip("nothing may be mounted here")
    elif path is None:
        pytest.skip("nothing is mounted read-only here, and this user may not mount")
    else:
        done = make(place, "install", f"BUILD={place}/none", f"PREFIX={path}/x")
    assert f"{path} is on a file system that is mounted read-only: choose another folder with PREFIX=" in told(done)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, and another user")
def test_a_build_of_root_is_named_with_what_to_type(place):
    build = place / "of-root"
    (build / "meson-info").mkdir(parents=True)
    (build / "build.ninja").write_text("")
    line = told(make(place, "install", f"BUILD={build}", f"PREFIX={place}/x"))
    assert f"{build} belongs to root, and {NAME} may not write it: type `sudo chown -R {NAME} {build}`, or choose another folder with BUILD=" in line


def fake_build(place, name, source):
    build = place / name
    (build / "meson-info").mkdir(parents=True)
    (build / "build.ninja").write_text("")
    (build / "meson-info/meson-info.json").write_text(json.dumps({"directories": {"source": str(source), "build": str(build)}}))
    for path in (build, *build.rglob("*")):
        os.lchown(path, os.stat(place).st_uid, os.stat(place).st_gid)
    return build


def test_a_build_of_a_tree_that_was_moved_is_named(place):
    build = fake_build(place, "moved", "/somewhere/else")
    assert f"{build} was made for /somewhere/else, and not for {ROOT}: remove that folder" in told(make(place, "install", f"BUILD={build}", f"PREFIX={place}/x"))


def test_a_program_of_the_build_that_is_missing_is_named_with_what_installs_it(place):
    build = fake_build(place, "programs", ROOT)
    here = place / "few"
    here.mkdir()
    for name in ("sh", "make", "ninja", "dirname", "gcc", "cat", "env", "ls", "pkg-config", "pg_config"):
        if shutil.which(name):
            (here / name).symlink_to(shutil.which(name))
    (build / "what_was_here").write_text("")
    done = make(place, "uninstall", f"BUILD={build}", f"PREFIX={place}/x", PATH=str(here))
    assert "knows of no installation" in told(done, "make uninstall")
    (build / "meson-logs").mkdir()
    (build / "meson-logs/install-log.txt").write_text("/x\n")
    assert "meson is not in PATH: tools/setup.sh build installs it" in told(make(place, "uninstall", f"BUILD={build}", f"PREFIX={place}/x", PATH=str(here)), "make uninstall")


def test_a_build_that_meson_cannot_read_is_named(place):
    build = fake_build(place, "unreadable", ROOT)
    (build / "meson-logs").mkdir()
    (build / "meson-logs/install-log.txt").write_text("/x\n")
    assert f"meson cannot read {build}" in told(make(place, "uninstall", f"BUILD={build}", f"PREFIX={place}/x"), "make uninstall")


# ---- A whole one.


@pytest.fixture(scope="module")
def home(place):
    """Of a user, with a clone of the last commit."""
    directory = private_directory("home of a user ", parent=place)
    subprocess.run(["git", "-c", f"safe.directory={ROOT}", "clone", "-q", "--no-hardlinks", ROOT, directory / "pgonce"], check=True)
    for path in directory.rglob("*"):
        os.lchown(path, os.stat(place).st_uid, os.stat(place).st_gid)
    return directory


def as_typed(home, line, **environment):
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LD_", "XDG_", "MAN"))}
    environment = {**plain, "HOME": str(home), "PATH": f"{home}/.local/bin:{os.environ['PATH']}", **environment}
    return subprocess.run(["bash", "-c", line], cwd=home, capture_output=True, text=True, check=False, timeout=1200, env=environment, **AS_USER)


@pytest.mark.whole
def test_a_user_without_root_installs_below_his_home_uses_all_of_it_and_removes_it(home):
    done = as_typed(home, "cd pgonce && make install PREFIX=~/.local")
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stdout[-3000:] + done.stderr[-3000:]
    local = home / ".local"
    # What it says is what to type.
    variables = dict(re.findall(r"(\w+_PATH)=(.*?)(?= \w+_PATH=|$)", next(line for line in done.stdout.splitlines() if line.startswith("For programs in C: "))))
    done = as_typed(home, "pgonce version && pgonce relay --help >/dev/null && man -w pgonce pgonce-relay pgonce.conf")
    assert done.returncode == 0 and done.stdout.startswith(f"pgonce {VERSION} "), done.stderr
    assert done.stdout.count(f"{local}/share/man/") == 3
    (home / "a.c").write_text("#include <pgonce.h>\n#include <stdio.h>\nint main(void) { puts(once_version()); return 0; }\n")
    done = as_typed(home, 'eval "gcc a.c -o a $(pkg-config --cflags --libs libpgonce)" && ./a', **variables)
    assert (done.returncode, done.stdout) == (0, f"{VERSION}\n"), done.stderr
    assert list(local.rglob("pgonce.control")) and list(local.rglob("ngx_http_once_module.so")) and list(local.rglob("pgonce-keep.service"))
    units = sorted((local / "share/systemd/user").iterdir())
    assert [unit.name for unit in units] == [f"pgonce-{job}.service" for job in ("console", "consume@", "keep", "relay@")]
    if shutil.which("systemd-analyze"):
        # Its path has spaces: systemd takes it for one word, and finds the program.
        done = as_typed(home, "systemd-analyze --user verify --man=no .local/share/systemd/user/pgonce-keep.service .local/share/systemd/user/pgonce-console.service")
        assert not [line for line in done.stderr.splitlines() if "pgonce" in line], done.stderr
    done = as_typed(home, "pgonce init --print | grep -c 'CREATE.* FUNCTION once'")
    assert done.returncode == 0 and int(done.stdout) > 100, done.stdout
    done = as_typed(home, "cd pgonce && make uninstall PREFIX=~/.local")
    assert done.returncode == 0, done.stderr
    assert not [path for path in local.rglob("*") if not path.is_dir() or "pgonce" in path.name]
