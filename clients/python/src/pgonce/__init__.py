# SPDX-License-Identifier: PostgreSQL
"""pgonce makes retries harmless: one durable effect and one answer for each key, in your own PostgreSQL.

run, claim, emit, emit_bytes, receive, consume, lock, nodes and Once block; pgonce.aio has the same for asyncio. Middleware: pgonce.asgi,
pgonce.django, pgonce.flask. Errors: pgonce.errors."""

from .answer import Answer, HttpRequest, Outcome
from .client import Claim, Once, claim, consume, current_claim, emit, emit_bytes, lock, receive, run
from .errors import (
    Active, AlreadyFinished, AlreadyStarted, AnotherFingerprint, ConnectionLost, ContractMissing, EventMismatch, Expired, FinalFailure,
    InDoubt, KeyMalformed, LeaseLost, MessageMismatch, Mismatch, NotDone, NotStarted, OnceError, OutcomeUnknown, PartitionMissing, PoolFull, Refused,
    ResolutionRefused, ScopeRequired, SlotClosed, SwallowedError, TimedOut, TooLarge, Unfinished, UnknownState, UsageError,
)  # fmt: skip
from ._nodes import nodes

__version__ = "1.0.0"
__all__ = [
    "Active", "AlreadyFinished", "AlreadyStarted", "AnotherFingerprint", "Answer", "Claim", "ConnectionLost", "ContractMissing",
    "EventMismatch", "Expired", "FinalFailure", "HttpRequest", "InDoubt", "KeyMalformed", "LeaseLost", "MessageMismatch", "Mismatch",
    "NotDone", "NotStarted", "Once", "OnceError", "Outcome", "OutcomeUnknown", "PartitionMissing", "PoolFull", "Refused",
    "ResolutionRefused", "ScopeRequired", "SlotClosed", "SwallowedError", "TimedOut", "TooLarge", "Unfinished", "UnknownState", "UsageError", "claim", "consume",
    "current_claim", "emit", "emit_bytes", "lock", "nodes", "receive", "run",
]  # fmt: skip
