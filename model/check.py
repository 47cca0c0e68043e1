#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""Searches the model of the protocol with spin: every state of each configuration, and of each mutation until it is caught.

    model/check.py [--large] [NAME ...]     prints what was searched; 1 where something was found that should not be, or was not that should

A configuration is a file and what is defined for it; tests/model runs them all. docs/model.md explains the rest."""
import argparse
import dataclasses
import pathlib
import re
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
PATIENCE_S = 1800


@dataclasses.dataclass(frozen=True)
class Configuration:
    name: str
    says: str
    defines: str
    file: str = "intent.pml"
    ltl: str = ""  # a formula, searched with weak fairness; else the assertions, and that nothing gets stuck

    def flags(self):
        return [f"-D{define}" for define in self.defines.split()]


OUTSIDE = "UNFENCED=1 ON_STALE=in_doubt"
SMALL = (
    Configuration("transactions", "two attempts in the effect's transaction, at either isolation level", "TRANSACTIONS=2"),
    Configuration("collision", "two intents whose advisory lock is the same", "TRANSACTIONS=2 TRIES=1 KEYS=2 COLLISION"),
    Configuration("fenced", "leased attempts whose effect commits with once.complete; takeover", "LEASED=2 TRIES=1"),
    Configuration("outside", "leased attempts with an effect outside of the database; stale is in doubt", f"LEASED=2 TRIES=1 {OUTSIDE}"),
    Configuration("mixed", "attempts in a transaction beside leased ones; takeover", "TRANSACTIONS=1 LEASED=1"),
    Configuration("mixed_in_doubt", "the same with an effect outside; stale is in doubt", f"TRANSACTIONS=1 LEASED=1 TRIES=1 {OUTSIDE}"),
    Configuration("mixed_verify", "the same; a verify function is asked", "TRANSACTIONS=1 LEASED=1 TRIES=1 UNFENCED=1 ON_STALE=verify"),
    Configuration("verify", "leased attempts, an effect outside, a verify function, recovery", "LEASED=1 UNFENCED=1 ON_STALE=verify RECOVERY"),
    Configuration("used_up", "the same with a single attempt allowed", "LEASED=1 TRIES=3 UNFENCED=1 ON_STALE=verify MAX_ATTEMPTS=1 RECOVERY"),
    Configuration("operator", "an operator decides what is in doubt", f"LEASED=1 {OUTSIDE} OPERATOR"),
    Configuration("operator_takeover", "an operator decides beside takeovers and heartbeats", "LEASED=1 OPERATOR RENEW"),
    Configuration("recovery", "recovery puts stale intents in doubt", f"LEASED=1 {OUTSIDE} RECOVERY"),
    Configuration("handoff", "the gateway; a service that takes part by the hand-off", "GATEWAYS=1"),
    Configuration("naive", "the gateway; a service that knows nothing of it; stale is in doubt", f"GATEWAYS=1 {OUTSIDE}"),
    Configuration("retention", "a day is retired under attempts in transactions, and the clock leaps", "TRANSACTIONS=1 TRIES=1 RETENTION"),
    Configuration("retention_leased", "the same under leased attempts", "LEASED=1 TRIES=2 RETENTION"),
    Configuration("delivery", "two events, a relay, a broker, two consumers", "", "delivery.pml", "delivered"),
)
# What is searched by hand, with `make model`.
LARGE = (
    Configuration("transactions_3", "three attempts in the effect's transaction", "TRANSACTIONS=3"),
    Configuration("fenced_2_2", "leased attempts with one more try", "LEASED=2"),
    Configuration("delivery_faults", "events, and three faults", "FAULTS=3", "delivery.pml", "delivered"),
    Configuration("outside_2_2", "with an effect outside, and one more try", f"LEASED=2 {OUTSIDE}"),
    Configuration("gateways_2", "two requests through the gateway at once", "GATEWAYS=2 TRIES=1"),
    Configuration("retention_mixed", "a day is retired under attempts of both kinds", "TRANSACTIONS=1 LEASED=1 TRIES=1 RETENTION"),
)


@dataclasses.dataclass(frozen=True)
class Mutation:
    name: str
    defines: str
    caught_by: str  # in the violated assertion, or the formula
    file: str = "intent.pml"
    ltl: str = ""
    flags = Configuration.flags


MUTATIONS = (
    Mutation("no_advisory_lock", f"TRANSACTIONS=1 LEASED=1 TRIES=1 {OUTSIDE} NO_ADVISORY_LOCK", "effects"),
    Mutation("no_fence_check", f"LEASED=2 {OUTSIDE} NO_FENCE_CHECK", "effects"),
    Mutation("select_then_insert", "TRANSACTIONS=2 TRIES=1 SELECT_THEN_INSERT NO_ADVISORY_LOCK", "effects"),
    Mutation("completion_before_commit", "LEASED=1 COMPLETION_BEFORE_COMMIT", "effects"),
    Mutation("answer_before_store", f"GATEWAYS=1 {OUTSIDE} ANSWER_BEFORE_STORE", "row"),
    Mutation("relay_by_sequence", "RELAY_BY_SEQUENCE", "acceptance", "delivery.pml", "delivered"),
    Mutation("ack_before_commit", "ACK_BEFORE_COMMIT", "acceptance", "delivery.pml", "delivered"),
    Mutation("dishonest_verify", "LEASED=2 TRIES=1 UNFENCED=1 ON_STALE=verify DISHONEST_VERIFY=1", "effects"),
    Mutation("clock_read_twice", "TRANSACTIONS=1 TRIES=1 RETENTION CLOCK_READ_TWICE", "over"),
    Mutation("retention_by_wall_clock", "TRANSACTIONS=1 TRIES=1 RETENTION RETENTION_BY_WALL_CLOCK", "over"),
)


@dataclasses.dataclass
class Found:
    errors: int
    violated: str  # the assertion, or the kind of error
    states: int
    depth: int
    seconds: float
    unreached: dict  # by process, the lines that no state reached
    directory: pathlib.Path
    lines: list
    truncated: bool


def flatten(file):
    """One file without #include, so that a line number means one line; and which file and line each was."""
    text, origin = [], []
    for number, line in enumerate((HERE / file).read_text().split("\n"), 1):
        included = re.match(r'#include "([\w.]+)"', line)
        if included:
            more, where = flatten(included[1])
            text += more
            origin += where
        else:
            text.append(line)
            origin.append((file, number))
    return text, origin


def run(command, directory):
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def search(configuration, directory, shortest=False):
    """Everything that can happen in this configuration; until something is wrong, or with shortest until the shortest way to it is known."""
    directory = pathlib.Path(directory)
    text, origin = flatten(configuration.file)
    (directory / "model.pml").write_text("\n".join(text))
    made = run(["spin", *configuration.flags(), "-a", "model.pml"], directory)
    assert made.returncode == 0 and (directory / "pan.c").exists(), made.stdout + made.stderr
    options = ["-DNFAIR=3"] if configuration.ltl else ["-DSAFETY", "-DNOCLAIM"]
    built = run(["cc", "-O1", "-w", "-DVECTORSZ=2048", "-DCOLLAPSE", *options, *(["-DREACH"] if shortest else []), "-o", "pan", "pan.c"], directory)
    assert built.returncode == 0, built.stderr
    began = time.monotonic()
    found = run(["./pan", "-m1000000", "-w22", *(["-i"] if shortest else []), *(["-a", "-f", "-N", configuration.ltl] if configuration.ltl else [])], directory)
    return read(found.stdout + found.stderr, origin, time.monotonic() - began, directory)


def read(output, origin, seconds, directory):
    """What pan says."""
    summary = re.search(r"depth reached (\d+), errors: (\d+)\s+(\d+) states, stored", output)
    assert summary, output
    wrong = re.search(r"pan:\d+: (.*?) \(at depth", output)
    parts = re.split(r"unreached in (?:proctype|init|claim) ?", output)[1:]
    unreached = {}
    for part in parts:
        process = part.split()[0]
        if process.startswith("delivered") or process.startswith("answered"):
            continue
        for line, statement in re.findall(r"model\.pml:(\d+), state \d+, \"(.*)\"", part):
            if statement not in ("-end-", "(gone[me])") and not statement.startswith("assert"):
                unreached.setdefault(process, set()).add(origin[int(line) - 1])
    return Found(int(summary[2]), wrong[1] if wrong else "", int(summary[3]), int(summary[1]), seconds, unreached, directory, origin,
                 "search depth too small" in output or "out of memory" in output)  # fmt: skip


def never_reached(searched):
    """The steps, by process, that no search of these reached."""
    missed = {}
    for found in searched:
        for process, where in found.unreached.items():
            missed.setdefault(process, []).append(where)
    return {(process, *place) for process, all_of_them in missed.items() for place in set.intersection(*all_of_them)}


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--large", action="store_true", help="larger bounds: minutes, and some gigabytes of memory")
    arguments.add_argument("name", nargs="*")
    given = arguments.parse_args()
    wrong, searched = 0, []
    print(f"{'configuration':<24} {'states':>12} {'depth':>9} {'seconds':>8}  found")
    for each in (*SMALL, *(LARGE if given.large else ()), *MUTATIONS):
        if given.name and each.name not in given.name:
            continue
        with tempfile.TemporaryDirectory(prefix="pgonce-model-") as directory:
            found = search(each, directory)
        expected = getattr(each, "caught_by", "")
        held = not found.truncated and (expected in found.violated and found.errors > 0 if expected else found.errors == 0)
        wrong += not held
        if each in SMALL:
            searched.append(found)
        print(f"{each.name:<24} {found.states:>12,} {found.depth:>9,} {found.seconds:>8.1f}  {found.violated or 'nothing'}{'' if held else '   WRONG'}")
        sys.stdout.flush()
    if len(searched) == len(SMALL):
        missed = never_reached(searched)
        print(f"steps that no small configuration reaches: {len(missed)}")
        for step in sorted(missed):
            print(" ", *step)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
