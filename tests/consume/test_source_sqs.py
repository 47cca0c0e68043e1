# SPDX-License-Identifier: PostgreSQL
"""Messages out of a queue of a server that speaks SQS (ElasticMQ): in the order of their groups, again when they were not deleted, and not again
when they were."""

import base64
import json
import time
import uuid

import pytest

from harness import aws, elasticmq
from harness.elasticmq import ElasticMq
from harness.postgres import wait_until

from .playing import Refused, Source, headers, payloads


@pytest.fixture(scope="module")
def server():
    elasticmq.require()
    with ElasticMq() as server:
        yield server


@pytest.fixture
def door(server):
    with aws.Door(server.port) as door:
        yield door


@pytest.fixture
def queue(server):
    yield server.declare(name := f"q-{uuid.uuid4().hex[:8]}.fifo")
    server.delete(name)


@pytest.fixture
def plain(server):
    yield server.declare(name := f"q-{uuid.uuid4().hex[:8]}")
    server.delete(name)


def opened(door, queue, tmp_path, **options):
    given = {"url": door.url, "queue": queue, "wait": "1s", **options}
    return Source(tmp_path, source="sqs", environment=aws.environment(), **given)


def texts(first, last):
    return [f"m{i}" for i in range(first, last + 1)]


def fill(server, queue, first, last, groups=1):
    server.publish(queue, [(text, f"g{n % groups}", {}) for n, text in enumerate(texts(first, last))])


def collect_all(source, count, acknowledge=True):
    """Each fetch's messages, acknowledged: a FIFO queue hands out no more of a group before."""
    found = []
    deadline = time.monotonic() + 60
    while len(found) < count:
        came = source.fetch()["messages"]
        found += came
        if came and acknowledge:
            source.acknowledge(came)
        assert time.monotonic() < deadline, f"{len(found)} of {count}"
    return found


def test_everything_comes_in_the_order_of_its_group_and_not_again(server, door, queue, tmp_path):
    server.publish(queue, [(f"{n}", f"g{n % 3}", {"Pgonce-Event-Id": f"e{n}"}) for n in range(300)])
    with opened(door, queue, tmp_path) as source:
        found = collect_all(source, 300)
        for group in range(3):
            assert [int(each["payload"]) for each in found if each["key"] == f"g{group}"] == list(range(group, 300, 3))
        first = found[0]
        assert (first["topic"], first["headers"]) == (queue, [["Pgonce-Event-Id", "e" + first["payload"]]])
        assert first["coordinates"].startswith(f"{queue}/")
        source.quiet()
        source.close()
    assert server.counts(queue) == (0, 0)


def test_everything_of_a_queue_without_fifo_comes(server, door, plain, tmp_path):
    server.publish(plain, texts(1, 500))
    with opened(door, plain, tmp_path) as source:
        found = source.collect(500)
        assert sorted(payloads(found)) == sorted(texts(1, 500)) and {each["key"] for each in found} == {None}
        source.acknowledge()
        source.close()
    assert server.counts(plain) == (0, 0)
    assert len(door.calls("ReceiveMessage")) < 100 and len(door.calls("DeleteMessageBatch")) <= 51


def test_attributes_of_all_kinds_and_those_that_share_one_are_headers(server, door, plain, tmp_path):
    rest = {"empty": "", "a+b": "ü", "bytes": {"base64": "AP8="}, "more": "1"}
    server.publish(plain, [("{}", None, {"text": "ä", "number": "5", "binary": b"\xff\x00\x01", "Pgonce-Headers": json.dumps(rest)})])
    with opened(door, plain, tmp_path) as source:
        found = headers(source.collect(1)[0])
    assert found == {"text": "ä", "number": "5", "binary": {"hex": "ff0001"}, "empty": "", "a+b": "ü", "bytes": {"hex": "00ff"}, "more": "1"}


@pytest.mark.parametrize("text", ["no json", "[1]", '"x"', ""])
def test_an_attribute_of_our_own_name_that_is_no_object_is_a_header_like_any_other(server, door, plain, tmp_path, text):
    server.publish(plain, [("{}", None, {"Pgonce-Headers": text or "-"})])
    with opened(door, plain, tmp_path) as source:
        assert headers(source.collect(1)[0]) == {"Pgonce-Headers": text or "-"}


@pytest.mark.parametrize("group, sent, key", [
    ("7", {}, "7"), ("pgonce:event:e1", {}, None), ("pgonce:sha256:ab", {"Pgonce-Key": "größe"}, None), ("pgonce:sha256:ab", {}, "pgonce:sha256:ab"),
])
def test_the_key_is_the_group_unless_the_relay_made_it_up(server, door, queue, tmp_path, group, sent, key):
    server.publish(queue, [("{}", group, sent)])
    with opened(door, queue, tmp_path) as source:
        assert source.collect(1)[0]["key"] == key


@pytest.mark.parametrize("way", ["killed", "closed"])
def test_what_a_member_had_that_ended_comes_again_in_its_order(server, door, queue, tmp_path, way):
    """From one that was killed when its visibility is over, from one that was closed at once."""
    fill(server, queue, 1, 20)
    with opened(door, queue, tmp_path, visibility="10s" if way == "killed" else "10m") as source:
        found = source.collect(10)
        source.acknowledge(found[:3])
        wait_until(lambda: source.keep_alive() and sum(server.counts(queue)) == 17, "the deletions")
        source.kill() if way == "killed" else source.close()
    with opened(door, queue, tmp_path) as source:
        found = collect_all(source, 17)  # which has less patience than 300 s
        assert payloads(found) == texts(4, 20)
        source.close()
    assert server.counts(queue) == (0, 0)


def test_what_is_given_back_comes_again_in_its_order_and_first(server, door, queue, tmp_path):
    fill(server, queue, 1, 40, groups=4)
    with opened(door, queue, tmp_path) as source:
        before = source.collect(20)
        source.give_back(before[10:])
        source.give_back(before[:10])
        after = source.collect(20)
        assert payloads(after[:20]) == payloads(before[:20])


def test_no_more_is_out_than_the_prefetch(server, door, plain, tmp_path):
    server.publish(plain, texts(1, 100))
    with opened(door, plain, tmp_path, prefetch=25) as source:
        assert len(source.collect(25)) == 25
        source.quiet()
        source.acknowledge()
        assert len(source.collect(25)) == 25


@pytest.mark.alone
def test_visibility_is_extended_while_a_message_is_at_work_and_nobody_else_has_it(server, door, queue, tmp_path):
    fill(server, queue, 1, 5)
    with opened(door, queue, tmp_path, visibility="10s") as source, opened(door, queue, tmp_path, name="other") as other:
        source.collect(5)
        until = time.monotonic() + 25
        while time.monotonic() < until:
            assert source.keep_alive()["state"] == "ok"
            assert other.fetch()["messages"] == []
        assert len(door.calls("ChangeMessageVisibilityBatch")) >= 4
        source.acknowledge()
        source.close()
    assert server.counts(queue) == (0, 0)


@pytest.mark.alone
def test_a_process_that_stood_still_is_told_that_its_messages_are_void_and_keeps_none_of_their_group(server, door, queue, tmp_path):
    fill(server, queue, 1, 30, groups=1)
    with opened(door, queue, tmp_path, visibility="10s") as source:
        held = source.collect(10)
        time.sleep(11)  # the caller calls nothing: a process that stands still
        answer = source.until("lost", "visibility")
        assert "10 messages" in answer["problem"]
        source.give_back()
        assert payloads(source.collect(10)) == payloads(held)


def test_a_message_that_cannot_be_extended_takes_its_group_along_and_no_other(server, door, queue, tmp_path):
    def refused(answer):
        first = answer["Successful"].pop(0)
        answer["Failed"] = [{"Id": first["Id"], "SenderFault": True, "Code": "InvalidParameterValue", "Message": "Total VisibilityTimeout is beyond the limit"}]

    server.publish(queue, [(f"{group}{n}", group, {}) for n in range(3) for group in "ab"])
    with opened(door, queue, tmp_path, visibility="10s") as source:
        source.collect(6)
        door.edit("ChangeMessageVisibilityBatch", refused)
        assert "3 messages" in source.until("lost")["problem"]
        assert door.calls("ChangeMessageVisibilityBatch")


def test_deletions_that_fail_are_made_again(server, door, queue, tmp_path):
    fill(server, queue, 1, 10)
    door.fail("DeleteMessageBatch", 503, "ServiceUnavailable", times=2)
    door.edit("DeleteMessageBatch", lambda answer: {"Failed": [{"Id": each["Id"], "SenderFault": False, "Code": "InternalError"} for each in answer["Successful"]]})
    with opened(door, queue, tmp_path) as source:
        source.acknowledge(source.collect(10))
        wait_until(lambda: source.keep_alive() and len(door.calls("DeleteMessageBatch")) >= 4 and server.counts(queue) == (0, 0), "the deletions")
        source.close()


def test_a_stop_deletes_what_was_acknowledged_and_gives_back_what_comes_late(server, door, queue, tmp_path):
    with opened(door, queue, tmp_path, wait="3s") as source:
        source.quiet(1)  # a call waits at the server now
        fill(server, queue, 1, 5)
        source.close()
    assert server.counts(queue) == (5, 0)


@pytest.mark.parametrize("status, code", [(400, "ThrottlingException"), (503, "ServiceUnavailable"), (403, "AccessDenied")])
def test_a_refused_call_is_said_and_made_again(server, door, queue, tmp_path, status, code):
    fill(server, queue, 1, 3)
    door.fail("ReceiveMessage", status, code, times=2)
    with opened(door, queue, tmp_path) as source:
        assert code in source.until("unavailable")["problem"]
        assert payloads(collect_all(source, 3)) == texts(1, 3)
        assert source.fetch()["state"] == "ok"


def attempt_of(request):
    return json.loads(request.body).get("ReceiveRequestAttemptId")


def attempts(door):
    """The ids of the attempts to receive, in their order."""
    return [attempt_of(request) for request in door.calls("ReceiveMessage")]


@pytest.mark.parametrize("way", ["connection", "500", "503"])
def test_a_receive_whose_answer_was_lost_is_repeated_and_its_group_is_not_locked(server, door, queue, tmp_path, way):
    """Without that nobody would have them, nor the rest of their group, for the ten minutes."""
    fill(server, queue, 1, 15)
    if way == "connection":
        door.drop("ReceiveMessage", times=2)
    else:
        door.fail("ReceiveMessage", int(way), "InternalFailure", before=False, times=2)
    with opened(door, queue, tmp_path, visibility="10m") as source:
        assert payloads(collect_all(source, 15)) == texts(1, 15)
        source.close()
    assert server.counts(queue) == (0, 0)
    ids = attempts(door)
    assert ids[0] is not None and ids[0] == ids[1] == ids[2] and len(set(ids)) == len(ids) - 2


def test_several_receives_whose_answers_were_lost_are_all_repeated(server, door, queue, tmp_path):
    fill(server, queue, 1, 400, groups=40)
    with opened(door, queue, tmp_path, visibility="10m") as source:
        found = collect_all(source, 100)
        door.drop("ReceiveMessage", times=6)
        found += collect_all(source, 400 - len(found))
        source.close()
    assert sorted(payloads(found)) == sorted(texts(1, 400)) and server.counts(queue) == (0, 0)
    by_group = {group: [int(each["payload"][1:]) for each in found if each["key"] == group] for group in {each["key"] for each in found}}
    assert all(numbers == sorted(numbers) for numbers in by_group.values())


def test_what_a_repeated_receive_brought_is_extended_at_once(server, door, queue, tmp_path):
    """Its visibility may have begun with the first one."""
    fill(server, queue, 1, 5)
    door.drop("ReceiveMessage")
    with opened(door, queue, tmp_path, visibility="2m") as source:
        source.collect(5)
        wait_until(lambda: source.keep_alive()["state"] == "ok" and door.calls("ChangeMessageVisibilityBatch"), "the extension", 30)  # of 40 until a third


@pytest.mark.parametrize("status, code, tries", [(400, "InvalidParameterValue", 1), (500, "InternalFailure", 5)])
def test_an_attempt_that_the_queue_does_not_take_again_is_given_up_for_a_new_one(server, door, queue, tmp_path, status, code, tries):
    calls = []

    def is_again(request):
        calls.append(attempt_of(request))
        return len(calls) > 1 and calls[-1] == calls[0]

    fill(server, queue, 1, 3)
    door.fail("ReceiveMessage", status, code, times=1000, when=is_again)
    door.drop("ReceiveMessage")
    with opened(door, queue, tmp_path, visibility="10s") as source:
        assert payloads(collect_all(source, 3)) == texts(1, 3)
    ids = attempts(door)
    assert ids.count(ids[0]) == 1 + tries and len(set(ids)) > 1


def test_an_attempt_is_not_repeated_when_its_visibility_is_over(server, door, queue, tmp_path):
    """Others may have its messages by then."""
    calls = []

    def is_again(request):
        calls.append(attempt_of(request))
        return calls[-1] == calls[0]

    fill(server, queue, 1, 3)
    door.drop("ReceiveMessage", times=1000, when=is_again)
    with opened(door, queue, tmp_path, visibility="10s") as source:
        assert payloads(collect_all(source, 3)) == texts(1, 3)


def test_a_receive_of_a_queue_without_fifo_has_no_attempt(server, door, plain, tmp_path):
    """SQS knows them of FIFO queues alone. What is lost comes again when its visibility is over."""
    server.publish(plain, ["m1"])
    door.drop("ReceiveMessage")
    with opened(door, plain, tmp_path, visibility="10s") as source:
        assert payloads(source.collect(1)) == ["m1"]
    assert set(attempts(door)) == {None}


def test_a_killed_server_is_waited_for_and_loses_nothing(tmp_path):
    elasticmq.require()
    with ElasticMq(durable=True) as server:
        server.declare("durable")
        server.publish("durable", texts(1, 60))
        with opened(server, "durable", tmp_path, prefetch=30, visibility="10s") as source:
            held = source.collect(30)
            source.acknowledge(held[:10])
            wait_until(lambda: source.keep_alive() and sum(server.counts("durable")) == 50, "the deletions")
            server.kill()
            source.until("unavailable", "cannot reach")
            server.start()
            source.give_back()
            found = set()
            deadline = time.monotonic() + 60
            while len(found) < 50 and time.monotonic() < deadline:
                found |= set(payloads(source.fetch()["messages"]))
                source.acknowledge()
            assert found == set(texts(1, 60)) - set(payloads(held[:10]))


@pytest.mark.alone
def test_a_server_that_hangs_is_noticed_and_goes_on_after(server, door, queue, tmp_path):
    fill(server, queue, 1, 20)
    with opened(door, queue, tmp_path, visibility="20s") as source:
        held = source.collect(10)
        door.freeze()
        source.until("unavailable", "no answer")
        door.thaw()
        source.acknowledge(held)
        assert payloads(collect_all(source, 10)) == texts(11, 20)


def test_a_slow_server_only_delays(server, door, queue, tmp_path):
    fill(server, queue, 1, 30, groups=3)
    door.delay_s = 0.5
    with opened(door, queue, tmp_path, visibility="10m") as source:
        found = collect_all(source, 30)
        source.close()
    assert sorted(payloads(found)) == sorted(texts(1, 30)) and server.counts(queue) == (0, 0)


def test_a_missing_queue_is_named_and_used_when_it_is_there(server, door, tmp_path):
    with opened(door, "late", tmp_path) as source:
        assert "no queue late" in source.until("unavailable")["problem"]
        server.declare("late")
        server.publish("late", ["m1"])
        assert payloads(source.collect(1)) == ["m1"]
        source.acknowledge()
        source.close()
    server.delete("late")


def test_a_queue_with_a_redrive_policy_is_refused_unless_that_is_allowed(server, door, tmp_path):
    server.declare("dead")
    server.declare("redriven", RedrivePolicy={"deadLetterTargetArn": "arn:aws:sqs:elasticmq:000000000000:dead", "maxReceiveCount": 3})
    server.publish("redriven", ["m1"])
    with opened(door, "redriven", tmp_path) as source:
        problem = source.until("unavailable")["problem"]
        assert "after 3 deliveries" in problem and "redrive = allow" in problem
    with opened(door, "redriven", tmp_path, redrive="allow") as source:
        assert payloads(source.collect(1)) == ["m1"]


@pytest.mark.parametrize("dead_topic, queue, words", [
    ("{name}", "{url}", "is the queue being read"), ("{url}", "{name}", "is the queue being read"),
    ("http://other.host/000000000000/{name}", "{name}", "is the queue being read"),
    ("http://localhost/999999999999/{name}", "{name}", None), ("no-{name}", "{name}", None),
])
def test_a_dead_topic_that_is_the_queue_by_another_name_is_refused(server, door, plain, tmp_path, dead_topic, queue, words):
    names = {"name": plain, "url": f"http://localhost/000000000000/{plain}"}
    server.publish(plain, ["m1"])
    with opened(door, queue.format(**names), tmp_path, dead_topic=dead_topic.format(**names)) as source:
        if words:
            assert words in source.until("unavailable")["problem"]
        else:
            assert payloads(source.collect(1)) == ["m1"]


def test_who_may_not_read_the_attributes_is_told_and_goes_on(server, door, plain, tmp_path):
    server.publish(plain, ["m1"])
    door.fail("GetQueueAttributes", 403, "AccessDenied")
    with opened(door, plain, tmp_path) as source:
        assert payloads(source.collect(1)) == ["m1"]
        assert source.positions() == {plain: (None, 14 * 86400 * 1000)}
        assert "pgonce cannot see whether the queue has a redrive policy" in source.log.read_text()


def test_a_position_is_the_end_less_what_the_queue_keeps(server, door, plain, tmp_path):
    door.edit("GetQueueAttributes", lambda answer: {"Attributes": {**answer["Attributes"], "MessageRetentionPeriod": "345600"}})
    with opened(door, plain, tmp_path) as source:
        assert source.positions() == {}
        source.quiet(1)
        assert source.positions() == {plain: (None, 345600 * 1000)}


@pytest.mark.parametrize("kind", ["queue", "plain"])
def test_a_copy_is_sent_with_its_headers_and_waited_for(server, door, queue, plain, tmp_path, kind):
    target = queue if kind == "queue" else plain
    server.publish(plain, [("bad", None, {"Pgonce-Event-Id": "e1", "bytes": b"\xff"})])
    with opened(door, plain, tmp_path) as source:
        message, = source.collect(1)
        assert source.publish(target, message)["state"] == "ok"
        answer = source.publish("nowhere", message)
        assert answer["state"] == "unavailable" and "no queue nowhere" in answer["problem"]
        assert "neither a queue's name" in source.publish("a.b", message)["problem"]
    copy, = [each for each in server.take(target) if "why" in elasticmq.headers(each)]
    assert (copy["Body"], elasticmq.headers(copy)) == ("bad", {"why": "dead", "Pgonce-Event-Id": "e1", "bytes": b"\xff"})


def test_bytes_are_copied_as_they_came_and_nobody_is_told_what_carried_them(server, door, plain, tmp_path):
    """One with fewer than eleven attributes, and one whose encoding is in the attribute that the last share."""
    sent = bytes(range(256))
    rest = {f"h{n}": f"{n}" for n in range(8)}
    for more in ({"Pgonce-Body-Encoding": "base64"}, {**rest, "Pgonce-Headers": json.dumps({"Pgonce-Body-Encoding": "base64", "last": "1"})}):
        server.publish(plain, [(base64.b64encode(sent).decode(), None, {"Content-Type": "application/avro", **more})])
        with opened(door, plain, tmp_path) as source:
            message, = source.collect(1)
            assert message["payload"] == {"hex": sent.hex()} and "Pgonce-Body-Encoding" not in headers(message)
            assert headers(message)["Content-Type"] == "application/avro" and ("last" in headers(message)) == (len(more) > 1)
            assert source.publish(plain, message)["state"] == "ok"
            source.acknowledge()
            source.close()
        copy, = server.take(plain)
        assert base64.b64decode(copy["Body"]) == sent and elasticmq.headers(copy)["Pgonce-Body-Encoding"] == "base64"


@pytest.mark.parametrize("text", ["ä", "a\tb\r\n", "{}"])
def test_text_is_copied_as_text(server, door, plain, tmp_path, text):
    server.publish(plain, [(text, None, {})])
    with opened(door, plain, tmp_path) as source:
        message, = source.collect(1)
        assert source.publish(plain, message)["state"] == "ok"
        source.acknowledge()
        source.close()
    copy, = server.take(plain)
    assert (copy["Body"], "Pgonce-Body-Encoding" in elasticmq.headers(copy)) == (text, False)


def test_no_other_action_is_called_than_the_documented_policy_allows(server, door, queue, plain, tmp_path):
    fill(server, queue, 1, 2)
    with opened(door, queue, tmp_path, visibility="10s") as source:
        one, two = collect_all(source, 2, acknowledge=False)
        wait_until(lambda: source.keep_alive()["state"] == "ok" and door.calls("ChangeMessageVisibilityBatch"), "an extension")
        assert source.publish(plain, one)["state"] == "ok"
        source.acknowledge([two])
        source.close()
    assert {aws.permission(request.target) for request in door.requests} == aws.allowed("The consumer, ")


@pytest.mark.parametrize("options, words", [
    ({"queue": "a.b"}, "neither a queue's name nor its URL"), ({"wait": "1500ms"}, "whole seconds"), ({"visibility": "13h"}, "visibility"),
    ({"wait": "21s"}, "wait"), ({"redrive": "maybe"}, "redrive"), ({"region": "x y"}, "not a region"), ({"url": "h"}, "not an endpoint"),
    ({"dead_topic": "q"}, "'q' is also read, by queue"),
])
def test_wrong_options_are_said_at_the_start(tmp_path, options, words):
    given = {"queue": "q", "url": "http://127.0.0.1:1", **options}
    with pytest.raises(Refused, match=words):
        Source(tmp_path, source="sqs", environment=aws.environment(), **given).fetch()
