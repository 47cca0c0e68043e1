#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""The benchmark: what an intent costs, as ratios within one run. `make bench` calls it.

A private server with fsync on. Every way of doing the same work runs for a few seconds in each round, one after the
other, so that whatever else the machine does meets all of them alike. Printed are medians over the rounds; a ratio is
the median of the rounds' ratios. After each round a line on stderr says what is known by then, and FILE.part (--json FILE) has all figures so far. SIGINT and
SIGTERM end the run; it prints its results so far.
The scripts are in bench/scripts/, the peer in bench/seed000.sql. Roles: an ordinary role that is granted once_app.
"""

import argparse
import contextlib
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
import goals as goal_rows  # noqa: E402
import rounds as round_of  # noqa: E402
from harness.native import install_native  # noqa: E402
from harness.postgres import Postgres, children_of, clean_environment, find_bindir, private_directory, wait_until  # noqa: E402
from measure import Process, add_disk_option, cpu_seconds, disk_of, slow_down  # noqa: E402

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

    def used(self):
        """CPU seconds of the server, of its backends, and of the clients that have ended."""
        wait_until(lambda: self.database.value("SELECT count(*) FROM pg_stat_activity WHERE usename = 'bench'") == 0, "the clients' backends to end")
        server = self.server.process.pid
        while True:
            pids = [server, *children_of(server)]
            seconds = cpu_seconds(pids)
            if pids == [server, *children_of(server)]:  # none has ended meanwhile, and been counted twice or not at all
                return seconds + sum(os.times()[2:4])

    def costs(self, before, per_second):
        """A row: so many per second, and CPU microseconds of one, of all processes."""
        return {"per_second": per_second, "cpu_us": (self.used() - before) / (per_second * self.options.seconds) * 1e6}

    def sync_ms(self):
        return goal_rows.sync_ms(self.server.directory, self.options.fsync_ms)

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
        """Transactions per second of one script, or intents if it does `count` at once."""
        before = self.used()
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
            sys.exit(f"bench: {name} failed at {clients} clients (pgbench ended with {done.returncode}):\n{done.stdout[-500:]}{done.stderr}")
        return self.costs(before, tps[0] * count)

    def run_redis(self, fsync):
        """Pairs a second of SET NX and SET, 16 clients: what keeps keys without PostgreSQL. appendfsync always: on the disk before the answer, as with pgonce."""
        directory = private_directory("pgonce-redis-", "/var/tmp")
        count = (100_000 if fsync == "everysec" else 10_000) * self.options.seconds
        path = directory / "redis.sock"
        words = ["redis-server", "--port", "0", "--unixsocket", path, "--unixsocketperm", "777", "--appendonly", "yes",
                 "--appendfsync", fsync, "--save", "", "--dir", directory]  # fmt: skip
        rates, costs = [], {"cpu_us": 0.0, "alone_us": 0.0}
        with Process("redis", [str(word) for word in words], directory, str(path), self.server.environment) as server:
            for way in (["NX"], []):
                command = ["redis-benchmark", "-s", path, "-c", "16", "-n", count, "-r", 10**12, "--csv",
                           "SET", "bench:__rand_int__", "x" * 64, *way]  # fmt: skip
                before, own = cpu_seconds(server.pids()), sum(os.times()[2:4])
                done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=clean_environment(), check=True)
                used, own = cpu_seconds(server.pids()) - before, sum(os.times()[2:4]) - own
                costs["cpu_us"] += (used + own) / count * 1e6
                costs["alone_us"] += used / count * 1e6
                rates.append(float(done.stdout.splitlines()[-1].split('","')[1].strip('"')))
        shutil.rmtree(directory, ignore_errors=True)
        return {"per_second": 1 / sum(1 / rate for rate in rates), **costs}

    def run_pipeline(self, way, clients):
        before = self.used()
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
        return self.costs(before, float(per_second))

    def traces(self, name, kind, count=1, *, transactions):
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
            yield f"leased_{count}/{kind}/1", lambda kind=kind, count=count: bench.run(
                "leased_many", kind, count=count
            )
    yield "leased/v7/16", lambda: bench.run("leased", "v7", 16)
    for clients in (4, 64):     # besides, for the picture of docs/why/performance.md
        for name in ("plain_bare", "plain_place", "seed000"):
            yield f"{name}/v7/{clients}", lambda name=name, clients=clients: bench.run(name, "v7", clients)
    if shutil.which("redis-server") and shutil.which("redis-benchmark"):
        for fsync in ("always", "everysec"):
            yield f"redis_pair_{fsync}/16", lambda fsync=fsync: bench.run_redis(fsync)
    else:
        print("bench: Redis is not installed (apt-get install redis-server): batches are NOT measured beside it", file=sys.stderr)
    if bench.pipeline.exists():
        for clients in both:
            for way in PIPELINE_WAYS:
                yield f"pipeline_{way}/v7/{clients}", lambda way=way, clients=clients: bench.run_pipeline(way, clients)
    else:
        print(f"bench: {bench.pipeline} is not built: the pipelined ways are NOT measured", file=sys.stderr)


# (what is compared, numerator, denominator, at least with the contract in SQL, and with pgonce_native; None: no goal)
GOALS = [
    ("one server-side call, of bare", "place/v7/16", "place_bare/v7/16", None, None),
    ("  UUIDv4 keys", "place/v4/16", "place_bare/v4/16", None, None),
    ("  with a plain event table", "plain_place/v7/16", "plain_bare/v7/16", None, None),
    ("  UUIDv4, with a plain event table", "plain_place/v4/16", "plain_bare/v4/16", None, None),
    ("of the pattern written by hand, with its event", "place/v7/16", "seed000/v7/16", 0.85, 1.3),
    ("  UUIDv4 keys", "place/v4/16", "seed000/v4/16", 0.85, 1.3),
    ("  with a plain event table", "plain_place/v7/16", "seed000/v7/16", 1.1, 1.3),
    ("pipelined, of pipelined bare", "pipeline_once/v7/16", "pipeline_bare/v7/16", None, 0.8),
    ("  neither prepared", "pipeline_once_text/v7/16", "pipeline_bare_text/v7/16", None, None),
    ("once_execute, of its effect bare", "pipeline_callback/v7/16", "pipeline_bare_steps/v7/16", None, None),
    ("  neither prepared", "pipeline_callback_text/v7/16", "pipeline_bare_steps_text/v7/16", None, None),
    ("  one client", "pipeline_callback/v7/1", "pipeline_bare_steps/v7/1", 0.6, 0.75),
    ("pipelined, of step by step", "pipeline_once/v7/16", "pipeline_stepwise/v7/16", 1.5, 1.5),
    ("batches of 64, of one by one, one backend", "leased_64/v7/1", "leased/v7/1", 4.0, 4.0),
    ("  UUIDv4 keys", "leased_64/v4/1", "leased/v4/1", 4.0, 4.0),
    ("batches of 64, of Redis SET NX and SET, always", "leased_64/v7/1", "redis_pair_always/16", 1.0, 1.0),
    ("batches of 64, of Redis SET NX and SET, everysec", "leased_64/v7/1", "redis_pair_everysec/16", 0.5, 1.0),
    ("replays, of SELECT 1", "replay/v7/prepared/16", "select_1/prepared/16", None, 0.55),
    ("  UUIDv4 keys", "replay/v4/prepared/16", "select_1/prepared/16", None, 0.55),
]
# Durable writes that one intent waits for, one after the other; all others take one.
SYNCS = {"select_1": 0, "replay": 0, "leased": 2, **{f"leased_{count}": 2 / count for count in BATCHES}, "redis_pair_always": 2, "redis_pair_everysec": 0}


def syncs_of(way):
    return SYNCS.get(way.partition("/")[0], 1)


def judge(rounds, traces, native, sync_ms):
    """rounds: {way: its rows}; sync_ms: of each round."""
    goals = []
    for what, numerator, denominator, *wanted in GOALS:
        ours, theirs = rounds.get(numerator), rounds.get(denominator)
        if not ours or not theirs:
            continue
        limits = [goal_rows.limit({**n, "syncs": syncs_of(numerator)}, {**d, "syncs": syncs_of(denominator)}, cpus=os.cpu_count(),
                                  clients=int(numerator.rpartition("/")[2]), sync_ms=ms) for n, d, ms in zip(ours, theirs, sync_ms)]  # fmt: skip
        goals.append(goal_rows.row(what, wanted[native] and (">=", wanted[native]), statistics.median(n["per_second"] / d["per_second"] for n, d in zip(ours, theirs)),
                                   None if None in limits else statistics.median(limits), of=[numerator, denominator]))  # fmt: skip
    for name in [f"start_finish/{kind}" for kind in ("v7", "v4") if f"start_finish/{kind}" in traces]:
        goals.append(goal_rows.row(f"dead tuples of start and finish, UUID{name.partition('/')[2]}", ("<=", 0), traces[name]["dead_tuples"], of=[name]))
    return goals


def show(medians, traces, goals, trips):
    print(f"\n{'what':<28}{'per second':>12}")
    for name, value in medians.items():
        print(f"{name:<28}{value:>12,.0f}")
    if traces:
        print(f"\n{'what one intent leaves':<28}{'WAL bytes':>12}{'dead tuples':>14}{'HOT updates':>14}")
    for name, row in traces.items():
        hot = "-" if row["hot_updates"] is None else f"{row['hot_updates']:.0%}"
        print(f"{name:<28}{row['wal_bytes']:>12,}{row['dead_tuples']:>14.3f}{hot:>14}")
    if trips:
        print("\nround trips of one transaction: " + ", ".join(f"{way} {count}" for way, count in trips.items()))
    goal_rows.show(goals, "at 16 clients unless it says otherwise")


class Run:
    """What was measured so far, and what becomes of it."""

    def __init__(self, bench, options, about):
        self.bench, self.options, self.about = bench, options, about
        self.rounds, self.sync_ms, self.traces, self.finished = {}, [], {}, 0

    def measure(self, ways):
        """All of it."""
        start = time.monotonic()
        for number in range(1, self.options.rounds + 1):
            self.sync_ms.append(self.bench.sync_ms())
            for name, measure in ways:
                self.rounds.setdefault(name, []).append(measure())
            self.finished = number
            goals = [goal for goal in self.goals() if goal["met"] is not None]
            missed = "".join(f"; {goal['what'].strip()} ({goal['of'][0]}): {goal['measured']:.2f}" for goal in goals if not goal["met"])
            print(
                f"bench: round {number} of {self.options.rounds} is done after {time.monotonic() - start:.0f} s; "
                f"of {len(goals)} goals {sum(goal['met'] for goal in goals)} are met{missed}",
                file=sys.stderr,
                flush=True,
            )
            self.write(whole=False)
        for name in ("start_finish", "leased"):
            for kind in ("v7", "v4"):
                self.traces[f"{name}/{kind}"] = self.bench.traces(name, kind, transactions=self.options.traced)
        self.traces["leased_64/v7"] = self.bench.traces("leased_many", "v7", count=64, transactions=self.options.traced // 40)

    def through(self, ways):
        """To the end, or until a signal comes. Returns the exit status."""
        with round_of.until_interrupted(lambda: f"{self.finished} of {self.options.rounds} rounds") as ended:
            self.measure(ways)
        show(self.medians("per_second"), self.traces, self.goals(), self.bench.trips)
        self.write(whole=ended.status == 0)
        return ended.status

    def values(self, field):
        return {name: [row[field] for row in rows] for name, rows in self.rounds.items() if field in rows[0]}

    def medians(self, field):
        return {name: statistics.median(values) for name, values in self.values(field).items()}

    def goals(self):
        return judge(self.rounds, self.traces, self.options.native, self.sync_ms)

    def write(self, whole):
        """A part of it into another file."""
        told = {
            **self.about,
            "rounds": self.finished,
            "sync_ms": self.sync_ms,
            "per_second": self.values("per_second"),
            "cpu_us": self.values("cpu_us"),
            "medians": self.medians("per_second"),
            "round_trips": self.bench.trips,
            "traces": self.traces,
            "goals": self.goals(),
        }
        round_of.write(self.options.json, told, whole)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one round of two seconds, in which 64 clients connect on a busy machine, too: to see that it runs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--traced", type=int, default=4000, help="transactions whose traces (WAL, dead tuples) are counted, of each kind")
    parser.add_argument("--seconds", type=float, default=2, help="of each way in each round (whole seconds)")
    parser.add_argument("--only", help="a regular expression of the ways to measure")
    parser.add_argument("--native", action="store_true", help="with pgonce_native, from build/native")
    parser.add_argument("--json", metavar="FILE", help="write everything as JSON, too")
    add_disk_option(parser)
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds, options.traced = 1, 2, 400
    options.seconds = max(1, int(options.seconds))

    with contextlib.ExitStack() as stack:
        disk = disk_of(options, stack)
        server = stack.enter_context(Postgres(fsync=True, settings=SETTINGS, environment=disk.environment if disk else None))
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
        speed = slow_down(disk, options, server.directory)
        print(
            f"bench: PostgreSQL {server.version}, {os.cpu_count()} CPUs, {speed}; {len(ways)} ways, "
            f"{options.rounds} rounds of {options.seconds} s each: "
            f"about {len(ways) * options.rounds * (options.seconds + 0.3) / 60:.0f} minutes",
            flush=True,
        )
        about = {
            "postgresql": server.version,
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "partitions": bench.database.value("SELECT count(*) FROM pg_inherits WHERE inhparent = 'once.intent'::regclass"),
            "native": options.native,
            "fsync_ms": options.fsync_ms,
            "disk": speed,
            "seconds": options.seconds,
            "settings": SETTINGS,
        }
        sys.exit(Run(bench, options, about).through(ways))


if __name__ == "__main__":
    main()
