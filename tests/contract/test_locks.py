# SPDX-License-Identifier: PostgreSQL
"""Locks without a row: on a name, until the transaction ends, with a bounded wait."""

import pytest

from harness.postgres import wait_until

from .calls import Once, in_threads, refused, run


def test_a_lock_is_held_until_the_transaction_ends(db):
    first, second = (db.connect(isolation="READ COMMITTED") for _ in range(2))
    assert run(first, "SELECT once.try_lock('settlement')") == [(True,)]
    assert run(first, "SELECT once.try_lock('settlement')") == [(True,)]
    assert run(second, "SELECT once.try_lock('settlement')") == [(False,)]
    assert run(second, "SELECT once.try_lock('another')") == [(True,)]
    first.commit()
    assert run(second, "SELECT once.try_lock('settlement')") == [(True,)]


def test_lock_waits_no_longer_than_it_was_told(db):
    first, second = (db.connect(isolation="READ COMMITTED") for _ in range(2))
    run(first, "SELECT once.try_lock('r')")
    for wait in ("0", "50 milliseconds", "0.4 milliseconds"):
        assert run(second, "SELECT once.lock('r', %s::interval)", wait) == [(False,)]
    assert run(second, "SELECT once.lock('free', '1 second')") == [(True,)]


def test_lock_gets_the_lock_when_its_holder_ends(db):
    first, second = (db.connect(isolation="READ COMMITTED") for _ in range(2))
    run(first, "SELECT once.try_lock('r')")
    watcher = db.connect()

    def let_go():
        wait_until(
            lambda: run(
                watcher,
                "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'",
                second.get_backend_pid(),
            ),
            "the second transaction to wait",
        )
        first.commit()

    assert in_threads([lambda: run(second, "SELECT once.lock('r', '30 seconds')"), let_go])[0] == [(True,)]
    assert run(first, "SELECT once.try_lock('r')") == [(False,)]


@pytest.mark.parametrize("set_to", ["0", "7s"])
def test_the_callers_lock_timeout_is_as_it_was_afterwards(db, set_to):
    first, second = (db.connect(isolation="READ COMMITTED") for _ in range(2))
    run(second, f"SET lock_timeout = '{set_to}'")
    run(first, "SELECT once.try_lock('r')")
    run(second, "SELECT once.lock('r', '10 ms') AS a, once.lock('free', '1 s') AS b")
    assert run(second, "SHOW lock_timeout") == [(set_to,)]


def test_a_lock_has_nothing_to_do_with_an_intent_of_the_same_name(db):
    first, second = (db.connect(isolation="READ COMMITTED") for _ in range(2))
    run(first, "SELECT once.try_lock('k') AS a, once.try_lock('orders') AS b")
    assert Once(second).start(key="k").verdict == "proceed"


@pytest.mark.parametrize(
    "call",
    [
        "once.try_lock('')",
        "once.try_lock(NULL)",
        "once.lock('', '1 s')",
        "once.lock('r', NULL)",
        "once.lock('r', '-1 s')",
        "once.lock('r', '25 hours')",
        "once.lock('r', '1 month')",
    ],
)
def test_a_lock_without_a_name_or_with_an_odd_wait_is_refused(db, call):
    with refused("22023"):
        db.execute(f"SELECT {call}")


def test_a_deadlock_of_two_locks_ends_in_40p01_for_one_of_them(db):
    first, second = (db.connect(isolation="READ COMMITTED") for _ in range(2))
    run(first, "SET deadlock_timeout = '50ms'; SELECT once.try_lock('a')")
    run(second, "SET deadlock_timeout = '50ms'; SELECT once.try_lock('b')")

    def cross(connection, resource):
        try:
            return run(connection, "SELECT once.lock(%s, '20 seconds')", resource)[0][0]
        except Exception as error:  # pylint: disable=broad-except
            connection.rollback()
            return error.pgcode

    results = in_threads([lambda: cross(first, "b"), lambda: cross(second, "a")])
    assert sorted(map(str, results)) == ["40P01", "True"]
