# SPDX-License-Identifier: PostgreSQL
"""A broker that takes or refuses batches: no event is blamed for its neighbours. Real Kafka, with the relay before it."""

import pytest

from harness import kafka as kafka_harness
from harness.kafka import Kafka

from .running import Relay, by_key, passed_all

EVENTS, AGGREGATES, BODY_BYTES, TOPIC_BYTES = 6000, 750, 5000, 20000
FEW = 400
BODY = f"jsonb_build_object('n', i, 'rest', repeat('x', {BODY_BYTES}))"


@pytest.fixture(scope="module")
def kafka():
    kafka_harness.require()
    with Kafka() as broker:
        yield broker


def arrived(kafka, topic):
    return [(message["key"], int(message["headers"]["n"])) for message in kafka.messages(topic)]


def emit_numbered(db, topic, count, first=0, body=BODY):
    db.execute(f"""SELECT once.emit('{topic}', {body}, 'order', (i % {AGGREGATES})::text, headers => jsonb_build_object('n', i::text))
                     FROM generate_series({first}, {first + count - 1}) AS i""")


def left(db):
    return db.rows("SELECT state, attempts FROM once.parked_event ORDER BY id")


def relay_to(kafka, db, tmp_path, **options):
    return Relay(tmp_path, db.dsn(), sink="kafka", url=f"kafka://{kafka.servers}", retry_first="50ms", attempts=3, **options)


@pytest.mark.parametrize("fence, count", [("none", EVENTS), ("broker", EVENTS // 10)])
def test_events_that_are_too_many_for_the_topics_batch_and_none_too_large_all_arrive_in_order(kafka, db, tmp_path, fence, count):
    topic = f"short-batches-{fence}"
    kafka.create_topic(topic, 3, max_message_bytes=TOPIC_BYTES)
    emit_numbered(db, topic, count)
    with relay_to(kafka, db, tmp_path, fence=fence) as relay:
        relay.until_true(lambda: passed_all(db) and not left(db), "all to be delivered")
        assert relay.stop() == 0
    assert relay.log("stopped")[-1]["refused"] == "0" and relay.log("sink-refused"), "the topic refused nothing: this shows nothing"
    found = arrived(kafka, topic)
    assert {number for _, number in found} == set(range(count)) and len(found) == count
    for numbers in by_key(found).values():
        assert numbers == sorted(numbers)


@pytest.mark.parametrize("fence", ["none", "broker"])
def test_an_event_that_is_too_large_dies_alone_after_its_attempts(kafka, db, tmp_path, fence):
    topic = f"one-too-large-{fence}"
    kafka.create_topic(topic, max_message_bytes=TOPIC_BYTES)
    emit_numbered(db, topic, FEW)
    emit_numbered(db, topic, 1, FEW, f"jsonb_build_object('rest', repeat('x', {TOPIC_BYTES}))")
    emit_numbered(db, topic, FEW, FEW + 1)
    with relay_to(kafka, db, tmp_path, fence=fence) as relay:
        relay.until_true(lambda: passed_all(db) and left(db) == [("dead", 3)], "one to be dead, and the others to be delivered")
        assert relay.stop() == 0
    assert relay.log("stopped")[-1]["refused"] == "3"
    assert sorted(number for _, number in arrived(kafka, topic)) == [*range(FEW), *range(FEW + 1, 2 * FEW + 1)]
