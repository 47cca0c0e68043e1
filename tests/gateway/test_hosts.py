# SPDX-License-Identifier: PostgreSQL
"""Several servers in one nginx, and several names of one: a request to one host is no retry of a request to another, unless the location says so."""

import subprocess

import pytest

from harness.broker import free_port
from harness.client import CURL, Http1
from harness.postgres import clean_environment

from .door import BODY, assert_problem, new_key, same_answer

PORT, OTHER_PORT = free_port(), free_port()
LOCATIONS = """
    once_tenant $http_x_tenant;
    once required;
    location /pay { proxy_pass http://app; }
    location /shared { once_scope shared; proxy_pass http://app; }
    location /any-host { once_scope any; once_fingerprint method target content_type body; proxy_pass http://app; }
    location /any-target { once_scope any; once_fingerprint method host content_type body; proxy_pass http://app; }
"""
CONFIG = f"listen 127.0.0.1:{PORT}; server_name nobody.test; {LOCATIONS}"
HTTP = f"""
    server {{ listen 127.0.0.1:{PORT}; server_name a.test alias.test; {LOCATIONS} }}
    server {{ listen 127.0.0.1:{PORT}; listen 127.0.0.1:{OTHER_PORT}; server_name b.test; {LOCATIONS} }}
    server {{ listen 127.0.0.1:{PORT}; server_name *.wild.test; {LOCATIONS} }}
    server {{ listen 127.0.0.1:{OTHER_PORT}; {LOCATIONS} }}
"""


def ask(door, key, host, target="/pay", port=PORT):
    """host None: HTTP/1.0 without one."""
    headers = [*([] if host is None else [("Host", host)]), *door.headers_of(key)]
    request = Http1.bytes_of("POST", target, headers or [("Host", "")], BODY, version="1.0" if host is None else "1.1", close=True)
    if host is None:
        request = request.replace(b"Host: test\r\n", b"")
    with Http1(("127.0.0.1", port)) as connection:
        connection.socket.sendall(request)
        return connection.receive()


def scopes(door, key):
    return {row.scope for row in door.database.rows("SELECT scope FROM once.intent WHERE key = %s", key)}


def test_a_key_of_one_server_is_another_intent_at_another_server(door):
    key = new_key()
    answers = [ask(door, key, host) for host in ("a.test", "b.test", "x.wild.test", "nobody.test")]
    assert [answer.replayed for answer in answers] == [False] * 4 and door.count(key) == 4
    assert scopes(door, key) == {"a.test/pay", "b.test/pay", "*.wild.test/pay", "nobody.test/pay"}
    for host, first in zip(("a.test", "b.test", "x.wild.test"), answers):
        again = ask(door, key, host)
        assert again.replayed and same_answer(first, again)
    assert door.count(key) == 4


@pytest.mark.parametrize("target", ["/pay", "/shared"])
@pytest.mark.parametrize("first, second", [("a.test", "alias.test"), ("x.wild.test", "y.wild.test"), ("b.test", "b.test:8080")])
def test_another_host_is_another_request(door, target, first, second):
    key = new_key()
    assert ask(door, key, first, target).status == 201
    assert_problem(ask(door, key, second, target), 422, "mismatch")
    assert ask(door, key, first.upper(), target).replayed
    assert door.count(key) == 1


def test_servers_that_share_a_scope_do_not_share_answers(door):
    key = new_key()
    assert ask(door, key, "a.test", "/shared").status == 201
    for host in ("b.test", "x.wild.test", None):
        assert_problem(ask(door, key, host, "/shared"), 422, "mismatch")
    assert door.count(key) == 1


def test_a_server_without_a_name_is_told_apart_by_the_host_with_its_port(door):
    key = new_key()
    assert ask(door, key, f"127.0.0.1:{PORT}", "/shared").status == 201
    assert_problem(ask(door, key, f"127.0.0.1:{OTHER_PORT}", "/shared", OTHER_PORT), 422, "mismatch")
    assert ask(door, new_key(), f"127.0.0.1:{OTHER_PORT}", "/pay", OTHER_PORT).status == 201


def test_an_absolute_target_says_the_host(door):
    """As for nginx, which chooses the server by it; the line may be so long that it moves to a larger buffer."""
    for more in ("", "?" + "x" * 3000):
        key = new_key()
        assert ask(door, key, "b.test", "/shared" + more).status == 201
        assert ask(door, key, "a.test", f"http://B.test/shared{more}").replayed
        assert_problem(ask(door, key, "b.test", f"http://a.test/shared{more}"), 422, "mismatch")
        assert_problem(ask(door, key, "b.test", f"http://b.test:{PORT}/shared{more}"), 422, "mismatch")
        assert door.count(key) == 1


def test_the_name_may_be_left_out_where_all_names_are_one_service(door):
    key = new_key()
    first = ask(door, key, "a.test", "/any-host")
    for host in ("alias.test", "b.test", f"127.0.0.1:{PORT}", None):
        again = ask(door, key, host, "/any-host")
        assert again.replayed and same_answer(first, again)
    assert door.count(key) == 1


def test_the_host_counts_where_the_target_does_not(door):
    key = new_key()
    assert ask(door, key, "a.test", "/any-target/1").status == 201
    assert ask(door, key, "a.test", "/any-target/2").replayed
    assert_problem(ask(door, key, "b.test", "/any-target/1"), 422, "mismatch")


def test_http_2_names_its_host_as_http_1_does(door):
    key = new_key()
    words = [CURL, "--silent", "--http2-prior-knowledge", "--unix-socket", str(door.nginx.h2), "--data-binary", BODY.decode(), "--include"]
    for name, value in door.headers_of(key):
        words += ["--header", f"{name}: {value}"]
    said = subprocess.run([*words, "http://host.test:81/shared"], capture_output=True, env=clean_environment(), check=True, timeout=60).stdout
    assert b"HTTP/2 201" in said
    assert ask(door, key, "host.test:81", "/shared").replayed
    assert_problem(ask(door, key, "host.test", "/shared"), 422, "mismatch")


@pytest.mark.parametrize("host, target, path", [("a.test", "/any-host", False), ("a.test:80", "/shared", True), ("A.test", "/pay", True)])
def test_sql_finds_the_same_fingerprint(door, host, target, path):
    key = new_key()
    assert ask(door, key, host, target + "?x=1").status == 201
    said = (host.lower() if path else "") + target + "?x=1"
    assert door.database.value(
        "SELECT i.fingerprint = once.request_fingerprint('POST', %s, 'application/json', %s, 'acme') FROM once.intent AS i WHERE key = %s", said, BODY, key
    )
