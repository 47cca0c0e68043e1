# SPDX-License-Identifier: PostgreSQL
"""The alerts as a file: promtool takes them, each fires and rests when it should (alerts_test*.yml), and each has its section in the
runbook, whose commands exist."""

import json
import re
import subprocess
import urllib.parse

import pytest
from cli.command import COMMANDS, PROGRAM
from harness.postgres import ROOT
from harness.prometheus import promtool

RULES = ROOT / "dashboards/alerts.yml"
CASES = [ROOT / "tests/dashboards" / name for name in ("alerts_test.yml", "alerts_test_days.yml")]
RUNBOOK = (ROOT / "docs/how/runbook.md").read_text()
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", RUNBOOK, re.M | re.S))


def alerts():
    """{name: its lines}."""
    blocks = re.split(r"^      - alert: ", RULES.read_text(), flags=re.M)[1:]
    return {block.split("\n", 1)[0]: block for block in blocks}


# Of the outbox, a relay or a consumer: what tells of work, to do or done, or is told better by another metric.
TELLS_OF_WORK = {
    "pgonce_outbox": {"pending", "delayed"},
    "pgonce_relay": {"delivered_total", "refused_total", "parked_total", "dead_total", "dead_copies_total", "left_out_total", "batches_total", "in_flight",
                     "last_batch_timestamp_seconds", "active", "connects_total"},
    "pgonce_consume": {"messages_total", "batches_total", "last_message_timestamp_seconds", "applied_total", "duplicates_total", "mismatches_total",
                       "parked_total", "active", "connects_total"},
}  # fmt: skip


@pytest.mark.parametrize("of", TELLS_OF_WORK)
def test_each_metric_that_means_that_somebody_must_act_has_an_alert(of):
    served = set(re.findall(rf"`{of}_(\w+)`", (ROOT / "docs/reference/metrics.md").read_text()))
    alarming = {name for name in served if re.search(rf"\b{of}_{name}\b", RULES.read_text())}
    assert served == alarming | TELLS_OF_WORK[of] and not alarming & TELLS_OF_WORK[of]


def test_promtool_takes_the_rules():
    status, said = promtool("check", "rules", RULES)
    assert status == 0 and f"{len(alerts())} rules found" in said, said


def test_each_alert_fires_and_rests_as_it_should():
    status, said = promtool("test", "rules", *CASES)
    assert status == 0, said


def test_each_alert_is_tried_firing_and_resting():
    tried = "".join(path.read_text() for path in CASES)
    cases = dict.fromkeys(alerts(), "")
    for name, rest in re.findall(r"alertname: (\w+)(.*?)(?=alertname:|\Z)", tried, re.S):
        cases[name] += "fires " if "exp_labels" in rest else "rests "
    for name, seen in cases.items():
        assert "fires" in seen and "rests" in seen, f"{name}: {seen}"


@pytest.mark.parametrize("name", alerts())
def test_each_alert_says_how_long_how_bad_and_where_to_read_on(name):
    text = alerts()[name]
    assert re.search(r"^        for: \d+[mhd]$", text, re.M)
    assert re.search(r"severity: (page|ticket)\}", text)
    assert re.search(r"summary: \"\S", text)
    (url,) = re.findall(r"runbook_url: (\S+)$", text, re.M)
    place = urllib.parse.urlsplit(url)  # nobody can open a relative one from a pager
    assert place.scheme and place.path.endswith("/share/doc/pgonce/docs/how/runbook.md") and place.fragment == name.lower()
    for part in ("**Means**", "**Look at**", "**Type**", "**Do not**"):
        assert part in SECTIONS[name], f"{name} has no {part}"


def test_the_runbook_has_no_section_of_an_alert_that_is_gone():
    assert set(SECTIONS) == set(alerts())
    for target in re.findall(r"\]\(#(\w+)\)", RUNBOOK):
        assert target in {name.lower() for name in alerts()}


def blocks():
    return "\n".join(re.findall(r"```sh\n(.*?)```", RUNBOOK, re.S) + re.findall(r"`(pgonce [^`]+)`", RUNBOOK))


def test_each_command_of_the_runbook_exists_with_its_options():
    named = re.findall(r"^pgonce (\S+)([^#\n]*)", blocks(), re.M)
    assert len(named) > 30
    for name, rest in named:
        assert name in COMMANDS
        help_text = subprocess.run([PROGRAM, "help", name], capture_output=True, text=True, check=True).stdout
        for option in re.findall(r"--[a-z-]+", re.sub(r"'[^']*'", "", rest)):
            assert re.search(rf"{option}\b", help_text), f"pgonce {name} has no {option}"


def test_each_function_and_table_of_the_runbook_exists(db):
    for name in set(re.findall(r"once\.(\w+)\(", RUNBOOK)):
        assert db.value("SELECT count(*) FROM pg_proc WHERE pronamespace = 'once'::regnamespace AND proname = %s", name), name
    for query in re.findall(r"psql -c ['\"](SELECT once\.add_days.*?|SELECT \* FROM once.*?|SELECT datname.*?|SELECT once.set_keeping.*?)['\"]\s", RUNBOOK):
        db.execute(query)


def test_each_check_of_doctor_that_the_runbook_quotes_exists(db):
    told = subprocess.run([PROGRAM, "doctor", "--json", "--dsn", db.dsn()], capture_output=True, text=True, check=False).stdout
    checks = {row["check"] for row in json.loads(told)["checks"]}
    quoted = set()
    for line in re.findall(r"pgonce doctor[^\n]*#([^\n]*)", RUNBOOK):
        quoted |= set(re.findall(r'"([^"]+)"', line))
    assert quoted and quoted <= checks, quoted - checks
