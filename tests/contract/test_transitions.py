# SPDX-License-Identifier: PostgreSQL
"""Every state meets every event, and what becomes of it is exactly what the table once.transition says."""

import psycopg2

from .calls import Once, let_lease_pass, run

STATES = (None, "processing", "succeeded", "failed_retryable", "failed_final", "in_doubt")


def build(db, once, key, state, stale=False):
    """An intent in this state; its fence is 1."""
    if state is None:
        return
    assert once.claim(key=key).fence == 1
    if state == "succeeded":
        once.complete(key=key, fence=1)
    elif state != "processing":
        once.fail(
            key=key, fence=1, retryable={"failed_retryable": True, "failed_final": False, "in_doubt": None}[state]
        )
    if stale:
        let_lease_pass(db, key)


# event, what makes it different, the call. Each runs under each policy.
EVENTS = (
    ("start", lambda once, key: once.start(key=key)),
    ("claim", lambda once, key: once.claim(key=key)),
    ("claim", lambda once, key: once.claim_many(key=[key])),
    ("claim", lambda once, key: once.claim(key=key, takeover=True)),
    ("finish", lambda once, key: once.finish_new(key=key, state="succeeded")),
    ("finish", lambda once, key: once.finish_new(key=key, state="failed_retryable")),
    ("finish", lambda once, key: once.finish_new(key=key, state="failed_final")),
    ("receive", lambda once, key: once.receive(consumer="orders", message_id=key)),
    ("renew", lambda once, key: once.renew(key=key, fence=1)),
    ("renew", lambda once, key: once.renew_many(key=[key], fence=[1])),
    ("release", lambda once, key: once.release(key=key, fence=1)),
    ("complete", lambda once, key: once.complete(key=key, fence=1)),
    ("complete", lambda once, key: once.complete_many(key=[key], fence=[1])),
    *(("fail", lambda once, key, r=r: once.fail(key=key, fence=1, retryable=r)) for r in (True, False, None)),
    *(
        ("fail", lambda once, key, r=r: once.fail_many(key=[key], fence=[1], retryable=[r]))
        for r in (True, False, None)
    ),
    *(
        ("resolve", lambda once, key, s=s: once.resolve(key=key, as_state=s))
        for s in ("succeeded", "failed_retryable", "failed_final")
    ),
    ("recover", lambda once, key: run(once.connection, "SELECT * FROM once.recover()")),
    ("recover", lambda once, key: run(once.connection, "SELECT * FROM once.recover(in_doubt => true)")),
    ("peek", lambda once, key: once.peek(key=key)),
    ("peek", lambda once, key: once.story(key=key)),
)
# What closes days is tried in test_buckets.py and test_keeping.py.
KEEPER = {"retire_day", "keep_step"}
POLICIES = (
    "max_attempts => 0, on_stale => 'takeover'",
    "max_attempts => 1, on_stale => 'takeover'",
    "max_attempts => 0, on_stale => 'in_doubt'",
    *(
        f"max_attempts => {attempts}, verify => 'public.{answer}'"
        for attempts in (0, 1)
        for answer in ("happened", "absent", "unknown")
    ),
)


def make_verify_functions(db):
    for answer in ("happened", "absent", "unknown"):
        db.execute(
            f"CREATE FUNCTION public.{answer}(text, text, text) RETURNS once.verification LANGUAGE sql AS "
            f"$$SELECT '{answer}', 200, '\\x6f6b'::bytea, NULL::jsonb, NULL, NULL$$"
        )


def walk(db):
    """(from, event, to) over all states, events and policies, where the row really changed, as soon as it has."""
    make_verify_functions(db)
    once = Once(db.connect())
    number = 0
    for policy in POLICIES:
        for state, stale in [(state, False) for state in STATES] + [("processing", True), ("in_doubt", True)]:
            for event, call in EVENTS:
                number += 1
                key = f"k{number}"
                db.execute("DELETE FROM once.intent")  # else recover would be busy with those before
                db.execute("SELECT once.set_scope('orders', on_stale => 'takeover', max_attempts => 0)")
                build(db, once, key, state, stale)
                db.execute(f"SELECT once.set_scope('orders', {policy})")
                before = db.rows("SELECT * FROM once.intent WHERE key = %s", key)
                assert [row.state for row in before] == ([state] if state else [])
                try:
                    call(once, key)
                except psycopg2.Error as error:
                    assert error.pgcode.startswith("P4"), error
                after = db.rows("SELECT * FROM once.intent WHERE key = %s", key)
                if after != before:
                    assert len(after) == 1
                    yield state, event, after[0].state


def test_the_changes_of_state_are_exactly_those_of_the_table(db):
    allowed = {
        (row.from_state, row.event, row.to_state)
        for row in db.rows("SELECT from_state, event, to_state FROM once.transition")
    }
    observed = set()
    for change in walk(db):
        assert change in allowed, "a change that the table does not allow"
        observed.add(change)
    assert {
        row for row in allowed - observed if row[1] not in KEEPER
    } == set(), "changes of the table that nothing makes"


def test_the_table_names_known_events_and_every_state(db):
    events = {row.event for row in db.rows("SELECT event FROM once.transition")}
    assert events <= {event for event, _ in EVENTS} | KEEPER
    words = [row.word for row in db.rows("SELECT unnest(enum_range(NULL::once.state))::text AS word")]
    assert words == [state for state in STATES if state]
    reached = {row.to_state for row in db.rows("SELECT to_state FROM once.transition")}
    assert reached == set(words)


def test_a_finished_intent_is_never_changed_again(db):
    final = {row.from_state for row in db.rows("SELECT from_state FROM once.transition")}
    assert not {"succeeded", "failed_final"} & final


def test_no_event_with_a_wrong_fence_changes_anything(db):
    once = Once(db.connect())
    for number, (state, stale) in enumerate([(state, False) for state in STATES] + [("processing", True)]):
        for fence in (0, 2, None):
            key = f"k{number}/{fence}"
            build(db, once, key, state, stale)
            before = db.rows("SELECT * FROM once.intent WHERE key = %s", key)
            for call in (
                lambda: once.renew(key=key, fence=fence),
                lambda: once.release(key=key, fence=fence),
                lambda: once.complete(key=key, fence=fence),
                lambda: once.complete_many(key=[key], fence=[fence]),
                *(lambda r=r: once.fail(key=key, fence=fence, retryable=r) for r in (True, False, None)),
            ):
                try:
                    call()
                except psycopg2.Error as error:
                    assert error.pgcode in ("P4010", "P4011")
            assert db.rows("SELECT * FROM once.intent WHERE key = %s", key) == before
