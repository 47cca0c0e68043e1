# SPDX-License-Identifier: PostgreSQL
"""The C tests of consume/'s parts, plain and under the sanitizers."""
import os
import pathlib
import subprocess

import pytest

from harness.postgres import ROOT

BUILD = pathlib.Path(os.environ.get("PGONCE_BUILD", ROOT / "build"))
SANITIZED = pathlib.Path(os.environ.get("PGONCE_BUILD_SANITIZED", ROOT / "build-sanitized"))


@pytest.mark.parametrize("build", [BUILD, SANITIZED], ids=["plain", "sanitized"])
@pytest.mark.parametrize("name", ["identify", "kafka_start"])
def test_the_c_tests_pass(build, name):
    program = build / "tests/consume" / f"test_{name}"
    if name == "kafka_start" and not program.exists() and os.environ.get("CI") != "true":
        pytest.skip("it was built without librdkafka")
    done = subprocess.run([program], capture_output=True, text=True, timeout=120, check=False,
                          env=os.environ | {"ASAN_OPTIONS": "detect_leaks=1", "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1"})
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
