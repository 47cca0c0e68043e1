# SPDX-License-Identifier: PostgreSQL
"""One endpoint three times: as it is, with pgonce, and with asgi-idempotency-header on Redis."""

import asyncio
import os

import uvicorn
import uvloop
from fastapi import Depends, FastAPI
from idempotency_header_middleware import IdempotencyHeaderMiddleware
from idempotency_header_middleware.backends import RedisBackend
from pgonce.asgi import OnceMiddleware, transaction
from psycopg_pool import AsyncConnectionPool
from redis.asyncio import Redis

INSERT = "INSERT INTO orders (item, amount) VALUES (%s, %s) RETURNING id"
pool = AsyncConnectionPool("", min_size=16, max_size=16, open=False)
bare, protected, peer = FastAPI(), FastAPI(), FastAPI()


async def order(tx, body):
    row = await (await tx.execute(INSERT, (body["order"], body["amount"]))).fetchone()
    return {"order": row[0], "item": body["order"]}


@bare.post("/bare", status_code=201)
@peer.post("/redis", status_code=201)
async def place(body: dict):
    async with pool.connection() as tx:
        return await order(tx, body)


@protected.post("/pgonce", status_code=201)
async def place_once(body: dict, tx=Depends(transaction)):
    return await order(tx, body)


protected.add_middleware(OnceMiddleware, pool=pool, scope="orders", tenant=None)
peer.add_middleware(IdempotencyHeaderMiddleware, backend=RedisBackend(redis=Redis(unix_socket_path=os.environ["REDIS_SOCKET"])))
applications = {"/bare": bare, "/pgonce": protected, "/redis": peer}


async def application(scope, receive, send):
    await applications[scope["path"]](scope, receive, send)


async def main():
    async with pool:
        config = uvicorn.Config(application, port=int(os.environ["PORT"]), lifespan="off", access_log=False, timeout_keep_alive=60)
        await uvicorn.Server(config).serve()


asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
asyncio.run(main())
