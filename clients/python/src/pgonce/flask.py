# SPDX-License-Identifier: PostgreSQL
"""A decorator for Flask's views. It goes below those that authenticate, so that no other user gets a stored answer.

    @app.post("/payments")
    @login_required
    @protect(pool, scope="payments", tenant=lambda request: current_user.get_id())
    def pay():
        g.tx.execute(...)"""

from __future__ import annotations

import functools
import io
from typing import Any, Callable, List, TypeVar

from ._needs import needs

needs("flask", "flask")

from flask import Response, current_app, g, make_response, request, request_started
from flask.globals import request_ctx
from werkzeug.exceptions import ClientDisconnected

from . import _gate, errors, http
from ._drivers import Source, source_of
from ._wsgi import held, is_cut_short, let_go
from ._wsgi import protect as _protect

F = TypeVar("F", bound=Callable[..., Any])

_POLICY, _PROTECTED = "_pgonce_policy", "pgonce.protected"


def protect(pool: Any, **options: Any) -> Callable[[F], F]:
    """options: those of Policy (_gate.py). Within the view `flask.g.tx` is its transaction, unless mode="lease"."""
    policy, source = _gate.Policy(**options), source_of(pool, False)
    if policy.mode == "lease" and source.shared:
        raise errors.UsageError("mode='lease' renews its lease in a thread, where a scoped session is another one: give a sessionmaker or a pool")

    def decorate(view: F) -> F:
        @functools.wraps(view)
        def protected(*arguments: Any, **named: Any) -> Any:
            scope = policy.scope_of(request, request.method)
            if scope is None:
                return view(*arguments, **named)
            given = None if policy.tenant is None else policy.tenant(request)
            if _gate.is_answer(given):
                return given
            try:
                return _answered(source, policy, scope, given, functools.partial(view, *arguments, **named))
            except _gate.Passes:
                return view(*arguments, **named)

        setattr(protected, _POLICY, policy)
        return protected  # type: ignore[return-value]

    return decorate


def _body_of() -> bytes:
    """The bytes of the request. Later readers find it unread: as a form, as a stream or as bytes."""
    body = request.get_data()
    if "form" not in request.__dict__:
        request.environ["wsgi.input"] = io.BytesIO(body)
        request.__dict__.pop("stream", None)
    return body


def _keep_body(sender: Any, **_: Any) -> None:
    """Before anything that reads forms, such as a CSRF check before each request."""
    policy = getattr(sender.view_functions.get(request.endpoint), _POLICY, None)
    if policy is not None and request.method in policy.methods and (request.content_length or 0) <= policy.body_max:
        _body_of()


request_started.connect(_keep_body)


def _answered(source: Source, policy: _gate.Policy, scope: str, given: Any, view: Callable[[], Any]) -> Response:
    _gate.check_outermost(request.environ.get(_PROTECTED))
    if (request.content_length or 0) > policy.body_max:
        return written(_gate.body_too_large(policy))
    body = _body_of()
    if is_cut_short(request.environ, body):
        if "form" in request.__dict__:
            raise errors.UsageError("the form was read before its bytes were: protect() must be seen on the view, through functools.wraps of what is around it")
        raise ClientDisconnected()

    after = request_ctx._after_request_functions
    outer = len(after)
    made: List[Response] = []

    def handle(tx: Any) -> http.Response:
        request.environ[_PROTECTED] = True
        if tx is not None:
            g.tx = tx
        try:
            try:
                answer = make_response(current_app.ensure_sync(view)())
            except Exception as raised:  # abort(), and what has an error handler
                answer = make_response(current_app.handle_user_exception(raised))
            made.append(answer)
            for each in after[outer:]:  # after_this_request in the view: a part of its answer
                answer = current_app.ensure_sync(each)(answer)
                made.append(answer)
            del after[outer:]
            return collected(answer)
        finally:
            g.pop("tx", None)
            del request.environ[_PROTECTED]

    try:
        answer = _protect(source, policy, scope, request.environ, given, body, handle)
    except BaseException:
        let_go(made)
        raise
    if answer.native is None:
        let_go(made)
        return written(answer)
    for name in [each for each in answer.native.headers.keys() if http.reserved(each)]:
        del answer.native.headers[name]
    if answer.effect:
        answer.native.headers["Once-Effect"] = answer.effect
    return answer.native  # type: ignore[no-any-return]


def collected(answer: Response) -> http.Response:
    """Read to its end, and as it was: what was a stream stays one."""
    whole = answer.is_sequence
    answer.direct_passthrough = False
    headers = [(str(name), str(value)) for name, value in answer.headers.items()]
    found, pieces = held(request.method, answer.status_code, headers, answer.iter_encoded(), answer)
    if not found.endless:
        close = getattr(answer.response, "close", None)
        answer.response = pieces if whole else iter(pieces)
        if close is not None:
            answer.call_on_close(close)
    return found


def written(answer: http.Response) -> Response:
    made = Response(answer.body, status=answer.status)
    del made.headers["Content-Type"]
    for name, value in answer.headers:
        if name.lower() not in ("content-length", "transfer-encoding"):
            made.headers.add(name, value)
    return made
