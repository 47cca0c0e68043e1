# SPDX-License-Identifier: PostgreSQL
"""The asynchronous door, for asyncio: as pgonce itself, with await."""

from __future__ import annotations

import asyncio
import datetime
import functools
import sys
import time
from types import TracebackType
from typing import Any, Awaitable, Callable, Dict, Optional, Sequence, Type, TypeVar, Union

from . import _core, _sql, _trace, errors
from ._drivers import connection_of, is_asynchronous, source_of
from ._io import Steps, drive_async, shielded
from ._nodes import AsyncNodes
from ._trouble import AUTOCOMMIT
from .answer import Answer, Id, Outcome, Request, dumps, fingerprint_of, name_of
from .client import OF_ATTEMPT, BaseClaim, Call, _current, as_json, bytes_of, emit_arguments, message_of, says_what_was_done, value_of, when_of

F = TypeVar("F", bound=Callable[..., Awaitable[Any]])


async def run(
    pool_or_connect: Any,
    scope: str,
    key: Id,
    request: Request,
    effect: Callable[[Any], Any],
    *,
    tenant: Id = "",
    traceparent: Optional[str] = None,
    deadline: float = _core.DEADLINE_S,
    wait: float = 0.0,
    isolation: Optional[str] = None,
) -> Answer:
    """As pgonce.run. A cancellation rolls back, or comes after COMMIT; never between effect and finish."""
    source, options = source_of(pool_or_connect, True), _core.Options(deadline, wait, isolation)
    with _trace.span("run", scope, traceparent) as span:
        intent = _core.intent_of(scope, key, tenant, request, span.traceparent)
        answer: Answer = await drive_async(_core.run(source, intent, options, effect))
        span.verdict("replay" if answer.replayed else "proceed")
        return answer


class Claim(BaseClaim[Awaitable[bool]]):
    """async with claim(...) as held: a lease that renews itself. When it is lost the body is cancelled, and LeaseLost comes out."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._heart: Optional["asyncio.Task[None]"] = None
        self._body: Optional["asyncio.Task[Any]"] = None
        self._cancelled_body = False

    async def __aenter__(self) -> "Claim":
        at = time.monotonic()
        with _trace.span("claim", self._intent.scope, self._intent.traceparent) as span:
            try:
                self.answer = await drive_async(self._claiming())
                # Granted or not, a cancellation may come here once more.
                await asyncio.sleep(0)
            except BaseException:
                if self._granted:  # the work will not be done
                    await shielded(drive_async(_core.release(self._source, self._intent, self.fence, 5.0)))
                raise
            span.verdict("replay" if self.replayed else "proceed")
        if self.answer is None:
            self._note_renewal(at)
            self._body = asyncio.current_task()
            if self._source.renewable:  # one connection is the work's own
                self._heart = asyncio.ensure_future(self._beat())
        return self

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s())
            renewing = asyncio.ensure_future(drive_async(self._renewing()))
            try:
                # No longer than the lease: a network that says nothing lets no renewal end.
                await asyncio.wait({renewing}, timeout=max(0.0, self._held_until - time.monotonic()))
                held = renewing.done() and renewing.result()
            except Exception:
                held = time.monotonic() <= self._held_until  # after that somebody else may have it
            finally:
                renewing.cancel()
            if not held:
                self._cancelled_body = True
                assert self._body is not None
                self._body.cancel()
                return

    async def renew(self) -> bool:
        return await drive_async(self._renewing(self._options.deadline))

    async def _stop(self) -> None:
        heart, self._heart = self._heart, None
        if heart is not None:
            heart.cancel()
            await shielded(asyncio.wait({heart}))

    async def _report(self, steps: Steps[bool]) -> bool:
        async def report() -> bool:
            await self._stop()
            return await drive_async(self._reporting(steps))

        return bool(await shielded(report()))

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], raised: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        cancelled = None
        try:
            await shielded(self._end(raised))
        except asyncio.CancelledError as late:
            cancelled = late
        if self._cancelled_body and (cancelled is not None or isinstance(raised, asyncio.CancelledError)):
            if sys.version_info >= (3, 11) and self._body is not None:
                self._body.uncancel()
            raise errors.LeaseLost() from raised
        if cancelled is not None:
            raise cancelled
        if raised is None and self.answer is None and not self._reported:
            raise errors.UsageError("the claim ended without complete, fail or release: it is in doubt")

    async def _end(self, raised: Optional[BaseException]) -> None:
        await self._stop()
        if self._over():
            return
        try:
            await drive_async(self._without_report(raised))
        except errors.OnceError:
            if raised is None:
                raise


def claim(
    pool_or_connect: Any,
    scope: str,
    key: Id,
    request: Request,
    *,
    tenant: Id = "",
    traceparent: Optional[str] = None,
    owner: Optional[str] = None,
    lease: Optional[float] = None,
    retention: Optional[float] = None,
    takeover: Optional[bool] = None,
    deadline: float = _core.DEADLINE_S,
    wait: float = 0.0,
) -> Claim:
    """As pgonce.claim: async with claim(...) as held."""
    return Claim(
        source_of(pool_or_connect, True),
        _core.intent_of(scope, key, tenant, request, traceparent),
        _core.Options(deadline, wait),
        _core.Terms(owner, lease, retention, takeover),
    )


async def _own(tx: Any) -> Any:
    connection = connection_of(tx)
    if not is_asynchronous(connection):
        raise errors.UsageError("this connection is blocking: use pgonce")
    prepare = getattr(tx, "run_sync", None)
    if prepare is not None:  # SQLAlchemy looks at its connection in a greenlet
        good = await prepare(lambda _: connection.in_transaction())
    else:
        good = connection.in_transaction()
    if not good:
        raise errors.UsageError(AUTOCOMMIT)
    return connection


async def emit(
    tx: Any,
    topic: str,
    payload: Any,
    *,
    aggregate_type: Optional[str] = None,
    aggregate_id: Optional[Id] = None,
    event_type: Optional[str] = None,
    scope: Optional[str] = OF_ATTEMPT,
    key: Optional[Id] = OF_ATTEMPT,
    headers: Optional[Dict[str, Any]] = None,
    tenant: Id = OF_ATTEMPT,
    traceparent: Optional[str] = None,
    not_before: Optional[datetime.datetime] = None,
) -> str:
    """As pgonce.emit."""
    statement, when = when_of(not_before)
    connection = await _own(tx)
    arguments = emit_arguments(
        connection.tx, topic, dumps(payload), aggregate_type, aggregate_id, event_type, scope, key, headers, tenant, traceparent
    )
    return str(await drive_async(_core.within(connection, statement, [*arguments, *when])))


async def emit_bytes(
    tx: Any,
    topic: str,
    payload: Union[bytes, bytearray, memoryview],
    content_type: str,
    *,
    aggregate_type: Optional[str] = None,
    aggregate_id: Optional[Id] = None,
    event_type: Optional[str] = None,
    scope: Optional[str] = OF_ATTEMPT,
    key: Optional[Id] = OF_ATTEMPT,
    headers: Optional[Dict[str, Any]] = None,
    tenant: Id = OF_ATTEMPT,
    traceparent: Optional[str] = None,
) -> str:
    """As pgonce.emit_bytes."""
    written = bytes_of(payload, content_type)
    connection = await _own(tx)
    arguments = emit_arguments(
        connection.tx, topic, written, aggregate_type, aggregate_id, event_type, scope, key, headers, tenant, traceparent
    )
    return str(await drive_async(_core.within(connection, _sql.EMIT_BYTES, [*arguments, content_type])))


async def receive(
    tx: Any, consumer: str, message_id: Id, message: Request, *, tenant: Id = "", traceparent: Optional[str] = None
) -> bool:
    """As pgonce.receive."""
    consumer, message_id, of, *_ = message_of(consumer, message_id, tenant, message, traceparent)
    kind, arguments = fingerprint_of(message, of)
    steps = _core.within(await _own(tx), _sql.RECEIVE[kind], [*arguments, consumer, message_id, traceparent])
    return bool(await drive_async(steps) == "process")


async def consume(
    pool_or_connect: Any,
    consumer: str,
    message_id: Id,
    message: Request,
    effect: Callable[[Any], Any],
    *,
    tenant: Id = "",
    traceparent: Optional[str] = None,
    deadline: float = _core.DEADLINE_S,
    isolation: Optional[str] = None,
) -> bool:
    """As pgonce.consume."""
    source, options = source_of(pool_or_connect, True), _core.Options(deadline, 0.0, isolation)
    with _trace.span("consume", consumer, traceparent) as span:
        intent = message_of(consumer, message_id, tenant, message, span.traceparent)
        fresh: bool = await drive_async(_core.run(source, intent, options, effect, _core.Delivery))
        span.verdict("process" if fresh else "duplicate")
        return fresh


async def lock(tx: Any, resource: Id, *, wait: float = 0.0) -> bool:
    """As pgonce.lock."""
    resource = name_of(resource, "resource")
    sql, arguments = (_sql.LOCK, [resource, wait]) if wait > 0 else (_sql.TRY_LOCK, [resource])
    return bool(await drive_async(_core.within(await _own(tx), sql, arguments)))


def nodes(pools: Sequence[Any]) -> AsyncNodes:
    """As pgonce.nodes, over asynchronous pools."""
    return AsyncNodes(pools)


class Once:
    """As pgonce.Once, for coroutines."""

    def __init__(self, pool_or_connect: Any) -> None:
        self.source = source_of(pool_or_connect, True)

    async def run(self, scope: str, key: Id, request: Request, effect: Callable[[Any], Any], **options: Any) -> Answer:
        return await run(self.source, scope, key, request, effect, **options)

    async def consume(self, consumer: str, message_id: Id, message: Request, effect: Callable[[Any], Any], **options: Any) -> bool:
        return await consume(self.source, consumer, message_id, message, effect, **options)

    def claim(self, scope: str, key: Id, request: Request, **options: Any) -> Claim:
        return claim(self.source, scope, key, request, **options)

    def effect(
        self, *, scope: str, key: Union[str, Callable[..., Id]], tenant: Union[Id, Callable[..., Id]] = "",
        request: Optional[Callable[..., Any]] = None, **options: Any,
    ) -> Callable[[F], F]:  # fmt: skip
        """As pgonce.Once.effect."""

        def decorate(function: F) -> F:
            call = Call(function, key, tenant, request)
            options.setdefault("takeover", False)

            @functools.wraps(function)
            async def once(*arguments: Any, **named: Any) -> Any:
                name, of, wanted = call.read(arguments, named)
                async with self.claim(scope, name, wanted, tenant=of, **options) as held:
                    if held.answer is not None:
                        return value_of(held.answer)
                    token = _current.set(held)
                    try:
                        result = as_json(await function(*arguments, **named))
                    except Exception as raised:
                        if says_what_was_done(raised):
                            raise
                        raise errors.InDoubt() from raised
                    finally:
                        _current.reset(token)
                    try:
                        await held.complete(Outcome(body=dumps(result)))
                    except errors.TooLarge as raised:  # it is done, and its answer is lost for good
                        raise errors.InDoubt() from raised
                    return result

            return once  # type: ignore[return-value]

        return decorate
