# SPDX-License-Identifier: PostgreSQL
"""A partition that was made just now: for an instant its name is there, its rows are, and other sessions have not been told yet that it is a
partition. The maker is stopped right there. No event is lost, and no call fails with an error of PostgreSQL's (23514)."""

import os
import pathlib
import signal
import subprocess
import threading

import pytest

from contract.calls import Once, in_threads, run
from contract.relaying import Relay
from contract.test_made_days import ALL_DOORS, call, forget
from harness.mutation import assert_noticed, replace
from harness.native import library
from harness.postgres import ROOT, is_stopped, private_directory, wait_until

pytestmark = pytest.mark.skipif(not library().exists(), reason="pgonce_native is not built: the server's headers are missing")


@pytest.fixture(scope="module")
def stopping():
    directory = pathlib.Path(private_directory("pgonce-commits-"))
    directory.chmod(0o755)
    headers = subprocess.run(["pg_config", "--includedir-server"], capture_output=True, text=True, check=True).stdout.strip()
    made = directory / "commits.so"
    command = ["cc", "-shared", "-fPIC", "-O1", "-std=gnu11", "-fvisibility=hidden", "-isystem", headers, "-o", str(made), str(ROOT / "tests/native/commits.c")]
    subprocess.run(command, check=True)
    made.chmod(0o755)
    return made


class Maker:
    """A session that makes today's partitions, emits an event, and is stopped in its COMMIT until `go`."""

    def __init__(self, db, stopping):
        db.execute(f"CREATE FUNCTION stop_in_commit() RETURNS void LANGUAGE c AS '{stopping}'")
        self.db = db
        self.connection = db.connect(isolation="READ COMMITTED")
        self.pid = self.connection.info.backend_pid
        self.connection.rollback()

    def commit(self):
        run(self.connection, "SELECT stop_in_commit()")
        Once(self.connection).emit(topic="t", payload="{}")
        self.connection.commit()

    def go(self):
        os.kill(self.pid, signal.SIGCONT)


def at_that_moment(db, stopping, work):
    """What `work` returns, begun while the maker is stopped; the maker goes on when somebody waits for it, or the work is done."""
    maker, done = Maker(db, stopping), threading.Event()
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'relation'"

    def begin():
        try:
            wait_until(lambda: is_stopped(maker.pid), "the maker to stop in its COMMIT")
            return work()
        finally:
            done.set()

    def let_go():
        try:
            wait_until(lambda: done.is_set() or db.value(waiting) > 0, "somebody to wait for the partition")
        finally:
            maker.go()

    return in_threads([maker.commit, begin, let_go], 150)[1]


@pytest.mark.parametrize("door", ALL_DOORS)
def test_a_call_that_finds_a_partition_made_just_now_waits_until_it_is_one(db, stopping, door):
    connection = db.connect()
    forget(db, 0)
    for number, each in enumerate(ALL_DOORS):       # with its plans made, and no day
        run(connection, "BEGIN")
        call(db, each, connection, number)
        run(connection, "ROLLBACK")
    run(connection, "SELECT count(*) FROM once.intent, once.outbox")     # it knows the tables as they are
    assert at_that_moment(db, stopping, lambda: call(db, door, connection, 99)) is None


def relayed(db, stopping):
    """(the events that a relay lists of what it sees while the maker is stopped, all that there are)"""
    connection = db.connect()
    relay = Relay(connection)
    assert relay.list() == []
    forget(db, 0)
    relay.reading = None
    assert relay.list() == []
    relay.reading = None
    listed = at_that_moment(db, stopping, lambda: relay.list())
    seen = relay.reading
    return [row.id for row in listed], [row.id for row in db.rows("SELECT id FROM once.outbox WHERE pg_visible_in_snapshot(xid, %s)", seen)]


def test_a_relay_misses_no_event_of_a_partition_made_just_now(db, stopping):
    listed, there = relayed(db, stopping)
    assert listed == there != []


MUTATIONS = {
    "nobody waits for who makes a partition": (
        replace("_has_day", "pg_relation_size(to_regclass(concat('once.', parent, '_d', day))) IS NOT NULL", "to_regclass(concat('once.', parent, '_d', day)) IS NOT NULL"),
        [lambda db, stopping, door=door: test_a_call_that_finds_a_partition_made_just_now_waits_until_it_is_one(db, stopping, door) for door in ("emit", "claim", "finish_new")],
    ),
    "a relay does not wait for who makes a partition": (
        replace("relay_look", "LOCK TABLE once.outbox IN ACCESS SHARE MODE;", "NULL;"),
        [test_a_relay_misses_no_event_of_a_partition_made_just_now],
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_taking_a_guarantee_out_is_noticed(server, stopping, name):
    mutation, checks = MUTATIONS[name]
    assert_noticed(server, mutation, [lambda db, check=check: check(db, stopping) for check in checks], lambda db: Once(db.connect()).emit(topic="t", payload="{}"))
