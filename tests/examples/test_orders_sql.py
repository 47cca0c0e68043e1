# SPDX-License-Identifier: PostgreSQL
"""examples/orders/orders.sql: an order, its event and its answer are stored together, once."""

import json

import psycopg2
import pytest

REQUEST = {"customer": "ada", "cart": "cart-1", "total": 25.90}
PLACE = "SELECT orders.place(%s, %s)"


def request(**changes):
    return json.dumps({**REQUEST, **changes})


def sqlstate_of(call, *arguments):
    with pytest.raises(psycopg2.Error) as raised:
        call(*arguments)
    return raised.value.pgcode


def counts(shop):
    return tuple(shop.row("""SELECT (SELECT count(*) FROM orders.customer_order) AS orders,
                                    (SELECT count(*) FROM once.outbox) AS events,
                                    (SELECT count(*) FROM once.intent) AS intents"""))


def test_an_order_is_placed_once_and_every_retry_gets_the_same_bytes(shop, app):
    first = app(PLACE, "k", request())
    assert json.loads(first)["total"] == 25.90
    assert [app(PLACE, "k", request()) for _ in range(3)] == [first] * 3
    assert counts(shop) == (1, 1, 1)
    event = shop.row("SELECT topic, payload, aggregate_id, scope, key FROM once.outbox")
    assert (
        event.payload == json.loads(first)
        and event.topic == "order.placed"
        and (event.scope, event.key) == ("orders", "k")
    )
    assert event.aggregate_id == json.loads(first)["order"]


def test_a_reordered_request_is_the_same_request(app):
    first = app(PLACE, "k", '{"customer": "ada", "cart": "c", "total": 1}')
    assert app(PLACE, "k", '{"total": 1,   "cart": "c", "customer": "ada"}') == first


def test_another_payload_under_the_key_is_a_mismatch_and_touches_nothing(shop, app):
    first = app(PLACE, "k", request())
    assert sqlstate_of(app, PLACE, "k", request(total=26)) == "P4002"
    assert app(PLACE, "k", request()) == first
    assert counts(shop) == (1, 1, 1)


def test_a_second_key_for_the_cart_gets_the_order_that_is_there(shop, app):
    first = app(PLACE, "k1", request())
    assert app(PLACE, "k2", request()) == first
    assert app(PLACE, "k2", request()) == first
    assert counts(shop) == (1, 1, 2)
    assert shop.rows("SELECT response_status, result_id FROM once.intent ORDER BY key") == [
        (201, json.loads(first)["order"]),
        (200, json.loads(first)["order"]),
    ]
    # No-op updates would show as dead tuples or new row versions.
    assert shop.value("SELECT xmax::text FROM orders.customer_order") == "0"


@pytest.mark.parametrize(
    "changes, problem",
    [
        ({"total": -1}, "the total is not between 0.01 and 1000000"),
        ({"total": "12"}, "a total is required"),
        ({"total": None}, "a total is required"),
        ({"total": 1e30}, "the total is not between 0.01 and 1000000"),
        ({"cart": ""}, "a cart is required"),
        ({"customer": None}, "a customer is required"),
    ],
)
def test_an_impossible_request_is_a_final_failure_with_an_answer(shop, app, changes, problem):
    first = app(PLACE, "k", request(**changes))
    assert json.loads(first) == {"error": problem}
    assert sqlstate_of(app, PLACE, "k", request(**changes)) == "P4030"
    stored = shop.row("SELECT * FROM once.peek('orders', 'k')")
    assert (stored.verdict, stored.response_status, stored.response_body) == ("final_failure", 422, first)
    assert counts(shop) == (0, 0, 1)


def test_a_running_attempt_makes_another_active_without_waiting(shop):
    one, other = shop.connect("shop_app", autocommit=False), shop.connect("shop_app", lock_timeout="100ms")
    one.cursor().execute(PLACE, ("k", request()))
    assert sqlstate_of(other.cursor().execute, PLACE, ("k", request())) == "P4029"
    one.rollback()
    other.cursor().execute(PLACE, ("k", request()))
    assert counts(shop) == (1, 1, 1)


def test_rollback_leaves_no_trace(shop):
    one = shop.connect("shop_app", autocommit=False)
    one.cursor().execute(PLACE, ("k", request()))
    one.rollback()
    assert counts(shop) == (0, 0, 0)


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_many_clients_with_one_key_place_one_order(shop, at_once, isolation):
    def place(connection, _):
        while True:  # what every client does: come again after P4029 and 40001
            cursor = connection.cursor()
            try:
                cursor.execute(PLACE, ("k", request()))
                answer = cursor.fetchone()[0]
                connection.commit()
                return answer
            except psycopg2.Error as error:
                connection.rollback()
                assert error.pgcode in ("P4029", "40001"), error

    answers = at_once(16, place, isolation)
    assert len(set(answers)) == 1 and isinstance(answers[0], bytes)
    assert counts(shop) == (1, 1, 1)


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_many_keys_for_one_cart_place_one_order(shop, at_once, isolation):
    def place(connection, number):
        while True:
            cursor = connection.cursor()
            try:
                cursor.execute(PLACE, (f"k{number}", request()))
                answer = cursor.fetchone()[0]
                connection.commit()
                return answer
            except psycopg2.Error as error:
                connection.rollback()
                assert error.pgcode == "40001", error

    answers = at_once(16, place, isolation)
    assert len(set(answers)) == 1 and isinstance(answers[0], bytes)
    assert counts(shop) == (1, 1, 16)
    assert shop.value("SELECT count(*) FROM once.intent WHERE response_status = 201") == 1


def test_without_an_intent_a_lost_answer_is_lost(shop, app):
    """What orders.place_bare is there to show: only the cart's uniqueness stands between a retry and a second order."""
    app("SELECT orders.place_bare(%s)", request())
    app("SELECT orders.place_bare(%s)", request())
    app("SELECT orders.place_bare(%s)", request(cart="cart-1 again"))
    assert counts(shop) == (2, 2, 0)
