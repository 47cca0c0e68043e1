# SPDX-License-Identifier: PostgreSQL
"""The contract keeps itself running: a call that finds a day without a partition makes it, and the first calls of a day make the next one.
No daemon is needed, whatever the transaction is that the call is made in."""

import threading
import time

import pytest

from harness.postgres import wait_until

from .calls import LEVELS, PRINT, Once, code_of, in_threads, refused, run, shorten_horizon, today, uuid7_days_ago
from .test_buckets import DOORS, code_at
from .test_roles import make_logins

EVENT = {"topic": "t", "payload": "{}"}
ALL_DOORS = {**DOORS, "emit": lambda once, key: once.emit(**EVENT)}
FORBID = """
    CREATE SEQUENCE tries;
    CREATE FUNCTION forbid() RETURNS event_trigger LANGUAGE plpgsql AS $$
    BEGIN PERFORM pg_catalog.nextval('public.tries'); RAISE EXCEPTION 'no DDL here'; END $$;
    CREATE EVENT TRIGGER forbid ON ddl_command_start WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION forbid()"""


def forget(db, first, *, last=3):
    """As if the last call had been made when `first` (0: today, 1: tomorrow) was no day ahead yet."""
    day = today(db)
    for ahead in range(first, last):
        db.execute(f"DROP TABLE IF EXISTS once.intent_d{day + ahead}, once.outbox_d{day + ahead}")
    db.execute(f"SELECT once._set_today({day - 1})")


def ahead(db):
    """How far the partitions of intents and of events reach, counted from today; None where today's is missing."""
    day, reach = today(db), []
    for parent in ("intent", "outbox"):
        days = {row.day for row in db.rows(f"SELECT d AS day FROM once._days('once.{parent}', '{parent}_d') AS d")}
        reach.append(next((n for n in range(10) if day + n + 1 not in days), None) if day in days else None)
    return tuple(reach)


def call(db, door, connection, number=0):
    key = uuid7_days_ago(db, 0, number)
    if door == "emit":
        return code_of(lambda: Once(connection).emit(**EVENT))
    return code_at(door, Once(connection), key)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("door", ALL_DOORS)
def test_a_call_on_a_day_without_a_partition_makes_it_and_the_next(db, door, level):
    forget(db, 0)
    assert ahead(db) == (None, None)
    connection = db.connect(isolation=level)
    assert call(db, door, connection) is None
    connection.commit()
    assert ahead(db) == (1, 1)
    assert call(db, door, connection, 1) is None
    connection.commit()
    assert db.value("SELECT once._today()") == today(db)


@pytest.mark.parametrize("door", ALL_DOORS)
def test_the_first_call_of_a_day_makes_the_next(db, door):
    forget(db, 1)
    assert ahead(db) == (0, 0)
    connection = db.connect()
    assert call(db, door, connection) is None
    assert ahead(db) == (1, 1) and db.value("SELECT once._today()") == today(db)


def test_nothing_is_made_twice_a_day(db):
    """What has been noticed once is not looked for again: the hot path pays nothing."""
    forget(db, 1)
    connection = db.connect()
    assert call(db, "finish", connection) is None
    day = today(db)
    db.execute(f"DROP TABLE once.intent_d{day + 1}, once.outbox_d{day + 1}")
    for number, door in enumerate(ALL_DOORS):
        assert call(db, door, connection, 10 + number) is None
    assert ahead(db) == (0, 0)


def test_a_key_of_a_past_day_without_a_partition_makes_it(db):
    day = today(db) - 2
    db.execute(f"ALTER TABLE once.intent DETACH PARTITION once.intent_d{day}; DROP TABLE once.intent_d{day}")
    assert Once(db.connect()).finish_new(key=uuid7_days_ago(db, 2)) == 1
    assert db.rows("SELECT tableoid::regclass::text AS leaf FROM once.intent") == [(f"once.intent_d{day}",)]
    assert not db.value("SELECT to_regclass(%s) IS NOT NULL", f"once.outbox_d{day}")


def test_a_closed_day_is_not_made_anew_not_even_from_an_old_snapshot(db):
    shorten_horizon(db)
    key = uuid7_days_ago(db, 2)
    old = db.connect(isolation="REPEATABLE READ")
    run(old, "SELECT count(*) FROM once.setting")
    db.value("SELECT once.retire_day(%s)", today(db) - 2)
    for door in DOORS:
        assert code_at(door, Once(db.connect()), key) == "P4041"
    for door in DOORS:
        run(old, "SAVEPOINT before")
        assert code_at(door, Once(old), key) in ("40001", "P4041", "P4098"), door
        run(old, "ROLLBACK TO before")
    old.rollback()
    assert db.value("SELECT to_regclass(%s)", f"once.intent_d{today(db) - 2}") is None


def test_today_stays_closed_where_a_clock_that_was_ahead_has_closed_it(db):
    """Events still need a partition of today, and that of intents does not come with it."""
    day, key = today(db), uuid7_days_ago(db, 0)
    db.execute("UPDATE once.setting SET closed_before = %s", day + 1)
    db.execute(f"DROP TABLE once.intent_d{day}, once.outbox_d{day}")
    db.execute(f"SELECT once._set_today({day + 20})")
    connection = db.connect()
    assert call(db, "emit", connection) is None
    assert db.value("SELECT to_regclass(%s)", f"once.intent_d{day}") is None
    for door in DOORS:
        assert code_at(door, Once(connection), key) == "P4041", door


@pytest.mark.parametrize("what", ["transaction", "savepoint"])
def test_a_day_goes_with_the_transaction_that_made_it_and_the_next_call_makes_it_again(db, what):
    forget(db, 0)
    connection = db.connect(isolation="READ COMMITTED")
    run(connection, "SAVEPOINT before")
    assert call(db, "emit", connection) is None
    assert call(db, "finish", connection) is None
    run(connection, "ROLLBACK TO before" if what == "savepoint" else "ROLLBACK")
    assert ahead(db) == (None, None)
    assert call(db, "emit", connection) is None
    assert call(db, "finish", connection) is None
    connection.commit()
    assert ahead(db) == (1, 1)
    assert db.value("SELECT count(*) FROM once.outbox") == db.value("SELECT count(*) FROM once.intent") == 1


def test_a_transaction_that_may_not_write_makes_nothing(db):
    forget(db, 1)
    connection = db.connect(default_transaction_read_only="on")
    assert Once(connection).start(key=uuid7_days_ago(db, 0)).verdict == "proceed"
    forget(db, 0)
    assert code_of(lambda: Once(connection).start(key=uuid7_days_ago(db, 0))) == "P4098"
    assert Once(connection).peek(key=uuid7_days_ago(db, 0)).verdict == "absent"
    assert ahead(db) == (None, None)


def test_where_ddl_is_forbidden_calls_go_on_while_their_day_is_there_and_one_a_second_tries(db):
    forget(db, 1)
    db.execute(FORBID)
    connection = db.connect()
    began = time.monotonic()
    for number, door in enumerate([*ALL_DOORS] * 4):
        assert call(db, door, connection, number) is None
    assert db.value("SELECT last_value FROM tries") <= time.monotonic() - began + 2
    forget(db, 0)
    for door in ALL_DOORS:
        assert call(db, door, connection, 99) == "P4098", door
    db.execute("DROP EVENT TRIGGER forbid")
    wait_until(lambda: call(db, "emit", connection) is None, "a second to pass")
    assert ahead(db) == (1, 1)


@pytest.mark.parametrize("door", ALL_DOORS)
def test_a_caller_needs_no_right_of_its_own(db, door):
    make_logins(db)
    forget(db, 0)
    connection = db.connect("app", default_tablespace="", search_path="public")
    assert call(db, door, connection) is None
    owners = db.rows("SELECT DISTINCT relowner = (SELECT relowner FROM pg_class WHERE oid = 'once.intent'::regclass) AS same, relacl FROM pg_class"
                     " WHERE relname ~ '^(intent|outbox)_d[1-9]'")
    assert owners == [(True, None)] and ahead(db) == (1, 1)


def test_a_day_is_made_as_the_contract_does_whatever_the_caller_has_set(db):
    forget(db, 0)
    settings = {"default_tablespace": "pg_default", "lock_timeout": "1", "session_replication_role": "replica", "search_path": ""}
    assert call(db, "claim", db.connect(**settings)) is None
    made = db.rows("SELECT DISTINCT reltablespace::text AS place, reloptions::text AS options, relreplident::text AS identity FROM pg_class"
                   " WHERE relname IN (%s, %s, %s) ORDER BY 3", *(f"{parent}_d{today(db) + n}" for parent, n in (("intent", 1), ("intent", 0), ("outbox", 0))))
    assert made == [("0", "{fillfactor=50}", "d"), ("0", None, "f")]


def test_many_at_once_make_a_day_once_and_none_of_them_fails(db):
    forget(db, 0)
    connections = [db.connect() for _ in range(8)]
    for each in connections:
        run(each, "SELECT count(*) FROM once.intent, once.outbox")       # know the tables as they are
    together = threading.Barrier(len(connections))

    def attempt(number):
        together.wait(60)
        return [call(db, door, connections[number], 100 * number + n) for n, door in enumerate(ALL_DOORS)]

    def until_made(number):
        """P4098 may be tried again as it is."""
        codes = attempt(number)
        return set(codes) - {None, "P4098"}

    assert in_threads([lambda n=n: until_made(n) for n in range(len(connections))], 120) == [set()] * len(connections)
    assert ahead(db) == (1, 1)
    assert [call(db, door, connections[0], 9000 + n) for n, door in enumerate(ALL_DOORS)] == [None] * len(ALL_DOORS)


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("door", ALL_DOORS)
def test_who_needs_the_day_that_an_open_transaction_makes_waits_a_little_and_gets_p4098(db, door, end):
    forget(db, 0)
    maker, other = db.connect(isolation="READ COMMITTED"), db.connect()
    assert call(db, "emit", maker) is None
    began = time.monotonic()
    assert call(db, door, other, 1) == "P4098"
    assert time.monotonic() - began < 30
    run(maker, end)
    assert call(db, door, other, 2) is None
    assert ahead(db) == (1, 1)


@pytest.mark.parametrize("call_many", ["claim_many", "receive_many"])
def test_a_batch_waits_in_vain_but_once(db, call_many):
    """And not for half a second with each of its elements."""
    forget(db, 0)
    maker, other = db.connect(isolation="READ COMMITTED"), db.connect(statement_timeout="30s")
    assert call(db, "emit", maker) is None
    keys = [uuid7_days_ago(db, 0, n) for n in range(200)] + ["plain"]
    if call_many == "claim_many":
        rows = [(row.verdict, row.error_code) for row in Once(other).claim_many(key=keys)]
    else:
        rows = run(other, "SELECT verdict, code FROM once.receive_many('c', %s, NULL, %s, birthdays => true)", keys, [PRINT] * 201)
    assert rows == [("invalid", "P4098")] * 200 + [("new_claim" if call_many == "claim_many" else "process", None)]
    maker.rollback()
    assert call(db, "claim", other, 1) is None


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_who_needs_the_day_goes_on_when_the_transaction_that_makes_it_ends_meanwhile(db, end):
    forget(db, 0)
    maker, other = db.connect(isolation="READ COMMITTED"), db.connect()
    assert call(db, "emit", maker) is None

    def end_when_it_waits():
        wait_until(lambda: db.value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted") == 1, "the other to wait")
        run(maker, end)

    assert in_threads([lambda: call(db, "emit", other), end_when_it_waits]) == [None, None]
    assert ahead(db) == (1, 1)


@pytest.mark.parametrize("prepared", [False, True], ids=["open", "prepared"])
def test_who_only_notices_that_tomorrow_is_missing_does_not_wait_for_a_transaction_that_makes_it(db, prepared):
    forget(db, 1)
    maker, other = db.connect(isolation="READ COMMITTED"), db.connect(lock_timeout="1", statement_timeout="30s")
    assert call(db, "emit", maker) is None
    if prepared:
        run(maker, "PREPARE TRANSACTION 'makes a day'")
    for number, door in enumerate(ALL_DOORS):
        assert call(db, door, other, number) is None
    assert ahead(db) == (0, 0)
    if prepared:
        db.execute("COMMIT PREPARED 'makes a day'")
    else:
        maker.commit()
    assert ahead(db) == (1, 1)


def test_nobody_waits_for_the_locks_of_a_transaction_that_has_made_days(db):
    """For hours it may have them: others read, write, start and finish in all other days."""
    forget(db, 0)
    maker, other = db.connect(isolation="READ COMMITTED"), db.connect(lock_timeout="2s")
    assert call(db, "emit", maker) is None
    once = Once(other)
    for key in ("plain", uuid7_days_ago(db, 1)):
        assert once.finish_new(key=key) == 1
        assert once.start(key=key).verdict == "replay_success"
    assert once.claim(key="leased").verdict == "new_claim" and once.complete(key="leased", fence=1)
    assert run(other, "SELECT count(*) FROM once.intent, once.setting") == [(3,)]
    run(other, "SELECT * FROM once.metrics()")
    maker.rollback()


@pytest.mark.parametrize("door", ALL_DOORS)
def test_a_lock_in_the_way_holds_nobody_up_for_long(db, door):
    """DETACH CONCURRENTLY, ANALYZE, or another one of once.intent: it is not waited for without bound."""
    forget(db, 1)
    holder, connection = db.connect(isolation="READ COMMITTED"), db.connect()
    run(holder, "LOCK TABLE ONLY once.intent IN SHARE UPDATE EXCLUSIVE MODE")
    assert call(db, door, connection) is None
    assert ahead(db) == (0, 0)
    holder.rollback()
    wait_until(lambda: call(db, "emit", connection) is None and ahead(db) == (1, 1), "tomorrow to be made")


def test_a_batch_of_several_days_makes_those_that_are_missing(db):
    forget(db, 0)
    lost = "; ".join(f"DROP TABLE once.intent_d{today(db) - n}" for n in range(1, 5))
    db.execute(lost)
    once = Once(db.connect())
    keys = [uuid7_days_ago(db, n % 5, n) for n in range(10)] + ["plain"]
    assert [row.verdict for row in once.claim_many(key=keys)] == ["new_claim"] * 11
    forget(db, 0)
    db.execute(lost)
    received = "SELECT verdict, code FROM once.receive_many('c', %s, NULL, %s, birthdays => true)"
    assert run(once.connection, received, keys, [PRINT] * 11) == [("process", None)] * 11
    assert ahead(db) == (1, 1)


def test_the_keeper_does_not_need_to_make_days_but_may(db):
    forget(db, 0)
    maker = db.connect(isolation="READ COMMITTED")
    assert call(db, "emit", maker) is None
    with refused("55P03"):
        run(db.connect(lock_timeout="10"), "SELECT once.add_days()")
    maker.commit()
    assert db.value("SELECT once.add_days()") == 2 and ahead(db) == (2, 2)
