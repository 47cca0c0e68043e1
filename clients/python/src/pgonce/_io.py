# SPDX-License-Identifier: PostgreSQL
"""Blocking or not: the one difference between the two doors.

What the client does is written once, as generators (_core.py, _gate.py). They yield what a driver's call gave: with a
blocking driver that is the value itself, with an asynchronous one something to await."""

from __future__ import annotations

import asyncio
from typing import Any, Awaitable, Coroutine, Generator, NamedTuple, Tuple, TypeVar

T = TypeVar("T")
Steps = Generator[Any, Any, T]


class Pause(NamedTuple):
    """Steps that yield one go on when they are told to: see `advance`."""

    value: Any


async def shielded(awaitable: Awaitable[Any]) -> Any:
    """Runs to its end even if this task is cancelled; the cancellation is raised afterwards."""
    task = asyncio.ensure_future(awaitable)
    cancelled: Any = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as again:
            cancelled = again
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # looked at, so that asyncio does not log it
        raise cancelled
    return task.result()


class _Rest:
    """A coroutine from where it first waited."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], awaited: Any) -> None:
        self.coroutine, self.awaited = coroutine, awaited

    def __await__(self) -> Generator[Any, Any, Any]:
        awaited = self.awaited
        try:
            while True:
                try:
                    value = yield awaited
                except BaseException as raised:
                    awaited = self.coroutine.throw(raised)
                else:
                    awaited = self.coroutine.send(value)
        except StopIteration as end:
            return end.value


async def finished(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """As shielded, for what waits seldom, and does not ask which task it is in: only from its first wait on it costs a task."""
    try:
        awaited = coroutine.send(None)
    except StopIteration as end:
        return end.value
    return await shielded(_Rest(coroutine, awaited))


def drive(steps: Steps[T]) -> T:
    try:
        value = next(steps)
        while True:
            value = steps.send(value)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def advance(steps: Steps[T], value: Any = None, raised: Any = None) -> Tuple[bool, Any]:
    """Continues with value, or with the exception: (False, the value of a Pause) or, at their end, (True, what they return)."""
    try:
        step = steps.send(value) if raised is None else steps.throw(raised)
        while True:
            if type(step) is Pause:
                return False, step.value
            try:
                value = await step if hasattr(step, "__await__") else step
            except BaseException as failed:
                step = steps.throw(failed)
            else:
                step = steps.send(value)
    except StopIteration as end:
        return True, end.value


async def drive_async(steps: Steps[T]) -> T:
    return (await advance(steps))[1]  # type: ignore[no-any-return]
