# SPDX-License-Identifier: PostgreSQL
"""What the tests of the examples share: a database with all examples in it, and an ordinary role that may use them."""

import os
import pathlib
import threading

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


@pytest.fixture
def shop(db):
    """The database, with the examples installed twice (a second time changes nothing) and used by an ordinary role."""
    for _ in range(2):
        for path in ("orders/orders.sql", "transfer.sql", "webhook.sql"):
            db.execute((EXAMPLES / path).read_text())
    db.execute(
        "DO $$ BEGIN CREATE ROLE shop_app LOGIN IN ROLE once_app; EXCEPTION WHEN duplicate_object THEN NULL; END $$"
    )
    return db


@pytest.fixture
def app(shop):
    """Calls one function as the ordinary role, each call a transaction."""
    connection = shop.connect("shop_app")

    def call(query, *values):
        with connection.cursor() as cursor:
            cursor.execute(query, values)
            return cursor.fetchone()[0]

    return call


@pytest.fixture
def at_once(shop):
    """Runs work(connection, number) on many connections of the ordinary role at the same moment; returns what each
    returned or raised."""

    def run(count, work, isolation=None):
        connections = [shop.connect("shop_app", autocommit=False, isolation=isolation) for _ in range(count)]
        start = threading.Barrier(count)
        results = [None] * count

        def one(number):
            start.wait()
            try:
                results[number] = work(connections[number], number)
                connections[number].commit()
            except Exception as error:  # pylint: disable=broad-except
                connections[number].rollback()
                results[number] = error

        threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    return run


@pytest.fixture
def orders_example():
    """The program of the C example."""
    path = pathlib.Path(os.environ.get("PGONCE_BUILD") or ROOT / "build") / "examples/orders-example"
    if not path.exists():
        pytest.skip(f"{path} is not built")
    return path
