# SPDX-License-Identifier: PostgreSQL
"""Every SQLSTATE of once.errors() is raised by some call, with its own sentence, the intent's name, and what to do."""

import psycopg2
import pytest

from .calls import DAY_MS, Once, hold_days, now_ms, run, uuid7, uuid7_days_ago
from .relaying import Relay
from .test_buckets import drop_day

OTHER = b"another request!"


def failed(once, retryable):
    once.claim(key="k")
    once.fail(key="k", fence=1, retryable=retryable, error_code="declined", error_message="no money")


def without_yesterday(db):
    drop_day(db, 1)
    hold_days(db)
    return uuid7_days_ago(db, 1)


def begin(once):
    run(once.connection, "BEGIN; SET LOCAL once.strict = on")


def end_unfinished(once):
    begin(once)
    once.start(key="k")
    run(once.connection, "COMMIT")


def relay_of_another_cluster(db):
    connection = db.connect()
    Relay(connection, "acme")
    db.execute("UPDATE once.relay SET written_by = '1'")
    Relay(connection, "acme")


# SQLSTATE: (db, once) -> the call that raises it, after whatever makes it do so.
RAISED = {
    "P4000": lambda db, once: once.start(scope="", key="k"),
    "P4001": lambda db, once: once.start(key=uuid7(now_ms(db) + 30 * DAY_MS)),
    "P4002": lambda db, once: (once.finish_new(key="k"), once.start(key="k", fingerprint=OTHER)),
    "P4003": lambda db, once: once.start(key="k", fingerprint=None),
    "P4010": lambda db, once: (once.claim(key="k"), once.complete(key="k", fence=2)),
    "P4011": lambda db, once: (once.claim(key="k"), once.fail(key="k", fence=2, retryable=True)),
    "P4012": lambda db, once: once.finish(key="k"),
    "P4013": lambda db, once: end_unfinished(once),
    "P4014": lambda db, once: (begin(once), once.start(key="k"), once.start(key="k")),
    "P4015": lambda db, once: (begin(once), once.start(key="k"), once.finish(key="k", fingerprint=OTHER)),
    "P4020": lambda db, once: (once.finish_new(key="k"), once.finish_new(key="k")),
    "P4029": lambda db, once: (once.claim(key="k"), once.start(key="k")),
    "P4030": lambda db, once: (failed(once, False), once.start(key="k")),
    "P4031": lambda db, once: (failed(once, None), once.start(key="k")),
    "P4041": lambda db, once: once.start(key=uuid7_days_ago(db, 400)),
    "P4050": lambda db, once: (once.receive(message_id="k"), once.receive(message_id="k", fingerprint=OTHER)),
    "P4051": lambda db, once: (
        once.emit(topic="t", payload="1", scope="orders", key="k"),
        once.emit(topic="t", payload="2", scope="orders", key="k"),
    ),
    "P4060": lambda db, once: once.finish_new(key="k", response_body=b"x" * 2_000_000),
    "P4070": lambda db, once: (once.finish_new(key="k"), once.resolve(key="k", as_state="failed_final")),
    "P4080": lambda db, once: relay_of_another_cluster(db),
    "P4097": lambda db, once: (db.execute("CALL once.divide(false)"), once.start(key="k")),
    "P4098": lambda db, once: once.start(key=without_yesterday(db)),
    "P4099": lambda db, once: (once.claim(scope="mailer", key="k"), once.receive(message_id="k")),
}


def test_every_code_of_the_table_is_raised_by_some_call(db):
    assert {row.code for row in db.rows("SELECT code FROM once.errors()")} == set(RAISED)


@pytest.mark.parametrize("code", RAISED)
def test_a_refusal_names_its_code_the_intent_and_a_hint(db, code):
    known = db.row("SELECT * FROM once.errors() WHERE code = %s", code)
    with pytest.raises(psycopg2.Error) as caught:
        RAISED[code](db, Once(db.connect(), tenant="acme"))
    diag = caught.value.diag
    assert caught.value.pgcode == code, caught.value
    # Those that have several causes say which one it is, and what to do then.
    several = code in ("P4003", "P4010", "P4011")
    assert diag.message_primary.startswith("pgonce: " + known.message + (": " if several else ""))
    assert several or diag.message_primary == "pgonce: " + known.message
    assert diag.message_hint and known.hint and (several or diag.message_hint == known.hint)
    assert ("relay='acme'" if code == "P4080" else "tenant='acme'") in diag.message_detail
    if code not in ("P4000", "P4001", "P4041", "P4080", "P4098"):  # these are about a key of their own
        assert "key='k'" in diag.message_detail
    assert "\n" not in diag.message_detail


def test_codes_and_names_are_distinct_and_all_speak(db):
    rows = db.rows("SELECT * FROM once.errors()")
    for column in ("code", "name", "message"):
        assert len({getattr(row, column) for row in rows}) == len(rows)
    assert all(row.message and row.hint and row.retry is not None for row in rows)


def test_a_final_failure_and_a_doubt_say_why(db):
    once = Once(db.connect())
    failed(once, False)
    with pytest.raises(psycopg2.Error, match="declined: no money"):
        once.start(key="k")


def test_no_refusal_writes_an_answers_body_into_the_log(db):
    """A body may hold what nobody may read."""
    once = Once(db.connect())
    for call in (
        lambda: once.finish_new(key="k", response_body=b"top secret", state="bogus"),
        lambda: once.complete(key="k", fence=1, response_body=b"top secret"),
        lambda: once.finish_new(key="", response_body=b"top secret"),
    ):
        with pytest.raises(psycopg2.Error) as caught:
            call()
        assert b"top secret".hex() not in str(caught.value)
