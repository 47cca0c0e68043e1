# SPDX-License-Identifier: PostgreSQL
"""What a verdict of the contract means: whether the work may run (then), what a span and a count call it (told), and with which error it is raised."""

from typing import NamedTuple, Optional


class Verdict(NamedTuple):
    then: str
    told: str
    sqlstate: Optional[str]


# spec: lost-claim
# The verdict of a claim whose reply was lost, if a look shows that this caller holds it. first: the intent has had one attempt, so no work began
# before; a released attempt is not counted. without_takeover: the claim takes over from no silent attempt, so the earlier ones had no effect.
# otherwise: it may have taken over from one.
LOST_FIRST = "new_claim"
LOST_WITHOUT_TAKEOVER = "retryable_failure"
LOST_OTHERWISE = "processing_stale"
# end of spec

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


def verdict_of_lost(attempts: int, takeover: Optional[bool]) -> str:
    """attempts: of the intent, as a look shows them. takeover: the option of the claim."""
    if attempts == 1:
        return LOST_FIRST
    return LOST_WITHOUT_TAKEOVER if takeover is False else LOST_OTHERWISE
