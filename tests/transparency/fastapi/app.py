# SPDX-License-Identifier: PostgreSQL
"""The handlers of cases.json in FastAPI, with the neighbours that its documentation, or Starlette's, names."""

import asyncio
import base64
import contextlib
import hashlib
import os
import pathlib
import sys
from typing import Annotated, Any

import psycopg_pool
import uvicorn
from asgi_csrf import asgi_csrf_decorator
from fastapi import BackgroundTasks, Body, Depends, FastAPI, HTTPException, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.middleware.gzip import GZipMiddleware
from pydantic import BaseModel
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.staticfiles import StaticFiles

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))

import shared  # noqa: E402
from shared import INSERT, ON, ORDER  # noqa: E402

import pgonce.asgi  # noqa: E402

pool = psycopg_pool.AsyncConnectionPool(shared.URL, open=False, min_size=0, max_size=4, kwargs={"autocommit": not ON})


@contextlib.asynccontextmanager
async def lifespan(app):
    async with pool:
        yield


app = FastAPI(lifespan=lifespan)


async def elsewhere(name):
    async with pool.connection() as own:
        await own.set_autocommit(True)
        await own.execute(INSERT, (name,))
        await own.set_autocommit(not ON)


async def tx_of(request: Request):
    """The transaction of the request; without pgonce a connection of the pool."""
    if ON:
        yield await pgonce.asgi.transaction(request)
    else:
        async with pool.connection() as own:
            yield own


Tx = Annotated[Any, Depends(tx_of)]


async def effect(request: Request, tx: Tx):
    await tx.execute(INSERT, (request.url.path.lstrip("/"),))


# ---- neighbours ----


class Inner(BaseHTTPMiddleware):
    async def dispatch(self, request, call_next):
        response = await call_next(request)
        response.headers["X-Inner"] = "one"
        return response


class Outer(BaseHTTPMiddleware):
    async def dispatch(self, request, call_next):
        response = await call_next(request)
        response.headers["X-Outer"] = "one"
        response.headers.append("Link", "</outer>; rel=help")
        response.headers["Content-Language"] = "de"
        return response


class Authenticating(BaseHTTPMiddleware):
    async def dispatch(self, request, call_next):
        if request.headers.get("Authorization") != f"Basic {base64.b64encode(b'u:p').decode()}":
            return PlainTextResponse("Unauthorized", 401, {"WWW-Authenticate": 'Basic realm="x"'})
        return await call_next(request)


class Reading(BaseHTTPMiddleware):
    async def dispatch(self, request, call_next):
        await request.body()  # or Starlette has nothing left for the next one
        await request.form()
        return await call_next(request)


class Below:
    """A neighbour of the paths below a prefix."""

    def __init__(self, app, prefix, made, **options):
        self.app, self.prefix, self.made = app, prefix, made(app, **options)

    async def __call__(self, scope, receive, send):
        below = scope["type"] == "http" and scope["path"].startswith(self.prefix)
        await (self.made if below else self.app)(scope, receive, send)


app.add_middleware(Below, prefix="/inner", made=Inner)
if ON:
    app.add_middleware(pgonce.asgi.OnceMiddleware, pool=pool, **shared.OPTIONS)
app.add_middleware(Below, prefix="/outer", made=Outer)
app.add_middleware(Below, prefix="/auth", made=Authenticating)
app.add_middleware(Below, prefix="/read-outside", made=Reading)
app.add_middleware(Below, prefix="/session", made=SessionMiddleware, secret_key="of a test")
csrf_check = asgi_csrf_decorator(signing_secret="of a test", http_header="x-csrf-token", form_input="csrf_token", always_protect={"/csrf"})
app.add_middleware(Below, prefix="/csrf", made=csrf_check)
app.add_middleware(
    CORSMiddleware, allow_origins=["https://shop.example"], allow_credentials=True, allow_methods=["GET", "POST"],
    allow_headers=["Idempotency-Key", "Content-Type"], expose_headers=["Idempotency-Replayed"],
)  # fmt: skip
app.add_middleware(Below, prefix="/compressed", made=GZipMiddleware)


# ---- answers ----


def does(name, **options):
    """A handler that inserts its effect first."""
    return app.post(f"/{name}", dependencies=[Depends(effect)], **options)


@app.get("/-/pool")
async def in_use():
    stats = pool.get_stats()
    return {"in_use": stats["pool_size"] - stats["pool_available"]}


@does("json", status_code=201)
async def json():
    return ORDER


@does("text", response_class=PlainTextResponse)
async def text():
    return shared.TEXT


@does("empty")
async def empty():
    return Response()


@does("no-content", status_code=204)
async def no_content():
    pass


@does("reset-content")
async def reset_content():
    return Response(status_code=205)


@does("large")
async def large(bytes: int):
    return StreamingResponse(shared.large(bytes), media_type="application/octet-stream", headers={"Content-Length": str(bytes)})


@does("stream-bytes")
async def stream_bytes():
    async def pieces():
        for piece in shared.PIECES:
            yield piece
            await asyncio.sleep(0)

    return StreamingResponse(pieces(), media_type="application/octet-stream")


@does("stream-text")
async def stream_text():
    return StreamingResponse(iter(shared.LINES), media_type="text/plain")


@does("file")
async def file():
    return FileResponse(os.path.join(shared.FILES, "report.txt"))


@does("download")
async def download():
    return FileResponse(os.path.join(shared.FILES, "report.txt"), filename="rapport é.txt")


@does("redirect")
async def redirect():
    return RedirectResponse("/json", 303)


@does("redirect-307")
async def redirect_307():
    return RedirectResponse("/json", 307)


@does("cookies")
async def cookies():
    response = PlainTextResponse("cookies")
    response.set_cookie("a", "1", httponly=True)
    response.set_cookie("b", "2", samesite="lax")
    return response


@does("repeated")
async def repeated():
    response = PlainTextResponse("repeated")
    for name, value in (("Link", "</a>; rel=next"), ("Link", "</b>; rel=last"), ("X-Part", "one"), ("X-Part", "two"), ("Vary", "Origin"), ("Vary", "Accept")):
        response.headers.append(name, value)
    response.headers["Cache-Control"] = "no-store"
    return response


@does("odd")
async def odd():
    return PlainTextResponse("odd", headers={"X-Odd": "café", "X-Empty": "", "X-Long": "x" * 4000, "X-Spaced": "a  b\tc"})


@does("close")
async def close():
    return PlainTextResponse("close", headers={"Connection": "close"})


# ---- with neighbours ----


@does("compressed", response_class=PlainTextResponse)
async def compressed():
    return "compress me, please. " * 200


@does("cors", status_code=201)
async def cors():
    return {"cors": True}


@does("outer", status_code=201)
async def outer():
    return {"outer": True}


@does("inner", status_code=201)
async def inner():
    return {"inner": True}


@does("auth", response_class=PlainTextResponse)
async def auth():
    return "auth"


@app.get("/session")
async def begin_session(request: Request):
    request.session["visits"] = 0
    return {"visits": 0}


@does("session")
async def session(request: Request):
    request.session["visits"] += 1
    return {"visits": request.session["visits"]}


@app.get("/csrf", response_class=PlainTextResponse)
async def token(request: Request):
    return request.scope["csrftoken"]()


@does("csrf", status_code=201)
async def csrf(request: Request):
    return {"csrf": True, "amount": (await request.form())["amount"]}


# ---- bodies ----


@does("read-outside")
async def read_outside(request: Request):
    return {"amount": (await request.form())["amount"]}


@does("form")
async def form(request: Request):
    return (await request.form()).multi_items()


@does("upload")
async def upload(request: Request):
    given = (await request.form()).multi_items()
    files = [(name, each) for name, each in given if not isinstance(each, str)]
    told = []
    for name, each in files:
        data = await each.read()
        told.append([name, each.filename, each.content_type, len(data), shared.digest(data)])
    return {"fields": {name: each for name, each in given if isinstance(each, str)}, "files": told}


@does("body")
async def body(got: Annotated[Any, Body()]):
    return {"got": got}


class Valid(BaseModel):
    amount: int


@does("valid")
async def valid(body: Valid):
    return body


@does("echo")
async def echo(request: Request):
    read = b"".join([piece async for piece in request.stream()])
    said = {"X-Type": request.headers.get("Content-Type", ""), "X-Encoding": request.headers.get("Content-Encoding", "")}
    return Response(read, headers=said, media_type="application/octet-stream")


@does("digest")
async def digest(request: Request):
    size, made = 0, hashlib.sha256()
    async for piece in request.stream():
        size += len(piece)
        made.update(piece)
    return {"size": size, "sha256": made.hexdigest()}


@does("request")
async def request_(request: Request):
    return {
        "method": request.method, "target": f"{request.scope['raw_path'].decode()}?{request.scope['query_string'].decode()}", "host": request.headers["Host"],
        "accept": request.headers.getlist("Accept"), "a": request.query_params.getlist("a"), "client": request.client is not None,
    }  # fmt: skip


@does("unread", response_class=PlainTextResponse)
async def unread():
    return "unread"


# ---- errors ----


@does("throws")
async def throws():
    raise RuntimeError("thrown")


@does("throws-late")
async def throws_late():
    async def pieces():
        yield b"first "
        yield b"second "
        await asyncio.sleep(0)
        raise RuntimeError("thrown late")

    return StreamingResponse(pieces(), media_type="text/plain")


@does("status")
async def status(code: int, request: Request):
    if "raise" in request.query_params:
        raise HTTPException(code, "sorry")
    return JSONResponse({"code": code}, code)


@does("retry-after")
async def retry_after():
    return PlainTextResponse("later", 503, {"Retry-After": "7"})


@does("deferred", status_code=201)
async def deferred(tx: Tx):
    await tx.execute("INSERT INTO taken (id) VALUES (1)")
    return {"deferred": True}


@does("deadlock", status_code=201, response_class=PlainTextResponse)
async def deadlock(tx: Tx):
    await tx.execute("SELECT deadlock()")
    return "deadlock"


@does("swallowed", status_code=201, response_class=PlainTextResponse)
async def swallowed(tx: Tx):
    with contextlib.suppress(Exception):
        await tx.execute("SELECT 1/0")
    return "swallowed"


# ---- transactions ----


@does("commit", status_code=201, response_class=PlainTextResponse)
async def commit(tx: Tx):
    await tx.execute("COMMIT")
    return "commit"


@app.post("/nested", status_code=201)
async def nested(tx: Tx):
    async with tx.transaction():
        with contextlib.suppress(RuntimeError):
            async with tx.transaction():
                await tx.execute(INSERT, ("nested-inner",))
                raise RuntimeError("rolled back")
        await tx.execute(INSERT, ("nested",))
    return {"nested": True}


@app.post("/role", status_code=201, response_class=PlainTextResponse)
async def role(tx: Tx):
    if ON:
        await tx.execute("SET LOCAL ROLE reader")
    await tx.execute(INSERT, ("role",))
    return "role"


@does("background", status_code=202, response_class=PlainTextResponse)
async def background(tasks: BackgroundTasks):
    tasks.add_task(elsewhere, "background-task")
    return "background"


@does("late-tx", status_code=202, response_class=PlainTextResponse)
async def late_tx(tasks: BackgroundTasks, tx: Tx):
    async def late():
        try:
            if not ON:
                raise RuntimeError("there is no tx")
            await tx.execute(INSERT, (shared.LATE[0],))
        except Exception:
            await elsewhere(shared.LATE[1])

    tasks.add_task(late)
    return "late-tx"


@does("second", status_code=201)
async def second():
    async with pool.connection() as own:
        await own.execute("SELECT 1")
    return {"second": 1}


# ---- odd answers ----


class Twice:
    """By ASGI itself: an application answers once."""

    async def __call__(self, scope, receive, send):
        async with contextlib.asynccontextmanager(tx_of)(Request(scope)) as tx:
            await tx.execute(INSERT, ("two-answers",))
            await PlainTextResponse("first", 201)(scope, receive, send)
            await PlainTextResponse("second", 202)(scope, receive, send)


app.router.routes.append(Route("/two-answers", Twice(), methods=["POST"]))


@does("no-answer")
async def no_answer():
    await asyncio.Event().wait()


@does("destroyed")
async def destroyed():
    async def pieces():
        yield b"half "
        raise ConnectionAbortedError

    return StreamingResponse(pieces(), media_type="text/plain")


@does("short")
async def short():
    return PlainTextResponse("short", headers={"Content-Length": "10"})


@does("long")
async def long():
    return PlainTextResponse("too long", headers={"Content-Length": "4"})


@does("invalid-status")
async def invalid_status():
    return PlainTextResponse("odd", 99)


@does("bad-header")
async def bad_header():
    return PlainTextResponse("odd", headers={"X-Bad": "a\nb"})


@does("events")
async def events():
    async def stream():
        yield b"data: one\n\n"
        async with pool.connection() as own:
            await own.execute("SELECT gate()")
        yield b"data: two\n\n"

    return StreamingResponse(stream(), media_type="text/event-stream")


@does("gate")
async def gate(request: Request, tx: Tx):
    async def pieces():
        yield b"before "
        await tx.execute("SELECT gate()")
        if not await request.is_disconnected():
            yield b"after"

    return StreamingResponse(pieces(), media_type="text/plain")


# ---- a sub-application, conditional requests, files ----

sub = FastAPI()


@sub.post("/json", status_code=201)
async def sub_json(tx: Tx):
    await tx.execute(INSERT, ("sub/json",))
    return ORDER


app.mount("/sub", sub)


@app.api_route("/cacheable", methods=["GET", "HEAD"])
async def cacheable(request: Request):
    headers = {"ETag": '"v1"', "Last-Modified": "Sat, 01 Jan 2022 00:00:00 GMT"}
    if request.headers.get("If-None-Match") == '"v1"':
        return Response(status_code=304, headers=headers)
    return PlainTextResponse("cacheable", headers=headers)


app.mount("/files", StaticFiles(directory=shared.FILES))

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=shared.PORT, log_level="warning", lifespan="on")
