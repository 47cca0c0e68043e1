# SPDX-License-Identifier: PostgreSQL
"""What ends an attempt of a blocking handler that takes too long: no thread can be ended from outside, but its transaction can. One thread watches all."""

from __future__ import annotations

import heapq
import itertools
import os
import threading
import time
from typing import Any, Callable, List, Optional, Tuple


def _nothing() -> None:
    pass


class Limit:
    """`with Limit(seconds, end) as limit`: end() is called, in another thread, where the body takes longer; then limit.passed."""

    def __init__(self, seconds: float, end: Callable[[], Any]) -> None:
        self.at, self.end = time.monotonic() + seconds, end
        self.passed = self.over = False
        self.lock = threading.Lock()

    def __enter__(self) -> "Limit":
        _watcher().add(self)
        return self

    def __exit__(self, *_: Any) -> None:
        with self.lock:  # an end that has begun is waited for
            self.over, self.end = True, _nothing

    def pass_(self) -> None:
        with self.lock:
            if not self.over:
                self.passed = True
                self.end()


class _Watcher:
    def __init__(self) -> None:
        self.pid = os.getpid()
        self.changed = threading.Condition()
        self.limits: List[Tuple[float, int, Limit]] = []
        self.numbers = itertools.count()
        threading.Thread(target=self._watch, name="pgonce-limits", daemon=True).start()

    def add(self, limit: Limit) -> None:
        with self.changed:
            heapq.heappush(self.limits, (limit.at, next(self.numbers), limit))
            if self.limits[0][2] is limit:
                self.changed.notify()

    def _next(self) -> Limit:
        with self.changed:
            while True:
                while self.limits and self.limits[0][2].over:
                    heapq.heappop(self.limits)
                wait = self.limits[0][0] - time.monotonic() if self.limits else None
                if wait is not None and wait <= 0:
                    return heapq.heappop(self.limits)[2]
                self.changed.wait(wait)

    def _watch(self) -> None:
        while True:
            # In a separate thread: a database that does not answer would block it for seconds, and the next lease would wait.
            threading.Thread(target=self._next().pass_, name="pgonce-limit", daemon=True).start()


_one: Optional[_Watcher] = None
_making = threading.Lock()


def _watcher() -> _Watcher:
    """A forked process does not have its parent's threads."""
    global _one
    if _one is None or _one.pid != os.getpid():
        with _making:
            if _one is None or _one.pid != os.getpid():
                _one = _Watcher()
    return _one
