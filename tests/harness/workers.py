# SPDX-License-Identifier: PostgreSQL
"""What keeps the workers of one run (pytest-xdist) out of each other's way."""

import fcntl
import os
import pathlib
import tempfile
from collections import OrderedDict

import pytest
from xdist.scheduler import LoadGroupScheduling


class Lock:
    """Of the run's workers; freed by the kernel where a worker dies."""

    def __init__(self, name):
        self.file = open(pathlib.Path(tempfile.gettempdir()) / f"pgonce-{os.environ['PYTEST_XDIST_TESTRUNUID']}-{name}", "w", encoding="utf-8")

    def shared(self):
        fcntl.flock(self.file, fcntl.LOCK_SH)

    def alone(self):
        fcntl.flock(self.file, fcntl.LOCK_EX)

    def free(self):
        fcntl.flock(self.file, fcntl.LOCK_UN)

    def remove(self):
        self.file.close()
        pathlib.Path(self.file.name).unlink(missing_ok=True)


class Turns:
    """A test marked `alone` waits until none of the others runs: what it measures is not its neighbour's load. They come last (tests/conftest.py), and
    beside each other, since they wait and hardly compute."""

    def __init__(self):
        self.room = Lock("room") if "PYTEST_XDIST_WORKER" in os.environ else None

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item):
        if self.room is None:
            yield
            return
        if item.get_closest_marker("alone"):
            self.room.alone()
            self.room.free()
            yield
            return
        self.room.shared()
        try:
            yield
        finally:
            self.room.free()

    def pytest_unconfigure(self):
        if self.room is not None:
            self.room.remove()


class InOrder(LoadGroupScheduling):
    """Hands out groups in the order that tests/conftest.py put them in: newer versions of xdist begin with those of the most tests, and what takes
    long would come last."""

    ordered = False

    def _assign_work_unit(self, node):
        if not self.ordered:
            self.ordered = True
            place = {test: number for number, test in enumerate(self.collection)}
            self.workqueue = OrderedDict(sorted(self.workqueue.items(), key=lambda group: place[next(iter(group[1]))]))
        super()._assign_work_unit(node)
