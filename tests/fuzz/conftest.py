# SPDX-License-Identifier: PostgreSQL
"""The targets start when the tests have been collected, and run beside all of them; the tests of this folder come after all but those that measure time,
and only look at what became of them. So a minute each, as .ci/run asks for, costs the run what nobody else wanted of the machine."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import pytest

HERE = pathlib.Path(__file__).resolve().parent
SECONDS = float(os.environ.get("PGONCE_FUZZ_SECONDS", "5"))
AT_ONCE = os.environ.get("PGONCE_FUZZ_AT_ONCE", "2")


class Background:
    """run.py and its folder, known to all workers of the run. It ends with the run at the latest: it watches the run's first process."""

    def __init__(self):
        worker = os.environ.get("PYTEST_XDIST_WORKER")
        self.starts = worker in (None, "gw0")
        self.parent = os.getpid() if worker is None else os.getppid()
        self.folder = pathlib.Path(tempfile.gettempdir()) / f"pgonce-fuzz-{os.environ.get('PYTEST_XDIST_TESTRUNUID', self.parent)}"
        self.process_file = self.folder / "process"

    def start(self):
        self.folder.mkdir(exist_ok=True)
        command = [sys.executable, HERE / "run.py", self.folder, str(SECONDS), AT_ONCE, str(self.parent)]
        with open(self.folder / "run.log", "w", encoding="utf-8") as log:
            process = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        self.process_file.write_text(str(process.pid), encoding="ascii")

    def is_running(self):
        try:
            stat = pathlib.Path(f"/proc/{self.process_file.read_text(encoding='ascii')}/stat").read_text(encoding="ascii")
        except OSError:
            return False
        return stat.rsplit(")", 1)[1].split()[0] != "Z"

    def end(self):
        """Of the worker that has looked at all of it."""
        try:
            os.kill(int(self.process_file.read_text(encoding="ascii")), 15)
        except (OSError, ValueError):
            pass
        shutil.rmtree(self.folder, ignore_errors=True)


background = Background()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    chosen = [item for item in items if item.path.parent == HERE and "fuzzing" in getattr(item, "fixturenames", ())]
    alone = [item for item in items if item.get_closest_marker("alone")]
    others = set(chosen) | set(alone)
    items[:] = [item for item in items if item not in others] + chosen + alone
    if chosen and background.starts and not config.option.collectonly:
        background.start()


@pytest.fixture(scope="session")
def fuzzing():
    yield background
    background.end()
