# SPDX-License-Identifier: PostgreSQL
"""pgonce gateway and WebSocket: a GET may switch to it through the gateway, and nothing else gets past it in that way."""

import pytest

from harness.client import Http1
from harness.upstream import Upstream

from .gateway import needs_module

pytestmark = needs_module
HANDSHAKE = (("Connection", "keep-alive, Upgrade"), ("Sec-WebSocket-Version", "13"), ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="))
ACCEPTED = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"


class Switching(Upstream):
    """It switches where it is asked to, and at /always; it speaks first, and says everything again in brackets."""

    def write(self, connection, request, answer, body):
        if request.header("Upgrade") is None and request.target != "/always":
            return super().write(connection, request, answer, body)
        connection.sendall(ACCEPTED + b"hello")
        while piece := connection.recv(65536):
            connection.sendall(b"<" + piece + b">")
        return False


@pytest.fixture
def upstream():
    with Switching() as running:
        yield running


@pytest.fixture
def gateway(gateway):
    return gateway.start()


def hear(connection, end):
    got = b""
    while not got.endswith(end):
        got += (piece := connection.socket.recv(65536))
        assert piece, got
    return got


@pytest.mark.parametrize("name", ["websocket", "WebSocket"])
def test_a_get_switches_to_websocket_and_bytes_go_both_ways(gateway, upstream, name):
    with Http1(gateway.socket) as connection:
        connection.send("GET", "/chat", [("Upgrade", name), ("X-Test", "chat"), *HANDSHAKE])
        head = hear(connection, b"hello")
        assert head.startswith(b"HTTP/1.1 101 ") and b"\r\nUpgrade: websocket\r\n" in head and b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in head
        for said in (b"\x81\x05\x00first", bytes(range(256)), b"last"):
            connection.socket.sendall(said)
            assert hear(connection, b">") == b"<" + said + b">"
    request = upstream.only("chat")
    assert request.header("Connection") == "upgrade" and request.header("Sec-WebSocket-Key") == "dGhlIHNhbXBsZSBub25jZQ=="


# To the service these are ordinary requests. Whatever went through a connection of HTTP/2 or TLS would be unprotected.
NO_SWITCH = {"a POST": ("POST", "websocket"), "h2c": ("GET", "h2c"), "h2c in a list": ("GET", "websocket, h2c"), "TLS": ("GET", "TLS/1.0"), "a POST of h2c": ("POST", "h2c")}


@pytest.mark.parametrize("method, name", NO_SWITCH.values(), ids=[each.replace(" ", "-") for each in NO_SWITCH])
def test_nothing_else_switches(gateway, upstream, method, name):
    headers = [("Upgrade", name), ("X-Test", "k"), ("Idempotency-Key", "k"), *HANDSHAKE]
    for number in (1, 2):
        with Http1(gateway.socket) as connection:
            answer = connection.send(method, "/pay", headers, b"{}" if method == "POST" else None).receive(method)
        assert answer.status == 201 and answer.replayed == (method == "POST" and number == 2)
    for request in upstream.seen("k"):
        assert request.header("Upgrade") is None and request.header("Connection") is None
    assert upstream.count("k") == (1 if method == "POST" else 2)


def test_a_service_that_switches_unasked_gets_nothing_past_the_gateway(gateway):
    for problem in ("unanswered", "in-doubt"):
        with Http1(gateway.socket) as connection:
            answer = connection.send("POST", "/always", [("Upgrade", "websocket"), ("X-Test", "k"), ("Idempotency-Key", "k"), *HANDSHAKE], b"{}").receive("POST")
        assert (answer.status, answer.problem) == ({"unanswered": 502, "in-doubt": 409}[problem], problem)
