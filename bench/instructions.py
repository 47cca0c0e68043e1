#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""What a call costs in instructions: one backend of a private server, counted exactly by valgrind.

Unlike transactions per second the count does not depend on what else the machine does, nor on hardware counters, which
few virtual machines have. It covers user mode only: no system call, no disk. bench/RESULTS.md holds the figures.
--profile writes where they were spent, for callgrind_annotate. Needs valgrind."""

import argparse
import ctypes
import ctypes.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BENCH = ROOT / "bench"
sys.path.insert(0, str(ROOT / "tests"))
import goals as goal_rows  # noqa: E402
import rounds as round_of  # noqa: E402
from harness.native import install_native  # noqa: E402
from harness.postgres import Postgres, clean_environment, unprivileged  # noqa: E402

SETTINGS = {"statement_timeout": "0", "shared_buffers": "64MB"}
WARM_UP = 15  # more than the five custom plans that PostgreSQL tries first
FINGERPRINT = "'\\x00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff'::bytea"
REQUEST = """('{"customer": "ada", "cart": "' || $1 || '", "total": 12.50}')::jsonb"""
BODY = "'\\x0011223344556677889900112233445566778899'::bytea"

# What runs for one call, each word a statement: a file of bench/, or SQL. The key of the call is $1.
START = "SELECT once.start('b', $1, {fingerprint})"
FINISH = f"SELECT once.finish('b', $1, {{fingerprint}}, 201, response_body => {BODY}) IS NULL"
FINISH_NEW = FINISH.replace("finish", "finish_new")
EMIT = "SELECT once.emit('order.placed', {request}, 'order', $1, scope => 'orders', key => $1)"
EMIT_ALONE = "SELECT once.emit('order.placed', {request}, 'order', $1)"


def batches(size):
    """Claims and completions of so many, the same with messages, and the arrays alone."""
    array = f"(SELECT array_agg({{each}}) FROM generate_series(4096, {4095 + size}) AS n)"
    scopes, keys, prints, fences, statuses = (
        array.format(each=each) for each in ("'leased'::text", "substr($1, 1, 32) || to_hex(n)", "{fingerprint}", "1", "201"))
    claims = f"SELECT count(c) FROM once.claim_many({scopes}, {keys}, {prints}, 'bench') AS c"
    completions = f"SELECT count(c) FROM once.complete_many({scopes}, {keys}, {fences}, {statuses}, response_body => {prints}) AS c"
    return {
        f"arrays of {size}": [f"SELECT count(u) FROM unnest({scopes}, {keys}, {prints}) AS u"],
        f"claim_many of {size}": [claims],
        f"claim and complete, batches of {size}": [claims, completions],
        f"receive_many of {size}": [f"SELECT count(r) FROM once.receive_many('consumer', {keys}, NULL, {prints}) AS r"],
    }


EFFECT = [
    (BENCH / "pipeline" / name).read_text().replace("$1::uuid", "gen_random_uuid()").replace("$2", "$1")
    for name in ("insert_order.sql", "insert_event.sql")
]
CASES = {
    "SELECT 1": ["scripts/select_1.sql"],
    "salt": ["SELECT once.salt()"],
    "start": [START],
    "start and finish": ["BEGIN", START, FINISH, "COMMIT"],
    "finish_new": [FINISH_NEW],
    "emit": [EMIT],
    "emit, no intent": [EMIT_ALONE],
    "emit_later": [EMIT.replace("emit(", "emit_later('2100-01-01', ")],
    "emit_later, no intent": [EMIT_ALONE.replace("emit(", "emit_later('2100-01-01', ")],
    "replay": ["scripts/replay.sql"],
    "receive": ["SELECT once.receive('consumer', $1, {fingerprint})"],
    "claim and complete": [
        "SELECT once.claim('leased', $1, {fingerprint}, 'bench')",
        "SELECT once.complete('leased', $1, 1, 201, response_body => {fingerprint})",
    ],
    **batches(1),
    **batches(3),
    **batches(16),
    **batches(64),
    "plain bare": ["scripts/plain_bare.sql"],
    "plain place": ["scripts/plain_place.sql"],
    "place bare": ["scripts/place_bare.sql"],
    "place": ["scripts/place.sql"],
    "seed000": ["scripts/seed000.sql"],
    "steps bare": ["BEGIN", *EFFECT, "COMMIT"],
    "steps once": ["BEGIN", START, *EFFECT, FINISH, "COMMIT"],
    "steps, pipelined": ["BEGIN", FINISH_NEW, *EFFECT, "COMMIT"],
}


def batch_costs(counts, call):
    """(instructions before the first element, for each) of claim_many, complete_many or receive_many, from batches of 3 and of 64 (one alone takes a path of its own),
    without the arrays; None where one of them was not counted."""
    try:
        if call == "complete_many":
            few, many = (counts[f"claim and complete, batches of {size}"] - counts[f"claim_many of {size}"] - counts[f"arrays of {size}"] for size in (3, 64))
        else:
            few, many = (counts[f"{call} of {size}"] - counts[f"arrays of {size}"] for size in (3, 64))
    except KeyError:
        return None
    each = (many - few) / 61
    return few - 3 * each, each


# (what, the case, at most with the contract in SQL, with pgonce_native); None: no goal. The limit is what the same work takes without pgonce: a statement that does nothing.
GOALS = [
    ("emit of an intent, instructions", "emit", 210_000, None),
    ("emit of no intent, instructions", "emit, no intent", 210_000, None),
    ("start and finish, instructions", "start and finish", 380_000, None),
    ("claim_many before the first element, instructions", "claim_many", 230_000, None),
    ("complete_many before the first element, instructions", "complete_many", 213_000, None),
]


def judge(counts, native):
    """The least that each could take: `SELECT 1` for each of its statements, prepared."""
    goals = []
    for what, name, *wanted in GOALS:
        batch = batch_costs(counts, name) if name.endswith("_many") else None
        measured = batch[0] if batch else counts.get(name)
        if measured is not None:
            least = len(CASES.get(name, [name])) * counts["SELECT 1"] if "SELECT 1" in counts else None
            goals.append(goal_rows.row(what, wanted[native] and ("<=", wanted[native]), measured, least))
    return goals


class Backend:
    """One connection, which prepares each statement once, as a server's would."""

    def __init__(self, dsn):
        self.pq = ctypes.CDLL(ctypes.util.find_library("pq") or "libpq.so.5")
        for name in ("PQconnectdb", "PQprepare", "PQexecPrepared"):
            getattr(self.pq, name).restype = ctypes.c_void_p
        self.pq.PQerrorMessage.restype = ctypes.c_char_p
        self.connection = ctypes.c_void_p(self.pq.PQconnectdb(dsn.encode()))
        if self.pq.PQstatus(self.connection) != 0:
            self.fail()
        self.pid = self.pq.PQbackendPID(self.connection)
        self.names = {}

    def fail(self):
        sys.exit(f"instructions: {self.pq.PQerrorMessage(self.connection).decode()}")

    def take(self, result):
        result = ctypes.c_void_p(result)
        if self.pq.PQresultStatus(result) not in (1, 2):
            self.fail()
        self.pq.PQclear(result)

    def run(self, statement, key):
        if statement not in self.names:
            name = self.names[statement] = f"s{len(self.names)}".encode()
            self.take(self.pq.PQprepare(self.connection, name, statement.encode(), 0, None))
        count = 1 if "$1" in statement else 0
        values = (ctypes.c_char_p * 1)(key.encode())
        self.take(self.pq.PQexecPrepared(self.connection, self.names[statement], count, values, None, None, 0))

    def close(self):
        self.pq.PQfinish(self.connection)


def nameless():
    """Without the names that are parts of valgrind's FIFOs: a backend writes its status over them, and would not find its FIFO again."""
    return {name: value for name, value in clean_environment().items() if name not in ("LOGNAME", "USER", "HOST", "HOSTNAME")}


class Counted(Postgres):
    """A server that runs under valgrind, which counts in a backend when it is told to."""

    def start_counted(self):
        options = ["--instr-atstart=no", f"--callgrind-out-file={self.directory}/out.%p"]
        valgrind = ["valgrind", "--quiet", "--tool=callgrind", "--trace-children=yes", *options]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "QUIT", "--", *valgrind, str(self.bindir / "postgres"), "-D", str(self.data)],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=nameless(),
                cwd="/tmp",
                **unprivileged()[0],
            )
        self.wait_ready()

    def control(self, pid, *options):
        command = ["callgrind_control", *options, str(pid)]
        subprocess.run(command, check=True, capture_output=True, env=nameless(), **unprivileged()[0])

    def count(self, pid, work):
        """The instructions of this backend while work() runs, and the file that says where."""
        before = set(self.directory.glob(f"out.{pid}*"))
        self.control(pid, "--instr=on")
        self.control(pid, "--zero")
        work()
        self.control(pid, "--dump")
        self.control(pid, "--instr=off")
        made = set(self.directory.glob(f"out.{pid}*")) - before
        for path in made:
            totals = re.findall(r"^(?:summary|totals): (\d+)", path.read_text(), re.M)
            if totals:
                return int(totals[0]), path
        return sys.exit("instructions: callgrind wrote nothing")


def uuid7(number):
    """A UUIDv7 of now (RFC 9562)."""
    ms = int(time.time() * 1000)
    return f"{ms >> 16:08x}-{ms & 0xffff:04x}-7{number & 0xfff:03x}-8000-{os.urandom(6).hex()}"


def uuid4(_):
    random = os.urandom(16).hex()
    return f"{random[:8]}-{random[8:12]}-4{random[13:16]}-8{random[17:20]}-{random[20:]}"


def text_of(word, replayed):
    text = (BENCH / word).read_text() if word.endswith(".sql") else word
    text = re.sub(r"^--.*\n", "", text, flags=re.M).strip().rstrip(";")
    for name, value in (("fingerprint", FINGERPRINT), ("request", REQUEST), ("key", "$1"), ("replayed_key", replayed)):
        text = text.replace("{" + name + "}", value)
    return text


def measure(server, database, words, options, make_key, profile):
    replayed = make_key(0)
    database.execute(f"SELECT plain.finish_some(ARRAY[%s], {FINGERPRINT})", replayed)
    statements = [text_of(word, f"'{replayed}'") for word in words]
    backend = Backend(database.dsn("bench"))
    if options.native:
        backend.run("SELECT once_native.load()", "")
        if not any("finish" in statement for statement in statements):
            backend.run("SET once.strict = off", "")  # a start alone

    def work(calls):
        for number in range(calls):
            key = make_key(number)
            for statement in statements:
                backend.run(statement, key)

    work(WARM_UP)
    total, path = server.count(backend.pid, lambda: work(options.calls))
    if profile:
        shutil.copy(path, profile)
    backend.close()
    return total // options.calls


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--calls", type=int, default=40, help="to count, of each kind")
    parser.add_argument("--only", default="", help="a regular expression of the kinds to count")
    parser.add_argument("--keys", choices=("v7", "v4"), help="of calls and of batches (default: v7 for calls, v4 for batches, as the goals want it)")
    parser.add_argument("--quick", action="store_true", help="few calls: to see that it runs; counts are a tenth larger")
    parser.add_argument("--json", metavar="FILE", help="write everything as JSON, too")
    parser.add_argument("--native", action="store_true", help="with pgonce_native, from build/native")
    parser.add_argument("--profile", metavar="FILE", help="write the last kind's profile there")
    options = parser.parse_args()
    if not shutil.which("valgrind"):
        sys.exit("instructions: valgrind is not installed (apt-get install valgrind)")

    if options.quick:
        options.calls = 5
    server, counts = Counted(settings=SETTINGS), {}
    with server, round_of.until_interrupted(lambda: f"{len(counts)} of {len(CASES)} kinds") as ended:
        database = server.new_database()
        for path in (ROOT / "examples/orders/orders.sql", BENCH / "orders_plain.sql", BENCH / "seed000.sql"):
            database.execute(path.read_text())
        database.execute("CREATE ROLE bench LOGIN; GRANT once_app TO bench")
        if options.native:
            install_native(database)
        database.execute("VACUUM ANALYZE")
        database.close()
        server.stop()
        server.start_counted()
        for name, words in CASES.items():
            if re.search(options.only, name):
                make_key = uuid7 if (options.keys or ("v4" if re.search("many|batches|arrays", name) else "v7")) == "v7" else uuid4
                counts[name] = measure(server, database, words, options, make_key, options.profile)
                print(f"{name:<34}{counts[name]:>12,}", flush=True)
        database.close()
    batches_of = {call: batch_costs(counts, call) for call in ("claim_many", "complete_many", "receive_many")}
    for call, costs in batches_of.items():
        if costs:
            print(f"{call}: {costs[0]:,.0f} before the first element, {costs[1]:,.0f} for each")
    goals = judge(counts, options.native)
    goal_rows.show(goals, "goal")
    round_of.write(options.json, {"postgresql": server.version, "native": options.native, "calls": options.calls, "counts": counts, "batches": batches_of, "goals": goals},
                   ended.status == 0)  # fmt: skip
    sys.exit(ended.status)


if __name__ == "__main__":
    main()
