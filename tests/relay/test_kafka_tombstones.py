# SPDX-License-Identifier: PostgreSQL
"""Events that delete: JSON's null as a record without a value, by which a compacted topic forgets the key; and what a consumer makes of it."""

import contextlib
import subprocess

import pytest

from harness import kafka as kafka_harness
from harness.kafka import Kafka
from harness.postgres import PATIENCE_S, clean_environment, tied, wait_until

from .running import PROGRAM, Relay, passed_all

COMPACTS = "log.cleaner.enable=true\nlog.cleaner.dedupe.buffer.size=4000000\nlog.cleaner.backoff.ms=100"


@pytest.fixture(scope="module")
def kafka():
    kafka_harness.require()
    with Kafka(more=COMPACTS) as broker:
        yield broker


def emit(db, aggregate, payload):
    db.execute("SELECT once.emit('t', %s::jsonb, 'customer', %s)", payload, aggregate)


def values_in(kafka, topic):
    return [(message["key"], message["payload"]) for message in kafka.messages(topic)]


def relay_to(kafka, db, tmp_path, topic, **options):
    return Relay(tmp_path, db.dsn(), topic, sink="kafka", url=f"kafka://{kafka.servers}", route=f"* -> {topic}", **options)


def through(relay, db):
    relay.until_true(lambda: passed_all(db, relay.name), "the relay to be through")


@contextlib.contextmanager
def consuming(config, log):
    with open(log, "wb") as said:
        process = subprocess.Popen(tied([PROGRAM, "consume", "--config", config]), stdin=subprocess.DEVNULL, stdout=said, stderr=said,
                                   env=clean_environment())
    try:
        yield
        process.terminate()
        assert process.wait(PATIENCE_S) == 0, log.read_text()[-3000:]
    finally:
        process.kill()
        process.wait(PATIENCE_S)


def test_a_compacted_topic_forgets_the_key_of_a_tombstone(kafka, db, tmp_path):
    kafka.create_topic("state", cleanup_policy="compact", segment_ms=100, min_cleanable_dirty_ratio=0.01, delete_retention_ms=0)
    with relay_to(kafka, db, tmp_path, "state", null_payload="tombstone") as relay:
        for name in ("gone", "kept"):
            emit(db, name, '{"name": "x"}')
        emit(db, "gone", "null")
        through(relay, db)
        def forgotten():
            emit(db, "filler", '{"n": 1}')  # the segment that is written to is never compacted: a later record closes it
            through(relay, db)
            return "gone" not in [key for key, value in values_in(kafka, "state") if value is not None]

        wait_until(forgotten, "the compaction", 3 * PATIENCE_S)
        assert relay.stop() == 0
    assert dict(values_in(kafka, "state"))["kept"] == '{"name": "x"}'


@pytest.mark.parametrize("null_payload", ["json", "tombstone"])
def test_only_null_itself_is_a_tombstone_and_only_where_it_is_asked_for(kafka, db, tmp_path, null_payload):
    topic = f"only-{null_payload}"
    kafka.create_topic(topic)
    for payload in ("null", '"null"', "[null]", "{}", '""', "0"):
        emit(db, "a", payload)
    with relay_to(kafka, db, tmp_path, topic, null_payload=null_payload) as relay:
        relay.until_true(lambda: len(kafka.messages(topic)) == 6, "the events")
        assert relay.stop() == 0
    assert values_in(kafka, topic) == [("a", each) for each in (
        None if null_payload == "tombstone" else "null", '"null"', "[null]", "{}", '""', "0")]
    messages = kafka.messages(topic)
    assert ("content-type" in messages[0]["headers"]) == (null_payload == "json") and "content-type" in messages[1]["headers"]
    assert {message["headers"]["Pgonce-Key"] for message in messages} == {"a"}


def test_a_missing_payload_is_refused_and_deletes_nothing(db):
    with pytest.raises(Exception, match="needs a topic and a payload"):
        db.execute("SELECT once.emit('t', NULL, 'customer', '1')")


def test_a_consumers_handler_has_no_payload_of_a_tombstone_also_when_it_was_parked(kafka, db, tmp_path):
    kafka.create_topic("consumed")
    kafka.create_topic("dead")
    db.execute("""CREATE TABLE seen (n bigserial, id text, key text, payload bytea, body jsonb);
        CREATE SEQUENCE tries;
        CREATE FUNCTION seen(m once.message) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
            IF (m).payload IS NULL AND ((m).key = 'hopeless' OR nextval('tries') < 3) THEN RAISE 'not yet'; END IF;
            INSERT INTO seen (id, key, payload, body) VALUES ((m).id, (m).key, (m).payload, (m).body); END $$""")
    emit(db, "7", "null")
    emit(db, "hopeless", "null")
    emit(db, "8", "{}")
    with relay_to(kafka, db, tmp_path, "consumed", null_payload="tombstone") as relay:
        relay.until_true(lambda: len(kafka.messages("consumed")) == 3, "the events")
        assert relay.stop() == 0
    config = tmp_path / "consume.conf"
    config.write_text(f"dsn = {db.dsn()}\n[consume c]\nsource = kafka\nurl = kafka://{kafka.servers}\ntopics = consumed\nhandler = public.seen\n"
                      "kafka.auto.offset.reset = earliest\nattempts = 4\nretry_first = 10ms\nretry_most = 20ms\ndead_topic = dead\n")
    with consuming(config, tmp_path / "consume.log"):
        wait_until(lambda: db.value("SELECT count(*) FROM seen") == 2, "the messages", 3 * PATIENCE_S)
        wait_until(lambda: len(kafka.messages("dead")) == 1, "the copy", 3 * PATIENCE_S)
    rows = db.rows("SELECT key, payload IS NULL AS no_payload, body IS NULL AS no_body FROM seen ORDER BY key")
    assert [tuple(row) for row in rows] == [("7", True, True), ("8", False, False)]
    assert values_in(kafka, "dead") == [("hopeless", None)]
