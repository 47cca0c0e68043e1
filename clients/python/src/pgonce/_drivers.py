# SPDX-License-Identifier: PostgreSQL
"""The drivers: what opens a transaction, runs a statement, commits, and says what an error was.

A source (a pool, a connect function, a session factory, one connection) gives connections; a connection here is a page
of code over the driver's own; connects: a session that has none yet. Each method of an asynchronous driver returns something to await; commit, alone and
a source's release run to their end where the task is cancelled, and raise it afterwards. Nothing is decided here."""

from __future__ import annotations

import asyncio
import inspect
import time
from typing import Any, Callable, Dict, Optional

from ._io import finished, shielded
from ._trouble import is_a
from .errors import PoolFull, SlotClosed, UsageError

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
        from . import _asyncpg

        return _asyncpg.Asyncpg
    if is_a(tx, "sqlalchemy.orm", "Session") or is_a(tx, "sqlalchemy.ext.asyncio", "AsyncSession"):
        from . import _alchemy

        return _alchemy.Alchemy if is_a(tx, "sqlalchemy.orm", "Session") else _alchemy.AlchemyAsync
    if is_a(tx, "django.db.backends.base.base", "BaseDatabaseWrapper") or is_a(tx, "django.utils.connection", "ConnectionProxy"):
        from . import _django

        return lambda own: _django.Connection(own.alias)
    raise UsageError(f"{type(tx).__module__}.{type(tx).__qualname__} is no connection or session that pgonce knows")


def is_asynchronous(connection: Any) -> bool:
    return inspect.iscoroutinefunction(connection.query)


def _of_connection(connection: Any, raised: Exception) -> bool:
    """An error of a connection on its way back to its pool (asyncpg's sends it a last statement). It takes nothing back of what was
    answered before, so it must not come out in place of that answer; the connection goes."""
    return isinstance(raised, asyncio.TimeoutError) or connection.trouble(raised) is not None


def _named(raised: BaseException, pool: Any, waited: float) -> PoolFull:
    """Why no connection came: the pool is full, as far as it says so, or the database is away."""
    size, most = 0, 0
    if hasattr(pool, "get_stats"):  # psycopg's
        size, most = pool.get_stats().get("pool_size", 0), pool.max_size
    elif hasattr(pool, "get_max_size"):  # asyncpg's
        size, most = pool.get_size(), pool.get_max_size()
    elif is_a(raised, "sqlalchemy.exc", "TimeoutError"):  # of a pool that cannot be asked
        size = most = 1
    why = f"no connection came within {waited * 1000:.0f} ms"
    if 0 < most <= size:
        which = f"the pool of {most}" if pool is not None else "the session's pool"
        why = (
            f"no connection was free within {waited * 1000:.0f} ms: {which} is full; a handler that takes a second one from the same pool can cause"
            " this: see mode='lease'"
        )
    return PoolFull(why)


def _is_late(raised: BaseException) -> bool:
    late = isinstance(raised, (asyncio.TimeoutError, TimeoutError))
    return late or is_a(raised, "psycopg_pool", "PoolTimeout") or is_a(raised, "sqlalchemy.exc", "TimeoutError")


class Source:
    """acquire gives a connection within so many seconds, release takes it back. renewable: it can give a fresh one after a loss. shared: its session is
    the application's own, before and after. sleep: how its user waits."""

    renewable = True
    shared = False
    routes = False
    pool: Any = None
    sleep: Callable[[float], Any] = staticmethod(time.sleep)

    def __init__(self, acquire: Callable[[float], Any], release: Callable[[Any], Any]) -> None:
        self._acquire, self._release = acquire, release

    def at(self, tenant: str, refused: Optional[SlotClosed] = None) -> Any:
        """The source of the node that serves the tenant. refused: the refusal of the node that was given before."""
        return self

    def acquire(self, within: float) -> Any:
        start = time.monotonic()
        try:
            connection = self._adapted(self._acquire(within))
            if connection.connects:
                connection.connect()
            return connection
        except Exception as raised:
            if _is_late(raised):
                raise _named(raised, self.pool, time.monotonic() - start) from raised
            raise

    def _adapted(self, made: Any) -> Any:
        if inspect.iscoroutine(made):
            made.close()
        elif not is_asynchronous(connection := connection_of(made)):
            return connection
        raise UsageError("this connection is asynchronous: use pgonce.aio")

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
        if self.renewable and not self.shared:
            connection.retire()


class AsyncSource(Source):
    sleep: Callable[[float], Any] = staticmethod(asyncio.sleep)

    async def acquire(self, within: float) -> Any:
        start = time.monotonic()
        try:
            made = self._acquire(within)
            connection = self._adapted(await made if inspect.isawaitable(made) else made)
            if connection.connects:
                await connection.connect()
            return connection
        except Exception as raised:
            if _is_late(raised):
                raise _named(raised, self.pool, time.monotonic() - start) from raised
            raise

    def _adapted(self, made: Any) -> Any:
        connection = connection_of(made)
        if not is_asynchronous(connection):
            raise UsageError("this connection is blocking, and would hold up every other request: use an asynchronous driver or pool")
        return connection

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
            if self.renewable and not self.shared:
                connection.retire()


class Routed(Source):
    """Several nodes: route, a function of the tenant, gives the pool. It gets what has refused the tenant if it takes two arguments."""

    routes = True

    def __init__(self, route: Callable[..., Any], arguments: int, asynchronous: bool) -> None:
        self._route, self._arguments, self._asynchronous = route, arguments, asynchronous
        self.sleep = AsyncSource.sleep if asynchronous else Source.sleep

    def at(self, tenant: str, refused: Optional[SlotClosed] = None) -> Any:
        given = self._route(*(tenant, refused)[: self._arguments if refused is not None else 1])
        return self._awaited(given) if self._asynchronous else self._of(given)

    async def _awaited(self, given: Any) -> Any:
        return self._of(await given if inspect.isawaitable(given) else given)

    def _of(self, given: Any) -> Source:
        if inspect.iscoroutine(given):
            given.close()
            raise UsageError("the function of the tenant is asynchronous: use pgonce.aio")
        if given is None or arguments_of(given):
            raise UsageError("the function of the tenant must return a pool")
        return source_of(given, self._asynchronous)


def arguments_of(given: Any) -> int:
    """How many arguments a function of the tenant takes, 1 or 2; 0 for any other object: a function that connects is called without arguments."""
    if not callable(given):
        return 0
    try:
        parameters = inspect.signature(given).parameters.values()
    except (TypeError, ValueError):
        return 0
    positional = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    if all(each.default is not each.empty for each in positional):
        return 0
    return 2 if len(positional) > 1 or any(each.kind is each.VAR_POSITIONAL for each in parameters) else 1


def _check_kind(given: Any, asynchronous: bool) -> None:
    """What can be seen before anything runs."""
    if is_a(given, "sqlalchemy.engine", "Engine") or is_a(given, "sqlalchemy.ext.asyncio", "AsyncEngine"):
        raise UsageError("an engine has connections, and no sessions: give sessionmaker(engine), or async_sessionmaker(engine)")
    blocking = (
        is_a(given, "psycopg_pool", "ConnectionPool") or is_a(given, "sqlalchemy.orm", "sessionmaker", "scoped_session")
        or is_a(given, "psycopg2.pool", "AbstractConnectionPool")
    )  # fmt: skip
    awaited = (
        is_a(given, "psycopg_pool", "AsyncConnectionPool") or is_a(given, "asyncpg.pool", "Pool")
        or is_a(given, "sqlalchemy.ext.asyncio", "async_sessionmaker", "async_scoped_session")
    )  # fmt: skip
    if asynchronous and blocking:
        raise UsageError("this pool is blocking: an asynchronous application needs an AsyncConnectionPool, asyncpg's pool or an async_sessionmaker")
    if awaited and not asynchronous:
        raise UsageError("this pool is asynchronous: use pgonce.aio")


def source_of(given: Any, asynchronous: bool) -> Source:
    kind = AsyncSource if asynchronous else Source
    if isinstance(given, Source):
        return given
    _check_kind(given, asynchronous)
    arguments = 0 if is_a(given, "sqlalchemy.orm", "sessionmaker") else arguments_of(given)
    if arguments:
        return Routed(given, arguments, asynchronous)
    if is_a(given, "psycopg_pool", "ConnectionPool", "AsyncConnectionPool"):
        made = kind(lambda within: given.getconn(min(within, given.timeout)), given.putconn)
        made.pool = given
    elif is_a(given, "asyncpg.pool", "Pool"):
        made = kind(lambda within: given.acquire(timeout=within), given.release)
        made.pool = given
    elif is_a(given, "sqlalchemy.orm", "scoped_session"):  # Flask-SQLAlchemy's db.session, for one
        made = kind(lambda within: given(), lambda tx: None)
        made.shared = True
    elif callable(given):
        made = kind(lambda within: given(), lambda tx: tx.close())
    else:
        made = kind(lambda within: given, lambda tx: None)
        if not made._adapted(given).idle():
            raise UsageError("this connection is inside a transaction: pgonce begins and commits its own")
        made.renewable = False
    return made
