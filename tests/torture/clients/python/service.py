# SPDX-License-Identifier: PostgreSQL
"""The HTTP service of the Python client, for the torture (tests/torture/services.py): Flask over psycopg under an odd number, Starlette over asyncpg under an
even one. A handler does what door.py's effects do."""

import asyncio
import uuid

import flask
import psycopg_pool
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.routing import Route
from werkzeug.serving import make_server

from pgonce import asgi
from pgonce.flask import protect

import asynchronous
import door
from common import DEADLINE_S, NotNow, is_answered, order_of

CONNECTIONS = 8
OPTIONS = {"scope": "requests", "tenant": lambda request: order_of(request.headers)["tenant"], "deadline": DEADLINE_S}
BYTES = "application/octet-stream"


def blocking(dsn):
    """A WSGI application."""
    pool = psycopg_pool.ConnectionPool(dsn, min_size=1, max_size=CONNECTIONS, timeout=3, reconnect_timeout=1, open=True)
    app = flask.Flask("torture")

    @app.post("/requests")
    @protect(pool, **OPTIONS)
    def requests():
        order = order_of(flask.request.headers) | {"payload": flask.request.get_data().decode()}
        try:
            body = door.Door.advance(order, flask.g.tx)
        except NotNow:
            if is_answered(order):
                return flask.Response("{}", 503, {"X-Done": "no"})
            raise
        return flask.Response(str(uuid.uuid4()), 422) if order["end"] == "final" else flask.Response(body, 201, mimetype=BYTES)

    return app


async def requests(request):
    order = order_of(request.headers) | {"payload": (await request.body()).decode()}
    try:
        body = await asynchronous.Door.advance(order, asgi.transaction(request))
    except NotNow:
        if is_answered(order):
            return Response("{}", 503, {"X-Done": "no"})
        raise
    return Response(str(uuid.uuid4()), 422) if order["end"] == "final" else Response(body, 201, media_type=BYTES)


async def serve_asynchronously(port, dsn):
    middleware = Middleware(asgi.OnceMiddleware, pool=await asynchronous.pool_of(dsn, CONNECTIONS), **OPTIONS)
    app = Starlette(routes=[Route("/requests", requests, methods=["POST"])], middleware=[middleware])
    await uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning", lifespan="off")).serve()


def serve(number, port, dsn):
    if number % 2:
        make_server("127.0.0.1", port, blocking(dsn), threaded=True).serve_forever()
    else:
        asyncio.run(serve_asynchronously(port, dsn))
