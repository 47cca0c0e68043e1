# SPDX-License-Identifier: PostgreSQL
"""Ids that are UUIDv7. Opaque, as they are unless the configuration says otherwise, they are only names: a message is applied once, however
old. With ids = uuidv7 they carry their day, and a message of a forgotten day is dead."""
import pytest

from contract.calls import refused, today, uuid7_days_ago
from contract.test_buckets import spellings
from harness.webhook import Webhook

from .script import HANDLER, Consumer, Script, consume, message

AGO = 60  # days: far beyond the horizon
DEAD = "SELECT count(*) FROM once.parked_message WHERE state = 'dead'"


@pytest.fixture
def applied(db):
    db.execute(HANDLER)
    return db


def ids(db):
    return [row.id for row in db.rows("SELECT id FROM applied ORDER BY n")]


def again(script, db, **options):
    """All that there is is delivered once more."""
    script.acks.unlink()
    return consume(script, db.dsn(), **options)


def test_a_new_consumer_applies_each_message_of_an_old_stream_exactly_once(applied):
    given = [uuid7_days_ago(applied, AGO, n) for n in range(300)]
    with Script([message(n, id=id, key=f"k{n % 7}") for n, id in enumerate(given)]) as script:
        consume(script, applied.dsn())
        again(script, applied)
    assert sorted(ids(applied)) == sorted(given)
    assert applied.value("SELECT count(*) FROM once.parked_message") == 0
    assert applied.row("SELECT count(*), min(bucket), max(bucket) FROM once.intent WHERE scope = 'stock'") == (300, 0, 0)


def test_an_old_id_is_applied_once_in_any_spelling(applied):
    messages = [message(n, id=id) for n, id in enumerate(spellings(uuid7_days_ago(applied, AGO, 0xABC)))]
    with Script(messages) as script:
        consume(script, applied.dsn())
        again(script, applied)
    assert sorted(ids(applied)) == sorted(spellings(ids(applied)[0]))
    assert applied.row("SELECT count(*), max(bucket) FROM once.intent WHERE scope = 'stock'") == (18, 0)


def test_an_old_message_that_died_is_retried_by_an_operator_and_is_a_duplicate_ever_after(applied):
    old = uuid7_days_ago(applied, AGO)
    with Script([message(1, id=old, body={"do": "fail"})]) as script:
        consume(script, applied.dsn(), attempts=1, until=lambda: applied.value(DEAD) == 1)
        applied.execute("CREATE OR REPLACE FUNCTION apply(m once.message) RETURNS void LANGUAGE sql AS 'INSERT INTO applied (id) VALUES (m.id)'")
        assert applied.value("SELECT id FROM once.parked_list()") == f"pgonce:id:{old}"
        assert applied.value("SELECT once.parked_retry(%s, 'the handler is mended', consumer => 'stock')", f"pgonce:id:{old}") is True
        consume(script, applied.dsn(), until=lambda: ids(applied) == [old])
        again(script, applied)
    assert ids(applied) == [old]
    assert applied.value("SELECT count(*) FROM once.parked_message") == 0


def test_with_ids_uuidv7_a_message_belongs_to_its_day_and_one_of_a_forgotten_day_is_dead(applied):
    new, old = uuid7_days_ago(applied, 0), uuid7_days_ago(applied, AGO)
    with Script([message(1, id=new), message(2, id=old), message(3)]) as script:
        consume(script, applied.dsn(), ids="uuidv7")
        again(script, applied, ids="uuidv7")
    assert ids(applied) == [new, "id-3"]
    assert applied.value("SELECT bucket FROM once.intent WHERE key = %s", new) == today(applied)
    dead = applied.row("SELECT message_id, state, sqlstate, error FROM once.parked_message")
    assert dead[:3] == (old, "dead", "P4041") and "ids = opaque" in dead.error
    with refused("P4041"):
        applied.value("SELECT once.parked_retry(%s, 'again', consumer => 'stock')", old)
    assert applied.value("SELECT once.parked_discard(%s, 'nobody wants it', consumer => 'stock')", old) is True


def does_not_start(script, db, **options):
    with Consumer(script, db.dsn(), **options) as consumer:
        assert consumer.ends() != 0
        return consumer.said()


@pytest.mark.parametrize("first, other", [("opaque", "uuidv7"), ("uuidv7", "opaque")])
@pytest.mark.parametrize("parked", [False, True])
def test_a_consumer_does_not_change_its_ids_while_the_inbox_remembers_some(applied, first, other, parked):
    """The broker delivers again what was applied: under another id it would be applied again."""
    with Script([message(1, id=uuid7_days_ago(applied, 0), body={"do": "fail"} if parked else None), message(2)]) as script:
        consume(script, applied.dsn(), ids=first, attempts=1, until=lambda: applied.value(DEAD) == parked)
        script.acks.unlink()
        said = does_not_start(script, applied, ids=other)
        assert f"Set ids = {first}" in said, said
        assert len(ids(applied)) == 1 + (not parked)
        consume(script, applied.dsn(), ids=first)
        assert len(ids(applied)) == 1 + (not parked)
        # Forgotten, or decided.
        applied.execute("DELETE FROM once.intent; DELETE FROM once.parked_message")
        consume(script, applied.dsn(), ids=other)


def test_an_id_that_begins_as_an_opaque_one_is_not_mistaken_for_it(applied):
    old = uuid7_days_ago(applied, AGO)
    with Script([message(1, id=old), message(2, id=f"pgonce:id:{old}"), message(3, id="pgonce:id:x")]) as script:
        consume(script, applied.dsn())
    assert ids(applied)[0] == old and len(ids(applied)) == 3
    assert all(id.startswith("sha256:") for id in ids(applied)[1:])


def test_an_endpoint_gets_an_old_message_under_a_key_without_a_birthday(db):
    """So that a gateway before it takes the key as well."""
    old = uuid7_days_ago(db, AGO)
    with Webhook() as hook, Script([message(1, id=old)]) as script:
        consume(script, db.dsn(), endpoint=hook.url + "apply")
        again(script, db, endpoint=hook.url + "apply")
        request, = hook.requests
    assert request.header("Idempotency-Key") == f'"pgonce:id:{old}"'
    assert request.header("Pgonce-Message-Id") == old
