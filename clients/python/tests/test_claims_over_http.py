# SPDX-License-Identifier: PostgreSQL
"""A claim behind FastAPI without the middleware: the key by the header's grammar, what it raises as the gateway's documents, and the same bytes for each
retry. And what comes after an answer that was not stored."""

import asyncio
import contextlib
import logging
import re

import fastapi
import httpx
import psycopg_pool
import pytest
from starlette.background import BackgroundTask
from starlette.responses import JSONResponse

import pgonce.aio
from pgonce import http
from pgonce.asgi import OnceMiddleware, key_of, problem, transaction

from .effects import reach


@contextlib.asynccontextmanager
async def service(url, charge):
    async with psycopg_pool.AsyncConnectionPool(url, min_size=0, max_size=4, open=False) as pool:
        once = pgonce.aio.Once(pool)
        app = fastapi.FastAPI()
        app.add_exception_handler(pgonce.OnceError, problem)
        work = once.effect(scope="claims", key="{key}")(charge)

        @app.post("/charges", status_code=201)
        async def make(amount: dict, request: fastapi.Request):
            return await work(key_of(request), amount)

        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop.test") as client:
            yield client


def told(response):
    return response.status_code, unnamed(response.content), response.headers.get("content-type")


def unnamed(body):
    """Without the name of the request."""
    return re.sub(rb'"instance":"urn:pgonce:request:[0-9a-f]{32}",', b"", body)


def document(name, more=""):
    answer = http.problem(name, more)
    return answer.status, unnamed(answer.body), "application/problem+json"


def exchange(db, charge, *requests):
    async def main():
        async with service(db.url, charge) as client:
            return [told(await client.post("/charges", headers=headers, json=body)) for headers, body in requests]

    return asyncio.run(main())


def test_a_bad_key_is_refused_as_by_the_gateway(db):
    async def charge(key, amount):
        raise AssertionError

    two = [("Idempotency-Key", "a"), ("Idempotency-Key", "a")]
    missing, twice, malformed = exchange(db, charge, ({}, {}), (two, {}), ({"Idempotency-Key": '"open'}, {}))
    assert missing == document("key-missing") and twice == document("key-repeated")
    assert malformed == document("key-malformed", "The key begins with a quote and has no closing one.")


def test_a_claim_runs_once_and_another_request_is_a_mismatch(db):
    runs = []

    async def charge(key, amount):
        runs.append(key)
        return {"charge": len(runs), "b": 1, "a": 2}

    key = {"Idempotency-Key": '"claim-1"'}
    first, again, other = exchange(db, charge, (key, {"amount": 1}), ({"Idempotency-Key": "claim-1"}, {"amount": 1}), (key, {"amount": 2}))
    assert first == again == (201, b'{"charge":1,"b":1,"a":2}', "application/json") and runs == ["claim-1"]
    assert other == document("mismatch")


def test_work_that_breaks_off_is_in_doubt_at_once_and_why_is_logged_and_stored(db, caplog):
    async def charge(key, amount):
        raise httpx.ReadTimeout("late")

    async def main():
        async with service(db.url, charge) as client:
            return [told(await client.post("/charges", headers={"Idempotency-Key": "doubt"}, json={})) for _ in range(2)]

    assert asyncio.run(main()) == [document("in-doubt")] * 2
    (record,) = [each for each in caplog.records if each.name == "pgonce"]
    assert record.getMessage().startswith("problem=in-doubt request=") and record.getMessage().endswith("error=ReadTimeout: late")
    stored = db.rows("SELECT state::text, error_code, error_message FROM once.peek('claims', 'doubt')")
    assert stored == [("in_doubt", "ReadTimeout", "late")]


def test_work_that_was_not_done_may_be_asked_for_again_and_why_is_logged(db, caplog):
    runs = []

    async def charge(key, amount):
        runs.append(key)
        if len(runs) == 1:
            raise pgonce.NotDone("the provider is away")
        return {"charge": 1}

    request = ({"Idempotency-Key": "not-done"}, {})
    first, again = exchange(db, charge, request, request)
    assert first == document("unreached") and first[0] == 502 and again[0] == 201
    (record,) = [each for each in caplog.records if each.name == "pgonce"]
    assert record.levelno == logging.ERROR and record.getMessage().endswith("error=NotDone: the provider is away")


def test_a_lease_that_is_lost_leaves_its_outcome_to_a_retry(db):
    async def charge(key, amount):
        db.rows("SELECT once.complete('claims', %s, %s, 201, response_text => '{}')", key, pgonce.current_claim().fence)
        return {"charge": 1}

    request = ({"Idempotency-Key": "lost"}, {})
    first, again = exchange(db, charge, request, request)
    assert first == document("not-stored") and again == (201, b"{}", "application/json")


def test_a_result_that_cannot_be_stored_is_a_doubt(db):
    async def charge(key, amount):
        return b"no JSON"

    request = ({"Idempotency-Key": "no-json"}, {})
    assert exchange(db, charge, request, request) == [document("in-doubt")] * 2


def test_a_mistake_in_the_use_of_the_client_is_the_applications_own_500(db):
    async def charge(key, amount):
        raise AssertionError

    async def main():
        async with psycopg_pool.AsyncConnectionPool(db.url, min_size=0, max_size=4, open=False) as pool:
            app = fastapi.FastAPI()
            app.add_exception_handler(pgonce.OnceError, problem)

            @app.post("/charges")
            async def make():
                await pgonce.aio.run(pool, "claims", "mistake", None, charge)

            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop.test") as client:
                await client.post("/charges")

    with pytest.raises(pgonce.UsageError):
        asyncio.run(main())


@pytest.mark.parametrize("body", [{"error": "declined", "a": "é"}, "declined\\x", b"\x00\xff", None])
def test_a_final_failure_is_the_same_bytes_for_the_first_caller_and_each_retry(db, body):
    async def charge(key, amount):
        raise pgonce.FinalFailure("declined", status=402, body=body, headers={"Content-Type": "application/x-own"})

    request = ({"Idempotency-Key": f"declined-{type(body).__name__}"}, {})
    async def main():
        async with service(db.url, charge) as client:
            return [await client.post("/charges", headers=request[0], json={}) for _ in range(3)]

    answers = asyncio.run(main())
    first, *retries = map(told, answers)
    assert first[0] == 402 and first[2] == "application/x-own"
    assert [first, first] == retries
    assert [each.headers.get("idempotency-replayed") for each in answers] == [None, "true", "true"]


@pytest.mark.parametrize("loss, sent", [("lose_answer", True), ("lose_request", False)])
def test_what_comes_after_the_answer_comes_only_where_the_effect_is_committed(server, db, loss, sent):
    mails = []

    async def main(url):
        async with psycopg_pool.AsyncConnectionPool(url, min_size=0, max_size=4, open=False) as pool:
            app = fastapi.FastAPI()
            app.add_middleware(OnceMiddleware, pool=pool, scope="mails", tenant=None)

            @app.post("/orders")
            async def order(tx=fastapi.Depends(transaction)):
                await tx.execute("INSERT INTO effect (key) VALUES (%s)", (loss,))
                return JSONResponse({}, 201, background=BackgroundTask(mails.append, "thank you"))

            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop.test") as client:
                return (await client.post("/orders", headers={"Idempotency-Key": loss})).status_code

    with server.forwarder() as forwarder:
        forwarder.ask(f"{loss} COMMIT")
        status = asyncio.run(main(reach("psycopg", forwarder, db)))
    assert status == (201 if sent else 503)
    assert db.value("SELECT count(*) FROM effect WHERE key = %s", loss) == len(mails) == int(sent)
