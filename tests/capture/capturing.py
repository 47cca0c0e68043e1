# SPDX-License-Identifier: PostgreSQL
"""Servers with logical decoding, a database whose outbox is published, and the slot that takes it. What a team types stands in docs/how/capture.md,
and is taken from there."""

import os
import re
import shutil
import subprocess

import psycopg2

from contract.calls import run
from harness.postgres import ROOT, Postgres, find_bindir, unprivileged, wait_until

PAGE = ROOT / "docs/how/capture.md"
SLOT, PUBLICATION = "shop_outbox", "once_outbox"
LOGICAL = {"wal_level": "logical", "max_replication_slots": "30", "max_wal_senders": "30", "wal_sender_timeout": "20s"}


def block(language, starting):
    """The block of this language on the page that begins so."""
    found = [text for text in re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.M | re.S) if text.startswith(starting)]
    assert len(found) == 1, f"{PAGE} has {len(found)} blocks that begin with {starting!r}"
    return found[0]


def logical_server(**settings):
    return Postgres(settings={**LOGICAL, **settings})


def published(server):
    """A new database whose owner has typed what the page says."""
    db = server.new_database()
    if not db.rows("SELECT 1 FROM pg_roles WHERE rolname = 'cdc'"):
        db.execute("CREATE ROLE cdc LOGIN REPLICATION; GRANT once_capture TO cdc")
    db.execute(block("sql", "CREATE PUBLICATION"))
    return db


def make_slot(db, slot=SLOT):
    db.execute(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")


def drop_slots(db):
    def dropped():
        try:
            db.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()")
        except psycopg2.errors.ObjectInUse:  # the server has not seen yet that its client is gone
            return False
        return True

    wait_until(dropped, "the slots to be free")


def end(db):
    drop_slots(db)
    db.drop()


def follow(db):
    """What the keeper does in each round."""
    db.execute("SELECT once._follow_slots()")


def capture(db):
    """The one there is."""
    return db.row("SELECT * FROM once.capture_list()")


def ids(rows):
    return [row["event_id"] for row in rows]


def stored(db):
    """The ids of all events in the outbox."""
    return {str(row.event_id) for row in db.rows("SELECT event_id FROM once.outbox")}


def place(connection, thing, step, roll_back=False):
    """A step of a thing, whose row is locked before the event, as docs/start/outbox.md asks."""
    run(connection, "BEGIN")
    run(connection, "INSERT INTO thing VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET step = excluded.step", thing, step)
    run(connection, "SELECT once.emit('thing.changed', jsonb_build_object('step', %s), 'thing', %s)", step, str(thing))
    run(connection, "ROLLBACK" if roll_back else "COMMIT")


def steps_by_thing(events, firsts_only=True):
    """{aggregate: [step, ...]} in the order in which they came, of (event id, aggregate, step); repeats left out."""
    known, found = set(), {}
    for event, thing, step in events:
        if event not in known or not firsts_only:
            known.add(event)
            found.setdefault(thing, []).append(step)
    return found


def standby_of(primary):
    """A hot standby, without a slot for it and without synchronised slots."""
    server = Postgres(copy_of=primary, settings=LOGICAL)
    signal = server.data / "standby.signal"
    signal.touch()
    if unprivileged()[1]:
        os.chown(signal, unprivileged()[1].pw_uid, -1)
    with open(server.data / "postgresql.auto.conf", "a", encoding="utf-8") as conf:
        conf.write(f"primary_conninfo = '{primary.dsn()}'\n")
    return server


def cold_standby_of(primary, slot):
    """A standby to which slots are synchronised, through this slot of its own. Of a copy while the primary stands."""
    primary.stop()
    server = Postgres(settings={**LOGICAL, "sync_replication_slots": "on", "hot_standby_feedback": "on", "primary_slot_name": slot})
    shutil.rmtree(server.data)
    shutil.copytree(primary.data, server.data, ignore=shutil.ignore_patterns("postmaster.pid", SLOT, slot))
    server.configure()
    with open(server.data / "postgresql.conf", "a", encoding="utf-8") as conf:
        conf.write(f"primary_conninfo = '{primary.dsn()}'\n")
    (server.data / "standby.signal").touch()
    user = unprivileged()[1]
    if user:
        for path in (server.data, *server.data.rglob("*")):
            os.chown(path, user.pw_uid, user.pw_gid)
    primary.start()
    return server


def find_version():
    return int(re.search(r"\) (\d+)", subprocess.run([find_bindir() / "postgres", "--version"], capture_output=True, text=True, check=True).stdout)[1])


def caught_up(primary, standby):
    connection = primary.connect()
    at = run(connection, "SELECT pg_current_wal_insert_lsn()::text AS at")[0].at
    connection.close()
    there = standby.connect()
    wait_until(lambda: run(there, "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn AS caught_up", at)[0].caught_up, "the standby")
    there.close()


def promote(standby):
    connection = standby.connect()
    assert run(connection, "SELECT pg_promote(true, 60) AS promoted")[0].promoted
    connection.close()
