# SPDX-License-Identifier: PostgreSQL
"""pgonce init and pgonce doctor where the server has the extension pgonce_native: init uses it and never fails by it, doctor says what answers.

Broken on purpose and seen to fail: without the lock of installations (SQL_INSTALL_LOCK in native.c) test_inits_at_once_all_have_it fails."""

import json
import subprocess
import sys

import pytest

from harness.extension import extended_server
from harness.native import library
from harness.postgres import ROOT, wait_until
from harness.release import VERSION

from .command import Command, ends
from .test_doctor import checks

pytestmark = pytest.mark.skipif(not library().exists(), reason="pgonce_native is not built: the server's headers are missing")


@pytest.fixture(scope="module")
def equipped():
    with extended_server(native=True) as server:
        yield server


@pytest.fixture
def empty(equipped):
    database = equipped.empty_database()
    yield database
    database.drop()


def installed(database):
    return database.rows("SELECT e.extversion FROM pg_extension AS e WHERE e.extname = 'pgonce_native'")


def found(command, status=0):
    row = checks(command, status)["native"]
    return row["level"], row["found"]


def test_init_installs_it_once(bare, empty):
    assert json.loads(bare("init", "--json").stdout)["native"] is True
    assert installed(empty) == [(VERSION,)]
    again = bare("init", "--json")
    assert json.loads(again.stdout)["native"] is True and again.stderr == b""
    assert found(bare) == ("ok", f"C: pgonce_native {VERSION}")


def test_without_it_sql_answers(bare, empty):
    assert json.loads(bare("init", "--no-native", "--json").stdout)["native"] is False
    assert installed(empty) == []
    assert found(bare) == ("ok", f"SQL; this server also has pgonce_native {VERSION}")


def test_it_is_added_to_a_contract_that_was_there_and_taken_out_again(bare, empty):
    bare("init", "--no-native")
    bare("init")
    assert found(bare)[1] == f"C: pgonce_native {VERSION}"
    empty.execute("DROP EXTENSION pgonce_native")
    assert found(bare)[1].startswith("SQL; ")
    assert empty.value("SELECT (once.start('s', 'k', '\\x00000000000000000000000000000000')).verdict") == "proceed"


def test_a_role_that_may_not_is_told_who_may(equipped, empty, tmp_path):
    empty.execute("CREATE ROLE plain_owner LOGIN")
    empty.execute(f"ALTER DATABASE {empty.name} OWNER TO plain_owner")
    done = Command(empty.dsn("plain_owner"), tmp_path)("init")
    assert done.returncode == 0 and b"by a superuser has it answer here" in done.stderr
    assert installed(empty) == []


def test_init_succeeds_though_it_cannot_be_installed(bare, empty):
    empty.execute("CREATE SCHEMA once_native")
    done = bare("init", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["native"] is False
    assert b"pgonce_native is left out" in done.stderr and b"once_native" in done.stderr
    assert found(bare)[0] == "ok"


def test_inits_at_once_all_have_it(bare, empty):
    """One stands in the midst of CREATE EXTENSION until the other waits, too."""
    bare("init", "--no-native")
    empty.execute("""CREATE FUNCTION wait() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(7); END $$;
                     CREATE EVENT TRIGGER wait ON ddl_command_start WHEN TAG IN ('CREATE EXTENSION') EXECUTE FUNCTION wait()""")
    holder = empty.connect(autocommit=False)
    holder.cursor().execute("SELECT pg_advisory_xact_lock(7)")
    processes = [bare.start("init", "--json") for _ in range(2)]
    wait_until(lambda: empty.value("SELECT count(*) FROM pg_locks WHERE NOT granted") == 2, "both inits to wait")
    holder.rollback()
    told = [ends(process) for process in processes]
    assert [(status, json.loads(out)["native"], err) for status, out, err in told] == [(0, True, b"")] * 2


def test_another_version_is_found(bare, empty):
    bare("init")
    empty.execute("UPDATE pg_extension SET extversion = '0.9.0' WHERE extname = 'pgonce_native'")
    assert found(bare, 1) == ("failed", f"the database has pgonce_native 0.9.0, the server's files are of {VERSION}")
    done = bare("init")  # there is no path from there
    assert done.returncode == 0 and b"pgonce_native is left out" in done.stderr


def test_init_follows_the_update_of_an_earlier_release(bare, empty, equipped):
    bare("init")
    for function in ("once_native.answered()", "once_native.salt(internal)"):  # as if this release had brought them
        empty.execute(f"ALTER EXTENSION pgonce_native DROP FUNCTION {function}; DROP FUNCTION {function}")
    empty.execute("UPDATE pg_extension SET extversion = '0.9.0' WHERE extname = 'pgonce_native'")
    made = subprocess.run([sys.executable, ROOT / "tools/contract.py", "native", VERSION], capture_output=True, text=True, check=True, timeout=60)
    path = equipped.extensions / f"pgonce_native--0.9.0--{VERSION}.sql"
    path.write_text(made.stdout)
    path.chmod(0o644)
    try:
        done = bare("init")
    finally:
        path.unlink()
    assert done.returncode == 0 and done.stderr == b"" and installed(empty) == [(VERSION,)]
    assert found(bare) == ("ok", f"C: pgonce_native {VERSION}") and empty.value("SELECT once_native.answered()") >= 0
    empty.execute("DROP EXTENSION pgonce_native")
    assert empty.value("SELECT to_regnamespace('once_native')") is None, "all of it belongs to the extension"


def test_a_contract_that_it_was_not_made_for_is_found(bare, empty):
    bare("init")
    text = empty.value("SELECT pg_get_functiondef('once.start'::regproc)")
    empty.execute(text.replace("BEGIN", "BEGIN\n    -- changed", 1))
    assert found(bare)[0] == "warning" and "another contract" in found(bare)[1]


# What an administrator may add to the contract's tables, which C then leaves to SQL; what takes it back; and what is said of it.
CHANGES = [
    ("CREATE INDEX more ON once.intent (owner)", "DROP INDEX once.more", f"SQL, though pgonce_native {VERSION} is here: intent_d0 has 2 indexes, but the contract's has one"),
    ("ALTER TABLE once.intent ADD note text", "ALTER TABLE once.intent DROP note", f"SQL, though pgonce_native {VERSION} is here: intent_d0 has the column note, which the contract lacks or defines differently"),
    ("CREATE TRIGGER more AFTER INSERT ON once.intent FOR EACH ROW EXECUTE FUNCTION public.more()", "DROP TRIGGER more ON once.intent",
     f"SQL, though pgonce_native {VERSION} is here: intent has a trigger, a rule or row security"),
    ("CREATE INDEX more ON once.outbox (aggregate_id)", "DROP INDEX once.more", f"C: pgonce_native {VERSION}, but SQL for once.emit: outbox_d"),
    ("ALTER DATABASE {database} SET once.native = off", "ALTER DATABASE {database} RESET once.native", f"SQL, though pgonce_native {VERSION} is here: once.native is off"),
]


@pytest.mark.parametrize(("change", "back", "said"), CHANGES)
def test_what_keeps_it_from_answering_is_named(bare, empty, change, back, said):
    bare("init")
    empty.execute("CREATE FUNCTION public.more() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    empty.execute(change.format(database=empty.name))
    level, text = found(bare)
    assert (level, text[: len(said)]) == ("warning", said)
    call = "SELECT once.emit('t', '1')" if "emit" in said else "SELECT once.claim('s', gen_random_uuid()::text, '\\x00000000000000000000000000000000')"
    assert answered_by_c(empty, call) == 0  # so it is
    empty.execute(back.format(database=empty.name))
    assert found(bare) == ("ok", f"C: pgonce_native {VERSION}")
    assert answered_by_c(empty, call) == 1


def answered_by_c(database, call):
    """In a session of its own; the first call loads the library."""
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT once.peek('s', 'k')")
        cursor.execute("SELECT once_native.answered()")
        (before,) = cursor.fetchone()
        cursor.execute(call)
        cursor.execute("SELECT once_native.answered()")
        return cursor.fetchone()[0] - before


def test_a_library_that_is_gone_is_found(equipped, bare, empty):
    bare("init")
    (file,) = equipped.bindir.parents[3].glob("**/pgonce_native.so")
    away = file.rename(file.with_suffix(".away"))
    try:
        level, text = found(bare, 1)
        assert level == "failed" and text.startswith("SQL, since pgonce_native cannot be loaded: ")
        with empty.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT (once.start('s', 'k', '\\x00000000000000000000000000000000')).verdict")
            assert cursor.fetchone() == ("proceed",)
    finally:
        away.rename(file)
