# SPDX-License-Identifier: PostgreSQL
"""examples/webhook.sql: a delivery is registered once, and an id with other content is noticed."""

import psycopg2
import pytest

REGISTER = "SELECT webhook.register(%s, %s, %s, %s)"


def test_a_delivery_is_registered_once_with_its_event(shop, app):
    assert app(REGISTER, "acme", "d1", "invoice.paid", '{"invoice": 7}') == "registered"
    assert [app(REGISTER, "acme", "d1", "invoice.paid", '{ "invoice":7 }') for _ in range(3)] == ["duplicate"] * 3
    assert shop.value("SELECT count(*) FROM webhook.delivery") == 1
    assert shop.row("SELECT topic, payload ->> 'id' AS id FROM once.outbox") == ("webhook.received", "d1")


@pytest.mark.parametrize("kind, payload", [("invoice.paid", '{"invoice": 8}'), ("invoice.void", '{"invoice": 7}')])
def test_an_id_with_other_content_is_refused(shop, app, kind, payload):
    app(REGISTER, "acme", "d1", "invoice.paid", '{"invoice": 7}')
    with pytest.raises(psycopg2.Error) as raised:
        app(REGISTER, "acme", "d1", kind, payload)
    assert raised.value.pgcode == "P4050"
    assert shop.value("SELECT payload FROM webhook.delivery") == {"invoice": 7}


def test_two_providers_may_use_one_id(shop, app):
    assert app(REGISTER, "acme", "1", "a", "{}") == "registered"
    assert app(REGISTER, "other", "1", "b", "{}") == "registered"
    assert shop.value("SELECT count(*) FROM once.outbox") == 2


def test_a_rolled_back_registration_comes_again(shop, app):
    connection = shop.connect("shop_app", autocommit=False)
    connection.cursor().execute(REGISTER, ("acme", "d1", "a", "{}"))
    connection.rollback()
    assert app(REGISTER, "acme", "d1", "a", "{}") == "registered"


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_deliveries_at_once_register_once(shop, at_once, isolation):
    def register(connection, _):
        cursor = connection.cursor()
        cursor.execute(REGISTER, ("acme", "d1", "a", "{}"))
        return cursor.fetchone()[0]

    results = at_once(16, register, isolation)
    assert results.count("registered") == 1
    for result in results:
        assert result in ("registered", "duplicate") or result.pgcode in ("P4029", "40001"), result
    assert shop.value("SELECT count(*) FROM webhook.delivery") == 1
    assert shop.value("SELECT count(*) FROM once.outbox") == 1
