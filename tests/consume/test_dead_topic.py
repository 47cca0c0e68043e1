# SPDX-License-Identifier: PostgreSQL
"""pgonce consume and a dead topic that takes nothing, with each broker: messages wait in the database, not a transaction for the broker."""

import contextlib
import json
import time

import pytest

from end_to_end.parts import BROKERS, Job
from harness import aws, elasticmq
from harness import kafka as kafka_harness
from harness.elasticmq import ElasticMq
from harness.kafka import Kafka
from harness.nats import Nats
from harness.postgres import wait_until
from harness.rabbitmq import RabbitMQ

from .script import HANDLER

COUNT = 20
DEAD = "SELECT count(*) FROM once.parked_message WHERE state = 'dead'"
OLDEST = ("SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0) FROM pg_stat_activity"
          " WHERE application_name LIKE 'pgonce%' AND pid <> pg_backend_pid()")
IDS = [f"id-{n}" for n in range(COUNT)]
BODIES = [json.dumps({"do": "fail", "id": each}) for each in IDS]


@contextlib.contextmanager
def nats():
    with Nats() as broker:
        broker.add_stream("ORDERS", "order.>")
        broker.publish([("order.placed", body.encode()) for body in BODIES])
        with broker.connect() as nobody:
            # Somebody listens who never answers: without, the server says at once that nobody does.
            nobody.subscribe("graves")
            nobody.publish("flushed")

            def mend():
                nobody.close()
                broker.add_stream("GRAVES", "graves")

            def found():
                return {each.header("Pgonce-Dead-Id") for each in broker.messages("GRAVES")}

            yield {"url": broker.url, "stream": "ORDERS", "subject": "order.>"}, mend, found


@contextlib.contextmanager
def rabbitmq():
    with RabbitMQ() as broker:
        broker.declare("orders")
        broker.declare("graves")
        broker.publish("orders", [body.encode() for body in BODIES])
        broker.control("set_vm_memory_high_watermark", "0.0000001")  # whoever publishes is no longer read from
        yield (
            {"url": broker.url, "queue": "orders"},
            lambda: broker.control("set_vm_memory_high_watermark", "0.8"),
            lambda: {properties.headers["Pgonce-Dead-Id"] for _, properties, _ in broker.take("graves")},
        )


@contextlib.contextmanager
def kafka():
    kafka_harness.require()
    with Kafka() as broker:
        broker.create_topic("orders")
        broker.create_topic("graves")
        broker.publish("orders", [(str(n), body) for n, body in enumerate(BODIES)])
        broker.throttle(1)  # one message, and then none for a long time
        yield (
            {"url": f"kafka://{broker.servers}", "topics": "orders"},
            broker.throttle,
            lambda: {each["headers"]["Pgonce-Dead-Id"] for each in broker.messages("graves")},
        )


@contextlib.contextmanager
def sqs():
    elasticmq.require()
    with ElasticMq() as server, aws.Door(server.port) as door:
        server.declare("orders")
        server.declare("graves")
        server.publish("orders", BODIES)
        door.edit("SendMessage", lambda _: time.sleep(8), times=1000)
        yield (
            {"url": door.url, "queue": "orders", "wait": "1s"},
            door.rules.clear,
            lambda: {elasticmq.headers(each)["Pgonce-Dead-Id"] for each in server.take("graves")},
        )


@pytest.mark.parametrize("kind", BROKERS)
def test_a_dead_topic_that_takes_nothing_holds_no_transaction_open_nor_the_end_of_the_process_up(db, tmp_path, kind):
    db.execute(HANDLER)
    with {"nats": nats, "rabbitmq": rabbitmq, "kafka": kafka, "sqs": sqs}[kind]() as (options, mend, found):
        lines = {"source": kind, **options, "handler": "apply", "id": "json:/id", "attempts": "1", "dead_topic": "graves", "retry_first": "1s", "retry_most": "2s", "order_by": "none"}
        config = tmp_path / "pgonce.conf"
        config.write_text(f"dsn = {db.dsn()}\n\n[consume stock]\n" + "".join(f"{name} = {value}\n" for name, value in lines.items()))
        config.chmod(0o600)
        job = Job("consume", config)
        try:
            job.start()
            wait_until(lambda: db.value("SELECT count(*) FROM once.parked_message") == COUNT, "all to be parked")
            wait_until(lambda: "event=dead_topic" in job.tail(100_000), "the first failure")
            assert db.value(DEAD) <= 2  # Kafka has taken one or two before it holds them up
            started, longest = time.monotonic(), 0
            while time.monotonic() - started < 3:
                longest = max(longest, db.value(OLDEST))
                time.sleep(0.05)
            assert longest < 2
            started = time.monotonic()
            job.stop()
            assert time.monotonic() - started < 20  # one message after the other took 5 s each
            mend()
            job.start()
            wait_until(lambda: db.value(DEAD) == COUNT, "all to be dead", 120)
            letters = set()
            wait_until(lambda: letters.update(found()) or letters >= set(IDS), "their copies")
            job.stop()
        finally:
            job.destroy()
