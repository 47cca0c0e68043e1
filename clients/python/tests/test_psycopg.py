# SPDX-License-Identifier: PostgreSQL
"""What the client does itself with a connection of psycopg, by libpq: one write and one wait each for what opens and what closes a transaction."""

import asyncio

import psycopg
import psycopg_pool
import pytest

import pgonce
import pgonce.aio

from .effects import INSERT, Stepper


FORGET = "DO $$DECLARE s record; BEGIN FOR s IN SELECT name FROM pg_prepared_statements WHERE name LIKE 'pgonce%' LOOP EXECUTE 'DEALLOCATE ' || s.name; END LOOP; END$$"


def effect_of(key, sql="SELECT 1"):
    runs = []

    def effect(tx):
        runs.append(1)
        tx.execute(INSERT.format(key))
        tx.execute(sql)
        return 201, "done"

    return runs, effect


def pooled(db, work, kind=psycopg_pool.AsyncConnectionPool, **options):
    """work(pool), with one connection."""

    async def main():
        async with kind(db.url, min_size=1, max_size=1, open=False, **options) as pool:
            await pool.wait()
            return await work(pool)

    return asyncio.run(main())


@pytest.mark.parametrize("threshold", [None, 0, 5])
def test_a_run_waits_twice_and_makes_no_task(db, threshold):
    async def work(pool):
        made = []

        def task(loop, coroutine, **options):
            made.append(coroutine)
            return asyncio.Task(coroutine, loop=loop, **options)

        async def run(number):
            return await pgonce.aio.run(pool, "waits", f"{threshold}-{number}", b"1", lambda tx: "done")

        for number in range(8):  # prepared by then, and the salt is known
            await run(number)
        asyncio.get_running_loop().set_task_factory(task)
        stepper = Stepper(run("counted"), None)
        await stepper
        asyncio.get_running_loop().set_task_factory(None)
        return stepper.turns, len(made)

    assert pooled(db, work, kwargs={"prepare_threshold": threshold}) == (2, 0)


@pytest.mark.parametrize("threshold", [None, 0, 5])
def test_statements_are_prepared_by_the_connections_threshold(db, threshold):
    with psycopg.connect(db.url, prepare_threshold=threshold) as tx:
        for number in range(7):
            pgonce.run(tx, "prepared", f"{threshold}-{number}", b"1", lambda tx: "done")
        found = tx.execute("SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE 'SELECT once.finish%'").fetchone()[0]
    assert found == (0 if threshold is None else 1)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_prepared_statement_that_is_gone_is_no_failure(db, asynchronous):
    """Somebody deallocated it before the call, or the effect does: then the effect is taken back, and runs again."""
    key = f"gone-{asynchronous}"
    if asynchronous:

        async def work(pool):
            await pgonce.aio.run(pool, "gone", f"{key}-0", b"1", lambda tx: "done")
            async with pool.connection() as tx:
                await tx.execute("DEALLOCATE ALL")
            await pgonce.aio.run(pool, "gone", f"{key}-1", b"1", lambda tx: "done")

        pooled(db, work, kwargs={"prepare_threshold": 0})
    else:
        with psycopg.connect(db.url, prepare_threshold=0) as tx:
            pgonce.run(tx, "gone", f"{key}-0", b"1", lambda tx: "done")
            tx.execute("DEALLOCATE ALL")
            tx.commit()
            pgonce.run(tx, "gone", f"{key}-1", b"1", lambda tx: "done")
        with psycopg_pool.ConnectionPool(db.url, min_size=1, max_size=1, open=True, kwargs={"prepare_threshold": 0}) as pool:
            runs, effect = effect_of(key, FORGET)
            pgonce.run(pool, "gone", f"{key}-2", b"1", effect)
            answer = pgonce.run(pool, "gone", key, b"1", effect)
            assert answer.status == 201 and len(runs) in (2, 3)
            assert db.effects(key) == 2
            assert pgonce.run(pool, "gone", key, b"1", effect).replayed


def test_text_with_a_character_that_postgresql_refuses_is_an_error_and_the_connection_is_good(db):
    with psycopg_pool.ConnectionPool(db.url, min_size=1, max_size=1, open=True) as pool:
        for bad, error in (("a\0b", psycopg.DataError), ("a\ud800b", UnicodeEncodeError)):
            with pool.connection() as tx:
                pid = tx.info.backend_pid
            with pytest.raises(error):
                pgonce.run(pool, "odd", bad, b"1", lambda tx: None)
            with pytest.raises(error):
                pgonce.run(pool, "odd", "good", b"1", lambda tx, bad=bad: (201, bad))
            with pool.connection() as tx:
                assert tx.info.backend_pid == pid
    assert db.value("SELECT count(*) FROM once.intent WHERE scope = 'odd'") == 0


def test_another_client_encoding_changes_nothing(db):
    with psycopg.connect(db.url, client_encoding="latin1") as tx:
        assert pgonce.run(tx, "encoded", "key", "é", lambda tx: (201, "ça va")).text == "ça va"
    with psycopg.connect(db.url) as tx:
        again = pgonce.run(tx, "encoded", "key", "é", lambda tx: (201, "no"))
    assert again.replayed and again.text == "ça va"


def test_a_connection_begins_as_it_is_set_to(db):
    with psycopg.connect(db.url) as tx:
        tx.isolation_level, tx.deferrable = psycopg.IsolationLevel.REPEATABLE_READ, True
        answer = pgonce.run(tx, "set", "one", b"1", lambda tx: tx.execute("SELECT current_setting('transaction_isolation') || current_setting('transaction_deferrable')").fetchone()[0])
        assert answer.text == "repeatable readon"
        tx.isolation_level, tx.deferrable, tx.read_only = None, None, True
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            pgonce.run(tx, "set", "two", b"1", lambda tx: None)


def test_a_connection_in_pipeline_mode_or_in_a_transaction_is_refused(db):
    """In that mode the effect's errors come late, and a BEGIN within a transaction begins nothing."""
    with psycopg.connect(db.url) as tx:
        source = pgonce.Once(tx)
        with tx.pipeline(), pytest.raises(pgonce.UsageError):
            source.run("modes", "one", b"1", lambda tx: None)
        tx.execute("SELECT 1")
        with pytest.raises(pgonce.UsageError):
            source.run("modes", "two", b"1", lambda tx: None)
        tx.rollback()
        assert not source.run("modes", "three", b"1", lambda tx: None).replayed


@pytest.mark.parametrize("word", ["commit", "rollback"])
def test_an_effect_that_ends_its_transaction_is_refused_and_the_connection_is_good_afterwards(db, word):
    async def work(pool):
        async def effect(tx):
            await tx.execute(INSERT.format(f"ends-{word}"))
            await getattr(tx, word)()

        with pytest.raises(pgonce.UsageError):
            await pgonce.aio.run(pool, "ends", word, 1, effect)
        async with pool.connection() as tx:
            await tx.execute(INSERT.format(f"after-{word}"))
            await getattr(tx, word)()

    pooled(db, work)
    assert db.effects(f"ends-{word}") == 0 and db.effects(f"after-{word}") == int(word == "commit")


def test_a_transaction_within_the_effect_is_a_savepoint(db):
    with psycopg.connect(db.url) as tx:

        def effect(tx):
            with tx.transaction(force_rollback=True):
                tx.execute(INSERT.format("within-undone"))
            with tx.transaction():
                tx.execute(INSERT.format("within"))

        pgonce.run(tx, "within", "one", b"1", effect)
    assert (db.effects("within"), db.effects("within-undone")) == (1, 0)


def test_cancellations_with_each_turn_of_the_loop_do_not_stop_a_commit(db):
    """As anyio cancels: again and again until the task ends. COMMIT takes its time here."""
    db.rows("""CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN PERFORM pg_sleep(0.3); RETURN NULL; END$$;
        CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON effect DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION slow()""")

    async def work(pool):
        async def effect(tx):
            await tx.execute(INSERT.format("again-and-again"))
            return 201, "done"

        async def run():
            return await pgonce.aio.run(pool, "cancel", "again-and-again", 1, effect)

        counted = Stepper(pgonce.aio.run(pool, "cancel", "counted", 1, effect), None)
        await counted
        turns, cancels = [], []

        class Last(Stepper):
            def __await__(self):
                send, value = self.coroutine.send, None
                while True:
                    try:
                        future = send(value)
                    except StopIteration as end:
                        return end.value
                    turns.append(1)
                    send, value = self.coroutine.send, None
                    if len(turns) == 3:  # start, the effect's statement, and now finish and COMMIT

                        def cancel(task):
                            if not task.done():
                                task.cancel()
                                cancels.append(1)
                                asyncio.get_running_loop().call_soon(cancel, task)

                        asyncio.get_running_loop().call_soon(cancel, asyncio.current_task())
                    try:
                        value = yield future
                    except BaseException as raised:
                        send, value = self.coroutine.throw, raised

        async def cancelled():
            return await Last(run(), None)

        with pytest.raises(asyncio.CancelledError):
            await asyncio.ensure_future(cancelled())
        assert counted.turns >= 3 and len(cancels) > 1
        return (await run()).replayed

    try:
        assert pooled(db, work) is True
        assert db.effects("again-and-again") == 2
    finally:
        db.rows("DROP FUNCTION slow CASCADE")


def test_a_pool_that_waits_while_it_takes_a_connection_back_gets_it_whatever_is_cancelled(db):
    class Slow(psycopg_pool.AsyncConnectionPool):
        async def putconn(self, conn):
            await asyncio.sleep(0)
            await super().putconn(conn)
            await asyncio.sleep(0)

    async def work(pool):
        async def attempt(key, turns):
            stepper = Stepper(pgonce.aio.run(pool, "slow", key, 1, lambda tx: "done"), turns)

            async def run():
                try:
                    return await stepper
                except asyncio.CancelledError:
                    return None

            return await asyncio.ensure_future(run()), stepper.turns

        _, turns = await attempt("counted", None)
        for turn in range(1, turns + 1):
            await attempt(f"slow-{turn}", turn)
            assert pool.get_stats()["pool_available"] == 1, turn
        return turns

    assert pooled(db, work, Slow) > 2
