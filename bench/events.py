#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""The benchmark of the way out and the way in, as ratios within one run: `make bench-events` calls it.

Events of 200 bytes are emitted with synchronous_commit on, and moved: by `pgonce relay` to NATS JetStream, Kafka, RabbitMQ, a FIFO
queue of SQS (ElasticMQ), webhooks and standard output, by a peer (graphile-worker, tuned for throughput) to NATS; then applied by `pgonce consume` in batches, one by one, and where they
have waited in a line behind one that failed. Latencies are given for
each sink, and for webhooks also beside an aggregate that is refused and one that hangs. Broker, PostgreSQL, relay and load share
the machine. In each round every way moves its events, one after the other; printed are medians, a ratio is the median of the rounds' ratios."""

import argparse
import asyncio
import base64
import contextlib
import datetime
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import threading
import time

import goals as goal_rows
import rounds as round_of
from measure import BUILD, ROOT, SETTINGS, Missing, cpu_seconds, fetch_peer, find, free_port, median_row, recycle_wal

from harness import elasticmq
from harness import kafka as kafka_broker
from harness import maven
from harness.kafka import Kafka
from harness.nats import Nats
from harness.rabbitmq import RabbitMQ
from harness.postgres import PATIENCE_S, Postgres, children_of, clean_environment, private_directory, tied, wait_until

BENCH = ROOT / "bench/events"
PAYLOAD_BYTES = 200
AGGREGATES = 1000  # a hundred or so events of each are in a batch of the backlog
WEBHOOK_S = 0.020
RATE = 1000  # events a second, for latencies
EMIT = """
    SELECT count(once.emit('bench.moved',
        jsonb_build_object('number', n, 'text', repeat('x', %s)), 'thing', (n %% %s)::text))
    FROM generate_series(%s, %s) AS n
"""


def payload_text():
    """What fills the payload to its size, as PostgreSQL prints it."""
    return PAYLOAD_BYTES - len('{"text": "", "number": 1000000}')


def environment():
    """Of the command: SQS wants credentials, whichever."""
    return clean_environment() | elasticmq.CREDENTIALS


def percentile(values, part):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


class Queues(elasticmq.ElasticMq):
    """As Broker, below; with memory for what waits."""

    def command(self):
        return ["-Xmx1g" if word == "-Xmx256m" else word for word in super().command() if word != "-XX:TieredStopAtLevel=1"]

    def warm(self):
        """Java compiles what it has run for some time."""
        queue = self.declare("warm.fifo")
        self.publish(queue, [(str(n), str(n % 100), {}) for n in range(5000)])
        self.take(queue)


class Broker(Kafka):
    """With both of Java's compilers: the tests' own starts fast and runs slowly."""

    def java(self, main, *words):
        return [word for word in super().java(main, *words) if word != "-XX:TieredStopAtLevel=1"]


# ---- An endpoint for webhooks that takes its time ----


class Endpoint(threading.Thread):
    """Answers each POST `delay` seconds after it came, and remembers when it came. poisoned: refuses the events of one aggregate and lets those of
    another hang."""

    REFUSED, HANGING = b"7", b"8"

    def __init__(self):
        super().__init__(daemon=True)
        self.loop = asyncio.new_event_loop()
        self.port = free_port()
        self.listening = threading.Event()
        self.reset()

    def reset(self, delay=WEBHOOK_S, poisoned=False):
        self.delay, self.poisoned, self.answered, self.came = delay, poisoned, 0, {}

    def run(self):
        asyncio.set_event_loop(self.loop)
        server = self.loop.run_until_complete(asyncio.start_server(self.serve, "127.0.0.1", self.port))
        self.listening.set()
        with contextlib.suppress(RuntimeError):
            self.loop.run_forever()
        server.close()

    async def serve(self, reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                now = time.time()
                body = await reader.readexactly(int(re.search(rb"(?i)content-length: *(\d+)", head)[1]))
                key = re.search(rb"(?i)pgonce-key: *(\d+)", head)[1]
                if self.poisoned and key == self.REFUSED:
                    writer.write(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n")
                    continue
                if self.poisoned and key == self.HANGING:
                    await reader.read()     # until it is given up
                    return
                self.came.setdefault(int(re.search(rb'"number": (\d+)', body)[1]), now)
                await asyncio.sleep(self.delay)
                self.answered += 1
                writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    def __enter__(self):
        self.start()
        self.listening.wait(PATIENCE_S)
        return self

    def __exit__(self, *_):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.join(PATIENCE_S)


# ---- When events came ----


class TimedNats:
    """By the server's own time stamps; what was read is not read again."""

    def __init__(self, nats, stream):
        self.nats, self.stream, self.came, self.next = nats, stream, {}, 1

    def __call__(self):
        last = self.nats.state(self.stream)["last_seq"]
        with self.nats.connect() as client:
            for sequence in range(self.next, last + 1):
                raw = client.api(f"STREAM.MSG.GET.{self.stream}", seq=sequence)["message"]
                whole, _, fraction = raw["time"].rstrip("Z").partition(".")
                moment = datetime.datetime.fromisoformat(whole).replace(tzinfo=datetime.timezone.utc)
                number = json.loads(base64.b64decode(raw["data"]))["number"]
                self.came.setdefault(number, moment.timestamp() + float(f"0.{fraction or 0}"))
        self.next = last + 1
        return self.came


class TimedQueue(threading.Thread):
    """A consumer's own clock: RabbitMQ stamps nothing."""

    def __init__(self, rabbitmq, queue):
        super().__init__(daemon=True)
        self.queue, self.came, self.over = queue, {}, False
        self.connection = rabbitmq.connect()

    def __call__(self):
        return self.came

    def run(self):
        channel = self.connection.channel()
        channel.basic_qos(prefetch_count=1000)
        for method, _, body in channel.consume(self.queue, inactivity_timeout=0.2):
            if self.over:
                break
            if method is not None:
                self.came.setdefault(json.loads(body)["number"], time.time())
                channel.basic_ack(method.delivery_tag)
        self.connection.close()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.over = True
        self.join(PATIENCE_S)


# ---- The bench ----


class Bench:
    def __init__(self, options, stack):
        self.options, self.stack = options, stack
        self.directory = private_directory("pgonce-bench-")
        stack.callback(shutil.rmtree, self.directory, ignore_errors=True)
        self.server = stack.enter_context(Postgres(fsync=True, settings={**SETTINGS, "max_connections": "100"}))
        recycle_wal(self.server.new_database())
        self.nats = stack.enter_context(Nats())
        self.left_out = {}
        problem = kafka_broker.jars()[1]
        self.kafka = None if problem else stack.enter_context(Broker())
        if problem:
            self.left_out["Kafka"] = problem
        self.rabbitmq = stack.enter_context(RabbitMQ())
        problem = maven.jars("elasticmq")[1]
        self.sqs = None if problem else stack.enter_context(Queues())
        if problem:
            self.left_out["SQS"] = problem
        else:
            self.sqs.warm()
        self.endpoint = stack.enter_context(Endpoint())
        self.peer = None
        if not options.no_peer:
            try:
                self.peer = fetch_peer(BENCH)
                stack.callback(shutil.rmtree, self.peer, ignore_errors=True)
            except Missing as why:
                self.left_out["the peer"] = str(why)
        self.streams = 0

    def stream(self):
        """A new stream and its subject."""
        self.streams += 1
        name = f"BENCH{self.streams}"
        self.nats.add_stream(name, f"{name}.>")
        return name

    def topic(self):
        self.streams += 1
        name = f"bench{self.streams}"
        self.kafka.create_topic(name, partitions=4)
        return name

    def sink(self, kind):
        """(lines of the relay's section, how many have arrived)"""
        if kind == "nats":
            name = self.stream()
            return [f"sink = nats\nurl = {self.nats.url}\nroute = * -> {name}.{{topic}}"], lambda: self.nats.state(name)["messages"]
        if kind == "kafka":
            name = self.topic()
            return [f"sink = kafka\nurl = kafka://{self.kafka.servers}\nroute = * -> {name}"], lambda: len(self.kafka.messages(name))
        if kind == "rabbitmq":
            self.streams += 1
            name = f"bench{self.streams}"
            self.rabbitmq.declare(name)
            return [f"sink = rabbitmq\nurl = {self.rabbitmq.url}\nroute = * -> {name}"], lambda: self.rabbitmq.count(name)
        if kind == "sqs":
            self.streams += 1
            name = self.sqs.declare(f"bench{self.streams}.fifo")
            return [f"sink = sqs\nurl = {self.sqs.url}\nroute = * -> {name}"], lambda: self.sqs.counts(name)[0]
        if kind == "stdout":
            path = self.directory / "stdout"
            return ["sink = stdout"], lambda: path.read_bytes().count(b"\n")
        self.endpoint.reset()
        url = f"http://127.0.0.1:{self.endpoint.port}/"
        return [f"sink = webhook\nurl = {url}\nallow_plain = yes\nallow_private = yes"], lambda: self.endpoint.answered

    def configure(self, *sections):
        path = self.directory / "pgonce.conf"
        path.write_text("\n\n".join(sections) + "\n")
        return path

    def command(self, job, path, *words):
        return tied([BUILD / "cli/pgonce", job, "--config", path, *words])

    def run(self, job, path):
        """The command with --once, to its end; (seconds, its CPU seconds)."""
        own = os.times()
        started = time.monotonic()
        with open(self.directory / "stdout", "wb") as out:
            done = subprocess.run(
                self.command(job, path, "--once"), stdout=out, stderr=subprocess.PIPE, text=True, env=environment(), check=False
            )
        seconds = time.monotonic() - started
        if done.returncode != 0:
            sys.exit(f"bench: pgonce {job} failed ({done.returncode}):\n{done.stderr[-2000:]}")
        return seconds, sum(os.times()[2:4]) - sum(own[2:4])

    def fill(self, database, first, last, aggregates=AGGREGATES):
        database.execute(EMIT, payload_text(), aggregates, first, last)

    def relay(self, kind, events):
        """A backlog of events, from the start of the relay to the last acknowledgement stored."""
        database = self.server.new_database()
        self.fill(database, 1, events)
        sink, arrived = self.sink(kind)
        path = self.configure(f"[relay bench]\ndsn = {database.dsn()}\n" + "\n".join(sink))
        server = self.server.process.pid
        before = cpu_seconds([server, *children_of(server)])
        seconds, cpu = self.run("relay", path)
        count = arrived()
        if count != events:
            sys.exit(f"bench: {count} of {events} events arrived at {kind}")
        postgres = cpu_seconds([server, *children_of(server)]) - before
        return {"per_second": events / seconds, "relay_us": cpu / events * 1e6, "postgresql_us": postgres / events * 1e6}

    def drain(self, kind, events):
        """A line behind one dead event of its aggregate, from the operator's decision to the last acknowledgement stored. The relay publishes one event of
        an aggregate at a time, so this is what a sink takes to acknowledge one."""
        database = self.server.new_database()
        self.fill(database, 1, events, aggregates=1)
        sink, arrived = self.sink(kind)
        path = self.configure(f"[relay bench]\ndsn = {database.dsn()}\n" + "\n".join(sink))
        connection = database.connect()
        cursor = connection.cursor()
        cursor.execute("SELECT once_job.relay_take('bench', NULL, true)")
        cursor.execute("SELECT once.parked_replay('bench', now() - interval '1 hour', NULL, 'bench')")
        cursor.execute("UPDATE once.parked_event SET state = 'dead' WHERE id = (SELECT min(id) FROM once.parked_event) RETURNING event_id::text")
        (dead,) = cursor.fetchone()
        connection.close()
        database.execute("VACUUM ANALYZE once.parked_event")
        left = "SELECT count(*) FROM (SELECT FROM once.parked_event ORDER BY id DESC LIMIT 1) AS l"
        with open(self.directory / "relay.log", "wb") as log, open(self.directory / "stdout", "wb") as out:
            relay = subprocess.Popen(self.command("relay", path), stderr=log, stdout=out, env=environment())
        try:
            wait_until(lambda: b"event=active" in (self.directory / "relay.log").read_bytes(), "the relay to start")
            time.sleep(1.5)     # until it may send
            before, used = time.monotonic(), cpu_seconds([relay.pid])
            server = cpu_seconds([self.server.process.pid, *children_of(self.server.process.pid)])
            database.execute("SELECT once.parked_discard(%s::text, 'bench', 'bench')", dead)
            wait_until(lambda: database.value(left) == 0, "the line to be delivered", 600)
            seconds, used = time.monotonic() - before, cpu_seconds([relay.pid]) - used
            server = cpu_seconds([self.server.process.pid, *children_of(self.server.process.pid)]) - server
        finally:
            relay.terminate()
            relay.wait(PATIENCE_S)
        count = arrived()
        if count != events - 1:
            sys.exit(f"bench: {count} of {events - 1} events of a line arrived at {kind}")
        return {"per_second": (events - 1) / seconds, "relay_us": used / events * 1e6, "postgresql_us": server / events * 1e6}

    def move_by_peer(self, events):
        database = self.server.new_database()
        user_dsn = f"postgresql://postgres@/{database.name}?host={self.server.directory}&port=5432"
        words = ["env", "-C", self.peer / "peer", "NODE_ENV=production", find("node", "nodejs"), "peer.js"]

        def run(*more):
            done = subprocess.run([str(word) for word in (*words, *more)], capture_output=True, text=True, env=clean_environment(), check=False)
            if done.returncode != 0:
                raise Missing(f"it does not run with this node: {done.stderr.strip()[-600:]}")
            return done.stdout

        run("install", user_dsn)
        database.execute(
            "SELECT count(graphile_worker.add_job('publish', json_build_object('id', gen_random_uuid(), 'number', n, 'text',"
            " repeat('x', %s)))) FROM generate_series(1, %s) AS n",
            payload_text(),
            events,
        )
        database.execute("ANALYZE")
        name = self.stream()
        result = json.loads(run("move", user_dsn, self.nats.url, f"{name}.moved", events))
        if self.nats.state(name)["messages"] != events:
            sys.exit("bench: the peer lost events")
        return {"per_second": events / result["seconds"]}

    # Latencies: the broker's own clock, which is this machine's, against the moment at which COMMIT returned.

    def latency(self, kind, poisoned=False):
        """Of the events whose aggregates are well."""
        database = self.server.new_database()
        sink, came = self.timed_sink(kind)
        if poisoned:
            self.endpoint.reset(delay=0, poisoned=True)
            sink.append("timeout = 5s")
        path = self.configure(f"[relay bench]\ndsn = {database.dsn()}\n" + "\n".join(sink))
        warm = RATE * 2  # connections, caches, Java's compiler
        events = warm + RATE * self.options.seconds
        committed = [0.0] * events
        well = [n for n in range(events) if not poisoned or str(n % AGGREGATES).encode() not in (Endpoint.REFUSED, Endpoint.HANGING)]
        with open(self.directory / "relay.log", "wb") as log:
            relay = subprocess.Popen(self.command("relay", path), stderr=log, stdout=log, env=environment())
        try:
            wait_until(lambda: database.value("SELECT count(*) FROM once.relay") == 1, "the relay to start")
            self.produce(database, committed, range(warm))
            wait_until(lambda: len(came()) >= len([n for n in well if n < warm]), f"the first events at {kind}")
            self.produce(database, committed, range(warm, events))
            wait_until(lambda: len(came()) == len(well), f"{len(well)} events at {kind}")
        finally:
            relay.terminate()
            relay.wait(PATIENCE_S)
        arrived = came()
        waits = [(arrived[number] - committed[number]) * 1000 for number in well if number >= warm]
        return {"p50_ms": statistics.median(waits), "p99_ms": percentile(waits, 0.99), "most_ms": max(waits)}

    def timed_sink(self, kind):
        """(lines of the relay's section, a function that gives what has come: number to time)"""
        if kind == "nats":
            sink, _ = self.sink("nats")
            return sink, TimedNats(self.nats, f"BENCH{self.streams}")
        if kind == "kafka":
            name = self.topic()
            self.kafka.create_topic(f"{name}.timed", message_timestamp_type="LogAppendTime")
            # Whole milliseconds; the middle of the one that is reported.
            return [f"sink = kafka\nurl = kafka://{self.kafka.servers}\nroute = * -> {name}.timed"], lambda: {
                json.loads(m["payload"])["number"]: (m["ts"] + 0.5) / 1000 for m in self.kafka.messages(f"{name}.timed")
            }
        if kind == "rabbitmq":
            sink, _ = self.sink("rabbitmq")
            return sink, self.stack.enter_context(TimedQueue(self.rabbitmq, f"bench{self.streams}"))
        sink, _ = self.sink("webhook")
        self.endpoint.reset(delay=0)
        return sink, lambda: self.endpoint.came

    def produce(self, database, committed, numbers):
        """Each event in a transaction of its own, at an even pace, from four connections."""
        begin = time.monotonic() + 0.1

        def work(part):
            connection = database.connect()
            cursor = connection.cursor()
            for number in numbers[part::4]:
                wait = begin + (number - numbers[0]) / RATE - time.monotonic()
                if wait > 0:
                    time.sleep(wait)
                cursor.execute(EMIT, (payload_text(), AGGREGATES, number, number))
                committed[number] = time.time()

        threads = [threading.Thread(target=work, args=(part,)) for part in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    # The way in.

    def consume(self, events, batch, kind="nats"):
        """events that are in a stream or a queue, into a table; the rate from the first effect to the last."""
        source = self.server.new_database()
        self.fill(source, 1, events)
        sink, _ = self.sink(kind)
        if kind == "sqs":
            lines = f"source = sqs\nurl = {self.sqs.url}\nqueue = bench{self.streams}.fifo"
        else:
            lines = f"source = nats\nurl = {self.nats.url}\nstream = BENCH{self.streams}\ndurable = bench"
        self.run("relay", self.configure(f"[relay bench]\ndsn = {source.dsn()}\n" + "\n".join(sink)))
        target = self.server.new_database()
        target.execute("CREATE TABLE applied (number bigint PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp())")
        target.execute(
            "CREATE FUNCTION apply(message once.message) RETURNS void LANGUAGE sql AS"
            " $$ INSERT INTO applied (number) VALUES (((message).body ->> 'number')::bigint) $$"
        )
        path = self.configure(
            f"[consume bench]\ndsn = {target.dsn()}\n{lines}\nhandler = apply\nbatch = {batch}"
        )
        self.run("consume", path)
        row = target.row("SELECT count(*), extract(epoch FROM max(at) - min(at))::float8 FROM applied")
        if row[0] != events:
            sys.exit(f"bench: {row[0]} of {events} messages were applied")
        return {"per_second": events / row[1]}

    def line(self, messages):
        """Messages of one key that waited behind one that is gone; the rate from the first effect to the last."""
        database = self.server.new_database()
        database.execute("CREATE TABLE applied (number bigint PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp())")
        database.execute(
            "CREATE FUNCTION apply(message once.message) RETURNS void LANGUAGE sql AS"
            " $$ INSERT INTO applied (number) VALUES (((message).body ->> 'number')::bigint) $$"
        )
        database.execute(
            "SELECT once_job.message_park('bench', '', ARRAY(SELECT ROW('m' || n, 'moved', 'key', '{}',"
            " convert_to(jsonb_build_object('number', n, 'text', repeat('x', %s))::text, 'UTF8'), sha256(n::text::bytea), 'waiting', 0, 0,"
            " NULL, NULL)::once.parked FROM generate_series(1, %s) AS n))",
            payload_text(),
            messages,
        )
        path = self.configure(
            f"[consume bench]\ndsn = {database.dsn()}\nsource = nats\nurl = {self.nats.url}\nstream = {self.stream()}\n"
            "durable = bench\nhandler = apply"
        )
        with open(self.directory / "stdout", "wb") as log:
            consumer = subprocess.Popen(self.command("consume", path), stderr=log, stdout=log, env=clean_environment())
        try:
            left = "SELECT count(*) FROM (SELECT FROM once.parked_message ORDER BY key_hash DESC, position DESC LIMIT 1) AS l"
            wait_until(lambda: time.sleep(0.1) or database.value(left) == 0, "the line to be applied", 600)
        finally:
            consumer.terminate()
            consumer.wait(PATIENCE_S)
        row = database.row("SELECT count(*), extract(epoch FROM max(at) - min(at))::float8, bool_and(number = n) FROM"
                           " (SELECT *, row_number() OVER (ORDER BY at) AS n FROM applied) AS a")  # fmt: skip
        if row[0] != messages or not row[2]:
            sys.exit(f"bench: {row[0]} of {messages} messages of a line were applied, in order: {row[2]}")
        return {"per_second": messages / row[1]}

    # What reading costs: the pages that listing 100 new events touches.

    def read_cost(self):
        found = {}
        database = self.server.new_database()
        reader = database.connect()
        cursor = reader.cursor()
        cursor.execute("SELECT * FROM once_job.relay_take('cost', NULL, false)")
        cursor.execute("LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0; SET auto_explain.log_nested_statements = on; SET auto_explain.log_analyze = on;"
                       " SET auto_explain.log_buffers = on; SET auto_explain.log_timing = off; SET client_min_messages = log")
        published = 0
        for published_rows in (1000, self.options.published):
            self.fill(database, published + 1, published_rows)
            published = published_rows
            for held in (False, True):
                blocker = database.connect(autocommit=False) if held else None
                if held:
                    blocker.cursor().execute("SELECT pg_current_xact_id()")
                cursor.execute("SELECT pg_current_snapshot()::text")
                (seen,) = cursor.fetchone()
                self.fill(database, published + 1, published + 100)
                published += 100
                pages, milliseconds = self.list_cost(cursor, seen)
                name = f"{published_rows} published" + (", one long transaction open" if held else "")
                found[name] = {"pages": pages, "ms": milliseconds, "plan": self.list_plan(reader.notices)}
                reader.notices.clear()
                if held:
                    blocker.rollback()
        return found

    @staticmethod
    def list_cost(cursor, seen):
        cursor.execute("SELECT pg_current_snapshot()::text")
        (reading,) = cursor.fetchone()
        rows = []
        for _ in range(7):
            cursor.execute(
                "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM once_job.relay_list('cost', %s, %s, 0, 50000)", (seen, reading)
            )
            (plan,) = cursor.fetchone()
            top = plan[0]["Plan"]
            assert top["Actual Rows"] == 100, top
            rows.append((top["Shared Hit Blocks"] + top["Shared Read Blocks"], plan[0]["Execution Time"]))
        return statistics.median(row[0] for row in rows), statistics.median(row[1] for row in rows)


    @staticmethod
    def list_plan(notices):
        """Of the statement within once_job.relay_list that reads the outbox, as auto_explain tells it."""
        plans = [notice for notice in notices if "ORDER BY n.id LIMIT take" in notice]
        return plans[-1][plans[-1].index("\nLimit") + 1 :].rstrip()


# (what, numerator, denominator or None, field, at least or at most, goal)
GOALS = [
    ("relay to NATS, events/s", "relay/nats", None, "per_second", ">=", 30000),
    ("relay to Kafka, events/s", "relay/kafka", None, "per_second", ">=", 30000),
    ("relay to NATS, above the peer", "relay/nats", "peer/nats", "per_second", ">=", 5),
    ("relay to Kafka, above the peer", "relay/kafka", "peer/nats", "per_second", ">=", 5),
    ("commit to NATS at 1,000/s, p99 ms", "latency/nats", None, "p99_ms", "<=", 25),
    ("commit to Kafka at 1,000/s, p99 ms", "latency/kafka", None, "p99_ms", "<=", 25),
    ("commit to RabbitMQ at 1,000/s, p99 ms", "latency/rabbitmq", None, "p99_ms", "<=", 25),
    ("commit to webhook at 1,000/s, p99 ms", "latency/webhook", None, "p99_ms", "<=", 25),
    ("webhooks to an endpoint of 20 ms, events/s", "relay/webhook", None, "per_second", ">=", 1000),
    ("consumer, effects/s", "consume/batches", None, "per_second", ">=", 10000),
    ("consumer, a line behind one parked key, messages/s", "consume/line", None, "per_second", ">=", 5000),
    ("consumer, above one by one", "consume/batches", "consume/one by one", "per_second", ">=", 4),
]


def judge(rounds):
    goals = []
    for what, above, below, field, sense, goal in GOALS:
        numerators, denominators = rounds.get(above), rounds.get(below)
        if not numerators or (below and not denominators):
            continue
        values = [n[field] / d[field] for n, d in zip(numerators, denominators)] if below else [n[field] for n in numerators]
        goals.append(goal_rows.row(what, (sense, goal), statistics.median(values), bound_of(numerators) if field == "per_second" and not below else None))
    return goals


def bound_of(rows):
    """Events per second of a relay if no CPU ever waited: by the CPU time of the relay and of PostgreSQL, without the broker's."""
    if "relay_us" not in rows[0]:
        return None
    costs = [{"cpu_us": row["relay_us"] + row["postgresql_us"], "syncs": 0} for row in rows]
    return statistics.median(goal_rows.possible(cost, cpus=os.cpu_count(), clients=os.cpu_count(), sync_ms=0) for cost in costs)


def show(medians, goals, cost):
    print()
    for way, row in medians.items():
        print(f"{way:<30}" + ", ".join(f"{name} {value:,.1f}" for name, value in row.items()))
    print("\nlisting 100 new events:")
    for name, row in cost.items():
        print(f"  {name:<52}{row['pages']:>8,.0f} pages {row['ms']:>8.2f} ms")
    for name, row in list(cost.items())[-1:]:
        print(f"\nthe plan, with {name}:\n{row['plan']}")
    goal_rows.show(goals, "goal")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="one round of few events: to see that it runs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--events", type=int, default=200000, help="of each relay's backlog; a tenth for the peer and one by one")
    parser.add_argument("--seconds", type=int, default=10, help="of each measurement of latency")
    parser.add_argument("--published", type=int, default=1000000, help="rows that are published already, for the cost of reading")
    parser.add_argument("--only", nargs="+", metavar="WAY", help="relay/nats, latency/kafka, consume/batches ...")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--json", metavar="FILE", help="write everything as JSON, too")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.events, options.seconds, options.published = 1, 5000, 2, 10000
    with contextlib.ExitStack() as stack:
        bench = Bench(options, stack)
        tenth = options.events // 10
        ways = {
            "relay/nats": lambda: bench.relay("nats", options.events),
            "relay/kafka": lambda: bench.relay("kafka", options.events),
            "relay/rabbitmq": lambda: bench.relay("rabbitmq", tenth * 2),
            "relay/sqs": lambda: bench.relay("sqs", tenth),
            "relay/webhook": lambda: bench.relay("webhook", tenth),
            "relay/stdout": lambda: bench.relay("stdout", options.events),
            "peer/nats": lambda: bench.move_by_peer(tenth),
            "line/nats": lambda: bench.drain("nats", tenth),
            "line/kafka": lambda: bench.drain("kafka", tenth),
            "line/rabbitmq": lambda: bench.drain("rabbitmq", tenth // 10),
            "line/sqs": lambda: bench.drain("sqs", tenth // 10),
            "line/webhook": lambda: bench.drain("webhook", tenth // 10),
            "latency/nats": lambda: bench.latency("nats"),
            "latency/kafka": lambda: bench.latency("kafka"),
            "latency/rabbitmq": lambda: bench.latency("rabbitmq"),
            "latency/webhook": lambda: bench.latency("webhook"),
            "latency/webhook beside poison": lambda: bench.latency("webhook", poisoned=True),
            "consume/batches": lambda: bench.consume(options.events // 2, 500),
            "consume/one by one": lambda: bench.consume(tenth, 1),
            "consume/sqs": lambda: bench.consume(tenth, 500, "sqs"),
            "consume/line": lambda: bench.line(tenth),
        }
        ways = {
            name: way
            for name, way in ways.items()
            if (not options.only or name in options.only)
            and not (name.endswith("kafka") and bench.kafka is None)
            and not (name.endswith("sqs") and bench.sqs is None)
            and not (name.startswith("peer") and bench.peer is None)
        }
        print(f"bench: PostgreSQL {bench.server.version}, {os.cpu_count()} CPUs, fsync on, {options.rounds} rounds", flush=True)
        rounds, cost, whole = {name: [] for name in ways}, {}, 0
        with round_of.until_interrupted(lambda: f"{whole} of {options.rounds} rounds") as ended:
            for number in range(options.rounds):
                for name, way in list(ways.items()):
                    try:
                        rounds[name].append(way())
                    except Missing as why:
                        bench.left_out[name] = str(why)
                        del ways[name]
                        continue
                    print(f"bench: round {number + 1}: {name} {rounds[name][-1]}", file=sys.stderr, flush=True)
                whole += 1
            cost = bench.read_cost() if not options.only or "read" in options.only else {}
    medians = {name: median_row(rows) for name, rows in rounds.items() if rows}
    goals = judge(rounds)
    show(medians, goals, cost)
    for what, why in bench.left_out.items():
        print(f"left out: {what}: {why}")
    round_of.write(options.json, {"cpus": os.cpu_count(), "rounds": whole, "measured": medians, "reading": cost, "goals": goals,
                                  "left_out": bench.left_out}, ended.status == 0)
    sys.exit(ended.status)


if __name__ == "__main__":
    main()
