# SPDX-License-Identifier: PostgreSQL
"""run, claim and report: what a client does around the contract's decisions, for both doors (see _io.py). Steps yield what a source or its connection
gave; what must not be cut off by a cancellation is the adapters' affair (_drivers.py).

As once_execute of libpgonce: what an attempt leaves behind is never guessed. After a lost COMMIT the next attempt's start
asks. It cannot be told "proceed" while the old backend lives, because that one holds the intent's advisory lock until
its commit is visible; so "proceed" means that it did not commit."""

from __future__ import annotations

import dataclasses
import os
import random
import re
import secrets
import socket
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Type

from . import _reasons, _sql, errors
from ._drivers import Source
from ._fingerprint import fingerprint, hashed_of, remember, salt_of
from ._io import Steps
from ._verdicts import may_run, verdict_of_lost
from .answer import Answer, Outcome, fingerprint_of, name_of, outcome_of, stored

# spec: retries
BACKOFF_FIRST_S = 0.005  # the longest first pause
BACKOFF_MAX_S = 1.0  # the longest pause
DEADLINE_S = 30.0  # the default deadline of a call
# end of spec
# What the contract takes for any scope, of a body and of headers: up to it P4060 cannot come.
NEVER_TOO_LARGE = 8192
MOMENT_S = 0.001


class Intent(NamedTuple):
    scope: str
    key: str
    tenant: str
    request: Any
    traceparent: Optional[str] = None
    # Of the claim of a gateway in front, in the same scope. fence: it is finished here; fronted: the application has not said so.
    fence: Optional[int] = None
    fronted: bool = False


def intent_of(scope: Any, key: Any, tenant: Any, request: Any, traceparent: Optional[str]) -> Intent:
    return Intent(name_of(scope, "scope"), name_of(key, "key"), name_of(tenant, "tenant"), request, traceparent)


# The intent in whose attempt a transaction is, by what the application has of it: an event in it is caused by that.
_CAUSES: Dict[int, Intent] = {}


def cause_of(tx: Any) -> Optional[Intent]:
    return _CAUSES.get(id(tx))


@dataclasses.dataclass(frozen=True)
class Options:
    """Times in seconds. wait: how long to wait for a running attempt's answer."""

    deadline: float = DEADLINE_S
    wait: float = 0.0
    isolation: Optional[str] = None

    def __post_init__(self) -> None:
        if self.isolation is not None and self.isolation not in _sql.ISOLATION:
            raise errors.UsageError(f"isolation is one of {', '.join(_sql.ISOLATION)}")
        if self.deadline <= 0 or self.wait < 0:
            raise errors.UsageError("deadline must be more than 0, and wait not less")


def pause_s(tries: int) -> float:
    """Exponential, capped, full jitter (Brooker, "Exponential Backoff And Jitter")."""
    return random.uniform(0, min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2.0 ** min(tries, 30)))


class Attempt:
    """One transaction: start, effect, finish, COMMIT."""

    # Comes before finish.
    before: Sequence[Tuple[str, Any]] = ()

    def __init__(self, source: Source, intent: Intent, options: Options, within: float) -> None:
        """within: how long it waits for a connection."""
        self.source, self.intent, self.options, self.within = source, intent, options, within
        self.connection: Any = None
        self.place: Any = None
        self.refused: Optional[errors.SlotClosed] = None
        self.lent: Optional[int] = None
        self.print: bytes = b""
        self.fence = 0
        self.in_effect = False
        self.committing = False
        self.parted = False
        self.traceparent = intent.traceparent

    def _start(self, hashed: Optional[bytes], salt: Optional[bytes]) -> Tuple[str, Any]:
        intent = self.intent
        if hashed is None:
            kind, arguments = fingerprint_of(intent.request, intent.tenant)
            return _sql.START[kind], [*arguments, intent.scope, intent.key, intent.traceparent]
        known = hashed if salt is None else fingerprint(salt, hashed)
        sql = _sql.START_SALTED if salt is None else _sql.START_KNOWN
        return sql, [intent.scope, intent.key, known, intent.tenant, intent.traceparent]

    def connect(self) -> Steps[None]:
        self.place = yield self.source.at(self.intent.tenant, self.refused)
        self.connection = yield self.place.acquire(self.within)

    def moves(self, typed: Optional[errors.OnceError]) -> bool:
        """Did the node refuse the tenant before anything of the application ran, so that the next attempt may ask another one? Once in a row."""
        return isinstance(typed, errors.SlotClosed) and self.source.routes and self.lent is None and self.refused is None

    def open(self, trusted: bool = True) -> Steps[Optional[Answer]]:
        """None: do the effect in self.connection.tx. trusted: is what is remembered of the salt?"""
        intent = self.intent
        hashed = hashed_of(intent.request)
        statements: List[Tuple[str, Any]] = []
        if self.options.isolation is not None:
            statements.append((_sql.ISOLATION[self.options.isolation], ()))
        yield from self.connect()
        salt = salt_of(self.connection, intent.tenant) if trusted and hashed is not None else None
        statements.append(self._start(hashed, salt))
        row = yield self.connection.begin([*statements, (_sql.SAVEPOINT, ())], len(statements) - 1)
        self.print, verdict, self.fence = bytes(row[0] or b""), row[1], row[2]
        if hashed is not None and salt is None:
            remember(self.connection, intent.tenant, self.print)
            self.print = fingerprint(self.print, hashed)
        elif salt is not None and verdict == "mismatch":
            # Or it is the salt that is another: the contract was installed anew.
            yield from self.end()
            return (yield from self.open(trusted=False))
        if verdict == "proceed":
            self.traceparent = row[11] or intent.traceparent
            self._lend(intent)
            return None
        answer = stored(row[3:12], replayed=True, fence=row[2] or 0)
        if verdict == "replay_success":
            return answer
        if verdict == "in_doubt":  # why: only a look tells
            row = yield self.connection.query(_sql.PEEK, [intent.scope, intent.key, intent.tenant])
            answer = stored(row[2:11], replayed=True, fence=row[1] or 0)
        raise failed(verdict, answer)

    def _lend(self, intent: Intent) -> None:
        self.lent = id(self.connection.tx)
        _CAUSES[self.lent] = intent

    def _finish(self, outcome: Outcome, state: str) -> Tuple[str, Any]:
        intent = self.intent
        text, json_text, body, headers = outcome.bodies()
        return _sql.FINISH, [
            intent.scope, intent.key, self.print, outcome.status, text, json_text, body, headers, *outcome.result(), state,
            outcome.error_code, outcome.error_message, intent.tenant, self.traceparent,
        ]  # fmt: skip

    def close(self, outcome: Outcome, state: str, take_back: bool, spare: Optional[Outcome] = None) -> Steps[Optional[bytes]]:
        """finish and COMMIT; the body as it is stored. take_back: the effect goes first. spare: stored instead, where the body or the headers are larger than the contract keeps."""
        connection = self.connection
        statements: List[Tuple[str, Any]] = [(_sql.ROLLBACK_TO_SAVEPOINT, ())] if take_back else [*self.before]
        if connection.guard.role:  # finish must not run under the role that the effect has set
            statements.append((_sql.OWN_ROLE, ()))
        finish = self._finish(outcome, state)
        spared = spare is not None and max(len(outcome.body or b""), len(finish[1][7] or "")) > NEVER_TOO_LARGE
        if spared:
            statements.append((_sql.SAVEPOINT_STORE, ()))
        self.committing = True
        try:
            row = yield connection.commit([*statements, finish])
        except Exception as raised:
            if spare is None or not spared or trouble_of(connection, raised)[0] != errors.TooLarge.sqlstate:
                raise
            row = yield connection.commit([(_sql.ROLLBACK_TO_STORE, ()), self._finish(spare, state)])
        self.committing = False
        return None if row[0] is None else bytes(row[0])

    def _closed(self, outcome: Outcome, state: str, take_back: bool) -> Steps[Answer]:
        body = yield from self.close(outcome, state, take_back)
        return Answer(
            replayed=False,
            state=state,
            status=outcome.status,
            headers=outcome.headers,
            body=body,
            result_type=outcome.result()[0],
            result_id=outcome.result()[1],
            error_code=outcome.error_code,
            error_message=outcome.error_message,
            traceparent=self.traceparent,
            fence=self.fence or 0,
        )

    def end(self) -> Steps[None]:
        """Gives the connection back, also after an error."""
        connection, self.connection = self.connection, None
        if connection is not None:
            if self.lent is not None:
                _CAUSES.pop(self.lent, None)
            yield self.place.release(connection)

    def run(self, effect: Callable[[Any], Any]) -> Steps[Answer]:
        answer = yield from self.open()
        if answer is not None:
            return answer
        self.in_effect = True
        try:
            result = yield effect(self.connection.tx)
        except errors.FinalFailure as final:
            if final.answer is not None:  # of another intent, within this one's effect
                raise
            failure = final
        else:
            self.in_effect = False
            return (yield from self._closed(outcome_of(result), "succeeded", False))
        self.in_effect = False
        outcome = Outcome(
            status=failure.response_status,
            body=failure.body,
            headers=failure.headers,
            error_code=failure.code,
            error_message=failure.message or None,
        )
        failure.answer = yield from self._closed(outcome, "failed_final", True)
        raise failure


_UUID_V7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}\Z", re.I | re.A)


def key_of_message(name: str) -> str:
    """The key that once.receive gives the intent of a message: its id is only a name, and has no birthday."""
    return f"pgonce:id:{name}" if _UUID_V7.match(name) else name


class Delivery(Attempt):
    """One transaction: receive, effect, COMMIT. A message is an intent whose scope is the consumer."""

    def run(self, effect: Callable[[Any], Any]) -> Steps[Any]:
        intent = self.intent
        kind, arguments = fingerprint_of(intent.request, intent.tenant)
        statements: List[Tuple[str, Any]] = [(_sql.RECEIVE[kind], [*arguments, intent.scope, intent.key, intent.traceparent])]
        if self.options.isolation is not None:
            statements.insert(0, (_sql.ISOLATION[self.options.isolation], ()))
        yield from self.connect()
        row = yield self.connection.begin(statements, len(statements) - 1)
        if row[0] != "process":
            return False
        self._lend(intent._replace(key=key_of_message(intent.key)))
        self.in_effect = True
        yield effect(self.connection.tx)
        self.in_effect = False
        self.committing = True
        yield self.connection.commit([(_sql.SETTLED, ())])
        self.committing = False
        return True


def stored_failure(outcome: Outcome, fence: int, state: str = "failed_final") -> Answer:
    text, json_text, body, _ = outcome.bodies()
    content = text if text is not None else json_text
    return Answer(
        replayed=False, state=state, status=outcome.status, headers=outcome.headers,
        body=body if content is None else content.encode(), error_code=outcome.error_code, error_message=outcome.error_message,
        fence=fence,
    )  # fmt: skip


def failed(verdict: str, answer: Answer) -> errors.OnceError:
    if verdict != "final_failure":
        made = errors.of_verdict(verdict)
        if isinstance(made, errors.InDoubt):
            made.answer = answer
        if not isinstance(made, errors.Mismatch):  # the sender of another request learns nothing of the first one
            made.traceparent = answer.traceparent
        return made
    final = errors.FinalFailure(
        answer.error_message or "", status=answer.status, body=answer.body, headers=answer.headers, code=answer.error_code
    )
    final.answer, final.traceparent = answer, answer.traceparent
    return final


def trouble_of(connection: Any, raised: BaseException) -> Tuple[Optional[str], bool]:
    """The SQLSTATE, and whether the connection is lost. An error of no driver is neither."""
    found = None if connection is None else connection.trouble(raised)
    return (None, False) if found is None else (found.sqlstate, found.lost)


# The transaction of an attempt was gone before finish, so part of its work may have been committed.
_PARTED = (errors.NotStarted.sqlstate, errors.AlreadyStarted.sqlstate, errors.AnotherFingerprint.sqlstate, "25P01", "3B001")


def is_parted(attempt: Attempt, sqlstate: Optional[str]) -> bool:
    connection = attempt.connection
    return connection is not None and (sqlstate in _PARTED if attempt.committing else connection.ended())


def has_left(attempt: Attempt) -> Steps[bool]:
    """Of an attempt whose effect is not to stay: has it ended its transaction, and perhaps begun another one? Else it is taken back."""
    try:
        yield attempt.connection.undo()
    except Exception as refused:
        return trouble_of(attempt.connection, refused)[0] in _PARTED
    except BaseException:
        yield from attempt.end()
        raise
    return False


def parts(attempt: Attempt, raised: BaseException, sqlstate: Optional[str], lost: bool) -> Steps[bool]:
    """As is_parted, of an attempt that ends with an error. Of an effect that threw, or that went on in an aborted transaction, only the server knows it."""
    if is_parted(attempt, sqlstate):
        return True
    if attempt.connection is None or attempt.lent is None or lost or not isinstance(raised, Exception):
        return False
    swallowed = attempt.committing and errors.SwallowedError.sqlstate in (sqlstate, getattr(raised, "sqlstate", None))
    return (attempt.in_effect or swallowed) and (yield from has_left(attempt))


def doubt(source: Source, intent: Intent, fingerprint: bytes, why: str, within: float) -> Steps[errors.OnceError]:
    """Puts the intent in doubt, in a separate transaction, so that nothing runs again. Returns the error to raise."""
    arguments = [intent.scope, intent.key, intent.tenant, fingerprint, intent.traceparent, _reasons.ENDED[0], why, None]
    try:
        yield from alone(source, intent, _sql.DOUBT, arguments, within)
    except errors.OnceError as failed:
        unknown = errors.OutcomeUnknown(why)
        unknown.__cause__ = failed
        return unknown
    return errors.InDoubt(why)


PARTED = _reasons.ENDED[1]

_DRIVERS = ("psycopg", "psycopg_pool", "psycopg2", "asyncpg", "sqlalchemy", "django")


def unreachable(raised: BaseException) -> bool:
    """Why no connection came: a driver's error, or the system's. Anything else is a fault in the program."""
    return isinstance(raised, (OSError, TimeoutError, errors.ConnectionLost)) or (
        any(kind.__module__.split(".")[0] in _DRIVERS for kind in type(raised).__mro__) and isinstance(raised, Exception)
    )


def typed_of(raised: BaseException, sqlstate: Optional[str], committing: bool) -> Optional[errors.OnceError]:
    if isinstance(raised, errors.OnceError):
        return raised
    if committing and sqlstate == errors.SwallowedError.sqlstate:  # finish could not run: COMMIT would be a ROLLBACK
        return errors.SwallowedError()
    return errors.of_driver(raised, sqlstate)


def run(source: Source, intent: Intent, options: Options, effect: Callable[[Any], Any], kind: Type[Attempt] = Attempt) -> Steps[Any]:
    start = time.monotonic()
    in_doubt = False  # an earlier COMMIT is unanswered: until start has spoken, the outcome is unknown
    lost_before = False  # a connection was lost: its backend may live on, and "active" may mean ourselves
    tries = 0
    refused: Optional[errors.SlotClosed] = None
    while True:
        attempt = kind(source, intent, options, max(MOMENT_S, start + options.deadline - time.monotonic()))
        attempt.refused, refused = refused, None
        try:
            answer = yield from attempt.run(effect)
        except BaseException as raised:
            sqlstate, lost = trouble_of(attempt.connection, raised)
            connected = attempt.connection is not None
            parted = kind is Attempt and (yield from parts(attempt, raised, sqlstate, lost))
            yield from attempt.end()
            if parted:
                raise (yield from doubt(source, intent, attempt.print, PARTED, options.deadline)) from raised
            if not isinstance(raised, Exception):
                raise
            if not connected:
                if not unreachable(raised):
                    raise
                if not lost_before:
                    raise raised if isinstance(raised, errors.ConnectionLost) else errors.ConnectionLost() from raised
                lost = True
            in_doubt = in_doubt or (lost and attempt.committing)
            lost_before = lost_before or lost
            typed = typed_of(raised, sqlstate, attempt.committing)
            again = sqlstate in errors.SERIALIZATION or (attempt.committing and sqlstate in errors.STATEMENT_GONE)
            if not lost and not again and attempt.in_effect:
                raise
            if attempt.moves(typed):
                refused = typed  # type: ignore[assignment]
                continue
            if isinstance(typed, errors.Active):
                again = in_doubt or lost_before or time.monotonic() - start < options.wait
            elif typed is not None and (typed.sqlstate or "").startswith("P4") and not isinstance(typed, errors.SlotClosed):
                in_doubt = False  # start or finish has looked, and said
            pause = pause_s(tries)
            if lost and not source.renewable or not (lost or again) or time.monotonic() - start + pause >= options.deadline:
                if in_doubt:
                    raise errors.OutcomeUnknown() from raised
                if lost:
                    raise errors.ConnectionLost(sqlstate=sqlstate) from raised
                if typed is not None and typed is not raised:
                    raise typed from raised
                raise
        else:
            yield from attempt.end()
            return answer
        yield source.sleep(pause)
        tries += 1


# ---- leased ----


@dataclasses.dataclass(frozen=True)
class Terms:
    """Times in seconds; None: the scope's."""

    owner: Optional[str] = None
    lease: Optional[float] = None
    retention: Optional[float] = None
    takeover: Optional[bool] = None


@dataclasses.dataclass
class Granted:
    fence: int
    verdict: str
    lease_s: float
    traceparent: Optional[str]


def owner_of(given: Optional[str]) -> str:
    """A new name for each claim, so that a claim whose reply was lost is found again."""
    return f"{(given or socket.gethostname())[:200]}:{os.getpid()}#{secrets.token_hex(8)}"


def alone(source: Source, intent: Intent, sql: str, arguments: Any, within: float) -> Steps[Any]:
    """alone_at the node of the tenant; once more where that refuses it, and another one may serve it."""
    place = yield source.at(intent.tenant)
    try:
        return (yield from alone_at(place, sql, arguments, within))
    except errors.SlotClosed as refused:
        if not source.routes:
            raise
        closed = refused
    place = yield source.at(intent.tenant, closed)
    return (yield from alone_at(place, sql, arguments, within))


def alone_at(source: Source, sql: str, arguments: Any, within: float) -> Steps[Any]:
    """within: how long it waits for a connection. One statement, committed. Raises ConnectionLost where there was no connection, or it was lost; then it may have happened."""
    try:
        connection = yield source.acquire(within)
    except Exception as raised:
        if unreachable(raised) and not isinstance(raised, errors.ConnectionLost):
            raise errors.ConnectionLost() from raised
        raise
    try:
        row = yield connection.alone(sql, arguments)
    except BaseException as raised:
        sqlstate, lost = trouble_of(connection, raised)
        yield source.release(connection)
        if not isinstance(raised, Exception):
            raise
        if lost:
            gone = errors.ConnectionLost(sqlstate=sqlstate)
            gone.connected = True
            raise gone from raised
        typed = errors.of_driver(raised, sqlstate)
        if typed is not None:
            raise typed from raised
        raise
    yield source.release(connection)
    return row


def insist(
    source: Source, intent: Intent, sql: str, arguments: Any, deadline: float, begun: bool = True, report: bool = False
) -> Steps[Tuple[Any, bool]]:
    """Sends it again while the connection is lost; and whether it was sent more than once. begun: work is done, so that it is worth waiting for a database
    that is away; else that ends it at once, as long as nothing was sent. report: also while the tenant's slot is closed, which is open on no node while it moves."""
    end = time.monotonic() + deadline
    tries = 0
    sent = False
    while True:
        try:
            row = yield from alone(source, intent, sql, arguments, max(MOMENT_S, end - time.monotonic()))
            return row, sent
        except Exception as raised:
            lost = isinstance(raised, errors.ConnectionLost)
            if lost and not begun and not sent and not getattr(raised, "connected", False):
                raise
            sent = sent or lost
            again = lost or getattr(raised, "sqlstate", None) in errors.SERIALIZATION or sent and not isinstance(raised, errors.OnceError)
            again = again or report and isinstance(raised, errors.SlotClosed)
            pause = pause_s(tries)
            if not again or not source.renewable or time.monotonic() + pause >= end:
                if sent:
                    raise errors.OutcomeUnknown() from raised
                raise
        yield source.sleep(pause)
        tries += 1


def claim(source: Source, intent: Intent, options: Options, terms: Terms, box: List[Granted]) -> Steps[Optional[Answer]]:
    """None: granted, and box holds it, even where this call ends in a cancellation."""
    kind, arguments = fingerprint_of(intent.request, intent.tenant)
    owner = owner_of(terms.owner)
    arguments = [
        *arguments, intent.scope, intent.key, owner, terms.lease, terms.retention, intent.traceparent, terms.takeover,
    ]  # fmt: skip
    start = time.monotonic()
    tries = 0
    lost_before = False  # a connection was lost: its backend may live on, and "active" may mean ourselves
    while True:
        row, twice = yield from insist(source, intent, _sql.CLAIM[kind], arguments, options.deadline, begun=tries > 0)
        lost_before = lost_before or twice
        patience = options.wait
        verdict, fence, lease_s = row[0], row[1] or 0, row[11]
        answer = stored(row[2:11], replayed=True, fence=fence)
        if may_run(verdict):
            box.append(Granted(fence, verdict, lease_s, answer.traceparent))
            return None
        if verdict == "replay_success":
            return answer
        if verdict == "processing_active" and lost_before:
            peeked, _ = yield from insist(source, intent, _sql.PEEK, [intent.scope, intent.key, intent.tenant], options.deadline)
            if peeked[12] == owner:
                box.append(Granted(peeked[1], verdict_of_lost(peeked[13], terms.takeover), peeked[11], peeked[10]))
                return None
            if peeked[0] != "processing_active":  # no look-up sees it yet
                patience = options.deadline
        pause = pause_s(tries + 1)
        if verdict != "processing_active" or time.monotonic() - start + pause >= patience:
            raise failed(verdict, answer)
        yield source.sleep(pause)
        tries += 1


def complete(source: Source, intent: Intent, fence: int, outcome: Outcome, deadline: float) -> Steps[bool]:
    text, json_text, body, headers = outcome.bodies()
    arguments = [
        intent.scope, intent.key, fence, outcome.status, text, json_text, body, headers, *outcome.result(), intent.tenant,
    ]  # fmt: skip
    row, _ = yield from insist(source, intent, _sql.COMPLETE, arguments, deadline, report=True)
    return bool(row[0])


def fail(
    source: Source, intent: Intent, fence: int, retryable: Optional[bool], outcome: Outcome, deadline: float
) -> Steps[bool]:
    text, json_text, body, headers = outcome.bodies()
    arguments = [
        intent.scope, intent.key, fence, retryable, outcome.error_code, outcome.error_message, outcome.status, text,
        json_text, body, headers, intent.tenant,
    ]  # fmt: skip
    row, _ = yield from insist(source, intent, _sql.FAIL, arguments, deadline, report=True)
    return bool(row[0])


def release(source: Source, intent: Intent, fence: int, deadline: float) -> Steps[bool]:
    row, twice = yield from insist(source, intent, _sql.RELEASE, [intent.scope, intent.key, fence, intent.tenant], deadline, report=True)
    return bool(row[0]) or twice


def renew(source: Source, intent: Intent, fence: int, lease: Optional[float], patience: float) -> Steps[bool]:
    """patience: how long it is sent again while the tenant's slot is closed."""
    end = time.monotonic() + patience
    tries = 0
    while True:
        try:
            row = yield from alone(source, intent, _sql.RENEW, [intent.scope, intent.key, fence, lease, intent.tenant], DEADLINE_S)
            return bool(row[0])
        except errors.SlotClosed:
            pause = pause_s(tries)
            if time.monotonic() + pause >= end:
                raise
        yield source.sleep(pause)
        tries += 1


# ---- in the caller's own transaction ----


def within(connection: Any, sql: str, arguments: Any) -> Steps[Any]:
    try:
        row = yield connection.query(sql, arguments)
    except Exception as raised:
        typed = errors.of_driver(raised, trouble_of(connection, raised)[0])
        if typed is not None:
            raise typed from raised
        raise
    return row[0]
