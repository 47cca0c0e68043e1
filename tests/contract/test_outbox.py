# SPDX-License-Identifier: PostgreSQL
"""Parked events: order within an aggregate, and what operators may do: list, retry, discard, replay, drop, retire a day."""

import pytest

from harness.postgres import wait_until

from .calls import LEVELS, code_of, in_threads, refused, run, today
from .keeping import keeper
from .relaying import Relay, emit, ids, parked, parking

DAY_S = 86_400


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


# ---- operators ----


def decisions(db):
    return db.rows("SELECT what, relay, subject, from_state, reason, decided_by, error FROM once.parked_decision")


def test_a_retried_event_is_due_at_once_with_all_its_attempts_before_it(db):
    relay, (first,) = emitted(db, "a")
    relay.park(parking(first, "dead", 10))
    assert db.value("SELECT once.parked_retry(%s::text, 'fixed the receiver', 'r')", first.event_id) is True
    assert [(event.id, event.attempts) for event in relay.due()] == [(first.id, 0)]
    assert decisions(db) == [
        ("retry", "r", str(first.event_id), "dead", "fixed the receiver", "postgres", "refused"),
    ]
    relay.settle(delivered=[first.id])
    assert db.value("SELECT once.parked_retry(%s::text, 'again', 'r')", first.event_id) is False


def test_a_decision_without_a_relay_is_one_for_all_relays_that_have_the_event_parked(db):
    event_id = emit(db.connect(), "a")
    relays = [Relay(db.connect(), name) for name in "abc"]
    for relay in relays[:2]:
        (event,) = relay.fetch(relay.list())
        relay.park(parking(event, "dead"))
    assert db.value("SELECT once.parked_retry(%s::text, 'why')", event_id) is True
    assert [len(relay.due()) for relay in relays] == [1, 1, 0]
    assert db.value("SELECT once.parked_discard(%s::text, 'why')", event_id) is True
    assert db.value("SELECT once.parked_discard(%s::text, 'why')", event_id) is False
    assert [(row.what, row.relay) for row in decisions(db)] == [
        ("retry", "a"),
        ("retry", "b"),
        ("discard", "a"),
        ("discard", "b"),
    ]


def twice(db, *states):
    """An event that came twice into the outbox, and is parked twice, in these states."""
    relay, (event, other) = emitted(db, "a", "b")
    relay.park(parking(event, states[0]), parking(other, states[1]))
    db.execute("UPDATE once.parked_event SET event_id = %s WHERE id = %s", event.event_id, other.id)
    return relay, event


@pytest.mark.parametrize("named", ["'r'", "NULL", "'r' COLLATE \"POSIX\""])
def test_a_decision_is_one_for_each_time_that_the_event_is_parked(db, named):
    relay, event = twice(db, "dead", "dead")
    assert db.value(f"SELECT once.parked_retry(%s::text, 'why', {named})", event.event_id) is True
    assert len(relay.due()) == 2
    assert db.value(f"SELECT once.parked_discard(%s::text, 'why', {named})", event.event_id) is True
    assert relay.due() == [] and parked(db) == {}
    assert [row.what for row in decisions(db)] == ["retry", "retry", "discard", "discard"]


def test_a_dead_event_that_is_parked_twice_is_given_up_by_the_keeper(db):
    twice(db, "dead", "dead")
    db.execute("UPDATE once.parked_event SET updated_at = now() - interval '91 days'")
    assert keeper(db).work("dead")
    assert parked(db) == {}


def test_the_keeper_gives_no_event_up_about_which_an_operator_is_deciding(db):
    """It would wait for the operator's row and have the operator's next one: a deadlock."""
    relay, (first, second) = emitted(db, "a", "b")
    relay.park(parking(first, "dead"), parking(second, "dead"))
    db.execute("UPDATE once.parked_event SET updated_at = now() - interval '91 days'")
    keep, operator = keeper(db), db.connect(isolation="READ COMMITTED")
    run(operator, "SELECT once.parked_retry(%s::text, 'why', 'r')", first.event_id)
    keep.work("dead")
    assert len(parked(db)) == 2
    run(operator, "SELECT once.parked_retry(%s::text, 'why', 'r')", second.event_id)
    operator.commit()
    keep.work("dead")
    assert {state for _, state, _ in parked(db).values()} == {"retrying"}


def test_a_discarded_event_frees_its_aggregate(db):
    relay, (first, second) = emitted(db, "a", "a")
    relay.park(parking(first, wait_ms=60_000), parking(second, "waiting", 0))
    assert relay.due() == []
    assert db.value("SELECT once.parked_discard(%s::text, 'never mind', 'r')", first.event_id) is True
    assert ids(relay.due()) == [second.id]
    assert db.value("SELECT count(*) FROM once.outbox") == 2


@pytest.mark.parametrize("reason", [None, "", " \t"])
def test_no_decision_without_a_reason(db, reason):
    relay, (first,) = emitted(db, "a")
    relay.park(parking(first, "dead"))
    run(relay.connection, "SELECT pg_advisory_unlock_all()")
    for call in (
        "parked_retry(gen_random_uuid()::text, %s, 'r')",
        "parked_discard(gen_random_uuid()::text, %s)",
        "parked_retry_many(%s, state => 'delayed', dry_run => false)",
        "parked_discard_many(%s, kind => 'message', dry_run => false)",
        "parked_replay('r', now(), NULL, %s)",
        "relay_adopt('r', %s, false)",
        "drop_relay('r', %s)",
        "parked_retry('m', %s, consumer => 'c')",
        "parked_discard('m', %s, consumer => 'c')",
        "parked_retry_many(%s, dry_run => false)",
        "parked_discard_many(%s, dry_run => false)",
    ):
        with refused("22023"):
            db.execute(f"SELECT once.{call}", reason)
    assert decisions(db) == [] and len(parked(db)) == 1


def test_a_decision_about_a_relay_that_is_none_says_so(db):
    for call in (
        "parked_retry(gen_random_uuid()::text, 'why', 'x')",
        "parked_discard(gen_random_uuid()::text, 'why', 'x')",
        "parked_retry_many(relay => 'x')",
        "parked_discard_many('why', relay => 'x', dry_run => false)",
        "parked_replay('x', now(), NULL, 'why')",
        "relay_adopt('x', 'why', false)",
    ):
        with refused("22023") as caught:
            db.execute(f"SELECT once.{call}")
        assert "relay='x'" in caught.value.diag.message_detail
    assert db.value("SELECT once.drop_relay('x', 'why')") is False
    with refused("22023"):
        Relay(db.connect())
        db.execute("SELECT once.parked_replay('r', NULL, NULL, 'why')")


def test_a_replay_delivers_again_what_was_passed_and_holds_back_newer_events_of_the_same_aggregate(db):
    relay, events = emitted(db, "a", "b", "a", None)
    relay.settle()
    assert db.value("SELECT once.parked_replay('r', now() - interval '1 hour', NULL, 'lost')") == 4
    assert db.value("SELECT once.parked_replay('r', now() - interval '1 hour', NULL, 'lost')") == 0
    new = [emit(db.connect(), aggregate) for aggregate in ("a", "c")]
    fetched = relay.fetch(relay.list())
    assert [(event.event_id, event.blocked) for event in fetched] == list(zip(new, (True, False)))
    relay.park(parking(fetched[0], "waiting", 0))
    due = relay.due()
    assert ids(due) == ids(events) + [fetched[0].id]
    assert [event.attempts for event in due] == [0] * 5
    relay.settle(delivered=ids(due))
    assert relay.due() == []
    assert [(row.what, row.relay) for row in decisions(db)] == [("replay", "r")] * 2


def test_a_replay_takes_what_the_relay_takes_since_then_and_has_passed_and_nothing_else(db):
    for topic in ("order.new", "order.paid", "stock"):
        emit(db.connect(), topic=topic)
    relay = Relay(db.connect(), topics=["order.%"])
    rows = relay.list()
    relay.settle(after_id=rows[0].id)
    emit(db.connect(), topic="order.new")
    assert db.value("SELECT once.parked_replay('r', now() - interval '1 hour', NULL, 'why')") == 1
    relay.settle()
    assert db.value("SELECT once.parked_replay('r', now() + interval '1 hour', NULL, 'why')") == 0
    assert db.value("SELECT once.parked_replay('r', now() - interval '1 hour', 'order.new', 'why')") == 0
    assert db.value("SELECT once.parked_replay('r', '-infinity'::timestamptz + interval '1 s', NULL, 'why')") == 1


def test_a_replay_of_events_that_inboxes_have_forgotten_must_be_asked_for_by_name(db):
    """They would be applied a second time."""
    relay, events = emitted(db, "a", "b")
    relay.settle()
    replay = "SELECT once.parked_replay('r', '2000-01-01', NULL, 'lost'%s)"
    db.execute("UPDATE once.outbox SET created_at = now() - interval '6 days' WHERE id = %s", events[0].id)
    assert db.value(replay % "") == 2  # the retention is 7 days
    relay.settle(delivered=ids(relay.due()))
    db.execute("UPDATE once.outbox SET created_at = now() - interval '8 days' WHERE id = %s", events[0].id)
    with refused("22023") as caught:
        db.execute(replay % "")
    assert "older than an inbox remembers" in str(caught.value) and "forgotten => true" in str(caught.value)
    assert relay.due() == [] and len(decisions(db)) == 1
    assert db.value("SELECT once.parked_replay('r', now() - interval '7 days', NULL, 'lost')") == 1
    assert db.value(replay % ", forgotten => true") == 1
    relay.settle(delivered=ids(relay.due()))
    db.execute("UPDATE once.outbox SET created_at = now() - interval '2 days'")
    db.execute("SELECT once.set_scope('stock', retention => '1 day')")
    assert db.value(replay % "") == 2
    relay.settle(delivered=ids(relay.due()))
    db.execute("SELECT once.consumer_report('stock', now())")  # a consumer that is here, and forgets sooner
    with refused("22023"):
        db.execute(replay % "")


def test_a_dropped_relay_leaves_nothing_and_can_begin_anew(db):
    relay, (first,) = emitted(db, "a")
    relay.park(parking(first, "dead"))
    run(relay.connection, "SELECT pg_advisory_unlock_all()")
    assert db.value("SELECT once.drop_relay('r', 'moved')") is True
    assert parked(db) == {} and db.rows("SELECT * FROM once.relay") == []
    assert [row.what for row in decisions(db)] == ["drop"]
    assert len(Relay(db.connect()).list()) == 1


# ---- looking ----


def test_the_list_and_the_summary_show_each_event_with_each_relay(db):
    relay, (dead, waiting, retrying) = emitted(db, "a", "a", "b", topic="order")
    relay.park(parking(dead, "dead", 10), parking(waiting, "waiting", 0), parking(retrying, wait_ms=60_000))
    pending = [emit(db.connect(), topic=topic) for topic in ("order", "stock")]
    slow = db.connect(isolation="READ COMMITTED")
    late = emit(slow, topic="stock")
    idle = Relay(db.connect(), "idle", from_now=True)
    idle.batch()
    slow.commit()
    run(idle.connection, "SELECT once_job.relay_settle('idle', pg_current_snapshot()::text, NULL, 0)")
    rows = db.rows("SELECT * FROM once.parked_list()") + db.rows("SELECT * FROM once.parked_list(state => 'pending')")
    assert [(row.kind, row.holder, row.state, row.id) for row in rows] == [
        ("event", "r", "dead", str(dead.event_id)),
        ("event", "r", "retrying", str(retrying.event_id)),
        ("event", "r", "waiting", str(waiting.event_id)),
        ("event", "r", "pending", str(pending[0])),
        ("event", "r", "pending", str(pending[1])),
        ("event", "r", "pending", str(late)),
    ]
    assert [row.attempts for row in rows] == [10, 1, 0, 0, 0, 0]
    assert [row.next_at is None for row in rows] == [True, False, True, True, True, True]
    assert [row.error for row in rows[:1]] == ["refused"] and all(row.since for row in rows)
    assert (rows[0].topic, rows[0].event_type, rows[0].aggregate_type, rows[0].aggregate_id) == (
        "order",
        "order",
        "thing",
        "a",
    )
    for arguments, expected in (
        ("relay => 'idle'", 0),
        ("relay => 'r'", 3),
        ("kind => 'event'", 3),
        ("kind => 'message'", 0),
        ("tenant => ''", 3),
        ("tenant => 'acme'", 0),
        ("topic => 'stock'", 0),
        ("event_type => 'order'", 3),
        ("event_type => 'stock'", 0),
        ("error => 'REFUSE'", 3),
        ("error => 'nothing'", 0),
        ("before => now() - interval '1 hour'", 0),
        ("before => now() + interval '1 hour'", 3),
        (f"id => '{dead.event_id}'", 1),
        ("id => 'x'", 0),
        ("state => 'pending', topic => 'stock'", 2),
        ("state => 'pending', event_type => 'stock', take => 1", 1),
        ("state => 'pending', tenant => 'acme'", 0),
        ("state => 'pending'", 3),
        ("state => 'dead'", 1),
        ("state => 'dead', topic => 'stock'", 0),
        ("take => 2", 2),
        ("take => 0", 0),
    ):
        assert len(db.rows(f"SELECT * FROM once.parked_list({arguments})")) == expected, arguments
    summary = [(row.relay, row.topic, row.state, row.events) for row in db.rows("SELECT * FROM once.outbox_summary()")]
    assert summary == [
        ("idle", None, "idle", 0),
        ("r", "order", "dead", 1),
        ("r", "order", "pending", 1),
        ("r", "order", "retrying", 1),
        ("r", "order", "waiting", 1),
        ("r", "stock", "pending", 2),
    ]
    assert db.rows("SELECT kind, holder, topic, state, items FROM once.parked_summary()") == [("event", *row) for row in summary]
    for wrong in ("state => 'bogus'", "state => ''", "kind => 'key'", "relay => 'r', consumer => 'c'", "kind => 'message', relay => 'r'",
                  "kind => 'event', consumer => 'c'", "state => 'pending', consumer => 'c'", "kind => 'message', state => 'delayed'", "take => NULL"):
        with refused("22023"):
            db.execute(f"SELECT * FROM once.parked_list({wrong})")


def untaken(db):
    return [(row.topic, row.events) for row in db.rows("SELECT * FROM once.outbox_untaken()")]


def test_events_that_no_relay_takes_are_counted_by_topic(db):
    connection = db.connect()
    assert untaken(db) == []
    emit(connection, "a", topic="order.created")
    emit(connection, "b", topic="mail")
    emit(connection, "c", topic="mail")
    assert untaken(db) == [("mail", 2), ("order.created", 1)]
    metric = "SELECT labels->>'topic', value FROM once.metrics() WHERE name = 'pgonce_outbox_untaken' ORDER BY 1"
    assert db.rows(metric) == [("mail", 2), ("order.created", 1)]
    Relay(db.connect(), "orders", topics=["order.%"])
    assert untaken(db) == [("mail", 2)]
    Relay(db.connect(), "all")
    assert untaken(db) == []
    assert db.rows(metric) == [("", 0)]


def test_of_many_events_the_newest_are_looked_at_for_those_that_no_relay_takes(db):
    db.execute("SELECT count(once.emit('old', '1'))")
    db.execute("SELECT count(once.emit('new', '1')) FROM generate_series(1, 10000)")
    assert untaken(db) == [("new", 10_000)]


def test_the_keeper_finds_a_rare_topic_that_no_relay_takes_behind_thousands_of_others(db):
    Relay(db.connect(), topics=["busy"])
    emit(db.connect(), topic="rare")
    oldest = db.value("SELECT created_at FROM once.outbox")
    db.execute("SELECT once.emit('busy', '{}') FROM generate_series(1, 12000)")
    emit(db.connect(), topic="rare")
    db.execute("SELECT once.emit('busy', '{}') FROM generate_series(1, 12000)")
    assert untaken(db) == []
    keep = keeper(db)
    keep.work("untaken")
    assert untaken(db) == [("rare", 2)]
    assert db.value("SELECT oldest FROM once.outbox_untaken()") == oldest
    # It rests after a pass; then it counts anew, and does not add.
    emit(db.connect(), topic="rare")
    keep.work("untaken")
    assert untaken(db) == [("rare", 2)]
    db.execute("UPDATE once.keeper_step SET ended_at = ended_at - interval '1 hour' WHERE step = 'untaken'")
    keep.work("untaken")
    assert untaken(db) == [("rare", 3)]
    # Once a relay takes it there is nothing to tell, and after the next pass nothing is remembered.
    Relay(db.connect(), "other", topics=["rare"])
    assert untaken(db) == []
    db.execute("UPDATE once.keeper_step SET ended_at = ended_at - interval '1 hour' WHERE step = 'untaken'")
    keep.work("untaken")
    assert db.value("SELECT count(*) FROM once.untaken") == 0


def test_a_pass_for_what_no_relay_takes_goes_on_where_it_was_and_over_a_day_that_is_gone(db):
    Relay(db.connect(), topics=["busy"])
    day = today(db)
    db.execute(f"CREATE TABLE once.outbox_d{day - 1} PARTITION OF once.outbox FOR VALUES FROM ({day - 1}) TO ({day})")
    db.execute(
        "INSERT INTO once.outbox (day, created_at, event_id, topic, event_type, tenant, payload)"
        " SELECT %s, now() - interval '1 day', gen_random_uuid(), CASE n %% 10000 WHEN 0 THEN 'rare' ELSE 'busy' END, 'x', '', '{}'"
        " FROM generate_series(1, 60000) AS n",
        day - 1,
    )
    emit(db.connect(), topic="today")
    keep = keeper(db)
    keep.work("untaken")
    assert untaken(db) == [("rare", 6), ("today", 1)]
    for block, gone in ((1_000_000, False), (1, True)):  # behind its last block, and in a day that is dropped meanwhile
        if gone:
            db.execute(f"DROP TABLE once.outbox_d{day - 1}")
        db.execute("DELETE FROM once.untaking; INSERT INTO once.untaking VALUES ('before', 3, now())")
        db.execute("UPDATE once.keeper_step SET leaf = %s, block = %s WHERE step = 'untaken'", f"outbox_d{day - 1}", block)
        keep.work("untaken")
        assert db.rows("SELECT topic, events FROM once.untaken ORDER BY topic") == [("before", 3), ("today", 1)]


@pytest.mark.parametrize("topics", [None, "no relay"])
def test_where_a_relay_takes_all_or_none_has_run_the_keeper_reads_no_event(db, topics):
    db.execute("SELECT once.emit('t', '{}') FROM generate_series(1, 100)")
    keep = keeper(db)
    if topics is None:
        Relay(db.connect())
    db.execute("INSERT INTO once.untaken VALUES ('t', 1, now())")
    connection = keep.connection
    run(connection, "BEGIN")
    before = touched(connection)
    keep.step("untaken")
    assert touched(connection) == before
    run(connection, "COMMIT")
    assert db.value("SELECT count(*) FROM once.untaken") == 0


def test_in_the_middle_of_a_batch_pending_is_what_is_not_done(db):
    relay, events = emitted(db, "a", "b", "c")
    relay.settle(after_id=events[1].id)
    assert [row.id for row in db.rows("SELECT * FROM once.parked_list(state => 'pending')")] == [str(events[2].event_id)]
    assert db.value("SELECT sum(events) FROM once.outbox_summary()") == 1


def test_a_long_backlog_is_listed_and_counted(db):
    Relay(db.connect())
    db.execute(BACKLOG, "a", 20_000)
    assert len(db.rows("SELECT * FROM once.parked_list(state => 'pending', take => 5)")) == 5
    assert db.value("SELECT events FROM once.outbox_summary()") == 20_000


def test_an_event_is_shown_whole_with_its_state_at_each_relay(db):
    event_id = emit(db.connect(), "a", scope="orders", key="k", payload='{"n": 1.10}', headers='{"h": "1"}')
    relays = {name: Relay(db.connect(), name) for name in ("behind", "parks", "passes")}
    Relay(db.connect(), "other", topics=["other"])
    (event,) = relays["parks"].fetch(relays["parks"].list())
    relays["parks"].park(parking(event, "dead", 3))
    relays["passes"].batch()
    db.execute("SELECT once.parked_retry(%s::text, 'why', 'parks')", event_id)
    shown = db.value("SELECT once.parked_show(%s::text)", event_id)
    assert (shown["event_id"], shown["payload"], shown["headers"]) == (str(event_id), '{"n": 1.10}', {"h": "1"})
    assert (shown["scope"], shown["key"], shown["aggregate_id"]) == ("orders", "k", "a")
    assert [(each["relay"], each["state"]) for each in shown["relays"]] == [
        ("behind", "pending"),
        ("parks", "retrying"),
        ("passes", "passed"),
    ]
    assert [(each["what"], each["by"], each["reason"]) for each in shown["decisions"]] == [("retry", "postgres", "why")]
    assert db.value("SELECT once.parked_show(gen_random_uuid()::text)") is None


def test_a_relay_of_another_cluster_is_shown_as_such(db):
    relay, (event,) = emitted(db, "a")
    db.execute("UPDATE once.relay SET written_by = '1'")
    assert db.rows("SELECT * FROM once.parked_list(state => 'pending')") == []
    assert [(row.relay, row.state) for row in db.rows("SELECT * FROM once.outbox_summary()")] == [
        ("r", "of another cluster")
    ]
    assert db.value("SELECT once.parked_show(%s::text)", event.event_id)["relays"][0]["state"] == "of another cluster"
    assert relay.taken


# ---- retiring a day ----


@pytest.fixture
def yesterday(db):
    """Yesterday's partition; its day."""
    day = today(db) - 1
    db.execute(f"CREATE TABLE once.outbox_d{day} PARTITION OF once.outbox FOR VALUES FROM ({day}) TO ({day + 1})")
    return day


def emit_on(connection, day, aggregate="a"):
    """What an emit of that day has left."""
    return run(
        connection,
        "INSERT INTO once.outbox (day, created_at, event_id, topic, event_type, aggregate_type, aggregate_id, tenant,"
        " payload) VALUES (%s, to_timestamp(%s), gen_random_uuid(), 't', 't', 'thing', %s, '', '{}') RETURNING event_id",
        day,
        day * DAY_S + 1,
        aggregate,
    )[0][0]


def is_there(db, day):
    return db.value("SELECT to_regclass(%s) IS NOT NULL", f"once.outbox_d{day}")


def refuse_to_retire(db, day, *words, code="55006"):
    with refused(code) as caught:
        db.execute("SELECT once.retire_outbox(%s)", day)
    for word in words:
        assert word in caught.value.diag.message_detail, caught.value.diag.message_detail
    assert caught.value.diag.message_hint or code != "55006"
    assert is_there(db, day)


def test_a_day_goes_when_every_relay_has_passed_it(db, yesterday):
    emit_on(db.connect(), yesterday)
    relays = [Relay(db.connect(), name) for name in ("quick", "slow")]
    refuse_to_retire(db, yesterday, "'quick'")
    relays[0].batch()
    refuse_to_retire(db, yesterday, "'slow'")
    relays[1].list()
    relays[1].settle(after_id=99)
    refuse_to_retire(db, yesterday, "'slow'")
    relays[1].settle()
    assert db.value("SELECT once.retire_outbox(%s)", yesterday) == 1
    assert not is_there(db, yesterday)
    assert db.value("SELECT once.retire_outbox(%s)", yesterday) == 0
    emit(db.connect())


def test_a_day_stays_while_an_event_of_it_is_parked(db, yesterday):
    emit_on(db.connect(), yesterday)
    relay = Relay(db.connect())
    (event,) = relay.fetch(relay.list())
    relay.park(parking(event, "dead"))
    refuse_to_retire(db, yesterday, "1 of its events", "'r'")
    db.execute("SELECT once.parked_discard(%s::text, 'why', 'r')", event.event_id)
    assert db.value("SELECT once.retire_outbox(%s)", yesterday) == 1


def test_a_day_with_events_that_nobody_could_have_published_stays(db, yesterday):
    emit_on(db.connect(), yesterday)
    refuse_to_retire(db, yesterday, "no relay")
    db.execute("DELETE FROM once.outbox")
    assert db.value("SELECT once.retire_outbox(%s)", yesterday) == 0
    assert not is_there(db, yesterday)


def test_today_and_later_days_stay(db):
    for day in (today(db), today(db) + 1, 0, -1, None):
        with refused("22023"):
            db.execute("SELECT once.retire_outbox(%s)", day)
    assert is_there(db, today(db))


@pytest.mark.parametrize("end", ["open", "prepared"])
def test_a_day_into_which_a_transaction_may_still_write_stays(db, yesterday, end):
    relay = Relay(db.connect())
    writer = db.connect()
    run(writer, "BEGIN")
    event = emit_on(writer, yesterday)
    if end == "prepared":
        run(writer, f"PREPARE TRANSACTION '{db.name}'")
    emit(db.connect())
    relay.batch()  # sees nothing of it, and knows it as running
    db.execute("SET lock_timeout = '100ms'")
    refuse_to_retire(db, yesterday, code="55P03")
    if end == "prepared":
        db.execute(f"COMMIT PREPARED '{db.name}'")
    else:
        run(writer, "COMMIT")
    refuse_to_retire(db, yesterday, "'r'")
    assert [row.event_id for row in relay.batch()] == [event]
    assert db.value("SELECT once.retire_outbox(%s)", yesterday) == 1


def test_an_event_that_commits_while_the_retiring_waits_is_not_lost(db, yesterday):
    """It was not there at the first look."""
    relay = Relay(db.connect())
    relay.batch()
    writer = db.connect(isolation="READ COMMITTED")
    event = emit_on(writer, yesterday)
    keeper = db.connect(lock_timeout="20s")
    pid = keeper.get_backend_pid()

    def retire():
        with refused("55006"):
            run(keeper, "SELECT once.retire_outbox(%s)", yesterday)

    def commit():
        watcher = db.server.connect(db.name)
        wait_until(
            lambda: run(watcher, "SELECT 1 FROM pg_locks WHERE pid = %s AND NOT granted", pid), "the keeper to wait"
        )
        watcher.close()
        writer.commit()

    in_threads([retire, commit])
    assert [row.event_id for row in relay.batch()] == [event]


def test_a_day_is_not_retired_under_an_old_snapshot(db, yesterday):
    keeper = db.connect(isolation="REPEATABLE READ")
    run(keeper, "SELECT count(*) FROM once.outbox")
    Relay(db.connect()).batch()
    with refused("55000"):
        run(keeper, "SELECT once.retire_outbox(%s)", yesterday)


def test_a_late_emit_into_a_retired_day_fails_aloud(db, yesterday):
    db.execute("SELECT once.retire_outbox(%s)", yesterday)
    with refused("23514"):
        emit_on(db.connect(), yesterday)


def test_a_keeper_may_retire_a_day_and_decide_nothing(db, yesterday):
    if not db.rows("SELECT 1 FROM pg_roles WHERE rolname = 'keeper'"):
        db.execute("CREATE ROLE keeper LOGIN; GRANT once_keeper TO keeper")
    keeper = db.connect("keeper")
    assert run(keeper, "SELECT once.retire_outbox(%s)", yesterday) == [(0,)]
    with refused("42501"):
        run(keeper, "SELECT once.drop_relay('r', 'why')")
