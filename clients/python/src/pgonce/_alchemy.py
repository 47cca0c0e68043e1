# SPDX-License-Identifier: PostgreSQL
"""Sessions of SQLAlchemy 2, blocking or not, over any driver."""

from __future__ import annotations

from typing import Any, Optional, Sequence

from . import _sql
from ._control import OVER, Guard, refuse
from ._io import shielded
from ._trouble import AUTOCOMMIT, Statement, Trouble, interrupted, module, named, trouble_of
from .errors import SwallowedError, UsageError

_ENDS = ("commit", "rollback", "close", "reset")
_WRITTEN = "SELECT txid_current_if_assigned()"
_UNCOMMITTED = "this session has changes that are not committed: commit them before the protected work begins"


def _over(*_: Any, **__: Any) -> None:
    raise UsageError(OVER)


class _AlchemyBase:
    connects = True

    def __init__(self, session: Any) -> None:
        self.tx = session
        self.sync = getattr(session, "sync_session", session)
        self.guard: Optional[Guard] = None
        self.raw: Any = None
        self.connected = self.gone = False

    def trouble(self, raised: BaseException) -> Optional[Trouble]:
        exc = module("sqlalchemy.exc")
        if isinstance(raised, exc.DBAPIError):
            original: Any = raised.orig
            cause = getattr(original, "__cause__", None)
            sqlstate = None
            for each in (original, cause):
                sqlstate = sqlstate or getattr(each, "sqlstate", None) or getattr(each, "pgcode", None)
            diag = getattr(original, "diag", None)
            closed = bool(raised.connection_invalidated) or not self.connected and sqlstate is None  # or there is no server
            found = trouble_of(sqlstate, getattr(diag, "severity_nonlocalized", None), closed)
        elif isinstance(raised, OSError):
            found = Trouble(None, True)
        else:
            return None
        self.gone = self.gone or found.lost
        return found

    def lost(self) -> bool:
        return self.gone

    def _dbapi(self) -> Any:
        return self.sync.connection().connection.dbapi_connection

    def in_transaction(self) -> bool:
        return not self._autocommits()

    def idle(self) -> bool:
        return not self.sync.in_transaction()

    def prompt(self) -> bool:
        return False

    def _autocommits(self) -> bool:
        options = self.sync.connection().get_execution_options()
        if options.get("isolation_level") == "AUTOCOMMIT":
            return True
        return bool(getattr(self._dbapi(), "autocommit", False))

    def _check_active(self) -> None:
        if not self.sync.is_active:  # a flush has failed
            raise SwallowedError()

    def _open_guard(self) -> None:
        """The effect neither ends its transaction, nor does a statement of it. pgonce's own statements pass."""
        guard = self.guard = Guard()
        connection = self.sync.connection()
        self.raw = self._dbapi()
        module("sqlalchemy.event").listen(connection, "before_cursor_execute", lambda *given: guard.check(given[2]))
        for name in _ENDS:
            setattr(self.sync, name, refuse)

    def _close_guard(self) -> None:
        if self.guard is not None:
            self.guard = None
            for name in _ENDS:
                delattr(self.sync, name)

    def retire(self) -> None:
        """Code that has kept the session cannot begin a transaction that would never end."""
        self.sync.get_bind = _over

    def ended(self) -> bool:
        return False  # only the server knows

    def interrupt(self) -> None:
        interrupted(self.raw)

    def _forget(self) -> None:
        """What the session would still write, and what it read of the effect that is taken back."""
        for each in (*self.sync.new, *self.sync.deleted):
            self.sync.expunge(each)
        self.sync.expire_all()

    def _has_changes(self) -> bool:
        return bool(self.sync.new or self.sync.dirty or self.sync.deleted)

    @staticmethod
    def _spelled(statement: Statement) -> Any:
        sql, arguments = statement
        return module("sqlalchemy").text(_sql.spelled(sql, ":p{}")), named(arguments)

    @staticmethod
    def _row(result: Any) -> Any:
        return tuple(result.fetchone()) if result.returns_rows else None


class Alchemy(_AlchemyBase):
    def connect(self) -> None:
        if self.sync.in_transaction():  # a session of the application's own, which has read before
            if self._has_changes() or self.tx.execute(module("sqlalchemy").text(_WRITTEN)).scalar() is not None:
                raise UsageError(_UNCOMMITTED)
            self.tx.commit()
        try:
            self.sync.connection()
            self.connected = True
        except module("sqlalchemy.exc").DBAPIError:
            pass  # an attempt of its own that may be made again: begin's
        except Exception:
            self.tx.close()
            raise

    def begin(self, statements: Sequence[Statement], keep: int) -> Any:
        if self._autocommits():
            raise UsageError(AUTOCOMMIT)
        self._open_guard()
        return [self._row(self.tx.execute(*self._spelled(each))) for each in statements][keep]

    def commit(self, statements: Sequence[Statement]) -> Any:
        self._check_active()
        if statements[0][0] != _sql.ROLLBACK_TO_SAVEPOINT:
            self.tx.flush()
        else:
            self._forget()
        row = [self._row(self.tx.execute(*self._spelled(each))) for each in statements][-1]
        self._close_guard()
        self.tx.commit()
        return row

    def query(self, sql: str, arguments: Sequence[Any]) -> Any:
        return self._row(self.tx.execute(*self._spelled((sql, arguments))))

    def alone(self, sql: str, arguments: Sequence[Any]) -> Any:
        row = self.query(sql, arguments)
        self.tx.commit()
        return row

    def undo(self) -> Any:
        if self.sync.is_active:  # else it has sent ROLLBACK itself
            self.query(_sql.ROLLBACK_TO_SAVEPOINT, ())

    def rollback(self) -> Any:
        self._close_guard()
        try:
            self.tx.rollback()
        except Exception:
            self.tx.invalidate()

    def close(self) -> Any:
        self._close_guard()
        (self.tx.invalidate if self.gone else self.tx.close)()


class AlchemyAsync(_AlchemyBase):
    async def connect(self) -> None:
        if self.sync.in_transaction():
            if self._has_changes() or (await self.tx.execute(module("sqlalchemy").text(_WRITTEN))).scalar() is not None:
                raise UsageError(_UNCOMMITTED)
            await self.tx.commit()
        try:
            await self.tx.connection()
            self.connected = True
        except module("sqlalchemy.exc").DBAPIError:
            pass
        except BaseException:
            await shielded(self.tx.close())
            raise

    async def begin(self, statements: Sequence[Statement], keep: int) -> Any:
        if await self.tx.run_sync(lambda _: self._autocommits()):
            raise UsageError(AUTOCOMMIT)
        await self.tx.run_sync(lambda _: self._open_guard())
        return [self._row(await self.tx.execute(*self._spelled(each))) for each in statements][keep]

    def commit(self, statements: Sequence[Statement]) -> Any:
        return shielded(self._commit(statements))

    async def _commit(self, statements: Sequence[Statement]) -> Any:
        self._check_active()
        if statements[0][0] != _sql.ROLLBACK_TO_SAVEPOINT:
            await self.tx.flush()
        else:
            self._forget()
        row = [self._row(await self.tx.execute(*self._spelled(each))) for each in statements][-1]
        self._close_guard()
        await self.tx.commit()
        return row

    async def query(self, sql: str, arguments: Sequence[Any]) -> Any:
        return self._row(await self.tx.execute(*self._spelled((sql, arguments))))

    def alone(self, sql: str, arguments: Sequence[Any]) -> Any:
        return shielded(self._alone(sql, arguments))

    async def _alone(self, sql: str, arguments: Sequence[Any]) -> Any:
        row = await self.query(sql, arguments)
        await self.tx.commit()
        return row

    def undo(self) -> Any:
        return shielded(self._undo())

    async def _undo(self) -> None:
        if self.sync.is_active:
            await self.query(_sql.ROLLBACK_TO_SAVEPOINT, ())

    async def rollback(self) -> Any:
        self._close_guard()
        try:
            await self.tx.rollback()
        except Exception:
            await self.tx.invalidate()

    async def close(self) -> Any:
        self._close_guard()
        await (self.tx.invalidate if self.gone else self.tx.close)()
