# SPDX-License-Identifier: PostgreSQL
"""Orders that are placed in one database are shipped by another, once each and in order, whatever is killed on the way: the relay, the
consumer, the broker, either PostgreSQL, all the time and at random."""

import json
import random
import threading
import time
import uuid

import psycopg2
import pytest
from harness.postgres import wait_until

from .parts import BROKERS, EXAMPLES, Database, Job, open_broker, write_config

CHAOS_S = 12  # and two rounds at least
CLIENTS = 3
CHANGES = 4  # events of each order, after its first
DRAIN_S = 90

# The proof: shop.take_stock as it is, and before it a line for each message that is applied, by nothing kept single.
PROOF = """
CREATE TABLE shop.applied (position bigint GENERATED ALWAYS AS IDENTITY, message_id text, key text, step integer);
CREATE FUNCTION shop.prove(message once.message) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO shop.applied (message_id, key, step) VALUES ((message).id, (message).key, ((message).body ->> 'step')::integer);
    PERFORM shop.take_stock(message);
    PERFORM pg_sleep(0.005);    -- so that whoever is killed has something at work
END $$;
GRANT INSERT ON shop.applied TO once_consumer;
"""


class Unwaited:
    """A broker that takes long to come up: the trouble goes on meanwhile."""

    def __init__(self, broker):
        self.name, self.kill, self.broker = broker.name, broker.kill, broker

    def start(self):
        self.broker.start(wait=False)


class Client(threading.Thread):
    """Places orders and changes each some times; what fails is attempted again with the same key, as every caller must."""

    def __init__(self, dsn, number, stop):
        super().__init__(daemon=True)
        self.dsn, self.number, self.stop = dsn, number, stop
        self.orders, self.events, self.failures = [], 0, 0
        self.problem = None

    def attempt(self, query, *values):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            connection = None
            try:
                connection = psycopg2.connect(self.dsn, connect_timeout=5)
                with connection.cursor() as cursor:
                    cursor.execute(query, values)
                    answer = cursor.fetchone()[0]
                connection.commit()
                return answer
            except psycopg2.Error:
                self.failures += 1
                time.sleep(0.05)
            finally:
                if connection is not None:
                    connection.close()
        raise TimeoutError(f"no success in 60 s: {query} {values}")

    def run(self):
        try:
            while not self.stop.is_set():
                self.one()
        except Exception as problem:  # pylint: disable=broad-except
            self.problem = problem

    def one(self):
        name = f"{self.number}-{len(self.orders)}-{uuid.uuid4()}"
        request = json.dumps({"customer": f"customer {self.number}", "cart": name, "total": 10})
        order = json.loads(bytes(self.attempt("SELECT orders.place(%s, %s)", name, request)))["order"]
        self.orders.append(order)
        for step in range(1, CHANGES + 1):
            payload = json.dumps({"order": order, "step": step})
            self.attempt(
                "SELECT once.emit('order.changed', %s, 'order', %s, scope => 'changes', key => %s)", payload, order, f"{name}/{step}"
            )


def trouble(parts, seconds):
    """Kills each of the parts in a random order, leaves it dead for a moment, starts it again, and goes on while others still come up; round
    after round."""
    begun, killed = time.monotonic(), []
    while time.monotonic() < begun + seconds or len(killed) < 2 * len(parts):
        for part in random.sample(parts, len(parts)):
            part.kill()
            time.sleep(random.uniform(0, 0.5))
            part.start()
            killed.append(part.name)
            time.sleep(random.uniform(0.1, 1))
    return killed


@pytest.fixture
def shop():
    database = Database("shop", EXAMPLES / "orders/orders.sql")
    yield database
    database.destroy()


@pytest.fixture
def warehouse():
    database = Database("warehouse", EXAMPLES / "orders/stock.sql")
    database.database.execute(PROOF)
    yield database
    database.destroy()


@pytest.fixture(params=BROKERS)
def way(request, shop, warehouse, tmp_path):
    """(the broker, the relay, the consumer), started."""
    broker, relay_lines, consumer_lines = open_broker(request.param)
    quick = ["retry_first = 100ms", "retry_most = 2s"]
    config = write_config(
        tmp_path,
        [f"dsn = {shop.role('publisher', 'once_relay')}", *relay_lines, *quick],
        [f"dsn = {warehouse.role('shipper', 'once_consumer')}", *consumer_lines, "handler = shop.prove", *quick],
    )
    relay, consumer = Job("relay", config), Job("consume", config)
    relay.start()
    consumer.start()
    yield broker, relay, consumer
    relay.destroy()
    consumer.destroy()
    broker.destroy()


def test_every_order_is_shipped_once_and_in_order_while_everything_is_killed(shop, warehouse, way):
    broker, relay, consumer = way
    seed = random.randrange(2**32)
    random.seed(seed)
    stop = threading.Event()
    clients = [Client(shop.role("seller", "once_app") if n == 0 else shop.dsn("seller"), n, stop) for n in range(CLIENTS)]
    for client in clients:
        client.start()
    killed = trouble([Unwaited(broker), relay, consumer, shop, warehouse], CHAOS_S)
    broker.wait_ready()
    stop.set()
    for client in clients:
        client.join(90)
        assert not client.is_alive() and client.problem is None, client.problem
    orders = sorted(order for client in clients for order in client.orders)
    expected = len(orders) * (1 + CHANGES)
    database = warehouse.again()
    begun = time.monotonic()

    def all_are_there():
        for job in (relay, consumer):
            assert job.is_running(), f"seed {seed}: it ended by itself\n{job.tail()}"
        return database.value("SELECT count(*) FROM shop.applied") >= expected

    try:
        wait_until(all_are_there, f"{expected} effects", DRAIN_S)
    except TimeoutError as late:
        count = database.value("SELECT count(*) FROM shop.applied")
        raise TimeoutError(f"{late}: {count}; seed {seed}\n{relay.tail()}\n{consumer.tail()}") from late
    drained = time.monotonic() - begun
    # Whatever would still come again comes now.
    relay.stop()
    consumer.stop()
    relay.once()
    consumer.once()
    print(f"\nseed {seed}; killed: {', '.join(killed)}; {len(orders)} orders, {expected} events; attempts that failed: "
          f"{sum(client.failures for client in clients)}; drained in {drained:.1f} s")

    applied = {order: [] for order in orders}
    for order, step in database.rows("SELECT key, coalesce(step, 0) FROM shop.applied ORDER BY position"):
        applied[order].append(step)
    wrong = {order: steps for order, steps in applied.items() if steps != list(range(CHANGES + 1))}
    assert not wrong, (len(wrong), list(wrong.items())[:5])
    assert [order for order, in database.rows("SELECT order_id::text FROM shop.shipment ORDER BY 1")] == orders
    assert database.value("SELECT 1000000 - quantity FROM shop.stock") == len(orders)
    assert database.value("SELECT count(*) FROM once.parked_message") == 0
    assert shop.again().value("SELECT count(*) FROM once.parked_event") == 0
    assert len(orders) >= 20  # else it was no trial
