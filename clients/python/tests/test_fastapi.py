# SPDX-License-Identifier: PostgreSQL
"""FastAPI and Starlette with ordinary neighbours, under uvicorn: what the protected endpoint answers, and what becomes of clients, pools and limits."""

import asyncio
import contextlib
import json
import logging
import socket
import threading
import time

import psycopg
import psycopg_pool
import pytest
from fastapi import BackgroundTasks, Depends, FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import JSONResponse, Response, StreamingResponse

import pgonce
from pgonce.asgi import OnceMiddleware, transaction

from frameworks import PATIENCE_S, loop
from .steps import Events, send
from .effects import INSERT


class Service:
    """A FastAPI application with a pool of its own. add: further options of the middleware."""

    def __init__(self, url, size=4, inner=(), outer=(), **options):
        self.pool = psycopg_pool.AsyncConnectionPool(url, open=False, min_size=0, max_size=size, timeout=PATIENCE_S)

        @contextlib.asynccontextmanager
        async def lifespan(app):
            self.loop = asyncio.get_running_loop()
            async with self.pool:
                yield

        self.app = FastAPI(lifespan=lifespan)
        for add in inner:
            add(self.app)
        self.app.add_middleware(OnceMiddleware, **{"pool": self.pool, "scope": "fastapi", "tenant": None, **options})
        for add in outer:
            add(self.app)

    @contextlib.contextmanager
    def serving(self):
        with loop(self.app) as self.port:
            yield self

    def post(self, path, key, body=b"{}", headers=()):
        return send(("127.0.0.1", self.port), "POST", path, [("Host", "shop.test"), ("Idempotency-Key", key), ("Content-Type", "application/json"), *headers], body)

    def request(self, path, key, body=b"{}"):
        """A connection that has sent the request, and reads nothing."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)
        connection.sendall(f"POST {path} HTTP/1.1\r\nHost: shop.test\r\nIdempotency-Key: {key}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        return connection

    def idle(self):
        """All connections are back, and in no transaction."""

        async def wait():
            for _ in range(1000):
                stats = self.pool.get_stats()
                if stats["pool_available"] == stats["pool_size"] and not stats.get("requests_waiting"):
                    return True
                await asyncio.sleep(0.01)
            return stats

        return asyncio.run_coroutine_threadsafe(wait(), self.loop).result(PATIENCE_S)


class Wrapped(BaseHTTPMiddleware):
    async def dispatch(self, request, call_next):
        return await call_next(request)


def problem_of(reply):
    return json.loads(reply.body)["type"].rsplit(":", 1)[-1]


def insert(tx, key):
    return tx.execute(INSERT.format(key))


# ---- half answers, half requests ----


@pytest.mark.parametrize("inner", [(), (lambda app: app.add_middleware(Wrapped),)], ids=["plain", "wrapped"])
def test_a_client_that_leaves_while_the_handler_streams_has_a_whole_answer_stored(db, inner):
    key = f"leaves-{len(inner)}"
    service = Service(db.url, inner=inner)
    begun, left = threading.Event(), threading.Event()

    @service.app.post("/orders")
    async def order(request: Request, tx=Depends(transaction)):
        await insert(tx, key)

        async def pieces():
            yield b"first "
            begun.set()
            assert await asyncio.to_thread(left.wait, PATIENCE_S)
            for _ in range(5):  # the server has noticed
                await asyncio.sleep(0.05)
                assert not await request.is_disconnected()
            yield b"and last"

        return StreamingResponse(pieces(), 201)

    with service.serving():
        with service.request("/orders", key):
            assert begun.wait(PATIENCE_S)
        left.set()
        assert service.idle() is True
        reply = service.post("/orders", key)
    assert reply.values("Idempotency-Replayed") == ["true"], reply.body
    assert reply.body == b"first and last" and db.effects(key) == 1


@pytest.mark.parametrize("inner", [(), (lambda app: app.add_middleware(Wrapped),)], ids=["plain", "wrapped"])
@pytest.mark.parametrize("kind", ["short", "broken"])
def test_an_answer_that_is_not_whole_is_not_stored(db, inner, kind):
    key = f"half-{kind}-{len(inner)}"
    service = Service(db.url, inner=inner)

    @service.app.post("/orders")
    async def order(tx=Depends(transaction)):
        await insert(tx, key)

        async def pieces():
            yield b"first "
            if kind == "broken":
                raise RuntimeError("the source broke")

        return StreamingResponse(pieces(), 201, {"Content-Length": "14"})

    with service.serving():
        assert service.post("/orders", key).status == 500
        assert service.idle() is True
    assert db.effects(key) == 0 and db.value("SELECT count(*)::int FROM once.intent WHERE key = %s", key) == 0


def test_half_a_request_is_none(db):
    service = Service(db.url)
    ran = []

    @service.app.post("/orders")
    async def order(request: Request):
        ran.append(await request.body())
        return {}

    with service.serving():
        with socket.create_connection(("127.0.0.1", service.port)) as connection:
            connection.sendall(b"POST /orders HTTP/1.1\r\nHost: shop.test\r\nIdempotency-Key: half-request\r\nContent-Length: 8\r\n\r\nhalf")
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass
        # Nothing tells that half a request was let go: another one goes after it, and then all connections are back.
        assert service.post("/orders", "after-half", b"after").status == 200
        assert service.idle() is True
        assert service.post("/orders", "half-request", b"half and half").status == 200
    assert ran == [b"after", b"half and half"]


@pytest.mark.parametrize("body", [b"amount=999999", b"amount=100"])
def test_a_body_that_an_outer_layer_has_read_is_refused_before_the_handler(db, body):
    ran = []

    class ReadsForms(BaseHTTPMiddleware):
        async def dispatch(self, request, call_next):
            await request.form()
            return await call_next(request)

    service = Service(db.url, outer=[lambda app: app.add_middleware(ReadsForms)])

    @service.app.post("/orders")
    async def order():
        ran.append(1)

    with service.serving():
        form = [("Content-Type", "application/x-www-form-urlencoded")]
        replies = [send(("127.0.0.1", service.port), "POST", "/orders", [("Host", "shop.test"), ("Idempotency-Key", "read"), *form], each) for each in (b"amount=100", body)]
    assert [each.status for each in replies] == [500, 500] and ran == []


# ---- headers, pieces, streams ----


def test_the_first_answer_is_the_handlers_own_and_every_answer_bears_the_headers_of_outer_layers(db):
    cors = lambda app: app.add_middleware(CORSMiddleware, allow_origins=["*"], expose_headers=["Idempotency-Replayed"])  # noqa: E731
    service = Service(db.url, outer=[cors])
    begun, released = threading.Event(), threading.Event()

    async def answer():
        async def pieces():
            yield b"one "
            yield b"two"

        response = StreamingResponse(pieces(), 201, {"X-Mixed-Case": "a"})
        for name, value in (("Link", "</a>"), ("Link", "</b>"), ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2"), ("Once-Effect", "done")):
            response.headers.append(name, value)
        return response

    @service.app.post("/plain")
    async def plain():
        return await answer()

    @service.app.post("/orders")
    async def order():
        return await answer()

    @service.app.post("/held")
    async def held():
        begun.set()
        assert await asyncio.to_thread(released.wait, PATIENCE_S)

    origin = [("Origin", "https://shop.test")]
    with service.serving():
        bare = send(("127.0.0.1", service.port), "PUT", "/plain", [("Host", "shop.test"), *origin], b"")
        assert bare.status == 405
        first = service.post("/orders", "outer", b"{}", origin)
        again = service.post("/orders", "outer", b"{}", origin)
        mismatch = service.post("/orders", "outer", b"[]", origin)
        malformed = service.post("/orders", '"', b"{}", origin)
        thread = threading.Thread(target=service.post, args=("/held", "held"))
        thread.start()
        assert begun.wait(PATIENCE_S)
        active = service.post("/held", "held", b"{}", origin)
        released.set()
        thread.join()
    assert [each.status for each in (first, again, mismatch, malformed, active)] == [201, 201, 422, 400, 409]
    assert all(each.values("Access-Control-Allow-Origin") == ["*"] for each in (first, again, mismatch, malformed, active))
    assert first.values("Link") == again.values("Link") == ["</a>", "</b>"] and first.values("Set-Cookie") == ["a=1", "b=2"]
    assert first.values("Transfer-Encoding") == ["chunked"] and first.values("Content-Length") == [] and first.values("Once-Effect") == []
    assert first.body == again.body == b"one two" and again.values("Set-Cookie") == []


def test_a_stream_of_events_passes_as_it_is_written_and_its_key_is_done(db):
    service, two = Service(db.url), Events()

    @service.app.post("/events")
    async def events(request: Request, tx=Depends(transaction)):
        await insert(tx, "events")

        async def stream():
            yield b"data: 1\n\n"
            assert await asyncio.to_thread(two.second.wait, PATIENCE_S)
            with pytest.raises(pgonce.UsageError):
                await insert(tx, "after")
            yield b"data: 2\n\n"

        return StreamingResponse(stream(), media_type="text/event-stream")

    def between():
        assert db.effects("events") == 1, "committed before the first event"
        assert problem_of(service.post("/events", "events")) == "too-large"

    with service.serving():
        with service.request("/events", "events") as connection:
            two.received(connection, between)
        assert service.idle() is True
    assert db.effects("after") == 0


# ---- the transaction ----


def test_a_blocking_pool_is_refused_when_the_application_starts(db):
    with psycopg_pool.ConnectionPool(db.url, open=True, min_size=0, max_size=1) as blocking:
        with pytest.raises(pgonce.UsageError, match="blocking"):
            OnceMiddleware(None, pool=blocking, scope="fastapi", tenant=None)
        service = Service(db.url, pool=lambda: blocking)
        with pytest.raises(AssertionError, match="it did not start"), service.serving():
            pass


def test_what_comes_after_the_answer_has_no_transaction(db):
    service = Service(db.url, size=1)
    found, done = [], threading.Event()

    async def late(tx, key):
        try:
            await insert(tx, key)
        except pgonce.UsageError as refused:
            found.append(str(refused))

    async def dependency(tx=Depends(transaction)):
        yield tx
        await late(tx, "of a dependency")

    async def background(request, tx):
        await late(tx, "of a task")
        try:
            await transaction(request)
        except pgonce.UsageError as refused:
            found.append(str(refused))
        done.set()

    @service.app.post("/orders")
    async def order(request: Request, tasks: BackgroundTasks, tx=Depends(dependency)):
        await insert(tx, "early")
        tasks.add_task(background, request, tx)

    with service.serving():
        assert service.post("/orders", "early").status == 200
        assert done.wait(PATIENCE_S) and service.idle() is True
    assert db.rows("SELECT key FROM effect WHERE key IN ('early', 'of a dependency', 'of a task')") == [("early",)]
    assert sum("is over" in each for each in found) >= 1 and any("has been answered" in each for each in found)


def test_a_constraint_that_fails_at_commit_is_the_applications_error_and_logged(db, caplog):
    db.rows("CREATE TABLE parent (id int PRIMARY KEY)", *())
    db.rows("CREATE TABLE child (parent int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)")
    service = Service(db.url)
    seen = []

    @service.app.exception_handler(Exception)
    async def handler(request, error):
        seen.append(error)
        return JSONResponse({"error": "ours"}, 500)

    @service.app.post("/orders")
    async def order(tx=Depends(transaction)):
        await tx.execute("INSERT INTO child VALUES (7)")
        return {}

    with caplog.at_level(logging.DEBUG, "pgonce"), service.serving():
        reply = service.post("/orders", "a-secret-key")
    assert (reply.status, json.loads(reply.body)) == (500, {"error": "ours"}) and isinstance(seen[0], psycopg.errors.ForeignKeyViolation)
    (line,) = [each.getMessage() for each in caplog.records if each.name == "pgonce" and each.levelno == logging.ERROR]
    assert "sqlstate=23503" in line and "a-secret-key" not in line


def test_refusals_are_logged_at_debug_without_the_key(db, caplog):
    service = Service(db.url)

    @service.app.post("/orders")
    async def order():
        return {}

    with caplog.at_level(logging.DEBUG, "pgonce"), service.serving():
        service.post("/orders", "a-secret-key")
        assert service.post("/orders", "a-secret-key", b"[]").status == 422
    (record,) = [each for each in caplog.records if each.name == "pgonce"]
    assert record.levelno == logging.DEBUG and record.getMessage().startswith("problem=mismatch request=") and "secret" not in record.getMessage()


def test_a_service_of_several_names_is_one(db):
    service = Service(db.url, host=False)

    @service.app.post("/orders")
    async def order():
        return {}

    with service.serving():
        for host in ("a.test", "b.test"):
            reply = send(("127.0.0.1", service.port), "POST", "/orders?a=1", [("Host", host), ("Idempotency-Key", "host")], b"")
            assert reply.status == 200
    assert reply.values("Idempotency-Replayed") == ["true"]


# ---- limits ----


@pytest.mark.parametrize("kind", ["waits", "catches", "sleeps in the database"])
def test_a_handler_that_takes_too_long_is_taken_back_and_its_client_told(db, kind):
    key = f"late-{kind[:3]}"
    service = Service(db.url, size=1, handler_ms=3000)
    first = []

    @service.app.post("/orders")
    async def order(tx=Depends(transaction)):
        await insert(tx, key)
        if not first:
            first.append(1)
            if kind == "sleeps in the database":
                await tx.execute("SELECT pg_sleep(60)")
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                if kind != "catches":
                    raise
        return {}

    with service.serving():
        reply = service.post("/orders", key)
        assert (reply.status, problem_of(reply), reply.values("Retry-After")) == (503, "timed-out", ["5"])
        assert service.idle() is True and db.effects(key) == 0
        assert service.post("/orders", key).status == 200
    assert db.effects(key) == 1


@pytest.mark.parametrize("inner", [(), (lambda app: app.add_middleware(Wrapped),)], ids=["plain", "wrapped"])
def test_what_a_handler_that_is_cut_off_has_asked_the_database_is_cancelled(server, inner):
    """Of a stream, whose task is cancelled with each turn of the loop: the driver's own cancellation does not come through."""
    db = server.database()
    service = Service(db.url, size=1, inner=inner, handler_ms=3000)

    @service.app.post("/orders")
    async def order(tx=Depends(transaction)):
        async def pieces():
            yield b"first "
            await tx.execute("SELECT pg_sleep(300)")

        return StreamingResponse(pieces())

    with service.serving():
        assert problem_of(service.post("/orders", "cut-off")) == "timed-out"
        assert service.idle() is True
        deadline = time.monotonic() + PATIENCE_S
        busy = "SELECT count(*)::int FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%pg_sleep(300)%' AND pid <> pg_backend_pid() AND state = 'active'"
        while db.value(busy) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert db.value(busy) == 0


def test_a_full_pool_is_named_and_a_client_that_has_left_takes_no_connection(db, caplog):
    service = Service(db.url, size=1)
    ran, begun, released = [], threading.Event(), threading.Event()

    @service.app.post("/orders/{name}")
    async def order(name: str):
        ran.append(name)
        if name == "first":
            begun.set()
            assert await asyncio.to_thread(released.wait, PATIENCE_S)

    async def waiting():
        return service.pool.get_stats().get("requests_waiting", 0)

    with service.serving():
        thread = threading.Thread(target=service.post, args=("/orders/first", "first"))
        thread.start()
        assert begun.wait(PATIENCE_S)
        with service.request("/orders/left", "left"):
            while asyncio.run_coroutine_threadsafe(waiting(), service.loop).result(PATIENCE_S) == 0:
                pass
        service.pool.timeout = 1.0
        reply = service.post("/orders/second", "second")
        assert (reply.status, problem_of(reply)) == (503, "unavailable")
        released.set()
        thread.join()
        assert service.post("/orders/third", "third").status == 200
    assert ran == ["first", "third"]
    (line,) = [each.getMessage() for each in caplog.records if each.name == "pgonce"]
    assert "the pool of 1 is full" in line and "mode='lease'" in line


# ---- mode lease ----


@pytest.mark.parametrize(
    "status, headers, retry",
    [
        (201, {}, 201), (402, {}, 402), (404, {}, 404), (302, {"Location": "/a"}, 302), (429, {"Retry-After": "1"}, "again"), (503, {"Retry-After": "1"}, "again"),
        (503, {}, "in-doubt"), (500, {}, "in-doubt"), (408, {}, "in-doubt"), (500, {"Once-Effect": "none"}, "again"), (201, {"Once-Effect": "unknown"}, "in-doubt"),
    ],
)  # fmt: skip
def test_in_mode_lease_an_answer_says_what_it_says_to_the_gateway(db, status, headers, retry):
    key = f"lease-{status}-{'-'.join(headers.values())}"
    service = Service(db.url, size=1, mode="lease")
    runs = []

    @service.app.post("/orders")
    async def order(request: Request):
        runs.append(1)
        with pytest.raises(pgonce.UsageError, match="lease"):
            await transaction(request)
        async with service.pool.connection() as own:  # a pool of one
            await insert(own, key)
        return Response("said", status, headers)

    with service.serving():
        first, second = service.post("/orders", key), service.post("/orders", key)
        assert service.idle() is True
    assert (first.status, first.body) == (status, b"said")
    if retry == "again":
        assert (second.status, len(runs)) == (status, 2) and second.values("Idempotency-Replayed") == []
    elif retry == "in-doubt":
        assert (second.status, problem_of(second), len(runs)) == (409, "in-doubt", 1)
    else:
        assert (second.status, second.body, len(runs)) == (retry, b"said", 1) and second.values("Idempotency-Replayed") == ["true"]


@pytest.mark.parametrize("why", ["raises", "takes too long"])
def test_in_mode_lease_a_handler_that_ends_without_an_answer_leaves_a_doubt(db, why):
    key = f"lease-{why[:3]}"
    service = Service(db.url, mode="lease", handler_ms=3000)

    @service.app.post("/orders")
    async def order():
        if why == "raises":
            raise RuntimeError("the provider hung up")
        await asyncio.sleep(60)

    with service.serving():
        first, second = service.post("/orders", key), service.post("/orders", key)
    assert first.status == (500 if why == "raises" else 409)
    assert problem_of(second) == "in-doubt"


def test_in_mode_lease_a_lease_renews_itself_while_the_handler_runs(db):
    db.rows("SELECT once.set_scope('short', lease => interval '3 seconds')")
    service = Service(db.url, scope="short", mode="lease")

    @service.app.post("/orders")
    async def order():
        first = until = await asyncio.to_thread(db.value, "SELECT lease_until FROM once.intent WHERE key = 'renewed'")
        deadline = time.monotonic() + PATIENCE_S
        while until == first and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
            until = await asyncio.to_thread(db.value, "SELECT lease_until FROM once.intent WHERE key = 'renewed'")
        return {"renewed": until > first}

    with service.serving():
        assert json.loads(service.post("/orders", "renewed").body) == {"renewed": True}
        assert service.post("/orders", "renewed").values("Idempotency-Replayed") == ["true"]


# ---- what outer layers see ----


def test_outer_layers_see_which_route_was_taken_as_without_pgonce(db):
    seen = []

    class Metrics:
        """As exporters of metrics and traces read it: after the application, and as its answer begins."""

        def __init__(self, app):
            self.app = app

        async def __call__(self, scope, receive, send):
            async def sending(message):
                seen.append(scope["route"].path if "route" in scope else None)
                await send(message)

            await self.app(scope, receive, sending)
            seen.append((scope["route"].path, scope["path_params"], scope["extensions"] == extensions[0]))

    class First:
        def __init__(self, app):
            self.app = app

        async def __call__(self, scope, receive, send):
            if scope["type"] == "http":
                scope["extensions"] = {**(scope.get("extensions") or {}), "http.response.pathsend": {}}
                extensions.append(dict(scope["extensions"]))
            await self.app(scope, receive, send)

    extensions = []
    service = Service(db.url, outer=[lambda app: app.add_middleware(Metrics), lambda app: app.add_middleware(First)])

    @service.app.post("/orders/{number}")
    async def order(number: int, request: Request, tx=Depends(transaction)):
        assert "http.response.pathsend" not in request.scope["extensions"]
        return {"number": number}

    with service.serving():
        seen.clear()
        assert service.post("/orders/7", "seen").status == 200
    assert seen[:2] == ["/orders/{number}"] * 2 and seen[2] == ("/orders/{number}", {"number": "7"}, True)


def test_the_scope_may_be_an_asynchronous_function(db):
    async def scope(request):
        return "fastapi" if request.url.path == "/orders" else None

    service = Service(db.url, scope=scope)

    @service.app.post("/orders")
    async def order(tx=Depends(transaction)):
        await insert(tx, "async-scope")
        return {}

    @service.app.post("/open")
    async def left_alone():
        return {}

    with service.serving():
        assert [service.post("/orders", "async-scope").status for _ in range(2)] == [200, 200] and service.post("/open", "none").status == 200
    assert db.effects("async-scope") == 1


def test_a_sub_application_that_is_protected_too_is_refused_before_it_runs(db):
    inner, outer = Service(db.url, scope="inner"), Service(db.url)
    ran = []

    @inner.app.post("/orders")
    async def order():
        ran.append(1)
        return {}

    inner.app.add_exception_handler(Exception, lambda request, error: Response(str(error), 500))
    outer.app.mount("/sub", inner.app)
    with outer.serving():
        reply = outer.post("/sub/orders", "sub-application")
    assert (reply.status, ran) == (500, []) and b"protected already" in reply.body
