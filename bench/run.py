#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""The benchmark: what an intent costs, as ratios within one run. `make bench` calls it.

A private server with fsync on. Every way of doing the same work runs for a few seconds in each round, one after the
other, so that whatever else the machine does meets all of them alike. Printed are medians over the rounds; a ratio is
the median of the rounds' ratios.
The scripts are in bench/scripts/, the peer in bench/seed000.sql. Roles: an ordinary role that is granted once_app.
"""

import argparse
import json
import os
import pathlib
import platform
import re
import shutil
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BENCH = ROOT / "bench"
sys.path.insert(0, str(ROOT / "tests"))
from harness.native import install_native  # noqa: E402
from harness.postgres import Postgres, clean_environment, find_bindir, private_directory  # noqa: E402
from measure import Process  # noqa: E402

SETTINGS = {
    "shared_buffers": "512MB",
    "min_wal_size": "2GB",
    "max_wal_size": "8GB",
    "synchronous_commit": "on",
    "statement_timeout": "0",
}
FINGERPRINT = "'\\x00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff'"
# Two random numbers are a key: a UUIDv7 that grows with time like real ones, or a UUIDv4. The server glues them
# together, for the ways that need no key as well: it costs all of them the same.
KEY = "(lpad(to_hex(:a::bigint), 16, '0') || to_hex(:b::bigint))::uuid::text"
RANDOM_LOW = "\\set b random(-9223372036854775807, -6917529027641081857)\n"
PRELUDE = {
    "v7": "\\set n :n + 1\n\\set a ((:ms + :n) << 16) | 28672 | random(0, 4095)\n" + RANDOM_LOW,
    "v4": "\\set a (random(-9223372036854775807, -1) & -61441) | 16384\n" + RANDOM_LOW,
}
REPLAYED = {
    "v7": "(lpad(to_hex((({ms}::bigint + :r) << 16) | 28672), 16, '0') || '8000000000000001')::uuid::text",
    # Not beginning with 01, as UUIDv7 keys of today do: what might be one in another spelling is looked at twice.
    "v4": "(lpad(to_hex(((({ms}::bigint + :r) | 70368744177664) << 16) | 16384), 16, '0') || '8000000000000001')::uuid::text",
}
REPLAYED_COUNT = 1000
BATCHES = (16, 64, 256)
# What bench/pipeline.c says of each.
PIPELINE_WAYS = (
    *("bare", "once", "bare_text", "once_text", "stepwise"),
    *("bare_steps", "callback", "bare_steps_text", "callback_text"),
)
# The keys' clock starts a little in the past: it ticks once per transaction, and no key may come from the future.
MS_BACK = 240_000


class Bench:
    def __init__(self, server, database, options, scratch):
        self.server, self.database, self.options, self.scratch = server, database, options, scratch
        self.pgbench = find_program("pgbench")
        self.trips = {}  # of one transaction of a pipelined way: what its client waits for
        self.replayed_ms = int(time.time() * 1000) - 2 * MS_BACK
        self.pipeline = pathlib.Path(os.environ.get("PGONCE_BUILD") or ROOT / "build") / "examples/bench-pipeline"

    def prepare(self):
        for path in (ROOT / "examples/orders/orders.sql", BENCH / "orders_plain.sql", BENCH / "seed000.sql"):
            self.database.execute(path.read_text())
        self.database.execute("CREATE ROLE bench LOGIN; GRANT once_app TO bench")
        for kind, expression in REPLAYED.items():
            one = expression.format(ms=self.replayed_ms).replace(":r", "i")
            self.database.execute(
                f"SELECT plain.finish_some(ARRAY(SELECT {one} FROM generate_series(0, {REPLAYED_COUNT - 1}) AS i), "
                f"{FINGERPRINT})"
            )
        # Some rows for everybody, and statistics about them: a plan that is made for an empty table may stay a
        # sequential scan for as long as its connection lives. pgonce pins its plans against that; its peer does not.
        for name in ("place_bare", "place", "plain_bare", "plain_place", "seed000", "leased"):
            for kind in ("v7", "v4"):
                self.run(name, kind, transactions=2000)
        self.database.execute("VACUUM ANALYZE")
        self.database.execute("CHECKPOINT")

    def script(self, name, kind, count=1):
        text = (BENCH / "scripts" / f"{name}.sql").read_text()
        request = f"""('{{"customer": "ada", "cart": "' || {KEY} || '", "total": 12.50}}')::jsonb"""
        for word, value in (
            ("{key}", KEY),
            ("{request}", request),
            ("{fingerprint}", FINGERPRINT),
            ("{count}", str(count)),
            ("{replayed_key}", REPLAYED[kind].format(ms=self.replayed_ms)),
        ):
            text = text.replace(word, value)
        path = self.scratch / f"{name}-{kind}-{count}.sql"
        path.write_text(PRELUDE[kind] + f"\\set r random(0, {REPLAYED_COUNT - 1})\n" + text)
        return path

    def run(self, name, kind="v7", clients=1, count=1, mode="prepared", transactions=None):
        """Transactions per second of one script."""
        length = ["-t", str(transactions)] if transactions else ["-T", str(self.options.seconds)]
        command = [
            self.pgbench,
            "-n",
            "-M",
            mode,
            "-c",
            str(clients),
            "-j",
            str(min(clients, 2)),
            *length,
            "-D",
            "n=0",
            "-D",
            f"ms={int(time.time() * 1000) - MS_BACK}",
            "-f",
            str(self.script(name, kind, count)),
            self.database.dsn("bench"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), check=False)
        tps = [
            float(line.split()[2])
            for line in done.stdout.splitlines()
            if line.startswith("tps = ") and "including" not in line
        ]
        if done.returncode != 0 or len(tps) != 1 or "ERROR" in done.stderr:
            sys.exit(f"bench: {name} failed:\n{done.stderr}")
        return tps[0]

    def run_redis(self):
        """Pairs a second of SET NX and SET, 16 clients, appendfsync everysec: what keeps keys without PostgreSQL."""
        directory = private_directory("pgonce-redis-", "/var/tmp")
        path = directory / "redis.sock"
        words = ["redis-server", "--port", "0", "--unixsocket", path, "--unixsocketperm", "777", "--appendonly", "yes",
                 "--appendfsync", "everysec", "--save", "", "--dir", directory]  # fmt: skip
        rates = []
        with Process("redis", [str(word) for word in words], directory, str(path)):
            for way in (["NX"], []):
                command = ["redis-benchmark", "-s", path, "-c", "16", "-n", 100_000 * self.options.seconds, "-r", 10**12, "--csv",
                           "SET", "bench:__rand_int__", "x" * 64, *way]  # fmt: skip
                done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=clean_environment(), check=True)
                rates.append(float(done.stdout.splitlines()[-1].split('","')[1].strip('"')))
        shutil.rmtree(directory, ignore_errors=True)
        return 1 / sum(1 / rate for rate in rates)

    def run_pipeline(self, way, clients):
        statements = [str(BENCH / "pipeline" / name) for name in ("insert_order.sql", "insert_event.sql")]
        done = subprocess.run(
            [str(self.pipeline), self.database.dsn("bench"), way, str(clients), str(self.options.seconds), *statements],
            capture_output=True,
            text=True,
            env=clean_environment(),
            check=False,
        )
        if done.returncode != 0:
            sys.exit(f"bench: pipeline {way} failed:\n{done.stderr}")
        per_second, trips = done.stdout.split()
        self.trips[way] = int(trips)
        return float(per_second)

    def traces(self, name, kind, count=1, transactions=4000):
        """What one intent leaves behind: WAL bytes, dead tuples, and the part of its updates that were HOT."""
        query = """SELECT sum(n_tup_upd) AS upd, sum(n_tup_hot_upd) AS hot, sum(n_dead_tup) AS dead
                     FROM pg_stat_all_tables WHERE schemaname = 'once' AND relname LIKE 'intent%%'"""
        self.run(name, kind, count=count, transactions=200)  # pages that exist, plans that are made
        self.database.execute("CHECKPOINT")
        self.run(name, kind, count=count, transactions=200)  # the pages that are written whole after a checkpoint
        before, start = self.stable_row(query), self.database.value("SELECT pg_current_wal_insert_lsn()")
        self.run(name, kind, count=count, transactions=transactions)
        bytes_written = self.database.value("SELECT pg_current_wal_insert_lsn() - %s::pg_lsn", start)
        after, intents = self.stable_row(query), transactions * count
        updates = int(after.upd - before.upd)
        return {
            "wal_bytes": round(float(bytes_written) / intents),
            "dead_tuples": float(after.dead - before.dead) / intents,
            "hot_updates": float(after.hot - before.hot) / updates if updates else None,
        }

    def stable_row(self, query):
        """Statistics are reported when a backend ends, maybe a moment after its client: read until nothing moves."""
        last = None
        while True:
            self.database.execute("SELECT pg_stat_clear_snapshot()")
            alive = self.database.value("SELECT count(*) FROM pg_stat_activity WHERE usename = 'bench'")
            row = self.database.row(query)
            if not alive and row == last:
                return row
            last = row


def find_program(name):
    for directory in (find_bindir(), *sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)):
        if (directory / name).exists():
            return str(directory / name)
    return shutil.which(name) or sys.exit(f"bench: {name} is not installed (apt-get install postgresql)")


def cases(bench, options):
    """(name, how to measure it), in the order in which a round runs them."""
    both = (1, 16)
    for clients in both:
        for kind in ("v7", "v4"):
            for name in ("place_bare", "place", "plain_bare", "plain_place", "seed000"):
                yield f"{name}/{kind}/{clients}", lambda name=name, kind=kind, clients=clients: bench.run(
                    name, kind, clients
                )
        yield f"place_hashing/v7/{clients}", lambda clients=clients: bench.run("place_hashing", "v7", clients)
        for mode in ("prepared", "simple"):
            yield f"select_1/{mode}/{clients}", lambda mode=mode, clients=clients: bench.run(
                "select_1", "v7", clients, mode=mode
            )
            for kind in ("v7", "v4"):
                yield (
                    f"replay/{kind}/{mode}/{clients}",
                    lambda kind=kind, mode=mode, clients=clients: bench.run("replay", kind, clients, mode=mode),
                )
    for kind in ("v7", "v4"):
        yield f"leased/{kind}/1", lambda kind=kind: bench.run("leased", kind)
        for count in BATCHES:
            yield f"leased_{count}/{kind}/1", lambda kind=kind, count=count: count * bench.run(
                "leased_many", kind, count=count
            )
    yield "leased/v7/16", lambda: bench.run("leased", "v7", 16)
    for clients in (4, 64):     # besides, for the picture of docs/performance.md
        for name in ("plain_bare", "plain_place", "seed000"):
            yield f"{name}/v7/{clients}", lambda name=name, clients=clients: bench.run(name, "v7", clients)
    if shutil.which("redis-server") and shutil.which("redis-benchmark"):
        yield "redis_pair/16", bench.run_redis
    else:
        print("bench: Redis is not installed (apt-get install redis-server): batches are NOT measured beside it", file=sys.stderr)
    if bench.pipeline.exists():
        for clients in both:
            for way in PIPELINE_WAYS:
                yield f"pipeline_{way}/v7/{clients}", lambda way=way, clients=clients: bench.run_pipeline(way, clients)
    else:
        print(f"bench: {bench.pipeline} is not built: the pipelined ways are NOT measured", file=sys.stderr)


# (what must hold, numerator, denominator, at least with the contract in SQL, and with pgonce_native)
GOALS = [
    ("one server-side call, of bare", "place/v7/16", "place_bare/v7/16", 0.66, 0.85),
    ("  UUIDv4 keys", "place/v4/16", "place_bare/v4/16", 0.66, 0.85),
    ("  with a plain event table", "plain_place/v7/16", "plain_bare/v7/16", 0.66, 0.85),
    ("  UUIDv4, with a plain event table", "plain_place/v4/16", "plain_bare/v4/16", 0.66, 0.85),
    ("above the pattern of seed000", "place/v7/16", "seed000/v7/16", 1.0, 1.3),
    ("  UUIDv4 keys", "place/v4/16", "seed000/v4/16", 1.0, 1.3),
    ("  with a plain event table", "plain_place/v7/16", "seed000/v7/16", 1.0, 1.3),
    ("pipelined, of pipelined bare", "pipeline_once/v7/16", "pipeline_bare/v7/16", 0.66, 0.8),
    ("  neither prepared", "pipeline_once_text/v7/16", "pipeline_bare_text/v7/16", 0.66, 0.8),
    ("once_execute, of its effect bare", "pipeline_callback/v7/16", "pipeline_bare_steps/v7/16", 0.66, 0.8),
    ("  neither prepared", "pipeline_callback_text/v7/16", "pipeline_bare_steps_text/v7/16", 0.66, 0.8),
    ("  one client", "pipeline_callback/v7/1", "pipeline_bare_steps/v7/1", 0.66, 0.8),
    ("pipelined, of step by step", "pipeline_once/v7/16", "pipeline_stepwise/v7/16", 1.5, 1.5),
    ("batches of 64, of one by one, one backend", "leased_64/v7/1", "leased/v7/1", 4.0, 4.0),
    ("  UUIDv4 keys", "leased_64/v4/1", "leased/v4/1", 4.0, 4.0),
    ("  one backend, of Redis SET NX and SET", "leased_64/v7/1", "redis_pair/16", 0.5, 1.0),
    ("replays, of SELECT 1", "replay/v7/prepared/16", "select_1/prepared/16", 0.38, 0.55),
    ("  UUIDv4 keys", "replay/v4/prepared/16", "select_1/prepared/16", 0.38, 0.55),
]


def judge(rounds, traces, native):
    goals = []
    for what, numerator, denominator, *wanted in GOALS:
        at_least = wanted[native]
        if numerator in rounds and denominator in rounds:
            measured = statistics.median(n / d for n, d in zip(rounds[numerator], rounds[denominator]))
            goals.append(
                {
                    "what": what,
                    "of": [numerator, denominator],
                    "goal": f">= {at_least:.2f}",
                    "measured": round(measured, 3),
                    "met": measured >= at_least,
                }
            )
    for kind in ("v7", "v4"):
        dead = traces[f"start_finish/{kind}"]["dead_tuples"]
        goals.append(
            {
                "what": f"dead tuples of start and finish, UUID{kind}",
                "of": [f"start_finish/{kind}"],
                "goal": "0",
                "measured": dead,
                "met": dead == 0,
            }
        )
    return goals


def show(medians, traces, goals, trips):
    print(f"\n{'what':<28}{'per second':>12}")
    for name, value in medians.items():
        print(f"{name:<28}{value:>12,.0f}")
    print(f"\n{'what one intent leaves':<28}{'WAL bytes':>12}{'dead tuples':>14}{'HOT updates':>14}")
    for name, row in traces.items():
        hot = "-" if row["hot_updates"] is None else f"{row['hot_updates']:.0%}"
        print(f"{name:<28}{row['wal_bytes']:>12,}{row['dead_tuples']:>14.3f}{hot:>14}")
    if trips:
        print("\nround trips of one transaction: " + ", ".join(f"{way} {count}" for way, count in trips.items()))
    print(f"\n{'goal, at 16 clients unless it says otherwise':<48}{'goal':>10}{'measured':>10}  met")
    for goal in goals:
        print(f"{goal['what']:<48}{goal['goal']:>10}{goal['measured']:>10.2f}  {'yes' if goal['met'] else 'NO'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two rounds of one second: to see that it runs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2, help="of each way in each round (whole seconds)")
    parser.add_argument("--only", help="a regular expression of the ways to measure")
    parser.add_argument("--native", action="store_true", help="with pgonce_native, from build/native")
    parser.add_argument("--json", metavar="FILE", help="write everything as JSON, too")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 2, 1
    options.seconds = max(1, int(options.seconds))

    with Postgres(fsync=True, settings=SETTINGS) as server:
        scratch = server.directory / "bench"
        scratch.mkdir()
        bench = Bench(server, server.new_database(), options, scratch)
        bench.prepare()
        if options.native:
            install_native(bench.database)
        ways = [
            (name, measure)
            for name, measure in cases(bench, options)
            if not options.only or re.search(options.only, name)
        ]
        print(
            f"bench: PostgreSQL {server.version}, {os.cpu_count()} CPUs, fsync on; {len(ways)} ways, "
            f"{options.rounds} rounds of {options.seconds} s each: "
            f"about {len(ways) * options.rounds * (options.seconds + 0.3) / 60:.0f} minutes",
            flush=True,
        )
        rounds = {name: [] for name, _ in ways}
        for number in range(options.rounds):
            for name, measure in ways:
                rounds[name].append(measure())
            print(f"bench: round {number + 1} of {options.rounds} is done", file=sys.stderr, flush=True)
        traces = {
            f"{name}/{kind}": bench.traces(name, kind) for name in ("start_finish", "leased") for kind in ("v7", "v4")
        }
        traces["leased_64/v7"] = bench.traces("leased_many", "v7", count=64, transactions=100)
        leaves = bench.database.value("SELECT count(*) FROM pg_inherits WHERE inhparent = 'once.intent'::regclass")
        version = server.version

    medians = {name: statistics.median(values) for name, values in rounds.items()}
    goals = judge(rounds, traces, options.native)
    show(medians, traces, goals, bench.trips)
    if options.json:
        pathlib.Path(options.json).write_text(
            json.dumps(
                {
                    "postgresql": version,
                    "machine": platform.machine(),
                    "cpus": os.cpu_count(),
                    "partitions": leaves,
                    "native": options.native,
                    "rounds": options.rounds,
                    "seconds": options.seconds,
                    "settings": SETTINGS,
                    "per_second": rounds,
                    "medians": medians,
                    "round_trips": bench.trips,
                    "traces": traces,
                    "goals": goals,
                },
                indent=1,
            )
            + "\n"
        )


if __name__ == "__main__":
    main()
