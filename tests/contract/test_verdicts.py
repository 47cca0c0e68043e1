# SPDX-License-Identifier: PostgreSQL
"""spec/verdicts.json, from which libpgonce, the clients and the documents have the words of the contract."""

import json

import pytest

from harness.postgres import ROOT

from .calls import OTHER_PRINT, Once, code_of, let_lease_pass, uuid7_days_ago
from .test_batches import STATES
from .test_transitions import build

VERDICTS = json.loads((ROOT / "spec/verdicts.json").read_text())["verdicts"]
ERRORS = json.loads((ROOT / "spec/errors.json").read_text())["errors"]


def said_by(db):
    """(function, verdict) of each call of an intent in each state, under each policy; of batches and of reports."""
    said = set()
    for policy in ("on_stale => 'takeover'", "on_stale => 'in_doubt'"):
        db.execute(f"SELECT once.set_scope('orders', {policy})")
        for number, (state, stale) in enumerate(STATES):
            for function in ("start", "try_start", "claim", "peek", "claim_many", "peek_many", "mismatch"):
                key = f"{policy}{number}{function}"
                once = Once(db.connect())
                build(db, once, key, state, stale)
                if function == "mismatch":
                    said.add(("try_start", Once(db.connect(), fingerprint=OTHER_PRINT).try_start(key=key).verdict))
                    said.add(("claim_many", once.claim_many(key=[key], fingerprint=[OTHER_PRINT])[0].verdict))
                    continue
                rows = []
                call = getattr(once, function)
                code = code_of(lambda call=call, key=key, rows=rows, many=function.endswith("_many"): rows.extend(call(key=[key]) if many else [call(key=key)]))
                if code:  # start's other decisions, and none but they
                    assert function == "start" and code in {row["code"] for row in VERDICTS.values() if "code" in row}
                else:
                    said.add((function, rows[0].verdict))
    once = Once(db.connect())
    fence = once.claim(key="reported").fence
    for reported in (fence, fence, fence + 1):
        said.add(("complete_many", once.complete_many(key=["reported"], fence=[reported])[0].verdict))
    for function, more in (("complete_many", {"fence": [1]}), ("fail_many", {"fence": [1], "retryable": [True]}), ("claim_many", {}), ("peek_many", {})):
        said.add((function, getattr(once, function)(key=[""], **more)[0].verdict))
    fence = once.claim(key="failed").fence
    for reported in (fence, fence, fence + 1):
        said.add(("fail_many", once.fail_many(key=["failed"], fence=[reported], retryable=[False])[0].verdict))
    return said


def test_each_function_says_the_verdicts_that_are_written_down_and_no_others(db):
    said = said_by(db)
    old = uuid7_days_ago(db, 40)  # beyond the horizon
    once = Once(db.connect())
    for function in ("try_start", "claim", "peek"):
        said.add((function, getattr(once, function)(key=old).verdict))
    batches = {(function.removesuffix("_many"), verdict) for function, verdict in said if verdict in VERDICTS and function in ("claim_many", "peek_many")}
    single = {each for each in said if each[0] not in ("claim_many", "peek_many") or each[1] in ("mismatch", "invalid")}
    written = {(function, verdict) for verdict, row in VERDICTS.items() for function in row["says"]}
    assert single == written
    assert batches <= written | {("claim", "mismatch"), ("claim", "invalid"), ("peek", "invalid")}


@pytest.mark.parametrize("verdict", [verdict for verdict, row in VERDICTS.items() if row["then"]])
def test_a_verdict_that_refuses_has_the_error_and_the_problem_that_answer_it(verdict):
    row = VERDICTS[verdict]
    assert ("code" in row) == (row["then"] in ("fail", "wait", "refuse"))
    assert ("told" in row) == (row["then"] in ("run", "replay"))
    if "code" in row:
        assert ERRORS[row["code"]]["problem"] in json.loads((ROOT / "spec/problems.json").read_text())["problems"]
