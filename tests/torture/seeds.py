# SPDX-License-Identifier: PostgreSQL
"""The runs that once failed: seeds.txt, one a line (seed, seconds, broker, faults or all)."""

import pathlib

from .run import Plan

SEEDS_FILE = pathlib.Path(__file__).with_name("seeds.txt")


def read_seeds(path=SEEDS_FILE):
    """Plans."""
    plans = []
    for line in path.read_text(encoding="utf-8").splitlines():
        words = line.partition("#")[0].split()
        if words:
            seed, seconds, broker, faults = words
            plans.append(Plan(int(seed), int(seconds), broker, None if faults == "all" else tuple(faults.split(","))))
    return plans
