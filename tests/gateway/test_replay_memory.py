# SPDX-License-Identifier: PostgreSQL
"""Clients that ask for large answers again and read none of them: a worker keeps one copy of each answer, and no more than once_replay_memory of all;
beyond that it says 503, until they have read or left."""

import contextlib
import json
import pathlib

import pytest

from harness.client import Http1
from harness.nginx import BUILT_IN
from harness.postgres import wait_until
from harness.upstream import Answer

from .door import BODY, Door, assert_problem, assert_replays, new_key
from .test_status import decisions, metrics, page

CONFIG = """
    once_tenant $http_x_tenant;
    once required;
    once_scope pay;
    location / { proxy_pass http://app; }
    location /wait { once_wait 30s; proxy_pass http://app; }
    location = /status.json { once off; once_status json; }
    location = /metrics { once off; once_status; }
"""
MIB = 1 << 20
LARGE = bytes(range(256)) * 4096
READERS = 250


@pytest.fixture(scope="module")
def door(database, upstream):
    with Door(database, upstream, CONFIG, "once_replay_memory 8m; once_timeout 60s; send_timeout 300s;", workers=1) as running:
        yield running


@contextlib.contextmanager
def slow_readers(door):
    """Connections whose clients do not read on: start(key) begins one, with the head of its answer read."""
    connections = []

    def start(key, target="/pay"):
        connection = door.send(key, target, receive_buffer=4096)
        connections.append(connection)
        line = connection.shared.stream.readline()
        return int(line.split()[1])

    try:
        yield start
    finally:
        for connection in connections:
            connection.close()


def frame(kind, flags, stream, payload=b""):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def literal(name, value):
    """A header without compression (RFC 7541, section 6.2.2)."""
    return b"\0" + b"".join(bytes([len(text)]) + text for text in (name.lower().encode(), value.encode()))


def shut_windows(door, connection, keys):
    """Asks for an answer of each of these keys on one HTTP/2 connection, and never opens a window. Their statuses: 200, or 503."""
    head = [(":method", "POST"), (":scheme", "http"), (":path", "/pay"), (":authority", "test")]
    said = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"\0\4\0\0\0\0")
    for number, key in enumerate(keys):
        fields = b"".join(literal(*field) for field in head + door.headers_of(key))
        said += frame(1, 4, 2 * number + 1, fields) + frame(0, 1, 2 * number + 1, BODY)
    connection.socket.sendall(said)
    statuses = {}
    while len(statuses) < len(keys):
        start = connection.shared.stream.read(9)
        payload = connection.shared.stream.read(int.from_bytes(start[:3], "big"))
        if start[3] == 1:
            statuses[int.from_bytes(start[5:], "big")] = 200 if payload[0] == 0x88 else 503
    return [statuses[stream] for stream in sorted(statuses)]


def done(door, body=LARGE):
    """The key of an intent with a large answer."""
    key = new_key()
    door.upstream.script(key, Answer(200, headers=(("Content-Type", "text/plain"), ("X-Of", key)), body=body))
    assert door.attempt(key).body == body
    return key


def held_bytes(door):
    return page(door)["replay_bytes"]


def resident_bytes(door):
    (pid,) = door.nginx.worker_pids()
    return int(next(line for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")).split()[1]) * 1024


def wait_free(door):
    wait_until(lambda: held_bytes(door) == 0, "the worker to have let go of all answers")


def test_many_clients_of_one_answer_share_one_copy(door):
    key = done(door)
    before = resident_bytes(door)
    with slow_readers(door) as start:
        assert {start(key) for _ in range(READERS)} == {200}
        assert LARGE == door.attempt(key).body
        assert MIB <= held_bytes(door) < 2 * MIB
        if not BUILT_IN:  # sanitizers keep what is freed
            assert resident_bytes(door) < before + 60 * MIB
    wait_free(door)
    assert door.count(key) == 1


def test_streams_with_shut_windows_share_one_copy_and_have_the_limit_too(door):
    key, others = done(door), [done(door, bytes([number]) * MIB) for number in range(20)]
    assert door.attempt(key).replayed  # from now on claims are batched as such answers need it: see once_batch_bytes
    before = resident_bytes(door)
    with Http1(door.nginx.h2) as first, Http1(door.nginx.h2) as second:
        assert shut_windows(door, first, [key] * 100) == [200] * 100
        assert held_bytes(door) < 2 * MIB
        assert sorted(shut_windows(door, second, others)) == [200] * 6 + [503] * 14
        assert held_bytes(door) <= 8 * MIB
        if not BUILT_IN:
            assert resident_bytes(door) < before + 60 * MIB
    wait_free(door)
    assert door.attempt(others[-1]).replayed


def test_those_that_waited_for_one_answer_share_it(door):
    key = new_key()
    door.upstream.script(key, Answer(200, body=LARGE))
    with slow_readers(door) as start:
        assert start(key, "/wait") == 200
        assert {start(key, "/wait") for _ in range(20)} == {200}
        assert held_bytes(door) < 2 * MIB
    wait_free(door)


def test_beyond_the_limit_a_replay_is_refused_and_later_given(door):
    keys = [done(door, bytes([number]) * MIB) for number in range(30)]
    before, counted = resident_bytes(door), decisions(door, "pay")["busy"]
    with slow_readers(door) as start:
        said = [start(key) for key in keys]
        assert said == [200] * 7 + [503] * 23
        assert 7 * MIB <= held_bytes(door) <= 8 * MIB
        refused = assert_problem(door.attempt(keys[-1]), 503, "busy")
        assert refused.header("Retry-After") == "5" and refused.header("Cache-Control") == "no-store"
        assert json.loads(refused.body)["retryable"] is True
        # What is there already costs nothing; what is small still has room.
        assert door.attempt(keys[0]).replayed
        small = done(door, b"small")
        assert door.attempt(small).replayed
        assert decisions(door, "pay")["busy"] == counted + 24
        ((_, held),) = metrics(door)["pgonce_replay_bytes"].samples.items()
        assert 7 * MIB <= held <= 8 * MIB
        if not BUILT_IN:
            assert resident_bytes(door) < before + 60 * MIB
    wait_free(door)
    for key, number in zip(keys, range(30)):
        again = door.attempt(key)
        assert again.replayed and again.body == bytes([number]) * MIB
        assert door.count(key) == 1
    wait_free(door)


def test_an_answer_that_is_larger_than_the_limit_is_given_by_itself(database, upstream):
    with Door(database, upstream, CONFIG, "once_replay_memory 64k;", workers=1) as door:
        key, other = done(door), done(door)
        for _ in range(3):
            assert door.attempt(key).body == LARGE
            wait_free(door)
        with slow_readers(door) as start:
            assert start(key) == 200 and start(key) == 200
            assert_problem(door.attempt(other), 503, "busy")
        wait_free(door)
        assert door.attempt(other).replayed


def test_what_comes_with_other_headers_is_not_shared(door):
    """The stored answer may have been decided anew meanwhile: what is shared is compared, byte by byte."""
    key = done(door)
    with slow_readers(door) as start:
        assert start(key) == 200
        door.database.execute("UPDATE once.intent SET response_headers = '{\"X-Of\": \"another\"}' WHERE key = %s", key)
        assert door.attempt(key).header("X-Of") == "another"
        door.database.execute("UPDATE once.intent SET response_body = 'another' WHERE key = %s", key)
        assert door.attempt(key).body == b"another"
        door.database.execute("UPDATE once.intent SET response_status = 202 WHERE key = %s", key)
        assert door.attempt(key).status == 202
    wait_free(door)


def test_a_worker_that_ends_lets_go(door):
    key = done(door)
    with slow_readers(door) as start:
        assert start(key) == 200
        door.nginx.reload()
        assert_replays(door, key, door.attempt(key))
    wait_free(door)
