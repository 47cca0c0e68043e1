# SPDX-License-Identifier: PostgreSQL
"""CREATE EXTENSION pgonce: the same contract as pgonce init, from the same files, and a dump that brings it back. The server is a copy of the
installed one in a folder of the test's own: PostgreSQL looks for extensions relative to its program."""
import os
import pathlib
import shutil
import subprocess

import pytest

from harness.postgres import Postgres, find_bindir, private_directory

ROOT = pathlib.Path(__file__).resolve().parents[2]
VERSION = "1.0.0"


def pg_config(what):
    return pathlib.Path(subprocess.run([pathlib.Path(find_bindir()) / "pg_config", what], text=True, capture_output=True, check=True).stdout.strip())


@pytest.fixture(scope="module")
def extended():
    """A server whose extension folder holds pgonce."""
    top = pathlib.Path(private_directory("pgonce-ext-"))
    bindir, sharedir, pkglibdir = (pg_config(f"--{what}").resolve() for what in ("bindir", "sharedir", "pkglibdir"))
    common = pathlib.Path(os.path.commonpath([bindir, sharedir, pkglibdir]))
    for source in (bindir, sharedir):
        shutil.copytree(source, top / source.relative_to(common), symlinks=False, dirs_exist_ok=True)
    library = top / pkglibdir.relative_to(common)
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        library.symlink_to(pkglibdir)
    folder = top / sharedir.relative_to(common) / "extension"
    shutil.copy(ROOT / "contract/pgonce.control", folder)
    script = subprocess.run(["/usr/bin/python3", ROOT / "tools/contract.py", "extension"], text=True, capture_output=True, check=True).stdout
    (folder / f"pgonce--{VERSION}.sql").write_text(script)
    subprocess.run(["chmod", "-R", "a+rX", top], check=True)
    with Postgres(bindir=top / bindir.relative_to(common)) as server:
        yield server
    shutil.rmtree(top, ignore_errors=True)


@pytest.fixture
def database(extended):
    made = extended.empty_database()
    made.execute("CREATE EXTENSION pgonce")
    made.execute("SELECT once.add_days()")
    yield made
    made.drop()


BEGIN = "SELECT verdict FROM once.begin('s', 'k', '0123456789abcdef')"
FINISH = "SELECT once.finish('s', 'k', '0123456789abcdef', response_body => '\\x00ff')"
OBJECTS = """
    SELECT p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ')' || md5(p.prosrc || coalesce(p.proconfig::text, '')) FROM pg_proc AS p
     WHERE p.pronamespace = 'once'::regnamespace
    UNION ALL
    SELECT a.attrelid::regclass || '.' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod) || a.attnotnull FROM pg_attribute AS a
      JOIN pg_class AS c ON c.oid = a.attrelid WHERE c.relnamespace = 'once'::regnamespace AND a.attnum > 0
    UNION ALL
    SELECT version || name || checksum FROM once.migration
    ORDER BY 1"""


def test_the_extension_runs_an_intent(database):
    connection = database.connect(autocommit=False)
    cursor = connection.cursor()
    cursor.execute(BEGIN)
    assert cursor.fetchone() == ("proceed",)
    cursor.execute(FINISH)
    connection.commit()
    assert database.value(BEGIN) == "replay"
    assert database.value("SELECT extversion FROM pg_extension WHERE extname = 'pgonce'") == VERSION


def test_the_extension_makes_the_same_objects_as_the_installer(extended, database):
    plain = extended.new_database()
    assert database.rows(OBJECTS) == plain.rows(OBJECTS)
    plain.drop()


def test_a_dump_of_the_extension_brings_back_intents_and_salt(extended, database):
    database.value(FINISH)
    salt = database.value("SELECT once.salt('t')")
    restored = extended.empty_database()
    dumped = subprocess.run([pathlib.Path(find_bindir()) / "pg_dump", database.dsn()], text=True, capture_output=True, check=True).stdout
    # pg_dump gives the partitions of an extension's table their indexes twice; psql goes on (docs/operations.md).
    done = subprocess.run([pathlib.Path(find_bindir()) / "psql", "-X", "-q", "-d", restored.dsn()], input=dumped, text=True, capture_output=True)
    errors = [line for line in done.stderr.splitlines() if "ERROR" in line]
    assert not [line for line in errors if 'multiple primary keys' not in line and 'already exists' not in line], errors
    assert bytes(restored.value("SELECT once.salt('t')")) == bytes(salt)
    assert restored.value(BEGIN) == "replay"
    restored.drop()
