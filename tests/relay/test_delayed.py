# SPDX-License-Identifier: PostgreSQL
"""Delayed events (once.emit_later) at a real broker: not before their time, soon after it, once for each relay, whoever is killed meanwhile."""

import json

import pytest

from harness.nats import Nats
from harness.postgres import wait_until

from .running import Relay, emit, passed_all


@pytest.fixture
def nats():
    with Nats() as server:
        server.add_stream("SHOP", "shop.>")
        yield server


def emit_later(db, after, count=1, first=0, aggregate="'7'"):
    """Events with {"n": first...}, all due at once so long from now."""
    return [row[0] for row in db.rows(
        f"""SELECT once.emit_later(t.at, 'reminder', jsonb_build_object('n', i, 'at', extract(epoch FROM t.at)), 'order', {aggregate})::text
              FROM (SELECT clock_timestamp() + %s::interval AS at) AS t, generate_series(%s, %s) AS i""", after, first, first + count - 1)]


def arrived(nats, prefix="shop"):
    return [json.loads(message.data) for message in nats.messages("SHOP") if message.subject.startswith(prefix + ".")]


def done(db, *relays):
    return db.value("SELECT count(*) FROM once.delayed_event") == 0 and all(passed_all(db, relay) for relay in relays)


def test_a_delayed_event_arrives_when_it_is_due_and_holds_back_nothing(db, tmp_path, nats):
    with Relay(tmp_path, db.dsn(), sink="nats", url=nats.url, route="* -> shop.{topic}") as relay:
        relay.until("active")
        emit_later(db, "1500 ms")
        never = emit_later(db, "1 hour", first=9)
        emit(db.connect(), 1, aggregate="'7'", first=1)
        relay.until_true(lambda: len(arrived(nats)) == 1, "the event that is not delayed")
        relay.until_true(lambda: len(arrived(nats)) == 2, "the delayed event")
        messages = arrived(nats)
        assert [message["n"] for message in messages] == [1, 0]
        released = db.value("SELECT extract(epoch FROM created_at) FROM once.outbox WHERE topic = 'reminder'")
        # Asked for when the wait is over and not just now and then: a look a second would be 0.5 s late in the mean.
        assert messages[1]["at"] <= released < messages[1]["at"] + 0.4
        db.execute("SELECT once.parked_retry(%s::text, 'why')", never[0])
        relay.until_true(lambda: len(arrived(nats)) == 3, "the event that an operator has released")
        assert relay.stop() == 0


def test_each_relay_delivers_it_once_whoever_is_killed_and_whoever_stands_by(db, tmp_path, nats):
    options = {"sink": "nats", "url": nats.url, "batch": 50}
    rounds, count = 3, 700  # more than one look releases
    relays = []
    for directory, name in (("1", "a"), ("2", "a"), ("3", "b")):
        (tmp_path / directory).mkdir()
        relays.append(Relay(tmp_path / directory, db.dsn(), name, route=f"* -> shop.{name}.{{topic}}", **options))
    try:
        for relay in relays:
            relay.start()
        for number in range(rounds):
            emit_later(db, "300 ms", count, first=number * count, aggregate="(i %% 20)::text")
            db.execute("SELECT once.emit_later(now() + interval '1 day', 'never', '{}')")
            wait_until(lambda least=number * count: len(arrived(nats, "shop.b")) > least + 10, "a part of them")
            for relay in relays[:2]:
                relay.kill()
                relay.start()
            db.execute("DELETE FROM once.delayed_event WHERE topic = 'never'")
        wait_until(lambda: done(db, "a", "b"), "all to be delivered")
    finally:
        for relay in relays:
            relay.__exit__()
    assert db.value("SELECT count(*) FROM once.outbox") == rounds * count
    for name in ("a", "b"):
        numbers = [message["n"] for message in arrived(nats, f"shop.{name}")]
        assert sorted(numbers) == list(range(rounds * count))  # the stream drops what a killed relay sends again
        for aggregate in range(20):
            own = [number for number in numbers if number % 20 == aggregate]
            assert own == sorted(own)


def test_once_delivers_what_is_due_and_ends_however_much_it_is(db, tmp_path):
    emit_later(db, "1 hour")
    relay = Relay(tmp_path, db.dsn())
    assert relay.once() == 0 and relay.delivered() == []
    emit_later(db, "0", 10, first=5000)  # at once
    db.execute("UPDATE once.delayed_event SET not_before = now()")
    db.execute(
        "INSERT INTO once.delayed_event (event_id, not_before, emitted_at, topic, event_type, tenant, payload)"
        " SELECT gen_random_uuid(), now() - i * interval '1 s', now(), 't', 't', '', jsonb_build_object('n', -i) FROM generate_series(1, 1600) AS i")
    assert relay.once() == 0
    assert sorted(message["payload"]["n"] for message in relay.delivered()) == [*range(-1600, 0), 0, *range(5000, 5010)]
    assert db.value("SELECT count(*) FROM once.delayed_event") == 0
