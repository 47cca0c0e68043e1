# SPDX-License-Identifier: PostgreSQL
"""Blocking or not: the one difference between the two doors.

What the client does is written once, as generators (_core.py, _gate.py). They yield what a driver's call gave: with a
blocking driver that is the value itself, with an asynchronous one something to await."""

from __future__ import annotations

import asyncio
import inspect
import time
from typing import Any, Awaitable, Callable, Generator, TypeVar

T = TypeVar("T")
Steps = Generator[Any, Any, T]


class Blocking:
    """How a thread waits."""

    asynchronous = False

    @staticmethod
    def sleep(seconds: float) -> Any:
        time.sleep(seconds)

    @staticmethod
    def protect(call: Callable[[], Any]) -> Any:
        return call()


class Async:
    """How a task waits."""

    asynchronous = True

    @staticmethod
    def sleep(seconds: float) -> Any:
        return asyncio.sleep(seconds)

    @staticmethod
    def protect(call: Callable[[], Any]) -> Any:
        return shielded(call())


async def shielded(awaitable: Awaitable[Any]) -> Any:
    """Runs to its end whatever happens to this task; a cancellation is raised afterwards."""
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


def drive(steps: Steps[T]) -> T:
    try:
        value = next(steps)
        while True:
            value = steps.send(value)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def drive_async(steps: Steps[T]) -> T:
    try:
        step = next(steps)
        while True:
            try:
                value = await step if inspect.isawaitable(step) else step
            except BaseException as raised:
                step = steps.throw(raised)
            else:
                step = steps.send(value)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
