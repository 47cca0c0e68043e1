# SPDX-License-Identifier: PostgreSQL
"""Middleware for Django. It goes behind AuthenticationMiddleware, so that no other user gets a stored answer.

    MIDDLEWARE = [..., "pgonce.django.OnceMiddleware"]
    PGONCE = {"scope": lambda request: "payments" if request.path == "/payments" else None,
              "tenant": lambda request: request.user.get_username()}

The view runs in one transaction of the database "default" (or PGONCE["using"]) with its answer, and its on_commit hooks after COMMIT. In a TestCase
of Django's that transaction is a savepoint of the test's own."""

from __future__ import annotations

import io
import threading
from typing import Any, AsyncIterator, Callable, Dict, List

from ._needs import needs

needs("django", "django")

from asgiref.sync import async_to_sync
from django.conf import settings
from django.http import HttpResponse, HttpResponseBadRequest, UnreadablePostError

from . import _gate, errors, http
from ._django import Connection
from ._drivers import Source
from ._wsgi import held, is_cut_short, let_go, protect


class _Source(Source):
    def __init__(self, using: str) -> None:
        self.using = using

    def acquire(self, within: float) -> Any:
        connection = Connection(self.using)
        connection.tx.ensure_connection()  # else the first statement would, and a database that is away be a connection that was lost
        return connection

    def release(self, connection: Any) -> Any:
        own = threading.current_thread().name == "pgonce-heartbeat"  # Django closes those of requests only
        (connection.close if connection.lost() or own else connection.rollback)()


class OnceMiddleware:
    sync_capable, async_capable = True, False

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        options = dict(settings.PGONCE)
        self.using = options.pop("using", "default")
        self.source = _Source(self.using)
        self.get_response, self.policy = get_response, _gate.Policy(**options)

    def __call__(self, request: Any) -> Any:
        policy = self.policy
        scope = policy.scope_of(request, request.method)
        if scope is None:
            return self.get_response(request)

        made: List[Any] = []

        def handle(_: Any) -> http.Response:
            made.append(self.get_response(request))
            return collected(request, made[0])

        given = None if policy.tenant is None else policy.tenant(request)
        if _gate.is_answer(given):
            return given
        length = str(request.META.get("CONTENT_LENGTH") or 0)  # a number, of some test clients
        if length.isdigit() and int(length) > policy.body_max:
            return written(_gate.body_too_large(policy))
        try:
            body = _body_of(request, policy.body_max)
        except UnreadablePostError:
            return HttpResponseBadRequest()
        if is_cut_short(request.META, body):
            return HttpResponseBadRequest()
        if policy.mode == "lease" and not Connection(self.using).idle():
            raise errors.UsageError("this request is inside a transaction already: a claim is committed before the view runs")
        try:
            answer = protect(self.source, policy, scope, _environ(request), given, body, handle)
        except _gate.Passes:
            return self.get_response(request)
        except BaseException:
            let_go(made)
            raise
        if answer.native is None:
            let_go(made)
            return written(answer)
        for name in [each for each in answer.native.headers if http.reserved(each)]:
            del answer.native[name]
        if answer.effect:
            answer.native["Once-Effect"] = answer.effect
        return answer.native


def _environ(request: Any) -> Dict[str, Any]:
    """As WSGI has it: Django makes text of the path, in place."""
    meta = request.META
    return {**meta, **{name: meta.get(name, "").encode("utf-8", "surrogateescape").decode("latin-1") for name in ("SCRIPT_NAME", "PATH_INFO")}}


def _body_of(request: Any, most: int) -> bytes:
    """The bytes of the request. Later readers find it unread, under Django's own limits."""
    if hasattr(request, "_body"):
        return bytes(request._body)
    if request._read_started:
        raise errors.UsageError("an outer middleware has read the request's body: put OnceMiddleware before it")
    body = bytes(request.read(most + 1))
    request._stream, request._read_started = io.BytesIO(body), False
    return body


def collected(request: Any, answer: Any) -> http.Response:
    """Read to its end, and as it was: what was a stream stays one."""
    headers = [(name, str(value)) for name, value in answer.items()]
    headers += [("Set-Cookie", morsel.OutputString()) for morsel in answer.cookies.values()]
    asynchronous = answer.streaming and getattr(answer, "is_async", False) and not http.is_endless(headers)
    said = async_to_sync(_read)(answer) if asynchronous else answer if answer.streaming else (answer.content,)
    found, pieces = held(request.method, answer.status_code, headers, said, answer)
    if answer.streaming and not found.endless:
        answer.streaming_content = _again(pieces) if asynchronous else iter(pieces)
    return found


async def _read(stream: Any) -> List[bytes]:
    read, length = [], 0
    async for piece in stream:
        read.append(piece)
        length += len(piece)
        _gate.check_held(length)
    return read


async def _again(pieces: List[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def written(answer: http.Response) -> Any:
    made = HttpResponse(answer.body, status=answer.status)
    del made["Content-Type"]
    for name, value in answer.headers:
        lower = name.lower()
        if lower == "set-cookie":
            made.cookies.load(value)
        elif lower not in ("content-length", "transfer-encoding"):
            made[name] = f"{made[name]}, {value}" if made.has_header(name) else value
    return made
