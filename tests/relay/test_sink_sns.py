# SPDX-License-Identifier: PostgreSQL
"""The sink of SNS against a fake that verifies signature and query protocol, since no server that speaks SNS can be run privately."""

import json
import urllib.parse
import uuid

import pytest

from harness import aws
from harness.postgres import wait_until

from .sinks import Sink, problem_of

TOPIC = "arn:aws:sns:eu-central-1:123456789012:orders"
FIFO = TOPIC + ".fifo"


class Topics:
    """SNS: what was published, as dicts of the call's parameters."""

    def __init__(self):
        self.published = []

    def __call__(self, request):
        pairs = urllib.parse.parse_qsl(request.body.decode(), keep_blank_values=True, strict_parsing=True)
        form = dict(pairs)
        assert len(form) == len(pairs) and request.headers["Content-Type"] == "application/x-www-form-urlencoded"
        if (form.pop("Action"), form.pop("Version")) != ("Publish", "2010-03-31"):
            return aws.Door.error(request, 400, "InvalidAction", "not here")
        if form["TopicArn"] not in (TOPIC, FIFO):
            return aws.Door.error(request, 404, "NotFound", "Topic does not exist")
        if form["TopicArn"] == FIFO and not ("MessageGroupId" in form and "MessageDeduplicationId" in form):
            return aws.Door.error(request, 400, "InvalidParameter", "a FIFO topic wants a group")
        self.published.append(form)
        return 200, f"<PublishResponse xmlns='x'><PublishResult><MessageId>{uuid.uuid4()}</MessageId></PublishResult></PublishResponse>"


@pytest.fixture
def topics():
    return Topics()


@pytest.fixture
def door(topics):
    with aws.Door(topics, service="sns") as door:
        yield door


@pytest.fixture
def sink(door, tmp_path):
    with Sink(tmp_path / "conf", {"sink": "sns", "url": door.url, "timeout": "3s"}, aws.environment()) as opened:
        yield opened


def attributes(form):
    """{name: (type, value)}; they are numbered from 1 without a gap."""
    found, number = {}, 1
    while (at := f"MessageAttributes.entry.{number}.") + "Name" in form:
        found[form[at + "Name"]] = (form[at + "Value.DataType"], form.get(at + "Value.StringValue", form.get(at + "Value.BinaryValue")))
        number += 1
    assert 3 * len(found) == sum(name.startswith("MessageAttributes.") for name in form)
    return found


def test_a_delivered_event_is_published_with_its_body_and_headers(topics, sink):
    body = '{"total": 1, "text": "ä & = + %20"}'
    result = sink.deliver(TOPIC, body, key="7", headers={"Pgonce-Event-Id": "e 1", "Pgonce-Key": "größe"})
    assert (result["verdict"], result["problem"]) == ("delivered", "")
    form, = topics.published
    assert (form["TopicArn"], form["Message"]) == (TOPIC, body)
    assert attributes(form) == {"Pgonce-Event-Id": ("String", "e 1"), "Pgonce-Key": ("String", "größe")}
    assert "MessageGroupId" not in form


def test_in_a_fifo_topic_the_aggregate_is_the_group_and_the_events_id_drops_repeats(topics, sink):
    event_id = sink.deliver(FIFO, key="7")["event_id"]
    form, = topics.published
    assert (form["MessageGroupId"], form["MessageDeduplicationId"]) == ("7", event_id)


def test_more_than_ten_headers_share_the_tenth_attribute(topics, sink):
    sent = {f"h{n}": str(n) for n in range(12)}
    assert sink.deliver(TOPIC, headers=sent)["verdict"] == "delivered"
    found = attributes(topics.published[0])
    rest = json.loads(found.pop("Pgonce-Headers")[1])
    assert len(found) == 9 and {**{name: value for name, (_, value) in found.items()}, **rest} == sent


def test_many_are_published_at_once_each_with_a_result(topics, sink):
    sent = {sink.send(TOPIC, json.dumps({"n": n})) for n in range(300)}
    results = [sink.result() for _ in sent]
    assert {result["event_id"] for result in results} == sent and {result["verdict"] for result in results} == {"delivered"}
    assert sorted(json.loads(form["Message"])["n"] for form in topics.published) == list(range(300))


def test_a_missing_topic_is_refused_with_the_services_words(sink):
    result = sink.deliver(TOPIC + "-nowhere")
    assert result["verdict"] == "refused" and "NotFound: Topic does not exist" in result["problem"]


@pytest.mark.parametrize("destination", ["", "orders", "arn:aws:sqs:eu-central-1:1:orders", "arn:aws:sns:eu-central-1:1:", TOPIC + ":sub", "https://h/x"])
def test_what_is_no_topic_is_refused(door, sink, destination):
    result = sink.deliver(destination)
    assert result["verdict"] == "refused" and "no ARN of a topic" in result["problem"] and door.requests == []


def test_an_event_beyond_the_services_limit_is_refused_with_its_size(door, sink):
    result = sink.deliver(TOPIC, "x" * (256 * 1024 + 1))
    assert result["verdict"] == "refused" and "262145 bytes" in result["problem"] and door.requests == []


@pytest.mark.parametrize("status, code", [(400, "Throttling"), (429, "ThrottledException"), (503, "ServiceUnavailable")])
def test_throttling_and_the_services_own_failures_count_no_attempt(door, sink, status, code):
    door.fail("Publish", status, code)
    result = sink.deliver(TOPIC)
    assert result["verdict"] == "unavailable" and code in result["problem"]
    assert sink.deliver(TOPIC)["verdict"] == "delivered"


@pytest.mark.parametrize("answer", ["", "<html>welcome</html>", "<PublishResponse><MessageId></MessageId></PublishResponse>"])
def test_what_answers_and_is_not_sns_is_not_believed(door, sink, answer):
    door.forward = lambda request: (200, answer)
    assert sink.deliver(TOPIC)["verdict"] == "unavailable"


def test_a_clock_that_is_wrong_is_answered_by_the_services_date(door, sink):
    door.ahead_s = 3600
    assert sink.deliver(TOPIC)["verdict"] == "delivered"


def test_a_service_that_is_away_makes_events_unavailable(door, topics, tmp_path):
    door.server.server_close()
    with Sink(tmp_path / "conf", {"sink": "sns", "url": door.url, "timeout": "2s"}, aws.environment()) as sink:
        assert sink.deliver(TOPIC)["verdict"] == "unavailable"
        with aws.Door(topics, service="sns", port=door.port):
            wait_until(lambda: sink.deliver(TOPIC)["verdict"] == "delivered", "a delivery")


def test_right_options_are_right_without_a_server(tmp_path):
    assert problem_of(tmp_path / "conf", {"sink": "sns", "region": "eu-central-1"}) is None
    assert "option region is missing" in problem_of(tmp_path / "conf", {"sink": "sns"})
