# SPDX-License-Identifier: PostgreSQL
"""clients/conformance/http.json and cross.json by each middleware, over real connections, byte by byte."""

import json
import re
import socket
import threading

import pytest

from .conftest import CONFORMANCE, RESULTS, ROOT, Database
from .doors import opened
from .services import AWAY, PATIENCE_S, SERVICES
from .test_conformance_sql import Runner as SqlRunner
from .test_conformance_sql import bytes_of

HTTP = json.loads((CONFORMANCE / "http.json").read_text())["cases"]
CROSS = json.loads((CONFORMANCE / "cross.json").read_text())["cases"]
PROBLEMS = json.loads((ROOT / "spec/problems.json").read_text())
# What is left out, and why.
SKIPS = {}


class Reply:
    """raw: empty where the connection was closed without an answer."""

    def __init__(self, raw):
        self.raw, self.status, self.headers, self.body = raw, None, [], b""
        if not raw:
            return
        head, _, body = raw.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        self.status = int(lines[0].split(" ")[1])
        self.headers = [tuple(part.strip() for part in line.split(":", 1)) for line in lines[1:]]
        self.body = unchunked(body) if "chunked" in self.values("Transfer-Encoding") else body

    def values(self, name):
        return [value for header, value in self.headers if header.lower() == name.lower()]


def unchunked(body):
    out = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        out, body = out + body[:length], body[length + 2 :]
    return out


def send(address, method, target, headers, body):
    head = "".join(f"{name}: {value}\r\n" for name, value in headers)
    with socket.create_connection(address, timeout=PATIENCE_S) as connection:
        connection.sendall(f"{method} {target} HTTP/1.1\r\n{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        raw = b""
        while piece := connection.recv(65536):
            raw += piece
    return Reply(raw)


class Events:
    """A stream of two events, of which the second comes when the test has looked at what the first one has left. sent(): as a blocking view writes it."""

    def __init__(self):
        self.second = threading.Event()

    def sent(self):
        yield "data: 1\n\n"
        assert self.second.wait(PATIENCE_S)
        yield "data: 2\n\n"

    def received(self, connection, between):
        """By a client that has sent its request; between() is called after the first event."""
        raw = b""
        while b"data: 1" not in raw:
            raw += connection.recv(65536)
        between()
        self.second.set()
        while b"data: 2" not in raw:
            raw += connection.recv(65536)
        assert Reply(raw).status == 200


class Runner:
    def __init__(self, case, db, port, script, gateway=None, sql=None):
        self.case, self.db, self.port, self.script = case, db, port, script
        self.gateway, self.sql = gateway, sql
        self.background = {}

    def request(self, step):
        name = self.case["name"]
        key = step.get("key", f'"{name}"')
        keys = [] if key is None else key if isinstance(key, list) else [key]
        headers = [("Host", step.get("host", "shop.test"))] + [("Idempotency-Key", each) for each in keys]
        given = {header.lower() for header, _ in step.get("headers", ())}
        defaults = [("X-Tenant", "acme"), ("Content-Type", "application/json")]
        headers += [each for each in defaults if each[0].lower() not in given]
        headers += [(header, value) for header, value in step.get("headers", ()) if value is not None]
        body = bytes_of(step["body"]) if "body" in step else b'{"amount": 100}'
        address = ("127.0.0.1", self.port)
        if step.get("door") == "gateway":
            address = (self.gateway["host"], self.gateway["port"])
        return send(address, step.get("method", "POST"), f"/{name}{step.get('target', '')}", headers, body)

    def step(self, step):
        if "sql" in step:
            self.db.rows(step["sql"])
        elif step.get("release"):
            self.script.released.set()
        elif "join" in step:
            thread, box = self.background.pop(step["join"])
            thread.join(PATIENCE_S)
            self.compare(box[0], step["expect"])
        elif "background" in step:
            box = []
            thread = threading.Thread(target=lambda: box.append(self.request(step)))
            holding = not self.background
            thread.start()
            self.background[step["background"]] = thread, box
            if holding:
                assert self.script.begun.acquire(timeout=PATIENCE_S)
        else:
            self.compare(self.request(step), step.get("expect", {}))

    @staticmethod
    def compare(reply, wanted):
        if "problem" in wanted:
            compare_problem(reply, wanted)
        if "status" in wanted:
            assert reply.status == wanted["status"], reply.body
        if "closed" in wanted:
            assert reply.raw == b""
        body = bytes_of(wanted)
        if body is not None:
            assert reply.body == body
        if "json" in wanted:
            assert json.loads(reply.body) == wanted["json"]
        for name, value in wanted.get("headers", {}).items():
            assert reply.values(name) == [value], name
        for name in wanted.get("absent", ()):
            assert reply.values(name) == [], name
        if "replayed" in wanted:
            assert reply.values("Idempotency-Replayed") == (["true"] if wanted["replayed"] else [])
        assert reply.values("Once-Effect") == []

    def all(self):
        for sql in self.case.get("arrange", ()):
            self.db.rows(sql)
        for number, step in enumerate(self.case["steps"], 1):
            try:
                if "call" in step:
                    self.sql.step(step)
                else:
                    self.step(step)
            except Exception as raised:
                raise AssertionError(f"step {number} of {self.case['name']}: {raised!r}") from raised
        if "runs" in self.case:
            assert self.script.runs == self.case["runs"]
        if "effects" in self.case:
            assert self.db.effects(self.case["name"]) == self.case["effects"]
        for each in self.case.get("rows", ()):
            assert [list(row) for row in self.db.rows(each["sql"])] == each["is"]


def compare_problem(reply, wanted):
    row = PROBLEMS["problems"][wanted["problem"]]
    detail = row["detail"] + (f" {wanted['more']}" if "more" in wanted else "")
    document = json.loads(reply.body)
    # Byte for byte as the gateway writes it.
    text = (
        f'{{"type":"{PROBLEMS["type_base"]}{wanted["problem"]}","title":"{row["title"]}","status":{row["status"]},'
        f'"detail":{json.dumps(detail)},"retryable":{json.dumps(row["retry_after"] is not None)}}}'
    )
    body, named = re.subn(rb'"instance":"urn:pgonce:request:[0-9a-f]{32}",', b"", reply.body)
    assert body == text.encode() and named == 1, document
    assert reply.status == row["status"]
    assert reply.values("Content-Type") == ["application/problem+json"]
    assert reply.values("Cache-Control") == ["no-store"]
    assert reply.values("Idempotency-Replayed") == []
    assert reply.values("Retry-After") == ([] if row["retry_after"] is None else [str(row["retry_after"])])


def noted(name, check):
    found = RESULTS.setdefault("python", {})
    found.setdefault(name, "pass")
    try:
        check()
    except BaseException:
        found[name] = "fail"
        raise


@pytest.fixture(scope="module", params=SERVICES)
def service(request, server):
    made = SERVICES[request.param]
    made.name, made.db = request.param, server.database()
    return made


@pytest.mark.parametrize("case", HTTP, ids=lambda case: case["name"])
def test_an_http_case(service, case):
    if not {"client", "python", service.framework} & set(case.get("doors", ["client"])):
        pytest.skip("another door's")
    reason = SKIPS.get(case["name"])
    if reason:
        pytest.skip(reason)
    url = AWAY if case.get("location", {}).get("database") == "away" else service.db.url
    with service.serving(case, url) as (port, script):
        noted(f"http/{case['name']}", Runner(case, service.db, port, script).all)


@pytest.mark.parametrize("case", CROSS, ids=lambda case: case["name"])
def test_a_cross_case(service, server, case):
    gateway = server.hello["gateway"]
    if gateway is None and any(step["door"] == "gateway" for step in case["steps"]):
        pytest.skip("the gateway is not built")
    db = Database(server.hello)
    name = case["name"]
    with service.serving(case, db.url) as (port, script), opened("psycopg", db.url) as door:
        clear(db, name)
        sql = SqlRunner(door, db, case)
        noted(f"cross/{name}", Runner(case, db, port, script, gateway, sql).all)


def clear(db, key):
    """Each service runs the case anew in the gateway's one database."""
    db.rows("DELETE FROM once.intent WHERE key = %s", key)
