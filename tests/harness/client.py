# SPDX-License-Identifier: PostgreSQL
"""An HTTP client that says exactly what a test writes: HTTP/1 on a raw socket, HTTP/2 by curl. Unix sockets only.

A header's value may hold any byte, a name may come twice, a request may stop half-way."""

import http.client
import json
import re
import shutil
import socket
import subprocess

from .postgres import PATIENCE_S, clean_environment

CURL = shutil.which("curl")


def as_bytes(text):
    return text if isinstance(text, bytes) else str(text).encode("latin-1")


class Response:
    """headers: (name in lower case, value) in their order. whole: the body came to its end."""

    def __init__(self, status, headers, body, whole=True):
        self.status, self.body, self.whole = status, body, whole
        self.headers = [(name.lower(), value) for name, value in headers]

    def all(self, name):
        return [value for each, value in self.headers if each == name.lower()]

    def header(self, name):
        """The only value; None where the header is not there."""
        values = self.all(name)
        assert len(values) <= 1, f"{name} came {len(values)} times: {values}"
        return values[0] if values else None

    @property
    def replayed(self):
        value = self.header("Idempotency-Replayed")
        assert value in (None, "true"), value
        return value == "true"

    @property
    def problem(self):
        """The name of the problem that this answer is; None where it is no problem document."""
        if self.header("Content-Type") != "application/problem+json":
            return None
        document = json.loads(self.body)
        assert {"type", "title", "status", "detail", "instance", "retryable"} >= set(document) >= {"type", "title", "status"}, document
        assert document["status"] == self.status, document
        assert document["title"] and document.get("detail", "-"), document
        return re.split("[#/:]", document["type"])[-1]

    def __repr__(self):
        return f"<{self.status} {self.headers} {self.body[:300]!r}{'' if self.whole else ' (cut)'}>"


class Shared:
    """One stream for all answers of a connection: each parser would take a buffer's worth of the next answer with it."""

    def __init__(self, sock):
        self.stream = sock.makefile("rb")

    def makefile(self, _mode):
        return self

    def close(self):
        """The parser's word for the end of an answer."""

    def __getattr__(self, name):
        return getattr(self.stream, name)


class Http1:
    """One connection to a unix socket's path, or to (host, port). Use it in a with statement, or close it."""

    def __init__(self, path, timeout=PATIENCE_S, receive_buffer=None):
        self.socket = socket.socket(socket.AF_INET if isinstance(path, tuple) else socket.AF_UNIX, socket.SOCK_STREAM)
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(timeout)
        self.socket.connect(path if isinstance(path, tuple) else str(path))
        self.shared = Shared(self.socket)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """At once, as a client that is killed."""
        self.shared.stream.close()  # it would keep the socket open
        self.socket.close()

    @staticmethod
    def bytes_of(method, target, headers=(), body=None, version="1.1", chunked=False, close=False):
        lines = [as_bytes(method) + b" " + as_bytes(target) + b" HTTP/" + as_bytes(version)]
        named = {name.lower() for name, _ in headers}
        if "host" not in named:
            lines.append(b"Host: test")
        lines += [as_bytes(name) + b": " + as_bytes(value) for name, value in headers]
        if close:
            lines.append(b"Connection: close")
        if chunked:
            lines.append(b"Transfer-Encoding: chunked")
            step = max(1, len(body) // 3)
            pieces = [body[at : at + step] for at in range(0, len(body), step)]
            body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
        elif body is not None and "content-length" not in named:
            lines.append(b"Content-Length: %d" % len(body))
        return b"\r\n".join(lines) + b"\r\n\r\n" + (body or b"")

    def send(self, *request, **options):
        self.socket.sendall(self.bytes_of(*request, **options))
        return self

    def receive(self, method="POST"):
        """ConnectionError where the server closed without an answer."""
        answer = http.client.HTTPResponse(self.shared, method=method)
        try:
            answer.begin()
        except (http.client.BadStatusLine, http.client.RemoteDisconnected) as closed:
            raise ConnectionResetError(f"no answer: {closed!r}") from closed
        whole = True
        try:
            body = answer.read()
        except (http.client.IncompleteRead, ConnectionError) as cut:
            body, whole = getattr(cut, "partial", b""), False
        return Response(answer.status, answer.getheaders(), body, whole)


def http1(path, method, target, headers=(), body=None, timeout=PATIENCE_S, **options):
    with Http1(path, timeout) as connection:
        return connection.send(method, target, headers, body, close=True, **options).receive(method)


def curl_words(path, method, target, headers, body, tls):
    """One request as curl's options; the answer's head and body go to standard output."""
    words = ["--silent", "--globoff", "--path-as-is", "--include", "--noproxy", "*", "--unix-socket", str(path)]
    words += ["--http2", "--insecure"] if tls else ["--http2-prior-knowledge"]
    if method == "HEAD":
        words.append("--head")
    else:
        words += ["--request", method]
    sends_own_type = any(name.lower() == "content-type" for name, _ in headers)
    if body is not None:
        words += ["--data-binary", "@-"] + ([] if sends_own_type else ["--header", "Content-Type:"])
    for name, value in headers:
        value = as_bytes(value)
        words += ["--header", as_bytes(name) + (b": " + value if value.strip() else b";")]
    return words + [f"{'https' if tls else 'http'}://test{target}"]


def http2(path, method, target, headers=(), body=None, timeout=PATIENCE_S, tls=False):
    """ConnectionError where no answer came."""
    if CURL is None:
        raise RuntimeError("curl is not installed: apt-get install curl")
    done = subprocess.run(
        [CURL, *curl_words(path, method, target, headers, body, tls)],
        input=body if body is not None else b"",
        capture_output=True,
        timeout=timeout,
        env=clean_environment(),
        check=False,
    )
    rest = done.stdout
    while True:
        head, found, rest = rest.partition(b"\r\n\r\n")
        if not found:
            raise ConnectionResetError(f"no answer: curl ended with status {done.returncode}")
        lines = head.decode("latin-1").split("\r\n")
        version, status = lines[0].split()[:2]
        if not status.startswith("1"):
            break
    assert version == "HTTP/2", lines[0]
    headers = [tuple(part.strip() for part in line.split(":", 1)) for line in lines[1:]]
    return Response(int(status), headers, rest, whole=done.returncode == 0)
