# SPDX-License-Identifier: PostgreSQL
"""Django's connections."""

from __future__ import annotations

from typing import Any, Optional, Sequence

from django.db import connections, transaction

from . import _sql, errors
from ._control import Guard
from ._trouble import Statement, Trouble, interrupted, named, trouble_of


class Connection:
    """Django's own connection of this thread."""

    connects = False

    def __init__(self, using: str) -> None:
        self.using, self.tx = using, connections[using]
        self.atomic: Any = None
        self.guard: Optional[Guard] = None
        self.watching: Any = None
        self.raw: Any = None
        self.hooks = 0
        self.gone = False

    def trouble(self, raised: BaseException) -> Optional[Trouble]:
        cause = raised.__cause__ if type(raised).__module__ == "django.db.utils" else raised
        if isinstance(raised, transaction.TransactionManagementError):
            return Trouble(errors.SwallowedError.sqlstate, False)
        sqlstate = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
        database = self.tx.Database
        if not isinstance(cause, (database.Error, database.InterfaceError)):
            return None
        own = self.raw or self.tx.connection  # after a COMMIT that failed Django has connected anew
        found = trouble_of(sqlstate, None, own is None or bool(own.closed))
        self.gone = self.gone or found.lost
        return found

    def lost(self) -> bool:
        return self.gone

    def idle(self) -> bool:
        return not self.tx.in_atomic_block or self._is_tests()

    def in_transaction(self) -> bool:
        return bool(self.tx.in_atomic_block)

    def _is_tests(self) -> bool:
        """Of a TestCase, around each test."""
        return bool(self.tx.atomic_blocks) and bool(getattr(self.tx.atomic_blocks[-1], "_from_testcase", False))

    def ended(self) -> bool:
        return False  # only the server knows

    def undo(self) -> Any:
        self.tx.needs_rollback = False
        return self.query(_sql.ROLLBACK_TO_SAVEPOINT, ())

    def retire(self) -> None:
        """It is this thread's, and Django's to close."""

    def interrupt(self) -> None:
        interrupted(self.raw)

    def _open_guard(self) -> None:
        guard = self.guard = Guard()
        self.raw = self.tx.connection

        def checking(execute: Any, sql: Any, *given: Any) -> Any:
            guard.check(sql)
            return execute(sql, *given)

        self.watching = self.tx.execute_wrapper(checking)
        self.watching.__enter__()

    def _close_guard(self) -> None:
        if self.guard is not None:
            self.guard = None
            self.watching.__exit__(None, None, None)

    def query(self, sql: str, arguments: Sequence[Any]) -> Any:
        with self.tx.cursor() as cursor:
            if arguments:
                cursor.execute(_sql.spelled(sql, "%(p{})s"), named(arguments))
            else:
                cursor.execute(sql)
            return cursor.fetchone() if cursor.description else None

    def begin(self, statements: Sequence[Statement], keep: int) -> Any:
        if not self.idle():
            raise errors.UsageError("this request is inside a transaction already: put the middleware outside of it")
        self.atomic = transaction.atomic(using=self.using, durable=True)
        self.atomic.__enter__()
        self.hooks = len(self.tx.run_on_commit)
        row = [self.query(*each) for each in statements][keep]
        self._open_guard()
        return row

    def commit(self, statements: Sequence[Statement]) -> Any:
        self._close_guard()
        if statements[0][0] == _sql.ROLLBACK_TO_SAVEPOINT:
            self.tx.needs_rollback = False
            del self.tx.run_on_commit[self.hooks :]  # what they wait for is taken back
        elif self.tx.needs_rollback:  # atomic would roll back in silence
            raise errors.SwallowedError()
        row = [self.query(*each) for each in statements][-1]
        atomic, self.atomic = self.atomic, None
        atomic.__exit__(None, None, None)
        return row

    def alone(self, sql: str, arguments: Sequence[Any]) -> Any:
        return self.query(sql, arguments)

    def rollback(self) -> None:
        self._close_guard()
        atomic, self.atomic = self.atomic, None
        if atomic is not None:
            raised = errors.NotDone("rolled back")
            atomic.__exit__(type(raised), raised, None)

    def close(self) -> None:
        try:
            self.rollback()
        except Exception:
            pass
        self.tx.close()
