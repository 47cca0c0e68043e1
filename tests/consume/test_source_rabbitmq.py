# SPDX-License-Identifier: PostgreSQL
"""Messages out of a RabbitMQ queue, from a real broker: in order, again when they were not acknowledged, and not again when they were."""

import datetime
import decimal
import json
import time

import pika
import pytest
from harness.postgres import wait_until
from harness.rabbitmq import RabbitMQ

from .playing import Refused, Source, headers, payloads


@pytest.fixture(scope="module")
def broker():
    with RabbitMQ() as broker:
        yield broker


@pytest.fixture
def queue(broker, request):
    """Of this test alone."""
    name = f"q-{abs(hash(request.node.name))}"
    broker.declare(name)
    yield name
    connection = broker.connect()
    connection.channel().queue_delete(name)
    connection.close()


def texts(first, last):
    return [f"m{i}" for i in range(first, last + 1)]


def fill(broker, queue, first, last):
    broker.publish(queue, [text.encode() for text in texts(first, last)])


def opened(broker, queue, tmp_path, **options):
    return Source(tmp_path, source="rabbitmq", **{"url": broker.url, "queue": queue, **options})


def test_everything_comes_in_the_queues_order(broker, queue, tmp_path):
    fill(broker, queue, 1, 2500)
    with opened(broker, queue, tmp_path, prefetch=3000) as source:
        found = source.collect(2500, most=500)
        assert payloads(found) == texts(1, 2500)
        assert (found[0]["topic"], found[0]["key"], found[0]["coordinates"], found[0]["headers"]) == (queue, None, None, [])
        source.acknowledge()
        source.quiet()
        source.close()
    assert broker.count(queue) == 0


def test_headers_of_all_types_and_properties_are_text(broker, queue, tmp_path):
    when = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc)
    sent = {
        "text": "ä\n", "number": -5, "long": 2**40, "truth": True, "lie": False, "nothing": None, "price": decimal.Decimal("1.05"),
        "cent": decimal.Decimal("0.05"), "when": when, "list": [1, "two", None, {"a": False}],
        "table": {"b": 2, "c": [decimal.Decimal("0.5")]}, "bytes": b"\xff\x01",
    }  # fmt: skip
    properties = pika.BasicProperties(
        headers=sent, message_id="id-1", content_type="application/json", type="order.placed", timestamp=int(when.timestamp()),
        correlation_id="c", app_id="shop", delivery_mode=2,
    )  # fmt: skip
    broker.publish(queue, [(b"{}", properties)])
    with opened(broker, queue, tmp_path) as source:
        got = headers(source.collect(1)[0])
    lists = {name: json.loads(got.pop(name)) for name in ("list", "table")}
    assert lists == {"list": [1, "two", None, {"a": False}], "table": {"b": 2, "c": [0.5]}}
    assert got.pop("bytes") == {"hex": "ff01"}
    assert got == {
        "text": "ä\n", "number": "-5", "long": str(2**40), "truth": "true", "lie": "false", "nothing": "", "price": "1.05",
        "cent": "0.05", "when": "2026-01-02T03:04:05Z", "message-id": "id-1", "content-type": "application/json",
        "type": "order.placed", "timestamp": "2026-01-02T03:04:05Z", "correlation-id": "c", "app-id": "shop",
    }  # fmt: skip


@pytest.mark.parametrize("way", ["killed", "closed"])
def test_what_a_dead_member_had_comes_again_before_anything_newer(broker, queue, tmp_path, way):
    fill(broker, queue, 1, 100)
    with opened(broker, queue, tmp_path, prefetch=50) as source:
        source.acknowledge(source.collect(50)[:20])
        source.fetch()  # what is asked after the acknowledgement is read after it
        wait_until(lambda: broker.count(queue) == 30, "the acknowledgements")
        source.kill() if way == "killed" else source.close()
    wait_until(lambda: broker.count(queue) == 80, "the messages to go back")
    with opened(broker, queue, tmp_path) as source:
        assert payloads(source.collect(80)) == texts(21, 100)
        source.acknowledge()
        source.close()
    assert broker.count(queue) == 0


def test_what_is_given_back_comes_again_in_its_order_and_first(broker, queue, tmp_path):
    fill(broker, queue, 1, 30)
    with opened(broker, queue, tmp_path) as source:
        first = source.fetch(10, 2000)["messages"]
        second = source.fetch(10, 2000)["messages"]
        source.give_back(second)
        source.give_back(first)
        assert payloads(source.collect(30)) == texts(1, 30)


def test_an_acknowledgement_does_not_reach_over_what_was_given_back(broker, queue, tmp_path):
    """RabbitMQ's `multiple` acknowledges everything below, too."""
    fill(broker, queue, 1, 20)
    with opened(broker, queue, tmp_path) as source:
        found = source.collect(20)
        source.give_back(found[:5])
        source.acknowledge(found[5:])
        source.close()
    assert [body for _, _, body in broker.take(queue)] == [text.encode() for text in texts(1, 5)]


def test_no_more_is_out_than_the_prefetch(broker, queue, tmp_path):
    fill(broker, queue, 1, 100)
    with opened(broker, queue, tmp_path, prefetch=25) as source:
        source.collect(25)
        source.quiet()
        source.acknowledge()
        assert payloads(source.collect(25)) == texts(26, 50)


def test_a_caller_that_is_busy_keeps_the_connection_by_keeping_alive(tmp_path):
    """Heartbeats are each 10 s, and after two that are missing the broker closes: 30 s are enough to see it."""
    with RabbitMQ() as broker:
        broker.declare("slow")
        fill(broker, "slow", 1, 10)
        with opened(broker, "slow", tmp_path) as source:
            source.collect(10)
            until = time.monotonic() + 30
            while time.monotonic() < until:
                assert source.keep_alive()["state"] == "ok"
                time.sleep(1)
            assert source.acknowledge()["state"] == "ok"
            source.quiet()
            source.close()
        assert broker.count("slow") == 0


def test_a_killed_broker_is_waited_for_and_loses_nothing(tmp_path):
    with RabbitMQ() as broker:
        broker.declare("durable")
        broker.keep()
        fill(broker, "durable", 1, 100)
        with opened(broker, "durable", tmp_path, prefetch=50) as source:
            held = source.collect(50)
            source.acknowledge(held[:10])
            broker.kill()
            source.until("unavailable", "the connection is lost")
            source.until("unavailable", "cannot connect")
            broker.start()
            source.until("lost")
            assert source.acknowledge(held[10:20])["state"] == "ok"  # void: harmless
            source.give_back()
            found = []
            while "m100" not in payloads(found):
                found += source.collect(1)
                source.acknowledge()
            # A classic queue may have kept the last acknowledgements in memory: then these come again, too.
            assert len(found) >= 90 and payloads(found) == texts(101 - len(found), 100)


def test_a_broker_that_hangs_is_noticed_and_goes_on_after(tmp_path):
    with RabbitMQ() as broker:
        broker.declare("durable")
        fill(broker, "durable", 1, 20)
        with opened(broker, "durable", tmp_path, prefetch=10) as source:
            source.collect(10)
            broker.pause()
            source.until("unavailable")
            broker.resume()
            source.until("lost", patience_s=90)
            source.give_back()
            assert payloads(source.collect(10)) == texts(1, 10)


def test_a_missing_queue_is_named_and_used_when_it_is_there(broker, tmp_path):
    with opened(broker, "late", tmp_path) as source:
        assert "no queue 'late'" in source.until("unavailable")["problem"]
        broker.declare("late")
        fill(broker, "late", 1, 1)
        assert payloads(source.collect(1)) == ["m1"]
        source.acknowledge()
        connection = broker.connect()
        connection.channel().queue_delete("late")
        connection.close()
        source.until("unavailable", "deleted")
        source.until("unavailable", "no queue 'late'")


def test_a_queue_is_made_and_bound_where_that_is_said(broker, tmp_path):
    broker.declare("else", "shop")
    options = {"declare": "yes", "exchange": "shop", "bind": "order.*, stock.#"}
    with opened(broker, "made", tmp_path, **options) as source:
        source.quiet(1)
        connection = broker.connect()
        channel = connection.channel()
        for key in ("order.placed", "stock.a.b", "other.x"):
            channel.basic_publish("shop", key, key.encode())
        connection.close()
        assert payloads(source.collect(2)) == ["order.placed", "stock.a.b"]
        source.quiet()
    with opened(broker, "made", tmp_path, **options, queue_type="quorum") as source:
        assert "declare = no" in source.until("unavailable")["problem"]
    connection = broker.connect()
    connection.channel().queue_delete("made")
    connection.close()


def test_an_exchange_without_declare_is_refused_at_the_start(broker, tmp_path):
    with pytest.raises(Refused, match="only with declare = yes"):
        opened(broker, "q", tmp_path, exchange="shop").fetch()


def test_wrong_credentials_are_named(broker, tmp_path):
    url = broker.url.replace("guest:guest", "guest:wrong")
    with Source(tmp_path, source="rabbitmq", url=url, queue="q") as source:
        problem = source.until("unavailable")["problem"]
        assert "403" in problem or "ACCESS" in problem or "log in" in problem, problem
        assert "wrong" not in problem


def test_a_copy_is_published_with_its_headers_and_waited_for(broker, queue, tmp_path):
    broker.declare("dead")
    broker.publish(queue, [(b"bad", pika.BasicProperties(headers={"Pgonce-Event-Id": "e1"}))])
    with opened(broker, queue, tmp_path) as source:
        message = source.collect(1)[0]
        assert source.publish("dead", message)["state"] == "ok"
        (_, properties, body), = broker.take("dead")
        assert (body, properties.headers, properties.delivery_mode) == (b"bad", {"Pgonce-Event-Id": "e1", "why": "dead"}, 2)
        answer = source.publish("nowhere", message)
        assert answer["state"] == "unavailable" and "no such queue" in answer["problem"]
        assert source.publish("dead", message)["state"] == "ok"


def test_a_copy_has_no_header_that_steers_the_broker(broker, queue, tmp_path):
    broker.declare("dead")
    broker.take("dead")
    broker.publish(queue, [(b"bad", pika.BasicProperties(headers={"CC": ["elsewhere"], "x-death": "often", "X-Other": "kept"}))])
    with opened(broker, queue, tmp_path) as source:
        assert source.publish("dead", source.collect(1)[0])["state"] == "ok"
    (_, properties, _), = broker.take("dead")
    assert properties.headers == {"X-Other": "kept", "why": "dead"}


def test_a_position_is_the_time_below_which_nothing_comes_again(broker, queue, tmp_path):
    connection = broker.connect()
    channel = connection.channel()
    for second in range(1, 5):
        channel.basic_publish("", queue, f"m{second}".encode(), pika.BasicProperties(timestamp=1000 + second))
    connection.close()
    with opened(broker, queue, tmp_path) as source:
        found = source.collect(4)
        assert source.positions() == {}  # nothing is known yet
        source.acknowledge(found[2:3])  # not the next: the two before it may come again
        assert source.positions() == {}
        source.acknowledge(found[:1])
        assert source.positions() == {queue: (1001000, 0)}
        with opened(broker, queue, tmp_path, name="other") as other:
            other.quiet(1)
            assert source.positions() == {}  # what the other member has out is not known
            source.acknowledge()
            assert source.until_at(queue, lambda position: position is not None) == (None, 3600000)
            other.close()
        assert source.until_at(queue, lambda position: position == (None, 0))


@pytest.mark.parametrize("timestamp", [1_700_000_000_000, 2**62 + 12345, 2**64 - 1, pytest.param(int(time.time()) + 3 * 86400, id="in three days")])
def test_a_timestamp_of_the_future_or_in_other_units_is_none(broker, queue, tmp_path, timestamp):
    """By it the inbox would forget what can come again."""
    broker.publish(queue, [(b"one", pika.BasicProperties(timestamp=timestamp)), b"two", b"three"])
    with opened(broker, queue, tmp_path, prefetch=1) as source:
        assert source.acknowledge(source.collect(1))["state"] == "ok"
        assert source.positions() == {}
        source.close()


@pytest.mark.alone
def test_a_broker_that_reads_nothing_holds_a_copy_up_for_a_limited_time(queue, tmp_path):
    with RabbitMQ() as broker:
        broker.declare("q")
        broker.publish("q", [b"x" * 12_000_000])
        with opened(broker, "q", tmp_path) as source:
            message, = source.collect(1)
            broker.control("set_vm_memory_high_watermark", "0.0000001")
            answer = source.tell(f"publish q {message['n']}", 30)
            assert answer["state"] == "unavailable" and "short of memory" in answer["problem"]
