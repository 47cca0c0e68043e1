# SPDX-License-Identifier: PostgreSQL
"""make sql and make client, with which the pages of docs/start/ begin: on a machine that has no C compiler, meson or ninja."""

import os
import shutil
import subprocess

import pytest

from harness.postgres import ROOT
from harness.release import VERSION

PROGRAMS = ("bash", "cat", "chmod", "cp", "dirname", "env", "git", "ls", "make", "mkdir", "node", "npm", "python3", "readlink", "rm", "sed", "sh", "tar", "uname")


@pytest.fixture
def make(tmp_path):
    (tmp_path / "bin").mkdir()
    for program in PROGRAMS:
        found = shutil.which(program, path="/usr/bin:/bin")
        if found:
            (tmp_path / "bin" / program).symlink_to(found)
    assert not any(shutil.which(name, path=tmp_path / "bin") for name in ("cc", "gcc", "clang", "meson", "ninja", "pg_config"))

    def run(*words):
        environment = {**{name: value for name, value in os.environ.items() if not name.startswith(("PG", "MAKE"))}, "PATH": str(tmp_path / "bin")}
        return subprocess.run(["make", "-s", "-C", ROOT, *words, f"DIST={tmp_path / 'out'}"], capture_output=True, text=True, check=False, timeout=300, env=environment)

    return run


def test_the_contract_is_written_as_sql_without_a_compiler(make, tmp_path):
    done = make("sql")
    assert (done.returncode, done.stderr) == (0, "")
    assert {"pgonce.sql", f"pgonce-{VERSION}.sql"} <= {path.name for path in (tmp_path / "out").iterdir()}


def test_a_client_is_packed_without_a_compiler(make, tmp_path):
    if shutil.which("npm", path="/usr/bin:/bin") is None:
        pytest.skip("there is no npm here")
    done = make("sql", "client", "LANGUAGE=node")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {"pgonce.sql", f"pgonce-{VERSION}.tgz"} <= {path.name for path in (tmp_path / "out").iterdir()}


@pytest.mark.parametrize(("words", "said"), [((), "make client: which one? For example: make client LANGUAGE=node"), (("LANGUAGE=c",), "'c' is not one of node python go java")])
def test_a_client_of_no_language_is_refused_in_one_line(make, tmp_path, words, said):
    done = make("client", *words)
    assert done.returncode != 0 and said in done.stderr and not (tmp_path / "out").exists()
