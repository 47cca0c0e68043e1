# SPDX-License-Identifier: PostgreSQL
"""The real Debezium engine, with its outbox event router, configured as docs/how/capture.md says: through crashes, a failover, and a day that goes."""

import base64
import json

import pytest

from contract.calls import refused, today
from contract.relaying import emit
from contract.test_outbox_days import emit_on, is_there
from harness import debezium
from harness.postgres import Database, wait_until
from harness.proxy import Proxy

from .capturing import (
    SLOT,
    block,
    capture,
    caught_up,
    end,
    follow,
    logical_server,
    make_slot,
    place,
    promote,
    published,
    standby_of,
    steps_by_thing,
    stored,
)

PATIENCE_S = 300  # as wherever Java starts beside everything else: twice in a test, six seconds of a CPU each time


@pytest.fixture(autouse=True)
def needs():
    debezium.require()


@pytest.fixture
def server():
    with logical_server() as running:
        yield running


class Door:
    """The address that the connector has; behind it another server after a failover."""

    def __init__(self, server):
        self.proxy = Proxy(server, tcp=True)

    def leads_to(self, server):
        self.proxy.target = str(server.directory / self.proxy.target.rpartition("/")[2])


def engine(db, door, **more):
    """As the page says, but where the database is, and quicker."""
    lines = [line.partition("=") for line in block("properties", "connector.class").splitlines() if line]
    properties = {name: value for name, _, value in lines}
    return debezium.Debezium({
        **properties,
        "database.hostname": door.proxy.host,
        "database.port": door.proxy.port,
        "database.dbname": db.name,
        "heartbeat.interval.ms": 200,
        "slot.retry.delay.ms": 300,
        **{name.replace("_", "."): value for name, value in more.items()},
    })  # fmt: skip


def ids(sent):
    return [record["headers"]["id"] for record in sent]


def has_sent(engine, wanted, what):
    def ready():
        assert engine.process is None or engine.process.poll() is None, engine.log_tail()
        return set(map(str, wanted)) <= set(ids(engine.sent()))

    try:
        wait_until(ready, what, PATIENCE_S)
    except TimeoutError as late:
        raise AssertionError(f"{late}: {engine.log_tail()}") from late


def passed(db, engine):
    """The slot has passed what is committed now, and the capture follows."""
    for _ in range(2):
        at = db.value("SELECT pg_current_wal_insert_lsn()")
        wait_until(
            lambda: db.value("SELECT confirmed >= %s::pg_lsn FROM once.capture_list()", at), f"the slot\n{engine.log_tail()}", PATIENCE_S  # noqa: B023
        )
        follow(db)


def test_an_event_is_a_record_with_the_fields_that_the_page_names(server):
    db, door = published(server), Door(server)
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    more = {"event_type": "placed", "headers": '{"shop": "north"}', "traceparent": trace, "tenant": "t1"}
    before = emit(db.connect(), "7", "order.placed", payload='{"order": 7, "item": "lämp"}', aggregate_type="order", **more)
    with engine(db, door) as connector:
        has_sent(connector, [before], "what was there before")
        after = emit(db.connect(), None, "order.noted", payload="[1]")
        octets = db.value("SELECT once.emit_bytes('order.octets', '\\x00ff', 'avro/binary')")
        has_sent(connector, [after, octets], "what came afterwards")
        first, second, third = connector.sent()
        headers = {name: value for name, value in first["headers"].items() if not name.startswith("__debezium")}
        assert (first["topic"], first["key"], json.loads(first["value"])) == ("order.placed", "7", {"order": 7, "item": "lämp"})
        assert headers == {
            "id": str(before), "Pgonce-Event-Type": "placed", "Pgonce-Tenant": "t1", "Pgonce-Aggregate-Type": "order", "traceparent": trace,
            "headers": '{"shop": "north"}',
        }  # fmt: skip
        assert (second["topic"], second["key"], second["value"]) == ("order.noted", None, "[1]")
        assert (third["topic"], third["value"]) == ("order.octets", "null")
    end(db)


def test_where_all_events_are_bytes_they_are_the_value_and_their_content_type_a_header(server):
    db, door = published(server), Door(server)
    events = {payload: db.value("SELECT once.emit_bytes('t', %s, 'avro/binary')", payload) for payload in (bytes(range(256)), b"")}
    # As text, since Capture.java prints records as text.
    more = {"transforms.outbox.table.field.event.payload": "payload_bytes", "binary.handling.mode": "base64",
            "transforms.outbox.table.fields.additional.placement": "content_type:header:content-type"}  # fmt: skip
    with engine(db, door, **more) as connector:
        has_sent(connector, events.values(), "the events")
        found = {record["headers"]["id"]: (record["value"], record["headers"]["content-type"]) for record in connector.sent()}
    assert found == {str(event): (base64.b64encode(payload).decode(), "avro/binary") for payload, event in events.items()}
    end(db)


def test_every_committed_event_comes_in_the_order_of_its_thing_though_engine_and_server_are_killed(server):
    db, door = published(server), Door(server)
    db.execute("CREATE TABLE thing (id integer PRIMARY KEY, step integer)")

    def some(first):
        writer = db.connect()
        for step in range(first, first + 40):
            place(writer, step % 3, step, roll_back=step % 7 == 3)

    some(0)
    with engine(db, door) as connector:
        has_sent(connector, stored(db), "what was there before")
        some(40)
        connector.kill()
        some(80)
        connector.start()
        has_sent(connector, stored(db), "what came while it was down")
        some(120)
        server.kill()
        server.start()
        db.own = None
        some(160)
        has_sent(connector, stored(db), "what came around the server's death")
        sent = connector.sent()
        assert set(ids(sent)) == stored(db)
        events = [(record["headers"]["id"], record["key"], json.loads(record["value"])["step"]) for record in sent]
        for thing, steps in steps_by_thing(events).items():
            assert steps == sorted(steps), thing
            assert steps == [step for step in range(200) if str(step % 3) == thing and step % 7 != 3]
    end(db)


def test_a_day_stays_while_the_engine_is_down_and_goes_when_it_has_passed_it(server):
    db, door = published(server), Door(server)
    day = today(db) - 1
    db.execute(f"CREATE TABLE once.outbox_d{day} PARTITION OF once.outbox FOR VALUES FROM ({day}) TO ({day + 1})")
    first = emit_on(db.connect(), day)
    with engine(db, door) as connector:
        has_sent(connector, [first], "what was there before")
        assert db.value("SELECT once.add_capture(%s)", SLOT)
        connector.kill()
        second = emit_on(db.connect(), day)
        follow(db)
        with refused("55006"):
            db.execute("SELECT once.retire_outbox(%s)", day)
        connector.start()
        has_sent(connector, [second], "what came while it was down")
        passed(db, connector)
        assert db.value("SELECT once.retire_outbox(%s)", day) == 2
        assert not is_there(db, day)
        third = emit(db.connect())
        has_sent(connector, [third], "what comes after a day was dropped")
        assert ids(connector.sent())[-1] == str(third)
    end(db)


def test_a_connector_uses_the_slot_that_was_made_before_it_and_reads_the_table_first(server):
    """As the page has it: the slot is made and registered, then the connector starts."""
    db, door = published(server), Door(server)
    before = emit(db.connect(), "a")
    db.execute(block("sql", "SELECT pg_create_logical_replication_slot"))
    between = emit(db.connect(), "a")
    with engine(db, door) as connector:
        has_sent(connector, [before, between], "what was there before")
        has_sent(connector, [emit(db.connect(), "a")], "what came afterwards")
        passed(db, connector)
        assert [row.slot_name for row in db.rows("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()")] == [SLOT]
        assert db.rows("SELECT 1 FROM once.outbox_summary() WHERE state = 'pending'") == []
    end(db)


def test_a_quiet_outbox_is_passed_by_the_heartbeat(server):
    """No event comes, and others write: without it the slot would stand, keep WAL, and hold days."""
    db, door = published(server), Door(server)
    with engine(db, door) as connector:
        has_sent(connector, [emit(db.connect())], "the one event")
        db.execute("SELECT once.add_capture(%s); CREATE TABLE other (n integer); INSERT INTO other SELECT generate_series(1, 10000)", SLOT)
        passed(db, connector)
        assert db.rows("SELECT 1 FROM once.outbox_summary() WHERE state = 'pending'") == []
    end(db)


def test_after_a_failover_without_slot_synchronisation_the_table_is_read_again_and_nothing_is_lost(server):
    """What the outbox still holds is sent again: repeats, with the ids that they had."""
    db, door = published(server), Door(server)
    writer = db.connect()
    with engine(db, door) as connector:
        read = [emit(writer, "a") for _ in range(3)]
        has_sent(connector, read, "what came before")
        db.execute("SELECT once.add_capture(%s)", SLOT)
        passed(db, connector)
        with standby_of(server) as standby:
            connector.kill()
            between = [emit(writer, "a") for _ in range(2)]
            caught_up(server, standby)
            server.kill()
            promote(standby)
            door.leads_to(standby)
            there = Database(standby, db.name)
            follow(there)
            assert capture(there).state == "broken"
            connector.start()
            has_sent(connector, between, "what came between")
            after = emit(there.connect(), "a")
            has_sent(connector, [after], "what came afterwards")
            assert set(ids(connector.sent())) == set(map(str, read + between + [after]))
            assert ids(connector.sent()).count(str(read[0])) == 2, "the table was read again"
            there.execute("SELECT once.relay_adopt(%s, 'the connector has read the table')", SLOT)
            passed(there, connector)
            assert capture(there).state == "active"
            there.close()


@pytest.mark.parametrize("mode", ["when_needed", "initial", "no_data"])
def test_with_when_needed_alone_a_connector_that_finds_another_slot_of_its_name_reads_the_table(server, mode):
    """Its offset is older than the slot. In another mode it stops."""
    db, door = published(server), Door(server)
    writer = db.connect()
    with engine(db, door, snapshot_mode=mode) as connector:
        wait_until(lambda: db.rows("SELECT 1 FROM pg_replication_slots WHERE active"), f"the slot\n{connector.log_tail()}", PATIENCE_S)
        has_sent(connector, [emit(writer, "a")], "what came before")
        with standby_of(server) as standby:
            connector.kill()
            between = emit(writer, "a")
            caught_up(server, standby)
            server.kill()
            promote(standby)
            door.leads_to(standby)
            there = Database(standby, db.name)
            make_slot(there)
            after = emit(there.connect(), "a")
            connector.start()
            wait_until(
                lambda: str(after) in ids(connector.sent()) or connector.process.poll() is not None, f"it\n{connector.log_tail()}", PATIENCE_S
            )
            assert (str(after) in ids(connector.sent())) == (str(between) in ids(connector.sent())) == (mode == "when_needed")
            there.close()
