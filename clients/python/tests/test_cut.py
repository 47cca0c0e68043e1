# SPDX-License-Identifier: PostgreSQL
"""Blocking handlers that take too long, in a statement of theirs, by every blocking way to the database: the transaction ends, and its pool is as it was."""

import contextlib

import psycopg_pool
import pytest
import sqlalchemy
from flask import Flask, g
from sqlalchemy.orm import scoped_session, sessionmaker

from pgonce.flask import protect

from drivers import alchemy_url
from .effects import INSERT
from .test_fastapi import problem_of
from frameworks import threads
from .steps import send

HEADERS = [("Host", "shop.test"), ("Content-Type", "application/json")]


@contextlib.contextmanager
def pool_of_one(kind, url):
    if kind == "psycopg":
        with psycopg_pool.ConnectionPool(url, min_size=0, max_size=1, open=True) as pool:
            yield pool
        return
    engine = sqlalchemy.create_engine(alchemy_url(kind.split("-")[0], url), pool_size=1, max_overflow=0, pool_timeout=20)
    yield scoped_session(sessionmaker(engine)) if kind.endswith("scoped") else sessionmaker(engine)
    engine.dispose()


@pytest.mark.parametrize("kind", ["psycopg", "psycopg-sessions", "psycopg2-sessions", "psycopg-scoped", "psycopg2-scoped"])
def test_a_handler_that_is_cut_off_in_a_statement_leaves_its_pool_as_it_was(db, kind):
    key, runs = f"cut-{kind}", []
    text = str if kind == "psycopg" else sqlalchemy.text
    app = Flask(__name__)
    app.logger.disabled = True

    with pool_of_one(kind, db.url) as pool:
        if kind.endswith("scoped"):  # as Flask-SQLAlchemy does
            app.teardown_appcontext(lambda _: pool.remove())

        @app.post("/orders")
        @protect(pool, scope="cut", tenant=None, handler_ms=1500)
        def order():
            g.tx.execute(text(INSERT.format(key)))
            runs.append(1)
            if len(runs) <= 2:
                g.tx.execute(text("SELECT pg_sleep(60)"))
            return "done", 201

        with threads(app) as port:
            replies = [send(("127.0.0.1", port), "POST", "/orders", [*HEADERS, ("Idempotency-Key", key)], b"{}") for _ in range(4)]
    assert [each.status for each in replies] == [503, 503, 201, 201], [each.body for each in replies]
    assert [problem_of(each) for each in replies[:2]] == ["timed-out"] * 2 and db.effects(key) == 1
    assert db.value("SELECT count(*)::int FROM pg_stat_activity WHERE state = 'active' AND query = 'SELECT pg_sleep(60)'") == 0
