#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""The benchmark of several nodes. `make bench-nodes` calls it.

Guard: what a claim costs a divided node, in CPU time of the server, of an ordinary one; in turns.
Nodes: claims per CPU second on one, two and three nodes, each with clients of its own. More nodes on one machine share its CPUs, so claims
per second say nothing here; what a claim costs does.
Move: pgonce rehome of a slot with PGONCE_BENCH_ROWS intents (1,000,000) to another server, while clients claim on the old node for a tenant
of another slot, half as many as it can serve: for how long the slot is closed, and how many claims there are meanwhile, of the seconds before.
Each server has a CPU of its own, as on a machine of its own.
Citus: with PGONCE_CITUS_BINDIR (make test-citus builds it): an effect in a distributed table, with pgonce and without.
Medians over the rounds. The servers are private, with fsync on."""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

import goals as goal_rows
import rounds as round_of
from keeper import Load, summary
from measure import BUILD, ROOT, SETTINGS, clean_environment, cpu_seconds, recycle_wal
from run import FINGERPRINT, KEY, PRELUDE

sys.path.insert(0, str(ROOT / "tests"))
from harness.postgres import PORT, Postgres, children_of  # noqa: E402

MOVING = "moving"  # the tenant whose slot moves; the clients' is ''
WARM_UP_S = 2
LOGICAL = {**SETTINGS, "wal_level": "logical", "max_replication_slots": "10", "max_wal_senders": "10", "log_checkpoints": "off"}
# Intents of a tenant that succeeded, without events.
FILL = """
    INSERT INTO once.intent (created_at, updated_at, completed_at, bucket, fence, attempts, state, tenant, scope, key, fingerprint, owner,
                             response_status, response_body)
    SELECT now(), now(), now(), 0, 1, 1, 'succeeded', %s, 'bench', 'key-' || i, sha256(int8send(i)), 'bench', 201,
           '\\x00112233445566778899001122334455'
      FROM generate_series(%s::bigint, %s::bigint) AS i"""


def prepare(server):
    with contextlib.suppress(Exception):
        server.connect().cursor().execute("CREATE ROLE bench LOGIN")
    database = server.new_database()
    database.execute("GRANT once_app TO bench")
    database.execute("SELECT once.set_scope('bench', lease => '1 day')")
    recycle_wal(database)
    return database


def claims_per_cpu_second(loads, servers, seconds):
    """Claims of all loads in a CPU second of all servers."""
    with contextlib.ExitStack() as stack:
        for load in loads:
            stack.enter_context(load)
        time.sleep(WARM_UP_S)
        used = lambda: sum(cpu_seconds([server.process.pid, *children_of(server.process.pid)]) for server in servers)  # noqa: E731
        before, began = used(), time.time()
        time.sleep(seconds)
        spent, ended = used() - before, time.time()
    return sum(sum(began <= at < ended for at, _ in load.claims()) for load in loads) / spent


def scratch_of(server, name):
    path = pathlib.Path(server.directory) / name
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    return path


def guard(options):
    with Postgres(fsync=True, settings=SETTINGS) as server:
        plain, divided = prepare(server), prepare(server)
        divided.execute("CALL once.divide(true)")
        rounds = []
        for _ in range(options.rounds):
            measured = {name: claims_per_cpu_second([Load(database, scratch_of(server, name))], [server], options.seconds)
                        for name, database in (("plain", plain), ("divided", divided))}  # fmt: skip
            rounds.append({**measured, "ratio": measured["divided"] / measured["plain"]})
    return rounds


def nodes(options):
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(Postgres(fsync=True, settings=SETTINGS)) for _ in range(3)]
        databases = [prepare(server) for server in servers]
        for database in databases:
            database.execute("CALL once.divide(true)")
        rounds = []
        for _ in range(options.rounds):
            rounds.append({str(count): claims_per_cpu_second([Load(databases[n], scratch_of(servers[n], "load"), clients=2) for n in range(count)],
                                                             servers[:count], options.seconds) for count in (1, 2, 3)})  # fmt: skip
    return rounds


def move(options):
    """Back and forth, so that each round copies the same rows."""
    with Postgres(fsync=True, settings=LOGICAL) as one, Postgres(fsync=True, settings=LOGICAL) as other:
        for number, server in enumerate((one, other)):  # its later children, too
            os.sched_setaffinity(server.process.pid, {number % os.cpu_count()})
        first = prepare(one)
        with contextlib.suppress(Exception):
            other.connect().cursor().execute("CREATE ROLE bench LOGIN")
        second = other.empty_database()
        first.execute("CALL once.divide(true)")
        pgonce = [str(BUILD / "cli/pgonce")]
        subprocess.run([*pgonce, "init", "--dsn", second.dsn(), "--join", first.dsn()], check=True, capture_output=True, env=clean_environment())
        second.execute("GRANT once_app TO bench")
        slot = first.value("SELECT once.slot_of(%s)", MOVING)
        assert slot != first.value("SELECT once.slot_of('')")
        part = 100_000
        for done in range(0, options.rows, part):
            first.execute(FILL, MOVING, done + 1, min(done + part, options.rows))
        first.execute("VACUUM ANALYZE once.intent")
        rounds = []
        with Load(first, scratch_of(one, "load")) as load:  # what it can do
            time.sleep(WARM_UP_S)
            began = time.time()
            time.sleep(options.seconds)
            ended = time.time()
        half = summary(load.claims(), began, ended)["per_second"] / 2
        for _ in range(options.rounds):
            with Paced(first, scratch_of(one, "load"), half) as load:
                time.sleep(WARM_UP_S)
                before = time.time()
                time.sleep(options.seconds)
                begin = time.time()
                done = subprocess.run([*pgonce, "rehome", str(slot), "--from", first.dsn(), "--to", second.dsn(), "--json"], check=False, capture_output=True,
                                      env=clean_environment())  # fmt: skip
                end = time.time()
            if done.returncode != 0:
                sys.exit(f"bench: pgonce rehome: {done.stderr.decode()}")
            told = json.loads(done.stdout)
            claims = load.claims()
            quiet, meanwhile = summary(claims, before, begin), summary(claims, begin, end)
            rounds.append({"seconds": end - begin, "closed_s": told["slots"][0]["closed_ms"] / 1000, "rows": told["deleted"],
                           "of_before": meanwhile["per_second"] / quiet["per_second"],
                           "claims": meanwhile["per_second"], "p99_before": quiet["p99"], "p99": meanwhile["p99"]})  # fmt: skip
            back = subprocess.run([*pgonce, "rehome", str(slot), "--from", second.dsn(), "--to", first.dsn()], check=False, capture_output=True, env=clean_environment())
            if back.returncode != 0:
                sys.exit(f"bench: pgonce rehome, back: {back.stderr.decode()}")
            first.execute("VACUUM once.intent")
        return rounds


class Paced(Load):
    """As Load, but clients that ask for so many claims per second."""

    def __init__(self, database, scratch, rate):
        super().__init__(database, scratch)
        self.command[-1:-1] = ["-R", str(int(rate))]


class Script(Load):
    """As Load, but clients that run this script, as the owner."""

    def __init__(self, database, scratch, text, clients=2):
        super().__init__(database, scratch, clients=clients)
        (self.scratch / "claim.sql").write_text(PRELUDE["v4"] + text)
        self.command[-1] = database.dsn()


def citus(options):
    """CPU time of all servers for an effect in a distributed table: with start and finish around it, and without; on the node that remembers, and on
    another, where the commit takes two phases."""
    bindir = os.environ.get("PGONCE_CITUS_BINDIR")
    if not bindir:
        return []
    settings = {**LOGICAL, "shared_preload_libraries": "citus", "citus.node_conninfo": "sslmode=disable", "citus.enable_statistics_collection": "off",
                "max_prepared_transactions": "50"}  # fmt: skip
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(Postgres(bindir, fsync=True, settings=settings)) for _ in range(3)]
        for server in servers:
            cursor = server.connect().cursor()
            cursor.execute("ALTER SYSTEM SET citus.local_hostname = %s", (str(server.directory),))
            cursor.execute("SELECT pg_reload_conf()")
        databases = [server.empty_database() for server in servers]
        for database in databases:
            database.execute("CREATE EXTENSION citus")
        coordinator, worker, _ = databases
        coordinator.execute("SELECT citus_set_coordinator_host(%s, %s)", str(servers[0].directory), int(PORT))
        for server in servers[1:]:
            coordinator.execute("SELECT citus_add_node(%s, %s)", str(server.directory), int(PORT))
        coordinator.execute("CREATE TABLE public.effects (tenant text, key text)")
        coordinator.execute("SELECT create_distributed_table('public.effects', 'tenant')")
        for database in (coordinator, worker):
            database.install()
            database.execute("SELECT once.anchor()")
        here = worker.value("SELECT groupid FROM pg_dist_local_group")
        place = """SELECT t FROM (SELECT 'tenant ' || n AS t FROM generate_series(1, 100) AS n) AS s
                    JOIN pg_dist_placement AS p ON p.shardid = get_shard_id_for_distribution_column('public.effects', t)
                   WHERE (p.groupid = %s) = %s LIMIT 1"""
        rounds = []
        for _ in range(options.rounds):
            measured = {}
            for where, is_here in (("here", True), ("elsewhere", False)):
                tenant = worker.value(place, here, is_here)
                insert = f"INSERT INTO public.effects VALUES ('{tenant}', {KEY});\n"
                named = f"'bench', {KEY}, {FINGERPRINT}"
                ways = {"bare": f"BEGIN;\n{insert}COMMIT;\n",
                        "once": f"BEGIN;\nSELECT once.start({named});\n{insert}SELECT once.finish({named}, response_text => 'x');\nCOMMIT;\n"}
                for name, text in ways.items():
                    measured[f"{name} {where}"] = 1e6 / claims_per_cpu_second([Script(worker, scratch_of(servers[1], "load"), text)], servers, options.seconds)
            rounds.append(measured)
    return rounds


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="one short round, and few rows: to see that it runs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5, help="of claims in each round")
    parser.add_argument("--rows", type=int, default=int(os.environ.get("PGONCE_BENCH_ROWS", 1_000_000)), help="of the slot that moves (default: PGONCE_BENCH_ROWS, or 1,000,000)")
    parser.add_argument("--only", nargs="+", metavar="WAY", choices=("guard", "nodes", "move", "citus"))
    parser.add_argument("--json", metavar="FILE", help="write everything as JSON, too")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds, options.rows = 1, 3, 20_000  # a shorter one may end before a claim is logged
    ways = {"guard": guard, "nodes": nodes, "move": move, "citus": citus}
    measured = {}
    with round_of.until_interrupted(lambda: f"{', '.join(measured) or 'nothing'} of {', '.join(ways)}") as ended:
        for name, way in ways.items():
            if not options.only or name in options.only:
                measured[name] = way(options)
                print(f"bench: {name} {json.dumps(measured[name])}", file=sys.stderr, flush=True)
    median = lambda way, row: statistics.median(found[row] for found in measured[way])  # noqa: E731
    rows = []
    if "guard" in measured:
        rows.append(("claims per CPU second, divided of undivided", median("guard", "ratio"), 0.9, True))
    if "nodes" in measured:
        for count in ("2", "3"):
            ratio = statistics.median(found[count] / found["1"] for found in measured["nodes"])
            rows.append((f"claims per CPU second, {count} nodes of one", ratio, 0.95, True))
    if "move" in measured:
        rows.append((f"seconds closed while {options.rows:,} intents move", max(found["closed_s"] for found in measured["move"]), 0.2, False))
        rows.append(("claims elsewhere meanwhile, of before", median("move", "of_before"), 0.95, True))
        print(f"{median('move', 'rows'):,.0f} intents moved in {median('move', 'seconds'):.1f} s; p99 of a claim elsewhere: "
              f"{median('move', 'p99_before'):.1f} ms before, {median('move', 'p99'):.1f} ms meanwhile")
    if measured.get("citus"):
        for where in ("here", "elsewhere"):
            bare, once = median("citus", f"bare {where}"), median("citus", f"once {where}")
            print(f"Citus, effect {where}: {once:,.0f} us of CPU with start and finish, {bare:,.0f} without")
    if "nodes" in measured:
        print(f"claims per CPU second on one node: {median('nodes', '1'):,.0f}")
    goals = [goal_rows.row(what, (">=" if at_least else "<=", goal), value) for what, value, goal, at_least in rows]
    goal_rows.show(goals, "goal")
    round_of.write(options.json, {"cpus": os.cpu_count(), "rows": options.rows, "measured": measured, "goals": goals}, ended.status == 0)
    sys.exit(ended.status)


if __name__ == "__main__":
    main()
