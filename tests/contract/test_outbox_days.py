# SPDX-License-Identifier: PostgreSQL
"""Retiring a day of the outbox: only when no relay needs it and no transaction can still write into it."""

import pytest

from harness.postgres import wait_until

from .calls import in_threads, refused, run, today
from .relaying import Relay, emit, parking

DAY_S = 86_400


@pytest.fixture
def yesterday(db):
    """Yesterday's partition; its day."""
    day = today(db) - 1
    db.execute(f"CREATE TABLE once.outbox_d{day} PARTITION OF once.outbox FOR VALUES FROM ({day}) TO ({day + 1})")
    return day


def emit_on(connection, day, aggregate="a"):
    """What an emit of that day has left."""
    return run(
        connection,
        "INSERT INTO once.outbox (day, created_at, event_id, topic, event_type, aggregate_type, aggregate_id, tenant,"
        " payload) VALUES (%s, to_timestamp(%s), gen_random_uuid(), 't', 't', 'thing', %s, '', '{}') RETURNING event_id",
        day,
        day * DAY_S + 1,
        aggregate,
    )[0][0]


def is_there(db, day):
    return db.value("SELECT to_regclass(%s) IS NOT NULL", f"once.outbox_d{day}")


def refuse_to_retire(db, day, *words, code="55006"):
    with refused(code) as caught:
        db.execute("SELECT once.retire_outbox(%s)", day)
    for word in words:
        assert word in caught.value.diag.message_detail, caught.value.diag.message_detail
    assert caught.value.diag.message_hint or code != "55006"
    assert is_there(db, day)


def test_a_day_goes_when_every_relay_has_passed_it(db, yesterday):
    emit_on(db.connect(), yesterday)
    relays = [Relay(db.connect(), name) for name in ("quick", "slow")]
    refuse_to_retire(db, yesterday, "'quick'")
    relays[0].batch()
    refuse_to_retire(db, yesterday, "'slow'")
    relays[1].list()
    relays[1].settle(after_id=99)
    refuse_to_retire(db, yesterday, "'slow'")
    relays[1].settle()
    assert db.value("SELECT once.retire_outbox(%s)", yesterday) == 1
    assert not is_there(db, yesterday)
    assert db.value("SELECT once.retire_outbox(%s)", yesterday) == 0
    emit(db.connect())


def test_a_day_stays_while_an_event_of_it_is_parked(db, yesterday):
    emit_on(db.connect(), yesterday)
    relay = Relay(db.connect())
    (event,) = relay.fetch(relay.list())
    relay.park(parking(event, "dead"))
    refuse_to_retire(db, yesterday, "1 of its events", "'r'")
    db.execute("SELECT once.parked_discard(%s::text, 'why', 'r')", event.event_id)
    assert db.value("SELECT once.retire_outbox(%s)", yesterday) == 1


def test_a_day_with_events_that_nobody_could_have_published_stays(db, yesterday):
    emit_on(db.connect(), yesterday)
    refuse_to_retire(db, yesterday, "no relay")
    db.execute("DELETE FROM once.outbox")
    assert db.value("SELECT once.retire_outbox(%s)", yesterday) == 0
    assert not is_there(db, yesterday)


def test_today_and_later_days_stay(db):
    for day in (today(db), today(db) + 1, 0, -1, None):
        with refused("22023"):
            db.execute("SELECT once.retire_outbox(%s)", day)
    assert is_there(db, today(db))


@pytest.mark.parametrize("end", ["open", "prepared"])
def test_a_day_into_which_a_transaction_may_still_write_stays(db, yesterday, end):
    relay = Relay(db.connect())
    writer = db.connect()
    run(writer, "BEGIN")
    event = emit_on(writer, yesterday)
    if end == "prepared":
        run(writer, f"PREPARE TRANSACTION '{db.name}'")
    emit(db.connect())
    relay.batch()  # sees nothing of it, and knows it as running
    db.execute("SET lock_timeout = '100ms'")
    refuse_to_retire(db, yesterday, code="55P03")
    if end == "prepared":
        db.execute(f"COMMIT PREPARED '{db.name}'")
    else:
        run(writer, "COMMIT")
    refuse_to_retire(db, yesterday, "'r'")
    assert [row.event_id for row in relay.batch()] == [event]
    assert db.value("SELECT once.retire_outbox(%s)", yesterday) == 1


def test_an_event_that_commits_while_the_retiring_waits_is_not_lost(db, yesterday):
    """It was not there at the first look."""
    relay = Relay(db.connect())
    relay.batch()
    writer = db.connect(isolation="READ COMMITTED")
    event = emit_on(writer, yesterday)
    keeper = db.connect(lock_timeout="20s")
    pid = keeper.get_backend_pid()

    def retire():
        with refused("55006"):
            run(keeper, "SELECT once.retire_outbox(%s)", yesterday)

    def commit():
        watcher = db.server.connect(db.name)
        wait_until(
            lambda: run(watcher, "SELECT 1 FROM pg_locks WHERE pid = %s AND NOT granted", pid), "the keeper to wait"
        )
        watcher.close()
        writer.commit()

    in_threads([retire, commit])
    assert [row.event_id for row in relay.batch()] == [event]


def test_a_day_is_not_retired_under_an_old_snapshot(db, yesterday):
    keeper = db.connect(isolation="REPEATABLE READ")
    run(keeper, "SELECT count(*) FROM once.outbox")
    Relay(db.connect()).batch()
    with refused("55000"):
        run(keeper, "SELECT once.retire_outbox(%s)", yesterday)


def test_a_late_emit_into_a_retired_day_fails_aloud(db, yesterday):
    db.execute("SELECT once.retire_outbox(%s)", yesterday)
    with refused("23514"):
        emit_on(db.connect(), yesterday)


def test_a_keeper_may_retire_a_day_and_decide_nothing(db, yesterday):
    if not db.rows("SELECT 1 FROM pg_roles WHERE rolname = 'keeper'"):
        db.execute("CREATE ROLE keeper LOGIN; GRANT once_keeper TO keeper")
    keeper = db.connect("keeper")
    assert run(keeper, "SELECT once.retire_outbox(%s)", yesterday) == [(0,)]
    with refused("42501"):
        run(keeper, "SELECT once.drop_relay('r', 'why')")
