# SPDX-License-Identifier: PostgreSQL
"""The HTTP service of the Python client, for the torture (tests/torture/services.py): Flask over psycopg under an odd number, Starlette over asyncpg under an
even one. A handler does what blocking.py's effects do."""

import asyncio
import time
import uuid

import flask
import psycopg_pool
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from werkzeug.serving import make_server

from pgonce import asgi
from pgonce.flask import protect

import asynchronous
import blocking
from common import DEADLINE_S, NotNow, is_answered, order_of

CONNECTIONS = 8
OPTIONS = {"scope": "requests", "tenant": lambda request: order_of(request.headers)["tenant"], "deadline": DEADLINE_S, "handler_ms": 4000}
BYTES = "application/octet-stream"
IN_PIECES = ("pieces", "destroy")


def slowly(body, neighbour):
    """In pieces, with pauses and without a length; broken off after half of it, if that is ordered."""
    for piece in (body[:1], body[1 : len(body) // 2]):
        yield piece
        time.sleep(0.01)
    if neighbour == "destroy":
        raise ConnectionAbortedError
    yield body[len(body) // 2 :]


def wsgi(dsn):
    """A WSGI application."""
    pool = psycopg_pool.ConnectionPool(dsn, min_size=1, max_size=CONNECTIONS, timeout=3, reconnect_timeout=1, open=True)
    app = flask.Flask("torture")

    @app.post("/requests")
    @protect(pool, **OPTIONS)
    def requests():
        order = order_of(flask.request.headers) | {"payload": flask.request.get_data().decode()}
        neighbour = order["neighbour"]
        if neighbour == "second":
            with pool.connection():
                pass
        try:
            body = blocking.Door.advance(order, flask.g.tx)
        except NotNow:
            if is_answered(order):
                return flask.Response("{}", 503, {"X-Done": "no"})
            raise
        if neighbour == "commit":
            flask.g.tx.execute("COMMIT")
        if order["end"] == "final":
            return flask.Response(str(uuid.uuid4()), 422)
        return flask.Response(slowly(body, neighbour) if neighbour in IN_PIECES else body, 201, mimetype=BYTES)

    return app


async def requests(request):
    order = order_of(request.headers) | {"payload": (await request.body()).decode()}
    neighbour, tx = order["neighbour"], await asgi.transaction(request)
    if neighbour == "second":
        async with request.app.state.pool.acquire():
            pass
    try:
        body = await asynchronous.Door.advance(order, tx)
    except NotNow:
        if is_answered(order):
            return Response("{}", 503, {"X-Done": "no"})
        raise
    if neighbour == "commit":
        await tx.execute("COMMIT")
    if order["end"] == "final":
        return Response(str(uuid.uuid4()), 422)
    return StreamingResponse(slowly(body, neighbour), 201, media_type=BYTES) if neighbour in IN_PIECES else Response(body, 201, media_type=BYTES)


async def serve_asynchronously(port, dsn):
    pool = await asynchronous.pool_of(dsn, CONNECTIONS)
    app = Starlette(routes=[Route("/requests", requests, methods=["POST"])], middleware=[Middleware(asgi.OnceMiddleware, pool=pool, **OPTIONS)])
    app.state.pool = pool
    await uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning", lifespan="off")).serve()


def serve(number, port, dsn):
    if number % 2:
        make_server("127.0.0.1", port, wsgi(dsn), threaded=True).serve_forever()
    else:
        asyncio.run(serve_asynchronously(port, dsn))
