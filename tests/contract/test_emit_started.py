# SPDX-License-Identifier: PostgreSQL
"""A transaction that has started an intent as new may still find its event: emitted before, or right now, by one that has left no row of the
intent. So once.emit checks the same in it as in any other."""

import pytest
from harness.mutation import mutate

from .calls import LEVELS, Once, code_of, refused, run, today, uuid7_days_ago
from .test_emit import on_another_day

OTHER = '{"id": 8}'


def event(key, **more):
    return {"topic": "order.created", "payload": '{"id": 7}', "scope": "orders", "key": key, **more}


def in_use(db):
    db.execute("SELECT nextval('once.outbox_day_seq')")


def keys(db):
    """One without a birthday, and one of today, and events are emitted as usual: another has emitted today."""
    in_use(db)
    return ["k", uuid7_days_ago(db, 0)]


def emit_alone(once, key):
    return once.emit(**event(key))


def emit_and_forget_finish(once, key):
    assert once.start(key=key).verdict == "proceed"
    return once.emit(**event(key))


def emit_after_rollback_to(once, key):
    run(once.connection, "SAVEPOINT s")
    assert once.start(key=key).verdict == "proceed"
    once.emit(**event(key))
    run(once.connection, "ROLLBACK TO s")
    return once.emit(**event(key))


def emit_and_fail(once, key):
    assert once.start(key=key).verdict == "proceed"
    event_id = once.emit(**event(key))
    once.finish(key=key, state="failed_retryable")
    return event_id


def emit_under_a_lease(once, key):
    fence = once.claim(key=key).fence
    once.connection.commit()
    event_id = once.emit(**event(key))
    once.fail(key=key, fence=fence, retryable=True)
    return event_id


def emit_and_be_purged(once, key):
    """As once_job.keep_step leaves it: the row is gone, and its fence is never given again."""
    event_id = emit_and_fail(once, key)
    run(once.connection, "SELECT setval('once.fence_floor_seq', 1)")
    run(once.connection, "DELETE FROM once.intent")
    return event_id


BEFORE = [emit_alone, emit_and_forget_finish, emit_after_rollback_to, emit_and_fail, emit_under_a_lease, emit_and_be_purged]


def start(once, key):
    assert once.start(key=key).verdict == "proceed"


def note_by_hand(once, key):
    """What a start notes (once._note_start), without a start."""
    run(once.connection, "SELECT set_config('once.started', concat_ws(E'\\x1f', E'\\x1e', '', 'orders', %s::text, '', '1'), true)", key)


STARTS = [start, note_by_hand]


def before(db, how, key, level="READ COMMITTED"):
    once = Once(db.connect(isolation=level))
    run(once.connection, "SET once.strict = off")
    event_id = how(once, key)
    once.connection.commit()
    return event_id


def is_the_same_event(db, begin, key, event_id):
    once = Once(db.connect(isolation="READ COMMITTED"))
    run(once.connection, "SET once.strict = off")
    begin(once, key)
    assert once.emit(**event(key)) == event_id
    assert once.emit(**event(key, payload='{ "id" : 7 }')) == event_id
    with refused("P4051"):
        once.emit(**event(key, payload=OTHER))
    once.connection.rollback()
    with refused("P4051"):
        once.emit(**event(key, payload=OTHER))
    once.connection.rollback()
    begin(once, key)
    once.emit(**event(key))
    once.connection.commit()
    assert db.value("SELECT count(*) FROM once.outbox WHERE key = %s", key) == 1


@pytest.mark.parametrize("begin", STARTS)
@pytest.mark.parametrize("how", BEFORE)
def test_a_start_as_new_may_find_its_event_emitted_today(db, how, begin):
    for key in keys(db):
        is_the_same_event(db, begin, key, before(db, how, key))


@pytest.mark.parametrize("how", BEFORE)
def test_a_start_as_new_may_find_its_event_emitted_on_an_earlier_day(db, how):
    day = today(db) - 1
    db.execute(f"CREATE TABLE once.outbox_d{day} PARTITION OF once.outbox FOR VALUES FROM ({day}) TO ({day + 1})")
    for key in keys(db):
        event_id = before(db, how, key)
        db.execute("UPDATE once.outbox SET day = day - 1 WHERE key = %s", key)
        is_the_same_event(db, start, key, event_id)


def test_a_start_as_new_may_find_its_event_emitted_on_a_later_day(db):
    """The clock was set back since."""
    for key in keys(db):
        event_id = on_another_day(db, 1, lambda key=key: before(db, emit_alone, key))
        is_the_same_event(db, start, key, event_id)


def test_a_start_before_midnight_finds_what_another_emitted_before_midnight(db):
    for key in keys(db):
        event_id = before(db, emit_alone, key)
        once = Once(db.connect(isolation="READ COMMITTED"))
        start(once, key)
        assert on_another_day(db, 1, lambda once=once, key=key: once.emit(**event(key))) == event_id
        once.connection.commit()
        assert db.value("SELECT count(*) FROM once.outbox WHERE key = %s", key) == 1


def emit_later(once, key):
    run(once.connection, "SELECT once.emit_later(now() + '3 days', 'order.created', '{}', scope => 'orders', key => %s)", key)


WITHOUT_A_START = [emit_alone, emit_later]


@pytest.mark.parametrize("begin", STARTS)
@pytest.mark.parametrize("how", WITHOUT_A_START)
@pytest.mark.parametrize("strict", ["on", "off"])
def test_what_another_is_emitting_is_refused_at_once_though_this_one_has_started_the_intent_as_new(db, how, begin, strict):
    for key in keys(db):
        emitting = Once(db.connect(isolation="READ COMMITTED"))
        how(emitting, key)
        once = Once(db.connect(isolation="READ COMMITTED"))
        run(once.connection, "SET LOCAL statement_timeout = '5s'")  # a wait is no refusal
        run(once.connection, f"SET LOCAL once.strict = {strict}")
        begin(once, key)
        with refused("P4029"):
            once.emit(**event(key))
        once.connection.rollback()
        emitting.connection.rollback()


@pytest.mark.parametrize("differs", ["tenant", "scope", "key", "event_type"])
def test_another_event_that_another_is_emitting_is_in_nobodys_way(db, differs):
    emitting = Once(db.connect(isolation="READ COMMITTED"))
    first = emitting.emit(**event("k", event_type="order.created"))
    once = Once(db.connect(isolation="READ COMMITTED"))
    second = once.emit(**{**event("k", event_type="order.created"), differs: "another"})
    assert second != first
    once.connection.commit()
    emitting.connection.commit()
    assert db.value("SELECT count(*) FROM once.outbox") == 2


@pytest.mark.parametrize("level", [level for level in LEVELS if level != "READ COMMITTED"])
def test_an_event_that_the_snapshot_hides_ends_a_start_as_new(db, level):
    for key in keys(db):
        late = Once(db.connect(isolation=level))
        run(late.connection, "SELECT count(*) FROM once.outbox")
        event_id = before(db, emit_alone, key)
        start(late, key)
        with refused("40001"):
            late.emit(**event(key))
        late.connection.rollback()
        is_the_same_event(db, start, key, event_id)


@pytest.mark.parametrize("level", LEVELS)
def test_an_event_after_finish_is_one_of_its_intent(db, level):
    for key in keys(db):
        once = Once(db.connect(isolation=level))
        start(once, key)
        once.finish(key=key)
        event_id = once.emit(**event(key))
        assert once.emit(**event(key)) == event_id
        with refused("P4051"):
            once.emit(**event(key, payload=OTHER))
        once.connection.rollback()
        assert db.value("SELECT count(*) FROM once.outbox") == 0


def test_two_tenants_with_the_same_names_have_two_events(db):
    once = Once(db.connect(isolation="READ COMMITTED"))
    ids = set()
    for tenant in ("a", "b"):
        assert once.start(key="k", tenant=tenant).verdict == "proceed"
        ids.add(once.emit(**event("k", tenant=tenant)))
        once.finish(key="k", tenant=tenant)
    once.connection.commit()
    assert len(ids) == db.value("SELECT count(*) FROM once.outbox") == 2


@pytest.mark.parametrize("key", ["k", None], ids=["of an intent", "of none"])
@pytest.mark.parametrize(
    "headers, traceparent, code",
    [('{"h": "1"}', None, None), (None, f"00-{'a' * 32}-{'b' * 16}-01", None), ("[]", None, "22023"), (None, "none", None)],
    ids=["headers", "trace", "headers that are none", "a trace that is none"],
)
def test_headers_and_a_trace_are_stored_or_refused(db, key, headers, traceparent, code):
    in_use(db)
    given = event(key, scope=key and "orders", headers=headers, traceparent=traceparent)
    assert code_of(lambda: Once(db.connect()).emit(**given)) == code
    if code is None:
        row = db.row("SELECT headers IS NOT NULL AS headers, traceparent FROM once.outbox")
        assert row.headers == (headers is not None) and row.traceparent == (None if traceparent == "none" else traceparent)


# What no event may be named: (which, its value, the refusal).
WRONG = [
    ("topic", "", "22023"),
    ("event_type", "", "22023"),
    ("topic", "t" * 256, "22023"),
    ("event_type", "t" * 256, "22023"),
    ("topic", None, "22023"),
    ("tenant", "t" * 256, "P4003"),
    ("tenant", None, "P4003"),
    ("scope", "", "P4000"),
    ("scope", "s" * 256, "P4000"),
    ("scope", None, "22023"),
    ("key", "", "P4001"),
    ("key", "k" * 256, "P4001"),
    ("key", "k\n", "P4001"),
    ("key", "kö", "P4001"),
]


@pytest.mark.parametrize("which, value, code", WRONG)
def test_names_that_are_none_are_refused(db, which, value, code):
    in_use(db)
    with refused(code):
        Once(db.connect()).emit(**{**event("k"), "event_type": "e", which: value})
    assert db.value("SELECT count(*) FROM once.outbox") == 0


@pytest.mark.parametrize("which, value, code", [wrong for wrong in WRONG if wrong[0] not in ("scope", "key")] + [("scope", "orders", "22023")])
def test_names_of_an_event_of_no_intent_that_are_none_are_refused(db, which, value, code):
    with refused(code):
        Once(db.connect()).emit(**{"topic": "t", "event_type": "e", "payload": "{}", which: value})
    assert db.value("SELECT count(*) FROM once.outbox") == 0


@pytest.mark.parametrize("length", [200, 255])
@pytest.mark.parametrize("key", ["k", None], ids=["of an intent", "of none"])
def test_long_names_are_taken(db, length, key):
    names = dict(topic="t" * length, event_type="e" * length, tenant="x" * length)
    once = Once(db.connect())
    given = {**event(key and key * length, scope=key and "s" * length), **names}
    once.emit(**given)
    once.emit(**given)
    assert db.value("SELECT count(*) FROM once.outbox WHERE topic = %s AND event_type = %s AND tenant = %s", *names.values()) == (1 if key else 2)


def test_a_transaction_of_yesterday_emits_no_event_of_an_intent_today(db):
    once = Once(db.connect(isolation="REPEATABLE READ"))
    mutate(db, "emit", "transaction_timestamp()", "(transaction_timestamp() - interval '1 day')")
    in_use(db)
    with refused("40001"):
        once.emit(**event("k"))
    once.connection.rollback()
    assert Once(db.connect(isolation="READ COMMITTED")).emit(**event("k"))
    assert Once(db.connect(isolation="REPEATABLE READ")).emit(topic="t", payload="{}")
