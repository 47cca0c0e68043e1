# SPDX-License-Identifier: PostgreSQL
"""What the tests of the gateway say to it, and what they ask the database and the service behind it."""

import threading
import time
import uuid

import pytest

from harness.client import Http1, Response
from harness.nginx import Nginx
from harness.postgres import PATIENCE_S, wait_until

TENANT, SCOPE = "acme", "pay"
PROTOCOLS = ["HTTP/1.1", "HTTP/2"]
BODY = b'{"amount": 100}'
JSON = ("Content-Type", "application/json")
# Finite everywhere: a lost wake-up shows as a failed test, not as one that hangs.
HTTP = """
    once_database "@dsn@";
    upstream app { server unix:@upstream@; }
    proxy_http_version 1.1;
    proxy_set_header Connection "";
    proxy_read_timeout 20s;
"""


def new_key():
    return uuid.uuid4().hex


def sorted_cases(table):
    """The rows of a table of cases, by their names."""
    return [pytest.param(value, id=name.replace(" ", "-")) for name, value in table.items()]


def quoted(key):
    return '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'


class Door:
    """@dsn@, @upstream@ and @dir@ stand in a configuration for the database, the service's socket, and nginx's directory."""

    def __init__(self, database, upstream, config, http="", dsn=None, base=HTTP, **options):
        self.database, self.upstream, self.dsn = database, upstream, dsn or database.dsn()
        self.patience_s = 20
        self.nginx = Nginx(server=self.filled(config), http=self.filled(base + http), **options)

    def filled(self, text):
        return text.replace("@dsn@", self.dsn).replace("@upstream@", str(self.upstream.path))

    def __enter__(self):
        self.nginx.__enter__()
        return self

    def __exit__(self, *exception):
        self.nginx.__exit__(*exception)

    # Attempts.

    @staticmethod
    def headers_of(key, headers=(), tenant=TENANT, value=None):
        """key: the test's own name for the intent, which the count is kept by. value: what the header says, where it is not that key,
        quoted; '-' for no such header."""
        said = [("X-Test", key)]
        if value != "-":
            said.append(("Idempotency-Key", quoted(key) if value is None else value))
        if tenant is not None:
            said.append(("X-Tenant", tenant))
        given = {name.lower() for name, _ in headers}
        return said + ([] if "content-type" in given else [JSON]) + list(headers)

    def attempt(self, key, target="/pay", body=BODY, method="POST", headers=(), tenant=TENANT, value=None, **options):
        """One request and its answer. ConnectionError where none came."""
        return self.nginx.ask(method, target, self.headers_of(key, headers, tenant, value), body, **options)

    def start(self, key, *args, **options):
        return Attempt(self, key, *args, **options)

    def send(self, key, target="/pay", body=BODY, method="POST", headers=(), tenant=TENANT, value=None, close=True, **options):
        """Sends one request on a raw connection, which is returned."""
        connection = Http1(self.nginx.h1, **options)
        return connection.send(method, target, self.headers_of(key, headers, tenant, value), body, close=close)

    # The truth.

    def count(self, key):
        return self.upstream.count(key)

    def stored(self, key, scope="pay", tenant=TENANT):
        """The intent's row; None where there is none. A row is a fact once it is committed, so what a test awaits it waits for."""
        rows = self.database.rows(
            "SELECT *, lease_until < clock_timestamp() AS lease_passed FROM once.intent WHERE tenant = %s AND scope = %s AND key = %s",
            tenant,
            scope,
            key,
        )
        return rows[0] if rows else None

    def state(self, key, scope="pay", tenant=TENANT):
        row = self.stored(key, scope, tenant)
        return row.state if row else None

    def wait_state(self, key, state, scope="pay", tenant=TENANT, patience_s=None):
        patience_s = patience_s or self.patience_s
        deadline = time.monotonic() + patience_s
        while self.state(key, scope, tenant) != state:
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {patience_s} s for {key} to be {state}; it is {self.state(key, scope, tenant)}")
            time.sleep(0.02)
        return self.stored(key, scope, tenant)


class Attempt(threading.Thread):
    """An attempt in the background: join it with result()."""

    def __init__(self, door, key, *args, **options):
        super().__init__(daemon=True)
        self.call = lambda: door.attempt(key, *args, **options)
        self.answer = self.failure = None
        self.start()

    def run(self):
        try:
            self.answer = self.call()
        except Exception as failure:  # handed to the test by result()
            self.failure = failure

    def result(self, patience_s=60) -> Response:
        self.join(patience_s)
        if self.failure:
            raise self.failure
        assert self.answer is not None, f"no answer within {patience_s} s"
        return self.answer


def at_once(count, call):
    """call(i) for each i below count, all begun together; what they returned, or the ConnectionError that they met."""
    barrier = threading.Barrier(count)
    results = [None] * count

    def run(index):
        barrier.wait()
        try:
            results[index] = call(index)
        except ConnectionError as failure:
            results[index] = failure
        except Exception as failure:
            results[index] = failure
            raise

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "an attempt got no answer within 60 s"
    return results


def same_answer(first, second):
    """The bytes that a retry gets: status and body; its headers are a matter of their own."""
    return (first.status, first.body) == (second.status, second.body)


def assert_replays(door, key, first, *args, **options):
    """Another attempt gets the first one's answer, and nothing runs."""
    before = door.count(key)
    again = door.attempt(key, *args, **options)
    assert again.replayed, again
    assert same_answer(first, again), (first, again)
    assert door.count(key) == before
    return again


def assert_problem(answer, status, name):
    assert (answer.status, answer.problem) == (status, name), answer
    assert not answer.replayed
    return answer


def soon(door, key, target="/pay", **options):
    """The answer of an attempt that is repeated while the gateway says that it cannot ask, or that another runs. After an outage each worker finds the
    database again by itself: that one has says nothing of the others."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        answer = door.attempt(key, target, **options)
        if answer.problem not in ("unavailable", "active", "not-stored") or time.monotonic() > deadline:
            return answer
        time.sleep(0.05)


def start_soon(door, key, target="/pay"):
    """An attempt that runs, in the background: begun again while the worker that took it had not found the database again. Its answer is held."""
    while True:
        attempt = door.start(key, target)
        wait_until(lambda: door.count(key) > 0 or not attempt.is_alive(), "the attempt to run")
        if door.count(key) > 0:
            return attempt
        assert_problem(attempt.result(), 503, "unavailable")


def assert_replays_soon(door, key, first, target="/pay"):
    """As assert_replays, where a worker may not have found the database again."""
    before = door.count(key)
    again = soon(door, key, target)
    assert again.replayed, again
    assert same_answer(first, again), (first, again)
    assert door.count(key) == before
    return again
