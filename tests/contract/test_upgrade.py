# SPDX-License-Identifier: PostgreSQL
"""A database with data in it becomes one with the next contract. No version was tagged yet: the next one is made up here, from
the files of this one. Each tagged version leaves what it installed in upgrade/version_N.sql, and is upgraded as well."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from harness.postgres import ROOT, clean_environment

from .calls import PRINT, Once, let_lease_pass, now_ms, refused, run, uuid7
from .relaying import Relay
from .test_receive_many import receive_many

COMMAND = pathlib.Path(os.environ.get("PGONCE_BUILD", ROOT / "build")) / "cli/pgonce"

# What a version may do to the one before it: a table and a type grow, a function's parameters change, a view goes.
NEXT = """
ALTER TABLE once.intent ADD COLUMN colour text COLLATE "C" DEFAULT 'none';
ALTER TABLE once.archive ADD COLUMN colour text COLLATE "C" DEFAULT 'none';
ALTER TYPE once.state ADD VALUE 'painted';
DROP FUNCTION IF EXISTS once.release(text, text, integer, text);
DROP VIEW IF EXISTS once.retried;
"""
RELEASE = """CREATE FUNCTION once.release(scope text, key text, fence integer, tenant text DEFAULT '', colour text DEFAULT 'none')
RETURNS text LANGUAGE sql AS 'SELECT colour';"""


class Next:
    """The contract's files, with a version more."""

    def __init__(self, directory):
        self.directory = directory
        shutil.copytree(ROOT / "contract", directory / "contract")
        shutil.copytree(ROOT / "tools", directory / "tools", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "meson.build", directory)
        contract = directory / "contract"
        (contract / "migrations").mkdir(exist_ok=True)
        (contract / "migrations/0002_next.sql").write_text(NEXT)
        (contract / "lease/release.sql").write_text(RELEASE)
        (contract / "see/views/retried.sql").unlink()

    def script(self, *words):
        made = [sys.executable, str(self.directory / "tools/contract.py"), *words]
        return subprocess.run(made, check=True, capture_output=True, text=True, timeout=60).stdout

    def upgrade(self, db):
        run(db.connect(), self.script("upgrade", str(db.value("SELECT once.contract_version()"))))


@pytest.fixture
def following(tmp_path):
    return Next(tmp_path)


@pytest.fixture
def old(db):
    """A database in use."""
    once = Once(db.connect())
    once.finish_new(key="done", response_status=201, response_body=b"\x00\xff")
    once.finish_new(key=uuid7(now_ms(db)), response_body=b"today's")
    once.claim(key="running")
    once.receive(message_id="m")
    once.emit(topic="t", payload='{"n": 1}', aggregate_type="thing", aggregate_id="a", scope="orders", key="done")
    return db


OBJECTS = """
    SELECT p.oid::regprocedure::text || md5(p.prosrc || coalesce(p.proconfig::text, '')) || coalesce(p.proacl::text, '')
           || p.prorettype::regtype
      FROM pg_proc AS p WHERE p.pronamespace IN ('once'::regnamespace, 'once_job'::regnamespace)
     UNION ALL
    SELECT a.attrelid::regclass || '.' || a.attname || format_type(a.atttypid, a.atttypmod) || a.attnotnull
           || coalesce(pg_get_expr(d.adbin, d.adrelid), '')
      FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid
      LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
     WHERE c.relnamespace = 'once'::regnamespace AND a.attnum > 0 AND NOT a.attisdropped
     UNION ALL
    SELECT pg_get_indexdef(i.indexrelid) FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indrelid
     WHERE c.relnamespace = 'once'::regnamespace
     UNION ALL
    SELECT version || name || checksum FROM once.migration
     ORDER BY 1"""


def test_an_old_database_becomes_what_a_new_one_is(server, old, following):
    following.upgrade(old)
    new = server.empty_database()
    run(new.connect(), following.script("install"))
    assert old.rows(OBJECTS) == new.rows(OBJECTS)
    assert old.value("SELECT once.contract_version()") == new.value("SELECT once.contract_version()") == 2
    new.drop()


def test_an_upgrade_keeps_every_answer_and_what_is_under_way(old, following):
    columns = ", ".join(name for (name,) in old.rows("SELECT attname FROM pg_attribute WHERE attrelid = 'once.intent'::regclass AND attnum > 0"))
    stored = old.rows(f"SELECT {columns} FROM once.intent ORDER BY key")
    salt = old.value("SELECT once.salt('t')")
    relay = Relay(old.connect())
    listed = relay.list()
    following.upgrade(old)
    assert old.rows(f"SELECT {columns} FROM once.intent ORDER BY key") == stored
    assert old.value("SELECT once.salt('t')") == salt
    once = Once(old.connect())
    assert once.start(key="done").response_body == b"\x00\xff"
    assert once.complete(key="running", fence=1) is True
    assert receive_many(old.connect(), ["m", "n"]) == ["duplicate", "process"]
    assert [event.payload for event in relay.fetch(listed)] == [{"n": 1}], "it was in flight"
    relay.settle()


def test_an_open_lease_passes_as_before(old, following):
    following.upgrade(old)
    let_lease_pass(old, "running")
    row = Once(old.connect()).claim(key="running")
    assert (row.verdict, row.fence) == ("in_doubt", 1)


def test_roles_may_do_what_they_could_and_the_new_functions(old, following):
    granted = """SELECT p.oid::regprocedure::text, a.grantee::regrole::text FROM pg_proc AS p CROSS JOIN LATERAL aclexplode(p.proacl) AS a
                  WHERE p.pronamespace IN ('once'::regnamespace, 'once_job'::regnamespace) AND p.proname <> 'release'"""
    release = "SELECT has_function_privilege('once_app', 'once.release(text, text, integer, text, text)', 'execute')"
    before = old.rows(granted + " ORDER BY 1, 2")
    following.upgrade(old)
    assert old.rows(granted + " ORDER BY 1, 2") == before
    assert old.value(release) is True


def test_a_session_that_was_open_during_the_upgrade_goes_on(old, following):
    """With the plans and the types that it had."""
    session = Once(old.connect())
    session.start(key="done")
    event = session.emit(topic="t", payload="{}")
    following.upgrade(old)
    assert session.start(key="done").response_body == b"\x00\xff"
    assert session.receive(message_id="m2", fingerprint=PRINT) == "process"
    relay = Relay(old.connect())
    second = session.emit(topic="t", payload="{}")
    assert [each.event_id for each in relay.batch()][1:] == [event, second]


def test_an_upgrade_that_fails_leaves_the_old_contract(old, following):
    before = old.rows(OBJECTS)
    connection = old.connect()
    with refused("22012"):
        run(connection, following.script("upgrade", "1").replace("\nCOMMIT;", "\nSELECT 1/0;\nCOMMIT;"))
    connection.rollback()
    assert old.rows(OBJECTS) == before


def test_the_command_brings_other_functions_of_the_same_version_up_to_date(old, server):
    """What another build installed: the migrations are the same, the functions are not."""
    if not COMMAND.exists():
        pytest.skip("the command is not built")
    new = server.new_database()
    old.execute("ALTER FUNCTION once.top() SET work_mem = '64kB'; DROP VIEW once.stuck; DROP FUNCTION once.release(text, text, integer, text)")
    old.execute("UPDATE once.migration SET checksum = repeat('0', 64) WHERE version = 0")
    assert old.rows(OBJECTS) != new.rows(OBJECTS)
    done = subprocess.run([str(COMMAND), "init", "--dsn", old.dsn()], env=clean_environment(), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert old.rows(OBJECTS) == new.rows(OBJECTS)
    assert Once(old.connect()).start(key="done").response_body == b"\x00\xff"
    new.drop()
