# SPDX-License-Identifier: PostgreSQL
"""The HTTP door without a framework: one transaction around a handler, its answer stored with its effect. asgi.py, django.py
and flask.py bring requests here and take answers away."""

from __future__ import annotations

import dataclasses
import functools
import logging
import time
import uuid
from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

from . import _core, _reasons, _sql, errors, http
from ._drivers import Source
from ._handoff import HandedAttempt
from ._io import Steps
from .answer import Answer, Outcome, name_of

_log = logging.getLogger("pgonce")

HOLD_MAX = 64 << 20
# spec: names
_NAME_CHARACTERS_MAX = 255
_TENANT_MALFORMED = "The tenant must be valid UTF-8 of at most 255 characters, without control characters."
# end of spec


@dataclasses.dataclass(frozen=True)
class Policy:
    """What a door does. Times in seconds, sizes in bytes.

    scope: the kind of operation, or a function of the request; None from it: not protected.
    tenant: a function of the request that says whose key it is: never what a client may choose. It may give an answer of
    the framework instead, which is sent (a 401, say). None: there is but one caller.
    headers: those that are stored, instead of the built-in list; a name may end in *.
    mode: "transaction", or "lease" for handlers whose effect is elsewhere, or that need separate transactions: they run under a claim, and without a
    connection of pgonce's.
    handler_ms: how long an attempt may take, from its wait for a connection on; after that it is rolled back (in mode "lease": in doubt).
    host: False where the service is reached by several names: it is no part of what makes a request another one.
    gateway: True where every request comes through a gateway of the same scope: its claim is finished in the transaction of the effect (docs/reference/gateway.md);
    in mode "lease" the gateway does all of it."""

    scope: Union[str, Callable[[Any], Optional[str]]]
    tenant: Optional[Callable[[Any], Any]]
    required: bool = True
    wait: float = 0.0
    methods: Sequence[str] = ("POST", "PATCH")
    body_max: int = 16 << 20
    response_max: int = 1 << 20
    strict: bool = False
    key_length: int = http.KEY_MAX
    headers: Optional[Sequence[str]] = None
    canonical_json: bool = False
    deadline: float = _core.DEADLINE_S
    problem_base: str = http.PROBLEM_BASE
    mode: str = "transaction"
    handler_ms: int = 30_000
    host: bool = True
    gateway: bool = False

    def __post_init__(self) -> None:
        http.check_base(self.problem_base)
        if not 1 <= self.key_length <= http.KEY_MAX or not 1 <= self.response_max <= HOLD_MAX:
            raise errors.UsageError(f"key_length is 1 to {http.KEY_MAX}, response_max 1 byte to 64 MiB")
        if self.mode not in ("transaction", "lease") or self.handler_ms < 1:
            raise errors.UsageError("mode is 'transaction' or 'lease', and handler_ms at least 1")
        if not isinstance(self.gateway, bool):
            raise errors.UsageError("gateway is True where every request comes through a gateway of the same scope, else False")
        for name in self.headers or ():
            if http.never(name):
                raise errors.UsageError(f"{name} belongs to one answer only: it cannot be stored")

    @functools.cached_property
    def options(self) -> _core.Options:
        return _core.Options(deadline=self.deadline)

    def problem(self, name: str, more: str = "", trace: Optional[str] = None) -> http.Response:
        answer = http.problem(name, more, self.problem_base, trace)
        _log.debug("problem=%s request=%s", name, answer.request)
        return answer

    def logged(self, name: str, raised: BaseException, scope: str = "") -> http.Response:
        """A problem whose cause is in the log, under the name that the document gives the request."""
        answer = http.problem(name, "", self.problem_base)
        _log.error("problem=%s request=%s scope=%s %s", name, answer.request, scope or "-", why_of(raised))
        return answer

    def scope_of(self, request: Any, method: str) -> Optional[str]:
        if method not in self.methods:
            return None
        return self.scope(request) if callable(self.scope) else self.scope


def why_of(raised: BaseException) -> str:
    """For the log. Of a driver's text the first line: the rest may hold values."""
    cause = raised.__cause__ if isinstance(raised, errors.OnceError) and not isinstance(raised, errors.PoolFull) and raised.__cause__ else raised
    sqlstate = getattr(cause, "sqlstate", None) or getattr(getattr(cause, "orig", None), "sqlstate", None) or getattr(cause.__cause__, "sqlstate", None)
    code = f" sqlstate={sqlstate}" if sqlstate else ""
    return f"error={type(cause).__name__}{code}: {(str(cause).splitlines() or [''])[0]}"


def check_outermost(protected: Any) -> None:
    """Two doors would claim one key, or hold two connections, and the inner one waits for the outer one."""
    if protected:
        raise errors.UsageError("this request is protected already, by what is around this: protect it in one place")


class Refused(Exception):
    """The request goes no further: `answer` is sent."""

    def __init__(self, answer: http.Response) -> None:
        super().__init__()
        self.answer = answer


class Passes(Exception):
    """The request has no key, and needs none; or somebody else does all of it."""


def key_of(policy: Policy, values: Sequence[str]) -> str:
    if not values:
        if policy.required:
            raise Refused(policy.problem("key-missing"))
        raise Passes()
    if len(values) > 1:
        raise Refused(policy.problem("key-repeated"))
    try:
        return http.key_of_header(values[0], policy.strict, policy.key_length)
    except http.BadKey as bad:
        raise Refused(policy.problem("key-malformed", str(bad))) from None


def is_answer(given: Any) -> bool:
    """Has the function of the tenant given an answer of the framework's, such as a 401?"""
    return given is not None and not isinstance(given, (str, int, float, uuid.UUID))


def tenant_of(policy: Policy, given: Any) -> str:
    if policy.tenant is None:
        return ""
    given = name_of(given, "tenant")
    if not given:
        raise Refused(policy.problem("tenant-missing"))
    if len(given) > _NAME_CHARACTERS_MAX or any(c < " " or c == "\x7f" or "\ud800" <= c <= "\udfff" for c in given):
        raise Refused(policy.problem("tenant-missing", _TENANT_MALFORMED))
    return str(given)


def intent_of(
    policy: Policy, scope: str, key: str, tenant: str, said: Sequence[Sequence[str]], request: Any, traceparent: Optional[str]
) -> _core.Intent:
    """said: the values of the headers http.CLAIM. Raises Passes where a gateway in front does all of it."""
    fence = http.fence_of(said, tenant, scope, key)
    if fence is not None and policy.gateway and policy.mode == "lease":
        raise Passes()
    return _core.Intent(
        scope, key, tenant, request, traceparent, fence if policy.gateway else None, fence is not None and not policy.gateway
    )


def body_too_large(policy: Policy) -> http.Response:
    return policy.problem("body-too-large")


def replay(policy: Policy, answer: Answer) -> http.Response:
    if answer.result_type == http.TOO_LARGE:
        return policy.problem("too-large", trace=answer.traceparent)
    headers = http.decode_headers(answer.headers)
    if headers is None or answer.status is None or not 200 <= answer.status <= 599:
        return policy.problem("no-answer", trace=answer.traceparent)
    headers = [(name, value) for name, value in headers if not http.never(name)]
    headers.append(("Idempotency-Replayed", "true"))
    if answer.traceparent is not None:
        headers.append(("Idempotency-Traceparent", answer.traceparent))
    return http.Response(answer.status, headers, answer.body or b"", replayed=True)


FRONTED = "A pgonce gateway in front of this service has claimed this key in the same scope: set the option gateway, or give the two different scopes."


def refusal(policy: Policy, error: errors.OnceError, intent: Optional[_core.Intent] = None) -> http.Response:
    scope = "" if intent is None else intent.scope
    if intent is not None and intent.fronted and isinstance(error, (errors.Active, errors.Mismatch)):
        answer = policy.problem(str(errors.problem_of(error)), FRONTED)
        _log.error("request=%s scope=%s %s", answer.request, scope, FRONTED)
        return answer
    if isinstance(error, errors.InDoubt) and error.__cause__ is not None:  # just now
        return policy.logged("in-doubt", error, scope)
    name = errors.problem_of(error)
    if name is None:
        if isinstance(error, errors.NotDone):
            return policy.logged("unreached", error, scope)
        # After a lost lease it is unknown whether the work was done.
        unknown = error.outcome_unknown or isinstance(error, errors.LeaseLost)
        return policy.logged("not-stored" if unknown else "unavailable", error, scope)
    more = ""
    if isinstance(error, errors.KeyMalformed):
        more = "the key is missing or malformed"
    elif isinstance(error, errors.Mismatch) and intent is not None and intent.request.content_type[:10].lower() == "multipart/":
        more = (
            "A multipart body that is built again has a new boundary, so it is another request: send the same bytes as"
            " the first time."
        )
    elif isinstance(error, errors.InDoubt) and error.answer is not None and error.answer.status:
        more = f"The service answered {error.answer.status}, which does not say whether the effect happened."
    return policy.problem(name, more, error.traceparent)


def answer_of(policy: Policy, error: errors.OnceError) -> http.Response:
    """What an error of run, claim or effect is over HTTP; a final failure is what was stored."""
    if not isinstance(error, errors.FinalFailure):
        return refusal(policy, error)
    said = Outcome(status=error.response_status, body=error.body, headers=error.headers)
    answer = error.answer or _core.stored_failure(said, 0)
    made = replay(policy, answer)
    return made if answer.replayed else own(made)


def public(answer: http.Response) -> http.Response:
    """As the client of this attempt gets it."""
    return answer._replace(headers=[each for each in answer.headers if not http.reserved(each[0])])


def check_held(length: int) -> None:
    if length > HOLD_MAX:
        raise errors.AnswerNotStored(f"an answer of more than {HOLD_MAX} bytes cannot be held until it is stored")


def _doubt(attempt: _core.Attempt, status: int) -> Steps[None]:
    """The effect is taken back, and the intent put in doubt: the handler does not know what it did elsewhere."""
    intent, connection = attempt.intent, attempt.connection
    known = status if 200 <= status <= 599 else None
    arguments = [intent.scope, intent.key, intent.tenant, attempt.print, attempt.traceparent, *_reasons.UNCLEAR, known]
    attempt.committing = True
    yield connection.commit([(_sql.ROLLBACK_TO_SAVEPOINT, ()), (_sql.DOUBT, arguments)])
    attempt.committing = False


def outcome_of(policy: Policy, answer: http.Response) -> Tuple[Outcome, Outcome]:
    """What is stored of an answer, and what instead where it does not fit: done, and what its answer was is not kept."""
    headers = http.encode_headers(answer.headers, policy.headers)
    sendable = 200 <= answer.status <= 599
    without = Outcome(status=answer.status if sendable else None, result_type=http.TOO_LARGE)
    if not sendable or answer.endless or headers is None or len(answer.body) > policy.response_max:
        return without, without
    return Outcome(status=answer.status, body=answer.body, headers=headers), without


def is_refused(answer: http.Response) -> bool:
    """Is a stored answer a failure for good? Its status decides, unless the answer states its effect."""
    return answer.status >= 400 and http.said_of(answer.headers) is None


def _store(policy: Policy, attempt: _core.Attempt, answer: http.Response) -> Steps[str]:
    """What a gateway in front is told: nothing of what is stored."""
    effect = http.effect_of(answer.status, answer.headers)
    if effect == http.NONE or not http.can_be_sent(answer.status, answer.headers):
        return http.NONE
    if effect == http.UNKNOWN:
        if attempt.intent.fence is None:
            yield from _doubt(attempt, answer.status)
        return effect
    take_back = is_refused(answer)
    outcome, without = outcome_of(policy, answer)
    if take_back:
        outcome, without = (dataclasses.replace(each, error_code=_reasons.REFUSED[0], error_message=_reasons.REFUSED[1]) for each in (outcome, without))
    yield from attempt.close(outcome, "failed_final" if take_back else "succeeded", take_back, spare=without)
    return ""


def _is_applications(sqlstate: Optional[str]) -> bool:
    """At COMMIT: a deferred constraint, a trigger, a right that is missing. Not a race, nor a statement or a server that is gone."""
    return sqlstate is not None and sqlstate not in (*errors.SERIALIZATION, *errors.STATEMENT_GONE) and sqlstate[:2] not in ("08", "53", "58")


def serve(
    source: Source, policy: Policy, intent: _core.Intent, handle: Callable[[Any], Any]
) -> Steps[Tuple[http.Response, bool]]:
    """handle(connection) gives the handler's http.Response, or a Pause until the door has it; it is called at most once. What it raises comes out after
    ROLLBACK. The answer, and whether it is the handler's: else what it did is taken back, or was never begun."""
    made: List[Any] = []
    try:
        return (yield from _serve(source, policy, intent, handle, made))
    except BaseException:
        if intent.fence is not None and made:  # the answer is not written here: the gateway would take it for a doubt
            yield from made[-1].report()
        raise


def _serve(
    source: Source, policy: Policy, intent: _core.Intent, handle: Callable[[Any], Any], made: List[Any]
) -> Steps[Tuple[http.Response, bool]]:
    kind = _core.Attempt if intent.fence is None else HandedAttempt
    start = time.monotonic()
    tries = 0
    refused: Optional[errors.SlotClosed] = None
    while True:
        attempt = kind(source, intent, policy.options, max(_core.MOMENT_S, start + policy.handler_ms / 1000 - time.monotonic()))
        attempt.refused, refused = refused, None
        made.append(attempt)
        found: Optional[http.Response] = None
        effect = ""
        try:
            stored = yield from attempt.open()
            if stored is not None:
                found = replay(policy, stored)
            else:
                attempt.in_effect = True
                found = yield handle(attempt.connection)
                attempt.in_effect = False
                effect = yield from _store(policy, attempt, found)
                found = public(found)
                found = found if intent.fence is None else found._replace(effect=effect)
        except BaseException as raised:
            sqlstate, lost = _core.trouble_of(attempt.connection, raised)
            begun = attempt.lent is not None
            attempt.parted = yield from _core.parts(attempt, raised, sqlstate, lost)
            yield from attempt.end()
            if attempt.parted:
                answer = yield from _parted(source, policy, attempt)
                if not attempt.in_effect:
                    return answer, False
            if isinstance(raised, errors.TimedOut):
                return policy.logged("timed-out", raised, intent.scope), False
            if attempt.in_effect or not isinstance(raised, Exception) or isinstance(raised, errors.UsageError):
                raise
            typed = _core.typed_of(raised, sqlstate, attempt.committing)
            if isinstance(typed, errors.SwallowedError):
                raise typed from raised
            if isinstance(typed, errors.FinalFailure) and typed.answer is not None:
                return replay(policy, typed.answer), False
            if attempt.moves(typed):
                refused = typed  # type: ignore[assignment]
                continue
            again = sqlstate in errors.SERIALIZATION and found is None  # before the handler has run
            if isinstance(typed, errors.Active):
                again = time.monotonic() - start < policy.wait
            pause = _core.pause_s(tries)
            if again and time.monotonic() - start + pause < policy.deadline:
                yield source.sleep(min(pause, 0.25))
                tries += 1
                continue
            if isinstance(typed, errors.LeaseLost) and intent.fence is not None:  # what is stored is another's, and the gateway gives it
                return policy.problem("active"), False
            if typed is not None:
                return refusal(policy, typed, intent), False
            if lost and attempt.committing and isinstance(attempt, HandedAttempt):
                undone = yield from attempt.report()
                return policy.logged("unavailable" if undone else "not-stored", raised, intent.scope), False
            if lost and attempt.committing:
                return (yield from _asked(source, policy, intent))
            if not lost and sqlstate is None and (begun or not _core.unreachable(raised)):
                raise  # of no driver: a fault in the application or here
            if attempt.committing and not lost and _is_applications(sqlstate):
                _log.error("the application's COMMIT was refused: scope=%s %s", intent.scope, why_of(raised))
                raise
            return policy.logged("unavailable", raised, intent.scope), False
        attempt.parted = attempt.connection.ended() or effect == http.NONE and (yield from _core.has_left(attempt))
        yield from attempt.end()
        if attempt.parted:
            return (yield from _parted(source, policy, attempt)), False
        return found, not found.replayed


def _parted(source: Source, policy: Policy, attempt: _core.Attempt) -> Steps[http.Response]:
    if attempt.intent.fence is not None:
        return policy.logged("in-doubt", errors.NotStarted(_core.PARTED), attempt.intent.scope)  # which the gateway heeds
    doubt = yield from _core.doubt(source, attempt.intent, attempt.print, _core.PARTED, policy.deadline)
    return policy.logged("in-doubt" if isinstance(doubt, errors.InDoubt) else "not-stored", doubt, attempt.intent.scope)


def _asked(source: Source, policy: Policy, intent: _core.Intent) -> Steps[Tuple[http.Response, bool]]:
    """COMMIT was sent, and its answer lost: the next start says what became of it, and runs nothing."""
    asked: List[bool] = []

    def nothing(_: Any) -> Any:
        asked.append(True)
        raise errors.NotDone("the connection was lost before COMMIT took effect")

    try:
        found = yield from _core.run(source, intent, _core.Options(policy.deadline, policy.deadline / 3), nothing)
    except errors.FinalFailure as final:
        return (policy.problem("no-answer") if final.answer is None else own(replay(policy, final.answer))), True
    except errors.InDoubt:
        return policy.problem("in-doubt"), True
    except errors.NotDone as lost:
        return policy.logged("unavailable", lost, intent.scope), False
    except Exception as unanswered:
        return policy.logged("not-stored", unanswered, intent.scope), False
    return own(replay(policy, found)), True


def own(answer: http.Response) -> http.Response:
    """This attempt's own answer, although it was read from the stored row."""
    return public(answer)._replace(replayed=False)
