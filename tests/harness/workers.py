# SPDX-License-Identifier: PostgreSQL
"""What keeps the workers of one run (pytest-xdist) out of each other's way."""

import fcntl
import os
import pathlib
import tempfile

import pytest


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
    """A test marked `alone` waits until no other runs, and none begins before it has ended: what it measures is not its neighbour's load.
    Who wants to begin passes the gate first, so that the one that waits for all others is not passed by them."""

    def __init__(self):
        self.gate = self.room = None
        if "PYTEST_XDIST_WORKER" in os.environ:
            self.gate, self.room = Lock("gate"), Lock("room")

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item):
        if self.room is None:
            yield
            return
        self.gate.alone()
        if item.get_closest_marker("alone"):
            self.room.alone()
        else:
            self.room.shared()
        self.gate.free()
        try:
            yield
        finally:
            self.room.free()

    def pytest_unconfigure(self):
        if self.room is not None:
            self.gate.remove()
            self.room.remove()
