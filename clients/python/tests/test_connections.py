# SPDX-License-Identifier: PostgreSQL
"""Connections of the drivers: lost on their way back to a pool, or in autocommit; and what is logged of a call."""

import asyncio

import asyncpg
import psycopg
import psycopg_pool
import pytest

import pgonce
import pgonce.aio

from drivers import opened
from .effects import INSERT, effect_of, reach


def test_a_connection_lost_on_its_way_back_to_the_pool_takes_nothing_back(server, db):
    """asyncpg's pool sends a statement to each connection that it gets back: what was committed before is told all the same."""
    key = "back"
    with server.forwarder() as forwarder, opened("asyncpg", reach("asyncpg", forwarder, db)) as door:
        runs, effect = effect_of(door, key)
        rules = [forwarder.ask("lose_connection_after RESET ALL")["rule"]]
        answer = door.run("faults", key, {"key": key}, effect)
        assert (answer.replayed, answer.status, len(runs)) == (False, 201, 1)
        rules.append(forwarder.ask("lose_connection_after RESET ALL")["rule"])
        held = door.claim("faults", f"{key}-claim", {"key": key})
        assert held.fence and not held.replayed
        rules.append(forwarder.ask("lose_connection_after RESET ALL")["rule"])
        assert held.complete("done")
        held.end()
        assert all(forwarder.ask(f"wait {rule}")["fired"] for rule in rules)


def test_a_key_is_never_in_an_error_or_a_log(db, caplog):
    key = "secret-key"
    caplog.set_level(0)
    with opened("psycopg", db.url) as door:
        _, effect = effect_of(door, key)
        door.run("faults", key, 1, effect)
        with pytest.raises(pgonce.Mismatch) as caught:
            door.run("faults", key, 2, effect)
    assert key not in str(caught.value) and key not in repr(caught.value)
    assert not [record for record in caplog.records if record.name.startswith("pgonce") and key in record.getMessage()]


def test_autocommit_is_refused_where_the_caller_has_no_transaction(db):
    with psycopg.connect(db.url, autocommit=True) as tx:
        for call in (lambda: pgonce.emit(tx, "t", {}), lambda: pgonce.receive(tx, "c", "m", b""), lambda: pgonce.lock(tx, "r")):
            with pytest.raises(pgonce.UsageError):
                call()
        with tx.transaction():
            assert pgonce.lock(tx, "r")

    async def main():
        tx = await asyncpg.connect(db.url)
        with pytest.raises(pgonce.UsageError):
            await pgonce.aio.emit(tx, "t", {})
        async with tx.transaction():
            assert await pgonce.aio.emit(tx, "t", {})
        await tx.close()

    asyncio.run(main())
