# SPDX-License-Identifier: PostgreSQL
"""The handlers of cases.json in Flask, with the neighbours that its documentation names. gunicorn binds to $PORT."""

import contextlib
import datetime
import hashlib
import os

import psycopg_pool
import shared
from flask import Blueprint, Flask, Response, abort, g, jsonify, make_response, redirect, request, send_file, send_from_directory, session, stream_with_context
from flask_compress import Compress
from flask_cors import CORS
from flask_wtf.csrf import CSRFProtect, generate_csrf
from shared import INSERT, ON, ORDER

from pgonce.flask import protect

pool = psycopg_pool.ConnectionPool(shared.URL, open=True, min_size=0, max_size=4, kwargs={"autocommit": not ON})
app = Flask(__name__, static_folder=None)
app.config.update(SECRET_KEY="of a test", WTF_CSRF_CHECK_DEFAULT=False, COMPRESS_STREAMS=False)
Compress(app)
CORS(
    app, origins="https://shop.example", supports_credentials=True, allow_headers=["Idempotency-Key", "Content-Type"], methods=["GET", "POST"],
    expose_headers=["Idempotency-Replayed"],
)  # fmt: skip
csrf_protect = CSRFProtect(app)


def elsewhere(name):
    with pool.connection() as own:
        own.execute(INSERT, (name,))


@contextlib.contextmanager
def connection():
    """The transaction of the request; without pgonce a connection of the pool."""
    if ON:
        yield g.tx
    else:
        with pool.connection() as own:
            yield own


def execute(sql, *values):
    with connection() as tx:
        tx.execute(sql, values or None)


def does(name, inserts=True, on=app):
    """A handler that inserts its effect first."""

    def decorate(view):
        def viewed(**named):
            if inserts:
                execute(INSERT, request.path.lstrip("/"))
            return view(**named)

        viewed.__name__ = name
        on.add_url_rule(f"/{name}", name, protect(pool, **shared.OPTIONS)(viewed) if ON else viewed, methods=["POST"])
        return view

    return decorate


@app.before_request
def outside():
    if request.path == "/csrf":
        csrf_protect.protect()
    if request.path == "/read-outside":
        request.form.get("amount")
    if request.path == "/auth" and request.authorization is None:
        return Response("Unauthorized", 401, {"WWW-Authenticate": 'Basic realm="x"'}, mimetype="text/plain")


@app.after_request
def outer(response):
    if request.path == "/outer":
        response.headers["X-Outer"] = "one"
        response.headers.add("Link", "</outer>; rel=help")
        response.headers["Content-Language"] = "de"
    return response


def plain(text, status=200, headers=None):
    return Response(text, status, headers, mimetype="text/plain")


@app.get("/-/pool")
def in_use():
    stats = pool.get_stats()
    return {"in_use": stats["pool_size"] - stats["pool_available"]}


@does("json")
def json():
    return ORDER, 201


@does("text")
def text():
    return plain(shared.TEXT)


@does("empty")
def empty():
    return ""


@does("no-content")
def no_content():
    return "", 204


@does("reset-content")
def reset_content():
    return "", 205


@does("large")
def large():
    size = int(request.args["bytes"])
    return Response(shared.large(size), mimetype="application/octet-stream", headers={"Content-Length": str(size)})


@does("stream-bytes")
def stream_bytes():
    return Response(iter(shared.PIECES), mimetype="application/octet-stream")


@does("stream-text")
def stream_text():
    return plain(iter(shared.LINES))


@does("file")
def file():
    return send_file(os.path.join(shared.FILES, "report.txt"))


@does("download")
def download():
    return send_file(os.path.join(shared.FILES, "report.txt"), as_attachment=True, download_name="rapport é.txt")


@does("redirect")
def redirect_303():
    return redirect("/json", 303)


@does("redirect-307")
def redirect_307():
    return redirect("/json", 307)


@does("cookies")
def cookies():
    response = make_response(plain("cookies"))
    response.set_cookie("a", "1", httponly=True)
    response.set_cookie("b", "2", samesite="Lax")
    return response


@does("repeated")
def repeated():
    response = plain("repeated")
    for name, value in (("Link", "</a>; rel=next"), ("Link", "</b>; rel=last"), ("X-Part", "one"), ("X-Part", "two"), ("Vary", "Origin"), ("Vary", "Accept")):
        response.headers.add(name, value)
    response.headers["Cache-Control"] = "no-store"
    return response


@does("odd")
def odd():
    return plain("odd", headers={"X-Odd": "café", "X-Empty": "", "X-Long": "x" * 4000, "X-Spaced": "a  b\tc"})


@does("close")
def close():
    return plain("close", headers={"Connection": "close"})


# ---- with neighbours ----


@does("compressed")
def compressed():
    return plain("compress me, please. " * 200)


@does("cors")
def cors():
    return {"cors": True}, 201


@does("outer")
def outer_():
    return {"outer": True}, 201


@does("inner")
def inner_():
    response = jsonify(inner=True)
    response.headers["X-Inner"] = "one"
    return response, 201


@does("auth")
def auth():
    return plain("auth")


@app.get("/session")
def begin_session():
    session["visits"] = 0
    return {"visits": 0}


@does("session")
def session_():
    session["visits"] += 1
    return {"visits": session["visits"]}


@app.get("/csrf")
def token():
    return plain(generate_csrf())


@does("csrf")
def csrf():
    return {"csrf": True, "amount": request.form["amount"]}, 201


# ---- bodies ----


@does("read-outside")
def read_outside():
    return {"amount": request.form["amount"]}


@does("form")
def form():
    return request.form.to_dict(flat=False)


@does("upload")
def upload():
    files = []
    for name, each in request.files.items(multi=True):
        data = each.read()
        files.append([name, each.filename, each.mimetype, len(data), shared.digest(data)])
    return {"fields": request.form.to_dict(), "files": files}


@does("body")
def body():
    return {"got": request.get_json()}


@does("echo")
def echo():
    said = {"X-Type": request.headers.get("Content-Type", ""), "X-Encoding": request.headers.get("Content-Encoding", "")}
    return Response(request.get_data(), headers=said, mimetype="application/octet-stream")


@does("digest")
def digest():
    size, made = 0, hashlib.sha256()
    while piece := request.stream.read(65536):
        size += len(piece)
        made.update(piece)
    return {"size": size, "sha256": made.hexdigest()}


@does("request")
def request_():
    return {
        "method": request.method, "target": request.environ["RAW_URI"], "host": request.host, "accept": request.headers.getlist("Accept"),
        "a": request.args.getlist("a"), "client": request.remote_addr is not None,
    }  # fmt: skip


@does("unread")
def unread():
    return plain("unread")


# ---- errors ----


@does("throws")
def throws():
    raise RuntimeError("thrown")


@does("throws-late")
def throws_late():
    def pieces():
        yield "first "
        yield "second "
        raise RuntimeError("thrown late")

    return plain(pieces())


@does("status")
def status():
    code = int(request.args["code"])
    if "raise" in request.args:
        abort(code, "sorry")
    return {"code": code}, code


@does("retry-after")
def retry_after():
    return plain("later", 503, {"Retry-After": "7"})


@does("deferred")
def deferred():
    execute("INSERT INTO taken (id) VALUES (1)")
    return {"deferred": True}, 201


@does("deadlock")
def deadlock():
    execute("SELECT deadlock()")
    return plain("deadlock", 201)


@does("swallowed")
def swallowed():
    with contextlib.suppress(Exception):
        execute("SELECT 1/0")
    return plain("swallowed", 201)


# ---- transactions ----


@does("commit")
def commit():
    execute("COMMIT")
    return plain("commit", 201)


@does("nested", inserts=False)
def nested():
    with connection() as tx, tx.transaction():
        with contextlib.suppress(RuntimeError), tx.transaction():
            tx.execute(INSERT, ("nested-inner",))
            raise RuntimeError("rolled back")
        tx.execute(INSERT, ("nested",))
    return {"nested": True}, 201


@does("role", inserts=False)
def role():
    if ON:
        g.tx.execute("SET LOCAL ROLE reader")
    execute(INSERT, "role")
    return plain("role", 201)


@does("background")
def background():
    response = plain("background", 202)
    response.call_on_close(lambda: elsewhere("background-task"))
    return response


@does("late-tx")
def late_tx():
    tx = g.get("tx")

    def late():
        try:
            if not ON:
                raise RuntimeError("there is no tx")
            tx.execute(INSERT, (shared.LATE[0],))
        except Exception:
            elsewhere(shared.LATE[1])

    response = plain("late-tx", 202)
    response.call_on_close(late)
    return response


@does("second")
def second():
    with pool.connection() as own:
        own.execute("SELECT 1")
    return {"second": 1}, 201


# ---- odd answers ----


@does("destroyed")
def destroyed():
    def pieces():
        yield "half "
        raise ConnectionAbortedError

    return plain(pieces())


@does("short")
def short():
    return plain(iter(["short"]), headers={"Content-Length": "10"})


@does("long")
def long():
    return plain(iter(["too long"]), headers={"Content-Length": "4"})


@does("invalid-status")
def invalid_status():
    return plain("odd", 99)


@does("bad-header")
def bad_header():
    return plain("odd", headers={"X-Bad": "a\nb"})


@does("events")
def events():
    def stream():
        yield "data: one\n\n"
        with pool.connection() as own:
            own.execute("SELECT gate()")
        yield "data: two\n\n"

    return Response(stream(), mimetype="text/event-stream")


@does("gate")
def gate():
    @stream_with_context
    def pieces():
        yield "before "
        execute("SELECT gate()")
        yield "after"

    return plain(pieces())


# ---- a blueprint, conditional requests, files ----

sub = Blueprint("sub", __name__)


@does("json", on=sub)
def sub_json():
    return ORDER, 201


app.register_blueprint(sub, url_prefix="/sub")


@app.get("/cacheable")
def cacheable():
    response = plain("cacheable")
    response.set_etag("v1")
    response.last_modified = datetime.datetime(2022, 1, 1)
    return response.make_conditional(request)


@app.get("/files/<path:name>")
def files(name):
    return send_from_directory(shared.FILES, name)
