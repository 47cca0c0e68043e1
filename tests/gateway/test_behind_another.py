# SPDX-License-Identifier: PostgreSQL
"""A gateway behind a gateway: what the one behind says of an attempt is passed on by the one before it, and never stored as the request's outcome.
Here one nginx is both: /outer asks /inner, which asks the service."""

import json
import threading

import pytest

from harness.upstream import Answer

from .door import assert_problem, assert_replays, new_key

CONFIG = """
    once_tenant $http_x_tenant;
    once required;
    proxy_set_header Host $http_host;
    location /outer { once_scope outer; proxy_pass http://unix:@dir@/h1:/inner; }
    location /outer/lost { once_scope outer; proxy_pass http://unix:@dir@/h1:/lost; }
    location /outer/strict { once_scope outer; proxy_pass http://unix:@dir@/h1:/strict; }
    location /outer/small { once_scope outer; proxy_pass http://unix:@dir@/h1:/small; }
    location /inner { once_scope inner; proxy_pass http://app; }
    location /lost { once_scope inner; once_problem_base https://docs.test/problems#; proxy_pass http://unix:@dir@/nobody; }
    location /strict { once_scope inner; once_key_syntax strict; proxy_pass http://app; }
    location /small { once_scope inner; once_response_max 10; proxy_pass http://app; }
    location /said { once_scope said; proxy_pass http://app; }
"""


def test_while_the_first_attempt_runs_behind_the_next_is_told_so_and_later_gets_its_answer(door):
    key, end = new_key(), threading.Event()
    door.upstream.script(key, Answer(201, hold=end))
    first = door.start(key, "/inner")
    door.upstream.wait(key)
    for _ in range(2):
        assert_problem(door.attempt(key, "/outer"), 409, "active")
        assert door.state(key, "outer") == "failed_retryable"
    end.set()
    answer = first.result()
    last = door.attempt(key, "/outer")
    assert (last.status, last.body) == (201, answer.body)
    assert_replays(door, key, last, "/outer")
    assert door.count(key) == 1


def test_a_mismatch_behind_is_no_outcome(door):
    key = new_key()
    door.attempt(key, "/inner", body=b"another")
    for _ in range(2):
        assert_problem(door.attempt(key, "/outer"), 422, "mismatch")
    assert door.state(key, "outer") == "failed_retryable" and door.count(key) == 1


def test_a_key_that_is_refused_behind_is_no_outcome(door):
    key = new_key()
    for _ in range(2):
        assert_problem(door.attempt(key, "/outer/strict", value=key), 400, "key-malformed")
    answer = door.attempt(key, "/outer/strict")
    assert answer.status == 201 and not answer.replayed
    assert_replays(door, key, answer, "/outer/strict")
    assert door.count(key) == 1


def test_a_service_that_is_not_reached_behind_leaves_no_doubt(door):
    """Also where the problem's type begins otherwise."""
    key = new_key()
    for _ in range(2):
        answer = door.attempt(key, "/outer/lost")
        assert (answer.status, json.loads(answer.body)["type"]) == (502, "https://docs.test/problems#unreached")
        assert door.state(key, "outer") == "failed_retryable"


def test_a_doubt_behind_is_a_doubt_before(door):
    key = new_key()
    door.upstream.script(key, Answer(close=True))
    assert_problem(door.attempt(key, "/outer"), 502, "unanswered")
    assert (door.state(key, "inner"), door.state(key, "outer")) == ("in_doubt", "in_doubt")
    assert_problem(door.attempt(key, "/outer"), 409, "in-doubt")
    other = new_key()
    door.upstream.script(other, Answer(close=True))
    assert_problem(door.attempt(other, "/inner"), 502, "unanswered")
    assert_problem(door.attempt(other, "/outer"), 409, "in-doubt")
    assert door.state(other, "outer") == "in_doubt"
    assert (door.count(key), door.count(other)) == (1, 1)


def test_what_is_done_behind_and_too_large_to_repeat_is_so_before(door):
    key = new_key()
    assert door.attempt(key, "/small").status == 201
    for _ in range(2):
        assert_problem(door.attempt(key, "/outer/small"), 409, "too-large")
    assert door.state(key, "outer") == "succeeded" and door.count(key) == 1


# (status, what the intent is then)
PROBLEMS = {
    "key-missing": (400, "failed_retryable"),
    "key-malformed": (400, "failed_retryable"),
    "key-repeated": (400, "failed_retryable"),
    "tenant-missing": (400, "failed_retryable"),
    "mismatch": (422, "failed_retryable"),
    "active": (409, "failed_retryable"),
    "in-doubt": (409, "in_doubt"),
    "expired": (409, "in_doubt"),
    "too-large": (409, "succeeded"),
    "no-answer": (409, "in_doubt"),
    "body-too-large": (413, "failed_retryable"),
    "refused": (403, "failed_retryable"),
    "unavailable": (503, "failed_retryable"),
    "timed-out": (503, "failed_retryable"),
    "busy": (503, "failed_retryable"),
    "not-stored": (503, "in_doubt"),
    "unreached": (502, "failed_retryable"),
    "unanswered": (504, "in_doubt"),
}
OWN = (("Content-Type", "application/problem+json"),)
DOCUMENT = (*OWN, ("Retry-After", "7"))


def document(slug, status):
    instance = "urn:pgonce:request:0123456789abcdef0123456789abcdef"
    return json.dumps({"type": f"urn:pgonce:problem:{slug}", "title": "t", "status": status, "detail": "d", "instance": instance}).encode()


@pytest.mark.parametrize("slug", PROBLEMS)
def test_each_problem_is_passed_on_unstored(door, slug):
    key, (status, state) = new_key(), PROBLEMS[slug]
    body = document(slug, status)
    door.upstream.script(key, Answer(status, headers=DOCUMENT, body=body), Answer(201, body=b"paid"))
    first = door.attempt(key, "/said")
    assert (first.status, first.body, first.header("Retry-After"), first.replayed) == (status, body, "7", False)
    assert door.state(key, "said") == state
    second = door.attempt(key, "/said")
    if state == "failed_retryable":
        assert (second.status, second.body, second.replayed) == (201, b"paid", False)
        assert_replays(door, key, second, "/said")
    else:
        assert_problem(second, 409, "too-large" if state == "succeeded" else "in-doubt")
    assert door.count(key) == (2 if state == "failed_retryable" else 1)


def test_a_service_that_protects_the_key_itself_is_named_in_the_log(door):
    """It finds the gateway's own claim: each attempt ends so, until somebody reads why."""
    said = "see \"In front of a client's middleware\" in docs/reference/gateway.md"
    for slug, status, warns in (("active", 409, 1), ("mismatch", 422, 1), ("in-doubt", 409, 0), ("key-malformed", 400, 0), ("unavailable", 503, 0)):
        key, before = new_key(), door.nginx.log().count(said)
        door.upstream.script(key, Answer(status, headers=DOCUMENT, body=document(slug, status)))
        assert_problem(door.attempt(key, "/said"), status, slug)
        assert door.nginx.log().count(said) == before + warns, slug
    assert "the service answered 422 (mismatch) about a key that this gateway holds, scope=said" in door.nginx.log()


def test_a_services_own_problem_is_an_outcome_like_any_other(door):
    for body in (b'{"type": "https://example.com/mismatch", "status": 422}', document("nothing-of-the-kind", 422), b"not JSON", b""):
        key = new_key()
        door.upstream.script(key, Answer(422, headers=OWN, body=body), Answer(201))
        first = door.attempt(key, "/said")
        assert (first.status, first.body) == (422, body)
        assert_replays(door, key, first, "/said")
    key, body = new_key(), document("mismatch", 422)  # its words in a document of another type
    door.upstream.script(key, Answer(422, headers=(("Content-Type", "application/json"),), body=body), Answer(201))
    assert_replays(door, key, door.attempt(key, "/said"), "/said")


def test_a_service_that_says_what_became_of_the_effect_is_believed_before_the_problem(door):
    key, body = new_key(), document("active", 409)
    door.upstream.script(key, Answer(409, headers=(*DOCUMENT, ("Once-Effect", "done")), body=body), Answer(201))
    first = door.attempt(key, "/said")
    assert (first.status, first.body) == (409, body)
    assert_replays(door, key, first, "/said")


def test_a_doubt_behind_is_not_verified_while_the_service_may_be_at_work(door):
    """The gateway behind knows nothing of its service; so a verify function is asked when the attempt's lease has passed."""
    door.database.execute(
        "CREATE FUNCTION public.absent(tenant text, scope text, key text) RETURNS once.verification LANGUAGE sql AS "
        "$$ SELECT ROW('absent', NULL, NULL, NULL, NULL, NULL)::once.verification $$; SELECT once.set_scope('said', verify => 'public.absent')"
    )
    try:
        key = new_key()
        door.upstream.script(key, Answer(503, headers=DOCUMENT, body=document("not-stored", 503)), Answer(201))
        assert_problem(door.attempt(key, "/said"), 503, "not-stored")
        assert_problem(door.attempt(key, "/said"), 409, "in-doubt")
        door.database.execute("UPDATE once.intent SET lease_until = clock_timestamp() WHERE key = %s", key)
        assert door.attempt(key, "/said").status == 201
    finally:
        door.database.execute("SELECT once.set_scope('said')")
