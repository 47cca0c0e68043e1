# SPDX-License-Identifier: PostgreSQL
"""The whole system under faults keeps its promises, with a new seed each time; and so does every run that once failed.
PGONCE_TORTURE_SEED repeats a run, PGONCE_TORTURE_BROKERS says with which brokers (nats,rabbitmq,kafka,sqs; without it nats), PGONCE_TORTURE_SECONDS
for how long each (without it 15). .ci/run asks for five minutes, with all of them."""

import os

import pytest

from harness import elasticmq, kafka

from .run import Plan, run
from .seeds import read_seeds

SECONDS = int(os.environ.get("PGONCE_TORTURE_SECONDS", "15"))
BROKERS = os.environ.get("PGONCE_TORTURE_BROKERS", "nats").split(",")


def held(plan, capfd):
    if plan.broker == "kafka":
        kafka.require()
    if plan.broker == "sqs":
        elasticmq.require()
    result = run(plan)
    with capfd.disabled():
        print("\n" + result.text())
    assert result.status == 0, result.text()
    figures = result.figures
    assert figures.verdicts["acknowledged"] > 0 and figures.effects > 0 and figures.applied > 0, "nothing happened"


@pytest.mark.parametrize("broker", BROKERS)
def test_under_faults_every_promise_holds(broker, capfd):
    held(Plan(int(os.environ["PGONCE_TORTURE_SEED"]), SECONDS, broker), capfd)


@pytest.mark.parametrize("plan", [pytest.param(plan, id=f"{plan.seed}-{plan.broker}") for plan in read_seeds()])
def test_what_once_failed_holds(plan, capfd):
    held(plan, capfd)


def test_while_slots_move_between_servers_every_promise_holds(capfd):
    result = run(Plan(int(os.environ["PGONCE_TORTURE_SEED"]), SECONDS, topology="servers"))
    with capfd.disabled():
        print("\n" + result.text())
    assert result.status == 0, result.text()
    assert result.history.of("moved"), "no slot moved"
    assert result.figures.verdicts["acknowledged"] > 0 and result.figures.effects > 0
