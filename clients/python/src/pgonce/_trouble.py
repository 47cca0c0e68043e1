# SPDX-License-Identifier: PostgreSQL
"""What all adapters of drivers share: a statement, what a driver's error says of the connection, whose object a value is."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from typing import Any, NamedTuple, Optional, Sequence, Tuple

Statement = Tuple[str, Sequence[Any]]


class Trouble(NamedTuple):
    """A driver's error. lost: the connection is gone with it."""

    sqlstate: Optional[str]
    lost: bool


AUTOCOMMIT = (
    "this connection is in autocommit: each statement would commit by itself, and nothing would hold effect and outcome"
    " together"
)

_GONE = ("57P01", "57P02", "57P03", "25P03", "25P04")


def trouble_of(sqlstate: Optional[str], severity: Optional[str], closed: bool) -> Trouble:
    gone = sqlstate is not None and (sqlstate.startswith("08") or sqlstate in _GONE)
    return Trouble(sqlstate, closed or gone or severity in ("FATAL", "PANIC"))


def module(name: str) -> Any:
    """Only what the application has imported can have made what it passes."""
    return sys.modules.get(name)


def is_a(value: Any, name: str, *classes: str) -> bool:
    loaded = module(name)
    return loaded is not None and any(isinstance(value, getattr(loaded, each)) for each in classes if hasattr(loaded, each))


def named(arguments: Sequence[Any]) -> Any:
    return {f"p{number}": value for number, value in enumerate(arguments, 1)}


def interrupted(connection: Any) -> None:
    """Of psycopg or psycopg2, from another thread: what it waits for is cancelled, and its socket shut, so its server rolls back."""
    with contextlib.suppress(Exception):
        if hasattr(connection, "cancel_safe"):
            connection.cancel_safe(timeout=5)
        else:
            connection.cancel()
    with contextlib.suppress(Exception), socket.socket(fileno=os.dup(connection.fileno())) as own:
        own.shutdown(socket.SHUT_RDWR)
