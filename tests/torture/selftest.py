# SPDX-License-Identifier: PostgreSQL
"""Is the harness able to see what it looks for? Each mutation must be found broken within two minutes, by a rule that it breaks, and the
same plan without the mutation must be clean."""

import dataclasses
import os
import pathlib
import time

from harness.nginx import BUILD

from . import mutations
from .run import Plan, run

SECONDS = 110
CLEAN_SECONDS = 60
SCALE = 3


def plan_of(mutation, plan):
    """The plan that brings a mutation out."""
    cache = pathlib.Path(os.environ.get("PGONCE_MUTANTS", BUILD / "mutants"))
    return dataclasses.replace(plan, mutation=mutation.prepared(BUILD, cache), broker=mutation.broker, faults=mutation.faults,
                               doors=mutation.doors, scale=SCALE, until=mutation.rules)  # fmt: skip


def without(plan):
    """The same under the unbroken system, for as long as it takes."""
    return dataclasses.replace(plan, mutation=None, until=None, seconds=CLEAN_SECONDS)


def caught(mutation, seed, say=print):
    """Runs a mutation; (found, seconds, result)."""
    plan = plan_of(mutation, Plan(seed, SECONDS))
    begun = time.monotonic()
    result = run(plan, None, say)
    return bool(result.rules & set(mutation.rules)) and not result.problem, time.monotonic() - begun, result


def main(seed, given, say):
    """All of them, or the one that --mutation names; the exit status."""
    chosen = [mutations.MUTATIONS[given.mutation]] if given.mutation else list(mutations.MUTATIONS.values())
    failures = 0
    for mutation in chosen:
        found, seconds, result = caught(mutation, seed, lambda text: None)
        rules = ", ".join(sorted(result.rules)) or "nothing"
        say(f"{'found ' if found else 'MISSED'} {mutation.name:<26} in {seconds:5.0f} s by {rules}: {mutation.what}")
        clean = run(without(plan_of(mutation, result.plan)), given.keep, lambda text: None)
        say(f"{'clean ' if not clean.status else 'BROKEN'} without it, {clean.figures.attempts if clean.history else 0} attempts in {clean.seconds:.0f} s")
        if not found:
            say(result.text())
        if clean.status:
            say(clean.text())
        failures += (not found) + bool(clean.status)
    return 1 if failures else 0
