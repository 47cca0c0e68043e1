# SPDX-License-Identifier: PostgreSQL
"""A decorator for Flask's views. It goes below those that authenticate, so that nobody else gets a stored answer.

    @app.post("/payments")
    @login_required
    @protect(pool, scope="payments", tenant=lambda request: current_user.get_id())
    def pay():
        g.tx.execute(...)"""

from __future__ import annotations

import functools
from typing import Any, Callable, TypeVar

from flask import Response, current_app, g, make_response, request

from . import _gate, http
from ._drivers import source_of
from ._wsgi import protect as _protect

F = TypeVar("F", bound=Callable[..., Any])


def protect(pool: Any, **options: Any) -> Callable[[F], F]:
    """options: those of Policy (_gate.py). Within the view `flask.g.tx` is its transaction."""
    policy = _gate.Policy(**options)

    def decorate(view: F) -> F:
        @functools.wraps(view)
        def protected(*arguments: Any, **named: Any) -> Any:
            scope = policy.scope_of(request, request.method)
            if scope is None:
                return view(*arguments, **named)

            def handle(tx: Any) -> http.Response:
                g.tx = tx
                try:
                    answer = make_response(current_app.ensure_sync(view)(*arguments, **named))
                except Exception as raised:  # abort(), and what has an error handler
                    answer = make_response(current_app.handle_user_exception(raised))
                finally:
                    g.pop("tx", None)
                return collected(answer)

            given = None if policy.tenant is None else policy.tenant(request)
            if _gate.is_answer(given):
                return given
            if (request.content_length or 0) > policy.body_max:
                return written(_gate.body_too_large(policy))
            try:
                answer = _protect(source_of(pool, False), policy, scope, request.environ, given, request.get_data(), handle)
            except _gate.Passes:
                return view(*arguments, **named)
            return written(answer)

        return protected  # type: ignore[return-value]

    return decorate


def collected(answer: Any) -> http.Response:
    headers = [(str(name), str(value)) for name, value in answer.headers.items()]
    _gate.check_answer(headers)
    answer.direct_passthrough = False
    body = bytearray()
    for piece in answer.iter_encoded():
        body += piece
        _gate.check_held(len(body))
    return http.Response(answer.status_code, headers, bytes(body))


def written(answer: http.Response) -> Response:
    made = Response(answer.body, status=answer.status)
    del made.headers["Content-Type"]
    for name, value in answer.headers:
        if name.lower() not in ("content-length", "transfer-encoding"):
            made.headers.add(name, value)
    return made
