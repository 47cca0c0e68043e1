# SPDX-License-Identifier: PostgreSQL
"""Messages out of NATS JetStream, from a real server: in order, again when they were not acknowledged, and not again when they were."""

import signal
import time

import pytest
from harness.nats import Nats
from harness.postgres import PATIENCE_S, wait_until

from .playing import Refused, Source, payloads


@pytest.fixture(scope="module")
def server():
    with Nats() as server:
        yield server


@pytest.fixture
def nats(server):
    """With a stream ORDERS of its own."""
    server.add_stream("ORDERS", "order.>")
    yield server
    server.delete_stream("ORDERS")


def texts(first, last):
    return [f"m{i}" for i in range(first, last + 1)]


def fill(nats, first, last):
    nats.publish([(f"order.{i % 7}", text.encode()) for i, text in zip(range(first, last + 1), texts(first, last))])


def opened(nats, tmp_path, **options):
    return Source(tmp_path, source="nats", **{"url": nats.url, "stream": "ORDERS", **options})


def pending(nats):
    return {each["name"]: each["num_ack_pending"] for each in nats.consumers("ORDERS")}


def test_everything_comes_in_the_streams_order_with_all_that_belongs_to_it(nats, tmp_path):
    fill(nats, 1, 2500)
    nats.publish([("order.x", b'{"a": 1}', [("Pgonce-Event-Id", "e1"), ("twice", "1"), ("twice", "2")])])
    with opened(nats, tmp_path, prefetch=3000) as source:
        found = source.collect(2501, most=500)
        assert payloads(found) == [*texts(1, 2500), '{"a": 1}']
        last = found[-1]
        assert (last["topic"], last["key"], last["coordinates"]) == ("order.x", None, "ORDERS/2501")
        assert sorted(last["headers"]) == [["Pgonce-Event-Id", "e1"], ["twice", "1"], ["twice", "2"]]
        assert found[0]["headers"] == []
        assert source.acknowledge()["state"] == "ok"
        source.quiet()


def test_what_was_acknowledged_never_comes_again(nats, tmp_path):
    fill(nats, 1, 100)
    with opened(nats, tmp_path) as source:
        source.acknowledge(source.collect(100)[:60])
        source.close()
    wait_until(lambda: pending(nats) == {"stock": 40}, "the server to have taken the acknowledgements")
    with opened(nats, tmp_path) as source:
        assert payloads(source.collect(40)) == texts(61, 100)
        source.quiet()


@pytest.mark.alone
@pytest.mark.parametrize("way", ["killed", "closed"])
def test_what_a_dead_member_had_comes_again_before_anything_newer(nats, tmp_path, way):
    """Without the giving back at a start the newer ones would come first, and the old ones after ack_wait: 30 s."""
    fill(nats, 1, 100)
    with opened(nats, tmp_path) as source:
        source.acknowledge(source.collect(50, most=50)[:20])
        wait_until(lambda: nats.consumers("ORDERS")[0]["ack_floor"]["stream_seq"] == 20, "the acknowledgements")
        source.kill() if way == "killed" else source.close()
    begun = time.monotonic()
    with opened(nats, tmp_path) as source:
        assert payloads(source.collect(80)) == texts(21, 100)
    assert time.monotonic() - begun < 15


def test_what_a_dead_member_had_comes_in_order_whatever_the_server_took_back_first(nats, tmp_path):
    """As when the server finds that the last messages could not be delivered, before the others are taken back."""
    fill(nats, 1, 10)
    with opened(nats, tmp_path) as source:
        source.acknowledge(source.collect(10))
        source.close()
    fill(nats, 11, 40)
    with nats.connect() as dead:
        dead.publish("$JS.API.CONSUMER.MSG.NEXT.ORDERS.stock", b'{"batch": 30}', reply=f"{dead.inbox}.early")
        replies = [dead.next(60).reply for _ in range(30)]
        for reply in replies[20:]:
            dead.publish(reply, b"-NAK")
        wait_until(lambda: nats.consumers("ORDERS")[0]["num_ack_pending"] == 30, "the messages to be out")
        fill(nats, 41, 45)
    with opened(nats, tmp_path) as source:
        assert payloads(source.collect(35, most=5)) == texts(11, 45)


def test_what_a_dead_members_late_request_took_comes_before_anything_newer(nats, tmp_path):
    """A member was killed, and its request reaches the server after the next one has taken back what was out."""
    fill(nats, 1, 10)
    with opened(nats, tmp_path) as source:
        source.acknowledge(source.collect(10))
        with nats.connect() as dead:
            dead.publish("$JS.API.CONSUMER.MSG.NEXT.ORDERS.stock", b'{"batch": 5, "expires": 60000000000}', reply=f"{dead.inbox}.late")
            wait_until(lambda: nats.consumers("ORDERS")[0]["num_waiting"] >= 1, "the late request to stand")
            fill(nats, 11, 30)
            wait_until(lambda: nats.consumers("ORDERS")[0]["num_ack_pending"] >= 5, "messages to go to the dead member")
        found = []
        while payloads(found)[-1:] != ["m30"]:
            answer = source.fetch()
            # What was out when it lost the others is void, and comes again.
            found = [] if answer["state"] == "lost" else found + answer["messages"]
        assert payloads(found) == texts(11, 30)


def test_where_too_much_may_be_out_its_time_is_waited_for_and_the_order_is_kept_too(nats, tmp_path):
    """120,000 messages of other subjects lie between what was acknowledged and what was handed out last."""
    nats.publish([("order.mine", b"m1")])
    with nats.connect() as client:
        for i in range(120000):
            client.publish("order.other", b"-")
        client.request("order.other", b"-")
    nats.publish([("order.mine", b"m2")])
    options = {"subject": "order.mine", "ack_wait": "2s"}
    with opened(nats, tmp_path, **options) as source:
        assert payloads(source.collect(2)) == ["m1", "m2"]
        source.kill()
    nats.publish([("order.mine", b"m3")])
    with opened(nats, tmp_path, **options) as source:
        assert payloads(source.collect(3)) == ["m1", "m2", "m3"]


def test_what_is_given_back_comes_again_in_its_order_and_first(nats, tmp_path):
    fill(nats, 1, 30)
    with opened(nats, tmp_path) as source:
        first = source.fetch(10, 2000)["messages"]
        second = source.fetch(10, 2000)["messages"]
        source.give_back(second)
        source.give_back(first)
        assert payloads(source.collect(30)) == texts(1, 30)


@pytest.mark.parametrize("bound", ["its own", "wider"])
def test_no_more_is_out_than_the_prefetch(nats, tmp_path, bound):
    """Neither where the consumer is one that somebody made, and allows more."""
    fill(nats, 1, 100)
    if bound == "wider":
        with nats.connect() as client:
            config = {"durable_name": "stock", "ack_policy": "explicit", "max_ack_pending": 1000}
            client.api("CONSUMER.DURABLE.CREATE.ORDERS.stock", stream_name="ORDERS", config=config)
    with opened(nats, tmp_path, prefetch=25) as source:
        source.collect(25)
        source.quiet()
        wait_until(lambda: pending(nats) == {"stock": 25}, "the server to have counted what it gave")
        source.acknowledge()
        assert payloads(source.collect(25)) == texts(26, 50)


@pytest.mark.alone
def test_work_that_takes_longer_than_ack_wait_is_not_handed_out_again(nats, tmp_path):
    fill(nats, 1, 10)
    with opened(nats, tmp_path, ack_wait="3s") as source:
        source.collect(10)
        until = time.monotonic() + 7
        while time.monotonic() < until:
            assert source.keep_alive()["state"] == "ok"
            time.sleep(0.1)
        assert nats.consumers("ORDERS")[0]["num_redelivered"] == 0
        source.acknowledge()
        source.quiet()
        wait_until(lambda: pending(nats) == {"stock": 0}, "the acknowledgements")


def test_only_the_subjects_that_are_asked_for_come(nats, tmp_path):
    nats.publish([("order.a.1", b"a1"), ("order.b.1", b"b1"), ("order.a.2", b"a2")])
    with opened(nats, tmp_path, subject="order.a.*") as source:
        assert payloads(source.collect(2)) == ["a1", "a2"]
        source.quiet()


def test_a_new_consumer_may_begin_with_what_comes(nats, tmp_path):
    fill(nats, 1, 10)
    with opened(nats, tmp_path, deliver="new") as source:
        source.quiet(1)
        fill(nats, 11, 12)
        assert payloads(source.collect(2)) == texts(11, 12)


def test_a_killed_server_is_waited_for_and_loses_nothing(tmp_path):
    with Nats() as server:
        server.add_stream("ORDERS", "order.>")
        fill(server, 1, 100)
        with opened(server, tmp_path) as source:
            held = source.collect(50, most=50)
            source.acknowledge(held[:10])
            server.kill()
            source.until("unavailable", "lost the connection")
            source.until("unavailable", "cannot connect")
            server.start()
            source.until("lost")
            assert source.acknowledge(held[10:20])["state"] == "ok"  # void: harmless
            source.give_back()
            found = payloads(source.collect(80))
            while found[-1] != "m100":
                found += payloads(source.collect(1))
            # The server may have lost the last acknowledgements: they were not waited for. All that is not acknowledged comes, in order.
            assert found == texts(101 - len(found), 100) and len(found) >= 90


def test_a_server_that_hangs_is_noticed_and_goes_on_after(tmp_path):
    with Nats() as server:
        server.add_stream("ORDERS", "order.>")
        fill(server, 1, 20)
        with opened(server, tmp_path) as source:
            source.collect(10, most=10)
            server.pause()
            source.until("unavailable")
            server.resume()
            source.until("lost")
            source.give_back()
            assert payloads(source.collect(20)) == texts(1, 20)


def test_a_missing_stream_is_named_and_used_when_it_is_there(server, tmp_path):
    with Source(tmp_path, source="nats", url=server.url, stream="LATE") as source:
        assert "no stream LATE" in source.until("unavailable")["problem"]
        server.add_stream("LATE", "late.>")
        server.publish([("late.1", b"here")])
        assert payloads(source.collect(1)) == ["here"]
        server.delete_stream("LATE")
        source.until("unavailable", "no stream LATE")
    server_streams = server.connect().api("STREAM.NAMES")["streams"] or []
    assert "LATE" not in server_streams


def test_a_consumer_is_made_only_where_that_is_said(nats, tmp_path):
    with opened(nats, tmp_path, durable="theirs", create="no") as source:
        assert "no durable consumer theirs" in source.until("unavailable")["problem"]
    assert pending(nats) == {}


@pytest.mark.parametrize(
    "config, said",
    [
        ({"ack_policy": "none"}, "policy is not explicit"),
        ({"ack_policy": "explicit", "max_deliver": 3}, "up after 3 deliveries"),
        ({"ack_policy": "explicit", "deliver_subject": "push.here"}, "push consumer"),
        ({"ack_policy": "explicit", "filter_subject": "order.1"}, 'subject is "order.1"'),
    ],
)
def test_a_consumer_that_would_break_the_promise_is_refused(nats, tmp_path, config, said):
    with nats.connect() as client:
        client.api("CONSUMER.DURABLE.CREATE.ORDERS.stock", stream_name="ORDERS", config={"durable_name": "stock", **config})
    with opened(nats, tmp_path) as source:
        assert said in source.until("unavailable")["problem"]


def test_wrong_credentials_are_named(tmp_path):
    with Nats(user="alice", password="right") as server:
        server.add_stream("ORDERS", "order.>")
        with opened(server, tmp_path, user="alice", password="wrong") as source:
            problem = source.until("unavailable")["problem"]
            assert "uthorization" in problem and "wrong" not in problem, problem
        with opened(server, tmp_path, user="alice", password="right") as source:
            source.quiet(1)


@pytest.mark.parametrize("option", [{"stream": "a.b"}, {"durable": "a b"}, {"durable": "x>"}])
def test_names_that_are_none_are_refused_at_the_start(nats, tmp_path, option):
    with pytest.raises(Refused, match="is not a valid "):
        opened(nats, tmp_path, **option).fetch()


def test_a_copy_is_published_with_its_headers_and_waited_for(nats, tmp_path):
    nats.publish([("order.1", bytes(range(256)), [("Nats-Msg-Id", "m1"), ("Nats-Expected-Stream", "ORDERS"), ("Pgonce-Event-Id", "e1"), ("content-type", "avro/binary")])])
    nats.add_stream("DEAD", "dead.>")
    try:
        with opened(nats, tmp_path) as source:
            message = source.collect(1)[0]
            assert source.publish("dead.stock", message)["state"] == "ok"
            copy = nats.messages("DEAD")[0]
            assert (copy.subject, copy.data) == ("dead.stock", bytes(range(256)))
            assert sorted(copy.headers) == [("Content-Type", "avro/binary"), ("Pgonce-Event-Id", "e1"), ("why", "dead")]
            answer = source.publish("nowhere.stock", message)
            assert answer["state"] == "unavailable" and "no stream" in answer["problem"]
    finally:
        nats.delete_stream("DEAD")


def test_connections_that_are_made_and_of_no_use_come_ever_more_rarely(nats, tmp_path):
    """The server ends each reading at once, since the consumer takes requests for one message only."""
    config = {"durable_name": "stock", "ack_policy": "explicit", "max_batch": 1}
    with nats.connect() as client:
        client.api("CONSUMER.DURABLE.CREATE.ORDERS.stock", stream_name="ORDERS", config=config)
    fill(nats, 1, 3)
    with opened(nats, tmp_path) as source:
        started = time.monotonic()
        source.until("unavailable", "409 ")
        while source.log.read_text().count("event=connected") < 6:
            source.fetch()
        assert time.monotonic() - started >= 1.5  # at least the half of 100, 200, 400, 800 and 1600 ms


def test_a_position_is_the_time_below_which_nothing_comes_again(nats, tmp_path):
    fill(nats, 1, 3)
    after_3 = time.time() * 1000
    fill(nats, 4, 10)
    with opened(nats, tmp_path) as source:
        found = source.collect(10)
        source.acknowledge(found[4:8])  # in between nothing is: no position
        wait_until(lambda: pending(nats) == {"stock": 6}, "the server to have taken the acknowledgements")
        assert source.positions() == {}
        source.acknowledge(found[:3])
        at_ms, _ = source.until_at("ORDERS", lambda position: position is not None)
        assert 0 < at_ms <= after_3
        source.acknowledge()
        assert source.until_at("ORDERS", lambda position: position[0] is None) == (None, 0)
        fill(nats, 11, 11)
        assert source.until_at("ORDERS", lambda position: position[0] is not None)[0] <= time.time() * 1000


# ---- copies of dead messages that come back


@pytest.mark.parametrize("subject, dead_topic, refused", [
    (None, "order.dead", True), ("order.>", "order.dead", True), ("order.*.paid", "order.dead.paid", True),
    ("order.*.paid", "order.dead", False), ("order.eu.>", "order.dead", False), (None, "orders.dead", False), (None, "dead.order", False),
])
def test_a_dead_topic_that_the_stream_takes_itself_is_refused(nats, tmp_path, subject, dead_topic, refused):
    nats.publish([("order.eu.paid", b"m1")])
    with opened(nats, tmp_path, dead_topic=dead_topic, **({"subject": subject} if subject else {})) as source:
        if refused:
            assert f"takes {dead_topic} itself" in source.until("unavailable")["problem"]
        else:
            assert payloads(source.collect(1)) == ["m1"]


def test_a_dead_topic_that_is_the_subject_is_refused_at_the_start(nats, tmp_path):
    with pytest.raises(Refused, match="'order.x' is also read, by subject"):
        opened(nats, tmp_path, subject="order.x", dead_topic="order.x").fetch()


@pytest.mark.parametrize("filtered, refused", [(None, True), ("grave.order", True), ("grave.other", False)])
def test_a_dead_topic_of_a_stream_that_is_a_source_of_this_one_is_refused(nats, tmp_path, filtered, refused):
    nats.add_stream("GRAVES", "grave.>")
    try:
        nats.add_stream("ALL", "all.>", sources=[{"name": "GRAVES", **({"filter_subject": filtered} if filtered else {})}])
        nats.publish([("all.x", b"m1")])
        with opened(nats, tmp_path, stream="ALL", dead_topic="grave.order") as source:
            if refused:
                assert "stream ALL copies all of stream GRAVES" in source.until("unavailable")["problem"]
            else:
                assert payloads(source.collect(1)) == ["m1"]
    finally:
        nats.delete_stream("ALL")
        nats.delete_stream("GRAVES")


def test_a_stream_that_takes_copies_since_it_was_asked_is_noticed_by_the_first(nats, tmp_path):
    nats.add_stream("GRAVES", "grave.>")
    fill(nats, 1, 1)
    with opened(nats, tmp_path, dead_topic="grave.order") as source:
        message, = source.collect(1)
        nats.delete_stream("GRAVES")
        nats.change_stream("ORDERS", subjects=["order.>", "grave.>"])
        assert source.publish("grave.order", message)["state"] == "ok"
        source.until("unavailable", "takes grave.order itself")


def test_where_the_server_does_not_say_what_the_stream_takes_the_first_copy_does(tmp_path):
    more = 'authorization { users: [{user: a, password: a}, {user: b, password: b, permissions: {publish: {deny: "$JS.API.STREAM.INFO.*"}}}] }'
    with Nats(more=more, login={"user": "a", "pass": "a"}) as server:
        server.add_stream("ORDERS", "order.>")
        server.publish([("order.x", b"m1")])
        url = server.url.replace("nats://", "nats://b:b@")
        with Source(tmp_path, source="nats", url=url, stream="ORDERS", dead_topic="order.dead") as source:
            message, = source.collect(1)
            assert "pgonce cannot see whether copies would come back" in source.log.read_text()
            assert source.publish("order.dead", message)["state"] == "ok"
            source.until("unavailable", "has taken a copy to order.dead itself")


# ---- messages that do not come


def until_stalled(source, patience_s=PATIENCE_S):
    began = time.monotonic()
    while source.stalled() is None:
        source.fetch()
        assert time.monotonic() - began < patience_s
    return time.monotonic() - began


def never_stalled(source, seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert source.fetch()["messages"] == [] and source.stalled() is None


def test_a_consumer_that_has_messages_and_gives_none_is_stalled_until_it_gives_some(tmp_path):
    """A user that may not ask for messages: the server says so to nobody who hears it."""
    rule = 'permissions: {publish: {deny: "$JS.API.CONSUMER.MSG.NEXT.>"}}'
    more = f"authorization {{ users: [{{user: a, password: a}}, {{user: b, password: b, {rule}}}] }}"
    with Nats(more=more, login={"user": "a", "pass": "a"}) as server:
        server.add_stream("ORDERS", "order.>")
        url = server.url.replace("//", "//b:b@")
        with Source(tmp_path, source="nats", url=url, stream="ORDERS", stalled_after="1s") as source:
            never_stalled(source, 2)  # there is nothing to give
            fill(server, 1, 3)
            assert until_stalled(source) >= 1
            assert source.stalled() == "the consumer stock of stream ORDERS has 3 messages that no member holds, and delivers none"
            for _ in range(2):  # it is tried, does not help, and is a stall all the while
                tried = time.monotonic()
                while (answer := source.fetch())["state"] != "unavailable":
                    assert source.stalled() is not None and time.monotonic() - tried < PATIENCE_S
                assert "connecting again" in answer["problem"] and source.stalled() is not None
            conf = server.directory / "conf"
            conf.write_text(conf.read_text().replace(f", {rule}", ""))
            server.process.send_signal(signal.SIGHUP)
            assert payloads(source.collect(3)) == texts(1, 3)
            assert source.stalled() is None


def test_what_waits_since_others_hold_all_that_may_be_out_is_not_stalled(nats, tmp_path):
    """ack_wait is longer than any pause of a busy machine: what the other has would come again."""
    with nats.connect() as client:
        config = {"durable_name": "stock", "ack_policy": "explicit", "deliver_policy": "all", "ack_wait": 300_000_000_000, "max_ack_pending": 5}
        client.api("CONSUMER.DURABLE.CREATE.ORDERS.stock", stream_name="ORDERS", config=config)
    with opened(nats, tmp_path, order_by="none", stalled_after="1s") as source, nats.connect() as other:
        source.quiet(1)
        wait_until(lambda: nats.consumers("ORDERS")[0]["num_waiting"] == 0, "the source's own request to end")
        other.publish("$JS.API.CONSUMER.MSG.NEXT.ORDERS.stock", b'{"batch": 5, "expires": 60000000000}', reply=f"{other.inbox}.x")
        wait_until(lambda: nats.consumers("ORDERS")[0]["num_waiting"] == 1, "the other's request")
        fill(nats, 1, 10)
        replies = [other.next(60).reply for _ in range(5)]
        never_stalled(source, 4)
        for reply in replies:
            other.publish(reply, b"+ACK")
        assert payloads(source.collect(5)) == texts(6, 10)


def test_what_the_caller_has_or_does_not_want_is_not_stalled(nats, tmp_path):
    fill(nats, 1, 5)
    with opened(nats, tmp_path, prefetch=2, stalled_after="1s") as source:
        source.collect(2)
        never_stalled(source, 3)
        source.acknowledge()
        until = time.monotonic() + 3
        while time.monotonic() < until:
            source.keep_alive()
            assert source.stalled() is None
