# SPDX-License-Identifier: PostgreSQL
"""Parked events for operators: what they decide (retry, discard, replay, drop) and what they see."""

import pytest

from .calls import refused, run, today
from .keeping import keeper
from .relaying import Relay, emit, ids, parked, parking
from .test_outbox import BACKLOG, emitted, touched


# ---- decisions ----


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
        ("r", "foreign")
    ]
    assert db.value("SELECT once.parked_show(%s::text)", event.event_id)["relays"][0]["state"] == "foreign"
    assert relay.taken
