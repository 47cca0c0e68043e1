# SPDX-License-Identifier: PostgreSQL
"""A database that is known to be away costs nobody its timeout: requests are refused at once, one attempt to connect at a time
finds out when it is back, and /ready says how it is."""

import json
import pathlib
import socket
import threading
import time

import pytest

from harness.postgres import PORT, private_directory, wait_until

from .door import Door, assert_problem, assert_replays_soon, new_key, soon

pytestmark = pytest.mark.alone  # bounds of milliseconds
CONFIG = """
    once_tenant $http_x_tenant;
    location /pay { once required; once_scope pay; proxy_pass http://app; }
    location /open { once required; once_scope open; once_fail open; proxy_pass http://app; }
    location = /ready { once_status ready; }
"""
TIMEOUT_S = 2
HTTP = f"once_timeout {TIMEOUT_S}s;"
AT_ONCE_S = 0.05


def has_ended(connection):
    """Its peer has closed it, though nobody may have read that yet."""
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


class Listener:
    """Where a database would be: takes connections and never says a word, counting how many are open at once."""

    def __init__(self):
        self.directory = private_directory("pgonce-silent-")
        self.path = pathlib.Path(self.directory) / f".s.PGSQL.{PORT}"
        self.opened, self.most, self.open = 0, 0, set()
        self.socket = None

    def listen(self):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.bind(str(self.path))
        self.path.chmod(0o777)
        self.socket.listen(64)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            self.opened += 1
            self.open.add(connection)
            self.most = max(self.most, sum(not has_ended(each) for each in list(self.open)))
            threading.Thread(target=self.swallow, args=(connection,), daemon=True).start()

    def swallow(self, connection):
        while connection.recv(4096):
            pass
        self.open.discard(connection)
        connection.close()

    def close(self):
        if self.socket:
            self.socket.shutdown(socket.SHUT_RDWR)
            self.socket.close()
            self.path.unlink()
            self.socket = None

    @property
    def dsn(self):
        return f"host={self.directory} port={PORT} dbname=app"


@pytest.fixture
def listener():
    listener = Listener()
    yield listener
    listener.close()


def took(door, *args, **options):
    """The answer, and in how many seconds it came."""
    started = time.monotonic()
    answer = door.attempt(new_key(), *args, **options)
    return answer, time.monotonic() - started


def ready(door):
    answer = door.nginx.ask("GET", "/ready")
    told = json.loads(answer.body)
    assert answer.status == (200 if told["ready"] else 503) and answer.header("Cache-Control") == "no-store", answer
    return told["ready"]


def assert_refused_at_once(door, times=20):
    """As a rule: a machine that does much else at the moment may hold up one or the other."""
    all_took = []
    for _ in range(times):
        answer, seconds = took(door)
        assert_problem(answer, 503, "unavailable")
        all_took.append(seconds)
    assert sorted(all_took)[times // 2] < AT_ONCE_S and max(all_took) < TIMEOUT_S / 2, all_took


def test_a_database_that_refuses_connections_is_told_at_once(listener, database, upstream):
    with Door(database, upstream, CONFIG, HTTP, dsn=listener.dsn) as door:
        wait_until(lambda: took(door)[1] < AT_ONCE_S, "the first refused connection")
        assert_refused_at_once(door)
        assert not ready(door)
        assert door.nginx.ask("POST", "/ready", body=b"x").status == 405
        answer, seconds = took(door, "/open")
        assert (answer.status, seconds < TIMEOUT_S / 2) == (201, True), "failing open waits for nothing either"


def test_a_database_that_never_answers_costs_its_timeout_once_and_is_asked_by_one_connection_of_a_worker(listener, database, upstream):
    listener.listen()
    with Door(database, upstream, CONFIG, HTTP, dsn=listener.dsn, workers=1) as door:
        assert not ready(door)
        wait_until(lambda: took(door)[1] < AT_ONCE_S, "the end of the first attempt to connect")
        wait_until(lambda: len(listener.open) <= 1, "the end of the other connection's attempt")
        listener.most, opened = 0, listener.opened
        while listener.opened < opened + 2:
            assert_refused_at_once(door, 5)
        assert listener.most <= 1
        assert not ready(door)


def test_a_database_that_comes_back_is_found_without_anybody_asking(server, listener, database, upstream):
    with Door(database, upstream, CONFIG, HTTP, dsn=database.dsn().replace(str(server.directory), str(listener.directory))) as door:
        wait_until(lambda: took(door)[1] < AT_ONCE_S, "the first refused connection")
        assert_refused_at_once(door, 3)
        listener.path.symlink_to(pathlib.Path(server.directory) / f".s.PGSQL.{PORT}")
        try:
            wait_until(lambda: ready(door), "the database")
            key = new_key()
            first = soon(door, key)  # the other worker may not have found it yet
            assert first.status == 201
            assert_replays_soon(door, key, first)
            assert door.count(key) == 1
        finally:
            listener.path.unlink()


def test_a_connection_that_is_only_lost_refuses_nobody(door):
    """Such as a pooler's that was idle for long: the next one is made at once, and nothing is known to be away."""
    wait_until(lambda: ready(door), "the database")
    for _ in range(10):
        door.database.rows("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
        assert took(door)[0].status == 201


def test_without_a_request_the_worker_connects_and_is_ready(door):
    wait_until(lambda: ready(door), "the database")
