# SPDX-License-Identifier: PostgreSQL
"""once.retire_day beside those who make partitions and those who retire the same day in pieces: locks are taken in one order, so that nobody
waits in a circle while every claim waits behind."""

import threading

import psycopg2
from harness.postgres import wait_until

from .calls import run
from .keeping import finished, keeper, old_day, phase_of

PARTITIONS = "SELECT pg_advisory_xact_lock(hashtextextended('pgonce partitions', 20778))"


class Retiring:
    """once.retire_day in a session of its own."""

    def __init__(self, db):
        self.connection, self.problem = db.connect(), None
        self.pid = self.connection.get_backend_pid()
        self.thread = threading.Thread(target=self.work, args=(old_day(db),))
        self.thread.start()
        wait_until(lambda: db.value("SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s", self.pid), "it to wait for a lock")

    def work(self, day):
        try:
            run(self.connection, "SELECT once.retire_day(%s)", day)
        except psycopg2.Error as problem:
            self.problem = problem

    def end(self):
        self.thread.join(60)
        assert not self.thread.is_alive() and self.problem is None, self.problem


def reads_intents(db):
    """Nobody holds once.intent against a claim."""
    connection = db.connect(lock_timeout="5s")
    return run(connection, "SELECT count(*) FROM once.intent")[0].count


def test_who_makes_partitions_meets_a_retiring_that_holds_nothing_yet(db):
    keeper(db)
    finished(db, 1)
    maker = db.connect(autocommit=False)
    run(maker, PARTITIONS)
    retiring = Retiring(db)
    assert reads_intents(db) == 1
    run(maker, "SELECT FROM once.setting WHERE only_row FOR SHARE")
    maker.commit()
    retiring.end()


def test_who_works_on_the_closed_day_meets_a_retiring_that_holds_nothing_yet(db):
    steps = keeper(db)
    finished(db, 1)
    steps.retire(until="closed")
    worker = db.connect(autocommit=False)
    run(worker, "SELECT FROM once.closing WHERE day = %s FOR UPDATE", old_day(db))
    retiring = Retiring(db)
    assert reads_intents(db) == 1
    run(worker, PARTITIONS)
    run(worker, f"SELECT FROM once.intent_closed_d{old_day(db)} FOR UPDATE")
    worker.commit()
    retiring.end()
    assert phase_of(db) == []
