# SPDX-License-Identifier: PostgreSQL
"""The same as blocking.py for asyncio: pgonce.aio over a pool of asyncpg. A lease that is lost cancels what is done under it."""

import asyncio
import json
import uuid

import asyncpg
import pgonce
from pgonce import aio

from common import DEADLINE_S, DEFINITE, Ended, NotNow, answered, code_of, event_of, fresh, given, leave_at, received, refused, stored

ADVANCE = "SELECT body, step FROM torture.advance($1, $2, $3, $4, $5, 'python')"
WRITE = "SELECT torture.write($1, $2, $3, $4, $5, 'python', $6, $7)"


def values_of(order):
    return [order[name] for name in ("tenant", "scope", "key", "payload", "attempt")]


async def pause(ms):
    await asyncio.sleep(ms / 1000)


class Door:
    def __init__(self, pool):
        self.pool = pool

    @staticmethod
    async def advance(order, tx):
        """What an order is about, in a transaction: the bytes of its answer."""
        said = json.loads(order["payload"])
        leave_at(order, "begun")
        await pause(order["before_ms"])
        if order["end"] == "retry":
            raise NotNow
        body, step = await tx.fetchrow(ADVANCE, *values_of(order))
        for nth in range(1, said["events"] + 1):
            topic, event, named = event_of(order, said, step, nth)
            await aio.emit(tx, topic, event, **named)
        if order["swallow"]:
            try:
                await tx.fetch("SELECT 1/0")
            except asyncpg.PostgresError:
                pass
        await pause(order["after_ms"])
        leave_at(order, "written")
        return body

    async def receive(self, order):
        if order["attempt"] % 2 == 0:
            named = {"tenant": order["tenant"], "isolation": order["isolation"], "deadline": DEADLINE_S}
            try:
                verdict = await aio.consume(self.pool, order["scope"], order["key"], order["payload"].encode(), lambda tx: self.advance(order, tx), **named)
            except Exception as error:  # pylint: disable=broad-except
                return refused(error)
            leave_at(order, "done")
            return received(verdict)
        committing = False
        try:
            async with self.pool.acquire() as tx:
                own = tx.transaction(isolation=order["isolation"].replace(" ", "_"))
                await own.start()
                try:
                    verdict = await aio.receive(tx, order["scope"], order["key"], order["payload"].encode(), tenant=order["tenant"])
                    if verdict:
                        await self.advance(order, tx)
                except BaseException:
                    await own.rollback()
                    raise
                committing = True
                await own.commit()
        except Exception as error:  # pylint: disable=broad-except
            if committing and not DEFINITE.match(getattr(error, "sqlstate", None) or ""):
                return {"verdict": "unknown", "code": code_of(error)}
            return refused(error)
        leave_at(order, "done")
        return received(verdict)

    async def transaction(self, order):
        async def effect(tx):
            if order["neighbour"] == "second":
                async with self.pool.acquire():
                    pass
            body = await self.advance(order, tx)
            if order["neighbour"] == "commit":
                await tx.execute("COMMIT")
            if order["end"] == "final":
                raise pgonce.FinalFailure("as ordered", status=422, body=str(uuid.uuid4()), code="torture")
            return 201, given(order["way"], body)

        named = {"tenant": order["tenant"], "isolation": order["isolation"], "deadline": DEADLINE_S}
        try:
            return stored(await aio.run(self.pool, order["scope"], order["key"], order["payload"].encode(), effect, **named))
        except Exception as error:  # pylint: disable=broad-except
            return refused(error)

    async def leased(self, order):
        named = {"tenant": order["tenant"], "owner": f"attempt {order['attempt']}", "deadline": DEADLINE_S}
        passed = set()
        try:
            async with aio.claim(self.pool, order["scope"], order["key"], order["payload"].encode(), **named) as held:
                passed.add("claimed")
                return stored(held.answer, "replay_success") if held.replayed else await self.work(order, held, passed)
        except Ended as ended:
            return ended.args[0]
        except Exception as error:  # pylint: disable=broad-except
            answer = refused(error)
            if "effect" in passed:
                return {"verdict": "unknown", "code": code_of(error)}
            # Its claim may have been granted, and the answer lost; or its lease is lost.
            return answer | {"loose": True} if answer["verdict"] == "failed" else answer

    async def work(self, order, held, passed):
        """Under a claim."""
        leave_at(order, "claimed")
        await pause(order["before_ms"])
        odd = order["attempt"] % 2
        try:
            if order["end"] == "retry":
                if not odd or not await held.release():
                    await held.fail(True)
                return {"verdict": "failed", "code": "retryable"}
            if order["end"] == "final":
                body = str(uuid.uuid4()).encode()
                await held.fail(False, (422, body), code="torture", message="as ordered")
                return fresh(422, body)
            if order["doubt_ms"]:
                await held.fail(None)
                await pause(order["doubt_ms"])
        except pgonce.OnceError as error:
            if order["end"] == "final" and isinstance(error, pgonce.OutcomeUnknown):
                raise Ended({"verdict": "unknown", "code": code_of(error)}) from error
            raise Ended({"verdict": "failed", "code": code_of(error), "loose": error.sqlstate != "P4011"}) from error
        passed.add("effect")
        try:
            body = await self.pool.fetchval(WRITE, *values_of(order), held.fence, order["mode"] == "verified")
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, asyncio.TimeoutError) as error:
            unknown = Ended({"verdict": "unknown", "code": code_of(error)})
            if not DEFINITE.match(getattr(error, "sqlstate", None) or ""):
                raise unknown from error
            try:
                await held.fail(True)
            except pgonce.OnceError:
                raise unknown from error
            return {"verdict": "failed", "code": code_of(error)}
        leave_at(order, "done")
        await pause(order["after_ms"])
        if order["doubt_ms"] and odd:
            return {"verdict": "unknown", "code": "doubt"}
        try:
            await held.complete((201, body if order["way"] == "body" else body.decode()))
        except pgonce.OnceError as error:  # somebody else has decided meanwhile: what is stored says the next attempt
            raise Ended({"verdict": "unknown", "code": code_of(error)}) from error
        return fresh(201, body)


async def pool_of(dsn, size):
    said = dict(pair.split("=") for pair in dsn.split())
    return await asyncpg.create_pool(
        host=said["hostaddr"], port=int(said["port"]), database=said["dbname"], user=said["user"], ssl=False, min_size=0, max_size=size, timeout=3,
        command_timeout=DEADLINE_S,
    )  # fmt: skip


async def serve(lines, dsn):
    door = Door(await pool_of(dsn, 4))
    loop = asyncio.get_running_loop()
    print("ready", flush=True)
    while line := await loop.run_in_executor(None, lines.readline):
        order = json.loads(line)
        do = {"transaction": door.transaction, "receive": door.receive}.get(order["mode"], door.leased)
        print(answered(await do(order)), flush=True)
