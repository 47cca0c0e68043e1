# SPDX-License-Identifier: PostgreSQL
"""A service behind each middleware: Starlette and FastAPI under uvicorn, Flask and Django under werkzeug's threads. It is that of a case of spec/cases
(Script), on any port, or the torture's (torture_service.py).

A service has `options`, those of the middleware, and `answer(tx, headers, body, door)`, a coroutine that gives a status, headers as pairs, and the body: bytes, or an iterator of pieces.
It awaits nothing if the framework is a blocking one."""

import asyncio
import contextlib
import json
import socket
import threading

import django
import uvicorn
import werkzeug.serving
from django.conf import settings
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpResponse, StreamingHttpResponse
from fastapi import FastAPI, Request
from flask import Flask, Response, g
from flask import request as flask_request
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import Response as StarletteResponse
from starlette.responses import StreamingResponse
from starlette.routing import Route

import pgonce
import pgonce.aio
from pgonce.asgi import OnceMiddleware, transaction
from pgonce.flask import protect

from cases import bytes_of
from drivers import Loop, behind, opened
from torture import Door, at_once, execute, settle

METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
PATIENCE_S = 20
CONNECTIONS = 8
AWAY = "postgresql://postgres@127.0.0.1:1/away?connect_timeout=2"


def free_port():
    with socket.socket() as sock:
        for port in range(20000, 32000):
            with contextlib.suppress(OSError):
                sock.bind(("127.0.0.1", port))
                return port
    raise RuntimeError("no free port")


def options_of(location):
    names = {"response_max": "response_max", "body_max": "body_max", "key_length": "key_length", "methods": "methods", "headers": "headers", "canonical_json": "canonical_json", "mode": "mode"}
    options = {name: location[given] for given, name in names.items() if given in location}
    tenant = None if location.get("tenant") == "none" else (lambda request: request.headers.get("X-Tenant"))
    return {
        "scope": location.get("scope", "conformance"),
        "tenant": tenant,
        "required": location.get("once", "required") == "required",
        "wait": location.get("wait_ms", 0) / 1000,
        "strict": location.get("key_syntax") == "strict",
        **options,
    }


class Script:
    """What the executions of a case's service do, in turn."""

    def __init__(self, case):
        self.name, self.parts, self.options = case["name"], case.get("service") or [{}], options_of(case.get("location", {}))
        self.runs = 0
        self.lock = threading.Lock()
        self.begun, self.released = threading.Semaphore(0), threading.Event()

    def next(self):
        with self.lock:
            self.runs += 1
            return self.runs, self.parts[min(self.runs, len(self.parts)) - 1]

    async def answer(self, tx, _headers, _body, door):
        number, part = self.next()
        if tx is not None and part.get("effect", True):
            await execute(tx, f"INSERT INTO effect (key) VALUES ('{self.name}')")
        for text in part.get("behind", ()) if tx is not None else ():
            await settle(behind(tx, text))
        if tx is not None and "emit" in part:
            await settle(door.client.emit(tx, part["emit"], {}))
        if part.get("hold"):
            self.begun.release()
            assert await settle(asyncio.to_thread(self.released.wait, PATIENCE_S) if door.is_async else self.released.wait(PATIENCE_S))
        if "throw" in part:
            raise RuntimeError(part["throw"])
        body = bytes_of(part)
        body = json.dumps({"execution": number}).encode() if body is None else body
        count = part.get("pieces", 1)
        size = -(-len(body) // count) or 1
        pieces = iter([body[at : at + size] for at in range(0, len(body), size)])
        return part.get("status", 201), part.get("headers", [["Content-Type", "application/json"]]), body if count == 1 else pieces


# The applications: each of a service, and of a Door with the middleware's pool.


async def answered(service, door, request):
    """A response of Starlette's, which is FastAPI's, too."""
    try:
        tx = await transaction(request)
    except pgonce.UsageError:  # under a lease there is none
        tx = None
    status, headers, body = await service.answer(tx, request.headers, await request.body(), door)
    response = StarletteResponse(body, status_code=status) if isinstance(body, bytes) else StreamingResponse(body, status_code=status)
    response.raw_headers = [each for each in response.raw_headers if each[0] != b"content-type"]
    response.raw_headers += [(name.encode(), value.encode()) for name, value in headers]
    return response


def starlette(service, door, pool):
    async def serve(request):
        return await answered(service, door, request)

    return Starlette(routes=[Route("/{path:path}", serve, methods=METHODS)], middleware=[Middleware(OnceMiddleware, pool=pool, **service.options)])


def fastapi(service, door, pool):
    app = FastAPI()
    app.add_middleware(OnceMiddleware, pool=pool, **service.options)

    @app.api_route("/{path:path}", methods=METHODS)
    async def serve(request: Request):
        return await answered(service, door, request)

    return app


def flask(service, door, pool):
    app = Flask(__name__)
    app.logger.disabled = True

    @app.route("/<path:path>", methods=METHODS)
    @protect(pool, **service.options)
    def serve(path):
        status, headers, body = at_once(service.answer(g.get("tx"), flask_request.headers, flask_request.get_data(), door))
        response = Response(body, status=status)
        del response.headers["Content-Type"]
        for name, value in headers:
            response.headers.add(name, value)
        return response

    return app


class DjangoDoor:
    """Django has one service at a time."""

    service = door = None

    @classmethod
    def set_up(cls, said):
        if not settings.configured:
            settings.configure(
                DATABASES={"default": cls.database(said)}, ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], MIDDLEWARE=["pgonce.django.OnceMiddleware"],
                PGONCE={}, LOGGING_CONFIG=None, SECRET_KEY="test", DATA_UPLOAD_MAX_MEMORY_SIZE=None,
            )  # fmt: skip
            django.setup()

    @staticmethod
    def database(said):
        return {"ENGINE": "django.db.backends.postgresql", "NAME": said["database"], "HOST": said["host"], "PORT": said["port"], "USER": said["user"], "CONN_MAX_AGE": 0}


def django_application(service, door, url, **options):
    """url: of the database, to which Django connects by itself. options: of Django's DATABASES, such as a pool."""
    host, port, name = url.split("@")[1].split("?")[0].replace("/", ":").split(":")
    said = {"host": host, "port": port, "user": "postgres", "database": name}
    DjangoDoor.set_up(said)
    from django.db import connections

    connections.databases["default"].update(DjangoDoor.database(said) | {"OPTIONS": options})
    settings.PGONCE = service.options
    DjangoDoor.service, DjangoDoor.door = service, door
    return WSGIHandler()


def django_view(request, path):
    from django.db import connection

    tx = connection if connection.in_atomic_block else None
    status, headers, body = at_once(DjangoDoor.service.answer(tx, request.headers, request.body, DjangoDoor.door))
    response = HttpResponse(body, status=status) if isinstance(body, bytes) else StreamingHttpResponse(body, status=status)
    del response["Content-Type"]
    for name, value in headers:
        response[name] = f"{response[name]}, {value}" if response.has_header(name) else value
    return response


def __getattr__(name):
    """Django's table of addresses."""
    if name != "urlpatterns":
        raise AttributeError(name)
    from django.urls import re_path
    from django.views.decorators.csrf import csrf_exempt

    return [re_path("^(?P<path>.*)$", csrf_exempt(django_view))]


APPLICATIONS = {"starlette": starlette, "fastapi": fastapi, "flask": flask}


# The servers.


def uvicorn_of(app, port):
    return uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="critical", lifespan="on"))


class _Quiet(werkzeug.serving.WSGIRequestHandler):
    def log(self, *_):
        pass


def threads_of(app, port):
    return werkzeug.serving.make_server("127.0.0.1", port, app, threaded=True, request_handler=_Quiet)


@contextlib.contextmanager
def loop(app, its=None):
    """An application of ASGI under uvicorn, in the Loop of its pool, or in another one; its port."""
    port, own = free_port(), its or Loop()
    server = uvicorn_of(app, port)
    done = asyncio.run_coroutine_threadsafe(server.serve(), own.loop)
    while not server.started:
        assert own.thread.is_alive() and not done.done(), "it did not start"
        threading.Event().wait(0.005)
    try:
        yield port
    finally:
        server.should_exit = True
        done.result(PATIENCE_S)
        if its is None:
            own.close()


@contextlib.contextmanager
def threads(app):
    server = threads_of(app, 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Services:
    """The services of cases by a framework over a driver; Django's is its own."""

    def __init__(self, framework, driver=None):
        self.framework, self.driver = framework, driver

    @contextlib.contextmanager
    def serving(self, case, url, nodes=None):
        """The port and the Script of a case's service. nodes: in place of the database."""
        script = Script(case)
        with contextlib.ExitStack() as stack:
            if self.framework == "django":
                port = stack.enter_context(threads(django_application(script, Door(pgonce, None), url)))
            else:
                over = stack.enter_context(nodes.opened() if nodes else opened(self.driver, url, CONNECTIONS, patience_s=3))
                app = APPLICATIONS[self.framework](script, Door(over.client, over.transaction), over.pool)
                port = stack.enter_context(threads(app) if self.framework == "flask" else loop(app, over.loop))
            stack.callback(script.released.set)
            yield port, script


SERVICES = {
    "asgi-psycopg": Services("starlette", "psycopg-async"), "asgi-asyncpg": Services("starlette", "asyncpg"), "fastapi": Services("fastapi", "asyncpg"),
    "flask": Services("flask", "psycopg"), "django": Services("django"),
}  # fmt: skip
