# SPDX-License-Identifier: PostgreSQL
"""What sinks with a thread of their own hold (relay/flight.h): its C tests, plain and under the sanitizers."""

import os
import pathlib
import subprocess

import pytest

from harness.postgres import PATIENCE_S, ROOT, clean_environment

BUILD = pathlib.Path(os.environ.get("PGONCE_BUILD", ROOT / "build"))
SANITIZED = pathlib.Path(os.environ.get("PGONCE_BUILD_SANITIZED", ROOT / "build-sanitized"))


@pytest.mark.parametrize("build", [BUILD, SANITIZED], ids=["plain", "sanitized"])
def test_the_c_tests_pass(build):
    done = subprocess.run(
        [build / "tests/relay/test_flight"], capture_output=True, text=True, check=False, timeout=PATIENCE_S, env=clean_environment()
    )
    assert done.returncode == 0, done.stdout + done.stderr
