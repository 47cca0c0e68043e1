# SPDX-License-Identifier: PostgreSQL
"""An HTTP endpoint whose answers the test decides: it refuses, hangs, is slow, asks to wait, closes in the middle, speaks TLS, and remembers what
came, in which order. One thread with an event loop, so that thousands of requests a second leave the processors to what is tested."""

import asyncio
import collections
import dataclasses
import http.client
import json
import socket
import ssl
import struct
import threading

from .broker import certificates, free_port

PATIENCE_S = 60


@dataclasses.dataclass
class Request:
    method: str
    target: str
    headers: list  # (name, value), as sent
    body: bytes
    connection: int  # its number, from 1
    at: float  # the loop's clock

    def header(self, name, default=None):
        """The one header of that name; a second one is an error."""
        values = [value for each, value in self.headers if each.lower() == name.lower()]
        assert len(values) <= 1, f"{name} comes {len(values)} times"
        return values[0] if values else default

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def event_id(self):
        return self.header("Pgonce-Event-Id")


@dataclasses.dataclass
class Answer:
    status: int = 200
    headers: tuple = ()
    body: bytes = b""
    delay: float = 0  # seconds until it is sent
    hang: bool = False  # until release(), or for ever
    cut: int = None  # close after so many bytes of the answer; 0: without a byte
    reset: bool = False  # with RST
    close: bool = False  # say "Connection: close", and do
    endless: bool = False  # the body never ends

    def encode(self):
        lines = [f"HTTP/1.1 {self.status} {http.client.responses.get(self.status, 'Other')}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        lines += ["Connection: close"] if self.close else []
        lines += [] if self.endless else [f"Content-Length: {len(self.body)}"]
        return ("\r\n".join(lines) + "\r\n\r\n").encode() + self.body


def always(*answers, **named):
    """A script: the answers one after the other, the last one for ever."""
    answers = list(answers) or [Answer(**named)]

    def script(_):
        return answers.pop(0) if len(answers) > 1 else answers[0]

    return script


def per_event(*answers):
    """As always, but counted for each event by itself."""
    given = collections.Counter()

    def script(request):
        given[request.event_id] += 1
        return answers[min(given[request.event_id], len(answers)) - 1]

    return script


class Webhook:
    """`script`, a function from Request to Answer (None: 200), may be changed at any time."""

    def __init__(self, script=None, tls=None, host="127.0.0.1"):
        """host: where it listens. tls: a directory, into which certificates are made (ca.pem and others: harness.broker.certificates)."""
        self.script = script or always()
        self.host = host
        self.port = free_port()
        self.tls = tls and self.make_tls(tls)
        self.requests = []
        self.connections = set()  # that are open
        self.connection_count = 0
        self.held = []  # hanging answers: functions that send them
        self.open_now = self.open_most = 0  # requests without an answer yet
        self.changed = threading.Condition()
        self.loop = asyncio.new_event_loop()
        self.server = None
        self.thread = threading.Thread(target=self.loop.run_forever, name="webhook", daemon=True)
        self.thread.start()
        self.accept()

    def make_tls(self, directory):
        if not (directory / "server.pem").exists():
            certificates(directory)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(directory / "server.pem", directory / "server.key")
        return context

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.refuse()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(PATIENCE_S)
        self.loop.close()

    @property
    def url(self):
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}/"

    def within(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(PATIENCE_S)

    # what the test does to it

    def accept(self):
        """Takes connections (again), on the same port."""

        async def listen():
            self.server = await self.loop.create_server(lambda: Connection(self), self.host, self.port, ssl=self.tls, backlog=1024,
                                                        reuse_address=True)

        self.within(listen())

    def refuse(self):
        """From now on connections are refused, and those that are open are closed."""

        async def close():
            if self.server is not None:
                self.server.close()
                self.server = None
            for each in list(self.connections):
                each.abort()

        self.within(close())

    def release(self, answer=None):
        """Sends the answers that hang (or this one in their place); later ones hang again."""

        def send():
            held, self.held = self.held, []
            for each in held:
                each(answer)

        self.loop.call_soon_threadsafe(send)

    # what came

    def wait(self, count=1, patience_s=PATIENCE_S):
        """Until so many requests have come."""
        return self.wait_for(lambda requests: len(requests) >= count, f"{count} requests", patience_s)

    def wait_for(self, condition, what, patience_s=PATIENCE_S):
        with self.changed:
            if not self.changed.wait_for(lambda: condition(self.requests), patience_s):
                raise TimeoutError(f"waited {patience_s} s for {what}; {len(self.requests)} requests came")
            return list(self.requests)

    def seen(self):
        with self.changed:
            return list(self.requests)

    def event_ids(self):
        return [request.event_id for request in self.seen()]

    def clear(self):
        with self.changed:
            self.requests.clear()

    # in the loop

    def note(self, request):
        with self.changed:
            self.requests.append(request)
            self.open_now += 1
            self.open_most = max(self.open_most, self.open_now)
            self.changed.notify_all()

    def answered(self):
        with self.changed:
            self.open_now -= 1


class Connection(asyncio.Protocol):
    def __init__(self, endpoint):
        self.endpoint = endpoint
        self.buffer = bytearray()
        self.transport = None
        self.busy = False  # one request of a connection at a time
        self.number = 0

    def connection_made(self, transport):
        self.transport = transport
        self.endpoint.connection_count += 1
        self.number = self.endpoint.connection_count
        self.endpoint.connections.add(self)

    def connection_lost(self, _):
        self.endpoint.connections.discard(self)

    def abort(self):
        self.transport.abort()

    def data_received(self, data):
        self.buffer += data
        self.read()

    def read(self):
        while not self.busy:
            request = self.take()
            if request is None:
                return
            self.busy = True
            self.endpoint.note(request)
            answer = self.endpoint.script(request) or Answer()
            if answer.hang:
                self.endpoint.held.append(lambda other, answer=answer: self.send(other or answer))
            elif answer.delay:
                self.endpoint.loop.call_later(answer.delay, self.send, answer)
            else:
                self.send(answer)

    def take(self):
        """The next whole request."""
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return None
        first, *lines = bytes(self.buffer[:end]).decode("latin-1").split("\r\n")
        headers = [tuple(part.strip() for part in line.split(":", 1)) for line in lines]
        length = int(next((value for name, value in headers if name.lower() == "content-length"), "0"))
        if len(self.buffer) < end + 4 + length:
            return None
        body = bytes(self.buffer[end + 4 : end + 4 + length])
        del self.buffer[: end + 4 + length]
        method, target, _ = first.split(" ")
        return Request(method, target, headers, body, self.number, self.endpoint.loop.time())

    def send(self, answer):
        self.busy = False
        self.endpoint.answered()
        if self.transport.is_closing():
            return
        data = answer.encode()
        if answer.reset:
            connection = self.transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()
            return
        self.transport.write(data if answer.cut is None else data[: answer.cut])
        if answer.endless:
            self.pour()
        elif answer.cut is not None or answer.close:
            self.transport.close()
        else:
            self.read()

    def pour(self):
        if not self.transport.is_closing():
            self.transport.write(b"x" * 65536)
            self.endpoint.loop.call_later(0.001, self.pour)
