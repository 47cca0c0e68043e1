# SPDX-License-Identifier: PostgreSQL
"""What the benchmarks measure is what was asked for, and they need no more than their tasks install."""

import json
import os
import runpy
import subprocess
import sys

import pytest

from harness.postgres import ROOT

TASKS = {"bench": ("results", "native"), "bench-gateway": ("gateway", "gateway_native"), "bench-clients": ("clients", "clients_native")}
PROGRAMS = ("run", "gateway", "events", "keeper", "clients")  # of the tasks that begin with `bench`
# As on a machine without pytest.
LOAD = "import runpy, sys; sys.path[0] = 'bench'; sys.modules.update(pytest=None, xdist=None); runpy.run_path(sys.argv[1], run_name='loaded')"


def measured(task, *settings):
    """The command that `make TASK` would run."""
    # Not what the `make` that runs this test was told.
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "NATIVE", "PG", "LANGUAGES")}
    done = subprocess.run(["make", "-n", "-C", ROOT, task, *settings], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    (command,) = [line for line in done.stdout.splitlines() if "bench/" in line]
    return command


@pytest.mark.parametrize("task", TASKS)
def test_a_benchmark_is_in_sql_unless_native_is_asked_for(task):
    sql, native = TASKS[task]
    for settings in ([], ["NATIVE=no"]):
        command = measured(task, *settings)
        assert "--native" not in command and f"--json bench/{sql}.json" in command
    command = measured(task, "NATIVE=yes")
    assert "--native" in command and f"--json bench/{native}.json" in command


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_benchmark_needs_no_pytest(name):
    done = subprocess.run([sys.executable, "-c", LOAD, f"bench/{name}.py"], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_run_is_not_taken_for_one_of_the_other_kind(tmp_path):
    take = runpy.run_path(str(ROOT / "bench/plots.py"))["take"]
    take.__globals__["ROOT"] = tmp_path
    (tmp_path / "bench").mkdir()
    for name in ("results", "gateway", "clients", "native", "gateway_native", "clients_native"):
        path = tmp_path / f"bench/{name}.json"
        path.write_text(json.dumps({"native": not name.endswith("native")}))
        with pytest.raises(ValueError, match=f"bench/{name}.json was measured"):
            take({}, None)
        path.unlink()
