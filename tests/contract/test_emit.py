# SPDX-License-Identifier: PostgreSQL
"""The outbox: an event exists if and only if its effect committed, and one intent emits one event of a type."""

import random

import psycopg2
import pytest
from harness.mutation import mutate

from .calls import Once, hold_days, in_threads, refused, run

EVENT = dict(
    topic="order.created",
    payload='{"id": 7}',
    aggregate_type="order",
    aggregate_id="7",
    scope="orders",
    key="k",
    headers='{"h": "1"}',
)


def events(db):
    return db.rows("SELECT * FROM once.outbox ORDER BY id")


def test_an_event_holds_what_was_emitted(db):
    event_id = Once(db.connect()).emit(**EVENT, tenant="t")
    event = events(db)[0]
    assert (
        event.event_id,
        event.topic,
        event.event_type,
        event.payload,
        event.aggregate_type,
        event.aggregate_id,
        event.scope,
        event.key,
        event.headers,
        event.tenant,
    ) == (event_id, "order.created", "order.created", {"id": 7}, "order", "7", "orders", "k", {"h": "1"}, "t")


def test_an_event_exists_if_and_only_if_its_transaction_committed(db):
    connection = db.connect(isolation="READ COMMITTED")
    Once(connection).emit(**EVENT)
    connection.rollback()
    assert events(db) == []
    Once(connection).emit(**EVENT)
    connection.commit()
    assert len(events(db)) == 1


def test_the_same_event_of_an_intent_again_is_the_same_event(db):
    once = Once(db.connect())
    first = once.emit(**EVENT)
    assert once.emit(**EVENT) == first
    assert once.emit(**{**EVENT, "payload": '{ "id" :7}'}) == first  # the same JSON
    assert len(events(db)) == 1


def test_the_same_names_in_another_installation_are_another_event(db):
    """An installation is its salt: two of them may share a broker that drops what has an id that it knows."""
    connection = db.connect(isolation="READ COMMITTED")

    def ids():
        made = [Once(connection).emit(**EVENT, tenant=tenant) for tenant in ("", "t", "u")]
        connection.rollback()
        return made

    here = ids()
    assert ids() == here
    db.execute("UPDATE once.setting SET salt = DEFAULT")
    there = ids()
    assert ids() == there and len({*here, *there}) == 6


def emit_yesterday(db):
    """An event that an attempt of yesterday has emitted. Returns its id."""
    event_id = Once(db.connect()).emit(**EVENT)
    day = db.value("SELECT day FROM once.outbox") - 1
    db.execute(f"CREATE TABLE once.outbox_d{day} PARTITION OF once.outbox FOR VALUES FROM ({day}) TO ({day + 1})")
    db.execute("UPDATE once.outbox SET day = day - 1")
    return event_id


def test_the_same_event_again_on_another_day_is_the_same_event(db):
    event_id = emit_yesterday(db)
    once = Once(db.connect())
    assert once.emit(**EVENT) == event_id
    with refused("P4051"):
        once.emit(**{**EVENT, "payload": '{"id": 8}'})
    assert len(events(db)) == 1


def on_another_day(db, days, call):
    """What it returns while the clock of once.emit is so many days ahead."""
    ahead = f"clock_timestamp() + interval '{days} days'"
    mutate(db, "emit", "clock_timestamp()", ahead)
    try:
        return call()
    finally:
        mutate(db, "emit", ahead, "clock_timestamp()")


@pytest.mark.parametrize("days", [1, 2])
@pytest.mark.parametrize("before", [True, False], ids=["in use before", "not in use before"])
def test_the_same_event_again_after_the_clock_has_stepped_back_is_the_same_event(db, before, days):
    if before:
        db.execute("SELECT nextval('once.outbox_day_seq')")  # as whoever emitted first today has left it
    event_id = on_another_day(db, days, lambda: Once(db.connect()).emit(**EVENT))
    once = Once(db.connect())
    assert once.emit(**EVENT) == event_id
    with refused("P4051"):
        once.emit(**{**EVENT, "payload": '{"id": 8}'})
    assert len(events(db)) == 1
    # What is new is emitted today, and found again.
    other = {**EVENT, "key": "other"}
    assert once.emit(**other) == once.emit(**other)
    assert len(events(db)) == 2


def last_day(db):
    """Of the sequence that says whether there may be events of later days; and today."""
    return db.row("SELECT last_value / 256 AS last, floor(date_part('epoch', now()) / 86400)::integer AS today FROM once.outbox_day_seq")


def test_the_days_to_come_are_looked_at_only_after_they_were_in_use(db):
    mutate(db, "_emitted_later", "RETURN EXISTS (", "RAISE EXCEPTION 'looked'; RETURN EXISTS (")
    db.execute("SELECT setval('once.outbox_day_seq', 256 * floor(date_part('epoch', now()) / 86400)::integer)")
    Once(db.connect()).emit(**EVENT)
    db.execute("SELECT nextval('once.outbox_day_seq') FROM generate_series(1, 255)")  # what crashes and crowds add
    Once(db.connect()).emit(**{**EVENT, "key": "other"})
    assert last_day(db).last == last_day(db).today
    db.execute("SELECT nextval('once.outbox_day_seq')")
    with pytest.raises(psycopg2.Error, match="looked"):
        Once(db.connect()).emit(**EVENT)


def test_who_emits_first_after_idle_days_says_so_though_it_rolls_back(db):
    db.execute("SELECT setval('once.outbox_day_seq', 256 * (floor(date_part('epoch', now()) / 86400)::integer - 100) + 40)")
    connection = db.connect()
    run(connection, "BEGIN")
    Once(connection).emit(**EVENT)
    run(connection, "ROLLBACK")
    assert last_day(db).last == last_day(db).today


def test_names_that_no_index_takes_together_are_refused_with_the_bound(db):
    once = Once(db.connect())
    letters = [chr(n) for n in range(0x10000, 0x20000)]  # of four bytes each
    tenant, scope, kind = ("".join(random.Random(n).choices(letters, k=255)) for n in range(3))

    def emit(kind):
        return once.emit(topic="t", payload="{}", event_type=kind, scope=scope, key="k", tenant=tenant)

    def report(part):
        run(db.connect(), "SELECT once.consumer_report(%s, now(), %s, %s)", scope, tenant, part)

    for call in (emit, report):
        with refused("22023") as told:
            call(kind)
        assert "2600" in told.value.diag.message_hint
        call(kind[:139])


def test_an_events_id_is_the_same_across_attempts(db):
    connection = db.connect(isolation="READ COMMITTED")
    first = Once(connection).emit(**EVENT)
    connection.rollback()
    assert Once(connection).emit(**EVENT) == first


@pytest.mark.parametrize(
    "other",
    [
        {"payload": '{"id": 8}'},
        {"topic": "orders", "event_type": "order.created"},
        {"headers": '{"h": "2"}'},
        {"headers": None},
    ],
)
def test_the_same_event_type_with_another_content_is_refused(db, other):
    once = Once(db.connect())
    once.emit(**EVENT)
    with refused("P4051"):
        once.emit(**{**EVENT, **other})
    assert len(events(db)) == 1


def test_another_type_scope_key_or_tenant_is_another_event(db):
    once = Once(db.connect())
    ids = {
        once.emit(**{**EVENT, **other})
        for other in (
            {},
            {"event_type": "audit"},
            {"scope": "other"},
            {"key": "k2"},
            {"tenant": "t"},
            {"scope": "order", "key": "sk"},
            {"scope": "orde", "key": "rsk"},
        )
    }
    assert len(ids) == 7 == len(events(db))


def test_an_event_without_an_intent_is_new_each_time(db):
    once = Once(db.connect())
    assert once.emit(topic="t", payload="{}") != once.emit(topic="t", payload="{}")


def test_two_transactions_that_emit_one_event_end_with_one_event_and_nobody_waits(db):
    first, second = (db.connect(isolation="READ COMMITTED", lock_timeout="1s") for _ in range(2))
    Once(first).emit(**EVENT)
    with refused("P4029"):
        Once(second).emit(**EVENT)
    first.commit()
    second.rollback()
    Once(second).emit(**EVENT)
    second.commit()
    assert len(events(db)) == 1


def test_events_of_one_connection_have_rising_ids(db):
    once = Once(db.connect())
    emitted = [once.emit(topic="t", payload="{}", aggregate_type="a", aggregate_id="1") for _ in range(20)]
    assert [event.event_id for event in events(db)] == emitted


def test_an_event_carries_the_transaction_that_wrote_it(db):
    connection = db.connect(isolation="READ COMMITTED")
    Once(connection).emit(topic="t", payload="{}")
    xid = run(connection, "SELECT pg_current_xact_id()::text")[0][0]
    connection.commit()
    assert db.value("SELECT xid::text FROM once.outbox") == xid


@pytest.mark.parametrize(
    "wrong",
    [
        {"topic": None},
        {"topic": ""},
        {"topic": "t" * 256},
        {"payload": None},
        {"scope": None},
        {"key": None},
        {"headers": "[]"},
        {"headers": '"x"'},
        {"event_type": ""},
        {"event_type": "t" * 256},
    ],
)
def test_an_event_that_is_none_is_refused(db, wrong):
    with refused("22023"):
        Once(db.connect()).emit(**{**EVENT, **wrong})
    assert events(db) == []


def test_a_missing_outbox_partition_that_cannot_be_made_is_said_and_add_days_makes_it(db):
    day = db.value("SELECT floor(extract(epoch FROM clock_timestamp()) / 86400)::integer")
    db.execute(f"ALTER TABLE once.outbox DETACH PARTITION once.outbox_d{day}; DROP TABLE once.outbox_d{day}")
    held = hold_days(db)
    with refused("P4098"):
        Once(db.connect()).emit(**EVENT)
    held.rollback()
    db.execute("SELECT once.add_days()")
    Once(db.connect()).emit(**EVENT)


def test_parallel_intents_of_one_aggregate_do_not_block_each_other(db):
    connections = [db.connect(lock_timeout="5s") for _ in range(16)]
    in_threads([lambda n=n: Once(connections[n]).emit(**{**EVENT, "key": f"k{n}"}) for n in range(16)])
    assert len(events(db)) == 16


def test_a_hostile_payload_comes_back_as_it_was(db):
    payload = '{"a": "\\u2028<script>\'; DROP TABLE x; --", "n": 12345678901234567890.000000001}'
    Once(db.connect()).emit(topic="t", payload=payload)
    assert db.value("SELECT payload = %s::jsonb FROM once.outbox", payload)
