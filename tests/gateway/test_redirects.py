# SPDX-License-Identifier: PostgreSQL
"""nginx leads a request elsewhere after it has left, or answers in another's place: the request runs once, what is stored is the service's own
answer, and only what is whole is replayed."""

import json
import subprocess
import threading
import time

import pytest

from harness.client import CURL, Http1, curl_words
from harness.postgres import clean_environment, wait_until
from harness.upstream import Answer

from .door import BODY, assert_problem, assert_replays, new_key, same_answer

CONFIG = """
    once_tenant $http_x_tenant;
    once required;
    once_scope pay;
    set $fallback @again;
    set $nowhere @nowhere;
    set $then_page @then_page;
    location /page { error_page 500 502 504 /page.html; proxy_pass http://app; }
    location = /page.html { internal; once off; alias @dir@/certificate.pem; }
    location /page-refused { error_page 502 /page.html; proxy_pass http://away; }
    location = /page-said { internal; once off; return 200 "a page of yours"; }
    location /page-instead { error_page 502 =200 /page-said; proxy_pass http://app; }
    location /page-fetched { error_page 502 /fetched; proxy_pass http://app; }
    location /page-fetched-refused { error_page 502 /fetched; proxy_pass http://away; }
    location /fetched { internal; once off; proxy_pass http://app; }
    location /same { error_page 502 /same/page; proxy_pass http://app; }
    location /same-refused { error_page 502 /same-refused/page; proxy_pass http://$same_refused; }
    location /same-nowhere { error_page 502 /same-nowhere/page; proxy_pass http://away; }
    location /script { error_page 405 /page.html; empty_gif; }
    location /again { error_page 502 = $fallback; proxy_pass http://app; }
    location /again-allowed { error_page 502 = $fallback; once_in_doubt retry; proxy_pass http://app; }
    location /again-refused { error_page 502 = $fallback; proxy_pass http://away; }
    location /again-page { recursive_error_pages on; error_page 502 = $then_page; proxy_pass http://away; }
    location /again-nowhere { error_page 502 = $nowhere; proxy_pass http://away; }
    location @nowhere { proxy_pass http://away; }
    location @then_page { recursive_error_pages on; error_page 504 /fetched; proxy_read_timeout 500ms; proxy_pass http://app; }
    location @again { proxy_pass http://app; }
    location /accelerated { proxy_pass http://app; }
    location /file { internal; once off; alias @dir@/certificate.pem; }
    location /some-headers { once_headers X-*; proxy_pass http://app; }
    location /tried { try_files /nothing @again; }
    location /upgraded { proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade; proxy_pass http://app; }
    location /argument { once_key $arg_key; proxy_pass http://app; }
    location /argument-maybe { once on; once_key $arg_key; proxy_pass http://app; }
    location /small { client_max_body_size 10k; once_body_max 16m; proxy_pass http://app; }
    location /small-page { client_max_body_size 10k; error_page 400 413 /page.html; proxy_pass http://app; }
    location /small-again { client_max_body_size 10k; error_page 400 413 = @any; proxy_pass http://app; }
    location /small-away { client_max_body_size 10k; error_page 400 413 = @away; proxy_pass http://app; }
    location /small-tried { client_max_body_size 10k; error_page 400 413 = @tried; proxy_pass http://app; }
    location @any { client_max_body_size 0; proxy_pass http://app; }
    location @tried { try_files /nothing @any; }
    location @away { once off; proxy_pass http://app; }
    location /large { once_response_max 64k; proxy_pass http://app; }
    location /cached { once_methods PUT PATCH DELETE; proxy_cache answers; proxy_cache_methods POST; proxy_cache_valid any 1h; proxy_pass http://app; }
    location /canonical { once_canonical_json on; once_body_max 8m; proxy_pass http://app; }
    location /own { default_type text/plain; return 200 "own"; }
    location /scoped { once_scope $arg_scope; proxy_pass http://app; }
    location /denied-get { error_page 403 = @again; limit_except POST { deny all; } proxy_pass http://app; }
    location /denied { error_page 403 =200 /page.html; deny all; proxy_pass http://app; }
"""
HTTP = """
    upstream away { server unix:@dir@/nobody; }
    proxy_cache_path @dir@/cache keys_zone=answers:1m;
    map $uri $same_refused { volatile; /same-refused/page app; default away; }
"""


def test_a_file_in_place_of_no_answer_leaves_doubt_and_is_not_replayed(door):
    key = new_key()
    door.upstream.script(key, Answer(close=True))
    answer = door.attempt(key, "/page")
    assert answer.status == 502 and b"CERTIFICATE" in answer.body
    door.wait_state(key, "in_doubt")
    assert_problem(door.attempt(key, "/page"), 409, "in-doubt")
    assert door.count(key) == 1


def test_a_file_in_place_of_a_service_that_was_not_reached_leaves_the_key_free(door):
    key = new_key()
    for _ in range(2):
        assert door.attempt(key, "/page-refused").status == 502
        door.wait_state(key, "failed_retryable")
    assert door.count(key) == 0


def test_a_fallback_does_not_run_a_request_again_that_has_left(door):
    """A named location that a variable names is not seen by nginx -t."""
    key = new_key()
    door.upstream.script(key, Answer(close=True), Answer())
    assert door.attempt(key, "/again").status == 502
    assert door.count(key) == 1
    door.wait_state(key, "in_doubt")
    assert "error_page would run the request again" in door.nginx.log()


def test_a_fallback_may_run_it_again_where_the_service_is_idempotent_itself(door):
    key = new_key()
    door.upstream.script(key, Answer(close=True), Answer())
    assert door.attempt(key, "/again-allowed").status == 201
    assert door.count(key) == 2


def test_a_fallback_runs_what_never_left_and_what_became_of_that_is_in_doubt(door):
    key = new_key()
    assert door.attempt(key, "/again-refused").status == 201
    door.wait_state(key, "in_doubt")
    assert_problem(door.attempt(key, "/again-refused"), 409, "in-doubt")
    assert door.count(key) == 1


def test_a_fallback_that_was_not_reached_either_leaves_the_key_free(door):
    key = new_key()
    for _ in range(2):
        assert door.attempt(key, "/again-nowhere").status == 502
        door.wait_state(key, "failed_retryable")
    assert door.count(key) == 0


def methods(door, key):
    return [request.method for request in door.upstream.seen(key)]


def test_a_page_that_is_fetched_from_a_service_says_nothing_of_a_request_that_was_never_sent(door):
    key = new_key()
    door.upstream.script(key, Answer(200, body=b"a page"))
    for count in (1, 2):
        answer = door.attempt(key, "/page-fetched-refused")
        assert (answer.status, answer.body) == (502, b"a page")
        door.wait_state(key, "failed_retryable")
        assert methods(door, key) == ["GET"] * count


def test_a_page_that_is_fetched_from_a_service_says_nothing_of_a_request_that_was_sent(door):
    key = new_key()
    door.upstream.script(key, Answer(close=True), Answer(200, body=b"a page"))
    answer = door.attempt(key, "/page-fetched")
    assert (answer.status, answer.body) == (502, b"a page")
    door.wait_state(key, "in_doubt")
    assert_problem(door.attempt(key, "/page-fetched"), 409, "in-doubt")
    assert methods(door, key) == ["POST", "GET"]


def test_a_client_that_leaves_while_a_page_is_fetched_leaves_the_key_free_of_a_request_that_was_never_sent(door):
    key, hold = new_key(), threading.Event()
    door.upstream.script(key, Answer(200, hold=hold))
    connection = door.send(key, "/page-fetched-refused")
    door.upstream.wait(key)
    connection.close()
    door.wait_state(key, "failed_retryable")
    hold.set()
    assert methods(door, key) == ["GET"]


def test_a_fallback_that_ran_a_request_leaves_doubt_also_if_a_page_follows_it(door):
    key, hold = new_key(), threading.Event()
    door.upstream.script(key, Answer(hold=hold), Answer(200, body=b"a page"))
    answer = door.attempt(key, "/again-page")
    hold.set()
    assert (answer.status, answer.body) == (504, b"a page")
    door.wait_state(key, "in_doubt")
    assert methods(door, key) == ["POST", "GET"]


def test_a_page_that_comes_from_the_same_location_is_shown(door):
    key = new_key()
    door.upstream.script(key, Answer(close=True), Answer(200, body=b"a page"))
    answer = door.attempt(key, "/same")
    assert (answer.status, answer.body) == (502, b"a page")
    door.wait_state(key, "in_doubt")
    assert_problem(door.attempt(key, "/same"), 409, "in-doubt")
    assert methods(door, key) == ["POST", "GET"]


def test_a_page_that_comes_from_the_same_location_leaves_the_key_of_a_request_that_was_never_sent_free(door):
    key = new_key()
    door.upstream.script(key, Answer(200, body=b"a page"))
    for count in (1, 2):
        answer = door.attempt(key, "/same-refused")
        assert (answer.status, answer.body) == (502, b"a page")
        door.wait_state(key, "failed_retryable")
        assert methods(door, key) == ["GET"] * count


def test_a_page_of_the_same_location_that_did_not_come_is_replaced_by_a_problem(door):
    key = new_key()
    door.upstream.script(key, Answer(close=True))
    assert_problem(door.attempt(key, "/same"), 502, "unanswered")
    door.wait_state(key, "in_doubt")
    key = new_key()
    assert_problem(door.attempt(key, "/same-nowhere"), 502, "unreached")
    door.wait_state(key, "failed_retryable")


def test_a_page_with_the_status_of_a_broken_answer_is_not_taken_for_it(door):
    """The service said 200, and nginx could not read on."""
    key = new_key()
    door.upstream.script(key, Answer(200, headers=(("X-Large", "x" * 100_000),)))
    answer = door.attempt(key, "/page-instead")
    assert (answer.status, answer.body) == (200, b"a page of yours")
    door.wait_state(key, "in_doubt")
    assert_problem(door.attempt(key, "/page-instead"), 409, "in-doubt")
    assert door.count(key) == 1


def test_a_page_in_place_of_the_answer_of_a_content_handler_without_an_upstream_leaves_doubt(door):
    """Nobody knows what such a handler does, as a script's: here it is one that every nginx has."""
    key = new_key()
    answer = door.attempt(key, "/script")
    assert answer.status == 405 and b"CERTIFICATE" in answer.body
    door.wait_state(key, "in_doubt")


def test_a_file_that_the_service_names_is_the_answer_with_its_time(door):
    key = new_key()
    door.upstream.script(key, Answer(200, headers=(("X-Accel-Redirect", "/file"), ("X-Own", "1"))))
    first = door.attempt(key, "/accelerated")
    assert first.status == 200 and b"CERTIFICATE" in first.body and first.header("Last-Modified")
    again = assert_replays(door, key, first, "/accelerated")
    assert again.header("Last-Modified") == first.header("Last-Modified")


def test_a_file_that_the_service_names_and_that_is_missing_is_no_success(door):
    key = new_key()
    door.upstream.script(key, Answer(200, headers=(("X-Accel-Redirect", "/nowhere"),)))
    first = door.attempt(key, "/accelerated")
    assert first.status >= 400
    assert door.state(key) != "succeeded"
    door.attempt(key, "/accelerated")
    assert door.count(key) == 1


def test_headers_that_are_not_listed_are_not_replayed(door):
    key = new_key()
    door.upstream.script(key, Answer(headers=(("Content-Type", "text/plain"), ("X-One", "1"), ("Location", "/there"))))
    first = door.attempt(key, "/some-headers")
    assert (first.header("Location"), first.header("Content-Type")) == ("/there", "text/plain")
    again = assert_replays(door, key, first, "/some-headers")
    assert again.header("X-One") == "1" and again.header("Location") is None and again.header("Content-Type") is None


def test_a_location_that_is_found_by_try_files_is_protected(door):
    key = new_key()
    assert_replays(door, key, door.attempt(key, "/tried"), "/tried")
    assert door.count(key) == 1


def test_a_protocol_switch_passes_and_leaves_doubt(door):
    key = new_key()
    door.upstream.script(key, Answer(101, headers=(("Upgrade", "test"), ("Connection", "upgrade")), body=b"hello", framing="close"))
    connection = door.send(key, "/upgraded", headers=[("Upgrade", "test")], close=False)
    with connection:
        assert connection.socket.recv(4096).startswith(b"HTTP/1.1 101 ")
    wait_until(lambda: door.state(key) != "processing", "the end of the attempt")
    again = door.attempt(key, "/upgraded", headers=[("Upgrade", "test")])
    assert_problem(again, 409, "in-doubt")
    assert door.count(key) == 1


@pytest.mark.parametrize("status", [204, 205, 304])
@pytest.mark.parametrize("protocol", ["HTTP/1.1", "HTTP/2"])
def test_an_answer_without_a_body_is_replayed_without_one(door, status, protocol):
    key = new_key()
    door.upstream.script(key, Answer(status, headers=(("X-One", "1"),), body=b""))
    first = door.attempt(key, "/page", protocol=protocol)
    assert first.status == status and first.body == b""
    if status != 304:
        again = assert_replays(door, key, first, "/page", protocol=protocol)
        assert again.header("X-One") == "1"


def test_a_key_may_come_in_an_argument(door):
    key = new_key()
    first = door.attempt(key, f"/argument?key={key}", value="-")
    assert_replays(door, key, first, f"/argument?key={key}", value="-")
    assert_problem(door.attempt(new_key(), "/argument", value="-"), 400, "key-missing")
    assert door.attempt(new_key(), "/argument-maybe", value="-").status == 201


def test_a_scope_that_a_request_gives_must_be_one(door):
    key = new_key()
    for scope in ("", "a" * 256, "%01"):
        assert door.attempt(key, f"/scoped?scope={scope}").status == 500 or scope == "%01"
    first = door.attempt(key, "/scoped?scope=ok")
    assert_replays(door, key, first, "/scoped?scope=ok")
    assert "once_scope gave no valid name" in door.nginx.log()


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_nginx_refuses_is_no_attempt(door, chunked):
    key = new_key()
    assert door.attempt(key, "/small", body=bytes(200_000), chunked=chunked).status == 413
    assert door.stored(key) is None and door.count(key) == 0


REFUSED_BODIES = {"large": b"4e20\r\n" + bytes(20000) + b"\r\n0\r\n\r\n", "malformed": b"zz\r\n"}


def send_refused_body(door, key, target, what, later):
    """later: nginx refuses it while it waits for the body, not as it begins to read."""
    connection = Http1(door.nginx.h1, timeout=20)
    headers = door.headers_of(key) + [("Transfer-Encoding", "chunked"), ("Connection", "close")]
    head = Http1.bytes_of("POST", target, headers)
    if later:
        connection.socket.sendall(head)
        time.sleep(0.3)
        connection.socket.sendall(REFUSED_BODIES[what])
    else:
        connection.socket.sendall(head + REFUSED_BODIES[what])
    with connection:
        return connection.receive()


@pytest.mark.parametrize("later", [False, True], ids=["at-once", "later"])
@pytest.mark.parametrize("what", REFUSED_BODIES)
def test_a_page_for_a_body_that_nginx_refuses_is_shown(door, what, later):
    key = new_key()
    answer = send_refused_body(door, key, "/small-page", what, later)
    assert answer.status == {"large": 413, "malformed": 400}[what] and b"CERTIFICATE" in answer.body
    assert door.stored(key) is None and door.count(key) == 0


@pytest.mark.parametrize("later", [False, True], ids=["at-once", "later"])
@pytest.mark.parametrize("what", REFUSED_BODIES)
@pytest.mark.parametrize("target", ["/small-again", "/small-tried"])
def test_a_fallback_runs_no_protected_request_whose_body_nginx_refuses(door, target, what, later):
    """What came of the body is nothing that a retry could be compared with."""
    key = new_key()
    for _ in range(2):
        answer = send_refused_body(door, key, target, what, later)
        assert answer.status in (400, 413) and not answer.replayed
    assert door.stored(key) is None and door.count(key) == 0


@pytest.mark.parametrize("later", [False, True], ids=["at-once", "later"])
def test_a_fallback_that_is_not_protected_has_a_refused_body_as_it_would_without_the_module(door, later):
    key = new_key()
    assert send_refused_body(door, key, "/small-away", "large", later).status == 201
    assert door.stored(key) is None and door.count(key) == 1


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
def test_a_cache_of_another_method_answers_no_protected_request(door, method):
    target, keys = f"/cached/{method}", [new_key(), new_key()]
    first, second = (door.attempt(key, target, method=method) for key in keys)
    assert [door.count(key) for key in keys] == [1, 1] and not same_answer(first, second)
    for key, answer in zip(keys, (first, second)):
        assert door.upstream.only(key).method == method
        assert_replays(door, key, answer, target, method=method)


@pytest.mark.parametrize("framing", ["chunked", "length"])
@pytest.mark.parametrize("protocol", ["HTTP/1.1", "HTTP/2"])
def test_a_client_that_leaves_before_an_answer_over_the_limit_leaves_no_doubt(door, framing, protocol):
    """The upstream is heard to its end, and the intent is known to be done."""
    key, hold = new_key(), threading.Event()
    door.upstream.script(key, Answer(body=bytes(300_000), framing=framing, hold=hold))
    if protocol == "HTTP/2":
        words = [CURL, *curl_words(door.nginx.h2, "POST", "/large", door.headers_of(key), BODY, False)]
        client = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=clean_environment())
        client.stdin.write(BODY)
        client.stdin.close()
        door.upstream.wait(key)
        client.kill()
        client.wait()
    else:
        connection = door.send(key, "/large")
        door.upstream.wait(key)
        connection.close()
    time.sleep(0.3)
    hold.set()
    door.wait_state(key, "succeeded")
    assert_problem(door.attempt(key, "/large"), 409, "too-large")
    assert door.count(key) == 1


@pytest.mark.parametrize("framing", ["chunked", "length"])
def test_an_answer_that_passes_and_is_cut_leaves_doubt(door, framing):
    key = new_key()
    door.upstream.script(key, Answer(body=bytes(300_000), framing=framing, cut=200_000))
    answer = door.attempt(key, "/large")
    assert answer.status == 201 and not answer.whole
    door.wait_state(key, "in_doubt")
    assert_problem(door.attempt(key, "/large"), 409, "in-doubt")
    assert door.count(key) == 1


@pytest.mark.parametrize("body", [b"", b'{"b": 1}', b'["' + b"x" * 1_500_000 + b'"]'], ids=["empty", "small", "large"])
def test_a_request_is_the_same_by_its_canonical_body_whatever_its_size(door, body):
    """One that is too large to be sorted is compared as it is."""
    key = new_key()
    first = door.attempt(key, "/canonical", body=body)
    assert_replays(door, key, first, "/canonical", body=body)
    assert_problem(door.attempt(key, "/canonical", body=b'{"b": 2}'), 422, "mismatch")


def test_a_request_needs_no_type(door):
    key = new_key()
    ask = [("X-Test", key), ("X-Tenant", "acme"), ("Idempotency-Key", f'"{key}"')]
    first, again = (door.nginx.ask("POST", "/page", ask, b"x") for _ in range(2))
    assert first.status == 201 and again.replayed and same_answer(first, again)
    assert_problem(door.attempt(key, "/page", body=b"x"), 422, "mismatch")


def test_a_client_that_leaves_while_its_body_is_hashed_leaves_nothing(door):
    """A large body takes several turns of the loop; where in them it leaves is chance."""
    body = bytes(15_000_000)
    for _ in range(3):
        key = new_key()
        connection = door.send(key, "/page", body=body)
        connection.close()
        wait_until(lambda: door.state(key) != "processing", "the end of the attempt")
        assert door.count(key) <= 1


STORED = {
    "a type with parameters": (201, {"Content-Type": 'text/plain; format=flowed;   charset="utf-8"'}, 201),
    "a type that ends early": (201, {"Content-Type": "text/plain; char"}, 201),
    "a charset that is empty": (201, {"Content-Type": "text/plain; charset="}, 201),
    "a charset that is open": (201, {"Content-Type": 'text/plain; charset="'}, 201),
    "a type with spaces at its end": (201, {"Content-Type": "text/plain;   "}, 201),
    "a status without a body": (304, {}, 304),
    "a status that is none": (101, {}, 409),
    "no status": (None, {}, 409),
    "headers that cannot be sent": (201, {"X-Bad": "a\nb"}, 409),
}


@pytest.mark.parametrize("name", STORED)
def test_what_somebody_else_stored_is_replayed_if_it_can_be_sent(door, name):
    status, headers, expected = STORED[name]
    key = new_key()
    door.attempt(key, "/page")
    door.database.execute("UPDATE once.intent SET response_status = %s, response_headers = %s, response_body = '' WHERE key = %s",
                          status, json.dumps(headers), key)  # fmt: skip
    answer = door.attempt(key, "/page")
    assert answer.status == expected and answer.replayed == (expected != 409), answer
    if "Content-Type" in headers:
        assert answer.header("Content-Type").startswith("text/plain")
    assert door.count(key) == 1


LEFT = "client prematurely closed connection"


def test_a_client_that_leaves_while_the_database_is_silent_leaves_nothing(door):
    """And the answer that comes too late is no attempt's any more."""
    key = new_key()
    blocker = door.database.connect(autocommit=False)
    blocker.cursor().execute("LOCK TABLE once.intent IN ACCESS EXCLUSIVE MODE")
    try:
        connection = door.send(key, "/page")
        blocked = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        wait_until(lambda: door.database.value(blocked) > 0, "the gateway's statement to wait")
        seen = door.nginx.log().count(LEFT)
        connection.close()
        wait_until(lambda: door.nginx.log().count(LEFT) > seen, "nginx to see that the client left")
    finally:
        blocker.rollback()
        blocker.close()
    wait_until(lambda: door.state(key) == "failed_retryable", "the claim to be given back")
    assert door.count(key) == 0


def test_what_nginx_answers_itself_is_not_protected(door):
    key = new_key()
    first, again = (door.attempt(key, "/own") for _ in range(2))
    assert same_answer(first, again) and not again.replayed and door.stored(key) is None


def test_a_refusal_of_the_access_phase_is_no_attempt(door):
    key = new_key()
    assert door.attempt(key, "/denied").body.startswith(b"-----BEGIN CERTIFICATE")
    assert door.stored(key) is None and door.count(key) == 0
    first = door.attempt(key, "/denied-get")
    assert_replays(door, key, first, "/denied-get")


def test_many_headers_pass_where_reserved_ones_are_taken_out(door):
    """More than nginx keeps in one part of its list."""
    key = new_key()
    headers = [("Once-Fence", "9")] + [(f"X-Header-{n}", str(n)) for n in range(50)] + [("once_tenant", "other")]
    assert door.attempt(key, "/page", headers=headers).status == 201
    request = door.upstream.only(key)
    assert [request.header(f"X-Header-{n}") for n in range(50)] == [str(n) for n in range(50)]
    assert request.all("Once-Fence") == ["1"] and request.header("Once-Tenant") == "acme"


@pytest.mark.parametrize("key", ["%", " a b ", "\xe9 10% ~", "plain"])
def test_the_service_reads_the_key_of_a_hand_off_whatever_its_characters(door, key):
    """What a header cannot bear is percent-encoded."""
    import urllib.parse

    unique = key + new_key() + key
    argument = urllib.parse.quote(unique)  # the key: nginx decodes no argument
    assert door.attempt(unique, f"/argument?key={argument}", headers=[], value="-").status == 201
    assert urllib.parse.unquote(door.upstream.only(unique.strip()).header("Once-Key")) == argument
