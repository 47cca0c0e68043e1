# SPDX-License-Identifier: PostgreSQL
"""The fuzz targets under the address and undefined-behaviour sanitizers, each with its corpus and then with what libFuzzer makes of it: for
PGONCE_FUZZ_SECONDS of a CPU (5 without it; 20 in .ci/run). conftest.py has started them."""

import json
import pathlib
import time

import pytest

from .conftest import AT_ONCE, SECONDS
from .run import HERE, TARGETS

# They run at the lowest priority: on a machine that is busy with other things for long this is how long they may take at the end.
PATIENCE_S = 600 + len(TARGETS) * (SECONDS + 30) * 4


def told_of(background, name):
    until = time.monotonic() + PATIENCE_S
    path = background.folder / f"{name}.json"
    while not path.exists():
        assert background.is_running() or path.exists(), (background.folder / "run.log").read_text(encoding="utf-8")
        assert time.monotonic() < until, f"{name} is not over yet, with {AT_ONCE} at once"
        time.sleep(0.2)
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_breaks_what_the_target_promises(fuzzing, name):
    told = told_of(fuzzing, name)
    print(f"{name}: {told['executed']} inputs in {told['cpu_s']} s of a CPU")
    assert told["returncode"] == 0, f"{told['text']}\ninputs: {told['inputs']}"
    assert told["cpu_s"] >= SECONDS - 1
    assert told["executed"] > len(list((HERE / "corpus" / name).iterdir()))


def test_each_target_has_a_corpus_and_each_corpus_a_target():
    assert {path.name for path in (HERE / "corpus").iterdir()} == set(TARGETS) == {path.stem[5:] for path in HERE.glob("fuzz_*.c")}
    assert all(list((HERE / "corpus" / name).iterdir()) for name in TARGETS)
