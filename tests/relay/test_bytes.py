# SPDX-License-Identifier: PostgreSQL
"""Events whose payload is bytes (once.emit_bytes): published as they are with their content type, at every broker; as base64 where it takes text alone."""

import base64
import json
import re

import pytest

from harness import aws, elasticmq
from harness import kafka as kafka_harness
from harness.elasticmq import ElasticMq, headers
from harness.kafka import Kafka
from harness.nats import Nats
from harness.rabbitmq import RabbitMQ
from harness.webhook import Webhook

from .running import Relay, parked, passed_all, webhook
from .test_sink_sns import TOPIC, Topics
from .test_webhook import SECRET, verify

TYPE = 'application/x-protobuf; messageType="shop.Order"'
ALL = bytes(range(256))
LARGE = ALL * 3600  # 900 kB: what the brokers take by default
MOST = ALL * 4096  # the default of event_bytes_max
SMALL = [ALL, b"\0", b"\0" * 1000, b"\xff\xfe\r\n\x1a", b"null", b'{"n": 1}']
PAYLOADS = [*SMALL, b"", LARGE]


def emit(db, payloads, content_type=TYPE, aggregate="7"):
    for payload in payloads:
        db.execute("SELECT once.emit_bytes('t', %s, %s, 'order', %s)", payload, content_type, aggregate)


def publish(db, tmp_path, **options):
    with Relay(tmp_path, db.dsn(), attempts=1, **options) as relay:
        relay.until_true(lambda: passed_all(db) and all(event.state == "dead" for event in parked(db)), "the relay to be through")
        assert relay.stop() == 0
    assert [event.error for event in parked(db)] == []


@pytest.fixture(scope="module")
def rabbitmq():
    with RabbitMQ() as broker:
        yield broker


@pytest.fixture(scope="module")
def sqs():
    elasticmq.require()
    with ElasticMq() as server, aws.Door(server.port) as server.door:
        yield server


@pytest.mark.parametrize("envelope", ["plain", "cloudevents"])
def test_nats_has_the_bytes_with_content_type(db, tmp_path, envelope):
    emit(db, PAYLOADS)
    with Nats() as nats:
        nats.add_stream("ALL", "t")
        publish(db, tmp_path, sink="nats", url=nats.url, envelope=envelope)
        arrived = nats.messages("ALL")
    assert [message.data for message in arrived] == PAYLOADS
    assert {message.header("Content-Type") for message in arrived} == {TYPE}


def test_rabbitmq_has_the_bytes_with_the_property_content_type(db, tmp_path, rabbitmq):
    emit(db, [*PAYLOADS, MOST])
    rabbitmq.declare("all")
    publish(db, tmp_path, sink="rabbitmq", url=rabbitmq.url, route="* -> all")
    arrived = rabbitmq.take("all")
    assert [body for _, _, body in arrived] == [*PAYLOADS, MOST]
    assert {properties.content_type for _, properties, _ in arrived} == {TYPE}


def kafka_values(kafka, count):
    """As bytes: kcat writes each value's length before it."""
    said = kafka.kcat("-C", "-t", "t", "-o", "beginning", "-e", "-q", "-f", "%S %h\\n%s").stdout
    found = []
    while said:
        head, said = said.split(b"\n", 1)
        length, names = head.split(b" ", 1)
        size = max(int(length), 0)
        found.append((None if int(length) < 0 else said[:size], names.decode()))
        said = said[size:]
    assert len(found) == count
    return found


def test_kafka_has_the_bytes_with_the_header_content_type_and_null_is_no_tombstone(db, tmp_path):
    kafka_harness.require()
    emit(db, PAYLOADS)
    db.execute("SELECT once.emit('t', 'null', 'order', '7')")
    with Kafka() as kafka:
        kafka.create_topic("t")
        publish(db, tmp_path, sink="kafka", url=f"kafka://{kafka.servers}", null_payload="tombstone")
        arrived = kafka_values(kafka, len(PAYLOADS) + 1)
    assert [value for value, _ in arrived] == [*PAYLOADS, None]
    assert all(names.startswith(f"content-type={TYPE},") for _, names in arrived[:-1])


def test_a_webhook_has_the_bytes_with_content_type_and_the_signature_is_of_the_bytes(db, tmp_path):
    emit(db, [*PAYLOADS, MOST])
    with Webhook() as endpoint:
        publish(db, tmp_path, **webhook(endpoint, secret=SECRET))
        seen = endpoint.requests
    assert [request.body for request in seen] == [*PAYLOADS, MOST]
    for request in seen:
        assert request.header("Content-Type") == TYPE and request.header("Content-Length") == str(len(request.body))
        assert verify(SECRET, request)


def test_standard_output_has_base64_and_the_content_type(db, tmp_path):
    emit(db, [*PAYLOADS, MOST])
    db.execute("SELECT once.emit('t', '{\"n\": 1}')")
    publish(db, tmp_path)
    *lines, last = sorted((json.loads(line) for line in (tmp_path / "r.out").read_text().splitlines()), key=lambda line: "payload" in line)
    assert [base64.b64decode(line["payload_base64"], validate=True) for line in lines] == [*PAYLOADS, MOST]
    assert {line["content_type"] for line in lines} == {TYPE} and not any("payload" in line for line in lines)
    assert last["payload"] == {"n": 1} and not {"payload_base64", "content_type"} & set(last)


TEXT_ALONE = [*SMALL, ALL * 700]  # 175 kB: of 256 kB as base64


@pytest.fixture
def credentials(monkeypatch):
    for name, value in aws.environment().items():
        monkeypatch.setenv(name, value)


def is_base64(found, payloads):
    """found: (body, attributes) each."""
    assert [base64.b64decode(body, validate=True) for body, _ in found] == payloads
    assert all((attributes["Pgonce-Body-Encoding"], attributes["content-type"]) == ("base64", TYPE) for _, attributes in found)


def test_sqs_has_base64_and_says_so(db, tmp_path, credentials, sqs):
    emit(db, TEXT_ALONE)
    db.execute("SELECT once.emit('t', '{\"n\": 1}', 'order', '7')")
    sqs.declare("t.fifo")
    publish(db, tmp_path, sink="sqs", url=sqs.door.url, route="* -> {topic}.fifo")
    *arrived, last = sqs.take("t.fifo")
    is_base64([(message["Body"], headers(message)) for message in arrived], TEXT_ALONE)
    assert last["Body"] == '{"n": 1}' and not {"Pgonce-Body-Encoding", "content-type"} & set(headers(last))


def test_more_headers_than_sqs_has_attributes_leave_those_of_the_body_in_their_place(db, tmp_path, credentials, sqs):
    own = {f"X-{n}": str(n) for n in range(12)}
    db.execute("SELECT once.emit_bytes('t', %s, %s, headers => %s)", ALL, TYPE, json.dumps(own))
    sqs.declare("crowded")
    publish(db, tmp_path, sink="sqs", url=sqs.door.url, route="* -> crowded")
    (message,) = sqs.take("crowded")
    is_base64([(message["Body"], headers(message))], [ALL])
    assert own.items() <= (json.loads(headers(message)["Pgonce-Headers"]) | headers(message)).items()


def test_sns_has_base64_and_says_so(db, tmp_path, credentials):
    topics = Topics()
    emit(db, TEXT_ALONE)
    with aws.Door(topics, service="sns") as topics.door:
        publish(db, tmp_path, sink="sns", url=topics.door.url, route=f"* -> {TOPIC}.fifo")
    is_base64([(entry["Message"], attributes_of(entry)) for entry in topics.published], TEXT_ALONE)


def attributes_of(entry):
    found = {}
    for number in range(1, 11):
        prefix = f"MessageAttributes.entry.{number}."
        if prefix + "Name" in entry:
            found[entry[prefix + "Name"]] = entry[prefix + "Value.StringValue"]
    return found


def test_an_empty_payload_and_one_that_is_too_large_as_base64_are_refused_by_sqs_with_the_reason(db, tmp_path, credentials, sqs):
    emit(db, [b""], aggregate="1")
    emit(db, [bytes(800_000)], aggregate="2")
    sqs.declare("t")
    with Relay(tmp_path, db.dsn(), sink="sqs", url=sqs.door.url, attempts=1) as relay:
        relay.until_true(lambda: passed_all(db), "the relay to be through")
        assert relay.stop() == 0
    empty, large = parked(db)
    assert "an empty payload" in empty.error and re.match("106[67]... bytes .* at most", large.error)


def test_a_dead_events_copy_is_the_bytes_with_their_content_type(db, tmp_path, rabbitmq):
    emit(db, [ALL])
    rabbitmq.declare("graves")
    with Relay(tmp_path, db.dsn(), attempts=1, sink="rabbitmq", url=rabbitmq.url, route="* -> nowhere", dead_topic="graves") as relay:
        relay.until_true(lambda: rabbitmq.count("graves") == 1, "the copy")
        assert relay.stop() == 0
    ((_, properties, body),) = rabbitmq.take("graves")
    assert (body, properties.content_type) == (ALL, TYPE)


def test_a_dead_events_copy_without_its_bytes_is_json_and_says_nothing_of_base64(db, tmp_path, credentials, sqs):
    emit(db, [bytes(800_000)])
    sqs.declare("few")
    with Relay(tmp_path, db.dsn(), attempts=1, sink="sqs", url=sqs.door.url, route="* -> nowhere", dead_topic="few") as relay:
        relay.until_true(lambda: sqs.counts("few") == (1, 0), "the copy")
        assert relay.stop() == 0
    (copy,) = sqs.take("few")
    told = json.loads(headers(copy).get("Pgonce-Headers", "{}")) | headers(copy)
    assert (copy["Body"], told["Pgonce-Dead-Payload-Bytes"]) == ("null", "800000") and not {"Pgonce-Body-Encoding", "content-type"} & set(told)


def test_a_parked_event_is_sent_again_as_the_same_bytes(db, tmp_path, rabbitmq):
    emit(db, [ALL, b"second"])
    with Relay(tmp_path, db.dsn(), attempts=1000, retry_first="20ms", retry_most="500ms", sink="rabbitmq", url=rabbitmq.url, route="* -> late") as relay:
        relay.until_true(lambda: any(event.attempts > 0 for event in parked(db)), "a failed attempt")
        rabbitmq.declare("late")
        relay.until_true(lambda: rabbitmq.count("late") == 2, "the events")
        assert relay.stop() == 0
    arrived = rabbitmq.take("late")
    assert [(body, properties.content_type) for _, properties, body in arrived] == [(ALL, TYPE), (b"second", TYPE)]


def test_bytes_that_were_written_by_hand_without_a_content_type_are_octets(db, tmp_path):
    db.execute(
        "INSERT INTO once.outbox (day, created_at, event_id, topic, event_type, tenant, payload, payload_bytes) SELECT"
        " floor(date_part('epoch', now()) / 86400), now(), gen_random_uuid(), 't', 't', '', '1', 'x'"
    )
    publish(db, tmp_path)
    assert json.loads((tmp_path / "r.out").read_text())["content_type"] == "application/octet-stream"
