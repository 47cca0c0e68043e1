# SPDX-License-Identifier: PostgreSQL
"""Every rule of the protocol as a row of a table, over HTTP/1.1 and HTTP/2: keys (RFC 8941, section 3.3.3 and 4.2), which requests are
protected, what is refused and how. What is stored, and what a replay holds, is in test_stored.py."""

import dataclasses
import json
import socket
import threading
import time

import pytest

from contract.calls import uuid7
from harness.postgres import ROOT, wait_until
from harness.upstream import NOT_NOW, Answer

from .door import BODY, JSON, PROTOCOLS, Door, assert_problem, assert_replays, new_key, quoted, same_answer, sorted_cases

CONFIG = """
    once_tenant $http_x_tenant;
    location /pay { once required; once_scope pay; proxy_pass http://app; }
    location /strict { once required; once_scope strict; once_key_syntax strict; proxy_pass http://app; }
    location /short { once required; once_scope short; once_key_length 8; proxy_pass http://app; }
    location /optional { once on; once_scope optional; proxy_pass http://app; }
    location /off { once off; proxy_pass http://app; }
    location /methods { once required; once_scope methods; once_methods POST PUT DELETE; proxy_next_upstream off; proxy_pass http://app; }
    location /webhook { once required; once_scope webhook; once_key $http_webhook_id; proxy_pass http://app; }
    location /braces { once required; once_scope braces; once_key ${http_webhook_id}; proxy_pass http://app; }
    location /named/by/itself { once required; proxy_pass http://app; }
    location /alone { once required; once_scope alone; once_tenant none; proxy_pass http://app; }
    location /no-body { once required; once_scope no-body; once_fingerprint method target; proxy_pass http://app; }
    location /canonical { once required; once_scope canonical; once_canonical_json on; proxy_pass http://app; }
    location /big-body { once required; once_scope big-body; once_body_max 10k; proxy_pass http://app; }
    location /big-answer { once required; once_scope big-answer; once_response_max 10k; proxy_pass http://app; }
    location /told { once required; once_scope told; add_header X-Replay $once_replay always; proxy_pass http://app; }
    location /seen { once required; once_scope seen; add_header X-Verdict $once_verdict; proxy_pass http://app; }
"""


# ---- Keys. {} stands for a key that no other test uses.

# (what the header says, the key that it means)
GOOD_STRINGS = {
    "a string": ('"{}"', "{}"),
    "a UUID": ('"8e03978e-40d5-43dd-bc93-{}"', "8e03978e-40d5-43dd-bc93-{}"),
    "spaces around it": ('   "{}"  ', "{}"),
    "a space inside": ('"{} b"', "{} b"),
    "spaces at both ends inside": ('" {} "', " {} "),
    "an escaped quote": ('"{}\\"b"', '{}"b'),
    "an escaped backslash": ('"{}\\\\b"', "{}\\b"),
    "nothing but escapes": ('"{}\\"\\\\\\""', '{}"\\"'),
    "every printable character": (
        '"{} !\\"#$%&\'()*+,-./0123456789:;<=>?@[\\\\]^_`{{|}}~"',
        "{} !\"#$%&'()*+,-./0123456789:;<=>?@[\\]^_`{{|}}~",
    ),
    "a comma inside": ('"{},b"', "{},b"),
    "a semicolon inside": ('"{};b"', "{};b"),
    "a parameter without a value": ('"{}";a', "{}"),
    "a space after the semicolon": ('"{}"; a', "{}"),
    "many parameters": ('"{}";a;b=1;c=?0;d=tok/en;e=:YWJj:;f=-1.5;*g="x;y,\\"z"', "{}"),
    "a parameter's name with every sign": ('"{}";a_b-c.d*0=1', "{}"),
    "a parameter that comes twice": ('"{}";a=1;a=2', "{}"),
    "255 characters": ('"{}' + "x" * (255 - 32) + '"', "{}" + "x" * (255 - 32)),
    "255 characters with escapes": ('"{}' + '\\"' * (255 - 32) + '"', "{}" + '"' * (255 - 32)),
}
# What no mode takes.
BAD_VALUES = {
    "an empty string": '""',
    "no closing quote": '"{}',
    "nothing but a quote": '"',
    "an escaped closing quote": '"{}\\"',
    "a backslash at the end": '"{}\\',
    "a bad escape": '"{}\\n"',
    "a tab inside": '"{}\tb"',
    "a control character": '"{}\x01b"',
    "a delete character": '"{}\x7fb"',
    "a byte that is not ASCII": '"{}\xe9"',
    "UTF-8": '"{}é€"'.encode(),
    "bytes after the string": '"{}"b',
    "a second string": '"{}" "b"',
    "a list": '"{}", "b"',
    "a list of one": '"{}",',
    "an inner list": '("{}")',
    "a semicolon and nothing": '"{}";',
    "a space before the semicolon": '"{}" ;a',
    "a parameter's name in capitals": '"{}";A=1',
    "a parameter's name that is a number": '"{}";1=1',
    "a parameter without its value": '"{}";a=',
    "a parameter with a broken string": '"{}";a="x',
    "a parameter with a broken byte sequence": '"{}";a=:YWJj',
    "a parameter with a broken boolean": '"{}";a=?2',
    "a parameter with a broken number": '"{}";a=1.',
    "a parameter with a number too long": '"{}";a=1234567890123456',
    "a parameter that is a list": '"{}";a=(1)',
    "256 characters": '"{}' + "x" * (256 - 32) + '"',
    "only spaces": "   ",
    "nothing": "",
}
# What only the lenient mode takes, as it stands.
BARE_KEYS = {
    "a token": "{}",
    "a bare UUID": "8e03978e-40d5-43dd-bc93-{}",
    "a bare key of digits": "42{}",
    "a bare key with signs": "{}/a:b=c?d&e+f~g",
    "a bare key that looks like a boolean": "?1{}",
    "a bare key that looks like a byte sequence": ":{}:",
    "a bare key with spaces around": "  {}  ",
    "255 bare characters": "{}" + "x" * (255 - 32),
}
BAD_BARE_KEYS = {
    "a space": "{} b",
    "a comma": "{},b",
    "a semicolon": "{};b",
    "a parameter": "{};a=1",
    "a quote": '{}"b',
    "a backslash": "{}\\b",
    "a quote at the end": '{}"',
    "a byte that is not ASCII": "{}\xe9",
    "a control character": "{}\x01",
    "256 bare characters": "{}" + "x" * (256 - 32),
}


def fill(template, unique):
    if isinstance(template, bytes):
        return template.replace(b"{}", unique.encode())
    return template.replace("{}", unique).replace("{{", "{").replace("}}", "}")


@pytest.mark.parametrize("syntax", ["pay", "strict"])
@pytest.mark.parametrize("value, means", [pytest.param(*each.values[0], id=each.id) for each in sorted_cases(GOOD_STRINGS)])
def test_a_structured_field_string_is_a_key(door, protocol, syntax, value, means):
    key = new_key()
    answer = door.attempt(key, f"/{syntax}", value=fill(value, key), protocol=protocol)
    assert answer.status == 201 and not answer.replayed
    assert door.stored(fill(means, key), scope=syntax).state == "succeeded"
    assert_replays(door, key, answer, f"/{syntax}", value=fill(value, key), protocol=protocol)
    # The same key, said in another way.
    assert_replays(door, key, answer, f"/{syntax}", value=quoted(fill(means, key)), protocol=protocol)


@pytest.mark.parametrize("syntax", ["pay", "strict"])
@pytest.mark.parametrize("value", sorted_cases(BAD_VALUES))
def test_a_malformed_key_is_refused_and_never_ignored(door, protocol, syntax, value):
    key = new_key()
    answer = door.attempt(key, f"/{syntax}", value=fill(value, key), protocol=protocol)
    assert_problem(answer, 400, "key-malformed")
    assert door.count(key) == 0


@pytest.mark.parametrize("value", sorted_cases(BARE_KEYS))
def test_a_bare_key_is_a_key_where_the_syntax_is_lenient_and_the_same_one_as_in_quotes(door, protocol, value):
    key = new_key()
    answer = door.attempt(key, value=fill(value, key), protocol=protocol)
    assert answer.status == 201 and not answer.replayed
    assert_replays(door, key, answer, value=quoted(fill(value, key).strip()), protocol=protocol)


@pytest.mark.parametrize("value", sorted_cases(BARE_KEYS))
def test_a_bare_key_is_refused_where_the_syntax_is_strict(door, protocol, value):
    key = new_key()
    assert_problem(door.attempt(key, "/strict", value=fill(value, key), protocol=protocol), 400, "key-malformed")
    assert door.count(key) == 0


@pytest.mark.parametrize("value", sorted_cases(BAD_BARE_KEYS))
@pytest.mark.parametrize("syntax", ["pay", "strict"])
def test_a_malformed_bare_key_is_refused(door, protocol, syntax, value):
    key = new_key()
    assert_problem(door.attempt(key, f"/{syntax}", value=fill(value, key), protocol=protocol), 400, "key-malformed")
    assert door.count(key) == 0


@pytest.mark.parametrize("target", ["/pay", "/strict", "/optional"])
@pytest.mark.parametrize("values", [('"{}"', '"{}"'), ('"{}"', '"other"'), ('"{}"', ""), ("", '"{}"')])
def test_two_header_lines_are_refused_even_with_the_same_key(door, protocol, target, values):
    key = new_key()
    more = [("Idempotency-Key", fill(value, key)) for value in values]
    answer = door.attempt(key, target, value="-", headers=more, protocol=protocol)
    assert_problem(answer, 400, "key-repeated")
    assert door.count(key) == 0


def test_a_key_longer_than_the_location_allows_is_refused(door, protocol):
    key = new_key()
    assert_problem(door.attempt(key, "/short", value='"123456789"', protocol=protocol), 400, "key-malformed")
    assert_problem(door.attempt(key, "/short", value="123456789", protocol=protocol), 400, "key-malformed")
    assert door.count(key) == 0
    assert door.attempt(key, "/short", value=quoted(key[:8]), protocol=protocol).status == 201


def test_a_key_from_the_future_is_refused(door, protocol):
    key = uuid7(int(time.time() * 1000) + 30 * 86400 * 1000)
    assert_problem(door.attempt(key, protocol=protocol), 400, "key-malformed")
    assert door.count(key) == 0


def test_a_key_whose_day_is_gone_is_known_to_be_late_and_is_not_run(door, protocol):
    key = uuid7(1577880000000, PROTOCOLS.index(protocol))
    assert_problem(door.attempt(key, protocol=protocol), 409, "expired")
    assert door.count(key) == 0


# ---- Which requests are protected.


def test_a_missing_key_is_refused_where_one_is_required(door, protocol):
    key = new_key()
    assert_problem(door.attempt(key, value="-", protocol=protocol), 400, "key-missing")
    assert door.count(key) == 0


def test_a_missing_key_passes_where_keys_are_optional(door, protocol):
    key = new_key()
    for count in (1, 2):
        answer = door.attempt(key, "/optional", value="-", protocol=protocol)
        assert answer.status == 201 and not answer.replayed
        assert door.count(key) == count


def test_a_key_protects_where_keys_are_optional(door, protocol):
    key = new_key()
    first = door.attempt(key, "/optional", protocol=protocol)
    assert_replays(door, key, first, "/optional", protocol=protocol)


@pytest.mark.parametrize("value", sorted_cases(BAD_VALUES))
def test_a_malformed_key_is_refused_where_keys_are_optional(door, value):
    key = new_key()
    assert_problem(door.attempt(key, "/optional", value=fill(value, key)), 400, "key-malformed")
    assert door.count(key) == 0


def test_a_location_that_is_off_passes_every_request(door, protocol):
    key = new_key()
    for count in (1, 2):
        answer = door.attempt(key, "/off", value='"malformed', protocol=protocol)
        assert answer.status == 201 and not answer.replayed
        assert door.count(key) == count


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "DELETE"])
def test_other_methods_pass_whatever_key_they_send(door, protocol, method):
    key = new_key()
    for count, value in enumerate(["-", quoted(key), quoted(key), '"malformed'], 1):
        answer = door.attempt(key, method=method, body=None, value=value, protocol=protocol)
        assert answer.status == 201 and not answer.replayed
        assert door.count(key) == count
    assert door.stored(key) is None


@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_post_and_patch_are_protected(door, protocol, method):
    key = new_key()
    first = door.attempt(key, method=method, protocol=protocol)
    assert first.status == 201 and not first.replayed
    assert_replays(door, key, first, method=method, protocol=protocol)


@pytest.mark.parametrize("method, protected", [("POST", True), ("PUT", True), ("DELETE", True), ("PATCH", False)])
def test_the_location_says_which_methods_are_protected(door, protocol, method, protected):
    key = new_key()
    first = door.attempt(key, "/methods", method=method, protocol=protocol)
    again = door.attempt(key, "/methods", method=method, protocol=protocol)
    assert (again.replayed, same_answer(first, again), door.count(key)) == (protected, protected, 1 if protected else 2)


def test_the_key_can_come_from_another_header(door, protocol):
    key = new_key()
    webhook = [("Webhook-Id", key)]
    first = door.attempt(key, "/webhook", value="-", headers=webhook, protocol=protocol)
    assert first.status == 201
    assert_replays(door, key, first, "/webhook", value="-", headers=webhook, protocol=protocol)
    assert_problem(door.attempt(key, "/webhook", protocol=protocol), 400, "key-missing")


def test_a_key_that_comes_in_two_headers_is_refused_however_the_variable_is_written(door, protocol):
    key = new_key()
    webhook = [("Webhook-Id", key), ("Webhook-Id", "other")]
    for target in ("/webhook", "/braces"):
        assert_problem(door.attempt(key, target, value="-", headers=webhook, protocol=protocol), 400, "key-repeated")
    first = door.attempt(key, "/braces", value="-", headers=webhook[:1], protocol=protocol)
    assert_replays(door, key, first, "/braces", value="-", headers=webhook[:1], protocol=protocol)


# ---- Whose key it is.


def test_a_key_means_one_intent_in_each_scope(door, protocol):
    key = new_key()
    assert door.attempt(key, "/pay", protocol=protocol).status == 201
    assert door.attempt(key, "/optional", protocol=protocol).status == 201
    assert door.count(key) == 2
    assert door.stored(key, "pay") and door.stored(key, "optional")


def test_the_scope_is_the_locations_name_where_none_is_said(door):
    key = new_key()
    first = door.attempt(key, "/named/by/itself")
    assert_replays(door, key, first, "/named/by/itself")
    assert door.database.value("SELECT scope FROM once.intent WHERE key = %s", key) == "/named/by/itself"


def test_a_key_means_one_intent_for_each_tenant(door, protocol):
    key = new_key()
    first, second = (door.attempt(key, tenant=tenant, protocol=protocol) for tenant in ("a", "b"))
    assert (first.status, second.status) == (201, 201) and first.body != second.body
    assert door.count(key) == 2
    assert_replays(door, key, first, tenant="a", protocol=protocol)
    assert_replays(door, key, second, tenant="b", protocol=protocol)


@pytest.mark.parametrize("tenant", [None, "", "  "])
def test_an_empty_tenant_is_refused_where_one_is_expected(door, protocol, tenant):
    key = new_key()
    assert_problem(door.attempt(key, tenant=tenant, protocol=protocol), 400, "tenant-missing")
    assert door.count(key) == 0


@pytest.mark.parametrize("character", ["a", "\u00e9", "\u20ac", "\U0001f511"], ids=["1", "2", "3", "4"])
def test_a_tenant_has_up_to_255_characters_of_up_to_4_bytes(door, protocol, character):
    key, tenant = new_key(), character * 255
    first = door.attempt(key, tenant=tenant.encode(), protocol=protocol)
    assert first.status == 201
    assert_replays(door, key, first, tenant=tenant.encode(), protocol=protocol)
    assert door.state(key, tenant=tenant) == "succeeded"
    assert_problem(door.attempt(key, tenant=(tenant + character).encode(), protocol=protocol), 400, "tenant-missing")


@pytest.mark.parametrize("tenant", [b"\xff\xfe", b"a\x80", b"\xc3", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xf0\x9f\x94"])
def test_a_tenant_that_is_not_utf_8_is_refused(door, protocol, tenant):
    """Overlong forms, surrogates and what is beyond Unicode are not either (RFC 3629, section 3)."""
    key = new_key()
    assert_problem(door.attempt(key, tenant=tenant, protocol=protocol), 400, "tenant-missing")
    assert door.count(key) == 0


def test_a_location_with_no_tenants_has_one_caller(door, protocol):
    key = new_key()
    first = door.attempt(key, "/alone", tenant="a", protocol=protocol)
    assert_replays(door, key, first, "/alone", tenant="b", protocol=protocol)
    assert door.stored(key, "alone", tenant="").state == "succeeded"


# ---- The same key with another request.

OTHER_REQUESTS = {
    "another body": {"body": b'{"amount": 101}'},
    "no body": {"body": b""},
    "another method": {"method": "PATCH"},
    "another path": {"target": "/pay/2"},
    "another query": {"target": "/pay?n=2"},
    "another content type": {"headers": [("Content-Type", "text/plain")]},
}


@pytest.mark.parametrize("other", sorted_cases(OTHER_REQUESTS))
def test_the_same_key_with_another_request_is_a_mismatch_and_the_original_still_replays(door, protocol, other):
    key = new_key()
    first = door.attempt(key, protocol=protocol)
    assert_problem(door.attempt(key, protocol=protocol, **other), 422, "mismatch")
    assert door.count(key) == 1
    assert_replays(door, key, first, protocol=protocol)


def test_a_mismatch_of_a_body_in_parts_says_that_its_boundary_may_be_the_reason(door, protocol):
    def parts(boundary):
        body = f'--{boundary}\r\nContent-Disposition: form-data; name="amount"\r\n\r\n100\r\n--{boundary}--\r\n'.encode()
        return {"body": body, "headers": [("Content-Type", f"Multipart/form-data; boundary={boundary}")]}

    key = new_key()
    first = door.attempt(key, protocol=protocol, **parts("aaaa"))
    mismatch = assert_problem(door.attempt(key, protocol=protocol, **parts("bbbb")), 422, "mismatch")
    assert "new boundary" in json.loads(mismatch.body)["detail"]
    assert_replays(door, key, first, protocol=protocol, **parts("aaaa"))
    plain = assert_problem(door.attempt(key, protocol=protocol), 422, "mismatch")
    assert "boundary" not in json.loads(plain.body)["detail"]


@pytest.mark.parametrize("other", sorted_cases(OTHER_REQUESTS))
def test_a_mismatch_is_found_before_still_running(door, protocol, other):
    key, hold = new_key(), threading.Event()
    door.upstream.script(key, Answer(hold=hold))
    original = door.start(key, protocol=protocol)
    door.upstream.wait(key)
    assert_problem(door.attempt(key, protocol=protocol, **other), 422, "mismatch")
    hold.set()
    assert original.result().status == 201
    assert door.count(key) == 1


def test_other_headers_are_the_same_request(door, protocol):
    key = new_key()
    first = door.attempt(key, headers=[("X-Trace", "1"), ("Accept", "text/plain")], protocol=protocol)
    assert_replays(door, key, first, headers=[("X-Trace", "2"), ("Accept", "*/*")], protocol=protocol)


def test_the_location_says_what_of_the_request_counts(door, protocol):
    key = new_key()
    first = door.attempt(key, "/no-body", body=b"one", protocol=protocol)
    assert_replays(door, key, first, "/no-body", body=b"two", headers=[("Content-Type", "x/y")], protocol=protocol)
    assert_problem(door.attempt(key, "/no-body?other", body=b"one", protocol=protocol), 422, "mismatch")


def test_a_reserialised_body_is_the_same_request_where_json_is_canonical(door, protocol):
    key = new_key()
    first = door.attempt(key, "/canonical", body=b'{"a": 1, "b": [1, 2], "c": {"e": 1, "d": null}}', protocol=protocol)
    assert first.status == 201
    assert_replays(door, key, first, "/canonical", body=b'{"c":{"d":null,"e":1},"b":[1,2],"a":1}', protocol=protocol)
    for other in (b'{"a":2,"b":[1,2],"c":{"d":null,"e":1}}', b'{"a":1,"b":[2,1],"c":{"d":null,"e":1}}', b"{"):
        assert_problem(door.attempt(key, "/canonical", body=other, protocol=protocol), 422, "mismatch")
    assert door.count(key) == 1


def test_a_reserialised_body_is_another_request_where_json_is_not_canonical(door, protocol):
    key = new_key()
    assert door.attempt(key, body=b'{"a":1,"b":2}', protocol=protocol).status == 201
    assert_problem(door.attempt(key, body=b'{"b":2,"a":1}', protocol=protocol), 422, "mismatch")


def test_the_same_body_in_chunks_is_the_same_request(door):
    key = new_key()
    first = door.attempt(key, body=BODY * 50, chunked=True)
    assert door.upstream.only(key).body == BODY * 50
    assert_replays(door, key, first, body=BODY * 50)
    assert_replays(door, key, first, body=BODY * 50, chunked=True)


def test_the_same_request_over_other_protocols_is_the_same_request(door):
    key = new_key()
    first = door.attempt(key, protocol="HTTP/1.1")
    for options in ({"protocol": "HTTP/2"}, {"protocol": "TLS"}, {"version": "1.0"}, {"protocol": "HTTP/1.1"}):
        assert_replays(door, key, first, **options)


def test_a_client_of_http_1_0_is_protected(door):
    key = new_key()
    first = door.attempt(key, version="1.0")
    assert first.status == 201
    assert_replays(door, key, first, version="1.0")


def test_a_connection_that_stays_open_carries_one_protected_request_after_another(door):
    keys = [new_key() for _ in range(3)]
    with door.send(keys[0], close=False) as connection:
        answers = [connection.receive()]
        for key in keys[1:]:
            connection.send("POST", "/pay", door.headers_of(key), BODY)
            answers.append(connection.receive())
        for key, answer in zip(keys, answers):
            connection.send("POST", "/pay", door.headers_of(key), BODY)
            again = connection.receive()
            assert again.replayed and same_answer(answer, again)
        connection.send("POST", "/pay", door.headers_of(keys[0], value='"'), BODY)
        assert_problem(connection.receive(), 400, "key-malformed")
        connection.send("POST", "/pay", door.headers_of(keys[0]), BODY)
        assert connection.receive().replayed


def test_requests_that_are_sent_without_waiting_are_answered_in_their_order(door):
    keys = [new_key() for _ in range(4)]
    with door.send(keys[0], close=False) as connection:
        for key in keys[1:] + keys:
            connection.send("POST", "/pay", door.headers_of(key), BODY)
        answers = [connection.receive() for _ in range(8)]
    assert [answer.replayed for answer in answers] == [False] * 4 + [True] * 4
    assert all(same_answer(*pair) for pair in zip(answers, answers[4:]))
    assert [door.count(key) for key in keys] == [1] * 4


def test_a_client_that_waits_for_100_continue_gets_it(door):
    key = new_key()
    with door.send(key, body=b"", headers=[("Expect", "100-continue"), ("Content-Length", "4")]) as connection:
        assert connection.socket.recv(12, socket.MSG_PEEK) == b"HTTP/1.1 100"
        connection.socket.sendall(b"body")
        assert connection.receive().status == 201
    assert door.upstream.only(key).body == b"body"


# ---- While the original runs.


@pytest.mark.alone
def test_a_duplicate_of_a_running_attempt_is_told_so_at_once_and_when_to_come_back(door, protocol):
    key, hold = new_key(), threading.Event()
    door.upstream.script(key, Answer(hold=hold))
    original = door.start(key, protocol=protocol)
    door.upstream.wait(key)
    began = time.monotonic()
    answer = assert_problem(door.attempt(key, protocol=protocol), 409, "active")
    assert time.monotonic() - began < 5
    assert int(answer.header("Retry-After")) >= 1
    hold.set()
    first = original.result()
    assert first.status == 201 and door.count(key) == 1
    assert_replays(door, key, first, protocol=protocol)


# ---- Problem documents.

PROBLEMS = {
    "key-missing": (400, {"value": "-"}),
    "key-malformed": (400, {"value": '"'}),
    "tenant-missing": (400, {"tenant": None}),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_problem_is_a_problem_document_and_its_type_a_page_of_the_documentation(door, protocol, name):
    status, how = PROBLEMS[name]
    answer = assert_problem(door.attempt(new_key(), protocol=protocol, **how), status, name)
    assert int(answer.header("Content-Length")) == len(answer.body)
    assert json.loads(answer.body)["type"] == f"urn:pgonce:problem:{name}"
    assert name in (ROOT / "docs/reference/problems.md").read_text()


def test_the_page_that_a_problem_links_to_can_be_elsewhere(database, upstream):
    config = "once_problem_base https://docs.test/problems#; location / { once required; once_tenant none; proxy_pass http://app; }"
    with Door(database, upstream, config) as door:
        answer = assert_problem(door.attempt(new_key(), value="-"), 400, "key-missing")
        assert json.loads(answer.body)["type"] == "https://docs.test/problems#key-missing"


# ---- Limits.


def test_a_request_body_over_the_limit_is_refused_and_not_run(door, protocol):
    key = new_key()
    try:
        assert_problem(door.attempt(key, "/big-body", body=b"x" * 10241, protocol=protocol), 413, "body-too-large")
    except ConnectionError:
        assert protocol == "HTTP/2"  # nginx closes the stream while curl still sends, and curl may then not read the answer
    assert door.count(key) == 0 and door.stored(key, "big-body") is None
    assert door.attempt(key, "/big-body", body=b"x" * 10240, protocol=protocol).status == 201


def test_a_request_body_over_the_limit_is_refused_even_in_chunks(door):
    key = new_key()
    assert_problem(door.attempt(key, "/big-body", body=b"x" * 10241, chunked=True), 413, "body-too-large")
    assert door.count(key) == 0


@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
def test_an_answer_over_the_limit_is_passed_on_and_the_retry_is_told_that_it_was_too_large(door, protocol, framing):
    key, body = new_key(), bytes(range(256)) * 41
    door.upstream.script(key, Answer(200, body=body, framing=framing))
    first = door.attempt(key, "/big-answer", protocol=protocol)
    assert (first.status, first.body, first.whole) == (200, body, True)
    door.wait_state(key, "succeeded", "big-answer")
    for _ in range(2):
        assert_problem(door.attempt(key, "/big-answer", protocol=protocol), 409, "too-large")
    assert door.count(key) == 1


def test_an_answer_at_the_limit_is_stored(door, protocol):
    key = new_key()
    door.upstream.script(key, Answer(200, body=b"x" * 10240))
    first = door.attempt(key, "/big-answer", protocol=protocol)
    assert_replays(door, key, first, "/big-answer", protocol=protocol)


def test_a_large_answer_that_says_try_again_is_not_held_against_the_retry(door):
    key = new_key()
    door.upstream.script(key, dataclasses.replace(NOT_NOW, body=b"x" * 20000), Answer(201))
    assert door.attempt(key, "/big-answer").status == 503
    assert door.attempt(key, "/big-answer").status == 201


# ---- What the rest of nginx learns.


def test_variables_say_what_was_decided(door):
    key = new_key()
    first = door.attempt(key, f"/seen?{key}")
    again = door.attempt(key, f"/seen?{key}")
    assert (first.header("X-Verdict"), again.header("X-Verdict")) == ("new_claim", "replay_success")
    # A line is written after the answer, each by the worker that gave it: the second may come first.
    wait_until(lambda: door.nginx.access().count(key) == 2, "two lines in the access log")
    lines = [line for line in door.nginx.access().splitlines() if key in line]
    verdicts = sorted(line[line.index("verdict="):line.index(" key=")] for line in lines)
    assert verdicts == ["verdict=new_claim fence=1", "verdict=replay_success fence="]


def test_the_variable_says_what_is_a_replay_and_a_mismatch_is_none(door, protocol):
    key = new_key()
    assert door.attempt(key, "/told", protocol=protocol).header("X-Replay") is None
    assert door.attempt(key, "/told", protocol=protocol).header("X-Replay") == "1"
    mismatch = assert_problem(door.attempt(key, "/told", body=b"other", protocol=protocol), 422, "mismatch")
    assert mismatch.header("X-Replay") is None


def test_the_service_behind_is_told_the_intents_name_and_fence(door, protocol):
    key = new_key()
    door.attempt(key, protocol=protocol)
    request = door.upstream.only(key)
    said = {name: request.header(f"Once-{name}") for name in ("Tenant", "Scope", "Key", "Fence")}
    assert said == {"Tenant": "acme", "Scope": "pay", "Key": key, "Fence": "1"}
    assert request.body == BODY and request.header("Content-Type") == JSON[1]


def test_the_service_behind_an_unprotected_request_is_told_nothing(door, protocol):
    key = new_key()
    for target, method in (("/off", "POST"), ("/pay", "PUT"), ("/optional", "POST")):
        door.attempt(key, target, method=method, value="-", protocol=protocol)
    assert not [name for request in door.upstream.seen(key) for name, _ in request.headers if name.lower().startswith("once-")]
