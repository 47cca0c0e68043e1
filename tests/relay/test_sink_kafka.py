# SPDX-License-Identifier: PostgreSQL
"""The sink of Kafka against a real broker, without a relay before it."""

import ctypes
import time
import uuid

import pytest

from harness import kafka as kafka_harness
from harness.broker import free_port
from harness.kafka import Kafka
from harness.postgres import wait_until

from .sinks import Sink, problem_of, results_of

TIMEOUT_S = 6
BURST = 2000
AUTHORIZER = """
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS;User:admin;User:CN=alice
"""


@pytest.fixture(scope="module")
def kafka():
    """Whoever gives no name may do all; mallory may do nothing."""
    kafka_harness.require()
    with Kafka(tls=True, users={"admin": "s3cret", "mallory": "s3cret"}, more=AUTHORIZER) as broker:
        broker.create_topic("orders", 3)
        broker.create_topic("small", max_message_bytes=1000)
        yield broker


@pytest.fixture
def options(kafka):
    return {"sink": "kafka", "url": f"kafka://{kafka.servers}", "timeout": f"{TIMEOUT_S}s"}


@pytest.fixture
def sink(tmp_path, options):
    with Sink(tmp_path / "conf", options) as opened:
        yield opened


def stored_in(kafka, topic):
    """The event ids, as often as they are stored."""
    return [message["headers"].get("Pgonce-Event-Id") for message in kafka.messages(topic)]


def send(sink, topic, body="{}", event_id=None, **more):
    event_id = event_id or str(uuid.uuid4())
    return sink.send(topic, body, event_id=event_id, headers={"Pgonce-Event-Id": event_id}, **more)


def test_a_delivered_event_is_in_the_topic_with_its_body_key_and_headers(kafka, sink):
    kafka.create_topic("whole")
    headers = {"Pgonce-Event-Id": "1", "Pgonce-Key": "größe"}
    result = sink.deliver("whole", '{"total": 1}', key="größe", headers=headers)
    assert (result["verdict"], result["problem"]) == ("delivered", "")
    assert sink.deliver("whole")["verdict"] == "delivered"
    first, second = kafka.messages("whole")
    assert (first["payload"], first["key"]) == ('{"total": 1}', "größe")
    assert first["headers"] == {"content-type": "application/json", **headers}
    assert second["key"] is None


def test_one_key_is_always_in_one_partition(kafka, sink):
    kafka.create_topic("keyed", 3)
    for n in range(30):
        assert sink.deliver("keyed", str(n), key=f"key{n % 5}")["verdict"] == "delivered"
    messages = kafka.messages("keyed")
    places = {}
    for message in messages:
        places.setdefault(message["key"], []).append((message["partition"], message["offset"], int(message["payload"])))
    assert len({place[0][0] for place in places.values()}) > 1, "all keys are in one partition"
    for found in places.values():
        assert len({partition for partition, _, _ in found}) == 1
        numbers = [number for _, _, number in sorted(found)]
        assert numbers == sorted(numbers)


def test_a_topic_that_is_not_there_is_refused_and_others_flow(sink):
    refused = sink.send("nowhere")
    delivered = sink.send("orders")
    results = results_of(sink, 2)
    assert results[refused]["verdict"] == "refused" and "UNKNOWN_TOPIC" in results[refused]["problem"]
    assert results[delivered]["verdict"] == "delivered"


@pytest.mark.parametrize("topic", ["", ".", "..", "a b", "größe", "x" * 250, "a/b"])
def test_what_is_no_name_of_a_topic_is_refused_without_asking_the_broker(tmp_path, topic):
    with Sink(tmp_path / "conf", {"sink": "kafka", "url": f"kafka://127.0.0.1:{free_port()}", "timeout": "2s"}) as sink:
        result = sink.deliver(topic)
        assert result["verdict"] == "refused" and "TOPIC" in result["problem"]


def results_in_the_end(sink, events):
    """Of [(event id, what send takes)]; what is withheld is sent again, as the pipeline does it."""
    for event_id, message in events:
        send(sink, event_id=event_id, **message)
    results, waiting, again = {}, len(events), dict(events)
    while waiting > 0:
        result = sink.result()
        waiting -= 1
        if result["verdict"] == "withheld":
            send(sink, event_id=result["event_id"], **again[result["event_id"]])
            waiting += 1
        else:
            results[result["event_id"]] = result
    return results


# What a topic does not take, and whom it then blames in a batch: all. (settings of the topic, at fault or None, its neighbours, the words for it)
NARROW = {
    "batch": ({"max_message_bytes": 20000}, None, {"body": "x" * 5000}, None),
    "large": ({"max_message_bytes": 1000}, {"body": "x" * 2000}, {"body": "x" * 10}, "MSG_SIZE_TOO_LARGE"),
    "keyless": ({"cleanup_policy": "compact"}, {"key": None}, {"key": "a"}, "INVALID_RECORD"),
}


@pytest.mark.parametrize("fence", ["none", "broker"])
@pytest.mark.parametrize("case", NARROW)
def test_of_a_batch_that_is_refused_none_is_blamed_for_its_neighbours(kafka, tmp_path, options, case, fence):
    settings, guilty, innocent, said = NARROW[case]
    topic = f"{case}-{fence}"
    kafka.create_topic(topic, **settings)
    events = [(str(uuid.uuid4()), {"topic": topic, **innocent}) for _ in range(BURST // 10)]
    if guilty:
        events.insert(len(events) // 2, (str(uuid.uuid4()), {"topic": topic, **guilty}))
    with Sink(tmp_path / "conf", {**options, "timeout": "60s", "fence": fence}) as sink:
        results = results_in_the_end(sink, events)
        assert sink.deliver("orders")["verdict"] == "delivered"
    refused = {event_id: result for event_id, result in results.items() if result["verdict"] != "delivered"}
    assert [result["verdict"] for result in refused.values()] == ["refused"] * bool(guilty)
    for event_id, result in refused.items():
        assert dict(events)[event_id] == {"topic": topic, **guilty} and said in result["problem"]
    assert sorted(stored_in(kafka, topic)) == sorted({event_id for event_id, _ in events} - set(refused))


def test_more_topics_that_refuse_batches_than_are_remembered_get_all_of_their_events(kafka, tmp_path, options):
    topics = [f"many{n}" for n in range(40)]
    for topic in topics:
        kafka.create_topic(topic, max_message_bytes=1000)
    events = [(str(uuid.uuid4()), {"topic": topic, "body": "x" * 500}) for _ in range(5) for topic in topics]
    with Sink(tmp_path / "conf", {**options, "timeout": "60s"}) as sink:
        assert {result["verdict"] for result in results_in_the_end(sink, events).values()} == {"delivered"}


def test_an_event_that_the_client_finds_too_large_is_refused_and_told_how_large_it_may_be(sink):
    large = sink.send("orders", "x" * 1_000_001)
    delivered = sink.send("orders")
    results = results_of(sink, 2)
    assert results[large]["verdict"] == "refused" and "kafka.message.max.bytes" in results[large]["problem"]
    assert results[delivered]["verdict"] == "delivered"


def sent_again(sink, topic, results):
    """As the pipeline does it, until all are delivered; how many that were. Only a librdkafka before 2.3.0 lets it come to that: it ends an
    idempotent producer for good ("rewound sequence number", its issue 3584) where a request that had timed out is answered with NOT_LEADER when it is
    sent again, as this broker does while it finds out that it was paused for longer than its session with the controller."""
    waiting = [event_id for event_id, result in results.items() if result["verdict"] != "delivered"]
    assert not waiting or ctypes.CDLL("librdkafka.so.1").rd_kafka_version() < 0x02030000, results
    assert {results[event_id]["verdict"] for event_id in waiting} <= {"unavailable"}
    for event_id in waiting:
        verdict = None
        while verdict != "delivered":
            send(sink, topic, event_id=event_id)
            verdict = sink.result()["verdict"]
            assert verdict in ("delivered", "unavailable")
    return len(waiting)


def test_a_killed_broker_that_is_back_in_time_stores_each_event_once(kafka, tmp_path, options):
    """The idempotent producer sends again what it must; nobody else does."""
    kafka.create_topic("killed", 3)
    with Sink(tmp_path / "conf", {**options, "timeout": "60s"}) as sink:
        sent = [send(sink, "killed", key=str(n)) for n in range(BURST)]
        first = sink.result()
        kafka.kill()
        sent += [send(sink, "killed", key=str(n)) for n in range(BURST)]
        kafka.start()
        results = results_of(sink, 2 * BURST - 1)
        results[first["event_id"]] = first
        repeats = sent_again(sink, "killed", results)
    stored = stored_in(kafka, "killed")
    assert set(stored) == set(sent) and len(stored) <= len(sent) + repeats


def test_a_request_that_was_given_up_and_repeated_is_stored_once(kafka, tmp_path, options):
    """The broker is stuck when it comes, and finds it and its repetition when it goes on: the same number, the same event."""
    kafka.create_topic("repeated")
    with Sink(tmp_path / "conf", {**options, "timeout": "60s", "kafka.socket.timeout.ms": "1000"}) as sink:
        send(sink, "repeated")
        assert sink.result()["verdict"] == "delivered"
        kafka.pause()
        try:
            for _ in range(5):
                send(sink, "repeated")
            end = time.monotonic() + 4
            wait_until(lambda: time.monotonic() > end, "the request to be given up")
        finally:
            kafka.resume()
        repeats = sent_again(sink, "repeated", results_of(sink, 5))
    stored = stored_in(kafka, "repeated")
    assert len(set(stored)) == 6 and len(stored) <= 6 + repeats


@pytest.mark.alone
def test_a_broker_that_is_away_makes_events_unavailable_in_time_and_none_that_was_acknowledged_is_lost(kafka, sink):
    kafka.create_topic("away")
    sent = [send(sink, "away") for _ in range(BURST)]
    first = sink.result()
    kafka.kill()
    start = time.monotonic()
    late = send(sink, "away")
    results = results_of(sink, BURST)
    results[first["event_id"]] = first
    assert time.monotonic() - start < TIMEOUT_S
    assert results[late]["verdict"] == "unavailable" and str(kafka.ports["PLAINTEXT"]) in results[late]["problem"]
    assert {result["verdict"] for result in results.values()} <= {"delivered", "unavailable"}
    kafka.start()
    wait_until(lambda: sink.deliver("orders")["verdict"] == "delivered", "the broker's return")
    waiting = [event_id for event_id, result in results.items() if result["verdict"] == "unavailable"]
    for event_id in waiting:
        send(sink, "away", event_id=event_id)
    assert {result["verdict"] for result in results_of(sink, len(waiting)).values()} == {"delivered"}
    assert set(stored_in(kafka, "away")) == {*sent, late}


@pytest.mark.alone
def test_a_stuck_broker_makes_an_event_unavailable_within_the_timeout_and_later_all_is_well(kafka, sink):
    assert sink.deliver("orders")["verdict"] == "delivered"
    kafka.pause()
    try:
        start = time.monotonic()
        result = sink.deliver("orders")
        assert result["verdict"] == "unavailable" and result["problem"]
        assert time.monotonic() - start < TIMEOUT_S
    finally:
        kafka.resume()
    wait_until(lambda: sink.deliver("orders")["verdict"] == "delivered", "the broker's return")


@pytest.mark.alone
def test_closing_while_the_broker_is_stuck_does_not_wait_for_it(kafka, tmp_path, options):
    with Sink(tmp_path / "conf", {**options, "timeout": "60s"}) as sink:
        assert sink.deliver("orders")["verdict"] == "delivered"
        kafka.pause()
        try:
            for _ in range(100):
                sink.send("orders", "x" * 1000)
            start = time.monotonic()
            sink.say("close")
            assert sink.process.wait(30) == 0
            assert time.monotonic() - start < 20  # of 60
        finally:
            kafka.resume()


def test_a_producer_that_ended_for_good_is_replaced(kafka, tmp_path, options):
    """Who may not write at all gets no producer's number: librdkafka's producer is then dead for ever."""
    kafka.create_topic("granted")
    kafka.allow("mallory", "describe", "granted")
    login = {"url": f"kafka://mallory:s3cret@{kafka.servers_of('SASL_PLAINTEXT')}"}
    with Sink(tmp_path / "conf", {**options, **login}) as sink:
        wait_until(lambda: sink.deliver("granted")["verdict"] != "refused", "the permission to see the topic")
        for _ in range(3):
            result = sink.deliver("granted")
            assert result["verdict"] == "unavailable" and "authorization" in result["problem"].lower(), result
        kafka.allow("mallory", "write", "granted")
        wait_until(lambda: sink.deliver("granted")["verdict"] == "delivered", "a delivery by a new producer")
        result = sink.deliver("orders")
        assert result["verdict"] == "refused" and "TOPIC_AUTHORIZATION_FAILED" in result["problem"], result


def test_a_password_is_given_and_a_wrong_one_is_said(kafka, tmp_path, options):
    (tmp_path / "password").write_text("s3cret\n")
    host = kafka.servers_of("SASL_PLAINTEXT")
    for right in ({"url": f"kafka://admin:s3cret@{host}"}, {"url": f"kafka://{host}", "user": "admin", "password_file": tmp_path / "password"}):
        with Sink(tmp_path / "conf", {**options, **right}) as sink:
            assert sink.deliver("orders")["verdict"] == "delivered"
    with Sink(tmp_path / "conf", {**options, "url": f"kafka://admin:wr0ng@{host}"}) as sink:
        result = sink.deliver("orders")
        assert result["verdict"] == "unavailable" and "authentication" in result["problem"].lower()
        assert "wr0ng" not in result["problem"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_tls_checks_who_the_broker_is(kafka, tmp_path, options, host):
    ca = {"ca_file": kafka.directory / "ca.pem"}
    url = {"url": f"kafkas://{host}:{kafka.ports['SSL']}"}
    with Sink(tmp_path / "conf", {**options, **url, **ca}) as sink:
        assert sink.deliver("orders")["verdict"] == "delivered"
    with Sink(tmp_path / "conf", {**options, "url": f"kafkas://admin:s3cret@{host}:{kafka.ports['SASL_SSL']}", **ca}) as sink:
        assert sink.deliver("orders")["verdict"] == "delivered"
    shown = {"certificate_file": kafka.directory / "client.pem", "key_file": kafka.directory / "client.key"}
    with Sink(tmp_path / "conf", {**options, **url, **ca, **shown}) as sink:
        assert sink.deliver("orders")["verdict"] == "delivered"
    with Sink(tmp_path / "conf", {**options, **url, "ca_file": kafka.directory / "other_ca.pem"}) as sink:
        result = sink.deliver("orders")
        assert result["verdict"] == "unavailable" and "certificate" in result["problem"], result


def test_of_several_brokers_one_that_is_there_is_taken(kafka, tmp_path, options):
    with Sink(tmp_path / "conf", {**options, "url": f"kafka://127.0.0.1:{free_port()},{kafka.servers}"}) as sink:
        assert sink.deliver("orders")["verdict"] == "delivered"


def test_properties_pass_through(kafka, tmp_path, options):
    kafka.create_topic("compressed")
    more = {"kafka.compression.type": "lz4", "kafka.linger.ms": "5", "kafka.client.id": "shop"}
    with Sink(tmp_path / "conf", {**options, **more}) as sink:
        assert sink.deliver("compressed", "x" * 10000)["verdict"] == "delivered"
    stored = sum(path.stat().st_size for path in kafka.directory.glob("data/compressed-0/*.log"))
    assert 0 < stored < 5000


# With fence = broker.


def test_with_a_fence_what_is_delivered_is_committed_and_an_older_producer_of_the_id_is_refused(kafka, tmp_path, options):
    kafka.create_topic("fenced", 3)
    kafka.create_topic("later")
    fence = {**options, "timeout": "60s", "fence": "broker", "kafka.transactional.id": "one"}
    with Sink(tmp_path / "older", fence) as older:
        sent = [send(older, "fenced", key=str(n)) for n in range(200)]
        assert {result["verdict"] for result in results_of(older, 200).values()} == {"delivered"}
        assert sorted(stored_in(kafka, "fenced")) == sorted(sent)
        with Sink(tmp_path / "other", {**fence, "kafka.transactional.id": "two"}) as other:
            assert other.deliver("orders")["verdict"] == "delivered"
        assert older.deliver("later")["verdict"] == "delivered"  # another id is nothing to it
        with Sink(tmp_path / "newer", fence) as newer:
            assert newer.deliver("orders")["verdict"] == "delivered"
            for _ in range(2):  # nor does it begin again by itself
                assert older.deliver("later")["verdict"] == "fenced"
            assert newer.deliver("orders")["verdict"] == "delivered"
    assert len(kafka.messages("later", isolation="read_uncommitted")) == 1


def test_with_a_fence_an_event_that_is_refused_holds_up_none_beside_it(kafka, tmp_path, options):
    """They were one transaction, so the others come again."""
    kafka.create_topic("beside")
    kafka.create_topic("narrow", max_message_bytes=1000)
    with Sink(tmp_path / "conf", {**options, "timeout": "60s", "fence": "broker"}) as sink:
        assert sink.deliver("orders")["verdict"] == "delivered"
        sent = [str(uuid.uuid4()) for _ in range(100)]
        large = str(uuid.uuid4())
        events = [(event_id, {"topic": "beside", "key": event_id}) for event_id in sent]
        results = results_in_the_end(sink, [*events[:50], (large, {"topic": "narrow", "body": "x" * 2000}), *events[50:]])
        assert results[large]["verdict"] == "refused" and "MSG_SIZE_TOO_LARGE" in results[large]["problem"]
        assert {results[event_id]["verdict"] for event_id in sent} == {"delivered"}
    assert sorted(stored_in(kafka, "beside")) == sorted(sent) and stored_in(kafka, "narrow") == []


def test_with_a_fence_an_event_that_may_not_be_written_is_refused_and_its_neighbour_is_delivered(kafka, tmp_path, options):
    """Kafka refuses their transaction, and says of neither that it is at fault. Each alone is told apart."""
    for topic in ("may-see", "may-write"):
        kafka.create_topic(topic)
        kafka.allow("mallory", "describe", topic)
    kafka.allow("mallory", "write", "may-write")
    kafka.allow_transactions("mallory", "of-mallory")
    login = {"url": f"kafka://mallory:s3cret@{kafka.servers_of('SASL_PLAINTEXT')}", "fence": "broker", "kafka.transactional.id": "of-mallory"}
    with Sink(tmp_path / "conf", {**options, "timeout": "60s", **login}) as sink:
        wait_until(lambda: sink.deliver("may-write")["verdict"] == "delivered", "the permissions")
        for topic in ("may-write", "may-see"):
            send(sink, topic)
        together = {result["verdict"] for result in results_of(sink, 2).values()}
        assert together <= {"unavailable", "delivered", "refused"}, "they were withheld, and would be sent again at once, for ever"
        alone = []
        wait_until(lambda: alone.append(sink.deliver("may-see")) or alone[-1]["verdict"] != "unavailable", "a producer in the place of the one that ended")
        assert alone[-1]["verdict"] == "refused" and "TOPIC_AUTHORIZATION_FAILED" in alone[-1]["problem"], alone
        wait_until(lambda: sink.deliver("may-write")["verdict"] == "delivered", "the next producer")
    assert kafka.messages("may-see", isolation="read_uncommitted") == []


@pytest.mark.alone
def test_with_a_fence_a_broker_that_is_away_makes_events_unavailable_and_nothing_acknowledged_is_lost(kafka, tmp_path, options):
    kafka.create_topic("gone")
    with Sink(tmp_path / "conf", {**options, "fence": "broker"}) as sink:
        wait_until(lambda: sink.deliver("orders")["verdict"] == "delivered", "the first turn")
        sent = [send(sink, "gone") for _ in range(100)]
        first = sink.result()
        kafka.kill()
        results = results_of(sink, 99)
        results[first["event_id"]] = first
        wait_until(lambda: sink.deliver("orders")["verdict"] == "unavailable", "it to be noticed")
        kafka.start()
        wait_until(lambda: sink.deliver("orders")["verdict"] == "delivered", "the broker's return")
    delivered = {event_id for event_id in sent if results[event_id]["verdict"] == "delivered"}
    assert {result["verdict"] for result in results.values()} <= {"delivered", "unavailable", "withheld"}
    assert delivered <= set(stored_in(kafka, "gone"))


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"url": "127.0.0.1:9092"}, "kafka://"),
        ({"url": "kafka://h/x"}, "url"),
        ({"kafka.enable.idempotence": "false"}, "lost"),
        ({"kafka.acks": "1"}, "lost"),
        ({"kafka.request.required.acks": "0"}, "lost"),
        ({"kafka.transactional.id": "x"}, "transactions"),
        ({"fence": "perhaps"}, "fence"),
        ({"fence": "broker", "kafka.transaction.timeout.ms": "1"}, "transaction.timeout.ms"),
        ({"kafka.enable.gapless.guarantee": "true"}, "order"),
        ({"kafka.delivery.report.only.error": "true"}, "delivery"),
        ({"kafka.message.timeout.ms": "1"}, "timeout"),
        ({"kafka.delivery.timeout.ms": "1"}, "timeout"),
        ({"kafka.bootstrap.servers": "h"}, "url"),
        ({"kafka.sasl.password": "x"}, "password"),
        ({"kafka.compresion.type": "lz4"}, 'No such configuration property: "compresion.type"'),
        ({"kafka.compression.type": "best"}, "compression.type"),
        ({"kafka.max.in.flight": "50"}, "max.in.flight"),
    ],
)
def test_wrong_options_are_said_before_anything_is_connected(tmp_path, wrong, said):
    problem = problem_of(tmp_path / "conf", {"sink": "kafka", "url": "kafka://h", **wrong})
    assert problem is not None and said in problem and "[relay played]" in problem, problem


def test_what_is_required_may_be_said(tmp_path):
    more = {"kafka.enable.idempotence": "true", "kafka.acks": "all"}
    assert problem_of(tmp_path / "conf", {"sink": "kafka", "url": "kafka://h", **more}) is None
    more |= {"fence": "broker", "kafka.transactional.id": "shop"}
    assert problem_of(tmp_path / "conf", {"sink": "kafka", "url": "kafka://h", **more}) is None
