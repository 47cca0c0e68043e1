#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""What counting costs: attempts with the contract as it is, and with the counting taken out of its functions' text, in two databases of one
server. Instructions of the backend (valgrind, where it is installed: exact, whatever else the machine does), and microseconds a call, in
turns, medians. The goal is less than 5% of a claim."""

import argparse
import json
import pathlib
import re
import shutil
import statistics
import sys
import time

from instructions import BODY, FINGERPRINT, ROOT, SETTINGS, Backend, Counted, text_of, uuid7

sys.path.insert(0, str(ROOT / "tests"))
from harness.postgres import Postgres  # noqa: E402

GOAL = 0.05
WARM_UP, CALLS = 15, 40
START = "SELECT once.start('counted', $1, {fingerprint})"
FINISH = f"SELECT once.finish('counted', $1, {{fingerprint}}, 201, response_body => {BODY}) IS NULL"
CASES = {
    "claim": ["SELECT verdict FROM once.claim('counted', $1, {fingerprint}, 'bench')"],
    "start and finish": ["BEGIN", START, FINISH, "COMMIT"],
    "replay": ["SELECT once.start('counted', {replayed_key}, {fingerprint})"],
    "receive": ["SELECT once.receive('counted', $1, {fingerprint})"],
}
COUNTED = re.compile(r"counted := nextval\('[a-z_.]+'\);|PERFORM once\._count\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)(?=\s*(?:FROM|;))")


def take_out(database):
    """How many functions counted."""
    changed = 0
    for row in database.rows("SELECT pg_get_functiondef(p.oid) AS text FROM pg_proc AS p WHERE p.pronamespace IN ('once'::regnamespace, 'once_job'::regnamespace) AND p.prokind = 'f'"):
        if COUNTED.search(row.text) and "FUNCTION once._count" not in row.text:
            database.execute(COUNTED.sub(lambda found: "" if found[0].startswith("counted") else "PERFORM true", row.text))
            changed += 1
    return changed


def check(database, counts):
    """What is measured is what it is called."""
    database.execute("SELECT verdict FROM once.claim('counted', 'probe', decode(repeat('00', 32), 'hex'))")
    counted = database.value("SELECT coalesce(sum(count), 0) FROM once.counts()")
    if (counted > 0) != counts:
        sys.exit(f"counting: {counted} attempts are counted in the database {'with' if counts else 'without'} counting")


class Side:
    """A connection to one of the databases."""

    def __init__(self, database, words):
        replayed = uuid7(0)
        database.execute(f"SELECT once.start('counted', %s, {FINGERPRINT})", replayed)
        database.execute(f"SELECT once.finish_new('counted', %s, {FINGERPRINT}, 201, response_body => {BODY})", replayed)
        self.statements = [text_of(word, f"'{replayed}'") for word in words]
        self.backend = Backend(database.dsn("bench"))
        self.work(WARM_UP)

    def work(self, calls):
        for number in range(calls):
            key = uuid7(number)
            for statement in self.statements:
                self.backend.run(statement, key)

    def time(self, calls):
        begin = time.perf_counter()
        self.work(calls)
        return 1e6 * (time.perf_counter() - begin) / calls


def prepare(server):
    """The database as it is, and the one without the counting."""
    counting, plain = server.new_database(), server.new_database()
    server.connect().cursor().execute("CREATE ROLE bench LOGIN")
    for database in (counting, plain):
        database.execute("GRANT once_app TO bench")
    if take_out(plain) < 4:
        sys.exit("counting: the functions do not count as this program thinks that they do")
    check(counting, True)
    check(plain, False)
    for database in (counting, plain):
        database.execute("VACUUM ANALYZE")
        database.close()
    return counting, plain


def count_instructions():
    server = Counted(settings=SETTINGS)
    found = {}
    with server:
        databases = prepare(server)
        server.stop()
        server.start_counted()
        for name, words in CASES.items():
            sides = [Side(database, words) for database in databases]
            found[name] = [server.count(side.backend.pid, lambda side=side: side.work(CALLS))[0] // CALLS for side in sides]
            for side in sides:
                side.backend.close()
        for database in databases:
            database.close()
    return found


def measure_time(rounds, calls):
    """Without the commit's wait for the disk: it would hide what is measured."""
    found = {}
    with Postgres(settings={**SETTINGS, "synchronous_commit": "off"}) as server:
        databases = prepare(server)
        for name, words in CASES.items():
            sides = [Side(database, words) for database in databases]
            taken = [[side.time(calls) for side in sides] for _ in range(rounds)]
            found[name] = [statistics.median(times) for times in zip(*taken)] + [statistics.median(a / b for a, b in taken)]
            for side in sides:
                side.backend.close()
        for database in databases:
            database.close()
    return found


def show(what, found):
    claim = found["claim"][1]
    print(f"\n{what:<24}{'counting':>14}{'without':>14}{'costs':>10}{'of a claim':>12}")
    for name, (with_it, without, *ratio) in found.items():
        cost = (ratio[0] if ratio else with_it / without) - 1
        print(f"{name:<24}{with_it:>14,.0f}{without:>14,.0f}{cost:>10.1%}{cost * without / claim:>12.1%}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=41, help="of the time of calls")
    parser.add_argument("--calls", type=int, default=300, help="in each round, of each kind")
    parser.add_argument("--json", metavar="FILE", help="write everything as JSON, too")
    options = parser.parse_args()
    measured = {"microseconds": measure_time(options.rounds, options.calls)}
    show("microseconds a call", measured["microseconds"])
    if shutil.which("valgrind"):
        measured["instructions"] = count_instructions()
        show("instructions a call", measured["instructions"])
    else:
        print("counting: valgrind is not installed: instructions are NOT counted", file=sys.stderr)
    with_it, without = measured.get("instructions", measured["microseconds"])["claim"][:2]
    cost = with_it / without - 1
    print(f"\ngoal: less than {GOAL:.0%} of a claim; measured {cost:.1%}: {'met' if cost < GOAL else 'NOT met'}")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    main()
