# SPDX-License-Identifier: PostgreSQL
"""Payloads that are not JSON, out of each real broker: a handler has every byte and the content type, whoever sent them. SQS takes text alone: what
carried the bytes there is undone, and what cannot be undone is parked."""

import base64
import contextlib

import pika
import pytest

from end_to_end.parts import BROKERS, Job, open_broker, write_config
from harness.postgres import wait_until

from .script import HANDLER, Script, consume, message

ALL = bytes(range(256))
TYPE = "application/x-protobuf"
NAME = "Pgonce-Body-Encoding"


def to_nats(broker, name, payload):
    broker.publish([("order.placed", payload, [("Pgonce-Event-Id", name), ("Content-Type", TYPE)])])


def to_rabbitmq(broker, name, payload):
    broker.publish("orders", [(payload, pika.BasicProperties(content_type=TYPE, headers={"Pgonce-Event-Id": name}))])


def to_kafka(broker, name, payload):
    file = broker.directory / f"{name}.message"
    file.write_bytes(payload)
    broker.kcat("-P", "-t", "orders", "-k", name, "-H", f"Pgonce-Event-Id={name}", "-H", f"Content-TYPE={TYPE}", str(file))


def to_sqs(broker, name, payload, **more):
    sent = {"Pgonce-Event-Id": name, "Content-Type": TYPE, NAME: "base64", **more}
    broker.publish("orders.fifo", [(base64.b64encode(payload).decode(), "g", {key: value for key, value in sent.items() if value is not None})])


PUBLISH = {"nats": to_nats, "rabbitmq": to_rabbitmq, "kafka": to_kafka, "sqs": to_sqs}


@contextlib.contextmanager
def started(kind):
    broker, relay, consumer = open_broker(kind)
    try:
        yield kind, broker, relay, consumer
    finally:
        broker.destroy()


@pytest.fixture(scope="module", params=BROKERS)
def way(request):
    with started(request.param) as way:
        yield way


@pytest.fixture(scope="module")
def sqs():
    with started("sqs") as way:
        yield way


def applied(db):
    rows = db.rows("SELECT payload, headers ->> 'content-type' AS type, body::text FROM applied ORDER BY n")
    return [(bytes(row.payload), row.type, row.body) for row in rows]


def settled(db):
    """Applied or parked."""
    return db.value("SELECT (SELECT count(*) FROM applied) + (SELECT count(*) FROM once.parked_message)")


def run(db, way, directory, count, relays=False, more=()):
    """pgonce relay, until all is sent; pgonce consume, until so many messages are applied or parked. Its log."""
    _, _, relay, consumer = way
    config = write_config(directory, relay, [*consumer, "handler = apply", *more])
    config.write_text(f"dsn = {db.dsn()}\n" + config.read_text())
    config.chmod(0o600)
    if relays:
        Job("relay", config).once()
    job = Job("consume", config)
    job.start()
    try:
        wait_until(lambda: settled(db) >= count or not job.is_running(), "all to be applied or parked")
        job.stop()
    finally:
        job.destroy()
    assert settled(db) == count
    return job.log.read_text(errors="replace")


def test_a_handler_has_each_byte_that_another_producer_sent_and_their_type(db, way, tmp_path):
    db.execute(HANDLER)
    kind, broker, *_ = way
    PUBLISH[kind](broker, "e-1", ALL)
    run(db, way, tmp_path, 1)
    assert applied(db) == [(ALL, TYPE, None)]


def test_each_byte_goes_from_the_outbox_through_each_broker_into_a_bytea(db, way, tmp_path):
    db.execute(HANDLER)
    db.execute("SELECT once.emit_bytes('order.placed', %s, %s, 'order', '1')", ALL, TYPE)
    db.execute("SELECT once.emit('order.placed', '{\"n\": 1}', 'order', '1')")
    expected = [(ALL, TYPE, None), (b'{"n": 1}', None if way[0] == "sqs" else "application/json", '{"n": 1}')]
    if way[0] != "sqs":  # which takes no empty body
        db.execute("SELECT once.emit_bytes('order.placed', '', 'a/b; c=d', 'order', '1')")
        expected.append((b"", "a/b; c=d", None))
    run(db, way, tmp_path, len(expected), relays=True)
    assert applied(db) == expected


BAD = {
    "no base64": ("{}", "base64", "says base64, but its body is not base64"),
    "without its padding": ("AP8", "base64", "says base64, but its body is not base64"),
    "in lines": ("AP8A\nAP8A", "base64", "says base64, but its body is not base64"),
    "padded within": ("AP==AP8A", "base64", "says base64, but its body is not base64"),
    "padding alone": ("====", "base64", "says base64, but its body is not base64"),
    "another encoding": ("AP8A", "rot13", "names an encoding that is not known here"),
}


def test_a_body_that_cannot_be_decoded_is_parked_as_it_came_and_its_id_is_not_used_up(db, sqs, tmp_path):
    db.execute(HANDLER)
    _, broker, *_ = sqs
    broker.publish("orders.fifo", [(body, "g", {"Pgonce-Event-Id": f"bad {name}", NAME: encoding}) for name, (body, encoding, _) in BAD.items()])
    to_sqs(broker, "good", ALL)
    log = run(db, sqs, tmp_path, len(BAD) + 1, more=["order_by = none"])
    assert applied(db) == [(ALL, TYPE, None)]
    assert broker.counts("orders.fifo") == (0, 0)
    rows = db.rows("SELECT * FROM once.parked_message ORDER BY headers ->> 'Pgonce-Event-Id'")
    assert [(row.headers["Pgonce-Event-Id"], bytes(row.payload).decode(), row.headers[NAME]) for row in rows] == [
        (f"bad {name}", *BAD[name][:2]) for name in sorted(BAD)
    ]
    for row in rows:
        assert (row.state, row.sqlstate) == ("dead", "22P03") and row.message_id.startswith("pgonce:unusable:")
        assert "payload cannot be decoded" in row.error and BAD[row.headers["Pgonce-Event-Id"][4:]][2] in row.error, row.error
    assert log.count("sqlstate=22P03") == len(BAD)
    # Sent as it should have been, it is applied: the id is not used up.
    to_sqs(broker, "bad no base64", b"\x00mended")
    run(db, sqs, tmp_path, len(BAD) + 2, more=["order_by = none"])
    assert applied(db)[1:] == [(b"\x00mended", TYPE, None)]


# ---- whatever the broker


def test_the_same_id_with_other_bytes_is_refused_and_with_the_same_bytes_is_a_duplicate(db):
    db.execute(HANDLER)
    first, other = ALL, ALL[:-1] + b"\x00"
    with Script([message(1, payload=first), message(1, payload=first, headers={"Content-Type": "text/plain"}), message(1, payload=other)]) as script:
        consume(script, db.dsn())
    assert [payload for payload, *_ in applied(db)] == [first]
    row = db.row("SELECT state, sqlstate, payload FROM once.parked_message")
    assert (row.state, row.sqlstate, bytes(row.payload)) == ("dead", "P4050", other)


@pytest.mark.parametrize("payload, body", [
    (b"", None), (b"\x00", None), (b"\xff\xfe", None), (b'{"a": "\\u0000"}', None), (b"{", None), (b"7", "7"), (b"null", "null"), (b'{"a":1}', '{"a": 1}'),
], ids=ascii)
def test_a_body_is_json_where_the_bytes_are_whatever_their_type_and_null_where_they_are_not(db, payload, body):
    db.execute(HANDLER)
    with Script([message(1, payload=payload, headers={"Content-Type": TYPE})]) as script:
        consume(script, db.dsn())
    assert applied(db) == [(payload, TYPE, body)]


@pytest.mark.parametrize("name", ["content-type", "Content-Type", "CONTENT-TYPE"])
def test_the_content_type_has_one_name_however_the_broker_writes_it(db, name):
    db.execute(HANDLER)
    with Script([message(1, payload=b"\x01", headers={name: TYPE, "Other-Name": "1"})]) as script:
        consume(script, db.dsn())
    assert db.value("SELECT headers FROM applied") == {"content-type": TYPE, "Other-Name": "1", "Pgonce-Event-Id": "id-1"}


def test_parked_bytes_are_the_same_when_they_are_tried_again(db):
    db.execute(HANDLER)
    db.execute("""CREATE FUNCTION flaky(m once.message) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM once.parked_message WHERE message_id = m.id) THEN
        RAISE 'not yet';
    END IF;
    PERFORM apply(m);
END $$""")
    with Script([message(1, payload=ALL, headers={"Content-Type": TYPE})]) as script:
        consume(script, db.dsn(), until=lambda: applied(db), handler="flaky", retry_first="1ms", retry_most="10ms")
    assert applied(db) == [(ALL, TYPE, None)]
