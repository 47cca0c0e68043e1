# SPDX-License-Identifier: PostgreSQL
"""Middleware for ASGI: FastAPI, Starlette, and other frameworks.

    app.add_middleware(OnceMiddleware, pool=pool, scope="payments", tenant=caller)

    @app.post("/payments")
    async def pay(payment: Payment, tx=Depends(transaction)): ...

The handler's writes go through its transaction; they and its answer commit together, before the answer is sent. What is to act on every answer,
CORSMiddleware for one, goes around this one: it is added after it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import sys
import time
from typing import Any, Awaitable, Callable, Dict, List, Optional
from urllib.parse import quote

from . import _core, _gate, _lease, _trace, errors, http
from ._drivers import AsyncSource, Source, arguments_of, source_of
from ._io import Pause, Steps, advance
from .aio import Claim
from .answer import HttpRequest

try:
    from starlette.requests import Request
    from starlette.responses import Response
except ImportError:  # without Starlette a scope is passed as it is
    Request = Response = None  # type: ignore[assignment,misc]

_TX, _PROTECTED = "pgonce.tx", "pgonce.protected"
Message = Dict[str, Any]


async def transaction(request: Request) -> Any:
    """The transaction of this request: a connection, or a session, of the pool's driver. For Depends(), or to await. A coroutine, because FastAPI
    sends what is none through a thread."""
    scope = getattr(request, "scope", request)
    if scope.get(_TX) is None:
        raise errors.UsageError("this request has no transaction: it is not protected, or in mode='lease', or has been answered")
    return scope[_TX]


def key_of(request: Request, *, strict: bool = False, key_length: int = http.KEY_MAX) -> str:
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


class _Left(Exception):
    """The client has gone before anything was begun for it."""


# How long a request waits for a connection before it looks whether its client is still there.
_LOOK_S = 0.05


def _uncancel(task: Any) -> None:
    """A cancellation that was made here ends here."""
    if sys.version_info >= (3, 11):
        task.uncancel()


class _Client:
    """What the application receives: the body that was read, and of its client's departure nothing before its answer is whole. So it finishes, and a
    retry finds its answer."""

    def __init__(self, receive: Any) -> None:
        self.real_receive = receive
        self.body: Optional[bytes] = None
        self.left = self.begun = False
        self.answered = asyncio.Event()

    async def read(self, policy: _gate.Policy, said: Dict[bytes, List[str]]) -> bytes:
        body = bytearray()
        more = True
        while more:
            message = await self.real_receive()
            if message["type"] == "http.disconnect":
                raise _Left()
            body += message.get("body", b"")
            if len(body) > policy.body_max:
                raise _gate.Refused(_gate.body_too_large(policy))
            more = message.get("more_body", False)
        length = said[b"content-length"]
        reader = getattr(self.real_receive, "__self__", None)  # of Starlette's own, where an outer layer is a BaseHTTPMiddleware
        consumed = not body and getattr(reader, "_stream_consumed", False) and not hasattr(reader, "_body")
        if consumed or (length and length[0].isdigit() and int(length[0]) > len(body)):  # it is longer where an outer layer has decompressed it
            raise errors.UsageError("an outer layer has read the request's body, so it cannot be compared with an earlier one's: add OnceMiddleware around it")
        self.body = bytes(body)
        return self.body

    async def receive(self) -> Message:
        body, self.body = self.body, None
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        await self.answered.wait()
        await asyncio.sleep(0)  # code that listens until the client leaves must let other tasks run, even if this never waits
        return {"type": "http.disconnect"} if self.left else await self.real_receive()

    async def watch(self, task: Any) -> None:
        if (await self.real_receive())["type"] == "http.disconnect":
            self.left = True
            task.cancel()


class _Patient(AsyncSource):
    """The middleware's source for one request: while it waits for a connection, it sees its client leave."""

    def __init__(self, source: Source, client: _Client) -> None:
        self.source, self.client = source, client
        self.renewable, self.shared, self.routes = source.renewable, source.shared, source.routes

    async def at(self, tenant: str, refused: Any = None) -> Any:
        if not self.source.routes:
            return self
        return _Patient(await self.source.at(tenant, refused), self.client)

    async def acquire(self, within: float) -> Any:
        if self.client.begun:
            return await self.source.acquire(within)
        task: Any = asyncio.current_task()
        loop = asyncio.get_running_loop()
        watching: List[Any] = []
        timer = loop.call_later(_LOOK_S, lambda: watching.append(loop.create_task(self.client.watch(task))))
        try:
            return await self.source.acquire(within)
        except asyncio.CancelledError:
            if not self.client.left:
                raise
            _uncancel(task)
            raise _Left() from None
        finally:
            timer.cancel()
            for each in watching:
                each.cancel()

    def release(self, connection: Any) -> Any:
        return self.source.release(connection)


class _Exchange:
    """One run of the application: collects its answer, and holds its last message back until that is stored. All in the task that sends it: what
    comes after that message, such as a background task, finds the answer sent."""

    def __init__(self, steps: Steps[Any], send: Any, scope: Message, client: _Client, span: _trace.span, connection: Any) -> None:
        self.connection, self.cancelled = connection, False
        self.cutting: Any = None
        self.steps, self.real_send, self.scope, self.client, self.span = steps, send, scope, client, span
        self.start: Message = {}
        self.headers: http.Headers = []
        self.pieces: List[Message] = []
        self.held = 0
        self.complete = self.settled = self.undone = self.endless = self.late = self.over = self.trailing = False
        self.raised: Optional[BaseException] = None
        self.waiting: Optional["asyncio.Future[None]"] = None

    async def send(self, message: Message) -> None:
        if self.undone:
            raise _Undone()
        if self.endless:
            await self.real_send(message)
        elif message["type"] == "http.response.start":
            if self.start:
                raise RuntimeError("the application has answered already")
            self.start = message
            self.headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in message.get("headers", ())]
            if http.is_endless(self.headers):
                self.complete = True
                await self._settle(endless=True)
        elif message["type"] == "http.response.body" and not self.complete:
            if not self.start or self.trailing:
                raise RuntimeError("an answer's body comes after its start, and before its trailers")
            body = bytes(message.get("body", b""))  # a copy: who has sent it may fill it anew
            self.pieces.append({**message, "body": body})
            self.held += len(body)
            _gate.check_held(self.held)
            if not message.get("more_body", False):
                http.check_whole(self.scope["method"], self.start["status"], self.headers, self.held)
                self.trailing = bool(self.start.get("trailers")) and "http.response.trailers" in self.scope["extensions"]
                if not self.trailing:
                    await self._whole()
        elif message["type"] == "http.response.trailers" and not self.complete:
            if not self.trailing:
                raise RuntimeError("trailers come after the body of an answer that has declared them")
            self.pieces.append(message)
            if not message.get("more_trailers", False):
                await self._whole()
        elif message["type"] == "http.response.debug":
            await self.real_send(message)

    async def _whole(self) -> None:
        self.complete = True
        await self._settle()

    async def _settle(self, endless: bool = False) -> None:
        self.scope[_TX] = None
        body = b"".join(each.get("body", b"") for each in self.pieces)
        try:
            _, (answer, handled) = await advance(
                self.steps, http.Response(self.start["status"], self.headers, body, native=self, endless=endless)
            )
        except Exception as raised:
            self.raised, self.undone = raised, True
            self.span.end(raised)
            raise _Undone() from None
        else:
            self.undone, self.endless = not handled, endless and handled
            self.span.verdict("proceed")
            self.span.end()
            await self._tell(answer)
        finally:
            self._end()
        if self.undone:
            raise _Undone()

    async def _tell(self, answer: http.Response) -> None:
        if answer.native is None:
            await _answer(self.real_send, answer)
            return
        headers = [each for each in self.start.get("headers", ()) if not http.reserved(each[0].decode("latin-1"))]
        if answer.effect:
            headers.append((b"once-effect", answer.effect.encode()))
        await self.real_send({**self.start, "headers": headers})
        for piece in self.pieces:
            await self.real_send(piece)

    def _end(self) -> None:
        self.settled = True
        self.client.answered.set()
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_result(None)

    async def run(self, application: Callable[[], Awaitable[Any]], within: float) -> None:
        """The whole of it. Raises what it raised, or what became of its answer."""
        task: Any = asyncio.current_task()
        timer = asyncio.get_running_loop().call_later(max(0.0, within), self._cut, task)
        try:
            await application()
        except BaseException as raised:
            timer.cancel()
            told = await self._ended(raised, task)
            if not told and (not self.undone or isinstance(raised, asyncio.CancelledError)):
                raise
        else:
            timer.cancel()
            await self._ended(errors.AnswerNotWhole("the application ended without an answer"), task)
        if self.raised is not None:
            raise self.raised

    def _cut(self, task: Any) -> None:
        """The handler takes too long."""
        if not self.complete:
            self.undone = self.late = True
            self.cutting = asyncio.ensure_future(self._stop(task))

    async def _stop(self, task: Any) -> None:
        interrupt = getattr(self.connection, "interrupt", None)
        if inspect.iscoroutinefunction(interrupt):
            with contextlib.suppress(Exception):
                await interrupt()
        if not self.over:  # the end of a statement need not be its own
            self.cancelled = True
            task.cancel()

    async def _ended(self, why: BaseException, task: Any) -> bool:
        """The application is over. Where it left no answer, what it did is taken back: raises why, unless the client was told something else."""
        told = False
        self.over = True
        if self.late:
            if self.cancelled:
                _uncancel(task)
            await self.cutting  # or it would reach who has the connection next
            why = errors.TimedOut()
        if not self.complete:
            self.undone = self.complete = True
            self.scope[_TX] = None
            try:
                _, (answer, _) = await advance(self.steps, raised=why)
                await _answer(self.real_send, answer)
                told = True
            finally:
                self._end()
        while not self.settled:  # the last message was sent by a task that the application has left behind
            self.waiting = asyncio.get_running_loop().create_future()
            await self.waiting
        return told


class OnceMiddleware:
    """options: those of Policy (_gate.py). pool: as for pgonce.aio.run, such as pgonce.aio.nodes([...]); or a function without arguments that
    returns it, asked when the application has started, for a pool that is made then."""

    def __init__(self, app: Any, pool: Any, **options: Any) -> None:
        self.app, self.pool, self.policy = app, pool, _gate.Policy(**options)
        self._source: Any = None if inspect.isfunction(pool) and not arguments_of(pool) else source_of(pool, True)

    def source(self) -> Any:
        if self._source is None:
            self._source = source_of(self.pool(), True)
        return self._source

    async def __call__(self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Any) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, functools.partial(self._started, send))
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        policy = self.policy
        # Made for functions that ask it, and no other time.
        request = Request(scope) if Request is not None and (callable(policy.scope) or policy.tenant is not None) else scope
        name: Any = policy.scope_of(request, scope["method"])
        name = await name if inspect.isawaitable(name) else name
        if name is None:
            await self.app(scope, receive, send)
            return
        try:
            await self._protect(name, request, scope, receive, send)
        except _gate.Passes:
            await self.app(scope, receive, send)
        except _gate.Refused as refused:
            await _answer(send, refused.answer)
        except _Left:
            pass

    async def _started(self, send: Any, message: Message) -> None:
        """A pool that cannot be used is told before the first request."""
        if message["type"] == "lifespan.startup.complete" and self._source is None:
            try:
                pool = self.pool()
                self._source = None if pool is None else source_of(pool, True)
            except errors.UsageError as wrong:
                await send({"type": "lifespan.startup.failed", "message": f"pgonce: {wrong}"})
                return
        await send(message)

    async def _protect(self, name: str, request: Any, scope: Message, receive: Any, send: Any) -> None:
        start = time.monotonic()
        _gate.check_outermost(scope.get(_PROTECTED))
        policy, said = self.policy, _headers(scope)
        key = _gate.key_of(policy, said[b"idempotency-key"])
        given: Any = None if policy.tenant is None else policy.tenant(request)
        given = await given if inspect.isawaitable(given) else given
        if _gate.is_answer(given):
            await given(scope, receive, send)  # an answer of the application's own, such as 401
            return
        tenant = _gate.tenant_of(policy, given)
        intent = _gate.intent_of(policy, name, key, tenant, [said[each] for each in _CLAIM], None, http.traceparent_of(said[b"traceparent"]))
        client = _Client(receive)
        body = await client.read(policy, said)
        content_type = said[b"content-type"]
        http_request = HttpRequest(
            scope["method"], _target(scope, said, policy.host), content_type[0] if content_type else "", body, policy.canonical_json
        )
        with _trace.span("http", name, intent.traceparent) as span:
            intent = intent._replace(request=http_request, traceparent=span.traceparent)
            source = _Patient(self.source(), client)
            if policy.mode == "lease":
                steps = _lease.serve(Claim, source, policy, intent, Pause)
            else:
                steps = _gate.serve(source, policy, intent, Pause)
            over, connection = await advance(steps)
            if over:
                answer = connection[0]
                span.verdict("replay" if answer.replayed else "proceed")
                await _answer(send, answer)
                return
            client.begun = True
            # The same scope goes on, as Starlette hands it on: outer layers read of it which route was taken.
            extensions = scope.get("extensions")
            scope.update({_PROTECTED: True, _TX: None if connection is None else connection.tx, "extensions": _extensions(scope)})
            exchange = _Exchange(steps, send, scope, client, span, connection)
            within = policy.handler_ms / 1000 - (time.monotonic() - start)
            try:
                await exchange.run(functools.partial(self.app, scope, client.receive, exchange.send), within)
            finally:
                scope["extensions"] = extensions


_HELD = ("http.response.debug", "http.response.trailers")


def _extensions(scope: Message) -> Message:
    """Without those of answers, but for trailers and what test clients ask: an answer that a server sends by itself could not be held."""
    given = scope.get("extensions") or {}
    return {name: value for name, value in given.items() if not name.startswith("http.response.") or name in _HELD}


_CLAIM = tuple(name.encode() for name in http.CLAIM)
_READ = (b"idempotency-key", b"content-type", b"content-length", b"traceparent", b"host", *_CLAIM)


def _headers(scope: Message) -> Dict[bytes, List[str]]:
    """Those that a door reads, in one pass."""
    found: Dict[bytes, List[str]] = {name: [] for name in _READ}
    for name, value in scope["headers"]:
        values = found.get(name.lower())
        if values is not None:
            values.append(value.decode("latin-1"))
    return found


def _target(scope: Message, said: Dict[bytes, List[str]], with_host: bool) -> str:
    """The host in lower case, then path and query as in the request line."""
    host = (said[b"host"] or [""])[0].lower() if with_host else ""
    raw = scope.get("raw_path")
    path = raw.decode("latin-1") if raw else quote(scope["path"])
    path = path.split("?", 1)[0]
    query = scope.get("query_string", b"").decode("latin-1")
    return host + path + ("?" + query if query else "")


async def _answer(send: Any, answer: http.Response) -> None:
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers]
    if not any(name == b"content-length" for name, _ in headers) and answer.status not in (204, 304):
        headers = [each for each in headers if each[0] != b"transfer-encoding"]
        headers.append((b"content-length", str(len(answer.body)).encode()))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body, "more_body": False})
