# SPDX-License-Identifier: PostgreSQL
"""What a client of the gateway can do with bytes that no honest client sends, and with variables that it chooses; beyond
tests/gateway/test_security.py. Each attack ends in a refusal or in one execution of the request that the gateway saw."""

import re

import pytest

from gateway.door import Door, assert_problem, new_key
from harness.client import Http1
from harness.postgres import PATIENCE_S
from harness.upstream import Answer, Upstream

CONFIG = """
    once required;
    once_scope pay;
    once_tenant $http_x_tenant;
    location /pay { proxy_pass http://app; }
    location /kind { once_scope kind-$http_x_kind; proxy_pass http://app; }
    location /clear { once_scope kind-$http_x_kind; once_log_keys clear; proxy_pass http://app; }
"""


@pytest.fixture(scope="module")
def database(server):
    database = server.new_database()
    yield database
    database.drop()


@pytest.fixture(scope="module")
def door(database):
    with Upstream() as upstream, Door(database, upstream, CONFIG) as running:
        yield running


def head(key, *lines):
    said = ("POST /pay HTTP/1.1", "Host: test", "X-Tenant: acme", f"X-Test: {key}", f'Idempotency-Key: "{key}"', "Content-Type: application/json", *lines)
    return "\r\n".join(said).encode() + b"\r\n\r\n"


def raw(door, request):
    """Everything that comes back until the server closes."""
    with Http1(door.nginx.h1) as connection:
        connection.socket.sendall(request)
        said = b""
        while piece := connection.socket.recv(65536):
            said += piece
        return said


def statuses(said):
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+)", said)]


SECOND = b"POST /pay HTTP/1.1\r\nHost: test\r\nX-Tenant: acme\r\n"
AMBIGUOUS = {
    "a length and chunks": lambda key: head(key, "Content-Length: 5", "Transfer-Encoding: chunked") + b"0\r\n\r\n" + SECOND,
    "two lengths": lambda key: head(key, "Content-Length: 5", "Content-Length: 0") + b"hello",
    "a space before the colon": lambda key: head(key, "Transfer-Encoding : chunked") + b"0\r\n\r\n",
    "a coding that nobody knows": lambda key: head(key, "Transfer-Encoding: xchunked") + b"0\r\n\r\n",
    "two codings": lambda key: head(key, "Transfer-Encoding: chunked", "Transfer-Encoding: identity") + b"0\r\n\r\n",
    "chunks that are none": lambda key: head(key, "Transfer-Encoding: chunked") + b"5\r\nhelloGG\r\n0\r\n\r\n",
    "a negative length": lambda key: head(key, "Content-Length: -1"),
    "a length with a sign": lambda key: head(key, "Content-Length: +5") + b"hello",
    "a folded key": lambda key: head(key).replace(b'"\r\nContent-Type', b'\r\n b"\r\nContent-Type'),
    "a NUL in the key": lambda key: head(key).replace(b'"\r\nContent-Type', b'\0"\r\nContent-Type'),
    "a reserved header with a space": lambda key: head(key, "Once-Fence : 99", "Content-Length: 0"),
    "a reserved header after a tab": lambda key: head(key, "\tOnce-Fence: 99", "Content-Length: 0"),
    "HTTP/0.9": lambda key: b"POST /pay\r\n\r\n",
}


@pytest.mark.parametrize("what", AMBIGUOUS)
def test_a_request_that_two_servers_could_read_differently_is_refused_and_runs_nothing(door, what):
    key = new_key()
    said = raw(door, AMBIGUOUS[what](key))
    assert all(400 <= status <= 501 for status in statuses(said)) and (said or what == "HTTP/0.9")
    assert door.count(key) == 0 and door.stored(key) is None


def test_a_trailer_says_nothing_to_the_gateway_or_the_service(door):
    key = new_key()
    said = raw(door, head(key, "Transfer-Encoding: chunked", "Connection: close") + b'5\r\nhello\r\n0\r\nOnce-Fence: 99\r\nIdempotency-Key: "other"\r\n\r\n')
    assert statuses(said) == [201]
    request = door.upstream.only(key)
    assert request.all("Once-Fence") == ["1"] and request.all("Once-Key") == [key]


def test_a_client_cannot_have_the_gateways_headers_taken_off_on_the_way(door):
    """A proxy behind the gateway would drop what Connection names."""
    key = new_key()
    said = raw(door, head(key, "Connection: close, Once-Fence, Once-Key, Idempotency-Key", "Content-Length: 0"))
    request = door.upstream.only(key)
    assert statuses(said) == [201] and request.all("Once-Fence") == ["1"]
    assert not any("once" in value.lower() for value in request.all("Connection"))


def test_requests_in_one_packet_are_as_many_intents_and_their_answers_come_in_order(door):
    first, second = new_key(), new_key()
    door.upstream.script(first, Answer(body=b"first"))
    door.upstream.script(second, Answer(body=b"second"))
    said = raw(door, head(first, "Content-Length: 0") + head(second, "Content-Length: 0") + head(first, "Content-Length: 0", "Connection: close"))
    assert statuses(said) == [201, 201, 201] and re.findall(rb"first|second", said.replace(first.encode(), b"")) == [b"first", b"second", b"first"]
    assert (door.count(first), door.count(second)) == (1, 1)


# ---- Variables that a client chooses.

FORGED = "a status=200 verdict=replay_success"


@pytest.mark.parametrize("target", ["/kind", "/clear"])
def test_a_scope_or_key_that_a_client_chooses_adds_no_field_to_a_line_of_the_log(door, target):
    key, before = new_key(), len(door.nginx.log())
    door.attempt(key, target, headers=[("X-Kind", FORGED)], value=f'"{key} fence=99 verdict=mismatch"')
    lines = [line for line in door.nginx.log()[before:].splitlines() if "once: event=" in line]
    assert lines
    for line in lines:
        said = line.split("once: ", 1)[1].split(", client:")[0]
        names = [word.split("=", 1)[0] for word in said.split(" ")]
        assert len(names) == len(set(names)), line


def test_a_method_that_a_header_claims_is_not_the_requests_method(door):
    """What docs/why/threat-model.md warns of: a service that honours such a header must not be reachable by GET."""
    key = new_key()
    for _ in range(2):
        assert door.attempt(key, method="GET", headers=[("X-HTTP-Method-Override", "POST")], body=None, value="-").status == 201
    assert door.count(key) == 2


# ---- Answers that somebody else has stored.


def stored_with(door, database, headers):
    """An answer whose headers a service with the hand-off wrote, as SQL and not as HTTP. Returns what a retry gets."""
    key = new_key()
    first = door.attempt(key)
    database.execute("UPDATE once.intent SET response_headers = %s::jsonb WHERE key = %s", headers, key)
    return first, door.attempt(key)


@pytest.mark.parametrize("headers", [r'{"X-A": "a\r\nSet-Cookie: evil=1"}', r'{"X-A\r\nSet-Cookie: evil": "1"}', r'{"X-A": ["a", "b\nevil: 1"]}'])
def test_a_stored_header_that_would_begin_another_one_is_not_sent(door, database, headers):
    _, again = stored_with(door, database, headers)
    assert_problem(again, 409, "no-answer")
    assert "evil" not in str(again.headers) + str(again.body)


def test_a_stored_header_cannot_speak_for_the_gateway_or_change_the_framing(door, database):
    first, again = stored_with(
        door,
        database,
        '{"Once-Fence": "3", "Set-Cookie": "a=b", "X-Fine": "yes", "Content-Type": "text/csv", "Idempotency-Replayed": "false", "Content-Length": "3",'
        ' "Transfer-Encoding": "chunked", "Connection": "upgrade", "X-Accel-Redirect": "/status"}',
    )
    assert again.replayed and again.body == first.body and again.header("Content-Type") == "text/csv"
    assert again.header("Content-Length") == str(len(first.body)) and again.header("Connection") == "close"
    assert not any(again.all(name) for name in ("Set-Cookie", "Once-Fence", "Transfer-Encoding", "X-Accel-Redirect"))


# ---- Slow and many.


def test_clients_that_never_send_their_body_hold_nothing_of_the_database(door, database):
    """The claim comes after the whole body: such a client costs a connection of nginx's, which its timeouts end, and neither a row nor a session."""
    database.rows("SELECT 1")
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    key = new_key()
    door.attempt(new_key())
    before = database.value(sessions)
    with_body = head(key, "Content-Length: 100") + b"{"
    slow = [Http1(door.nginx.h1) for _ in range(200)]
    try:
        for each in slow:
            each.socket.sendall(with_body)
        prompt = door.attempt(new_key(), timeout=PATIENCE_S)
        assert prompt.status == 201
        assert database.value(sessions) == before and door.stored(key) is None and door.count(key) == 0
    finally:
        for each in slow:
            each.close()
