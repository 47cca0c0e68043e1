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

from . import _core, _gate, errors, http
from ._drivers import source_of
from ._io import Async, drive_async, shielded
from .answer import HttpRequest

try:
    from starlette.requests import Request
    from starlette.responses import Response
except ImportError:  # without Starlette a scope is passed as it is
    Request = Response = None  # type: ignore[assignment,misc]

_TX = "pgonce.tx"
Message = Dict[str, Any]


def transaction(request: Request) -> Any:
    """The transaction of this request: a connection, or a session, of the pool's driver. For Depends()."""
    scope = getattr(request, "scope", request)
    if scope.get(_TX) is None:
        raise errors.UsageError("this request is not protected, or has been answered: it has no transaction")
    return scope[_TX]


def key_of(request: Request, *, strict: bool = False, key_length: int = 255) -> str:
    """The key of a request that the middleware leaves alone, for a claim: by the header's grammar. Raises KeyMalformed."""
    policy = _gate.Policy(scope="", tenant=None, strict=strict, key_length=key_length)
    try:
        return _gate.key_of(policy, _values(dict(request.scope), b"idempotency-key"))
    except _gate.Refused as refused:
        raise _KeyRefused(refused.answer) from None


class _KeyRefused(errors.KeyMalformed):
    """The Idempotency-Key is missing, sent twice, or malformed."""

    def __init__(self, answer: http.Response) -> None:
        super().__init__()
        self.problem = answer


async def problem(request: Request, error: Exception) -> Response:
    """For app.add_exception_handler(OnceError, problem): what a claim raises, as the gateway's documents; a final failure as the answer that is stored."""
    if not isinstance(error, errors.OnceError):
        raise error
    policy = _gate.Policy(scope="", tenant=None)
    told = error.problem if isinstance(error, _KeyRefused) else _gate.answer_of(policy, error)
    answer = Response(told.body, told.status)
    del answer.headers["content-length"]
    for name, value in told.headers:
        answer.headers.append(name, value)
    answer.headers["content-length"] = str(len(told.body))
    return answer


class _Exchange:
    """One run of the application: collects its answer, and holds its last message back until that is stored."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: http.Headers = []
        self.body = bytearray()
        self.complete: "asyncio.Future[None]" = asyncio.get_running_loop().create_future()
        self.settled: "asyncio.Future[None]" = asyncio.get_running_loop().create_future()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in message.get("headers", ())]
            _gate.check_answer(self.headers)
        elif message["type"] == "http.response.body":
            self.body += message.get("body", b"")
            _gate.check_held(len(self.body))
            if not message.get("more_body", False):
                if not self.complete.done():
                    self.complete.set_result(None)
                await asyncio.shield(self.settled)

    def response(self) -> http.Response:
        return http.Response(self.status, self.headers, bytes(self.body))


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
        request = scope if Request is None else Request(scope)
        name = self.policy.scope_of(request, scope["method"])
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
        policy = self.policy
        key = _gate.key_of(policy, _values(scope, b"idempotency-key"))
        given = None if policy.tenant is None else policy.tenant(request)
        given = await given if inspect.isawaitable(given) else given
        if given is not None and not isinstance(given, str):
            await given(scope, receive, send)  # an answer of the application's own, such as 401
            return
        tenant = _gate.tenant_of(policy, given)
        body = await _read(receive, policy)
        if body is None:  # the client has left
            return
        content_type = _values(scope, b"content-type")
        http_request = HttpRequest(
            scope["method"], target_of(scope), content_type[0] if content_type else "", body, policy.canonical_json
        )
        trace = http.traceparent_of(_values(scope, b"traceparent"))
        intent = _core.Intent(name, key, tenant, http_request, trace)
        running: List["asyncio.Task[Any]"] = []
        exchange: List[_Exchange] = []

        async def handle(tx: Any) -> http.Response:
            exchange.append(_Exchange())
            inner = {**scope, _TX: tx, "extensions": {}}
            state.append(inner)
            task = asyncio.ensure_future(self.app(inner, _replayed(body, receive), exchange[0].send))
            running.append(task)
            await asyncio.wait({task, exchange[0].complete}, return_when=asyncio.FIRST_COMPLETED)
            if not exchange[0].complete.done():
                task.result()  # raises what the application did
                raise errors.UsageError("the application ended without an answer")
            return exchange[0].response()

        state: List[Message] = []
        try:
            answer, handled = await drive_async(_gate.serve(Async, self.source(), policy, intent, handle))
        except BaseException:
            await _stop(running)
            raise
        for inner in state:
            inner[_TX] = None
        try:
            await _answer(send, answer)
        finally:
            if handled:
                for each in exchange:
                    each.settled.set_result(None)
            else:  # what would come after the answer is about something that was not done
                await _stop(running)
        for task in running if handled else ():  # what comes after the answer: background tasks
            await task


async def _stop(tasks: List["asyncio.Task[Any]"]) -> None:
    for task in tasks:
        if not task.done():
            task.cancel()
            await shielded(asyncio.wait({task}))
        if not task.cancelled():
            task.exception()


def _values(scope: Message, name: bytes) -> List[str]:
    return [value.decode("latin-1") for header, value in scope["headers"] if header.lower() == name]


def target_of(scope: Message) -> str:
    """The host in lower case, then path and query as in the request line."""
    host = (_values(scope, b"host") or [""])[0].lower()
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
