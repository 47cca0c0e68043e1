# SPDX-License-Identifier: PostgreSQL
"""pgonce makes retries harmless: one durable effect and one answer for each key, in your own PostgreSQL.

run, claim, emit, receive, lock and Once block; pgonce.aio has the same for asyncio. Middleware: pgonce.asgi,
pgonce.django, pgonce.flask. Errors: pgonce.errors."""

from .answer import Answer, HttpRequest, Outcome
from .client import Claim, Once, claim, current_claim, emit, lock, receive, run
from .errors import (
    Active, ConnectionLost, Expired, FinalFailure, InDoubt, LeaseLost, Mismatch, NotDone, OnceError, OutcomeUnknown,
    SwallowedError, UsageError,
)  # fmt: skip

__version__ = "1.0.0"
__all__ = [
    "Active", "Answer", "Claim", "ConnectionLost", "Expired", "FinalFailure", "HttpRequest", "InDoubt", "LeaseLost",
    "Mismatch", "NotDone", "Once", "OnceError", "OutcomeUnknown", "Outcome", "SwallowedError", "UsageError", "claim",
    "current_claim", "emit", "lock", "receive", "run",
]  # fmt: skip
