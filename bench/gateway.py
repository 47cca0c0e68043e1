#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""The gateway's benchmark, as ratios within one run: `make bench-gateway` calls it.

Compared, before the same kind of service that answers at once: nginx with the module, with once_replay_cache besides, plain nginx, and a peer: an Express
application with @node-idempotency/core on Redis, which appends to its file and syncs it every second, or always. PostgreSQL
has fsync on. In each round every way runs for a few seconds, one after the other, at each number of connections, so that
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

from measure import BUILD, ROOT, SETTINGS, Process, cpu_seconds, fetch_peer, find, free_port, median_row, recycle_wal

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


def redis(name, directory, fsync):
    place = directory / name
    place.mkdir()
    user = unprivileged()[1]
    if user:
        os.chown(place, user.pw_uid, user.pw_gid)
    command = [find("redis-server", "redis-server"), "--port", "0", "--unixsocket", place / "redis.sock", "--dir", place]
    command += ["--appendonly", "yes", "--appendfsync", fsync, "--save", ""]
    return Process(name, command, directory, str(place / "redis.sock"))


# ---- The bench ----


class Bench:
    def __init__(self, options, stack):
        self.options, self.stack = options, stack
        self.directory = private_directory("pgonce-bench-")
        stack.callback(shutil.rmtree, self.directory, ignore_errors=True)
        self.server = stack.enter_context(Postgres(fsync=True, settings=SETTINGS))
        self.database = self.server.new_database()
        if options.native:
            install_native(self.database)
        recycle_wal(self.database)
        self.ports, self.processes, self.seeds = {}, {}, {}
        self.start_nginxes()
        if not options.no_peer:
            self.start_peers()

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
        copy = fetch_peer(BENCH)
        self.stack.callback(shutil.rmtree, copy, ignore_errors=True)
        for fsync in ("everysec", "always"):
            name = f"peer_{fsync}"
            self.keep(redis(f"redis_{fsync}", self.directory, fsync))
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


WAYS = [("plain", "unique"), ("gateway", "unique"), ("gateway", "replay"), ("cached", "replay"), ("peer_everysec", "unique"),
        ("peer_everysec", "replay"), ("peer_always", "unique"), ("peer_always", "replay")]

# (what, numerator, denominator, connections, what is compared, at least or at most, with the contract in SQL, with pgonce_native)
GOALS = [
    ("unique keys, of plain nginx", "gateway/unique", "plain/unique", 64, "per_second", ">=", 0.36, 0.45),
    ("unique keys, of plain nginx", "gateway/unique", "plain/unique", 8, "per_second", ">=", 0.13, 0.17),
    ("unique keys, of the peer, everysec", "gateway/unique", "peer_everysec/unique", 64, "per_second", ">=", 3, 4),
    ("unique keys, of the peer, everysec", "gateway/unique", "peer_everysec/unique", 8, "per_second", ">=", 1.2, 1.5),
    ("unique keys, of the peer, everysec", "gateway/unique", "peer_everysec/unique", 1, "per_second", ">=", 0.8, 1),
    ("replays from memory, of plain nginx", "cached/replay", "plain/unique", 64, "per_second", ">=", 1.2, 1.2),
    ("replays of the database, of plain nginx", "gateway/replay", "plain/unique", 64, "per_second", ">=", None, None),
    ("p99 of unique keys, of plain nginx's", "gateway/unique", "plain/unique", 64, "p99_ms", "<=", 2.5, 2.2),
    ("unique keys, of the peer, always", "gateway/unique", "peer_always/unique", 64, "per_second", ">=", None, None),
    ("replays, of the peer, everysec", "gateway/replay", "peer_everysec/replay", 64, "per_second", ">=", None, None),
]


CONTRACTS = ("with the contract in SQL", "with pgonce_native")  # whose goals count


def judge(rounds, native):
    goals = []
    for what, above, below, connections, field, sense, *wanted in GOALS:
        goal = wanted[native]
        numerators, denominators = rounds.get((above, connections)), rounds.get((below, connections))
        if not numerators or not denominators:
            continue
        measured = statistics.median(n[field] / d[field] for n, d in zip(numerators, denominators))
        met = None if goal is None else measured >= goal if sense == ">=" else measured <= goal
        goals.append({"what": what, "connections": connections, "of": [above, below, field],
                      "goal": None if goal is None else f"{sense} {goal}", "measured": round(measured, 3), "met": met})
    return goals


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
    print(f"\n{'goal, ' + CONTRACTS[native]:<44}{'connections':>12}{'goal':>10}{'measured':>10}  met")
    for goal in goals:
        met = "-" if goal["met"] is None else "yes" if goal["met"] else "NO"
        print(f"{goal['what']:<44}{goal['connections']:>12}{goal['goal'] or '-':>10}{goal['measured']:>10.2f}  {met}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="one round of one second: to see that it runs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=4, help="of each way, in each round, at each number of connections")
    parser.add_argument("--memory-seconds", type=int, default=8, help="between two looks at the worker's memory (0: none)")
    parser.add_argument("--connections", type=int, nargs="+", default=CONNECTIONS)
    parser.add_argument("--no-peer", action="store_true", help="only nginx, without and with the module")
    parser.add_argument("--native", action="store_true", help="with pgonce_native, from build/native (PGONCE_NATIVE=yes does the same)")
    parser.add_argument("--json", metavar="FILE", help="write everything as JSON, too")
    options = parser.parse_args()
    options.native = options.native or os.environ.pop("PGONCE_NATIVE", "") == "yes"
    if options.native and not library().exists():
        sys.exit(f"bench: {library()} is not built: the server's headers are missing (apt-get install postgresql-server-dev-15 or the like)")
    if options.quick:
        options.rounds, options.seconds, options.memory_seconds = 1, 1, 1
    with contextlib.ExitStack() as stack:
        bench = Bench(options, stack)
        ways = [way for way in WAYS if way[0] in bench.ports]
        cases = [(way, connections) for connections in options.connections for way in ways]
        print(f"bench: PostgreSQL {bench.server.version} {CONTRACTS[options.native]}, {os.cpu_count()} CPUs, fsync on; {len(cases)} cases, "
              f"{options.rounds} rounds of {options.seconds} s each: about {len(cases) * options.rounds * (options.seconds + 1.5) / 60:.0f} minutes",
              flush=True)
        rounds = {("/".join(way), connections): [] for way, connections in cases}
        for number in range(options.rounds):
            for way, connections in cases:
                rounds["/".join(way), connections].append(bench.measure(way, connections))
            print(f"bench: round {number + 1} of {options.rounds} is done", file=sys.stderr, flush=True)
        memory = bench.memory() if options.memory_seconds > 0 else []
        version = bench.server.version
    medians = {case: median_row(rows) for case, rows in rounds.items()}
    goals = judge(rounds, options.native)
    show(medians, goals, memory, options.native)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps({
            "postgresql": version, "cpus": os.cpu_count(), "native": options.native, "rounds": options.rounds,
            "seconds": options.seconds, "measured": [{"way": way, "connections": connections, **row} for (way, connections), row in medians.items()],
            "memory": memory, "goals": goals,
        }, indent=1) + "\n")
    sys.exit(0)


if __name__ == "__main__":
    main()
