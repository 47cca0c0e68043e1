# SPDX-License-Identifier: PostgreSQL
"""The relay is killed again and again while producers commit, roll back and dawdle: every committed event arrives, in its aggregate's order, and of
those that were settled none arrives again."""

import random
import threading

import psycopg2
import pytest

from .running import Relay, by_key, duplicates, emit, parked, passed_all

BATCH = 50
KILLS = 15
LONG = 30000


class Producer(threading.Thread):
    """Transactions of a few events each, open for a random while, some rolled back. Events of one aggregate are numbered under its row's lock, as
    a real effect would have it."""

    def __init__(self, db, number, stop):
        super().__init__(daemon=True)
        self.connection = db.connect(isolation="READ COMMITTED")
        self.random = random.Random(number)
        self.stop = stop
        self.failure = None

    def run(self):
        try:
            while not self.stop.is_set():
                self.transaction()
        except psycopg2.Error as error:
            self.failure = error

    def transaction(self):
        with self.connection.cursor() as cursor:
            for aggregate in sorted(self.random.sample(range(12), self.random.randint(1, 3))):
                cursor.execute("UPDATE account SET n = n + 1 WHERE id = %s RETURNING n", (aggregate,))
                number = cursor.fetchone()[0]
                cursor.execute("SELECT once.emit('account.changed', jsonb_build_object('n', %s), 'account', %s)", (number, str(aggregate)))
            cursor.execute("SELECT once.emit('tick', '{\"n\": 0}')")
            self.stop.wait(self.random.choice([0, 0, 0.001, 0.02]))
        if self.random.random() < 0.1:
            self.connection.rollback()
        else:
            self.connection.commit()


@pytest.fixture
def producing(db):
    db.execute("CREATE TABLE account (id integer PRIMARY KEY, n integer NOT NULL); INSERT INTO account SELECT i, -1 FROM generate_series(0, 11) AS i")
    stop = threading.Event()
    producers = [Producer(db, number, stop) for number in range(4)]
    yield producers, stop
    stop.set()
    for producer in producers:
        if producer.ident:
            producer.join()


def test_killed_again_and_again_it_loses_nothing_and_repeats_little(db, tmp_path, producing):
    producers, stop = producing
    for producer in producers:
        producer.start()
    relay = Relay(tmp_path, db.dsn(), batch=BATCH)
    repeated = 0
    for kill in range(KILLS):
        with relay:
            before = len(relay.delivered())
            relay.until_true(lambda before=before: len(relay.delivered()) >= before + 60 + 10 * kill, "deliveries")
            relay.kill()
        # What a killed process wrote and did not settle is at most a batch; a half line may stand at the end.
        lines = relay.delivered()
        now = duplicates([line["id"] for line in lines])
        assert now - repeated <= BATCH
        repeated = now
        cut(relay)
    stop.set()
    for producer in producers:
        producer.join()
        assert producer.failure is None
    assert relay.once() == 0
    lines = relay.delivered()
    committed = {str(row.event_id) for row in db.rows("SELECT event_id FROM once.outbox")}
    assert {line["id"] for line in lines} == committed
    assert passed_all(db) and parked(db) == []
    arrived = by_key((line["key"], line["payload"]["n"]) for line in lines if line["key"] is not None)
    last = {str(row.id): row.n for row in db.rows("SELECT id, n FROM account WHERE n >= 0")}
    assert arrived == {key: list(range(count + 1)) for key, count in last.items()}


def cut(relay):
    """A line that the kill broke off would glue to the next process's first one."""
    text = relay.out.read_bytes()
    if not text.endswith(b"\n"):
        relay.out.write_bytes(text[: text.rfind(b"\n") + 1])


def test_progress_within_a_long_backlog_survives_a_kill(db, tmp_path):
    emit(db.connect(), LONG, aggregate="(i % 10)::text")
    relay = Relay(tmp_path, db.dsn(), batch=100)
    with relay:
        # Long before its end: then there is no progress within it any more.
        relay.until_true(lambda: db.value("SELECT coalesce(max(after_id), 0) FROM once.relay") > 0, "progress")
        relay.kill()
    cut(relay)
    assert db.value("SELECT after_id FROM once.relay") > 0
    assert relay.once() == 0
    numbers = [line["payload"]["n"] for line in relay.delivered()]
    assert sorted(set(numbers)) == list(range(LONG)) and duplicates(numbers) <= 100
