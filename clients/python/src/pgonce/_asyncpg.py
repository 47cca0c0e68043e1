# SPDX-License-Identifier: PostgreSQL
"""asyncpg, by its pool or a connection."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Dict, Optional, Sequence

from . import _sql
from ._control import Guard, refuse
from ._io import shielded
from ._trouble import Statement, Trouble, module, trouble_of


@functools.lru_cache(maxsize=16)
def _lent(kind: Any) -> Any:
    """The class of a connection while an effect has it: it looks at each statement before it is sent."""

    def checking(name: str) -> Any:
        plain = getattr(kind, name)

        @functools.wraps(plain)
        def method(self: Any, query: Any, *arguments: Any, **named: Any) -> Any:
            _GUARDS[self].check(query)
            return plain(self, query, *arguments, **named)

        return method

    names = ("execute", "executemany", "fetch", "fetchrow", "fetchval", "fetchmany", "cursor", "prepare", "copy_from_query")
    methods = {name: checking(name) for name in names if hasattr(kind, name)}
    return type(kind)(kind.__name__, (kind,), {"__module__": kind.__module__, "__slots__": (), "reset": refuse, **methods})


# By the connection: it has no place for more.
_GUARDS: Dict[Any, Guard] = {}


class Asyncpg:
    """Has no pipeline for statements with parameters: one round trip each."""

    connects = False

    def __init__(self, connection: Any) -> None:
        self.tx = connection
        self.kind: Any = type(connection)
        self.guard: Optional[Guard] = None
        self.transaction: Any = None

    def trouble(self, raised: BaseException) -> Optional[Trouble]:
        asyncpg = module("asyncpg")
        if isinstance(raised, asyncpg.PostgresError):
            return trouble_of(raised.sqlstate, getattr(raised, "severity", None), self.lost())
        if isinstance(raised, asyncpg.InternalClientError):  # of a connection that the server has ended between two statements
            with contextlib.suppress(asyncpg.InterfaceError):
                self.tx.terminate()
            return Trouble(None, True)
        if isinstance(raised, (asyncpg.InterfaceError, OSError)):
            return Trouble(getattr(raised, "sqlstate", None), self.lost() or isinstance(raised, OSError))
        return None

    def lost(self) -> bool:
        try:
            return bool(self.tx.is_closed())
        except module("asyncpg").InterfaceError:  # a pool takes back a lost connection without help
            return True

    def in_transaction(self) -> bool:
        return bool(self.tx.is_in_transaction())

    def idle(self) -> bool:
        return self.lost() or not self.tx.is_in_transaction()

    def prompt(self) -> bool:
        return False

    def ended(self) -> bool:
        """The effect has ended the transaction, behind the guard."""
        return self.guard is not None and self.idle() and not self.lost()

    def _open_guard(self) -> None:
        self.guard = _GUARDS[self.tx] = Guard()
        self.tx.__class__ = _lent(self.kind)

    def _close_guard(self) -> None:
        if self.guard is not None:
            self.guard = None
            self.tx.__class__ = self.kind
            del _GUARDS[self.tx]

    def undo(self) -> Any:
        return self.alone(_sql.ROLLBACK_TO_SAVEPOINT, ())

    def retire(self) -> None:
        """A pool's proxy is useless after it is given back, and any other connection is closed."""

    async def begin(self, statements: Sequence[Statement], keep: int) -> Any:
        self.transaction = self.tx.transaction()
        await self.transaction.start()
        row = None
        for number, each in enumerate(statements):
            made = await self._one(each)
            row = made if number == keep else row
        self._open_guard()
        return row

    async def _one(self, statement: Statement) -> Any:
        sql, arguments = statement
        return await self.tx.fetchrow(sql, *arguments) if arguments else await self.tx.execute(sql)

    def commit(self, statements: Sequence[Statement]) -> Any:
        return shielded(self._commit(statements))

    async def _commit(self, statements: Sequence[Statement]) -> Any:
        row = None
        for each in statements:
            row = await self._one(each)
        self._close_guard()
        transaction, self.transaction = self.transaction, None
        await transaction.commit()
        return row

    async def query(self, sql: str, arguments: Sequence[Any]) -> Any:
        return await self.tx.fetchrow(sql, *arguments)

    def alone(self, sql: str, arguments: Sequence[Any]) -> Any:
        return shielded(self.query(sql, arguments))

    async def rollback(self) -> Any:
        self._close_guard()
        transaction, self.transaction = self.transaction, None
        try:
            if transaction is not None and not self.lost():
                await transaction.rollback()
            if not self.idle():
                await self.tx.execute("ROLLBACK")
        except Exception:
            await self.close()

    async def close(self) -> Any:
        self._close_guard()
        with contextlib.suppress(module("asyncpg").InterfaceError):
            self.tx.terminate()
