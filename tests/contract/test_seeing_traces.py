# SPDX-License-Identifier: PostgreSQL
"""The trace of an intent (W3C traceparent): taken with the first attempt, kept through takeovers, given back with every
answer, and put on its events."""

import pytest

from .calls import OTHER_PRINT, PRINT, Once, let_lease_pass, retire, run, shorten_horizon, uuid7_days_ago
from .relaying import Relay

FIRST = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
LATER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
MALFORMED = [
    "",
    "rubbish",
    FIRST.upper(),
    FIRST[:-1],
    FIRST + "0",
    FIRST + "\n",
    " " + FIRST,
    "ff" + FIRST[2:],
    FIRST.replace("b7ad", "b7ag"),
    FIRST.replace("-", "_"),
    "00-" + "0" * 32 + "-b7ad6b7169203331-01",
    "00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01",
    FIRST.replace("cd43", "c-43"),
    "é" * 55,
]


def trace_of(db, key):
    return db.value("SELECT traceparent FROM once.intent WHERE key = %s", key)


def test_the_first_attempts_trace_is_stored_and_given_back_with_every_answer(db):
    once = Once(db.connect())
    assert once.claim(key="k", traceparent=FIRST).traceparent == FIRST
    assert once.claim(key="k", traceparent=LATER).traceparent == FIRST  # somebody is at work
    assert once.peek(key="k").traceparent == FIRST
    once.complete(key="k", fence=1)
    assert once.claim(key="k", traceparent=LATER).traceparent == FIRST
    assert once.claim(key="k").traceparent == FIRST
    assert once.start(key="k", traceparent=LATER).traceparent == FIRST
    assert once.peek_many(scope=["orders"], key=["k"])[0].traceparent == FIRST
    assert once.story(key="k")["traceparent"] == FIRST


def test_a_takeover_keeps_the_trace_and_gives_one_to_an_intent_that_had_none(db):
    once = Once(db.connect())
    for key, first in (("with", FIRST), ("without", None)):
        once.claim(key=key, traceparent=first)
        let_lease_pass(db, key)
        assert once.claim(key=key, traceparent=LATER, takeover=True).traceparent == (first or LATER)
        assert trace_of(db, key) == (first or LATER)


def test_the_trace_of_an_intent_in_the_same_transaction(db):
    connection = db.connect()
    once = Once(connection)
    run(connection, "BEGIN")
    assert once.start(key="k", traceparent=FIRST).traceparent == FIRST
    once.finish(key="k", traceparent=FIRST)
    run(connection, "COMMIT")
    assert once.start(key="k", traceparent=LATER).traceparent == FIRST
    once.finish_new(key="n", traceparent=FIRST)
    assert trace_of(db, "n") == FIRST
    for key, first in (("failed", FIRST), ("without", None)):
        once.finish_new(key=key, state="failed_retryable", traceparent=first)
        assert once.start(key=key, traceparent=LATER).traceparent == (first or LATER)
        once.finish_new(key=key, traceparent=LATER)
        assert trace_of(db, key) == (first or LATER)


def test_batches_take_a_trace_each(db):
    once = Once(db.connect())
    keys = ["a", "b", "c"]
    claimed = once.claim_many(key=keys, traceparents=[FIRST, None, "rubbish"])
    assert [row.traceparent for row in claimed] == [FIRST, None, None]
    again = once.claim_many(key=keys, traceparents=[LATER, LATER, LATER])
    assert [row.traceparent for row in again] == [FIRST, None, None]
    rows = run(
        once.connection,
        "SELECT verdict FROM once.receive_many('mailer', %s, NULL, %s::bytea[], traceparents => %s)",
        keys,
        [PRINT] * 3,
        [FIRST, None, "rubbish"],
    )
    assert [row.verdict for row in rows] == ["process"] * 3
    assert db.value("SELECT array_agg(traceparent ORDER BY key) FROM once.intent WHERE scope = 'mailer'") == [
        FIRST,
        None,
        None,
    ]


def test_a_mismatch_learns_no_trace(db):
    once = Once(db.connect())
    once.claim(key="k", traceparent=FIRST)
    row = once.claim_many(key=["k"], fingerprint=[OTHER_PRINT], traceparents=[LATER])[0]
    assert (row.verdict, row.traceparent) == ("mismatch", None)


def test_a_message_has_the_trace_that_brought_it(db):
    once = Once(db.connect())
    once.receive(message_id="m", traceparent=FIRST)
    assert trace_of(db, "m") == FIRST


@pytest.mark.parametrize("malformed", MALFORMED)
def test_a_malformed_trace_is_as_good_as_none(db, malformed):
    once = Once(db.connect())
    assert once.claim(key="claimed", traceparent=malformed).traceparent is None
    assert once.start(key="started", traceparent=malformed).traceparent is None
    once.finish_new(key="started", traceparent=malformed)
    once.finish_new(key="new", traceparent=malformed)
    once.receive(message_id="m", traceparent=malformed)
    once.emit(topic="t", payload="{}", traceparent=malformed)
    once.claim_many(key=["many"], traceparents=[malformed])
    assert db.value("SELECT count(*) FROM once.intent") == 5
    assert db.value("SELECT count(*) FROM once.intent WHERE traceparent IS NOT NULL") == 0
    assert db.value("SELECT count(*) FROM once.outbox WHERE traceparent IS NOT NULL") == 0


def test_an_event_carries_its_own_trace_or_that_of_its_intent(db):
    connection = db.connect()
    once = Once(connection)
    relay = Relay(connection)
    run(connection, "BEGIN")
    once.emit(topic="intent's", payload="{}", scope="orders", key="k")
    once.emit(topic="own", payload="{}", scope="orders", key="k", traceparent=LATER)
    once.emit(topic="nobody's", payload="{}")
    once.finish_new(key="k", traceparent=FIRST)
    run(connection, "COMMIT")
    assert {event.topic: event.traceparent for event in relay.batch()} == {
        "intent's": FIRST,
        "own": LATER,
        "nobody's": None,
    }


def test_the_archive_remembers_the_trace(db):
    shorten_horizon(db)
    key = uuid7_days_ago(db, 2)
    once = Once(db.connect())
    once.finish_new(key=key, traceparent=FIRST)
    retire(db, 2)
    assert once.start(key=key, traceparent=LATER).traceparent == FIRST
    assert once.peek(key=key).traceparent == FIRST
