# SPDX-License-Identifier: PostgreSQL
"""The time of Kafka's records, by which a topic's retention deletes: events that waited for the relay longer than that are kept."""

import pytest

from harness import kafka as kafka_harness
from harness.kafka import Kafka

from .running import Relay, emit, passed_all

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def kafka():
    kafka_harness.require()
    with Kafka(more="log.retention.check.interval.ms=100\nlog.initial.task.delay.ms=0") as broker:
        yield broker


def times_in(kafka, topic):
    return [message["ts"] for message in kafka.messages(topic)]


def test_an_event_of_yesterday_outlives_a_retention_of_an_hour_unless_its_own_time_is_asked_for(kafka, db, tmp_path):
    for topic in ("emitted", "kept"):
        kafka.create_topic(topic, retention_ms=HOUR_MS)
    emit(db.connect(), 3)
    db.execute("UPDATE once.outbox SET created_at = created_at - interval '1 day'")
    created_ms = db.value("SELECT floor(extract(epoch FROM min(created_at)) * 1000)::bigint FROM once.outbox")
    options = {"sink": "kafka", "url": f"kafka://{kafka.servers}"}
    for name, more in (("kept", {}), ("emitted", {"time": "emitted"})):
        with Relay(tmp_path, db.dsn(), name, route=f"* -> {name}", **options, **more) as relay:
            relay.until_true(lambda: passed_all(db, relay.name), "the relay to be through")
            if name == "emitted":
                relay.until_true(lambda: times_in(kafka, "emitted") == [], "Kafka to delete what is older than an hour")
            assert relay.stop() == 0
    kept = kafka.messages("kept")
    assert len(kept) == 3 and all(message["ts"] - created_ms > HOUR_MS for message in kept)


def test_the_time_of_emission_is_the_records_where_it_is_asked_for(kafka, db, tmp_path):
    kafka.create_topic("long", retention_ms=7 * 24 * HOUR_MS)
    emit(db.connect(), 1)
    db.execute("UPDATE once.outbox SET created_at = created_at - interval '1 day'")
    created_ms = db.value("SELECT floor(extract(epoch FROM created_at) * 1000)::bigint FROM once.outbox")
    with Relay(tmp_path, db.dsn(), "own", sink="kafka", url=f"kafka://{kafka.servers}", route="* -> long", time="emitted") as relay:
        relay.until_true(lambda: passed_all(db, relay.name), "the relay to be through")
        assert relay.stop() == 0
    assert times_in(kafka, "long") == [created_ms]
