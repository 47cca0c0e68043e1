# SPDX-License-Identifier: PostgreSQL
"""What a consumer holds in memory is bounded by bytes, whatever its messages' size: at every broker, with both kinds of handlers, and for what is
parked. A message that is larger than the bound passes alone."""

import contextlib
import json
import os
import pathlib
import subprocess
import threading
import time
import uuid

import pika
import pytest

from cli.command import PROGRAM
from harness import aws, elasticmq, kafka
from harness.elasticmq import ElasticMq
from harness.nats import Nats
from harness.postgres import PATIENCE_S, clean_environment, tied, wait_until
from harness.rabbitmq import RabbitMQ
from harness.webhook import Answer, Webhook

from .playing import Source

pytestmark = pytest.mark.plain("a sanitizer has memory of its own")

MOST_MB = 128
MB = 1_000_000

HANDLER = """
CREATE TABLE applied (id text, bytes integer);
CREATE FUNCTION apply(m once.message) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO applied VALUES (m.id, octet_length(m.payload));
END $$;
"""


def body(number, size=MB):
    """JSON; of random digits, so that nothing on the way makes it small."""
    return json.dumps({"number": number, "rest": os.urandom((size - 40) // 2).hex()}).encode()


class Kafka(kafka.Kafka):
    def __init__(self):
        kafka.require()
        super().__init__(more="message.max.bytes=15000000")

    def make(self):
        self.topic = f"large-{uuid.uuid4().hex[:8]}"
        self.create_topic(self.topic)

    def fill(self, bodies, *words):
        self.kcat("-P", "-t", self.topic, "-D", "\n", "-X", "message.max.bytes=14000000", *words, data=b"\n".join(bodies) + b"\n")

    def options(self):
        return {"source": "kafka", "url": f"kafka://{self.servers}", "topics": self.topic, "group": self.topic, "id": "coordinates"}


class Rabbit(RabbitMQ):
    def make(self):
        self.queue = f"large-{uuid.uuid4().hex[:8]}"
        self.declare(self.queue)

    def fill(self, bodies):
        self.publish(self.queue, [(each, pika.BasicProperties(delivery_mode=2, headers={"Pgonce-Event-Id": uuid.uuid4().hex})) for each in bodies])

    def options(self):
        return {"source": "rabbitmq", "url": self.url, "queue": self.queue}


class Stream(Nats):
    def __init__(self):
        super().__init__(more="max_payload: 60000000\nmax_pending: 100000000")

    def make(self):
        self.stream = f"L{uuid.uuid4().hex[:8]}"
        self.add_stream(self.stream, f"{self.stream}.>")

    def fill(self, bodies):
        self.publish([(f"{self.stream}.x", each) for each in bodies])

    def options(self):
        return {"source": "nats", "url": self.url, "stream": self.stream, "id": "coordinates"}


class Sqs(ElasticMq):
    def __init__(self):
        elasticmq.require()
        super().__init__()

    def make(self):
        self.queue = self.declare(f"large-{uuid.uuid4().hex[:8]}")

    def fill(self, bodies):
        for each in bodies:
            self.publish(self.queue, [each.decode()])

    def options(self):
        return {"source": "sqs", "url": self.url, "queue": self.queue, "id": "coordinates", "wait": "1s"}


@pytest.fixture(scope="module")
def brokers():
    """Each is started when the first test wants it."""
    started = {}
    with contextlib.ExitStack() as stack:

        def get(kind):
            if kind not in started:
                started[kind] = stack.enter_context(kind())
            started[kind].make()
            return started[kind]

        yield get


def peak_mb(process):
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) / 1024


@contextlib.contextmanager
def consuming(broker, db, tmp_path, most_mb=MOST_MB, **options):
    config, log = tmp_path / f"{uuid.uuid4().hex[:8]}.conf", tmp_path / "log"
    given = {"handler": "apply", "order_by": "none", **broker.options(), **options}
    given = {name: value for name, value in given.items() if value is not None}
    lines = "".join(f"{name.replace('__', '.')} = {value}\n" for name, value in given.items())
    config.write_text(f"dsn = {db.dsn()}\n[consume stock]\n{lines}")
    with open(log, "ab") as to:
        process = subprocess.Popen(tied([PROGRAM, "consume", "--config", config]), stdin=subprocess.DEVNULL, stdout=to, stderr=to,
                                   env=clean_environment() | aws.environment())
    try:
        yield process
        peak = peak_mb(process)
        process.terminate()
        assert process.wait(60) == 0, log.read_text()[-3000:]
    finally:
        process.kill()
        process.wait(PATIENCE_S)
    print(f"peak {peak:.0f} MB")
    assert peak < most_mb, log.read_text()[-3000:]


def wait_applied(db, count, patience_s=180):
    """All, each once."""
    def done():
        return db.value("SELECT count(*) FROM applied") >= count

    started = time.monotonic()
    wait_until(done, f"{count} to be applied", patience_s)
    print(f"{time.monotonic() - started:.1f} s")
    assert db.row("SELECT count(*) AS n, count(DISTINCT id) AS ids FROM applied") == (count, count)


ALL = pytest.mark.parametrize("kind", [Kafka, Rabbit, Stream, Sqs])


# How many, of how many bytes, and what the consumer may take for them; read ahead without a bound they take more.
LARGE = {Kafka: (120, MB, 70), Rabbit: (120, MB, 70), Stream: (120, MB, 80), Sqs: (200, 250_000, 60)}


@ALL
def test_many_large_messages_take_little_memory(brokers, kind, db, tmp_path):
    db.execute(HANDLER)
    broker = brokers(kind)
    count, size, most_mb = LARGE[kind]
    broker.fill([body(number, size) for number in range(count)])
    with consuming(broker, db, tmp_path, most_mb=most_mb):
        wait_applied(db, count)


@pytest.mark.parametrize("kind", [Kafka, Rabbit, Stream])  # SQS takes no such message
def test_a_message_that_is_larger_than_the_bound_passes_alone(brokers, kind, db, tmp_path):
    db.execute(HANDLER)
    broker = brokers(kind)
    sizes = [100, 1000, 6 * MB, 1000, 1000, 6 * MB, 6 * MB, 200]
    broker.fill([body(number, size) for number, size in enumerate(sizes)])
    with consuming(broker, db, tmp_path, memory="4M"):
        wait_applied(db, len(sizes))
    assert db.value("SELECT count(*) FROM applied WHERE bytes > 4 * 1024 * 1024") == 3


def test_what_is_small_on_the_wire_and_large_when_it_is_inflated_takes_little_memory(brokers, db, tmp_path):
    """Kafka's batches: librdkafka inflates a whole answer at once, whatever its limits say (its issue 2076)."""
    db.execute(HANDLER)
    broker = brokers(Kafka)
    broker.fill([b'{"number": %d, "rest": "%s"}' % (number, b"x" * MB) for number in range(200)], "-z", "gzip")
    with consuming(broker, db, tmp_path):
        wait_applied(db, 200)


def test_large_messages_after_small_ones_are_not_read_ahead_by_their_number(brokers, db, tmp_path):
    """RabbitMQ counts: a prefetch that is right for small messages is adapted when they grow, and again when they shrink."""
    db.execute(HANDLER)
    broker = brokers(Rabbit)
    broker.fill([body(number, 200) for number in range(2000)])
    broker.fill([body(number) for number in range(150)])
    broker.fill([body(number, 200) for number in range(2000)])
    with consuming(broker, db, tmp_path):
        wait_applied(db, 4150)


@pytest.mark.parametrize("kind", [Kafka, Rabbit, Stream])
def test_an_endpoint_holds_no_more(brokers, kind, db, tmp_path):
    """Its calls take longer than the broker."""
    broker = brokers(kind)
    broker.fill([body(number) for number in range(100)])
    seen = set()

    def answer(request):
        seen.add(request.json["number"])
        hook.requests.clear()
        return Answer(delay=0.7)

    with Webhook(script=answer) as hook, consuming(broker, db, tmp_path, handler=None, endpoint=hook.url + "apply", in_flight=4, most_mb=64):
        wait_until(lambda: db.value("SELECT count(*) FROM once.intent WHERE scope = 'stock' AND state = 'succeeded'") == 100, "all to be applied", 120)
    assert seen == set(range(100))


@pytest.mark.parametrize("kind_of_handler", ["function", "endpoint"])
def test_parked_messages_come_back_by_their_bytes(brokers, kind_of_handler, db, tmp_path):
    """All fail at first; then they are due at once."""
    db.execute(HANDLER)
    db.execute("""CREATE TABLE works (yes boolean);
        CREATE FUNCTION try(m once.message) RETURNS void LANGUAGE plpgsql AS $$
        BEGIN
            IF NOT EXISTS (SELECT FROM works) THEN RAISE EXCEPTION 'not yet'; END IF;
            PERFORM apply(m);
        END $$""")
    broker = brokers(Stream)
    works = threading.Event()

    def answer(request):
        if works.is_set():
            db.execute("INSERT INTO applied VALUES (%s, %s)", request.header("Pgonce-Message-Id"), len(request.body))
        return Answer(200 if works.is_set() else 500)

    count = 140
    broker.fill([body(number) for number in range(count)])
    with Webhook(script=answer) as hook:
        way = {"handler": "try"} if kind_of_handler == "function" else {"handler": None, "endpoint": hook.url + "apply"}
        with consuming(broker, db, tmp_path, attempts=1000, retry_first="200ms", retry_most="200ms", **way):
            wait_until(lambda: db.value("SELECT count(*) FROM once.parked_message") == count, "all to be parked", 120)
            db.execute("INSERT INTO works VALUES (true)")
            works.set()
            wait_applied(db, count)


def test_a_queue_of_sqs_is_asked_for_no_more_than_there_is_room_for(brokers, tmp_path):
    """A call brings ten messages, each as large as the queue takes it; where it does not say, 1 MB."""
    broker = brokers(Sqs)
    broker.fill([body(number, 200_000) for number in range(30)])
    options = {name: value for name, value in broker.options().items() if name != "id"}
    with Source(tmp_path, environment=aws.environment(), memory=2 << 20, **options) as source:
        found = source.collect(3)
        for _ in range(3):
            found += source.fetch(1000, 1500)["messages"]
        assert len(found) <= 7
        assert broker.counts(broker.queue)[0] == 30 - len(found)
        source.acknowledge(found)
        assert source.collect(3)


def test_what_a_dead_member_of_nats_had_comes_again_as_a_whole_and_in_order(brokers, tmp_path):
    """As much as its memory had room for, and then the rest."""
    broker = brokers(Stream)
    broker.fill([body(number, 100_000) for number in range(40)])
    with Source(tmp_path, memory=2 << 20, **broker.options()) as source:
        found = source.collect(10)
        found += source.fetch()["messages"]
        assert len(found) <= 16
        source.kill()
    with Source(tmp_path, memory=2 << 20, **broker.options()) as source:
        numbers = []
        while len(numbers) < 40:
            found = source.fetch()["messages"]
            numbers += [json.loads(each["payload"])["number"] for each in found]
            if found:
                source.acknowledge(found)
        assert numbers == list(range(40))


def test_rabbitmq_is_read_as_there_is_room_and_sends_ahead_as_sizes_tell(brokers, tmp_path):
    """A busy caller that keeps the connection alive reads no more than that; then the prefetch shrinks."""
    broker = brokers(Rabbit)
    broker.fill([body(number, 200) for number in range(400)])
    broker.fill([body(number, 600_000) for number in range(160)])
    with Source(tmp_path, memory=4 << 20, prefetch=100, **broker.options()) as source:
        left = 560
        while left > 160:
            left -= len(source.collect(1, most=50))
            source.acknowledge()
        for _ in range(20):
            source.keep_alive()
        assert peak_mb(source.process) < 30
        while left > 40:
            left -= len(source.collect(1, most=1))
            source.acknowledge()
        # What was sent under the prefetch for small ones is gone by now.
        wait_until(lambda: (source.keep_alive(), broker.count(broker.queue) >= 30)[1], "the rest to stay at the broker")
        while left > 0:
            left -= len(source.collect(1))
            source.acknowledge()
