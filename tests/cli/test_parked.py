# SPDX-License-Identifier: PostgreSQL
"""pgonce parked, where events and messages are parked in one database."""
import json

import pytest

from .test_parked_events import Relay, emit, relay, text_of  # noqa: F401 (fixtures)
from .test_parked_messages import park  # noqa: F401


@pytest.fixture
def both(db, relay, emit, park):  # noqa: F811
    """An event that is dead with its relay, and dead again as the message that it became."""
    played, event = relay(), emit("mail")
    played.pass_all()
    played.park(event, "dead", "HTTP 500", attempts=10)
    park(event, topic="mail", error="no such address")
    park("m-2", state="retrying", tenant="acme")
    return event


def listed(pgonce, *words):
    return [(row["kind"], row["holder"], row["id"]) for row in json.loads(text_of(pgonce("parked", "list", "--json", *words)))["parked"]]


def test_one_list_has_both_the_dead_first(pgonce, both):
    event, message, retrying = ("event", "orders", both), ("message", "stock", both), ("message", "stock", "m-2")
    assert listed(pgonce) == [event, message, retrying]
    for words, found in (
        (("--kind", "event"), [event]), (("--relay", "orders"), [event]), (("--kind", "message"), [message, retrying]),
        (("--consumer", "stock"), [message, retrying]), (("--state", "dead"), [event, message]), (("--topic", "mail"), [event, message]),
        (("--error", "http"), [event]), (("--error", "P0001"), [message, retrying]), (("--tenant", "acme"), [retrying]), (("--limit", "2"), [event, message]),
        (("--until", "1h"), []),
    ):  # fmt: skip
        assert listed(pgonce, *words) == found, words
    told = json.loads(text_of(pgonce("parked", "list", "--json")))["counts"]
    assert [(row["kind"], row["holder"], row["topic"], row["state"], row["items"]) for row in told] == [
        ("event", "orders", "mail", "dead", 1), ("message", "stock", "mail", "dead", 1), ("message", "stock", "orders", "retrying", 1)]
    assert json.loads(text_of(pgonce("parked", "list", "--json", "--tenant", "acme")))["counts"] == []
    text = text_of(pgonce("parked", "list"))
    assert all(len(line) <= 80 for line in text.splitlines()), text
    for part in ("event of order 17; 10 attempts: HTTP 500", "message of key 17; 10 attempts: no such address", "message of tenant acme, key 17"):
        assert part in text, text


def test_an_id_that_is_both_must_be_said_which(pgonce, db, both):
    for verb in (("show",), ("retry", "--reason", "r"), ("discard", "--reason", "r")):
        text = text_of(pgonce("parked", verb[0], both, *verb[1:]), 2)
        assert "relay orders: dead, consumer stock: dead" in text
    assert json.loads(text_of(pgonce("parked", "show", both, "--kind", "event", "--json")))["event_id"] == both
    assert json.loads(text_of(pgonce("parked", "show", both, "--consumer", "stock", "--json")))["message_id"] == both
    assert text_of(pgonce("parked", "retry", both, "--relay", "orders", "--reason", "r")).startswith(f"event {both}, relay orders: it is tried again")
    assert text_of(pgonce("parked", "discard", both, "--kind", "message", "--reason", "r")).startswith(f"message {both}, consumer stock: given up")
    assert db.rows("SELECT what, relay, consumer FROM once.parked_decision ORDER BY decided_at") == [("retry", "orders", None), ("discard", None, "stock")]
    assert "by postgres: retry with orders: r" in text_of(pgonce("parked", "show", both))


def test_one_decision_is_about_both_kinds_unless_one_is_named(pgonce, db, both):
    text = text_of(pgonce("parked", "retry", "--state", "dead"))
    assert text.startswith("retry: 1 event, 1 message (dry run")
    for words, items in ((("--kind", "event"), 1), (("--kind", "message"), 2), (("--tenant", "acme"), 1), (("--topic", "mail"), 2)):
        assert json.loads(text_of(pgonce("parked", "discard", *words, "--json")))["items"] == items, words
    assert db.value("SELECT count(*) FROM once.parked_decision") == 0
    done = json.loads(text_of(pgonce("parked", "discard", "--topic", "mail", "--yes", "--reason", "r", "--json")))
    assert (done["items"], [(row["kind"], row["holder"], row["items"]) for row in done["groups"]]) == (2, [("event", "orders", 1), ("message", "stock", 1)])
    assert listed(pgonce) == [("message", "stock", "m-2")]


def test_stuck_counts_both(pgonce, both):
    told = json.loads(text_of(pgonce("stuck", "--json")))["parked"]
    assert [(row["kind"], row["holder"], row["topic"], row["state"], row["items"]) for row in told] == [
        ("event", "orders", "mail", "dead", 1), ("message", "stock", "mail", "dead", 1), ("message", "stock", "orders", "retrying", 1)]
    assert "pgonce parked list" in text_of(pgonce("stuck"))
