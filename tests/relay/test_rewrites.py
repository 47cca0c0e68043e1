# SPDX-License-Identifier: PostgreSQL
"""Commands that rewrite the tables beside a relay at work: VACUUM FULL and CLUSTER keep its progress, and pg_repack parts it from its transaction."""

import shutil
import subprocess

import pytest

from harness.postgres import PATIENCE_S, clean_environment, find_bindir

from .running import Relay, emit, passed_all

PG_REPACK = shutil.which("pg_repack") or shutil.which("pg_repack", path=find_bindir())


def delivered(relay):
    return {line["id"] for line in relay.delivered()}


@pytest.mark.parametrize("command", ["VACUUM FULL", "VACUUM FULL once.relay", "CLUSTER once.relay USING relay_pkey"])
def test_a_relay_goes_on_after_what_copies_its_row_as_it_is(db, tmp_path, command):
    connection = db.connect()
    with Relay(tmp_path, db.dsn()) as relay:
        events = emit(connection, 10)
        relay.until_true(lambda: passed_all(db), "the first")
        db.execute(command)
        events += emit(connection, 10)
        relay.until_true(lambda: delivered(relay) == set(events) and passed_all(db), "the rest")
        assert relay.log("database") == relay.log("failed") == [] and relay.stop() == 0


@pytest.fixture
def repack(db):
    if PG_REPACK is None:
        pytest.skip("pg_repack is not here: Debian's postgresql-NN-repack")
    db.execute("CREATE EXTENSION pg_repack")

    def run(*tables):
        where = dict(part.split("=", 1) for part in db.dsn().split())
        done = subprocess.run([PG_REPACK, "--host", where["host"], "--port", where["port"], "--username", "postgres", "--dbname", db.name,
                               *(word for table in tables for word in ("--table", table))],
                              capture_output=True, text=True, env=clean_environment(), timeout=PATIENCE_S, check=False)
        assert done.returncode == 0 and "repacking table" in done.stderr + done.stdout, done.stderr
    return run


def test_pg_repack_of_the_other_tables_beside_a_relay_at_work_changes_nothing_for_it(db, tmp_path, repack):
    connection = db.connect()
    with Relay(tmp_path, db.dsn()) as relay:
        events = emit(connection, 10)
        relay.until_true(lambda: passed_all(db), "the first")
        repack("once.setting", "once.scope", "once.parked_event", "once.parked_message", "once.keeper_step", "once.clock")
        events += emit(connection, 10)
        relay.until_true(lambda: delivered(relay) == set(events) and passed_all(db), "the rest")
        assert relay.log("failed") == [] and relay.stop() == 0


def test_what_the_hint_says_after_pg_repack_of_the_relays_table_loses_nothing(db, tmp_path, repack):
    connection = db.connect()
    with Relay(tmp_path, db.dsn()) as relay:
        events = emit(connection, 10)
        relay.until_true(lambda: passed_all(db), "the first")
        repack("once.relay")
        events += emit(connection, 10)
        assert relay.wait() != 0
        events += emit(connection, 10)
        assert "once.relay_adopt(relay, reason, xids_continue => true)" in relay.log("failed")[0]["problem"]
        db.execute("SELECT once.relay_adopt('r', 'repacked', xids_continue => true)")
        relay.start()
        events += emit(connection, 10)
        relay.until_true(lambda: delivered(relay) == set(events) and passed_all(db), "all of them")
        assert relay.stop() == 0
