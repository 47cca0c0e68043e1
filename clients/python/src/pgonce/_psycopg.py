# SPDX-License-Identifier: PostgreSQL
"""psycopg 3. What opens a transaction, and what closes it, goes out in one write, and is prepared after the connection's prepare_threshold. psycopg's
own pipeline writes each statement separately and looks for an answer after each, which costs the application more than all else here; so this calls
libpq's pipeline by psycopg.pq. The effect's statements are psycopg's affair."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import re
import struct
import weakref
from typing import Any, Callable, Dict, Generator, List, NamedTuple, Optional, Sequence, Tuple

import psycopg
from psycopg import pq
from psycopg.waiting import Ready, Wait

from . import _sql
from ._control import OVER, Guard, refuse
from ._trouble import Statement, Trouble, interrupted, named, trouble_of
from .errors import STATEMENT_GONE, UsageError

# What psycopg's connections wait for: they are sent what the socket is ready for, or nothing.
Talk = Generator[int, int, Any]

_READ, _WRITE, _BOTH = int(Wait.R), int(Wait.W), int(Wait.RW)
_READY_READ, _READY_WRITE = int(Ready.R), int(Ready.W)
_FAILED, _COMMAND_OK = int(pq.ExecStatus.FATAL_ERROR), int(pq.ExecStatus.COMMAND_OK)
_IDLE, _ACTIVE, _IN_PIPELINE = int(pq.TransactionStatus.IDLE), int(pq.TransactionStatus.ACTIVE), int(pq.PipelineStatus.ON)
_TEXT, _BINARY = 0, 1
# How often a wait looks whether the socket was closed under it.
_LOOK_S = 0.5

_PREPARED, _PREPARES = -1, -2
# How often each statement was sent by a connection, _PREPARED once it is; None: one was gone, so this connection prepares no more.
_USES: "weakref.WeakKeyDictionary[Any, Optional[Dict[str, int]]]" = weakref.WeakKeyDictionary()


class _Wired(NamedTuple):
    """A statement as it is sent, its name, which no other text has (behind a pooler a connection may be another's), and the formats of its parameters.
    Text goes in binary, too: so the server, and not the end of a C string, meets a character that it refuses."""

    text: bytes
    name: bytes
    formats: List[int]


@functools.lru_cache(maxsize=256)
def _wired(sql: str) -> _Wired:
    text = sql.encode()
    kinds = dict(re.findall(r"CAST\(\$(\d+) AS (text|bytea)\)", sql))
    count = max(map(int, re.findall(r"\$(\d+)", sql)), default=0)
    formats = [_BINARY if str(number) in kinds else _TEXT for number in range(1, count + 1)]
    return _Wired(text, b"pgonce_" + hashlib.sha256(text).hexdigest()[:24].encode(), formats)


def _bytes(value: Any, encoding: str) -> bytes:
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, int):  # also bool; str() of an enumeration's member would be its name
        return str(int(value)).encode()
    return str.__str__(value).encode(encoding) if isinstance(value, str) else str(value).encode(encoding)


def _values(arguments: Sequence[Any], encoding: str) -> List[Optional[bytes]]:
    return [
        each if each is None or type(each) is bytes else each.encode(encoding) if type(each) is str else _bytes(each, encoding)
        for each in arguments
    ]


def _int(value: bytes) -> int:
    return int.from_bytes(value, "big", signed=True)


_READERS: Dict[int, Callable[[bytes], Any]] = {
    16: lambda value: value != b"\0",
    17: bytes,
    20: _int,
    21: _int,
    23: _int,
    701: lambda value: struct.unpack("!d", value)[0],
}


def _row(result: Any, encoding: str) -> Any:
    if result.ntuples == 0:
        return None
    row = []
    for column in range(result.nfields):
        value = result.get_value(0, column)
        if value is not None:
            reader = _READERS.get(result.ftype(column))
            value = value.decode(encoding) if reader is None else reader(value)
        row.append(value)
    return row


def _flushed(pgconn: Any) -> Talk:
    while pgconn.flush():
        ready = 0
        while not ready:
            ready = yield _BOTH
        if ready & _READY_READ:
            pgconn.consume_input()


def _results(pgconn: Any, count: int) -> Talk:
    """The results of so many commands, one each: the last one, as psycopg takes it; and what is behind them: of a pipeline its end."""
    found: List[Any] = []
    last = None
    while True:
        while pgconn.is_busy():
            while not (yield _READ):
                pass
            pgconn.consume_input()
        result = pgconn.get_result()
        if len(found) == count:
            return found
        if result is not None:
            last = result
        elif last is not None:
            found.append(last)
            last = None
        else:
            pgconn.finish()
            raise psycopg.OperationalError("the server has sent no answer")


# ---- what an effect has of a connection ----


@functools.lru_cache(maxsize=64)
def _checked(factory: Any) -> Any:
    """Cursors that ask the guard of their connection before they send anything."""

    def text(cursor: Any, query: Any) -> Any:
        return query.as_string(cursor.connection) if isinstance(query, psycopg.sql.Composable) else query

    def checking(name: str) -> Any:
        plain = getattr(factory, name)

        @functools.wraps(plain)
        def method(self: Any, query: Any, *arguments: Any, **named: Any) -> Any:
            self.connection.pgonce_guard.check(text(self, query))
            return plain(self, query, *arguments, **named)

        return method

    names = [name for name in ("execute", "executemany", "stream", "copy") if hasattr(factory, name)]
    return type(factory.__name__, (factory,), {"__module__": factory.__module__, **{name: checking(name) for name in names}})


def _cursors(name: str) -> Any:
    """The connection's own factory, checked."""

    def get(self: Any) -> Any:
        factory = self.__dict__[name]
        return _checked(factory) if isinstance(factory, type) else factory

    return property(get, lambda self, given: self.__dict__.__setitem__(name, given))


@functools.lru_cache(maxsize=16)
def _lent(kind: Any) -> Any:
    refused = {name: refuse for name in ("commit", "rollback", "tpc_begin", "tpc_prepare", "tpc_commit", "tpc_rollback")}
    cursors = {name: _cursors(name) for name in ("cursor_factory", "server_cursor_factory")}
    return type(kind.__name__, (kind,), {"__module__": kind.__module__, "__del__": lambda self: None, **refused, **cursors})


def _lend(own: Any) -> Any:
    """The connection for one effect: it shares all attributes, but it cannot end its transaction, and does not belong to the pool."""
    lent: Any = object.__new__(_lent(own.__class__))
    lent.__dict__ = own.__dict__
    return lent


def _is_over(*_: Any) -> Any:
    raise UsageError(OVER)


@functools.lru_cache(maxsize=16)
def _over(lent: Any) -> Any:
    """The lent connection afterwards: code that has kept it cannot write into another transaction."""
    return type(lent.__name__, (lent,), {"__module__": lent.__module__, "__getattribute__": _is_over, "__setattr__": _is_over})


class _Base:
    connects = False
    pipelined: Optional[bool] = None

    def __init__(self, connection: Any) -> None:
        self.tx = self.own = connection
        self.guard: Optional[Guard] = None
        if _Base.pipelined is None:
            _Base.pipelined = psycopg.Pipeline.is_supported()

    def trouble(self, raised: BaseException) -> Optional[Trouble]:
        if not isinstance(raised, psycopg.Error):
            return None
        severity = raised.diag.severity_nonlocalized or raised.diag.severity
        return trouble_of(raised.sqlstate, severity, self.lost())

    def lost(self) -> bool:
        return bool(self.own.closed)

    def in_transaction(self) -> bool:
        """Also true if the driver would begin a transaction."""
        return self.own.info.transaction_status.name in ("INTRANS", "INERROR") or not self.own.autocommit

    def idle(self) -> bool:
        return self.lost() or self.own.pgconn.transaction_status == _IDLE

    def prompt(self) -> bool:
        """Given back without a wait, as a rule."""
        return bool(self.own.pgconn.transaction_status == _IDLE)

    def _cursor(self) -> Any:
        return self.own.cursor(row_factory=psycopg.rows.tuple_row)

    @staticmethod
    def _spelled(statement: Statement) -> Any:
        sql, arguments = statement
        return (_sql.spelled(sql, "%(p{})s"), named(arguments)) if arguments else (sql,)

    def ended(self) -> bool:
        """The effect has ended the transaction, behind the guard."""
        return self.guard is not None and not self.lost() and self.idle()

    def undo(self) -> Any:
        return self.alone(_sql.ROLLBACK_TO_SAVEPOINT, ())  # type: ignore[attr-defined]

    def retire(self) -> None:
        """What was lent is over already."""

    def interrupt(self) -> None:
        interrupted(self.own)

    def _open_guard(self) -> None:
        self.guard = self.own.__dict__["pgonce_guard"] = Guard()
        self.tx = _lend(self.own)

    def _close_guard(self) -> None:
        if self.guard is not None:
            self.guard = None
            del self.own.pgonce_guard
            lent, self.tx = self.tx, self.own
            lent.__dict__ = {}
            lent.__class__ = _over(lent.__class__)

    def _encoding(self) -> str:
        if self.own.pgconn.parameter_status(b"client_encoding") == b"UTF8":
            return "utf-8"
        encoding = str(self.own.info.encoding)
        return "utf-8" if encoding == "ascii" else encoding

    def _begin(self) -> Statement:
        """As psycopg begins, by what the connection is set to."""
        tx, words = self.own, ["BEGIN"]
        if tx.isolation_level is not None:
            words.append("ISOLATION LEVEL " + psycopg.IsolationLevel(tx.isolation_level).name.replace("_", " "))
        if tx.read_only is not None:
            words.append("READ ONLY" if tx.read_only else "READ WRITE")
        if tx.deferrable is not None:
            words.append("DEFERRABLE" if tx.deferrable else "NOT DEFERRABLE")
        return " ".join(words), ()

    def _prepared(self, sql: str, uses: Optional[Dict[str, int]]) -> int:
        """How often it was sent before; _PREPARED: it is prepared, and can be sent by name; _PREPARES: it must be prepared now."""
        threshold = self.own.prepare_threshold
        if uses is None or threshold is None or not self.pipelined:
            return 0
        count = uses.get(sql, 0)
        if count == _PREPARED:
            return _PREPARED
        if count >= threshold:
            return _PREPARES
        uses[sql] = count + 1
        return count

    def _talk(self, statements: Sequence[Statement], keep: int) -> Talk:
        """One write and one answer, if libpq has a pipeline. Returns the row of one statement; raises the first error."""
        pgconn, encoding = self.own.pgconn, self._encoding()
        if self.pipelined and pgconn.pipeline_status == _IN_PIPELINE:
            raise UsageError("this connection is in pipeline mode, where a statement's error comes late: leave it before")
        packed = [_values(arguments, encoding) if arguments else None for _, arguments in statements]
        uses = _USES.setdefault(self.own, {})
        preparing: Dict[int, str] = {}  # by the number of its answer
        results: List[Any] = []
        kept = 0
        if self.pipelined:
            pgconn.enter_pipeline_mode()
        for number, (sql, _) in enumerate(statements):
            (text, name, formats), values = _wired(sql), packed[number]
            if values is None:
                pgconn.send_query_params(text, None)
            else:
                prepared = self._prepared(sql, uses)
                if prepared == _PREPARES:
                    preparing[number + len(preparing)] = sql
                    pgconn.send_prepare(name, text)
                if prepared < 0:
                    pgconn.send_query_prepared(name, values, formats, _BINARY)
                else:
                    pgconn.send_query_params(text, values, None, formats, _BINARY)
            if number == keep:
                kept = number + len(preparing)
            if not self.pipelined:
                yield from _flushed(pgconn)
                results += yield from _results(pgconn, 1)
                if results[-1].status == _FAILED:
                    break
        if self.pipelined:
            pgconn.pipeline_sync()
            yield from _flushed(pgconn)
            results = yield from _results(pgconn, len(statements) + len(preparing))
            pgconn.exit_pipeline_mode()
            for number, sql in preparing.items():
                if results[number].status == _COMMAND_OK and uses is not None:
                    uses[sql] = _PREPARED
        for result in results:
            if result.status == _FAILED:
                raise psycopg.errors.error_from_result(result, encoding)
        return _row(results[kept], encoding)

    def _insist(self, statements: Sequence[Statement], keep: int) -> Talk:
        """For what has done nothing where it fails: once more, where the failure is that a prepared statement is gone."""
        try:
            return (yield from self._talk(statements, keep))
        except psycopg.Error as raised:
            if not self._forgets(raised):
                raise
        if not self.idle():
            yield from self._talk([("ROLLBACK", ())], 0)
        return (yield from self._talk(statements, keep))

    def _forgets(self, raised: psycopg.Error) -> bool:
        """Somebody has deallocated it, or the connection leads elsewhere, as behind a pooler."""
        if raised.sqlstate not in STATEMENT_GONE or _USES.get(self.own) is None:
            return False
        _USES[self.own] = None
        return True

    def _open(self, statements: Sequence[Statement], keep: int) -> Talk:
        if not self.idle():
            raise UsageError("this connection is inside a transaction: pgonce begins and commits its own")
        row = yield from self._insist([self._begin(), *statements], keep + 1)
        self._open_guard()
        return row

    def _close(self, statements: Sequence[Statement]) -> Talk:
        try:
            row = yield from self._talk([*statements, ("COMMIT", ())], len(statements) - 1)
        except psycopg.Error as raised:
            self._forgets(raised)
            raise
        self._close_guard()
        return row


class Psycopg(_Base):
    def _run(self, talk: Talk) -> Any:
        with self.own.lock:
            return self.own.wait(talk)

    def begin(self, statements: Sequence[Statement], keep: int) -> Any:
        return self._run(self._open(statements, keep))

    def commit(self, statements: Sequence[Statement]) -> Any:
        return self._run(self._close(statements))

    def query(self, sql: str, arguments: Sequence[Any]) -> Any:
        return self._cursor().execute(*self._spelled((sql, arguments))).fetchone()

    def alone(self, sql: str, arguments: Sequence[Any]) -> Any:
        return self._run(self._insist([(sql, arguments)], 0))

    def rollback(self) -> Any:
        self._close_guard()
        try:
            if not self.idle():
                self.own.rollback()
        except Exception:
            self.own.close()

    def close(self) -> Any:
        self._close_guard()
        self.own.close()


class PsycopgAsync(_Base):
    async def begin(self, statements: Sequence[Statement], keep: int) -> Any:
        async with self.own.lock:
            return await self.own.wait(self._open(statements, keep))

    async def commit(self, statements: Sequence[Statement]) -> Any:
        async with self.own.lock:
            return await _to_its_end(self.own.pgconn, self._close(statements))

    async def query(self, sql: str, arguments: Sequence[Any]) -> Any:
        return await (await self._cursor().execute(*self._spelled((sql, arguments)))).fetchone()

    async def alone(self, sql: str, arguments: Sequence[Any]) -> Any:
        async with self.own.lock:
            return await _to_its_end(self.own.pgconn, self._insist([(sql, arguments)], 0))

    async def interrupt(self) -> None:  # type: ignore[override]
        """Stops what the server is at: a task that is cancelled with each turn of the loop gets no such word out itself."""
        if self.own.pgconn.transaction_status == _ACTIVE:
            if hasattr(self.own, "cancel_safe"):
                await self.own.cancel_safe(timeout=5)
            else:
                self.own.cancel()

    async def rollback(self) -> Any:
        self._close_guard()
        try:
            if not self.idle():
                await self.own.rollback()
        except Exception:
            await self.own.close()

    async def close(self) -> Any:
        self._close_guard()
        await self.own.close()


async def _to_its_end(pgconn: Any, talk: Talk) -> Any:
    """As psycopg's wait, even if this task is cancelled: the cancellation is raised afterwards. It takes only futures with it, so no task of its own is
    needed. The socket is listened to between one cancellation and the next, which may come with each turn of the loop."""
    loop = asyncio.get_running_loop()
    cancelled: Optional[BaseException] = None
    heard = 0
    future: Any = None

    def hear(what: int) -> None:
        nonlocal heard
        heard |= what
        if not future.done():
            future.set_result(None)

    try:
        wanted = next(talk)
        while True:
            heard, future, socket = 0, loop.create_future(), pgconn.socket
            loop.add_reader(socket, hear, _READY_READ)
            if wanted & _WRITE:
                loop.add_writer(socket, hear, _READY_WRITE)
            timer = loop.call_later(_LOOK_S, hear, 0)
            try:
                while True:
                    try:
                        await future
                        break
                    except asyncio.CancelledError as again:
                        cancelled = again
                        if heard:
                            break
                        future = loop.create_future()
            finally:
                timer.cancel()
                loop.remove_reader(socket)
                if wanted & _WRITE:
                    loop.remove_writer(socket)
            wanted = talk.send(heard)
    except StopIteration as end:
        row = end.value
    except OSError as closed:
        raise cancelled or psycopg.OperationalError("the connection was closed") from closed
    except Exception:
        if cancelled is not None:
            raise cancelled from None
        raise
    if cancelled is not None:
        raise cancelled
    return row
