# SPDX-License-Identifier: PostgreSQL
"""Decisions about many parked events: retry and discard by relay, topic, state and age, a piece at a time."""

import pytest

from harness.postgres import wait_until

from .calls import in_threads, refused, run
from .logins import make_logins
from .relaying import Relay, emit, ids, parked, parking
from .test_outbox import touched
from .test_parked_many import park as park_message


def mixed(db, name="r"):
    """Six parked events of two topics, and the relay: dead, retrying and waiting, in two aggregates and in none."""
    for aggregate, topic in (("a", "t"), ("a", "t"), ("b", "t"), ("b", "u"), (None, "u"), (None, "u")):
        emit(db.connect(), aggregate, topic)
    relay = Relay(db.connect(), name)
    events = relay.fetch(relay.list())
    relay.park(
        parking(events[0], "dead", 10),
        parking(events[1], "waiting", 0, 0),
        parking(events[2], "retrying", 3, 3_600_000),
        parking(events[3], "waiting", 0, 0),
        parking(events[4], "dead", 10),
        parking(events[5], "retrying", 2, 3_600_000),
    )
    return relay, events


def all_pieces(db, what, *arguments, connection=None, **named):
    """Each piece in a transaction of its own: their counts by relay, topic and state, and how many pieces there were."""
    connection = connection or db.connect()
    counted, after, pieces = {}, None, 0
    while True:
        names = "".join(f", {name} => %s" for name in named)
        rows = run(connection, f"SELECT * FROM once.parked_{what}_many(after => %s{names})", after, *named.values())
        pieces += 1
        for row in rows:
            if row.items:
                place = (row.met_holder, row.met_topic, row.met_state)
                counted[place] = counted.get(place, 0) + row.items
        after = rows[0].next
        assert all(row.next == after for row in rows) and pieces < 1000
        if after is None:
            return counted, pieces


def decided(db):
    return db.rows("SELECT what, relay, subject, from_state, reason, decided_by, error FROM once.parked_decision ORDER BY subject")


@pytest.mark.parametrize("what", ["retry", "discard"])
def test_a_dry_run_counts_and_changes_nothing_and_is_what_it_does_unless_told_otherwise(db, what):
    mixed(db)
    before = db.rows("SELECT xmin, * FROM once.parked_event ORDER BY id"), db.rows("SELECT xmin, * FROM once.relay")
    counted, _ = all_pieces(db, what)
    assert counted == {
        ("r", "t", "dead"): 1, ("r", "t", "waiting"): 1, ("r", "t", "retrying"): 1,
        ("r", "u", "waiting"): 1, ("r", "u", "dead"): 1, ("r", "u", "retrying"): 1,
    }  # fmt: skip
    assert all_pieces(db, what, dry_run=True, take=1) == (counted, 7)
    assert (db.rows("SELECT xmin, * FROM once.parked_event ORDER BY id"), db.rows("SELECT xmin, * FROM once.relay")) == before
    assert decided(db) == []


NARROWED = {
    "topic": ({"topic": "u"}, [3, 4, 5]),
    "state": ({"state": "dead"}, [0, 4]),
    "topic and state": ({"topic": "u", "state": "retrying"}, [5]),
    "age": ({}, [0, 1, 2]),
    "another relay": ({"relay": "s"}, []),
    "relay": ({"relay": "r"}, [0, 1, 2, 3, 4, 5]),
    "type": ({"event_type": "u"}, [3, 4, 5]),
    "another type": ({"event_type": "v"}, []),
    "error": ({"error": "REFUSE", "topic": "t"}, [0, 1, 2]),
    "another error": ({"error": "22000"}, []),
    "tenant": ({"tenant": ""}, [0, 1, 2, 3, 4, 5]),
    "another tenant": ({"tenant": "acme"}, []),
    "kind": ({"kind": "event", "state": "dead"}, [0, 4]),
    "the other kind": ({"kind": "message"}, []),
}


@pytest.mark.parametrize("by", NARROWED)
@pytest.mark.parametrize("what", ["retry", "discard"])
def test_only_what_fits_is_decided_and_each_is_recorded(db, what, by):
    relay, events = mixed(db)
    Relay(db.connect(), "s")
    named, places = NARROWED[by]
    if by == "age":
        db.execute("UPDATE once.outbox SET created_at = created_at - interval '2 hours' WHERE id <= %s", events[2].id)
        named = {"before": db.value("SELECT clock_timestamp() - interval '1 hour'")}
    before = db.rows("SELECT * FROM once.parked_event ORDER BY id")
    all_pieces(db, what, dry_run=False, reason="the broker is back", **named)
    fit = [events[place] for place in places]
    after = {row.id: row for row in db.rows("SELECT * FROM once.parked_event ORDER BY id")}
    assert sorted(set(ids(events)) - set(after)) == (ids(fit) if what == "discard" else [])
    for row in before:
        if row.id not in ids(fit):  # untouched, but for one that stood behind something that is gone
            assert after[row.id][:-2] == row[:-2] or (what == "discard" and after[row.id].state == "waiting")
        elif what == "retry":
            assert (after[row.id].state, after[row.id].attempts) == ("waiting" if row.id in (events[1].id, events[3].id) else "retrying", 0)
    state = {row.event_id: row.state for row in before}
    assert decided(db) == sorted(
        (what, "r", str(event.event_id), state[event.event_id], "the broker is back", "postgres", "refused") for event in fit
    )


def test_what_stood_behind_discarded_events_goes_on(db):
    relay, events = mixed(db)
    assert relay.due() == []
    all_pieces(db, "discard", dry_run=False, reason="never mind", state="dead")
    assert ids(relay.due()) == [events[1].id]
    all_pieces(db, "discard", dry_run=False, reason="never mind", state="retrying")
    assert ids(relay.due()) == [events[1].id, events[3].id]


def test_many_that_are_retried_keep_the_order_of_their_aggregate_and_only_the_first_of_each_is_due_by_itself(db):
    writer = db.connect()
    for n in range(300):
        emit(writer, "abc"[n % 3])
    relay = Relay(db.connect())
    events = relay.fetch(relay.list())
    relay.park(*(parking(event, "dead", 10) for event in events))
    assert all_pieces(db, "retry", dry_run=False, reason="fixed", take=70)[0] == {("r", "t", "dead"): 300}
    assert db.value("SELECT count(*) FROM once.parked_event WHERE next_at <= clock_timestamp()") == 3
    delivered = []
    while due := relay.due(30):
        assert all(event.attempts == 0 for event in due)
        delivered += ids(due)
        relay.settle(delivered=ids(due))
    by_aggregate = {name: [event.id for event in events if event.aggregate_id == name] for name in "abc"}
    assert sorted(delivered) == ids(events)
    for wanted in by_aggregate.values():
        assert [one for one in delivered if one in wanted] == wanted


def dead_and_analyzed(db, count):
    """So many dead events of a tenth as many aggregates, when the planner knows of nothing but dead ones."""
    db.execute("SELECT once.emit('t', '{}', 'thing', (n %% %s)::text) FROM generate_series(1, %s) AS n", count // 10, count)
    relay = Relay(db.connect())
    events = relay.fetch(relay.list(count))
    relay.park(*(parking(event, "dead", 10) for event in events))
    db.execute("ANALYZE once.parked_event")
    return relay, events


def test_many_that_are_retried_are_found_one_by_one_although_the_planner_has_seen_dead_ones_alone(db):
    dead_and_analyzed(db, 3000)
    connection = db.connect()
    run(connection, "BEGIN")
    before, after = touched(connection), None
    for _ in range(6):
        after = run(connection, "SELECT * FROM once.parked_retry_many('why', dry_run => false, take => 500, after => %s)", after)[0].next
    scans, rows = (now - then for now, then in zip(touched(connection), before))
    run(connection, "COMMIT")
    assert scans == 0 and rows < 100_000, (scans, rows)  # in pieces: what is looked at, and the older of each aggregate


def test_a_relay_finds_what_is_parked_one_by_one_although_the_planner_has_seen_dead_ones_alone(db):
    relay, _ = dead_and_analyzed(db, 3000)
    relay.settle(parked=[])
    db.execute("SELECT once.emit('t', '{}', 'other', n::text) FROM generate_series(1, 1000) AS n")
    events = relay.fetch(relay.list())
    relay.settle(after_id=events[0].id, parked=[parking(events[0], "waiting", 0)])
    run(relay.connection, "BEGIN")
    before = touched(relay.connection)
    for start in range(1, 1000, 100):
        relay.settle(after_id=events[start].id, parked=[parking(event, "waiting", 0) for event in events[start : start + 100]])
    scans, rows = (now - then for now, then in zip(touched(relay.connection), before))
    run(relay.connection, "COMMIT")
    assert scans == 0 and rows < 20_000, (scans, rows)


def test_the_first_piece_alone_keeps_the_order(db):
    """A run that was interrupted: the later ones are dead still, and the earlier go first."""
    for _ in range(6):
        emit(db.connect(), "a")
    relay = Relay(db.connect())
    events = relay.fetch(relay.list())
    relay.park(*(parking(event, "dead", 10) for event in events))
    run(db.connect(), "SELECT * FROM once.parked_retry_many('fixed', dry_run => false, take => 2)")
    assert ids(relay.due()) == ids(events[:2])
    relay.settle(delivered=ids(events[:2]))
    assert relay.due() == []


def test_it_goes_through_all_relays_and_what_is_parked_later_is_not_met(db):
    for name in ("b", "a", "c"):
        mixed(db, name)
    connection = db.connect()
    first = run(connection, "SELECT * FROM once.parked_discard_many('why', dry_run => false, take => 2)")
    assert {row.met_holder for row in first} == {"a"}
    late = emit(db.connect(), "z")
    db.execute(
        "INSERT INTO once.parked_event (relay, id, xid, day, event_id, topic, tenant, state, next_at, parked_at, updated_at)"
        " SELECT 'a', id, xid, day, event_id, topic, tenant, 'dead', now(), now(), now() FROM once.outbox WHERE event_id = %s",
        late,
    )
    rows = first
    while rows[0].next is not None:
        rows = run(connection, "SELECT * FROM once.parked_discard_many('why', dry_run => false, take => 2, after => %s)", rows[0].next)
    assert db.rows("SELECT relay, event_id FROM once.parked_event") == [("a", late)]


def test_a_piece_looks_at_ten_thousand_and_ends_where_none_fits(db):
    relay, events = mixed(db)
    db.execute(
        "INSERT INTO once.parked_event (relay, id, xid, day, event_id, topic, tenant, state, next_at, parked_at, updated_at)"
        " SELECT p.relay, p.id + n, p.xid, p.day, p.event_id, 'many', p.tenant, 'dead', now(), now(), now()"
        "   FROM once.parked_event AS p, generate_series(1, 25000) AS n WHERE p.id = %s",
        events[-1].id,
    )
    db.execute("ANALYZE once.parked_event")
    assert all_pieces(db, "discard", topic="none") == ({}, 3)
    assert all_pieces(db, "discard", topic="many", take=10_000) == ({("r", "many", "dead"): 25_000}, 3)
    assert all_pieces(db, "discard", topic="many", take=10_000_000, dry_run=False, reason="why") == ({("r", "many", "dead"): 25_000}, 3)
    assert len(parked(db)) == 6


def test_a_relay_that_is_at_work_waits_for_a_piece_and_the_piece_for_it(db):
    """What the relay has delivered, or given another state, between the look and its row is not decided about."""
    relay, events = mixed(db)
    operator, watcher = db.connect(), db.connect()
    run(relay.connection, "BEGIN")
    relay.settle(delivered=[events[0].id], parked=[parking(events[4], "retrying", 1, 60_000, known=True)])
    pid = operator.get_backend_pid()

    def commit():
        wait_until(
            lambda: run(watcher, "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'", pid),
            "the operator to wait for the relay's row",
            10,
        )
        run(relay.connection, "COMMIT")

    rows, _ = in_threads(
        [lambda: run(operator, "SELECT * FROM once.parked_discard_many('why', state => 'dead', dry_run => false)"), commit]
    )
    assert [(row.met_topic, row.items, row.next) for row in rows] == [(None, 0, None)]
    assert decided(db) == [] and parked(db)[events[4].id] == (None, "retrying", 1)
    assert ids(relay.due()) == [events[1].id]


@pytest.mark.parametrize("first", ["the operator", "the relay"])
def test_an_event_that_is_parked_behind_one_of_many_that_are_just_being_discarded_is_not_stuck(db, first):
    for _ in range(2):
        emit(db.connect(), "a")
    relay = Relay(db.connect())
    events = relay.fetch(relay.list())
    relay.park(parking(events[0], "retrying", 1, 3_600_000))
    operator, watcher = db.connect(), db.connect()

    def park():
        relay.park(parking(events[1], "waiting", 0))

    def discard():
        run(operator, "SELECT * FROM once.parked_discard_many('why', dry_run => false, topic => 't', state => 'retrying')")

    holder, holds, waiter, waits = (operator, discard, relay.connection, park) if first == "the operator" else (relay.connection, park, operator, discard)
    pid = waiter.get_backend_pid()
    run(holder, "BEGIN")
    holds()

    def commit():
        wait_until(
            lambda: run(watcher, "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'", pid),
            "one to wait for the other",
            10,
        )
        run(holder, "COMMIT")

    in_threads([waits, commit])
    assert ids(relay.due()) == [events[1].id]


def test_a_look_that_finds_nothing_waits_for_no_relay(db):
    relay, _ = mixed(db)
    run(relay.connection, "BEGIN")
    relay.settle()
    connection = db.connect(lock_timeout="1s")
    assert all_pieces(db, "discard", connection=connection, topic="none", dry_run=False, reason="why") == ({}, 1)
    assert all_pieces(db, "discard", connection=connection)[1] == 1


@pytest.mark.parametrize("named", ["state => 'pending'", "kind => 'key'", "take => 0", "take => NULL", "after => 'x'", "after => 'event:x'", "dry_run => NULL", "relay => 'x'"])
def test_what_makes_no_sense_is_refused(db, named):
    mixed(db)
    with refused("22023"):
        db.execute(f"SELECT once.parked_discard_many('why', {named})")


def both_kinds(db):
    """Two dead events, two dead messages of two consumers; and of another tenant one of each."""
    writer = db.connect()
    for tenant in ("", "", "acme"):
        emit(writer, tenant=tenant)
    relay = Relay(db.connect())
    relay.park(*(parking(event, "dead", 10) for event in relay.fetch(relay.list())))
    for message, consumer, tenant in (("m1", "mailer", ""), ("m2", "stock", ""), ("m3", "mailer", "acme")):
        park_message(writer, message, None, "dead", consumer=consumer, tenant=tenant)
    return relay


@pytest.mark.parametrize("named, found", [
    ({}, {("event", "r"): 3, ("message", "mailer"): 2, ("message", "stock"): 1}), ({"kind": "event"}, {("event", "r"): 3}),
    ({"relay": "r"}, {("event", "r"): 3}), ({"kind": "message"}, {("message", "mailer"): 2, ("message", "stock"): 1}),
    ({"consumer": "mailer"}, {("message", "mailer"): 2}), ({"tenant": "acme"}, {("event", "r"): 1, ("message", "mailer"): 1}),
    ({"error": "why"}, {("message", "mailer"): 2, ("message", "stock"): 1}), ({"state": "retrying"}, {})])  # fmt: skip
@pytest.mark.parametrize("what", ["retry", "discard"])
def test_one_decision_is_about_events_and_then_messages(db, what, named, found):
    both_kinds(db)
    connection, counted, after = db.connect(), {}, None
    for _ in range(20):
        names = "".join(f", {name} => %s" for name in named)
        rows = run(connection, f"SELECT * FROM once.parked_{what}_many('why', dry_run => false, after => %s{names})", after, *named.values())
        for row in rows:
            if row.items:
                counted[row.met_kind, row.met_holder] = counted.get((row.met_kind, row.met_holder), 0) + row.items
        after = rows[0].next
        if after is None:
            break
    assert after is None and counted == found
    assert db.value("SELECT count(*) FROM once.parked_decision WHERE what = %s", what) == sum(found.values())


@pytest.mark.parametrize("after, named", [("message:", "kind => 'event'"), ("message:", "relay => 'r'"), ("event:0:9:r", "kind => 'message'"),
                                          ("event:0:9:r", "state => 'delayed'"), ("delayed:0:00000000-0000-0000-0000-000000000000", "state => 'dead'"),
                                          ("event:0:9:r", "relay => 's'")])  # fmt: skip
def test_a_decision_goes_on_where_it_was_and_nowhere_else(db, after, named):
    both_kinds(db)
    Relay(db.connect(), "s")
    with refused("22023"):
        db.execute(f"SELECT once.parked_discard_many('why', {named}, dry_run => false, after => %s)", after)
    assert len(parked(db)) == 3


def test_a_bound_role_decides_about_the_events_of_its_own_tenant_alone(db):
    make_logins(db)
    both_kinds(db)
    db.execute("SELECT once.bind('bound', 'acme')")
    db.execute("GRANT EXECUTE ON FUNCTION once.parked_list, once.parked_show, once.parked_retry, once.parked_discard, once.parked_discard_many TO bound")
    connection = db.connect("bound")
    theirs, mine = (str(row.event_id) for row in db.rows("SELECT event_id FROM once.parked_event WHERE id IN (SELECT min(id) FROM once.parked_event"
                                                         " GROUP BY tenant) ORDER BY tenant"))  # fmt: skip
    for call in ("parked_list()", "parked_list(tenant => '')", f"parked_show('{mine}')", f"parked_discard('{mine}', 'why')",
                 f"parked_discard('{theirs}', 'why', tenant => '')", "parked_discard_many('why', dry_run => false)"):  # fmt: skip
        with refused("P4003"):
            run(connection, f"SELECT once.{call}")
    assert [row.id for row in run(connection, "SELECT id FROM once.parked_list(tenant => 'acme', kind => 'event')")] == [mine]
    assert run(connection, "SELECT once.parked_show(%s, tenant => 'acme')", theirs) == [(None,)]
    assert run(connection, "SELECT once.parked_retry(%s, 'why', tenant => 'acme')", theirs) == [(False,)]
    assert run(connection, "SELECT once.parked_discard(%s, 'why', tenant => 'acme')", theirs) == [(False,)]
    assert run(connection, "SELECT once.parked_discard(%s, 'why', tenant => 'acme')", mine) == [(True,)]
    assert {tenant for tenant in db.rows("SELECT DISTINCT tenant FROM once.parked_event")} == {("",)}


def test_a_bound_role_decides_about_no_delayed_event_of_another_tenant(db):
    make_logins(db)
    db.execute("GRANT EXECUTE ON FUNCTION once.parked_discard TO bound")
    theirs, mine = (db.value("SELECT once.emit_later(now() + interval '1 day', 't', '{}', tenant => %s)", tenant) for tenant in ("theirs", "mine"))
    for event, decided in ((theirs, False), (mine, True)):
        assert run(db.connect("bound"), "SELECT once.parked_discard(%s::text, 'why', tenant => 'mine')", event) == [(decided,)]
    assert [row.event_id for row in db.rows("SELECT event_id FROM once.delayed_event")] == [theirs]


def test_where_no_relay_ran_there_is_nothing_to_decide(db):
    assert all_pieces(db, "retry") == ({}, 1)


@pytest.mark.parametrize("what", ["retry", "discard"])
def test_delayed_events_are_decided_by_topic_and_age_and_only_if_they_are_named(db, what):
    relay, _ = mixed(db)
    later = "SELECT once.emit_later(now() + interval '1 day', %s, '{}', tenant => 'm')"
    mine = sorted(db.value(later, "mine") for _ in range(5))
    old = db.value(later, "mine")
    db.execute("UPDATE once.delayed_event SET emitted_at = emitted_at - interval '2 hours' WHERE event_id = %s", old)
    other = db.value(later, "other")
    assert ("r", "t", "dead") in all_pieces(db, what, dry_run=True)[0]
    assert not any(state == "delayed" for _, _, state in all_pieces(db, what, dry_run=True)[0])
    assert all_pieces(db, what, state="delayed", take=2) == ({(None, "mine", "delayed"): 6, (None, "other", "delayed"): 1}, 4)
    assert all_pieces(db, what, state="delayed", relay="r", dry_run=False, reason="why") == ({}, 1)
    assert decided(db) == []
    hour = db.value("SELECT clock_timestamp() - interval '1 hour'")
    assert all_pieces(db, what, state="delayed", topic="mine", before=hour, dry_run=False, reason="why")[0] == {(None, "mine", "delayed"): 1}
    assert [row.subject for row in decided(db)] == [str(old)]
    counted, pieces = all_pieces(db, what, state="delayed", topic="mine", dry_run=False, reason="why", take=2)
    assert counted == {(None, "mine", "delayed"): 6 if what == "retry" else 5} and pieces >= 3
    assert {(row.what, row.relay, row.from_state) for row in decided(db)} == {(what, None, "delayed")}
    released = db.value("SELECT released FROM once_job.relay_release()")
    assert released == (6 if what == "retry" else 0)
    assert [row.event_id for row in db.rows("SELECT event_id FROM once.delayed_event")] == [other]
    assert relay.taken and len(mine) == 5


def test_of_delayed_events_what_is_emitted_after_the_first_piece_is_not_met(db):
    connection = db.connect()
    later = "SELECT once.emit_later(now() + interval '1 day', 't', '{}')"
    for _ in range(4):
        db.value(later)
    named = "state => 'delayed', dry_run => false, reason => 'why', take => 2"
    after = run(connection, f"SELECT next FROM once.parked_discard_many({named})")[0].next
    late = [db.value(later) for _ in range(20)]
    while after is not None:
        after = run(connection, f"SELECT next FROM once.parked_discard_many({named}, after => %s)", after)[0].next
    assert sorted(row.event_id for row in db.rows("SELECT event_id FROM once.delayed_event")) == sorted(late)


@pytest.mark.parametrize("named", [{"take": 0}, {"after": "7:8:r"}, {"dry_run": None}, {"dry_run": False}, {"dry_run": False, "reason": " "}])
def test_what_makes_no_sense_about_delayed_events_is_refused(db, named):
    with refused("22023"):
        all_pieces(db, "discard", state="delayed", **named) if "after" not in named else run(
            db.connect(), "SELECT * FROM once.parked_discard_many(state => 'delayed', after => %s)", named["after"])
