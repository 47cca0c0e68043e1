#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""With a new key a protected endpoint answers exactly as the unprotected one. For each case and application: the request without pgonce, with pgonce and
a new key, and once more; compared byte by byte, with effects, transactions and connections counted. README.md says how a case and an application are written.

    run.py [APPLICATION...]         all that are there unless named; --language node: those of a language
    run.py express --case form -v   one case; -v shows the answers"""

import argparse
import base64
import gzip
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(HERE))

import http1  # noqa: E402
from harness import postgres  # noqa: E402
from harness.broker import free_port  # noqa: E402

PREPARED = set()  # several applications share what they need
# How a toolchain tells its version.
TOOLCHAINS = {"go": ["go", "version"], "java": ["java", "--version"], "node": ["node", "--version"], "python": ["/usr/bin/python3", "--version"]}
# What the applications give to pgonce as its handlerMs: what users have, which a busy machine does not reach; and for cases that are about it (limited).
HANDLER_MS = 30000
LIMITED_MS = 1000
POOL = 4  # connections of an application
RECOVERY_S = 1.0  # from when the cause of an exhausted pool has ended, and
RECOVERY_TIMES = 5  # as often as long as without pgonce: a busy machine is late with both,
RECOVERY_TRIES = 3  # and now and then with one of them
START_S = 180
PREPARE_S = 900
SETTLE_S = 20
FIRST, REPLAY, OTHER = "first", "replay", "other"
# Varies by nature.
BY_NATURE = {"date"}
SQL = """
CREATE TABLE effect (name text NOT NULL);
CREATE TABLE taken (id integer CONSTRAINT taken_once UNIQUE DEFERRABLE INITIALLY DEFERRED);
INSERT INTO taken VALUES (1);
CREATE FUNCTION gate() RETURNS void LANGUAGE sql AS 'SELECT pg_advisory_xact_lock_shared(28)';
CREATE FUNCTION deadlock() RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'as if in a deadlock' USING ERRCODE = '40P01'; END $$;
DO $$ BEGIN CREATE ROLE reader; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
GRANT INSERT, SELECT ON effect TO reader;
"""
CASE = {"name", "request", "before", "other", "expect", "ours", "plain", "stored", "effects", "rows", "varies", "leave", "gated", "closed", "limited", "exhausted", "replay", "applications", "other_headers"}
REQUEST = {"method", "path", "version", "headers", "body", "key", "chunked", "expect_continue", "gzip", "pipeline", "http2", "no_length"}
EXPECT = {"status", "headers", "text", "json", "size", "contains", "repeated", "gzip", "end", "interim", "trailers"}
OURS = {"status", "problem", "headers", "text", "broken"}
# Answers that ask for another attempt, or say that nothing was done (docs/reference/gateway.md).
RELEASED = {307, 308, 401, 403, 407, 408, 409, 421, 423, 425, 429}
REPORT = "A report of ten lines, which a file's answer bears.\nLine 2: Größe, naïve, 東京\nLine 3\nLine 4\nLine 5\nLine 6\nLine 7\nLine 8\nLine 9\nThe end.\n"
PROBLEMS = json.loads((ROOT / "spec/problems.json").read_text())


HEADERS = json.loads((ROOT / "spec/headers.json").read_text())
KEPT, SECRET = HEADERS["kept"]["names"], HEADERS["secret"]["words"]
NEVER = [name for group in HEADERS["never"] for name in group["names"]]


def among(patterns, name):
    return any(name.startswith(each[:-1]) if each.endswith("*") else name == each for each in patterns)


def is_replayed(name):
    lower = name.lower()
    tells = any(word in lower for word in SECRET) and not lower.startswith("access-control-")
    return among(KEPT, lower) and not among(NEVER, lower) and not tells


class Broken(Exception):
    """The suite itself is wrong: a case, or an application's description."""


def load(name=None):
    """The cases of an application: those of all, and its own."""
    shared = json.loads((HERE / "cases.json").read_text())
    cases = [case for case in shared["cases"] if name is None or name in case.get("applications", [name])]
    own = HERE / name / "cases.json" if name else None
    if own and own.exists():
        cases += json.loads(own.read_text())["cases"]
    names = [case["name"] for case in cases]
    for case in cases:
        request = case["request"]
        for what, has, may in (("case", case, CASE), ("request", request, REQUEST), ("expect", case.get("expect", {}), EXPECT), ("ours", case.get("ours") or {}, OURS)):
            if set(has) - may:
                raise Broken(f"{case['name']}: {what} has {sorted(set(has) - may)}")
        if names.count(case["name"]) > 1:
            raise Broken(f"two cases are called {case['name']}")
    return cases, shared["handlers"]


def handler_of(case):
    return case["request"]["path"].partition("?")[0].lstrip("/")


def numbers(version):
    return [int(each) for each in version.split(".")]


class Described:
    """What a folder says in its .json: how it is prepared and begun. The suites of the frameworks (tests/frameworks) are described so, too."""

    def __init__(self, folder, file, build):
        self.name, self.here, self.build = folder.name, folder, ROOT / "build" / build / folder.name
        self.description = json.loads((folder / file).read_text())
        self.title, self.language = self.description["title"], self.description["language"]
        self.requires = self.description.get("requires", {})
        if set(self.requires) - set(TOOLCHAINS):
            raise Broken(f"{self.name}/{file} requires what run.py does not know: {sorted(set(self.requires) - set(TOOLCHAINS))}")

    def words(self, command, **more):
        places = {"root": ROOT, "here": self.here, "build": self.build, "venv": os.environ.get("PGONCE_VENV", ROOT / "clients/python/.venv"), **more}
        return [str(word).format(**places) for word in command]

    def environment(self):
        return {**postgres.clean_environment(), "PATH": os.environ["PATH"] + ":/usr/local/go/bin", "PYTHONDONTWRITEBYTECODE": "1"}

    def lacks(self):
        """The toolchain that is missing or too old for it; None if it has all that it requires."""
        for tool, wanted in self.requires.items():
            try:
                said = subprocess.run(TOOLCHAINS[tool], cwd=self.here, env=self.environment(), capture_output=True, text=True, check=True, timeout=START_S).stdout
                found = re.search(r"\d+(\.\d+)+", said)[0]
            except (OSError, subprocess.CalledProcessError):
                return f"it needs {tool} {wanted} or later, which is missing"
            if numbers(found) < numbers(wanted):
                return f"it needs {tool} {wanted} or later, and {found} is here"
        return None

    def prepare(self, cwd=None, **more):
        self.build.mkdir(parents=True, exist_ok=True)
        for command in self.description.get("prepare", []):
            words = tuple(self.words(command, **more))
            if words in PREPARED:
                continue
            PREPARED.add(words)
            done = subprocess.run(words, cwd=cwd or self.here, env=self.environment(), capture_output=True, text=True, check=False, timeout=PREPARE_S)
            if done.returncode != 0:
                raise Broken(f"{self.name}: {' '.join(words)}: {done.stdout[-3000:]}{done.stderr[-3000:]}")


class Application(Described):
    """The application NAME as it is described in its folder."""

    def __init__(self, name):
        super().__init__(HERE / name, "application.json", "transparency")
        said = self.description
        self.command = said["command"]
        self.cannot, self.differs = said.get("cannot", {}), said.get("differs", [])
        self.refuses = said.get("refuses", {})
        self.used = set()
        self.speaks_http2 = said.get("http2", False)
        self.cases, handlers = load(name)
        names = {case["name"] for case in self.cases}
        unknown = {*self.cannot, *self.refuses} - names - set(handlers)
        unknown |= {each for said in self.differs for each in said["cases"]} - names - {"*"}
        if unknown:
            raise Broken(f"{name}/application.json names cases that there are not: {sorted(unknown)}")
        for case in self.cases:
            if handler_of(case) not in handlers and case in load()[0] and 404 not in statuses(case["expect"]):
                raise Broken(f"{case['name']}: cases.json describes no handler {handler_of(case)}")

    def said_of(self, case):
        """The case as this application has it: one that pgonce refuses gets an error of the server, before the handler runs."""
        if case["name"] not in self.refuses and handler_of(case) not in self.refuses:
            return case
        kept = {name: value for name, value in case.items() if name not in ("other", "other_headers", "replay", "rows", "leave", "gated", "exhausted")}
        return {**kept, "ours": {"status": 500}, "effects": 0}

    def cannot_say(self, case):
        return self.cannot.get(case["name"]) or self.cannot.get(handler_of(case)) or (
            "It speaks no HTTP/2." if case["request"].get("http2") and not self.speaks_http2 else None
        )


def places_of(database, port):
    """Variables that say where a database is."""
    url = f"127.0.0.1:{port}/{database.name}"
    return {
        "DATABASE_URL": f"postgresql://postgres@{url}?sslmode=disable", "DATABASE_JDBC": f"jdbc:postgresql://{url}?user=postgres&sslmode=disable",
        "DATABASE_NAME": database.name, "DATABASE_PORT": str(port),
    }  # fmt: skip


class Process:
    """One of the three: without pgonce, with it, and with it and a short limit for handlers; over a database of its own."""

    def __init__(self, application, server, port, on, files, handler_ms=HANDLER_MS):
        self.application, self.on, self.files, self.handler_ms = application, on, files, handler_ms
        self.database = server.new_database()
        self.database.execute(SQL)
        self.pg_port = port
        self.port, self.port2 = free_port(), free_port()
        self.process, self.log = None, tempfile.TemporaryFile()
        self.gate = None

    def start(self):
        environment = {
            **self.application.environment(), **places_of(self.database, self.pg_port), "PGONCE": "on" if self.on else "off",
            "PORT": str(self.port), "PORT_HTTP2": str(self.port2), "HANDLER_MS": str(self.handler_ms), "FILES": str(self.files),
        }  # fmt: skip
        words = postgres.tied(self.application.words(self.application.command))
        self.process = subprocess.Popen(words, cwd=self.application.here, env=environment, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)

    def wait(self):
        def listens():
            if self.process.poll() is not None:
                raise Broken(f"{self.application.name} ended as it started: {self.said()}")
            try:
                with http1.Connection(self.port) as connection:
                    connection.send(PROBE)
                    return connection.answer("GET").status == 200
            except OSError:
                return False

        postgres.wait_until(listens, f"{self.application.name} to listen", START_S)

    def said(self, size=3000):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")[-size:]

    def begin(self):
        """Unless it runs: cases that no one asked for need no process."""
        if self.process is None:
            self.start()
            self.wait()
        return self

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def effects(self):
        return {row.name: row.count for row in self.database.rows("SELECT name, count(*) FROM effect GROUP BY name")}

    def in_use(self):
        """Of its pool, by itself: connections that somebody holds. None where it cannot tell."""
        with http1.Connection(self.port) as connection:
            connection.send(PROBE)
            return json.loads(connection.answer("GET").body)["in_use"]

    def transactions(self):
        return self.database.value(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
            " AND application_name <> 'gate' AND state <> 'idle'"
        )

    def settled(self):
        """What is still held, when it had time to end; None if nothing is."""
        deadline = time.monotonic() + SETTLE_S
        while True:
            transactions, in_use = self.transactions(), self.in_use()
            if not transactions and not in_use:
                return None
            if time.monotonic() > deadline:
                return f"{transactions} transactions are open, and {in_use} connections of the pool are held"
            time.sleep(0.01)

    def close_gate(self):
        self.gate = self.database.connect()
        self.gate.cursor().execute("SET application_name = 'gate'")
        self.gate.cursor().execute("SELECT pg_advisory_lock(28)")

    def somebody_waits(self):
        return self.database.value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 28 AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())")

    def open_gate(self):
        if self.gate is not None:
            self.gate.close()
            self.gate = None


PROBE = b"GET /-/pool HTTP/1.1\r\nHost: transparency.test\r\n\r\n"


def bytes_of(said):
    if isinstance(said, str):
        return said.encode()
    if "json" in said:
        return json.dumps(said["json"], ensure_ascii=False).encode()
    if "base64" in said:
        return base64.b64decode(said["base64"])
    return said["repeat"].encode() * said["count"]


class Request:
    """The bytes of a request of a case. captured: what requests before it have brought, for {name} in its headers and body."""

    def __init__(self, said, key, captured):
        def filled(text):
            for name, value in captured.items():
                text = text.replace("{" + name + "}", value)
            return text

        self.method, self.version = said.get("method", "POST"), said.get("version", "1.1")
        self.path, self.times, self.http2 = said["path"], said.get("pipeline", 1), said.get("http2", False)
        self.key = said.get("key", key)
        self.headers = [("Host", "transparency.test")]
        self.more = [(name, filled(value)) for name, value in said.get("headers", [])]
        body = said.get("body")
        body = None if body is None else bytes_of(filled(body) if isinstance(body, str) else body)
        if said.get("gzip"):
            body = gzip.compress(body, mtime=0)
            self.more.append(("Content-Encoding", "gzip"))
        self.expects = said.get("expect_continue", False)
        if said.get("chunked"):
            self.more.append(("Transfer-Encoding", "chunked"))
            size = said["chunked"]
            pieces = [body[at : at + size] for at in range(0, len(body), size)]
            self.body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
        else:
            self.body = body or b""
            if self.method == "POST" and not said.get("no_length"):
                self.more.append(("Content-Length", str(len(self.body))))
        if self.expects:
            self.more.append(("Expect", "100-continue"))

    def all_headers(self, number):
        key = [] if self.key is None else [("Idempotency-Key", f'"{self.key}{f"-{number}" if number else ""}"')]
        return self.headers + key + self.more

    def head(self, number=0):
        lines = [f"{self.method} {self.path} HTTP/{self.version}"] + [f"{name}: {value}" for name, value in self.all_headers(number)]
        return "\r\n".join([*lines, "", ""]).encode("latin-1" if all(ord(each) < 256 for line in lines for each in line) else "utf-8")


def exchange(process, request, gated=None, patience_s=http1.PATIENCE_S):
    """The answers, in order; the last one knows whether its connection is kept. gated: what is to arrive while the handler is at the gate."""
    if request.http2:
        return [exchange2(process, request)]
    with http1.Connection(process.port, patience_s) as connection:
        if gated:
            process.close_gate()
            try:
                connection.send(request.head() + request.body)
                while gated.encode() not in re.sub(rb"\r\n[0-9a-f]+\r\n", b"", connection.read):  # whatever its chunks are
                    connection.more()
            except (http1.Ended, OSError):
                gated = None
            finally:
                process.open_gate()
            answers = [connection.answer(request.method)]
            if not gated:
                answers[0].end = "not passed on as it is written"
        elif request.expects:
            connection.send(request.head())
            answers = [connection.answer(request.method, lambda: connection.send(request.body))]
        else:
            connection.send(b"".join(request.head(number) + request.body for number in range(request.times)))
            answers = [connection.answer(request.method) for _ in range(request.times)]
        answers[-1].kept = connection.is_kept(answers[-1], PROBE)
        return answers


def exchange2(process, request):
    """By curl, with prior knowledge."""
    with tempfile.TemporaryDirectory() as place:
        head, body = pathlib.Path(place, "head"), pathlib.Path(place, "body")
        pathlib.Path(place, "sent").write_bytes(request.body)
        words = ["curl", "-sS", "--http2-prior-knowledge", "--max-time", str(http1.PATIENCE_S), "-X", request.method, "-D", head, "-o", body, "--data-binary", f"@{place}/sent"]
        words += ["-H", "Accept:", "-H", "User-Agent:", "-H", "Content-Type:"]
        for name, value in request.all_headers(0):
            if name not in ("Content-Length", "Transfer-Encoding"):
                words += ["-H", f"{name}: {value}"]
        done = subprocess.run([*map(str, words), f"http://127.0.0.1:{process.port2}{request.path}"], capture_output=True, check=False)
        answer = http1.Answer(end="whole" if done.returncode == 0 else "cut" if head.exists() and head.stat().st_size else "none")
        blocks = [block.split("\r\n") for block in head.read_bytes().decode("latin-1").split("\r\n\r\n") if block] if head.exists() else []
        for lines in blocks:
            if not lines[0].startswith("HTTP/"):
                answer.trailers = http1.pairs(lines)
            elif lines[0].split(" ")[1].startswith("1"):
                answer.interim.append((lines[0], http1.pairs(lines[1:])))
            else:
                answer.line, answer.headers = lines[0], http1.pairs(lines[1:])
        answer.body = body.read_bytes() if body.exists() else b""
        return answer


def leave(process, request, half):
    """Goes when its handler waits at the gate, which is opened when the application had the chance to see that. half: when it has sent half of its body."""
    if half:
        with http1.Connection(process.port) as connection:
            connection.send(request.head() + request.body[: len(request.body) // 2])
            connection.end()
            connection.answer(request.method)
        return
    process.close_gate()
    try:
        connection = http1.Connection(process.port)
        connection.send(request.head() + request.body)
        postgres.wait_until(process.somebody_waits, "the handler to come to the gate", SETTLE_S)
        connection.reset()
        for _ in range(3):
            process.in_use()  # its event loop has been round
    finally:
        process.open_gate()


def exhaust(process, said, how):
    """Three times as many handlers as the pool has connections, until what holds them ends: the gate opens ("gate"), or their clients leave before it does ("leave");
    their limit ends them while it stays closed ("limit"); they end by themselves ("itself"). Their answers, and the seconds from then until a new request is answered."""
    connections, answers = [http1.Connection(process.port) for _ in range(3 * POOL)], []
    if how != "itself":
        process.close_gate()
    try:
        for connection in connections:
            request = Request(said["request"], str(uuid.uuid4()), {})
            connection.send(request.head() + request.body)
        if how in ("gate", "leave"):
            postgres.wait_until(lambda: process.somebody_waits() >= POOL, "the pool to be exhausted", SETTLE_S)
        if how == "leave":
            for connection in connections:
                connection.reset()
        if how in ("limit", "itself"):
            answers = [connection.answer() for connection in connections]
        else:
            process.open_gate()
        began = time.monotonic()
        while True:
            (answer,) = exchange(process, Request({"path": "/json"}, str(uuid.uuid4()), {}))
            took = time.monotonic() - began
            if answer.status == 201 or took > http1.PATIENCE_S:
                break
        if how == "gate":
            answers = [connection.answer() for connection in connections]
        return answers, took
    finally:
        process.open_gate()
        for connection in connections:
            connection.socket.close()


def unpacked(case, answer):
    """The body, of a case about compression without it: two compressions of the same may differ, by a time or by padding."""
    packed = case.get("expect", {}).get("gzip") and answer.one("content-encoding") == "gzip"
    return gzip.decompress(answer.body) if packed else answer.body


def blurred(case, answer):
    """Without what the case says to vary."""
    headers = [(name, "*" if name.lower() in BY_NATURE else value) for name, value in answer.headers]
    body = unpacked(case, answer)
    for said in case.get("varies", []):
        if "header" in said:
            headers = [(name, re.sub(said["pattern"], "*", value) if name.lower() == said["header"] else value) for name, value in headers]
        else:
            body = re.sub(said["body"].encode(), b"*", body)
    # Its number may change with it.
    if body != answer.body:
        headers = [(name, "*" if name.lower() == "content-length" else value) for name, value in headers]
    return headers, body


def short(value):
    text = repr(value)
    return text if len(text) <= 400 else f"{text[:300]}... ({len(value) if hasattr(value, '__len__') else '?'})"


def same(case, plain, ours):
    """(what, text) of each difference between an answer without us and one with us."""
    if plain.end != ours.end and not (plain.end in ("cut", "none") and ours.end in ("cut", "none")):
        yield "end", f"the answer is {plain.end} without pgonce, {ours.end} with it ({ours.line or 'nothing'}, {short(ours.body)})"
        return
    if plain.end != "whole":
        return  # broken both times
    if plain.line != ours.line:
        yield "status", f"{plain.line!r} without pgonce, {ours.line!r} with it, {short(ours.body)}"
    (theirs, body), (mine, my_body) = blurred(case, plain), blurred(case, ours)
    yield from same_headers(theirs, mine)
    if body != my_body:
        yield "body", f"{short(body)} without pgonce, {short(my_body)} with it"
    if plain.framing != ours.framing:
        yield "framing", f"{plain.framing} without pgonce, {ours.framing} with it"
    for what in ("trailers", "interim", "kept"):
        if getattr(plain, what) != getattr(ours, what):
            yield what, f"{getattr(plain, what)!r} without pgonce, {getattr(ours, what)!r} with it"


def same_headers(theirs, mine):
    framing = ("content-length", "transfer-encoding")  # told by framing, if it is another one
    theirs, mine = ([pair for pair in pairs if pair[0].lower() not in framing] for pairs in (theirs, mine))
    before = len(theirs), len(mine)
    for name in sorted({name.lower() for name, _ in theirs + mine}):
        one, two = ([pair for pair in pairs if pair[0].lower() == name] for pairs in (theirs, mine))
        if one != two:
            yield f"header {name}", f"{short(one)} without pgonce, {short(two)} with it"
            before = None
    if before and theirs != mine:
        yield "order", f"{[name for name, _ in theirs]} without pgonce, {[name for name, _ in mine]} with it"


def replayed(case, first, again):
    """Of a stored answer and its replay, by the documented rule: what describes the answer comes back, the rest may be missing."""
    if again.end != "whole":
        yield "end", f"the replay is {again.end}"
        return
    if again.status != first.status:
        yield "status", f"{first.line!r}, replayed as {again.line!r} {short(again.body)}"
    if "true" not in again.all("idempotency-replayed"):
        yield "header idempotency-replayed", "it is no replay"
    one, two = ([(name.lower(), value) for name, value in answer.headers if is_replayed(name)] for answer in (first, again))
    for name in sorted({name for name, _ in one + two}):
        a, b = ([value for each, value in pairs if each == name] for pairs in (one, two))
        if a != b:
            yield f"header {name}", f"{short(a)}, replayed as {short(b)}"
    known = {(name.lower(), value) for name, value in blurred(case, first)[0]}
    for name, value in blurred(case, again)[0]:
        lower = name.lower()
        if not is_replayed(name) and lower not in BY_NATURE and lower not in ("content-length", "transfer-encoding") and not lower.startswith("idempotency-"):
            if (lower, value) not in known and lower not in ("connection", "keep-alive"):
                yield f"header {lower}", f"the replay has {value!r}, the answer has not"
    if unpacked(case, again) != unpacked(case, first):
        yield "body", f"{short(first.body)}, replayed as {short(again.body)}"
    if again.kept != first.kept and not (again.kept and first.one("connection").lower() == "close"):
        yield "kept", f"{first.kept!r}, replayed with {again.kept!r}"


def statuses(expect):
    said = expect.get("status", [])
    return said if isinstance(said, list) else [said]


def is_stored(answer):
    """Whether a retry gets this answer again, by the documented rule."""
    refusal = 400 <= answer.status < 500
    asks = refusal and (answer.one("retry-after") or answer.one("www-authenticate"))
    return answer.end == "whole" and 200 <= answer.status < 500 and answer.status not in RELEASED and not asks


def as_expected(expect, answer):
    """(what, text): the application itself does not do what the case is about."""
    wanted_end = expect.get("end", "whole")
    if answer.end != wanted_end and wanted_end != "any":
        yield "end", f"the application's answer is {answer.end}, it is to be {wanted_end}"
        return
    if "status" in expect and answer.status not in statuses(expect):
        yield "status", f"the application answers {answer.line!r} {short(answer.body)}, it is to be {expect['status']}"
    for name, pattern in expect.get("headers", {}).items():
        if not re.fullmatch(pattern, answer.one(name), re.I):
            yield f"header {name}", f"the application says {answer.one(name)!r}, it is to be {pattern!r}"
    for name, times in expect.get("repeated", {}).items():
        if len(answer.all(name)) != times:
            yield f"header {name}", f"the application has {answer.all(name)}, it is to be {times} lines"
    body = unpacked({"expect": expect}, answer)
    if expect.get("gzip") and answer.one("content-encoding") != "gzip":
        yield "body", "the application did not compress it"
    if "text" in expect and body != expect["text"].encode():
        yield "body", f"the application answers {short(body)}, it is to be {expect['text']!r}"
    if "contains" in expect and expect["contains"].encode() not in body:
        yield "body", f"the application answers {short(body)}, {expect['contains']!r} is to be in it"
    if "size" in expect and len(body) != expect["size"]:
        yield "body", f"the application answers {len(body)} bytes, it is to be {expect['size']}"
    for what in ("interim", "trailers"):
        if what in expect and len(getattr(answer, what)) != expect[what]:
            yield what, f"the application has {getattr(answer, what)}, it is to be {expect[what]}"
    if "json" in expect:
        try:
            got = json.loads(body)
        except ValueError:
            got = None
        if got != expect["json"]:
            yield "body", f"the application answers {short(body)}, it is to be {expect['json']}"


def as_ours(ours, answer, plain):
    """An answer that is documented to be pgonce's own."""
    if ours.get("broken"):
        if answer.end == "whole" and answer.status < 500:
            yield "end", f"the answer is whole ({answer.line!r} {short(answer.body)}), it is to be broken off or an error of the server"
        return
    if answer.end != "whole":
        yield "end", f"the answer is {answer.end}, it is to be whole"
        return
    status = ours.get("status") or PROBLEMS["problems"].get(ours.get("problem"), {}).get("status")
    if status and answer.status != status:
        yield "status", f"{answer.line!r} {short(answer.body)}, it is to be {status}"
        return
    if "text" in ours and answer.body != ours["text"].encode():
        yield "body", f"{short(answer.body)}, it is to be {ours['text']!r}"
    if ours.get("problem"):
        wanted = PROBLEMS["type_base"] + ours["problem"]
        try:
            told = json.loads(answer.body).get("type")
        except ValueError:
            told = None
        if told != wanted:
            yield "body", f"{short(answer.body)}, it is to be of type {wanted}"
    for name in ours.get("headers", []):
        if answer.all(name) != plain.all(name):
            yield f"header {name}", f"{plain.all(name)} without pgonce, {answer.all(name)} with it"


class Case:
    """A case with an application: what it finds are (phase, what, text)."""

    def __init__(self, said, off, on, verbose, limited=None):
        self.said, self.off, self.on, self.verbose = said, off, limited.begin() if said.get("limited") else on, verbose
        self.key = str(uuid.uuid4())
        self.found = []

    def note(self, phase, differences):
        self.found += [(phase, what, text) for what, text in differences]

    def send(self, process, said, captured, name, gated=None):
        request = Request(said, self.key, captured)
        answers = exchange(process, request, gated)
        if self.verbose:
            print(f"--- {self.said['name']}: {name}\n{request.head()!r} {short(request.body)}")
            for answer in answers:
                print(answer)
        return request, answers

    def prepare(self, process):
        """The requests before it, and what they bring."""
        captured = {}
        for said in self.said.get("before", []):
            _, (answer,) = self.send(process, {"method": "GET", "key": None, **said["request"]}, captured, "before")
            for name, how in said.get("capture", {}).items():
                text = "; ".join(value.split(";")[0] for value in answer.all("set-cookie")) if how == "cookies" else answer.body.decode()
                captured[name] = text.strip()
        return captured

    def recovers(self):
        """Of a pool that is exhausted, for one cause after the other."""
        said, how = self.said, self.said["exhausted"]
        late = []
        for _ in range(RECOVERY_TRIES):
            usual_s = exhaust(self.off, {"request": {"path": "/gate"}}, "gate")[1]
            answers, took = exhaust(self.on, said, how)
            if self.verbose:
                print(f"--- {said['name']}: {took:.3f} s, {usual_s:.3f} s without pgonce; {[answer.line for answer in answers]}")
            for answer in answers:
                if answer.end != "whole" or answer.status not in statuses(said["expect"]):
                    self.note(FIRST, [("status", f"a handler that waited: {answer.end} {answer.line!r} {short(answer.body)}, it is to be {said['expect']['status']}")])
            self.held(FIRST)
            if self.found or took <= RECOVERY_S + RECOVERY_TIMES * usual_s:
                return self.found
            late.append(f"{took:.2f} s ({usual_s:.2f} s without pgonce)")
        self.note(FIRST, [("recovery", f"a new request was answered after {', '.join(late)}")])
        return self.found

    def run(self):
        if self.said.get("exhausted"):
            return self.recovers()
        said, before = self.said, self.on.effects()
        protected = said["request"].get("method", "POST") == "POST" and said["request"].get("key", self.key) is not None
        plain, stored = [], False
        if said.get("plain", True):
            _, plain = self.send(self.off, said["request"], self.prepare(self.off), "without pgonce", said.get("gated"))
            if plain[0].status in (404, 405, 501) and plain[0].status not in statuses(said.get("expect", {})):
                return [(FIRST, "not written yet", f"the application has no handler for {said['request']['path']}: {plain[0].line}")]
            self.note(FIRST, as_expected(said.get("expect", {}), plain[0]))
            if self.found:
                return self.found
            stored = protected and said.get("stored", is_stored(plain[0])) and not said.get("ours")
        captured = self.prepare(self.on)
        if said.get("leave"):
            leave(self.on, Request(said["request"], self.key, captured), said["leave"] == "half")
            self.held(FIRST)
            _, again = self.send(self.on, said["request"], captured, "after the client has left")
            for one, two in zip(plain, again):
                two.headers = [(name, value) for name, value in two.headers if not name.lower().startswith("idempotency-")]
                self.note(REPLAY, (each for each in same(said, one, two) if each[0] != "framing"))
        else:
            if said.get("closed"):
                self.on.close_gate()
            try:
                _, first = self.send(self.on, said["request"], captured, "with pgonce", said.get("gated"))
                self.compare(FIRST, plain, first)
                self.held(FIRST)
                _, again = self.send(self.on, said["request"], captured, "again")
                self.again(plain, first, again, stored)
                self.held(REPLAY)
            finally:
                self.on.open_gate()
        self.held(REPLAY)
        if "other" in said:
            _, (answer,) = self.send(self.on, {**said["request"], **said["other"]}, captured, "another request with this key")
            self.note(OTHER, as_ours({"problem": "mismatch", "headers": said.get("other_headers", [])}, answer, plain[0]))
        self.count(before, stored and plain[0].status < 400, protected)
        return self.found

    def compare(self, phase, plain, answers):
        if self.said.get("ours"):
            for one, two in zip(plain or answers, answers):
                self.note(phase, as_ours(self.said["ours"], two, one))
        else:
            for one, two in zip(plain, answers):
                self.note(phase, same(self.said, one, two))

    def again(self, plain, first, again, stored):
        said = self.said
        if "replay" in said:
            for one, two in zip(first, again):
                self.note(REPLAY, as_ours(said["replay"], two, one))
        elif stored:
            for one, two in zip(first, again):
                self.note(REPLAY, replayed(said, one, two))
        else:
            self.compare(REPLAY, plain, again)

    def held(self, phase):
        if self.on.process.poll() is not None:
            self.found.append((phase, "process", f"the application has ended: {self.on.said(1000)}"))
        else:
            held = self.on.settled()
            if not held:
                return
            self.found.append((phase, "held", held))
        # The next case is not to suffer from it.
        self.on.stop()
        self.on.start()
        self.on.wait()

    def count(self, before, happened, protected):
        said = self.said
        if not protected and "effects" not in said and "rows" not in said:
            return
        name = handler_of(said)
        rows = said.get("rows") or {name: said.get("effects", 1 if happened else 0)}

        def grown():
            after = self.on.effects()
            return {each: after.get(each, 0) - before.get(each, 0) for each in {*rows, *after} if each in rows or after.get(each, 0) != before.get(each, 0)}

        try:
            # What comes after the answer has no event that could be awaited.
            postgres.wait_until(lambda: grown() == rows, "the effects", SETTLE_S if said.get("rows") else 0)
        except TimeoutError:
            self.found.append((REPLAY, "effects", f"{grown()}, they are to be {rows}"))


def judged(application, case, found):
    """What was found and is no exception; and exceptions that no longer are any."""
    allowed = {(each["phase"], each["what"]): each for each in application.differs if {case["name"], "*"} & set(each["cases"])}
    got = {(phase, what) for phase, what, _ in found}
    problems = [f"{phase}: {what}: {text}" for phase, what, text in found if (phase, what) not in allowed]
    for where, exception in allowed.items():
        if where in got:
            application.used.add(where)
        elif "*" not in exception["cases"]:
            problems.append(f"{': '.join(where)}: it no longer differs: take the exception out of application.json")
    return problems


def run(application, server, port, files, given):
    lacking = application.lacks()
    if lacking:
        print(f"{application.name}: left out: {lacking}", flush=True)
        return True
    application.prepare()
    off, on = (Process(application, server, port, which, files) for which in (False, True))
    limited = Process(application, server, port, True, files, LIMITED_MS)
    failed = passed = left_out = 0
    try:
        for process in (off, on):
            process.start()
        for process in (off, on):
            process.wait()
        for said in application.cases:
            if given.case and said["name"] not in given.case:
                continue
            if application.cannot_say(said):
                left_out += 1
                continue
            case = None
            try:
                case = Case(application.said_of(said), off, on, given.verbose, limited)
                found = case.run()
            except (OSError, ValueError, TimeoutError) as error:
                found = [*(case.found if case else []), (FIRST, "exchange", f"{type(error).__name__}: {error}")]
            problems = judged(application, said, found)
            passed, failed = passed + (not problems), failed + bool(problems)
            for each in problems:
                print(f"{application.name}: {said['name']}: {each}", flush=True)
        for each in application.differs:
            if not given.case and "*" in each["cases"] and (each["phase"], each["what"]) not in application.used:
                failed += 1
                print(f"{application.name}: {each['phase']}: {each['what']}: no case differs: take the exception out of application.json")
        if given.verbose and failed:
            print(f"--- without pgonce:\n{off.said()}\n--- with pgonce:\n{on.said()}\n--- and a short limit:\n{limited.said()}")
    finally:
        for process in (off, on, limited):
            process.open_gate()
            process.stop()
    print(f"{application.name}: {passed} cases pass, {failed} fail, {left_out} are left out (application.json says why)", flush=True)
    return failed == 0


def write_report(place):
    report = pathlib.Path(place, "report.txt")
    report.write_text(REPORT, encoding="utf-8")
    os.utime(report, (1641038400, 1641038400))


def applications():
    return sorted(path.parent.name for path in HERE.glob("*/application.json"))


def private_server():
    """A server on loopback, too, and its port, which is that of its socket's file as well."""
    port = postgres.PORT = free_port()
    return postgres.Postgres(settings={"listen_addresses": "127.0.0.1", "log_min_messages": "fatal"}), port


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("application", nargs="*")
    parser.add_argument("--language", action="append")
    parser.add_argument("--case", action="append")
    parser.add_argument("-v", "--verbose", action="store_true")
    given = parser.parse_args()
    chosen = [Application(name) for name in given.application or applications()]
    if given.language:
        chosen = [each for each in chosen if each.language in given.language]
    private, port = private_server()
    with private as server:
        with tempfile.TemporaryDirectory() as files:
            write_report(files)
            results = [run(each, server, port, files, given) for each in chosen]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
