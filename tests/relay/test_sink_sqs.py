# SPDX-License-Identifier: PostgreSQL
"""The sink of SQS against a server that speaks it (ElasticMQ), through a door that verifies signatures, without a relay before it."""

import json
import time
import uuid
from queue import Empty

import pytest

from harness import aws, elasticmq
from harness.broker import certificates
from harness.elasticmq import ElasticMq, headers
from harness.postgres import wait_until

from .sinks import Sink, problem_of, results_of

TIMEOUT_S = 3
BURST = 300


@pytest.fixture(scope="module")
def server():
    elasticmq.require()
    with ElasticMq() as server:
        server.declare("orders")
        server.declare("orders.fifo")
        yield server


@pytest.fixture
def door(server):
    with aws.Door(server.port) as door:
        yield door


@pytest.fixture
def options(door):
    return {"sink": "sqs", "url": door.url, "timeout": f"{TIMEOUT_S}s"}


@pytest.fixture
def sink(tmp_path, options):
    with Sink(tmp_path / "conf", options, aws.environment()) as opened:
        yield opened


@pytest.fixture
def queue(server):
    name = f"q-{uuid.uuid4().hex[:8]}.fifo"
    server.declare(name)
    yield name
    server.delete(name)


def bodies(messages):
    return [message["Body"] for message in messages]


def test_a_delivered_event_is_in_the_queue_with_its_body_and_headers(server, sink):
    sent = {"Pgonce-Event-Id": "e1", "Pgonce-Key": "größe"}
    result = sink.deliver("orders", '{"total": 1}', key="größe", headers=sent)
    assert (result["verdict"], result["problem"]) == ("delivered", "")
    message, = server.take("orders")
    assert (message["Body"], headers(message)) == ('{"total": 1}', sent)
    assert "MessageGroupId" not in message["Attributes"]


def test_in_a_fifo_queue_the_aggregate_is_the_group_and_the_events_id_drops_repeats(server, sink, queue):
    first, second = str(uuid.uuid4()), str(uuid.uuid4())
    for event_id in (first, first, second):
        assert sink.deliver(queue, "{}", event_id=event_id, key="7")["verdict"] == "delivered"
    found = server.take(queue)
    assert [(each["Attributes"]["MessageGroupId"], each["Attributes"]["MessageDeduplicationId"]) for each in found] == [("7", first), ("7", second)]


def test_what_can_be_no_group_is_hashed_and_an_event_without_an_aggregate_is_a_group_of_its_own(server, sink, queue):
    event_id = str(uuid.uuid4())
    for key in ("größe", "a b", "x" * 129, "pgonce:event:1"):
        assert sink.deliver(queue, key=key)["verdict"] == "delivered", key
    assert sink.deliver(queue, event_id=event_id)["verdict"] == "delivered"
    groups = [each["Attributes"]["MessageGroupId"] for each in server.take(queue)]
    assert len(set(groups)) == 5 and sum(group.startswith("pgonce:sha256:") for group in groups) == 4
    assert f"pgonce:event:{event_id}" in groups


def test_many_go_ten_to_a_call(server, door, sink, queue):
    sent = together(sink, queue, [json.dumps({"n": n}) for n in range(100)])
    results = results_of(sink, 100)
    assert {result["verdict"] for result in results.values()} == {"delivered"} and set(results) == set(sent)
    assert len(door.calls("SendMessageBatch")) == 10
    assert sorted(json.loads(body)["n"] for body in bodies(server.take(queue))) == list(range(100))


def test_a_slow_server_only_delays(door, sink, queue):
    door.delay_s = 0.5
    sent = together(sink, queue, ["{}"] * 50)
    assert {each: result["verdict"] for each, result in results_of(sink, 50).items()} == dict.fromkeys(sent, "delivered")


def test_more_than_ten_headers_share_the_tenth_attribute(server, sink):
    sent = {f"h{n}": str(n) for n in range(13)}
    assert sink.deliver("orders", headers=sent)["verdict"] == "delivered"
    message, = server.take("orders")
    found = headers(message)
    assert len(found) == 10
    rest = json.loads(found.pop("Pgonce-Headers"))
    assert len(rest) == 4 and {**found, **rest} == sent


@pytest.mark.parametrize("name, value", [("empty", ""), ("a+b", "x"), ("AWS.x", "x"), ("a..b", "x"), (".a", "x"), ("n" * 257, "x")])
def test_a_header_that_can_be_no_attribute_shares_one(server, sink, name, value):
    assert sink.deliver("orders", headers={"Pgonce-Event-Id": "e", name: value})["verdict"] == "delivered"
    message, = server.take("orders")
    found = headers(message)
    assert json.loads(found["Pgonce-Headers"]) == {name: value} and found["Pgonce-Event-Id"] == "e"


def test_a_missing_queue_is_refused_by_name_and_used_when_it_is_there(server, sink):
    refused = sink.send("nowhere")
    delivered = sink.send("orders")
    results = results_of(sink, 2)
    assert results[refused]["verdict"] == "refused" and "no queue nowhere" in results[refused]["problem"]
    assert results[delivered]["verdict"] == "delivered"
    server.declare("nowhere")
    assert sink.deliver("nowhere")["verdict"] == "delivered"
    server.delete("nowhere")
    server.take("orders")


@pytest.mark.parametrize("destination", ["", "order.placed", "a b", "q/x", "x" * 81, "https://h/", "größe", ".fifo"])
def test_what_is_no_queue_is_refused(sink, destination):
    result = sink.deliver(destination)
    assert result["verdict"] == "refused" and "queue" in result["problem"]


def test_a_queue_is_named_by_its_url_too(server, sink):
    assert sink.deliver(server.of("orders"))["verdict"] == "delivered"
    assert len(server.take("orders")) == 1


def test_an_event_beyond_the_services_limit_is_refused_with_its_size_and_is_not_sent(door, sink):
    result = sink.deliver("orders", "x" * (1024 * 1024 + 1))
    assert result["verdict"] == "refused" and "1048577 bytes" in result["problem"] and "at most 1048576" in result["problem"]
    assert door.calls("SendMessageBatch") == []


def together(sink, destination, bodies):
    """Events that go in one call: they come while nothing may be sent. Their ids."""
    sink.permit(0)
    sent = [sink.send(destination, body, key=str(n)) for n, body in enumerate(bodies)]
    sink.permit(60_000)
    return sent


def test_of_a_batch_each_has_its_own_verdict(server, door, sink, queue):
    def some(answer):
        answer["Successful"] = [each for each in answer["Successful"] if each["Id"] == "2"]
        answer["Failed"] = [
            {"Id": "0", "SenderFault": True, "Code": "InvalidMessageContents", "Message": "no such character"},
            {"Id": "1", "SenderFault": False, "Code": "InternalError", "Message": "try again"},
        ]

    door.edit("SendMessageBatch", some)
    sent = together(sink, queue, ["{}"] * 3)
    found = results_of(sink, 3)
    assert [found[each]["verdict"] for each in sent] == ["refused", "unavailable", "delivered"]
    assert found[sent[0]]["problem"] == "InvalidMessageContents: no such character"
    assert len(door.calls("SendMessageBatch")) == 1


def test_an_event_for_which_the_server_refuses_the_whole_call_is_refused_and_those_beside_it_are_not(server, door, sink, queue):
    """Which one it was is found by sending each alone."""
    door.fail("SendMessageBatch", 400, "InvalidMessageContents", times=10, when=lambda request: b"wrong" in request.body)
    sent = together(sink, queue, ["small", "wrong", "also small"])
    found = results_of(sink, 3)
    assert [found[each]["verdict"] for each in sent] == ["delivered", "refused", "delivered"]
    assert "InvalidMessageContents" in found[sent[1]]["problem"]
    assert sorted(bodies(server.take(queue))) == ["also small", "small"]
    assert len(door.calls("SendMessageBatch")) == 4


def test_an_event_whose_body_is_no_text_is_refused_alone_and_those_beside_it_go_in_one_call(server, door, sink, queue):
    """As a database whose encoding is SQL_ASCII may hold one."""
    sink.permit(0)
    sent = [sink.send(queue, '"before"', key="1"), sink.send(queue, body_hex='22ff22', key="2"), sink.send(queue, '"after"', key="3")]
    sink.permit(60_000)
    found = results_of(sink, 3)
    assert [found[each]["verdict"] for each in sent] == ["delivered", "refused", "delivered"]
    assert found[sent[1]]["problem"] == f"{queue} takes text in UTF-8 alone, which the event's body is not"
    assert sorted(bodies(server.take(queue))) == ['"after"', '"before"']
    assert len(door.calls("SendMessageBatch")) == 1


def test_an_event_beyond_the_queues_own_limit_is_refused_with_the_services_words(server, sink, queue):
    result = sink.deliver(queue, "x" * 300_000, key="k")  # this server's limit is 256 kB
    assert result["verdict"] == "refused" and "MessageTooLong" in result["problem"]


def test_without_a_permit_nothing_goes_out_and_what_waits_is_withheld_when_it_is_withdrawn(server, door, sink, queue):
    assert sink.deliver(queue, key="k")["verdict"] == "delivered"
    calls = len(door.requests)
    sink.permit(0)
    sent = [sink.send(queue, key=str(n)) for n in range(5)]
    with pytest.raises(Empty):
        sink.result(1)
    sink.permit(None)
    assert {result["verdict"] for result in results_of(sink, 5).values()} == {"withheld"}
    assert len(door.requests) == calls
    sink.permit(60_000)
    assert sink.deliver(queue, event_id=sent[0], key="0")["verdict"] == "delivered"


@pytest.mark.parametrize("status, code", [(400, "ThrottlingException"), (403, "RequestThrottled"), (400, "OverLimit"), (429, "x"), (503, "ServiceUnavailable"), (500, "InternalFailure")])
def test_throttling_and_the_services_own_failures_count_no_attempt(server, door, sink, queue, status, code):
    door.fail("SendMessageBatch", status, code)
    event_id = str(uuid.uuid4())
    result = sink.deliver(queue, event_id=event_id, key="k")
    assert result["verdict"] == "unavailable" and code in result["problem"]
    assert sink.deliver(queue, event_id=event_id, key="k")["verdict"] == "delivered"


def test_a_lost_answer_is_a_repeat_that_a_fifo_queue_drops(server, door, sink, queue):
    door.fail("SendMessageBatch", 500, "InternalFailure", before=False)
    event_id = str(uuid.uuid4())
    assert sink.deliver(queue, event_id=event_id, key="k")["verdict"] == "unavailable"
    assert sink.deliver(queue, event_id=event_id, key="k")["verdict"] == "delivered"
    assert len(server.take(queue)) == 1


def test_no_permission_for_a_queue_is_refused_with_the_services_words(door, sink):
    door.fail("SendMessageBatch", 403, "AccessDenied", message="not authorized to perform: sqs:sendmessage")
    result = sink.deliver("orders")
    assert result["verdict"] == "refused" and "not authorized to perform: sqs:sendmessage" in result["problem"]


@pytest.mark.parametrize("answer", [{}, [], {"Successful": [{"Id": "0"}]}, {"Successful": [{"Id": "1", "MessageId": "x"}]}])
def test_what_answers_and_is_not_sqs_is_not_believed(door, sink, answer):
    door.edit("SendMessageBatch", lambda _: answer)
    assert sink.deliver("orders")["verdict"] == "unavailable"


@pytest.mark.parametrize("ahead_s", [-86400, 7200])
def test_a_clock_that_is_wrong_is_answered_by_the_services_date(server, door, sink, queue, ahead_s):
    door.ahead_s = ahead_s
    assert sink.deliver(queue, key="k")["verdict"] == "delivered"
    before = len(door.requests)
    assert sink.deliver(queue, key="k")["verdict"] == "delivered"
    assert len(door.requests) == before + 1  # it has been learnt


def test_the_signature_is_of_the_sessions_token_too(server, tmp_path, queue):
    with aws.Door(server.port, {aws.KEY: (aws.SECRET, "t0ken/+=")}) as door:
        options = {"sink": "sqs", "url": door.url, "timeout": "2s"}
        with Sink(tmp_path / "conf", options, aws.environment(AWS_SESSION_TOKEN="t0ken/+=")) as sink:
            assert sink.deliver(queue, key="k")["verdict"] == "delivered"


@pytest.mark.parametrize("wrong", [{"AWS_SECRET_ACCESS_KEY": "other"}, {"AWS_ACCESS_KEY_ID": "AKIDOTHER"}, {"AWS_ACCESS_KEY_ID": None}])
def test_wrong_or_missing_credentials_are_said_and_count_no_attempt(door, options, tmp_path, wrong):
    with Sink(tmp_path / "conf", options, aws.environment(**wrong)) as sink:
        result = sink.deliver("orders")
        assert result["verdict"] == "unavailable"
        said = "no AWS credentials" if None in wrong.values() else "does not match" if "AWS_SECRET_ACCESS_KEY" in wrong else "InvalidClientTokenId"
        assert said in result["problem"], result
        assert "other" not in result["problem"]


def test_a_killed_server_makes_events_unavailable_and_none_is_lost(tmp_path):
    elasticmq.require()
    with ElasticMq(durable=True) as server:
        server.declare("killed.fifo")
        options = {"sink": "sqs", "url": server.url, "timeout": "30s"}  # it starts slowly
        with Sink(tmp_path / "conf", options, aws.environment()) as sink:
            sent = [sink.send("killed.fifo", json.dumps({"n": n}), key=str(n)) for n in range(BURST)]
            first = sink.result()
            server.kill()
            results = results_of(sink, BURST - 1)
            results[first["event_id"]] = first
            delivered = {event_id for event_id, result in results.items() if result["verdict"] == "delivered"}
            assert {result["verdict"] for result in results.values()} <= {"delivered", "unavailable"}
            server.start()
            wait_until(lambda: sink.deliver("killed.fifo", key="back")["verdict"] == "delivered", "the server's return")
            again = [event_id for event_id in sent if event_id not in delivered]
            for number, event_id in enumerate(again):
                sink.send("killed.fifo", event_id=event_id, key=str(number))
            assert {result["verdict"] for result in results_of(sink, len(again)).values()} <= {"delivered"}
        stored = {message["Attributes"]["MessageDeduplicationId"] for message in server.take("killed.fifo")}
        assert set(sent) <= stored


@pytest.mark.alone
def test_a_stuck_server_makes_an_event_unavailable_within_the_timeout_and_later_all_is_well(server, door, sink, queue):
    assert sink.deliver(queue, key="k")["verdict"] == "delivered"
    server.pause()
    try:
        start = time.monotonic()
        event_id = str(uuid.uuid4())
        result = sink.deliver(queue, event_id=event_id, key="k")
        assert result["verdict"] == "unavailable" and result["problem"]
        assert time.monotonic() - start < TIMEOUT_S + 15  # of those for which it is stuck
    finally:
        server.resume()
    wait_until(lambda: sink.deliver(queue, event_id=event_id, key="k")["verdict"] == "delivered", "the server's return")


@pytest.mark.alone
def test_closing_while_the_server_is_stuck_does_not_wait_for_it(door, tmp_path, options):
    with Sink(tmp_path / "conf", {**options, "timeout": "60s"}, aws.environment()) as sink:
        assert sink.deliver("orders")["verdict"] == "delivered"
        door.freeze()
        sink.send("orders")
        start = time.monotonic()
        sink.say("close")
        assert sink.process.wait(30) == 0
        assert time.monotonic() - start < 20  # of 60


def test_no_other_action_is_called_than_the_documented_policy_allows(door, sink, queue):
    assert sink.deliver(queue, key="k")["verdict"] == "delivered"
    assert {aws.permission(request.target) for request in door.requests} == aws.allowed("The relay (`sink = sqs`)")


def test_a_server_that_comes_later_is_no_failure(server, tmp_path, queue):
    door = aws.Door(server.port)
    door.server.server_close()
    with Sink(tmp_path / "conf", {"sink": "sqs", "url": door.url, "timeout": "2s"}, aws.environment()) as sink:
        result = sink.deliver(queue, key="k")
        assert result["verdict"] == "unavailable" and f"cannot reach http://127.0.0.1:{door.port}" in result["problem"], result
        with aws.Door(server.port, port=door.port):
            wait_until(lambda: sink.deliver(queue, key="k")["verdict"] == "delivered", "a delivery")


def test_tls_checks_who_the_server_is(server, tmp_path):
    certificates(tmp_path)
    for certificate, ca, good in (("server", "ca", True), ("server", "other_ca", False), ("server", None, False), ("stranger", "ca", False)):
        with aws.Door(server.port, certificates=tmp_path, certificate=certificate) as door:
            options = {"sink": "sqs", "url": door.url, "timeout": "3s", **({"ca_file": tmp_path / f"{ca}.pem"} if ca else {})}
            with Sink(tmp_path / "conf", options, aws.environment()) as sink:
                result = sink.deliver("orders")
            assert (result["verdict"] == "delivered") == good, (certificate, ca, result)
            assert good or door.requests == []
    server.take("orders")


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"url": "127.0.0.1:9324"}, "not an endpoint"),
        ({"url": "ftp://h"}, "not an endpoint"),
        ({"url": "https://u:p@h"}, "not an endpoint"),
        ({"url": "https://h/path"}, "not an endpoint"),
        ({"url": "https://h?x=1"}, "not an endpoint"),
        ({"region": "eu/../x"}, "not a region"),
        ({"ca_file": "/nowhere/ca"}, "/nowhere/ca"),
    ],
)
def test_wrong_options_are_said_before_anything_is_connected(tmp_path, wrong, said):
    problem = problem_of(tmp_path / "conf", {"sink": "sqs", "region": "eu-central-1", **wrong})
    assert problem is not None and said in problem and "[relay played]" in problem, problem


def test_a_region_that_nothing_says_is_asked_for(tmp_path):
    assert "option region is missing" in problem_of(tmp_path / "conf", {"sink": "sqs"})


def test_right_options_are_right_without_a_server(tmp_path):
    assert problem_of(tmp_path / "conf", {"sink": "sqs", "region": "eu-central-1"}) is None
