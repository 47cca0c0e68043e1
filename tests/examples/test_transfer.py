# SPDX-License-Identifier: PostgreSQL
"""examples/transfer.sql: no transfer is booked twice, none is lost, and nobody but the world owes."""

import json
from decimal import Decimal

import psycopg2
import pytest

TRANSFER = "SELECT bank.transfer(%s, %s, %s, %s)"


def balances(shop):
    return {row.account: row.balance for row in shop.rows("SELECT * FROM bank.balance")}


def persist(connection, *arguments):
    """What every client does: come again after what may be tried again."""
    while True:
        cursor = connection.cursor()
        try:
            cursor.execute(TRANSFER, arguments)
            answer = cursor.fetchone()[0]
            connection.commit()
            return answer
        except psycopg2.Error as error:
            connection.rollback()
            assert error.pgcode in ("P4029", "40001", "40P01", "55P03", "P4030"), error
            if error.pgcode == "P4030":
                return error


def test_a_transfer_is_booked_once_and_answers_the_same(shop, app):
    app(TRANSFER, "t0", "world", "ada", 100)
    first = app(TRANSFER, "t1", "ada", "bob", Decimal("30.50"))
    assert [app(TRANSFER, "t1", "ada", "bob", Decimal("30.50")) for _ in range(3)] == [first] * 3
    assert balances(shop) == {"world": -100, "ada": Decimal("69.50"), "bob": Decimal("30.50")}
    assert json.loads(first)["transfer"] == "t1"
    assert shop.value("SELECT count(*) FROM once.outbox WHERE topic = 'transfer.booked'") == 2


def test_a_payer_without_funds_is_a_final_failure(shop, app):
    app(TRANSFER, "t0", "world", "ada", 10)
    assert json.loads(app(TRANSFER, "t1", "ada", "bob", 11)) == {"error": "insufficient funds"}
    with pytest.raises(psycopg2.Error) as raised:
        app(TRANSFER, "t1", "ada", "bob", 11)
    assert raised.value.pgcode == "P4030"
    assert shop.value("SELECT response_status FROM once.peek('transfers', 't1')") == 402
    assert balances(shop) == {"world": -10, "ada": 10}


@pytest.mark.parametrize(
    "payer, payee, amount",
    [
        ("ada", "ada", 1),
        ("ada", "bob", 0),
        ("ada", "bob", -1),
        ("ada", "", 1),
        ("ada", "bob", Decimal("0.001")),
        ("ada", "bob", None),
        ("ada", "bob", Decimal("NaN")),
    ],
)
def test_what_is_no_transfer_is_a_final_failure(shop, app, payer, payee, amount):
    answer = app(TRANSFER, "t1", payer, payee, amount)
    assert json.loads(answer) == {"error": "not a transfer"}
    assert balances(shop) == {}


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_opposite_transfers_at_once_neither_deadlock_nor_lose_money(shop, app, at_once, isolation):
    app(TRANSFER, "start-ada", "world", "ada", 100)
    app(TRANSFER, "start-bob", "world", "bob", 100)

    def move(connection, number):
        payer, payee = ("ada", "bob") if number % 2 else ("bob", "ada")
        return [persist(connection, f"t{number % 6}-{step}", payer, payee, 1) for step in range(5)]

    results = at_once(12, move, isolation)
    assert all(isinstance(answer, bytes) for answers in results for answer in answers), results
    assert balances(shop) == {"world": -200, "ada": 100, "bob": 100}
    assert shop.value("SELECT count(*) FROM bank.entry") == 2 * (2 + 30)  # each key was attempted by two clients
    assert shop.value(
        "SELECT bool_and(last = entries) FROM (SELECT max(number) AS last, count(*) AS entries"
        "  FROM bank.entry GROUP BY account) AS a"
    )


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_many_payments_at_once_never_overdraw(shop, app, at_once, isolation):
    app(TRANSFER, "start", "world", "ada", 5)
    answers = at_once(16, lambda connection, number: persist(connection, f"t{number}", "ada", "bob", 1), isolation)
    booked = [answer for answer in answers if isinstance(answer, bytes) and b"insufficient" not in answer]
    assert len(booked) == 5
    assert balances(shop) == {"world": -5, "ada": 0, "bob": 5}


def test_without_the_locks_the_log_itself_refuses(shop):
    """Broken on purpose: bank.book by callers without locks. The primary key turns the race into 40001,
    never into a lost entry."""
    one, other = (shop.connect("shop_app", autocommit=False, isolation="REPEATABLE READ") for _ in range(2))
    other.cursor().execute("SELECT 1")  # its snapshot
    one.cursor().execute("SELECT bank.book('world', 'ada', 1, 'a')")
    one.commit()
    with pytest.raises(psycopg2.Error) as raised:
        other.cursor().execute("SELECT bank.book('world', 'ada', 1, 'b')")
    assert raised.value.pgcode == "40001"


def test_busy_accounts_are_said_to_be_busy(shop, app):
    holder = shop.connect("shop_app", autocommit=False)
    holder.cursor().execute("SELECT once.try_lock('account/ada')")
    with pytest.raises(psycopg2.Error) as raised:
        app("SELECT bank.transfer('t', 'world', 'ada', 1, '50 milliseconds')")
    assert raised.value.pgcode == "55P03"
    holder.rollback()
    app(TRANSFER, "t", "world", "ada", 1)
    assert balances(shop) == {"world": -1, "ada": 1}


def test_a_day_is_closed_by_one_at_a_time_and_only_once(shop, app):
    app(TRANSFER, "t", "world", "ada", 7)
    shop.execute("UPDATE bank.entry SET booked_at = booked_at - interval '2 days'")
    close = "SELECT bank.close_day('ada', (now() AT TIME ZONE 'UTC')::date - 1)"
    holder = shop.connect("shop_app", autocommit=False)
    holder.cursor().execute(close)
    assert app(close) is None  # somebody is at it
    holder.commit()
    app(TRANSFER, "later", "world", "ada", 1)
    assert app(close) == 7
    with pytest.raises(psycopg2.Error) as raised:
        app("SELECT bank.close_day('ada', (now() AT TIME ZONE 'UTC')::date)")
    assert raised.value.pgcode == "22023"
