# SPDX-License-Identifier: PostgreSQL
"""One trace from the caller to the last consumer: an HTTP request through the gateway, the event that its service emits, the broker, the
message's intent. Whoever has the trace finds all of it, and a retry of the request is told it.

Broken on purpose and seen to fail: without the claim's traceparent in the gateway, without the header in relay/envelope.c, without the
parameter in consume/sql/receive.sql.
"""

import psycopg2
import pytest
from gateway.door import Door, assert_replays, new_key
from harness.nats import Nats
from harness.upstream import Answer, Upstream

from .parts import Job

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
TRACE = f"00-{TRACE_ID}-b7ad6b7169203331-01"
RETRY = "00-11111111111111111111111111111111-2222222222222222-01"
DOOR = """
    once_tenant none;
    location /orders { once required; once_scope orders; proxy_pass http://app; }
"""
HANDLER = """
CREATE TABLE applied (id text, trace text);
CREATE FUNCTION apply(m once.message) RETURNS void LANGUAGE sql AS $$
    INSERT INTO applied VALUES (m.id, m.headers ->> 'traceparent')
$$;
"""


@pytest.fixture
def nats():
    with Nats() as broker:
        broker.add_stream("ORDERS", "order.>")
        yield broker


@pytest.fixture
def service(db):
    """Places an order: one event, in its own transaction, under the intent that the gateway named."""

    def place(request):
        connection = psycopg2.connect(db.dsn())
        with connection, connection.cursor() as cursor:
            cursor.execute("SELECT once.emit('order.created', '{\"id\": 7}', scope => %s, key => %s)", (request.header("Once-Scope"), request.header("Once-Key")))
        connection.close()
        return Answer(201, body=b"placed")

    return place


def test_one_trace_finds_the_request_its_event_and_the_message(db, nats, service, tmp_path):
    db.execute(HANDLER)
    config = tmp_path / "pgonce.conf"
    config.write_text(
        f"dsn = {db.dsn()}\n[relay out]\nsink = nats\nurl = {nats.url}\nroute = order.* -> {{topic}}\n"
        f"[consume stock]\nsource = nats\nurl = {nats.url}\nstream = ORDERS\nhandler = apply\n"
    )
    config.chmod(0o600)
    key = new_key()
    with Upstream() as upstream, Door(db, upstream, DOOR) as door:
        upstream.script(key, Answer(do=service))
        first = door.attempt(key, "/orders", headers=[("traceparent", TRACE)])
        assert first.status == 201, first
        Job("relay", config).once()
        Job("consume", config).once()
        again = assert_replays(door, key, first, "/orders", headers=[("traceparent", RETRY)])
    assert again.header("Idempotency-Traceparent") == TRACE
    applied = db.row("SELECT id, trace FROM applied")
    assert applied.trace == TRACE
    found = {(row.scope, row.key, row.traceparent) for row in db.rows("SELECT * FROM once.find(trace => %s)", TRACE_ID)}
    assert found == {("orders", key, TRACE), ("stock", applied.id, TRACE)}
    assert db.value("SELECT count(*) FROM once.find(trace => %s)", RETRY) == 0
