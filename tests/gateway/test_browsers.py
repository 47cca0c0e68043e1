# SPDX-License-Identifier: PostgreSQL
"""A page of another origin, before the configuration that docs/reference/gateway.md shows: every answer of the door is one that a browser lets it read."""

import re

import pytest

from harness.postgres import ROOT
from harness.upstream import Answer

from .door import JSON, assert_problem, assert_replays, new_key

SHOWN = re.search(r"(?s)## Browsers.*?    location /payments \{\n(.*?)      # once, once_scope.*?\n    \}\n", (ROOT / "docs/reference/gateway.md").read_text()).group(1)
CONFIG = f"""
    location /pay {{
      {SHOWN}
      auth_request /auth;
      once required; once_scope pay; once_tenant $http_x_tenant; once_body_max 1k; proxy_pass http://app;
    }}
    location /gone {{
      {SHOWN}
      once required; once_scope gone; once_tenant $http_x_tenant; proxy_pass http://unix:@dir@/nobody;
    }}
    location = /auth {{ internal; proxy_pass http://app; proxy_pass_request_body off; proxy_set_header Content-Length ""; proxy_set_header X-Test auth; }}
"""
ORIGIN = ("Origin", "https://shop.example")


def readable(answer):
    assert answer.all("Access-Control-Allow-Origin") == [ORIGIN[1]], answer
    assert answer.all("Access-Control-Expose-Headers") == ["Idempotency-Replayed, Retry-After"], answer
    return answer


def test_the_preflight_allows_the_key_without_a_key_or_credentials(door):
    headers = [ORIGIN, ("Access-Control-Request-Method", "POST"), ("Access-Control-Request-Headers", "content-type,idempotency-key"), ("X-Test", "preflight")]
    answer = door.nginx.ask("OPTIONS", "/pay", headers)
    assert (answer.status, answer.header("Access-Control-Allow-Origin")) == (204, ORIGIN[1])
    assert "idempotency-key" in answer.header("Access-Control-Allow-Headers").lower() and answer.header("Access-Control-Allow-Methods") == "POST"
    assert door.count("preflight") == 0


@pytest.mark.parametrize("status", [201, 404, 500])
def test_an_answer_and_its_replay_can_be_read_once_each(door, status):
    """Whatever the service says of origins."""
    key = new_key()
    door.upstream.script(key, Answer(status, headers=(JSON, ("Access-Control-Allow-Origin", "https://other.example"), ("Access-Control-Expose-Headers", "X-Other")), body=b"{}"))
    first = readable(door.attempt(key, headers=(ORIGIN,)))
    assert first.status == status
    if status < 500:
        readable(assert_replays(door, key, first, headers=(ORIGIN,)))


def test_each_refusal_can_be_read(door):
    readable(assert_problem(door.attempt(new_key(), value="-"), 400, "key-missing"))
    readable(assert_problem(door.attempt(new_key(), body=b"x" * 2000), 413, "body-too-large"))
    readable(assert_problem(door.attempt(new_key(), "/gone"), 502, "unreached"))
    key = new_key()
    door.attempt(key)
    readable(assert_problem(door.attempt(key, body=b"another"), 422, "mismatch"))
    lost = new_key()
    door.upstream.script(lost, Answer(close=True))
    readable(assert_problem(door.attempt(lost), 502, "unanswered"))
    readable(assert_problem(door.attempt(lost), 409, "in-doubt"))
