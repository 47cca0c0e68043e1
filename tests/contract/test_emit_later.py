# SPDX-License-Identifier: PostgreSQL
"""Delayed events: held until they are due, then in the outbox as though they were emitted then. They hold nothing back meanwhile."""

import threading

import pytest
from harness.mutation import mutate

from .calls import LEVELS, Once, code_of, hold_days, refused, run, today
from .keeping import keeper
from .logins import make_logins
from .relaying import Relay, emit

EVENT = dict(topic="reminder", payload='{"id": 7}', aggregate_type="order", aggregate_id="7", headers='{"h": "1"}')
KEYED = dict(EVENT, scope="orders", key="k")


def emit_later(connection, after="3 days", **event):
    """An event that is due so long from now; its id."""
    arguments = {"topic": "t", "payload": "{}", **event}
    named = "".join(f", {name} => %s" for name in arguments)
    return run(connection, f"SELECT once.emit_later(now() + %s::interval{named})", after, *arguments.values())[0][0]


def release(connection, take=500):
    return tuple(run(connection, "SELECT * FROM once_job.relay_release(%s)", take)[0])


def make_due(db, *event_ids):
    """These, or all that are delayed, are due, each a second after the one before."""
    for nth, event_id in enumerate(event_ids):
        db.execute("UPDATE once.delayed_event SET not_before = now() - interval '1 hour' + %s * interval '1 s' WHERE event_id = %s",
                   nth, event_id)
    if not event_ids:
        db.execute("UPDATE once.delayed_event SET not_before = now() - interval '1 hour' + (not_before - emitted_at) / 1e6")


def outbox(db):
    return [row.event_id for row in db.rows("SELECT event_id FROM once.outbox ORDER BY id")]


def delayed(db):
    return [row.event_id for row in db.rows("SELECT event_id FROM once.delayed_event ORDER BY not_before, emitted_at")]


def test_an_event_is_held_until_it_is_due_and_then_has_all_that_was_given_and_the_time_of_its_release(db):
    connection = db.connect()
    event_id = emit_later(connection, **KEYED, tenant="t", event_type="paid", traceparent=f"00-{'a' * 32}-{'b' * 16}-01")
    relay = Relay(connection)
    released, wait_ms = release(connection)
    assert released == 0 and 3 * 86_400_000 - 60_000 < wait_ms <= 3 * 86_400_000
    assert relay.list() == [] and outbox(db) == []
    make_due(db)
    before = db.value("SELECT clock_timestamp()")
    assert release(connection) == (1, 0)
    assert release(connection) == (0, None)
    row = db.rows("SELECT * FROM once.outbox")[0]
    assert (row.event_id, row.topic, row.event_type, row.payload, row.headers) == (event_id, "reminder", "paid", {"id": 7}, {"h": "1"})
    assert (row.aggregate_type, row.aggregate_id, row.tenant, row.scope, row.key) == ("order", "7", "t", "orders", "k")
    assert row.traceparent == f"00-{'a' * 32}-{'b' * 16}-01" and row.created_at >= before and row.day == today(db)
    relay.reading = None
    assert [event.event_id for event in relay.fetch(relay.list())] == [event_id]
    assert delayed(db) == []


def test_of_what_is_delayed_only_what_is_due_is_released(db):
    connection = db.connect()
    late, due = emit_later(connection), emit_later(connection)
    make_due(db, due)
    assert release(connection) == (1, 0)
    assert outbox(db) == [due] and delayed(db) == [late]


def test_it_exists_if_and_only_if_its_transaction_committed(db):
    connection = db.connect(isolation="READ COMMITTED")
    emit_later(connection, **KEYED)
    connection.rollback()
    assert delayed(db) == []
    emit_later(connection, **KEYED)
    connection.commit()
    assert len(delayed(db)) == 1


@pytest.mark.parametrize("after", ["0", "-1 s", "-100 years"])
def test_a_time_in_the_past_is_at_once(db, after):
    event_id = emit_later(db.connect(), after, **EVENT)
    assert outbox(db) == [event_id] and delayed(db) == []


@pytest.mark.parametrize(
    "time", ["'infinity'", "'-infinity'", "NULL", "now() + interval '101 years'", "to_timestamp(1900000000000)"]
)
def test_a_time_that_is_none_is_refused(db, time):
    with refused("22023") as error:
        run(db.connect(), f"SELECT once.emit_later({time}, 't', '{{}}')")
    assert "not_before" in error.value.diag.message_hint
    assert delayed(db) == []


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Australia/Lord_Howe"])
def test_the_hour_that_a_clock_change_repeats_or_skips_is_one_instant_each(db, zone):
    connection = db.connect()
    run(connection, f"SET TimeZone = '{zone}'")
    at = [
        run(connection, "SELECT extract(epoch FROM d.not_before)::bigint FROM once.delayed_event AS d WHERE d.event_id = %s", event_id)[0][0]
        for event_id in (
            run(connection, "SELECT once.emit_later(%s::timestamptz, 't', '{}')", text)[0][0]
            for text in ("2090-10-29 02:30+02", "2090-10-29 02:30+01")
        )
    ]
    assert at[1] - at[0] == 3600


TOO_LARGE = ({"payload": '"' + "x" * 2_000_000 + '"'}, "P4060")


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"topic": None}, "22023"),
        ({"topic": ""}, "22023"),
        ({"payload": None}, "22023"),
        ({"headers": "[]"}, "22023"),
        ({"scope": "s"}, "22023"),
        ({"key": "k"}, "22023"),
        ({"scope": "s", "key": ""}, "P4001"),
        TOO_LARGE,
    ],
)
def test_what_emit_refuses_is_refused_at_once_and_not_when_it_is_due(db, wrong, code):
    connection = db.connect()
    with refused(code):
        Once(connection).emit(**{"topic": "t", "payload": "{}", **wrong})
    with refused(code):
        emit_later(connection, **wrong)


def test_a_bound_role_delays_and_cancels_for_its_own_tenants_only(db):
    make_logins(db)
    connection = db.connect("bound")
    event_id = emit_later(connection, tenant="mine")
    for call in ("once.emit_later(now() + interval '1 day', 't', '{}', tenant => 'y')", "once.cancel_event(gen_random_uuid(), 'y')"):
        with refused("P4003"):
            run(connection, f"SELECT {call}")
    assert run(connection, "SELECT once.cancel_event(%s, 'mine')", event_id)[0][0] is True


# ---- order


def test_an_event_that_is_emitted_meanwhile_goes_first_and_waits_for_nothing(db):
    connection = db.connect()
    relay = Relay(connection)
    reminder = emit_later(connection, **EVENT)
    shipped = emit(connection, "7", aggregate_type="order")
    fetched = relay.fetch(relay.list())
    assert [(event.event_id, event.blocked) for event in fetched] == [(shipped, False)]
    relay.settle()
    make_due(db)
    release(connection)
    later = emit(connection, "7", aggregate_type="order")
    assert [event.event_id for event in relay.batch()] == [reminder, later]


def test_those_that_are_due_first_come_first_and_of_one_time_the_first_emitted(db):
    connection = db.connect()
    last = emit_later(connection, "3 days", **EVENT)
    first = emit_later(connection, "1 day", **EVENT)
    run(connection, "BEGIN")
    same = [emit_later(connection, "2 days", **EVENT) for _ in range(20)]  # now() is the transaction's
    run(connection, "COMMIT")
    make_due(db)
    while release(connection, 5)[1] == 0:
        pass
    assert outbox(db) == [first, *same, last]


def test_an_event_whose_time_is_past_does_not_overtake_one_of_its_aggregate_that_is_due_and_not_released(db):
    connection = db.connect()
    first = emit_later(connection, **EVENT)
    make_due(db)
    second = emit_later(connection, "-1 s", **EVENT)
    others = [emit_later(connection, "-1 s", **{**EVENT, **other})
              for other in ({"aggregate_id": "8"}, {"aggregate_type": None}, {"tenant": "t"}, {"aggregate_id": None})]
    assert outbox(db) == others
    release(connection)
    assert outbox(db) == [*others, first, second]


def test_one_session_releases_at_a_time_and_the_others_go_on_without(db):
    connection = db.connect(isolation="READ COMMITTED")
    events = [emit_later(connection, **EVENT) for _ in range(4)]
    connection.commit()
    make_due(db)
    assert release(connection, 2) == (2, 0)  # not committed yet
    assert release(db.connect()) == (0, None)
    connection.commit()
    assert release(db.connect()) == (2, 0)
    assert outbox(db) == events


def test_many_releasers_move_each_event_once(db):
    connection = db.connect()
    events = [emit_later(connection) for _ in range(300)]
    make_due(db, *events)

    def work(releaser):
        while delayed_left(releaser):
            release(releaser, 7)

    def delayed_left(releaser):
        return run(releaser, "SELECT count(*) FROM once.delayed_event")[0][0]

    threads = [threading.Thread(target=work, args=(db.connect(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert outbox(db) == events


# ---- one event of a type of an intent


def test_the_same_event_again_is_the_same_event_and_the_first_time_holds(db):
    connection = db.connect()
    first = emit_later(connection, "3 days", **KEYED)
    at = db.value("SELECT not_before FROM once.delayed_event")
    assert emit_later(connection, "1 day", **KEYED) == first
    assert emit_later(connection, "-1 day", **KEYED) == first
    assert db.value("SELECT not_before FROM once.delayed_event") == at and outbox(db) == []
    for other in ({"payload": "{}"}, {"headers": None}, {"topic": "other", "event_type": "reminder"}):
        with refused("P4051"):
            emit_later(connection, **{**KEYED, **other})
    assert emit_later(connection, event_type="another", **KEYED) != first


def test_it_has_the_id_that_emit_gives_it_and_is_the_same_event_once_it_is_released(db):
    connection = db.connect()
    first = emit_later(connection, **KEYED)
    make_due(db)
    release(connection)
    assert Once(connection).emit(**KEYED) == first
    assert emit_later(connection, **KEYED) == first
    with refused("P4051"):
        emit_later(connection, **{**KEYED, "payload": "{}"})
    assert outbox(db) == [first] and delayed(db) == []


def test_emit_publishes_it_at_once_and_it_is_not_published_again(db):
    connection = db.connect()
    first = emit_later(connection, **KEYED)
    assert Once(connection).emit(**KEYED) == first
    assert outbox(db) == [first]
    make_due(db)
    assert release(connection) == (0, 0)
    assert outbox(db) == [first] and delayed(db) == []


def mover(db):
    """Makes what the outbox holds yesterday's; the day."""
    day = today(db) - 1
    db.execute(f"CREATE TABLE once.outbox_d{day} PARTITION OF once.outbox FOR VALUES FROM ({day}) TO ({day + 1})")

    def move():
        db.execute("UPDATE once.outbox SET day = %s", day)
        return day

    return move


@pytest.fixture
def yesterday(db):
    return mover(db)


def test_an_event_that_was_emitted_on_another_day_is_not_published_again(db, yesterday):
    connection = db.connect()
    emit_later(connection, **KEYED)
    first = Once(connection).emit(**KEYED)
    yesterday()
    assert emit_later(connection, **{**KEYED, "key": "never delayed"}) != first
    make_due(db)
    release(connection)
    assert outbox(db).count(first) == 1 and delayed(db) == []


def test_an_event_that_was_released_on_another_day_is_the_same_event(db, yesterday):
    connection = db.connect()
    first = emit_later(connection, **KEYED)
    make_due(db)
    release(connection)
    yesterday()
    assert emit_later(connection, **KEYED) == first and Once(connection).emit(**KEYED) == first
    assert outbox(db) == [first] and delayed(db) == []


def test_an_event_that_is_released_tomorrow_is_the_same_event_when_the_clock_has_stepped_back(db):
    connection = db.connect()
    Once(connection).emit(**{**KEYED, "key": "other"})  # from now on it is known of today that no later day has an event
    first = emit_later(connection, **KEYED)
    make_due(db)
    mutate(db, "relay_release", "now timestamptz := clock_timestamp()", "now timestamptz := clock_timestamp() + interval '1 day'")
    db.execute("SELECT once.add_days(2)")
    release(db.connect())
    assert db.value("SELECT max(day) FROM once.outbox") == today(db) + 1
    assert Once(connection).emit(**KEYED) == first and outbox(db).count(first) == 1


def test_a_copy_by_logical_replication_releases_nothing(db):
    connection = db.connect()
    event_id = emit_later(connection)
    make_due(db)
    db.execute("CREATE SUBSCRIPTION s CONNECTION 'host=/nowhere' PUBLICATION p WITH (connect = false, slot_name = NONE)")
    try:
        db.execute("INSERT INTO pg_subscription_rel SELECT s.oid, 'once.outbox'::regclass, 'r' FROM pg_subscription AS s WHERE s.subname = 's'")
        assert release(connection) == (0, None)
        assert delayed(db) == [event_id]
    finally:
        db.execute("DELETE FROM pg_subscription_rel AS r USING pg_subscription AS s WHERE s.oid = r.srsubid AND s.subname = 's'")
        db.execute("DROP SUBSCRIPTION s")


@pytest.mark.parametrize("by", ["keeper", "retire_outbox"])
def test_an_event_that_emit_published_is_forgotten_when_the_day_of_that_is_dropped(db, yesterday, by):
    connection = db.connect()
    emit_later(connection, **KEYED)
    others = [emit_later(connection, **EVENT), emit_later(connection, **{**KEYED, "key": "other"})]
    Once(connection).emit(**KEYED)
    day = yesterday()
    Relay(connection).batch()
    if by == "keeper":
        db.execute("SELECT once.set_keeping(outbox_retention => '0')")
        keep = keeper(db)
        keep.work("clock")
        keep.work("outbox")
    else:
        assert db.value("SELECT once.retire_outbox(%s)", day) == 1
    assert db.value("SELECT to_regclass(%s)", f"once.outbox_d{day}") is None
    assert delayed(db) == others


@pytest.mark.parametrize("function", ["emit", "emit_later"])
def test_two_transactions_never_emit_one_event_at_once(db, function):
    connection = db.connect(isolation="READ COMMITTED")
    emit_later(connection, **KEYED)
    with refused("P4029"):
        if function == "emit":
            Once(db.connect()).emit(**KEYED)
        else:
            emit_later(db.connect(), **KEYED)
    connection.rollback()


@pytest.mark.parametrize("level", LEVELS)
def test_it_is_held_once_at_every_isolation_level(db, level):
    connection = db.connect(isolation=level)
    run(connection, "SELECT 1")
    event_id = emit_later(db.connect(), **KEYED)
    code = code_of(lambda: emit_later(connection, **KEYED))
    assert code == (None if level == "READ COMMITTED" else "40001")
    connection.rollback()
    assert delayed(db) == [event_id]


def test_what_emit_is_just_publishing_is_left_for_the_next_look(db):
    connection = db.connect()
    emit_later(connection, **KEYED)
    other = emit_later(connection, **EVENT)
    make_due(db)
    emitting = db.connect(isolation="READ COMMITTED")
    first = Once(emitting).emit(**KEYED)
    assert release(connection) == (1, 0)
    assert outbox(db) == [other]
    assert release(connection) == (0, None)
    emitting.commit()
    assert release(connection) == (0, 0)
    assert sorted(outbox(db)) == sorted([first, other]) and delayed(db) == []


# ---- cancelling, retrying, discarding


def test_cancelling_is_in_the_transaction_of_what_makes_it_needless(db):
    event_id = emit_later(db.connect(), tenant="t")
    connection = db.connect(isolation="READ COMMITTED")
    cancel = "SELECT once.cancel_event(%s, %s)"
    assert run(connection, cancel, event_id, "other")[0][0] is False
    assert run(connection, cancel, event_id, "t")[0][0] is True
    connection.rollback()
    assert delayed(db) == [event_id]
    run(connection, cancel, event_id, "t")
    connection.commit()
    assert delayed(db) == []
    assert run(connection, cancel, event_id, "t")[0][0] is False


def test_what_is_just_being_cancelled_keeps_no_other_waiting(db):
    connection = db.connect()
    first, second = emit_later(connection), emit_later(connection)
    make_due(db, first, second)
    cancelling = db.connect(isolation="READ COMMITTED")
    run(cancelling, "SELECT once.cancel_event(%s)", first)
    assert release(connection) == (1, 0)
    assert outbox(db) == [second]
    cancelling.rollback()
    release(connection)
    assert outbox(db) == [second, first]


@pytest.mark.parametrize("what", ["retry", "discard"])
def test_an_operator_releases_it_now_or_gives_it_up(db, what):
    connection = db.connect()
    event_id = emit_later(connection, **KEYED, tenant="t")
    decide = f"SELECT once.parked_{what}(%s::text, 'why', %s)"
    Relay(connection)
    assert run(connection, decide, event_id, "r")[0][0] is False  # no relay has it
    assert run(connection, decide, event_id, None)[0][0] is True
    release(connection)
    assert outbox(db) == ([event_id] if what == "retry" else []) and delayed(db) == []
    rows = db.rows("SELECT * FROM once.parked_decision")
    assert len(rows) == 1
    row = rows[0]
    assert (row.what, row.relay, row.tenant, row.subject, row.from_state) == (what, None, "t", str(event_id), "delayed")
    if what == "retry":
        shown = db.value("SELECT once.parked_show(%s::text)", event_id)
        assert [decision["from"] for decision in shown["decisions"]] == ["delayed"]


# ---- days, replays, relays


def test_it_holds_no_day_of_the_outbox_and_no_relays_progress(db):
    connection = db.connect()
    relay = Relay(connection)
    emit_later(connection, "30 days")
    emit(connection)
    relay.batch()
    assert db.rows("SELECT * FROM once._outbox_needed(%s)", today(db))[0].why is None
    assert db.rows("SELECT * FROM once._backlog()") == []


def test_a_replay_delivers_again_what_was_released_and_not_what_is_delayed(db):
    connection = db.connect()
    relay = Relay(connection)
    first, second = emit_later(connection), emit_later(connection)
    make_due(db, first)
    release(connection)
    relay.batch()
    assert db.value("SELECT once.parked_replay('r', now() - interval '1 hour', NULL, 'why')") == 1
    assert [event.event_id for event in relay.due()] == [first] and delayed(db) == [second]


def test_a_relay_that_is_new_and_begins_now_gets_what_is_due_later(db):
    connection = db.connect()
    event_id = emit_later(connection)
    relay = Relay(connection, from_now=True)
    make_due(db)
    release(connection)
    assert [event.event_id for event in relay.batch()] == [event_id]


def test_the_keeper_releases_too(db):
    connection = db.connect()
    events = [emit_later(connection) for _ in range(600)]
    make_due(db, *events)
    keep = keeper(db)
    said = keep.work("delayed")
    assert said == ["500 delayed events are due", "100 delayed events are due", None]
    assert outbox(db) == events


def test_where_today_has_no_partition_it_waits_and_raises_nothing(db):
    connection = db.connect()
    event_id = emit_later(connection)
    make_due(db)
    db.execute(f"DROP TABLE once.outbox_d{today(db)}")
    holder = hold_days(db)
    assert release(connection) == (0, None)
    assert delayed(db) == [event_id]
    holder.rollback()
    assert release(connection) == (1, 0)
    assert outbox(db) == [event_id]


# ---- seeing


def test_it_is_counted_apart_and_does_not_raise_the_lag(db):
    connection = db.connect()
    relay = Relay(connection)
    emit(connection)
    relay.batch()
    before = db.rows("SELECT * FROM once.outbox_summary()")
    event_id = emit_later(connection, topic="mail", aggregate_type="order", aggregate_id="7")
    emit_later(connection, "2 days", topic="mail")
    emit_later(connection, topic="bill")
    db.execute("UPDATE once.delayed_event SET emitted_at = emitted_at - interval '9 days'")
    assert db.rows("SELECT * FROM once.outbox_summary()") == before
    assert db.rows("SELECT * FROM once.outbox_untaken()") == []
    assert [(row.topic, row.events) for row in db.rows("SELECT * FROM once.outbox_delayed()")] == [("bill", 1), ("mail", 2)]
    metrics = {
        (row.name, row.labels.get("topic")): row.value
        for row in db.rows("SELECT * FROM once.metrics() WHERE name ~ 'outbox'")
        if row.name != "pgonce_outbox_parked"
    }
    assert metrics[("pgonce_outbox_delayed", "mail")] == 2 and metrics[("pgonce_outbox_delayed", "bill")] == 1
    assert metrics[("pgonce_outbox_delayed_late_seconds", None)] == 0
    assert metrics[("pgonce_outbox_lag_seconds", "")] == 0 and metrics[("pgonce_outbox_pending", "")] == 0
    make_due(db, event_id)
    late = db.value("SELECT value FROM once.metrics() WHERE name = 'pgonce_outbox_delayed_late_seconds'")
    assert 3600 <= late < 3700


def test_the_list_the_event_and_the_story_show_it(db):
    connection = db.connect()
    relay = Relay(connection)
    emit(connection)
    Once(connection).finish_new(scope="orders", key="k")
    event_id = emit_later(connection, "2 days", **KEYED)
    other = emit_later(connection, "1 day")
    at = db.value("SELECT not_before FROM once.delayed_event WHERE event_id = %s", event_id)
    assert db.rows("SELECT * FROM once.parked_list()") == []
    assert [(row.holder, row.state) for row in db.rows("SELECT * FROM once.parked_list(state => 'pending')")] == [("r", "pending")]
    listed = db.rows("SELECT * FROM once.parked_list(state => 'delayed')")
    assert [row.id for row in listed] == [str(other), str(event_id)] and listed[1].next_at == at
    assert {(row.kind, row.holder, row.state) for row in listed} == {("event", None, "delayed")}
    for narrowed, found in (("topic => 'reminder'", [event_id]), ("relay => 'r'", []), ("take => 1", [other]), (f"id => '{event_id}'", [event_id]),
                            ("tenant => 'nobody'", []), ("before => now() - interval '1 hour'", [])):
        assert [row.id for row in db.rows(f"SELECT * FROM once.parked_list(state => 'delayed', {narrowed})")] == [str(each) for each in found]
    shown = db.value("SELECT once.parked_show(%s::text)", event_id)
    assert shown["topic"] == "reminder" and shown["relays"] == [] and shown["not_before"][:10] == str(at.date())
    story = db.value("SELECT once.story('orders', 'k')")
    assert [event["not_before"][:10] for event in story["events"]] == [str(at.date())]
    told = [entry["text"] for entry in story["timeline"] if entry["what"] == "event"]
    assert len(told) == 1 and "delayed until" in told[0]
    assert [row.key for row in db.rows("SELECT * FROM once.find(event => %s)", event_id)] == ["k"]
    assert relay.taken
