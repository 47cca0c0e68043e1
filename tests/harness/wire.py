# SPDX-License-Identifier: PostgreSQL
"""A few messages of PostgreSQL's own protocol, for what libpq cannot ask: to run a statement for some of its rows and leave it, as drivers do that fetch
in parts."""

import socket
import struct


class Wire:
    """One connection over a unix socket, with trust as its authentication."""

    def __init__(self, database, user="postgres"):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(str(database.server.directory / ".s.PGSQL.5432"))
        words = "".join(f"{word}\0" for word in ("user", user, "database", database.name)) + "\0"
        self.socket.sendall(struct.pack("!ii", len(words) + 8, 196608) + words.encode())
        self.until_ready()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def message(self):
        kind, length = struct.unpack("!ci", self.exactly(5))
        return kind.decode(), self.exactly(length - 4)

    def exactly(self, count):
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            if not more:
                raise ConnectionError("the server has closed the connection")
            data += more
        return data

    def until_ready(self):
        """The messages up to ReadyForQuery; raises what the server has refused."""
        messages = []
        while not messages or messages[-1][0] != "Z":
            messages.append(self.message())
        for kind, text in messages:
            if kind == "E":
                raise RuntimeError(text.decode())
        return messages

    def send(self, kind, *parts):
        body = b"".join(parts)
        self.socket.sendall(kind.encode() + struct.pack("!i", len(body) + 4) + body)

    def query(self, text):
        """The first column of a simple query's rows."""
        self.send("Q", text.encode() + b"\0")
        return [self.first_column(row) for kind, row in self.until_ready() if kind == "D"]

    def fetch_some_and_query(self, text, rows, query):
        """Begins a statement for some of its rows, and runs another before the server is told that this was all: their first columns. The transaction has
        to be open."""
        for name, statement in ((b"one", text), (b"other", query)):
            self.send("P", name, b"\0", statement.encode(), b"\0", struct.pack("!h", 0))
        for portal, name, count in ((b"p", b"one", rows), (b"", b"other", 0)):
            self.send("B", portal, b"\0", name, b"\0", struct.pack("!hhh", 0, 0, 0))
            self.send("E", portal, b"\0", struct.pack("!i", count))
        self.send("S")
        return [self.first_column(row) for kind, row in self.until_ready() if kind == "D"]

    @staticmethod
    def first_column(row):
        (length,) = struct.unpack("!i", row[2:6])
        return None if length < 0 else row[6 : 6 + length].decode()
