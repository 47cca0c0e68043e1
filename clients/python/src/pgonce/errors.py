# SPDX-License-Identifier: PostgreSQL
"""What can go wrong, by its kind. Branch on the class or on `sqlstate`, never on the text: texts may change.

No message holds a key, a tenant or a body, since errors end up in logs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional, Type

from ._verdicts import VERDICTS

if TYPE_CHECKING:
    from .answer import Answer


# Of the contract: its name, what an HTTP door answers, whether the same call may be tried again as it is, its sentence, and the problem that answers it.
_CONTRACT = {
    # spec: errors
    "P4000": ("scope_required", 403, False, "a scope of 1 to 255 characters is required", "refused"),
    "P4001": ("key_malformed", 400, False, "the key is missing or malformed", "key-malformed"),
    "P4002": ("mismatch", 422, False, "the key was first used with another request", "mismatch"),
    "P4003": ("refused", 403, False, "the fingerprint or the tenant is refused", "refused"),
    "P4010": ("completion_refused", 409, False, "the attempt no longer holds the intent: discard its result", None),
    "P4011": ("failure_refused", 409, False, "the attempt no longer holds the intent: discard its result", None),
    "P4012": ("not_started", 500, False, "the transaction has not started the intent: did the effect end it?", None),
    "P4013": ("unfinished", 500, False, "the transaction has started an intent and not finished it: nothing was committed", None),
    "P4014": ("already_started", 500, False, "this transaction has started this intent already", None),
    "P4015": ("another_fingerprint", 500, False, "this transaction has started the intent with another fingerprint", None),
    "P4020": ("already_finished", 409, False, "the intent is finished and has an outcome", "no-answer"),
    "P4029": ("active", 409, True, "another attempt of this intent is running", "active"),
    "P4030": ("final_failure", 409, False, "the intent failed for good", "no-answer"),
    "P4031": ("in_doubt", 409, False, "the outcome of this intent is unknown", "in-doubt"),
    "P4041": ("expired", 409, False, "the key is older than what is remembered", "expired"),
    "P4050": ("message_mismatch", 422, False, "the message id was first used with another payload", None),
    "P4051": ("event_mismatch", 422, False, "this intent has already emitted this event with another payload", None),
    "P4060": ("too_large", 500, False, "the outcome or the event is too large", None),
    "P4070": ("resolution_refused", 409, False, "the decision is refused", None),
    "P4097": ("slot_closed", 503, True, "this node does not serve the tenant now", None),
    "P4098": ("partition_missing", 503, True, "the partition for this day is missing", None),
    "P4099": ("unknown_state", 503, False, "the intent is in a state that this function does not know", None),
    # end of spec
}  # fmt: skip


class OnceError(Exception):
    """retryable: the same call, with the same key, may succeed later. outcome_unknown: the effect may have happened.
    status: what an HTTP door answers. traceparent: of the intent's first attempt, where what that has left is why this one did not run."""

    sqlstate: Optional[str] = None
    retryable: bool = False
    outcome_unknown: bool = False
    status: int = 500
    traceparent: Optional[str] = None

    def __init_subclass__(cls) -> None:
        if cls.__dict__.get("sqlstate") in _CONTRACT:
            _, cls.status, cls.retryable, *_ = _CONTRACT[cls.__dict__["sqlstate"]]

    def __init__(self, message: str = "", *, sqlstate: Optional[str] = None) -> None:
        super().__init__(message or (self.__doc__ or "").split("\n", 1)[0].rstrip("."))
        if sqlstate is not None:
            self.sqlstate = sqlstate


class UsageError(OnceError):
    """The client is called in a way that cannot keep the promise."""


class AnswerNotStored(UsageError):
    """The work was done, and its answer cannot be stored."""


class AnswerNotWhole(UsageError):
    """The answer ended before it was whole."""


class ScopeRequired(OnceError):
    """A scope of 1 to 255 characters is required."""

    sqlstate = "P4000"


class KeyMalformed(OnceError):
    """The key is missing or malformed."""

    sqlstate = "P4001"


class Mismatch(OnceError):
    """The key was first used with another request."""

    sqlstate = "P4002"


class Refused(OnceError):
    """The fingerprint is missing or the tenant is refused."""

    sqlstate = "P4003"


class LeaseLost(OnceError):
    """The claim is no longer this attempt's: discard its result."""

    sqlstate = "P4010"


class NotStarted(OnceError):
    """The transaction in which the intent was started has ended before it was finished: what it did may be committed."""

    sqlstate, outcome_unknown = "P4012", True


class Unfinished(OnceError):
    """The transaction has started an intent and not finished it: nothing was committed."""

    sqlstate = "P4013"


class AlreadyStarted(OnceError):
    """The transaction has started this intent already."""

    sqlstate = "P4014"


class AnotherFingerprint(OnceError):
    """The transaction has started the intent with another fingerprint than the one it finishes it with."""

    sqlstate = "P4015"


class AlreadyFinished(OnceError):
    """The intent is finished and has an outcome."""

    sqlstate = "P4020"


class Active(OnceError):
    """Another attempt of this intent is running."""

    sqlstate = "P4029"


class InDoubt(OnceError):
    """The outcome of this intent is unknown. Find out, then decide with once.resolve."""

    sqlstate, outcome_unknown = "P4031", True
    answer: Optional["Answer"] = None


class Expired(OnceError):
    """The key is older than what is remembered: look for the effect itself."""

    sqlstate = "P4041"


class MessageMismatch(OnceError):
    """The message id was first used with another payload."""

    sqlstate = "P4050"


class EventMismatch(OnceError):
    """This intent has already emitted this event with another payload."""

    sqlstate = "P4051"


class TooLarge(OnceError):
    """The outcome or the event is too large."""

    sqlstate = "P4060"


class ResolutionRefused(OnceError):
    """Only a stale, in-doubt or retryable intent can be decided, with a reason."""

    sqlstate = "P4070"


class PartitionMissing(OnceError):
    """The partition for this day is missing: another transaction is making it, or none can. Try again."""

    sqlstate = "P4098"


class SlotClosed(OnceError):
    """Several nodes share the tenants, and this one does not serve the tenant now. Ask the node that does, or try again.

    slot, epoch: the tenant's slot, and its epoch at this node."""

    sqlstate = "P4097"
    slot: Optional[int] = None
    epoch: Optional[int] = None


class UnknownState(OnceError):
    """The contract and its caller may be of different versions: run pgonce doctor."""

    sqlstate = "P4099"


class ContractMissing(OnceError):
    """The database has no contract, or one that this client does not know: run pgonce init."""

    sqlstate, status = "3F000", 503


class ConnectionLost(OnceError):
    """The database cannot be reached, or the connection was lost. Nothing was committed."""

    status, retryable = 503, True
    connected = False  # was there a connection, so that something may have been sent?


class PoolFull(ConnectionLost):
    """No connection was free in time. Nothing was done."""


class TimedOut(OnceError):
    """The handler took longer than handler_ms: what it did was rolled back."""

    status, retryable = 503, True


class OutcomeUnknown(OnceError):
    """COMMIT was sent, and whether it happened cannot be learnt now. Ask again with the same key, never with a new one."""

    status, retryable, outcome_unknown = 503, True, True


class SwallowedError(OnceError):
    """A statement of the effect failed and its error was not passed on: nothing was committed."""

    sqlstate = "25P02"


class FinalFailure(OnceError):
    """The intent failed for good.

    Raise it in an effect to take the effect back and store this outcome, in one transaction. It is raised to every
    caller of such an intent, and `answer` is what is stored then."""

    sqlstate = "P4030"

    def __init__(
        self,
        message: str = "",
        *,
        status: Optional[int] = None,
        body: Any = None,
        headers: Optional[Mapping[str, str]] = None,
        code: Optional[str] = None,
    ) -> None:
        super().__init__(message)
        self.message, self.body, self.headers, self.code = message, body, headers, code
        self.answer: Optional["Answer"] = None
        self.response_status = status
        self.status = status or 409


class NotDone(OnceError):
    """Raise it in the work of a claim that certainly had no effect: the next attempt may run."""

    status, retryable = 502, True


_BY_SQLSTATE: Dict[Optional[str], Type[OnceError]] = {
    error.sqlstate: error
    for error in (
        ScopeRequired, KeyMalformed, Mismatch, Refused, LeaseLost, NotStarted, Unfinished, AlreadyStarted, AnotherFingerprint, AlreadyFinished,
        Active, InDoubt, Expired,
        MessageMismatch, EventMismatch, TooLarge, ResolutionRefused, PartitionMissing, SlotClosed, UnknownState, ContractMissing,
    )
}  # fmt: skip
_BY_SQLSTATE["P4011"] = LeaseLost
_BY_SQLSTATE["42883"] = ContractMissing

SERIALIZATION = ("40001", "40P01")
# A statement that was prepared earlier is no more, is another's, or has another result since the contract was installed anew.
STATEMENT_GONE = ("26000", "42P05", "0A000")


def of_sqlstate(sqlstate: Optional[str]) -> Optional[OnceError]:
    """The contract's own errors; None for all others, which stay the driver's."""
    if sqlstate == FinalFailure.sqlstate:
        return FinalFailure()
    made = None if sqlstate is None else _BY_SQLSTATE.get(sqlstate)
    return None if made is None else made(sqlstate=sqlstate)


def of_driver(raised: BaseException, sqlstate: Optional[str]) -> Optional[OnceError]:
    """of_sqlstate, with what a driver's error says besides."""
    made = of_sqlstate(sqlstate)
    if isinstance(made, SlotClosed):
        found = re.search(r"; slot=(\d+) epoch=(\d+)\Z", _detail_of(raised))  # behind the names of the intent
        if found is not None:
            made.slot, made.epoch = int(found[1]), int(found[2])
    return made


def _detail_of(raised: BaseException) -> str:
    """DETAIL of the driver's error, also if SQLAlchemy's or Django's wraps it."""
    original = getattr(raised, "orig", None)
    for each in (raised, original, getattr(original, "__cause__", None), raised.__cause__):
        for text in (getattr(getattr(each, "diag", None), "message_detail", None), getattr(each, "detail", None)):
            if isinstance(text, str):
                return text
    return ""


def of_verdict(verdict: str) -> OnceError:
    made = of_sqlstate(VERDICTS[verdict].sqlstate) if verdict in VERDICTS else None
    return made or UnknownState(f"the contract answered {verdict!r}")


def problem_of(error: OnceError) -> Optional[str]:
    """The problem that answers an error of the contract, or None."""
    return _CONTRACT[error.sqlstate][4] if error.sqlstate in _CONTRACT else None
