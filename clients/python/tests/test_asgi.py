# SPDX-License-Identifier: PostgreSQL
"""The application within the middleware: it runs in the request's own task, and its last message waits until what it says is stored, whoever sends it."""

import asyncio
import contextlib
import functools

import anyio
import psycopg_pool
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

import asyncpg
from pgonce.asgi import OnceMiddleware, transaction
from pgonce.errors import UsageError

from drivers import alchemy_url
from .effects import INSERT, reach


class Client:
    """One request by ASGI itself; what was sent, and what the call raised."""

    def __init__(self, app, key):
        self.app, self.key, self.sent = app, key, []
        self.read = False

    async def receive(self):
        if self.read:
            await asyncio.sleep(60)  # it stays
        self.read = True
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(self, message):
        self.sent.append(message)

    async def call(self):
        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "POST", "scheme": "http", "path": "/orders",
            "raw_path": b"/orders", "root_path": "", "query_string": b"", "headers": [(b"host", b"shop.test"), (b"idempotency-key", self.key.encode())],
        }  # fmt: skip
        self.read = False
        await self.app(scope, self.receive, self.send)

    @property
    def status(self):
        return self.sent[0]["status"] if self.sent else None


def served(url, endpoint, key, work=None, inner=None):
    """endpoint behind the middleware; work(client), or one call."""

    async def main():
        async with psycopg_pool.AsyncConnectionPool(url, min_size=0, max_size=2, open=False) as pool:
            routed = Starlette(routes=[Route("/orders", endpoint, methods=["POST"])])
            if inner is not None:
                routed.add_middleware(inner)
            client = Client(OnceMiddleware(routed, pool=pool, scope="asgi", tenant=None), key)
            try:
                return await (client.call() if work is None else work(client)), client
            finally:
                for _ in range(100):  # connections are back
                    stats = pool.get_stats()
                    if stats["pool_available"] == stats["pool_size"]:
                        break
                    await asyncio.sleep(0.01)
                assert stats["pool_available"] == stats["pool_size"]

    return asyncio.run(main())


async def placed(request, key, background=None):
    await (await transaction(request)).execute(INSERT.format(key))
    return JSONResponse({}, 201, background=background)


def test_the_application_runs_in_the_requests_own_task(db):
    tasks = []

    async def order(request):
        tasks.append(asyncio.current_task())
        return await placed(request, "own-task")

    async def work(client):
        tasks.append(asyncio.current_task())
        await client.call()

    _, client = served(db.url, order, "own-task", work)
    assert client.status == 201 and tasks[0] is tasks[1]


class Wrapped(BaseHTTPMiddleware):
    """Runs what is within in a task of its own."""

    async def dispatch(self, request, call_next):
        return await call_next(request)


@pytest.mark.parametrize("kind", ["stream", "wrapped", "left behind"])
def test_an_answer_that_another_task_sends_is_stored_before_it_goes_out(db, kind):
    key = f"another-{kind.split()[0]}"
    seen = []

    async def order(request):
        answer = await placed(request, key)

        async def pieces():
            yield b"one "
            await asyncio.sleep(0)
            yield b"two"

        return StreamingResponse(pieces(), 201) if kind == "stream" else answer

    async def left_behind(scope, receive, send):
        async def later():
            await (await transaction(scope)).execute(INSERT.format(key))
            await send({"type": "http.response.start", "status": 201, "headers": []})
            sending.set()
            await send({"type": "http.response.body", "body": b"one two"})

        sending = asyncio.Event()
        seen.append(asyncio.ensure_future(later()))
        await sending.wait()

    async def main(client):
        if kind == "left behind":
            client.app.app = left_behind
        await client.call()
        assert not client.sent[-1].get("more_body", False) and client.sent[-1]["type"] == "http.response.body"
        if kind == "left behind":
            await seen[0]
        first, client.sent = client.sent, []
        await client.call()
        assert (b"idempotency-replayed", b"true") in client.sent[0]["headers"]
        assert client.sent[1]["body"] == b"".join(each.get("body", b"") for each in first[1:])

    _, client = served(db.url, order, key, main, Wrapped if kind == "wrapped" else None)
    assert client.status == 201 and db.effects(key) == 1


class Catching:
    """Goes on after any exception."""

    def __init__(self, app, mails):
        self.app, self.mails = app, mails

    async def __call__(self, scope, receive, send):
        with contextlib.suppress(Exception):
            await self.app(scope, receive, send)
        self.mails.append("thank you")


@pytest.mark.parametrize("inner", [None, Wrapped, Catching])
def test_an_application_whose_answer_was_not_stored_does_not_go_on_whatever_it_catches(server, db, inner):
    key, mails = f"undone-{inner and inner.__name__}", []

    async def order(request):
        with contextlib.suppress(Exception):
            return await placed(request, key, BackgroundTask(mails.append, "thank you"))

    with server.forwarder() as forwarder:
        forwarder.ask("lose_request COMMIT")
        wrapped = functools.partial(Catching, mails=mails) if inner is Catching else inner
        _, client = served(reach("psycopg", forwarder, db), order, key, None, wrapped)
    assert (client.status, mails, db.effects(key)) == (503, [], 0)


@pytest.mark.parametrize("inner", [None, Wrapped])
def test_an_error_that_the_application_swallowed_comes_out_and_is_no_answer(db, inner):
    key = f"swallowed-{inner is None}"

    async def order(request):
        with contextlib.suppress(Exception):
            await (await transaction(request)).execute("SELECT 1 / 0")
        return JSONResponse({}, 201)

    async def work(client):
        with pytest.raises(Exception, match="not passed on"):
            await client.call()

    _, client = served(db.url, order, key, work, inner)
    assert client.sent == [] and db.value("SELECT count(*) FROM once.intent WHERE key = %s", key) == 0


def test_an_application_that_ends_without_an_answer_has_done_nothing(db):
    async def order(request):
        raise AssertionError

    async def silent(scope, receive, send):
        await (await transaction(scope)).execute(INSERT.format("silent"))

    async def work(client):
        client.app.app = silent
        with pytest.raises(Exception, match="without an answer"):
            await client.call()

    served(db.url, order, "silent", work)
    assert db.effects("silent") == 0


def test_a_client_that_cannot_be_reached_takes_nothing_back(db):
    async def order(request):
        return await placed(request, "unreachable")

    async def work(client):
        sent = client.send

        async def broken(message):
            raise OSError("the client is gone")

        client.send = broken
        with pytest.raises(OSError):
            await client.call()
        client.send = sent
        await client.call()

    _, client = served(db.url, order, "unreachable", work)
    assert (b"idempotency-replayed", b"true") in client.sent[0]["headers"] and db.effects("unreachable") == 1


@pytest.mark.parametrize("turn", range(1, 9))
def test_a_cancelled_scope_leaves_all_or_nothing(db, turn):
    """anyio cancels with each turn of the loop, from where it began on."""
    key = f"scope-{turn}"

    async def order(request):
        tx = await transaction(request)
        await asyncio.sleep(0)
        await tx.execute(INSERT.format(key))
        return JSONResponse({}, 201)

    async def work(client):
        async def cancel(scope):
            for _ in range(turn):
                await asyncio.sleep(0.0005)
            scope.cancel()

        async with anyio.create_task_group() as group:
            with anyio.CancelScope() as scope:
                group.start_soon(cancel, scope)
                await client.call()

    served(db.url, order, key, work)
    stored = db.value("SELECT count(*)::int FROM once.intent WHERE key = %s", key)
    assert db.effects(key) == stored
    _, client = served(db.url, order, key)
    assert client.status == 201 and db.effects(key) == 1


# ---- what ASGI itself has beside plain answers ----


def raw(url, key, application, work=None, extensions=None, headers=(), receive=None):
    """application(scope, receive, send, tx) behind the middleware, without a framework; what was sent."""

    async def behind(scope, receive, send):
        await application(scope, receive, send, await transaction(scope))

    async def main():
        async with psycopg_pool.AsyncConnectionPool(url, min_size=0, max_size=2, open=False) as pool:
            client = Client(OnceMiddleware(behind, pool=pool, scope="asgi", tenant=None), key)

            async def call():
                client.sent, client.read = [], False
                given = client.receive if receive is None else receive
                scope = {
                    "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "POST", "path": "/orders", "query_string": b"",
                    "headers": [(b"host", b"shop.test"), (b"idempotency-key", key.encode()), *headers],
                    "extensions": extensions or {},
                }  # fmt: skip
                await client.app(scope, given, client.send)
                return client.sent

            return [await call() for _ in range(2)] if work is None else await work(call)

    return asyncio.run(main())


@pytest.mark.parametrize("whole", [True, False])
def test_trailers_are_sent_and_an_answer_without_its_last_ones_is_not_whole(db, whole):
    key, runs = f"trailers-{whole}", []

    async def order(scope, receive, send, tx):
        runs.append("http.response.trailers" in scope["extensions"])
        await tx.execute(INSERT.format(key))
        await send({"type": "http.response.start", "status": 201, "headers": [], "trailers": True})
        await send({"type": "http.response.body", "body": b"done"})
        await send({"type": "http.response.trailers", "headers": [(b"x-a", b"1")], "more_trailers": True})
        assert db.effects(key) == 0
        if whole:
            await send({"type": "http.response.trailers", "headers": [(b"x-b", b"2")]})
            assert db.effects(key) == 1

    extensions = {"http.response.trailers": {}, "http.response.pathsend": {}}
    if not whole:
        with pytest.raises(UsageError):
            raw(db.url, key, order, extensions=extensions)
        assert db.effects(key) == 0
        return
    first, again = raw(db.url, key, order, extensions=extensions)
    assert [each["type"].rsplit(".", 1)[1] for each in first] == ["start", "body", "trailers", "trailers"] and first[0]["trailers"]
    assert [each["type"].rsplit(".", 1)[1] for each in again] == ["start", "body"] and again[1]["body"] == b"done" and not again[0].get("trailers")
    assert runs == [True] and db.effects(key) == 1


def test_a_buffer_that_is_filled_anew_after_it_was_sent_does_not_change_what_was_said(db):
    async def order(scope, receive, send, tx):
        await send({"type": "http.response.start", "status": 201, "headers": []})
        buffer = bytearray(b"one ")
        await send({"type": "http.response.body", "body": memoryview(buffer), "more_body": True})
        buffer[:] = b"two "
        await send({"type": "http.response.body", "body": buffer, "more_body": True})
        buffer[:] = b"gone"
        await send({"type": "http.response.body"})

    first, again = raw(db.url, "buffers", order)
    assert b"".join(each.get("body", b"") for each in first) == b"one two " == again[1]["body"]


def test_a_body_that_an_outer_layer_has_decompressed_is_taken_as_it_comes(db):
    read = []

    async def order(scope, receive, send, tx):
        read.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    assert raw(db.url, "decompressed", order, headers=[(b"content-length", b"1")])[1][1]["body"] == b"done" and read == [b"{}"]


def test_who_listens_until_the_client_leaves_does_not_stop_the_loop(db):
    """Where the server never waits: as FileResponse listens, in a task group."""

    async def always():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def order(scope, receive, send, tx):
        async def answer():
            await send({"type": "http.response.start", "status": 201, "headers": []})
            await send({"type": "http.response.body", "body": b"done"})
            group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(answer)
            while (await receive())["type"] != "http.disconnect":
                assert len(turns) < 1000
                turns.append(1)

    turns = []
    assert raw(db.url, "listens", order, receive=always)[0][1]["body"] == b"done"


@pytest.mark.parametrize("wrong", ["body", "trailers", "trailers start", "start trailers", "start body body"])
def test_messages_out_of_order_are_an_error_of_the_application_and_nothing_is_held_or_stored(db, wrong):
    key = "-".join(["order", *wrong.split()])

    async def order(scope, receive, send, tx):
        await tx.execute(INSERT.format(key))
        for word in wrong.split():
            await send({"type": f"http.response.{word}", "status": 201, "headers": [], **({"trailers": True} if word == "start" else {})})

    async def work(call):
        for _ in range(3):  # of a pool of two
            with pytest.raises(RuntimeError):
                await call()

    raw(db.url, key, order, work, extensions={"http.response.trailers": {}})
    assert db.effects(key) == 0 and db.value("SELECT count(*)::int FROM once.intent WHERE key = %s", key) == 0


@contextlib.asynccontextmanager
async def pool_of_one(driver, url):
    if driver == "psycopg":
        async with psycopg_pool.AsyncConnectionPool(url, min_size=0, max_size=1, open=False) as pool:
            yield pool
    elif driver == "asyncpg":
        async with asyncpg.create_pool(url, min_size=0, max_size=1) as pool:
            yield pool
    else:
        engine = create_async_engine(alchemy_url(driver.split("-")[1], url), pool_size=1, max_overflow=0)
        yield async_sessionmaker(engine)
        await engine.dispose()


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg", "sqlalchemy-asyncpg", "sqlalchemy-psycopg"])
def test_a_handler_that_is_cut_off_in_a_statement_leaves_its_pool_as_it_was(db, driver):
    key, runs = f"cut-{driver}", []
    text = sqlalchemy.text if driver.startswith("sqlalchemy") else str

    async def order(scope, receive, send):
        tx = await transaction(scope)
        await tx.execute(text(INSERT.format(key)))
        runs.append(1)
        if len(runs) <= 3:
            await tx.execute(text("SELECT pg_sleep(60)"))
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    async def main():
        async with pool_of_one(driver, db.url) as pool:
            client = Client(OnceMiddleware(order, pool=pool, scope="asgi", tenant=None, handler_ms=1000), key)
            told = []
            for _ in range(4):
                client.sent = []
                await asyncio.wait_for(client.call(), 20)
                told.append(client.status)
            return told

    assert asyncio.run(main()) == [503, 503, 503, 201] and db.effects(key) == 1
    sleeping = "SELECT count(*)::int FROM pg_stat_activity WHERE state = 'active' AND query = 'SELECT pg_sleep(60)'"
    assert db.value(sleeping) == 0
