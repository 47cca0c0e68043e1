# SPDX-License-Identifier: PostgreSQL
"""The sink of RabbitMQ against a real broker, without a relay before it."""

import socket
import ssl
import threading
import time
import uuid

import pytest

from harness.broker import free_port
from harness.postgres import PATIENCE_S, wait_until
from harness.rabbitmq import RabbitMQ

from .running import Relay, emit
from .sinks import Sink, problem_of, results_of

TIMEOUT_S = 3
BURST = 300
MOST_BYTES = 5000
HEARTBEAT_S = 2  # the shorter one of the two sides' is taken


@pytest.fixture(scope="module")
def rabbitmq():
    with RabbitMQ(tls=True, more=f"max_message_size = {MOST_BYTES}\nheartbeat = {HEARTBEAT_S}") as broker:
        broker.declare("orders", "shop", ["order.*"])
        yield broker


@pytest.fixture
def options(rabbitmq):
    return {"sink": "rabbitmq", "url": rabbitmq.url, "exchange": "shop", "timeout": f"{TIMEOUT_S}s"}


@pytest.fixture
def sink(rabbitmq, tmp_path, options):
    rabbitmq.take("orders")
    with Sink(tmp_path / "conf", options) as opened:
        yield opened


def deliver_until(sink, verdict, destination="order.placed", **more):
    wait_until(lambda: sink.deliver(destination, **more)["verdict"] == verdict, f"a result {verdict}")


def test_a_delivered_event_is_in_the_queue_persistent_with_its_body_headers_and_id(rabbitmq, sink):
    event_id = str(uuid.uuid4())
    headers = {"Pgonce-Event-Id": event_id, "Pgonce-Key": "größe"}
    result = sink.deliver("order.placed", '{"total": 1}', event_id=event_id, headers=headers)
    assert (result["verdict"], result["problem"]) == ("delivered", "")
    [(method, properties, body)] = rabbitmq.take("orders")
    assert (method.exchange, method.routing_key, body) == ("shop", "order.placed", b'{"total": 1}')
    assert properties.headers == headers
    assert (properties.message_id, properties.content_type, properties.app_id) == (event_id, "application/json", "pgonce")
    assert properties.delivery_mode == 2 and properties.timestamp is not None


def test_without_an_exchange_the_destination_is_a_queue(rabbitmq, tmp_path, options):
    rabbitmq.take("orders")
    del options["exchange"]
    with Sink(tmp_path / "conf", options) as sink:
        assert sink.deliver("orders")["verdict"] == "delivered"
    assert len(rabbitmq.take("orders")) == 1


def test_an_event_that_no_queue_takes_is_refused_and_others_flow(rabbitmq, sink):
    """The broker returns it, and then acknowledges it all the same."""
    bodies = ["x" * size for size in (0, 1, 4000)]
    refused = [sink.send("nobody.listens", body) for body in bodies]
    delivered = [sink.send("order.placed", body) for body in bodies]
    results = results_of(sink, 6)
    for event_id in refused:
        assert results[event_id]["verdict"] == "refused" and "unroutable" in results[event_id]["problem"]
        assert "nobody.listens" in results[event_id]["problem"] and "shop" in results[event_id]["problem"]
    assert {results[event_id]["verdict"] for event_id in delivered} == {"delivered"}
    assert [body for _, _, body in rabbitmq.take("orders")] == [body.encode() for body in bodies]


def test_a_full_queue_refuses(rabbitmq, sink):
    rabbitmq.declare("full", "shop", ["full"], x_max_length=1, x_overflow="reject-publish")
    rabbitmq.take("full")
    assert sink.deliver("full")["verdict"] == "delivered"
    result = sink.deliver("full")
    assert result["verdict"] == "refused" and "nack" in result["problem"]
    rabbitmq.take("full")
    assert sink.deliver("full")["verdict"] == "delivered"


def test_an_exchange_that_is_missing_is_named(tmp_path, options):
    with Sink(tmp_path / "conf", {**options, "exchange": "nowhere"}) as sink:
        for _ in range(2):  # the channel is opened again
            result = sink.deliver("order.placed")
            assert result["verdict"] == "refused" and "404" in result["problem"] and "no exchange 'nowhere'" in result["problem"]


def test_routes_lead_to_several_exchanges_and_to_queues(rabbitmq, tmp_path, options, db):
    """Which exchange is the route's word alone, whatever a topic is called."""
    rabbitmq.declare("invoices", "billing", ["invoice.#"])
    rabbitmq.declare("odd", "shop", ["/exchanges/billing/invoice.forged"])
    queues = ("orders", "invoices", "odd")
    for queue in queues:
        rabbitmq.take(queue)
    for topic in ("invoice.paid", "order.placed", "job", "/exchanges/billing/invoice.forged"):
        emit(db.connect(), 1, topic=topic)
    routes = ["invoice.* -> /exchanges/billing/{topic}", "job -> /queues/orders", "* -> {topic}"]
    relay = Relay(tmp_path, db.dsn(), **options, route=routes)
    assert relay.once() == 0, relay.err.read_text()
    assert {queue: sorted((method.exchange, method.routing_key) for method, _, _ in rabbitmq.take(queue)) for queue in queues} == {
        "orders": [("", "orders"), ("shop", "order.placed")], "invoices": [("billing", "invoice.paid")], "odd": [("shop", "/exchanges/billing/invoice.forged")]}


NUMBERS = {"priority_header": "Urgency", "expiration_header": "ttl-ms", "delay_header": "wait"}


def test_headers_become_what_rabbitmq_takes_as_a_number(rabbitmq, tmp_path, options):
    rabbitmq.take("orders")
    with Sink(tmp_path / "conf", {**options, **NUMBERS}) as sink:
        assert sink.deliver("order.placed", headers={"urgency": "9", "TTL-ms": "3600000", "wait": "4294967295"})["verdict"] == "delivered"
        assert sink.deliver("order.placed", headers={"other": "1"})["verdict"] == "delivered"
        refused = [sink.deliver("order.placed", headers={name: value}) for name, value in
                   (("urgency", "256"), ("urgency", "-1"), ("urgency", "high"), ("urgency", ""), ("ttl-ms", "4294967296"), ("wait", "1.5"), ("wait", "9" * 30))]
    (_, first, _), (_, second, _) = rabbitmq.take("orders")
    assert (first.priority, first.expiration) == (9, "3600000")
    assert first.headers == {"urgency": "9", "TTL-ms": "3600000", "wait": "4294967295", "x-delay": 4294967295}
    assert (second.priority, second.expiration, second.headers) == (None, None, {"other": "1"})
    assert {result["verdict"] for result in refused} == {"refused"}
    assert refused[0]["problem"] == "header Urgency: '256' is no number from 0 to 255"


def test_a_message_with_an_expiration_is_dropped_when_it_is_over(rabbitmq, tmp_path, options):
    rabbitmq.take("orders")
    with Sink(tmp_path / "conf", {**options, **NUMBERS}) as sink:
        assert sink.deliver("order.placed", headers={"ttl-ms": "1"})["verdict"] == "delivered"
        wait_until(lambda: rabbitmq.count("orders") == 0, "the queue to drop it")


def test_an_exchange_that_is_missing_stops_only_what_goes_there(rabbitmq, tmp_path, options):
    rabbitmq.take("orders")
    nowhere, unheard = "/exchanges/nowhere/{topic}", "/exchanges/shop/{topic}"
    sent = {}
    with Sink(tmp_path / "conf", {**options, "route": [f"a -> {nowhere}", f"c -> {unheard}", "* -> {topic}"]}) as sink:

        def send(kind):
            route, destination = {"missing": (nowhere, "/exchanges/nowhere/x"), "unroutable": (unheard, "/exchanges/shop/nobody.listens"),
                                  "good": ("{topic}", "order.placed")}[kind]
            sent[sink.send(destination, route=route)] = kind

        for kind in ("good", "missing", "good", "unroutable", "missing", "good"):
            send(kind)
        ends = []
        for _ in range(40):
            if len(ends) == 6:
                break
            result = sink.result()
            if result["verdict"] == "unavailable":
                send(sent[result["event_id"]])
                continue
            ends.append((sent[result["event_id"]], result["verdict"]))
            if sent[result["event_id"]] == "missing":
                assert "no exchange 'nowhere'" in result["problem"]
            if sent[result["event_id"]] == "unroutable":
                assert "no queue of exchange 'shop' takes the routing key 'nobody.listens'" in result["problem"]
    assert sorted(ends) == sorted([("good", "delivered")] * 3 + [("missing", "refused")] * 2 + [("unroutable", "refused")])
    assert len(rabbitmq.take("orders")) >= 3


def test_an_event_that_is_too_large_is_found_among_others_and_alone_refused(rabbitmq, sink):
    """The broker closes the channel, does not say for which message, and forgets the rest."""
    deliver_until(sink, "delivered")
    waiting = {sink.send("order.placed", "x" * (MOST_BYTES + 1 if n == 3 else 10)): n for n in range(8)}
    large = next(event_id for event_id, n in waiting.items() if n == 3)
    rounds = 0
    while waiting:
        rounds += 1
        assert rounds <= 3
        for event_id, result in results_of(sink, len(waiting)).items():
            if result["verdict"] == "unavailable":
                assert "message size" in result["problem"]
                continue
            assert result["verdict"] == ("refused" if event_id == large else "delivered")
            del waiting[event_id]
        for event_id, n in waiting.items():
            sink.send("order.placed", "x" * (MOST_BYTES + 1 if n == 3 else 10), event_id=event_id)
    result = sink.deliver("order.placed", "x" * (MOST_BYTES + 1))
    assert result["verdict"] == "refused" and f"{MOST_BYTES}" in result["problem"]


@pytest.mark.parametrize(
    "case", [{"destination": "x" * 256}, {"headers": {"x" * 256: "y"}}, {"headers": {f"h{n}": "y" * 900 for n in range(60)} | {"big": "z" * 60000}}]
)
def test_what_amqp_cannot_carry_is_refused_and_the_connection_lives(sink, case):
    refused = sink.send(**{"destination": "order.placed", **case})
    delivered = sink.send("order.placed")
    results = results_of(sink, 2)
    assert results[refused]["verdict"] == "refused" and results[refused]["problem"]
    assert results[delivered]["verdict"] == "delivered"


def test_a_killed_broker_makes_events_unavailable_and_none_that_was_confirmed_is_lost(rabbitmq, sink):
    rabbitmq.keep()
    deliver_until(sink, "delivered", event_id=str(uuid.uuid4()))
    sent = [sink.send("order.placed", f'{{"n": {n}}}') for n in range(BURST)]
    first = sink.result()
    rabbitmq.kill()
    results = results_of(sink, BURST - 1)
    results[first["event_id"]] = first
    rabbitmq.start()
    assert {result["verdict"] for result in results.values()} <= {"delivered", "unavailable"}
    delivered = {event_id for event_id, result in results.items() if result["verdict"] == "delivered"}
    deliver_until(sink, "delivered", event_id=str(uuid.uuid4()))
    again = [event_id for event_id in sent if event_id not in delivered]
    for event_id in again:
        sink.send("order.placed", event_id=event_id)
    assert {result["verdict"] for result in results_of(sink, len(again)).values()} <= {"delivered"}
    stored = [properties.message_id for _, properties, _ in rabbitmq.take("orders")]
    assert set(sent) <= set(stored)


@pytest.mark.alone
def test_a_stuck_broker_makes_an_event_unavailable_within_the_timeout_and_later_all_is_well(rabbitmq, sink):
    deliver_until(sink, "delivered")
    rabbitmq.pause()
    try:
        start = time.monotonic()
        result = sink.deliver("order.placed")
        assert result["verdict"] == "unavailable" and result["problem"]
        assert time.monotonic() - start < TIMEOUT_S + 1
    finally:
        rabbitmq.resume()
    deliver_until(sink, "delivered")


@pytest.mark.alone
def test_a_stuck_broker_and_more_than_the_connection_holds_blocks_nobody(rabbitmq, tmp_path, options):
    """librabbitmq blocks in the midst of sending; results come all the same, and closing breaks it off."""
    with Sink(tmp_path / "conf", {**options, "timeout": "2s"}) as sink:
        deliver_until(sink, "delivered")
        rabbitmq.pause()
        try:
            count = 3000
            sent = {sink.send("order.placed", "x" * 4900) for _ in range(count)}
            results = results_of(sink, count)
            assert set(results) == sent and {result["verdict"] for result in results.values()} == {"unavailable"}
            for _ in range(10):
                sink.send("order.placed", "x" * 4900)
            start = time.monotonic()
            sink.say("close")
            assert sink.process.wait(30) == 0
            assert time.monotonic() - start < 20
        finally:
            rabbitmq.resume()


@pytest.mark.alone
def test_a_broker_short_of_memory_gets_no_events_until_it_has_room(rabbitmq, sink):
    deliver_until(sink, "delivered")
    rabbitmq.take("orders")
    rabbitmq.control("set_vm_memory_high_watermark", "absolute", "1MB")
    try:
        start = time.monotonic()
        # The first tells the broker that somebody publishes, and is in its socket; then it says that it is short of memory.
        results = [sink.deliver("order.placed") for _ in range(2)]
        assert [result["verdict"] for result in results] == ["unavailable"] * 2
        assert time.monotonic() - start < 2 * TIMEOUT_S + 2
    finally:
        rabbitmq.control("set_vm_memory_high_watermark", "0.4")
    deliver_until(sink, "delivered")
    stored = {properties.message_id for _, properties, _ in rabbitmq.take("orders")}
    assert results[1]["event_id"] not in stored, "it was sent although the broker takes nothing"


def test_a_closed_connection_is_made_again(rabbitmq, sink):
    deliver_until(sink, "delivered")
    rabbitmq.control("close_all_connections", "test")
    deliver_until(sink, "delivered")


def test_heartbeats_keep_an_idle_connection(rabbitmq, sink):
    """Idle for longer than the broker would wait for a heartbeat; the connection is the same one."""
    deliver_until(sink, "delivered")
    before = rabbitmq.control("list_connections", "name", "timeout").splitlines()
    assert before[-1].split("\t")[-1] == f"{HEARTBEAT_S}"
    end = time.monotonic() + 4 * HEARTBEAT_S
    wait_until(lambda: time.monotonic() > end, "time to pass")
    assert sink.deliver("order.placed")["verdict"] == "delivered"
    # One of an earlier test may have gone meanwhile; none is new.
    after = rabbitmq.control("list_connections", "name", "timeout").splitlines()
    assert len(after) > 1 and set(after) <= set(before)


def test_of_several_brokers_one_that_is_there_is_taken(rabbitmq, tmp_path, options):
    url = f"amqp://guest:guest@127.0.0.1:{free_port()},127.0.0.1:{rabbitmq.port}/%2f"
    with Sink(tmp_path / "conf", {**options, "url": url}) as sink:
        deliver_until(sink, "delivered")


def test_a_broker_that_is_away_is_said_with_its_address(tmp_path):
    port = free_port()
    with Sink(tmp_path / "conf", {"sink": "rabbitmq", "url": f"amqp://127.0.0.1:{port}", "timeout": "2s"}) as sink:
        result = sink.deliver("orders")
        assert result["verdict"] == "unavailable" and f"127.0.0.1:{port}: no server listens" in result["problem"]


@pytest.mark.parametrize(
    "login, said",
    [
        ({"url": "amqp://guest:wrong@{host}/%2f"}, "ACCESS_REFUSED"),
        ({"url": "amqp://{host}/nowhere"}, "vhost nowhere not found"),
        ({"url": "amqp://{host}/%2f", "user": "guest", "password": "wrong"}, "ACCESS_REFUSED"),
    ],
)
def test_what_the_broker_does_not_let_in_is_said(rabbitmq, tmp_path, options, login, said):
    login["url"] = login["url"].format(host=f"127.0.0.1:{rabbitmq.port}")
    with Sink(tmp_path / "conf", {**options, **login}) as sink:
        result = sink.deliver("order.placed")
        assert result["verdict"] == "unavailable" and said in result["problem"], result
        assert "wrong" not in result["problem"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_tls_checks_who_the_broker_is(rabbitmq, tmp_path, options, host):
    options["url"] = f"amqps://guest:guest@{host}:{rabbitmq.tls_port}"
    with Sink(tmp_path / "conf", {**options, "ca_file": rabbitmq.directory / "ca.pem"}) as sink:
        assert sink.deliver("order.placed")["verdict"] == "delivered"
    for wrong in ({"ca_file": rabbitmq.directory / "other_ca.pem"}, {}):
        with Sink(tmp_path / "conf", {**options, **wrong}) as sink:
            result = sink.deliver("order.placed")
            assert result["verdict"] == "unavailable" and "certificate" in result["problem"], result


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_tls_refuses_a_certificate_of_another_host(rabbitmq, tmp_path, options, host):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(rabbitmq.directory / "stranger.pem", rabbitmq.directory / "stranger.key")
    heard = []

    def serve(listener):
        # The sink may try again: each connection is answered, so that none ends for want of an answer.
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                client.settimeout(PATIENCE_S)
                with context.wrap_socket(client, server_side=True) as stream:
                    heard.append(stream.recv(8))
            except OSError:
                pass

    with socket.create_server(("127.0.0.1", free_port())) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        options["url"] = f"amqps://{host}:{listener.getsockname()[1]}"
        # In time also where the machine is busy: it is the certificate that is to be refused, not the wait for it.
        with Sink(tmp_path / "conf", {**options, "ca_file": rabbitmq.directory / "ca.pem", "timeout": "30s"}) as sink:
            result = sink.deliver("order.placed")
            assert result["verdict"] == "unavailable" and "certificate" in result["problem"], result
        listener.shutdown(socket.SHUT_RDWR)  # what came is heard to its end; closing alone would wake nobody
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert set(heard) <= {b""}, "it went on with a stranger"


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"url": "127.0.0.1"}, "amqp://"),
        ({"url": "amqp://h/v?heartbeat=1"}, "url"),
        ({"url": "amqp://h", "ca_file": "/etc/passwd"}, "amqps://"),
        ({"url": "amqps://h", "certificate_file": "/etc/passwd"}, "belong together"),
        ({"url": "amqp://a:b@h", "password_file": "/etc/passwd"}, "twice"),
        ({"url": "amqp://h", "exchange": "x" * 256}, "exchange"),
        ({"url": "amqp://h", "route": "* -> /exchanges/shop"}, "write it as /exchanges/NAME/ROUTING KEY"),
        ({"url": "amqp://h", "route": "* -> /exchanges//x"}, "write it as /exchanges/NAME/ROUTING KEY"),
        ({"url": "amqp://h", "route": ["* -> x", "a -> /exchanges/{tenant}/x"]}, "nothing is put into an exchange's name"),
        ({"url": "amqp://h", "route": f"* -> /exchanges/{'x' * 256}/x"}, "at most 255 bytes"),
        ({"url": "amqp://h", "delay_header": "x-delay"}, "name another header: RabbitMQ acts on this one"),
        ({"url": "amqp://h", "route": "* -> /queues/"}, "a queue's name must stand after /queues/"),
    ],
)
def test_wrong_options_are_said_before_anything_is_connected(tmp_path, wrong, said):
    problem = problem_of(tmp_path / "conf", {"sink": "rabbitmq", **wrong})
    assert problem is not None and said in problem and "[relay played]" in problem, problem
