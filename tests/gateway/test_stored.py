# SPDX-License-Identifier: PostgreSQL
"""What the door stores of an answer and what a replay holds, what is in doubt, and what other doors have stored: each rule over HTTP/1.1 and HTTP/2."""

import threading
import time

import pytest

from harness.postgres import PATIENCE_S
from harness.upstream import NOT_NOW, Answer

from .door import PROTOCOLS, assert_problem, assert_replays, new_key, sorted_cases

HTTP = "upstream two { server unix:@dir@/nobody; server unix:@upstream@; }"
CONFIG = """
    once_tenant $http_x_tenant;
    location /pay { once required; once_scope pay; proxy_pass http://app; }
    location /alone { once required; once_scope alone; once_tenant none; proxy_pass http://app; }
    location /success { once required; once_scope success; once_store 2xx 3xx; proxy_pass http://app; }
    location /again { once required; once_scope again; once_in_doubt retry; proxy_read_timeout 1500ms; proxy_pass http://app; }
    location /doubt { once required; once_scope doubt; proxy_read_timeout 1500ms; proxy_pass http://app; }
    location /keep { once required; once_scope keep; once_headers Content-Type X-Kept-*; proxy_pass http://app; }
    location /verified { once required; once_scope verified; proxy_pass http://app; }
    location /expiring { once required; once_scope expiring; expires 1h; proxy_pass http://app; }
    location /unbuffered { once required; once_scope unbuffered; proxy_buffering off; proxy_pass http://app; }
    location /second { once required; once_scope second; proxy_pass http://two; }
    location /old { once required; once_scope old; proxy_http_version 1.0; proxy_pass http://app; }
"""


# ---- What is stored, and what a replay holds.

STORED_BY_DEFAULT = [200, 201, 202, 203, 204, 205, 207, 226, 299, 300, 301, 302, 303, 305, 306, 309]
STORED_BY_DEFAULT += [400, 401, 402, 403, 404, 405, 406, 407, 409, 410, 411, 412, 413, 414, 415, 416, 417, 418, 420, 422, 423, 424, 426, 428, 429, 430, 431, 451, 499]
# Each asks for the same request once more, so nothing was done. What other failures are is in test_server_errors.py.
ASKING = {401: ("WWW-Authenticate", "Bearer"), 407: ("Proxy-Authenticate", "Basic"), 421: ("X-Nothing", "1"), 425: ("X-Nothing", "1")}
ASKING |= {status: ("Location", "/pay") for status in (307, 308)} | {status: ("Retry-After", "1") for status in (403, 408, 409, 423, 429, 503)}


@pytest.mark.parametrize("status", STORED_BY_DEFAULT)
def test_an_answer_below_500_is_stored_and_replayed(door, status):
    key = new_key()
    body = b"" if status in (204, 205) else b"the answer"
    door.upstream.script(key, Answer(status, headers=(("Content-Type", "text/plain"), ("Location", "http://else.where/x")), body=body))
    first = door.attempt(key)
    assert (first.status, first.body) == (status, body)
    for protocol in PROTOCOLS:
        again = assert_replays(door, key, first, protocol=protocol)
        assert again.header("Location") == "http://else.where/x"
        if status == 204:
            assert again.header("Content-Length") is None and again.header("Transfer-Encoding") is None
        elif protocol == "HTTP/1.1":
            assert again.header("Content-Length") == str(len(body))


@pytest.mark.parametrize("status", ASKING)
def test_an_answer_that_says_try_again_is_passed_on_and_the_retry_runs(door, status):
    key = new_key()
    door.upstream.script(key, Answer(status, headers=(ASKING[status],), body=b"not now"), Answer(201, body=b"now"))
    first = door.attempt(key)
    assert (first.status, first.body, first.header(ASKING[status][0])) == (status, b"not now", ASKING[status][1])
    second = door.attempt(key)
    assert (second.status, second.body, second.replayed) == (201, b"now", False)
    assert door.count(key) == 2
    assert_replays(door, key, second)


@pytest.mark.parametrize("status", ASKING)
def test_an_answer_that_says_try_again_is_stored_where_the_service_says_that_it_is_done(door, status):
    key = new_key()
    headers = (("Content-Type", "text/plain"), ASKING[status], ("Once-Effect", "done"))
    door.upstream.script(key, Answer(status, headers=headers, body=b"for good"), Answer(201, body=b"again"))
    first = door.attempt(key)
    assert (first.status, first.body) == (status, b"for good")
    assert_replays(door, key, first)
    assert door.count(key) == 1


def test_an_expired_token_is_not_the_answer_to_a_good_one(door):
    """Clients refresh a token and retry with the same key: so a 401 that asks for one is no outcome."""
    key = new_key()
    refusal = Answer(401, headers=(("WWW-Authenticate", "Bearer"),), body=b"expired")
    checks = Answer(do=lambda request: Answer(201, body=b"paid") if request.header("Authorization") == "Bearer good" else refusal)
    door.upstream.script(key, checks)
    for _ in range(2):
        refused = door.attempt(key, headers=[("Authorization", "Bearer old")])
        assert (refused.status, refused.body, refused.replayed) == (401, b"expired", False)
    paid = door.attempt(key, headers=[("Authorization", "Bearer good")])
    assert (paid.status, paid.body, paid.replayed) == (201, b"paid", False)
    assert_replays(door, key, paid, headers=[("Authorization", "Bearer good")])
    assert door.count(key) == 3


@pytest.mark.parametrize("status", [307, 308])
def test_a_redirect_that_keeps_method_and_body_is_followed_with_the_same_key(door, protocol, status):
    """As curl -L does. The next request goes to another location, or to another server's same one; in one scope another target is another request."""
    key = new_key()
    door.upstream.script(key, Answer(status, headers=(("Location", "/alone/17"),), body=b""), Answer(201, body=b"paid"))
    first = door.attempt(key, protocol=protocol)
    assert (first.status, first.header("Location"), first.replayed) == (status, "/alone/17", False)
    assert_problem(door.attempt(key, "/pay/there", protocol=protocol), 422, "mismatch")
    assert door.count(key) == 1
    for target in ("/alone/17", "/pay"):
        second = door.attempt(key, target, protocol=protocol)
        assert (second.status, second.body, second.replayed) == (201, b"paid", False)
        assert_replays(door, key, second, target, protocol=protocol)
    assert door.count(key) == 3


@pytest.mark.parametrize("target", ["/pay", "/unbuffered", "/second", "/old"])
@pytest.mark.parametrize("interim", [(100,), (103,), (102, 103, 103)], ids=str)
def test_interim_answers_are_not_the_answer(door, protocol, target, interim):
    """After them comes the answer, which is stored; from the second server, too, where the first one takes no connection."""
    for framing in ("length", "chunked", "close"):
        key = new_key()
        said = (("Content-Type", "text/plain"), ("X-Said", "once"))
        door.upstream.script(key, Answer(201, headers=said, body=b"paid", framing=framing, interim=interim))
        first = door.attempt(key, target, protocol=protocol)
        assert (first.status, first.body, first.header("X-Said"), first.header("Link"), first.whole) == (201, b"paid", "once", None, True)
        assert_replays(door, key, first, target, protocol=protocol)
        assert door.count(key) == 1


def test_an_interim_answer_without_one_that_follows_is_in_doubt(door):
    key = new_key()
    door.upstream.script(key, Answer(103, interim=(100,), framing="close"))
    assert_problem(door.attempt(key), 502, "unanswered")
    assert door.state(key) == "in_doubt" and door.count(key) == 1


@pytest.mark.parametrize("status", [404, 451])
def test_only_the_classes_that_the_location_names_are_stored(door, protocol, status):
    """What is not stored is in doubt: that it may run again is once_release's to say."""
    key = new_key()
    door.upstream.script(key, Answer(status, body=b"first"), Answer(200, body=b"second"))
    assert door.attempt(key, "/success", protocol=protocol).status == status
    assert_problem(door.attempt(key, "/success", protocol=protocol), 409, "in-doubt")
    assert door.count(key) == 1


BODIES = {
    "empty": b"",
    "one byte": b"x",
    "every byte": bytes(range(256)),
    "not UTF-8": b"\xff\xfe\x00\x01" * 100,
    "64 KB": bytes(range(256)) * 256,
}


@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
@pytest.mark.parametrize("body", sorted_cases(BODIES))
def test_a_replay_has_the_answers_bytes_however_they_were_framed(door, protocol, framing, body):
    key = new_key()
    door.upstream.script(key, Answer(200, body=body, framing=framing, piece=1000, version="1.0" if framing == "close" else "1.1"))
    first = door.attempt(key, protocol=protocol)
    assert (first.status, first.body, first.whole) == (200, body, True)
    assert door.stored(key).response_body == body
    again = assert_replays(door, key, first, protocol=protocol)
    assert again.header("Content-Length") == str(len(body))


KEPT = {
    "Content-Type": 'application/json; charset="utf-8"',
    "Content-Language": "de, en",
    "Content-Disposition": 'attachment; filename="a b.txt"',
    "Location": "/pay/17?a=b&c=%20",
    "Link": "</next>; rel=next",
    "ETag": 'W/"abc"',
    "Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT",
    "Cache-Control": "no-store",
    "Vary": "X-Tenant",
    "X-Request-Id": "17",
    "X-Latin": "caf\xe9",
    "X-Quoted": 'a "b" \\c {"d": 1}',
}
NEVER_KEPT = {
    "Set-Cookie": "session=secret",
    "Set-Cookie2": "session=secret",
    "WWW-Authenticate": 'Basic realm="x"',
    "Proxy-Authenticate": 'Basic realm="x"',
    "Authentication-Info": "nextnonce=1",
    "Keep-Alive": "timeout=5",
    "Proxy-Connection": "keep-alive",
    "Trailer": "X-Checksum",
    "Upgrade": "websocket",
    "Age": "17",
    "Server": "upstream/1",
    "Once-Fence": "17",
    "Once-Anything": "forged-17",
}


@pytest.mark.parametrize("name", KEPT)
def test_a_replay_keeps_the_headers_that_describe_the_answer(door, protocol, name):
    key = new_key()
    door.upstream.script(key, Answer(201, headers=((name, KEPT[name]),)))
    first = door.attempt(key, protocol=protocol)
    again = assert_replays(door, key, first, protocol=protocol)
    # nginx makes an absolute Location of what names itself; the replay says the same.
    assert first.header(name) is not None
    assert again.header(name) == first.header(name)
    if name != "Location":
        assert again.header(name) == KEPT[name]


@pytest.mark.parametrize("name", NEVER_KEPT)
def test_a_replay_never_holds_headers_of_one_caller_or_one_connection(door, protocol, name):
    key = new_key()
    door.upstream.script(key, Answer(201, headers=(("Content-Type", "text/plain"), (name, NEVER_KEPT[name]))))
    first = door.attempt(key)  # over HTTP/2 nginx passes on what is of a connection, and the client refuses it
    again = assert_replays(door, key, first, protocol=protocol)
    assert NEVER_KEPT[name] not in again.all(name)
    assert NEVER_KEPT[name] not in str(door.stored(key).response_headers)
    assert again.header("Content-Type") == "text/plain"


def test_headers_of_one_caller_reach_the_caller_that_they_are_for(door, protocol):
    key = new_key()
    door.upstream.script(key, Answer(201, headers=(("Set-Cookie", "a=1"), ("Set-Cookie", "b=2"))))
    assert door.attempt(key, protocol=protocol).all("Set-Cookie") == ["a=1", "b=2"]
    assert door.attempt(key, protocol=protocol).all("Set-Cookie") == []


def test_what_a_location_says_of_caching_stands_in_a_replay_once(door, protocol):
    key = new_key()
    said = (("Cache-Control", "max-age=5"), ("Cache-Control", "private"), ("Expires", "Thu, 01 Jan 1970 00:00:01 GMT"))
    door.upstream.script(key, Answer(201, headers=said))
    first = door.attempt(key, "/expiring", protocol=protocol)
    assert first.all("Cache-Control") == ["max-age=3600"] and len(first.all("Expires")) == 1
    again = assert_replays(door, key, first, "/expiring", protocol=protocol)
    assert again.all("Cache-Control") == ["max-age=3600"] and len(again.all("Expires")) == 1


def test_a_header_that_comes_twice_is_replayed_twice_and_in_its_order(door, protocol):
    key = new_key()
    links = (("Link", "<a>"), ("X-Other", "1"), ("Link", "<b>"), ("Link", "<a>"))
    door.upstream.script(key, Answer(201, headers=links))
    first = door.attempt(key, protocol=protocol)
    again = assert_replays(door, key, first, protocol=protocol)
    assert first.all("Link") == again.all("Link") == ["<a>", "<b>", "<a>"]


def test_a_replay_has_a_date_of_its_own(door, protocol):
    key = new_key()
    door.upstream.script(key, Answer(201, headers=(("Date", "Thu, 01 Jan 1970 00:00:00 GMT"),)))
    first = door.attempt(key, protocol=protocol)
    again = assert_replays(door, key, first, protocol=protocol)
    assert "1970" not in again.header("Date")


@pytest.mark.parametrize(
    "header",
    [
        ("If-None-Match", '"tag"'),
        ("If-None-Match", "*"),
        ("If-Match", '"other"'),
        ("If-Modified-Since", "Wed, 21 Oct 2015 07:28:00 GMT"),
        ("If-Unmodified-Since", "Wed, 21 Oct 2014 07:28:00 GMT"),
        ("Range", "bytes=0-1"),
        ("Accept-Encoding", "gzip"),
    ],
)
def test_headers_of_the_retry_do_not_change_what_is_replayed(door, header):
    key = new_key()
    headers = (("ETag", '"tag"'), ("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT"), ("Accept-Ranges", "bytes"))
    door.upstream.script(key, Answer(200, headers=headers, body=b"the whole answer"))
    first = door.attempt(key, headers=[header])
    assert (first.status, first.body) == (200, b"the whole answer")
    assert_replays(door, key, first, headers=[header])
    assert_replays(door, key, first)


def test_the_location_says_which_headers_are_kept_but_never_the_callers_own(door, protocol):
    key = new_key()
    headers = [("Content-Type", "text/plain"), ("X-Kept-A", "1"), ("x-kept-b", "2"), ("X-Lost", "3"), ("ETag", '"4"'), ("Set-Cookie", "c=5")]
    door.upstream.script(key, Answer(201, headers=tuple(headers)))
    first = door.attempt(key, "/keep", protocol=protocol)
    assert first.header("X-Lost") == "3"
    again = assert_replays(door, key, first, "/keep", protocol=protocol)
    found = [again.header(name) for name, _ in headers]
    assert found == ["text/plain", "1", "2", None, None, None]


def test_the_first_answer_is_not_marked_as_a_replay_even_if_the_upstream_says_so(door, protocol):
    key = new_key()
    door.upstream.script(key, Answer(201, headers=(("Idempotency-Replayed", "true"),)))
    first = door.attempt(key, protocol=protocol)
    assert first.status == 201 and not first.replayed
    assert_replays(door, key, first, protocol=protocol)


def test_an_answer_is_stored_before_it_is_sent(door, protocol):
    for _ in range(5):
        key = new_key()
        answer = door.attempt(key, protocol=protocol)
        row = door.stored(key)
        assert (row.state, row.response_status, row.response_body) == ("succeeded", answer.status, answer.body)


def test_not_a_byte_of_an_answer_is_sent_before_all_of_it_is_stored(door):
    key, rest = new_key(), threading.Event()
    door.upstream.script(key, Answer(200, body=b"x" * 4000, hold_rest=rest))
    with door.send(key) as connection:
        door.upstream.wait(key)
        connection.socket.settimeout(0.5)
        with pytest.raises(TimeoutError):
            connection.socket.recv(1)
        assert door.state(key) == "processing"
        connection.socket.settimeout(20)
        rest.set()
        assert connection.receive().body == b"x" * 4000
    assert door.state(key) == "succeeded"


def claim_as_the_door(door, key, scope, lease="1 minute"):
    """A claim by hand of an intent that has the fingerprint which the door gives this request: the door made it, and released it. One
    execution has been counted."""
    door.upstream.script(key, NOT_NOW, Answer(201))
    assert door.attempt(key, f"/{scope}").status == 503
    fence = door.database.value(
        "SELECT c.fence FROM once.intent AS i, once.claim(i.scope, i.key, i.fingerprint, lease => %s, tenant => i.tenant) AS c"
        " WHERE i.key = %s AND i.scope = %s",
        lease,
        key,
        scope,
    )
    door.database.execute("SELECT pg_sleep(0.01)")  # a lease of a millisecond has passed
    return fence


# ---- In doubt.

ENDS_IN_DOUBT = {
    "no answer": Answer(close=True),
    "a reset": Answer(reset=True),
    "an answer cut in its body": Answer(200, body=b"x" * 1000, cut=500),
    "an answer cut before its body": Answer(200, body=b"x" * 1000, cut=0),
    "a chunked answer cut": Answer(200, body=b"x" * 1000, framing="chunked", piece=100, cut=500),
    "a timeout": Answer(hold=threading.Event()),
    "a timeout in the body": Answer(200, body=b"x" * 1000, hold_rest=threading.Event()),
}


def attempt_to_doubt(door, key, target, protocol):
    """The client gets no answer, a cut one, or an error: never one that looks whole and good."""
    try:
        answer = door.attempt(key, target, protocol=protocol)
    except ConnectionError:
        return
    assert not answer.whole or answer.status >= 500, answer


@pytest.mark.parametrize("ending", sorted_cases(ENDS_IN_DOUBT))
def test_a_request_that_left_and_brought_no_whole_answer_is_in_doubt_and_not_run_again(door, protocol, ending):
    key = new_key()
    door.upstream.script(key, ending, Answer(201))
    attempt_to_doubt(door, key, "/doubt", protocol)
    door.wait_state(key, "in_doubt", "doubt")
    for _ in range(2):
        assert_problem(door.attempt(key, "/doubt", protocol=protocol), 409, "in-doubt")
    assert door.count(key) == 1


@pytest.mark.parametrize("ending", sorted_cases(ENDS_IN_DOUBT))
def test_a_request_in_doubt_runs_again_where_the_upstream_is_idempotent_itself(door, protocol, ending):
    key = new_key()
    door.upstream.script(key, ending, Answer(201, body=b"second"))
    attempt_to_doubt(door, key, "/again", protocol)
    deadline = time.monotonic() + PATIENCE_S
    while (second := door.attempt(key, "/again", protocol=protocol)).status == 409 and time.monotonic() < deadline:
        assert_problem(second, 409, "active")  # the end of the first attempt is being stored
    assert (second.status, second.body, second.replayed) == (201, b"second", False)
    assert_replays(door, key, second, "/again", protocol=protocol)
    assert door.count(key) == 2


def test_a_mismatch_is_found_before_in_doubt(door, protocol):
    key = new_key()
    door.upstream.script(key, Answer(close=True))
    attempt_to_doubt(door, key, "/doubt", protocol)
    door.wait_state(key, "in_doubt", "doubt")
    assert_problem(door.attempt(key, "/doubt", body=b"other", protocol=protocol), 422, "mismatch")


def test_what_an_operator_decides_ends_the_doubt(door, protocol):
    for decision, expected in (("succeeded", (201, b"found", True)), ("failed_retryable", (201, b"second", False))):
        key = new_key()
        door.upstream.script(key, Answer(close=True), Answer(201, body=b"second"))
        attempt_to_doubt(door, key, "/doubt", protocol)
        door.wait_state(key, "in_doubt", "doubt")
        door.database.execute(
            "SELECT once.resolve('doubt', %s, %s, 'looked it up', response_status => 201, response_text => 'found', tenant => 'acme')",
            key,
            decision,
        )
        answer = door.attempt(key, "/doubt", protocol=protocol)
        assert (answer.status, answer.body, answer.replayed) == expected


@pytest.mark.parametrize("found", ["happened", "absent", "unknown"])
def test_what_the_scopes_verify_function_finds_decides_on_an_attempt_that_was_lost(door, protocol, found):
    key, database = new_key(), door.database
    database.execute(
        f"CREATE OR REPLACE FUNCTION public.{found}(text, text, text) RETURNS once.verification LANGUAGE sql AS"
        f" $$SELECT '{found}', 201, 'looked up'::bytea, NULL::jsonb, NULL, NULL$$"
    )
    database.execute("SELECT once.set_scope('verified', verify => %s)", f"public.{found}")
    claim_as_the_door(door, key, "verified", lease="1 millisecond")
    answer = door.attempt(key, "/verified", protocol=protocol)
    if found == "happened":
        assert (answer.status, answer.body, answer.replayed) == (201, b"looked up", True)
    elif found == "absent":
        assert (answer.status, answer.replayed, door.count(key)) == (201, False, 2)
    else:
        assert_problem(answer, 409, "in-doubt")


# ---- Outcomes without an HTTP answer, and those that hand-written SQL stored.


def test_an_intent_that_is_done_without_a_stored_answer_says_so_and_does_not_run(door, protocol):
    key = new_key()
    fence = claim_as_the_door(door, key, "pay")
    door.database.execute("SELECT once.complete('pay', %s, %s, result_id => 'x', tenant => 'acme')", key, fence)
    assert_problem(door.attempt(key, protocol=protocol), 409, "no-answer")
    assert door.count(key) == 1


def test_an_intent_that_failed_for_good_replays_what_was_stored_of_it(door, protocol):
    key = new_key()
    fence = claim_as_the_door(door, key, "pay")
    door.database.execute(
        "SELECT once.fail('pay', %s, %s, false, response_status => 402, response_text => 'broke', tenant => 'acme')", key, fence
    )
    answer = door.attempt(key, protocol=protocol)
    assert (answer.status, answer.body, answer.replayed) == (402, b"broke", True)
    assert door.count(key) == 1


def test_headers_that_hand_written_sql_stored_are_replayed(door, protocol):
    key = new_key()
    fence = claim_as_the_door(door, key, "pay")
    door.database.execute(
        "SELECT once.complete('pay', %s, %s, 201, 'x', response_headers => '{\"Content-Type\": \"text/csv\", \"Link\": [\"<a>\", \"<b>\"],"
        " \"Set-Cookie\": \"a=b\"}', tenant => 'acme')",
        key,
        fence,
    )
    answer = door.attempt(key, protocol=protocol)
    assert (answer.status, answer.body, answer.replayed) == (201, b"x", True)
    assert answer.header("Content-Type") == "text/csv" and answer.all("Link") == ["<a>", "<b>"] and not answer.all("Set-Cookie")
