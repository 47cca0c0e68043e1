# SPDX-License-Identifier: PostgreSQL
"""The orders of the torture (documented in tests/torture/languages.py), by any driver of drivers.py. All calls are the client's; only the effects are the agent's own SQL.
What is a coroutine here awaits nothing if the driver is a blocking one, and is then run at once."""

import asyncio
import inspect
import itertools
import json
import re
import time
import uuid

import psycopg
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

import pgonce
import pgonce.aio

from common import DEADLINE_S, DEFINITE, Ended, NotNow, answered, code_of, event_of, fresh, given, leave_at, received, refused, stored

ADVANCE = "SELECT body, step FROM torture.advance(%s, %s, %s, %s, %s, 'python')"
WRITE = "SELECT torture.write(%s, %s, %s, %s, %s, 'python', %s, %s)"


async def settle(value):
    return await value if inspect.isawaitable(value) else value


def at_once(coroutine):
    """The result of a coroutine that awaits nothing."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise RuntimeError("it waits")


class Entered:
    """A context manager of either kind, as an asynchronous one."""

    def __init__(self, manager):
        self.manager = manager

    async def __aenter__(self):
        return await settle(getattr(self.manager, "__aenter__", None)() if hasattr(self.manager, "__aenter__") else self.manager.__enter__())

    async def __aexit__(self, *raised):
        return await settle(self.manager.__aexit__(*raised) if hasattr(self.manager, "__aexit__") else self.manager.__exit__(*raised))


def numbered(sql, form):
    numbers = itertools.count(1)
    return re.sub("%s", lambda _: f"{form}{next(numbers)}", sql)


async def execute(tx, sql, values=()):
    """A statement by the driver's own means; its first row."""
    if isinstance(tx, (Session, AsyncSession)):
        result = await settle(tx.execute(sqlalchemy.text(numbered(sql, ":v")), {f"v{number}": value for number, value in enumerate(values, 1)}))
        return result.fetchone() if result.returns_rows else None
    if hasattr(tx, "fetchrow"):
        return await tx.fetchrow(numbered(sql, "$"), *values)
    if hasattr(tx, "in_atomic_block"):  # Django's
        with tx.cursor() as cursor:
            cursor.execute(sql, values)
            return cursor.fetchone() if cursor.description else None
    cursor = await settle(tx.execute(sql, values))
    return await settle(cursor.fetchone()) if cursor.description else None


def values_of(order):
    return [order[name] for name in ("tenant", "scope", "key", "payload", "attempt")]


class Door:
    """client: pgonce, or pgonce.aio. second: a context manager that takes another connection of the same pool."""

    def __init__(self, client, second):
        self.client, self.second = client, second
        self.is_async = client is pgonce.aio

    async def pause(self, ms):
        await settle(asyncio.sleep(ms / 1000) if self.is_async else time.sleep(ms / 1000))

    async def advance(self, order, tx):
        """What an order is about, in a transaction: the bytes of its answer."""
        said = json.loads(order["payload"])
        leave_at(order, "begun")
        await self.pause(order["before_ms"])
        if order["end"] == "retry":
            raise NotNow
        if order["neighbour"] == "second":
            async with Entered(self.second()) as second:
                await execute(second, "SELECT 1")
        body, step = await execute(tx, ADVANCE, values_of(order))
        for nth in range(1, said["events"] + 1):
            topic, event, named = event_of(order, said, step, nth)
            await settle(self.client.emit(tx, topic, event, **named))
        if order["swallow"]:
            try:
                await execute(tx, "SELECT 1/0")
            except Exception:  # pylint: disable=broad-except  # each driver has its own
                pass
        await self.pause(order["after_ms"])
        leave_at(order, "written")
        if order["neighbour"] == "commit":
            await execute(tx, "COMMIT")
        return bytes(body)


class Orders(Door):
    def __init__(self, door, dsn):
        self.door, self.pool, self.dsn = door, door.pool, dsn
        super().__init__(door.client, door.transaction)

    def answer(self, order):
        """As a line."""
        do = {"transaction": self.transaction, "receive": self.receive}.get(order["mode"], self.leased)(order)
        return answered(asyncio.run_coroutine_threadsafe(do, self.door.loop.loop).result() if self.is_async else at_once(do))

    def effect(self, do):
        """A coroutine function of a transaction, as the client calls it."""
        return do if self.is_async else lambda tx: at_once(do(tx))

    async def receive(self, order):
        """A message: by consume, or by hand in a transaction of the consumer's own."""
        name, payload = (order["scope"], order["key"]), order["payload"].encode()
        if order["attempt"] % 2 == 0:
            named = {"tenant": order["tenant"], "isolation": order["isolation"], "deadline": DEADLINE_S}
            try:
                verdict = await settle(self.client.consume(self.pool, *name, payload, self.effect(lambda tx: self.advance(order, tx)), **named))
            except Exception as error:  # pylint: disable=broad-except
                return refused(error)
            leave_at(order, "done")
            return received(verdict)
        committing = False
        try:
            async with Entered(self.door.transaction()) as tx:
                await execute(tx, f"SET TRANSACTION ISOLATION LEVEL {order['isolation']}")
                verdict = await settle(self.client.receive(tx, *name, payload, tenant=order["tenant"]))
                if verdict:
                    await self.advance(order, tx)
                committing = True
        except Exception as error:  # pylint: disable=broad-except
            if committing and not DEFINITE.match(sqlstate_of(error)):
                return {"verdict": "unknown", "code": code_of(error)}
            return refused(error)
        leave_at(order, "done")
        return received(verdict)

    async def transaction(self, order):
        async def effect(tx):
            body = await self.advance(order, tx)
            if order["end"] == "final":
                raise pgonce.FinalFailure("as ordered", status=422, body=str(uuid.uuid4()), code="torture")
            return 201, given(order["way"], body)

        named = {"tenant": order["tenant"], "isolation": order["isolation"], "deadline": DEADLINE_S}
        try:
            return stored(await settle(self.client.run(self.pool, order["scope"], order["key"], order["payload"].encode(), self.effect(effect), **named)))
        except Exception as error:  # pylint: disable=broad-except
            return refused(error)

    async def leased(self, order):
        named = {"tenant": order["tenant"], "owner": f"attempt {order['attempt']}", "deadline": DEADLINE_S}
        passed = set()
        try:
            async with Entered(self.client.claim(self.pool, order["scope"], order["key"], order["payload"].encode(), **named)) as held:
                passed.add("claimed")
                return stored(held.answer, "replay_success") if held.replayed else await self.work(order, held, passed)
        except Ended as ended:
            return ended.args[0]
        except Exception as error:  # pylint: disable=broad-except
            answer = refused(error)
            if "effect" in passed:
                return {"verdict": "unknown", "code": code_of(error)}
            # Its claim may have been granted, and the answer lost; or its lease is lost, which cancels a coroutine.
            return answer | {"loose": True} if answer["verdict"] == "failed" and (self.is_async or not passed) else answer

    async def work(self, order, held, passed):
        """Under a claim."""
        leave_at(order, "claimed")
        await self.pause(order["before_ms"])
        odd = order["attempt"] % 2
        try:
            if order["end"] == "retry" or not self.is_async and held.lost.is_set():
                if not odd or not await settle(held.release()):
                    await settle(held.fail(True))
                return {"verdict": "failed", "code": "retryable"}
            if order["end"] == "final":
                body = str(uuid.uuid4()).encode()
                await settle(held.fail(False, (422, body), code="torture", message="as ordered"))
                return fresh(422, body)
            if order["doubt_ms"]:
                await settle(held.fail(None))
                await self.pause(order["doubt_ms"])
        except pgonce.OnceError as error:
            if order["end"] == "final" and isinstance(error, pgonce.OutcomeUnknown):
                raise Ended({"verdict": "unknown", "code": code_of(error)}) from error
            raise Ended({"verdict": "failed", "code": code_of(error), "loose": error.sqlstate != "P4011"}) from error
        passed.add("effect")
        try:
            body = await self.write(order, held.fence)
        except (psycopg.Error, OSError) as error:
            unknown = Ended({"verdict": "unknown", "code": code_of(error)})
            if not DEFINITE.match(sqlstate_of(error)):
                raise unknown from error
            try:
                await settle(held.fail(True))
            except pgonce.OnceError:
                raise unknown from error
            return {"verdict": "failed", "code": code_of(error)}
        leave_at(order, "done")
        await self.pause(order["after_ms"])
        if order["doubt_ms"] and odd:
            return {"verdict": "unknown", "code": "doubt"}
        try:
            await settle(held.complete((201, body if order["way"] == "body" else body.decode())))
        except pgonce.OnceError as error:  # somebody else has decided meanwhile: what is stored says the next attempt
            raise Ended({"verdict": "unknown", "code": code_of(error)}) from error
        return fresh(201, body)

    async def write(self, order, fence):
        """The effect elsewhere, on a connection that has nothing to do with the client's."""
        connect = (psycopg.AsyncConnection if self.is_async else psycopg.Connection).connect
        async with Entered(await settle(connect(self.dsn, autocommit=True))) as connection:
            return bytes((await execute(connection, WRITE, (*values_of(order), fence, order["mode"] == "verified")))[0])


def sqlstate_of(error):
    """'' if there is none. SQLAlchemy wraps the driver's own."""
    error = getattr(error, "orig", None) or error
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or ""
