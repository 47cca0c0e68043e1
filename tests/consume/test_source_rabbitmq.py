# SPDX-License-Identifier: PostgreSQL
"""Messages out of a RabbitMQ queue, from a real broker: in order, again when they were not acknowledged, and not again when they were."""

import datetime
import decimal
import json
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pika
import pytest
from cli.command import PROGRAM
from harness.postgres import PATIENCE_S, clean_environment, tied, wait_until
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


def test_a_dead_topic_that_is_the_queue_itself_is_refused_at_the_start(broker, tmp_path):
    with pytest.raises(Refused, match="'q' is also read, by queue: .* would die there again"):
        opened(broker, "q", tmp_path, dead_topic="q").fetch()


# ---- queues that give messages up


@pytest.fixture
def new_queue(broker, request):
    """A name, of this test alone; what bears it is deleted."""
    name = f"n-{abs(hash(request.node.name))}"
    yield name
    connection = broker.connect()
    connection.channel().queue_delete(name)
    connection.close()


def is_limited_by_default(broker):
    """RabbitMQ 4 gives a message of a quorum queue up after 20 deliveries."""
    connection = broker.connect()
    version = connection._impl.server_properties["version"]
    connection.close()
    return int(version.split(".")[0]) >= 4


def without_limit(broker):
    return {"x_queue_type": "quorum", **({"x_delivery_limit": -1} if is_limited_by_default(broker) else {})}


def crash(broker, queue, tmp_path, **options):
    """A consumer that dies with the queue's one message in its hands. What it logged."""
    with opened(broker, queue, tmp_path, **options) as source:
        source.collect(1)
        source.kill()
    wait_until(lambda: broker.count(queue) == 1, "the message to go back")
    return source.log.read_text()


@pytest.mark.parametrize("arguments", [
    {}, {"x_dead_letter_exchange": "it's", "x_max_length": 100, "x_overflow": "reject-publish", "x_single_active_consumer": True},
], ids=["alone", "among others"])  # fmt: skip
def test_a_queue_with_a_delivery_limit_is_refused_unless_that_is_allowed(broker, new_queue, tmp_path, arguments):
    broker.declare(new_queue, x_queue_type="quorum", x_delivery_limit=3, **arguments)
    fill(broker, new_queue, 1, 1)
    with opened(broker, new_queue, tmp_path) as source:
        problem = source.until("unavailable")["problem"]
        assert "drops messages that were delivered 4 times" in problem and "delivery_limit = allow" in problem
    with opened(broker, new_queue, tmp_path, delivery_limit="allow") as source:
        assert payloads(source.collect(1)) == ["m1"]
        assert "delivery_limit" not in source.log.read_text()


def test_what_a_limit_means_depends_on_the_brokers_version(broker, new_queue, tmp_path):
    """-1 is no limit from RabbitMQ 4 on; before, it drops what came back once. No argument is the other way round."""
    limited = is_limited_by_default(broker)
    for arguments, is_read in (({}, not limited), ({"x_delivery_limit": -1}, limited)):
        connection = broker.connect()
        connection.channel().queue_delete(new_queue)
        connection.close()
        broker.declare(new_queue, x_queue_type="quorum", **arguments)
        fill(broker, new_queue, 1, 1)
        with opened(broker, new_queue, tmp_path) as source:
            if is_read:
                assert payloads(source.collect(1)) == ["m1"]
            else:
                assert f"drops messages that were delivered {21 if limited else 1} times" in source.until("unavailable")["problem"]


@pytest.mark.parametrize("arguments", [{}, {"x_max_age": "1D", "x_max_length_bytes": 10_000_000}], ids=["alone", "with others"])
def test_a_stream_is_refused_since_it_never_hands_out_what_came_while_nobody_read(broker, new_queue, tmp_path, arguments):
    """It keeps no place for a consumer, and a reader begins with what comes next."""
    broker.declare(new_queue, x_queue_type="stream", **arguments)
    fill(broker, new_queue, 1, 3)
    for more in ({}, {"delivery_limit": "allow"}):
        with opened(broker, new_queue, tmp_path, **more) as source:
            problem = source.until("unavailable")["problem"]
            assert "is a stream" in problem and "would be lost" in problem
            assert source.fetch()["messages"] == []


def test_the_queue_of_a_single_active_consumer_that_somebody_declared_passes_to_the_next(broker, new_queue, tmp_path):
    broker.declare(new_queue, x_single_active_consumer=True)
    fill(broker, new_queue, 1, 20)
    with opened(broker, new_queue, tmp_path, name="first") as first, opened(broker, new_queue, tmp_path, name="second") as second:
        found = first.collect(20)
        second.quiet(1)
        first.acknowledge(found[:5])
        first.fetch()  # what is asked after the acknowledgement is read after it
        first.kill()
        assert payloads(second.collect(15)) == texts(6, 20)
        second.acknowledge()
        second.close()
    assert broker.count(new_queue) == 0


def test_a_queue_that_is_deleted_and_declared_anew_is_read_on(broker, new_queue, tmp_path):
    """What was out is void: an acknowledgement of it reaches no message of the new queue."""
    broker.declare(new_queue)
    fill(broker, new_queue, 1, 3)
    with opened(broker, new_queue, tmp_path) as source:
        old = source.collect(3)
        connection = broker.connect()
        connection.channel().queue_delete(new_queue)
        connection.close()
        broker.declare(new_queue)
        fill(broker, new_queue, 4, 9)
        source.until("unavailable", "deleted")
        source.until("lost")
        source.acknowledge(old)
        assert payloads(source.collect(6)) == texts(4, 9)
        source.close()
    wait_until(lambda: broker.count(new_queue) == 6, "all to go back")


def test_the_brokers_priorities_decide_what_comes_first(broker, new_queue, tmp_path):
    broker.declare(new_queue, x_max_priority=5)
    broker.publish(new_queue, [(f"m{n}".encode(), pika.BasicProperties(priority=n % 3, delivery_mode=2)) for n in range(6)])
    with opened(broker, new_queue, tmp_path) as source:
        assert payloads(source.collect(6)) == ["m2", "m5", "m1", "m4", "m0", "m3"]
        source.acknowledge()
        source.close()
    assert broker.count(new_queue) == 0


# ---- a broker that waits for acknowledgements for so long


@pytest.fixture(scope="module")
def impatient():
    """Two seconds instead of half an hour."""
    with RabbitMQ() as broker:
        broker.control("eval", "application:set_env(rabbit, consumer_timeout, 2000), application:set_env(rabbit, channel_tick_interval, 1000).")
        yield broker


def test_what_was_not_acknowledged_in_time_comes_again_and_its_acknowledgement_is_void(impatient, tmp_path):
    impatient.declare("late")
    fill(impatient, "late", 1, 10)
    with opened(impatient, "late", tmp_path) as source:
        held = source.collect(10)
        wait_until(lambda: source.keep_alive()["state"] == "unavailable", "the broker to close the channel")
        source.until("lost")
        assert source.acknowledge(held)["state"] == "ok"
        source.give_back()
        assert payloads(source.collect(10)) == texts(1, 10)
        source.acknowledge()
        source.close()
    assert impatient.count("late") == 0


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_handler_that_is_slower_than_the_broker_waits_applies_each_once_and_comes_to_an_end(impatient, db, tmp_path, kind):
    db.execute("CREATE TABLE applied (id text); CREATE FUNCTION slow(m once.message) RETURNS void LANGUAGE sql AS"
               " $$ INSERT INTO applied SELECT m.id FROM pg_sleep(3) $$")  # fmt: skip
    queue = f"slow-{kind}"
    impatient.declare(queue, **({"x_queue_type": "quorum", **({"x_delivery_limit": -1} if is_limited_by_default(impatient) else {})} if kind == "quorum" else {}))
    impatient.publish(queue, [(b"{}", pika.BasicProperties(message_id=f"id-{n}", delivery_mode=2)) for n in range(3)])
    config, log = tmp_path / "pgonce.conf", tmp_path / "log"
    config.write_text(f"dsn = {db.dsn()}\n[consume stock]\nsource = rabbitmq\nurl = {impatient.url}\nqueue = {queue}\nid = header:message-id\nhandler = slow\n")
    config.chmod(0o600)
    with open(log, "wb") as out:
        process = subprocess.Popen(tied([PROGRAM, "consume", "--config", config]), stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=clean_environment())
    try:
        wait_until(lambda: db.value("SELECT count(*) FROM applied") == 3 or process.poll() is not None, "all to be applied")
        process.terminate()
        assert process.wait(60) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()
    assert "delivery acknowledgement" in log.read_text()  # else nothing was tried
    assert db.row("SELECT count(*) AS n, count(DISTINCT id) AS ids FROM applied") == (3, 3)


@pytest.mark.parametrize("arguments", [{}, {"x_max_priority": 4, "x_message_ttl": 60000}], ids=["plain", "with others"])
def test_a_classic_queue_counts_nothing_and_is_read(broker, new_queue, tmp_path, arguments):
    broker.declare(new_queue, **arguments)
    fill(broker, new_queue, 1, 1)
    assert "delivery_limit" not in crash(broker, new_queue, tmp_path)


def test_a_quorum_queue_that_is_made_gives_nothing_up(broker, new_queue, tmp_path):
    """Whoever dies with a message in his hands 25 times finds it there the next time."""
    options = {"declare": "yes", "queue_type": "quorum"}
    with opened(broker, new_queue, tmp_path, **options) as source:
        source.quiet(1)
        source.close()
    fill(broker, new_queue, 1, 1)
    for _ in range(25):
        crash(broker, new_queue, tmp_path, **options)
    with opened(broker, new_queue, tmp_path, **options) as source:
        assert headers(source.collect(1)[0])["x-delivery-count"] == "25"


def test_a_queue_that_exists_with_a_limit_is_not_taken_for_one_that_is_made(broker, new_queue, tmp_path):
    broker.declare(new_queue, x_queue_type="quorum", x_delivery_limit=3)
    options = {"declare": "yes", "queue_type": "quorum"}
    with opened(broker, new_queue, tmp_path, **options) as source:
        assert "delivered 4 times" in source.until("unavailable")["problem"]
    fill(broker, new_queue, 1, 1)
    with opened(broker, new_queue, tmp_path, **options, delivery_limit="allow") as source:
        assert payloads(source.collect(1)) == ["m1"]


def test_how_often_a_message_came_back_is_said_before_it_is_gone(broker, new_queue, tmp_path):
    broker.declare(new_queue, x_queue_type="quorum", x_delivery_limit=2)
    fill(broker, new_queue, 1, 1)
    allowed = {"delivery_limit": "allow"}
    assert "event=redelivered" not in crash(broker, new_queue, tmp_path, **allowed)
    assert "event=redelivered queue=" + new_queue + " deliveries=1 limit=2" in crash(broker, new_queue, tmp_path, **allowed)
    with opened(broker, new_queue, tmp_path, **allowed) as source:
        source.collect(1)
        log = source.log.read_text()
        assert "deliveries=2 limit=2" in log and "drops the message if it is returned once more" in log and "level=error" in log


def test_a_limit_by_a_policy_is_not_shown_but_what_came_back_is_said(broker, new_queue, tmp_path):
    broker.declare(new_queue, **without_limit(broker))
    broker.control("set_policy", "limit", f"^{new_queue}$", '{"delivery-limit": 9}', "--apply-to", "queues")
    fill(broker, new_queue, 1, 1)
    for _ in range(4):
        log = crash(broker, new_queue, tmp_path)
    assert "event=redelivered queue=" + new_queue + " deliveries=3 limit=unknown" in log and "level=warning" in log


def test_who_may_not_configure_the_queue_is_told_that_its_limit_is_not_known(broker, new_queue, tmp_path):
    broker.declare(new_queue, x_queue_type="quorum", x_delivery_limit=3)
    broker.control("add_user", "reader", "secret")
    broker.control("set_permissions", "reader", "", "", ".*")
    fill(broker, new_queue, 1, 1)
    with opened(broker, new_queue, tmp_path, url=broker.url.replace("guest:guest", "reader:secret")) as source:
        assert payloads(source.collect(1)) == ["m1"]
        assert "pgonce cannot see whether the queue drops messages" in source.log.read_text()


def test_wrong_credentials_are_named(broker, tmp_path):
    url = broker.url.replace("guest:guest", "guest:wrong")
    with Source(tmp_path, source="rabbitmq", url=url, queue="q") as source:
        problem = source.until("unavailable")["problem"]
        assert "403" in problem or "ACCESS" in problem or "log in" in problem, problem
        assert "wrong" not in problem


def test_a_copy_is_published_with_its_headers_and_waited_for(broker, queue, tmp_path):
    broker.declare("dead")
    broker.publish(queue, [(bytes(range(256)), pika.BasicProperties(content_type="avro/binary", headers={"Pgonce-Event-Id": "e1"}))])
    with opened(broker, queue, tmp_path) as source:
        message = source.collect(1)[0]
        assert source.publish("dead", message)["state"] == "ok"
        (_, properties, body), = broker.take("dead")
        assert (body, properties.headers, properties.delivery_mode) == (bytes(range(256)), {"Pgonce-Event-Id": "e1", "why": "dead"}, 2)
        assert properties.content_type == "avro/binary"
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


# ---- messages that do not come


def lose_reader(broker, queue):
    """The queue forgets its reader, and nobody tells that reader."""
    return broker.control("eval", f"""
        {{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"{queue}">>)),
        [gen_server2:call(amqqueue:get_pid(Q), {{basic_cancel, element(1, C), element(2, C), undefined, <<"test">>}}, infinity)
         || C <- rabbit_amqqueue:consumers(Q)].""")


def test_a_queue_that_has_messages_and_gives_none_is_stalled_until_a_new_connection_reads_it(broker, queue, tmp_path):
    with opened(broker, queue, tmp_path, stalled_after="1s") as source:
        until = time.monotonic() + 2
        while time.monotonic() < until:
            assert source.fetch()["messages"] == [] and source.stalled() is None  # there is nothing to give
        with ThreadPoolExecutor(1) as threads:  # rabbitmqctl may take longer than the broker waits for a heartbeat
            lost = threads.submit(lose_reader, broker, queue)
            while not lost.done():
                source.keep_alive()
                time.sleep(0.05)
        assert lost.result().strip() == "[ok]"
        fill(broker, queue, 1, 3)
        began = time.monotonic()
        while source.stalled() is None:
            assert source.fetch()["messages"] == []
            assert time.monotonic() - began < PATIENCE_S
        assert time.monotonic() - began >= 1
        assert source.stalled() == (
            f"the queue {queue} has 3 messages that no consumer holds, and delivers none: the broker no longer knows this consumer")
        found, known = [], time.monotonic()
        while not found:  # it is a stall until something comes: an alarm sees it
            assert source.stalled() is not None and time.monotonic() - known < PATIENCE_S
            found = source.fetch()["messages"]
        assert time.monotonic() - began >= 2
        assert payloads(found + source.collect(3 - len(found))) == texts(1, 3)
        assert source.stalled() is None
        source.acknowledge()
        source.close()


@pytest.mark.parametrize("way", ["got", "single active"])
def test_what_another_client_holds_or_is_to_get_is_not_stalled(broker, new_queue, tmp_path, way):
    broker.declare(new_queue, **({"x_single_active_consumer": True} if way == "single active" else {}))
    connection = broker.connect()
    channel = connection.channel()
    channel.basic_qos(prefetch_count=2)
    tags = []
    if way == "single active":
        channel.basic_consume(new_queue, lambda _, method, *__: tags.append(method.delivery_tag))
    fill(broker, new_queue, 1, 5)
    if way == "got":
        tags += [channel.basic_get(new_queue)[0].delivery_tag for _ in range(5)]
    deadline = time.monotonic() + PATIENCE_S
    while len(tags) < 2:
        connection.process_data_events(0.1)
        assert time.monotonic() < deadline, tags
    with opened(broker, new_queue, tmp_path, stalled_after="1s") as source:
        until = time.monotonic() + 4
        while time.monotonic() < until:
            connection.process_data_events(0)
            assert source.fetch()["messages"] == [] and source.stalled() is None
        assert len(tags) == (5 if way == "got" else 2)
        connection.close()
        assert payloads(source.collect(5)) == texts(1, 5)
        source.acknowledge()
        source.close()


def test_what_the_caller_has_or_does_not_want_is_not_stalled(broker, queue, tmp_path):
    fill(broker, queue, 1, 5)
    with opened(broker, queue, tmp_path, prefetch=2, stalled_after="1s") as source:
        source.collect(2)
        until = time.monotonic() + 3
        while time.monotonic() < until:
            source.fetch()
            assert source.stalled() is None
        source.acknowledge()
        until = time.monotonic() + 3
        while time.monotonic() < until:
            source.keep_alive()
            assert source.stalled() is None
        source.kill()
