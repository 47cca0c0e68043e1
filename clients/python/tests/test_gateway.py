# SPDX-License-Identifier: PostgreSQL
"""A gateway in front, with the same scope: its claim is finished in the transaction of the effect (docs/reference/gateway.md, "In front of a client's middleware")."""

import asyncio
import contextlib
import json
import logging
import threading
import types
import uuid
from urllib.parse import quote, unquote

import psycopg_pool
import pytest
from django.core.handlers.wsgi import WSGIHandler
from django.db import connection, connections
from django.http import HttpResponse
from django.test.utils import override_settings
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from flask import Flask, Response, g, request
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import Response as StarletteResponse
from starlette.routing import Route

import asyncpg
from pgonce.asgi import OnceMiddleware, transaction
from pgonce.flask import protect

from .conftest import CASES, Database
from frameworks import DjangoDoor, loop, threads
from .steps import send
from .test_fastapi import problem_of
from .effects import INSERT, reach

FAULTS = json.loads((CASES / "faults.json").read_text(encoding="utf-8"))
REPORTS_MAX = 100  # that are tried within the five seconds
FRONTED = "A pgonce gateway in front of this service has claimed this key in the same scope: set the option gateway"


def tenant_of(request):
    return unquote(request.headers["X-Tenant"])


@contextlib.contextmanager
def asgi(driver, db, handler, **options):
    async def endpoint(request):
        body = await request.body()
        with contextlib.suppress(Exception):
            tx = await transaction(request)
            await tx.execute(INSERT.format(handler.key))
        status, content, headers = await asyncio.to_thread(handler, body)
        return StarletteResponse(content, status, headers)

    pool = None

    @contextlib.asynccontextmanager
    async def lifespan(app):
        nonlocal pool
        if driver == "asyncpg":
            pool = await asyncpg.create_pool(db.url, min_size=0, max_size=8)
        else:
            pool = psycopg_pool.AsyncConnectionPool(db.url, open=False, min_size=0, max_size=8)
            await pool.open()
        yield
        await pool.close()

    middleware = [Middleware(OnceMiddleware, pool=lambda: pool, **options)]
    with loop(Starlette(routes=[Route("/", endpoint, methods=["POST"])], middleware=middleware, lifespan=lifespan)) as port:
        yield port


@contextlib.contextmanager
def flask(db, handler, **options):
    pool = psycopg_pool.ConnectionPool(db.url, open=True, min_size=0, max_size=8)
    app = Flask(__name__)
    app.logger.disabled = True

    @app.post("/")
    @protect(pool, **options)
    def endpoint():
        if "tx" in g:
            g.tx.execute(INSERT.format(handler.key))
        status, content, headers = handler(request.get_data())
        return Response(content, status, headers)

    with threads(app) as port:
        yield port
    pool.close()


@contextlib.contextmanager
def django(db, handler, **options):
    DjangoDoor.set_up(db.said)
    connections.databases["default"].update({**DjangoDoor.database(db.said), "ATOMIC_REQUESTS": False})

    def endpoint(request):
        if connection.in_atomic_block:
            with connection.cursor() as cursor:
                cursor.execute(INSERT.format(handler.key))
        status, content, headers = handler(request.body)
        return HttpResponse(content, status=status, headers=headers)

    urls = types.ModuleType("urls")
    urls.urlpatterns = [path("", csrf_exempt(endpoint))]
    with override_settings(ROOT_URLCONF=urls, MIDDLEWARE=["pgonce.django.OnceMiddleware"], PGONCE=options), threads(WSGIHandler()) as port:
        yield port


DOORS = {
    "asgi-psycopg": lambda *given, **options: asgi("psycopg", *given, **options),
    "asgi-asyncpg": lambda *given, **options: asgi("asyncpg", *given, **options),
    "flask": flask,
    "django": django,
}


class Handler:
    """What the executions of a service answer, in turn: (status, body) or (status, body, headers), or an exception."""

    def __init__(self, *answers):
        self.key, self.answers, self.runs = f"order:{uuid.uuid4()}", answers, 0
        self.lock = threading.Lock()

    def __call__(self, body):
        with self.lock:
            self.runs += 1
            said = self.answers[min(self.runs, len(self.answers)) - 1]
        if isinstance(said, Exception):
            raise said
        said = said(body) if callable(said) else said
        return (*said, {}) if len(said) == 2 else said


class Service:
    """post: through the gateway. straight: as a gateway would."""

    def __init__(self, db, port, handler):
        self.db, self.port, self.handler = db, port, handler

    def request(self, port, key, headers, body):
        said = [("Host", "shop.test"), ("X-Tenant", "acme"), ("Content-Type", "application/json"), ("Idempotency-Key", key), *headers]
        return send(("127.0.0.1", port), "POST", "/", said, body)

    def post(self, body=b"{}"):
        return self.request(self.gateway, f'"{self.handler.key}"', (), body)

    def straight(self, claim):
        return self.request(self.port, f'"{self.handler.key}"', claim.items(), b"{}")

    def claimed(self):
        sql = "SELECT fence FROM once.claim('orders', %s, once.fingerprint('x'::text, 'acme'), tenant => 'acme')"
        return self.said(self.db.value(sql, self.handler.key))

    def said(self, fence):
        return {"Once-Tenant": "acme", "Once-Scope": "orders", "Once-Key": quote(self.handler.key, safe=""), "Once-Fence": str(fence)}

    def effects(self):
        return self.db.effects(self.handler.key)

    def state(self):
        rows = self.db.rows("SELECT state FROM once.intent WHERE key = %s", self.handler.key)
        return rows[0][0] if rows else None


@pytest.fixture(scope="module")
def db(server):
    return Database(server.hello)  # where the gateways of the server are


@pytest.fixture(params=DOORS)
def serve(request, server, db):
    """serve(handler, **options): a Service behind a gateway."""
    with contextlib.ExitStack() as stack:

        def start(handler, gateway=True, front=True, **options):
            policy = {"scope": "orders", "tenant": tenant_of, "gateway": gateway, **options}
            port = stack.enter_context(DOORS[request.param](db, handler, **policy))
            service = Service(db, port, handler)
            if front:
                where = server.ask(f"gateway orders {port}")["gateway"]
                if where is None:
                    pytest.skip("the nginx module is not built")
                service.gateway = where["port"]
            return service

        yield start


def test_the_effect_and_the_gateways_intent_commit_together_and_retries_replay(serve):
    during = []

    def said(body):
        during.append(service.state())
        return 201, b'{"order":7}', {"X-Order": "7"}

    service = serve(Handler(said))
    first = service.post()
    assert (first.status, first.body, first.values("Idempotency-Replayed"), first.values("Once-Effect")) == (201, b'{"order":7}', [], [])
    assert (during, service.state(), service.effects()) == (["processing"], "succeeded", 1)
    again = service.post()
    assert (again.status, again.body, again.values("Idempotency-Replayed"), again.values("X-Order")) == (201, b'{"order":7}', ["true"], ["7"])
    assert service.post(b'{"other":1}').status == 422 and service.handler.runs == 1


@pytest.mark.parametrize("answer", [(500, b"out of order"), (409, b"later"), RuntimeError("broken")], ids=["500", "409", "raised"])
def test_what_is_taken_back_frees_the_key_though_its_answer_alone_would_not(serve, answer):
    service = serve(Handler(answer, (201, b"done")))
    first = service.post()
    assert (first.status, service.effects(), service.state()) == (answer[0] if isinstance(answer, tuple) else 500, 0, "failed_retryable")
    assert isinstance(answer, Exception) or first.body == answer[1]
    second = service.post()
    assert (second.status, second.body, service.effects(), service.state()) == (201, b"done", 1, "succeeded")


def test_a_refusal_is_stored_without_its_effect(serve):
    service = serve(Handler((422, b"no")))
    replies = [service.post() for _ in range(2)]
    assert [(each.status, each.body, each.values("Idempotency-Replayed")) for each in replies] == [(422, b"no", []), (422, b"no", ["true"])]
    assert (service.effects(), service.state()) == (0, "failed_final")


@pytest.mark.parametrize("status", [201, 422])
def test_an_answer_that_is_too_large_comes_whole_and_is_remembered_as_done(serve, status):
    service = serve(Handler((status, b"x" * 3000)), response_max=2000)
    first, again = service.post(), service.post()
    assert (first.status, first.body, problem_of(again), service.effects()) == (status, b"x" * 3000, "too-large", int(status == 201))


def test_an_answer_above_what_its_scope_keeps_comes_whole_and_is_remembered_as_done(serve, db):
    db.rows("SELECT once.set_scope('orders', response_bytes_max => 10000)")
    try:
        service = serve(Handler((201, b"x" * 20000)))
        first, again = service.post(), service.post()
    finally:
        db.rows("SELECT once.set_scope('orders', response_bytes_max => 1048576)")
    assert (first.status, len(first.body), problem_of(again), service.effects()) == (201, 20000, "too-large", 1)


def test_a_word_of_unknown_leaves_a_doubt_and_the_effect_in_the_database_is_taken_back(serve):
    service = serve(Handler((502, b"", {"Once-Effect": "unknown"})))
    assert service.post().status == 502
    assert (service.state(), service.effects(), problem_of(service.post()), service.handler.runs) == ("in_doubt", 0, "in-doubt", 1)


def test_two_runs_under_one_fence_have_one_effect_though_their_answers_are_the_same(serve):
    both = threading.Barrier(2)

    def said(body):
        both.wait(20)
        return 201, b"the same"

    service = serve(Handler(said, said, (201, b"the same")), front=False)
    claim, told = service.claimed(), []
    runs = [threading.Thread(target=lambda: told.append(service.straight(claim))) for _ in range(2)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert sorted(each.status for each in told) == [201, 409] and service.effects() == 1
    assert [problem_of(each) for each in told if each.status == 409] == ["active"]
    late = service.straight({**claim, "Once-Fence": str(int(claim["Once-Fence"]) + 1)})
    assert problem_of(late) == "active" and service.effects() == 1


def test_a_handler_that_has_ended_the_transaction_stores_no_answer_and_leaves_a_doubt(serve, monkeypatch):
    from pgonce import _control

    monkeypatch.setattr(_control.Guard, "check", lambda self, sql: None)  # as of what no guard sees
    monkeypatch.setattr(f"{__name__}.INSERT", "INSERT INTO effect (key) VALUES ('{0}'); ROLLBACK")
    service = serve(Handler((201, b"done")))
    assert service.post().status in (409, 500, 503)
    assert (service.state(), service.effects(), problem_of(service.post()), service.handler.runs) == ("in_doubt", 0, "in-doubt", 1)


def test_headers_that_do_not_name_this_very_intent_count_for_nothing(serve):
    service = serve(Handler((201, b"done")), front=False)
    wrongs = [
        {"Once-Key": "other"}, {"Once-Key": "%"}, {"Once-Tenant": "zeta"}, {"Once-Scope": "others"}, {"Once-Fence": "0"}, {"Once-Fence": "1x"},
        {"Once-Fence": "2147483648"},
    ]  # fmt: skip
    for wrong in wrongs:
        service.handler.key = f"order:{uuid.uuid4()}"
        reply = service.straight({**service.said(1), **wrong})
        assert (reply.status, service.effects(), service.state()) == (201, 1, "succeeded"), wrong  # protected by itself
    service.handler.key = f"order:{uuid.uuid4()}"
    assert (problem_of(service.straight(service.said(1))), service.effects(), service.state()) == ("active", 0, None)  # a forger's own key


def test_names_are_read_as_the_gateway_writes_them(serve):
    service = serve(Handler((201, b"done")), tenant=lambda request: "söder & cie ")
    service.handler.key = f"100% +&=;, {uuid.uuid4()} "
    sql = "SELECT fence FROM once.claim('orders', %s, once.fingerprint('x'::text, %s), tenant => %s)"
    fence = service.db.value(sql, service.handler.key, "söder & cie ", "söder & cie ")
    claim = {"Once-Tenant": "s%C3%B6der & cie%20", "Once-Scope": "orders", "Once-Key": quote(service.handler.key, safe="+&=;, ")[:-1] + "%20", "Once-Fence": str(fence)}
    assert (service.straight(claim).status, service.effects(), service.state()) == (201, 1, "succeeded")


def test_without_the_option_the_error_says_what_is_wrong(serve, caplog):
    service = serve(Handler((201, b"ran")), gateway=False)
    with caplog.at_level(logging.ERROR, "pgonce"):
        replies = [service.post() for _ in range(2)]
    assert all(each.status in (409, 422) and FRONTED in json.loads(each.body)["detail"] for each in replies) and service.handler.runs == 0
    assert sum(FRONTED in each.getMessage() for each in caplog.records) == 2


def test_in_mode_lease_the_gateway_alone_claims_and_reports(serve):
    service = serve(Handler((500, b"", {"Once-Effect": "none"}), (201, b"charged")), mode="lease")
    assert (service.post().status, service.state()) == (500, "failed_retryable")
    replies = [service.post() for _ in range(2)]
    assert [(each.status, each.body) for each in replies] == [(201, b"charged")] * 2 and replies[1].values("Idempotency-Replayed") == ["true"]
    assert service.handler.runs == 2


def test_a_handler_that_takes_too_long_frees_the_key(serve):
    waits = threading.Event()

    def slow(body):
        waits.wait(1)
        return 201, b"late"

    service = serve(Handler(slow, (201, b"done")), handler_ms=300)
    assert (problem_of(service.post()), service.state(), service.effects()) == ("timed-out", "failed_retryable", 0)
    assert (service.post().body, service.effects()) == (b"done", 1)


def test_a_tenant_that_is_no_text_is_refused(serve):
    service = serve(Handler((201, b"ran")), front=False, tenant=lambda request: "a\udcff")
    reply = service.straight({})
    assert (reply.status, problem_of(reply), service.handler.runs) == (400, "tenant-missing", 0)


@pytest.mark.parametrize("door", ["flask", "asgi-psycopg"])
@pytest.mark.parametrize("lost, runs", [("lose_answer COMMIT", 1), ("lose_request COMMIT", 2)])
def test_a_commit_whose_answer_is_lost_is_asked_for_by_the_gateway(server, db, door, lost, runs):
    handler = Handler((201, b"done"))
    with server.forwarder() as forwarder:
        away = types.SimpleNamespace(url=reach("psycopg", forwarder, db))
        with DOORS[door](away, handler, scope="orders", tenant=tenant_of, gateway=True) as port:
            service = Service(db, port, handler)
            where = server.ask(f"gateway orders {port}")["gateway"]
            if where is None:
                pytest.skip("the nginx module is not built")
            service.gateway = where["port"]
            forwarder.ask(lost)
            first = service.post()
            assert (first.status, service.effects()) == ((201, 1) if runs == 1 else (503, 0))
            again = service.post()
            assert (again.status, again.body, service.effects(), handler.runs) == (201, b"done", 1, runs)


@pytest.mark.parametrize("door", ["flask", "asgi-psycopg"])
@pytest.mark.parametrize("fault", FAULTS["commits_under_a_claim"], ids=lambda fault: fault["name"])
def test_a_commit_that_is_lost_under_a_claim(server, db, door, fault):
    handler = Handler((201, b"done"))
    with server.forwarder() as forwarder:
        away = types.SimpleNamespace(url=reach("psycopg", forwarder, db))
        with DOORS[door](away, handler, scope="orders", tenant=tenant_of, gateway=True) as port:
            service = Service(db, port, handler)
            claim = service.claimed()
            rule = forwarder.ask(f"{fault['commit']} COMMIT")["rule"]
            for _ in range(REPORTS_MAX if "reports" in fault else 0):
                forwarder.ask(f"{fault['reports']} once.fail")
            assert problem_of(service.straight(claim)) == fault["problem"]
            assert forwarder.ask(f"wait {rule}")["fired"]
            forwarder.ask("forget")
            assert (service.state(), service.effects(), handler.runs) == (fault["state"], fault["effects"], 1)
            if fault["state"] != "processing":
                assert (problem_of(service.straight(claim)), service.effects()) == ("active", fault["effects"])
            if fault["state"] == "failed_retryable":
                assert (service.straight(service.claimed()).status, service.effects()) == (201, 1)
