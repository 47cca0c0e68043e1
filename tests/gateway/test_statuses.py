# SPDX-License-Identifier: PostgreSQL
"""The table of docs/reference/gateway.md that says which answers are stored, released or in doubt has every status of HTTP, and is what the gateway does."""

import json
import re

import pytest

from harness.postgres import ROOT
from harness.upstream import Answer

from .door import assert_problem, assert_replays, new_key

CONFIG = """
    once required;
    once_scope pay;
    once_tenant $http_x_tenant;
    location /pay { proxy_pass http://app; }
    location /little { once_store 2xx; once_on_5xx release; proxy_pass http://app; }
    location /much { once_on_5xx store; proxy_pass http://app; }
"""
SECTION = (ROOT / "docs/reference/gateway.md").read_text().partition("## What is stored, released, or in doubt")[2].partition("\n## ")[0]
STATES = {"stored": "succeeded", "stored as a failure": "failed_final", "released": "failed_retryable", "in doubt": "in_doubt"}


def rows():
    """[(cell, the statuses that it names, the outcomes of its second cell: by default, then otherwise)]"""
    found = []
    for cell, outcome in re.findall(r"^\| ([^|]+) \| ([^|]+) \| [^|]+ \|$", SECTION, re.M)[1:]:
        if cell == "status" or cell.startswith("---"):
            continue
        named = {int(number) for number in re.findall(r"\b\d{3}\b", cell.partition(", also")[0])}
        if "and above" in cell:
            named = set(range(600, 1000))
        for hundred in re.findall(r"\b(\d)xx", cell):
            named |= set(range(int(hundred) * 100, int(hundred) * 100 + 100))
        if named == {101}:
            continue  # test_redirects.py::test_a_protocol_switch_passes_and_leaves_doubt
        found.append((cell, named, re.findall("stored as a failure|stored|released|in doubt", outcome)))
    return found


def row_of(status):
    """A row that names the status itself goes before one of its hundred."""
    return min((row for row in rows() if status in row[1]), key=lambda row: len(row[1]))


@pytest.mark.parametrize("cell, outcomes", [(cell, outcomes) for cell, _, outcomes in rows()])
def test_each_row_of_the_table_is_what_happens(door, cell, outcomes):
    """In a location as it is by default, and in others: what the table names comes, and nothing else."""
    statuses = [status for status in [*range(200, 602), 700, 999] if row_of(status)[0] == cell]
    assert statuses and outcomes
    seen = set()
    for status in statuses:
        for target in ("/pay", "/little", "/much"):
            key = new_key()
            door.upstream.script(key, Answer(status, body=b""), Answer())
            first = door.attempt(key, target)
            state = door.state(key)
            seen.add(state)
            assert first.status == status and state in {STATES[outcome] for outcome in outcomes}, (status, target)
            assert target != "/pay" or state == STATES[outcomes[0]], status
            assert_retry(door, key, target, first, state)
    assert seen == {STATES[outcome] for outcome in outcomes}


def assert_retry(door, key, target, first, state):
    if state in ("succeeded", "failed_final"):
        assert_replays(door, key, first, target)
    elif state == "in_doubt":
        assert_problem(door.attempt(key, target), 409, "in-doubt")
    else:
        again = door.attempt(key, target)
        assert again.status == 201 and not again.replayed and door.count(key) == 2


CASES = json.loads((ROOT / "spec/statuses.json").read_text())["cases"]


@pytest.mark.parametrize("case", [case for case in CASES if max(case["statuses"]) >= 200], ids=json.dumps)
def test_what_an_answer_says_of_its_effect_is_what_all_doors_take_it_for(door, case):
    states = {"stored": "succeeded", "refused": "failed_final", "released": "failed_retryable", "in_doubt": "in_doubt"}
    for status in case["statuses"]:
        if status < 200:
            continue  # nginx takes it for an interim answer; tests/http/test_decide.c has it
        key = new_key()
        said = (("Once-Effect", case["said"]),) if "said" in case else ()
        door.upstream.script(key, Answer(status, (*((name, "/1") for name in case.get("headers", ())), *said), body=b""))
        assert door.attempt(key, "/pay").status == status
        assert door.state(key) == states[case["elsewhere"]], status


def test_every_status_has_a_row():
    assert not [status for status in range(200, 1000) if not any(status in row[1] for row in rows())]
