# SPDX-License-Identifier: PostgreSQL
"""HTTP/1 by hand, over a real socket: writes bytes as they are given, and reads an answer with everything that a client can see of it."""

import dataclasses
import socket
import typing

PATIENCE_S = 60  # longer than a handler's limit by default


@dataclasses.dataclass
class Answer:
    """end: whole, cut (the connection ended within it), none (no byte of it came), or late (nothing came in time)."""

    line: str = ""
    headers: typing.List[typing.Tuple[str, str]] = dataclasses.field(default_factory=list)
    body: bytes = b""
    framing: str = "none"
    trailers: typing.List[typing.Tuple[str, str]] = dataclasses.field(default_factory=list)
    interim: typing.List[typing.Tuple[str, list]] = dataclasses.field(default_factory=list)
    end: str = "none"
    kept: typing.Optional[bool] = None

    @property
    def status(self):
        words = self.line.split(" ", 2)
        return int(words[1]) if len(words) > 1 and words[1].isdigit() else 0

    def all(self, name):
        return [value for each, value in self.headers if each.lower() == name]

    def one(self, name):
        return ", ".join(self.all(name))


class Ended(Exception):
    pass


class Connection:
    def __init__(self, port, patience_s=PATIENCE_S):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=patience_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.read = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, data):
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it may have answered before it closed

    def end(self):
        """Sends nothing more, and listens."""
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it has gone already

    def reset(self):
        """Leaves at once, so that the server is told by a reset and not by a polite end."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.socket.close()

    def more(self):
        try:
            data = self.socket.recv(65536)
        except ConnectionResetError:
            data = b""
        if not data:
            raise Ended
        self.read += data

    def until(self, mark):
        while mark not in self.read:
            self.more()
        found, _, self.read = self.read.partition(mark)
        return found

    def exactly(self, count):
        while len(self.read) < count:
            self.more()
        found, self.read = self.read[:count], self.read[count:]
        return found

    def head(self, answer):
        """The status line and headers of an answer, interim ones before it."""
        while True:
            answer.line, answer.headers = "", []
            lines = self.until(b"\r\n\r\n").decode("latin-1").split("\r\n")
            answer.line, answer.headers = lines[0], pairs(lines[1:])
            if not 100 <= answer.status < 200 or answer.status == 101:
                return
            answer.interim.append((answer.line, answer.headers))
            if answer.status == 100:
                yield answer

    def body(self, answer, method):
        length, coding = answer.one("content-length"), answer.one("transfer-encoding").lower()
        if method == "HEAD" or answer.status in (204, 304):
            answer.framing = "none"
        elif coding.endswith("chunked"):
            answer.framing = "chunked"
            self.chunks(answer)
        elif length:
            answer.framing = "length"
            while len(self.read) < int(length):
                try:
                    self.more()
                except Ended:
                    answer.body = self.read
                    raise
            answer.body = self.exactly(int(length))
        else:
            answer.framing = "close"
            try:
                while True:
                    self.more()
            except Ended:
                answer.body, self.read = self.read, b""

    def chunks(self, answer):
        while True:
            size = int(self.until(b"\r\n").split(b";")[0], 16)
            if size == 0:
                break
            answer.body += self.exactly(size)
            if self.exactly(2) != b"\r\n":
                raise ValueError("a chunk does not end where it says")
        lines = []
        while True:
            line = self.until(b"\r\n")
            if not line:
                break
            lines.append(line.decode("latin-1"))
        answer.trailers = pairs(lines)

    def answer(self, method="POST", on_continue=None):
        """on_continue is called when the server asks for the body."""
        answer = Answer()
        try:
            for _ in self.head(answer):
                if on_continue:
                    on_continue()
            self.body(answer, method)
            answer.end = "whole"
        except Ended:
            answer.end = "cut" if answer.line or self.read or answer.interim else "none"
        except socket.timeout:
            answer.end = "cut" if answer.line else "late"
        return answer

    def is_kept(self, answer, probe):
        """Whether another request (probe) is answered on this connection. It may be closed already, or on its way to it."""
        if answer.end != "whole" or answer.framing == "close":
            return False
        if answer.one("connection").lower() == "close":
            try:
                self.more()
            except Ended:
                return False
            except socket.timeout:
                return True
        self.send(probe)
        return self.answer("GET").end == "whole"


def pairs(lines):
    return [(name, value.strip(" \t")) for name, _, value in (line.partition(":") for line in lines)]
