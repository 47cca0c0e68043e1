# SPDX-License-Identifier: PostgreSQL
"""Middleware for Django. It goes behind AuthenticationMiddleware, so that nobody else gets a stored answer.

    MIDDLEWARE = [..., "pgonce.django.OnceMiddleware"]
    PGONCE = {"scope": lambda request: "payments" if request.path == "/payments" else None,
              "tenant": lambda request: request.user.get_username()}

The view runs in one transaction of the database "default" (or PGONCE["using"]) with its answer."""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

from django.conf import settings
from django.db import connections, transaction
from django.http import HttpResponse

from . import _gate, _sql, errors, http
from ._drivers import Source
from ._trouble import Statement, Trouble, named, trouble_of
from ._wsgi import protect


class Connection:
    """Django's own connection of this thread."""

    def __init__(self, using: str) -> None:
        self.using, self.tx = using, connections[using]
        self.atomic: Any = None
        self.gone = False

    def trouble(self, raised: BaseException) -> Optional[Trouble]:
        cause = raised.__cause__ if type(raised).__module__ == "django.db.utils" else raised
        if isinstance(raised, transaction.TransactionManagementError):
            return Trouble(errors.SwallowedError.sqlstate, False)
        sqlstate = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
        database = self.tx.Database
        if not isinstance(cause, (database.Error, database.InterfaceError)):
            return None
        own = self.tx.connection
        found = trouble_of(sqlstate, None, own is None or bool(own.closed))
        self.gone = self.gone or found.lost
        return found

    def lost(self) -> bool:
        return self.gone

    def idle(self) -> bool:
        return not self.tx.in_atomic_block

    def in_transaction(self) -> bool:
        return bool(self.tx.in_atomic_block)

    def query(self, sql: str, arguments: Sequence[Any]) -> Any:
        with self.tx.cursor() as cursor:
            if arguments:
                cursor.execute(_sql.spelled(sql, "%(p{})s"), named(arguments))
            else:
                cursor.execute(sql)
            return cursor.fetchone() if cursor.description else None

    def begin(self, statements: Sequence[Statement], keep: int) -> Any:
        if self.tx.in_atomic_block:
            raise errors.UsageError("this request is inside a transaction already: put the middleware outside of it")
        self.atomic = transaction.atomic(using=self.using, durable=True)
        self.atomic.__enter__()
        return [self.query(*each) for each in statements][keep]

    def commit(self, statements: Sequence[Statement]) -> Any:
        if statements[0][0] == _sql.ROLLBACK_TO_SAVEPOINT:
            self.tx.needs_rollback = False
        elif self.tx.needs_rollback:  # atomic would roll back in silence
            raise errors.SwallowedError()
        row = [self.query(*each) for each in statements][-1]
        atomic, self.atomic = self.atomic, None
        atomic.__exit__(None, None, None)
        return row

    def alone(self, sql: str, arguments: Sequence[Any]) -> Any:
        return self.query(sql, arguments)

    def rollback(self) -> None:
        atomic, self.atomic = self.atomic, None
        if atomic is not None:
            raised = errors.NotDone("rolled back")
            atomic.__exit__(type(raised), raised, None)

    def close(self) -> None:
        try:
            self.rollback()
        except Exception:
            pass
        self.tx.close()


class _Source(Source):
    def __init__(self, using: str) -> None:
        self.using = using

    def acquire(self) -> Any:
        return Connection(self.using)

    def release(self, connection: Any) -> Any:
        (connection.close if connection.lost() else connection.rollback)()


class OnceMiddleware:
    sync_capable, async_capable = True, False

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        options = dict(settings.PGONCE)
        self.source = _Source(options.pop("using", "default"))
        self.get_response, self.policy = get_response, _gate.Policy(**options)

    def __call__(self, request: Any) -> Any:
        policy = self.policy
        scope = policy.scope_of(request, request.method)
        if scope is None:
            return self.get_response(request)

        def handle(_: Any) -> http.Response:
            return collected(self.get_response(request))

        given = None if policy.tenant is None else policy.tenant(request)
        if _gate.is_answer(given):
            return given
        length = request.META.get("CONTENT_LENGTH") or "0"
        if length.isdigit() and int(length) > policy.body_max:
            return written(_gate.body_too_large(policy))
        try:
            return written(protect(self.source, policy, scope, request.META, given, request.body, handle))
        except _gate.Passes:
            return self.get_response(request)


def collected(answer: Any) -> http.Response:
    headers = [(name, str(value)) for name, value in answer.items()]
    headers += [("Set-Cookie", morsel.OutputString()) for morsel in answer.cookies.values()]
    _gate.check_answer(headers)
    body = bytearray()
    for piece in answer.streaming_content if answer.streaming else (answer.content,):
        body += piece
        _gate.check_held(len(body))
    return http.Response(answer.status_code, headers, bytes(body))


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
