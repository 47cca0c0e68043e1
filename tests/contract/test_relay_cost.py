# SPDX-License-Identifier: PostgreSQL
"""What a batch costs a relay: pages touched and not time, which depends on what else the machine does. Neither what was
published nor a transaction that stays open makes it dearer."""

import pytest

from .calls import run, today
from .relaying import Relay, emit, ids, parking

PUBLISHED = (
    "INSERT INTO once.outbox (day, xid, created_at, event_id, topic, event_type, tenant, payload) SELECT %s,"
    " (100 + g %% 500)::text::xid8, now(), '00000000-0000-0000-0000-000000000000', 't', 't', '', '{}'"
    " FROM generate_series(1, %s) AS g"
)


def pages(relay, query, *values):
    """The pages that a query touches, its function's statements among them; planned and cached before."""
    for _ in range(3):
        run(relay.connection, query, *values)
    plan = run(relay.connection, "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + query, *values)[0][0][0]["Plan"]
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


def cost_of_a_batch(db, relay):
    """The pages that it takes to list and to fetch ten events, each of a transaction of its own."""
    relay.seen, relay.reading, relay.after_id = relay.look().reading, None, 0
    for _ in range(10):
        emit(db.connections[0])
    rows = relay.list()
    assert len(rows) == 10
    return pages(
        relay,
        "SELECT * FROM once_job.relay_list(%s, %s, %s, 0, 1000)",
        relay.name,
        relay.seen,
        relay.reading,
    ), pages(
        relay,
        "SELECT * FROM once_job.relay_fetch(%s, %s::bigint[], %s::xid8[], %s::integer[])",
        relay.name,
        ids(rows),
        [row.xid for row in rows],
        [row.day for row in rows],
    )


def test_what_was_published_and_a_transaction_that_stays_open_cost_a_batch_nothing(db):
    compare_costs(db, 1_000_000)


def compare_costs(db, published):
    db.connect()
    relay = Relay(db.connect())
    day = today(db)
    for before in range(1, 6):
        db.execute(
            f"CREATE TABLE once.outbox_d{day - before} PARTITION OF once.outbox"
            f" FOR VALUES FROM ({day - before}) TO ({day - before + 1})"
        )
    db.execute(PUBLISHED, day, 1000)
    base = cost_of_a_batch(db, relay)
    db.execute(PUBLISHED, day - 1, published // 20)
    db.execute(PUBLISHED, day, published - published // 20)
    many = cost_of_a_batch(db, relay)
    # Deeper indexes, and no more: a page or two for each search and event.
    assert many[0] <= base[0] + 40 and many[1] <= base[1] + 40, (base, many)
    slow = db.connect(isolation="READ COMMITTED")
    run(
        slow,
        "INSERT INTO once.outbox (day, created_at, event_id, topic, event_type, tenant, payload) SELECT %s, now(),"
        " '00000000-0000-0000-0000-000000000000', 't', 't', '', '{}' FROM generate_series(1, 20000)",
        day,
    )
    emit(db.connections[0])
    for _ in range(3):
        held_up = cost_of_a_batch(db, relay)
        assert held_up[0] <= many[0] + 40 and held_up[1] <= many[1] + 40, (many, held_up)
    slow.rollback()


def test_plans_made_on_an_empty_outbox_stay_searches_when_it_has_filled(db):
    """Statistics were never gathered, or while it was empty; the session has planned all before."""
    connection = db.connect()
    relay = Relay(connection)
    db.execute("VACUUM ANALYZE once.outbox")
    db.execute("ALTER DATABASE " + db.name + " SET random_page_cost = 1000")
    for _ in range(7):
        relay.fetch(relay.list())
        relay.due()
        relay.settle()
    day = today(db)
    db.execute(PUBLISHED, day, 30_000)
    events = [emit(db.connect(), "a") for _ in range(5)]
    run(connection, "BEGIN")
    before = scanned(connection)
    assert [event.event_id for event in relay.fetch(relay.list())] == events
    scans, rows = (after - earlier for after, earlier in zip(scanned(connection), before))
    run(connection, "COMMIT")
    assert scans == 0 and rows <= 20, (scans, rows)


def scanned(connection):
    return run(
        connection,
        "SELECT coalesce(sum(seq_scan), 0), coalesce(sum(seq_tup_read), 0) + coalesce(sum(idx_tup_fetch), 0)"
        " FROM pg_stat_xact_all_tables WHERE schemaname = 'once' AND relname ~ '^(outbox|parked)'",
    )[0]


def test_the_rest_of_a_long_backlog_is_listed_without_reading_what_lies_beyond(db):
    relay = Relay(db.connect())
    day = today(db)
    db.execute(PUBLISHED.replace("(100 + g %% 500)::text::xid8", "pg_current_xact_id()"), day, 100_000)
    first = relay.list(1000)
    at_once = pages(relay, "SELECT * FROM once_job.relay_list('r', %s, %s, 0, 1000)", relay.seen, relay.reading)
    later = pages(
        relay, "SELECT * FROM once_job.relay_list('r', %s, %s, %s, 1000)", relay.seen, relay.reading, first[-1].id
    )
    assert later < at_once / 3, (at_once, later)


AGGREGATES = 1200


def with_followers_of_dead_ones(db):
    """A relay with as many dead events, each with one of its aggregate behind it."""
    relay = Relay(db.connect())
    db.execute("SELECT once.emit('t', '{}', 'a', g::text) FROM generate_series(1, %s) AS g, generate_series(1, 2)", AGGREGATES)
    rows = relay.fetch(relay.list(10 * AGGREGATES))
    first = {}
    relay.settle(parked=[parking(row, "dead" if first.setdefault(row.aggregate_id, row.id) == row.id else "waiting", 0) for row in rows])
    return relay


DUE = "SELECT * FROM once_job.relay_due('r', 1000)"


def test_what_stands_behind_dead_events_is_not_looked_at_for_ever(db):
    relay = with_followers_of_dead_ones(db)
    for _ in range(AGGREGATES // 1000 + 1):
        assert relay.due() == []
    db.execute("VACUUM once.parked_event")
    assert pages(relay, DUE) < 100


def test_what_stands_behind_dead_events_is_not_looked_at_for_ever_by_a_relay_that_always_has_more_to_do(db):
    relay = with_followers_of_dead_ones(db)
    db.execute("SELECT once.emit('t', '{}') FROM generate_series(1, 60)")
    relay.settle(parked=[parking(row, "retrying", 0) for row in relay.fetch(relay.list(100))[-60:]])
    full = "SELECT * FROM once_job.relay_due('r', 50)"
    for _ in range(AGGREGATES // 1000 + 1):
        assert len(relay.due(50)) == 50
    assert db.value("SELECT count(*) FROM once.parked_event WHERE state = 'waiting' AND next_at < 'infinity'") == 0
    db.execute("VACUUM once.parked_event")
    assert pages(relay, full) < 50 * 20


@pytest.mark.parametrize("what", ["discard", "retry", "skip"])
def test_what_stood_behind_a_dead_event_is_due_when_somebody_has_decided(db, what):
    relay = with_followers_of_dead_ones(db)
    for _ in range(AGGREGATES // 1000 + 1):
        assert relay.due() == []
    dead = db.row("SELECT event_id, aggregate_id FROM once.parked_event WHERE state = 'dead' ORDER BY id LIMIT 1")
    if what == "skip":
        run(relay.connection, "SELECT pg_advisory_unlock_all()")  # its settings have changed, so it begins anew
        assert len(Relay(db.connect()).due(10 * AGGREGATES, skip_dead=True)) == AGGREGATES
        return
    db.execute(f"SELECT once.parked_{what}(%s::text, 'why', 'r')", dead.event_id)
    due = relay.due()
    assert {event.aggregate_id for event in due} == {dead.aggregate_id} and len(due) == (2 if what == "retry" else 1)


def test_a_hundred_thousand_delayed_events_cost_a_look_nothing(db):
    relay = Relay(db.connect())
    db.execute(
        "INSERT INTO once.delayed_event (event_id, not_before, emitted_at, topic, event_type, tenant, payload)"
        " SELECT gen_random_uuid(), now() + g * interval '1 min', now(), 't', 't', '', '{}' FROM generate_series(1, 100000) AS g"
    )
    assert run(relay.connection, "SELECT released FROM once_job.relay_release()")[0].released == 0
    assert pages(relay, "SELECT * FROM once_job.relay_release()") < 20
