# SPDX-License-Identifier: PostgreSQL
"""libpgonce's C tests under valgrind, which sees what the sanitizers do not: values that were never set. No error, no leak. PGONCE_VALGRIND=all (make
test-valgrind) runs all that fit; without it those that are over in seconds."""
import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("PGONCE_BUILD", ROOT / "build"))
SHORT = ["json", "names", "batcher"]
# Not those in which each allocation fails in turn: thousands of rounds, under the sanitizers each time.
LONG = ["batcher_away", "batcher_loss", "batcher_server", "contract", "trace", "execute", "pipeline"]
LEAKS = "definite,indirect,possible"
PATIENCE_S = 1200


@pytest.mark.skipif(os.environ.get("PGONCE_SANITIZED") == "yes", reason="a sanitized program does not run under valgrind")
@pytest.mark.parametrize("name", SHORT + (LONG if os.environ.get("PGONCE_VALGRIND") == "all" else []))
def test_the_c_tests_have_no_error_under_valgrind(request, name):
    assert shutil.which("valgrind"), "run tools/setup.sh"
    environment = os.environ | {"PGOPTIONS": "-c client_min_messages=warning"}
    if name in ("contract", "trace", "execute", "pipeline"):
        environment["PGONCE_TEST_DSN"] = request.getfixturevalue("db").dsn()
    command = ["valgrind", "--quiet", "--leak-check=full", f"--show-leak-kinds={LEAKS}", f"--errors-for-leak-kinds={LEAKS}", "--error-exitcode=99",
               BUILD / f"tests/lib/test_{name}"]  # fmt: skip
    done = subprocess.run([str(word) for word in command], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=PATIENCE_S, check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:]
