# SPDX-License-Identifier: PostgreSQL
"""The whole system under faults keeps its promises: where CI=true with each broker, else a short run with one; and every run that once failed.
PGONCE_TORTURE_SEED repeats a run, PGONCE_TORTURE_SECONDS says how long each is."""

import os

import pytest

from .run import Plan, run
from .seeds import read_seeds

IN_CI = os.environ.get("CI") == "true"
BROKERS = ("nats", "rabbitmq", "kafka")
SECONDS = int(os.environ.get("PGONCE_TORTURE_SECONDS", 100 if IN_CI else 15))


def held(plan, capfd):
    result = run(plan)
    with capfd.disabled():
        print("\n" + result.text())
    assert result.status == 0, result.text()
    figures = result.figures
    assert figures.verdicts["acknowledged"] > 0 and figures.effects > 0 and figures.applied > 0, "nothing happened"


@pytest.mark.parametrize("broker", BROKERS if IN_CI else BROKERS[:1])
def test_under_faults_every_promise_holds(broker, capfd):
    held(Plan(int(os.environ["PGONCE_TORTURE_SEED"]), SECONDS, broker), capfd)


@pytest.mark.parametrize("plan", [pytest.param(plan, id=f"{plan.seed}-{plan.broker}") for plan in read_seeds()])
def test_what_once_failed_holds(plan, capfd):
    held(plan, capfd)
