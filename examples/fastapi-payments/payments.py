# SPDX-License-Identifier: PostgreSQL
"""A payment service. POST /charges has a card charged by a provider that is elsewhere, so it works under a lease: at most once. POST /credits adds to a wallet
in this database, in one transaction with its answer: exactly once."""

import contextlib
import os
import pathlib

import httpx
import pgonce.aio
from fastapi import Depends, FastAPI, HTTPException, Request
from pgonce.asgi import OnceMiddleware, key_of, problem, transaction
from psycopg_pool import AsyncConnectionPool
from pydantic import BaseModel, PositiveInt

PROVIDER = os.environ.get("PROVIDER_URL", "http://127.0.0.1:8090")
LEASE_S = 5  # renewed while the service lives; if it dies, other attempts wait this long

pool = AsyncConnectionPool("", max_size=20, open=False)  # PGHOST, PGDATABASE, ... say where
once = pgonce.aio.Once(pool)
provider = httpx.AsyncClient(base_url=PROVIDER, timeout=10)


class Payment(BaseModel):
    account: str
    amount: PositiveInt


@contextlib.asynccontextmanager
async def lifespan(_):
    async with pool, provider:
        async with pool.connection() as connection:
            await connection.execute(pathlib.Path(__file__).with_name("schema.sql").read_text())
        yield


app = FastAPI(lifespan=lifespan)
app.add_exception_handler(pgonce.OnceError, problem)
app.add_middleware(OnceMiddleware, pool=pool, scope=lambda request: "credits" if request.url.path == "/credits" else None, tenant=None, wait=5, handler_ms=10_000)


@once.effect(scope="charges", key="{key}", lease=LEASE_S, wait=5)
async def charge(key: str, payment: Payment):
    """Runs at most once for each key. If it ends without an answer, the intent is in doubt until reconcile.py has asked the provider."""
    try:
        answer = await provider.post("/charges", json={"reference": key, **payment.model_dump()})
    except httpx.ConnectError as away:
        raise pgonce.NotDone("the provider is away: it was not asked") from away
    if answer.status_code == 503 and "Retry-After" in answer.headers:  # a proxy's own 503 may come after it has passed the request on
        raise pgonce.NotDone("the provider takes no charges now")
    if answer.status_code == 402:
        raise pgonce.FinalFailure("declined", status=402, body=answer.json(), headers={"Content-Type": "application/json"})
    answer.raise_for_status()
    return answer.json()


@app.post("/charges", status_code=201)
async def make_charge(payment: Payment, request: Request):
    return await charge(key_of(request), payment)


@app.post("/credits", status_code=201)
async def add_credit(payment: Payment, tx=Depends(transaction)):
    found = await tx.execute("UPDATE wallet SET balance = balance + %s WHERE account = %s RETURNING balance", (payment.amount, payment.account))
    row = await found.fetchone()
    if row is None:  # a 4xx is stored too, and the transaction's work before it is undone
        raise HTTPException(404, "no such wallet")
    return {"account": payment.account, "balance": row[0]}
