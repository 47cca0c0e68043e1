# SPDX-License-Identifier: PostgreSQL
"""The dashboard is made from the table in tools/dashboard.py."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys

import pytest
from harness.postgres import ROOT

spec = importlib.util.spec_from_file_location("dashboard", ROOT / "tools/dashboard.py")
dashboard = importlib.util.module_from_spec(spec)
spec.loader.exec_module(dashboard)


def test_the_committed_dashboard_is_what_the_table_makes():
    assert json.loads((ROOT / "dashboards/grafana.json").read_text()) == dashboard.dashboard()


def test_each_metric_of_a_panel_is_one_that_a_program_serves():
    made = dashboard.dashboard()
    assert len(set(re.findall(r"pgonce_\w+", json.dumps(made)))) > 20
    assert dashboard.unknown_metrics(made) == []


@pytest.mark.parametrize("old, new, word", [
    ("pgonce_xid_age{JOB}", "pgonce_xid_agee{JOB}", "pgonce_xid_agee"),
    ('"Transaction ids used"', '"Ids used"', "edit its table"),
])
def test_a_metric_that_nobody_serves_and_a_stale_dashboard_fail_the_check(tmp_path, old, new, word):
    for path in ("tools/dashboard.py", "dashboards/grafana.json", "docs/reference/metrics.md"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    tool = tmp_path / "tools/dashboard.py"

    def check():
        return subprocess.run([sys.executable, tool, "--check"], capture_output=True, text=True, check=False)

    assert check().returncode == 0
    assert tool.read_text().count(old) == 1
    tool.write_text(tool.read_text().replace(old, new))
    done = check()
    assert done.returncode == 1 and word in done.stderr


def test_panels_lie_side_by_side_and_never_on_each_other():
    taken = set()
    for panel in dashboard.dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert place["x"] + place["w"] <= dashboard.WIDTH and not cells & taken
        taken |= cells
    numbers = [panel["id"] for panel in dashboard.dashboard()["panels"]]
    assert len(set(numbers)) == len(numbers)
