# SPDX-License-Identifier: PostgreSQL
"""The sink of Kafka, when a message's time runs out while Kafka takes others: an attempt is counted for the one on which Kafka hangs, and for none that
stood behind others."""

import contextlib
import socket
import struct
import threading
import time
import uuid

import pytest

from harness import kafka as kafka_harness
from harness.broker import free_port
from harness.kafka import Kafka
from harness.postgres import PATIENCE_S, wait_until
from harness.proxy import exactly, hang_up

from .running import Relay, first_arrivals, parked, passed_all
from .sinks import Sink, results_of

TIMEOUT_S = 12  # of it librdkafka has 10; an event that is at the head for three quarters of them counts as one on which Kafka hangs
WAITING = 80  # events, at TAKES_S each: after 10 s, and one more until librdkafka looks, more than half of them wait
TAKES_S = 0.3
PRODUCE, ALL = 0, "all"


class Toll:
    """Before Kafka, at a port of 127.0.0.1. takes_s: each message that is published takes so long. stumbles: when a connection asks to publish this text,
    Kafka has nothing of it, and the connection is lost; is_silent: nothing more comes through it. away: what does not come through any connection:
    PRODUCE (what is published), ALL."""

    def __init__(self, port, target):
        self.port, self.target, self.stumbles, self.stumbled = port, target, None, 0
        self.is_silent, self.away, self.swallowed = False, None, 0
        self.takes_s, self.over = 0, threading.Event()
        self.listener = socket.create_server(("127.0.0.1", port))
        self.sockets = [self.listener]
        threading.Thread(target=self.accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.over.set()
        for each in self.sockets:
            hang_up(each)

    def accept(self):
        try:
            while True:
                client = self.listener.accept()[0]
                server = socket.create_connection(("127.0.0.1", self.target))
                self.sockets += [client, server]
                for pump, source, to in ((self.ask, client, server), (self.answer, server, client)):
                    threading.Thread(target=pump, args=(source, to), daemon=True).start()
        except OSError:
            pass

    def ask(self, client, server):
        try:
            while True:
                head = exactly(client, 4)
                request = exactly(client, *struct.unpack("!i", head))
                is_produce = struct.unpack("!h", request[:2])[0] == PRODUCE
                if self.stumbles is not None and self.stumbles in request:
                    self.stumbled += 1
                    while self.is_silent:
                        exactly(client, 1)
                    raise OSError("it stumbles")
                if self.away == ALL or (self.away == PRODUCE and is_produce):
                    self.swallowed += is_produce
                    while self.away is not None:
                        client.settimeout(0.1)
                        with contextlib.suppress(TimeoutError):
                            exactly(client, 1)
                    raise OSError("what it was asked meanwhile has no answer")
                if is_produce and self.takes_s > 0:
                    self.over.wait(self.takes_s)
                server.sendall(head + request)
        except OSError:
            hang_up(client)
            hang_up(server)

    def answer(self, server, client):
        try:
            while piece := server.recv(1 << 16):
                client.sendall(piece)
        except OSError:
            pass
        hang_up(client)
        hang_up(server)


@pytest.fixture(scope="module")
def far():
    """A broker, and the toll before it."""
    kafka_harness.require()
    port = free_port()
    with Kafka(ways={"FAR": port}) as broker, Toll(port, broker.ports["FAR"]) as toll:
        yield broker, toll


@pytest.fixture
def options(far):
    return {"sink": "kafka", "url": f"kafka://127.0.0.1:{far[1].port}", "timeout": f"{TIMEOUT_S}s", "kafka.batch.num.messages": "1",
            "partition_header": "partition"}  # fmt: skip


def send(sink, topic, partition, body="{}", event_id=None):
    return sink.send(topic, body, event_id=event_id or str(uuid.uuid4()), headers={"partition": str(partition)})


def refused_in_the_end(sink, sent):
    """Of {event id: what it was sent with}. What comes back without an attempt is sent again, as the pipeline does it."""
    waiting, refused, deadline = len(sent), {}, time.monotonic() + 2 * PATIENCE_S
    while waiting > 0:
        assert time.monotonic() < deadline, f"{waiting} of {len(sent)} events have no result that stays"
        result = sink.result()
        waiting -= 1
        if result["verdict"] in ("withheld", "unavailable"):
            waiting += 1
            send(sink, *sent[result["event_id"]], event_id=result["event_id"])
        elif result["verdict"] != "delivered":
            refused[result["event_id"]] = result
    return refused


@pytest.mark.parametrize("fence, said", [("none", "sink-late"), ("broker", "unavailable")])
def test_a_slow_broker_costs_no_attempt_of_what_waits_for_one_partition_while_another_takes_events(far, db, tmp_path, options, fence, said):
    broker, toll = far
    topic = f"slow-{fence}"
    broker.create_topic(topic, 2)
    relay = Relay(tmp_path, db.dsn(), **options, fence=fence)
    with relay:
        relay.until("active")
        toll.takes_s = TAKES_S
        db.execute(f"""SELECT once.emit('{topic}', to_jsonb(i), 'order', i::text, headers => jsonb_build_object('partition', (i / {WAITING})::text))
                         FROM generate_series(0, {WAITING + 2}) AS i""")
        relay.until(said)
        toll.takes_s = 0
        relay.until_true(lambda: passed_all(db) and not parked(db), "all to be delivered")
        assert relay.stop() == 0
    assert relay.log("stopped")[-1]["refused"] == "0"
    assert {int(message["payload"]) for message in broker.messages(topic)} == set(range(WAITING + 3))


@pytest.mark.parametrize("fence", ["none", "broker"])
@pytest.mark.parametrize("is_silent", [False, True])
def test_an_attempt_is_counted_for_the_event_on_which_the_broker_hangs_and_for_none_behind_it(far, tmp_path, options, fence, is_silent):
    """Silent: while the broker hangs on it, it takes no other event."""
    broker, toll = far
    topic = f"pair-{fence}-{is_silent}"
    broker.create_topic(topic, 2)
    toll.stumbles, toll.stumbled, toll.is_silent = b"poison", 0, is_silent
    with Sink(tmp_path / "conf", options | {"fence": fence, "timeout": "8s"}) as sink:
        first = send(sink, topic, 0)
        assert sink.result()["event_id"] == first
        poison = send(sink, topic, 0, '"poison"')
        sent = {poison: (topic, 0, '"poison"')}
        wait_until(lambda: toll.stumbled > 0, "the broker to hang on it")
        behind = [0] * 10 if fence == "none" else []  # with a fence, an attempt is counted for what its partition has
        sent |= {send(sink, topic, partition): (topic, partition) for partition in [*behind, *[1] * 10]}
        refused = refused_in_the_end(sink, sent)
    toll.stumbles = None
    assert set(refused) == {poison}, refused
    assert refused[poison]["verdict"] == "refused" and "MSG_TIMED_OUT" in refused[poison]["problem"]
    assert toll.stumbled > 1


def test_an_event_that_waited_behind_it_twice_is_not_blamed_with_it(far, tmp_path, options):
    """It is the first of its partition, and the broker has it: only alone do the two differ."""
    broker, toll = far
    broker.create_topic("twice", 2)
    toll.stumbles, toll.stumbled, toll.is_silent = b"poison", 0, True
    with Sink(tmp_path / "conf", options | {"timeout": "6s"}) as sink:
        poison = innocent = None
        verdicts = []
        for _ in range(2):
            assert sink.deliver("twice", headers={"partition": "1"})["verdict"] == "delivered"
            before = toll.stumbled
            poison = send(sink, "twice", 0, '"poison"', event_id=poison)
            wait_until(lambda: toll.stumbled > before, "the broker to hang on it")
            innocent = send(sink, "twice", 1, event_id=innocent)
            results = results_of(sink, 2)
            verdicts.append((results[poison]["verdict"], results[innocent]["verdict"]))
    toll.stumbles = None
    assert verdicts == [("unavailable", "unavailable"), ("refused", "delivered")]


@pytest.fixture
def hung(far, tmp_path, options):
    """A sink, and a function that sends an event, again if it has one, while the broker is away; gives its result."""
    broker, toll = far
    topic = f"hung-{uuid.uuid4()}"
    broker.create_topic(topic, 2)
    with Sink(tmp_path / "conf", options | {"timeout": "6s"}) as sink:
        assert sink.deliver(topic, headers={"partition": "0"})["verdict"] == "delivered"

        def hang(away, event_id=None):
            toll.away, toll.swallowed = away, 0
            event_id = send(sink, topic, 0, event_id=event_id)
            result = sink.result()
            assert result["event_id"] == event_id and toll.swallowed > 0, "the broker was to have it"
            return result

        hang.sink, hang.topic = sink, topic
        yield hang
    toll.away = None


def test_a_broker_that_was_there_in_between_and_is_away_again_costs_no_attempt(far, hung):
    """Both times it hangs on the same event, and it has taken others in between."""
    _, toll = far
    first = hung(ALL)
    assert first["verdict"] == "unavailable"
    for _ in range(2):
        toll.away = None
        assert hung.sink.deliver(hung.topic, headers={"partition": "0"})["verdict"] == "delivered"
        assert hung(ALL, first["event_id"])["verdict"] == "unavailable"
    toll.away = None
    send(hung.sink, hung.topic, 0, event_id=first["event_id"])
    assert hung.sink.result()["verdict"] == "delivered"


def test_a_broker_that_answers_and_takes_no_events_costs_no_attempt(hung):
    first = hung(PRODUCE)
    assert first["verdict"] == "unavailable"
    for _ in range(2):
        assert hung(PRODUCE, first["event_id"])["verdict"] == "unavailable"


@pytest.mark.parametrize("fence", ["none", "broker"])
def test_an_event_on_which_the_broker_hangs_does_not_hold_up_the_others_for_ever(far, db, tmp_path, options, fence):
    """The broker takes no other event meanwhile; it is the first of more than are put off while they are in flight."""
    broker, toll = far
    topic = f"held-{fence}"
    broker.create_topic(topic, 2)
    toll.stumbles, toll.is_silent = b"poison", True
    emit = f"""SELECT once.emit('{topic}', to_jsonb(i), 'order', (i %% 120)::text,
                                headers => jsonb_build_object('partition', ({"i %% 120 %% 2" if fence == "none" else "1"})::text))
                 FROM generate_series(%s, %s) AS i"""  # with a fence, an attempt is counted for all that a partition has
    poison = f"SELECT once.emit('{topic}', %s::jsonb, 'order', 'p', headers => '{{\"partition\": \"0\"}}')"
    relay = Relay(tmp_path, db.dsn(), **options | {"timeout": "6s"}, fence=fence, attempts=2, retry_first="100ms")
    count = 350

    def dies():
        nonlocal count
        db.execute(emit, count, count)
        count += 1
        time.sleep(0.2)
        return relay.log("dead")

    with relay:
        db.execute(emit, 0, 199)  # after it, the relay reads more at a time
        relay.until_true(lambda: passed_all(db) and not parked(db), "the first to be delivered")
        toll.away = PRODUCE
        with db.connect(isolation="READ COMMITTED") as connection, connection.cursor() as cursor:
            cursor.execute(poison, ('"poison"',))
            cursor.execute(poison, ("-1",))
            cursor.execute(emit, (200, 349))
        relay.until("unavailable")
        toll.away = None
        relay.until_true(lambda: len(broker.messages(topic)) >= 350, "the others to be delivered")
        relay.until_true(dies, "the broker to have hung twice on it, others in between")
        relay.until_true(lambda: passed_all(db), "all to be settled")
        assert relay.stop() == 0
    toll.stumbles = None
    assert {row.state: row.attempts for row in parked(db)} == {"dead": 2, "waiting": 0} and relay.log("stopped")[-1]["refused"] == "2"
    numbers = [int(message["payload"]) for message in broker.messages(topic)]
    assert sorted(first_arrivals(numbers)) == list(range(count))
    for aggregate in range(120):
        assert first_arrivals([number for number in numbers if number % 120 == aggregate]) == list(range(aggregate, count, 120))
