# SPDX-License-Identifier: PostgreSQL
"""Is the harness able to see what it looks for? Each mutation must be found broken within two minutes, by a rule that it breaks, and the
same plan without the mutation must be clean."""

import dataclasses
import os
import pathlib

from harness.nginx import BUILD

from . import citus, languages, mutations
from .run import Plan, run

FOUND_WITHIN_S = 120
SECONDS = 110
CLEAN_SECONDS = 20  # at least


def plan_of(mutation, plan):
    """The plan that brings a mutation out."""
    cache = pathlib.Path(os.environ.get("PGONCE_MUTANTS", BUILD / "mutants"))
    return dataclasses.replace(plan, mutation=mutation.prepared(BUILD, cache), broker=mutation.broker, faults=mutation.faults,
                               doors=mutation.doors, cache=mutation.cache, native=mutation.native, scale=mutation.scale, until=mutation.rules,
                               topology=mutation.topology)  # fmt: skip


def without(result):
    """The same plan under the unbroken system, for as long as the broken one took to be found."""
    took = round(result.figures.seconds) if result.history else SECONDS
    return dataclasses.replace(result.plan, mutation=None, until=None, seconds=min(SECONDS, max(CLEAN_SECONDS, took)))


def caught(mutation, seed):
    """Runs a mutation; (found, seconds from when the system had started, result)."""
    result = run(plan_of(mutation, Plan(seed, SECONDS)))
    seconds = result.figures.seconds if result.history else 0.0
    return bool(result.rules & set(mutation.rules)) and not result.problem and seconds <= FOUND_WITHIN_S, seconds, result


def main(seed, given, say):
    """All of them, or the one that --mutation names; the exit status. Without a name those of a client whose toolchain is missing are left out."""
    chosen = [mutations.MUTATIONS[given.mutation]] if given.mutation else list(mutations.MUTATIONS.values())
    failures = 0
    for mutation in chosen:
        if mutation.language and not given.mutation and not languages.is_here(mutation.language):
            say(f"left out {mutation.name}: the toolchain of {mutation.language} is not here")
            continue
        if mutation.topology == "citus" and citus.BINDIR is None:
            say(f"left out {mutation.name}: {citus.MISSING}")
            continue
        found, seconds, result = caught(mutation, seed)
        rules = ", ".join(sorted(result.rules)) or "nothing"
        say(f"{'found ' if found else 'MISSED'} {mutation.name:<26} in {seconds:5.0f} s by {rules}: {mutation.what}")
        clean = run(without(result), given.keep)
        say(f"{'clean ' if not clean.status else 'BROKEN'} without it, {clean.figures.attempts if clean.history else 0} attempts in {clean.seconds:.0f} s")
        if not found:
            say(result.text())
        if clean.status:
            say(clean.text())
        failures += (not found) + bool(clean.status)
    return 1 if failures else 0
