# SPDX-License-Identifier: PostgreSQL
"""The transaction that an effect is given: it cannot end it, not behind pgonce's back either, and it has none afterwards. In every driver."""

import asyncio
import time

import psycopg
import psycopg_pool
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

import pgonce
import pgonce.aio

from drivers import NAMES, AsyncDoor, alchemy_url, opened
from .effects import INSERT


@pytest.fixture(scope="module", params=NAMES)
def door(request, server):
    db = server.database()
    with opened(request.param, db.url) as made:
        made.name, made.db = request.param, db
        yield made


def effect(door, *steps):
    """steps: functions of the transaction, which may give something to await."""
    if isinstance(door, AsyncDoor):

        async def awaited(tx):
            for step in steps:
                made = step(tx)
                if hasattr(made, "__await__"):
                    await made
            return 201, "done"

        return awaited

    def plain(tx):
        for step in steps:
            step(tx)
        return 201, "done"

    return plain


def executing(door, sql):
    return lambda tx: door.execute(tx, sql)


def test_begin_is_refused_too_and_the_refusal_names_the_way_out(door):
    with pytest.raises(pgonce.UsageError, match="mode='lease'"):
        door.run("words", "begin", 1, effect(door, executing(door, INSERT.format("begin")), executing(door, "BEGIN")))
    assert door.db.effects("begin") == 0


@pytest.mark.parametrize("name", ["commit", "rollback"])
def test_the_drivers_own_commit_is_refused(door, name):
    if door.name == "asyncpg":
        pytest.skip("its connections have none")
    with pytest.raises(pgonce.UsageError):
        door.run("own", name, 1, effect(door, executing(door, INSERT.format(name)), lambda tx: getattr(tx, name)()))
    assert door.db.effects(name) == 0


def behind(door, *texts):
    """Sent where no guard sees it."""

    def send(tx):
        if door.name.startswith("psycopg"):
            for text in texts:
                tx.pgconn.exec_(text.encode())
            return None
        if door.name == "asyncpg":

            async def each():
                for text in texts:
                    await tx._con._protocol.query(text, None)

            return each()

        def raw(session):
            cursor = session.connection().connection.cursor()
            for text in texts:
                cursor.execute(text)

        return tx.run_sync(raw) if isinstance(door, AsyncDoor) else raw(tx)

    return send


@pytest.mark.parametrize("texts", [("COMMIT",), ("COMMIT", "BEGIN")], ids="+".join)
def test_an_effect_whose_transaction_is_gone_is_in_doubt_and_never_runs_again(door, texts):
    if door.name == "sqlalchemy-async-asyncpg":
        pytest.skip("its cursor does not take them")
    key = f"gone-{len(texts)}"
    work = effect(door, executing(door, INSERT.format(key)), behind(door, *texts))
    for _ in range(3):
        with pytest.raises(pgonce.InDoubt) as doubt:
            door.run("gone", key, 1, work)
        assert doubt.value.outcome_unknown
    assert door.db.effects(key) == 1
    assert door.db.rows("SELECT state::text, error_code FROM once.intent WHERE scope = 'gone' AND key = %s", key) == [("in_doubt", "transaction_ended")]


def test_a_transaction_that_is_kept_refuses_afterwards(door):
    kept = []
    door.run("kept", "first", 1, effect(door, kept.append))

    def late(tx):
        return door.execute(kept[0], INSERT.format("late"))

    def late_alone():
        late(None)

    async def late_alone_async():
        await late(None)

    with pytest.raises(Exception, match="is over|released back"):
        door.loop.wait(late_alone_async()) if isinstance(door, AsyncDoor) else late_alone()
    with pytest.raises(Exception, match="is over|released back"):
        door.run("kept", "second", 1, effect(door, executing(door, INSERT.format("second")), late))
    assert (door.db.effects("late"), door.db.effects("second")) == (0, 0)
    assert door.run("kept", "second", 1, effect(door, executing(door, INSERT.format("second")))).status == 201


def test_psycopgs_own_ways_work_within_an_effect(db):
    with psycopg_pool.ConnectionPool(db.url, min_size=1, max_size=1, open=True, kwargs={"row_factory": psycopg.rows.dict_row}) as pool:

        def work(tx):
            assert isinstance(tx, psycopg.Connection)
            with tx.cursor() as cursor, tx.cursor("named") as named:
                assert cursor.execute(psycopg.sql.SQL("SELECT {} AS a").format(psycopg.sql.Literal(1))).fetchone() == {"a": 1}
                assert named.execute("SELECT 2 AS b").fetchall() == [{"b": 2}]
                with cursor.copy("COPY effect (key) FROM STDIN") as copy:
                    copy.write_row(["copied"])
                with pytest.raises(pgonce.UsageError):
                    cursor.executemany("COMMIT", [()])
            with tx.transaction():
                tx.execute("SELECT 1")
            return psycopg.sql.Identifier("a").as_string(tx)

        assert pgonce.run(pool, "ways", "one", 1, work).text == '"a"'
        with pool.connection() as tx:
            assert type(tx) is psycopg.Connection and "pgonce_guard" not in tx.__dict__
    assert db.effects("copied") == 1


# ---- pools ----


def test_a_blocking_pool_is_refused_by_the_asynchronous_door_and_the_other_way_round(db):
    engine = sqlalchemy.create_engine(alchemy_url("psycopg", db.url))
    with psycopg_pool.ConnectionPool(db.url, min_size=0, max_size=1, open=True) as pool, psycopg.connect(db.url) as connection:
        for blocking in (pool, sessionmaker(engine), connection):
            with pytest.raises(pgonce.UsageError, match="blocking"):
                pgonce.aio.Once(blocking)
        with pytest.raises(pgonce.UsageError, match="blocking"):
            asyncio.run(pgonce.aio.run(lambda: psycopg.connect(db.url), "kinds", "one", 1, pytest.fail))
    with pytest.raises(pgonce.UsageError, match="sessionmaker"):
        pgonce.Once(engine)
    with pytest.raises(pgonce.UsageError, match="asynchronous"):
        pgonce.Once(psycopg_pool.AsyncConnectionPool(db.url, min_size=0, max_size=1, open=False))
    with pytest.raises(pgonce.UsageError, match="asynchronous"):
        pgonce.run(lambda: psycopg.AsyncConnection.connect(db.url), "kinds", "one", 1, pytest.fail)
    engine.dispose()


@pytest.mark.parametrize("name", ["sqlalchemy-psycopg", "sqlalchemy-async-asyncpg"])
def test_a_full_pool_of_sqlalchemys_is_named(db, name):
    engine = sqlalchemy.create_engine if name == "sqlalchemy-psycopg" else create_async_engine
    made = engine(alchemy_url(name.split("-")[-1], db.url), pool_size=1, max_overflow=0, pool_timeout=0.3)
    found = []

    def blocking():
        def nested(tx):
            with pytest.raises(pgonce.PoolFull) as full:
                pgonce.run(sessionmaker(made), "full", f"second-{name}", 1, pytest.fail)
            found.append(str(full.value))

        pgonce.run(sessionmaker(made), "full", f"first-{name}", 1, nested)
        made.dispose()

    async def awaited():
        async def nested(tx):
            with pytest.raises(pgonce.PoolFull) as full:
                await pgonce.aio.run(async_sessionmaker(made), "full", f"second-{name}", 1, pytest.fail)
            found.append(str(full.value))

        await pgonce.aio.run(async_sessionmaker(made), "full", f"first-{name}", 1, nested)
        await made.dispose()

    blocking() if name == "sqlalchemy-psycopg" else asyncio.run(awaited())
    assert len(found) == 1 and "the session's pool is full" in found[0]


@pytest.mark.parametrize("name", ["psycopg", "psycopg-async", "asyncpg"])
def test_a_pool_that_is_full_is_waited_for_as_long_as_the_call_may_take_and_named(db, name):
    with opened(name, db.url, size=1) as door:
        found = []
        if hasattr(door.pool, "timeout"):
            door.pool.timeout = 300  # psycopg's own patience
        began = time.monotonic()

        def nested(tx):
            call = pgonce.aio.run if isinstance(door, AsyncDoor) else pgonce.run
            return call(door.pool, "full", f"second-{name}", 1, lambda tx: None, deadline=0.3)

        def catching(tx):
            try:
                nested(tx)
            except pgonce.PoolFull as full:
                found.append(str(full))

        async def catching_async(tx):
            try:
                await nested(tx)
            except pgonce.PoolFull as full:
                found.append(str(full))

        assert door.run("full", f"first-{name}", 1, catching_async if isinstance(door, AsyncDoor) else catching).state == "succeeded"
    assert len(found) == 1 and "the pool of 1 is full" in found[0] and "mode='lease'" in found[0]
    assert time.monotonic() - began < 200
