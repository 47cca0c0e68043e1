# SPDX-License-Identifier: PostgreSQL
"""A cancellation at every await of a call: all of it, or nothing."""

import asyncio
import contextlib

import asyncpg
import psycopg_pool
import pytest

import pgonce.aio

from .effects import INSERT, Stepper


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_a_cancellation_at_every_await_leaves_all_or_nothing(db, driver):
    """And the pool's connections are good afterwards."""

    async def main():
        async with contextlib.AsyncExitStack() as stack:
            if driver == "psycopg":
                pool = await stack.enter_async_context(psycopg_pool.AsyncConnectionPool(db.url, min_size=1, max_size=2, open=False))
            else:
                pool = await stack.enter_async_context(asyncpg.create_pool(db.url, min_size=1, max_size=2))

            async def attempt(key, turns):
                async def effect(tx):
                    await tx.execute(INSERT.format(key))
                    await asyncio.sleep(0)
                    return 201, "done"

                async def run():
                    stepper = Stepper(pgonce.aio.run(pool, "cancel", key, 1, effect), turns)
                    try:
                        return await stepper, stepper.turns
                    except asyncio.CancelledError:
                        return None, stepper.turns

                return await asyncio.ensure_future(run())

            _, turns = await attempt(f"cancel-{driver}", None)
            assert turns > 3
            cancelled = 0
            for turn in range(1, turns + 1):
                key = f"cancel-{driver}-{turn}"
                answer, _ = await attempt(key, turn)
                cancelled += answer is None
                effects = await asyncio.to_thread(db.effects, key)
                stored = await asyncio.to_thread(db.value, "SELECT count(*)::int FROM once.intent WHERE key = %s", key)
                assert effects == stored, f"cancelled at turn {turn} of {turns}: {effects} effects, {stored} outcomes"
                again, _ = await attempt(key, None)
                assert again.status == 201 and again.replayed == bool(effects)
            assert cancelled > turns // 3  # a run that finds its data there waits less often than the one that was counted

    asyncio.run(main())
