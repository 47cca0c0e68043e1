# SPDX-License-Identifier: PostgreSQL
"""Configurations of nginx that are rare: what a request meets after it has left, and workers and connections that end too early. It runs once all the
same, or is in doubt, and says so."""

import threading

import pytest

from harness.client import Http1
from harness.postgres import wait_until
from harness.upstream import Answer

from .door import BODY, Door, assert_problem, assert_replays, new_key, same_answer

CONFIG = """
    once required;
    once_scope pay;
    once_tenant $http_x_tenant;
    once_methods POST PUT PATCH DELETE;
    proxy_buffer_size 512k;
    proxy_buffers 4 512k;
    proxy_busy_buffers_size 1m;
    location /pay { proxy_pass http://app; }
    location /bare { once off; proxy_pass http://app; }
    location /posted { once off; post_action /pay; proxy_pass http://app; }
    location /kept { proxy_pass http://kept; }
    location @post { limit_except POST { deny all; } proxy_pass http://app; }
    location @put { limit_except PUT { deny all; } proxy_pass http://app; }
    location @patch { limit_except PATCH { deny all; } proxy_pass http://app; }
    location @two { limit_except PUT { deny all; } proxy_pass http://two; }
    location @gone { root @dir@; dav_methods DELETE; }
    error_page 400 = @bad;
    location @bad { once_scope bad; proxy_set_header X-Seen $http_once_fence; proxy_pass http://app; }
    location /get { limit_except GET { deny all; } proxy_pass http://app; }
    location /only-post { limit_except POST { deny all; } proxy_pass http://app; }
"""
HTTP = """
    upstream kept { server unix:@upstream@; keepalive 4; }
    upstream two { server unix:@upstream@ max_fails=0; server unix:@upstream@ max_fails=0; }
"""


# ---- X-Accel-Redirect into a location that asks for the method.


@pytest.mark.parametrize("target", ["@post", "@put", "@patch", "/get", "/only-post"])
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
def test_a_location_that_limits_methods_sees_the_requests_own(door, target, method):
    """As it does where nothing is protected: a named one gets the method, any other a GET."""
    answers = []
    for place in ("/bare", "/pay"):
        key = new_key()
        door.upstream.script(key, Answer(headers=(("X-Accel-Redirect", target),)), Answer(body=b"led there"))
        answers.append(door.attempt(key, place, method=method))
        if answers[0].status == 201 and place == "/pay":
            assert_replays(door, key, answers[1], place, method=method)
            assert door.count(key) == 2
    assert same_answer(*answers)


def test_what_deletes_files_sees_a_delete(door):
    answers = []
    for place in ("/bare", "/pay"):
        key = new_key()
        door.upstream.script(key, Answer(headers=(("X-Accel-Redirect", "@gone"),)))
        answers.append(door.attempt(key, place, method="DELETE"))
    assert answers[0].status == 415 and same_answer(*answers), "its body is what nginx's DELETE does not take"


@pytest.mark.parametrize("body, status", [(b"", b"201"), (BODY, b"413")], ids=["without a body", "with one, which nginx has not read"])
def test_a_request_that_an_error_page_leads_here_brings_no_header_of_the_gateways(door, body, status):
    """It comes past the phase in which they are taken out."""
    key = new_key()
    lines = ["POST /pay HTTP/1.1", f"Content-Length: {len(body)}", "Once-Fence: 7", *(": ".join(each) for each in door.headers_of(key))]
    with Http1(door.nginx.h1) as connection:
        connection.socket.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        assert connection.shared.stream.readline().split()[1] == status
    requests = door.upstream.seen(key) if status == b"201" else []
    assert door.count(key) == len(requests) and all(each.all("X-Seen") == each.all("Once-Fence") == ["1"] for each in requests)


def test_a_put_that_is_led_on_is_not_sent_again_there(door):
    """nginx by itself sends PUT to the next server after an error."""
    key = new_key()
    door.upstream.script(key, Answer(headers=(("X-Accel-Redirect", "@two"),)), Answer(close=True), Answer())
    assert door.attempt(key, method="PUT").status == 502
    assert door.count(key) == 2 and door.state(key) == "in_doubt"


# ---- post_action.


def test_what_follows_an_answer_runs_nothing_that_is_protected(door):
    """Each of three answers would be followed by a request that nobody waits for, and that is another one than the key's."""
    key = new_key()
    for _ in range(3):
        assert door.attempt(key, "/posted").status == 201
    refused = "once: post_action leads to a protected location: not run"
    assert [request.target for request in door.upstream.seen(key)] == ["/posted"] * 3
    wait_until(lambda: door.nginx.log().count(refused) == 3, what="the last of the three to be refused")
    assert door.stored(key) is None
    first = door.attempt(key)
    assert_replays(door, key, first)


# ---- A worker that has to end before its requests do.


@pytest.mark.parametrize("held", ["hold", "hold_rest"])
def test_a_worker_that_may_not_finish_leaves_a_doubt_that_is_said_at_once(database, upstream, held):
    """worker_shutdown_timeout ends its connections: the client gets no answer, the intent is not lost and does not run again."""
    key, release = new_key(), threading.Event()
    upstream.script(key, Answer(**{held: release}))
    with Door(database, upstream, CONFIG, HTTP, shutdown="100ms") as door:
        first = door.start(key)
        upstream.wait(key)
        door.nginx.reload()
        with pytest.raises(ConnectionError):
            first.result()
        door.wait_state(key, "in_doubt")
        release.set()
        assert_problem(door.attempt(key), 409, "in-doubt")
        assert door.count(key) == 1


# ---- A kept connection that the service closes.


def test_a_request_on_a_kept_connection_that_the_service_closes_is_in_doubt(door):
    """Whether it was read before that, nothing tells: so it is not sent again on another connection."""
    warm, key = new_key(), new_key()
    assert door.attempt(warm, "/kept").status == 201
    door.upstream.script(key, Answer(close=True))
    assert_problem(door.attempt(key, "/kept"), 502, "unanswered")
    assert door.state(key) == "in_doubt" and door.count(key) == 1
    assert_problem(door.attempt(key, "/kept"), 409, "in-doubt")


# ---- Headers without end.


def test_an_answer_with_more_headers_than_are_kept_is_done_and_the_log_says_why(door):
    key = new_key()
    door.upstream.script(key, Answer(headers=tuple((f"X-Header-{n}", "a" * 200) for n in range(1100))))
    with Http1(door.nginx.h1) as connection:
        connection.send("POST", "/pay", door.headers_of(key), BODY, close=True)
        assert connection.shared.stream.readline().startswith(b"HTTP/1.1 201")
    door.wait_state(key, "succeeded")
    assert_problem(door.attempt(key), 409, "too-large")
    assert "it has more than 1024 headers" in door.nginx.log() and door.count(key) == 1


LOST_BODY = """
    once_tenant $http_x_tenant; once_scope pay; client_body_buffer_size 64k;
    location /dropped { once on; client_max_body_size 1k; error_page 413 = @run; proxy_pass http://app; }
    location /cut { client_max_body_size 20k; error_page 413 = @run; proxy_pass http://app; }
    location @run { once on; client_max_body_size 1m; proxy_pass http://app; }
"""
CHUNK = b"2000\r\n" + b"x" * 8192 + b"\r\n"


@pytest.mark.parametrize("path, framing", [
    ("/dropped", b"Content-Length: 2000\r\n\r\n" + b"x" * 2000),
    ("/dropped", b"Content-Length: 90000\r\n\r\n" + b"x" * 90000),
    ("/cut", b"Transfer-Encoding: chunked\r\n\r\n" + 5 * CHUNK + b"0\r\n\r\n"),
], ids=["dropped at once", "dropped as it comes", "read in part"])  # fmt: skip
def test_a_body_that_nginx_has_refused_runs_nothing_behind_its_error_page(database, upstream, path, framing):
    with Door(database, upstream, LOST_BODY, workers=1) as door:
        key = new_key()
        client = Http1(door.nginx.h1, timeout=10)
        client.socket.sendall(f'POST {path} HTTP/1.1\r\nHost: t\r\nX-Tenant: acme\r\nIdempotency-Key: "{key}"\r\nX-Test: {key}\r\n'.encode() + framing)
        answer = b""
        while b"\r\n" not in answer:
            answer += client.socket.recv(65536)
        client.close()
        assert answer.startswith(b"HTTP/1.1 413"), answer
        assert door.count(key) == 0 and door.state(key) is None
