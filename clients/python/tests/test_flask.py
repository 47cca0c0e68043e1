# SPDX-License-Identifier: PostgreSQL
"""Flask with ordinary neighbours, on a real port: forms that others read first, sessions of Flask-SQLAlchemy, hooks after the answer, limits."""

import contextlib
import io
import json
import logging
import re
import socket
import threading
import time

import psycopg
import psycopg_pool
import pytest
import sqlalchemy
from flask import Flask, Response, abort, after_this_request, g, request, send_file, stream_with_context
from flask_cors import CORS
from flask_sqlalchemy import SQLAlchemy
from flask_wtf.csrf import CSRFProtect, generate_csrf

import pgonce
from pgonce.flask import protect

from drivers import alchemy_url
from frameworks import PATIENCE_S, threads
from .steps import Events, Reply, send
from .test_fastapi import problem_of
from .effects import INSERT

FORM = [("Content-Type", "application/x-www-form-urlencoded")]


class Service:
    def __init__(self, url, size=4, **options):
        self.pool = psycopg_pool.ConnectionPool(url, open=True, min_size=0, max_size=size, timeout=PATIENCE_S)
        self.app = Flask(__name__)
        self.app.secret_key, self.app.logger.disabled = "test", True
        self.protect = protect(self.pool, **{"scope": "flask", "tenant": None, **options})

    @contextlib.contextmanager
    def serving(self):
        with threads(self.app) as self.port:
            yield self
        self.pool.close()

    def post(self, path, key, body=b"", headers=FORM):
        return send(("127.0.0.1", self.port), "POST", path, [("Host", "shop.test"), ("Idempotency-Key", key), *headers], body)


def insert(key):
    g.tx.execute(INSERT.format(key))


def test_a_form_that_a_csrf_check_has_read_is_compared_all_the_same(db):
    service = Service(db.url)
    CSRFProtect(service.app)

    @service.app.get("/token")
    def token():
        return generate_csrf()

    @service.app.post("/orders")
    @service.protect
    def order():
        insert("csrf")
        return {"amount": request.form["amount"], "bytes": len(request.get_data())}, 201

    with service.serving():
        given = send(("127.0.0.1", service.port), "GET", "/token", [("Host", "shop.test")], b"")
        cookie = ("Cookie", given.values("Set-Cookie")[0].split(";")[0])
        form = b"amount=%s&csrf_token=" + given.body
        first, again, other = (service.post("/orders", "csrf", form % amount, [*FORM, cookie]) for amount in (b"100", b"100", b"999999"))
        refused = service.post("/orders", "csrf", b"amount=100", [*FORM, cookie])
    assert (first.status, json.loads(first.body)["amount"]) == (201, "100") and again.values("Idempotency-Replayed") == ["true"]
    assert other.status == 422 and refused.status == 400 and db.effects("csrf") == 1


def test_a_form_that_was_read_behind_its_back_is_refused_before_the_view(db):
    service = Service(db.url)
    ran = []

    @service.app.post("/orders")
    def order():  # not seen on the view
        request.form.get("amount")
        return service.protect(lambda: ran.append(1) or "done")()

    with service.serving():
        assert [service.post("/orders", "read", body).status for body in (b"amount=100", b"amount=999999")] == [500, 500]
    assert ran == []


@pytest.mark.parametrize("headers", [[("Content-Length", "6")], [("Transfer-Encoding", "chunked")]], ids=["length", "chunked"])
def test_a_view_reads_its_body_as_a_stream(db, headers):
    service = Service(db.url)

    @service.app.post("/orders")
    @service.protect
    def order():
        return request.stream.read(4) + b"|" + request.stream.read()

    body = b"abcdef" if headers[0][0] == "Content-Length" else b"3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n"
    head = "".join(f"{name}: {value}\r\n" for name, value in headers)
    with service.serving(), socket.create_connection(("127.0.0.1", service.port), timeout=PATIENCE_S) as connection:
        connection.sendall(f"POST /orders HTTP/1.1\r\nHost: shop.test\r\nIdempotency-Key: {head[:4]}\r\n{head}\r\n".encode() + body)
        raw = b""
        while piece := connection.recv(65536):
            raw += piece
    assert Reply(raw).body == b"abcd|ef"


def test_half_a_request_is_none(db):
    service = Service(db.url)
    ran = []

    @service.app.post("/orders")
    @service.protect
    def order():
        ran.append(request.get_data())
        return "done"

    with service.serving():
        with socket.create_connection(("127.0.0.1", service.port)) as connection:
            connection.sendall(b"POST /orders HTTP/1.1\r\nHost: shop.test\r\nIdempotency-Key: half\r\nContent-Length: 8\r\n\r\nhalf")
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass
        assert service.post("/orders", "half", b"half and half", ()).status == 200
    assert ran == [b"half and half"]


def test_the_first_answer_is_the_views_own_and_every_answer_bears_the_headers_of_outer_layers(db):
    service = Service(db.url)
    CORS(service.app)
    closed = []

    def answer():
        response = Response((each for each in ("one ", "two")), 201, {"X-Mixed-Case": "a"})
        for name, value in (("Link", "</a>"), ("Link", "</b>"), ("Once-Effect", "done")):
            response.headers.add(name, value)
        response.set_cookie("a", "1")
        response.call_on_close(lambda: closed.append(1))
        after_this_request(lambda made: made.headers.add("X-After", "yes") or made)
        return response

    service.app.add_url_rule("/plain", "plain", answer, methods=["POST"])
    service.app.add_url_rule("/orders", "orders", service.protect(answer), methods=["POST"])
    origin = [*FORM, ("Origin", "https://shop.test")]
    with service.serving():
        bare = service.post("/plain", "outer", b"a=1", origin)
        first, again, mismatch, malformed = (
            service.post("/orders", key, body, origin) for key, body in (("outer", b"a=1"), ("outer", b"a=1"), ("outer", b"a=2"), ('"', b""))
        )
    assert [each.status for each in (first, again, mismatch, malformed)] == [201, 201, 422, 400]
    assert all(each.values("Access-Control-Allow-Origin") for each in (first, again, mismatch, malformed))
    kept = [each for each in bare.headers if each[0] not in ("Date", "Once-Effect")]
    assert [each for each in first.headers if each[0] != "Date"] == kept and first.body == bare.body == again.body == b"one two"
    assert again.values("Link") == ["</a>", "</b>"] and again.values("X-After") == ["yes"] and again.values("Set-Cookie") == [] and len(closed) == 2


def test_files_errors_and_streams_come_whole(db):
    service = Service(db.url)

    @service.app.post("/file")
    @service.protect
    def file():
        return send_file(io.BytesIO(b"0123456789"), mimetype="text/plain", download_name="a.txt", conditional=True)

    @service.app.post("/abort")
    @service.protect
    def aborting():
        insert("aborted")
        abort(409)

    @service.app.post("/stream")
    @service.protect
    def streaming():
        @stream_with_context
        def pieces():
            yield str(g.tx.execute("SELECT 7").fetchone()[0])
            yield request.path

        return Response(pieces())

    with service.serving():
        first, again = service.post("/file", "file"), service.post("/file", "file")
        assert (first.status, first.body) == (200, b"0123456789") == (again.status, again.body)
        assert again.values("Idempotency-Replayed") == ["true"] and first.values("ETag") == again.values("ETag")
        assert service.post("/abort", "abort").status == 409 and db.effects("aborted") == 0
        assert service.post("/stream", "stream").body == b"7/stream"


@pytest.mark.parametrize("kind", ["short", "broken"])
def test_an_answer_that_is_not_whole_is_not_stored(db, kind):
    service = Service(db.url)

    @service.app.post("/orders")
    @service.protect
    def order():
        insert(f"flask-{kind}")

        def pieces():
            yield "first "
            if kind == "broken":
                raise RuntimeError("the source broke")

        return Response(pieces(), 201, {"Content-Length": "14"})

    with service.serving():
        assert service.post("/orders", f"flask-{kind}").status == 500
    assert db.effects(f"flask-{kind}") == 0 and db.value("SELECT count(*)::int FROM once.intent WHERE key = %s", f"flask-{kind}") == 0


def test_a_stream_of_events_passes_as_it_is_written_and_its_key_is_done(db):
    service, events = Service(db.url), Events()

    @service.app.post("/events")
    @service.protect
    def view():
        insert("flask-events")
        return Response(events.sent(), mimetype="text/event-stream")

    def between():
        assert db.effects("flask-events") == 1 and problem_of(service.post("/events", "events", b"", ())) == "too-large"

    with service.serving(), socket.create_connection(("127.0.0.1", service.port), timeout=PATIENCE_S) as connection:
        connection.sendall(b"POST /events HTTP/1.1\r\nHost: shop.test\r\nIdempotency-Key: events\r\n\r\n")
        events.received(connection, between)


# ---- the transaction ----


def test_a_transaction_that_was_kept_refuses_after_the_answer(db):
    service = Service(db.url, size=1)
    found = []

    @service.app.post("/orders")
    @service.protect
    def order():
        tx = g.tx
        tx.execute(INSERT.format("flask-early"))

        def late():
            try:
                tx.execute(INSERT.format("flask-late"))
            except pgonce.UsageError as refused:
                found.append(str(refused))

        response = Response("done")
        response.call_on_close(late)
        return response

    with service.serving():
        assert service.post("/orders", "kept").status == 200
        deadline = time.monotonic() + PATIENCE_S
        while not found and time.monotonic() < deadline:
            time.sleep(0.01)
    assert len(found) == 1 and "is over" in found[0] and (db.effects("flask-early"), db.effects("flask-late")) == (1, 0)


def test_a_constraint_that_fails_at_commit_is_the_applications_error_and_logged(db, caplog):
    db.rows("CREATE TABLE IF NOT EXISTS parent (id int PRIMARY KEY)")
    db.rows("CREATE TABLE IF NOT EXISTS child (parent int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)")
    service = Service(db.url)
    service.app.register_error_handler(psycopg.errors.ForeignKeyViolation, lambda error: ("ours", 500))

    @service.app.post("/orders")
    @service.protect
    def order():
        g.tx.execute("INSERT INTO child VALUES (7)")
        return "done"

    with caplog.at_level(logging.DEBUG, "pgonce"), service.serving():
        reply = service.post("/orders", "a-secret-key")
    assert (reply.status, reply.body) == (500, b"ours")
    (line,) = [each.getMessage() for each in caplog.records if each.name == "pgonce"]
    assert "sqlstate=23503" in line and "a-secret-key" not in line


def test_a_session_of_flask_sqlalchemy_is_the_views_transaction(db):
    app = Flask(__name__)
    app.logger.disabled = True
    app.config["SQLALCHEMY_DATABASE_URI"] = alchemy_url("psycopg", db.url)
    models = SQLAlchemy(app)

    class Effect(models.Model):
        __tablename__ = "effect"
        key = models.Column(models.Text, primary_key=True)
        attempt = models.Column(models.Integer)

    seen = []

    @app.before_request
    def load():  # as a login does
        seen.append(models.session.execute(sqlalchemy.text("SELECT count(*) FROM effect")).scalar())

    kinds = {"kept": 201, "refused": 422, "committing": 500, "rolling-back": 500, "broken": 500}

    @app.post("/orders/<kind>")
    @protect(models.session, scope="alchemy", tenant=None)
    def order(kind):
        models.session.add(Effect(key=f"alchemy-{kind}"))
        models.session.flush()
        if kind == "committing":
            models.session.commit()
        if kind == "rolling-back":
            models.session.rollback()
        if kind == "broken":
            raise RuntimeError("broken")
        return {"tx": g.tx is models.session()}, kinds[kind]

    @app.post("/dirty")
    @protect(models.session, scope="alchemy", tenant=None)
    def dirty():
        raise AssertionError

    with threads(app) as port:
        for kind, status in kinds.items():
            reply = send(("127.0.0.1", port), "POST", f"/orders/{kind}", [("Host", "shop.test"), ("Idempotency-Key", kind)], b"")
            assert reply.status == status, reply.body
            again = send(("127.0.0.1", port), "POST", f"/orders/{kind}", [("Host", "shop.test"), ("Idempotency-Key", kind)], b"")
            assert (again.status, again.values("Idempotency-Replayed")) == (status, ["true"] if status < 500 else [])
            assert db.effects(f"alchemy-{kind}") == int(kind == "kept")
        app.before_request_funcs[None].append(lambda: models.session.add(Effect(key="before")))
        assert send(("127.0.0.1", port), "POST", "/dirty", [("Host", "shop.test"), ("Idempotency-Key", "dirty")], b"").status == 500
    assert db.effects("before") == 0
    with app.app_context():
        assert models.engine.pool.checkedout() == 0
        models.engine.dispose()


def test_what_cannot_work_is_refused_when_the_view_is_decorated(db):
    with pytest.raises(pgonce.UsageError, match="asynchronous"):
        protect(psycopg_pool.AsyncConnectionPool(db.url, min_size=0, max_size=1, open=False), scope="flask", tenant=None)
    with pytest.raises(pgonce.UsageError, match="scoped"):
        protect(sqlalchemy.orm.scoped_session(sqlalchemy.orm.sessionmaker()), scope="flask", tenant=None, mode="lease")
    with pytest.raises(pgonce.UsageError, match="mode"):
        Service(db.url, mode="elsewhere")


# ---- limits, mode lease ----


@pytest.mark.parametrize("kind", ["outside", "in the database"])
def test_a_handler_that_takes_too_long_loses_its_transaction_and_its_client_is_told(db, kind):
    key = f"flask-late-{kind[:3]}"
    service = Service(db.url, size=1, handler_ms=3000)
    first, gone = [], []

    @service.app.post("/orders")
    @service.protect
    def order():
        insert(key)
        if not first:
            first.append(1)
            if kind == "in the database":
                g.tx.execute("SELECT pg_sleep(60)")
            count = "SELECT count(*)::int FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database()"
            deadline = time.monotonic() + PATIENCE_S
            while db.value(count) and time.monotonic() < deadline:
                time.sleep(0.05)
            gone.append(db.value(count))
        return "done"

    with service.serving():
        reply = service.post("/orders", key)
        assert (reply.status, problem_of(reply)) == (503, "timed-out") and db.effects(key) == 0
        assert service.post("/orders", key).status == 200
    assert gone in ([0], []) and db.effects(key) == 1


@pytest.mark.parametrize("status, retry", [(201, 201), (500, "in-doubt"), (402, 402)])
def test_in_mode_lease_a_view_has_no_transaction_and_its_answer_says_what_it_did(db, status, retry):
    key = f"flask-lease-{status}"
    service = Service(db.url, size=1, mode="lease")
    runs = []

    @service.app.post("/orders")
    @service.protect
    def order():
        assert "tx" not in g
        runs.append(1)
        with service.pool.connection() as own:
            own.execute(INSERT.format(key))
        return "said", status

    with service.serving():
        first, second = service.post("/orders", key), service.post("/orders", key)
    assert (first.status, first.body, len(runs)) == (status, b"said", 1)
    assert problem_of(second) == retry if retry == "in-doubt" else (second.status, second.body) == (retry, b"said")


def test_in_mode_lease_a_view_that_raises_leaves_a_doubt(db):
    service = Service(db.url, mode="lease")

    @service.app.post("/orders")
    @service.protect
    def order():
        raise RuntimeError("the provider hung up")

    with service.serving():
        assert service.post("/orders", "flask-raises").status == 500
        assert problem_of(service.post("/orders", "flask-raises")) == "in-doubt"
    assert re.fullmatch("RuntimeError", db.value("SELECT error_code FROM once.intent WHERE key = 'flask-raises'"))


# ---- what an answer holds ----


@pytest.mark.parametrize("kind", ["broken", "short", "commit"])
def test_what_an_answer_holds_is_closed_though_it_is_not_sent(db, kind):
    service = Service(db.url)
    db.rows("CREATE TABLE IF NOT EXISTS held (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    closed = []

    @service.app.post("/orders")
    @service.protect
    def order():
        if kind == "commit":
            g.tx.execute("INSERT INTO held VALUES (1), (1)")

        def pieces():
            try:
                yield "first "
                if kind == "broken":
                    raise RuntimeError("the source broke")
            finally:
                closed.append("generator")

        answer = Response(stream_with_context(pieces()), headers={"Content-Length": "14"} if kind == "short" else None)
        answer.call_on_close(lambda: closed.append("answer"))
        return answer

    with service.serving():
        assert service.post("/orders", f"flask-held-{kind}").status == 500
        assert sorted(closed) == ["answer", "generator"]


def test_a_view_that_is_protected_twice_is_refused_before_it_runs_and_is_told_why(db, caplog):
    service = Service(db.url)
    ran = []

    @service.app.post("/orders")
    @service.protect
    @protect(service.pool, scope="inner", tenant=None)
    def order():
        ran.append(1)
        return "done"

    @service.app.errorhandler(pgonce.UsageError)
    def told(error):
        return str(error), 500

    with service.serving():
        reply = service.post("/orders", "twice")
    assert (reply.status, ran) == (500, []) and b"protected already" in reply.body
    assert db.value("SELECT count(*)::int FROM once.intent WHERE key = 'twice'") == 0
