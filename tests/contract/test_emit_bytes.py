# SPDX-License-Identifier: PostgreSQL
"""The outbox with a payload of bytes: once.emit_bytes keeps what once.emit promises, and the bytes as they are."""

import pytest
from harness.mutation import mutate

from . import test_emit as emit
from .calls import Once, refused

EVENT = dict(
    topic="order.created",
    payload=bytes(range(256)),
    content_type='application/x-protobuf; messageType="shop.Order"',
    aggregate_type="order",
    aggregate_id="7",
    scope="orders",
    key="k",
    headers='{"h": "1"}',
)


class Bytes(Once):
    """once.emit is once.emit_bytes with the same payload."""

    def __getattr__(self, function):
        call = super().__getattr__("emit_bytes" if function == "emit" else function)

        def emit_bytes(payload, **arguments):
            return call(payload=payload and payload.encode(), content_type="application/json", **arguments)

        return emit_bytes if function == "emit" else call


# What compares or reads a payload as JSON.
OF_JSON = {
    "test_an_event_holds_what_was_emitted",
    "test_the_same_event_of_an_intent_again_is_the_same_event",
    "test_a_hostile_payload_comes_back_as_it_was",
}


def promises():
    """Each test of once.emit, with its parameters."""
    for name, test in vars(emit).items():
        if name.startswith("test_") and name not in OF_JSON:
            cases = [{}]
            for mark in getattr(test, "pytestmark", []):
                names = [each.strip() for each in mark.args[0].split(",")]
                cases = [{**case, names[0]: value} for case in cases for value in mark.args[1]]
            yield from (pytest.param(test, case, id=f"{name[5:]}-{'-'.join(map(str, case.values()))}") for case in cases)


@pytest.mark.parametrize("promise, case", promises())
def test_bytes_keep_what_an_event_promises(db, monkeypatch, promise, case):
    monkeypatch.setattr(emit, "Once", Bytes)
    monkeypatch.setattr(emit, "mutate", lambda db, function, *change: mutate(db, {"emit": "emit_bytes"}.get(function, function), *change))
    promise(db, **case)


def test_bytes_are_stored_as_they_are_with_their_content_type(db):
    for payload in (EVENT["payload"], b"", b"\0", b"\0" * 100_000):
        event_id = Once(db.connect()).emit_bytes(**{**EVENT, "payload": payload, "key": str(len(payload))})
        event = db.row("SELECT * FROM once.outbox ORDER BY id DESC LIMIT 1")
        assert (event.event_id, bytes(event.payload_bytes), event.content_type) == (event_id, payload, EVENT["content_type"])


@pytest.mark.parametrize(
    "other",
    [
        {"payload": bytes(range(255))},
        {"payload": b""},
        {"content_type": "application/x-protobuf"},
        {"content_type": EVENT["content_type"].upper()},
    ],
)
def test_the_same_event_type_with_other_bytes_or_another_content_type_is_refused(db, other):
    once = Once(db.connect())
    first = once.emit_bytes(**EVENT)
    with refused("P4051"):
        once.emit_bytes(**{**EVENT, **other})
    assert once.emit_bytes(**EVENT) == first
    assert len(emit.events(db)) == 1


JSON = {**{name: value for name, value in EVENT.items() if name != "content_type"}, "payload": '{"id": 7}'}


def test_bytes_and_json_are_not_the_same_event(db):
    once = Once(db.connect())
    once.emit(**JSON)
    with refused("P4051"):
        once.emit_bytes(**{**EVENT, "payload": b'{"id": 7}', "content_type": "application/json"})
    once.emit_bytes(**{**EVENT, "key": "other"})
    with refused("P4051"):  # what is stored beside bytes is no payload
        once.emit(**{**JSON, "payload": "null", "key": "other"})
    for again in (lambda named: once.emit(**named), lambda named: once.emit_later(not_before="2100-01-01", **named)):
        with refused("P4051"):
            again({**JSON, "key": "other"})
    assert len(emit.events(db)) == 2


WRONG = [None, "", " ", "order", "a/", "/a", "a" * 256, "text/plain\n", "text/plain\r\nX: y", "a\tb", " text/plain", "text/plain ", "text/pl\u00e4in", "a\x7f"]


@pytest.mark.parametrize("content_type", WRONG)
@pytest.mark.parametrize("size", [1, 9000])
def test_a_content_type_that_no_header_can_hold_is_refused(db, content_type, size):
    with refused("22023") as told:
        Once(db.connect()).emit_bytes(**{**EVENT, "content_type": content_type, "payload": b"x" * size})
    assert "content_type" in told.value.diag.message_hint
    assert emit.events(db) == []


@pytest.mark.parametrize("content_type", ["a/b", "a/" + "b" * 253, "".join(map(chr, range(0x21, 0x7F))), "text/plain; charset=utf-8"])
def test_every_content_type_that_a_header_can_hold_is_taken(db, content_type):
    Once(db.connect()).emit_bytes(**{**EVENT, "content_type": content_type})
    assert db.value("SELECT content_type FROM once.outbox") == content_type


def test_the_bytes_of_an_event_have_the_limit_of_its_scope(db):
    once = Once(db.connect())
    for most in (1_048_576, 8192, 10_000):  # the first is the default
        if most != 1_048_576:
            db.execute("SELECT once.set_scope('orders', event_bytes_max => %s)", most)
        with refused("P4060") as told:
            once.emit_bytes(**{**EVENT, "payload": bytes(most + 1)})
        assert f"payload: {most + 1} bytes, at most {most}" in told.value.diag.message_detail
        once.emit_bytes(**{**EVENT, "payload": bytes(most), "event_type": f"of {most}"})
    assert len(emit.events(db)) == 3


def test_a_relay_is_given_the_bytes_and_their_content_type(db):
    Once(db.connect()).emit_bytes(**EVENT)
    Once(db.connect()).emit(**{**JSON, "key": "other"})
    rows = db.rows(
        "SELECT f.payload::text, f.payload_bytes, f.content_type FROM once.outbox AS o,"
        " once_job.relay_fetch('r', ARRAY[o.id], ARRAY[o.xid], ARRAY[o.day]) AS f ORDER BY o.id"
    )
    assert [(row.payload, row.payload_bytes and bytes(row.payload_bytes), row.content_type) for row in rows] == [
        (None, EVENT["payload"], EVENT["content_type"]),
        ('{"id": 7}', None, None),
    ]


def test_people_see_bytes_as_base64_with_their_length_and_content_type(db):
    event_id = Once(db.connect()).emit_bytes(**{**EVENT, "payload": bytes(range(100))})
    once = Once(db.connect())
    once.finish_new(key="k")
    shown = [db.value("SELECT once.parked_show(%s::text)", event_id), once.story(key="k", tenant="")["events"][0]]
    for event in shown:
        assert (event["payload"], event["payload_bytes"], event["content_type"]) == (None, 100, EVENT["content_type"])
        assert db.value("SELECT decode(%s, 'base64') = %s", event["payload_base64"], bytes(range(100)))
        assert "\n" not in event["payload_base64"]
