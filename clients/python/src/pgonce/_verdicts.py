# SPDX-License-Identifier: PostgreSQL
"""What a verdict of the contract means: whether the work may run (then), what a span and a count call it (told), and with which error it is raised."""

from typing import NamedTuple, Optional


class Verdict(NamedTuple):
    then: str
    told: str
    sqlstate: Optional[str]


VERDICTS = {
    # spec: verdicts
    "proceed": Verdict("run", "proceed", None),
    "new_claim": Verdict("run", "proceed", None),
    "replay_success": Verdict("replay", "replay", None),
    "processing_active": Verdict("wait", "active", "P4029"),
    "processing_stale": Verdict("run", "proceed", None),
    "retryable_failure": Verdict("run", "proceed", None),
    "final_failure": Verdict("fail", "final_failure", "P4030"),
    "in_doubt": Verdict("refuse", "in_doubt", "P4031"),
    "expired": Verdict("refuse", "expired", "P4041"),
    "mismatch": Verdict("refuse", "mismatch", "P4002"),
    # end of spec
}


def may_run(verdict: str) -> bool:
    return verdict in VERDICTS and VERDICTS[verdict].then == "run"
