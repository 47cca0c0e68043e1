# SPDX-License-Identifier: PostgreSQL
"""Looks for less that still shows a violation: fewer kinds of faults, and a shorter time, under the same seed, by running again."""

import dataclasses
import time


def smaller(plan, kinds):
    """Plans that do less than this one, the most promising first."""
    if plan.seconds > 20:
        yield dataclasses.replace(plan, seconds=max(15, plan.seconds // 2))
    if len(kinds) > 1:
        half = len(kinds) // 2
        yield dataclasses.replace(plan, faults=tuple(kinds[:half]))
        yield dataclasses.replace(plan, faults=tuple(kinds[half:]))
        for left_out in kinds:
            yield dataclasses.replace(plan, faults=tuple(kind for kind in kinds if kind != left_out))


def shrink(plan, kinds, rule, run, minutes, say=print):
    """The smallest plan found that breaks the rule, within the time. kinds: those of the plan; run(plan) gives the rules that it broke."""
    deadline = time.monotonic() + 60 * minutes
    best, improved = plan, True
    while improved:
        improved = False
        for candidate in smaller(best, list(best.faults or kinds)):
            if time.monotonic() + candidate.seconds > deadline:
                return best
            broken = rule in run(candidate)
            say(f"shrink: {candidate.seconds} s, {', '.join(candidate.faults or ('all faults',))}: {'broken' if broken else 'holds'}")
            if broken:
                best, improved = candidate, True
                break
    return best
