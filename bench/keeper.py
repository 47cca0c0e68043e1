#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""The benchmark of keeping: what it costs the claims that run meanwhile. `make bench-keeper` calls it.

Retiring: a day of PGONCE_BENCH_ROWS expired intents (5,000,000) is retired by the keeper's steps, while clients claim; against DELETE in
batches and VACUUM of the same rows, in turns, in one run, each measured against the claims of the seconds before it. How long an exclusive
lock was held is bounded from above: the whole duration of every transaction that takes one, its waiting included.
Storing: the latency of a claim with 50,000 intents stored and with four times PGONCE_BENCH_ROWS, in turns, for UUIDv7 and UUIDv4 keys; without
the commit's wait for the disk, which is the same for both and would hide what differs.
Days: what a catalogue with 366 days ahead and as many behind costs a backend, in memory and in time.
Medians over the rounds; the longest lock is the worst of all rounds. The server is private, with fsync on."""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import time
import uuid

import goals as goal_rows
import rounds as round_of
from measure import ROOT, SETTINGS, clean_environment, median_row, recycle_wal, wait_until
from run import FINGERPRINT, KEY, MS_BACK, PRELUDE, find_program

sys.path.insert(0, str(ROOT / "tests"))
from harness.postgres import Postgres  # noqa: E402

CLIENTS = 4
WARM_UP_S = 3
BATCH_PAGES = 500  # of a DELETE: about 10,000 rows
SMALL = 50_000
SURVIVORS = 100  # in doubt: they outlive their day
CLAIM = f"SELECT verdict FROM once.claim('bench', {KEY}, {FINGERPRINT}, 'bench');\n"
# Intents that succeeded a moment after their keys were made.
FILL = """
    INSERT INTO {table} (created_at, updated_at, completed_at, bucket, fence, attempts, state, tenant, scope, key, fingerprint, owner,
                         response_status, response_body)
    SELECT t.at, t.at, t.at, {leaf}, 1, 1, CASE WHEN i <= {doubtful} THEN 'in_doubt' ELSE 'succeeded' END::once.state, '', 'bench',
           encode(int8send({left}) || int8send('-9223372036854775808' | (hashint8extended(i, 0) & 1152921504606846975)), 'hex')::uuid::text,
           sha256(int8send(i)), 'bench', 201, '\\x00112233445566778899001122334455'
      FROM generate_series(1, {rows}::bigint) AS i,
           LATERAL (SELECT {first_ms} + i * {span_ms} / {rows} AS ms OFFSET 0) AS m,
           LATERAL (SELECT to_timestamp(m.ms / 1000.0) AS at OFFSET 0) AS t"""
# The first 64 bits of a key. They rise, so that the index is made fast; made anew, it is packed as a week of splits leaves none, for few and many alike.
KEYS = {
    "v7": "(m.ms << 16) | 28672 | (i & 4095)",
    "v4": "((-9223372036854775807 + i * (9223372036854775807 / {rows})) & ~61440) | 16384",
}
LOADERS = 2  # days that are filled at once
RETIRING = ("close", "doubt", "move", "detach", "drop")
DAYS = (2, 366)  # ahead, for the size of the catalogue
DAY_MS = 86_400_000


def today():
    return int(time.time() // 86400)


class Load:
    """Clients that claim new intents, each in a transaction of its own, until it is left; when each claim ended, and how long it took."""

    def __init__(self, database, scratch, kind="v7", clients=CLIENTS, flush=True):
        self.scratch = scratch / "load"
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir()
        script = self.scratch / "claim.sql"
        script.write_text(PRELUDE[kind] + CLAIM)
        ms = int(time.time() * 1000) - MS_BACK
        self.command = [find_program("pgbench"), "-n", "-M", "prepared", "-c", str(clients), "-j", str(min(clients, 2)), "-T", "36000", "-l",
                        f"--log-prefix={self.scratch}/log", "-D", "n=0", "-D", f"ms={ms}", "-f", str(script), database.dsn("bench")]
        self.environment = {**clean_environment(), "PGOPTIONS": "" if flush else "-c synchronous_commit=off"}
        self.errors = self.scratch / "errors"

    def __enter__(self):
        with open(self.errors, "wb") as errors:
            self.process = subprocess.Popen(self.command, stdout=errors, stderr=errors, env=self.environment)
        wait_until(lambda: self.process.poll() is not None or any(path.stat().st_size for path in self.logs()), "the first claims")
        return self

    def __exit__(self, *_):
        if self.process.poll() is not None:
            sys.exit(f"bench: the clients ended:\n{self.errors.read_text()[-2000:]}")
        self.process.terminate()  # SIGINT is ignored by what a shell starts in the background
        self.process.wait(60)

    def logs(self):
        return list(self.scratch.glob("log.*"))

    def claims(self):
        """(when it ended, milliseconds) each, sorted. What each of pgbench's threads wrote last may be missing, half a line too."""
        found = []
        for path in self.logs():
            for line in path.read_text().rpartition("\n")[0].splitlines():
                fields = line.split()
                found.append((int(fields[4]) + int(fields[5]) / 1e6, int(fields[2]) / 1e3))
        return sorted(found)


def summary(claims, begin, end):
    """Of the claims that ended between the two."""
    times = sorted(ms for at, ms in claims if begin <= at < end)
    if len(times) < 100:
        sys.exit(f"bench: only {len(times)} claims in {end - begin:.1f} s")
    return {
        "per_second": len(times) / (end - begin),
        **{f"p{share}": times[int(len(times) * float(share) / 100)] for share in ("50", "99", "99.9")},
        "most": times[-1],
    }


class Bench:
    def __init__(self, server, options):
        self.server, self.options = server, options
        self.scratch = pathlib.Path(server.directory) / "bench"
        self.scratch.mkdir()
        server.connect().cursor().execute("CREATE ROLE bench LOGIN")
        self.next_day = today() - 300
        self.databases = {}

    def database(self, name):
        if name not in self.databases:
            made = self.databases[name] = self.server.new_database()
            made.execute("GRANT once_app TO bench")
            made.execute("SELECT once.set_keeping(clock_settle => '0')")
            # Nobody completes what is claimed here. As stale attempts they would be the keeper's work, and come faster than it goes.
            made.execute("SELECT once.set_scope('bench', lease => '1 day')")
            made.execute("UPDATE once.setting SET closed_before = %s", self.next_day)
        return self.databases[name]

    # ---- retiring

    def add_day(self, database):
        """A day that is past the horizon, full of intents; vacuumed and known to the planner, as its own week has left it."""
        day = self.next_day
        self.next_day += 1
        self.fill(database, day, self.options.rows, "v7", day * DAY_MS, DAY_MS - 1, SURVIVORS, settled=True)
        database.execute("CHECKPOINT")
        return day

    @staticmethod
    def fill(database, leaf, rows, kind, first_ms, span_ms, doubtful=0, settled=False):
        """Puts a partition that is full in the place of an empty one, or of none. Row by row through the parent's index takes ten times as long. In the
        transaction that makes the table, wal_level = minimal writes no WAL. settled: as its own week has left it; else no vacuum comes near it."""
        began, table = time.monotonic(), f"once.filled_d{leaf}"
        cursor = database.connect().cursor()
        cursor.execute("SET maintenance_work_mem = '1GB'; BEGIN")
        cursor.execute(f"CREATE TABLE {table} (LIKE once.intent INCLUDING ALL EXCLUDING INDEXES) WITH (fillfactor = 50,"
                       f" autovacuum_enabled = {str(settled).lower()})")  # fmt: skip
        cursor.execute(FILL.format(table=table, leaf=leaf, rows=rows, left=KEYS[kind].format(rows=rows), first_ms=first_ms, span_ms=span_ms,
                                   doubtful=doubtful))  # fmt: skip
        cursor.execute(f"ALTER TABLE {table} ADD PRIMARY KEY (scope, key, tenant, bucket)")
        cursor.execute("COMMIT")
        cursor.execute(f"SELECT count(*) FROM {table} WHERE once._bucket(key) <> {leaf} AND ctid < '(10,0)'::tid")
        assert cursor.fetchone()[0] == 0, "keys of another day"
        cursor.execute(f"VACUUM (FREEZE, ANALYZE) {table}" if settled else f"ANALYZE {table}")
        cursor.execute(f"DROP TABLE IF EXISTS once.intent_d{leaf}")
        cursor.execute(f"ALTER TABLE {table} RENAME TO intent_d{leaf}")
        cursor.execute(f"ALTER TABLE once.intent ATTACH PARTITION once.intent_d{leaf} FOR VALUES FROM ({leaf}) TO ({leaf + 1})")
        cursor.connection.close()
        print(f"bench: {rows:,} intents stored in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)

    def beside_claims(self, way):
        """Runs way(database, day) on a new day while clients claim."""
        database = self.database("retiring")
        day = self.add_day(database)
        size = "SELECT coalesce(pg_total_relation_size(to_regclass(%s)), 0)"
        bytes_before = database.value(size, f"once.intent_d{day}")
        with Load(database, self.scratch) as load:
            time.sleep(WARM_UP_S)
            started = time.time()
            time.sleep(self.options.least)
            lsn, begin = database.value("SELECT pg_current_wal_insert_lsn()"), time.time()
            locked, work = way(database, day)
            end = time.time()
            wal = database.value("SELECT pg_current_wal_insert_lsn() - %s::pg_lsn", lsn)
            time.sleep(max(1.0, self.options.least - (end - begin)))
        claims = load.claims()
        before, meanwhile = summary(claims, started, begin), summary(claims, begin, max(end, begin + self.options.least - 1))
        measured = {
            "seconds": end - begin,
            "exclusive_ms": 1000 * locked,
            "work": work,
            "wal_mb": (float(wal)) / 1e6,
            "mb_given_back": float(bytes_before - database.value(size, f"once.intent_d{day}")) / 1e6,
            "of_before": meanwhile["per_second"] / before["per_second"],
            "before": before,
            "meanwhile": meanwhile,
        }
        if database.value("SELECT to_regclass(%s)", f"once.intent_d{day}") is not None:
            database.execute(f"ALTER TABLE once.intent DETACH PARTITION once.intent_d{day}")
            database.execute(f"DROP TABLE once.intent_d{day}")
        elif database.value("SELECT count(*) FROM once.archive WHERE bucket = %s AND state = 'in_doubt'", day) != SURVIVORS:
            sys.exit("bench: an intent in doubt was deleted")
        return measured

    def retire(self, database, day):
        """The steps of a keeper's round, as `pgonce keep` takes them, with its pauses. Returns the seconds of the transactions that took an exclusive
        lock on what claims use (once.intent, or a partition that was in it), and those that each step worked."""
        connection = database.connect(autocommit=False)
        free = database.connect()
        cursor, locked, work = connection.cursor(), 0.0, {}
        cursor.execute("SET application_name = 'keeper'; SELECT pg_backend_pid(), once_job.keep_take('bench', '1 hour')")
        connection.commit()
        cursor.execute("SELECT step FROM once_job.keep_steps() ORDER BY ord")
        steps = [row.step for row in cursor.fetchall()]
        connection.commit()
        for step in steps:
            more = True
            while more:
                begin = time.monotonic()
                cursor.execute("SELECT * FROM once_job.keep_step('bench', %s, true)", (step,))
                row = cursor.fetchone()
                cursor.execute("SELECT EXISTS (SELECT FROM pg_locks WHERE pid = pg_backend_pid() AND mode = 'AccessExclusiveLock'"
                               " AND relation IN (SELECT oid FROM pg_class WHERE relname ~ '^intent'))")  # fmt: skip
                exclusive = cursor.fetchone()[0]
                connection.commit()
                if row.command:
                    free.cursor().execute(row.command)
                    exclusive = True
                took = time.monotonic() - begin
                locked += took if exclusive else 0
                work[step] = work.get(step, 0.0) + took
                more = row.more
                time.sleep(min(self.options.pace * took, 5))
        cursor.execute("SELECT once_job.keep_release('bench')")
        connection.commit()
        if database.value("SELECT to_regclass(%s)", f"once.intent_d{day}") is not None:
            sys.exit("bench: the day is not retired")
        return locked, {step: took for step, took in work.items() if step in RETIRING}

    @staticmethod
    def delete(database, day):
        """What one does without partitions: DELETE of what has expired, some pages at a time, each in its own transaction, and VACUUM."""
        pages = database.value(f"SELECT pg_relation_size('once.intent_d{day}') / 8192")
        for first in range(0, pages, BATCH_PAGES):
            database.execute(
                f"DELETE FROM once.intent_d{day} WHERE ctid >= %s::tid AND ctid < %s::tid AND state = 'succeeded' AND completed_at < now()",
                f"({first},0)",
                f"({first + BATCH_PAGES},0)",
            )
        database.execute(f"VACUUM once.intent_d{day}")
        return 0.0, {}

    # ---- storing

    def store(self, kind, stored):
        """A database with so many intents; UUIDv7 keys are of the week up to now."""
        name = f"{kind}/{stored}"
        if name not in self.databases:
            database = self.database(name)
            if kind == "v4":
                self.fill(database, 0, stored, "v4", 1000 * int(time.time()), 0)
            else:
                now_ms = int(time.time() * 1000)

                def fill(day):
                    span = DAY_MS - 1 if day < today() else max(1, now_ms - day * DAY_MS - 2 * MS_BACK)
                    self.fill(database, day, stored // 7, "v7", day * DAY_MS, span)

                with concurrent.futures.ThreadPoolExecutor(LOADERS) as pool:
                    list(pool.map(fill, range(today() - 6, today() + 1)))
            database.execute("CHECKPOINT")
        return self.databases[name]

    def latency(self, kind):
        """Of few and of many, in turns of a second each."""
        measured = {SMALL: [], self.options.stored: []}
        for _ in range(self.options.turns):
            for stored, found in measured.items():
                found.append(self.latency_of(kind, stored))
        return {str(stored): median_row(found) for stored, found in measured.items()} | {
            f"ratio_{share}": statistics.median(many[share] / few[share] for few, many in zip(*measured.values())) for share in ("p50", "p99")
        }

    def latency_of(self, kind, stored):
        with Load(self.store(kind, stored), self.scratch, kind, clients=1, flush=False) as load:
            time.sleep(0.5)
            begin = time.time()
            time.sleep(1)
            end = time.time()
            time.sleep(0.3)
        return summary(load.claims(), begin, end)

    # ---- the catalogue

    def days(self):
        """What partitions of many days cost: `ahead` of them, and as many behind. A backend's memory, and its claims, one after the other."""
        return {f"{ahead} days ahead": self.days_of(ahead) for ahead in DAYS}

    def days_of(self, ahead):
        database = self.server.new_database()
        database.execute("GRANT once_app TO bench")
        horizon = max(7, ahead)
        database.execute("SELECT once.set_keeping(horizon_days => %s, days_ahead => %s)", horizon, ahead)
        database.execute("UPDATE once.setting SET closed_before = %s", today() - horizon)
        database.execute("SELECT once.add_days()")
        database.execute("VACUUM ANALYZE")
        measured = {
            "partitions": database.value("SELECT count(*) FROM pg_inherits WHERE inhparent IN ('once.intent'::regclass, 'once.outbox'::regclass)"),
            "catalogue_mb": float(database.value("SELECT sum(pg_total_relation_size(c.oid)) / 1e6 FROM pg_class AS c WHERE c.relnamespace ="
                                                 " 'pg_catalog'::regnamespace AND c.relkind = 'r'")),  # fmt: skip
        }
        connection = database.connect()
        cursor = connection.cursor()
        cursor.execute("SET synchronous_commit = off")
        cursor.execute("SELECT pg_backend_pid()")
        (pid,) = cursor.fetchone()
        measured["new_kb"] = anonymous_kb(pid)
        times = []
        for number in range(300):
            key = f"{int(time.time() * 1000):012x}7000800000000000{number:04x}"
            begin = time.monotonic()
            cursor.execute("SELECT verdict FROM once.claim('bench', %s, sha256('x'), 'bench')", (str(uuid.UUID(key)),))
            times.append(1000 * (time.monotonic() - begin))
            assert cursor.fetchone()[0] == "new_claim", "a new key is claimed"
        measured["claiming_kb"] = anonymous_kb(pid)
        measured |= {"first_ms": times[0], "p50_ms": statistics.median(times[20:])}
        connection.close()
        with database.connect() as other:
            cursor = other.cursor()
            begin = time.monotonic()
            cursor.execute("SELECT count(*) FROM once.intent; SELECT pg_backend_pid()")  # every partition of it
            measured["all_ms"] = 1000 * (time.monotonic() - begin)
            measured["all_kb"] = anonymous_kb(cursor.fetchone()[0])
        return measured


def anonymous_kb(pid):
    """Memory of a process that is not shared: of a backend its caches, plans and what it works with."""
    return int(re.search(r"RssAnon:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1])


def judge(rounds, options):
    """What was promised, and what came of it."""
    goals = []

    def goal(what, most, measured, at_least=False):
        goals.append(goal_rows.row(what, (">=" if at_least else "<=", most), measured))

    if rounds.get("keeper"):
        goal(f"exclusive lock in all, {options.rows:,} intents, worst round, ms", 1000, max(row["exclusive_ms"] for row in rounds["keeper"]))
        goal("claims/s while the day is retired, of before", 0.95, statistics.median(row["of_before"] for row in rounds["keeper"]), True)
    if rounds.get("v7"):
        for share in ("p50", "p99"):
            ratio = statistics.median(row[f"ratio_{share}"] for row in rounds["v7"])
            goal(f"{share} of a claim with {options.stored:,} UUIDv7 intents, of {SMALL:,}", 1.25, ratio)
    return goals


def show(medians, goals):
    names = ("seconds", "exclusive_ms", "of_before", "wal_mb", "mb_given_back")
    print(f"\n{'way':<12}" + "".join(f"{name:>15}" for name in names))
    for name in ("keeper", "delete"):
        if name in medians:
            print(f"{name:<12}" + "".join(f"{medians[name][column]:>15,.2f}" for column in names))
    columns = ("per_second", "p50", "p99", "p99.9", "most")
    print(f"\n{'claims, ms':<24}" + "".join(f"{column:>12}" for column in columns))
    for name, row in medians.items():
        for part, values in row.items():
            if isinstance(values, dict) and "p99.9" in values:
                print(f"{name + ', ' + part:<24}" + "".join(f"{values[column]:>12,.2f}" for column in columns))
        if "ratio_p50" in row:
            print(f"{name + ', many of few':<24}{'':>12}{row['ratio_p50']:>12,.2f}{row['ratio_p99']:>12,.2f}")
    if "keeper" in medians:
        print("\nseconds of work, without the pauses: " + ", ".join(f"{step} {took:.1f}" for step, took in medians["keeper"]["work"].items()))
    for name, row in medians.get("days", {}).items():
        print(f"{name + ':':<18}" + ", ".join(f"{what} {value:,.1f}" for what, value in row.items()))
    goal_rows.show(goals, "goal")


def main():
    rows = int(os.environ.get("PGONCE_BENCH_ROWS", 5_000_000))
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="one round of few rows: to see that it runs")
    parser.add_argument("--rounds", type=int, help="default: 3; 1 where the rows are more than a million: a round is then minutes")
    parser.add_argument("--rows", type=int, default=rows, help="of the day that is retired (default: PGONCE_BENCH_ROWS, or 5,000,000)")
    parser.add_argument("--stored", type=int, help="intents that are stored for the latency of a claim (default: four times the rows)")
    parser.add_argument("--pace", type=float, default=19, help="the keeper pauses so many times as long as each piece took, as keeper.c does; 0: as with --once")
    parser.add_argument("--least", type=float, default=10, help="seconds of claims before each way, and at least as long beside it")
    parser.add_argument("--turns", type=int, default=10, help="of few and many stored intents in each round")
    parser.add_argument("--only", nargs="+", metavar="WAY", choices=("keeper", "delete", "v7", "v4", "days"))
    parser.add_argument("--json", metavar="FILE", help="write everything as JSON, too")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.rows, options.stored, options.turns, options.least = 1, 50_000, 100_000, 2, 3
    options.stored = options.stored or 4 * options.rows
    options.rounds = options.rounds or (3 if options.rows <= 1_000_000 else 1)
    with Postgres(fsync=True, settings={**SETTINGS, "log_checkpoints": "off", "wal_level": "minimal", "max_wal_senders": "0"}) as server:
        bench = Bench(server, options)
        ways = {"keeper": lambda: bench.beside_claims(bench.retire), "delete": lambda: bench.beside_claims(bench.delete)}
        for kind in ("v7", "v4"):
            ways[kind] = lambda kind=kind: bench.latency(kind)
        ways["days"] = bench.days
        ways = {name: way for name, way in ways.items() if not options.only or name in options.only}
        print(f"bench: PostgreSQL {server.version}, {os.cpu_count()} CPUs, fsync on, {options.rounds} rounds, {CLIENTS} clients", flush=True)
        recycle_wal(bench.database("retiring"))
        rounds = {name: [] for name in ways}
        whole = 0
        with round_of.until_interrupted(lambda: f"{whole} of {options.rounds} rounds") as ended:
            for number in range(options.rounds):
                for name, way in ways.items():
                    rounds[name].append(way())
                    print(f"bench: round {number + 1}: {name} {json.dumps(rounds[name][-1])}", file=sys.stderr, flush=True)
                whole += 1
    medians = {name: median_row(found) for name, found in rounds.items() if found}
    goals = judge(rounds, options)
    show(medians, goals)
    written = {"cpus": os.cpu_count(), "rows": options.rows, "stored": options.stored, "clients": CLIENTS, "pace": options.pace, "rounds": rounds, "medians": medians,
               "goals": goals}  # fmt: skip
    round_of.write(options.json, written, ended.status == 0)
    sys.exit(ended.status)


if __name__ == "__main__":
    main()
