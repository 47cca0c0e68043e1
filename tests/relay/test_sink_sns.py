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
    """SNS: what was published, as dicts of the entries' parameters, with their topic. failing: {message: (code, whose fault)}."""

    def __init__(self):
        self.published, self.failing = [], {}

    def __call__(self, request):
        pairs = urllib.parse.parse_qsl(request.body.decode(), keep_blank_values=True, strict_parsing=True)
        form = dict(pairs)
        assert len(form) == len(pairs) and request.headers["Content-Type"] == "application/x-www-form-urlencoded"
        if (form.pop("Action"), form.pop("Version")) != ("PublishBatch", "2010-03-31"):
            return aws.Door.error(request, 400, "InvalidAction", "not here")
        topic = form.pop("TopicArn")
        if topic not in (TOPIC, FIFO):
            return aws.Door.error(request, 404, "NotFound", "Topic does not exist")
        entries = self.entries(form)
        if not 1 <= len(entries) <= 10:
            return aws.Door.error(request, 400, "TooManyEntriesInBatchRequest", "one to ten")
        if len({entry["Id"] for entry in entries}) < len(entries):
            return aws.Door.error(request, 400, "BatchEntryIdsNotDistinct", "twice")
        if sum(map(size, entries)) > 256 * 1024:
            return aws.Door.error(request, 400, "BatchRequestTooLong", "too long")
        if topic == FIFO and not all("MessageGroupId" in entry and "MessageDeduplicationId" in entry for entry in entries):
            return aws.Door.error(request, 400, "InvalidParameter", "a FIFO topic wants a group")
        failed = [entry for entry in entries if entry["Message"] in self.failing]
        done = [entry for entry in entries if entry not in failed]
        self.published += [{"TopicArn": topic, **entry} for entry in done]
        return 200, self.answer(done, failed)

    @staticmethod
    def entries(form):
        """They are numbered from 1 without a gap."""
        found = []
        while any(name.startswith(f"PublishBatchRequestEntries.member.{len(found) + 1}.") for name in form):
            prefix = f"PublishBatchRequestEntries.member.{len(found) + 1}."
            found.append({name[len(prefix):]: form.pop(name) for name in list(form) if name.startswith(prefix)})
        assert not form, form
        return found

    def answer(self, done, failed):
        """As AWS's documentation has it, an empty list as an element without an end."""
        good = "".join(f"<member><MessageId>{uuid.uuid4()}</MessageId><Id>{entry['Id']}</Id></member>" for entry in done)
        bad = ""
        for entry in failed:
            code, fault = self.failing[entry["Message"]]
            bad += f"<member><Id>{entry['Id']}</Id><Code>{code}</Code><Message>said &lt;so&gt;</Message><SenderFault>{fault}</SenderFault></member>"
        lists = (f"<Failed>{bad}</Failed>" if bad else "<Failed/>") + (f"<Successful>{good}</Successful>" if good else "<Successful/>")
        return f"<PublishBatchResponse xmlns='x'><PublishBatchResult>{lists}</PublishBatchResult></PublishBatchResponse>"


def size(entry):
    return len(entry["Message"].encode()) + sum(len(value) for name, value in entry.items() if name.startswith("MessageAttributes."))


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


def together(sink, topic, bodies):
    """Events that go in one call: they come while nothing may be sent. Their ids."""
    sink.permit(0)
    sent = [sink.send(topic, body, key=str(n)) for n, body in enumerate(bodies)]
    sink.permit(60_000)
    return sent


def verdicts(sink, sent):
    found = {result["event_id"]: result for result in (sink.result() for _ in sent)}
    return [(found[each]["verdict"], found[each]["problem"]) for each in sent]


def test_of_a_batch_each_has_its_own_verdict(topics, door, sink):
    topics.failing = {"bad": ("InvalidParameter", "true"), "later": ("InternalError", "false"), "much": ("Throttled", "true")}
    sent = together(sink, FIFO, ["good", "bad", "later", "much", "also good"])
    assert verdicts(sink, sent) == [
        ("delivered", ""), ("refused", "InvalidParameter: said <so>"), ("unavailable", "InternalError: said <so>"),
        ("unavailable", "Throttled: said <so>"), ("delivered", ""),
    ]
    assert [form["Message"] for form in topics.published] == ["good", "also good"] and len(door.calls("PublishBatch")) == 1


def test_where_the_whole_call_is_refused_each_goes_alone(topics, door, sink):
    door.fail("PublishBatch", 400, "InvalidParameter", times=10, when=lambda request: b"wrong" in request.body)
    sent = together(sink, FIFO, ["one", "wrong", "two"])
    assert [verdict for verdict, _ in verdicts(sink, sent)] == ["delivered", "refused", "delivered"]
    assert sorted(form["Message"] for form in topics.published) == ["one", "two"] and len(door.calls("PublishBatch")) == 4


def test_a_call_has_no_more_bytes_than_the_service_takes_together(topics, door, sink):
    sent = together(sink, TOPIC, ["x" * 100_000] * 5)
    assert {verdict for verdict, _ in verdicts(sink, sent)} == {"delivered"}
    assert len(topics.published) == 5 and len(door.calls("PublishBatch")) == 3


def test_what_the_answer_says_nothing_of_is_not_delivered(topics, door, sink):
    """As where its entry has no id of a message, or another's number."""
    right = topics.answer

    def wrong(done, failed):
        return right(done, failed).replace("<Id>1</Id>", "<Id>11</Id>").replace(f"<Id>{done[2]['Id']}</Id>", "<Id></Id>")

    topics.answer = wrong
    sent = together(sink, TOPIC, ["a", "b", "c"])
    assert [verdict for verdict, _ in verdicts(sink, sent)] == ["delivered", "unavailable", "unavailable"]


def test_many_are_published_ten_to_a_call_each_with_a_result(topics, door, sink):
    sent = together(sink, TOPIC, [json.dumps({"n": n}) for n in range(100)])
    assert verdicts(sink, sent) == [("delivered", "")] * 100
    assert sorted(json.loads(form["Message"])["n"] for form in topics.published) == list(range(100))
    assert len(door.calls("PublishBatch")) == 10


def test_a_missing_topic_is_refused_with_the_services_words(sink):
    result = sink.deliver(TOPIC + "-nowhere")
    assert result["verdict"] == "refused" and "NotFound: Topic does not exist" in result["problem"]


@pytest.mark.parametrize("destination", ["", "orders", "arn:aws:sqs:eu-central-1:1:orders", "arn:aws:sns:eu-central-1:1:", TOPIC + ":sub", "https://h/x"])
def test_what_is_no_topic_is_refused(door, sink, destination):
    result = sink.deliver(destination)
    assert result["verdict"] == "refused" and "not the ARN of a topic" in result["problem"] and door.requests == []


def test_an_event_beyond_the_services_limit_is_refused_with_its_size(door, sink):
    result = sink.deliver(TOPIC, "x" * (256 * 1024 + 1))
    assert result["verdict"] == "refused" and "262145 bytes" in result["problem"] and door.requests == []


@pytest.mark.parametrize("status, code", [(400, "Throttling"), (429, "ThrottledException"), (503, "ServiceUnavailable")])
def test_throttling_and_the_services_own_failures_count_no_attempt(door, sink, status, code):
    door.fail("PublishBatch", status, code)
    result = sink.deliver(TOPIC)
    assert result["verdict"] == "unavailable" and code in result["problem"]
    assert sink.deliver(TOPIC)["verdict"] == "delivered"


@pytest.mark.parametrize("answer", [
    "", "<html>welcome</html>", "<PublishBatchResponse><Failed/><Successful/></PublishBatchResponse>",
    "<Successful><member><MessageId></MessageId><Id>0</Id></member></Successful>", "<Successful><member><Id>0</Id></member></Successful>",
    "<Successful><member><MessageId>m</MessageId><Id>0</Id></member>",
])
def test_what_answers_and_is_not_sns_is_not_believed(door, sink, answer):
    door.forward = lambda request: (200, answer)
    assert sink.deliver(TOPIC)["verdict"] == "unavailable"


def test_a_clock_that_is_wrong_is_answered_by_the_services_date(door, sink):
    door.ahead_s = 3600
    assert sink.deliver(TOPIC)["verdict"] == "delivered"


def test_no_other_action_is_called_than_the_documented_policy_allows(door, sink):
    assert sink.deliver(FIFO, key="k")["verdict"] == "delivered"
    assert {aws.permission(request.target) for request in door.requests} == aws.allowed("The relay (`sink = sns`)")


def test_a_service_that_is_away_makes_events_unavailable(door, topics, tmp_path):
    door.server.server_close()
    with Sink(tmp_path / "conf", {"sink": "sns", "url": door.url, "timeout": "2s"}, aws.environment()) as sink:
        assert sink.deliver(TOPIC)["verdict"] == "unavailable"
        with aws.Door(topics, service="sns", port=door.port):
            wait_until(lambda: sink.deliver(TOPIC)["verdict"] == "delivered", "a delivery")


def test_right_options_are_right_without_a_server(tmp_path):
    assert problem_of(tmp_path / "conf", {"sink": "sns", "region": "eu-central-1"}) is None
    assert "option region is missing" in problem_of(tmp_path / "conf", {"sink": "sns"})
