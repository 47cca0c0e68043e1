# SPDX-License-Identifier: PostgreSQL
"""What the benchmarks measure is what was asked for, and they need no more than their tasks install."""

import json
import os
import re
import runpy
import signal
import subprocess
import sys
import time

import pytest

from harness.disk import SlowDisk
from harness.postgres import ROOT, Postgres

TASKS = {"bench": ("results", "native"), "bench-gateway": ("gateway", "gateway_native"), "bench-clients": ("clients", "clients_native")}
PROGRAMS = ("run", "gateway", "events", "keeper", "nodes", "console", "clients", "instructions")  # of the tasks that begin with `bench`
# As on a machine without pytest.
LOAD = "import runpy, sys; sys.path[0] = 'bench'; sys.modules.update(pytest=None, xdist=None); runpy.run_path(sys.argv[1], run_name='loaded')"


def measured(task, *settings):
    """The command that `make TASK` would run."""
    # Not what the `make` that runs this test was told.
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "NATIVE", "PG", "LANGUAGES", "FSYNC_MS", "QUICK", "ROUNDS", "SECONDS")}
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


@pytest.mark.parametrize("task", [*TASKS, "bench-events", "bench-keeper", "bench-nodes", "bench-console", "bench-instructions"])
def test_a_quick_run_has_a_file_that_no_page_takes(task):
    name = TASKS.get(task, (task.removeprefix("bench-"),))[0]
    assert "--quick" not in measured(task)
    command = measured(task, "QUICK=yes")
    assert "--quick" in command and f"--json bench/quick/{name}.json" in command


@pytest.mark.parametrize("task", [*TASKS, "bench-events", "bench-nodes"])
def test_a_benchmark_takes_as_long_as_it_is_told(task):
    command = measured(task, "ROUNDS=2", "SECONDS=3")
    assert "--rounds 2" in command and "--seconds 3" in command


@pytest.mark.parametrize("task", TASKS)
def test_a_slow_disk_has_a_file_of_its_own(task):
    for name, settings in zip(TASKS[task], ([], ["NATIVE=yes"])):
        assert "--fsync-ms" not in measured(task, *settings)
        command = measured(task, "FSYNC_MS=2", *settings)
        assert "--fsync-ms 2" in command and f"--json bench/{name}_fsync_2_ms.json" in command


def shortest_commit_ms(connection):
    def took():
        before = time.monotonic()
        connection.cursor().execute("INSERT INTO t VALUES (1)")
        return (time.monotonic() - before) * 1000

    return min(took() for _ in range(5))


def test_a_slow_disk_is_as_slow_as_it_says():
    with SlowDisk() as disk, Postgres(fsync=True, environment=disk.environment) as server:
        connection = server.connect()
        connection.cursor().execute("CREATE TABLE t (i int)")
        for ms in (0, 200, 0):  # while it runs
            disk.set(ms)
            assert (disk.probe(server.directory, 5) >= 200) == (shortest_commit_ms(connection) >= 200) == (ms == 200)
        connection.close()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_benchmark_needs_no_pytest(name):
    done = subprocess.run([sys.executable, "-c", LOAD, f"bench/{name}.py"], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]


# Three rounds of two ways, of which the second gets a signal in its second round.
INTERRUPTED = """
import argparse, os, runpy, sys
number, path = sys.argv[1:]
sys.path[0], sys.argv = "bench", ["bench/run.py"]
bench = runpy.run_path("bench/run.py", run_name="loaded")
place = []
def bare():
    if len(place) == 2:
        os.kill(os.getpid(), int(number))
    return {"per_second": 1000, "cpu_us": 1000}
options = argparse.Namespace(rounds=3, seconds=1, native=False, json=path)
ways = [("place/v7/16", lambda: place.append(0) or {"per_second": 900, "cpu_us": 1250}), ("seed000/v7/16", bare)]
sys.exit(bench["Run"](argparse.Namespace(trips={}, sync_ms=lambda: 0.1), options, {}).through(ways))
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_interrupted_run_prints_what_it_knows_and_keeps_it(tmp_path, name):
    number, path = signal.Signals[name], tmp_path / "results.json"
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, str(int(number)), path], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 128 + number, done.stderr[-2000:]
    told = done.stderr.splitlines()
    assert told[0].startswith("bench: round 1 of 3 is done after 0 s; of 1 goals 1 are met") and told[1] == "bench: interrupted after 1 of 3 rounds; the results so far:"
    assert re.search(r"^place/v7/16 +900$", done.stdout, re.M) and re.search(r"^of the pattern written by hand, with its event +>= 0.85 +0.90 +0.80  yes$", done.stdout, re.M)
    known = json.loads((tmp_path / "results.json.part").read_text())
    assert known["rounds"] == 1 and known["per_second"] == {"place/v7/16": [900, 900], "seed000/v7/16": [1000]} and not path.exists()


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


PLOTS = ROOT / "bench/plots.py"


def test_a_slow_disk_is_kept_beside_the_others_and_a_quick_run_is_not(tmp_path):
    take = runpy.run_path(str(PLOTS))["take"]
    take.__globals__["ROOT"] = tmp_path
    (tmp_path / "bench/quick").mkdir(parents=True)
    run = {"native": False, "cpus": 2, "measured": [], "goals": [{"what": "x"}]}
    for name, fsync_ms in (("gateway", 0), ("gateway_fsync_2_ms", 2.0), ("gateway_fsync_0.5_ms", 0.5), ("quick/clients", 0), ("other", 0)):
        (tmp_path / f"bench/{name}.json").write_text(json.dumps({**run, "fsync_ms": fsync_ms}))
    taken = take({"keeper": {"goals": []}}, "idle")
    assert set(taken) == {"keeper", "gateway", "gateway_fsync_2_ms", "gateway_fsync_0.5_ms"}
    assert taken["gateway_fsync_2_ms"] == {"cpus": 2, "measured": [], "goals": [{"what": "x"}], "note": "idle"} and "note" not in taken["keeper"]
    (tmp_path / "bench/gateway.json").write_text(json.dumps({**run, "fsync_ms": 2.0}))
    with pytest.raises(ValueError, match="bench/gateway.json was measured with a disk that is 2 ms slower"):
        take({}, None)


def test_a_goal_stands_with_its_limit_in_sql_and_in_c():
    plots = runpy.run_path(str(PLOTS))
    goal = {"what": "of bare", "goal": ">= 0.66", "measured": 0.625, "limit": 0.64, "met": False}
    more = {"what": "  one client", "goal": None, "measured": 12345.6, "met": None}
    measured = {"results": {"goals": [goal, more]}, "native": {"goals": [{**goal, "measured": 0.9, "met": True}]}, "results_fsync_2_ms": {"goals": [goal], "disk": "slow"}}
    assert plots["both"](measured, "results") == ["| of bare | >= 0.66 | 0.625 | 0.64 | no | >= 0.66 | 0.9 | 0.64 | yes |", "| of bare: one client |  | 12,346 |  |  |  |  |  |  |"]
    slow = plots["slow"](measured)
    assert slow[0] == "`make bench FSYNC_MS=2`: slow." and slow[-1] == "| of bare | >= 0.66 | 0.625 | 0.64 | no |  |  |  |  |"


def test_a_run_that_needs_no_cpus_and_one_that_left_something_out_are_listed():
    runs = runpy.run_path(str(PLOTS))["runs"]
    listed = runs({"instructions": {"postgresql": 15}, "clients_fsync_2_ms": {"cpus": 2, "note": "idle", "left_out": {"go": "missing |\nhere"}}})
    assert listed[2:] == ["| `make bench-instructions` |  | 15 |  |  |  |", "| `make bench-clients FSYNC_MS=2` | 2 |  |  | idle | go: missing here |"]


def test_a_page_without_the_marks_of_a_table_is_refused():
    filled = runpy.run_path(str(PLOTS))["filled"]
    page = "a\n<!-- x: made by bench/plots.py of bench/measured.json -->\nold\n<!-- end of x -->\nb\n"
    assert filled(page, {"x": ["new", "lines"]}) == page.replace("old", "new\nlines")
    with pytest.raises(ValueError, match="lacks the marks of y"):
        filled(page, {"y": ["new"]})
