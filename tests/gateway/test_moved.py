# SPDX-License-Identifier: PostgreSQL
"""307 and 308: the same request is sent to another target, with the same key. It is one intent: it runs once, where it leads to, and whoever begins
anew gets its answer."""

import subprocess

import pytest

from harness.broker import free_port
from harness.client import CURL
from harness.postgres import clean_environment, wait_until
from harness.upstream import Answer

from .door import BODY, assert_problem, assert_replays, at_once, new_key

PORT = free_port()
CONFIG = """
    once_tenant $http_x_tenant;
    once required;
    once_scope pay;
    server_name test;
    location / { proxy_pass http://app; }
    location /mapped/ { proxy_redirect http://inside.test/ /; proxy_pass http://app; }
    location /wait { once_wait 20s; proxy_pass http://app; }
    location /free { once_fingerprint method content_type body; proxy_pass http://app; }
    location /canonical { once_canonical_json on; proxy_pass http://app; }
    location /short { once_response_max 1k; proxy_pass http://app; }
"""
HTTP = f"""
    server {{
        listen unix:@dir@/h1;
        listen 127.0.0.1:{PORT};
        server_name other.test;
        once_tenant $http_x_tenant;
        once required;
        once_scope pay;
        location / {{ proxy_pass http://app; }}
    }}
"""


def leads_to(location, status=307, body=b"over there"):
    return Answer(status, headers=(("Location", location), ("Content-Type", "text/plain")), body=body)


def follow(door, key, target, body=BODY.decode()):
    """curl -L. (the statuses on the way, is the last answer a replay, its body)"""
    words = [CURL, "--silent", "--location", "--globoff", "--noproxy", "*", "--dump-header", "/dev/stderr", "--data-binary", body]
    words += ["--unix-socket", str(door.nginx.h1)]
    for name, value in door.headers_of(key):
        words += ["--header", f"{name}: {value}"]
    done = subprocess.run([*words, f"http://test{target}"], capture_output=True, env=clean_environment(), check=True, timeout=60)
    heads = done.stderr.decode().lower().replace("\r", "").strip().split("\n\n")
    return [int(head.split()[1]) for head in heads], "idempotency-replayed: true" in heads[-1], done.stdout


LOCATIONS = {
    "/there": "/there",
    "/there?a=b&c=%20d": "/there?a=b&c=%20d",
    "http://test/there": "/there",
    "HTTP://TEST:80/there#part": "/there",
    "//test/there": "/there",
    "there": "/pay/there",
    "../there": "/there",
    "./a/../b": "/pay/b",
    "?x=y": "/pay/17?x=y",
    "http://other.test/there": "/there",
}


@pytest.mark.parametrize("status", [307, 308])
@pytest.mark.parametrize("location", LOCATIONS)
def test_a_client_that_follows_has_one_execution_and_one_answer(door, location, status):
    key = new_key()
    door.upstream.script(key, leads_to(location, status), Answer(201, body=b"paid"))
    assert follow(door, key, "/pay/17") == ([status, 201], False, b"paid")
    assert [request.target for request in door.upstream.seen(key)] == ["/pay/17", LOCATIONS[location]]
    # From the beginning, as a client does that has lost the answer; or where it was led to.
    assert follow(door, key, "/pay/17") == ([201], True, b"paid")
    assert door.count(key) == 2


def test_by_http_2_too(door):
    """Not by curl -L, which fails there at any nginx (7.88)."""
    key = new_key()
    door.upstream.script(key, leads_to("http://test/there"), Answer(201, body=b"paid"))
    assert door.attempt(key, "/here", protocol="HTTP/2").status == 307
    first = door.attempt(key, "/there", protocol="HTTP/2")
    assert (first.status, first.replayed) == (201, False)
    for protocol in ("HTTP/2", "TLS", "HTTP/1.1"):
        assert_replays(door, key, first, "/here", protocol=protocol)


def test_a_way_of_several_steps_is_one_intent(door):
    key = new_key()
    door.upstream.script(key, leads_to("/b"), leads_to("/c", 308), leads_to("/d?e"), Answer(201, body=b"paid"))
    assert follow(door, key, "/a") == ([307, 308, 307, 201], False, b"paid")
    for target in ("/a", "/b", "/c", "/d?e"):
        assert follow(door, key, target) == ([201], True, b"paid")
    assert door.count(key) == 4


def test_the_location_that_counts_is_the_one_that_the_client_gets(door):
    key = new_key()
    door.upstream.script(key, leads_to("http://inside.test/mapped/b"), Answer(201, body=b"paid"))
    assert follow(door, key, "/mapped/a") == ([307, 201], False, b"paid")
    assert follow(door, key, "/mapped/a") == ([201], True, b"paid")


@pytest.mark.parametrize("target", ["/free/a", "/canonical/a", "/short/a"])
def test_parts_that_a_location_leaves_out_are_left_out_there_too(door, target):
    key = new_key()
    door.upstream.script(key, leads_to("b", body=b"x" * 5000), Answer(201, body=b"paid"))
    assert follow(door, key, target) == ([307, 201], False, b"paid")
    assert follow(door, key, target) == ([201], True, b"paid")
    assert door.count(key) == 2


def test_the_answer_is_for_nobody_else(door):
    """Neither for another body, nor for a target that nobody was led to."""
    key = new_key()
    door.upstream.script(key, leads_to("/there"), Answer(201, body=b"paid"))
    assert door.attempt(key, "/here").status == 307
    assert_problem(door.attempt(key, "/elsewhere"), 422, "mismatch")
    assert_problem(door.attempt(key, "/there", body=b"another"), 422, "mismatch")
    assert_problem(door.attempt(key, "/there", method="PATCH"), 422, "mismatch")
    first = door.attempt(key, "/there")
    assert (first.status, first.replayed) == (201, False)
    for target in ("/here", "/there"):
        assert_replays(door, key, first, target)
        assert_problem(door.attempt(key, target, body=b"another"), 422, "mismatch")
    assert_problem(door.attempt(key, "/elsewhere"), 422, "mismatch")
    assert door.count(key) == 2


@pytest.mark.parametrize("location", ["ftp://test/there", "/a b", "http://test:/there", ""])
def test_where_it_leads_to_is_never_guessed(door, location):
    key = new_key()
    door.upstream.script(key, leads_to(location))
    assert door.attempt(key, "/here").status == 307
    assert_problem(door.attempt(key, "/there"), 422, "mismatch")
    assert door.stored(key).redirects is None


def test_where_the_service_says_that_it_is_done_the_redirect_is_the_answer(door):
    key = new_key()
    said = leads_to("/there")
    door.upstream.script(key, Answer(307, headers=(*said.headers, ("Once-Effect", "done")), body=b"done"))
    first = door.attempt(key, "/here")
    assert_replays(door, key, first, "/here")
    assert_problem(door.attempt(key, "/there"), 422, "mismatch")


def test_an_answer_that_only_looks_like_a_redirect_leads_nowhere(door):
    key = new_key()
    door.upstream.script(key, Answer(429, headers=(("Location", "/there"), ("Retry-After", "1")), body=b"later"))
    assert door.attempt(key, "/here").status == 429
    assert_problem(door.attempt(key, "/there"), 422, "mismatch")


def test_many_that_follow_at_once_have_one_execution(door):
    key = new_key()
    there = Answer(do=lambda request: leads_to("/wait/there") if request.target == "/wait/here" else Answer(201, body=b"paid"))
    door.upstream.script(key, there)
    assert {answer[2] for answer in at_once(12, lambda _: follow(door, key, "/wait/here"))} == {b"paid"}
    assert [request.target for request in door.upstream.seen(key)].count("/wait/there") == 1
    wait_until(lambda: door.state(key) == "succeeded", "the outcome")
