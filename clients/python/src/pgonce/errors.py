# SPDX-License-Identifier: PostgreSQL
"""What can go wrong, by its kind. Branch on the class or on `sqlstate`, never on the text: texts may change.

No message holds a key, a tenant or a body, since errors end up in logs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional, Type

if TYPE_CHECKING:
    from .answer import Answer


class OnceError(Exception):
    """retryable: the same call, with the same key, may succeed later. outcome_unknown: the effect may have happened.
    status: what an HTTP door answers."""

    sqlstate: Optional[str] = None
    retryable: bool = False
    outcome_unknown: bool = False
    status: int = 500

    def __init__(self, message: str = "", *, sqlstate: Optional[str] = None) -> None:
        super().__init__(message or (self.__doc__ or "").split("\n", 1)[0].rstrip("."))
        if sqlstate is not None:
            self.sqlstate = sqlstate


class UsageError(OnceError):
    """The client is called in a way that cannot keep the promise."""


class ScopeRequired(OnceError):
    """A scope of 1 to 255 characters is required."""

    sqlstate, status = "P4000", 403


class KeyMalformed(OnceError):
    """The key is missing or malformed."""

    sqlstate, status = "P4001", 400


class Mismatch(OnceError):
    """The key was first used with another request."""

    sqlstate, status = "P4002", 422


class Refused(OnceError):
    """The fingerprint is missing or the tenant is refused."""

    sqlstate, status = "P4003", 403


class LeaseLost(OnceError):
    """The claim is no longer this attempt's: discard its result."""

    sqlstate, status = "P4010", 409


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

    sqlstate, status = "P4020", 409


class Active(OnceError):
    """Another attempt of this intent is running."""

    sqlstate, status, retryable = "P4029", 409, True


class InDoubt(OnceError):
    """The outcome of this intent is unknown. Find out, then decide with once.resolve."""

    sqlstate, status, outcome_unknown = "P4031", 409, True
    answer: Optional["Answer"] = None


class Expired(OnceError):
    """The key is older than what is remembered: look for the effect itself."""

    sqlstate, status = "P4041", 409


class MessageMismatch(OnceError):
    """The message id was first used with another payload."""

    sqlstate, status = "P4050", 422


class EventMismatch(OnceError):
    """This intent has already emitted this event with another payload."""

    sqlstate, status = "P4051", 422


class TooLarge(OnceError):
    """The outcome or the event is too large."""

    sqlstate = "P4060"


class ResolutionRefused(OnceError):
    """Only a stale, in-doubt or retryable intent can be decided, with a reason."""

    sqlstate, status = "P4070", 409


class PartitionMissing(OnceError):
    """The partition for this day is missing: another transaction is making it, or none can. Try again."""

    sqlstate, status, retryable = "P4098", 503, True


class UnknownState(OnceError):
    """The contract and its caller may be of different versions: run pgonce doctor."""

    sqlstate, status = "P4099", 503


class ContractMissing(OnceError):
    """The database has no contract, or one that this client does not know: run pgonce init."""

    sqlstate, status = "3F000", 503


class ConnectionLost(OnceError):
    """The database cannot be reached, or the connection was lost. Nothing was committed."""

    status, retryable = 503, True


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
        MessageMismatch, EventMismatch, TooLarge, ResolutionRefused, PartitionMissing, UnknownState, ContractMissing,
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


_OF_VERDICT = {
    "mismatch": Mismatch,
    "active": Active,
    "processing_active": Active,
    "in_doubt": InDoubt,
    "expired": Expired,
}


def of_verdict(verdict: str) -> OnceError:
    made = _OF_VERDICT.get(verdict)
    return UnknownState(f"the contract answered {verdict!r}") if made is None else made()
