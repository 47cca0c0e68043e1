# SPDX-License-Identifier: PostgreSQL
"""What a Kafka record's key is and which partition it goes to: as the relay's section says, and by default as Java's producer has it."""

import subprocess

import pytest

from harness import kafka as kafka_harness
from harness.kafka import Kafka
from harness.postgres import PATIENCE_S, clean_environment

from .running import PROGRAM, Relay, passed_all

# Of which other clients differ from Java: librdkafka's default, and versions of others that were meant to be compatible.
REPORTED = {"fd7af248-ce5c-46a5-93d7-1c0c9005b99d": (32, 26), "TT0124": (15, 10)}
IDS = ["1", "22", "333", "größe", "a-little-bit-long-string", "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", "f\U0001f600", *REPORTED]


@pytest.fixture(scope="module")
def kafka():
    kafka_harness.require()
    with Kafka() as broker:
        yield broker


def emit(db, aggregate, tenant="", headers=None, number=0):
    return db.value("""SELECT once.emit('t', jsonb_build_object('n', %s::integer), 'order', %s, headers => %s::jsonb, tenant => %s)::text""",
                    number, aggregate, headers, tenant)


def relayed(kafka, db, tmp_path, topic, partitions=12, **options):
    """What the relay has sent."""
    kafka.create_topic(topic, partitions)
    with Relay(tmp_path, db.dsn(), topic, sink="kafka", url=f"kafka://{kafka.servers}", route=f"* -> {topic}", **options) as relay:
        waiting = "SELECT count(*) FROM once.parked_event WHERE relay = %s AND state <> 'dead'"
        relay.until_true(lambda: passed_all(db, topic) and db.value(waiting, topic) == 0, "the relay to be through")
        assert relay.stop() == 0
    return kafka.messages(topic)


def places(messages):
    found = {}
    for message in messages:
        found.setdefault(message["key"], set()).add(message["partition"])
    return found


def test_a_key_goes_to_the_partition_that_javas_producer_takes(kafka, db, tmp_path):
    for each in IDS:
        emit(db, each)
    ours = places(relayed(kafka, db, tmp_path, "ours"))
    kafka.create_topic("java", 12)
    words = kafka.java("kafka.tools.ConsoleProducer", "--bootstrap-server", kafka.servers, "--topic", "java", "--property", "parse.key=true",
                       "--property", "key.separator=,")
    done = subprocess.run(words, input="".join(f"{each},x\n" for each in IDS), capture_output=True, text=True, check=False,
                          timeout=PATIENCE_S, env=clean_environment() | {"LC_ALL": "C.UTF-8"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert ours == places(kafka.messages("java"))
    assert {len(found) for found in ours.values()} == {1}


@pytest.mark.parametrize("key", REPORTED)
def test_keys_of_public_reports_go_where_java_had_them(kafka, db, tmp_path, key):
    count, partition = REPORTED[key]
    emit(db, key)
    message, = relayed(kafka, db, tmp_path, f"reported-{count}", count)
    assert (message["key"], message["partition"]) == (key, partition)


def test_another_partitioner_may_be_chosen(kafka, db, tmp_path):
    for each in IDS:
        emit(db, each)
    crc = places(relayed(kafka, db, tmp_path, "crc", **{"kafka.partitioner": "consistent_random"}))
    assert crc != places(relayed(kafka, db, tmp_path, "murmur"))


@pytest.mark.parametrize("choice", ["aggregate", "tenant", "event", "header:Region", "none"])
def test_the_key_is_what_the_section_says(kafka, db, tmp_path, choice):
    headers = ('{"region": "eu"}', '{"region": "us"}', None)
    ids = [emit(db, str(n % 4), tenant=("", "t1", "t2")[n % 3], headers=headers[n % 3], number=n) for n in range(24)]
    messages = relayed(kafka, db, tmp_path, "by-" + choice.replace(":", "-"), key=choice)
    expected = {
        "aggregate": lambda n: str(n % 4), "tenant": lambda n: (None, "t1", "t2")[n % 3], "event": lambda n: ids[n],
        "header:Region": lambda n: ("eu", "us", None)[n % 3], "none": lambda n: None,
    }[choice]
    numbers = {int(message["payload"].split(":")[1].strip(" }")): message for message in messages}
    assert len(numbers) == 24 == len(messages)
    for number, message in numbers.items():
        assert message["key"] == expected(number), message
        assert message["headers"]["Pgonce-Key"] == str(number % 4)
    for key, found in places(messages).items():
        assert key is None or len(found) == 1, f"{key} is in the partitions {found}"


def test_by_tenant_each_aggregate_keeps_its_order(kafka, db, tmp_path):
    for n in range(60):
        emit(db, str(n % 5), tenant=f"t{n % 3}", number=n)
    found = {}
    for message in relayed(kafka, db, tmp_path, "tenants", key="tenant"):
        found.setdefault((message["key"], message["headers"]["Pgonce-Key"]), []).append(
            (message["partition"], message["offset"], int(message["payload"].split(":")[1].strip(" }"))))
    assert len(found) == 15
    for line in found.values():
        assert len({partition for partition, _, _ in line}) == 1
        assert [number for _, _, number in sorted(line)] == sorted(number for _, _, number in line)


@pytest.mark.parametrize("fence", ["none", "broker"])
def test_a_header_names_the_partition_and_one_that_names_none_is_the_events_fault(kafka, db, tmp_path, fence):
    topic = f"placed-{fence}"
    for n in range(6):
        emit(db, "same", headers=f'{{"Partition": {n % 3}}}', number=n)
    emit(db, "same", number=6)
    wrong = {emit(db, f"wrong{n}", headers=f'{{"partition": {value}}}') for n, value in enumerate(('3', '"x"', '-1', '""', '"1 "', '99999999999'))}
    messages = relayed(kafka, db, tmp_path, topic, 3, partition_header="partition", attempts=1, on_dead="skip", fence=fence)
    assert {(message["headers"].get("Partition"), message["partition"]) for message in messages if "Partition" in message["headers"]} == {
        ("0", 0), ("1", 1), ("2", 2)}
    assert len(messages) == 7
    dead = dict(db.rows("SELECT event_id::text, error FROM once.parked_event WHERE relay = %s", topic))
    assert set(dead) == wrong
    assert {"partition" in error for error in dead.values()} == {True}, dead


def test_check_config_says_which_choice_loses_the_order_and_refuses_what_is_none(tmp_path):
    def checked(**options):
        path = tmp_path / "checked.conf"
        path.write_text("[relay r]\nsink = kafka\nurl = kafka://h\n" + "".join(f"{name} = {value}\n" for name, value in options.items()))
        done = subprocess.run([PROGRAM, "relay", "--config", path, "--check-config"], capture_output=True, text=True, check=False,
                              timeout=PATIENCE_S, env=clean_environment())
        return done.returncode, done.stdout + done.stderr

    for right in ({}, {"key": "aggregate"}, {"key": "tenant"}):
        status, said = checked(**right)
        assert status == 0 and "order" not in said, said
    for risky in ({"key": "event"}, {"key": "none"}, {"key": "header:region"}, {"partition_header": "p"}):
        status, said = checked(**risky)
        assert status == 0 and "lose their order" in said, said
    for wrong in ('""', "header:", "header", "aggregates", "Tenant"):
        status, said = checked(key=wrong)
        assert status != 0 and "header:NAME" in said, said
