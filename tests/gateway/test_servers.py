# SPDX-License-Identifier: PostgreSQL
"""Whatever speaks to the service: proxy_pass, fastcgi_pass, uwsgi_pass with all their settings; and what stands before the database."""

import random
import threading

import pytest

from harness.nginx import Nginx, Refused
from harness.pgbouncer import PgBouncer
from harness.upstream import NOT_NOW, Answer, FastCgi, Upstream, Uwsgi

from .door import BODY, Door, assert_problem, assert_replays, at_once, new_key

KINDS = {
    "proxy_pass": (Upstream, "proxy_pass http://unix:@service@:;"),
    "proxy_pass, HTTP/1.0": (Upstream, "proxy_pass http://unix:@service@:; proxy_http_version 1.0;"),
    "proxy_pass, kept alive": (Upstream, "proxy_pass http://kept;"),
    "proxy_pass, unbuffered": (
        Upstream,
        "proxy_pass http://unix:@service@:; proxy_buffering off; proxy_request_buffering off;",
    ),
    "proxy_pass, headers of its own": (
        Upstream,
        "proxy_pass http://unix:@service@:; proxy_set_header Host else.where; proxy_set_header X-More more;",
    ),
    "fastcgi_pass": (FastCgi, "fastcgi_pass unix:@service@; @fastcgi@"),
    "fastcgi_pass, unbuffered": (FastCgi, "fastcgi_pass unix:@service@; fastcgi_buffering off; @fastcgi@"),
    "uwsgi_pass": (Uwsgi, "uwsgi_pass unix:@service@; @uwsgi@"),
}
PARAMETERS = {
    "REQUEST_METHOD": "$request_method",
    "REQUEST_URI": "$request_uri",
    "CONTENT_TYPE": "$content_type",
    "CONTENT_LENGTH": "$content_length",
}


@pytest.fixture(scope="module", params=KINDS)
def door(request, database):
    kind, settings = KINDS[request.param]
    with kind() as service:
        for name in ("fastcgi", "uwsgi"):
            lines = "".join(f"{name}_param {parameter} {value};" for parameter, value in PARAMETERS.items())
            settings = settings.replace(f"@{name}@", lines)
        late = next(name for name in ("proxy", "fastcgi", "uwsgi") if f"{name}_pass" in settings) + "_read_timeout 500ms;"
        settings = settings.replace("@service@", str(service.path))
        config = f"""
            once required;
            once_tenant $http_x_tenant;
            once_scope pay;
            once_response_max 1m;
            once_wait 10s;
            location /pay {{ {settings} }}
            location /late {{ {settings} {late} }}
        """
        http = f"upstream kept {{ server unix:{service.path}; keepalive 8; }}"
        with Door(database, service, config, http) as running:
            running.proxies = kind is Upstream
            yield running


def test_a_request_is_one_execution_and_its_replay_is_the_same(door):
    key = new_key()
    first = door.attempt(key)
    assert first.status == 201 and not first.replayed
    request = door.upstream.only(key)
    assert (request.method, request.body, request.header("Content-Type")) == ("POST", BODY, "application/json")
    again = assert_replays(door, key, first)
    assert again.header("Content-Type") == "application/json"


def test_the_service_is_told_the_intents_name_and_fence(door):
    key = new_key()
    assert door.attempt(key, headers=[("Once-Fence", "99"), ("Once_Key", "stolen"), ("Idempotency-Replayed", "true")]).status == 201
    request = door.upstream.only(key)
    assert [request.all(f"Once-{name}") for name in ("Tenant", "Scope", "Key", "Fence")] == [["acme"], ["pay"], [key], ["1"]]
    assert request.all("Idempotency-Replayed") == []


def test_many_attempts_at_once_are_one_execution(door):
    key = new_key()
    answers = at_once(40, lambda _: door.attempt(key))
    assert door.count(key) == 1
    assert {(answer.status, answer.body) for answer in answers} == {(201, door.stored(key).response_body)}


def test_a_large_answer_is_replayed_byte_for_byte(door):
    key, body = new_key(), random.Random(6).randbytes(300_000)
    door.upstream.script(key, Answer(200, body=body))
    first = door.attempt(key)
    assert first.whole and first.body == body
    assert_replays(door, key, first)


def test_an_answer_whose_length_is_not_said_is_replayed(door):
    key, body = new_key(), random.Random(7).randbytes(30_000)
    door.upstream.script(key, Answer(200, body=body, framing="close"))
    first = door.attempt(key)
    assert first.body == body
    assert_replays(door, key, first)


ENDINGS = {
    "no answer": Answer(close=True),
    "a cut answer": Answer(200, body=b"x" * 50_000, cut=20_000),
    "a timeout": Answer(hold=threading.Event()),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_no_whole_answer_is_in_doubt(door, ending):
    key = new_key()
    door.upstream.script(key, ENDINGS[ending], Answer())
    try:
        answer = door.attempt(key, "/late")
        assert not answer.whole or answer.status >= 500
    except ConnectionError:
        pass
    door.wait_state(key, "in_doubt")
    assert_problem(door.attempt(key, "/late"), 409, "in-doubt")
    assert door.count(key) == 1


@pytest.mark.parametrize("framing", ["chunked", "length"])
def test_an_answer_cut_within_its_framing_is_in_doubt(door, framing):
    if not door.proxies and framing == "chunked":
        pytest.skip("only HTTP frames so")
    key = new_key()
    door.upstream.script(key, Answer(200, body=b"x" * 1000, framing=framing, piece=100, cut=500))
    try:
        answer = door.attempt(key)
        assert not answer.whole or answer.status >= 500
    except ConnectionError:
        pass
    door.wait_state(key, "in_doubt")


def test_a_refused_connection_is_released(door):
    key = new_key()
    door.upstream.refuse()
    try:
        assert door.attempt(key).status == 502
    finally:
        door.upstream.accept()
    assert door.attempt(key).status == 201
    assert door.count(key) == 1


@pytest.mark.parametrize("status", [204, 303, 404, 422])
def test_other_answers_are_replayed(door, status):
    key = new_key()
    door.upstream.script(key, Answer(status, headers=(("X-Is", "kept"),), body=b"" if status == 204 else b"why"))
    first = door.attempt(key)
    assert first.status == status
    assert assert_replays(door, key, first).header("X-Is") == "kept"


def test_a_failure_of_the_service_itself_is_run_again(door):
    key = new_key()
    door.upstream.script(key, NOT_NOW, Answer(201))
    assert [door.attempt(key).status for _ in range(3)] == [503, 201, 201]
    assert door.count(key) == 2


# ---- What is not protected is refused.


@pytest.mark.parametrize("what", ["grpc_pass grpc://unix:@dir@/none;", "memcached_pass unix:@dir@/none; set $memcached_key x;"])
def test_what_cannot_be_protected_is_refused_by_nginx_t_with_the_reason(database, what):
    config = f"location / {{ once required; once_tenant none; {what} }}"
    nginx = Nginx(server=config, http=f'once_database "{database.dsn()}";')
    try:
        with pytest.raises(Refused, match="once in location"):
            nginx.check()
        nginx.write(server=config.replace("once required", "once off"))
        nginx.check()
    finally:
        nginx.destroy()


# ---- What stands before the database.


def test_the_gateway_works_behind_a_transaction_pooler(server, database, upstream):
    with PgBouncer(server) as bouncer:
        config = "location /pay { once required; once_tenant $http_x_tenant; once_scope pay; once_wait 5s; proxy_pass http://app; }"
        with Door(database, upstream, config, dsn=f"host={bouncer.directory} port=5432 dbname={database.name} user=postgres") as door:
            key = new_key()
            answers = at_once(50, lambda _: door.attempt(key))
            assert door.count(key) == 1
            assert {(answer.status, answer.body) for answer in answers} == {(201, door.stored(key).response_body)}
            keys = [new_key() for _ in range(50)]
            firsts = at_once(50, lambda index: door.attempt(keys[index]))
            for key, first in zip(keys, firsts):
                assert_replays(door, key, first)


def test_the_gateway_takes_its_connection_string_from_a_file(database, upstream, tmp_path):
    door = Door(database, upstream, "location /pay { once required; once_tenant none; once_scope pay; proxy_pass http://app; }", dsn="@dir@/dsn")
    (door.nginx.directory / "dsn").write_text(database.dsn() + "\n")
    with door:
        key = new_key()
        assert_replays(door, key, door.attempt(key))


def test_the_gateway_works_with_prepared_statements_and_with_small_batches(database, upstream):
    config = "location /pay { once required; once_tenant $http_x_tenant; once_scope pay; once_wait 5s; proxy_pass http://app; }"
    for setting in ("once_prepare on;", "once_batch_max 1;", "once_batch_age 5ms;", "once_batch_bytes 1k;"):
        with Door(database, upstream, config, setting) as door:
            keys = [new_key() for _ in range(20)]
            answers = at_once(60, lambda index: door.attempt(keys[index % 20]))
            assert [door.count(key) for key in keys] == [1] * 20
            for key, answer in zip(keys * 3, answers):
                assert (answer.status, answer.body) == (201, door.stored(key).response_body)
