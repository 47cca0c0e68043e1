# SPDX-License-Identifier: PostgreSQL
"""What one caller must not learn from, or do to, another: tenants, authorisation before a replay, headers that only the gateway may
speak, cookies, and keys in logs."""

import base64
import hashlib
import threading

import pytest

from harness.client import as_bytes
from harness.upstream import Answer

from .door import BODY, Door, assert_problem, assert_replays, new_key, same_answer

PROTOCOLS = ["HTTP/1.1", "HTTP/2", "TLS"]
CONFIG = """
    once required;
    once_scope pay;
    location /pay { once_tenant $http_x_tenant; proxy_pass http://app; }
    location /off { once off; proxy_pass http://app; }
    location /user {
        once_tenant $remote_user; auth_basic closed; auth_basic_user_file @dir@/users; proxy_pass http://app;
    }
    location /denied { once_tenant $http_x_tenant; deny all; proxy_pass http://app; }
    location /clear { once_tenant $http_x_tenant; once_log_keys clear; proxy_pass http://app; }
    set $who nobody;
    location /asked { once_tenant $who; auth_request /auth; auth_request_set $who $upstream_http_x_user; proxy_pass http://app; }
    location /mapped {
        once_tenant $of_the_map; auth_request /auth; auth_request_set $who $upstream_http_x_user; proxy_pass http://app;
    }
    location /scoped {
        once_tenant none; once_scope pay-$who; auth_request /auth; auth_request_set $who $upstream_http_x_user;
        proxy_pass http://app;
    }
    location = /auth {
        internal; once off; proxy_pass_request_body off; proxy_set_header Content-Length ""; proxy_set_header X-Test auth-$http_x_caller;
        proxy_pass http://app;
    }
"""
HTTP = "underscores_in_headers on; map $who $of_the_map { default of-$who; }"


@pytest.fixture(params=PROTOCOLS)
def protocol(request):
    return request.param


@pytest.fixture(scope="module")
def door(database, upstream):
    door = Door(database, upstream, CONFIG, HTTP)
    users = "".join(f"{name}:{{SHA}}{base64.b64encode(hashlib.sha1(name.encode()).digest()).decode()}\n" for name in ("ann", "bob"))
    (door.nginx.directory / "users").write_text(users)
    with door:
        yield door


def basic(user, password=None):
    return [("Authorization", "Basic " + base64.b64encode(f"{user}:{password or user}".encode()).decode())]


# ---- Tenants.


def test_a_tenant_never_sees_the_answer_of_another_with_the_same_key_and_body(door, protocol):
    key = new_key()
    first = door.attempt(key, tenant="ann", protocol=protocol)
    second = door.attempt(key, tenant="bob", protocol=protocol)
    assert second.status == 201 and not second.replayed and second.body != first.body
    assert door.count(key) == 2
    assert_replays(door, key, first, tenant="ann", protocol=protocol)
    assert_replays(door, key, second, tenant="bob", protocol=protocol)


def test_a_tenant_cannot_learn_whether_another_has_used_a_key(door, protocol):
    """Neither a mismatch, nor a running attempt, nor one in doubt shows."""
    for state in ("finished", "running", "in doubt"):
        key, hold = new_key(), threading.Event()
        door.upstream.script(key, *{"finished": [Answer()], "running": [Answer(hold=hold)], "in doubt": [Answer(close=True)]}[state], Answer())
        original = door.start(key, tenant="ann", protocol=protocol)
        door.upstream.wait(key)
        if state != "running":
            original.result()
        answer = door.attempt(key, tenant="bob", body=b"other", protocol=protocol)
        assert answer.status == 201 and not answer.replayed
        hold.set()
        original.result()


@pytest.mark.parametrize("other", ["Ann", "ann ", "ann\xe9", "ann,bob", "an", "annn"])
def test_tenants_that_look_alike_are_not_the_same(door, other):
    key = new_key()
    first = door.attempt(key, tenant="ann")
    answer = door.attempt(key, tenant=other)
    if other == "ann ":  # HTTP takes spaces around a value away
        assert answer.replayed and same_answer(first, answer)
    else:
        assert not answer.replayed and first.body not in answer.body


def test_two_tenant_headers_do_not_make_one_of_them(door, protocol):
    """Neither caller's answer can be had by sending both names."""
    key = new_key()
    answers = [door.attempt(key, tenant=name, protocol=protocol) for name in ("ann", "bob")]
    both = door.attempt(key, tenant="ann", headers=[("X-Tenant", "bob")], protocol=protocol)
    assert not both.replayed or same_answer(both, answers[0])
    assert not same_answer(both, answers[1])


@pytest.mark.parametrize("name", ["X-Tenant", "x-tenant", "X_Tenant"])
def test_a_tenant_in_two_header_lines_is_none(door, protocol, name):
    """A proxy in front that adds its own line, and leaves the client's, gives nobody another's answer."""
    key = new_key()
    first = door.attempt(key, tenant="ann", protocol=protocol)
    for lines in ([(name, "bob")], [(name, "ann")], [(name, "")]):
        refused = assert_problem(door.attempt(key, tenant="ann", headers=lines, protocol=protocol), 400, "tenant-missing")
        assert b"more than once" in refused.body
    assert door.count(key) == 1
    assert_replays(door, key, first, tenant="ann", protocol=protocol)


def test_the_same_request_has_another_fingerprint_at_each_tenant(door):
    key = new_key()
    for tenant in ("ann", "bob"):
        door.attempt(key, tenant=tenant)
    rows = door.database.rows("SELECT fingerprint FROM once.intent WHERE key = %s", key)
    assert len({row.fingerprint for row in rows}) == 2


def test_a_role_that_is_bound_to_a_tenant_is_refused_another_and_nothing_runs(server, upstream):
    database = server.new_database()
    database.execute("DO $$BEGIN CREATE ROLE gate LOGIN; EXCEPTION WHEN duplicate_object THEN END$$")
    database.execute("GRANT once_tenant TO gate")
    database.execute("SELECT once.bind('gate', 'ann')")
    try:
        with Door(database, upstream, CONFIG, HTTP, dsn=database.dsn(user="gate")) as bound:
            (bound.nginx.directory / "users").write_text("")
            key = new_key()
            first = bound.attempt(key, tenant="ann")
            assert first.status == 201
            assert_problem(bound.attempt(key, tenant="bob"), 403, "refused")
            assert_problem(bound.attempt(new_key(), tenant="bob"), 403, "refused")
            assert_replays(bound, key, first, tenant="ann")
            assert bound.count(key) == 1
    finally:
        database.execute("SELECT once.unbind('gate', 'ann')")
        database.drop()


# ---- Authorisation.


def test_a_replay_is_only_for_who_is_authorised_now(door, protocol):
    key = new_key()
    first = door.attempt(key, "/user", headers=basic("ann"), protocol=protocol)
    assert first.status == 201
    assert door.stored(key, tenant="ann").state == "succeeded"
    for headers in ([], basic("ann", "wrong"), basic("nobody")):
        # Without its body: over HTTP/2 nginx would close the stream while curl still sends.
        refused = door.attempt(key, "/user", headers=headers, body=None, protocol=protocol)
        assert refused.status == 401 and not refused.replayed and first.body not in refused.body
    assert_replays(door, key, first, "/user", headers=basic("ann"), protocol=protocol)
    other = door.attempt(key, "/user", headers=basic("bob"), protocol=protocol)
    assert other.status == 201 and not same_answer(first, other)


@pytest.mark.parametrize("target", ["/asked", "/mapped", "/scoped"])
def test_whose_request_it_is_counts_as_the_access_phase_has_found_it(door, target):
    key = new_key()
    for who in ("ann", "bob"):
        door.upstream.script("auth-" + who, Answer(200, headers=(("X-User", who),), body=b""))
    ann, bob = (door.attempt(key, target, tenant=None, headers=[("X-Caller", who)]) for who in ("ann", "bob"))
    assert (ann.status, bob.status) == (201, 201)
    assert not bob.replayed and not same_answer(ann, bob) and door.count(key) == 2
    for who, first in (("ann", ann), ("bob", bob)):
        assert_replays(door, key, first, target, tenant=None, headers=[("X-Caller", who)])


def test_a_request_that_is_denied_claims_nothing(door, protocol):
    key = new_key()
    assert door.attempt(key, "/denied", body=None, protocol=protocol).status == 403
    assert door.count(key) == 0 and door.stored(key) is None


# ---- Headers that only the gateway may speak.

SMUGGLED = [
    ("Once-Key", "stolen"),
    ("Once-Tenant", "root"),
    ("Once-Scope", "other"),
    ("Once-Fence", "99"),
    ("Once-Anything", "x"),
    ("once-key", "stolen"),
    ("ONCE-KEY", "stolen"),
    ("oNcE-fEnCe", "99"),
    ("Once_Key", "stolen"),
    ("once_fence", "99"),
    ("Once-Key_", "stolen"),
    ("Once_Tenant", "root"),
    ("Idempotency-Replayed", "true"),
    ("idempotency-replayed", "true"),
    ("Idempotency_Replayed", "true"),
    ("IDEMPOTENCY_REPLAYED", "true"),
]


def reserved(name):
    name = name.lower().replace("_", "-")
    return name.startswith("once-") or name == "idempotency-replayed"


@pytest.mark.parametrize("name, value", SMUGGLED)
def test_a_client_cannot_speak_for_the_gateway_to_the_service(door, protocol, name, value):
    key = new_key()
    answer = door.attempt(key, headers=[(name, value)], protocol=protocol)
    if answer.status == 201:
        request = door.upstream.only(key)
        said = sorted((each.lower(), value) for each, value in request.headers if reserved(each))
        assert said == [("once-fence", "1"), ("once-key", key), ("once-scope", "pay"), ("once-tenant", "acme")]
    else:
        assert answer.status == 400 and door.count(key) == 0
    assert value not in [said for each, said in answer.headers if reserved(each)]


@pytest.mark.parametrize("name, value", SMUGGLED)
@pytest.mark.parametrize("target, method", [("/off", "POST"), ("/pay", "GET")])
def test_a_client_cannot_speak_for_the_gateway_even_where_nothing_is_protected(door, target, method, name, value):
    """A service that takes Once-Key for the gateway's word must be able to: where the module is, no client can say it."""
    key = new_key()
    answer = door.attempt(key, target, method=method, headers=[(name, value)])
    assert answer.status in (201, 400)
    assert not [each for request in door.upstream.seen(key) for each, _ in request.headers if reserved(each)]


def test_a_client_that_says_a_reserved_header_twice_cannot_speak_for_the_gateway(door, protocol):
    key = new_key()
    door.attempt(key, headers=[("Once-Key", "a"), ("Once-Key", "b"), ("once-key", key)], protocol=protocol)
    assert door.upstream.only(key).all("Once-Key") == [key]


@pytest.mark.parametrize("name", ["Once-Key", "once-fence", "Once-Tenant", "Once-Other", "Idempotency-Replayed", "idempotency-replayed"])
def test_the_service_cannot_speak_for_the_gateway_to_the_client(door, protocol, name):
    key = new_key()
    door.upstream.script(key, Answer(201, headers=((name, "forged"), ("Content-Type", "text/plain"))))
    first = door.attempt(key, protocol=protocol)
    assert first.status == 201 and not first.all("Idempotency-Replayed") and "forged" not in str(first.headers)
    again = assert_replays(door, key, first, protocol=protocol)
    assert "forged" not in str(again.headers)


def test_a_key_with_a_line_break_in_its_quotes_injects_nothing(door):
    for value in ('"a\\\r\nOnce-Fence: 7"', '"a%0d%0aOnce-Fence: 7"'):
        key = new_key()
        answer = door.attempt(key, value=value)
        assert "7" not in [fence for request in door.upstream.seen(key) for fence in request.all("Once-Fence")]
        assert answer.status in (201, 400)


# ---- Cookies and credentials.


@pytest.mark.parametrize("name", ["Set-Cookie", "set-cookie", "SET-COOKIE", "Set-Cookie2", "WWW-Authenticate", "Authentication-Info"])
def test_credentials_are_neither_stored_nor_replayed(door, protocol, name):
    key = new_key()
    door.upstream.script(key, Answer(201, headers=((name, 'secret="hunter2"'), (name, "hunter2; HttpOnly"))))
    first = door.attempt(key, protocol=protocol)
    assert first.status == 201 and "hunter2" in str(first.headers)
    again = assert_replays(door, key, first, protocol=protocol)
    assert "hunter2" not in str(again.headers)
    assert "hunter2" not in str(door.stored(key))


# ---- Logs.


def test_a_key_or_a_body_is_in_no_log_unless_asked_for(door):
    key, secret = new_key(), new_key()
    for body in (f'{{"secret": "{secret}"}}'.encode(), b"other"):
        door.attempt(key, body=body)
        door.attempt(key, body=body)
    door.attempt(key, value=f'"{key}')
    door.attempt(key, value=f'"{key}" x')
    failing = new_key()
    door.upstream.script(failing, Answer(close=True))
    door.attempt(failing)
    # nginx's own lines about a failed upstream name the request line, never a header.
    log = door.nginx.log()
    assert key not in log and failing not in log and secret not in log
    assert "once" in log


def test_a_key_is_in_the_log_in_clear_where_that_is_asked_for(door):
    key = new_key()
    door.attempt(key, "/clear")
    assert key in door.nginx.log()


def test_each_decision_is_one_line_with_the_same_hash_for_the_same_key(door):
    key, hashes = new_key(), []
    for _ in range(2):
        before = len(door.nginx.log())
        door.attempt(key)
        lines = [line for line in door.nginx.log()[before:].splitlines() if "once" in line and "verdict=" in line]
        assert len(lines) == 1, lines
        fields = dict(word.split("=", 1) for word in lines[0].replace(",", " ").split() if "=" in word)
        assert fields["verdict"] in ("new_claim", "replay_success") and fields["scope"] == "pay"
        hashes.append(fields["key"])
    assert hashes[0] == hashes[1] != key


def test_a_problem_never_says_the_key_or_the_body_back(door, protocol):
    key = new_key()
    door.attempt(key, body=BODY, protocol=protocol)
    for answer in (
        door.attempt(key, body=b"<script>", protocol=protocol),
        door.attempt(key, value=f'"{key}', protocol=protocol),
        door.attempt(key, value=b'"' + as_bytes(key) + b'\xff"', protocol=protocol),
    ):
        assert answer.status in (400, 422)
        assert key.encode() not in answer.body and b"<script>" not in answer.body
