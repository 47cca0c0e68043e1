#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""Searches the model of the protocol with spin: every state of each configuration for a violated assertion, every run of some for one that is
not as a formula says, and each mutation until an assertion, and a formula, has caught it.

    model/check.py [--large] [NAME ...]     prints what was searched; 1 where something was found that should not be, or was not that should

A configuration is a file and what is defined for it; tests/model runs them all. model/README.md explains the rest."""
import argparse
import dataclasses
import pathlib
import re
import resource
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
PATIENCE_S = 1800


@dataclasses.dataclass(frozen=True)
class Configuration:
    name: str
    says: str
    defines: str
    file: str = "intent.pml"

    def flags(self):
        return [f"-D{define}" for define in self.defines.split()]


OUTSIDE = "UNFENCED=1"  # a stale intent is in doubt, as by default
TAKEOVER = "ON_STALE=takeover"
SMALL = (
    Configuration("transactions", "two attempts in the effect's transaction, at either isolation level", "TRANSACTIONS=2"),
    Configuration("collision", "two intents whose advisory lock is the same", "TRANSACTIONS=2 TRIES=1 KEYS=2 COLLISION"),
    Configuration("fenced", "leased attempts whose effect commits with once.complete; takeover", f"LEASED=2 TRIES=1 {TAKEOVER}"),
    Configuration("outside", "leased attempts with an effect outside of the database; stale is in doubt", f"LEASED=2 TRIES=1 {OUTSIDE}"),
    Configuration("mixed", "attempts in a transaction beside leased ones; takeover", f"TRANSACTIONS=1 LEASED=1 {TAKEOVER}"),
    Configuration("mixed_in_doubt", "the same with an effect outside; stale is in doubt", f"TRANSACTIONS=1 LEASED=1 TRIES=1 {OUTSIDE}"),
    Configuration("mixed_verify", "the same; a verify function is asked", "TRANSACTIONS=1 LEASED=1 TRIES=1 UNFENCED=1 ON_STALE=verify"),
    Configuration("verify", "leased attempts, an effect outside, a verify function, recovery", "LEASED=1 UNFENCED=1 ON_STALE=verify RECOVERY"),
    Configuration("used_up", "the same with a single attempt allowed", "LEASED=1 TRIES=3 UNFENCED=1 ON_STALE=verify MAX_ATTEMPTS=1 RECOVERY"),
    Configuration("doubts", "the same, and the verify function is asked about what is in doubt", "LEASED=1 UNFENCED=1 ON_STALE=verify RECOVERY ASK_DOUBTS"),
    Configuration("doubts_used_up", "the same with a single attempt allowed",
                  "LEASED=1 TRIES=3 UNFENCED=1 ON_STALE=verify MAX_ATTEMPTS=1 RECOVERY ASK_DOUBTS"),
    Configuration("operator", "an operator decides what is in doubt", f"LEASED=1 {OUTSIDE} OPERATOR"),
    Configuration("operator_takeover", "an operator decides beside takeovers and heartbeats", f"LEASED=1 {TAKEOVER} OPERATOR RENEW"),
    Configuration("recovery", "recovery puts stale intents in doubt", f"LEASED=1 {OUTSIDE} RECOVERY"),
    Configuration("handoff", "the gateway; a service that takes part by the hand-off", "GATEWAYS=1"),
    Configuration("handoff_retry", "the same with once_in_doubt retry, which takes over", f"GATEWAYS=1 {TAKEOVER}"),
    Configuration("naive", "the gateway; a service that knows nothing of it; stale is in doubt", f"GATEWAYS=1 {OUTSIDE}"),
    Configuration("retention", "a day is retired under attempts in transactions, and the clock leaps", "TRANSACTIONS=1 TRIES=1 RETENTION"),
    Configuration("retention_leased", "the same under leased attempts; takeover", f"LEASED=1 TRIES=2 {TAKEOVER} RETENTION"),
    Configuration("retention_replay", "attempts in transactions that ask again, also in an old snapshot", "TRANSACTIONS=1 TRIES=2 RETENTION"),
    Configuration("delivery", "two events, on a day that is there or is made by them, a relay, a broker, two consumers", "", "delivery.pml"),
    Configuration("nodes", "a slot moves to another node under attempts in transactions", "TRIES=2", "nodes.pml"),
    Configuration("nodes_leased", "the same, and leased attempts", "LEASED=1", "nodes.pml"),
    Configuration("nodes_elsewhere", "the same with the effect on another node than the memory", "ELSEWHERE=1", "nodes.pml"),
    Configuration("nodes_killed", "a slot moves, and the command is killed twice", "KILLS=2", "nodes.pml"),
    Configuration("nodes_arrive", "the same, and failures that cease", "FAULTS=2", "nodes.pml"),
    Configuration("recovery_ends", "recovery, and failures that cease", f"LEASED=1 {OUTSIDE} RECOVERY FAULTS=2"),
    Configuration("verify_ends", "the same with a verify function", "LEASED=1 UNFENCED=1 ON_STALE=verify RECOVERY FAULTS=2"),
    Configuration("used_up_ends", "the same with a single attempt allowed", "LEASED=1 UNFENCED=1 ON_STALE=verify MAX_ATTEMPTS=1 RECOVERY FAULTS=2"),
)
# What is searched by hand, with `make model`.
LARGE = (
    Configuration("transactions_2_3", "one more try in the effect's transaction", "TRANSACTIONS=2 TRIES=3"),
    Configuration("transactions_3", "three attempts in the effect's transaction, and two failures", "TRANSACTIONS=3 TRIES=1 FAULTS=2"),
    Configuration("fenced_2_3", "leased attempts with two more tries", f"LEASED=2 TRIES=3 {TAKEOVER}"),
    Configuration("outside_2_2", "with an effect outside, and one more try", f"LEASED=2 {OUTSIDE}"),
    Configuration("gateways_2", "two requests through the gateway at once, and two failures", f"GATEWAYS=2 TRIES=1 {TAKEOVER} FAULTS=2"),
    Configuration("delivery_faults", "events, and three faults", "FAULTS=3", "delivery.pml"),
    Configuration("nodes_2", "a slot moves there and back", "TRIES=2 MOVES=2", "nodes.pml"),
    Configuration("nodes_leased_2", "a slot moves under leased attempts, one of them with another try", "LEASED=1 TRIES=2", "nodes.pml"),
    Configuration("nodes_leased_elsewhere", "and with the effect on another node than the memory", "LEASED=1 ELSEWHERE=1", "nodes.pml"),
    Configuration("retention_mixed", "a day is retired under attempts of both kinds, and a failure", f"TRANSACTIONS=1 LEASED=1 TRIES=1 {TAKEOVER} RETENTION FAULTS=1"),
)


@dataclasses.dataclass(frozen=True)
class Mutation:
    name: str
    defines: str
    caught_by: str = ""  # in the violated assertion; nothing where only a formula sees it
    file: str = "intent.pml"
    flags = Configuration.flags


MUTATIONS = (
    Mutation("no_advisory_lock", f"TRANSACTIONS=1 LEASED=1 TRIES=1 {OUTSIDE} NO_ADVISORY_LOCK", "effects"),
    Mutation("no_fence_check", f"LEASED=2 {OUTSIDE} NO_FENCE_CHECK", "effects"),
    Mutation("select_then_insert", "TRANSACTIONS=2 TRIES=1 SELECT_THEN_INSERT NO_ADVISORY_LOCK", "effects"),
    Mutation("completion_before_commit", f"LEASED=1 {TAKEOVER} COMPLETION_BEFORE_COMMIT", "effects"),
    Mutation("answer_before_store", f"GATEWAYS=1 {OUTSIDE} ANSWER_BEFORE_STORE", "row"),
    Mutation("relay_by_sequence", "RELAY_BY_SEQUENCE", file="delivery.pml"),
    Mutation("ack_before_commit", "ACK_BEFORE_COMMIT", file="delivery.pml"),
    Mutation("relay_does_not_wait", "RELAY_DOES_NOT_WAIT", file="delivery.pml"),
    Mutation("retention_by_wall_clock", "TRANSACTIONS=1 TRIES=1 RETENTION RETENTION_BY_WALL_CLOCK", "over"),
    Mutation("no_guard", "NO_GUARD", "shut", "nodes.pml"),
    Mutation("open_before_copied", "OPEN_BEFORE_COPIED", "effects", "nodes.pml"),
    # and what the torture harness does not take out
    Mutation("dishonest_verify", "LEASED=2 TRIES=1 UNFENCED=1 ON_STALE=verify DISHONEST_VERIFY=1", "effects"),
    Mutation("clock_read_twice", "TRANSACTIONS=1 TRIES=1 RETENTION CLOCK_READ_TWICE", "over"),
    Mutation("late_is_new", "TRANSACTIONS=1 TRIES=2 RETENTION LATE_IS_NEW", "forgotten"),
    Mutation("silence_is_failure", f"GATEWAYS=1 {OUTSIDE} SILENCE_IS_FAILURE", "effect_body"),
    Mutation("no_recovery", f"LEASED=1 {OUTSIDE} FAULTS=1"),
    Mutation("old_snapshot", "TRANSACTIONS=1 TRIES=2 RETENTION OLD_SNAPSHOT", "to_be_found"),
    Mutation("failure_unasked", "TRANSACTIONS=2 TRIES=1 FAILURE_UNASKED", "row"),
    Mutation("effect_in_store", "TRANSACTIONS=1 TRIES=1 EFFECT_IN_STORE", "effects"),
    Mutation("copy_before_closed", "COPY_BEFORE_CLOSED", "effects", "nodes.pml"),
    Mutation("close_does_not_wait", "CLOSE_DOES_NOT_WAIT", "effects", "nodes.pml"),
    Mutation("open_before_close_commits", "OPEN_BEFORE_CLOSE_COMMITS", "effects", "nodes.pml"),
    Mutation("no_hand_over", "NO_HAND_OVER", "opening", "nodes.pml"),
    Mutation("delete_before_open", "DELETE_BEFORE_OPEN", "opened", "nodes.pml"),
    Mutation("lower_fence_floor", "LEASED=1 TRIES=2 LOWER_FENCE_FLOOR", "granted", "nodes.pml"),
    Mutation("one_phase_commit", "ELSEWHERE=1 ONE_PHASE_COMMIT", "effects", "nodes.pml"),
    Mutation("not_run_again", "NOT_RUN_AGAIN FAULTS=1", file="nodes.pml"),
)


@dataclasses.dataclass(frozen=True)
class Formula:
    name: str  # ltl NAME { ... } in the model
    property: str  # of design.md, section 7
    within: str  # the configurations in which it is searched
    broken_by: str  # the mutations that it is seen to fail by, with every assertion left out
    live: bool = False  # that something happens in the end: searched for endless runs, with weak fairness


FORMULAS = (
    Formula("once", "1", "transactions collision fenced outside mixed_in_doubt", "no_advisory_lock dishonest_verify"),
    Formula("lasting", "1", "transactions fenced mixed_verify used_up operator", "completion_before_commit"),
    Formula("barren", "1", "transactions mixed_verify used_up operator", "no_fence_check dishonest_verify"),
    Formula("kept", "2", "fenced mixed handoff handoff_retry naive retention retention_replay", "answer_before_store"),
    Formula("same", "2", "transactions handoff handoff_retry naive", "select_then_insert"),
    Formula("undone", "5", "outside handoff handoff_retry naive", "silence_is_failure"),
    Formula("unguessed", "5", "mixed_in_doubt mixed_verify operator recovery used_up doubts_used_up naive", "no_fence_check completion_before_commit"),
    Formula("ends", "5", "recovery_ends verify_ends used_up_ends", "no_recovery", live=True),
    Formula("closed", "7", "retention retention_leased retention_replay", "late_is_new"),
    Formula("spent", "7", "retention retention_leased retention_replay", "late_is_new"),
    Formula("owed", "7", "retention retention_leased retention_replay", "retention_by_wall_clock clock_read_twice"),
    Formula("single", "1, nodes", "nodes nodes_leased", "no_guard open_before_copied copy_before_closed"),
    Formula("alone", "nodes", "nodes_killed", "open_before_close_commits no_hand_over"),
    Formula("together", "nodes", "nodes_elsewhere", "one_phase_commit delete_before_open"),
    Formula("arrives", "nodes", "nodes_arrive", "not_run_again", live=True),
    Formula("delivered", "3, 4", "delivery delivery_faults", "relay_by_sequence ack_before_commit relay_does_not_wait", live=True),
)


@dataclasses.dataclass
class Found:
    errors: int
    violated: str  # the assertion, or the kind of error
    states: int
    depth: int
    seconds: float  # of a CPU
    megabytes: float
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


# How a search is compiled, and run.
ASSERTIONS = ["-DSAFETY", "-DNOCLAIM"], []
NEVER_WRONG = ["-DSAFETY"], ["-N"]
IN_THE_END = ["-DNFAIR=4"], ["-a", "-f", "-N"]


def search(configuration, directory, formulas=(), alone=False, shortest=False):
    """Everything that can happen in this configuration; until something is wrong, or with shortest until the shortest way to it is known. What is
    asked of it is its assertions, and that nothing gets stuck; or each of the formulas, all of one kind, and alone without the assertions."""
    directory = pathlib.Path(directory)
    text, origin = flatten(configuration.file)
    (directory / "model.pml").write_text("\n".join(text))
    made = run(["spin", *configuration.flags(), *(["-DNO_ASSERTIONS"] if alone else []), "-a", "model.pml"], directory)
    assert made.returncode == 0 and (directory / "pan.c").exists(), made.stdout + made.stderr
    compiled, options = (IN_THE_END if formulas[0].live else NEVER_WRONG) if formulas else ASSERTIONS
    large = configuration in LARGE
    # What is small is searched sooner than an optimizing compiler is done with it.
    compiled = ["-O2" if large else "-O0", "-w", "-DVECTORSZ=2048", "-DCOLLAPSE", "-DMEMLIM=6000", *compiled, *(["-DREACH"] if shortest else [])]
    built = run(["cc", *compiled, "-o", "pan", "pan.c"], directory)
    assert built.returncode == 0, built.stderr
    command = ["./pan", *(["-m10000000", "-w25"] if large else ["-m1000000", "-w20"]), *(["-i"] if shortest else []), *options]
    found = [pan([*command, *([formula.name] if formula else [])], origin, directory) for formula in formulas or [None]]
    for formula, each in zip(formulas, found):
        each.violated = f"ltl {formula.name}" if alone and each.errors else each.violated
    return found


def pan(command, origin, directory):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = run(command, directory)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return read(found.stdout + found.stderr, origin, seconds, directory)


def read(output, origin, seconds, directory):
    """What pan says."""
    summary = re.search(r"depth reached (\d+), errors: (\d+)\s+(\d+) states, stored", output)
    assert summary, output
    wrong = re.search(r"pan:\d+: (.*?) \(at depth", output)
    memory = re.search(r"([\d.]+)\s+total actual memory usage", output) or re.search(r"([\d.]+)\s+memory usage \(Mbyte\)", output)
    unreached = {}
    for process, part in re.findall(r"unreached in (?:proctype )?(\w+|init)\n(.*?)(?=unreached in|\Z)", output, re.S):
        for line, statement in re.findall(r"model\.pml:(\d+), state \d+, \"(.*)\"", part):
            if statement not in ("-end-", "(gone[me])") and not statement.startswith("assert"):
                unreached.setdefault(process, set()).add(origin[int(line) - 1])
    return Found(int(summary[2]), wrong[1] if wrong else "", int(summary[3]), int(summary[1]), seconds, float(memory[1]), unreached, directory, origin,
                 re.search("search depth too small|out of memory|MEMLIM bound", output) is not None)  # fmt: skip


def formulas_within(configuration):
    return [formula for formula in FORMULAS if configuration.name in formula.within.split()]


def formulas_broken_by(mutation):
    return [formula for formula in FORMULAS if mutation.name in formula.broken_by.split()]


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
    totals, wrong = {}, 0
    print(f"{'searched':<34} {'states':>12} {'depth':>9} {'CPU s':>8} {'MB':>7}  found")

    def tell(what, name, found, expected=None):
        """One line, and the sums. expected: in what has to be violated; None where nothing may be."""
        nonlocal wrong
        held = not found.truncated and (found.errors == 0 if expected is None else found.errors > 0 and expected in found.violated)
        wrong += not held
        totals.setdefault(what, []).append(found)
        print(f"{name:<34} {found.states:>12,} {found.depth:>9,} {found.seconds:>8.1f} {found.megabytes:>7,.0f}  {found.violated[:100] or 'nothing'}{'' if held else '   WRONG'}")
        sys.stdout.flush()
        return found

    chosen = [each for each in (*SMALL, *(LARGE if given.large or given.name else ()), *MUTATIONS) if not given.name or each.name in given.name]
    with tempfile.TemporaryDirectory(prefix="pgonce-model-") as directory:
        for each in chosen:
            if each not in MUTATIONS:
                what = "configurations" if each in SMALL else "larger configurations"
                tell(what, each.name, search(each, directory)[0])
                formulas = formulas_within(each)
                for formula, found in zip(formulas, search(each, directory, formulas) if formulas else ()):
                    tell("formulas", f"{each.name}: {formula.name}", found)
                continue
            if each.caught_by:
                tell("mutations, by an assertion", each.name, search(each, directory)[0], each.caught_by)
            for formula in formulas_broken_by(each):
                tell("mutations, by a formula alone", f"{each.name}: {formula.name}", search(each, directory, [formula], alone=True)[0], "")
    print(f"\n{'in all':<34} {'states':>12} {'deepest':>9} {'CPU s':>8} {'MB':>7}  searches")
    for what, found in totals.items():
        print(
            f"{what:<34} {sum(each.states for each in found):>12,} {max(each.depth for each in found):>9,} {sum(each.seconds for each in found):>8.1f} "
            f"{max(each.megabytes for each in found):>7,.0f}  {len(found)}"
        )
    if len(totals.get("configurations", ())) == len(SMALL):
        missed = never_reached(totals["configurations"])
        print(f"\nsteps that no small configuration reaches: {len(missed)}")
        for step in sorted(missed):
            print(" ", *step)
    print("\nas it should be" if not wrong else f"\nWRONG: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
