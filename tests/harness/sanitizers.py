# SPDX-License-Identifier: PostgreSQL
"""The whole suite on sanitized programs (make test-sanitized, make test-threads): whatever a sanitizer reports during a test fails that test, in
whichever process it was, and whether or not anybody looked at how that process ended."""

import os
import pathlib
import shutil
import tempfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Reports:
    """All sanitizers write to files of one folder, which every test's processes inherit by the environment."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="pgonce-sanitizer-"))
        self.folder.chmod(0o777)  # some run as another user
        path = f"log_path={self.folder}/report"
        os.environ["ASAN_OPTIONS"] = f"detect_leaks=1:{path}"
        os.environ["UBSAN_OPTIONS"] = f"print_stacktrace=1:{path}"
        os.environ["LSAN_OPTIONS"] = f"suppressions={ROOT}/tests/leaks.supp:print_suppressions=0"
        os.environ["TSAN_OPTIONS"] = f"suppressions={ROOT}/tests/threads.supp:print_suppressions=0:exitcode=0:second_deadlock_stack=1:{path}"

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_teardown(self, item):
        yield
        reports = sorted(self.folder.glob("report.*"))
        texts = [path.read_text(encoding="utf-8", errors="replace") for path in reports]
        for path in reports:
            path.unlink()
        assert not texts, "\n".join(text[:8000] for text in texts)

    def pytest_unconfigure(self):
        shutil.rmtree(self.folder, ignore_errors=True)
