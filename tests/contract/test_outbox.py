# SPDX-License-Identifier: PostgreSQL
"""Parked events: order within an aggregate, and what many of them cost. Operators: test_outbox_operators.py; retiring a day: test_outbox_days.py."""

import pytest

from harness.postgres import wait_until

from .calls import LEVELS, code_of, in_threads, run
from .relaying import Relay, emit, ids, parked, parking


def emitted(db, *aggregates, **more):
    """Events of these aggregates, and the relay that has fetched them."""
    events = [emit(db.connect(), aggregate, **more) for aggregate in aggregates]
    relay = Relay(db.connect())
    fetched = relay.fetch(relay.list())
    assert [event.event_id for event in fetched] == events
    return relay, fetched


# ---- order within an aggregate ----


def test_a_failing_event_holds_up_its_own_aggregate_only(db):
    relay, (a1, b1, a2, free1, free2) = emitted(db, "a", "b", "a", None, None)
    relay.park(
        parking(a1, wait_ms=60_000),
        parking(b1),
        parking(a2, "waiting", 0),
        parking(free1, wait_ms=60_000),
        parking(free2, wait_ms=0),
    )
    assert ids(relay.due()) == [b1.id, free2.id]
    new = [emit(db.connect(), aggregate) for aggregate in ("a", "b", None, "c")]
    fetched = relay.fetch(relay.list())
    assert [event.event_id for event in fetched] == new
    assert [event.blocked for event in fetched] == [True, True, False, False]


@pytest.mark.parametrize("other", [{"tenant": "t"}, {"aggregate_type": "another"}, {"aggregate_type": None}])
def test_an_aggregate_is_named_by_tenant_type_and_id(db, other):
    relay, (first,) = emitted(db, "a")
    relay.park(parking(first))
    emit(db.connect(), "a", **other)
    emit(db.connect(), "a")
    assert [event.blocked for event in relay.fetch(relay.list())] == [False, True]


def test_an_aggregate_without_a_type_keeps_its_order_too(db):
    relay, (first, second) = emitted(db, "a", "a", aggregate_type=None)
    relay.park(parking(first, wait_ms=60_000), parking(second, "waiting", 0))
    assert relay.due() == []
    relay.settle(delivered=[first.id])
    assert ids(relay.due()) == [second.id]


def test_a_chain_is_given_whole_when_its_head_is_due_and_stops_at_what_waits_for_something_else(db):
    relay, events = emitted(db, *"aaaaa", "b")
    relay.park(
        parking(events[0]),
        parking(events[1], "waiting", 0),
        parking(events[2], "waiting", 0, wait_ms=60_000),  # under way elsewhere
        parking(events[3], "waiting", 0),
        parking(events[4], "waiting", 0),
        parking(events[5], "waiting", 0),
    )
    due = relay.due()
    assert ids(due) == ids([events[0], events[1], events[5]])
    assert [event.attempts for event in due] == [1, 0, 0] and not any(event.blocked for event in due)
    assert len(relay.due(2)) == 2  # the heads first
    assert ids(relay.due(2)) == ids([events[0], events[5]])
    relay.settle(delivered=ids([events[0], events[1]]))
    assert ids(relay.due()) == [events[5].id]
    relay.settle(delivered=[events[2].id])
    assert ids(relay.due()) == ids(events[3:])


def test_a_chain_is_never_given_with_a_gap_however_few_are_taken(db):
    relay, events = emitted(db, *"abacabadabacaba")
    relay.park(*(parking(event, "waiting", 0) for event in events))
    chains = {key: ids([event for event in events if event.aggregate_id == key]) for key in "abcd"}
    for take in range(1, 20):
        due = relay.due(take)
        assert len(due) <= take
        for key, chain in chains.items():
            given = ids([event for event in due if event.aggregate_id == key])
            assert given == chain[: len(given)], (take, key)
    assert ids(relay.due(15)) != [] and ids(relay.due(60)) == ids(events)


@pytest.mark.parametrize("order", ["one settle", "a settle each", "backwards"])
def test_what_is_parked_is_delivered_in_order_however_it_was_parked(db, order):
    relay, events = emitted(db, *"aaaa")
    if order == "one settle":
        relay.park(*(parking(event, "waiting", 0) for event in events))
    else:
        for event in events if order == "a settle each" else events[::-1]:
            relay.park(parking(event, "waiting", 0))
    for event in events:
        assert ids(relay.due(1)) == [event.id]
        relay.settle(delivered=[event.id])
    assert relay.due() == []


def test_a_dead_event_blocks_its_aggregate_until_it_is_decided_on_or_where_dead_ones_are_skipped(db):
    relay, (first, second, third) = emitted(db, "a", "a", "a")
    relay.park(parking(first, "dead", 10), parking(second, "waiting", 0), parking(third, "waiting", 0))
    new = emit(db.connect(), "a")
    relay.list()
    assert relay.due() == []
    Relay(relay.connection)  # other settings begin with a turn of their own
    assert ids(relay.due(skip_dead=True)) == [second.id, third.id]
    assert [event.blocked for event in relay.fetch(relay.list())] == [True]
    relay.settle(delivered=[second.id, third.id])
    relay.reading = None
    last = emit(db.connect(), "a")
    fetched = relay.fetch(relay.list(), skip_dead=True)
    assert [(event.event_id, event.blocked) for event in fetched] == [(last, False)]
    assert new != last


def test_an_event_that_dies_lets_the_next_one_go_where_dead_ones_are_skipped(db):
    relay, (first, second) = emitted(db, "a", "a")
    relay.park(parking(first), parking(second, "waiting", 0))
    relay.park(parking(first, "dead", 2, known=True))
    assert relay.due() == []
    Relay(relay.connection)
    assert ids(relay.due(skip_dead=True)) == [second.id]


def test_a_retry_comes_when_its_time_has_come_by_the_databases_clock(db):
    relay, (first,) = emitted(db, "a")
    relay.park(parking(first, wait_ms=500))
    left = db.value("SELECT extract(epoch FROM next_at - clock_timestamp()) FROM once.parked_event")
    assert 0 < left <= 0.5
    assert relay.due() == []
    wait_until(relay.due, "the retry to be due")


def test_a_wait_that_began_by_a_clock_that_was_ahead_ends_when_it_has_stepped_back(db):
    relay, (first, second, third) = emitted(db, "a", "a", "b")
    relay.park(parking(first, wait_ms=500), parking(second, "waiting", 0))
    db.execute("UPDATE once.parked_event SET updated_at = updated_at + interval '18 hours', next_at = next_at + interval '18 hours'")
    relay.park(parking(third, wait_ms=60_000))
    assert ids(relay.due()) == [first.id, second.id]


def test_what_was_parked_twice_is_parked_once_with_the_last_word(db):
    relay, (first,) = emitted(db, "a")
    relay.park(parking(first, attempts=1), parking(first, attempts=2))
    relay.park(parking(first, attempts=3, known=True))
    assert parked(db) == {first.id: ("a", "retrying", 3)}
    relay.settle(delivered=[first.id, 4711])
    assert parked(db) == {}


def test_an_event_that_was_discarded_while_it_was_under_way_does_not_come_back(db):
    relay, (first, second) = emitted(db, "a", "a")
    relay.park(parking(first), parking(second, "waiting", 0))
    assert db.value("SELECT once.parked_discard(%s::text, 'why', 'r')", first.event_id) is True
    relay.park(parking(first, attempts=2, known=True))
    assert parked(db) == {second.id: ("a", "waiting", 0)}
    assert ids(relay.due()) == [second.id]


@pytest.mark.parametrize("dies", [True, False])
def test_a_retry_that_comes_while_an_attempt_is_under_way_holds_and_that_one_is_the_first(db, dies):
    relay, (first, second) = emitted(db, "a", "a")
    relay.park(parking(first, attempts=2), parking(second, "waiting", 0))
    assert ids(relay.due()) == [first.id, second.id]
    assert db.value("SELECT once.parked_retry(%s::text, 'fixed', 'r')", first.event_id) is True
    relay.park(parking(first, "waiting", 2, wait_ms=0, known=True))  # in flight for long
    assert parked(db)[first.id] == ("a", "waiting", 0)
    relay.park(parking(first, "dead" if dies else "retrying", 3, known=True))
    assert parked(db)[first.id] == ("a", "retrying", 1)
    assert [(event.id, event.attempts) for event in relay.due()] == [(first.id, 1), (second.id, 0)]
    relay.park(parking(first, "dead", 2, known=True))
    assert parked(db)[first.id] == ("a", "dead", 2)


def test_progress_and_what_is_parked_are_one(db):
    """A settle that fails leaves neither."""
    relay, (first,) = emitted(db, "a")
    before = db.rows("SELECT * FROM once.relay")
    run(relay.connection, "BEGIN")
    relay.park(parking(first))
    run(relay.connection, "ROLLBACK")
    assert db.rows("SELECT * FROM once.relay") == before and parked(db) == {}


def test_a_hundred_discards_while_the_relay_parks_leave_no_event_stuck(db):
    """Whoever parks an event behind another, and whoever takes that other away, never miss each other."""
    relay, events = emitted(db, *["a"] * 60)
    relay.park(parking(events[0], wait_ms=3_600_000))
    operators = [db.connect() for _ in range(3)]

    def work():
        for event in events[1:]:
            relay.park(parking(event, "waiting", 0))

    def discard(n):
        for event in events[n::3][:10]:
            wait_until(
                lambda: run(operators[n], "SELECT once.parked_discard(%s::text, 'why', 'r')", event.event_id)[0][0],
                "the event to be parked",
            )

    in_threads([work] + [lambda n=n: discard(n) for n in range(3)])
    left = ids(events[30:])
    assert sorted(parked(db)) == left
    assert ids(relay.due()) == left


@pytest.mark.parametrize("first", ["the operator", "the relay"])
def test_an_event_that_is_parked_behind_one_that_is_just_being_discarded_is_not_stuck(db, first):
    relay, events = emitted(db, "a", "a")
    relay.park(parking(events[0], "dead"))
    operator = db.connect()
    behind = [parking(events[1], "waiting", 0)]
    discard = "SELECT once.parked_discard(%s::text, 'why', 'r')"

    def wait_for(connection, call):
        """Begins the call, which waits for the other; commits that; the call ends."""
        holder = operator if connection is relay.connection else relay.connection
        pid = connection.get_backend_pid()

        def commit():
            watcher = db.server.connect(db.name)
            wait_until(
                lambda: run(watcher, "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'", pid),
                "one to wait for the other",
                10,
            )
            watcher.close()
            run(holder, "COMMIT")

        in_threads([call, commit])

    if first == "the operator":
        run(operator, "BEGIN")
        run(operator, discard, events[0].event_id)
        wait_for(relay.connection, lambda: relay.park(*behind))
    else:
        run(relay.connection, "BEGIN")
        relay.park(*behind)
        wait_for(operator, lambda: run(operator, discard, events[0].event_id))
    assert ids(relay.due()) == [events[1].id]


def with_two_behind_a_dead_one(db):
    relay, events = emitted(db, "a", "a", "a")
    relay.park(parking(events[0], "dead"), *(parking(event, "waiting", 0) for event in events[1:]))
    return relay, events


def left_over(events, what):
    return ids(events if what == "retry" else events[1:])


def deliver_all(relay):
    """In order, one after the other."""
    delivered = []
    while due := relay.due():
        relay.settle(delivered=[due[0].id])
        delivered.append(due[0].id)
    return delivered


@pytest.mark.parametrize("what", ["discard", "retry"])
def test_a_decision_that_is_made_while_those_behind_are_put_aside_frees_them(db, what):
    relay, events = with_two_behind_a_dead_one(db)
    operator = db.connect()
    run(operator, "BEGIN")
    run(operator, "LOCK TABLE once.relay IN EXCLUSIVE MODE")

    def decide():
        asked = "SELECT 1 FROM pg_locks WHERE pid = %s AND NOT granted AND relation = 'once.relay'::regclass"
        wait_until(lambda: db.rows(asked, relay.connection.get_backend_pid()), "once._demote to wait", 10)
        run(operator, f"SELECT once.parked_{what}(%s::text, 'why', 'r')", events[0].event_id)
        run(operator, "COMMIT")

    assert in_threads([relay.due, decide])[0] == []
    assert deliver_all(relay) == left_over(events, what)


@pytest.mark.parametrize("what", ["discard", "retry"])
def test_an_open_decision_keeps_no_relay_from_looking(db, what):
    relay, events = with_two_behind_a_dead_one(db)
    operator = db.connect()
    run(operator, "BEGIN")
    run(operator, f"SELECT once.parked_{what}(%s::text, 'why', 'r')", events[0].event_id)
    run(relay.connection, "SET lock_timeout = '5s'")
    assert relay.due() == []
    run(operator, "COMMIT")
    assert deliver_all(relay) == left_over(events, what)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("what", ["discard", "retry"])
def test_a_decision_by_a_snapshot_from_before_those_behind_were_put_aside_frees_them_or_fails(db, what, level):
    relay, events = with_two_behind_a_dead_one(db)
    operator = db.connect(isolation=level)

    def decide():
        run(operator, f"SELECT once.parked_{what}(%s::text, 'why', 'r')", events[0].event_id)

    run(operator, "BEGIN")
    run(operator, "SELECT count(*) FROM once.relay")
    assert relay.due() == []
    if code_of(decide) is not None:
        assert level != "READ COMMITTED"
        run(operator, "ROLLBACK")
        run(operator, "BEGIN")
        decide()
    run(operator, "COMMIT")
    assert deliver_all(relay) == left_over(events, what)


def test_a_look_by_another_session_puts_nothing_aside(db):
    relay, events = with_two_behind_a_dead_one(db)
    other = Relay(db.connect())
    assert not other.taken
    assert other.due() == []
    assert ids(relay.due(skip_dead=True)) == ids(events[1:])


# ---- many ----

BACKLOG = (
    "INSERT INTO once.outbox (day, created_at, event_id, topic, event_type, aggregate_type, aggregate_id, tenant, payload)"
    " SELECT floor(extract(epoch FROM clock_timestamp()) / 86400), now(), gen_random_uuid(), 't', 't', 'thing', %s, '',"
    " '{}' FROM generate_series(1, %s) AS g"
)


@pytest.mark.parametrize("state, wait_ms", [("dead", 0), ("retrying", 3_600_000)])
def test_thousands_that_wait_behind_one_cost_nothing_when_others_are_looked_for(db, state, wait_ms):
    relay, (first, other) = emitted(db, "a", "b")
    db.execute(BACKLOG, "a", 20_000)
    relay.park(parking(first, state, 10, wait_ms=wait_ms), parking(other))
    relay.list()
    rows = relay.fetch(relay.list(10_000))
    relay.settle(after_id=rows[-1].id, parked=[parking(event, "waiting", 0) for event in rows])
    assert ids(relay.due()) == [other.id]
    run(relay.connection, "BEGIN")
    count = "SELECT coalesce(sum(idx_tup_fetch), 0) FROM pg_stat_xact_all_tables WHERE relname = 'parked_event'"
    before = run(relay.connection, count)[0][0]
    relay.due()
    assert run(relay.connection, count)[0][0] - before < 20
    run(relay.connection, "ROLLBACK")


@pytest.mark.parametrize("past", ["never analysed", "vacuumed while empty", "random access is dear"])
def test_plans_made_while_nothing_was_parked_stay_searches(db, past):
    if past == "vacuumed while empty":
        db.execute("VACUUM ANALYZE once.parked_event, once.outbox")
    elif past == "random access is dear":
        db.execute(f"ALTER DATABASE {db.name} SET random_page_cost = 1000")
    relay, (first, *rest) = emitted(db, *"abcdefgh")
    everything = [first, *rest]

    def work():
        relay.park(*(parking(event, "dead") for event in everything))
        relay.park(*(parking(event, wait_ms=0, known=True) for event in everything[:4]))
        relay.due()
        relay.fetch(everything)
        db.execute("SELECT once.parked_retry(%s::text, 'why', 'r')", first.event_id)
        relay.settle(delivered=ids(everything))

    for _ in range(7):
        work()
    db.execute(BACKLOG, "z", 20_000)
    db.execute(
        "INSERT INTO once.parked_event (relay, id, xid, day, event_id, topic, tenant, aggregate_type, aggregate_id, state,"
        " next_at, parked_at, updated_at) SELECT 'r', o.id, o.xid, o.day, o.event_id, o.topic, '', 'thing', 'z' || o.id % 2,"
        " 'waiting', 'infinity', now(), now() FROM once.outbox AS o WHERE o.id > 8"
    )
    run(relay.connection, "BEGIN")
    before = touched(relay.connection)
    relay.park(*(parking(event, "dead") for event in everything))
    relay.park(*(parking(event, wait_ms=0, known=True) for event in everything[:4]))
    assert len(relay.due()) == 4
    relay.fetch(everything)
    relay.settle(delivered=ids(everything))
    scans, rows = (after - earlier for after, earlier in zip(touched(relay.connection), before))
    run(relay.connection, "COMMIT")
    assert scans == 0 and rows < 300, (scans, rows)


def touched(connection):
    return run(
        connection,
        "SELECT coalesce(sum(seq_scan), 0), coalesce(sum(seq_tup_read), 0) + coalesce(sum(idx_tup_fetch), 0)"
        " FROM pg_stat_xact_all_tables WHERE schemaname = 'once' AND relname ~ '^(outbox|parked)'",
    )[0]
