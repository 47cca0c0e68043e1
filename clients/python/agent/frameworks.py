# SPDX-License-Identifier: PostgreSQL
"""The service of a case behind each middleware, on a real port: Starlette and FastAPI under uvicorn, Flask and Django under
werkzeug's threads."""

import asyncio
import contextlib
import json
import socket
import threading

import asyncpg
import django
import psycopg_pool
import uvicorn
import werkzeug.serving
from django.conf import settings
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpResponse, StreamingHttpResponse
from flask import Flask, Response, g
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import Response as StarletteResponse
from starlette.responses import StreamingResponse
from starlette.routing import Route

import pgonce.aio
from pgonce.asgi import OnceMiddleware, transaction
from pgonce.flask import protect

from cases import bytes_of

METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
PATIENCE_S = 20


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
        self.name, self.parts = case["name"], case.get("service") or [{}]
        self.runs = 0
        self.lock = threading.Lock()
        self.begun, self.released = threading.Semaphore(0), threading.Event()

    def next(self):
        with self.lock:
            self.runs += 1
            return self.runs, self.parts[min(self.runs, len(self.parts)) - 1]

    def answer(self, number, part):
        """status, headers as pairs, the body in pieces"""
        if "throw" in part:
            raise RuntimeError(part["throw"])
        body = bytes_of(part)
        body = json.dumps({"execution": number}).encode() if body is None else body
        count = part.get("pieces", 1)
        size = -(-len(body) // count) or 1
        pieces = [body[at : at + size] for at in range(0, len(body), size)] or [b""]
        return part.get("status", 201), part.get("headers", [["Content-Type", "application/json"]]), pieces

    @property
    def sql(self):
        return f"INSERT INTO effect (key) VALUES ('{self.name}')"

    def hold(self, part):
        if part.get("hold"):
            self.begun.release()
            assert self.released.wait(PATIENCE_S)

    async def hold_async(self, part):
        if part.get("hold"):
            self.begun.release()
            assert await asyncio.to_thread(self.released.wait, PATIENCE_S)


AWAY = "postgresql://postgres@127.0.0.1:1/away?connect_timeout=2"


class Asgi:
    framework = "starlette"

    def __init__(self, driver):
        self.driver = driver

    @contextlib.contextmanager
    def serving(self, case, url):
        script = Script(case)

        async def serve(request):
            number, part = script.next()
            with contextlib.suppress(Exception):
                tx = await transaction(request)
                if part.get("effect", True):
                    await tx.execute(script.sql)
                if "emit" in part:
                    await pgonce.aio.emit(tx, part["emit"], {})
            await script.hold_async(part)
            status, headers, pieces = script.answer(number, part)
            if len(pieces) > 1:

                async def stream():
                    for piece in pieces:
                        yield piece

                response = StreamingResponse(stream(), status_code=status)
            else:
                response = StarletteResponse(pieces[0], status_code=status)
            response.raw_headers = [each for each in response.raw_headers if each[0] != b"content-type"]
            response.raw_headers += [(name.encode(), value.encode()) for name, value in headers]
            return response

        pool = None
        if self.driver != "asyncpg":
            pool = psycopg_pool.AsyncConnectionPool(url, open=False, min_size=0, max_size=8, timeout=3)

        @contextlib.asynccontextmanager
        async def lifespan(app):
            nonlocal pool
            if self.driver == "asyncpg":
                pool = await asyncpg.create_pool(url.split("?")[0], min_size=0)
            else:
                await pool.open()
            yield
            await pool.close()

        app = Starlette(
            routes=[Route("/{path:path}", serve, methods=METHODS)],
            middleware=[Middleware(OnceMiddleware, pool=lambda: pool, **options_of(case.get("location", {})))],
            lifespan=lifespan,
        )
        with loop(app) as port:
            try:
                yield port, script
            finally:
                script.released.set()


@contextlib.contextmanager
def loop(app):
    """An application of ASGI under uvicorn; its port."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="critical", lifespan="on"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "it did not start"
        threading.Event().wait(0.005)
    try:
        yield port
    finally:
        server.should_exit = True
        thread.join()


class _Quiet(werkzeug.serving.WSGIRequestHandler):
    def log(self, *_):
        pass


@contextlib.contextmanager
def threads(app):
    server = werkzeug.serving.make_server("127.0.0.1", 0, app, threaded=True, request_handler=_Quiet)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class FlaskDoor:
    framework = "flask"

    @contextlib.contextmanager
    def serving(self, case, url):
        script = Script(case)
        pool = psycopg_pool.ConnectionPool(url, open=True, min_size=0, max_size=8, timeout=3)
        app = Flask(__name__)
        app.logger.disabled = True

        @app.route("/<path:path>", methods=METHODS)
        @protect(pool, **options_of(case.get("location", {})))
        def serve(path):
            number, part = script.next()
            if part.get("effect", True) and "tx" in g:
                g.tx.execute(script.sql)
            if "emit" in part:
                pgonce.emit(g.tx, part["emit"], {})
            script.hold(part)
            status, headers, pieces = script.answer(number, part)
            response = Response(iter(pieces) if len(pieces) > 1 else pieces[0], status=status)
            del response.headers["Content-Type"]
            for name, value in headers:
                response.headers.add(name, value)
            return response

        with threads(app) as port:
            yield port, script
            script.released.set()
        pool.close()


class DjangoDoor:
    framework = "django"
    current = {}

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

    @contextlib.contextmanager
    def serving(self, case, url):
        script = Script(case)
        host, port, name = url.split("@")[1].split("?")[0].replace("/", ":").split(":")
        said = {"host": host, "port": port, "user": "postgres", "database": name}
        self.set_up(said)
        from django.db import connections

        connections.databases["default"].update(self.database(said))
        settings.PGONCE = options_of(case.get("location", {}))
        DjangoDoor.current["script"] = script
        with threads(WSGIHandler()) as at:
            yield at, script
            script.released.set()


def django_view(request, path):
    from django.db import connection

    script = DjangoDoor.current["script"]
    number, part = script.next()
    if part.get("effect", True) and connection.in_atomic_block:
        with connection.cursor() as cursor:
            cursor.execute(script.sql)
    if "emit" in part:
        pgonce.emit(connection, part["emit"], {})
    script.hold(part)
    status, headers, pieces = script.answer(number, part)
    if len(pieces) > 1:
        response = StreamingHttpResponse(iter(pieces), status=status)
    else:
        response = HttpResponse(pieces[0], status=status)
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


SERVICES = {"asgi-psycopg": Asgi("psycopg"), "asgi-asyncpg": Asgi("asyncpg"), "flask": FlaskDoor(), "django": DjangoDoor()}
