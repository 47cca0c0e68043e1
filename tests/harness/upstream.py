# SPDX-License-Identifier: PostgreSQL
"""A service that knows nothing of idempotency, on a unix socket: it does what it is asked, each time, and counts.

What it does is scripted by the test, per test key: the header X-Test, which the test's client sends with every attempt
of one intent, so the count does not depend on what a gateway makes of the request. Every execution answers with other
bytes, so equal bytes are a replay."""

import collections
import dataclasses
import http.client
import json
import os
import shutil
import socket
import struct
import threading
import time

from .postgres import PATIENCE_S, private_directory

BACKLOG = 1024


@dataclasses.dataclass
class Request:
    method: str
    target: str
    version: str
    headers: list  # (name as it came, value)
    body: bytes
    protocol: str = "http"

    def all(self, name):
        return [value for each, value in self.headers if each.lower() == name.lower()]

    def header(self, name):
        values = self.all(name)
        assert len(values) <= 1, f"{name} came {len(values)} times: {values}"
        return values[0] if values else None

    @property
    def key(self):
        return self.header("X-Test")


@dataclasses.dataclass
class Answer:
    """body None: one that names this very execution. framing: 'length', 'chunked', or 'close' (as HTTP/1.0 does).
    cut: so many bytes of the body, then the connection closes. close: it closes without a byte of an answer. started is set
    when the request has been read; nothing is answered before `hold` is set, and no more than half of the body before
    `hold_rest` is. interim: statuses that come before it, byte by byte. piece: so many bytes at once, and pause_s between them. trailers: (name, value) behind the last chunk. do: called with the request before the answer; may return another answer."""

    status: int = 201
    headers: tuple = (("Content-Type", "application/json"),)
    body: bytes = None
    framing: str = "length"
    version: str = "1.1"
    cut: int = None
    close: bool = False
    reset: bool = False
    hold: threading.Event = None
    hold_rest: threading.Event = None
    piece: int = None
    pause_s: float = 0
    trailers: tuple = ()
    interim: tuple = ()
    do: object = None


# It asks for another attempt: by default the gateway releases the key.
NOT_NOW = Answer(503, headers=(("Retry-After", "1"),))


class Gone(Exception):
    """The connection ended."""


class Upstream:
    speaks = "http"

    def __init__(self):
        self.directory = private_directory("pgonce-upstream-")
        self.path = self.directory / "socket"
        self.changed = threading.Condition()
        self.requests = collections.defaultdict(list)
        self.scripts = {}
        self.connections = set()
        self.listener = None
        self.default = Answer()
        self.ending = threading.Event()
        self.accept()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.ending.set()
        self.refuse()
        shutil.rmtree(self.directory, ignore_errors=True)

    # What the test says and asks.

    def script(self, key, *answers):
        """The answers of the executions of this key, in turn; the last one stays."""
        with self.changed:
            self.scripts[key] = collections.deque(answers)

    def count(self, key):
        with self.changed:
            return len(self.requests[key])

    def seen(self, key):
        """The requests that came with this key, in their order."""
        with self.changed:
            return list(self.requests[key])

    def only(self, key):
        seen = self.seen(key)
        assert len(seen) == 1, f"{len(seen)} executions of {key}"
        return seen[0]

    def counts(self):
        with self.changed:
            return {key: len(requests) for key, requests in self.requests.items()}

    def wait(self, key, count=1, patience_s=PATIENCE_S):
        """Until this key has been executed so often."""
        with self.changed:
            if not self.changed.wait_for(lambda: len(self.requests[key]) >= count, patience_s):
                raise TimeoutError(f"waited {patience_s} s for execution {count} of {key}")

    def refuse(self):
        """From now on connections are refused, and those that are open are closed."""
        if self.listener is not None:
            hang_up(self.listener)
            self.listener.close()
            self.listener = None
        with self.changed:
            open_ones = list(self.connections)
        for each in open_ones:
            hang_up(each)

    def accept(self):
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        if self.path.exists():
            os.unlink(self.path)
        listener.bind(str(self.path))
        os.chmod(self.path, 0o777)
        listener.listen(BACKLOG)
        self.listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    # What it does.

    def _accept(self, listener):
        while True:
            try:
                connection = listener.accept()[0]
            except OSError:
                return
            with self.changed:
                self.connections.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        try:
            stream = connection.makefile("rb")
            while self._serve_one(connection, stream):
                pass
        except (Gone, OSError):
            pass
        finally:
            with self.changed:
                self.connections.discard(connection)
            hang_up(connection)  # the stream would keep it open
            connection.close()

    def _serve_one(self, connection, stream):
        request = self.read(stream)
        answer, number = self._execute(request)
        if answer.do:
            answer = answer.do(request) or answer
        if answer.hold:
            self._held(answer.hold)
        if answer.reset:
            # A close with unread data or a linger of zero is a reset where the transport has one.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if answer.close or answer.reset:
            return False
        body = answer.body
        if body is None:
            body = json.dumps({"key": request.key, "execution": number, "nonce": os.urandom(8).hex()}).encode()
        return self.write(connection, request, answer, body)

    def _execute(self, request):
        with self.changed:
            self.requests[request.key].append(request)
            number = len(self.requests[request.key])
            script = self.scripts.get(request.key)
            answer = self.default
            if script:
                answer = script.popleft() if len(script) > 1 else script[0]
            self.changed.notify_all()
        return answer, number

    def _held(self, event):
        for _ in range(PATIENCE_S * 20):
            if event.wait(0.05):
                return
            if self.ending.is_set():
                break
        raise Gone

    def read(self, stream):
        line = stream.readline(65537)
        if not line:
            raise Gone
        method, target, version = line.decode("latin-1").split()
        parsed = http.client.parse_headers(stream)
        headers = list(parsed.items())
        if "chunked" in (parsed.get("Transfer-Encoding") or "").lower():
            body = read_chunks(stream)
        else:
            size = int(parsed.get("Content-Length") or 0)
            body = stream.read(size)
            if len(body) < size:
                raise Gone
        return Request(method, target, version, headers, body)

    def write(self, connection, request, answer, body):
        """True where the connection stays open for the next request."""
        bodiless = request.method == "HEAD" or answer.status in (204, 304) or answer.status < 200
        head = [f"HTTP/{answer.version} {answer.status} {http.client.responses.get(answer.status, 'Other')}"]
        head += [f"{name}: {value}" for name, value in answer.headers]
        if answer.framing == "chunked":
            head.append("Transfer-Encoding: chunked")
            head += [f"Trailer: {name}" for name, _ in answer.trailers]
        elif answer.framing == "length" and answer.status not in (204, 304):
            head.append(f"Content-Length: {len(body)}")
        keeps = answer.framing != "close" and answer.version == "1.1" and request.version == "HTTP/1.1"
        keeps = keeps and (request.header("Connection") or "").lower() != "close"
        if not keeps:
            head.append("Connection: close")
        for status in answer.interim:
            for byte in f"HTTP/1.1 {status} Wait\r\nLink: </style.css>; rel=preload\r\n\r\n".encode():
                connection.sendall(bytes([byte]))
        connection.sendall(("\r\n".join(head) + "\r\n\r\n").encode("latin-1"))
        if bodiless:
            return keeps
        sent = body if answer.cut is None else body[: answer.cut]
        half = len(sent) // 2 if answer.hold_rest else len(sent)
        self._send(connection, answer, sent[:half])
        if answer.hold_rest:
            self._held(answer.hold_rest)
            self._send(connection, answer, sent[half:])
        if answer.cut is not None:
            return False
        if answer.framing == "chunked":
            connection.sendall("".join(["0\r\n", *(f"{name}: {value}\r\n" for name, value in answer.trailers), "\r\n"]).encode("latin-1"))
        return keeps

    @staticmethod
    def _send(connection, answer, data):
        step = answer.piece or max(1, len(data))
        for at in range(0, len(data), step):
            piece = data[at : at + step]
            if at:
                time.sleep(answer.pause_s)
            connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece) if answer.framing == "chunked" else piece)


def read_chunks(stream):
    body = bytearray()
    while True:
        size = int(stream.readline(1024).split(b";")[0], 16)
        piece = stream.read(size)
        if len(piece) < size:
            raise Gone
        body += piece
        stream.readline(1024)
        if size == 0:
            return bytes(body)


class FastCgi(Upstream):
    """The same service behind FastCGI (its specification, sections 3 to 6): a responder, one request a connection."""

    speaks = "fastcgi"
    BEGIN, END, PARAMS, STDIN, STDOUT = 1, 3, 4, 5, 6

    def read(self, stream):
        parameters, body = bytearray(), bytearray()
        while True:
            head = stream.read(8)
            if len(head) < 8:
                raise Gone
            _, kind, _, size, padding, _ = struct.unpack("!BBHHBB", head)
            content = stream.read(size)
            stream.read(padding)
            if kind == self.PARAMS:
                parameters += content
            elif kind == self.STDIN:
                body += content
                if not size:
                    break
        return cgi_request(self.pairs(parameters), bytes(body), "fastcgi")

    @staticmethod
    def pairs(data):
        at, found = 0, {}
        while at < len(data):
            sizes = []
            for _ in range(2):
                if data[at] < 128:
                    sizes.append(data[at])
                    at += 1
                else:
                    sizes.append(struct.unpack_from("!I", data, at)[0] & 0x7FFFFFFF)
                    at += 4
            name = data[at : at + sizes[0]].decode("latin-1")
            found[name] = data[at + sizes[0] : at + sum(sizes)].decode("latin-1")
            at += sum(sizes)
        return found

    def write(self, connection, request, answer, body):
        sent = body if answer.cut is None else body[: answer.cut]
        head = cgi_head(answer, len(body))
        out = head + sent
        for at in range(0, len(out), 32768):
            connection.sendall(self.record(self.STDOUT, out[at : at + 32768]))
        if answer.cut is None:
            connection.sendall(self.record(self.STDOUT, b"") + self.record(self.END, struct.pack("!IB3x", 0, 0)))
        return False

    def record(self, kind, content):
        return struct.pack("!BBHHBB", 1, kind, 1, len(content), 0, 0) + content


class Uwsgi(Upstream):
    """The same service behind the uwsgi protocol: a block of variables, the body, and an HTTP answer."""

    speaks = "uwsgi"

    def read(self, stream):
        head = stream.read(4)
        if len(head) < 4:
            raise Gone
        size = struct.unpack("<BHB", head)[1]
        data, at, found = stream.read(size), 0, []
        while at < size:
            length = struct.unpack_from("<H", data, at)[0]
            found.append(data[at + 2 : at + 2 + length].decode("latin-1"))
            at += 2 + length
        variables = dict(zip(found[::2], found[1::2]))
        body = stream.read(int(variables.get("CONTENT_LENGTH") or 0))
        return cgi_request(variables, body, "uwsgi")

    def write(self, connection, request, answer, body):
        sent = body if answer.cut is None else body[: answer.cut]
        head = cgi_head(answer, len(body)).replace(b"Status:", b"HTTP/1.1", 1)
        connection.sendall(head + sent)
        return False


class Scgi(Upstream):
    """The same service behind SCGI: a netstring of variables, the body, and a CGI answer."""

    speaks = "scgi"

    def read(self, stream):
        digits = b""
        while not digits.endswith(b":"):
            byte = stream.read(1)
            if not byte:
                raise Gone
            digits += byte
        words = stream.read(int(digits[:-1])).decode("latin-1").split("\0")
        stream.read(1)
        variables = dict(zip(words[::2], words[1::2]))
        body = stream.read(int(variables.get("CONTENT_LENGTH") or 0))
        return cgi_request(variables, body, "scgi")

    def write(self, connection, request, answer, body):
        connection.sendall(cgi_head(answer, len(body)) + (body if answer.cut is None else body[: answer.cut]))
        return False


def cgi_request(variables, body, protocol):
    twice = ("HTTP_CONTENT_TYPE", "HTTP_CONTENT_LENGTH")  # under their own names too
    named = {name: value for name, value in variables.items() if name.startswith("HTTP_") and name not in twice}
    headers = [(name[5:].replace("_", "-"), value) for name, value in named.items()]
    headers += [("Content-Type", variables["CONTENT_TYPE"])] if variables.get("CONTENT_TYPE") else []
    return Request(variables["REQUEST_METHOD"], variables["REQUEST_URI"], "HTTP/1.0", headers, body, protocol)


def cgi_head(answer, size):
    lines = [f"Status: {answer.status} {http.client.responses.get(answer.status, 'Other')}"] + [f"{name}: {value}" for name, value in answer.headers]
    if answer.framing == "length" and answer.status != 204:
        lines.append(f"Content-Length: {size}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def hang_up(sock):
    """Wakes the thread that reads or accepts here; the thread closes."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
