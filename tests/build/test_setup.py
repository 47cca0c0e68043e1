# SPDX-License-Identifier: PostgreSQL
"""tools/setup.sh where there is no apt-get: what is missing is named by what it is for, once, and nothing is built."""

import os
import pathlib
import shutil
import subprocess

import pytest

from harness.postgres import ROOT

# What every system has; neither apt-get nor anything that the build needs.
PLAIN = ("awk", "cat", "cut", "dirname", "env", "find", "grep", "id", "ls", "mktemp", "printf", "rm", "sed", "sh", "tee", "test", "tr")
# A `make` that could go on would build here, and not in the tree that is tested.
MAKE = ["make", "-s", "-C", str(ROOT), "run", "BUILD=/nonexistent/build"]


class Machine:
    """Programs that are in PATH, and libraries that pkg-config knows; besides these only /usr/sbin, which setup.sh looks into by itself."""

    def __init__(self, directory):
        self.directory = pathlib.Path(directory)
        self.programs = self.directory / "programs"
        self.libraries = self.directory / "libraries"
        self.programs.mkdir()
        self.libraries.mkdir()
        self.have(*PLAIN)

    def have(self, *programs):
        for name in programs:
            found = shutil.which(name)
            if found:
                (self.programs / name).symlink_to(found)

    def pretend(self, *programs):
        for name in programs:
            path = self.programs / name
            path.write_text("#!/bin/sh\nexit 0\n")
            path.chmod(0o755)

    def library(self, *names):
        for name in names:
            (self.libraries / f"{name}.pc").write_text(f"Name: {name}\nDescription: {name}\nVersion: 99\n")

    def run(self, *command):
        environment = {"PATH": str(self.programs), "PKG_CONFIG_LIBDIR": str(self.libraries), "HOME": os.environ.get("HOME", "/")}
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=ROOT, timeout=60)


@pytest.fixture
def machine(tmp_path):
    made = Machine(tmp_path)
    if made.run("sh", "-c", "PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin; command -v apt-get").returncode == 0:
        pytest.skip("apt-get is among this system's programs for root")
    return made


def test_what_is_missing_is_named_once_by_what_it_is_for(machine):
    done = machine.run("sh", "tools/setup.sh", "run")
    assert done.returncode == 1 and "There is no apt-get" in done.stderr
    for line in ("program gcc +the compiler", "library libpq +the PostgreSQL client library", "program meson +the build", "library jansson +JSON"):
        words = line.split(" +")
        assert len([told for told in done.stderr.splitlines() if words[0] + " " in told + " " and words[1] in told]) == 1, done.stderr


def test_make_run_stops_before_it_builds(machine):
    machine.have("make")
    done = machine.run(*MAKE)
    assert done.returncode != 0
    assert "There is no apt-get" in done.stderr and "meson" in done.stderr
    assert "ninja" not in done.stdout


def test_brokers_that_are_missing_are_left_out_with_a_word(machine):
    machine.have("pkg-config", "python3")
    machine.pretend("gcc", "meson", "ninja")
    machine.library("libpq", "libcrypto", "jansson", "libcurl", "libmicrohttpd")
    done = machine.run("sh", "tools/setup.sh", "build")
    assert done.returncode == 0, done.stderr
    assert "Left out" in done.stderr and "rdkafka" in done.stderr and "libpq" not in done.stderr


def test_nothing_is_said_where_nothing_is_missing(machine):
    machine.have("pkg-config", "python3")
    machine.pretend("gcc", "meson", "ninja")
    machine.library("libpq", "libcrypto", "jansson", "libcurl", "libmicrohttpd", "rdkafka", "librabbitmq", "libnats")
    done = machine.run("sh", "tools/setup.sh", "build")
    told = [line for line in done.stderr.splitlines() if "nginx" not in line and "Left out" not in line]
    assert (done.returncode, done.stdout, told) == (0, "", [])


def test_a_task_that_does_not_exist_is_refused_with_those_that_do(machine):
    done = machine.run("sh", "tools/setup.sh", "everything")
    assert done.returncode == 2 and "setup.sh run | build | test" in done.stderr


def test_make_install_says_what_is_missing_where_there_is_no_python(machine):
    machine.have("make")
    done = machine.run("make", "-s", "-C", str(ROOT), "install", "PYTHON=/nonexistent/python3", "BUILD=/nonexistent/build")
    assert done.returncode != 0 and "There is no apt-get" in done.stderr and "program python3" in done.stderr, done.stderr
