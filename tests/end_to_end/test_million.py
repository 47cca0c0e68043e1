# SPDX-License-Identifier: PostgreSQL
"""Every event that was committed arrives, once; none that was not; and those of an aggregate in their order. Transactions of all kinds write at
the same time: short and long ones, some that are rolled back in whole or in part, some that are prepared and finished later, some that commit
without waiting for the disk; all the while one that wrote first commits last, and one in another database stays open.

PGONCE_EVENTS says how many: 100,000, or 1000000 for the whole proof."""

import os
import random
import threading
import time
import uuid

import psycopg2
import psycopg2.errors
import pytest
from harness.postgres import wait_until

from .parts import Database, Job, open_broker, write_config

EVENTS = int(os.environ.get("PGONCE_EVENTS", "100000"))
WRITERS = 6
AGGREGATES = 200
MOST = 200  # events of a transaction
LATE_S = 3
PATIENCE_S = 120 + EVENTS / 500

SHOP = f"""
CREATE TABLE aggregate (id integer PRIMARY KEY, step bigint NOT NULL) WITH (fillfactor = 50);
INSERT INTO aggregate SELECT i, 0 FROM generate_series(1, {AGGREGATES}) AS i;

-- Events first to last: of an aggregate, whose row is locked and counts them, or of none.
CREATE FUNCTION write(first bigint, last bigint, aggregate_id integer) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    before bigint;
BEGIN
    UPDATE aggregate AS a SET step = a.step + last - first + 1 WHERE a.id = aggregate_id RETURNING a.step - (last - first + 1) INTO before;
    RETURN count(once.emit('order.counted', jsonb_build_object('n', n, 'step', before + n - first + 1),
        CASE WHEN aggregate_id > 0 THEN 'counter' END, CASE WHEN aggregate_id > 0 THEN aggregate_id::text END))
        FROM generate_series(first, last) AS n;
END $$;
"""
WAREHOUSE = """
CREATE TABLE seen (position bigint GENERATED ALWAYS AS IDENTITY, n bigint NOT NULL, key integer, step bigint);
CREATE FUNCTION see(message once.message) RETURNS void LANGUAGE sql AS $$
    INSERT INTO public.seen (n, key, step)
    VALUES (((message).body ->> 'n')::bigint, (message).key::integer, ((message).body ->> 'step')::bigint) $$;
GRANT INSERT ON seen TO once_consumer;
"""


class Numbers:
    """Ranges of numbers that are given out, and which of them were committed."""

    def __init__(self, count):
        self.lock, self.next, self.last, self.committed = threading.Lock(), 1, count, []

    def take(self, count):
        with self.lock:
            first = self.next
            self.next = min(first + count, self.last + 1)
            return first, self.next - 1

    def commit(self, ranges):
        with self.lock:
            self.committed += ranges

    def all(self):
        return {n for first, last in self.committed for n in range(first, last + 1)}


class Writer(threading.Thread):
    def __init__(self, dsn, numbers, seed):
        super().__init__(daemon=True)
        self.connection = psycopg2.connect(dsn)
        self.connection.autocommit = True
        self.cursor = self.connection.cursor()
        self.numbers, self.random = numbers, random.Random(seed)
        self.prepared = []  # (when to finish it, its name, what it wrote)
        self.kinds = {}
        self.problem = None

    def run(self):
        try:
            self.cursor.execute("SET lock_timeout = '2s'")
            while self.one():
                self.finish_prepared()
            for _, name, ranges in self.prepared:
                self.finish(name, ranges)
        except Exception as problem:  # pylint: disable=broad-except
            self.problem = problem

    def one(self):
        """A transaction. False: no numbers are left."""
        first, last = self.numbers.take(self.random.randint(1, MOST))
        if last < first:
            return False
        kind = self.random.choice(["commit"] * 12 + ["rollback", "parts", "parts", "parts", "late", "prepare", "unflushed", "unflushed"])
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        try:
            self.cursor.execute("BEGIN")
            if kind == "unflushed":
                self.cursor.execute("SET LOCAL synchronous_commit = off")
            self.end(kind, self.parts(first, last) if kind == "parts" else self.whole(first, last))
        except (psycopg2.errors.LockNotAvailable, psycopg2.errors.DeadlockDetected):
            self.cursor.execute("ROLLBACK")  # its aggregate was held by one that is late
        return True

    def write(self, first, last):
        aggregate = self.random.randint(1, AGGREGATES) if self.random.random() < 0.7 else 0
        self.cursor.execute("SELECT write(%s, %s, %s)", (first, last, aggregate))

    def whole(self, first, last):
        self.write(first, last)
        return [(first, last)]

    def parts(self, first, last):
        """Subtransactions, of which some are rolled back."""
        kept = []
        while first <= last:
            end = min(last, first + self.random.randint(0, 20))
            self.cursor.execute("SAVEPOINT part")
            self.write(first, end)
            if self.random.random() < 0.3:
                self.cursor.execute("ROLLBACK TO part")
            else:
                self.cursor.execute("RELEASE part")
                kept.append((first, end))
            first = end + 1
        return kept

    def end(self, kind, ranges):
        if kind == "rollback":
            self.cursor.execute("ROLLBACK")
        elif kind == "prepare" and len(self.prepared) < 2:
            name = f"p{uuid.uuid4()}"
            self.cursor.execute(f"PREPARE TRANSACTION '{name}'")
            self.prepared.append((time.monotonic() + self.random.uniform(0, LATE_S), name, ranges))
        else:
            if kind == "late":
                time.sleep(self.random.uniform(0, LATE_S / 3))
            self.cursor.execute("COMMIT")
            self.numbers.commit(ranges)

    def finish_prepared(self):
        for each in [each for each in self.prepared if each[0] < time.monotonic()]:
            self.prepared.remove(each)
            self.finish(*each[1:])

    def finish(self, name, ranges):
        if self.random.random() < 0.3:
            self.cursor.execute(f"ROLLBACK PREPARED '{name}'")
        else:
            self.cursor.execute(f"COMMIT PREPARED '{name}'")
            self.numbers.commit(ranges)


@pytest.fixture
def parts(tmp_path):
    """(the shop, the warehouse, the relay, the consumer); NATS between them."""
    shop = Database("shop", settings={"max_prepared_transactions": "20"})
    warehouse = Database("warehouse")
    shop.database.execute(SHOP)
    warehouse.database.execute(WAREHOUSE)
    broker, relay_lines, consumer_lines = open_broker("nats")
    config = write_config(
        tmp_path,
        [f"dsn = {shop.role('publisher', 'once_relay')}", *relay_lines],
        [f"dsn = {warehouse.role('shipper', 'once_consumer')}", *consumer_lines, "handler = public.see"],
    )
    jobs = Job("relay", config), Job("consume", config)
    for job in jobs:
        job.start()
    yield shop, warehouse, *jobs
    for part in (*jobs, broker, shop, warehouse):
        part.destroy()


def open_elsewhere(shop):
    """A transaction that writes, in another database of the server: its xid is in every snapshot's way."""
    other = shop.server.empty_database()
    other.execute("CREATE TABLE t (i integer)")
    connection = other.connect(autocommit=False)
    connection.cursor().execute("INSERT INTO t VALUES (1)")
    return connection


def test_every_committed_event_arrives_once_and_in_order_and_no_other(parts):
    shop, warehouse, relay, consumer = parts
    seed = random.randrange(2**32)
    elsewhere = open_elsewhere(shop)
    numbers = Numbers(EVENTS)
    oldest = shop.database.connect(autocommit=False)
    first, last = numbers.take(1000)
    oldest.cursor().execute("SELECT write(%s, %s, 0)", (first, last))

    begun = time.monotonic()
    writers = [Writer(shop.dsn(), numbers, seed + n) for n in range(WRITERS)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(PATIENCE_S)
        assert not writer.is_alive() and writer.problem is None, (seed, writer.problem)
    oldest.commit()
    numbers.commit([(first, last)])
    written = time.monotonic() - begun

    committed = numbers.all()
    try:
        wait_until(
            lambda: warehouse.database.value("SELECT count(*) FROM seen") >= len(committed), f"{len(committed)} effects", PATIENCE_S
        )
    except TimeoutError as late:
        count = warehouse.database.value("SELECT count(*) FROM seen")
        raise TimeoutError(f"{late}: {count}; seed {seed}\n{relay.tail()}\n{consumer.tail()}") from late
    arrived = time.monotonic() - begun
    relay.stop()
    consumer.stop()
    relay.once()
    consumer.once()
    elsewhere.rollback()
    kinds = {kind: sum(writer.kinds.get(kind, 0) for writer in writers) for kind in sorted(writers[0].kinds)}
    print(f"\nseed {seed}; transactions: {kinds}; {len(committed)} of {EVENTS} events committed in {written:.1f} s, all arrived after "
          f"{arrived:.1f} s: {len(committed) / arrived:.0f} a second")

    seen = [n for n, in warehouse.database.rows("SELECT n FROM seen")]
    assert len(seen) == len(set(seen)), f"seed {seed}: {len(seen) - len(set(seen))} came more than once"
    assert not committed - set(seen), f"seed {seed}: lost: {sorted(committed - set(seen))[:10]}"
    assert not set(seen) - committed, f"seed {seed}: not committed: {sorted(set(seen) - committed)[:10]}"
    steps = {}
    for key, step in warehouse.database.rows("SELECT key, step FROM seen WHERE key IS NOT NULL ORDER BY position"):
        steps.setdefault(key, []).append(step)
    assert len(steps) > AGGREGATES / 2
    wrong = [key for key, each in steps.items() if each != list(range(1, len(each) + 1))]
    assert not wrong, f"seed {seed}: out of order: aggregates {wrong[:5]}"
