#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""The outbox by `pgonce relay`, by Debezium's engine, and by pgoutput alone, on the same work: capture.py [--json FILE] [--events N] [--rate N] [--seconds N].

Each moves the same events of 200 bytes to a file, a line each: first a backlog that was emitted while it was away, then events at an even pace, whose
time from COMMIT to the line is taken. CPU is that of the process (process_us) and of PostgreSQL (server_us), for each event of the backlog. Of the
absence: the WAL that the server kept for it, how much of the outbox waited, and how long the backlog took once the process was started again (its start
included, Java's too). All share the machine; a round does each way once, and printed are the medians of the rounds."""

import argparse
import bisect
import contextlib
import json
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import threading
import time

from measure import BUILD, ROOT, cpu_seconds

sys.path.insert(0, str(ROOT / "tests"))

from capture.capturing import LOGICAL, PUBLICATION, SLOT, block  # noqa: E402
from harness import debezium, postgres  # noqa: E402
from harness.broker import free_port  # noqa: E402
from harness.pgoutput import Reader  # noqa: E402
from harness.postgres import PATIENCE_S, Postgres, children_of, clean_environment, private_directory, tied, wait_until  # noqa: E402

EMIT = """SELECT count(once.emit('bench.moved', jsonb_build_object('number', n, 'text', repeat('x', 169)), 'thing', (n % 1000)::text))
            FROM generate_series({}, {}) AS n"""
SETTINGS = {**LOGICAL, "shared_buffers": "256MB", "max_wal_size": "4GB", "statement_timeout": "0", "listen_addresses": "127.0.0.1"}


class Watched(threading.Thread):
    """Reads a file as it grows, and no more than that: when which of its bytes came. The lines are taken apart afterwards."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.path, self.grown, self.events, self.ended = path, [], 0, threading.Event()
        path.touch()
        self.start()

    def run(self):
        size, rest = 0, b""
        with open(self.path, "rb") as file:
            while not self.ended.is_set():
                data = file.read(1 << 18)
                if not data:
                    time.sleep(0.0005)
                    continue
                size += len(data)
                self.grown.append((size, time.time()))
                whole, _, rest = (rest + data).rpartition(b"\n")
                self.events += whole.count(b"number")

    def came(self):
        """{number of an event: when its line was there}"""
        found, at, sizes = {}, 0, [size for size, _ in self.grown]
        for line in self.path.read_bytes().split(b"\n"):
            at += len(line) + 1
            match = re.search(rb'number\W+(\d+)', line)
            if match and at <= sizes[-1]:
                found.setdefault(int(match[1]), self.grown[bisect.bisect_left(sizes, at)][1])
        return found


class OwnReader:
    """pgoutput decoded in a few lines of Python: what a consumer of one's own costs at least."""

    def __init__(self, database, path):
        self.database, self.path = database, path

    def __call__(self):
        words = [sys.executable, __file__, "--read", self.database.dsn(), str(self.path)]
        return subprocess.Popen(tied(words), env=clean_environment())


def read(dsn, path):
    class At:
        def __init__(self):
            self.dsn = lambda user: dsn

    reader, written = Reader(At(), SLOT, PUBLICATION), 0
    with open(path, "a", encoding="utf-8", buffering=1 << 16) as out:
        while True:
            rows = reader.read()
            for row in rows:
                out.write(json.dumps(row["payload"]) + "\n")
            out.flush()
            written += len(rows)
            reader.rows = []
            time.sleep(0.001)


class Bench:
    def __init__(self, options):
        self.options = options
        self.measured = 0
        self.directory = private_directory("pgonce-bench-")

    def way(self, kind, server, database, stack):
        """(how to start it: gives the process, the file that it writes)"""
        self.measured += 1
        out = self.directory / f"{self.measured}.{kind}"
        if kind == "relay":
            conf = self.directory / f"{self.measured}.conf"
            conf.write_text(f"[relay bench]\ndsn = {database.dsn()}\nsink = stdout\n")

            def start():
                with open(out, "ab") as file, open(self.directory / "log", "ab") as log:
                    return subprocess.Popen(tied([BUILD / "cli/pgonce", "relay", "--config", conf]), stdout=file, stderr=log, env=clean_environment())

            return start, out
        database.execute(block("sql", "CREATE PUBLICATION"))
        database.execute(f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')")
        database.execute(f"SELECT once.add_capture('{SLOT}')")
        if kind == "pgoutput":
            return OwnReader(database, out), out
        lines = [line.partition("=") for line in block("properties", "connector.class").splitlines() if line]
        properties = {name: value for name, _, value in lines}
        engine = debezium.Debezium({
            **properties, "database.hostname": "127.0.0.1", "database.port": postgres.PORT, "database.dbname": database.name, "database.user": "postgres",
            "snapshot.mode": "no_data", "poll.interval.ms": 10,
        })  # fmt: skip
        stack.callback(engine.destroy)
        engine.java_options = ("-Xmx1g",)  # with both of Java's compilers
        return (lambda: engine.start().process), engine.sent_file

    def kept(self, database):
        return database.value(f"SELECT pg_current_wal_lsn() - restart_lsn FROM pg_replication_slots WHERE slot_name = '{SLOT}'") if database.rows(
            "SELECT 1 FROM pg_replication_slots") else 0

    def measure(self, kind):
        events, rate, seconds = self.options.events, self.options.rate, self.options.seconds
        with Postgres(fsync=True, settings=SETTINGS) as server, contextlib.ExitStack() as stack:
            database = server.new_database()
            start, out = self.way(kind, server, database, stack)
            watched = Watched(pathlib.Path(out))
            stack.callback(watched.ended.set)

            def until(count, what):
                wait_until(lambda: watched.events >= count, f"{what} by {kind}", 5 * PATIENCE_S)

            process = start()
            database.execute(EMIT.format(0, 99))
            until(100, "the first events")
            process.terminate()
            process.wait(PATIENCE_S)
            # It is away.
            for first in range(100, events + 100, 1000):
                database.execute(EMIT.format(first, first + 999))
            database.execute("CHECKPOINT")
            kept = self.kept(database)
            of_server = lambda: cpu_seconds([server.process.pid, *children_of(server.process.pid)])  # noqa: E731
            server_before = of_server()
            before = time.time()
            process = start()
            until(events + 100, "the backlog")
            used, server_used = cpu_seconds([process.pid]), of_server() - server_before
            came = watched.came()
            first, last = min(came[each] for each in range(100, events + 100)), max(came[each] for each in range(100, events + 100))
            result = {
                "wal_kept_mb": float(kept) / 1e6,
                "outbox_mb": float(database.value("SELECT sum(pg_total_relation_size(inhrelid)) FROM pg_inherits WHERE inhparent = 'once.outbox'::regclass")) / 1e6,
                "back_s": last - before,
                "first_s": first - before,
                "per_second": events / (last - first),
                "process_us": used / events * 1e6,
                "server_us": server_used / events * 1e6,
            }
            number, committed = events + 100, {}
            connection = database.connect()
            begin = time.monotonic()
            with connection.cursor() as cursor:
                for nth in range(rate * seconds):
                    time.sleep(max(0, begin + nth / rate - time.monotonic()))
                    cursor.execute(EMIT.format(number + nth, number + nth))
                    committed[number + nth] = time.time()
            until(number + rate * seconds, "the paced events")
            came = watched.came()
            missing = [each for each in range(number + rate * seconds) if each not in came]
            if missing:
                sys.exit(f"bench: {kind} lost {len(missing)} events")
            waits = sorted((came[each] - committed[each]) * 1000 for each in committed)
            result |= {"p50_ms": waits[len(waits) // 2], "p99_ms": waits[int(len(waits) * 0.99)]}
            process.terminate()
            process.wait(PATIENCE_S)
            database.close()
            return result


def main():
    if sys.argv[1:2] == ["--read"]:
        read(*sys.argv[2:4])
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--rate", type=int, default=200)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    kinds = ["relay", "pgoutput"] + (["debezium"] if debezium.jars()[1] is None else [])
    postgres.PORT = free_port()  # Java has no unix sockets
    bench = Bench(options)
    try:
        rounds = [{kind: bench.measure(kind) for kind in kinds} for _ in range(options.rounds)]
    finally:
        shutil.rmtree(bench.directory, ignore_errors=True)
    medians = {kind: {name: statistics.median(each[kind][name] for each in rounds) for name in rounds[0][kind]} for kind in kinds}
    columns = list(medians["relay"])
    print(f"{'':10}" + "".join(f"{name:>14}" for name in columns))
    for kind, row in medians.items():
        print(f"{kind:10}" + "".join(f"{row[name]:14.1f}" for name in columns))
    if options.json:
        options.json.write_text(json.dumps({"options": {k: v for k, v in vars(options).items() if k != "json"}, "medians": medians, "rounds": rounds}, indent=1) + "\n")


if __name__ == "__main__":
    main()
