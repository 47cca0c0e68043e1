# SPDX-License-Identifier: PostgreSQL
"""Streams of events that something comes between: a client that reads slowly or resets its stream, a reload, a service that switches protocols though nobody
asked for that."""

import contextlib
import fcntl
import pathlib
import select
import socket
import struct
import subprocess
import termios
import threading

import pytest

from harness.client import CURL, curl_words
from harness.postgres import clean_environment, wait_until
from harness.upstream import Answer, Upstream

from .door import BODY, Door, assert_problem, new_key, soon, sorted_cases
from .test_event_streams import CONFIG as STREAMS
from .test_event_streams import FIRST, SECOND, begin, events, rest

CONFIG = (
    STREAMS
    + """
    location /upgrades { once_scope pay; proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade; proxy_pass http://app; }
"""
)
MIB = 1 << 20
FLOOD = b"data: " + b"x" * 1000 + b"\n\n"
SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"


class Switching(Upstream):
    """It switches whatever it is asked, and counts the bytes that then come past HTTP."""

    def write(self, connection, request, answer, body):
        if not request.target.startswith(("/switch", "/upgrades")):
            return super().write(connection, request, answer, body)
        connection.sendall(SWITCHED)
        self.past = getattr(self, "past", b"")
        while piece := connection.recv(65536):
            self.past += piece
        return False


def resident(pids):
    """The bytes of memory of these processes."""
    return sum(int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 for pid in pids)


def until_full(sock):
    """Until nothing more arrives: what the other side still has fills its own buffers."""
    waiting, same = -1, 0
    for _ in range(1000):
        now = struct.unpack("i", fcntl.ioctl(sock, termios.FIONREAD, b"\0" * 4))[0]
        waiting, same = now, same + 1 if now == waiting else 0
        if same == 30:
            return
        select.select([], [], [], 0.01)


def test_a_slow_reader_costs_no_memory_and_gets_all_of_it(door):
    key, size = new_key(), 48 * MIB
    door.upstream.script(key, Answer(200, headers=(("Content-Type", "text/event-stream"),), body=FLOOD * (size // len(FLOOD)), framing="chunked", piece=64 * len(FLOOD)))
    before = resident(door.nginx.worker_pids())
    peak, got, tail = 0, 0, b""
    with door.send(key, close=False) as connection:
        for number in range(10_000_000):
            piece = connection.socket.recv(65536)
            if not piece or (tail := (tail + piece)[-16:]).endswith(b"\r\n0\r\n\r\n"):
                break
            got += len(piece)
            if number % 100 == 0:
                peak = max(peak, resident(door.nginx.worker_pids()))
    assert tail.endswith(b"\r\n0\r\n\r\n") and got > 0.99 * size
    assert peak - before < 4 * MIB, (before, peak)
    assert door.state(key) == "succeeded" and door.count(key) == 1


def test_a_client_that_leaves_a_flood_costs_no_memory(door):
    key, size = new_key(), 48 * MIB
    door.upstream.script(key, Answer(200, headers=(("Content-Type", "text/event-stream"),), body=FLOOD * (size // len(FLOOD)), framing="chunked", piece=64 * len(FLOOD)))
    before = resident(door.nginx.worker_pids())
    with door.send(key, close=False) as connection:
        assert connection.socket.recv(65536)
    peak = 0

    def ended():
        nonlocal peak
        peak = max(peak, resident(door.nginx.worker_pids()))
        return door.state(key) == "succeeded"

    wait_until(ended, "the stream to be read to its end")
    assert peak - before < 4 * MIB, (before, peak)
    assert_problem(door.attempt(key), 409, "too-large")


def test_a_client_that_leaves_as_all_buffers_are_full_is_not_waited_for(door):
    key, size = new_key(), 48 * MIB
    door.upstream.script(key, Answer(200, headers=(("Content-Type", "text/event-stream"),), body=FLOOD * (size // len(FLOOD)), framing="chunked", piece=64 * len(FLOOD)))
    with door.send(key, close=False) as connection:
        assert connection.socket.recv(1)
        until_full(connection.socket)
    door.wait_state(key, "succeeded")
    assert_problem(door.attempt(key), 409, "too-large")


def test_a_reload_meanwhile_lets_it_end_and_is_told_of_its_end(door):
    key = new_key()
    connection, hold = begin(door, key)
    with connection:
        door.nginx.reload()
        assert_problem(door.attempt(key), 409, "active")
        hold.set()
        assert SECOND in (got := rest(connection)) and got.endswith(b"0\r\n\r\n")
    assert door.state(key) == "succeeded"
    assert_problem(door.attempt(key), 409, "too-large")
    assert door.count(key) == 1


def test_a_client_that_resets_its_stream_of_http_2_does_not_stop_it(door):
    key, hold = new_key(), threading.Event()
    door.upstream.script(key, events(hold))
    words = [CURL, "--no-buffer", *curl_words(door.nginx.h2, "POST", "/pay", door.headers_of(key), BODY, False)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=clean_environment()) as client:
        client.stdin.write(BODY)
        client.stdin.close()
        assert client.stdout.read(1)
        client.kill()
    assert door.state(key) == "processing"
    hold.set()
    door.wait_state(key, "succeeded")
    assert_problem(door.attempt(key), 409, "too-large")
    assert door.count(key) == 1


@pytest.mark.parametrize("framing", ["chunked", "length", "close"])
def test_one_without_an_event_ends_and_is_done(door, framing):
    key = new_key()
    door.upstream.script(key, Answer(200, headers=(("Content-Type", "text/event-stream"),), body=b"", framing=framing))
    first = door.attempt(key)
    assert (first.status, first.body, door.state(key)) == (200, b"", "succeeded")
    assert_problem(door.attempt(key), 409, "too-large")


def test_a_reload_that_may_not_wait_breaks_it_off_and_leaves_doubt(database, upstream):
    with Door(database, upstream, CONFIG, shutdown="1s") as door:
        key = new_key()
        connection, hold = begin(door, key)
        with connection:
            door.nginx.reload()
            assert not rest(connection).endswith(b"0\r\n\r\n")
        door.wait_state(key, "in_doubt")
        hold.set()
        assert_problem(soon(door, key), 409, "in-doubt")
        assert door.count(key) == 1


@pytest.fixture
def switching(database):
    with Switching() as upstream, Door(database, upstream, CONFIG.replace("location /pay", "location /switch { once_scope pay; proxy_pass http://app; }\n    location /pay")) as door:
        yield door


# Asked by the client alone, the service has not been asked either: its location does not pass Upgrade on.
UNASKED = {"by nobody": ("/switch", ()), "where it is passed on": ("/upgrades", ()), "by the client alone": ("/switch", (("Upgrade", "websocket"), ("Connection", "upgrade")))}


@pytest.mark.parametrize("asked", sorted_cases(UNASKED))
def test_a_switch_that_the_service_was_not_asked_for_opens_no_tunnel(switching, asked):
    target, headers = asked
    key = new_key()
    with switching.send(key, target, headers=headers, close=False) as connection:
        got = b""
        while b"unanswered" not in got and (piece := connection.socket.recv(65536)):
            got += piece
        with contextlib.suppress(OSError):  # nginx closes a connection with unread bytes by a reset
            connection.socket.sendall(b"past")
            connection.socket.shutdown(socket.SHUT_WR)
            while connection.socket.recv(65536):
                pass
        assert got.startswith(b"HTTP/1.1 502 ") and b"unanswered" in got, got
    switching.wait_state(key, "in_doubt")
    assert getattr(switching.upstream, "past", b"") == b""


def test_a_post_that_asks_for_a_switch_is_in_doubt_when_the_tunnel_ends(switching):
    key = new_key()
    with switching.send(key, "/upgrades", headers=(("Upgrade", "websocket"), ("Connection", "upgrade")), close=False) as connection:
        got = connection.socket.recv(65536)
        assert got.startswith(b"HTTP/1.1 101"), got
        assert switching.state(key) == "processing"
        connection.socket.sendall(b"past")
        wait_until(lambda: getattr(switching.upstream, "past", b"") == b"past", "the tunnel")
        connection.socket.shutdown(socket.SHUT_RDWR)
    switching.wait_state(key, "in_doubt")
    assert switching.count(key) == 1
