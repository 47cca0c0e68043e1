# SPDX-License-Identifier: PostgreSQL
"""The headers of an event are data: none of them makes a broker delete, route, drop or refuse something."""

import json

from harness.nats import Nats
from harness.rabbitmq import RabbitMQ

from .running import Relay, parked, passed_all


def emit(db, number, headers):
    db.execute("SELECT once.emit('shop.order', jsonb_build_object('n', %s), headers => %s)", number, json.dumps(headers))


def publish(db, tmp_path, **options):
    with Relay(tmp_path, db.dsn(), attempts=1, **options) as relay:
        relay.until_true(lambda: passed_all(db), "the relay to be through")
        assert relay.stop() == 0
    assert parked(db) == []


def test_headers_that_are_jetstreams_delete_drop_and_refuse_nothing(db, tmp_path):
    headers = [{}, {"Nats-Msg-Id": "one"}, {"nats-msg-id": "one"}, {"Nats-Rollup": "all"}, {"Nats-Expected-Last-Sequence": "99"}, {"Nats-Expected-Stream": "OTHER"},
               {"Nats-TTL": "1s"}, {"Status": "503"}]
    with Nats() as nats:
        nats.add_stream("SHOP", "shop.>", allow_rollup_hdrs=True)
        for number, each in enumerate(headers):
            emit(db, number, each)
        publish(db, tmp_path, sink="nats", url=nats.url)
        arrived = nats.messages("SHOP")
    assert [json.loads(message.data)["n"] for message in arrived] == list(range(len(headers)))
    for message, each in zip(arrived, headers):
        assert {f"Event-{name}": value for name, value in each.items()}.items() <= dict(message.headers).items()
        assert not (set(each) - {"Nats-Msg-Id"}) & set(dict(message.headers))


def test_headers_that_are_rabbitmqs_route_and_refuse_nothing(db, tmp_path):
    headers = [{}, {"CC": "spy"}, {"BCC": "spy"}, {"x-death": "often"}, {"x-delivery-count": "30"}, {"x-delay": "1000"}, {"X-Request-Id": "7"}]
    with RabbitMQ() as rabbitmq:
        rabbitmq.declare("orders", "shop", ["shop.*"])
        rabbitmq.declare("spy")
        for number, each in enumerate(headers):
            emit(db, number, each)
        publish(db, tmp_path, sink="rabbitmq", url=rabbitmq.url, exchange="shop")
        arrived = [(json.loads(body)["n"], properties.headers) for _, properties, body in rabbitmq.take("orders")]
        assert rabbitmq.count("spy") == 0
    assert [number for number, _ in arrived] == list(range(len(headers)))
    for (_, found), each in zip(arrived, headers):
        assert {name if name == "X-Request-Id" else f"Event-{name}": value for name, value in each.items()}.items() <= found.items()
