# SPDX-License-Identifier: PostgreSQL
"""What a statement of an effect would do to the transaction that it is in. Each driver's adapter asks before it is sent: a COMMIT in the middle
would part an effect from its outcome."""

from __future__ import annotations

import functools
import re
from typing import Any, Iterator, NamedTuple

from .errors import UsageError

REFUSED = (
    "{0}: an effect neither begins, commits nor rolls back the transaction that it is in, since pgonce commits it together with its outcome."
    " Savepoints may be used; work that needs transactions of its own runs in mode='lease'"
)

OVER = "this transaction is over: what comes after the answer (a background task, the end of a dependency) takes a connection of its own"

# What says that there is something to look at; most statements say none of it.
_HINT = re.compile(r"\b(?:begin|start|commit|rollback|end|abort|prepare|role|authorization|reset|discard|set_config)\b", re.I)
_ROLE = re.compile(r"\b(?:role|authorization|reset|discard|set_config)\b", re.I)
_TOKEN = re.compile(
    r"--[^\n]*"
    r"|/\*"
    r"|\b[eE]'(?:[^'\\]|\\.|'')*(?:'|\Z)"
    r"|'(?:[^']|'')*(?:'|\Z)"
    r'|"(?:[^"]|"")*(?:"|\Z)'
    r"|(?P<tag>\$(?:[^\W\d]\w*)?\$)"
    r"|(?P<word>[^\W\d][\w$]*)"
    r"|(?P<end>;)"
    r"|\S",
    re.S,
)
_COMMENT = re.compile(r"/\*|\*/")


class Said(NamedTuple):
    """refused: the words that would end the transaction, or begin another. role: it may change whose rights hold from here on."""

    refused: str
    role: bool


_NOTHING = Said("", False)


def _after_comment(sql: str, at: int) -> int:
    """Comments are nested."""
    depth = 1
    while depth:
        mark = _COMMENT.search(sql, at)
        if mark is None:
            return len(sql)
        depth += 1 if mark[0] == "/*" else -1
        at = mark.end()
    return at


def _tokens(sql: str) -> Iterator[str]:
    """Words in upper case and semicolons; anything else but space and comments is an empty text."""
    at = 0
    while True:
        token = _TOKEN.search(sql, at)
        if token is None:
            return
        at = token.end()
        if token[0] == "/*":
            at = _after_comment(sql, at)
        elif token["tag"]:
            close = sql.find(token["tag"], at)
            at = len(sql) if close < 0 else close + len(token["tag"])
            yield ""
        elif not token[0].startswith("--"):
            yield token["word"].upper() if token["word"] else token["end"] or ""


def _refused(sql: str) -> str:
    statement: list[str] = []
    for token in [*_tokens(sql), ";"]:
        if token != ";":
            statement.append(token)
            continue
        first, *rest = statement or [""]
        if first == "CREATE" and any(pair == ("BEGIN", "ATOMIC") for pair in zip(rest, rest[1:])):
            return ""  # the body of a function in standard SQL, which contains semicolons
        if first in ("BEGIN", "COMMIT", "END", "ABORT") or [first, *rest[:1]] in (["START", "TRANSACTION"], ["PREPARE", "TRANSACTION"]):
            return first
        if first == "ROLLBACK" and "TO" not in rest[:2]:
            return first
        statement = []
    return ""


@functools.lru_cache(maxsize=512)
def said(sql: str) -> Said:
    if _HINT.search(sql) is None:
        return _NOTHING
    return Said(_refused(sql), _ROLE.search(sql) is not None)


class Guard:
    """Of one effect. role: may another role be in force than at its start?"""

    __slots__ = ("role",)

    def __init__(self) -> None:
        self.role = False

    def check(self, sql: Any) -> None:
        """Raises UsageError where the statement would end the transaction."""
        found = said(sql if type(sql) is str else sql.decode("latin-1") if isinstance(sql, bytes) else str(sql))
        if found is not _NOTHING:
            if found.refused:
                raise UsageError(REFUSED.format(found.refused))
            self.role = self.role or found.role


def refuse(*_: Any, **__: Any) -> Any:
    """Stands in for a driver's own commit or rollback."""
    raise UsageError(REFUSED.format("commit, rollback or close"))
