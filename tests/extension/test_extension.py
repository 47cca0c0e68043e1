# SPDX-License-Identifier: PostgreSQL
"""CREATE EXTENSION pgonce: the same contract as pgonce init, from the same files. tests/contract/test_dumps.py dumps and restores it."""

import re
import subprocess
import sys

import pytest

from contract.upgrading import Next
from harness.extension import VERSION, extended_server
from harness.postgres import ROOT


@pytest.fixture(scope="module")
def extended():
    """A server whose extension folder holds pgonce."""
    with extended_server() as server:
        yield server


@pytest.fixture
def database(extended):
    made = extended.empty_database()
    made.execute("CREATE EXTENSION pgonce")
    made.execute("SELECT once.add_days()")
    yield made
    made.drop()


LATER = "99.0.0"
BEGIN = "SELECT verdict FROM once.start('s', 'k', '0123456789abcdef')"
FINISH = "SELECT once.finish('s', 'k', '0123456789abcdef', response_body => '\\x00ff'::bytea)"
OBJECTS = """
    SELECT p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ')' || md5(p.prosrc || coalesce(p.proconfig::text, '')) FROM pg_proc AS p
     WHERE p.pronamespace IN ('once'::regnamespace, 'once_job'::regnamespace)
    UNION ALL
    SELECT 'schema ' || n.nspname || ' ' || n.nspowner::regrole || ' ' || ARRAY(SELECT a::text FROM unnest(n.nspacl) AS a ORDER BY 1)::text FROM pg_namespace AS n
     WHERE n.nspname IN ('once', 'once_job')
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
    assert database.value(BEGIN) == "replay_success"
    assert database.value("SELECT extversion FROM pg_extension WHERE extname = 'pgonce'") == VERSION


def test_the_extension_makes_the_same_objects_as_the_installer(extended, database):
    plain = extended.new_database()
    assert database.rows(OBJECTS) == plain.rows(OBJECTS)
    plain.drop()


def test_dropping_the_extension_leaves_nothing(extended):
    """As docs/how/services.md says."""
    said = (ROOT / "docs/how/services.md").read_text()
    command = re.search(r"^DROP SCHEMA .*made as an extension: (DROP EXTENSION .*)$", said, re.M)[1]
    made = extended.empty_database()
    made.execute("CREATE EXTENSION pgonce")
    made.execute("SELECT once.add_days()")
    made.execute(command)
    assert made.rows("SELECT nspname FROM pg_namespace WHERE nspname ~ '^once'") == []
    made.execute("CREATE EXTENSION pgonce")
    made.drop()


MEMBERS = """
    SELECT pg_describe_object(d.classid, d.objid, d.objsubid) FROM pg_depend AS d JOIN pg_extension AS e ON e.oid = d.refobjid
     WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND e.extname = 'pgonce'
     UNION ALL
    SELECT c.oid::regclass || ' is dumped' FROM pg_extension AS e, unnest(e.extconfig) AS c (oid) WHERE e.extname = 'pgonce'
     ORDER BY 1"""


@pytest.fixture
def later(extended, tmp_path):
    """The next release, on the server beside this one."""
    following = Next(tmp_path)
    set_version = [sys.executable, tmp_path / "tools/version.py", "--set", LATER]
    (tmp_path / "native").mkdir()
    for name in (f"pgonce_native--{VERSION}.sql", "pgonce_native.control"):
        (tmp_path / "native" / name).write_text((ROOT / "native" / name).read_text())
    subprocess.run(set_version, check=True, timeout=60)
    assert following.script("earlier").split() == [VERSION]
    files = {extended.extensions / f"pgonce--{LATER}.sql": following.script("extension"),
             extended.extensions / f"pgonce--{VERSION}--{LATER}.sql": following.script("extension", VERSION)}  # fmt: skip
    for path, text in files.items():
        path.write_text(text)
        path.chmod(0o644)
    yield
    for path in files:
        path.unlink()


def test_alter_extension_update_makes_of_a_database_in_use_what_the_next_release_makes(extended, database, later):
    database.value(BEGIN)
    connection = database.connect(autocommit=False)
    cursor = connection.cursor()
    cursor.execute(BEGIN.replace("'k'", "'done'"))
    cursor.execute(FINISH.replace("'k'", "'done'"))
    connection.commit()
    days = database.rows("SELECT inhrelid::regclass::text FROM pg_inherits ORDER BY 1")
    database.execute(f"ALTER EXTENSION pgonce UPDATE TO '{LATER}'")
    assert database.value("SELECT once.contract_version()") == 2
    assert database.value(BEGIN.replace("'k'", "'done'")) == "replay_success"
    assert database.rows("SELECT inhrelid::regclass::text FROM pg_inherits ORDER BY 1") == days
    database.execute("SELECT once.add_days()")  # as a keeper does: once._today() has been written anew
    fresh = extended.empty_database()
    fresh.execute(f"CREATE EXTENSION pgonce VERSION '{LATER}'")
    fresh.execute("SELECT once.add_days()")
    assert database.rows(OBJECTS) == fresh.rows(OBJECTS)
    assert database.rows(MEMBERS) == fresh.rows(MEMBERS)
    fresh.drop()


def test_an_update_waits_for_no_client_that_waits_for_it(database, later):
    """As pgonce init: it has all tables, or none."""
    holder = database.connect(autocommit=False)
    holder.cursor().execute("SELECT FROM once.intent")
    with pytest.raises(Exception, match="a transaction holds a table of the contract"):
        database.execute(f"SET lock_timeout = '1s'; ALTER EXTENSION pgonce UPDATE TO '{LATER}'")
    holder.rollback()
    assert database.value("SELECT once.contract_version()") == 1
