# SPDX-License-Identifier: PostgreSQL
"""The sink of Kafka, when a message's time runs out while Kafka takes others: an attempt is counted for the one on which Kafka hangs, and for none that
stood behind others."""

import socket
import struct
import threading
import time
import uuid

import pytest

from harness import kafka as kafka_harness
from harness.broker import free_port
from harness.kafka import Kafka
from harness.postgres import PATIENCE_S
from harness.proxy import exactly, hang_up

from .running import Relay, parked, passed_all
from .sinks import Sink

TIMEOUT_S = 12  # of it librdkafka has 10; an event that is at the head for three quarters of them counts as one on which Kafka hangs
WAITING = 80  # events, at TAKES_S each: after 10 s, and one more until librdkafka looks, more than half of them wait
TAKES_S = 0.3
PRODUCE = 0


class Toll:
    """Before Kafka, at a port of 127.0.0.1. takes_s: each message that is published takes so long. stumbles: the connection that asks to publish this text
    is lost, and Kafka has nothing of it."""

    def __init__(self, port, target):
        self.port, self.target, self.stumbles, self.stumbled = port, target, None, 0
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
                if self.stumbles is not None and self.stumbles in request:
                    self.stumbled += 1
                    raise OSError("it stumbles")
                if struct.unpack("!h", request[:2])[0] == PRODUCE and self.takes_s > 0:
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


def test_an_attempt_is_counted_for_the_event_on_which_the_broker_hangs_and_for_none_behind_it(far, tmp_path, options):
    broker, toll = far
    broker.create_topic("pair", 2)
    toll.stumbles, toll.stumbled = b"poison", 0
    with Sink(tmp_path / "conf", options) as sink:
        first = send(sink, "pair", 0)
        assert sink.result()["event_id"] == first
        poison = send(sink, "pair", 0, '"poison"')
        sent = {poison: ("pair", 0, '"poison"')}
        sent |= {send(sink, "pair", partition): ("pair", partition) for partition in [0] * 10 + [1] * 10}
        refused = refused_in_the_end(sink, sent)
    assert set(refused) == {poison}, refused
    assert refused[poison]["verdict"] == "refused" and "MSG_TIMED_OUT" in refused[poison]["problem"]
    assert toll.stumbled > 1
