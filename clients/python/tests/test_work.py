# SPDX-License-Identifier: PostgreSQL
"""Work elsewhere, as Python has it: a task that is cancelled when its lease is lost, causes of doubts, results, decorated functions. What all clients share is in
spec/cases/faults.json."""

import asyncio

import psycopg
import psycopg_pool
import pytest

import pgonce
import pgonce.aio


def lose_lease(db, key):
    """Another attempt takes over, before a heartbeat can come between."""
    with psycopg.connect(db.dsn) as other:
        other.execute("UPDATE once.intent SET lease_until = now() - interval '1 second' WHERE key = %s", (key,))
        other.execute("SELECT once.claim('lease', %s, once.fingerprint('1'::jsonb), lease => '1 hour', takeover => true)", (key,))


def test_a_task_is_cancelled_when_its_lease_is_lost(db):
    seen = []

    async def main():
        async with psycopg_pool.AsyncConnectionPool(db.url, min_size=0, max_size=4, open=False) as pool:
            with pytest.raises(pgonce.LeaseLost):
                async with pgonce.aio.claim(pool, "lease", "task", 1, lease=3):
                    await asyncio.to_thread(lose_lease, db, "task")
                    try:
                        await asyncio.sleep(300)
                    except asyncio.CancelledError:
                        seen.append("cancelled")
                        raise
            await asyncio.sleep(0)  # this task itself is not cancelled
            return "went on"

    assert asyncio.run(main()) == "went on" and seen == ["cancelled"]


def test_work_that_raises_is_in_doubt_with_its_error_as_the_cause(db):
    with psycopg_pool.ConnectionPool(db.url, min_size=0, max_size=4, open=True) as pool:

        @pgonce.Once(pool).effect(scope="lease", key="raises")
        def charge():
            raise ValueError("no")

        with pytest.raises(pgonce.InDoubt) as first:
            charge()
    assert isinstance(first.value.__cause__, ValueError) and first.value.answer.error_message == "no"


@pytest.mark.parametrize("given", [object(), float("nan"), 10**5000], ids=["an object", "no number", "too many digits"])
def test_work_whose_result_is_no_json_is_in_doubt_for_this_reason(db, given):
    with psycopg_pool.ConnectionPool(db.url, min_size=0, max_size=4, open=True) as pool:
        once = pgonce.Once(pool)
        runs, name = [], type(given).__name__

        @once.effect(scope="lease", key="no-json-{name}")
        def charge(name):
            runs.append(name)
            return given

        for _ in range(2):
            with pytest.raises(pgonce.InDoubt) as caught:
                charge(name)
            assert caught.value.answer.error_code == "answer_not_stored"
        assert len(runs) == 1


def test_a_decorated_function_runs_once(db):
    runs = []

    async def main():
        async with psycopg_pool.AsyncConnectionPool(db.url, min_size=0, max_size=4, open=False) as pool:

            @pgonce.aio.Once(pool).effect(scope="tools", key="mail-{to}")
            async def mail(to, text):
                runs.append(to)
                assert pgonce.current_claim().fence == 1
                return {"sent": to, "pair": (1, 2)}

            assert await mail("a", "hi") == {"sent": "a", "pair": [1, 2]} == await mail("a", text="hi")
            with pytest.raises(pgonce.Mismatch):
                await mail("a", "other")

    asyncio.run(main())
    assert runs == ["a"]
