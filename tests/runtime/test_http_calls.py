# SPDX-License-Identifier: PostgreSQL
"""HTTP calls (runtime/http_client.c): what came back, and what is certain when nothing did. Under the sanitizers, but for what is measured."""
import json
import os
import pathlib
import subprocess

import pytest

from harness.broker import free_port
from harness.postgres import PATIENCE_S, ROOT, clean_environment
from harness.webhook import Answer, Webhook, always

SANITIZED = pathlib.Path(os.environ.get("PGONCE_BUILD_SANITIZED", ROOT / "build-sanitized"))
OPEN = ("private", "plain")


@pytest.fixture
def hook():
    with Webhook() as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return tmp_path_factory.mktemp("keys")


def play(*words, environment=None):
    done = subprocess.run([SANITIZED / "tests/runtime/play_http", *map(str, words)], capture_output=True, text=True, timeout=PATIENCE_S * 2,
                          stdin=subprocess.DEVNULL, env=clean_environment() | {"UBSAN_OPTIONS": "halt_on_error=1"} | (environment or {}), check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def call(*words, **named):
    (result,) = play(*words, **named)
    return result


def test_an_answer_comes_with_its_status_type_and_body(hook):
    hook.script = always(Answer(422, (("Content-Type", "application/problem+json"),), b'{"a": 1}'))
    result = call(*OPEN, "header=X-One: 1", "header=X-Empty:", "body=10", hook.url + "path?a=b")
    assert result == {"url": hook.url + "path?a=b", "result": "answered", "status": 422, "retry_after_ms": -1, "body": '{"a": 1}',
                      "content_type": "application/problem+json", "problem": ""}
    (request,) = hook.requests
    assert (request.method, request.target, request.body) == ("POST", "/path?a=b", b"b" * 10)
    assert (request.header("X-One"), request.header("X-Empty"), request.header("Content-Type"), request.header("Expect")) == ("1", "", None, None)


def test_without_a_permit_no_request_goes_out(hook):
    result = call(*OPEN, hook.url, "withheld")
    assert (result["result"], hook.seen()) == ("withheld", [])


def test_a_large_body_is_sent_whole_and_without_asking(hook):
    assert call(*OPEN, "body=3000000", hook.url)["status"] == 200
    assert len(hook.requests[0].body) == 3000000 and hook.requests[0].header("Expect") is None


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_an_answer_and_is_not_followed(hook, status):
    hook.script = always(Answer(status, (("Location", hook.url + "elsewhere"),)))
    assert call(*OPEN, hook.url)["status"] == status
    assert [request.target for request in hook.requests] == ["/"]


@pytest.mark.parametrize("header, milliseconds", [("7", 7000), ("0", -1), ("-3", -1), ("soon", -1), ("Wed, 21 Oct 2015 07:28:00 GMT", -1)])
def test_how_long_the_receiver_asks_to_wait_is_told(hook, header, milliseconds):
    hook.script = always(Answer(503, (("Retry-After", header),)))
    assert call(*OPEN, hook.url)["retry_after_ms"] == milliseconds


def test_a_date_to_wait_for_is_told_as_time_from_now(hook):
    hook.script = always(Answer(429, (("Retry-After", "Wed, 21 Oct 2099 07:28:00 GMT"),)))
    assert call(*OPEN, hook.url)["retry_after_ms"] > 365 * 86400 * 1000


def test_one_answers_wait_is_not_the_next_ones(hook):
    hook.script = always(Answer(503, (("Retry-After", "7"), ("Content-Type", "text/a"))), Answer(500))
    first, second = play(*OPEN, "one_by_one", "times=2", hook.url)
    assert (first["retry_after_ms"], second["retry_after_ms"]) == (7000, -1)
    assert (first["content_type"], second["content_type"]) == ("text/a", None)


def test_a_long_answer_is_cut_and_the_connection_used_again(hook):
    hook.script = always(Answer(body=b"x" * 100000))
    results = play(*OPEN, "one_by_one", "times=3", "keep=10", hook.url)
    assert [result["body"] for result in results] == ["x" * 10] * 3
    assert {request.connection for request in hook.requests} == {1}


def test_an_answer_without_end_is_broken_off_and_its_status_counts(hook):
    hook.script = always(Answer(201, endless=True))
    result = call(*OPEN, "keep=10", "timeout=30000", hook.url)
    assert (result["result"], result["status"], result["body"]) == ("answered", 201, "x" * 10)


# what is certain

def test_a_refused_connection_and_an_unknown_host_are_unsent(hook):
    hook.refuse()
    refused, unknown = sorted(play(*OPEN, hook.url, "http://no-such-host.invalid/"), key=lambda result: result["url"])
    assert (refused["result"], unknown["result"]) == ("unsent", "unsent")
    assert str(hook.port) in refused["problem"] and "no-such-host.invalid" in unknown["problem"]


@pytest.mark.parametrize("answer", [Answer(cut=0), Answer(cut=20), Answer(cut=37), Answer(reset=True), Answer(body=b"x" * 100, cut=80), Answer(hang=True)],
                         ids=["closed", "cut in the head", "cut at its end", "reset", "cut in the body", "hangs"])
def test_what_was_sent_and_got_no_whole_answer_is_unknown(hook, answer):
    hook.script = always(answer)
    result = call(*OPEN, "timeout=500", hook.url)
    assert result["result"] == "unknown" and result["problem"]
    assert len(hook.requests) == 1


def test_a_request_on_a_used_connection_that_breaks_is_unknown_and_is_not_sent_again(hook):
    hook.script = always(Answer(), Answer(cut=0), Answer())
    results = play(*OPEN, "one_by_one", "times=3", hook.url)
    assert [result["result"] for result in results] == ["answered", "unknown", "answered"]
    assert len(hook.requests) == 3 and [request.connection for request in hook.requests][:2] == [1, 1]


def test_a_request_is_unknown_though_the_endpoint_then_refuses(hook):
    """libcurl would try again on a new connection, and its error would be that of the second attempt."""

    def script(_):
        if len(hook.requests) == 2:
            hook.loop.call_soon(hook.server.close)
            return Answer(cut=0)
        return Answer()

    hook.script = script
    first, second = play(*OPEN, "one_by_one", "times=2", hook.url)
    assert (first["result"], second["result"]) == ("answered", "unknown")


def test_a_server_that_takes_no_connection_in_time_is_unsent(hook):
    """TLS that is never answered: no byte of the request was sent."""
    hook.script = always(Answer(hang=True))
    result = call("private", "connect=300", "timeout=5000", hook.url.replace("http://", "https://"))
    assert result["result"] == "unsent"
    assert hook.requests == []


# what is not allowed

@pytest.mark.parametrize("url, problem", [
    ("ftp://127.0.0.1/", "only https:// and http://"), ("file:///etc/passwd", "only https:// and http://"), ("gopher://127.0.0.1:1/", "only https:// and"),
    ("/path", "not a URL"), ("http://a b/", "not a URL"), ("http://a:99999/", "not a URL")])
def test_other_schemes_and_what_is_no_url_are_forbidden(url, problem):
    result = call(*OPEN, url)
    assert result["result"] == "forbidden" and problem in result["problem"]


def test_plain_http_is_forbidden_unless_allowed(hook):
    result = call("private", hook.url)
    assert result["result"] == "forbidden" and "allow_plain" in result["problem"] and hook.requests == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0"])
def test_a_private_address_is_forbidden_however_it_is_written(hook, host):
    result = call("plain", f"http://{host}:{hook.port}/")
    assert result["result"] == "forbidden" and "allow_private" in result["problem"], result
    assert hook.connection_count == 0


def test_a_metadata_service_is_forbidden(hook):
    result = call("plain", "http://169.254.169.254/latest/meta-data/")
    assert result["result"] == "forbidden" and "169.254.169.254" in result["problem"]


def test_a_proxy_of_the_environment_is_not_used(hook):
    """It would make the connection in our place, and nobody would check to where."""
    proxy = {name: hook.url for name in ("http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")}
    for url in (f"http://127.0.0.1:{free_port()}/", f"https://127.0.0.1:{free_port()}/"):
        assert call(*OPEN, url, environment=proxy)["result"] == "unsent"
    assert call("plain", "http://169.254.169.254/", environment=proxy)["result"] == "forbidden"
    assert hook.connection_count == 0


@pytest.mark.parametrize("header", ["X-A: b\r\nX-B: c", "X-A: b\nX-B: c", "X A: b", "X-\xe9: b", ": b", "X-A: \x01"])
def test_a_header_that_would_break_the_request_is_not_sent(hook, header):
    result = call(*OPEN, f"header={header}", hook.url)
    assert result["result"] == "forbidden" and "header" in result["problem"]
    assert hook.requests == []


def test_credentials_of_a_url_are_sent_and_not_told(hook):
    url = hook.url.replace("//", "//alice:hush@")
    assert call(*OPEN, url)["status"] == 200
    assert hook.requests[0].header("Authorization") == "Basic YWxpY2U6aHVzaA=="
    hook.refuse()
    assert "hush" not in call(*OPEN, url)["problem"]


# TLS

def test_tls_is_verified(keys):
    with Webhook(tls=keys) as hook:
        assert call("private", hook.url)["result"] == "unsent"
        assert call("private", f"ca={keys}/other_ca.pem", hook.url)["result"] == "unsent"
        assert hook.requests == []
        assert call("private", f"ca={keys}/ca.pem", hook.url)["status"] == 200
        # By its name too.
        assert call("private", f"ca={keys}/ca.pem", hook.url.replace("127.0.0.1", "localhost"))["status"] == 200


def test_a_certificate_of_another_host_is_refused(keys):
    with Webhook(tls=keys, host="127.0.0.2") as hook:
        result = call("private", f"ca={keys}/ca.pem", hook.url)
        assert result["result"] == "unsent" and "127.0.0.2" in result["problem"] and hook.requests == []


def test_a_client_certificate_is_shown(keys):
    with Webhook(tls=keys) as hook:
        hook.tls.load_verify_locations(keys / "ca.pem")
        hook.tls.verify_mode = 2  # CERT_REQUIRED
        assert call("private", f"ca={keys}/ca.pem", hook.url)["result"] in ("unsent", "unknown")
        assert hook.requests == []
        result = call("private", f"ca={keys}/ca.pem", f"certificate={keys}/client.pem", f"key={keys}/client.key", hook.url)
        assert result["status"] == 200


# many

def test_a_server_that_ends_its_connections_in_good_order_costs_no_call(hook):
    hook.script = lambda request: Answer(close=len(hook.requests) % 10 == 0)
    results = play(*OPEN, "times=300", "at_once=16", hook.url)
    assert [result["result"] for result in results] == ["answered"] * 300
    assert hook.connection_count > 20


def test_a_server_that_offers_http_2_is_spoken_to_by_http_1_1(keys):
    """Where HTTP/2 ends a connection in good order, what was on its way is refused, which libcurl alone can tell from lost."""
    with Webhook(tls=keys) as hook:
        hook.tls.set_alpn_protocols(["h2", "http/1.1"])
        assert call("private", f"ca={keys}/ca.pem", hook.url)["status"] == 200


def test_calls_run_in_parallel_up_to_the_bound(hook):
    hook.script = always(Answer(hang=True))
    process = subprocess.Popen([SANITIZED / "tests/runtime/play_http", *OPEN, "times=20", "at_once=8", hook.url], stdout=subprocess.PIPE,
                               stdin=subprocess.DEVNULL, text=True, env=clean_environment())
    try:
        hook.wait(8)
        assert hook.open_now == 8
        hook.script = always()
        hook.release()
        out, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0 and len(out.splitlines()) == 20 and hook.open_most == 8
    finally:
        process.kill()
        process.wait()


def test_one_that_hangs_does_not_hold_the_others(hook):
    hook.script = lambda request: Answer(hang=request.target == "/hangs")
    results = play(*OPEN, "timeout=1000", hook.url + "hangs", *[f"{hook.url}{number}" for number in range(20)])
    assert [result["result"] for result in results] == ["answered"] * 20 + ["unknown"]


def test_what_is_in_flight_is_broken_off_at_the_end(hook):
    hook.script = lambda request: Answer(hang=request.target == "/hangs")
    results = play(*OPEN, "break_off=1", hook.url + "hangs", hook.url)
    assert [result["url"] for result in results] == [hook.url]
