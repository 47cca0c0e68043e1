# SPDX-License-Identifier: PostgreSQL
"""A message's traceparent becomes its intent's: applied at once, after it was parked, and by an HTTP endpoint, which gets it too.

Broken on purpose and seen to fail: without the parameter in receive.sql, receive_parked.sql, and intent_of (http_lease.c), a test each; with the
first of two headers taken, the malformed ones.
"""
import pytest

from harness.webhook import Answer, Webhook

from .script import HANDLER, Script, consume, message

TRACES = [f"00-{n:032x}-{n:016x}-01" for n in range(1, 40)]
# By its message's number; None: it has none that counts.
MALFORMED = [
    {"traceparent": "00-1"},
    {"traceparent": TRACES[9].upper()},
    [("traceparent", TRACES[0]), ("TraceParent", TRACES[1])],
    {"traceparent": b"00-\xff\xfe"},
    {"traceparent": f"{TRACES[0]}\0more"},
]


@pytest.fixture
def applied(db):
    db.execute(HANDLER)
    return db


def of_intents(db):
    return dict(db.rows("SELECT key, traceparent FROM once.intent WHERE scope = 'stock' ORDER BY key"))


def finished(db):
    return db.value("SELECT count(*) FROM once.intent WHERE scope = 'stock' AND state = 'succeeded'")


def traced(n, **more):
    return message(n, key=f"k{n}", headers={"TraceParent" if n % 2 else "traceparent": TRACES[n]}, **more)


def test_a_messages_trace_is_its_intents(applied):
    with Script([traced(n) for n in range(20)] + [message(20)]) as script:
        consume(script, applied.dsn())
    assert of_intents(applied) == {f"id-{n}": TRACES[n] for n in range(20)} | {"id-20": None}
    assert applied.row("SELECT headers ->> 'traceparent' AS trace FROM applied WHERE id = 'id-2'").trace == TRACES[2]


@pytest.mark.parametrize("headers", MALFORMED, ids=["short", "upper case", "two", "no text", "longer than it looks"])
def test_a_malformed_one_is_none_and_spoils_nothing(applied, headers):
    with Script([traced(1), message(2, headers=headers), traced(3)]) as script:
        consume(script, applied.dsn())
    assert of_intents(applied) == {"id-1": TRACES[1], "id-2": None, "id-3": TRACES[3]}


def test_a_message_that_was_parked_keeps_its_trace(applied):
    applied.execute("CREATE SEQUENCE tries")
    applied.execute("""CREATE OR REPLACE FUNCTION apply(m once.message) RETURNS void LANGUAGE plpgsql AS $$
        BEGIN
            IF m.id = 'id-2' AND nextval('tries') < 6 THEN RAISE EXCEPTION 'not yet'; END IF;
        END $$""")
    with Script([traced(1), traced(2), traced(3)]) as script:
        log = consume(script, applied.dsn(), until=lambda: len(of_intents(applied)) == 3)
    assert "event=retrying" in log
    assert of_intents(applied) == {f"id-{n}": TRACES[n] for n in (1, 2, 3)}


def test_an_endpoint_gets_the_trace_and_its_intent_too(db):
    with Webhook() as hook:
        answers = iter([503] * 2)
        hook.script = lambda request: Answer(next(answers, 200) if request.json["number"] == 2 else 200)
        with Script([traced(n) for n in range(6)] + [message(6)]) as script:
            consume(script, db.dsn(), endpoint=hook.url + "apply", until=lambda: finished(db) == 7)
        assert {request.json["number"]: request.header("traceparent") for request in hook.requests} == {
            n: TRACES[n] for n in range(6)} | {6: None}
    assert of_intents(db) == {f"id-{n}": TRACES[n] for n in range(6)} | {"id-6": None}
