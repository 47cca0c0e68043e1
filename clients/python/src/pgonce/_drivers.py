# SPDX-License-Identifier: PostgreSQL
"""The drivers: what opens a transaction, runs a statement, commits, and says what an error was.

A source (a pool, a connect function, a session factory, one connection) gives connections; a connection here is a page
of code over the driver's own. Each method of an asynchronous driver returns something to await; commit, alone and a source's release run to
their end where the task is cancelled, and raise it afterwards. Nothing is decided here."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from typing import Any, Callable, Dict, Optional, Sequence

from . import _sql
from ._io import finished, shielded
from ._trouble import Statement, Trouble, is_a, module, named, trouble_of
from .errors import SwallowedError, UsageError

# ---- asyncpg ----


class Asyncpg:
    """Has no pipeline for statements with parameters: one round trip each."""

    def __init__(self, connection: Any) -> None:
        self.tx = connection
        self.transaction: Any = None

    def trouble(self, raised: BaseException) -> Optional[Trouble]:
        asyncpg = module("asyncpg")
        if isinstance(raised, asyncpg.PostgresError):
            return trouble_of(raised.sqlstate, getattr(raised, "severity", None), self.lost())
        if isinstance(raised, (asyncpg.InterfaceError, OSError)):
            return Trouble(getattr(raised, "sqlstate", None), self.lost() or isinstance(raised, OSError))
        return None

    def lost(self) -> bool:
        try:
            return bool(self.tx.is_closed())
        except module("asyncpg").InterfaceError:  # a pool takes a lost connection back by itself
            return True

    def in_transaction(self) -> bool:
        return bool(self.tx.is_in_transaction())

    def idle(self) -> bool:
        return self.lost() or not self.tx.is_in_transaction()

    def prompt(self) -> bool:
        return False

    async def begin(self, statements: Sequence[Statement], keep: int) -> Any:
        self.transaction = self.tx.transaction()
        await self.transaction.start()
        row = None
        for number, each in enumerate(statements):
            made = await self._one(each)
            row = made if number == keep else row
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
        transaction, self.transaction = self.transaction, None
        await transaction.commit()
        return row

    async def query(self, sql: str, arguments: Sequence[Any]) -> Any:
        return await self.tx.fetchrow(sql, *arguments)

    def alone(self, sql: str, arguments: Sequence[Any]) -> Any:
        return shielded(self.query(sql, arguments))

    async def rollback(self) -> Any:
        transaction, self.transaction = self.transaction, None
        try:
            if transaction is not None and not self.lost():
                await transaction.rollback()
            if not self.idle():
                await self.tx.execute("ROLLBACK")
        except Exception:
            await self.close()

    async def close(self) -> Any:
        with contextlib.suppress(module("asyncpg").InterfaceError):
            self.tx.terminate()


# ---- SQLAlchemy ----


class _AlchemyBase:
    def __init__(self, session: Any) -> None:
        self.tx = session
        self.sync = getattr(session, "sync_session", session)
        self.guarded = False
        self.gone = False

    def trouble(self, raised: BaseException) -> Optional[Trouble]:
        exc = module("sqlalchemy.exc")
        if isinstance(raised, exc.DBAPIError):
            original: Any = raised.orig
            cause = getattr(original, "__cause__", None)
            sqlstate = None
            for each in (original, cause):
                sqlstate = sqlstate or getattr(each, "sqlstate", None) or getattr(each, "pgcode", None)
            diag = getattr(original, "diag", None)
            found = trouble_of(sqlstate, getattr(diag, "severity_nonlocalized", None), bool(raised.connection_invalidated))
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

    def _refuse(self, session: Any) -> None:
        if not session.in_nested_transaction():
            raise UsageError("an effect must not commit: pgonce commits it together with its outcome")

    def _guard(self, on: bool) -> None:
        if on != self.guarded:
            event = module("sqlalchemy.event")
            (event.listen if on else event.remove)(self.sync, "before_commit", self._refuse)
            self.guarded = on

    @staticmethod
    def _spelled(statement: Statement) -> Any:
        sql, arguments = statement
        return module("sqlalchemy").text(_sql.spelled(sql, ":p{}")), named(arguments)

    @staticmethod
    def _row(result: Any) -> Any:
        return tuple(result.fetchone()) if result.returns_rows else None


_AUTOCOMMIT = (
    "this connection is in autocommit: each statement would commit by itself, and nothing would hold effect and outcome"
    " together"
)


class Alchemy(_AlchemyBase):
    def begin(self, statements: Sequence[Statement], keep: int) -> Any:
        if self._autocommits():
            raise UsageError(_AUTOCOMMIT)
        self._guard(True)
        return [self._row(self.tx.execute(*self._spelled(each))) for each in statements][keep]

    def commit(self, statements: Sequence[Statement]) -> Any:
        self._check_active()
        if statements[0][0] != _sql.ROLLBACK_TO_SAVEPOINT:
            self.tx.flush()
        else:
            self.tx.expunge_all()
        row = [self._row(self.tx.execute(*self._spelled(each))) for each in statements][-1]
        self._guard(False)
        self.tx.commit()
        return row

    def query(self, sql: str, arguments: Sequence[Any]) -> Any:
        return self._row(self.tx.execute(*self._spelled((sql, arguments))))

    def alone(self, sql: str, arguments: Sequence[Any]) -> Any:
        row = self.query(sql, arguments)
        self.tx.commit()
        return row

    def rollback(self) -> Any:
        self._guard(False)
        try:
            self.tx.rollback()
        except Exception:
            self.tx.invalidate()

    def close(self) -> Any:
        (self.tx.invalidate if self.gone else self.tx.close)()


class AlchemyAsync(_AlchemyBase):
    async def begin(self, statements: Sequence[Statement], keep: int) -> Any:
        await self.tx.connection()
        if await self.tx.run_sync(lambda _: self._autocommits()):
            raise UsageError(_AUTOCOMMIT)
        self._guard(True)
        return [self._row(await self.tx.execute(*self._spelled(each))) for each in statements][keep]

    def commit(self, statements: Sequence[Statement]) -> Any:
        return shielded(self._commit(statements))

    async def _commit(self, statements: Sequence[Statement]) -> Any:
        self._check_active()
        if statements[0][0] != _sql.ROLLBACK_TO_SAVEPOINT:
            await self.tx.flush()
        else:
            self.tx.expunge_all()
        row = [self._row(await self.tx.execute(*self._spelled(each))) for each in statements][-1]
        self._guard(False)
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

    async def rollback(self) -> Any:
        self._guard(False)
        try:
            await self.tx.rollback()
        except Exception:
            await self.tx.invalidate()

    async def close(self) -> Any:
        await (self.tx.invalidate if self.gone else self.tx.close)()


# ---- sources ----


# By the class of what they are made of: an application has few.
_ADAPTERS: Dict[type, Callable[[Any], Any]] = {}


def connection_of(tx: Any) -> Any:
    """The adapter of one connection or session of the caller's."""
    adapter = _ADAPTERS.get(type(tx))
    if adapter is None:
        adapter = _ADAPTERS[type(tx)] = _adapter_of(tx)
    return adapter(tx)


def _adapter_of(tx: Any) -> Callable[[Any], Any]:
    if is_a(tx, "psycopg", "Connection", "AsyncConnection"):
        from . import _psycopg  # it needs the driver

        return _psycopg.Psycopg if is_a(tx, "psycopg", "Connection") else _psycopg.PsycopgAsync
    if is_a(tx, "asyncpg", "Connection") or is_a(tx, "asyncpg.pool", "PoolConnectionProxy"):
        return Asyncpg
    if is_a(tx, "sqlalchemy.orm", "Session"):
        return Alchemy
    if is_a(tx, "sqlalchemy.ext.asyncio", "AsyncSession"):
        return AlchemyAsync
    if is_a(tx, "django.db.backends.base.base", "BaseDatabaseWrapper") or is_a(tx, "django.utils.connection", "ConnectionProxy"):
        from . import django

        return lambda own: django.Connection(own.alias)
    raise UsageError(f"{type(tx).__module__}.{type(tx).__qualname__} is no connection or session that pgonce knows")


def is_asynchronous(connection: Any) -> bool:
    return inspect.iscoroutinefunction(connection.query)


def _of_connection(connection: Any, raised: Exception) -> bool:
    """An error of a connection on its way back to its pool (asyncpg's sends it a last statement). It takes nothing back of what was
    answered before, so it must not come out in place of that answer; the connection goes."""
    return isinstance(raised, asyncio.TimeoutError) or connection.trouble(raised) is not None


class Source:
    """acquire gives a connection, release takes it back. renewable: it can give a fresh one after a loss. sleep: how whoever uses it waits."""

    renewable = True
    sleep: Callable[[float], Any] = staticmethod(time.sleep)

    def __init__(self, acquire: Callable[[], Any], release: Callable[[Any], Any]) -> None:
        self._acquire, self._release = acquire, release

    def acquire(self) -> Any:
        return connection_of(self._acquire())

    def release(self, connection: Any) -> Any:
        if connection.lost():
            connection.close()
        else:
            connection.rollback()
        try:
            self._release(connection.tx)
        except Exception as raised:
            if not _of_connection(connection, raised):
                raise
            connection.close()


class AsyncSource(Source):
    sleep: Callable[[float], Any] = staticmethod(asyncio.sleep)

    async def acquire(self) -> Any:
        made = self._acquire()
        return connection_of(await made if inspect.isawaitable(made) else made)

    def release(self, connection: Any) -> Any:
        return (finished if connection.prompt() else shielded)(self._released(connection))

    async def _released(self, connection: Any) -> None:
        try:
            await (connection.close() if connection.lost() else connection.rollback())
        finally:
            try:
                done = self._release(connection.tx)
                if inspect.isawaitable(done):
                    await done
            except Exception as raised:
                if not _of_connection(connection, raised):
                    raise
                await connection.close()


def source_of(given: Any, asynchronous: bool) -> Source:
    kind = AsyncSource if asynchronous else Source
    if isinstance(given, Source):
        return given
    if is_a(given, "psycopg_pool", "ConnectionPool", "AsyncConnectionPool"):
        made = kind(given.getconn, given.putconn)
    elif is_a(given, "asyncpg", "Pool") or is_a(given, "asyncpg.pool", "Pool"):
        made = kind(given.acquire, given.release)
    elif callable(given) and not is_a(given, "sqlalchemy.orm", "scoped_session"):
        made = kind(given, lambda tx: tx.close())
    else:
        connection = connection_of(given)
        if not connection.idle():
            raise UsageError("this connection is inside a transaction: pgonce begins and commits its own")
        made = kind(lambda: given, lambda tx: None)
        made.renewable = False
    if not asynchronous and (
        is_a(given, "psycopg_pool", "AsyncConnectionPool") or is_a(given, "asyncpg", "Pool") or is_a(given, "asyncpg.pool", "Pool")
    ):
        raise UsageError("this pool is asynchronous: use pgonce.aio")
    return made
