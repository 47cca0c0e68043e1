# SPDX-License-Identifier: PostgreSQL
"""One intent, two doors: what came through the gateway is retried by SQL, and the other way round. The key and the fingerprint that SQL
finds are the gateway's, for each vector that a request can be made of."""

import json
import re

import psycopg2
import pytest

from contract.calls import refused, run
from contract.test_vectors import FINGERPRINTS, KEYS, body_of

from .door import BODY, TENANT, Door, assert_problem, new_key

CONFIG = """
    once required;
    once_tenant $http_x_tenant;
    location /pay { once_scope pay; proxy_pass http://app; }
    location /canonical { once_scope pay; once_canonical_json on; proxy_pass http://app; }
    location /keys { once_scope keys; proxy_pass http://app; }
    location /values { once_scope pay; once_fingerprint method target body $request_method $http_x_none; proxy_pass http://app; }
    location /parts { once_scope pay; once_fingerprint method body; proxy_pass http://app; }
"""
ANY = """
    once required;
    once_scope any;
    once_methods POST PUT DELETE;
    once_tenant %s;
    once_canonical_json %s;
    location / { proxy_pass http://app; }
    location @no_host { once_fingerprint method target content_type body; proxy_pass http://app; }
    location @no_target { once_fingerprint method host content_type body; proxy_pass http://app; }
    error_page 418 = @no_host;
    error_page 419 = @no_target;
    if ($http_x_host = "") { return 418; }
    if ($http_x_path = "") { return 419; }
"""
KIND = "application/json"

# (the target, the body; what SQL is told of target, type and body; is JSON canonical)
REQUESTS = {
    "as it is": ("/pay?x=%20y", BODY, "test/pay?x=%20y", KIND, BODY, False),
    "a body as text": ("/pay", b'{"path": "C:\\\\dir"}', "test/pay", KIND, '{"path": "C:\\\\dir"}', False),
    "bytes": ("/pay", bytes(range(256)), "test/pay", KIND, bytes(range(256)), False),
    "JSON written otherwise": ("/canonical", b'{"a": 1, "b": [2.50]}', "test/canonical", KIND, b'{"b":[25e-1],"a":1.0}', True),
    "what is not JSON": ("/canonical", b"a=1&b=2", "test/canonical", KIND, b"a=1&b=2", True),
    "a name twice": ("/canonical", b'{"a":1,"a":2}', "test/canonical", KIND, b'{"a":1,"a":2}', True),
    "variables after the body": ("/values", BODY, "/values", "", BODY + b"POST" + bytes(7) + b"\4" + bytes(8), False),
    "without target and type": ("/parts?x=1", BODY, "", "", BODY, False),
}


def binary(body):
    return psycopg2.Binary(body) if isinstance(body, bytes) else body


def retry(database, header, request, call="once.start"):
    _, _, target, kind, body, canonical = request
    return database.row(
        f"SELECT s.* FROM {call}('pay', once.key_of_header(%s), once.request_fingerprint('POST', %s, %s, %s, %s, %s), tenant => %s) AS s",
        *(header, target, kind, binary(body), TENANT, canonical, TENANT),
    )


@pytest.mark.parametrize("name", REQUESTS)
def test_a_retry_by_sql_of_a_request_through_the_gateway_gets_its_answer(door, name):
    key, request = new_key(), REQUESTS[name]
    header = f' "{key}\\"";try=1'
    first = door.attempt(key, request[0], body=request[1], value=header)
    assert first.status == 201 and door.count(key) == 1
    assert door.stored(key + '"').state == "succeeded"
    row = retry(door.database, header, request)
    assert (row.verdict, row.response_status, row.response_body) == ("replay_success", first.status, first.body)
    row = retry(door.database, header, request, "once.claim")
    assert (row.verdict, row.response_status, row.response_body) == ("replay_success", first.status, first.body)
    with refused("P4002"):
        retry(door.database, header, (*request[:4], b"another", request[5]))


@pytest.mark.parametrize("name", REQUESTS)
def test_a_retry_through_the_gateway_of_a_request_by_sql_gets_its_answer(door, name):
    key, request = new_key(), REQUESTS[name]
    _, _, target, kind, body, canonical = request
    said = (f'"{key}"', target, kind, binary(body), TENANT, canonical, TENANT)
    connection = door.database.connect(autocommit=False)
    named = "'pay', once.key_of_header(%s), once.request_fingerprint('POST', %s, %s, %s, %s, %s), tenant => %s"
    assert run(connection, f"SELECT verdict FROM once.start({named})", *said) == [("proceed",)]
    run(connection, f"SELECT once.finish({named}, response_status => 202, response_body => 'by SQL'::bytea)", *said)
    connection.commit()
    answer = door.attempt(key, request[0], body=request[1])
    assert answer.replayed and (answer.status, answer.body) == (202, b"by SQL")
    assert door.count(key) == 0
    assert_problem(door.attempt(key, request[0], body=b"another"), 422, "mismatch")


# Values that a client can send in a header; nginx takes the spaces around it away.
SENT = [vector for vector in KEYS["keys"] if vector["header"].isascii() and vector["header"].isprintable() and vector["header"] == vector["header"].strip()]


def test_the_gateway_finds_the_key_of_each_vector_or_says_why_not(door):
    for vector in SENT:
        answer = door.attempt("vector", "/keys", value=vector["header"], body=b"")
        if "key" in vector:
            assert answer.replayed or door.stored(vector["key"], "keys").state == "succeeded", vector
        else:
            assert_problem(answer, 400, "key-malformed")
            assert json.loads(answer.body)["detail"].endswith(" " + vector["refused"]), vector
    keys = {vector["key"] for vector in SENT if "key" in vector}
    assert {row.key for row in door.database.rows("SELECT key FROM once.intent WHERE scope = 'keys'")} == keys and len(keys) > 10


@pytest.fixture(scope="module")
def salted(server):
    """A database whose salt is that of the vectors."""
    database = server.new_database()
    database.execute("UPDATE once.setting SET salt = %s", bytes.fromhex(FINGERPRINTS["installation_salt"]))
    yield database
    database.drop()


@pytest.mark.parametrize("canonical", [False, True], ids=["plain", "canonical"])
@pytest.mark.parametrize("named", [False, True], ids=["no tenant", "tenants"])
def test_the_gateway_stores_the_fingerprint_of_each_vector(salted, upstream, named, canonical):
    vectors = [
        vector
        for vector in FINGERPRINTS["requests"]
        if vector["method"] and vector["canonical_json"] == canonical and bool(vector["tenant"]) == named
    ]
    assert vectors
    with Door(salted, upstream, ANY % ("$http_x_tenant" if named else "none", "on" if canonical else "off")) as door:
        for vector in vectors:
            key = new_key()
            kind = [] if vector["content_type"] is None else [("Content-Type", vector["content_type"])]
            host, path = re.fullmatch("([^/]*)(.*)", vector["target"]).groups()
            headers = [("X-Test", key), ("Idempotency-Key", f'"{key}"'), ("X-Tenant", vector["tenant"].encode()), *kind]
            headers += [("Host", host or "other.test"), ("X-Host", host), ("X-Path", path)]
            assert door.nginx.ask(vector["method"], path or "/other", headers, body_of(vector)).status == 201
            assert door.stored(key, "any", vector["tenant"]).fingerprint.hex() == vector["fingerprint"], vector
