# SPDX-License-Identifier: PostgreSQL
"""Traces through the gateway: the request's traceparent is stored with its intent, goes on to the service, and is found again by every retry:
in its answer, in the log, and by the service that runs it. Nobody else learns it.

Broken on purpose and seen to fail: without `traceparent` in open_attempt, the replay; without the check in remember_trace, the stored one that
is none; with the first of several headers taken, the malformed ones; with the header only stripped as Idempotency-Replayed, the forged ones.
"""

import threading

import pytest
from harness.upstream import NOT_NOW, Answer

from .door import assert_problem, assert_replays, at_once, new_key

CONFIG = """
    once_tenant $http_x_tenant;
    once required;
    once_scope pay;
    location /pay { add_header X-Trace "[$once_traceparent]" always; proxy_pass http://app; }
    location /doubt { proxy_read_timeout 500ms; proxy_pass http://app; }
"""
FIRST = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
LATER = "00-11111111111111111111111111111111-2222222222222222-00"
MARK = "Idempotency-Traceparent"


def traced(value):
    return [("traceparent", value)]


@pytest.mark.parametrize("protocol", ["HTTP/1.1", "HTTP/2"])
def test_a_replay_names_the_trace_of_its_original(door, protocol):
    key = new_key()
    first = door.attempt(key, headers=traced(FIRST), protocol=protocol)
    assert door.stored(key).traceparent == FIRST and door.upstream.only(key).all("traceparent") == [FIRST]
    assert first.all(MARK) == [] and first.header("X-Trace") == f"[{FIRST}]"
    for headers in (traced(LATER), traced("nonsense"), []):
        again = assert_replays(door, key, first, headers=headers, protocol=protocol)
        assert again.all(MARK) == [FIRST] and again.header("X-Trace") == f"[{FIRST}]"
    assert door.stored(key).traceparent == FIRST


def test_each_request_of_a_batch_has_its_own(door):
    keys = [new_key() for _ in range(16)]
    traces = [f"00-{i + 1:032x}-{i + 1:016x}-01" if i % 3 else None for i in range(16)]
    at_once(16, lambda i: door.attempt(keys[i], headers=traced(traces[i]) if traces[i] else []))
    assert [door.stored(key).traceparent for key in keys] == traces


@pytest.mark.parametrize("headers", [
    [],
    traced(""),
    traced(FIRST.upper()),
    traced(FIRST.replace("00-", "01-", 1)),
    traced(FIRST + "-01"),
    traced(FIRST[:-1]),
    traced("00-" + "0" * 32 + "-b7ad6b7169203331-01"),
    traced(FIRST[:-2] + "\u00e9"),
    traced(FIRST) + traced(LATER),
], ids=["none", "empty", "upper case", "another version", "too long", "too short", "all zero", "not ASCII", "two"])
def test_a_malformed_one_is_not_stored_and_goes_on_as_it_is(door, headers):
    key = new_key()
    first = door.attempt(key, headers=headers)
    assert first.status == 201 and first.header("X-Trace") == "[]" and door.stored(key).traceparent is None
    assert door.upstream.only(key).all("traceparent") == [value for _, value in headers]
    assert assert_replays(door, key, first, headers=traced(LATER)).all(MARK) == []


def test_a_problem_about_an_intent_names_its_trace_but_a_mismatch_learns_nothing(door):
    key, hold = new_key(), threading.Event()
    door.upstream.script(key, Answer(hold=hold))
    original = door.start(key, headers=traced(FIRST))
    door.upstream.wait(key)
    active = assert_problem(door.attempt(key, headers=traced(LATER)), 409, "active")
    assert active.all(MARK) == [FIRST] and active.header("X-Trace") == f"[{FIRST}]"
    for _ in range(2):
        other = assert_problem(door.attempt(key, body=b"another", headers=traced(LATER)), 422, "mismatch")
        assert other.all(MARK) == [] and other.header("X-Trace") == "[]"
        hold.set()
        original.result()
    assert assert_problem(door.attempt(key, value="-", headers=traced(LATER)), 400, "key-missing").all(MARK) == []


def test_an_outcome_in_doubt_names_its_trace(door):
    key, hold = new_key(), threading.Event()
    door.upstream.script(key, Answer(hold=hold))
    door.attempt(key, "/doubt", headers=traced(FIRST))
    hold.set()
    door.wait_state(key, "in_doubt")
    assert assert_problem(door.attempt(key, "/doubt", headers=traced(LATER)), 409, "in-doubt").all(MARK) == [FIRST]


def test_a_retry_that_runs_hands_the_first_attempts_trace_to_the_service_and_keeps_its_own(door):
    key = new_key()
    door.upstream.script(key, NOT_NOW, Answer(200))
    assert door.attempt(key, headers=traced(FIRST)).status == 503
    assert door.attempt(key, headers=traced(LATER)).status == 200
    requests = door.upstream.seen(key)
    assert [request.header("traceparent") for request in requests] == [FIRST, LATER]
    assert [request.all("Once-Traceparent") for request in requests] == [[FIRST], [FIRST]]
    assert door.stored(key).traceparent == FIRST


def test_a_client_can_send_the_gateways_own_headers_to_nobody(door):
    key = new_key()
    forged = [(MARK, LATER), ("Once-Traceparent", LATER), ("Idempotency_Traceparent", LATER)]
    door.upstream.script(key, Answer(200, [(MARK, LATER), ("Once-Traceparent", LATER)]))
    first = door.attempt(key, headers=forged)
    request = door.upstream.only(key)
    assert request.all(MARK) == request.all("Idempotency_Traceparent") == request.all("Once-Traceparent") == []
    assert assert_replays(door, key, first).all(MARK) == []


def test_a_stored_trace_that_is_none_becomes_no_header(door):
    key = new_key()
    first = door.attempt(key, headers=traced(FIRST))
    door.database.execute("UPDATE once.intent SET traceparent = E'a\\r\\nX-Evil: b' WHERE key = %s", key)
    again = assert_replays(door, key, first)
    assert again.all(MARK) == [] and again.all("X-Evil") == []

