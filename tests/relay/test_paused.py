# SPDX-License-Identifier: PostgreSQL
"""A relay is stopped in the midst of its work, its session ends, another takes over, and the first one wakes up, as a machine that was paused does: it
sends nothing any more of what it had in its hands, but for the one event that it was about to write."""

import json
import os
import re
import signal
import socket
import subprocess
import threading

import pytest

from harness import kafka
from harness.broker import free_port
from harness.nats import Nats
from harness.postgres import clean_environment, tied, wait_until
from harness.rabbitmq import RabbitMQ
from harness.scrape import address_in, figure, scrape
from harness.webhook import Webhook

from .running import PROGRAM, Relay, emit, first_arrivals, parked, passed_all, webhook
from .sinks import Sink

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


def assert_first_came_before_second(sources, but_for=1):
    """But for the one that it was about to write when it was stopped."""
    assert {"first", "second"} == set(sources), "the first was stopped too early"
    taken_over = sources.index("second")
    late = sources[taken_over:].count("first")
    assert late <= but_for, f"{late} old events came after {taken_over} events"


@pytest.mark.usefixtures("emitted")
def test_a_webhook_gets_one_at_most_from_a_relay_that_slept_through_a_takeover(db, pair):
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
def test_a_queue_of_rabbitmq_gets_one_at_most_from_a_relay_that_slept_through_a_takeover(db, pair, rabbitmq):
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


class Gate:
    """The network between a relay and its broker, on a port of 127.0.0.1. From the first piece that has `text` in it on, what that connection sends is held
    until open()."""

    def __init__(self, port, target, text):
        self.target, self.text = target, text
        self.holds, self.is_open, self.answered = threading.Event(), threading.Event(), threading.Event()
        self.armed = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", port))
        self.sockets = [self.listener]
        threading.Thread(target=self.accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.is_open.set()
        for each in self.sockets:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            each.close()

    def accept(self):
        try:
            while True:
                client = self.listener.accept()[0]
                server = socket.create_connection(("127.0.0.1", self.target))
                self.sockets += [client, server]
                for pair in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self.pump, args=pair, daemon=True).start()
        except OSError:
            pass

    def pump(self, source, target, is_up):
        try:
            while piece := source.recv(1 << 16):
                if is_up and self.armed.is_set() and self.text in piece:
                    self.holds.set()
                    self.is_open.wait()
                elif not is_up and self.is_open.is_set():
                    self.answered.set()
                target.sendall(piece)
        except OSError:
            pass


def all_sent(db):
    """And nothing parked: a slow broker's events are, for a while."""
    return passed_all(db) and not parked(db)


def old_event_arrives_late(db, first, second, gate, is_late=lambda: True):
    """The first relay has sent an event, and is stopped; that arrives when the second has published newer ones, and it is late enough."""
    emit(db.connect(), 1, aggregate="'a'")
    first.start().until("active")
    first.until_true(lambda: all_sent(db), "the first event")  # the broker has all that it makes with it by then
    second.start().until("standby")
    gate.armed.set()
    emit(db.connect(), 20, aggregate="'a'", first=1)
    wait_until(gate.holds.is_set, "an event to be on its way")
    pause(first)
    end_session(db)
    second.until("took_over")
    second.until_true(lambda: all_sent(db), "the second to do the rest")
    wait_until(is_late, "the time to pass")
    gate.is_open.set()
    wait_until(gate.answered.is_set, "the broker's answer to the old one")


def goes_on(db, first, second):
    """The first wakes up, and takes over again."""
    first.process.send_signal(signal.SIGCONT)
    first.until("standby")
    second.kill()
    first.until("took_over")
    emit(db.connect(), 20, aggregate="'a'", first=21)
    first.until_true(lambda: all_sent(db), "the first to go on")


@pytest.mark.parametrize("fence, late", [("none", 1), ("broker", 0)])
def test_an_event_that_the_network_had_comes_after_newer_ones_in_kafka_unless_that_fences(db, pair, fence, late):
    kafka.require()
    port = free_port()
    with kafka.Kafka(ways={"FAR": port}) as broker, Gate(port, broker.ports["FAR"], b"ce_source") as gate:
        broker.create_topic("order.created")
        options = {"sink": "kafka", "envelope": "cloudevents", "fence": fence, "timeout": "5s"}
        first = pair("first", url=f"kafka://127.0.0.1:{port}", ce_source="first", **options)
        second = pair("second", url=f"kafka://{broker.servers}", ce_source="second", **options)
        old_event_arrives_late(db, first, second, gate)
        sources = [message["headers"]["ce_source"] for message in broker.messages("order.created", isolation="read_uncommitted")]
        assert sources[sources.index("second") :].count("first") == late, sources
        goes_on(db, first, second)
        numbers = [json.loads(message["payload"])["n"] for message in broker.messages("order.created")]
        assert first_arrivals(numbers) == list(range(41))


def is_taken(nats):
    """Is a message taken, whose id was the last of all in the duplicate window?"""
    with nats.connect() as client:
        return b'"duplicate"' not in client.request("order.probe", b"{}", [("Nats-Msg-Id", "probe")]).data


@pytest.mark.parametrize("window_s, late", [(0.1, 1), (120, 0)])
def test_an_event_that_the_network_had_comes_after_newer_ones_in_nats_unless_it_is_within_the_duplicate_window(db, pair, window_s, late):
    port = free_port()
    with Nats() as nats, Gate(port, nats.port, b"ce-source") as gate:
        nats.add_stream("SHOP", "order.>", duplicate_window=int(window_s * 1e9))
        options = {"sink": "nats", "envelope": "cloudevents", "timeout": "5s"}
        first = pair("first", url=f"nats://127.0.0.1:{port}", ce_source="first", **options)
        second = pair("second", url=nats.url, ce_source="second", **options)
        probes = []  # the first is taken, and the next one when the window is over

        def is_late():
            probes.append(is_taken(nats))
            return late == 0 or sum(probes) > 1

        old_event_arrives_late(db, first, second, gate, is_late)
        sources = [message.header("ce-source") for message in nats.messages("SHOP") if message.subject == "order.created"]
        assert sources[sources.index("second") :].count("first") == late, sources
        goes_on(db, first, second)
        assert first_arrivals(json.loads(message.data)["n"] for message in nats.messages("SHOP") if message.subject == "order.created") == list(range(41))


def test_a_relay_that_kafka_fences_says_so_ends_its_turn_and_loses_nothing(db, pair, tmp_path):
    """Another begins a turn under its name, as a relay in a copy of the database does."""
    kafka.require()
    with kafka.Kafka() as broker:
        broker.create_topic("order.created")
        broker.create_topic("other")
        options = {"sink": "kafka", "url": f"kafka://{broker.servers}", "fence": "broker", "timeout": "5s"}
        relay = pair("first", arguments=("--metrics", "127.0.0.1:0"), **options)
        emit(db.connect(), 10, aggregate="'a'")
        relay.start().until_true(lambda: all_sent(db), "the first events")
        with Sink(tmp_path / "conf", {**options, "kafka.transactional.id": "pgonce.r"}) as other:
            assert other.deliver("other")["verdict"] == "delivered"
        emit(db.connect(), 10, aggregate="'a'", first=10)
        relay.until("fenced")
        assert figure(scrape(address_in(relay.err.read_text())), "pgonce_relay_fenced", relay="r") == 1
        relay.until("active", 2)
        relay.until_true(lambda: all_sent(db), "the rest")
        numbers = [json.loads(message["payload"])["n"] for message in broker.messages("order.created")]
        assert first_arrivals(numbers) == list(range(20))


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
