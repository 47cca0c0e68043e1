#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""What a client costs its application, as ratios within one run: `make bench-clients` calls it.

One endpoint, which inserts an order in a transaction and answers with JSON, three times in one service of each language (bench/clients/): as it is, with pgonce's
middleware, and with the middleware that its ecosystem knows best, on Redis, which appends to its file and syncs it always, as PostgreSQL with fsync on does, or every
second, and then may lose what it stored in the last one. In each
round every way runs for a few seconds, one after the other, at 16 connections with a new key for each request; the round before the first warms up and does not
count. Printed are medians over the rounds; a ratio is the median of the rounds' ratios."""

import argparse
import contextlib
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
    ROOT,
    SETTINGS,
    Missing,
    Process,
    accepts,
    add_disk_option,
    cpu_seconds,
    disk_of,
    find,
    free_port,
    median_row,
    recycle_wal,
    slow_down,
    wait_until,
)

from harness.native import install_native, library
from harness.postgres import Postgres, children_of, clean_environment, private_directory, tied, unprivileged

HERE = ROOT / "bench/clients"
CLIENTS = ROOT / "clients"
CACHE = ROOT / ".cache/bench-clients"
CONNECTIONS = 16
# Each with its path in the service, and the Redis that the service has.
WAYS = {"bare": ("bare", "always"), "pgonce": ("pgonce", "always"), "redis_always": ("redis", "always"), "redis_everysec": ("redis", "everysec")}
PEERS = {
    "node": "express-idempotency",
    "python": "asgi-idempotency-header",
    "go": "Fiber's idempotency",
    "java": "a filter over Spring Data Redis",
}
# Durable writes of a new key with Redis that syncs always: what the peer stores there, and the commit.
PEER_SYNCS = {"node": 3, "python": 3, "go": 2, "java": 3}
ONE_THREAD = ("node", "python")
# (what, of which, at least with the contract in SQL, and with pgonce_native)
GOALS = (("pgonce, of bare", "bare", 0.6, 0.6), ("pgonce, of the peer on Redis, always", "redis_always", 0.9, 1.0), ("pgonce, of the peer on Redis, everysec", "redis_everysec", 0.75, 0.9))
# What differs: Python's peer is slow; in SQL PostgreSQL's part alone is more than Go's bare endpoint leaves.
OTHER_GOALS = {("python", "redis_always"): (1.0, 1.0), ("python", "redis_everysec"): (1.0, 1.0), ("go", "bare"): (None, 0.6)}
# Of what a registry's client says where it could not fetch.
UNREACHED = re.compile(r"Could not (?:transfer|resolve|find)|Unknown host|ENOTFOUND|ECONN|ETIMEDOUT|EAI_AGAIN|\bE40\d|No matching distribution|Connection|dial tcp|i/o timeout|Forbidden"
                       r"|Not Found|certificate|Temporary failure|invalid go version|requires go|requires Go|toolchain not available")  # fmt: skip


# ---- the services: what each needs from its registry is kept in .cache/


def run(*command, cwd=None):
    """Quiet where it works. Missing: something could not be fetched."""
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True, check=False, timeout=900)
    said = (done.stdout + done.stderr).strip()
    if done.returncode != 0 and (found := UNREACHED.search(said)):
        line = said[said.rfind("\n", 0, found.start()) + 1 :].partition("\n")[0]
        raise Missing(f"{pathlib.Path(command[0]).name} could not fetch what it needs: {line.strip()[:300]}")
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed:\n{said[-3000:]}")
    return done.stdout


def needs(*programs):
    path = f"{os.environ['PATH']}:/usr/local/go/bin"
    missing = [name for name in programs if not shutil.which(name, path=path)]
    if missing:
        raise Missing(f"{' and '.join(missing)}: missing")
    return [shutil.which(name, path=path) for name in programs]


def node(place):
    program, npm = needs("node", "npm")
    shutil.copy(HERE / "node/package.json", place)
    # npm takes the client for the same while its version is.
    shutil.rmtree(place / "node_modules/pgonce", ignore_errors=True)
    run(npm, "install", "--no-audit", "--no-fund", "--silent", "--install-links", "--no-save", CLIENTS / "node", cwd=place)
    return ["env", "-C", place, "NODE_ENV=production", program, HERE / "node/service.js"]


def python(place):
    program = place / "venv/bin/python"
    if not program.exists():
        run(sys.executable, "-m", "venv", place / "venv")
    run(program, "-m", "pip", "-q", "--disable-pip-version-check", "install", "-r", HERE / "python/requirements.txt")
    # Its version stays the same while it is worked on.
    run(program, "-m", "pip", "-q", "--disable-pip-version-check", "install", "--force-reinstall", "--no-deps", CLIENTS / "python")
    return [program, HERE / "python/service.py"]


def go(place):
    (program,) = needs("go")
    run(program, "build", "-o", place / "service", ".", cwd=HERE / "go")
    return [place / "service"]


def java(place):
    mvn, program, _ = needs("mvn", "java", "javac")
    quiet = [mvn, "-q", "-B", "-DskipTests"]
    run(*quiet, "-f", CLIENTS / "java", "install", "-Dmaven.javadoc.skip", "-Dmaven.source.skip")
    run(*quiet, "-f", HERE / "java", f"-Dtarget={place}/target", "package")
    return [program, "-Xmx384m", "-jar", place / "target/service-1.jar"]


LANGUAGES = {"node": node, "python": python, "go": go, "java": java}


class Service:
    """In the foreground; ended with this program. As whoever calls: it must get at what its registry brought."""

    def __init__(self, language, command, directory, environment):
        ports = {"PORT": free_port(), "PEER_PORT": free_port()}
        self.log = directory / f"{language}.log"
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                tied([str(word) for word in command]), stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=directory,
                env={**clean_environment(), **environment, **{name: str(port) for name, port in ports.items()}},
            )
        waited = [ports["PORT"]] + ([ports["PEER_PORT"]] if language == "go" else [])
        self.ports = {path: waited[-1] if path == "redis" else waited[0] for path in ("bare", "pgonce", "redis")}
        wait_until(lambda: self.process.poll() is not None or all(accepts(("127.0.0.1", port)) for port in waited), f"the service in {language}")
        if self.process.poll() is not None:
            raise RuntimeError(f"the service in {language} has ended:\n{self.log.read_text(errors='replace')[-3000:]}")
        for path, port in self.ports.items():  # the first answer may take long
            request = urllib.request.Request(f"http://127.0.0.1:{port}/{path}", data=b'{"order": "first", "amount": 1}', method="POST",
                                             headers={"Idempotency-Key": f'"first-{time.monotonic_ns()}"', "Content-Type": "application/json"})  # fmt: skip
            urllib.request.urlopen(request, timeout=120).close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Bench:
    def __init__(self, options, stack):
        self.options = options
        self.directory = private_directory("pgonce-bench-")
        stack.callback(shutil.rmtree, self.directory, ignore_errors=True)
        disk = disk_of(options, stack)
        slow = disk.environment if disk else {}
        self.server = stack.enter_context(Postgres(fsync=True, settings=SETTINGS, environment=slow))
        self.database = self.server.new_database()
        self.database.execute("CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, item text NOT NULL, amount integer NOT NULL)")
        if options.native:
            install_native(self.database)
        recycle_wal(self.database)
        self.redis, self.environments = {}, {}
        for fsync in ("always", "everysec"):
            self.redis[fsync], self.environments[fsync] = self.start_redis(fsync, slow, stack)
        self.disk = slow_down(disk, options, self.server.directory)

    def start_redis(self, fsync, slow, stack):
        """(the server, the environment of a service that has it)"""
        place, user, port = self.directory / f"redis_{fsync}", unprivileged()[1], free_port()
        place.mkdir()
        if user:
            os.chown(place, user.pw_uid, user.pw_gid)
        command = [find("redis-server", "redis-server"), "--port", port, "--bind", "127.0.0.1", "--unixsocket", place / "redis.sock", "--unixsocketperm", "777"]
        command += ["--dir", place, "--appendonly", "yes", "--appendfsync", fsync, "--save", ""]
        server = stack.enter_context(Process(f"redis_{fsync}", command, self.directory, str(place / "redis.sock"), slow))
        return server, {
            "PGHOST": str(self.server.directory), "PGPORT": "5432", "PGDATABASE": self.database.name, "PGUSER": "postgres",
            "REDIS_SOCKET": str(place / "redis.sock"), "REDIS_PORT": str(port),
        }  # fmt: skip

    def sync_ms(self):
        return goal_rows.sync_ms(self.server.directory, self.options.fsync_ms)

    def cpu(self, service, fsync):
        server = self.server.process.pid
        return {
            "service": cpu_seconds([service.process.pid, *children_of(service.process.pid)]),
            "postgresql": cpu_seconds([server, *children_of(server)]),
            "redis": cpu_seconds(self.redis[fsync].pids()),
            "wrk": sum(os.times()[2:4]),
        }

    def measure(self, services, way, seconds):
        """requests/s, latencies in ms, and the CPU of each part for one request, in microseconds."""
        path, fsync = WAYS[way]
        service = services[fsync]
        command = [find("wrk", "wrk"), "-t", "2", "-c", str(CONNECTIONS), "-d", f"{seconds}s", "--timeout", "10s", "-s", str(ROOT / "bench/gateway/load.lua"),
                   f"http://127.0.0.1:{service.ports[path]}/{path}", "--", "unique", str(random.randrange(10**9))]
        orders = self.database.value("SELECT count(*) FROM orders")
        before = self.cpu(service, fsync)
        done = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), check=False)
        after = self.cpu(service, fsync)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode != 0 or len(lines) != 1:
            raise RuntimeError(f"wrk failed:\n{done.stdout}{done.stderr}")
        result = json.loads(lines[0])
        if result["errors"] or result["refused"] or not result["requests"]:
            raise RuntimeError(f"/{way}: {result}\n{service.log.read_text(errors='replace')[-3000:]}")
        # wrk leaves up to one request of each connection unanswered at its end.
        wait_until(lambda: self.database.value("SELECT count(*) FROM pg_stat_activity WHERE state LIKE %s AND datname = current_database() AND pid <> pg_backend_pid()",
                                               "idle in transaction%") == 0, "the last transactions to end")  # fmt: skip
        placed = self.database.value("SELECT count(*) FROM orders") - orders
        if not result["requests"] <= placed <= result["requests"] + 2 * CONNECTIONS:
            raise RuntimeError(f"/{way}: {result['requests']} answers, {placed} orders")
        return {
            "per_second": result["requests"] / result["us"] * 1e6,
            "p50_ms": result["p50_us"] / 1000,
            "p99_ms": result["p99_us"] / 1000,
            "cpu_us": {part: (after[part] - before[part]) / result["requests"] * 1e6 for part in after},
        }

    def language(self, name, measured):
        """Adds to measured[name]: {way: rows of the rounds}, and the syncs' milliseconds of each round."""
        place = CACHE / name
        place.mkdir(parents=True, exist_ok=True)
        command = LANGUAGES[name](place)
        rounds, sync_ms = {way: [] for way in WAYS}, []
        with contextlib.ExitStack() as stack:
            services = {fsync: stack.enter_context(Service(name, command, self.directory, environment)) for fsync, environment in self.environments.items()}
            for number in range(self.options.rounds + 1):
                took = self.sync_ms()
                rows = {way: self.measure(services, way, self.options.seconds) for way in WAYS}
                if number > 0:
                    sync_ms.append(took)
                    for way, row in rows.items():
                        rounds[way].append(row)
                    measured[name] = rounds, sync_ms
                    print(f"bench: {name}, round {number} of {self.options.rounds}: "
                          + ", ".join(f"{way} {row['per_second']:,.0f}" for way, row in rows.items()), file=sys.stderr, flush=True)  # fmt: skip


def side(language, way, row):
    """What bench/goals.py reckons with."""
    parts = row["cpu_us"]
    alone = [parts["redis"], *([parts["service"]] if language in ONE_THREAD else [])]
    return {"cpu_us": sum(parts.values()), "syncs": PEER_SYNCS[language] if way == "redis_always" else 1, "alone_us": max(alone)}


def judge(measured, native):
    """measured: {language: ({way: rows}, the syncs' milliseconds)}, of each round."""
    goals = []
    for language, (rounds, sync_ms) in measured.items():
        for what, below, *wanted in GOALS:
            at_least = OTHER_GOALS.get((language, below), wanted)[native]
            ours, theirs = rounds["pgonce"], rounds[below]
            limits = [goal_rows.limit(side(language, "pgonce", a), side(language, below, b), cpus=os.cpu_count(), clients=CONNECTIONS, sync_ms=ms)
                      for a, b, ms in zip(ours, theirs, sync_ms)]  # fmt: skip
            of = f" ({PEERS[language]})" if below != "bare" else ""
            goals.append(goal_rows.row(f"{language}: {what}{of}", None if at_least is None else (">=", at_least),
                                       statistics.median(a["per_second"] / b["per_second"] for a, b in zip(ours, theirs)),
                                       None if None in limits else statistics.median(limits), of=["pgonce", below]))  # fmt: skip
    return goals


def show(medians, goals, left_out):
    print(f"\n{'language':<10}{'way':<16}{'per second':>12}{'p50 ms':>9}{'p99 ms':>9}   CPU of one request, microseconds")
    for language, ways in medians.items():
        for way, row in ways.items():
            parts = ", ".join(f"{part} {value:.0f}" for part, value in row["cpu_us"].items() if value >= 1)
            print(f"{language:<10}{way:<16}{row['per_second']:>12,.0f}{row['p50_ms']:>9.2f}{row['p99_ms']:>9.2f}   {parts}")
    goal_rows.show(goals, "goal")
    for language, why in left_out.items():
        print(f"left out: {language}: {why}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("languages", nargs="*", metavar="LANGUAGE", help=f"of {', '.join(LANGUAGES)}; all unless named")
    parser.add_argument("--quick", action="store_true", help="one round of three seconds: to see that it runs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=6, help="of each way, in each round")
    parser.add_argument("--native", action="store_true", help="with pgonce_native, from build/native")
    parser.add_argument("--json", metavar="FILE", help="write everything as JSON, too")
    add_disk_option(parser)
    options = parser.parse_args()
    if unknown := set(options.languages) - set(LANGUAGES):
        parser.error(f"no such language: {', '.join(sorted(unknown))}")
    if options.native and not library().exists():
        parser.error(f"{library()} is not built")
    if options.quick:
        options.rounds, options.seconds = 1, 3
    measured, left_out, failed = {}, {}, False
    with contextlib.ExitStack() as stack:
        bench = Bench(options, stack)
        print(f"bench: PostgreSQL {bench.server.version}, {os.cpu_count()} CPUs, {bench.disk}", flush=True)
        languages, over = options.languages or list(LANGUAGES), []
        with round_of.until_interrupted(lambda: f"{len(over)} of {len(languages)} languages") as ended:
            for language in languages:
                started = time.monotonic()
                try:
                    bench.language(language, measured)
                except Missing as why:
                    left_out[language] = str(why)
                except (RuntimeError, TimeoutError, OSError) as why:
                    failed = True
                    print(f"bench: {language}: {why}", file=sys.stderr, flush=True)
                over.append(language)
                print(f"bench: {language} is over, after {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
        version = bench.server.version
    medians = {language: {way: median_row(rows) for way, rows in rounds.items()} for language, (rounds, _) in measured.items()}
    goals = judge(measured, options.native)
    show(medians, goals, left_out)
    round_of.write(options.json, {
        "postgresql": version, "cpus": os.cpu_count(), "rounds": options.rounds, "seconds": options.seconds, "connections": CONNECTIONS, "native": options.native,
        "fsync_ms": options.fsync_ms, "disk": bench.disk, "peers": PEERS, "measured": medians, "goals": goals, "left_out": left_out,
    }, ended.status == 0)  # fmt: skip
    sys.exit(ended.status or failed)


if __name__ == "__main__":
    main()
