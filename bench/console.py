#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""The benchmark of the console: how fast its pages are while the database works. `make bench-console` calls it.

Four times PGONCE_BENCH_ROWS (5,000,000) intents of a week are stored, and 200 are in doubt. 16 clients claim new intents all the time. Each page is asked
for, one request after the other, all pages in turns. Then: the process's memory, and what the first page weighs with its style and script. The server is
private, with fsync on."""

import argparse
import json
import os
import pathlib
import re
import statistics
import sys
import time
import urllib.parse

import goals as goal_rows
import keeper
import rounds as round_of
from measure import ROOT, SETTINGS, recycle_wal

sys.path.insert(0, str(ROOT / "tests"))
from console.running import Console, make_roles  # noqa: E402
from harness.postgres import Postgres  # noqa: E402

CLIENTS = 16
DOUBTS = 200
SCOPE = "bench"
MOST_MS, MOST_MB, MOST_KB = 100, 64, 100
ASSETS = re.compile(r'(?:href|src)="(/assets/[^"]+)"')


def paths(database):
    """{page: what is asked for}; found and stored answers among them, and what no intent has."""
    (key,) = database.row(f"SELECT key FROM once.intent_d{keeper.today() - 3} LIMIT 1 OFFSET 1000")
    doubt = database.row("SELECT key FROM once.decided_later LIMIT 1")[0]
    asked = {
        "overview": ("/", {}),
        "find, nothing asked": ("/find", {}),
        "find, a key": ("/find", {"q": key}),
        "find, what nothing has": ("/find", {"q": "charge:ch_none"}),
        "find, a state in a scope": ("/find", {"scope": SCOPE, "state": "in_doubt"}),
        "an intent": ("/intent", {"scope": SCOPE, "key": key}),
        "doubts": ("/doubts", {}),
        "a doubt": ("/doubt", {"scope": SCOPE, "key": doubt}),
        "messages": ("/messages", {}),
        "scopes": ("/scopes", {}),
        "a scope": ("/scope", {"scope": SCOPE}),
    }
    return {name: f"{path}?{urllib.parse.urlencode(query)}" if query else path for name, (path, query) in asked.items()}


def put_in_doubt(database):
    """Some intents whose outcome is unknown, which the pages find."""
    database.execute("CREATE TABLE once.decided_later AS SELECT gen_random_uuid()::text AS key FROM generate_series(1, %s)", DOUBTS)
    database.execute(f"SELECT once.claim('{SCOPE}', key, sha256('x'), 'bench') FROM once.decided_later")
    database.execute(f"SELECT once.fail('{SCOPE}', key, 1, NULL, 'timeout', 'no answer') FROM once.decided_later")


def ask(console, path):
    began = time.perf_counter()
    answer = console.ask(path)
    took = 1000 * (time.perf_counter() - began)
    if answer.status != 200:
        sys.exit(f"bench: {path}: {answer.status}\n{answer.text[:2000]}")
    return took, answer


def share(times, part):
    return sorted(times)[min(len(times) - 1, int(len(times) * part))]


def resident_mb(pid):
    return int(re.search(r"VmHWM:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1]) / 1024


def weight_kb(console):
    """What a browser fetches for the first page."""
    _, page = ask(console, "/")
    return (len(page.body) + sum(len(ask(console, each)[1].body) for each in set(ASSETS.findall(page.text)))) / 1024


def judge(found, options):
    goals = [
        goal_rows.row(f"{name}, p95 in ms, {options.stored:,} intents", ("<=", MOST_MS), share(times, 0.95)) for name, times in found["ms"].items() if times
    ]
    if "memory_mb" in found:
        goals.append(goal_rows.row("the process's memory at most, MB", ("<=", MOST_MB), found["memory_mb"]))
        goals.append(goal_rows.row("the first page in all, KB", ("<=", MOST_KB), found["weight_kb"]))
    return goals


def show(found, goals):
    print(f"\n{'page':<28}{'p50 ms':>10}{'p95 ms':>10}{'most ms':>10}")
    for name, times in found["ms"].items():
        if times:
            print(f"{name:<28}{statistics.median(times):>10.1f}{share(times, 0.95):>10.1f}{max(times):>10.1f}")
    print(f"\nclaims/s beside it: {found.get('claims_per_second', 0):,.0f}")
    goal_rows.show(goals, "goal")


def main():
    rows = int(os.environ.get("PGONCE_BENCH_ROWS", 5_000_000))
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="few rows and requests: to see that it runs")
    parser.add_argument("--stored", type=int, default=4 * rows, help="intents (default: four times PGONCE_BENCH_ROWS, or 20,000,000)")
    parser.add_argument("--rounds", type=int, default=100, help="requests of each page")
    parser.add_argument("--json", metavar="FILE", help="write everything as JSON, too")
    options = parser.parse_args()
    if options.quick:
        options.stored, options.rounds = 70_000, 10
    with Postgres(fsync=True, settings={**SETTINGS, "log_checkpoints": "off", "wal_level": "minimal", "max_wal_senders": "0"}) as server:
        options.rows = options.stored  # keeper.Bench looks at it
        bench = keeper.Bench(server, options)
        recycle_wal(bench.database("recycling"))
        database = bench.store("v7", options.stored)
        put_in_doubt(database)
        make_roles(database)
        asked = paths(database)
        print(f"bench: PostgreSQL {server.version}, {os.cpu_count()} CPUs, fsync on, {options.stored:,} intents, {CLIENTS} clients, {options.rounds} requests of each page",
              flush=True)  # fmt: skip
        found, whole = {"ms": {name: [] for name in asked}}, 0
        with Console(bench.scratch, database.dsn("watcher")) as console, keeper.Load(database, bench.scratch, clients=CLIENTS) as load:
            with round_of.until_interrupted(lambda: f"{whole} of {options.rounds} requests of each page") as ended:
                began = time.time()
                for _ in range(options.rounds):
                    for name, path in asked.items():
                        found["ms"][name].append(ask(console, path)[0])
                    whole += 1
                found["claims_per_second"] = sum(at >= began for at, _ in load.claims()) / (time.time() - began)
                found |= {"memory_mb": resident_mb(console.process.pid), "weight_kb": weight_kb(console)}
        version = server.version
    goals = judge(found, options)
    show(found, goals)
    found |= {"postgresql": version, "cpus": os.cpu_count(), "stored": options.stored, "clients": CLIENTS, "goals": goals}
    round_of.write(options.json, found, ended.status == 0)
    sys.exit(ended.status)


if __name__ == "__main__":
    main()
