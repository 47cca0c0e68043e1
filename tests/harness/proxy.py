# SPDX-License-Identifier: PostgreSQL
"""A proxy between a libpq client and the server that loses the connection at a chosen message, as a network does.

It knows the framing of the PostgreSQL protocol, version 3 (manual, "Frontend/Backend Protocol"), and the texts of statements: a
rule names a piece of the text that a frontend message runs, or a backend message's type. Each rule fires once, on the first
connection that meets it. Or it is a black hole for a while: nothing is closed, and nothing comes through. Or it is far away: each
round trip takes as long as it is told."""

import os
import pathlib
import shutil
import socket
import struct
import threading
import time

from .postgres import PORT, private_directory

SSL_REQUEST, GSS_REQUEST, CANCEL_REQUEST = 80877103, 80877104, 80877102
READY_FOR_QUERY = b"Z"
QUERY, PARSE, BIND = b"Q", b"P", b"B"
ROUND_TRIPS = b"Q", b"S"  # Query, Sync: the messages whose answer a client waits for


class Rule:
    """direction: 'frontend' or 'backend'. action: 'drop' (the message is not forwarded), 'forward' (it is, and then
    the connection is cut), 'swallow' (it is, the server's whole answer is awaited and thrown away, and then the
    connection is cut), or of a frontend's message 'leave' (it is, with the rest of its round trip, and the connection is
    cut when `ready` returns) or 'pass' (it is, and nothing else happens)."""

    def __init__(self, direction, action, text=b"", kind=None, ready=None):
        self.direction, self.action, self.text, self.kind, self.ready = direction, action, text, kind, ready
        self.fired = threading.Event()  # it has happened: the connection is cut

    def meets(self, direction, kind, body):
        return direction == self.direction and self.kind in (None, kind) and self.text in body


class Proxy:
    """listens on a unix socket in a private directory, or with tcp=True on a free port of 127.0.0.1, or that of tcp."""

    def __init__(self, server, tcp=False):
        self.target = str(server.directory / f".s.PGSQL.{PORT}")
        self.directory = private_directory("pgonce-proxy-")
        self.rules = []
        self.lock = threading.Lock()
        self.sockets = []
        self.takes_cancels = self.reachable = True
        self.delay_s = 0
        self.round_trips = 0  # so far
        self.open = {"frontend": threading.Event(), "backend": threading.Event()}
        self.thaw()
        if tcp:
            self.listener = socket.create_server(("127.0.0.1", 0 if tcp is True else tcp))
            self.host, self.port = "127.0.0.1", self.listener.getsockname()[1]
        else:
            self.host, self.port = str(self.directory), PORT
            self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.listener.bind(str(pathlib.Path(self.directory) / f".s.PGSQL.{PORT}"))
            os.chmod(self.directory / f".s.PGSQL.{PORT}", 0o777)  # the client may run as another user
            self.listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        hang_up(self.listener)
        self.thaw()
        with self.lock:
            for each in self.sockets:
                hang_up(each)
        shutil.rmtree(self.directory, ignore_errors=True)

    def dsn(self, dbname, user="postgres"):
        return f"host={self.host} port={self.port} dbname={dbname} user={user} sslmode=disable gssencmode=disable"

    def lose_request(self, text):
        """The connection is lost before the server sees the frontend message that contains text."""
        return self._add(Rule("frontend", "drop", text.encode()))

    def lose_connection_after(self, text):
        """The server gets the message, and nobody waits for what becomes of it."""
        return self._add(Rule("frontend", "forward", text.encode()))

    def lose_answer(self, text):
        """The server gets the message and answers it in full; the client never hears."""
        return self._add(Rule("frontend", "swallow", text.encode()))

    def lose_at_work(self, text, ready):
        """The server gets the message and the rest of its round trip, and has not answered when ready returns: then the connection is lost."""
        return self._add(Rule("frontend", "leave", text.encode(), ready=ready))

    def lose_from_server(self, kind, text=b""):
        """The connection is lost before the client sees the first backend message of this type (one byte) with this
        text."""
        return self._add(Rule("backend", "drop", text, kind))

    def freeze(self, *directions):
        """From now on messages of these directions ('frontend', 'backend'; without one: both) are held, on connections that are there
        and on new ones, which are accepted and hear nothing."""
        for direction in directions or self.open:
            self.open[direction].clear()

    def delay(self, seconds):
        """From now on each round trip takes so much longer."""
        self.delay_s = seconds

    def thaw(self):
        """What was held arrives, late, wherever its connection is still there."""
        for each in self.open.values():
            each.set()

    def away(self):
        """From now on there is no server: every connection is lost, and no other is made."""
        self.reachable = False
        with self.lock:
            for each in self.sockets:
                hang_up(each)

    def back(self):
        self.reachable = True

    def _add(self, rule):
        with self.lock:
            self.rules.append(rule)
        return rule

    def take(self, direction, kind, body):
        with self.lock:
            for rule in self.rules:
                if rule.meets(direction, kind, body):
                    self.rules.remove(rule)
                    return rule
        return None

    def _accept(self):
        while True:
            try:
                client = self.listener.accept()[0]
            except OSError:
                return
            if client.family == socket.AF_INET:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # each piece of an answer goes at once
            server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            with self.lock:
                self.sockets += [client, server]
            try:
                if not self.reachable:
                    raise OSError("away")
                server.connect(self.target)
            except OSError:
                hang_up(client)  # the server is down: so are we
                hang_up(server)
                continue
            link = Link(self, client, server)
            threading.Thread(target=link.frontend, daemon=True).start()
            threading.Thread(target=link.backend, daemon=True).start()


class Link:
    """One client's connection: a thread for each direction."""

    def __init__(self, proxy, client, server):
        self.proxy, self.client, self.server = proxy, client, server
        self.swallowing = self.leaving = None
        self.muted = False  # nothing of the server's reaches the client any more
        self.statements = {}  # name: text, of Parse

    def cut(self, rule=None):
        hang_up(self.client)
        hang_up(self.server)
        if rule:
            rule.fired.set()

    def told(self, kind, body):
        """The text that a message has run: of Bind that of its statement, with its name, and no value. A statement that is only prepared has none."""
        if kind == PARSE:
            name, text, _ = body.split(b"\0", 2)
            self.statements[name] = text
            return b"" if name else text
        if kind == BIND:
            name = body.split(b"\0", 2)[1]
            return name + b" " + self.statements.get(name, b"") if name else b""
        return body if kind == QUERY else b""

    def frontend(self):
        try:
            self._startup()
            while True:
                kind, body, raw = message(self.client)
                rule = self.proxy.take("frontend", kind, self.told(kind, body))
                if rule and rule.action == "swallow":
                    self.swallowing = rule  # before the server can answer
                if rule and rule.action == "leave":
                    self.leaving = rule
                self.muted = self.muted or (rule is not None and rule.action in ("forward", "leave"))  # else a quick server's answer would pass
                self.proxy.open["frontend"].wait()
                if kind in ROUND_TRIPS:
                    self.proxy.round_trips += 1
                    time.sleep(self.proxy.delay_s)
                if not rule or rule.action != "drop":
                    self.server.sendall(raw)
                if self.leaving and kind in ROUND_TRIPS:
                    self.leaving.ready()
                    self.cut(self.leaving)
                elif rule and rule.action == "pass":
                    rule.fired.set()
                elif rule and rule.action not in ("swallow", "leave"):
                    self.cut(rule)
        except OSError:
            if self.swallowing is None:
                self.cut()

    def _startup(self):
        while True:
            head = exactly(self.client, 8)
            size, code = struct.unpack("!ii", head)
            rest = exactly(self.client, size - 8)
            self.proxy.open["frontend"].wait()
            if code == CANCEL_REQUEST and not self.proxy.takes_cancels:
                raise OSError("as RDS Proxy does")
            if code not in (SSL_REQUEST, GSS_REQUEST):
                self.server.sendall(head + rest)
                return
            self.client.sendall(b"N")

    def backend(self):
        try:
            while True:
                kind, body, raw = message(self.server)
                self.proxy.open["backend"].wait()
                rule = self.proxy.take("backend", kind, body)
                if rule:
                    self.cut(rule)
                elif self.swallowing:
                    if kind == READY_FOR_QUERY:
                        self.cut(self.swallowing)
                elif not self.muted:
                    self.client.sendall(raw)
        except OSError:
            self.cut(self.swallowing)


def message(source):
    head = exactly(source, 5)
    body = exactly(source, struct.unpack("!i", head[1:])[0] - 4)
    return head[:1], body, head + body


def exactly(source, size):
    data = bytearray()
    while len(data) < size:
        piece = source.recv(size - len(data))
        if not piece:
            raise OSError("closed")
        data += piece
    return bytes(data)


def hang_up(sock):
    """shutdown() wakes the other thread that reads this socket; close() alone would not."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    sock.close()
