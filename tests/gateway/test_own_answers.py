# SPDX-License-Identifier: PostgreSQL
"""What the gateway says itself, in place of an answer of the service, is a problem document, always: with the request that it is about, and
whether a program should send it again."""

import json
import threading

import pytest

from harness.upstream import Answer

from .door import assert_problem, new_key

CONFIG = """
    once_tenant $http_x_tenant;
    once required;
    once_scope pay;
    add_header X-Request $request_id always;
    location /pay { proxy_pass http://app; }
    location /slow { proxy_read_timeout 300ms; proxy_pass http://app; }
    location /nobody { proxy_pass http://away; }
    location /again { once_in_doubt retry; proxy_pass http://app; }
    location /page { error_page 502 /page.html; proxy_pass http://app; }
    location = /page.html { internal; once off; return 200 "a page of yours"; }
    # By its name nginx -t would refuse it.
    location /fallback { set $other @other; error_page 502 = $other; proxy_pass http://app; }
    location @other { once off; proxy_pass http://app; }
"""
HTTP = "upstream away { server unix:@dir@/nobody; }"


def assert_own(answer, status, name, retryable):
    assert_problem(answer, status, name)
    document = json.loads(answer.body)
    assert (document["status"], document["retryable"]) == (status, retryable)
    assert document["instance"] == f"urn:pgonce:request:{answer.header('X-Request')}"
    assert (answer.header("Retry-After") is not None) == retryable
    assert answer.header("Cache-Control") == "no-store"
    return document


@pytest.mark.parametrize("protocol", ["HTTP/1.1", "HTTP/2"])
def test_a_service_that_took_nothing_of_the_request_is_unreached_and_the_key_is_free(door, protocol):
    key = new_key()
    assert_own(door.attempt(key, "/nobody", protocol=protocol), 502, "unreached", True)
    door.wait_state(key, "failed_retryable")
    assert door.attempt(key, "/nobody").problem == "unreached"


@pytest.mark.parametrize("protocol", ["HTTP/1.1", "HTTP/2"])
@pytest.mark.parametrize(
    "target, ending, status",
    [("/pay", Answer(close=True), 502), ("/pay", Answer(reset=True), 502), ("/slow", Answer(hold=threading.Event()), 504)],
    ids=["closed", "reset", "late"],
)
def test_a_service_that_took_the_request_and_gave_no_answer_has_left_doubt(door, protocol, target, ending, status):
    key = new_key()
    door.upstream.script(key, ending, Answer())
    document = assert_own(door.attempt(key, target, protocol=protocol), status, "unanswered", True)
    assert "with the same key" in document["detail"]
    assert_own(door.attempt(key, target), 409, "in-doubt", False)
    assert door.count(key) == 1


def test_where_the_upstream_is_idempotent_itself_a_retry_of_what_was_not_answered_runs(door):
    key = new_key()
    door.upstream.script(key, Answer(close=True), Answer(201))
    assert_own(door.attempt(key, "/again"), 502, "unanswered", True)
    assert door.attempt(key, "/again").status == 201


def test_every_refusal_says_which_request_it_is_about_and_whether_to_retry(door):
    key, hold = new_key(), threading.Event()
    door.upstream.script(key, Answer(hold=hold))
    original = door.start(key)
    door.upstream.wait(key)
    assert_own(door.attempt(key), 409, "active", True)
    assert_own(door.attempt(key, body=b"other"), 422, "mismatch", False)
    assert_own(door.attempt(new_key(), value="-"), 400, "key-missing", False)
    hold.set()
    assert original.result().status == 201


def test_a_page_that_the_operator_wants_is_given_instead(door):
    key = new_key()
    door.upstream.script(key, Answer(close=True))
    answer = door.attempt(key, "/page")
    assert (answer.problem, answer.body) == (None, b"a page of yours")


def test_what_would_have_run_a_second_time_behind_an_error_page_is_unanswered(door):
    key = new_key()
    door.upstream.script(key, Answer(close=True), Answer(201))
    assert_own(door.attempt(key, "/fallback"), 502, "unanswered", True)
    assert door.count(key) == 1


def test_a_502_of_the_service_itself_is_passed_on_as_it_is(door):
    key = new_key()
    door.upstream.script(key, Answer(502, body=b"from behind"))
    answer = door.attempt(key)
    assert (answer.status, answer.body, answer.problem) == (502, b"from behind", None)
