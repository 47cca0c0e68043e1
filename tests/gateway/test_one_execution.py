# SPDX-License-Identifier: PostgreSQL
"""One execution and one answer, however many attempts there are, however they end, and whatever nginx does between the client and the
service."""

import gzip
import random
import socket
import subprocess
import threading
import time

import pytest

from harness.client import CURL, Http1
from harness.postgres import clean_environment
from harness.upstream import Answer, Upstream

from .door import BODY, assert_problem, assert_replays, at_once, new_key, quoted, same_answer

CONFIG = """
    once_tenant $http_x_tenant;
    once required;
    client_body_buffer_size 16k;
    location /pay { once_scope pay; once_wait 20s; proxy_pass http://app; }
    location /now { once_scope pay; once_wait 0; proxy_pass http://app; }
    location /big { once_scope pay; once_response_max 1m; once_body_max 6m; proxy_pass http://app; }
    location /unbuffered { once_scope pay; proxy_buffering off; proxy_pass http://app; }
    location /streamed { once_scope pay; proxy_request_buffering off; proxy_pass http://app; }
    location /small-buffers { once_scope pay; proxy_buffer_size 4k; proxy_buffers 2 4k; proxy_busy_buffers_size 4k; proxy_pass http://app; }
    location /refused { once_scope pay; proxy_pass http://away; }
    location /two { once_scope pay; proxy_connect_timeout 1s; proxy_read_timeout 500ms; proxy_pass http://two; }
    location /two-patient { once_scope pay; proxy_pass http://two; }
    location /two-eager {
        once_scope pay; proxy_read_timeout 500ms; proxy_next_upstream error timeout http_500; proxy_pass http://two;
    }
    location /slow { once_scope pay; proxy_read_timeout 500ms; proxy_pass http://app; }
    location /zipped { once_scope pay; gzip on; gzip_min_length 1; gzip_types *; gzip_http_version 1.0; proxy_pass http://app; }
    location /added { once_scope pay; add_header X-Added $request_id always; proxy_pass http://app; }
    location /mirrored { once_scope pay; mirror /mirror; proxy_pass http://app; }
    location = /mirror { internal; once off; proxy_set_header X-Test "mirror-$http_x_test"; proxy_pass http://app; }
    location /guarded { once_scope pay; auth_request /auth; proxy_pass http://app; }
    location = /auth {
        internal; once off; proxy_pass_request_body off; proxy_set_header Content-Length ""; proxy_set_header X-Test "auth-$http_x_test";
        proxy_pass http://app;
    }
    location /accelerated { once_scope pay; proxy_pass http://app; }
    location /file { internal; once off; default_type text/plain; return 200 "the file"; }
    location /moved-file { internal; once off; return 307 https://files.test/1; }
    location /protected-file { internal; once_scope file; default_type text/plain; return 200 "the file"; }
    location /sorry-refused { once_scope pay; error_page 502 =200 /sorry; proxy_pass http://away; }
    location /sorry { once_scope pay; error_page 500 502 504 =200 /sorry; proxy_read_timeout 500ms; proxy_pass http://app; }
    location /sorry-patient { once_scope pay; error_page 500 502 504 =200 /sorry; proxy_pass http://app; }
    location = /sorry { internal; once off; default_type text/plain; return 200 "sorry"; }
    location /if { once_scope places; if ($http_origin) { set $x 1; } proxy_pass http://app; }
    location /if-else { once_scope places; if ($http_origin) { proxy_pass http://app; } proxy_pass http://away; }
    location /if-over-files { once_scope places; root @dir@; if ($http_origin) { proxy_pass http://app; } }
    location /limit-except { once_scope places; limit_except GET { allow all; } proxy_pass http://app; }
    location /limit-target { once_scope places; limit_except GET { proxy_pass http://app; } proxy_pass http://away; }
    location /named { try_files /nothing @named; }
    location @named { once_scope places; if ($http_origin) { set $x 1; } proxy_pass http://app; }
    location /around { once_scope places; location /around/inside { if ($http_origin) { set $x 1; } proxy_pass http://app; } }
    location ~ ^/regex { once_scope places; if ($http_origin) { set $x 1; } proxy_pass http://app; }
    location /moved-to-if { rewrite ^ /if last; }
    location /limited { once_scope pay; limit_req zone=few; limit_req_status 429; proxy_pass http://app; }
    location /rewritten { once_scope pay; rewrite ^/rewritten/(.*)$ /pay/$1 last; }
"""
HTTP = """
    upstream away { server unix:@dir@/nobody; }
    # Also what would let replays pass, if it were known before a request has shown whose it is.
    map $once_replay $limit_key { "" $http_x_tenant; "0" $http_x_tenant; default ""; }
    limit_req_zone $limit_key zone=few:1m rate=1r/m;
    upstream two { server unix:@upstream@ max_fails=0; server unix:@other@ max_fails=0; }
"""


@pytest.fixture(scope="module")
def other():
    """A second service in the group `two`."""
    with Upstream() as running:
        yield running


@pytest.fixture(scope="module")
def door(database, upstream, other):
    from .door import Door

    with Door(database, upstream, CONFIG, HTTP.replace("@other@", str(other.path))) as running:
        yield running


# ---- Many attempts.


def test_200_identical_requests_at_once_are_one_execution_and_one_answer(door):
    key = new_key()
    answers = at_once(200, lambda _: door.attempt(key))
    assert door.count(key) == 1
    assert {(answer.status, answer.body) for answer in answers} == {(201, door.stored(key).response_body)}
    assert sum(not answer.replayed for answer in answers) == 1


def test_200_identical_requests_at_once_are_one_execution_where_duplicates_do_not_wait(door):
    key = new_key()
    hold = threading.Event()
    door.upstream.script(key, Answer(hold=hold))
    original = door.start(key, "/now")
    door.upstream.wait(key)
    for answer in at_once(200, lambda _: door.attempt(key, "/now")):
        assert_problem(answer, 409, "active")
    hold.set()
    first = original.result()
    assert first.status == 201 and door.count(key) == 1
    assert all(answer.replayed and same_answer(first, answer) for answer in at_once(50, lambda _: door.attempt(key, "/now")))
    assert door.count(key) == 1


def test_100_identical_requests_on_one_http_2_connection_are_one_execution(door, tmp_path):
    key, lines = new_key(), []
    for index in range(100):
        lines += ["next"] if index else []
        lines += ["silent", "include", "http2", "insecure", f'unix-socket = "{door.nginx.tls}"', f'output = "{tmp_path}/{index}"']
        lines += [f"header = {quoted(f'{name}: {value}')}" for name, value in door.headers_of(key)]
        lines += [f"data = {quoted(BODY.decode())}", 'url = "https://test/pay"']
    (tmp_path / "config").write_text("\n".join(lines) + "\n")
    done = subprocess.run(
        [CURL, "--parallel", "--parallel-max", "100", "--verbose", "--config", str(tmp_path / "config")],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=clean_environment(),
    )
    assert done.stderr.count("Connected to") == 1
    assert door.count(key) == 1
    outputs = [(tmp_path / str(index)).read_bytes().partition(b"\r\n\r\n") for index in range(100)]
    assert {body for _, _, body in outputs} == {door.stored(key).response_body}
    assert sum(b"idempotency-replayed: true" not in head for head, _, _ in outputs) == 1


def test_50_keys_with_20_duplicates_each_are_50_executions(door):
    keys = [new_key() for _ in range(50)]
    mixed = keys * 20
    random.shuffle(mixed)
    # 25 clients, each with one request after another.
    answers = [answer for some in at_once(25, lambda i: [(key, door.attempt(key)) for key in mixed[i::25]]) for answer in some]
    assert [door.count(key) for key in keys] == [1] * 50
    for key in keys:
        assert {(answer.status, answer.body) for each, answer in answers if each == key} == {(201, door.stored(key).response_body)}


# ---- Clients that leave, and slow ones.


@pytest.mark.parametrize("when", ["before the answer", "in the answer"])
def test_a_client_that_leaves_does_not_stop_what_it_asked_for_and_its_retry_gets_the_answer(door, when):
    key, hold = new_key(), threading.Event()
    answer = Answer(201, body=b"the answer" * 100, **{"hold" if when == "before the answer" else "hold_rest": hold})
    door.upstream.script(key, answer)
    connection = door.send(key)
    door.upstream.wait(key)
    connection.close()
    time.sleep(0.2)  # that nginx has noticed shows nowhere
    hold.set()
    row = door.wait_state(key, "succeeded")
    assert row.response_body == b"the answer" * 100
    again = door.attempt(key)
    assert again.replayed and again.body == row.response_body
    assert door.count(key) == 1


# Each is a location to nginx, with settings of its own.
PLACES = ["/if", "/if-else", "/limit-except", "/limit-target", "/named", "/around/inside", "/regex/x", "/if-over-files", "/moved-to-if"]


@pytest.mark.parametrize("target", PLACES)
def test_a_client_that_leaves_does_not_stop_what_it_asked_for_in_whatever_kind_of_location(door, target):
    key, hold = new_key(), threading.Event()
    door.upstream.script(key, Answer(201, body=b"the answer", hold=hold))
    connection = door.send(key, target, headers=[("Origin", "http://else.where")])
    door.upstream.wait(key)
    connection.close()
    time.sleep(0.2)  # that nginx has noticed shows nowhere
    hold.set()
    row = door.wait_state(key, "succeeded", "places")
    assert row.response_body == b"the answer"
    again = door.attempt(key, target, headers=[("Origin", "http://else.where")])
    assert again.replayed and again.body == row.response_body
    assert door.count(key) == 1


def test_clients_that_leave_right_after_sending_are_stored_and_their_retries_replay(door):
    keys = [new_key() for _ in range(40)]

    def hit_and_run(index):
        door.send(keys[index]).close()

    at_once(40, hit_and_run)
    # Whether nginx saw a request at all before its client left, its count says; a retry runs it if not.
    answers = at_once(40, lambda index: door.attempt(keys[index]))
    for key, answer in zip(keys, answers):
        assert answer.status == 201 and door.count(key) == 1
        assert answer.body == door.stored(key).response_body


def test_clients_that_leave_in_the_middle_of_their_body_run_nothing(door):
    key = new_key()
    with Http1(door.nginx.h1) as connection:
        whole = connection.bytes_of("POST", "/pay", door.headers_of(key), b"x" * 1000)
        connection.socket.sendall(whole[:-500])
        connection.socket.shutdown(socket.SHUT_WR)
        assert connection.socket.recv(1000) == b""
    assert door.count(key) == 0 and door.stored(key) is None
    assert door.attempt(key, body=b"x" * 1000).status == 201


def test_clients_that_leave_while_they_wait_for_the_original_disturb_nothing(door):
    key, hold = new_key(), threading.Event()
    door.upstream.script(key, Answer(hold=hold))
    original = door.start(key)
    door.upstream.wait(key)
    waiting = [door.send(key) for _ in range(20)]
    for connection in waiting[::2]:
        connection.close()
    hold.set()
    first = original.result()
    for connection in waiting[1::2]:
        with connection:
            answer = connection.receive()
            assert answer.replayed and same_answer(first, answer)
    assert door.count(key) == 1


def test_a_slow_reader_gets_every_byte(door):
    key, body = new_key(), random.Random(1).randbytes(900_000)
    door.upstream.script(key, Answer(200, body=body))
    for expected in (False, True):
        with door.send(key, "/big", receive_buffer=4096) as connection:
            connection.socket.setblocking(True)
            first_bytes = connection.socket.recv(1000, socket.MSG_PEEK)
            assert first_bytes.startswith(b"HTTP/1.1 200")
            time.sleep(0.3)  # not reading is what is tested
            answer = connection.receive()
        assert answer.body == body and answer.replayed == expected
    assert door.count(key) == 1


def test_a_slow_sender_is_one_request(door):
    key = new_key()
    with Http1(door.nginx.h1) as connection:
        whole = connection.bytes_of("POST", "/pay", door.headers_of(key), BODY, close=True)
        for at in range(0, len(whole), 40):
            connection.socket.sendall(whole[at : at + 40])
            time.sleep(0.01)  # slowness is what is tested
        first = connection.receive()
    assert first.status == 201
    assert_replays(door, key, first)


# ---- Large bodies and answers.


@pytest.mark.parametrize("chunked", [False, True])
def test_a_request_body_of_5_mb_is_compared_whole_from_its_temporary_file(door, chunked):
    key, body = new_key(), random.Random(2).randbytes(5_000_000)
    first = door.attempt(key, "/big", body=body, chunked=chunked)
    assert first.status == 201
    assert door.upstream.only(key).body == body
    assert_replays(door, key, first, "/big", body=body)
    for at in (0, 2_500_000, 4_999_999):
        other = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
        assert_problem(door.attempt(key, "/big", body=other), 422, "mismatch")
    assert_problem(door.attempt(key, "/big", body=body[:-1]), 422, "mismatch")
    assert door.count(key) == 1


def test_a_request_body_that_is_passed_on_while_it_comes_is_still_compared(door):
    key, body = new_key(), random.Random(3).randbytes(200_000)
    first = door.attempt(key, "/streamed", body=body)
    assert first.status == 201 and door.upstream.only(key).body == body
    assert_replays(door, key, first, "/streamed", body=body)
    assert_problem(door.attempt(key, "/streamed", body=body[:-1] + b"?"), 422, "mismatch")


@pytest.mark.parametrize("protocol", ["HTTP/1.1", "HTTP/2", "TLS"])
@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
def test_an_answer_of_900_kb_is_replayed_byte_for_byte(door, protocol, framing):
    key, body = new_key(), random.Random(4).randbytes(900_000)
    door.upstream.script(key, Answer(200, body=body, framing=framing, piece=50_000))
    first = door.attempt(key, "/big", protocol=protocol)
    assert first.whole and first.body == body
    assert_replays(door, key, first, "/big", protocol=protocol)


@pytest.mark.parametrize("target", ["/unbuffered", "/small-buffers"])
def test_an_answer_that_comes_piece_by_piece_is_stored_whole(door, target):
    key, body = new_key(), random.Random(5).randbytes(60_000)
    door.upstream.script(key, Answer(200, body=body, framing="chunked", piece=700))
    first = door.attempt(key, target)
    assert first.whole and first.body == body
    assert door.stored(key).response_body == body
    assert_replays(door, key, first, target)


def test_an_answer_larger_than_the_scope_keeps_is_passed_on_and_never_run_again(door):
    """The database's own limit is below the location's."""
    key = new_key()
    door.database.execute("SELECT once.set_scope('pay', response_bytes_max => 10000)")
    try:
        door.upstream.script(key, Answer(200, body=b"x" * 20_000))
        first = door.attempt(key, "/big")
        assert (first.status, len(first.body), first.whole) == (200, 20_000, True)
        assert_problem(door.attempt(key, "/big"), 409, "too-large")
        assert door.count(key) == 1
    finally:
        door.database.execute("DELETE FROM once.scope WHERE scope = 'pay'")


# ---- Upstreams that fail.


def test_a_refused_connection_leaves_no_doubt_and_the_retry_runs_at_once(door):
    key = new_key()
    for _ in range(3):
        assert door.attempt(key, "/refused").status == 502
    assert door.state(key) == "failed_retryable"
    key = new_key()
    door.upstream.refuse()
    try:
        assert door.attempt(key).status == 502
    finally:
        door.upstream.accept()
    first = door.attempt(key)
    assert (first.status, first.replayed) == (201, False)
    assert_replays(door, key, first)


def test_a_timeout_leaves_doubt_and_a_late_answer_changes_nothing(door):
    key, hold = new_key(), threading.Event()
    door.upstream.script(key, Answer(hold=hold))
    assert door.attempt(key, "/slow").status == 504
    door.wait_state(key, "in_doubt")
    hold.set()
    for _ in range(3):
        assert_problem(door.attempt(key, "/slow"), 409, "in-doubt")
    assert door.count(key) == 1


# ---- What nginx does besides.


@pytest.mark.parametrize("ending", [Answer(close=True), Answer(hold=threading.Event())], ids=["closed", "timeout"])
@pytest.mark.parametrize("target", ["/two", "/two-eager"])
def test_a_request_that_left_is_not_tried_on_the_next_server(door, other, target, ending):
    """proxy_next_upstream leaves out POST and PATCH unless non_idempotent is said, which a protected location must not."""
    for _ in range(4):
        key = new_key()
        for each in (door.upstream, other):
            each.script(key, ending, Answer(201))
        assert door.attempt(key, target).status in (502, 504)
        assert door.count(key) + other.count(key) == 1
        door.wait_state(key, "in_doubt")


def test_a_server_that_refuses_is_passed_over_for_the_next_one(door, other):
    door.upstream.refuse()
    try:
        for _ in range(4):
            key = new_key()
            first = door.attempt(key, "/two-patient")
            assert first.status == 201 and other.count(key) == 1
            again = door.attempt(key, "/two-patient")
            assert again.replayed and same_answer(first, again) and other.count(key) == 1
    finally:
        door.upstream.accept()


def test_both_servers_refusing_leaves_no_doubt(door, other):
    key = new_key()
    door.upstream.refuse()
    other.refuse()
    try:
        assert door.attempt(key, "/two-patient").status == 502
    finally:
        door.upstream.accept()
        other.accept()
    assert door.state(key) == "failed_retryable"
    assert door.attempt(key, "/two-patient").status == 201
    assert door.count(key) + other.count(key) == 1


@pytest.mark.parametrize("first_encoding", [None, "gzip"])
def test_what_is_stored_is_not_compressed_and_each_client_gets_what_it_accepts(door, first_encoding):
    key, body = new_key(), b"compress me " * 500
    door.upstream.script(key, Answer(200, headers=(("Content-Type", "text/plain"),), body=body))
    for number, encoding in enumerate([first_encoding, None, "gzip", None, "gzip"]):
        answer = door.attempt(key, "/zipped", headers=[("Accept-Encoding", encoding)] if encoding else [])
        assert answer.status == 200 and answer.replayed == (number > 0)
        assert answer.header("Content-Encoding") == encoding
        assert (gzip.decompress(answer.body) if encoding else answer.body) == body
        assert door.stored(key).response_body == body
    assert door.count(key) == 1


def test_an_answer_that_the_service_compressed_is_replayed_as_it_was(door):
    key, body = new_key(), gzip.compress(b"compressed already " * 100)
    door.upstream.script(key, Answer(200, headers=(("Content-Type", "text/plain"), ("Content-Encoding", "gzip")), body=body))
    for number in range(3):
        answer = door.attempt(key, "/zipped", headers=[("Accept-Encoding", "gzip")])
        assert (answer.status, answer.body, answer.header("Content-Encoding")) == (200, body, "gzip")
        assert answer.replayed == (number > 0)


def test_headers_that_nginx_adds_are_added_anew_and_not_stored(door):
    key = new_key()
    first = door.attempt(key, "/added")
    again = assert_replays(door, key, first, "/added")
    assert first.header("X-Added") and again.header("X-Added") and first.header("X-Added") != again.header("X-Added")


def test_a_mirrored_request_is_one_execution_and_its_mirror_is_no_intent(door):
    key = new_key()
    first = door.attempt(key, "/mirrored")
    door.upstream.wait(f"mirror-{key}")
    assert first.status == 201 and door.count(key) == 1
    assert_replays(door, key, first, "/mirrored")
    rows = door.database.value("SELECT count(*) FROM once.intent WHERE key = %s", key)
    assert rows == 1


def test_a_replay_comes_only_after_the_authorisation_of_this_very_request(door):
    key = new_key()
    auth = f"auth-{key}"
    door.upstream.script(auth, Answer(403), Answer(204), Answer(204), Answer(401), Answer(204))
    refused = door.attempt(key, "/guarded")
    assert refused.status == 403 and door.count(key) == 0 and door.stored(key) is None
    first = door.attempt(key, "/guarded")
    assert first.status == 201
    assert_replays(door, key, first, "/guarded")
    refused = door.attempt(key, "/guarded")
    assert refused.status == 401 and not refused.replayed and first.body not in refused.body
    assert_replays(door, key, first, "/guarded")
    assert door.upstream.count(auth) == 5


def test_a_rewritten_request_is_one_intent(door):
    key = new_key()
    first = door.attempt(key, "/rewritten/1")
    assert first.status == 201 and door.upstream.only(key).target == "/pay/1"
    assert_replays(door, key, first, "/rewritten/1")


# ---- Redirects within nginx.


@pytest.mark.parametrize("to", ["/file", "/protected-file"])
def test_an_answer_that_the_service_leaves_to_nginx_is_one_execution(door, to):
    """X-Accel-Redirect: whatever is made of the answer, a retry does not run."""
    key = new_key()
    door.upstream.script(key, Answer(200, headers=(("X-Accel-Redirect", to),)))
    first = door.attempt(key, "/accelerated")
    again = door.attempt(key, "/accelerated")
    assert door.count(key) == 1
    assert first.status == 200 and first.body == b"the file", first
    assert (again.replayed and same_answer(first, again)) or again.problem in ("too-large", "no-answer"), again
    # The redirect is no intent of its own.
    assert door.database.value("SELECT count(*) FROM once.intent WHERE key = %s", key) == 1


def test_where_the_services_answer_is_fetched_from_another_place_asks_for_nothing(door):
    """A store of files leads to where a file is with 307: that says of the file, and nothing of what the service did."""
    key = new_key()
    door.upstream.script(key, Answer(200, headers=(("X-Accel-Redirect", "/moved-file"),)))
    first = door.attempt(key, "/accelerated")
    assert first.status == 307 and first.header("Location") == "https://files.test/1"
    assert_replays(door, key, first, "/accelerated")
    assert door.count(key) == 1


def test_a_page_in_place_of_an_error_of_nginx_is_not_taken_for_the_services_answer(door):
    key = new_key()
    for _ in range(2):
        answer = door.attempt(key, "/sorry-refused")
        assert (answer.status, answer.body, answer.replayed) == (200, b"sorry", False)
    assert door.state(key) == "failed_retryable"


@pytest.mark.parametrize("ending", [Answer(close=True), Answer(hold=threading.Event())], ids=["closed", "timeout"])
def test_a_page_in_place_of_no_answer_leaves_doubt(door, ending):
    key = new_key()
    door.upstream.script(key, ending, Answer())
    answer = door.attempt(key, "/sorry/1")
    assert (answer.status, answer.body) == (200, b"sorry")
    door.wait_state(key, "in_doubt")
    assert_problem(door.attempt(key, "/sorry/1"), 409, "in-doubt")
    assert door.count(key) == 1


def test_an_error_of_the_service_itself_passes_by_the_error_page(door):
    key = new_key()
    door.upstream.script(key, Answer(500, body=b"broken"), Answer(201, body=b"now"))
    answer = door.attempt(key, "/sorry-patient")
    assert (answer.status, answer.body) == (500, b"broken")
    assert_problem(door.attempt(key, "/sorry-patient"), 409, "in-doubt")
    assert door.count(key) == 1


def test_a_key_that_is_stored_passes_no_limit_of_requests(door):
    """Else whoever knows one key could guess passwords with it, and tell which keys are stored."""
    keys = [new_key() for _ in range(2)]
    first = door.attempt(keys[0], "/limited")
    assert first.status == 201
    assert door.attempt(keys[1], "/limited").status == 429 and door.count(keys[1]) == 0
    assert [door.attempt(key, "/limited").status for key in keys * 2] == [429] * 4
