# SPDX-License-Identifier: PostgreSQL
"""The HTTP service of the Python client, for the torture (tests/torture/services.py): a framework of frameworks.py over a driver of drivers.py, or Django with its
own pool. A handler does what torture.py's effects do."""

import asyncio
import contextlib
import time
import uuid

import pgonce

from common import DEADLINE_S, NotNow, is_answered, order_of
from drivers import opened
from frameworks import APPLICATIONS, CONNECTIONS, django_application, threads_of, uvicorn_of
from torture import Door

BYTES = [["Content-Type", "application/octet-stream"]]
IN_PIECES = ("pieces", "destroy")


def slowly(body, neighbour):
    """In pieces, with pauses and without a length; broken off after half of it, if that is ordered."""
    for piece in (body[:1], body[1 : len(body) // 2]):
        yield piece
        time.sleep(0.01)
    if neighbour == "destroy":
        raise ConnectionAbortedError
    yield body[len(body) // 2 :]


class Requests:
    options = {"scope": "requests", "tenant": lambda request: order_of(request.headers)["tenant"], "deadline": DEADLINE_S, "handler_ms": 4000}

    @staticmethod
    async def answer(tx, headers, body, door):
        order = order_of(headers) | {"payload": body.decode()}
        try:
            made = await door.advance(order, tx)
        except NotNow:
            if is_answered(order):
                return 503, [["X-Done", "no"]], b"{}"
            raise
        if order["end"] == "final":
            return 422, [["Content-Type", "text/plain"]], str(uuid.uuid4()).encode()
        return 201, BYTES, slowly(made, order["neighbour"]) if order["neighbour"] in IN_PIECES else made


@contextlib.contextmanager
def second_of_django():
    """Another connection of its pool."""
    from django.db import connections

    connection = connections.create_connection("default")
    try:
        yield connection
    finally:
        connection.close()


def serve(name, port, url):
    """name: FRAMEWORK-DRIVER, or django."""
    framework, _, driver = name.partition("-")
    if framework == "django":
        pool = {"min_size": 0, "max_size": CONNECTIONS, "timeout": 3, "reconnect_timeout": 1}
        threads_of(django_application(Requests, Door(pgonce, second_of_django), url, pool=pool, connect_timeout=3), port).serve_forever()
        return
    with opened(driver, url, CONNECTIONS, patience_s=3) as over:
        app = APPLICATIONS[framework](Requests, Door(over.client, over.transaction), over.pool)
        if framework == "flask":
            threads_of(app, port).serve_forever()
        else:
            asyncio.run_coroutine_threadsafe(uvicorn_of(app, port).serve(), over.loop.loop).result()
