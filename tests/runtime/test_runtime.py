# SPDX-License-Identifier: PostgreSQL
"""The C tests of runtime/: the configuration file, which addresses are public, metrics, what a service manager is told; plain and under the sanitizers."""
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("PGONCE_BUILD", ROOT / "build"))
SANITIZED = pathlib.Path(os.environ.get("PGONCE_BUILD_SANITIZED", ROOT / "build-sanitized"))


@pytest.mark.parametrize("build", [BUILD, SANITIZED], ids=["plain", "sanitized"])
@pytest.mark.parametrize("name", ["address", "config", "metrics", "notify"])
def test_the_c_tests_pass(build, name):
    environment = os.environ | {"ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0", "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1"}
    done = subprocess.run([build / "tests/runtime" / f"test_{name}"], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-6000:]
