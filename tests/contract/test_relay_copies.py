# SPDX-License-Identifier: PostgreSQL
"""A relay in a copy of its database. Where rows were copied (pg_dump, logical replication) its progress means nothing, whatever the cluster's
identifier says: a relay would pass over new events and send old ones late. Where files were copied (a standby, a base backup,
pg_upgrade) transactions are counted on, and so the relay goes on."""

import subprocess

import pytest

from harness.postgres import PATIENCE_S, Postgres, clean_environment, unprivileged, wait_until

from .calls import refused, run
from .relaying import Relay, emit


def listed(relay):
    return [event.event_id for event in relay.batch()]


def burn(db, transactions):
    connection = db.connect()
    for _ in range(transactions):
        run(connection, "SELECT pg_current_xact_id()")


def released(relay):
    run(relay.connection, "SELECT pg_advisory_unlock_all()")


def program(server, name, *arguments, **more):
    return subprocess.run([str(server.bindir / name), *map(str, arguments)], env=clean_environment(), cwd="/tmp", timeout=PATIENCE_S,
                          capture_output=True, check=True, **unprivileged()[0], **more).stdout


@pytest.fixture
def source():
    with Postgres(settings={"wal_level": "logical"}) as server:
        yield server


@pytest.fixture
def db(source):
    return source.new_database()


def copy_of(source, **settings):
    copy = Postgres(copy_of=source, settings={"wal_level": "logical", **settings})
    copy.databases = source.databases
    return copy


def database_of(server, db):
    """The same database in a copy of its server."""
    return type(db)(server, db.name)


# ---- rows were copied ----


@pytest.mark.parametrize("ahead", ["source", "clone"])
def test_a_dump_that_is_restored_into_a_clone_of_its_cluster_is_refused(source, db, ahead):
    relay = Relay(db.connect())
    done = emit(db.connect())
    assert listed(relay) == [done]
    with copy_of(source) as clone:
        if ahead == "source":
            burn(db, 300)
        else:
            burn(database_of(clone, db), 300)
        published = emit(db.connect())
        assert listed(relay) == [published]
        waiting = emit(db.connect())
        dump = program(source, "pg_dump", "-Fc", "-d", db.dsn())
        restored = clone.empty_database()
        program(clone, "pg_restore", "--exit-on-error", "-d", restored.dsn(), input=dump)
        with refused("P4080") as caught:
            Relay(restored.connect())
        assert "not written in this database" in caught.value.diag.message_detail
        burn(restored, 300)  # the clone counts as far as the source had
        with refused("P4080"):
            Relay(restored.connect())
        restored.execute("SELECT once.relay_adopt('r', 'restored', false)")
        new = emit(restored.connect())
        relay = Relay(restored.connect())
        assert listed(relay) == [new]
        restored.execute("SELECT once.parked_replay('r', now() - interval '1 day', NULL, 'restored')")
        assert {event.event_id for event in relay.due()} == {done, published, waiting, new}


def subscribed(db, clone, tables):
    """The clone's database, which gets rows of these tables from now on."""
    target = database_of(clone, db)
    db.execute(f"CREATE PUBLICATION events FOR TABLE {tables}")
    db.execute("SELECT pg_create_logical_replication_slot('events', 'pgoutput')")
    target.execute(f"CREATE SUBSCRIPTION events CONNECTION '{db.dsn()}' PUBLICATION events"
                   " WITH (create_slot = false, copy_data = false, slot_name = 'events')")
    return target


def unsubscribe(target):
    target.execute("ALTER SUBSCRIPTION events DISABLE")
    target.execute("ALTER SUBSCRIPTION events SET (slot_name = NONE)")
    target.execute("DROP SUBSCRIPTION events")


@pytest.mark.parametrize("tables", ["once.outbox", "once.outbox, once.relay"])
def test_while_events_come_by_logical_replication_there_is_no_relay(source, db, tables):
    emit(db.connect())
    with copy_of(source) as clone:
        target = subscribed(db, clone, tables)
        burn(target, 100)
        event = emit(db.connect())
        wait_until(lambda: target.rows("SELECT 1 FROM once.outbox WHERE event_id = %s", event), "the event to be replicated")
        for name in ("r", "new"):
            with refused("P4080") as caught:
                Relay(target.connect(), name)
            assert "subscription" in caught.value.diag.message_detail
            assert run(target.connect(), "SELECT pg_try_advisory_lock(once._relay_lock(%s))", name) == [(True,)]
            target.close()
        with refused("P4080"):
            target.execute("SELECT once.relay_adopt('r', 'too early', false)")
        unsubscribe(target)


def test_after_a_move_by_logical_replication_the_relay_is_adopted_first(source, db):
    """The subscriber is a promoted copy, which has its publisher's identifier and has counted further."""
    relay = Relay(db.connect())
    with copy_of(source) as clone:
        target = subscribed(db, clone, "once.outbox, once.relay")
        burn(target, 300)
        old = emit(db.connect())
        assert listed(relay) == [old]
        waiting = emit(db.connect())
        wait_until(lambda: target.rows("SELECT 1 FROM once.outbox WHERE event_id = %s", waiting), "the event to be replicated")
        unsubscribe(target)
        with refused("P4080"):
            Relay(target.connect())
        target.execute("SELECT once.relay_adopt('r', 'moved', false)")
        new = emit(target.connect())
        assert listed(Relay(target.connect())) == [new]
        assert target.value("SELECT count(DISTINCT id) = 3 FROM once.outbox")


# ---- files were copied ----


def half_done(db):
    """A relay in the middle of a batch of three."""
    events = [emit(db.connect()) for _ in range(3)]
    relay = Relay(db.connect())
    batch = relay.list()
    relay.settle(after_id=batch[0].id)
    return relay, events


def test_a_relay_goes_on_in_a_promoted_standby(source, db):
    relay, events = half_done(db)
    standby = copy_of(source, primary_conninfo=source.dsn())
    (standby.data / "standby.signal").touch()
    with standby:
        late = emit(db.connect())
        promoted = database_of(standby, db)
        wait_until(lambda: promoted.rows("SELECT 1 FROM once.outbox WHERE event_id = %s", late), "the standby to have the event")
        source.kill()
        db.close()
        assert promoted.value("SELECT pg_promote()")
        heir = Relay(promoted.connect())
        assert (heir.seen, heir.reading, heir.after_id) == (relay.seen, relay.reading, relay.after_id)
        assert listed(heir) == events[1:]
        assert listed(heir) == [late]


def test_a_relay_goes_on_in_a_restored_base_backup_from_where_it_was_then(source, db):
    _, events = half_done(db)
    with copy_of(source) as restored:
        assert listed(Relay(database_of(restored, db).connect())) == events[1:]


def test_a_relay_goes_on_after_pg_upgrade(source, db):
    """Which changes the cluster's identifier and keeps its transactions."""
    _, events = half_done(db)
    identifier = db.value("SELECT system_identifier FROM pg_control_system()")
    db.close()
    source.stop()
    new = Postgres(settings={"wal_level": "logical"})
    program(source, "pg_upgrade", "-b", source.bindir, "-B", source.bindir, "-d", source.data, "-D", new.data, "-U", "postgres", "--no-sync",
            "-s", new.directory)
    with new:
        upgraded = database_of(new, db)
        assert upgraded.value("SELECT system_identifier FROM pg_control_system()") != identifier
        assert listed(Relay(upgraded.connect())) == events[1:]
