# SPDX-License-Identifier: PostgreSQL
"""Decisions about many parked messages: retry and discard by consumer, tenant, topic, type, error, state and age, a piece at a time."""

import json

import pytest

from .calls import PRINT, Once, hold_days, refused, run, today, uuid7_days_ago
from .logins import make_logins
from .test_outbox import touched
from .test_parked import applied, due, lines, states
from .test_receive_many import receive_many

DEAD = ("dead", 7)


def park(connection, message_id, key=None, state="dead", topic="t", consumer="mailer", tenant="", error="why", sqlstate="22000", headers=None):
    run(
        connection,
        "SELECT once_job.message_park(%s, %s, ARRAY[ROW(%s, %s, %s, %s, 'body'::bytea, %s, %s, 7, %s, %s, %s)::once.parked])",
        consumer, tenant, message_id, topic, key, json.dumps(headers or {}), PRINT, state, 3_600_000 if state == "retrying" else 0, error, sqlstate,
    )  # fmt: skip


def mixed(db):
    """Parked messages of two consumers and two tenants: dead, retrying and waiting; of keys and of none."""
    connection = db.connect()
    park(connection, "a1", "a")
    park(connection, "a2", "a", "waiting")
    park(connection, "b1", "b", "retrying", "u", error="no such Article 17", sqlstate="23503")
    park(connection, "b2", "b", "waiting", "u")
    park(connection, "n1", None, "dead", "u", headers={"Pgonce-Event-Type": "order.paid"})
    park(connection, "n2", None, "retrying", headers={"ce_type": "order.paid"})
    park(connection, "m", "a", consumer="billing", tenant="acme", headers={"type": "order.paid", "other": "x"})
    park(connection, "m", "a", consumer="mailer", tenant="acme", headers={"other": "order.paid"})
    return connection


ALL = {("mailer", "", "a1"), ("mailer", "", "a2"), ("mailer", "", "b1"), ("mailer", "", "b2"), ("mailer", "", "n1"), ("mailer", "", "n2"),
       ("billing", "acme", "m"), ("mailer", "acme", "m")}  # fmt: skip


def pieces(connection, what, **named):
    """Each piece in a transaction of its own: the rows of each."""
    found, after = [], None
    while True:
        names = "".join(f", {name} => %s" for name in named)
        found.append(run(connection, f"SELECT * FROM once.parked_{what}_many(kind => 'message', after => %s{names})", after, *named.values()))
        after = found[-1][0].next
        assert all(row.next == after for row in found[-1]) and len(found) < 1000
        if after is None:
            return found


def counted(rows):
    counts = {}
    for piece in rows:
        for row in piece:
            if row.items:
                place = (row.met_holder, row.met_topic, row.met_state, row.skipped)
                counts[place] = counts.get(place, 0) + row.items
    return counts


def decide(db, what, **named):
    return counted(pieces(db.connect(), what, dry_run=False, reason="the handler is mended", **named))


def decided(db):
    return db.rows("SELECT what, consumer, tenant, subject, from_state, reason, decided_by, error FROM once.parked_decision ORDER BY 2, 3, 4")


def table(db):
    return {(row.consumer, row.tenant, row.message_id): row for row in db.rows("SELECT * FROM once.parked_message")}


@pytest.mark.parametrize("what", ["retry", "discard"])
def test_a_dry_run_counts_and_changes_nothing_and_is_what_it_does_unless_told_otherwise(db, what):
    mixed(db)
    before = db.rows("SELECT xmin, * FROM once.parked_message ORDER BY position")
    found = pieces(db.connect(), what)
    assert counted(found) == {
        ("billing", "t", "dead", None): 1, ("mailer", "t", "dead", None): 2, ("mailer", "t", "waiting", None): 1, ("mailer", "t", "retrying", None): 1,
        ("mailer", "u", "retrying", None): 1, ("mailer", "u", "waiting", None): 1, ("mailer", "u", "dead", None): 1,
    }  # fmt: skip
    assert len(found) == 3  # of one consumer and tenant each
    assert counted(pieces(db.connect(), what, dry_run=True, take=1)) == counted(found)
    assert db.rows("SELECT xmin, * FROM once.parked_message ORDER BY position") == before and decided(db) == []
    assert db.value("SELECT count(*) FROM once.intent") == 0


NARROWED = {
    "nothing": ({}, ALL),
    "consumer": ({"consumer": "billing"}, {("billing", "acme", "m")}),
    "tenant": ({"tenant": "acme"}, {("billing", "acme", "m"), ("mailer", "acme", "m")}),
    "no tenant": ({"tenant": "", "state": "dead"}, {("mailer", "", "a1"), ("mailer", "", "n1")}),
    "both": ({"consumer": "mailer", "tenant": "acme"}, {("mailer", "acme", "m")}),
    "topic": ({"topic": "u"}, {("mailer", "", "b1"), ("mailer", "", "b2"), ("mailer", "", "n1")}),
    "type": ({"event_type": "order.paid"}, {("mailer", "", "n1"), ("mailer", "", "n2"), ("billing", "acme", "m")}),
    "state": ({"state": "retrying"}, {("mailer", "", "b1"), ("mailer", "", "n2")}),
    "error": ({"error": "ARTICLE"}, {("mailer", "", "b1")}),
    "sqlstate": ({"error": "23503"}, {("mailer", "", "b1")}),
    "a sign of no pattern": ({"error": "%"}, set()),
    "age": ({}, {("mailer", "", "a1"), ("mailer", "", "b1")}),
    "nobody": ({"consumer": "nobody"}, set()),
}  # fmt: skip


@pytest.mark.parametrize("by", NARROWED)
@pytest.mark.parametrize("what", ["retry", "discard"])
def test_only_what_fits_is_decided_and_each_is_recorded(db, what, by):
    mixed(db)
    named, fit = NARROWED[by]
    if by == "age":
        db.execute("UPDATE once.parked_message SET parked_at = parked_at - interval '2 hours' WHERE message_id IN ('a1', 'b1')")
        named = {"before": db.value("SELECT clock_timestamp() - interval '1 hour'")}
    before = table(db)
    assert sum(decide(db, what, **named).values()) == len(fit)
    after = table(db)
    assert set(before) - set(after) == (fit if what == "discard" else set())
    for place, row in after.items():
        if place not in fit:
            assert row == before[place]
        else:
            assert (row.attempts, row.state) == (0, "waiting" if row.message_id in ("a2", "b2") else "retrying")
    assert decided(db) == sorted(
        (what, *place, before[place].state, "the handler is mended", "postgres", before[place].error) for place in fit
    )


def test_what_is_discarded_is_a_duplicate_and_what_stood_behind_it_goes_on(db):
    connection = mixed(db)
    assert due(connection) == []
    assert decide(db, "discard", consumer="mailer", state="dead") == {("mailer", "t", "dead", None): 2, ("mailer", "u", "dead", None): 1}
    assert due(connection) == ["a2"]
    assert receive_many(connection, ["a1", "n1", "n2"], ["a", None, None]) == ["duplicate", "duplicate", "parked"]


def test_many_that_are_retried_keep_the_order_of_their_key(db):
    connection = db.connect()
    for n in range(300):
        park(connection, f"m{n:03}", "abc"[n % 3] if n % 7 else None)
    assert decide(db, "retry", take=70) == {("mailer", "t", "dead", None): 300}
    came = []
    while found := lines(connection, 30):
        came += found
        applied(connection, *found)
    assert sorted(came) == [f"m{n:03}" for n in range(300)]
    for key in range(3):
        of_key = [f"m{n:03}" for n in range(300) if n % 3 == key and n % 7]
        assert [each for each in came if each in of_key] == of_key


@pytest.mark.parametrize("skip_dead", [False, True])
def test_a_run_that_was_interrupted_has_decided_about_the_first_of_a_key(db, skip_dead):
    connection = db.connect()
    for n in range(6):
        park(connection, f"z{9 - n}", "a")
    run(connection, "SELECT * FROM once.parked_retry_many('fixed', 'message', dry_run => false, take => 2)")
    assert [state for state, _ in states(db).values()] == ["retrying", "waiting"] + ["dead"] * 4
    assert lines(connection, 10, skip_dead=skip_dead) == ["z9", "z8"]
    applied(connection, "z9", "z8")
    assert lines(connection, 10, skip_dead=skip_dead) == []
    assert decide(db, "retry") == {("mailer", "t", "dead", None): 4}
    assert lines(connection, 10) == ["z7", "z6", "z5", "z4"]


def test_what_is_parked_later_is_not_met(db):
    connection = mixed(db)
    first = run(connection, "SELECT * FROM once.parked_discard_many('why', 'message', dry_run => false, take => 1)")
    park(connection, "late", "zzz")
    park(connection, "late", None, consumer="new")
    rows = first
    while rows[0].next is not None:
        rows = run(connection, "SELECT * FROM once.parked_discard_many('why', 'message', dry_run => false, take => 1, after => %s)", rows[0].next)
    assert sorted(table(db)) == [("mailer", "", "late"), ("new", "", "late")]


def many(db, count, topic="many", analyzed=True):
    park(db.connect(), "first", None, topic=topic)
    db.execute(
        "INSERT INTO once.parked_message (consumer, tenant, message_id, topic, key, headers, payload, fingerprint, state, next_at, parked_at, updated_at)"
        " SELECT consumer, tenant, 'm' || n, topic, CASE WHEN n %% 5 > 0 THEN (n %% %s)::text END, headers, payload, fingerprint, 'dead', next_at,"
        "        parked_at, updated_at FROM once.parked_message, generate_series(1, %s) AS n WHERE message_id = 'first'",
        max(count // 10, 1), count - 1,
    )  # fmt: skip
    if analyzed:
        db.execute("ANALYZE once.parked_message")


def test_a_piece_looks_at_ten_thousand_decides_about_a_thousand_and_ends_where_none_fits(db):
    many(db, 25_000)
    assert [sum(row.items for row in piece) for piece in pieces(db.connect(), "discard", topic="none")] == [0, 0, 0]
    found = pieces(db.connect(), "discard", topic="many", take=10_000)
    assert counted(found) == {("mailer", "many", "dead", None): 25_000}
    assert max(sum(row.items for row in piece) for piece in found) == 1000


@pytest.mark.parametrize("analyzed", [False, True])
@pytest.mark.parametrize("what", ["retry", "discard"])
def test_many_are_found_one_by_one_whatever_the_planner_has_seen(db, what, analyzed):
    """Dead ones alone; or nothing yet."""
    many(db, 3000, analyzed=analyzed)
    connection = db.connect()
    run(connection, "BEGIN")
    before, after = touched(connection), None
    for _ in range(6):
        after = run(connection, f"SELECT * FROM once.parked_{what}_many('why', 'message', dry_run => false, take => 500, after => %s)", after)[0].next
    scans, rows = (now - then for now, then in zip(touched(connection), before))
    run(connection, "COMMIT")
    assert scans == 0 and rows < 40_000, (scans, rows)
    assert db.value("SELECT count(*) FROM once.parked_message WHERE state = 'dead'") == 0


@pytest.mark.parametrize("what", ["retry", "discard"])
def test_what_a_consumer_is_trying_is_skipped_and_waited_for_by_nobody(db, what):
    connection = db.connect()
    for message in ("a1", "a2", "b1"):
        park(connection, message, message[0], "waiting")
    consumer, operator = (db.connect(isolation="READ COMMITTED", lock_timeout="1s") for _ in range(2))
    assert due(consumer) == ["a1", "b1"]
    rows = run(operator, f"SELECT met_state, skipped, items, next FROM once.parked_{what}_many('why', 'message', dry_run => false)")
    assert rows == [("waiting", None, 1, None), ("waiting", "P4029", 2, None)]
    operator.commit()
    assert [row.subject for row in decided(db)] == ["a2"]
    applied(consumer, "a1", "b1")
    consumer.commit()
    assert decide(db, what) == ({("mailer", "t", "waiting", None): 1} if what == "retry" else {})


def test_one_that_is_just_being_received_or_worked_on_is_skipped(db):
    busy = db.connect(isolation="READ COMMITTED")
    once = Once(db.connect())
    once.claim(scope="mailer", key="leased")
    for message in ("received", "leased", "free"):
        park(db.connect(), message)
    Once(busy).receive(message_id="received")
    assert decide(db, "discard") == {("mailer", "t", "dead", None): 1, ("mailer", "t", "dead", "P4029"): 2}
    assert states(db) == {"received": DEAD, "leased": DEAD} and len(decided(db)) == 1


def test_what_no_attempt_may_run_and_what_could_not_be_remembered_is_skipped_and_the_rest_is_decided(db):
    connection = db.connect()
    old, new = uuid7_days_ago(db, 60), uuid7_days_ago(db, 0)
    park(connection, old)
    park(connection, "plain")
    assert decide(db, "retry") == {("mailer", "t", "dead", None): 1, ("mailer", "t", "dead", "P4041"): 1}
    assert states(db) == {old: DEAD, "plain": ("retrying", 0)}
    park(connection, new)
    db.execute(f"DROP TABLE once.intent_d{today(db)}")
    held = hold_days(db)
    assert decide(db, "discard", state="dead") == {("mailer", "t", "dead", None): 1, ("mailer", "t", "dead", "P4098"): 1}
    held.rollback()
    assert states(db) == {"plain": ("retrying", 0), new: DEAD}


@pytest.mark.parametrize("named", [
    "state => 'pending'", "state => 'delayed'", "relay => 'r'", "take => 0", "take => NULL", "after => 'x'", "dry_run => NULL", "dry_run => false", "reason => ' ', dry_run => false",
    "tenant => 'acme', after => 'message:0:0:9:0:mailer'", "consumer => 'billing', after => 'message:0:0:9:0:mailer'"])  # fmt: skip
@pytest.mark.parametrize("what", ["retry", "discard"])
def test_what_makes_no_sense_is_refused(db, what, named):
    mixed(db)
    before = table(db)
    with refused("22023"):
        db.execute(f"SELECT once.parked_{what}_many(kind => 'message', {named})")
    assert table(db) == before


def test_a_consumer_without_a_name_is_refused(db):
    for what in ("retry", "discard"):
        with refused("P4000"):
            db.execute(f"SELECT once.parked_{what}_many(consumer => '')")


def test_a_bound_role_decides_about_its_own_tenant_alone_whatever_it_says_it_had_before(db):
    make_logins(db)
    mixed(db)
    db.execute("GRANT EXECUTE ON FUNCTION once.parked_discard_many TO bound")
    mine = db.value("SELECT tenant FROM once.binding WHERE role_name = 'bound' LIMIT 1")
    park(db.connect(), "mine", tenant=mine)
    connection = db.connect("bound")
    for named in ("", "tenant => '', ", "tenant => 'theirs', "):
        with refused("P4003"):
            run(connection, f"SELECT once.parked_discard_many('why', 'message', {named}dry_run => false)")
    with refused("22023"):
        run(connection, "SELECT once.parked_discard_many('why', 'message', tenant => %s, dry_run => false, after => 'message:0:0:99:0:mailer')", mine)
    run(connection, "SELECT once.parked_discard_many('why', 'message', tenant => %s, dry_run => false)", mine)
    assert set(table(db)) == ALL


def test_where_nothing_is_parked_there_is_nothing_to_decide(db):
    assert [list(map(tuple, piece)) for piece in pieces(db.connect(), "retry")] == [[("message", None, None, None, None, 0, None)]]
