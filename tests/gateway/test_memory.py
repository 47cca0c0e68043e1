# SPDX-License-Identifier: PostgreSQL
"""Each allocation of the module fails in turn (faults.c): the request is answered or its connection closed, the worker lives, what was counted
as running is so no more, and a retry with memory finds one execution at most and the answer that the first was given, if it was."""

import hashlib
import json
import mmap
import os
import pathlib
import struct
import subprocess
import tempfile
import threading

import pytest

from harness.nginx import BUILT_IN, MODULE, Nginx
from harness.postgres import PATIENCE_S, unprivileged, wait_until
from harness.upstream import NOT_NOW, Answer

from .door import BODY, Door, new_key
from .test_status import page

CONFIG = """
    once_tenant $http_x_tenant;
    once required;
    once_scope pay;
    client_body_buffer_size 16k;
    add_header X-Verdict "$once_verdict $once_key $once_fence $once_scope $once_traceparent" always;
    location /pay { once_wait 10s; proxy_pass http://app; }
    location /at-once { proxy_pass http://app; }
    location /values { once_fingerprint body $http_x_one $http_x_two; once_canonical_json on; proxy_pass http://app; }
    location /short { once_lease 1s; proxy_pass http://app; }
    location /file { once_response_max 64k; once_body_max 100k; proxy_pass http://app; }
    location /internal/ { internal; once off; alias @dir@/; }
    location = /status.json { once off; once_status json; }
    location = /metrics { once off; once_status; }
"""
TRACE = ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
LIMIT = 400  # allocations of one request

pytestmark = pytest.mark.skipif(bool(BUILT_IN) or b"PGONCE_FAULTS" not in (MODULE.read_bytes() if MODULE.exists() else b""),
                                reason="only with the module that tools/coverage.py builds")  # fmt: skip


class Faults:
    """The countdown, shared with the module."""

    def __init__(self):
        with tempfile.NamedTemporaryFile(prefix="pgonce-faults-", delete=False) as file:
            file.write(bytes(4))
            file.flush()
            self.path = pathlib.Path(file.name)
            self.path.chmod(0o666)
            self.memory = mmap.mmap(file.fileno(), 4)

    def set(self, count):
        self.memory[:] = struct.pack("i", count)

    def end(self):
        """No more of them. Did it come to the one that fails?"""
        left = struct.unpack("i", self.memory[:])[0]
        self.set(0)
        return left == 0

    def close(self):
        self.memory.close()
        self.path.unlink()


@pytest.fixture(scope="module")
def faults():
    faults = Faults()
    os.environ["PGONCE_FAULTS"] = str(faults.path)
    yield faults
    del os.environ["PGONCE_FAULTS"]
    faults.close()


@pytest.fixture(scope="module")
def door(database, upstream, faults):
    with Door(database, upstream, CONFIG, "once_timeout 2s;", workers=1) as running:
        yield running


def attempt(door, *args, **options):
    """The answer; None where the connection was closed without one."""
    try:
        return door.attempt(*args, **options)
    except ConnectionError:
        return None


def settled(door, *args, **options):
    """What a client gets that asks again until it is told."""
    found = []

    def told():
        answer = attempt(door, *args, **options)
        # While the failed report is being repeated, the intent is still at work.
        if answer is not None and answer.status != 503 and answer.problem != "active":
            found.append(answer)
        return found

    wait_until(told, "an answer of the intent")
    return found[0]


def shown(text):
    """As a log has keys and tenants."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def waits(door):
    """Also the page that tells so may be what finds no memory."""
    try:
        answer = door.nginx.ask("GET", "/status.json")
    except ConnectionError:
        return False
    return answer.status == 200 and json.loads(answer.body)["waiting"] > 0


def quiet(door):
    """Nothing is counted as at work."""
    numbers = page(door)
    return all(numbers[name] == 0 for name in ("running", "waiting", "held"))


def each_fails(door, faults, play):
    """play(n) is called with the n-th allocation failing, until it needs fewer. Returns how many failed."""
    pids = door.nginx.worker_pids()
    for n in range(1, LIMIT):
        faults.set(n)
        check = play(n)
        reached = faults.end()
        check()
        assert door.nginx.worker_pids() == pids, f"the worker died of allocation {n}"
        wait_until(lambda: quiet(door), f"the end of all that was at work, after allocation {n}")
        if not reached:
            assert n > 1
            return n - 1
    raise AssertionError("it never got through")


def once_only(door, key, first, *args, **options):
    """Whatever came of the first attempt."""
    assert door.count(key) <= 1
    final = settled(door, key, *args, **options)
    assert door.count(key) <= 1
    if first is not None and not first.whole:
        first = None
    if first is not None and first.status == 201:
        # Whole, or not at all: what could not be kept with all of its headers is not replayed.
        replay = final.status == 201 and final.replayed and final.body == first.body
        assert replay and final.header("Content-Type") == first.header("Content-Type") or final.problem == "too-large", final
    elif first is not None:
        assert first.status in (500, 502, 503) or first.problem is not None, first
    assert final.status == 201 or final.problem in ("in-doubt", "too-large"), final


REQUESTS = {
    "a request with a trace": ("/pay", {"headers": [TRACE]}, Answer()),
    "one with reserved headers": ("/pay", {"headers": [("Once-Fence", "7"), TRACE]}, Answer()),
    "one over HTTP/2": ("/pay", {"protocol": "HTTP/2"}, Answer()),
    "further values in the fingerprint, and canonical JSON": ("/values", {"headers": [("X-One", "1"), ("X-Two", "2")]}, Answer()),
    "canonical JSON that is none": ("/values", {"body": b"{"}, Answer()),
    "a body in a file": ("/file", {"body": bytes(50_000)}, Answer()),
    "an answer of many headers": ("/pay", {}, Answer(headers=tuple((f"X-{n}", "v" * n) for n in range(40)) + (("Content-Type", "text/plain; charset=utf-8"),))),
    "an answer without a length": ("/pay", {}, Answer(framing="chunked")),
    "an answer that is too large": ("/file", {}, Answer(body=bytes(70_000), framing="chunked")),
    "an answer that is announced as too large": ("/file", {}, Answer(body=bytes(70_000))),
    "an answer that is cut": ("/pay", {}, Answer(cut=3)),
    "a service that closes": ("/pay", {}, Answer(close=True)),
    "a failure that is not stored": ("/pay", {}, NOT_NOW),
    "a file that the service names": ("/pay", {}, Answer(200, headers=(("X-Accel-Redirect", "/internal/certificate.pem"),))),
}  # fmt: skip


@pytest.mark.parametrize("name", REQUESTS)
def test_each_allocation_of_a_request_fails_in_turn_and_it_runs_once(door, faults, name):
    target, options, answer = REQUESTS[name]

    def play(_n):
        key = new_key()
        door.upstream.script(key, answer)
        first = attempt(door, key, target, **options)

        def check():
            """Of an answer that is not stored nothing is replayed; another run is allowed where nothing was done."""
            if answer == Answer() or answer.framing == "chunked" and target == "/pay":
                once_only(door, key, first, target, **options)
            else:
                allowed = 1 if answer.status != 503 else 2
                attempt(door, key, target, **options)
                assert door.count(key) <= allowed

        return check

    assert each_fails(door, faults, play) > 5


def test_each_allocation_of_a_replay_fails_in_turn_and_changes_nothing(door, faults):
    key = new_key()
    headers = (("Content-Type", "text/plain; charset=\"utf-8\""), ("ETag", '"1"'), ("Last-Modified", "Mon, 28 Sep 1970 06:00:00 GMT"),
               ("Expires", "0"), ("Content-Encoding", "identity"), ("X-Other", "1"))  # fmt: skip
    door.upstream.script(key, Answer(headers=headers))
    first = door.attempt(key, headers=[TRACE])

    def play(_n):
        again = attempt(door, key, headers=[TRACE])
        assert again is None or again.status in (500, 503, 409) or again.replayed and again.body == first.body, again
        return lambda: None

    assert each_fails(door, faults, play) > 10
    assert door.count(key) == 1 and door.attempt(key).body == first.body


@pytest.fixture
def caching(database, upstream, faults):
    """For one test: while there are copies its worker tells the database each second, and would take part in another test's countdown."""
    with Door(database, upstream, CONFIG, "once_timeout 2s; once_replay_cache zone=replays:64k;", workers=1) as running:
        wait_until(lambda: page(running)["connected"] == {"claims": 1, "reports": 1}, "the worker's connections")
        yield running


def test_each_allocation_of_a_request_whose_answer_is_copied_fails_in_turn_and_it_runs_once(caching, faults):
    def play(_n):
        key = new_key()
        first = attempt(caching, key, headers=[TRACE])
        return lambda: once_only(caching, key, first, headers=[TRACE])

    assert each_fails(caching, faults, play) > 5
    assert page(caching)["cache"]["kept"] > 5


@pytest.mark.parametrize("body, statuses", [(BODY, (201, 500, 503, 409)), (b"other", (422, 500, 503))])
def test_each_allocation_of_an_answer_from_memory_fails_in_turn_and_changes_nothing(caching, faults, body, statuses):
    key = new_key()
    first = attempt(caching, key)
    hits = page(caching)["cache"]

    def play(_n):
        again = attempt(caching, key, body=body)
        assert again is None or again.status in statuses and (again.status != 201 or again.body == first.body), again
        return lambda: None

    assert each_fails(caching, faults, play) > 3
    counted = page(caching)["cache"]
    assert counted["hit"] + counted["mismatch"] > hits["hit"] + hits["mismatch"] + 3
    assert caching.count(key) == 1 and caching.attempt(key).body == first.body


def test_each_allocation_while_the_database_is_told_fails_in_turn_and_it_is_told_later(caching, faults):
    key = new_key()
    first = attempt(caching, key)
    counts = "SELECT count FROM once.counts() WHERE verdict = 'replay'"
    wait_until(lambda: attempt(caching, key).header("Idempotency-Replayed") == "true", "a replay")

    def play(_n):
        left = faults.memory[:]
        faults.set(0)
        told = caching.database.value(counts)
        assert attempt(caching, key).body == first.body
        faults.memory[:] = left
        wait_until(lambda: caching.database.value(counts) > told or faults.memory[:] == bytes(4), "the count, or no memory for it")
        return lambda: wait_until(lambda: caching.database.value(counts) > told, "the database to be told")

    assert each_fails(caching, faults, play) >= 1


REFUSED = {
    "no key": {"value": "-"},
    "a malformed key": {"value": '"a'},
    "two keys": {"headers": [("Idempotency-Key", '"b"')]},
    "no tenant": {"tenant": None},
    "another request": {"body": b'{"amount": 7}'},
    "a malformed tenant": {"tenant": "\x01"},
    "a body that is too large": {"target": "/file", "body": bytes(150_000)},
    "one that comes in chunks": {"target": "/file", "body": bytes(150_000), "chunked": True},
}


@pytest.mark.parametrize("name", REFUSED)
def test_each_allocation_of_a_refusal_fails_in_turn_and_nothing_runs(door, faults, name):
    key = new_key()
    door.attempt(key)

    def play(_n):
        refused = attempt(door, key, **REFUSED[name])
        assert refused is None or refused.status >= 400, refused
        return lambda: None

    assert each_fails(door, faults, play) > 3
    assert door.count(key) == 1


def test_each_allocation_of_a_hand_off_fails_in_turn_and_what_the_service_stored_is_the_answer(door, faults):
    """The service completes the intent itself, so the report is refused and the stored answer fetched."""

    def complete(request):
        door.database.execute("SELECT once.complete('pay', %s, %s, 201, 'stored', tenant => 'acme')",
                              request.header("Once-Key"), int(request.header("Once-Fence")))  # fmt: skip

    def play(_n):
        key = new_key()
        door.upstream.script(key, Answer(do=complete))
        first = attempt(door, key)

        def check():
            assert door.count(key) <= 1
            final = settled(door, key)
            assert door.count(key) == 1 and final.status == 201 and final.body == b"stored"
            assert first is None or first.status >= 500 or first.body == b"stored"

        return check

    assert each_fails(door, faults, play) > 20


def test_each_allocation_fails_in_turn_while_a_duplicate_waits(door, faults):
    def play(_n):
        key, hold = new_key(), threading.Event()
        door.upstream.script(key, Answer(hold=hold))
        left = faults.memory[:]
        faults.set(0)
        original = door.start(key)
        door.upstream.wait(key)
        faults.memory[:] = left
        duplicate = door.start(key)
        wait_until(lambda: waits(door) or not duplicate.is_alive(), "the duplicate's wait")
        hold.set()
        for each in (original, duplicate):
            try:
                answer = each.result()
                assert answer.status == 201 or answer.status >= 409
            except ConnectionError:
                pass
        return lambda: once_only(door, key, None)

    assert each_fails(door, faults, play) > 20


def test_each_allocation_fails_in_turn_where_the_worker_of_an_attempt_was_lost_and_nothing_runs_again(door, faults):
    """The lease of the lost one has passed: the claim is a takeover, which is only there to say so."""
    door.attempt(new_key())

    def play(_n):
        key, left = new_key(), faults.memory[:]
        faults.set(0)
        hold = threading.Event()
        door.upstream.script(key, Answer(hold=hold))
        original = door.start(key, "/at-once")
        door.upstream.wait(key)
        door.database.execute("UPDATE once.intent SET fence = fence + 1, lease_until = clock_timestamp() - interval '1 minute' WHERE key = %s", key)
        faults.memory[:] = left
        taken = attempt(door, key, "/at-once")
        assert taken is None or taken.status >= 409, taken
        left = faults.memory[:]
        hold.set()
        try:
            assert original.result().status >= 201
        except ConnectionError:
            pass
        return lambda: None

    assert each_fails(door, faults, play) > 10


def test_each_allocation_fails_in_turn_in_an_attempt_that_lost_its_lease(door, faults):
    """Its renewal was refused, so it reports nothing, asks what is stored, and no success is told of it."""

    def play(_n):
        key, left, hold = new_key(), faults.memory[:], threading.Event()
        faults.set(0)
        door.upstream.script(key, Answer(hold=hold))
        original = door.start(key, "/short")
        door.upstream.wait(key)
        door.database.execute("UPDATE once.intent SET fence = fence + 1 WHERE key = %s", key)
        lost = f"event=lease_lost scope=pay tenant={shown('acme')} key={shown(key)}"
        wait_until(lambda: lost in door.nginx.log(), "the refused renewal")
        faults.memory[:] = left
        hold.set()
        try:
            assert original.result().status >= 500
        except ConnectionError:
            pass
        return lambda: None

    assert each_fails(door, faults, play) > 3


@pytest.mark.parametrize("target", ["/status.json", "/metrics"])
def test_each_allocation_of_the_status_page_fails_in_turn(door, faults, target):
    def play(_n):
        try:
            answer = door.nginx.ask("GET", target, [("Accept", "application/openmetrics-text")])
            assert answer.status in (200, 500, 503)
        except ConnectionError:
            pass
        return lambda: None

    assert each_fails(door, faults, play) >= 3


def test_each_allocation_of_the_configuration_fails_in_turn_and_nginx_says_no(faults, upstream, database):
    """A file for the connection string, and every directive that keeps something."""
    everything = CONFIG + """
        location /all { once_key $http_x_key; once_headers Location X-*; once_problem_base https://problems.example/; once_methods PUT;
            proxy_pass http://app; }
    """
    with tempfile.NamedTemporaryFile("w", prefix="pgonce-dsn-") as file:
        file.write(database.dsn() + "\n")
        file.flush()
        os.chmod(file.name, 0o644)
        never_started = Door(database, upstream, everything, "once_replay_cache zone=replays:64k;", dsn=file.name).nginx
        failed = 0
        for n in range(1, LIMIT):
            faults.set(n)
            done = subprocess.run([str(word) for word in never_started.command("-t")], capture_output=True, text=True, check=False,
                                  env=never_started.environment(), cwd="/tmp", timeout=PATIENCE_S, **unprivileged()[0])  # fmt: skip
            if not faults.end():
                break
            assert done.returncode == 1, (n, done.returncode, done.stderr)
            failed += 1
        assert done.returncode == 0 and failed > 40
        never_started.destroy()
