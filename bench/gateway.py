#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""The gateway's benchmark, as ratios within one run: `make bench-gateway` calls it.

Compared, before the same kind of service that answers at once: nginx with the module, with once_replay_cache besides, plain nginx, and a peer: an Express
application with @node-idempotency/core on Redis, which appends to its file and syncs it always, as PostgreSQL with fsync on does, or every second, and then may lose
what it answered in the last one. In each round every way runs for a few seconds, one after the other, at each number of connections, so that
whatever else the machine does meets all of them alike. Printed are medians over the rounds; a ratio is the median of the
rounds' ratios."""

import argparse
import contextlib
import http.client
import json
import os
import pathlib
import random
import re
import shutil
import statistics
import subprocess
import sys
import time
import urllib.request

import goals as goal_rows
import rounds as round_of
from measure import (
    BUILD,
    ROOT,
    SETTINGS,
    Missing,
    Process,
    add_disk_option,
    cpu_seconds,
    disk_of,
    fetch_peer,
    find,
    free_port,
    median_row,
    recycle_wal,
    slow_down,
)

from harness.native import install_native, library
from harness.postgres import Postgres, children_of, clean_environment, private_directory, unprivileged

BENCH = ROOT / "bench/gateway"
CONNECTIONS = (1, 8, 64, 256)
REPLAYED = 1000


def memory_kb(pid):
    """Of a process alone: what it shares with others does not grow by its own doing."""
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


NGINX = """
{load}
worker_processes 1;
daemon off;
pid {directory}/{name}.pid;
lock_file {directory}/{name}.lock;
error_log stderr warn;
events {{ worker_connections 2048; }}
http {{
    access_log off;
    default_type application/json;
    keepalive_requests 100000000;
    client_body_temp_path {directory}/{name}.body;
    proxy_temp_path {directory}/{name}.proxy;
    fastcgi_temp_path {directory}/{name}.fastcgi;
    uwsgi_temp_path {directory}/{name}.uwsgi;
    scgi_temp_path {directory}/{name}.scgi;
    {http}
}}
"""
PROXY = """
    upstream service {{ server unix:{directory}/upstream.sock; keepalive 256; keepalive_requests 100000000; }}
    {http}
    server {{
        listen 127.0.0.1:{port} backlog=1024;
        location / {{
            {location}
            proxy_pass http://service;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
        }}
        {server}
    }}
"""


def nginx(name, directory, configured, address, module=None):
    configuration = directory / f"{name}.conf"
    load = f"load_module {module};" if module else ""
    configuration.write_text(NGINX.format(load=load, directory=directory, name=name, http=configured))
    command = [find("nginx", "nginx"), "-p", directory, "-c", configuration, "-e", "stderr"]
    return Process(name, command, directory, address)


def redis(name, directory, fsync, environment):
    place = directory / name
    place.mkdir()
    user = unprivileged()[1]
    if user:
        os.chown(place, user.pw_uid, user.pw_gid)
    command = [find("redis-server", "redis-server"), "--port", "0", "--unixsocket", place / "redis.sock", "--dir", place]
    command += ["--appendonly", "yes", "--appendfsync", fsync, "--save", ""]
    return Process(name, command, directory, str(place / "redis.sock"), environment)


# ---- The bench ----


class Bench:
    def __init__(self, options, stack):
        self.options, self.stack = options, stack
        self.directory = private_directory("pgonce-bench-")
        stack.callback(shutil.rmtree, self.directory, ignore_errors=True)
        disk = disk_of(options, stack)
        self.slow = disk.environment if disk else {}
        self.server = stack.enter_context(Postgres(fsync=True, settings=SETTINGS, environment=self.slow))
        self.database = self.server.new_database()
        if options.native:
            install_native(self.database)
        recycle_wal(self.database)
        self.ports, self.processes, self.seeds, self.left_out = {}, {}, {}, {}
        self.start_nginxes()
        if not options.no_peer:
            self.start_peers()
        self.disk = slow_down(disk, options, self.server.directory)

    def keep(self, process):
        self.processes[process.name] = self.stack.enter_context(process)

    def start_nginxes(self):
        upstream = f"server {{ listen unix:{self.directory}/upstream.sock backlog=1024;" \
                   """ location / { return 201 '{"charge":17,"status":"paid"}'; } }"""
        self.keep(nginx("upstream", self.directory, upstream, str(self.directory / "upstream.sock")))
        module = self.directory / "module.so"
        built = BUILD / "gateway/ngx_http_once_module.so"
        if not built.exists():
            sys.exit(f"bench: {built} is not built (make)")
        shutil.copy(built, module)
        module.chmod(0o755)
        for name in ("plain", "gateway", "cached"):
            self.ports[name] = free_port()
            once = name != "plain"
            cache = "once_replay_cache zone=replays:32m;" if name == "cached" else ""
            proxy = PROXY.format(
                directory=self.directory, port=self.ports[name],
                http=f'once_database "{self.database.dsn()}"; once_prepare on; {cache}' if once else "",
                location="once required; once_scope bench; once_tenant none;" if once else "",
                server="location = /once/status { once_status json; }" if once else "",
            )
            self.keep(nginx(name, self.directory, proxy, ("127.0.0.1", self.ports[name]), module if once else None))

    def start_peers(self):
        try:
            copy = fetch_peer(BENCH)
        except Missing as why:
            self.left_out["the peer on Redis"] = str(why)
            return
        self.stack.callback(shutil.rmtree, copy, ignore_errors=True)
        for fsync in ("everysec", "always"):
            name = f"peer_{fsync}"
            self.keep(redis(f"redis_{fsync}", self.directory, fsync, self.slow))
            port = self.ports[name] = free_port()
            command = ["env", "-C", copy / "peer", "NODE_ENV=production", find("node", "nodejs"), "peer.js", port,
                       self.directory / f"redis_{fsync}/redis.sock"]
            self.keep(Process(name, command, self.directory, ("127.0.0.1", port)))

    def load(self, name, connections, *arguments, seconds):
        threads = min(connections, 2)
        command = [find("wrk", "wrk"), "-t", str(threads), "-c", str(connections), "-d", f"{seconds}s", "--timeout", "10s",
                   "-s", str(BENCH / "load.lua"), f"http://127.0.0.1:{self.ports[name]}/pay", "--", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode != 0 or len(lines) != 1:
            sys.exit(f"bench: wrk failed:\n{done.stdout}{done.stderr}")
        result = json.loads(lines[0])
        if result["errors"] or result["refused"]:
            sys.exit(f"bench: {name} at {connections} connections: {result['errors']} connections failed, "
                     f"{result['refused']} answers are no 2xx:\n{done.stdout}")
        return result

    def store(self, name, seed):
        """The intents that load.lua replays, one after the other."""
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[name], timeout=30)
        (body,) = re.findall(r"^local body = '(.*)'$", (BENCH / "load.lua").read_text(), re.M)
        for number in range(REPLAYED):
            headers = {"Content-Type": "application/json", "Idempotency-Key": f'"replay-{seed}-{number}"'}
            connection.request("POST", "/pay", body, headers)
            answer = connection.getresponse()
            answer.read()
            if answer.status != 201:
                sys.exit(f"bench: {name} answers {answer.status}")
        connection.close()

    def measure(self, way, connections):
        """requests/s, latencies in ms, CPU seconds by part, and what PostgreSQL and the gateway counted meanwhile."""
        name, kind = way
        if kind == "replay" and name not in self.seeds and name != "plain":
            self.seeds[name] = random.randrange(10**9)
            self.store(name, self.seeds[name])
        arguments = ("replay", self.seeds.get(name, 1), REPLAYED) if kind == "replay" else ("unique", random.randrange(10**9))
        before = self.counts(name)
        own = os.times()
        result = self.load(name, connections, *arguments, seconds=self.options.seconds)
        wrk = sum(os.times()[2:4]) - sum(own[2:4])
        after = self.counts(name)
        requests = result["requests"]
        row = {
            "per_second": requests / result["us"] * 1e6,
            "p50_ms": result["p50_us"] / 1000,
            "p99_ms": result["p99_us"] / 1000,
            "cpu": {part: after["cpu"][part] - before["cpu"][part] for part in after["cpu"]} | {"wrk": wrk},
        }
        # What a request takes of the time of all CPUs, by part. Idle: what none of them used, on a machine of its own.
        row["us"] = {part: seconds / requests * 1e6 for part, seconds in row["cpu"].items()}
        row["us"]["idle"] = max(0.0, os.cpu_count() * result["us"] / requests - sum(row["us"].values()))
        if name in ("gateway", "cached"):
            row["batch"] = {
                part: self.quotient(after, before, "operations", "batches", part) for part in ("claims", "reports")
            }
            row["fsyncs_per_request"] = (after["fsyncs"] - before["fsyncs"]) / requests
        return row

    @staticmethod
    def quotient(after, before, above, below, part):
        below_count = after["status"][below][part] - before["status"][below][part]
        return (after["status"][above][part] - before["status"][above][part]) / below_count if below_count else 0.0

    def status(self, name):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[name]}/once/status", timeout=30) as answer:
            return json.load(answer)

    def sync_ms(self):
        return goal_rows.sync_ms(self.server.directory, self.options.fsync_ms)

    def counts(self, name):
        parts = {"plain": ("plain", "upstream"), "gateway": ("gateway", "upstream"), "cached": ("cached", "upstream")}
        parts = parts.get(name, (name, name.replace("peer", "redis")))
        found = {"cpu": {part: cpu_seconds(self.processes[part].pids()) for part in parts}}
        if name in ("gateway", "cached"):
            server = self.server.process.pid
            found["cpu"]["postgresql"] = cpu_seconds([server, *children_of(server)])
            found["status"] = self.status(name)
            found["fsyncs"] = self.fsyncs()
        return found

    def fsyncs(self):
        """A backend reports what it counted when a transaction ends, at most once a second: so one more, a second later."""
        time.sleep(1.1)
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.ports['gateway']}/pay", data=b"{}", method="POST",
            headers={"Idempotency-Key": f'"report-{time.monotonic_ns()}"', "Content-Type": "application/json"},
        )
        urllib.request.urlopen(request, timeout=30).close()
        if self.server.version >= 18:
            query = "SELECT sum(fsyncs)::bigint FROM pg_stat_io WHERE object = 'wal'"
        else:
            query = "SELECT wal_sync FROM pg_stat_wal"
        return self.database.value(query)

    def memory(self):
        """Of the gateway's worker under 64 connections, after more and more requests."""
        (worker,) = children_of(self.processes["gateway"].process.pid)
        rows, requests = [], 0
        for _ in range(6):
            requests += self.load("gateway", 64, "unique", random.randrange(10**9), seconds=self.options.memory_seconds)["requests"]
            rows.append({"requests": requests, "kb": memory_kb(worker)})
        return rows


WAYS = [("plain", "unique"), ("gateway", "unique"), ("gateway", "replay"), ("cached", "replay"), ("peer_always", "unique"),
        ("peer_always", "replay"), ("peer_everysec", "unique"), ("peer_everysec", "replay")]
# Durable writes that a request waits for, one after the other: the claim, and the answer.
SYNCS = {"gateway/unique": 2, "peer_always/unique": 2}
SEVERAL_THREADS = ("postgresql", "wrk", "idle")  # all other parts have one thread each
# What the gateway of an earlier commit reached on a slow disk, on the same machine (null: it was not measured there): bench/RESULTS.md says how.
BEFORE = json.loads((BENCH / "before.json").read_text())

# (what, numerator, denominator, connections, what is compared, at least or at most, with the contract in SQL, with pgonce_native; None: no goal)
GOALS = [
    *(("unique keys, of the peer, always", "gateway/unique", "peer_always/unique", connections, "per_second", ">=", 1, 1) for connections in CONNECTIONS),
    *(("unique keys, of the peer, everysec", "gateway/unique", "peer_everysec/unique", connections, "per_second", ">=", None, None) for connections in CONNECTIONS),
    ("unique keys, of plain nginx", "gateway/unique", "plain/unique", 64, "per_second", ">=", None, None),
    ("unique keys, of plain nginx", "gateway/unique", "plain/unique", 8, "per_second", ">=", None, None),
    ("replays from memory, of plain nginx", "cached/replay", "plain/unique", 64, "per_second", ">=", 1.2, 1.2),
    ("replays of the database, of plain nginx", "gateway/replay", "plain/unique", 64, "per_second", ">=", None, None),
    ("p99 of unique keys, of plain nginx's", "gateway/unique", "plain/unique", 64, "p99_ms", "<=", 2.5, 2.2),
    ("replays, of the peer, always", "gateway/replay", "peer_always/replay", 64, "per_second", ">=", None, None),
]
# Of --fsync-ms: a disk, not a CPU, decides, so what is a share of plain nginx, which writes nothing, has no goal.
SLOW_GOALS = [goal for goal in GOALS if goal[0].startswith("unique keys, of the peer")]

CONTRACTS = ("with the contract in SQL", "with pgonce_native")  # whose goals count


def side(way, row):
    """What bench/goals.py reckons with."""
    parts = {part: us for part, us in row["us"].items() if part != "idle"}
    return {"cpu_us": sum(parts.values()), "syncs": SYNCS.get(way, 0), "alone_us": max([0, *(us for part, us in parts.items() if part not in SEVERAL_THREADS)])}


def judge(rounds, native, sync_ms, fsync_ms=0):
    """sync_ms: of each round."""
    goals = []
    for what, above, below, connections, field, sense, *wanted in SLOW_GOALS if fsync_ms else GOALS:
        numerators, denominators = rounds.get((above, connections)), rounds.get((below, connections))
        if not numerators or not denominators:
            continue
        limits = [goal_rows.limit(side(above, n), side(below, d), cpus=os.cpu_count(), clients=connections, sync_ms=ms)
                  for n, d, ms in zip(numerators, denominators, sync_ms)] if field == "per_second" else [None]  # fmt: skip
        goal = None if wanted[native] is None else (sense, wanted[native])
        goals.append(goal_rows.row(what, goal, statistics.median(n[field] / d[field] for n, d in zip(numerators, denominators)),
                                   None if None in limits else statistics.median(limits), connections=connections, of=[above, below, field]))  # fmt: skip
    return goals + against_before(rounds, native, sync_ms, fsync_ms)


def against_before(rounds, native, sync_ms, fsync_ms):
    """Twice what the gateway did at an earlier commit, on a disk as slow."""
    rows, before = rounds.get(("gateway/unique", BEFORE["connections"])), BEFORE["per_second"]["native" if native else "sql"]
    if fsync_ms != BEFORE["fsync_ms"] or not rows or not before:
        return []
    most = [goal_rows.possible(side("gateway/unique", row), cpus=os.cpu_count(), clients=BEFORE["connections"], sync_ms=ms) for row, ms in zip(rows, sync_ms)]
    return [goal_rows.row(f"unique keys, of commit {BEFORE['commit']} on this machine", (">=", 2), statistics.median(row["per_second"] for row in rows) / before,
                          statistics.median(most) / before, connections=BEFORE["connections"], of=["gateway/unique", BEFORE["commit"], "per_second"])]  # fmt: skip


def show(medians, goals, memory, native):
    print(f"\n{'way':<24}{'connections':>12}{'per second':>12}{'p50 ms':>9}{'p99 ms':>9}   CPU time of a request, us")
    for (way, connections), row in medians.items():
        split = ", ".join(f"{part} {us:.0f}" for part, us in row["us"].items())
        print(f"{way:<24}{connections:>12}{row['per_second']:>12,.0f}{row['p50_ms']:>9.2f}{row['p99_ms']:>9.2f}   {split}")
    print(f"\n{'the gateway':<24}{'connections':>12}{'claims/batch':>14}{'reports/batch':>15}{'requests/fsync':>16}")
    for (way, connections), row in medians.items():
        if "batch" in row:
            fsyncs = row["fsyncs_per_request"]
            per_fsync = f"{1 / fsyncs:.1f}" if fsyncs > 0 else "-"
            print(f"{way:<24}{connections:>12}{row['batch']['claims']:>14.1f}{row['batch']['reports']:>15.1f}{per_fsync:>16}")
    if memory:
        print("\nmemory of the worker's own, KB after requests: "
              + ", ".join(f"{row['kb']:,} after {row['requests']:,}" for row in memory))
    goal_rows.show([{**goal, "what": f"{goal['what']}, at {goal['connections']}"} for goal in goals], f"goal, {CONTRACTS[native]}, at so many connections")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="one round of one second: to see that it runs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=4, help="of each way, in each round, at each number of connections")
    parser.add_argument("--memory-seconds", type=int, default=8, help="between two looks at the worker's memory (0: none)")
    parser.add_argument("--connections", type=int, nargs="+", help=f"default: {' '.join(map(str, CONNECTIONS))}")
    parser.add_argument("--no-peer", action="store_true", help="only nginx, without and with the module")
    parser.add_argument("--native", action="store_true", help="with pgonce_native, from build/native (PGONCE_NATIVE=yes does the same)")
    parser.add_argument("--json", metavar="FILE", help="write everything as JSON, too")
    add_disk_option(parser)
    options = parser.parse_args()
    options.native = options.native or os.environ.pop("PGONCE_NATIVE", "") == "yes"
    if options.native and not library().exists():
        sys.exit(f"bench: {library()} is not built: the server's headers are missing (apt-get install postgresql-server-dev-15 or the like)")
    if options.quick:
        options.rounds, options.seconds, options.memory_seconds = 1, 1, 1
    options.connections = options.connections or ((1, 64) if options.quick else CONNECTIONS)
    with contextlib.ExitStack() as stack:
        bench = Bench(options, stack)
        ways = [way for way in WAYS if way[0] in bench.ports]
        cases = [(way, connections) for connections in options.connections for way in ways]
        print(f"bench: PostgreSQL {bench.server.version} {CONTRACTS[options.native]}, {os.cpu_count()} CPUs, {bench.disk}; {len(cases)} cases, "
              f"{options.rounds} rounds of {options.seconds} s each: about {len(cases) * options.rounds * (options.seconds + 1.5) / 60:.0f} minutes",
              flush=True)
        rounds, sync_ms, memory, whole = {("/".join(way), connections): [] for way, connections in cases}, [], [], 0
        with round_of.until_interrupted(lambda: f"{whole} of {options.rounds} rounds") as ended:
            for number in range(options.rounds):
                sync_ms.append(bench.sync_ms())
                for way, connections in cases:
                    rounds["/".join(way), connections].append(bench.measure(way, connections))
                whole = number + 1
                goals = [goal for goal in judge(rounds, options.native, sync_ms, options.fsync_ms) if goal["met"] is not None]
                print(f"bench: round {whole} of {options.rounds} is done; of {len(goals)} goals {sum(goal['met'] for goal in goals)} are met", file=sys.stderr, flush=True)
            memory = bench.memory() if options.memory_seconds > 0 else []
        version = bench.server.version
    medians = {case: median_row(rows) for case, rows in rounds.items() if rows}
    goals = judge(rounds, options.native, sync_ms, options.fsync_ms)
    show(medians, goals, memory, options.native)
    for what, why in bench.left_out.items():
        print(f"left out: {what}: {why}")
    round_of.write(options.json, {
        "postgresql": version, "cpus": os.cpu_count(), "native": options.native, "fsync_ms": options.fsync_ms, "disk": bench.disk, "rounds": whole,
        "seconds": options.seconds, "sync_ms": sync_ms, "measured": [{"way": way, "connections": connections, **row} for (way, connections), row in medians.items()],
        "memory": memory, "goals": goals, "left_out": bench.left_out,
    }, ended.status == 0)  # fmt: skip
    sys.exit(ended.status)


if __name__ == "__main__":
    main()
