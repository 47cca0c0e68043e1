# SPDX-License-Identifier: PostgreSQL
"""An answer that is a stream of events: each passes as the service writes it, and the intent is remembered as done when the stream has ended as it should."""

import json
import os
import subprocess
import threading
import time

import pytest

from harness.client import CURL, curl_words
from harness.postgres import PATIENCE_S, clean_environment, wait_until
from harness.upstream import Answer

from .door import BODY, assert_problem, assert_replays, new_key, sorted_cases

LEASE_S = 2
CONFIG = f"""
    once_tenant $http_x_tenant;
    once required;
    once_lease {LEASE_S}s;
    location /pay {{ once_scope pay; proxy_pass http://app; }}
    location /compressed {{ once_scope compressed; gzip on; gzip_types text/event-stream; proxy_pass http://app; }}
    location /patient {{ once_scope patient; once_wait 20s; proxy_pass http://app; }}
    location = /status {{ once off; once_status json; }}
"""
FIRST, SECOND = b"data: one\n\n", b"data: two\n\n"


def events(hold, media_type="text/event-stream", **more):
    return Answer(200, headers=(("Content-Type", media_type),), body=FIRST + SECOND, hold_rest=hold, **{"framing": "chunked", **more})


def begin(door, key, target="/pay", headers=(), **answer):
    """A client that has the first event, of a service that has not written the second: (its connection, what lets the service go on)."""
    hold = threading.Event()
    door.upstream.script(key, events(hold, **answer))
    connection = door.send(key, target, headers=headers, close=False)
    got = b""
    while FIRST.strip() not in got:
        piece = connection.socket.recv(65536)
        assert piece, got
        got += piece
    assert b"two" not in got
    return connection, hold


def rest(connection):
    """What still comes until the other side closes, or the answer has its last chunk."""
    got = b""
    while not got.endswith(b"0\r\n\r\n"):
        piece = connection.socket.recv(65536)
        if not piece:
            break
        got += piece
    return got


TYPES = {"plain": "text/event-stream", "with a charset": "text/event-stream; charset=utf-8", "in other letters": "Text/Event-Stream"}


@pytest.mark.parametrize("framing", ["chunked", "close", "length"])
def test_the_first_event_arrives_before_the_service_writes_the_second(door, framing):
    key = new_key()
    connection, hold = begin(door, key, framing=framing)
    with connection:
        assert door.state(key) == "processing"
        assert_problem(door.attempt(key), 409, "active")
        hold.set()
        got = b""
        while SECOND not in got:
            got += (piece := connection.socket.recv(65536))
            assert piece, got
    door.wait_state(key, "succeeded")
    assert door.count(key) == 1


def test_the_first_event_arrives_over_http_2_before_the_service_writes_the_second(door):
    key, hold = new_key(), threading.Event()
    door.upstream.script(key, events(hold))
    words = [CURL, "--no-buffer", *curl_words(door.nginx.h2, "POST", "/pay", door.headers_of(key), BODY, False)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=clean_environment()) as client:
        client.stdin.write(BODY)
        client.stdin.close()
        got = b""
        while FIRST.strip() not in got:
            got += (piece := os.read(client.stdout.fileno(), 65536))
            assert piece, got
        assert b"two" not in got and door.state(key) == "processing"
        hold.set()
        assert client.stdout.read().endswith(SECOND)
    door.wait_state(key, "succeeded")
    assert_problem(door.attempt(key, protocol="HTTP/2"), 409, "too-large")
    assert door.count(key) == 1


@pytest.mark.parametrize("media_type", sorted_cases(TYPES))
def test_it_is_remembered_as_done_when_it_has_ended_and_is_not_run_again(door, media_type):
    key = new_key()
    connection, hold = begin(door, key, media_type=media_type)
    with connection:
        hold.set()
        assert SECOND in (got := rest(connection)) and got.endswith(b"0\r\n\r\n")
    row = door.stored(key)  # stored before its end was sent
    assert (row.state, row.result_type, row.response_body) == ("succeeded", "once.too_large", None)
    for _ in range(2):
        assert_problem(door.attempt(key), 409, "too-large")
    assert door.count(key) == 1


def test_its_lease_is_renewed_while_it_goes_on(door):
    key = new_key()
    connection, hold = begin(door, key)
    with connection:
        until = door.stored(key).lease_until
        wait_until(lambda: door.database.value("SELECT clock_timestamp() > %s", until), "the first lease to pass")
        assert_problem(door.attempt(key), 409, "active")
        hold.set()
        assert SECOND in rest(connection)
    assert door.state(key) == "succeeded" and door.count(key) == 1


def test_who_waits_is_told_at_its_end_that_there_is_nothing_to_replay(door):
    key = new_key()
    connection, hold = begin(door, key, "/patient")
    with connection:
        duplicate = door.start(key, "/patient")
        wait_until(lambda: json.loads(door.nginx.ask("GET", "/status").body)["waiting"] == 1, "the duplicate to wait")
        hold.set()
        assert SECOND in rest(connection)
    assert_problem(duplicate.result(), 409, "too-large")
    assert door.count(key) == 1


@pytest.mark.parametrize("framing", ["chunked", "length"])
def test_one_that_breaks_off_is_in_doubt_and_its_client_sees_that(door, framing):
    key = new_key()
    connection, hold = begin(door, key, cut=2 * len(FIRST) - 3, framing=framing)
    with connection:
        hold.set()
        got = rest(connection)
        assert not got.endswith(b"0\r\n\r\n") and SECOND not in got
    door.wait_state(key, "in_doubt")
    assert_problem(door.attempt(key), 409, "in-doubt")
    assert door.count(key) == 1


def test_one_whose_worker_is_killed_is_in_doubt_when_its_lease_has_passed(door):
    key = new_key()
    connection, hold = begin(door, key)
    with connection:
        for pid in sorted(door.nginx.worker_pids()):
            door.nginx.kill_worker(pid)
        deadline = time.monotonic() + PATIENCE_S
        while (problem := door.attempt(key).problem) != "in-doubt":
            assert problem in ("active", "unavailable") and time.monotonic() < deadline
    hold.set()
    assert door.state(key) == "in_doubt" and door.count(key) == 1


def test_a_client_that_leaves_does_not_stop_it(door):
    key = new_key()
    connection, hold = begin(door, key)
    connection.close()
    hold.set()
    door.wait_state(key, "succeeded")
    assert_problem(door.attempt(key), 409, "too-large")
    assert door.count(key) == 1


def test_one_that_asks_for_another_attempt_releases_its_key(door):
    key = new_key()
    headers = (("Content-Type", "text/event-stream"), ("Retry-After", "1"))
    door.upstream.script(key, Answer(429, headers=headers, body=FIRST, framing="chunked"), Answer(201))
    assert door.attempt(key).status == 429
    assert door.attempt(key).status == 201 and door.count(key) == 2


def test_compressed_events_arrive_as_they_are_written(door):
    key, hold = new_key(), threading.Event()
    door.upstream.script(key, events(hold))
    with door.send(key, "/compressed", headers=(("Accept-Encoding", "gzip"),), close=False) as connection:
        got = b""
        while b"\r\n\r\n" not in got or got.endswith(b"\r\n\r\n"):
            got += (piece := connection.socket.recv(65536))
            assert piece, got
        assert b"Content-Encoding: gzip" in got
        hold.set()
        assert rest(connection).endswith(b"0\r\n\r\n")
    assert door.state(key, "compressed") == "succeeded"


@pytest.mark.parametrize("media_type", ["text/event-streams", "text/event-stream+json", "text/plain; note=text/event-stream"])
def test_another_type_is_held_until_it_is_stored(door, media_type):
    key, hold = new_key(), threading.Event()
    hold.set()
    door.upstream.script(key, events(hold, media_type=media_type))
    first = door.attempt(key)
    assert (first.status, first.body) == (200, FIRST + SECOND)
    assert_replays(door, key, first)
