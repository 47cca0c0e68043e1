# SPDX-License-Identifier: PostgreSQL
"""A relay is stopped in the midst of its work, its session ends, another takes over, and the first one wakes up, as a machine that was paused does: it
sends nothing any more of what it had in its hands."""

import os
import re
import signal
import subprocess

import pytest

from harness import kafka
from harness.nats import Nats
from harness.postgres import clean_environment, tied, wait_until
from harness.rabbitmq import RabbitMQ
from harness.webhook import Webhook

from .running import PROGRAM, Relay, emit, passed_all, webhook

@pytest.fixture(scope="module")
def rabbitmq():
    with RabbitMQ() as broker:
        broker.declare("orders", "shop", ["order.*"])
        yield broker


MANY = {"one aggregate": (2000, "'a'"), "many": (12_000, "(i % 500)::text")}


@pytest.fixture(params=MANY)
def emitted(db, request):
    """More than are delivered until the first is stopped."""
    count, aggregate = MANY[request.param]
    emit(db.connect(), count, aggregate=aggregate)


@pytest.fixture
def pair(db, tmp_path):
    """Makes the relays of two processes, by the options of each."""
    made = []

    def make(name, **options):
        (tmp_path / name).mkdir()
        made.append(Relay(tmp_path / name, db.dsn(), **options))
        return made[-1]

    yield make
    for relay in made:
        if relay.process is not None and relay.process.poll() is None:
            relay.process.kill()
            relay.wait()


def pause(relay):
    relay.process.send_signal(signal.SIGSTOP)
    threads = f"/proc/{relay.process.pid}/task"
    wait_until(lambda: all(open(f"{threads}/{each}/stat", encoding="utf-8").read().rpartition(")")[2].split()[0] == "T"
                           for each in os.listdir(threads)), "the process to stop")


def end_session(db):
    """Of the one that holds the relay's lock."""
    assert db.rows("SELECT pg_terminate_backend(l.pid) FROM pg_locks AS l WHERE l.locktype = 'advisory' AND l.granted"
                   " AND (l.classid::bigint << 32 | l.objid::bigint) = once._relay_lock('r')")


def hand_over(db, first, second):
    """The first works for a while; the second does all the rest while the first is paused; then that is woken, and stands by. A busy machine may
    stop the first only when it is through: so that the second has some in any case, some more come meanwhile."""
    first.start().until("active")
    second.start().until("standby")
    first.until_true(lambda: db.value("SELECT after_id > 0 FROM once.relay"), "the first to be in the middle")
    pause(first)
    emit(db.connect(), 100, aggregate="'a'")
    end_session(db)
    second.until("took_over")
    second.until_true(lambda: passed_all(db), "the second to do the rest")
    first.process.send_signal(signal.SIGCONT)
    first.until("standby")


def assert_first_came_before_second(sources, but_for=0):
    assert {"first", "second"} == set(sources), "the first was stopped too early"
    taken_over = sources.index("second")
    late = sources[taken_over:].count("first")
    assert late <= but_for, f"{late} old events came after {taken_over} events"


@pytest.mark.usefixtures("emitted")
def test_a_webhook_gets_nothing_from_a_relay_that_slept_through_a_takeover(db, pair):
    with Webhook() as endpoint:
        first, second = (pair(name, **webhook(endpoint, header=f"X-From: {name}")) for name in ("first", "second"))
        hand_over(db, first, second)
        assert_first_came_before_second([request.header("X-From") for request in endpoint.seen()])


@pytest.mark.parametrize("count, aggregate", MANY.values(), ids=MANY)
def test_a_stream_of_nats_gets_no_more_than_the_client_was_putting_together(db, pair, count, aggregate):
    """Of messages of 8 kB those are a few: it collects 32 kB."""
    emit(db.connect(), count // 2, aggregate=aggregate, payload="jsonb_build_object('n', i, 'x', repeat('x', 8000))")
    with Nats() as nats:
        nats.add_stream("SHOP", "order.>", duplicate_window=100_000_000)  # ns: NATS itself shall drop nothing of it
        first, second = (pair(name, sink="nats", url=nats.url, envelope="cloudevents", ce_source=name) for name in ("first", "second"))
        hand_over(db, first, second)
        assert_first_came_before_second([message.header("ce-source") for message in nats.messages("SHOP")], but_for=5)


@pytest.mark.usefixtures("emitted")
def test_a_queue_of_rabbitmq_gets_nothing_from_a_relay_that_slept_through_a_takeover(db, pair, rabbitmq):
    options = {"sink": "rabbitmq", "url": rabbitmq.url, "exchange": "shop", "envelope": "cloudevents"}
    first, second = (pair(name, ce_source=name, **options) for name in ("first", "second"))
    rabbitmq.take("orders")
    hand_over(db, first, second)
    assert_first_came_before_second([properties.headers["cloudEvents:source"] for _, properties, _ in rabbitmq.take("orders")])


def test_a_topic_of_kafka_gets_no_more_than_librdkafka_had(db, pair):
    """Of one aggregate that is one event."""
    kafka.require()
    with kafka.Kafka() as broker:
        broker.create_topic("order.created")
        broker.create_topic("warm")
        broker.publish("warm", [("k", "v")])  # so that the broker's coordinator is loaded, for which the first event would wait
        options = {"sink": "kafka", "url": f"kafka://{broker.servers}", "envelope": "cloudevents"}
        first, second = (pair(name, ce_source=name, **options) for name in ("first", "second"))
        emit(db.connect(), 2000, aggregate="'a'")
        hand_over(db, first, second)
        sources = [message["headers"]["ce_source"] for message in broker.messages("order.created")]
        assert {"first", "second"} == set(sources) and sources[sources.index("second") :].count("first") <= 1


def test_standard_output_gets_no_more_than_the_rest_of_a_line(db, pair):
    """The first one's reader is slow: what it has in its buffer is old when it is woken."""
    first, second = pair("first"), pair("second")
    emit(db.connect(), 2000, payload="jsonb_build_object('n', i, 'x', repeat('x', 1000))")
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    with open(first.err, "wb") as err:
        first.process = subprocess.Popen(tied([PROGRAM, "relay", "--config", first.config]), stdout=writer, stderr=err, env=clean_environment(),
                                         start_new_session=True)
    os.close(writer)
    wait_until(lambda: select_full(first), "the pipe to be full")
    first.until("active")
    second.start().until("standby")
    pause(first)
    end_session(db)
    second.until_true(lambda: passed_all(db), "the second to do the rest")
    before = drained(reader)
    first.process.send_signal(signal.SIGCONT)
    first.until("standby")
    after = drained(reader)
    assert (before + after).endswith(b"}\n") and after.count(b"\n") <= 1
    os.close(reader)


def select_full(relay):
    """Has it written as much as a pipe holds?"""
    written = re.search(r"wchar: (\d+)", open(f"/proc/{relay.process.pid}/io", encoding="utf-8").read())
    return int(written[1]) > 60_000


def drained(reader):
    data = b""
    try:
        while piece := os.read(reader, 1 << 20):
            data += piece
    except BlockingIOError:
        pass
    return data
