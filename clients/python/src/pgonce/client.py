# SPDX-License-Identifier: PostgreSQL
"""The blocking door: run, claim, emit, receive, lock, and Once, which binds a pool."""

from __future__ import annotations

import contextvars
import datetime
import functools
import inspect
import json
import threading
import time
from types import TracebackType
from typing import Any, Callable, Dict, Generic, List, Optional, Type, TypeVar, Union

from . import _core, _reasons, _sql, _trace, errors
from ._drivers import Source, connection_of, is_asynchronous, source_of
from ._io import Steps, drive
from ._trouble import AUTOCOMMIT
from .answer import Answer, Id, Outcome, Request, dumps, fingerprint_of, name_of, outcome_of

F = TypeVar("F", bound=Callable[..., Any])


def run(
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
    """Runs effect(tx) at most once for this key, in one transaction with its answer, and returns the answer.

    effect returns an Outcome, (status, body), or a body; it may run again after a rollback, never after a commit. It may
    raise FinalFailure to store a failure for good; any other exception rolls back and comes out as it is.
    Times in seconds. wait: how long to wait for an attempt that runs. Raises errors.OnceError."""
    source, options = source_of(pool_or_connect, False), _core.Options(deadline, wait, isolation)
    with _trace.span("run", scope, traceparent) as span:
        intent = _core.intent_of(scope, key, tenant, request, span.traceparent)
        answer: Answer = drive(_core.run(source, intent, options, effect))
        span.verdict("replay" if answer.replayed else "proceed")
        return answer


REASON_MAX = 1000  # characters


def reason_of(raised: BaseException) -> Optional[str]:
    """Its text, as the database takes it."""
    return str(raised)[:REASON_MAX].replace("\0", "?").encode("utf-8", "replace").decode() or None


def code_of(raised: BaseException) -> str:
    """One at every door for what is pgonce's own to say; else the application's error is named."""
    for kind, (code, _) in (
        (errors.NotDone, _reasons.NOT_DONE),
        (errors.TimedOut, _reasons.NO_ANSWER),
        (errors.AnswerNotWhole, _reasons.NO_ANSWER),
        (errors.AnswerNotStored, _reasons.NOT_KEPT),
        (errors.TooLarge, _reasons.NOT_KEPT),
    ):
        if isinstance(raised, kind):
            return code
    return type(raised).__name__


_current: contextvars.ContextVar[Optional["BaseClaim[Any]"]] = contextvars.ContextVar("pgonce_claim", default=None)


Told = TypeVar("Told")


class BaseClaim(Generic[Told]):
    """What both doors' claims are: an intent, its terms, what was granted, and the reports. Told: bool, or something to await that gives one."""

    def __init__(self, source: Source, intent: _core.Intent, options: _core.Options, terms: _core.Terms) -> None:
        self._source, self._intent, self._options, self._terms = source, intent, options, terms
        self._granted: List[_core.Granted] = []
        self._reported = False
        self._held_until = 0.0
        self.answer: Optional[Answer] = None

    @property
    def replayed(self) -> bool:
        """It was done before: `answer` is stored, and there is nothing to do."""
        return self.answer is not None

    @property
    def fence(self) -> int:
        return self._one().fence

    @property
    def verdict(self) -> str:
        return "replay_success" if self.answer is not None else self._one().verdict

    @property
    def traceparent(self) -> Optional[str]:
        return self._one().traceparent

    def _one(self) -> _core.Granted:
        if not self._granted:
            raise errors.UsageError("this claim is not held")
        return self._granted[-1]

    def _interval_s(self) -> float:
        """Three times in a lease; sooner again after a renewal that failed."""
        return max(0.05, min(self._one().lease_s / 3, (self._held_until - time.monotonic()) / 2))

    def _note_renewal(self, at: float) -> None:
        self._held_until = at + self._one().lease_s

    def _claiming(self) -> Steps[Optional[Answer]]:
        return _core.claim(self._source, self._intent, self._options, self._terms, self._granted)

    def _over(self) -> bool:
        """There is nothing to report."""
        return self.answer is not None or self._reported or not self._granted

    def _without_report(self, raised: Optional[BaseException]) -> Steps[None]:
        """The report of a claim that ends without one: an unknown outcome, unless the exception says more. And the reason."""
        retryable = True if isinstance(raised, errors.NotDone) else None
        outcome = Outcome(error_code=_reasons.NOT_REPORTED[0], error_message=_reasons.NOT_REPORTED[1])
        if raised is not None:
            why = raised.__cause__ if isinstance(raised, errors.InDoubt) and raised.__cause__ is not None else raised
            outcome = Outcome(error_code=code_of(why), error_message=reason_of(why))
        if isinstance(raised, errors.FinalFailure) and raised.answer is None:
            # JSON as text, so that what is told now is what every retry will get: PostgreSQL spells jsonb its own way.
            body = raised.body if isinstance(raised.body, (str, bytes, bytearray, type(None))) else dumps(raised.body)
            retryable = False
            outcome = Outcome(
                status=raised.response_status, body=body, headers=raised.headers, error_code=raised.code,
                error_message=raised.message or None,
            )  # fmt: skip
        yield from _core.fail(self._source, self._intent, self.fence, retryable, outcome, self._options.deadline)
        if isinstance(raised, (errors.FinalFailure, errors.InDoubt)) and raised.answer is None:
            raised.answer = _core.stored_failure(outcome, self.fence, "in_doubt" if retryable is None else "failed_final")

    def _renewing(self, patience: float = 0.0) -> Steps[bool]:
        at = time.monotonic()
        held = yield from _core.renew(self._source, self._intent, self.fence, self._terms.lease, patience)
        if held:
            self._note_renewal(at)
        return held

    def _reporting(self, steps: Steps[bool]) -> Steps[bool]:
        try:
            done = yield from steps
        except errors.LeaseLost:
            self._reported = True
            raise
        self._reported = True
        return done

    def _report(self, steps: Steps[bool]) -> Told:
        raise NotImplementedError

    def complete(self, result: Any = None) -> Told:
        """Stores the outcome; False where this attempt had stored it already. Raises LeaseLost: discard the result."""
        return self._report(_core.complete(self._source, self._intent, self.fence, outcome_of(result), self._options.deadline))

    def fail(self, retryable: Optional[bool], result: Any = None, *, code: Optional[str] = None, message: Optional[str] = None) -> Told:
        """retryable: True, certainly no effect; False, for good; None, the outcome is unknown."""
        outcome = outcome_of(result)
        outcome = Outcome(outcome.status, outcome.body, outcome.headers, error_code=code, error_message=message)
        return self._report(_core.fail(self._source, self._intent, self.fence, retryable, outcome, self._options.deadline))

    def release(self) -> Told:
        """Its work certainly never started: the next attempt may run at once."""
        return self._report(_core.release(self._source, self._intent, self.fence, self._options.deadline))


def current_claim() -> Any:
    """The claim that the running function of @once.effect works under."""
    return _current.get()


class Claim(BaseClaim[bool]):
    """with claim(...) as held: a lease that renews itself in a thread. Report once: complete, fail or release."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.lost = threading.Event()
        self._ended = threading.Event()
        self._thread: Optional[threading.Thread] = None

    def __enter__(self) -> "Claim":
        at = time.monotonic()
        with _trace.span("claim", self._intent.scope, self._intent.traceparent) as span:
            self.answer = drive(self._claiming())
            span.verdict("replay" if self.replayed else "proceed")
        if self.answer is None:
            self._note_renewal(at)
            if self._source.renewable:  # one connection is the work's own
                self._thread = threading.Thread(target=self._beat, name="pgonce-heartbeat", daemon=True)
                self._thread.start()
        return self

    def _beat(self) -> None:
        while not self._ended.wait(self._interval_s()):
            try:
                self._renew()
            except Exception:
                if time.monotonic() > self._held_until:  # somebody else may have it
                    self.lost.set()
            if self.lost.is_set():
                return

    def check(self) -> None:
        """Raises LeaseLost where the intent is no longer this attempt's: call it between the steps of long work."""
        if time.monotonic() > self._held_until and self._source.renewable:  # also while a renewal hangs
            self.lost.set()
        if self.lost.is_set():
            raise errors.LeaseLost()

    def renew(self) -> bool:
        return self._renew(self._options.deadline)

    def _renew(self, patience: float = 0.0) -> bool:
        held = drive(self._renewing(patience))
        if not held:
            self.lost.set()
        return held

    def _report(self, steps: Steps[bool]) -> bool:
        self._stop()
        return drive(self._reporting(steps))

    def _stop(self) -> None:
        self._ended.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def __exit__(
        self, kind: Optional[Type[BaseException]], raised: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._stop()
        if self._over():
            return
        try:
            drive(self._without_report(raised))
        except errors.OnceError:
            if raised is None:
                raise
        if raised is None:
            raise errors.UsageError("the claim ended without complete, fail or release: it is in doubt")


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
    """For an effect that is elsewhere. Where `replayed`, `answer` is stored; else do the work, then report.

    takeover: of an attempt that fell silent, and may have had its effect. True, where a repetition is harmless: this one takes over, and
    `verdict` is processing_stale; False: in doubt; None: as the scope's on_stale says, which is in doubt unless set."""
    return Claim(
        source_of(pool_or_connect, False),
        _core.intent_of(scope, key, tenant, request, traceparent),
        _core.Options(deadline, wait),
        _core.Terms(owner, lease, retention, takeover),
    )


def _own(tx: Any) -> Any:
    connection = connection_of(tx)
    if is_asynchronous(connection):
        raise errors.UsageError("this connection is asynchronous: use pgonce.aio")
    if not connection.in_transaction():
        raise errors.UsageError(AUTOCOMMIT)
    return connection


# Of the intent in whose attempt an event is emitted. None says: of no intent.
OF_ATTEMPT: Any = object()


def emit_arguments(
    tx: Any, topic: Any, written: Union[str, bytes], aggregate_type: Any, aggregate_id: Any, event_type: Any, scope: Any, key: Any, headers: Any,
    tenant: Any, traceparent: Any,
) -> List[Any]:  # fmt: skip
    claim = _current.get()
    cause = _core.cause_of(tx) or (claim._intent if claim is not None else None)
    if scope is OF_ATTEMPT:
        scope = cause.scope if cause is not None else None
    if key is OF_ATTEMPT:
        key = cause.key if cause is not None else None
    if tenant is OF_ATTEMPT:
        tenant = cause.tenant if cause is not None else ""
    headers = None if headers is None else dumps(headers)
    return [
        name_of(topic, "topic"), written, name_of(aggregate_type, "aggregate_type"), name_of(aggregate_id, "aggregate_id"),
        name_of(event_type, "event_type"), name_of(scope, "scope"), name_of(key, "key"), headers, name_of(tenant, "tenant"), traceparent,
    ]  # fmt: skip


def when_of(not_before: Optional[datetime.datetime]) -> List[Any]:
    """The statement that emits, and what it gets besides the event."""
    if not_before is None:
        return [_sql.EMIT, []]
    if not isinstance(not_before, datetime.datetime) or not_before.utcoffset() is None:
        raise errors.UsageError("not_before is a datetime with a time zone, such as datetime.now(timezone.utc) + timedelta(days=3)")
    return [_sql.EMIT_LATER, [not_before.astimezone(datetime.timezone.utc).isoformat()]]


def message_of(consumer: Any, message_id: Any, tenant: Any, message: Any, traceparent: Optional[str]) -> _core.Intent:
    """A message is an intent whose scope is the consumer."""
    return _core.Intent(
        name_of(consumer, "consumer"), name_of(message_id, "message_id"), name_of(tenant, "tenant"), message, traceparent
    )


def emit(
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
    """Appends an event in the caller's transaction: it exists if and only if the effect does. Returns its id.

    Within an attempt (of a middleware, run, consume or @once.effect) it is an event of that intent, unless scope, key and tenant
    say otherwise; None: of none. An intent has one event of each event_type, which is the topic unless set.

    not_before: it is published then and not sooner (once.emit_later), and has its place in the order of its aggregate then."""
    statement, when = when_of(not_before)
    connection = _own(tx)
    arguments = emit_arguments(
        connection.tx, topic, dumps(payload), aggregate_type, aggregate_id, event_type, scope, key, headers, tenant, traceparent
    )
    return str(drive(_core.within(connection, statement, [*arguments, *when])))


def bytes_of(payload: Any, content_type: Any) -> bytes:
    """A str would be encoded by guess."""
    if not isinstance(payload, (bytes, bytearray, memoryview)):
        raise errors.UsageError(f"the payload of emit_bytes is bytes, a bytearray or a memoryview, not {type(payload).__name__}")
    if not isinstance(content_type, str):
        raise errors.UsageError("content_type is a str, such as application/x-protobuf")
    return bytes(payload)


def emit_bytes(
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
    """As emit; the payload is bytes with a content type of the application's, such as Avro or Protobuf: 1 to 255 characters of visible ASCII."""
    written = bytes_of(payload, content_type)
    connection = _own(tx)
    arguments = emit_arguments(
        connection.tx, topic, written, aggregate_type, aggregate_id, event_type, scope, key, headers, tenant, traceparent
    )
    return str(drive(_core.within(connection, _sql.EMIT_BYTES, [*arguments, content_type])))


def receive(
    tx: Any, consumer: str, message_id: Id, message: Request, *, tenant: Id = "", traceparent: Optional[str] = None
) -> bool:
    """In the consumer's own transaction. True: apply the message, then COMMIT. False: it was applied before."""
    consumer, message_id, of, *_ = message_of(consumer, message_id, tenant, message, traceparent)
    kind, arguments = fingerprint_of(message, of)
    return bool(
        drive(_core.within(_own(tx), _sql.RECEIVE[kind], [*arguments, consumer, message_id, traceparent])) == "process"
    )


def consume(
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
    """receive, effect(tx) and COMMIT, again where a race or a lost connection ended them: then acknowledge the message. False: it was applied before."""
    source, options = source_of(pool_or_connect, False), _core.Options(deadline, 0.0, isolation)
    with _trace.span("consume", consumer, traceparent) as span:
        intent = message_of(consumer, message_id, tenant, message, span.traceparent)
        fresh: bool = drive(_core.run(source, intent, options, effect, _core.Delivery))
        span.verdict("process" if fresh else "duplicate")
        return fresh


def lock(tx: Any, resource: Id, *, wait: float = 0.0) -> bool:
    """A lock on a name until this transaction ends; waits at most so many seconds."""
    resource = name_of(resource, "resource")
    sql, arguments = (_sql.LOCK, [resource, wait]) if wait > 0 else (_sql.TRY_LOCK, [resource])
    return bool(drive(_core.within(_own(tx), sql, arguments)))


# ---- the decorator ----


class Call:
    """A call of a decorated function as an intent: its key, and as the request its arguments, or what a function makes of them."""

    def __init__(
        self, function: Callable[..., Any], key: Union[str, Callable[..., Id]], tenant: Union[Id, Callable[..., Id]],
        request: Optional[Callable[..., Any]],
    ) -> None:  # fmt: skip
        self.signature = inspect.signature(function)
        self.key, self.tenant, self.request = key, tenant, request

    def read(self, arguments: Any, named: Any) -> Any:
        bound = self.signature.bind(*arguments, **named)
        bound.apply_defaults()
        key = self.key(*arguments, **named) if callable(self.key) else self.key.format(**bound.arguments)
        tenant = self.tenant(*arguments, **named) if callable(self.tenant) else self.tenant
        if self.request is not None:
            return key, tenant, self.request(*arguments, **named)
        return key, tenant, {name: value for name, value in bound.arguments.items() if name != "self"}


def value_of(answer: Answer) -> Any:
    return answer.json()


def as_json(result: Any) -> Any:
    """A decorated function's answer: JSON, so that the first caller gets what later ones will."""
    text = dumps(result, errors.AnswerNotStored)
    try:
        return json.loads(text)
    except ValueError as wrong:  # a number of more digits than Python reads
        raise errors.AnswerNotStored("the result cannot be read back from JSON") from wrong


def says_what_was_done(raised: Exception) -> bool:
    """Of a decorated function's exception. Any other is a doubt, to this caller as to the next."""
    return isinstance(raised, (errors.NotDone, errors.LeaseLost)) or (isinstance(raised, errors.FinalFailure) and raised.answer is None)


class Once:
    """Binds a pool, or a function of the tenant that gives one, such as nodes([...]): `once = Once(pool)`, then once.run(...), once.claim(...), @once.effect(...)."""

    def __init__(self, pool_or_connect: Any) -> None:
        self.source = source_of(pool_or_connect, False)

    def run(self, scope: str, key: Id, request: Request, effect: Callable[[Any], Any], **options: Any) -> Answer:
        return run(self.source, scope, key, request, effect, **options)

    def consume(self, consumer: str, message_id: Id, message: Request, effect: Callable[[Any], Any], **options: Any) -> bool:
        return consume(self.source, consumer, message_id, message, effect, **options)

    def claim(self, scope: str, key: Id, request: Request, **options: Any) -> Claim:
        return claim(self.source, scope, key, request, **options)

    def effect(
        self, *, scope: str, key: Union[str, Callable[..., Id]], tenant: Union[Id, Callable[..., Id]] = "",
        request: Optional[Callable[..., Any]] = None, **options: Any,
    ) -> Callable[[F], F]:  # fmt: skip
        """One function, at most once for each key: @once.effect(scope="payments", key="order-{order}").

        Its arguments are the request, unless request, a function of them, says what distinguishes a call from another with the same key. Its result is the
        answer, as JSON has it: a Decimal, a UUID, a date, a dataclass or a model of pydantic comes back as text or a dict, to the first caller too.
        key and tenant may be functions of its arguments. It may
        raise FinalFailure (stored), or NotDone (certainly nothing happened: the next call runs). Any other exception leaves the
        outcome in doubt: it is the __cause__ of the InDoubt that this call raises, as the next ones do. So does a call that falls
        silent, unless takeover=True."""

        def decorate(function: F) -> F:
            call = Call(function, key, tenant, request)
            options.setdefault("takeover", False)

            @functools.wraps(function)
            def once(*arguments: Any, **named: Any) -> Any:
                name, of, wanted = call.read(arguments, named)
                with self.claim(scope, name, wanted, tenant=of, **options) as held:
                    if held.answer is not None:
                        return value_of(held.answer)
                    token = _current.set(held)
                    try:
                        result = as_json(function(*arguments, **named))
                    except Exception as raised:
                        if says_what_was_done(raised):
                            raise
                        raise errors.InDoubt() from raised
                    finally:
                        _current.reset(token)
                    try:
                        held.complete(Outcome(body=dumps(result)))
                    except errors.TooLarge as raised:  # it is done, and its answer is lost for good
                        raise errors.InDoubt() from raised
                    return result

            return once  # type: ignore[return-value]

        return decorate
