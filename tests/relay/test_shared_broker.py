# SPDX-License-Identifier: PostgreSQL
"""Relays that share a broker: two of one outbox into one stream, and those of two databases into one destination. What one has sent must not make the
broker drop what the other sends."""

import json

import pytest

from harness import aws, elasticmq
from harness.elasticmq import ElasticMq
from harness.nats import Nats

from .running import Relay, emit, passed_all

EVENTS = 20


@pytest.fixture
def nats():
    with Nats() as server:
        server.add_stream("SHOP", "shop.>")
        yield server


@pytest.fixture
def other(server):
    """Another installation: with a salt of its own."""
    database = server.new_database()
    database.execute("UPDATE once.setting SET salt = DEFAULT")
    yield database
    database.drop()


@pytest.fixture
def queue():
    elasticmq.require()
    with ElasticMq() as server:
        server.declare("shop.fifo")
        yield server


def invoice(db, total):
    """An event of an intent that both databases name alike."""
    db.execute("SELECT once.emit('shop.invoice', jsonb_build_object('total', %s), scope => 'invoices', key => '2026-1')", total)


def test_two_relays_into_one_stream_store_each_event_twice(db, tmp_path, nats):
    options = {"sink": "nats", "url": nats.url}
    emit(db.connect(), EVENTS)
    for name in ("a", "b"):
        with Relay(tmp_path, db.dsn(), name, route=f"* -> shop.{name}.{{topic}}", **options) as relay:
            relay.until_true(lambda: passed_all(db, relay.name), "the relay to be through")
            assert relay.stop() == 0
    arrived = [(message.subject, json.loads(message.data)["n"]) for message in nats.messages("SHOP")]
    assert arrived == [(f"shop.{name}.order.created", number) for name in ("a", "b") for number in range(EVENTS)]


def test_relays_of_two_databases_into_one_subject_store_the_invoices_of_both(db, other, tmp_path, nats):
    for name, database, total in (("a", db, 1), ("b", other, 2)):
        invoice(database, total)
        with Relay(tmp_path, database.dsn(), name, sink="nats", url=nats.url) as relay:
            relay.until_true(lambda: passed_all(database, relay.name), "the relay to be through")
            assert relay.stop() == 0
    assert [json.loads(message.data)["total"] for message in nats.messages("SHOP")] == [1, 2]


def test_relays_of_two_databases_into_one_fifo_queue_store_the_invoices_of_both(db, other, tmp_path, queue, monkeypatch):
    for name, value in aws.environment().items():
        monkeypatch.setenv(name, value)
    with aws.Door(queue.port) as door:
        for name, database, total in (("a", db, 1), ("b", other, 2)):
            invoice(database, total)
            with Relay(tmp_path, database.dsn(), name, sink="sqs", url=door.url, route="* -> shop.fifo") as relay:
                relay.until_true(lambda: passed_all(database, relay.name), "the relay to be through")
                assert relay.stop() == 0
    # Each is of a group of its own, and a FIFO queue orders within a group.
    assert sorted(json.loads(message["Body"])["total"] for message in queue.take("shop.fifo")) == [1, 2]
