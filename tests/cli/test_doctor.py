# SPDX-License-Identifier: PostgreSQL
"""pgonce doctor, version and bench."""
import json

import pytest

from harness.pgbouncer import PgBouncer

from .command import Command


def checks(pgonce, expected, *arguments):
    done = pgonce("doctor", "--json", *arguments)
    assert done.returncode == expected, done
    return {row["check"]: row for row in json.loads(done.stdout)["checks"]}


def not_ok(found):
    return {name: row["level"] for name, row in found.items() if row["level"] != "ok"}


# What is to be said of the tests' server, and of a database that no keeper ever saw.
OF_THE_TESTS = {"autovacuum": "warning", "fsync": "warning", "idle in transaction timeout": "warning", "keeper": "warning",
                "keeper clock": "skipped", "retention held": "skipped", "stale intents": "skipped", "in doubt": "skipped",
                "forgotten finishes": "skipped"}


def test_a_fresh_installation_is_well(pgonce):
    assert not_ok(checks(pgonce, 0)) == OF_THE_TESTS
    text = pgonce("doctor").stdout.decode()
    assert "0 to repair, 4 warnings, 5 skipped" in text


def test_each_finding_says_what_to_do(pgonce):
    for row in checks(pgonce, 0).values():
        assert row["found"]
        assert (row["advice"] is None) == (row["level"] == "ok")


def test_what_no_keeper_has_counted_is_not_said_to_be_none(pgonce, db):
    db.execute("SELECT once.claim('payments', 'k', once.fingerprint('r'::bytea))")
    db.execute("SELECT once.fail('payments', 'k', 1, NULL, 'timeout')")
    found = checks(pgonce, 0)
    for name in ("stale intents", "in doubt"):
        row = found[name]
        assert (row["level"], row["found"]) == ("skipped", "no keeper has counted them yet") and "pgonce keep" in row["advice"]
    for name in ("keeper clock", "retention held"):
        assert found[name]["level"] == "skipped" and "no keeper has read the clock yet" in found[name]["found"]
    assert pgonce("keep", "--once").returncode == 0
    found = checks(pgonce, 0)
    assert (found["in doubt"]["level"], found["in doubt"]["found"]) == ("warning", "'payments': 1")
    assert found["stale intents"]["level"] == "ok" and found["stale intents"]["found"].startswith("none at 20")
    db.execute("SELECT once.resolve('payments', 'k', 'failed_final', 'it did not happen')")
    db.execute("UPDATE once.keeper_step SET ended_at = ended_at - interval '1 day' WHERE step = 'sweep'")
    assert pgonce("keep", "--once").returncode == 0
    assert checks(pgonce, 0)["in doubt"]["found"].startswith("none at 20")


def test_without_a_keeper_what_holds_retention_is_told_in_one_way(pgonce, db):
    (held,) = db.rows("SELECT what, since, hint FROM once.retention_held()")
    assert (held.what, held.since) == ("clock", None)
    assert held.hint == "no keeper has read the clock yet, and nothing is deleted before: start pgonce keep."
    found = checks(pgonce, 0)
    assert found["keeper clock"]["found"] == held.hint and found["retention held"]["found"] == "by the clock alone: " + held.hint
    assert "held: clock" in pgonce("top").stdout.decode()


def test_a_missing_contract_is_found(bare):
    row = checks(bare, 1)["contract"]
    assert row["level"] == "failed" and "pgonce init" in row["advice"]


def test_what_a_role_may_not_look_at_is_skipped_and_never_fails(db, pgonce, tmp_path):
    everything = checks(pgonce, 0)
    db.execute("CREATE ROLE stranger_of_doctor LOGIN")
    try:
        found = checks(Command(db.dsn("stranger_of_doctor"), tmp_path), 0)
        assert set(found) == set(everything)
        levels = {name: row["level"] for name, row in found.items()}
        assert levels["contract"] == levels["partitions"] == levels["keeper"] == levels["long transactions"] == "skipped"
        assert levels["one owner"] == levels["collation"] == levels["max_locks_per_transaction"] == "ok"
        assert {name for name, level in levels.items() if level == "warning"} == {name for name, level in OF_THE_TESTS.items() if level == "warning"} - {"keeper"}
        db.execute("GRANT once_reader, pg_monitor TO stranger_of_doctor")
        found = checks(Command(db.dsn("stranger_of_doctor"), tmp_path), 0)
        assert found["keeper"]["level"] == "warning" and found["long transactions"]["level"] == "ok"
        assert found["partitions"]["level"] == "skipped"
    finally:
        db.execute("DROP OWNED BY stranger_of_doctor")
        db.execute("DROP ROLE stranger_of_doctor")


def test_checks_of_a_later_contract_are_skipped(pgonce, db):
    db.execute("DROP FUNCTION once.keeper_status")
    found = checks(pgonce, 0)
    assert found["keeper"]["level"] == "skipped" and "pgonce init" in found["keeper"]["advice"]


@pytest.mark.parametrize("mode, level, said", [
    ("transaction", "ok", "transaction mode"), ("session", "ok", "session mode"), ("statement", "failed", "statement pooling")])
def test_a_pooler_is_told_by_its_mode(server, db, tmp_path, mode, level, said):
    with PgBouncer(server, mode=mode) as bouncer:
        command = Command(f"host={bouncer.directory} port=5432 dbname={db.name} user=postgres", tmp_path)
        row = checks(command, 1 if level == "failed" else 0)["pooling"]
        assert row["level"] == level and said in row["found"]


def test_a_direct_connection_is_told_from_a_pooler(pgonce):
    assert checks(pgonce, 0)["pooling"]["found"] == "a direct connection"


def test_a_run_works_through_a_pooler(server, db, tmp_path):
    with PgBouncer(server) as bouncer:
        command = Command(f"host={bouncer.directory} port=5432 dbname={db.name} user=postgres", tmp_path)
        assert command.run("pooled", "echo", "hello").stdout == b"hello\n"
        assert command.run("pooled", "echo", "hello").stdout == b"hello\n"
        assert command("init").returncode == 0


@pytest.mark.parametrize("command", [("doctor",), ("find",)])
def test_a_server_that_refuses_is_not_to_be_started(db, tmp_path, command):
    done = Command(db.dsn() + " dbname=nowhere", tmp_path)(*command)
    assert done.returncode == 3 and b"does not exist" in done.stderr and b"the server refuses the connection" in done.stderr.lower()
    away = Command("host=/nowhere", tmp_path)(*command)
    assert away.returncode == 3 and b"start the server" in away.stderr


def test_version_tells_of_both_sides(pgonce, offline, db):
    here = json.loads(offline("version", "--json").stdout)
    assert set(here) == {"pgonce", "libpgonce", "contract", "libpq"}
    there = json.loads(pgonce("version", "--json").stdout)
    assert there["database"] == db.name and there["database_contract"] == there["contract"] == here["contract"]
    assert there["database_contract_status"] == "current"
    assert offline("version", env={"PGHOST": "/nowhere"}).returncode == 3
