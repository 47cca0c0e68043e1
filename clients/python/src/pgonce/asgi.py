# SPDX-License-Identifier: PostgreSQL
"""Middleware for ASGI: FastAPI, Starlette, and whatever speaks it.

    app.add_middleware(OnceMiddleware, pool=pool, scope="payments", tenant=caller)

    @app.post("/payments")
    async def pay(payment: Payment, tx=Depends(transaction)): ...

The handler's writes go through its transaction; they and its answer commit together, before the answer is sent."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, Awaitable, Callable, Dict, List, Optional
from urllib.parse import quote

from . import _core, _gate, _trace, errors, http
from ._drivers import source_of
from ._io import Pause, Steps, advance
from .answer import HttpRequest

try:
    from starlette.requests import Request
    from starlette.responses import Response
except ImportError:  # without Starlette a scope is passed as it is
    Request = Response = None  # type: ignore[assignment,misc]

_TX = "pgonce.tx"
Message = Dict[str, Any]


async def transaction(request: Request) -> Any:
    """The transaction of this request: a connection, or a session, of the pool's driver. For Depends(), or to await. A coroutine, because FastAPI
    sends what is none through a thread."""
    scope = getattr(request, "scope", request)
    if scope.get(_TX) is None:
        raise errors.UsageError("this request is not protected, or has been answered: it has no transaction")
    return scope[_TX]


def key_of(request: Request, *, strict: bool = False, key_length: int = 255) -> str:
    """The key of a request that the middleware leaves alone, for a claim: by the header's grammar. Raises KeyMalformed."""
    policy = _gate.Policy(scope="", tenant=None, strict=strict, key_length=key_length)
    try:
        return _gate.key_of(policy, _headers(dict(request.scope))[b"idempotency-key"])
    except _gate.Refused as refused:
        raise _KeyRefused(refused.answer) from None


class _KeyRefused(errors.KeyMalformed):
    """The Idempotency-Key is missing, sent twice, or malformed."""

    def __init__(self, answer: http.Response) -> None:
        super().__init__()
        self.problem = answer


async def problem(request: Request, error: Exception) -> Response:
    """For app.add_exception_handler(OnceError, problem): what a claim raises, as the gateway's documents; a final failure as the answer that is stored."""
    if not isinstance(error, errors.OnceError) or error.status == 500:  # a mistake of the application's
        raise error
    policy = _gate.Policy(scope="", tenant=None)
    told = error.problem if isinstance(error, _KeyRefused) else _gate.answer_of(policy, error)
    answer = Response(told.body, told.status)
    del answer.headers["content-length"]
    for name, value in told.headers:
        answer.headers.append(name, value)
    answer.headers["content-length"] = str(len(told.body))
    return answer


class _Undone(BaseException):
    """What the application did is taken back, and the client told: the rest of it does not run. Nothing that an application catches."""


class _Exchange:
    """One run of the application: collects its answer, and holds its last message back until that is stored. All in the task that sends it: what
    comes after that message, such as a background task, finds the answer sent."""

    def __init__(self, steps: Steps[Any], send: Any, scope: Message, span: _trace.span) -> None:
        self.steps, self.real_send, self.scope, self.span = steps, send, scope, span
        self.status = 0
        self.headers: http.Headers = []
        self.body = bytearray()
        self.complete = self.settled = self.undone = False
        self.raised: Optional[BaseException] = None
        self.waiting: Optional["asyncio.Future[None]"] = None

    async def send(self, message: Message) -> None:
        if self.undone:
            raise _Undone()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in message.get("headers", ())]
            _gate.check_answer(self.headers)
        elif message["type"] == "http.response.body" and not self.complete:
            self.body += message.get("body", b"")
            _gate.check_held(len(self.body))
            if not message.get("more_body", False):
                self.complete = True
                await self._settle()

    async def _settle(self) -> None:
        self.scope[_TX] = None
        try:
            _, (answer, handled) = await advance(self.steps, http.Response(self.status, self.headers, bytes(self.body)))
        except Exception as raised:
            self.raised, self.undone = raised, True
            self.span.end(raised)
            raise _Undone() from None
        else:
            self.undone = not handled
            self.span.verdict("proceed")
            self.span.end()
            await _answer(self.real_send, answer)
        finally:
            self.settled = True
            if self.waiting is not None and not self.waiting.done():
                self.waiting.set_result(None)
        if self.undone:
            raise _Undone()

    async def run(self, application: Awaitable[Any]) -> None:
        """The whole of it. Raises what it raised, or what became of its answer."""
        try:
            await application
        except BaseException as raised:
            await self._ended(raised)
            if not self.undone or isinstance(raised, asyncio.CancelledError):
                raise
        else:
            await self._ended(None)
        if self.raised is not None:
            raise self.raised

    async def _ended(self, raised: Optional[BaseException]) -> None:
        if not self.complete:
            self.undone = self.complete = True
            self.scope[_TX] = None
            gone = raised or errors.UsageError("the application ended without an answer")
            try:
                await advance(self.steps, raised=gone)
            finally:
                self.settled = True
        while not self.settled:  # the last message was sent by a task that the application has left behind
            self.waiting = asyncio.get_running_loop().create_future()
            await self.waiting


class OnceMiddleware:
    """options: those of Policy (_gate.py). pool: as for pgonce.aio.run; or a function that
    returns it, asked with the first request, for a pool that is made when the application starts."""

    def __init__(self, app: Any, pool: Any, **options: Any) -> None:
        self.app, self.pool, self.policy = app, pool, _gate.Policy(**options)
        self._source: Any = None

    def source(self) -> Any:
        if self._source is None:
            self._source = source_of(self.pool() if inspect.isfunction(self.pool) else self.pool, True)
        return self._source

    async def __call__(self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        policy = self.policy
        # Made for functions that ask it, and no other time.
        request = Request(scope) if Request is not None and (callable(policy.scope) or policy.tenant is not None) else scope
        name = policy.scope_of(request, scope["method"])
        if name is None:
            await self.app(scope, receive, send)
            return
        try:
            await self._protect(name, request, scope, receive, send)
        except _gate.Passes:
            await self.app(scope, receive, send)
        except _gate.Refused as refused:
            await _answer(send, refused.answer)

    async def _protect(self, name: str, request: Any, scope: Message, receive: Any, send: Any) -> None:
        policy, said = self.policy, _headers(scope)
        key = _gate.key_of(policy, said[b"idempotency-key"])
        given: Any = None if policy.tenant is None else policy.tenant(request)
        given = await given if inspect.isawaitable(given) else given
        if _gate.is_answer(given):
            await given(scope, receive, send)  # an answer of the application's own, such as 401
            return
        tenant = _gate.tenant_of(policy, given)
        body = await _read(receive, policy)
        if body is None:  # the client has left
            return
        content_type = said[b"content-type"]
        http_request = HttpRequest(
            scope["method"], _target(scope, said), content_type[0] if content_type else "", body, policy.canonical_json
        )
        with _trace.span("http", name, http.traceparent_of(said[b"traceparent"])) as span:
            intent = _core.Intent(name, key, tenant, http_request, span.traceparent)
            steps = _gate.serve(self.source(), policy, intent, Pause)
            over, found = await advance(steps)
            if over:
                span.verdict("replay" if found[0].replayed else "proceed")
                await _answer(send, found[0])
                return
            inner = {**scope, _TX: found, "extensions": {}}
            exchange = _Exchange(steps, send, inner, span)
            await exchange.run(self.app(inner, _replayed(body, receive), exchange.send))


def _headers(scope: Message) -> Dict[bytes, List[str]]:
    """Those that a door reads, in one pass."""
    found: Dict[bytes, List[str]] = {b"idempotency-key": [], b"content-type": [], b"traceparent": [], b"host": []}
    for name, value in scope["headers"]:
        values = found.get(name.lower())
        if values is not None:
            values.append(value.decode("latin-1"))
    return found


def _target(scope: Message, said: Dict[bytes, List[str]]) -> str:
    """The host in lower case, then path and query as in the request line."""
    host = (said[b"host"] or [""])[0].lower()
    raw = scope.get("raw_path")
    path = raw.decode("latin-1") if raw else quote(scope["path"])
    path = path.split("?", 1)[0]
    query = scope.get("query_string", b"").decode("latin-1")
    return host + path + ("?" + query if query else "")


async def _read(receive: Any, policy: _gate.Policy) -> Optional[bytes]:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > policy.body_max:
            raise _gate.Refused(_gate.body_too_large(policy))
        if not message.get("more_body", False):
            return bytes(body)


def _replayed(body: bytes, receive: Any) -> Any:
    given: List[bool] = []

    async def again() -> Message:
        if given:
            return await receive()  # type: ignore[no-any-return]
        given.append(True)
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _answer(send: Any, answer: http.Response) -> None:
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers]
    if not any(name == b"content-length" for name, _ in headers) and answer.status not in (204, 304):
        headers = [each for each in headers if each[0] != b"transfer-encoding"]
        headers.append((b"content-length", str(len(answer.body)).encode()))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body, "more_body": False})
