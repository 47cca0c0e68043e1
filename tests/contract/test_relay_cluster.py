# SPDX-License-Identifier: PostgreSQL
"""A relay in a database that was restored into another cluster, or replicated: its progress was not written there, and xids begin anew. It is refused
until somebody has adopted it."""

import psycopg2
import pytest

from harness.postgres import wait_until

from .calls import refused, run
from .relaying import Relay, emit, listed, parking
from .test_receive_many import park


def become_another_cluster(db):
    """What a restore into a new cluster does: the progress was not written here, and xids begin anew."""
    db.execute("UPDATE once.relay SET written_by = '1'")
    db.execute("UPDATE once.outbox SET xid = (xid::text::bigint + 1000000)::text::xid8")
    db.execute("UPDATE once.parked_event SET xid = (xid::text::bigint + 1000000)::text::xid8")


def test_a_relay_of_another_cluster_is_refused_and_its_lock_is_free_again(db):
    Relay(db.connect()).connection.close()
    become_another_cluster(db)
    connection = db.connect()

    def refused_at_last():
        try:
            return Relay(connection).taken
        except psycopg2.Error as error:
            assert error.pgcode == "P4080"
            assert "relay='r'" in error.diag.message_detail and "relay_adopt" in error.diag.message_hint
            return True

    wait_until(refused_at_last, "the closed session's lock to be free")
    assert run(db.connect(), "SELECT pg_try_advisory_lock(once._relay_lock('r'))") == [(True,)]


def test_progress_ahead_of_all_transactions_is_refused(db):
    """pg_resetwal, for one: what is yet to come would count as seen."""
    relay = Relay(db.connect())
    db.execute("UPDATE once.relay SET seen = '1000000000:1000000000:', written_by = pg_current_xact_id()::xid")
    with refused("P4080") as caught:
        Relay(relay.connection)
    assert "ahead" in caught.value.diag.message_detail


@pytest.mark.parametrize("change", ["settle", "take", "operator", "adopt"])
def test_a_relay_stays_its_databases_own_whoever_writes_its_row_within_savepoints(db, change):
    relay = Relay(db.connect())
    event = emit(db.connect(), "a")
    (listed_event,) = relay.fetch(relay.list())
    relay.park(parking(listed_event))
    other = db.connect(isolation="READ COMMITTED")
    connection = relay.connection if change == "settle" else other
    if change in ("take", "adopt"):
        run(relay.connection, "SELECT pg_advisory_unlock_all()")
    run(connection, "BEGIN" if change == "settle" else "SELECT 1")
    for _ in range(2):
        run(connection, "SAVEPOINT a")
        run(connection, "SELECT pg_current_xact_id()")
        if change == "settle":
            relay.settle(after_id=0)
        elif change == "take":
            Relay(connection, topics=["t"])
        elif change == "adopt":
            run(connection, "SELECT once.relay_adopt('r', 'why', true)")
        else:
            run(connection, "SELECT once.parked_retry(%s::text, 'why', 'r')", event)
    run(connection, "COMMIT")
    run(connection, "SELECT pg_advisory_unlock_all()")
    run(relay.connection, "SELECT pg_advisory_unlock_all()")
    db.execute("VACUUM (FULL, FREEZE) once.relay")
    assert Relay(db.connect()).taken


def test_what_operators_do_does_not_make_another_clusters_relay_our_own(db):
    relay = Relay(db.connect())
    event = emit(db.connect(), "a")
    (listed_event,) = relay.fetch(relay.list())
    relay.park(parking(listed_event))
    run(relay.connection, "SELECT pg_advisory_unlock_all()")
    become_another_cluster(db)
    for _ in range(2):
        db.execute("SELECT once.parked_retry(%s::text, 'why', 'r')", event)
        with refused("P4080"):
            Relay(db.connect())


def test_progress_that_is_replaced_under_a_relay_is_not_made_its_own_by_settling(db):
    """As a subscription's worker would."""
    relay = Relay(db.connect())
    relay.list()
    become_another_cluster(db)
    with refused("55000"):
        relay.settle()


def test_an_adopted_relay_goes_on_with_what_commits_from_now_on(db):
    relay = Relay(db.connect())
    done = emit(db.connect())
    relay.batch()
    waiting = emit(db.connect())
    run(relay.connection, "SELECT pg_advisory_unlock_all()")
    become_another_cluster(db)
    db.execute("SELECT once.relay_adopt('r', 'restored', false)")
    relay = Relay(db.connect())
    new = emit(db.connect())
    assert listed(relay) == [new]
    # No event of old turns up when this cluster has counted so far.
    assert db.value("SELECT count(*) FROM once.outbox WHERE xid >= pg_snapshot_xmax(pg_current_snapshot())") == 0
    db.execute("SELECT once.parked_replay('r', now() - interval '1 day', NULL, 'restored')")
    assert {event.event_id for event in relay.due()} == {done, waiting, new}


def test_what_was_parked_stays_parked_with_an_adopted_relay(db):
    relay = Relay(db.connect())
    emit(db.connect(), "a")
    (event,) = relay.fetch(relay.list())
    relay.park(parking(event))
    run(relay.connection, "SELECT pg_advisory_unlock_all()")
    become_another_cluster(db)
    db.execute("SELECT once.relay_adopt('r', 'restored', false)")
    assert [row.event_id for row in Relay(db.connect()).due()] == [event.event_id]


def of_old(db):
    """A parked event and a parked message that came by logical replication, which brings no sequences."""
    relay = Relay(db.connect())
    event = emit(db.connect(), "a")
    (listed_event,) = relay.fetch(relay.list())
    relay.park(parking(listed_event))
    park(db.connect(), "m1", key="k", state="waiting")
    run(relay.connection, "SELECT pg_advisory_unlock_all()")
    become_another_cluster(db)
    for sequence in ("outbox_id_seq", "parked_message_position_seq", "outbox_day_seq"):
        db.execute(f"SELECT setval('once.{sequence}', 1, false)")
    return event


def test_after_adoption_what_is_new_takes_no_number_that_something_of_old_has(db):
    old = of_old(db)
    db.execute("SELECT once.relay_adopt('r', 'restored', false)")
    relay = Relay(db.connect())
    new = emit(db.connect(), "b")
    (event,) = relay.fetch(relay.list())
    relay.park(parking(event))
    assert {row.event_id for row in relay.due()} == {old, new}
    park(db.connect(), "m2", key="k", state="waiting")
    assert [row.message_id for row in db.rows('SELECT message_id FROM once.parked_message ORDER BY "position"')] == ["m1", "m2"]
    assert db.value('SELECT count(DISTINCT "position") FROM once.parked_message') == 2


def test_after_adoption_the_days_of_old_events_are_known(db):
    of_old(db)
    db.execute("UPDATE once.outbox SET day = day + 1")
    db.execute("SELECT once.relay_adopt('r', 'restored', false)")
    assert db.value("SELECT last_value = 256 * (SELECT max(day) FROM once.outbox) FROM once.outbox_day_seq")


def test_a_new_relay_in_a_replicated_database_meets_no_two_events_of_one_number(db):
    old = of_old(db)
    db.execute("DELETE FROM once.relay")
    relay = Relay(db.connect())
    new = emit(db.connect(), "b")
    rows = relay.list()
    assert len({row.id for row in rows}) == 2
    assert [row.event_id for row in relay.fetch(rows)] == [old, new]


def test_sequences_that_are_ahead_stay_where_they_are(db):
    relay = Relay(db.connect())
    event = emit(db.connect())
    run(relay.connection, "SELECT pg_advisory_unlock_all()")
    become_another_cluster(db)
    db.execute("SELECT setval('once.outbox_id_seq', 1000)")
    db.execute("SELECT once.relay_adopt('r', 'restored', false)")
    assert emit(db.connect()) != event
    assert db.value("SELECT max(id) FROM once.outbox") == 1001


def test_where_xids_continue_an_adopted_relay_goes_on_where_it_was(db):
    relay = Relay(db.connect())
    relay.batch()
    event = emit(db.connect())
    run(relay.connection, "SELECT pg_advisory_unlock_all()")
    db.execute("UPDATE once.relay SET written_by = '1'")
    db.execute("SELECT once.relay_adopt('r', 'restored in place', xids_continue => true)")
    assert listed(Relay(db.connect())) == [event]


def rewrite(db):
    """What pg_repack does to once.relay: its rows are copied into a new table, by a transaction that is not theirs."""
    db.execute("CREATE TEMP TABLE copy AS SELECT * FROM once.relay; TRUNCATE once.relay; INSERT INTO once.relay SELECT * FROM copy; DROP TABLE copy")


def test_after_the_table_was_rewritten_the_hint_loses_nothing_and_the_lossy_form_must_be_asked_for(db):
    relay = Relay(db.connect())
    relay.batch()
    event = emit(db.connect())
    run(relay.connection, "SELECT pg_advisory_unlock_all()")
    rewrite(db)
    with refused("P4080") as caught:
        Relay(db.connect())
    assert "pg_repack" in caught.value.diag.message_hint and "xids_continue => true" in caught.value.diag.message_hint
    with refused("22023") as caught:
        db.execute("SELECT once.relay_adopt('r', 'repacked')")
    assert "xids_continue is missing" in caught.value.diag.message_primary and "pg_repack" in caught.value.diag.message_hint
    db.execute("SELECT once.relay_adopt('r', 'repacked', xids_continue => true)")
    assert listed(Relay(db.connect())) == [event]


def test_progress_of_another_cluster_that_is_ahead_is_not_taken_for_its_own(db):
    run(Relay(db.connect()).connection, "SELECT pg_advisory_unlock_all()")
    db.execute("UPDATE once.relay SET seen = '1000000000:1000000000:', written_by = '1'")
    with refused("22023") as caught:
        db.execute("SELECT once.relay_adopt('r', 'why', xids_continue => true)")
    assert "ahead" in caught.value.diag.message_primary
    db.execute("SELECT once.relay_adopt('r', 'why', xids_continue => false)")
    assert Relay(db.connect()).taken


def test_a_new_relay_in_a_restored_database_reads_the_events_that_came_with_it(db):
    events = [emit(db.connect()) for _ in range(3)]
    become_another_cluster(db)
    assert listed(Relay(db.connect())) == events


def test_a_new_relay_leaves_the_events_of_open_transactions_alone(db):
    """Neither those of others nor its own: theirs are no foreign events."""
    slow = db.connect(isolation="READ COMMITTED")
    late = emit(slow)
    own = db.connect(isolation="READ COMMITTED")
    mine = emit(own)
    relay = Relay(own, from_now=True)
    own.commit()
    assert listed(relay) == [mine]
    own.commit()
    slow.commit()
    assert listed(relay) == [late]


def test_a_relay_in_use_is_not_adopted_or_dropped(db):
    Relay(db.connect())
    for call in ("relay_adopt", "drop_relay"):
        with refused("55006"):
            db.execute(f"SELECT once.{call}('r', 'why')")
