# SPDX-License-Identifier: PostgreSQL
"""Requests over real connections, byte by byte, and what tests compare of the answers."""

import json
import re
import socket
import threading

from cases import bytes_of
from frameworks import PATIENCE_S

from .conftest import ROOT

PROBLEMS = json.loads((ROOT / "spec/problems.json").read_text())


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
    """The steps of a case that a test brings itself, one after another (those of spec/cases are run by tests/clients/test_agents.py)."""

    def __init__(self, case, db, port, script):
        self.case, self.db, self.port, self.script = case, db, port, script

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
        return send(("127.0.0.1", self.port), step.get("method", "POST"), f"/{name}{step.get('target', '')}", headers, body)

    @staticmethod
    def compare(reply, wanted):
        if "problem" in wanted:
            compare_problem(reply, wanted)
        if "status" in wanted:
            assert reply.status == wanted["status"], reply.body
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
        for number, step in enumerate(self.case["steps"], 1):
            try:
                self.compare(self.request(step), step.get("expect", {}))
            except Exception as raised:
                raise AssertionError(f"step {number} of {self.case['name']}: {raised!r}") from raised
        if "runs" in self.case:
            assert self.script.runs == self.case["runs"]
        if "effects" in self.case:
            assert self.db.effects(self.case["name"]) == self.case["effects"]


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
