# SPDX-License-Identifier: PostgreSQL
"""The sink webhook: what is sent, how it is signed, and what each answer means for the event, without a relay before it (tests/relay/sinks.py); and
the whole way, with one."""
import base64
import hashlib
import hmac
import subprocess
import time

import pytest

from harness.postgres import clean_environment, wait_until
from harness.webhook import Answer, Webhook, always, per_event

from .running import PROGRAM, Relay, emit, webhook
from .sinks import SANITIZED, Sink, problem_of

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
OTHER = "whsec_" + base64.b64encode(bytes(range(100, 132))).decode()
EVENT = "0193b2a0-5f3e-8c11-9d2a-3f1b6a0c7e55"
ENVELOPE = {"Pgonce-Event-Id": EVENT, "Pgonce-Topic": "order.created", "traceparent": "00-1-2-03"}


@pytest.fixture
def hook():
    with Webhook() as endpoint:
        yield endpoint


@pytest.fixture
def sink(tmp_path, hook):
    """Opens the sink with these options beside those that let it call the endpoint of the test."""
    opened = []

    def sink(**options):
        named = {"sink": "webhook", "url": hook.url, "allow_private": "yes", "allow_plain": "yes", "timeout": "10s", **options}
        made = Sink(tmp_path / "pgonce.conf", {name: value for name, value in named.items() if value is not None}, build=SANITIZED)
        opened.append(made)
        return made

    yield sink
    for each in opened:
        each.__exit__(None)


def verify(secret, request):
    """As a receiver does, by www.standardwebhooks.com."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{request.header('webhook-id')}.{request.header('webhook-timestamp')}.".encode() + request.body
    expected = "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return expected in request.header("webhook-signature").split(" ")


# what is sent

def test_an_event_is_posted_with_its_envelope_and_its_id_twice_over(hook, sink):
    result = sink().deliver(hook.url + "hooks/order.created", '{"id": 7}', event_id=EVENT, headers=ENVELOPE)
    assert result == {"event_id": EVENT, "verdict": "delivered", "retry_after_ms": -1, "problem": ""}
    (request,) = hook.requests
    assert (request.method, request.target, request.body) == ("POST", "/hooks/order.created", b'{"id": 7}')
    for name, value in {**ENVELOPE, "Content-Type": "application/json", "Idempotency-Key": f'"{EVENT}"', "webhook-id": EVENT,
                        "webhook-signature": None}.items():
        assert request.header(name) == value
    assert abs(int(request.header("webhook-timestamp")) - time.time()) < 60


def test_an_event_is_signed_as_standard_webhooks_say(hook, sink):
    sink(secret=SECRET).deliver(hook.url, '{"name": "é"}', event_id=EVENT)
    (request,) = hook.requests
    assert verify(SECRET, request) and not verify(OTHER, request)


def test_the_signature_is_that_of_the_specifications_example(hook, sink):
    """The library's own test vector has another time and id; the scheme is the same: here with the body empty."""
    sink(secret=SECRET).deliver(hook.url, "", event_id=EVENT)
    assert verify(SECRET, hook.requests[0]) and hook.requests[0].body == b""


def test_while_a_secret_is_replaced_both_sign(hook, sink, tmp_path):
    (tmp_path / "secret").write_text(OTHER + "\n")
    sink(secret=SECRET, secret_file=tmp_path / "secret").deliver(hook.url, event_id=EVENT)
    (request,) = hook.requests
    assert len(request.header("webhook-signature").split(" ")) == 2
    assert verify(SECRET, request) and verify(OTHER, request)


def test_each_attempt_is_signed_with_its_own_time(hook, sink):
    opened = sink(secret=SECRET)
    hook.script = always(Answer(500), Answer())
    opened.deliver(hook.url, event_id=EVENT)
    first = int(hook.requests[0].header("webhook-timestamp"))
    wait_until(lambda: time.time() > first + 1.1, "the next second")
    opened.deliver(hook.url, event_id=EVENT)
    first, second = hook.requests
    assert int(second.header("webhook-timestamp")) > int(first.header("webhook-timestamp"))
    assert first.header("webhook-id") == second.header("webhook-id") and verify(SECRET, second)


def test_headers_of_the_configuration_are_sent(hook, sink, tmp_path):
    (tmp_path / "headers").write_text("Authorization: Bearer hush\nX-Two:  b c \n")
    sink(header=["X-One: a", "traceparent: mine"], header_file=tmp_path / "headers").deliver(hook.url, headers=ENVELOPE)
    (request,) = hook.requests
    assert [request.header(name) for name in ("X-One", "Authorization", "X-Two", "traceparent")] == ["a", "Bearer hush", "b c", "mine"]


@pytest.mark.parametrize("name", ["Content-Length", "Transfer-Encoding", "Host", "Connection", "webhook-id", "Webhook-Signature", "Idempotency-Key",
                                  "content-type", "Expect"])
def test_no_header_of_an_event_changes_what_the_call_is(hook, sink, name):
    result = sink(secret=SECRET).deliver(hook.url, '{"id": 7}', event_id=EVENT, headers={name: "0", "X-Other": "kept"})
    assert result["verdict"] == "delivered"
    (request,) = hook.requests
    assert request.header(name) != "0" and request.header("X-Other") == "kept"
    assert request.body == b'{"id": 7}' and verify(SECRET, request)


def test_a_header_that_would_be_two_is_refused(hook, sink):
    result = sink().deliver(hook.url, headers={"X-One": "a\r\nX-Two: b"})
    assert result["verdict"] == "refused" and "X-One" in result["problem"] and hook.requests == []


# what an answer means

@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_every_2xx_is_delivered(hook, sink, status):
    hook.script = always(Answer(status))
    assert sink().deliver(hook.url)["verdict"] == "delivered"


@pytest.mark.parametrize("status", [301, 400, 401, 404, 409, 422, 500, 502, 504])
def test_every_other_status_is_refused_with_what_the_receiver_says(hook, sink, status):
    hook.script = always(Answer(status, (("Location", hook.url + "x"), ("Retry-After", "9")), "no  such\r\n\x1b[2J customer é".encode()))
    result = sink().deliver(hook.url)
    assert (result["verdict"], result["retry_after_ms"]) == ("refused", -1)
    assert result["problem"].startswith(f"HTTP {status}") and "no such [2J customer ??" in result["problem"]
    assert len(hook.requests) == 1


@pytest.mark.parametrize("final, statuses", [
    (None, {410}),
    ("none", set()),
    ("404, 410,5xx", {404, 410, 500, 599}),
    ("4xx", {400, 404, 410, 499}),
    ("3xx", {301})])
def test_a_status_may_be_final(hook, sink, final, statuses):
    opened = sink(**{} if final is None else {"final": final})
    for status in (301, 400, 404, 408, 410, 425, 429, 499, 500, 503, 599):
        hook.script = always(Answer(status, (("Retry-After", "9"),), b"gone for good"))
        result = opened.deliver(hook.url)
        assert result["verdict"] == ("final" if status in statuses else "refused"), status
        assert result["problem"] == f"HTTP {status}{', a redirect: they are not followed, name the final URL' if status == 301 else ''}: gone for good"


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("header, milliseconds", [("7", 7000), ("Wed, 21 Oct 2099 07:28:00 GMT", 86400000), ("99999999999", 86400000), (None, -1)])
def test_a_receiver_that_asks_for_time_gets_it_but_no_more_than_a_day(hook, sink, status, header, milliseconds):
    hook.script = always(Answer(status, (("Retry-After", header),) if header else ()))
    result = sink().deliver(hook.url)
    assert (result["verdict"], result["retry_after_ms"]) == ("refused", milliseconds)


def test_a_long_answer_is_cut(hook, sink):
    hook.script = always(Answer(500, body=b"x" * 1000000))
    assert 100 < len(sink().deliver(hook.url)["problem"]) < 256


@pytest.mark.parametrize("answer", [Answer(cut=0), Answer(200, body=b"x" * 100, cut=60), Answer(reset=True), Answer(hang=True)],
                         ids=["closed", "cut", "reset", "hangs"])
def test_without_a_whole_answer_the_event_is_refused_not_the_sink_away(hook, sink, answer):
    hook.script = always(answer)
    result = sink(timeout="500ms").deliver(hook.url)
    assert result["verdict"] == "refused" and "sent, and no answer" in result["problem"]


def test_an_endpoint_that_is_not_there_is_the_sink_away(hook, sink):
    opened = sink()
    hook.refuse()
    assert opened.deliver(hook.url)["verdict"] == "unavailable"
    hook.accept()
    assert opened.deliver(hook.url)["verdict"] == "delivered"


def test_an_unknown_host_is_the_sink_away(hook, sink):
    result = sink(url="https://no-such-host.invalid/").deliver("https://no-such-host.invalid/")
    assert result["verdict"] == "unavailable" and "no-such-host.invalid" in result["problem"]


@pytest.mark.parametrize("routes", [["a -> http://127.0.0.1:1/", "b -> http://127.0.0.2:1/"], ["* -> http://{tenant}.invalid:1/"]])
def test_with_several_endpoints_one_that_is_not_there_stops_only_its_own_events(sink, routes):
    assert sink(url=None, route=routes).deliver("http://127.0.0.1:1/")["verdict"] == "refused"


def test_several_paths_of_one_host_are_one_endpoint(sink):
    routes = ["a -> http://127.0.0.1:1/a", "* -> http://127.0.0.1:1/{topic}"]
    assert sink(url=None, route=routes).deliver("http://127.0.0.1:1/a")["verdict"] == "unavailable"


def test_a_private_address_is_refused_and_the_option_named(hook, sink):
    result = sink(allow_private="no").deliver(hook.url)
    assert result["verdict"] == "refused" and "allow_private" in result["problem"] and hook.connection_count == 0


def test_a_destination_that_is_no_url_is_refused(sink):
    assert "not a URL" in sink().deliver("order.created")["problem"]


def test_tls_is_verified(tmp_path, sink):
    with Webhook(tls=tmp_path) as hook:
        assert sink(url=hook.url, allow_plain="no").deliver(hook.url)["verdict"] == "unavailable"
        assert sink(url=hook.url, allow_plain="no", ca_file=tmp_path / "ca.pem").deliver(hook.url)["verdict"] == "delivered"


# many

def test_events_are_posted_in_parallel_up_to_in_flight(hook, sink):
    hook.script = always(Answer(hang=True))
    opened = sink(in_flight=8)
    for _ in range(20):
        opened.send(hook.url)
    hook.wait(8)
    assert hook.open_now == 8
    hook.script = always()
    hook.release(Answer())
    assert [opened.result()["verdict"] for _ in range(20)] == ["delivered"] * 20 and hook.open_most == 8


def test_one_that_hangs_holds_no_other(hook, sink):
    hook.script = lambda request: Answer(hang=request.target == "/hangs")
    opened = sink(timeout="2s")
    hanging = opened.send(hook.url + "hangs")
    assert [opened.deliver(hook.url)["verdict"] for _ in range(5)] == ["delivered"] * 5
    assert opened.result()["event_id"] == hanging


def test_closing_forgets_what_is_in_flight(hook, sink):
    hook.script = always(Answer(hang=True))
    opened = sink()
    opened.send(hook.url)
    hook.wait(1)
    opened.__exit__(None)
    assert opened.process.returncode == 0


# the configuration

@pytest.mark.parametrize("options, problem", [
    ({"url": None}, "option url is missing"),
    ({"url": "shop"}, "url: this is not a URL"),
    ({"url": "http://h/", "allow_plain": "no"}, "url: http:// is not allowed"),
    ({"url": "ftp://h/"}, "url: only https:// and http://"),
    ({"url": "https://{host}/"}, "url: this is not a URL"),
    ({"route": "* -> https://h/"}, "url: is not used where there are routes"),
    ({"url": None, "route": "* -> shop"}, "route: this is not a URL"),
    ({"secret": "hush"}, "secret: this is no secret: write whsec_"),
    ({"secret": "whsec_" + base64.b64encode(b"x" * 23).decode()}, "this is no secret"),
    ({"secret": "whsec_" + base64.b64encode(b"x" * 65).decode()}, "this is no secret"),
    ({"secret": SECRET[:-2] + "!="}, "this is no secret"),
    ({"secret": [SECRET] * 9}, "more than 8 secrets"),
    ({"secret_file": "/nowhere"}, "secret_file: the file '/nowhere' cannot be used: No such file"),
    ({"header": "nonsense"}, "header: this is no header: write Name: value"),
    ({"header": "Host: x"}, "header: Host is set by pgonce itself"),
    ({"header": "webhook-id: x"}, "set by pgonce itself"),
    ({"certificate_file": "x"}, "certificate_file: certificate_file and key_file are given together"),
    ({"key_file": "x"}, "key_file: certificate_file and key_file"),
    ({"final": "200"}, "final: '200': write statuses from 300 to 599"),
    ({"final": "410, 503"}, "'503': write statuses from 300 to 599, 3xx, 4xx or 5xx, or none; 408, 425, 429 and 503 ask for another attempt"),
    ({"final": "410 41"}, "'41'"),
    ({"final": "410,none"}, "'none'"),
    ({"final": "41x"}, "'41x'"),
    ({"final": "2xx"}, "'2xx'"),
    ({"final": "4100"}, "'4100'"),
    ({"final": ","}, "final: write statuses, or none"),
    ({"ca_file": "/nowhere"}, "ca_file: cannot read /nowhere: No such file"),
    ({"allow_private": "maybe"}, "allow_private: 'maybe': write yes or no")])
def test_a_wrong_configuration_is_refused_with_its_line(tmp_path, options, problem):
    named = {"sink": "webhook", "url": "https://h/", **options}
    said = problem_of(tmp_path / "pgonce.conf", {name: value for name, value in named.items() if value is not None})
    assert said is not None and problem in said and "pgonce.conf:" in said


@pytest.mark.parametrize("options", [{}, {"url": "https://h/{topic}/{tenant}?a={topic}"}, {"url": None, "route": ["a -> https://h/{topic}", "* -> https://i/"]},
                                     {"url": "https://u:p@h:8443/x", "secret": [SECRET, OTHER], "header": "A: b"},
                                     {"secret": "whsec_" + base64.b64encode(b"x" * 24).decode()}, {"secret": "whsec_" + base64.b64encode(b"x" * 64).decode()}])
def test_a_right_one_is_taken(tmp_path, options):
    named = {"sink": "webhook", "url": "https://h/", **options}
    assert problem_of(tmp_path / "pgonce.conf", {name: value for name, value in named.items() if value is not None}) is None


def test_no_secret_is_told(hook, sink):
    opened = sink(secret=SECRET, url=hook.url.replace("//", "//alice:hush@"))
    hook.refuse()
    problem = opened.deliver(hook.url.replace("//", "//alice:hush@"))["problem"]
    assert "hush" not in problem and SECRET not in problem


# the whole way

def test_an_event_goes_from_emit_to_a_signed_call_at_the_url_of_its_topic(db, tmp_path, hook):
    ids = emit(db.connect(), 2, topic="order/created ü", aggregate="'A 7'")
    assert Relay(tmp_path, db.dsn(), **webhook(hook, url=hook.url + "hooks/{topic}?t={tenant}", secret=SECRET)).once() == 0
    first, second = hook.requests
    assert [first.event_id, second.event_id] == ids == [first.header("webhook-id"), second.header("webhook-id")]
    assert first.target == "/hooks/order%2Fcreated%20%C3%BC?t=" and first.json == {"n": 0} and verify(SECRET, first) and verify(SECRET, second)


def test_an_operator_sees_a_dead_event_and_has_it_tried_again(db, tmp_path, hook):
    def parked(*words):
        return subprocess.run([PROGRAM, "parked", "--dsn", db.dsn(), *words], capture_output=True, text=True, env=clean_environment(), check=True,
                              stdin=subprocess.DEVNULL, timeout=60).stdout

    first, second = emit(db.connect(), 2, aggregate="'7'")
    refused = [first, first]  # so often
    hook.script = lambda request: Answer(422, body=b"no such customer") if refused and refused.pop() == request.event_id else Answer()
    relay = Relay(tmp_path, db.dsn(), **webhook(hook, attempts=2, retry_first="1ms"))
    with relay:
        relay.until_true(lambda: " dead " in parked("list"), "a dead event")
        listed = parked("list")
        assert first in listed and "2 attempts: HTTP 422: no such customer" in listed and second in listed
        parked("retry", first, "--reason", "the customer is there now")
        hook.wait(4)
        relay.until_true(lambda: "nothing is parked" in parked("list"), "the end of it")
    assert hook.event_ids() == [first, first, first, second]


def test_an_event_that_is_refused_for_good_is_dead_at_once_and_an_operator_may_have_it_tried_again(db, tmp_path, hook):
    hook.script = lambda request: Answer(410) if request.json["n"] == 0 else Answer(404) if request.json["n"] == 2 else None
    first, second = emit(db.connect(), 2, aggregate="'7'")
    (other,) = emit(db.connect(), 1, first=2, aggregate="'8'")
    with Relay(tmp_path, db.dsn(), **webhook(hook, attempts=3, retry_first="1ms")) as relay:
        relay.until("dead", 2)
        assert {line["event_id"]: line["attempts"] for line in relay.log("dead")} == {first: "1", other: "3"}
        relay.until_true(lambda: {row.state for row in db.rows("SELECT state FROM once.parked_event WHERE aggregate_id = '8'")} == {"dead"}, "its row")
        hook.script = always(Answer())
        assert db.value("SELECT once.parked_retry(%s::text, 'it is there again', 'r')", first)
        hook.wait(6)
    assert sorted(hook.event_ids()) == sorted([first, first, second, other, other, other])


def test_a_receiver_that_asks_for_a_second_is_not_called_before(db, tmp_path, hook):
    hook.script = per_event(Answer(429, (("Retry-After", "1"),)), Answer())
    emit(db.connect(), 1)
    with Relay(tmp_path, db.dsn(), **webhook(hook, retry_first="1ms", retry_most="1m")):
        first, second = hook.wait(2)
    assert second.at - first.at >= 1


@pytest.mark.alone
def test_calls_of_twenty_milliseconds_do_not_wait_for_each_other(db, tmp_path, hook):
    """One after the other they would take 40 s."""
    hook.script = always(Answer(delay=0.02))
    ids = emit(db.connect(), 2000, aggregate="i::text")
    relay = Relay(tmp_path, db.dsn(), **webhook(hook, secret=SECRET))
    begun = time.monotonic()
    assert relay.once() == 0
    assert time.monotonic() - begun < 10
    assert sorted(hook.event_ids()) == sorted(ids)
    assert hook.open_most > 20 and hook.connection_count <= 256
