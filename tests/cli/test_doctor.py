# SPDX-License-Identifier: PostgreSQL
"""pgonce doctor, version and bench."""
import json

import pytest

from harness.pgbouncer import PgBouncer

from .command import Command


def checks(pgonce, expected):
    done = pgonce("doctor", "--json")
    assert done.returncode == expected, done
    return {row["check"]: row for row in json.loads(done.stdout)["checks"]}


def test_a_fresh_installation_is_well(pgonce):
    found = checks(pgonce, 0)
    # The tests' server runs without these two, which doctor is right to mention.
    assert {name for name, row in found.items() if row["level"] != "ok"} == {"autovacuum", "fsync"}
    text = pgonce("doctor").stdout.decode()
    assert "0 to repair" in text


@pytest.mark.parametrize("harm, check, level", [
    ("ALTER TABLE once.intent OWNER TO other_owner", "one owner", "fail"),
    ("GRANT SELECT ON once.intent TO PUBLIC", "closed to PUBLIC", "fail"),
    ("GRANT EXECUTE ON FUNCTION once.resolve TO PUBLIC", "closed to PUBLIC", "fail"),
    ("REVOKE ALL ON ALL FUNCTIONS IN SCHEMA once FROM once_app", "grants", "fail"),
    ("DO $$ BEGIN EXECUTE format('DROP TABLE once.intent_d%s', current_date - date '1970-01-01'); END $$", "partitions", "fail"),
    ("DO $$ BEGIN EXECUTE format('DROP TABLE once.outbox_d%s', current_date - date '1970-01-01' + 2); END $$", "partitions", "warn"),
    ("ALTER TABLE once.intent_d0 RESET (fillfactor)", "fillfactor", "warn"),
    ("ALTER TABLE once.intent_d0 SET (autovacuum_enabled = off)", "vacuum", "warn"),
    ("UPDATE once.migration SET checksum = 'x' WHERE version = 0", "contract", "fail"),
    ("UPDATE once.migration SET checksum = 'x' WHERE version = 1", "contract", "fail"),
    ("DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', current_database()); END $$", "synchronous_commit", "warn"),
    ("DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = ''serializable''', current_database()); END $$",
     "default isolation", "warn"),
    ("DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database()); END $$", "writable", "fail"),
])
def test_each_harm_is_found_and_said_what_to_do(pgonce, db, harm, check, level):
    db.execute("DO $$ BEGIN CREATE ROLE other_owner; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    db.execute(harm)
    row = checks(pgonce, 1 if level == "fail" else 0)[check]
    assert row["level"] == level and row["advice"]


def test_a_missing_contract_is_found(bare):
    row = checks(bare, 1)["contract"]
    assert row["level"] == "fail" and "pgonce init" in row["advice"]


def test_a_role_without_rights_gets_what_it_may_see(db, tmp_path):
    db.execute("CREATE ROLE stranger_of_doctor LOGIN")
    try:
        found = checks(Command(db.dsn("stranger_of_doctor"), tmp_path), 0)
        assert found["contract"]["level"] == "warn" and found["one owner"]["level"] == "ok"
        assert found["doctor_tables"]["level"] == "warn"
    finally:
        db.execute("DROP ROLE stranger_of_doctor")


def test_a_pooler_is_noticed(server, db, tmp_path):
    with PgBouncer(server) as bouncer:
        command = Command(f"host={bouncer.directory} port=5432 dbname={db.name} user=postgres", tmp_path)
        assert "pooler" in checks(command, 0)["pooling"]["found"]
        # And all that a run needs works through it.
        assert command.run("pooled", "echo", "hello").stdout == b"hello\n"
        assert command.run("pooled", "echo", "hello").stdout == b"hello\n"
        assert command("init").returncode == 0


def test_version_tells_of_both_sides(pgonce, offline, db):
    here = json.loads(offline("version", "--json").stdout)
    assert set(here) == {"pgonce", "libpgonce", "contract", "libpq"}
    there = json.loads(pgonce("version", "--json").stdout)
    assert there["database"] == db.name and there["database_contract"] == there["contract"] == here["contract"]
    assert there["database_contract_status"] == "current"
    assert offline("version", env={"PGHOST": "/nowhere"}).returncode == 3


def test_bench_measures_and_leaves_nothing(pgonce, db):
    done = pgonce("bench", "--seconds", "1", "--clients", "2", "--json")
    assert done.returncode == 0, done.stderr
    rates = {row["name"]: row["per_second"] for row in json.loads(done.stdout)}
    assert set(rates) == {"bare", "execute", "select", "replay", "lease", "batch"} and all(rate > 0 for rate in rates.values())
    assert db.value("SELECT to_regnamespace('pgonce_bench') IS NULL")
    assert db.value("SELECT count(*) FROM once.intent") == 0


def test_bench_leaves_somebody_elses_schema_alone(pgonce, db):
    db.execute("CREATE SCHEMA pgonce_bench")
    done = pgonce("bench", "--seconds", "1")
    assert done.returncode == 1 and b"pgonce_bench" in done.stderr
    assert db.value("SELECT to_regnamespace('pgonce_bench') IS NOT NULL")
