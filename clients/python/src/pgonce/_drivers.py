# SPDX-License-Identifier: PostgreSQL
"""The drivers: what opens a transaction, runs a statement, commits, and says what an error was.

A source (a pool, a connect function, a session factory, one connection) gives connections; a connection here is a page
of code over the driver's own. Each method of an asynchronous driver returns something to await. Nothing is decided here."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sys
from typing import Any, AsyncIterator, Callable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from . import _sql
from .errors import SwallowedError, UsageError

Statement = Tuple[str, Sequence[Any]]


class Trouble(NamedTuple):
    """A driver's error. lost: the connection is gone with it."""

    sqlstate: Optional[str]
    lost: bool


_GONE = ("57P01", "57P02", "57P03", "25P03", "25P04")


def _trouble(sqlstate: Optional[str], severity: Optional[str], closed: bool) -> Trouble:
    gone = sqlstate is not None and (sqlstate.startswith("08") or sqlstate in _GONE)
    return Trouble(sqlstate, closed or gone or severity in ("FATAL", "PANIC"))


def _module(name: str) -> Any:
    """Only what the application has imported can have made what it passes."""
    return sys.modules.get(name)


def _is(value: Any, module: str, *names: str) -> bool:
    loaded = _module(module)
    return loaded is not None and any(isinstance(value, getattr(loaded, name)) for name in names if hasattr(loaded, name))


def _named(arguments: Sequence[Any]) -> Any:
    return {f"p{number}": value for number, value in enumerate(arguments, 1)}


# ---- psycopg 3 ----


class _PsycopgBase:
    def __init__(self, connection: Any) -> None:
        self.tx = self.own = connection
        self.transaction: Any = None
        self.pipelined = _module("psycopg").Pipeline.is_supported()
        # Taken out of the caller's mode while pgonce begins and commits: psycopg's own BEGIN would be a second one, with a
        # round trip of its own.
        self.own_mode = False

    def trouble(self, raised: BaseException) -> Optional[Trouble]:
        psycopg = _module("psycopg")
        if not isinstance(raised, psycopg.Error):
            return None
        severity = raised.diag.severity_nonlocalized or raised.diag.severity
        return _trouble(raised.sqlstate, severity, self.lost())

    def lost(self) -> bool:
        return bool(self.tx.closed)

    def _status(self) -> str:
        return str(self.tx.info.transaction_status.name)

    def in_transaction(self) -> bool:
        """Or the driver begins one by itself."""
        return self._status() in ("INTRANS", "INERROR") or not self.tx.autocommit

    def idle(self) -> bool:
        return self.lost() or self._status() == "IDLE"

    def _cursor(self) -> Any:
        return self.tx.cursor(row_factory=_module("psycopg").rows.tuple_row)

    @staticmethod
    def _spelled(statement: Statement) -> Any:
        sql, arguments = statement
        return (_sql.spelled(sql, "%(p{})s"), _named(arguments)) if arguments else (sql,)


def _first(aborted: BaseException) -> BaseException:
    """The error that aborted a pipeline: what came behind it may be told last, with the cause as its context."""
    found: Optional[BaseException] = aborted
    while found is not None:
        if getattr(found, "sqlstate", None) is not None:
            return found
        found = found.__context__
    return aborted


class Psycopg(_PsycopgBase):
    @contextlib.contextmanager
    def _batch(self) -> Iterator[None]:
        try:
            with self.tx.pipeline() if self.pipelined else contextlib.nullcontext():
                yield
        except _module("psycopg").errors.PipelineAborted as aborted:
            raise _first(aborted) from None

    def begin(self, statements: Sequence[Statement], keep: int) -> Any:
        # A Transaction, so that a commit within the effect is the driver's error. By its class: transaction() would leave
        # the connection in pipeline mode, where the effect's errors come late.
        self._take_mode()
        with self._batch():
            self.transaction = _module("psycopg").Transaction(self.tx)
            self.transaction.__enter__()
            cursors = [self._cursor().execute(*self._spelled(each)) for each in statements]
        return cursors[keep].fetchone()

    def commit(self, statements: Sequence[Statement]) -> Any:
        with self._batch():
            cursors = [self._cursor().execute(*self._spelled(each)) for each in statements]
            transaction, self.transaction = self.transaction, None
            transaction.__exit__(None, None, None)
        row = cursors[-1].fetchone()
        self._give_mode()
        return row

    def query(self, sql: str, arguments: Sequence[Any]) -> Any:
        return self._cursor().execute(*self._spelled((sql, arguments))).fetchone()

    def alone(self, sql: str, arguments: Sequence[Any]) -> Any:
        self._take_mode()
        row = self.query(sql, arguments)
        self._give_mode()
        return row

    def _take_mode(self) -> None:
        if not self.tx.autocommit:
            self.tx.autocommit = self.own_mode = True

    def _give_mode(self) -> None:
        if self.own_mode:
            self.tx.autocommit = self.own_mode = False

    def rollback(self) -> Any:
        transaction, self.transaction = self.transaction, None
        try:
            if transaction is not None and not self.lost():
                raised = RuntimeError("rolled back")
                transaction.__exit__(RuntimeError, raised, None)
            if not self.idle():
                self.tx.rollback()
            if not self.lost():
                self._give_mode()
        except Exception:
            self.tx.close()

    def close(self) -> Any:
        self.tx.close()


class PsycopgAsync(_PsycopgBase):
    @contextlib.asynccontextmanager
    async def _batch(self) -> AsyncIterator[None]:
        try:
            async with self.tx.pipeline() if self.pipelined else _nothing():
                yield
        except _module("psycopg").errors.PipelineAborted as aborted:
            raise _first(aborted) from None

    async def begin(self, statements: Sequence[Statement], keep: int) -> Any:
        await self._take_mode()
        async with self._batch():
            self.transaction = _module("psycopg").AsyncTransaction(self.tx)
            await self.transaction.__aenter__()
            cursors = [await self._cursor().execute(*self._spelled(each)) for each in statements]
        return await cursors[keep].fetchone()

    async def commit(self, statements: Sequence[Statement]) -> Any:
        async with self._batch():
            cursors = [await self._cursor().execute(*self._spelled(each)) for each in statements]
            transaction, self.transaction = self.transaction, None
            await transaction.__aexit__(None, None, None)
        row = await cursors[-1].fetchone()
        await self._give_mode()
        return row

    async def query(self, sql: str, arguments: Sequence[Any]) -> Any:
        return await (await self._cursor().execute(*self._spelled((sql, arguments)))).fetchone()

    async def alone(self, sql: str, arguments: Sequence[Any]) -> Any:
        await self._take_mode()
        row = await self.query(sql, arguments)
        await self._give_mode()
        return row

    async def _take_mode(self) -> None:
        if not self.tx.autocommit:
            await self.tx.set_autocommit(True)
            self.own_mode = True

    async def _give_mode(self) -> None:
        if self.own_mode:
            await self.tx.set_autocommit(False)
            self.own_mode = False

    async def rollback(self) -> Any:
        transaction, self.transaction = self.transaction, None
        try:
            if transaction is not None and not self.lost():
                raised = RuntimeError("rolled back")
                await transaction.__aexit__(RuntimeError, raised, None)
            if not self.idle():
                await self.tx.rollback()
            if not self.lost():
                await self._give_mode()
        except Exception:
            await self.tx.close()

    async def close(self) -> Any:
        await self.tx.close()


@contextlib.asynccontextmanager
async def _nothing() -> AsyncIterator[None]:
    yield


# ---- asyncpg ----


class Asyncpg:
    """Has no pipeline for statements with parameters: one round trip each."""

    def __init__(self, connection: Any) -> None:
        self.tx = connection
        self.transaction: Any = None

    def trouble(self, raised: BaseException) -> Optional[Trouble]:
        asyncpg = _module("asyncpg")
        if isinstance(raised, asyncpg.PostgresError):
            return _trouble(raised.sqlstate, getattr(raised, "severity", None), self.lost())
        if isinstance(raised, (asyncpg.InterfaceError, OSError)):
            return Trouble(getattr(raised, "sqlstate", None), self.lost() or isinstance(raised, OSError))
        return None

    def lost(self) -> bool:
        try:
            return bool(self.tx.is_closed())
        except _module("asyncpg").InterfaceError:  # a pool takes a lost connection back by itself
            return True

    def in_transaction(self) -> bool:
        return bool(self.tx.is_in_transaction())

    def idle(self) -> bool:
        return self.lost() or not self.tx.is_in_transaction()

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

    async def commit(self, statements: Sequence[Statement]) -> Any:
        row = None
        for each in statements:
            row = await self._one(each)
        transaction, self.transaction = self.transaction, None
        await transaction.commit()
        return row

    async def query(self, sql: str, arguments: Sequence[Any]) -> Any:
        return await self.tx.fetchrow(sql, *arguments)

    alone = query

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
        with contextlib.suppress(_module("asyncpg").InterfaceError):
            self.tx.terminate()


# ---- SQLAlchemy ----


class _AlchemyBase:
    def __init__(self, session: Any) -> None:
        self.tx = session
        self.sync = getattr(session, "sync_session", session)
        self.guarded = False
        self.gone = False

    def trouble(self, raised: BaseException) -> Optional[Trouble]:
        exc = _module("sqlalchemy.exc")
        if isinstance(raised, exc.DBAPIError):
            original: Any = raised.orig
            cause = getattr(original, "__cause__", None)
            sqlstate = None
            for each in (original, cause):
                sqlstate = sqlstate or getattr(each, "sqlstate", None) or getattr(each, "pgcode", None)
            diag = getattr(original, "diag", None)
            found = _trouble(sqlstate, getattr(diag, "severity_nonlocalized", None), bool(raised.connection_invalidated))
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
            event = _module("sqlalchemy.event")
            (event.listen if on else event.remove)(self.sync, "before_commit", self._refuse)
            self.guarded = on

    @staticmethod
    def _spelled(statement: Statement) -> Any:
        sql, arguments = statement
        return _module("sqlalchemy").text(_sql.spelled(sql, ":p{}")), _named(arguments)

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

    async def commit(self, statements: Sequence[Statement]) -> Any:
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

    async def alone(self, sql: str, arguments: Sequence[Any]) -> Any:
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


def connection_of(tx: Any) -> Any:
    """The adapter of one connection or session of the caller's."""
    if _is(tx, "psycopg", "Connection"):
        return Psycopg(tx)
    if _is(tx, "psycopg", "AsyncConnection"):
        return PsycopgAsync(tx)
    if _is(tx, "asyncpg", "Connection") or _is(tx, "asyncpg.pool", "PoolConnectionProxy"):
        return Asyncpg(tx)
    if _is(tx, "sqlalchemy.orm", "Session"):
        return Alchemy(tx)
    if _is(tx, "sqlalchemy.ext.asyncio", "AsyncSession"):
        return AlchemyAsync(tx)
    if hasattr(tx, "pgonce_connection"):
        return tx.pgonce_connection()
    raise UsageError(f"{type(tx).__module__}.{type(tx).__qualname__} is no connection or session that pgonce knows")


def is_asynchronous(connection: Any) -> bool:
    return isinstance(connection, (PsycopgAsync, Asyncpg, AlchemyAsync))


def _of_connection(connection: Any, raised: Exception) -> bool:
    """An error of a connection on its way back to its pool (asyncpg's sends it a last statement). It takes nothing back of what was
    answered before, so it must not come out in place of that answer; the connection goes."""
    return isinstance(raised, asyncio.TimeoutError) or connection.trouble(raised) is not None


class Source:
    """acquire gives a connection, release takes it back. renewable: it can give a fresh one after a loss."""

    renewable = True

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
    async def acquire(self) -> Any:
        made = self._acquire()
        return connection_of(await made if inspect.isawaitable(made) else made)

    async def release(self, connection: Any) -> Any:
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
    if _is(given, "psycopg_pool", "ConnectionPool", "AsyncConnectionPool"):
        made = kind(given.getconn, given.putconn)
    elif _is(given, "asyncpg", "Pool") or _is(given, "asyncpg.pool", "Pool"):
        made = kind(given.acquire, given.release)
    elif callable(given) and not _is(given, "sqlalchemy.orm", "scoped_session"):
        made = kind(given, lambda tx: tx.close())
    else:
        connection = connection_of(given)
        if not connection.idle():
            raise UsageError("this connection is inside a transaction: pgonce begins and commits its own")
        made = kind(lambda: given, lambda tx: None)
        made.renewable = False
    expected: List[str] = ["AsyncConnectionPool", "asyncpg"] if not asynchronous else ["ConnectionPool"]
    if not asynchronous and (
        _is(given, "psycopg_pool", "AsyncConnectionPool") or _is(given, "asyncpg", "Pool") or _is(given, "asyncpg.pool", "Pool")
    ):
        raise UsageError(f"{expected[0]} and {expected[1]} are asynchronous: use pgonce.aio")
    return made
