# SPDX-License-Identifier: PostgreSQL
"""The handlers of cases.json in Django, with the neighbours that come with it. gunicorn binds to $PORT."""

import contextlib
import hashlib
import json as json_
import os
import sys
import threading

import django
import shared
from django import forms
from django.conf import settings
from django.core.handlers.wsgi import WSGIHandler
from django.db import connection, connections, transaction
from django.http import FileResponse, HttpResponse, HttpResponseBadRequest, HttpResponseRedirect, JsonResponse, StreamingHttpResponse
from django.middleware.csrf import get_token
from django.urls import include, path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.gzip import gzip_page
from django.views.decorators.http import condition, require_http_methods, require_POST
from django.views.static import serve
from shared import INSERT, ON, ORDER

DATABASE = {
    "ENGINE": "django.db.backends.postgresql", "NAME": os.environ["DATABASE_NAME"], "HOST": "127.0.0.1", "PORT": os.environ["DATABASE_PORT"], "USER": "postgres",
    "OPTIONS": {"pool": {"min_size": 0, "max_size": 4}},
}  # fmt: skip
OUTSIDE = [
    "app.reading", "app.outer", "app.authenticating", "corsheaders.middleware.CorsMiddleware", "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
]  # fmt: skip
settings.configure(
    DATABASES={"default": DATABASE, "second": DATABASE}, ROOT_URLCONF="app", ALLOWED_HOSTS=["*"], SECRET_KEY="of a test", LOGGING_CONFIG=None, APPEND_SLASH=False,
    MIDDLEWARE=OUTSIDE + (["pgonce.django.OnceMiddleware"] if ON else []) + ["app.inner"], PGONCE={**shared.OPTIONS, "scope": lambda request: "transparency"},
    INSTALLED_APPS=["corsheaders"], SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies", CSRF_HEADER_NAME="HTTP_X_CSRF_TOKEN",
    CORS_ALLOWED_ORIGINS=["https://shop.example"], CORS_ALLOW_CREDENTIALS=True, CORS_ALLOW_HEADERS=["idempotency-key", "content-type"],
    CORS_ALLOW_METHODS=["GET", "POST"], CORS_EXPOSE_HEADERS=["Idempotency-Replayed"],
)  # fmt: skip
sys.modules.setdefault("app", sys.modules[__name__])
django.setup()


def execute(sql, *values):
    with connection.cursor() as cursor:
        cursor.execute(sql, values or None)


def in_use():
    """Of Django's own pool: those that are out."""
    stats = connection.pool.get_stats()
    return stats["pool_size"] - stats["pool_available"]


def elsewhere(name):
    with connections["second"].cursor() as cursor:
        cursor.execute(INSERT, (name,))


# ---- neighbours ----


def reading(get_response):
    def middleware(request):
        if request.path == "/read-outside":
            request.POST.get("amount")
        return get_response(request)

    return middleware


def outer(get_response):
    def middleware(request):
        response = get_response(request)
        if request.path == "/outer":
            response["X-Outer"], response["Link"], response["Content-Language"] = "one", "</outer>; rel=help", "de"
        return response

    return middleware


def inner(get_response):
    def middleware(request):
        response = get_response(request)
        if request.path == "/inner":
            response["X-Inner"] = "one"
        return response

    return middleware


def authenticating(get_response):
    def middleware(request):
        if request.path == "/auth" and request.headers.get("Authorization") != "Basic dTpw":
            return plain("Unauthorized", 401, {"WWW-Authenticate": 'Basic realm="x"'})
        return get_response(request)

    return middleware


# ---- answers ----

urlpatterns = []


def does(name, inserts=True, exempt=True, get=None):
    """A view that inserts its effect first. get: what GET answers, without one."""

    def decorate(view):
        def viewed(request):
            if get is not None and request.method == "GET":
                return get(request)
            if inserts:
                execute(INSERT, request.path.lstrip("/"))
            return view(request)

        checked = require_POST(viewed) if get is None else require_http_methods(["GET", "POST"])(viewed)
        urlpatterns.append(path(name, csrf_exempt(checked) if exempt else checked))
        return view

    return decorate


def plain(text, status=200, headers=None):
    kind = HttpResponse if isinstance(text, str) else StreamingHttpResponse
    return kind(text, status=status, headers=headers, content_type="text/plain; charset=utf-8")


urlpatterns.append(path("-/pool", lambda request: JsonResponse({"in_use": in_use()})))


@does("json")
def json(request):
    return JsonResponse(ORDER, status=201)


@does("text")
def text(request):
    return plain(shared.TEXT)


@does("empty")
def empty(request):
    return HttpResponse()


@does("no-content")
def no_content(request):
    return HttpResponse(status=204)


@does("reset-content")
def reset_content(request):
    return HttpResponse(status=205)


@does("large")
def large(request):
    size = int(request.GET["bytes"])
    return StreamingHttpResponse(shared.large(size), content_type="application/octet-stream", headers={"Content-Length": str(size)})


@does("stream-bytes")
def stream_bytes(request):
    return StreamingHttpResponse(iter(shared.PIECES), content_type="application/octet-stream")


@does("stream-text")
def stream_text(request):
    return plain(iter(shared.LINES))


@does("file")
def file(request):
    return FileResponse(open(os.path.join(shared.FILES, "report.txt"), "rb"))


@does("download")
def download(request):
    return FileResponse(open(os.path.join(shared.FILES, "report.txt"), "rb"), as_attachment=True, filename="rapport é.txt")


@does("redirect")
def redirect(request):
    return HttpResponseRedirect("/json", status=303)


@does("redirect-307")
def redirect_307(request):
    return HttpResponseRedirect("/json", status=307)


@does("cookies")
def cookies(request):
    response = plain("cookies")
    response.set_cookie("a", "1", httponly=True)
    response.set_cookie("b", "2", samesite="Lax")
    return response


@does("repeated")
def repeated(request):
    return plain("repeated", headers={"Link": "</a>; rel=next, </b>; rel=last", "X-Part": "one, two", "Vary": "Origin, Accept", "Cache-Control": "no-store"})


@does("odd")
def odd(request):
    return plain("odd", headers={"X-Odd": "café", "X-Empty": "", "X-Long": "x" * 4000, "X-Spaced": "a  b\tc"})


# ---- with neighbours ----


@does("compressed")
@gzip_page
def compressed(request):
    return plain("compress me, please. " * 200)


@does("cors")
def cors(request):
    return JsonResponse({"cors": True}, status=201)


@does("outer")
def outer_(request):
    return JsonResponse({"outer": True}, status=201)


@does("inner")
def inner_(request):
    return JsonResponse({"inner": True}, status=201)


@does("auth")
def auth(request):
    return plain("auth")


def begin_session(request):
    request.session["visits"] = 0
    return JsonResponse({"visits": 0})


@does("session", get=begin_session)
def session(request):
    request.session["visits"] += 1
    return JsonResponse({"visits": request.session["visits"]})


@does("csrf", exempt=False, get=lambda request: plain(get_token(request)))
def csrf(request):
    return JsonResponse({"csrf": True, "amount": request.POST["amount"]}, status=201)


# ---- bodies ----


@does("read-outside")
def read_outside(request):
    return JsonResponse({"amount": request.POST["amount"]})


@does("form")
def form(request):
    return JsonResponse(dict(request.POST.lists()))


@does("upload")
def upload(request):
    files = []
    for name, several in request.FILES.lists():
        for each in several:
            data = each.read()
            files.append([name, each.name, each.content_type, each.size, shared.digest(data)])
    return JsonResponse({"fields": request.POST.dict(), "files": files})


@does("body")
def body(request):
    try:
        return JsonResponse({"got": json_.loads(request.body)})
    except ValueError as wrong:
        return HttpResponseBadRequest(str(wrong))


class Valid(forms.Form):
    amount = forms.IntegerField()


@does("valid")
def valid(request):
    given = Valid(json_.loads(request.body))
    return JsonResponse(given.cleaned_data) if given.is_valid() else JsonResponse(given.errors, status=422)


@does("echo")
def echo(request):
    said = {"X-Type": request.headers.get("Content-Type", ""), "X-Encoding": request.headers.get("Content-Encoding", "")}
    return HttpResponse(request.body, headers=said, content_type="application/octet-stream")


@does("digest")
def digest(request):
    size, made = 0, hashlib.sha256()
    while piece := request.read(65536):
        size += len(piece)
        made.update(piece)
    return JsonResponse({"size": size, "sha256": made.hexdigest()})


@does("request")
def request_(request):
    return JsonResponse({
        "method": request.method, "target": request.META["RAW_URI"], "host": request.get_host(), "accept": request.headers["Accept"].split(","),
        "a": request.GET.getlist("a"), "client": "REMOTE_ADDR" in request.META,
    })  # fmt: skip


@does("unread")
def unread(request):
    return plain("unread")


# ---- errors ----


@does("throws")
def throws(request):
    raise RuntimeError("thrown")


@does("throws-late")
def throws_late(request):
    def pieces():
        yield "first "
        yield "second "
        raise RuntimeError("thrown late")

    return plain(pieces())


@does("status")
def status(request):
    code = int(request.GET["code"])
    return plain("sorry", code) if "raise" in request.GET else JsonResponse({"code": code}, status=code)


@does("retry-after")
def retry_after(request):
    return plain("later", 503, {"Retry-After": "7"})


@does("deferred")
def deferred(request):
    execute("INSERT INTO taken (id) VALUES (1)")
    return JsonResponse({"deferred": True}, status=201)


@does("deadlock")
def deadlock(request):
    execute("SELECT deadlock()")
    return plain("deadlock", 201)


@does("swallowed")
def swallowed(request):
    with contextlib.suppress(Exception):
        execute("SELECT 1/0")
    return plain("swallowed", 201)


# ---- transactions ----


@does("commit")
def commit(request):
    execute("COMMIT")
    return plain("commit", 201)


@does("nested", inserts=False)
def nested(request):
    with transaction.atomic():
        with contextlib.suppress(RuntimeError), transaction.atomic():
            execute(INSERT, "nested-inner")
            raise RuntimeError("rolled back")
        execute(INSERT, "nested")
    return JsonResponse({"nested": True}, status=201)


@does("role", inserts=False)
def role(request):
    if ON:
        execute("SET LOCAL ROLE reader")
    execute(INSERT, "role")
    return plain("role", 201)


@does("after-commit")
def after_commit(request):
    transaction.on_commit(lambda: elsewhere("after-commit-hook"))
    return plain("after-commit", 201)


@does("background")
def background(request):
    def work():
        elsewhere("background-task")
        connections.close_all()

    threading.Thread(target=work).start()
    return plain("background", 202)


@does("second")
def second(request):
    with connections["second"].cursor() as cursor:
        cursor.execute("SELECT 1")
    return JsonResponse({"second": 1}, status=201)


# ---- odd answers ----


@does("destroyed")
def destroyed(request):
    def pieces():
        yield "half "
        raise ConnectionAbortedError

    return plain(pieces())


@does("short")
def short(request):
    return plain(iter(["short"]), headers={"Content-Length": "10"})


@does("long")
def long(request):
    return plain(iter(["too long"]), headers={"Content-Length": "4"})


@does("invalid-status")
def invalid_status(request):
    return plain("odd", 99)


@does("bad-header")
def bad_header(request):
    return plain("odd", headers={"X-Bad": "a\nb"})


@does("events")
def events(request):
    def stream():
        yield "data: one\n\n"
        with connections["second"].cursor() as cursor:
            cursor.execute("SELECT gate()")
        yield "data: two\n\n"

    return StreamingHttpResponse(stream(), content_type="text/event-stream")


@does("gate")
def gate(request):
    def pieces():
        yield "before "
        execute("SELECT gate()")
        yield "after"

    return plain(pieces())


# ---- other addresses ----


@csrf_exempt
@require_POST
def sub_json(request):
    execute(INSERT, "sub/json")
    return JsonResponse(ORDER, status=201)


@require_http_methods(["GET", "HEAD"])
@condition(etag_func=lambda request: '"v1"')
def cacheable(request):
    return plain("cacheable", headers={"Last-Modified": "Sat, 01 Jan 2022 00:00:00 GMT"})


@require_http_methods(["GET", "HEAD"])
def files(request, name):
    return serve(request, name, document_root=shared.FILES)


urlpatterns += [path("sub/", include([path("json", sub_json)])), path("cacheable", cacheable), path("files/<path:name>", files)]
app = WSGIHandler()
