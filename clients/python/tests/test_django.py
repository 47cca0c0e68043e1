# SPDX-License-Identifier: PostgreSQL
"""Django with ordinary neighbours, on a real port: hooks after COMMIT, CSRF, ATOMIC_REQUESTS, forms that others read first, a TestCase of the application's own."""

import asyncio
import contextlib
import json
import logging
import socket
import threading
import time
import types
import unittest

import httpx
import pytest
from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.db import connection, connections, transaction
from django.http import FileResponse, HttpResponse, StreamingHttpResponse
from django.test import Client, TestCase
from django.test.utils import override_settings
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from frameworks import PATIENCE_S, DjangoDoor, threads
from .steps import Events, send
from .test_fastapi import problem_of
from .effects import INSERT

ONCE = "pgonce.django.OnceMiddleware"
FORM = [("Content-Type", "application/x-www-form-urlencoded")]


@pytest.fixture
def served(db):
    """served(view, middleware=..., **options of PGONCE): post(key, body)."""
    DjangoDoor.set_up(db.said)
    with contextlib.ExitStack() as stack:

        def serve(view, middleware=(ONCE,), database=None, exempt=True, **options):
            connections.databases["default"].update({**DjangoDoor.database(db.said), "ATOMIC_REQUESTS": False, **(database or {})})
            stack.callback(connections.databases["default"].update, ATOMIC_REQUESTS=False)
            urls = types.ModuleType("urls")
            urls.urlpatterns = [path("orders", csrf_exempt(view) if exempt else view), path("plain", csrf_exempt(view)), path("gr\u00fc\u00dfe<path:rest>", csrf_exempt(lambda request, rest: view(request)))]
            policy = {"scope": lambda request: "django" if request.path == "/orders" else None, "tenant": None, **options}
            stack.enter_context(override_settings(ROOT_URLCONF=urls, MIDDLEWARE=list(middleware), PGONCE=policy))
            port = stack.enter_context(threads(WSGIHandler()))

            def post(key, body=b"", headers=FORM, target="/orders"):
                return send(("127.0.0.1", port), "POST", target, [("Host", "shop.test"), ("Idempotency-Key", key), *headers], body)

            post.port = port
            return post

        yield serve


def insert(key):
    with connection.cursor() as cursor:
        cursor.execute(INSERT.format(key))


@pytest.mark.parametrize("status", [201, 422])
def test_hooks_of_on_commit_run_after_commit_and_not_for_what_is_taken_back(served, db, status):
    key, ran = f"hook-{status}", []

    def view(request):
        insert(key)
        transaction.on_commit(lambda: ran.append(db.effects(key)))
        with transaction.atomic():
            transaction.on_commit(lambda: ran.append(db.effects(key)))
        assert ran == []
        return HttpResponse("said", status=status)

    post = served(view)
    assert [post(key).status for _ in range(2)] == [status, status]
    assert ran == ([1, 1] if status == 201 else []) and db.effects(key) == int(status == 201)


@pytest.mark.parametrize("word", ["COMMIT", "ROLLBACK", "BEGIN"])
def test_a_statement_that_would_end_the_transaction_is_refused_before_it_is_sent(served, db, word):
    key = f"django-{word}"

    def view(request):
        insert(key)
        with connection.cursor() as cursor:
            cursor.execute(word)
        return HttpResponse("done")

    assert served(view)(key).status == 500
    assert db.effects(key) == 0 and db.value("SELECT count(*)::int FROM once.intent WHERE key = %s", key) == 0


@pytest.mark.parametrize("texts", [("COMMIT",), ("COMMIT", "BEGIN")], ids="+".join)
@pytest.mark.parametrize("status", [201, 422])
def test_a_view_whose_transaction_is_gone_is_in_doubt_and_never_runs_again(served, db, texts, status):
    key = f"django-gone-{len(texts)}-{status}"

    def view(request):
        insert(key)
        for text in texts:  # behind the guard
            connection.connection.pgconn.exec_(text.encode())
        return HttpResponse("done", status=status)

    post = served(view)
    assert [problem_of(post(key)) for _ in range(3)] == ["in-doubt"] * 3
    assert db.effects(key) == 1


def test_a_constraint_that_fails_at_commit_is_the_applications_error_and_logged(served, db, caplog):
    db.rows("CREATE TABLE parent (id int PRIMARY KEY)")
    db.rows("CREATE TABLE child (parent int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)")

    def view(request):
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO child VALUES (7)")
        return HttpResponse("done")

    with caplog.at_level(logging.DEBUG, "pgonce"):
        assert served(view)("a-secret-key").status == 500
    (line,) = [each.getMessage() for each in caplog.records if each.name == "pgonce"]
    assert "error=IntegrityError sqlstate=23503" in line and "a-secret-key" not in line


def test_a_csrf_check_inside_and_an_outer_layer_that_reads_forms_change_nothing(served, db):
    def reads(get_response):
        def read(request):
            request.POST.get("amount")
            return get_response(request)

        return read

    globals()["reads"] = reads

    def view(request):
        insert("django-csrf")
        return HttpResponse(request.POST["amount"], status=201)

    post = served(view, (f"{__name__}.reads", ONCE, "django.middleware.csrf.CsrfViewMiddleware"), exempt=False)
    token = "a" * 32
    headers = [*FORM, ("Cookie", f"csrftoken={token}"), ("X-CSRFToken", token)]
    first, again, other = (post("django-csrf", body, headers) for body in (b"amount=100", b"amount=100", b"amount=999999"))
    assert (first.status, first.body, again.values("Idempotency-Replayed"), other.status) == (201, b"100", ["true"], 422)
    assert post("django-csrf-2", b"amount=100").status == 403 and db.effects("django-csrf") == 1
    boundary = [("Content-Type", "multipart/form-data; boundary=x")]
    body = b'--x\r\nContent-Disposition: form-data; name="amount"\r\n\r\n%s\r\n--x--\r\n'
    assert [post("django-multipart", body % amount, [*boundary, *headers[1:]]).status for amount in (b"100", b"999999")] == [500, 500]


def test_a_large_upload_is_read_by_djangos_own_limits(served):
    """Files may be larger than what of other bodies is read into memory."""
    def view(request):
        return HttpResponse(str(request.FILES["file"].size) if request.FILES else str(len(request.body)))

    post = served(view)
    with override_settings(DATA_UPLOAD_MAX_MEMORY_SIZE=1000):
        boundary = [("Content-Type", "multipart/form-data; boundary=x")]
        part = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n%s\r\n--x--\r\n'
        first, again, other = (post("upload", part % body, boundary) for body in (b"a" * 5000, b"a" * 5000, b"b" * 5000))
        assert (first.body, again.body, again.values("Idempotency-Replayed"), other.status) == (b"5000", b"5000", ["true"], 422)
        assert post("too-large", b"a" * 5000).status == 400


def test_half_a_request_is_none(served):
    ran = []

    def view(request):
        ran.append(request.body)
        return HttpResponse("done")

    post = served(view)
    with socket.create_connection(("127.0.0.1", post.port)) as half:
        half.sendall(b"POST /orders HTTP/1.1\r\nHost: shop.test\r\nIdempotency-Key: half\r\nContent-Length: 8\r\n\r\nhalf")
        half.shutdown(socket.SHUT_WR)
        while half.recv(65536):
            pass
    assert post("half", b"half and half", ()).status == 200 and ran == [b"half and half"]


def test_the_first_answer_is_the_views_own(served):
    closed = []

    class Closing:
        def __iter__(self):
            return iter((b"one ", b"two"))

        def close(self):
            closed.append(1)

    def view(request):
        answer = StreamingHttpResponse(Closing(), status=201, headers={"X-Mixed-Case": "a", "Link": "</a>, </b>", "Once-Effect": "done"})
        answer.set_cookie("a", "1", max_age=60, samesite="Lax")
        answer.set_cookie("b", "2")
        return answer

    post = served(view)
    bare, first, again = post("own", target="/plain"), post("own"), post("own")
    cut = lambda reply: [each for each in reply.headers if each[0] not in ("Date", "Once-Effect", "Set-Cookie")]  # noqa: E731
    assert cut(first) == cut(bare) and first.body == bare.body == again.body == b"one two" and first.values("Once-Effect") == []
    assert [each.split(";")[0] for each in first.values("Set-Cookie")] == ["a=1", "b=2"] and again.values("Set-Cookie") == []
    assert again.values("Link") == ["</a>, </b>"] and len(closed) == 2


def test_files_come_whole_and_half_an_answer_is_not_stored(served, tmp_path):
    (tmp_path / "a.txt").write_text("0123456789")
    kinds = iter(["file", "short", "broken"])

    def view(request):
        kind = next(kinds)
        if kind == "file":
            return FileResponse(open(tmp_path / "a.txt", "rb"))

        def pieces():
            yield b"first "
            if kind == "broken":
                raise RuntimeError("the source broke")

        return StreamingHttpResponse(pieces(), headers={"Content-Length": "14"} if kind == "short" else None)

    post = served(view)
    for _ in range(2):
        assert post("file").body == b"0123456789"
    assert [post("half-answer").status for _ in range(2)] == [500, 500]


def test_a_stream_of_events_passes_as_it_is_written_and_its_key_is_done(served, db):
    events = Events()

    def view(request):
        insert("django-events")
        return StreamingHttpResponse(events.sent(), content_type="text/event-stream")

    def between():
        assert db.effects("django-events") == 1 and problem_of(post("events", b"", ())) == "too-large"

    post = served(view)
    with socket.create_connection(("127.0.0.1", post.port), timeout=PATIENCE_S) as connection:
        connection.sendall(b"POST /orders HTTP/1.1\r\nHost: shop.test\r\nIdempotency-Key: events\r\n\r\n")
        events.received(connection, between)


def test_atomic_requests_is_a_savepoint_within(served, db):
    def view(request):
        insert("atomic-requests")
        if "broken" in request.GET:
            raise RuntimeError("broken")
        return HttpResponse("done", status=201)

    post = served(view, database={"ATOMIC_REQUESTS": True})
    assert post("atomic-broken", target="/orders?broken").status == 500 and db.effects("atomic-requests") == 0
    assert [post("atomic").status for _ in range(2)] == [201, 201] and db.effects("atomic-requests") == 1


def test_a_handler_that_takes_too_long_loses_its_transaction_and_its_client_is_told(served, db):
    first = []

    def view(request):
        insert("django-late")
        if not first:
            first.append(1)
            count = "SELECT count(*)::int FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database()"
            deadline = time.monotonic() + PATIENCE_S
            while db.value(count) and time.monotonic() < deadline:
                time.sleep(0.05)
            first.append(db.value(count))
        return HttpResponse("done")

    post = served(view, handler_ms=3000)
    reply = post("django-late")
    assert (reply.status, problem_of(reply), first) == (503, "timed-out", [1, 0]) and db.effects("django-late") == 0
    assert post("django-late").status == 200 and db.effects("django-late") == 1


@pytest.mark.parametrize("status, retry", [(201, 201), (500, "in-doubt"), (402, 402)])
def test_in_mode_lease_a_view_has_its_own_transactions_and_its_answer_says_what_it_did(served, db, status, retry):
    key, hooks = f"django-lease-{status}", []

    def view(request):
        assert not connection.in_atomic_block
        with transaction.atomic(durable=True):
            insert(key)
            transaction.on_commit(lambda: hooks.append(1))
        assert hooks == [1]
        return HttpResponse("said", status=status)

    post = served(view, mode="lease")
    first, second = post(key), post(key)
    assert (first.status, first.body, hooks, db.effects(key)) == (status, b"said", [1], 1)
    assert problem_of(second) == retry if retry == "in-doubt" else (second.status, second.body) == (retry, b"said")


def test_an_application_is_tested_inside_a_test_case_of_djangos(served, db):
    hooks = []

    def view(request):
        insert("in-a-test")
        transaction.on_commit(lambda: hooks.append(1))
        return HttpResponse("said", status=json.loads(request.body)["status"])

    served(view)

    class Case(TestCase):
        def post(self, key, status):
            return Client().post("/orders", json.dumps({"status": status}), content_type="application/json", headers={"Idempotency-Key": key})

        def count(self):
            with connection.cursor() as cursor:
                cursor.execute("SELECT count(*) FROM effect WHERE key = 'in-a-test'")
                return cursor.fetchone()[0]

        def test_answers(self):
            with self.captureOnCommitCallbacks(execute=True) as callbacks:
                self.assertEqual([self.post("a", 201).status_code for _ in range(2)], [201, 201])
                self.assertEqual([self.post("b", 422).status_code for _ in range(2)], [422, 422])
                self.assertEqual([self.post("c", 500).status_code for _ in range(2)], [500, 500])
                self.assertEqual(self.post("a", 200).status_code, 422)
            self.assertEqual((self.count(), len(callbacks), len(hooks)), (1, 1, 1))

        def test_is_isolated(self):
            self.assertEqual((self.count(), self.post("a", 201).headers.get("Idempotency-Replayed"), self.count()), (0, None, 1))

    result = unittest.TestResult()
    unittest.TestSuite([Case("test_answers"), Case("test_is_isolated")]).run(result)
    connections.close_all()
    assert result.testsRun == 2 and not result.failures and not result.errors, result.failures + result.errors
    assert db.effects("in-a-test") == 0


@pytest.mark.parametrize("kind", ["broken", "short"])
def test_what_an_answer_holds_is_closed_though_it_is_not_sent(served, kind):
    closed = []

    class Source:
        def __iter__(self):
            yield b"first "
            if kind == "broken":
                raise RuntimeError("the source broke")

        def close(self):
            closed.append(1)

    assert served(lambda request: StreamingHttpResponse(Source(), headers={"Content-Length": "14"}))(f"django-held-{kind}").status == 500
    assert closed == [1]


@pytest.mark.filterwarnings("error:StreamingHttpResponse")
@pytest.mark.parametrize("kind", ["done", "broken", "streams"])
def test_an_asynchronous_view_under_asgi_is_in_the_requests_transaction(served, db, kind):
    key = f"django-async-{kind}"

    async def pieces():
        yield b"one "
        await asyncio.sleep(0)
        yield b"two"

    async def view(request):
        await sync_to_async(insert)(key)
        if kind == "broken":
            raise RuntimeError("broken")
        return StreamingHttpResponse(pieces(), status=201) if kind == "streams" else HttpResponse("one two", status=201)

    async def ask():
        transport = httpx.ASGITransport(ASGIHandler(), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop.test") as client:
            return [await client.post("/orders", headers={"Idempotency-Key": key}) for _ in range(2)]

    served(view)
    first, again = asyncio.run(ask())
    if kind == "broken":
        assert (first.status_code, again.status_code, db.effects(key)) == (500, 500, 0)
        return
    assert (first.status_code, first.text, again.text, again.headers["Idempotency-Replayed"]) == (201, "one two", "one two", "true")
    assert "Idempotency-Replayed" not in first.headers and db.effects(key) == 1


def test_a_length_that_is_a_number_is_taken(served):
    """As Django's test client may say it."""
    served(lambda request: HttpResponse("done"))
    headers = {"Idempotency-Key": "number"}
    replies = [Client().post("/orders", b"{}", content_type="application/json", headers=headers, CONTENT_LENGTH=2) for _ in range(2)]
    assert [(each.status_code, each.headers.get("Idempotency-Replayed")) for each in replies] == [(200, None), (200, "true")]


@pytest.mark.parametrize("path, line", [("/gr\u00fc\u00dfe/", "/gr%C3%BC%C3%9Fe/"), ("/gr\u00fc\u00dfe/\u2665", "/gr%C3%BC%C3%9Fe/%E2%99%A5")])
def test_a_path_beyond_ascii_is_the_same_request_whether_its_server_tells_the_request_line_or_not(served, path, line):
    post = served(lambda request: HttpResponse("done"), scope=lambda request: "django")
    given = {"content_type": "application/json", "headers": {"Idempotency-Key": f"beyond-{len(line)}", "Host": "shop.test"}}
    first = Client().post(path, b"{}", **given)
    again = post(f"beyond-{len(line)}", b"{}", [("Content-Type", "application/json")], line)
    assert (first.status_code, again.status, again.values("Idempotency-Replayed")) == (200, 200, ["true"])
