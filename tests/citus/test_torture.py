# SPDX-License-Identifier: PostgreSQL
"""A short run of the torture in a cluster, with a new seed each time (PGONCE_TORTURE_SEED repeats one): make torture TOPOLOGY=citus.
Seen to fail with the mutation no_anchor: make torture-selftest MUTATION=no_anchor."""

import os

import pytest
from torture.citus import BINDIR, MISSING
from torture.run import Plan, run

SECONDS = 15


@pytest.mark.skipif(BINDIR is None, reason=MISSING)
def test_while_slots_move_in_a_cluster_every_promise_holds(capfd):
    result = run(Plan(int(os.environ["PGONCE_TORTURE_SEED"]), SECONDS, topology="citus"))
    with capfd.disabled():
        print("\n" + result.text())
    assert result.status == 0, result.text()
    assert result.history.of("moved"), "no slot moved"
    assert result.figures.verdicts["acknowledged"] > 0 and result.facts["elsewhere"] > 0, "no effect was on another node than its memory"
