# SPDX-License-Identifier: PostgreSQL
"""once.outbox read by a replication slot and PostgreSQL's own pgoutput, without Debezium: what comes, what holds the outbox, and what a slot that is gone
or another server's does."""

import json
import threading

import pytest

from cli.command import Command
from contract.calls import refused, run, today
from contract.keeping import keeper, settled
from contract.relaying import Relay, emit
from contract.test_outbox_days import emit_on, is_there
from harness.pgoutput import Reader
from harness.postgres import Database, wait_until

from .capturing import (
    PUBLICATION,
    SLOT,
    capture,
    caught_up,
    cold_standby_of,
    drop_slots,
    end,
    find_version,
    follow,
    ids,
    logical_server,
    make_slot,
    place,
    promote,
    published,
    standby_of,
    steps_by_thing,
    stored,
)


@pytest.fixture(scope="module")
def server():
    with logical_server() as running:
        yield running


@pytest.fixture
def db(server):
    database = published(server)
    yield database
    end(database)


@pytest.fixture
def reader(db):
    make_slot(db)
    with_it = Reader(db, SLOT, PUBLICATION, "cdc")
    yield with_it
    with_it.close()


def yesterday(db):
    day = today(db) - 1
    db.execute(f"CREATE TABLE once.outbox_d{day} PARTITION OF once.outbox FOR VALUES FROM ({day}) TO ({day + 1})")
    return day


def read_all(db, reader):
    """All that is in the outbox now, confirmed."""
    return reader.read_until(lambda rows: stored(db) <= set(ids(rows)), "the outbox to be read")


def confirmed(db, reader):
    """Reads until the slot has passed what is committed now, and has the capture follow."""
    at = db.value("SELECT pg_current_wal_insert_lsn()")
    reader.read_until(lambda _: db.value("SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s", at, SLOT), "the slot")
    follow(db)


def refuse_to_retire(db, day, *named):
    with refused("55006") as error:
        db.execute("SELECT once.retire_outbox(%s)", day)
    assert all(text in str(error.value) for text in named), error.value


def test_committed_events_come_once_and_under_one_table_whatever_their_day(db, reader):
    connection = db.connect()
    first = emit(connection, "a")
    db.execute("BEGIN; SELECT once.emit('t', '{}'); ROLLBACK")
    second = emit_on(connection, yesterday(db))
    rows = read_all(db, reader)
    assert ids(rows) == [str(first), str(second)]
    assert {row["table"] for row in rows} == {"once.outbox"}
    assert rows[0]["aggregate_id"] == "a" and rows[0]["payload"] == "{}" and rows[0]["topic"] == "t"


def test_what_is_deleted_by_hand_or_by_a_dropped_day_is_no_event(db, reader):
    day = yesterday(db)
    emit_on(db.connect(), day)
    read_all(db, reader)
    db.execute("DELETE FROM once.outbox")
    db.execute("SELECT once.retire_outbox(%s)", day)
    last = emit(db.connect())
    assert ids(read_all(db, reader))[1:] == [str(last)]


def test_things_that_change_at_once_come_in_their_order_each(db, reader):
    db.execute("CREATE TABLE thing (id integer PRIMARY KEY, step integer)")
    things, steps = 3, 40

    def work(which):
        connection = db.connect()
        for step in range(steps):
            run(connection, "BEGIN")
            run(connection, "INSERT INTO thing VALUES (%s, 1) ON CONFLICT (id) DO UPDATE SET step = thing.step + 1", (which + step) % things)
            run(connection, "SELECT once.emit('thing.changed', jsonb_build_object('step', (SELECT t.step FROM thing AS t WHERE t.id = %s)),"
                            " 'thing', %s)", (which + step) % things, str((which + step) % things))
            run(connection, "ROLLBACK" if step % 7 == 6 else "COMMIT")

    threads = [threading.Thread(target=work, args=(which,)) for which in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    rows = read_all(db, reader)
    assert len(rows) == len(set(ids(rows)))
    order = steps_by_thing([(row["event_id"], row["aggregate_id"], int(row["payload"].split(":")[1].strip(" }"))) for row in rows])
    for thing, seen in order.items():
        assert seen == list(range(1, len(seen) + 1)), thing


def test_what_was_not_confirmed_comes_again_after_the_server_was_killed_and_nothing_is_lost():
    with logical_server() as server:
        db = published(server)
        db.execute("CREATE TABLE thing (id integer PRIMARY KEY, step integer)")
        make_slot(db)
        reader = Reader(db, SLOT, PUBLICATION)
        writer = db.connect()
        for step in range(20):
            place(writer, step % 2, step)
        read_all(db, reader)
        for step in range(20, 40):
            place(writer, step % 2, step, roll_back=step % 5 == 0)
        unconfirmed = []
        while len(unconfirmed) < 10:
            unconfirmed = reader.read(confirm=False)[20:]
        before = [(row["event_id"], row["aggregate_id"], row["payload"]) for row in reader.rows]
        server.kill()
        server.start()
        reader.close()
        again = Reader(Database(server, db.name), SLOT, PUBLICATION)
        place(db.connect(), 0, 99)
        db.own = None
        rows = again.read_until(lambda rows: {"99"} <= {row["payload"].split(":")[1].strip(" }") for row in rows}, "the last event")
        after = [(row["event_id"], row["aggregate_id"], row["payload"]) for row in rows]
        assert {event for event, _, _ in before + after} == stored(db)
        # In the order of the things, repeats left out, and those only of what was not confirmed, or had not been stored by a checkpoint.
        for thing, steps in steps_by_thing(before + after).items():
            assert steps == sorted(steps, key=lambda payload: int(payload.split(":")[1].strip(" }"))), thing
        assert {row["event_id"] for row in unconfirmed} <= set(ids(rows))
        again.close()
        end(db)


def test_a_day_goes_when_the_slot_has_passed_it(db, reader):
    day = yesterday(db)
    assert db.value("SELECT once.add_capture(%s)", SLOT) is True and db.value("SELECT once.add_capture(%s)", SLOT) is False
    event = emit_on(db.connect(), day)
    refuse_to_retire(db, day, f"'{SLOT}'", "once.capture_list")
    reader.read(confirm=False)
    refuse_to_retire(db, day, f"'{SLOT}'")
    assert ids(read_all(db, reader)) == [str(event)]
    confirmed(db, reader)  # the mark of the first look
    confirmed(db, reader)
    assert db.value("SELECT once.retire_outbox(%s)", day) == 1
    assert not is_there(db, day)


def test_a_day_into_which_a_transaction_may_still_write_is_not_passed(db, reader):
    """The slot has confirmed all that was written to the WAL; what commits later is none of that."""
    day = yesterday(db)
    db.execute("SELECT once.add_capture(%s)", SLOT)
    emit_on(db.connect(), day)
    writer = db.connect(isolation="READ COMMITTED")
    late = emit_on(writer, day)
    emit(db.connect())
    for _ in range(3):
        confirmed(db, reader)
    writer.commit()
    refuse_to_retire(db, day, f"'{SLOT}'")
    assert str(late) in ids(read_all(db, reader))
    for _ in range(2):
        confirmed(db, reader)
    assert db.value("SELECT once.retire_outbox(%s)", day) == 2


def test_an_event_that_commits_after_the_mark_is_not_passed_with_it(db, reader):
    """The slot has confirmed the mark, and not yet what came behind it."""
    day = yesterday(db)
    db.execute("SELECT once.add_capture(%s)", SLOT)
    at = db.value("SELECT pg_current_wal_insert_lsn()")
    reader.read_until(lambda _: db.value("SELECT confirmed >= %s::pg_lsn FROM once.capture_list()", at), "the slot")
    emit_on(db.connect(), day)
    refuse_to_retire(db, day, f"'{SLOT}'")


def test_the_retiring_looks_at_the_slots_itself(db, reader):
    """Nobody else does where no keeper runs."""
    day = yesterday(db)
    emit_on(db.connect(), day)
    db.execute("SELECT once.add_capture(%s)", SLOT)
    at = db.value("SELECT pg_current_wal_insert_lsn()")
    reader.read_until(lambda _: db.value("SELECT confirmed >= %s::pg_lsn FROM once.capture_list()", at), "the slot")
    assert db.value("SELECT once.retire_outbox(%s)", day) == 1


def test_a_slot_that_begins_later_has_not_passed_what_is_in_the_table(db):
    """A connector reads the table first; its slot stands at its beginning meanwhile."""
    day = yesterday(db)
    emit_on(db.connect(), day)
    make_slot(db)
    db.execute("SELECT once.add_capture(%s)", SLOT)
    follow(db)
    refuse_to_retire(db, day, f"'{SLOT}'")


def test_the_keeper_keeps_a_day_for_the_slot_and_drops_it_afterwards(db, reader):
    day = yesterday(db)
    settled(db)
    db.execute("SELECT once.set_keeping(outbox_retention => '0', horizon_days => 1); UPDATE once.scope SET retention = '1 hour'")
    db.execute("SELECT once.add_capture(%s)", SLOT)
    emit_on(db.connect(), day)
    keeps = keeper(db)
    db.execute("SELECT once.set_keeping(horizon_days => 1)")
    assert f"day {day} of the outbox stays" in keeps.work("outbox")[-1]
    held = db.row("SELECT * FROM once.retention_held() WHERE what = 'relay'")
    assert held.name == SLOT and "once.capture_list" in held.hint
    for _ in range(2):
        at = db.value("SELECT pg_current_wal_insert_lsn()")
        reader.read_until(lambda _: capture(db).confirmed is not None and db.value("SELECT %s::pg_lsn <= confirmed FROM once.capture_list()", at), "the slot")
        keeps.work("outbox")
    assert not is_there(db, day)
    assert db.rows("SELECT 1 FROM once.retention_held() WHERE what = 'relay'") == []


def test_a_slot_that_is_gone_holds_the_outbox_and_one_of_its_name_is_another(db, reader):
    day = yesterday(db)
    db.execute("SELECT once.add_capture(%s)", SLOT)
    emit_on(db.connect(), day)
    reader.close()
    drop_slots(db)
    follow(db)
    assert capture(db).state == "broken" and "no such logical slot" in capture(db).why
    refuse_to_retire(db, day, f"'{SLOT}'")
    with refused("55000"):
        db.execute("SELECT once.relay_adopt(%s, 'why')", SLOT)
    make_slot(db)
    emit(db.connect())
    again = Reader(db, SLOT, PUBLICATION)
    read = again.read_until(lambda rows: len(rows) == 1, "the new slot's event")
    assert len(read) == 1 and len(stored(db)) == 2  # the other one nobody gets by it
    for _ in range(2):
        confirmed(db, again)
    assert capture(db).state == "broken"
    refuse_to_retire(db, day, f"'{SLOT}'")
    db.execute("SELECT once.relay_adopt(%s, 'it has read the table')", SLOT)
    assert capture(db).state == "active" and capture(db).why is None
    refuse_to_retire(db, day, f"'{SLOT}'")
    for _ in range(2):
        confirmed(db, again)
    assert db.value("SELECT once.retire_outbox(%s)", day) == 1
    assert db.value("SELECT count(*) FROM once.parked_decision WHERE what = 'adopt' AND subject = %s", SLOT) == 1
    again.close()


def test_a_slot_that_the_server_has_invalidated_holds_the_outbox_and_is_said():
    with logical_server(max_slot_wal_keep_size="1MB", max_wal_size="32MB", min_wal_size="32MB") as server:
        db = published(server)
        day = yesterday(db)
        make_slot(db)
        db.execute("SELECT once.add_capture(%s)", SLOT)
        emit_on(db.connect(), day)
        for _ in range(5):
            db.execute("SELECT pg_switch_wal()")
            emit(db.connect())
            db.execute("CHECKPOINT")
        follow(db)
        assert capture(db).state == "broken" and "invalidated" in capture(db).why
        refuse_to_retire(db, day, f"'{SLOT}'")
        assert db.value("SELECT value FROM once.metrics() WHERE name = 'pgonce_capture_broken'") == 1
        end(db)


@pytest.mark.parametrize("seen", ["while it is gone", "when there is another one"])
def test_after_a_failover_without_slot_synchronisation_what_was_between_is_in_the_table_alone(seen):
    with logical_server() as primary:
        db = published(primary)
        make_slot(db)
        db.execute("SELECT once.add_capture(%s)", SLOT)
        reader = Reader(db, SLOT, PUBLICATION)
        writer = db.connect()
        read = [emit(writer, "a") for _ in range(3)]
        assert set(ids(read_all(db, reader))) == set(map(str, read))
        with standby_of(primary) as standby:
            between = [emit(writer, "a") for _ in range(2)]
            caught_up(primary, standby)
            there = Database(standby, db.name)
            assert capture(there).state == "idle", "a standby raises no alarm"
            reader.close()
            primary.kill()
            promote(standby)
            there.close()
            if seen == "while it is gone":
                follow(there)
            make_slot(there)
            follow(there)
            assert capture(there).state == "broken"
            assert ("no such logical slot" if seen == "while it is gone" else "promoted") in capture(there).why
            after = emit(there.connect(), "a")
            again = Reader(there, SLOT, PUBLICATION)
            rows = again.read_until(lambda rows: str(after) in ids(rows), "what came after the failover")
            assert not set(ids(rows)) & set(map(str, between)), "a slot that is made anew begins there"
            assert stored(there) == set(map(str, read + between + [after])), "and the table has it"
            again.close()
            end(there)


def test_a_slot_of_before_a_promotion_is_not_trusted(db):
    make_slot(db)
    db.execute("SELECT once.add_capture(%s); UPDATE once.capture SET server = '00000009 of 1'", SLOT)
    follow(db)
    assert capture(db).state == "broken" and "timeline 00000001" in capture(db).why


def test_a_slot_that_the_server_has_synchronised_goes_on_after_a_failover():
    """PostgreSQL 17 and later: nothing is lost, nothing is to be decided."""
    if find_version() < 17:
        pytest.skip("NOT TESTED here: slots are synchronised by PostgreSQL 17 and later (PGONCE_PG_BINDIR names another server)")
    with logical_server() as primary:
        db = published(primary)
        db.execute(f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput', failover => true)")
        db.execute("SELECT pg_create_physical_replication_slot('standby')")
        db.execute("SELECT once.add_capture(%s)", SLOT)
        db.close()
        with cold_standby_of(primary, "standby") as standby:
            reader = Reader(db, SLOT, PUBLICATION)
            read = emit(db.connect(), "a")
            read_all(db, reader)
            there = Database(standby, db.name)

            def synchronised():
                db.execute("SELECT pg_log_standby_snapshot()")  # what lets a slot begin there
                reader.read()
                return there.rows("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND synced AND NOT temporary", SLOT)

            wait_until(synchronised, "the slot")
            between = emit(db.connect(), "a")
            caught_up(primary, standby)
            reader.close()
            primary.kill()
            promote(standby)
            follow(there)
            assert capture(there).state == "idle" and capture(there).why is None
            again = Reader(there, SLOT, PUBLICATION)
            rows = again.read_until(lambda rows: str(between) in ids(rows), "what was between")
            assert ids(rows) in ([str(between)], [str(read), str(between)])
            for _ in range(2):
                confirmed(there, again)
            assert there.rows("SELECT 1 FROM once.outbox_summary() WHERE state = 'pending'") == []
            again.close()
            end(there)


def test_without_word_of_a_synchronisation_a_slot_does_not_go_on_and_with_it_it_does(db):
    """As a promoted standby has it, on any server: the timeline is another one; the function is told that the slot was synchronised."""
    make_slot(db)
    db.execute("SELECT once.add_capture(%s); UPDATE once.capture SET server = '00000009 of 1'", SLOT)
    assert capture(db).state == "broken"
    text = db.value("SELECT pg_get_functiondef('once._slot'::regproc)")
    db.execute(text.replace("(found ->> 'synced')::boolean", "true"))
    assert capture(db).state == "idle"


def test_what_cannot_be_a_capture_is_refused(db):
    with refused("55000"):
        db.execute("SELECT once.add_capture('nobody')")
    Relay(db.connect(), "orders")
    with refused("22023"):
        db.execute("SELECT once.add_capture('orders')")
    for name in ("", None, "x" * 64):
        with refused("22023"):
            db.execute("SELECT once.add_capture(%s)", name)
    db.execute("SELECT pg_create_physical_replication_slot('standby')")
    with refused("55000"):
        db.execute("SELECT once.add_capture('standby')")
    db.execute("SELECT pg_drop_replication_slot('standby')")


def test_a_slot_is_no_relay_for_a_session_and_sends_nothing_again(db):
    make_slot(db)
    db.execute("SELECT once.add_capture(%s)", SLOT)
    with refused("22023"):
        Relay(db.connect(), SLOT)
    with refused("22023"):
        db.execute("SELECT once.parked_replay(%s, now() - interval '1 hour', NULL, 'why')", SLOT)
    assert db.value("SELECT once.drop_relay(%s, 'why')", SLOT)
    assert db.rows("SELECT * FROM once.capture_list()") == []
    assert Relay(db.connect(), SLOT).taken


def test_what_is_in_the_wal_comes_even_when_its_day_is_dropped(db, reader):
    """So the hold is for who reads the table: a connector's first snapshot, or one whose slot is gone."""
    day = yesterday(db)
    event = emit_on(db.connect(), day)
    db.execute(f"DROP TABLE once.outbox_d{day}")
    db.execute("VACUUM")
    reader.read_until(lambda rows: ids(rows) == [str(event)], "the event of a day that is gone")


def test_who_reads_the_slot_may_read_the_outbox_and_nothing_else(db):
    connection = db.connect("cdc")
    run(connection, "SELECT count(*) FROM once.outbox")
    for text in ("SELECT FROM once.intent", "SELECT FROM once.relay", "DELETE FROM once.outbox", "SELECT once.add_capture('x')",
                 "SELECT * FROM once.capture_list()"):
        with refused("42501"):
            run(connection, text)


def found(db, check):
    done = Command(db.dsn())("doctor", "--json")
    return next((row["level"], row["found"]) for row in json.loads(done.stdout)["checks"] if row["check"] == check)


def test_doctor_says_how_the_slots_stand(db):
    assert found(db, "slots that count")[0] == "ok"
    make_slot(db)
    assert found(db, "slots that count") == ("warning", SLOT)
    db.execute("SELECT once.add_capture(%s)", SLOT)
    assert found(db, "slots that count")[0] == "ok" and found(db, "relays running")[0] == "ok"
    assert found(db, "captures")[0] == "warning" and "no client" in found(db, "captures")[1]
    reader = Reader(db, SLOT, PUBLICATION)
    reader.read()
    assert found(db, "captures")[0] == "ok"
    reader.close()
    drop_slots(db)
    assert found(db, "captures")[0] == "failed" and "no such logical slot" in found(db, "captures")[1]
    assert found(db, "publication")[0] == "ok"
    db.execute(f"ALTER PUBLICATION {PUBLICATION} SET (publish_via_partition_root = false)")
    assert found(db, "publication") == ("warning", PUBLICATION)
    assert found(db, "closed tables")[0] == "ok"


def test_the_metrics_say_how_the_slots_stand(db, reader):
    def metrics():
        return {row.name: row.value for row in db.rows("SELECT name, value FROM once.metrics() WHERE name LIKE 'pgonce_capture%%'")}

    assert metrics() == {}
    db.execute("SELECT once.add_capture(%s)", SLOT)
    emit(db.connect())
    before = metrics()
    assert before["pgonce_capture_active"] == 1 and before["pgonce_capture_broken"] == 0 and before["pgonce_capture_kept_bytes"] > 0
    read_all(db, reader)
    confirmed(db, reader)
    assert metrics()["pgonce_capture_behind_bytes"] < before["pgonce_capture_behind_bytes"]
    reader.close()
    drop_slots(db)
    after = metrics()
    assert after["pgonce_capture_active"] == 0 and after["pgonce_capture_broken"] == 1
