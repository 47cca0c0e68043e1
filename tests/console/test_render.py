# SPDX-License-Identifier: PostgreSQL
"""The C tests of the console's templates, plain and under the sanitizers; and that the program has every page, asset and statement."""
import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("PGONCE_BUILD", ROOT / "build"))
SANITIZED = pathlib.Path(os.environ.get("PGONCE_BUILD_SANITIZED", ROOT / "build-sanitized"))


@pytest.mark.parametrize("build", [BUILD, SANITIZED], ids=["plain", "sanitized"])
def test_the_c_tests_pass(build):
    environment = os.environ | {"ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0", "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1"}
    done = subprocess.run([str(build / "tests/console/test_render")], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-6000:]


def test_each_page_asset_and_statement_is_in_the_program():
    listed = set(re.findall(r"'((?:sql|pages|assets)/[^']+)'", (ROOT / "console/meson.build").read_text()))
    there = {str(path.relative_to(ROOT / "console")) for folder in ("sql", "pages", "assets") for path in (ROOT / "console" / folder).iterdir()}
    assert listed == there
