# SPDX-License-Identifier: PostgreSQL
"""A relay's dead_topic: an event is dead when a copy of it was taken there. Until then it retries, and whatever becomes of the copy, other events go on."""

import json

import pytest

from harness import aws, elasticmq
from harness import kafka as kafka_harness
from harness.elasticmq import ElasticMq
from harness.kafka import Kafka
from harness.nats import Nats
from harness.rabbitmq import RabbitMQ
from harness.scrape import address_in, scrape
from harness.webhook import Answer, Webhook

from .running import Relay, emit, parked, passed_all, webhook
from .test_sink_sns import FIFO, TOPIC, Topics, attributes


@pytest.fixture
def endpoint():
    """Refuses n = 0 unless it is `mended`."""
    with Webhook() as running:
        running.mended = False
        running.script = lambda request: Answer(status=422, body=b"no such customer") if request.json["n"] == 0 and not running.mended else None
        yield running


@pytest.fixture
def graveyard():
    with Webhook() as running:
        yield running


def options(endpoint, graveyard, **more):
    return webhook(endpoint, dead_topic=graveyard.url + "dead/{topic}", attempts=2, retry_first="10ms", retry_most="50ms", **more)


def states(db):
    return [row.state for row in parked(db)]


def died(relay, db):
    relay.until_true(lambda: states(db) == ["dead"] and passed_all(db), "the event to be dead")


def numbers(endpoint):
    return [request.json["n"] for request in endpoint.seen()]


def unsent(db):
    return [row for row in parked(db) if row.error and "not yet sent to dead_topic" in row.error]


def test_a_dead_event_is_copied_with_what_happened_to_it(db, tmp_path, endpoint, graveyard):
    ids = emit(db.connect(), 2)
    with Relay(tmp_path, db.dsn(), arguments=("--metrics", "127.0.0.1:0"), **options(endpoint, graveyard)) as relay:
        died(relay, db)
        counted = scrape(address_in(relay.err.read_text()))
        assert relay.log("dead")[0]["event_id"] == ids[0] and relay.stop() == 0
    (copy,) = graveyard.seen()
    assert (copy.target, copy.json, copy.event_id) == ("/dead/order.created", {"n": 0}, ids[0])
    assert {name: copy.header(f"Pgonce-Dead-{name}") for name in ("Id", "Relay", "Topic", "Destination", "Error", "Attempts", "Payload-Bytes")} == {
        "Id": ids[0], "Relay": "r", "Topic": "order.created", "Destination": endpoint.url, "Error": "HTTP 422: no such customer", "Attempts": "2",
        "Payload-Bytes": None}
    assert [(row.attempts, row.error) for row in parked(db)] == [(2, "HTTP 422: no such customer")]
    values = {name: sum(counted[name].samples.values()) for name in ("pgonce_relay_dead", "pgonce_relay_dead_copies", "pgonce_relay_dead_unsent")}
    assert values == {"pgonce_relay_dead": 1, "pgonce_relay_dead_copies": 1, "pgonce_relay_dead_unsent": 0}


def test_a_final_status_is_copied_at_once(db, tmp_path, endpoint, graveyard):
    endpoint.script = lambda _: Answer(status=410)
    emit(db.connect(), 1)
    with Relay(tmp_path, db.dsn(), **options(endpoint, graveyard)) as relay:
        died(relay, db)
        assert relay.stop() == 0
    assert numbers(endpoint) == numbers(graveyard) == [0]


def test_an_event_without_a_route_any_more_is_copied(db, tmp_path, endpoint, graveyard):
    emit(db.connect(), 1)
    with Relay(tmp_path, db.dsn(), **webhook(endpoint, retry_first="10ms", retry_most="10ms", attempts=1000)) as relay:
        relay.until_true(lambda: states(db) == ["retrying"], "it to be parked")
        assert relay.stop() == 0
    with Relay(tmp_path, db.dsn(), sink="webhook", route=f"other -> {endpoint.url}", allow_private="yes", allow_plain="yes",
               dead_topic=graveyard.url) as relay:
        died(relay, db)
        assert relay.stop() == 0
    (copy,) = graveyard.seen()
    assert "no route" in copy.header("Pgonce-Dead-Error") and copy.header("Pgonce-Dead-Destination") is None


@pytest.mark.parametrize("ends", ["dead", "delivered"])
def test_a_dead_topic_that_refuses_stops_nothing_and_the_event_retries(db, tmp_path, endpoint, graveyard, ends):
    graveyard.script = lambda _: Answer(status=503)
    emit(db.connect(), 2, aggregate="'a'")
    with Relay(tmp_path, db.dsn(), **options(endpoint, graveyard)) as relay:
        relay.until_true(lambda: unsent(db), "its copy to be refused")
        assert "HTTP 422" in unsent(db)[0].error and "HTTP 503" in unsent(db)[0].error
        emit(db.connect(), 50, first=100)
        relay.until_true(lambda: set(numbers(endpoint)) >= set(range(100, 150)), "the others")
        assert relay.log("unavailable") == relay.log("dead") == [] and 1 not in numbers(endpoint)
        assert {row.attempts for row in parked(db) if row.state == "waiting"} <= {0}
        if ends == "dead":
            graveyard.script = lambda _: None
            relay.until_true(lambda: states(db) == ["dead", "waiting"], "it to be dead, and the one behind it to wait")
        else:
            endpoint.mended = True
            relay.until_true(lambda: parked(db) == [], "it to be delivered")
        assert relay.stop() == 0


def test_a_host_that_is_not_there_for_copies_is_not_the_sinks_absence(db, tmp_path, endpoint, graveyard):
    graveyard.refuse()
    emit(db.connect(), 1)
    with Relay(tmp_path, db.dsn(), **options(endpoint, graveyard)) as relay:
        relay.until_true(lambda: unsent(db), "its copy to fail")
        emit(db.connect(), 50, first=100)
        relay.until_true(lambda: set(numbers(endpoint)) >= set(range(100, 150)), "the others")
        assert relay.log("unavailable") == []
        graveyard.accept()
        died(relay, db)
        assert relay.stop() == 0


def test_a_dead_topic_that_hangs_leaves_room_for_others(db, tmp_path, endpoint, graveyard):
    """More die than there is room for, and nobody waits for their copies."""
    endpoint.script = lambda request: Answer(status=410) if request.json["n"] < 500 else None
    graveyard.script = lambda _: Answer(hang=True)
    emit(db.connect(), 500)
    with Relay(tmp_path, db.dsn(), **options(endpoint, graveyard, timeout="60s")) as relay:
        relay.until("host_hangs")
        emit(db.connect(), 200, first=1000)
        relay.until_true(lambda: set(numbers(endpoint)) >= set(range(1000, 1200)), "the others")
        assert graveyard.open_now <= 48 + 4 and "dead" not in states(db)
        relay.until_true(lambda: unsent(db), "those that are not sent to say so")
        graveyard.script = lambda _: None
        graveyard.release()
        relay.until_true(lambda: states(db) == ["dead"] * 500, "all to be dead")
        assert relay.stop() == 0
    assert set(numbers(graveyard)) == set(range(500))


@pytest.mark.parametrize("known", [False, True])
def test_a_process_that_dies_with_a_copy_on_its_way_sends_it_again(db, tmp_path, endpoint, graveyard, known):
    """known: it was parked before its last attempt; else its only attempt is not stored either."""
    graveyard.script = lambda _: Answer(hang=True)
    endpoint.script = lambda _: Answer(status=422 if known else 410)
    emit(db.connect(), 1)
    relay = Relay(tmp_path, db.dsn(), **options(endpoint, graveyard, timeout="60s"))
    with relay:
        graveyard.wait(1)
        assert states(db) != ["dead"]
        relay.kill()
        assert states(db) == (["retrying"] if known else [])
    graveyard.script = lambda _: None
    with relay:
        died(relay, db)
        assert relay.stop() == 0
    assert numbers(graveyard) == [0, 0]


@pytest.mark.parametrize("decision", ["retry", "discard"])
def test_what_an_operator_decides_while_a_copy_is_on_its_way_holds(db, tmp_path, endpoint, graveyard, decision):
    graveyard.script = lambda _: Answer(hang=True)
    (event,) = emit(db.connect(), 1)
    with Relay(tmp_path, db.dsn(), **options(endpoint, graveyard, timeout="60s")) as relay:
        graveyard.wait(1)
        assert db.value(f"SELECT once.parked_{decision}(%s::text, 'a test', 'r')", event)
        endpoint.mended = True
        graveyard.release()
        relay.until_true(lambda: parked(db) == [], "the decision to hold")
        assert relay.stop() == 0
    assert len(numbers(endpoint)) == (3 if decision == "retry" else 2) and len(numbers(graveyard)) == 1


@pytest.mark.parametrize("ends", ["delivered", "dead", "discarded"])
def test_a_dead_event_is_retried_and_discarded_as_ever(db, tmp_path, endpoint, graveyard, ends):
    (event,) = emit(db.connect(), 1)
    with Relay(tmp_path, db.dsn(), **options(endpoint, graveyard)) as relay:
        died(relay, db)
        endpoint.mended = ends == "delivered"
        assert db.value(f"SELECT once.parked_{'discard' if ends == 'discarded' else 'retry'}(%s::text, 'a test', 'r')", event)
        if ends == "dead":
            relay.until("dead", 2)
            died(relay, db)
        else:
            relay.until_true(lambda: parked(db) == [], "the decision to hold")
        assert relay.stop() == 0
    assert len(numbers(graveyard)) == (2 if ends == "dead" else 1)
    assert len({copy.header("webhook-id") for copy in graveyard.seen()}) == len(graveyard.seen())  # a broker drops none as a repeat


@pytest.mark.parametrize("on_dead", ["block", "skip"])
def test_later_events_of_its_aggregate_wait_or_go_on_when_the_copy_is_sent(db, tmp_path, endpoint, graveyard, on_dead):
    graveyard.script = lambda _: Answer(hang=True)
    emit(db.connect(), 4, aggregate="'a'")
    with Relay(tmp_path, db.dsn(), **options(endpoint, graveyard, timeout="60s", on_dead=on_dead)) as relay:
        graveyard.wait(1)
        relay.until_true(lambda: passed_all(db), "the relay not to wait for the copy")
        assert set(numbers(endpoint)) == {0}
        graveyard.release()
        relay.until_true(lambda: states(db)[:1] == ["dead"], "it to be dead")
        if on_dead == "skip":
            relay.until_true(lambda: states(db) == ["dead"], "the others to be delivered")
        assert relay.stop() == 0
    assert numbers(endpoint)[2:] == ([1, 2, 3] if on_dead == "skip" else [])


@pytest.mark.parametrize("size, copied", [(2000, None), (500, {"n": 0, "fill": "x" * 500})])
def test_a_copy_that_is_refused_is_sent_without_a_payload_that_is_large(db, tmp_path, endpoint, graveyard, size, copied):
    endpoint.script = lambda _: Answer(status=413)
    graveyard.script = lambda request: Answer(status=413) if len(request.body) > 1024 else None
    emit(db.connect(), 1, payload=f"jsonb_build_object('n', i, 'fill', repeat('x', {size}))")
    with Relay(tmp_path, db.dsn(), **options(endpoint, graveyard)) as relay:
        died(relay, db)
        assert relay.stop() == 0
    copy = graveyard.seen()[-1]
    assert copy.json == copied
    assert (copy.header("Pgonce-Dead-Payload-Bytes") or "0") == (str(len(graveyard.seen()[0].body)) if copied is None else "0")


@pytest.mark.parametrize("changed, expected", [
    ({"dead_topic": "/dev/null"}, "cannot go nowhere"),
    ({"dead_topic": '""'}, "name a destination"),
    ({"dead_topic": "shop.{key}"}, "{topic} and {tenant}"),
    ({"dead_topic": "shop.{topic}", "route": ["a -> b", "* -> shop.{topic}"]}, "the events themselves go there"),
    ({"dead_topic": "{topic}"}, "the events themselves go there"),
    ({"sink": "stdout", "dead_topic": "dead"}, "refuses no event"),
    ({"sink": "webhook", "url": "https://shop.example/", "dead_topic": "dead"}, "URL"),
    ({"sink": "rabbitmq", "dead_topic": "/exchanges/dead"}, "/exchanges/NAME/ROUTING KEY"),
])
def test_a_dead_topic_that_cannot_be_is_refused(tmp_path, changed, expected):
    relay = Relay(tmp_path, "host=/nowhere", **{"sink": "nats", "url": "nats://127.0.0.1:1", **changed})
    assert relay.start("--check-config").wait() != 0
    assert expected in relay.err.read_text()


def test_nats_has_each_death_once_and_what_is_too_large_for_it_without_its_payload(db, tmp_path):
    ids = emit(db.connect(), 1, topic="large", payload="jsonb_build_object('fill', repeat('x', 200000))")
    with Nats(more="max_payload: 100000") as nats:
        nats.add_stream("SHOP", "shop.>")
        with Relay(tmp_path, db.dsn(), sink="nats", url=nats.url, route="* -> shop.{topic}", dead_topic="dead.{topic}", attempts=1,
                   retry_first="10ms", retry_most="50ms") as relay:
            relay.until_true(lambda: unsent(db), "the copy to find no stream")
            emit(db.connect(), 20)
            relay.until_true(lambda: nats.state("SHOP")["messages"] == 20, "the others")
            assert relay.log("unavailable") == []
            nats.add_stream("DEAD", "dead.>")
            died(relay, db)
            assert db.value("SELECT once.parked_retry(%s::text, 'a test', 'r')", ids[0])
            relay.until("dead", 2)
            died(relay, db)
            assert relay.stop() == 0
        copies = nats.messages("DEAD")
    assert [(copy.subject, copy.data, copy.header("Pgonce-Dead-Id"), copy.header("Pgonce-Event-Id")) for copy in copies] == 2 * [
        ("dead.large", b"null", ids[0], ids[0])]
    assert int(copies[0].header("Pgonce-Dead-Payload-Bytes")) > 200000 and "max_payload" in copies[0].header("Pgonce-Dead-Error")


def test_rabbitmq_has_the_copies_in_the_exchange_that_is_named(db, tmp_path):
    ids = emit(db.connect(), 3, topic="lost") + emit(db.connect(), 20, first=100)
    with RabbitMQ() as rabbitmq:
        rabbitmq.declare("orders", "shop", ["order.*"])
        with Relay(tmp_path, db.dsn(), sink="rabbitmq", url=rabbitmq.url, exchange="shop", dead_topic="/exchanges/graves/{topic}", attempts=2,
                   retry_first="10ms", retry_most="50ms") as relay:
            relay.until_true(lambda: len(unsent(db)) == 3, "the copies to find no exchange")
            relay.until_true(lambda: rabbitmq.count("orders") >= 20, "the others")
            rabbitmq.declare("graves", "graves", ["#"])
            relay.until_true(lambda: states(db) == ["dead"] * 3, "the events to be dead")
            assert relay.stop() == 0
        copies = rabbitmq.take("graves")
    assert {properties.headers["Pgonce-Dead-Id"] for _, properties, _ in copies} == set(ids[:3])
    assert {method.routing_key for method, _, _ in copies} == {"lost"} and {json.loads(body)["n"] for _, _, body in copies} == {0, 1, 2}


def test_kafka_has_the_copies_in_a_topic_of_its_own(db, tmp_path):
    kafka_harness.require()
    with Kafka() as kafka:
        kafka.create_topic("small", max_message_bytes=10000)
        kafka.create_topic("dead", max_message_bytes=10000)
        (large,) = emit(db.connect(), 1, topic="small", payload="jsonb_build_object('fill', repeat('x', 50000))")
        emit(db.connect(), 20, topic="small", payload="jsonb_build_object('n', i, 'fill', md5(i::text))")
        with Relay(tmp_path, db.dsn(), sink="kafka", url=f"kafka://{kafka.servers}", dead_topic="dead", null_payload="tombstone", attempts=2,
                   retry_first="10ms") as relay:
            died(relay, db)
            relay.until_true(lambda: len(kafka.messages("small")) >= 20, "the others")
            assert relay.stop() == 0
        copies = kafka.messages("dead")
    assert copies and all(json.loads(copy["payload"]) is None for copy in copies)
    headers = dict(copies[0]["headers"])
    assert (headers["Pgonce-Dead-Id"], headers["Pgonce-Dead-Destination"], headers["Pgonce-Dead-Attempts"]) == (large, "small", "2")


def emit_with(db, header, value):
    db.execute("SELECT once.emit('t', '{}', 'order', '1', headers => jsonb_build_object(%s::text, %s::text))", header, value)


def test_a_header_that_asks_what_kafka_cannot_do_does_not_keep_the_copy_back(db, tmp_path):
    kafka_harness.require()
    with Kafka() as kafka:
        kafka.create_topic("t", 3)
        kafka.create_topic("dead", 1)
        emit_with(db, "Place", "7")
        with Relay(tmp_path, db.dsn(), sink="kafka", url=f"kafka://{kafka.servers}", dead_topic="dead", partition_header="place", attempts=1) as relay:
            died(relay, db)
            assert relay.stop() == 0
        (copy,) = kafka.messages("dead")
    assert copy["headers"]["Place"] == "7" and "partition" in copy["headers"]["Pgonce-Dead-Error"]


def test_a_header_that_asks_what_rabbitmq_cannot_do_does_not_keep_the_copy_back(db, tmp_path):
    with RabbitMQ() as rabbitmq:
        rabbitmq.declare("t", "shop", ["t"])
        rabbitmq.declare("graves", "graves", ["#"])
        emit_with(db, "Urgency", "very")
        with Relay(tmp_path, db.dsn(), sink="rabbitmq", url=rabbitmq.url, exchange="shop", dead_topic="/exchanges/graves/{topic}",
                   priority_header="urgency", attempts=1) as relay:
            died(relay, db)
            assert relay.stop() == 0
        ((_, properties, _),) = rabbitmq.take("graves")
    assert properties.headers["Urgency"] == "very" and "no number" in properties.headers["Pgonce-Dead-Error"]


def test_sqs_has_the_copies_in_a_queue_of_its_own(db, tmp_path, monkeypatch):
    elasticmq.require()
    with ElasticMq() as server:
        server.declare("graves.fifo")
        for name, value in aws.environment().items():
            monkeypatch.setenv(name, value)
        with aws.Door(server.port) as door:
            (event,) = emit(db.connect(), 1, topic="nowhere")
            with Relay(tmp_path, db.dsn(), sink="sqs", url=door.url, dead_topic="graves.fifo", attempts=1) as relay:
                died(relay, db)
                assert relay.stop() == 0
            (copy,) = server.take("graves.fifo")
    assert json.loads(copy["Body"]) == {"n": 0} and event in json.dumps(copy["MessageAttributes"])


@pytest.fixture
def topics(monkeypatch):
    """SNS, as test_sink_sns.py has it; door: where it is."""
    for name, value in aws.environment().items():
        monkeypatch.setenv(name, value)
    topics = Topics()
    with aws.Door(topics, service="sns") as topics.door:
        yield topics


def test_sns_has_each_death_in_a_topic_of_its_own(db, tmp_path, topics):
    """A FIFO topic drops what has the id of another message: a second death is another one."""
    (event,) = emit(db.connect(), 1, topic="lost", aggregate="'7'")
    emit(db.connect(), 20, first=100)
    with Relay(tmp_path, db.dsn(), sink="sns", url=topics.door.url, route=[f"lost -> {TOPIC}-lost", f"* -> {TOPIC}"], dead_topic=FIFO, attempts=2,
               retry_first="10ms", retry_most="50ms") as relay:
        died(relay, db)
        assert db.value("SELECT once.parked_retry(%s::text, 'a test', 'r')", event)
        relay.until("dead", 2)
        died(relay, db)
        assert relay.stop() == 0
    copies = [form for form in topics.published if form["TopicArn"] == FIFO]
    assert len(copies) == len({copy["MessageDeduplicationId"] for copy in copies}) == 2 and len(topics.published) == 22
    for copy in copies:
        headers = attributes(copy)
        rest = json.loads(headers.pop("Pgonce-Headers", (None, "{}"))[1])
        told = {**{name: value for name, (_, value) in headers.items()}, **rest}
        assert (copy["MessageGroupId"], json.loads(copy["Message"])) == ("7", {"n": 0}) and copy["MessageDeduplicationId"].startswith(f"{event}-dead-")
        assert (told["Pgonce-Dead-Id"], told["Pgonce-Dead-Destination"], told["Pgonce-Dead-Topic"]) == (event, f"{TOPIC}-lost", "lost")
        assert told["Pgonce-Event-Id"] == event and "NotFound" in told["Pgonce-Dead-Error"]


def test_sns_has_what_is_too_large_for_it_without_its_payload(db, tmp_path, topics):
    (event,) = emit(db.connect(), 1, payload="jsonb_build_object('fill', repeat('x', 300000))")
    with Relay(tmp_path, db.dsn(), sink="sns", url=topics.door.url, route=f"* -> {FIFO}", dead_topic=TOPIC, attempts=1, retry_first="10ms") as relay:
        died(relay, db)
        assert relay.stop() == 0
    (copy,) = topics.published
    assert (copy["TopicArn"], copy["Message"]) == (TOPIC, "null") and "MessageGroupId" not in copy
    assert event in json.dumps(attributes(copy)) and "Pgonce-Dead-Payload-Bytes" in json.dumps(attributes(copy))


def test_a_topic_of_sns_that_takes_no_copy_is_not_the_absence_of_sns(db, tmp_path, topics):
    emit(db.connect(), 1, topic="lost")
    topics.failing = {'{"n": 0}': ("AuthorizationError", "true")}
    with Relay(tmp_path, db.dsn(), sink="sns", url=topics.door.url, route=[f"lost -> {TOPIC}-lost", f"* -> {TOPIC}"], dead_topic=FIFO, attempts=1,
               retry_first="10ms", retry_most="50ms") as relay:
        relay.until_true(lambda: unsent(db), "its copy to be refused")
        assert "AuthorizationError" in unsent(db)[0].error and "NotFound" in unsent(db)[0].error
        emit(db.connect(), 20, first=100)
        relay.until_true(lambda: len(topics.published) >= 20, "the others")
        assert relay.log("unavailable") == relay.log("dead") == []
        topics.failing = {}
        died(relay, db)
        assert relay.stop() == 0
    assert [form["Message"] for form in topics.published if form["TopicArn"] == FIFO] == ['{"n": 0}']
