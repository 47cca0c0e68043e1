# SPDX-License-Identifier: PostgreSQL
"""One run of the torture harness, from the start of the system to the judgement. Owns the order of things; what they are is elsewhere."""

import dataclasses
import json
import os
import pathlib
import random
import shutil
import threading
import time
import traceback

from harness.native import library
from harness.postgres import ROOT, private_directory, wait_until

from . import checker, citus, facts as facts_of, history, languages, report, servers
from .nemesis import KINDS, Nemesis
from .system import System
from .workload import Workload, served

FINISH_PATIENCE_S = 240
LOOK_S = 3  # between two looks at a run that is to stop when it is broken


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is to be run. Two runs of one plan make the same intents and the same faults, at nearly the same times."""

    seed: int
    seconds: int
    broker: str = "nats"
    faults: tuple = None  # kinds, or kind:target; None: all; (): none
    doors: tuple = None  # None: all
    scale: float = 1  # so many times the usual number of faults
    mutation: object = None
    until: tuple = None  # rules: the run ends as soon as one of them is seen to be broken
    cache: bool = None  # the gateway answers from memory; None: as the seed says, in half of the runs
    native: bool = None  # the contract's hot functions are those in C; None: likewise, where they are built
    at_least: int = 0  # so many intents: a busy machine takes longer than `seconds` for them
    topology: str = "single"  # servers: two nodes that share the tenants (servers.py), without gateway and consumer; citus: nodes of a cluster (citus.py)

    @property
    def has_cache(self):
        return random.Random(f"{self.seed}/cache").random() < 0.5 if self.cache is None else self.cache

    @property
    def has_native(self):
        return library().exists() and random.Random(f"{self.seed}/native").random() < 0.5 if self.native is None else self.native

    def parts(self):
        """What a run may have or not, for people."""
        if self.topology != "single":
            return f"pgonce_native {'on' if self.has_native else 'off'}"
        return f"once_replay_cache {'on' if self.has_cache else 'off'}, pgonce_native {'on' if self.has_native else 'off'}"

    def command(self):
        """That repeats it."""
        if self.mutation is not None:
            return f"make torture-selftest SEED={self.seed} MUTATION={self.mutation.name}"
        words = [f"SEED={self.seed}", f"MINUTES={self.seconds / 60:g}"]
        words += [f"BROKER={self.broker}"] if self.topology == "single" else [f"TOPOLOGY={self.topology}"]
        words += [f"FAULTS={','.join(self.faults) or 'none'}"] if self.faults is not None else []
        words += [f"DOORS={','.join(self.doors)}"] if self.doors is not None else []
        return f"make torture {' '.join(words)}"


@dataclasses.dataclass
class Result:
    plan: Plan
    violations: list
    history: object = None  # a History
    facts: dict = None
    clients: dict = dataclasses.field(default_factory=dict)  # of languages: which framework and drivers
    problem: str = None  # of the harness itself
    seconds: float = 0.0  # all in all

    @property
    def rules(self):
        return {violation.rule for violation in self.violations}

    @property
    def figures(self):
        return report.Figures(self.history, self.facts, self.violations)

    def through(self):
        """For people."""
        return "".join(f"; {language}: {', '.join(ways)}" for language, ways in self.clients.items())

    @property
    def status(self):
        return 2 if self.problem else 1 if self.violations else 0

    def text(self):
        plan = self.plan
        lines = [report.summary(f"torture: seed {plan.seed}, {plan.seconds} s, {plan.broker if plan.topology == 'single' else plan.topology}, faults: {', '.join(plan.faults) if plan.faults else 'none' if plan.faults == () else 'all'}, {plan.parts()}{self.through()}",
                                self.figures)] if self.history else []  # fmt: skip
        shown = set()
        for violation in self.violations:
            if violation.rule in shown:
                continue
            shown.add(violation.rule)
            alike = sum(other.rule == violation.rule for other in self.violations)
            lines += ["", f"VIOLATION of {violation.rule} ({alike} in all): {violation.name}: {violation.text}"]
            lines += [f"  {line}" for line in report.timeline(violation, self.history, self.facts)]
        if self.problem:
            lines += ["", "the harness failed:", self.problem]
        if self.status:
            lines += ["", f"repeat with: {plan.command()}"]
        return "\n".join(lines)


class Watch:
    """Looks at a run from time to time whether it is broken already."""

    def __init__(self, parts, path, rules):
        self.parts, self.path, self.rules = parts, path, set(rules)
        self.broken, self.ended = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.look, daemon=True)
        self.thread.start()

    def look(self):
        while not self.ended.wait(LOOK_S) and not self.broken.is_set():
            log = history.read(self.path)  # before the facts: what it has must be there then
            try:
                found = self.parts.collect(online=True)
            except Exception:  # pylint: disable=broad-except
                continue  # the database is away just now
            if any(violation.rule in self.rules for violation in checker.check(log, as_dict(found), online=True)):
                self.broken.set()

    def close(self):
        self.ended.set()
        self.thread.join()


class Single:
    """The parts of a run of the whole system, around one database."""

    def __init__(self, plan, directory, programs):
        self.plan, self.programs = plan, programs
        self.system = System(plan.seed, directory, plan.broker, plan.seconds, mutation=plan.mutation, cache=plan.has_cache, native=plan.has_native,
                             services=served(plan.doors, programs, plan.seed))  # fmt: skip

    def workload(self, recorder):
        return Workload(self.system, recorder, self.plan.seed, doors=self.plan.doors, programs=self.programs)

    def nemesis(self, recorder):
        plan = self.plan
        return Nemesis(self.system, recorder, plan.seed, KINDS if plan.faults is None else plan.faults, plan.scale)

    def heal(self, nemesis):  # pylint: disable=unused-argument
        self.system.heal()

    def collect(self, online=False):
        return as_dict(facts_of.collect(self.system, online=online))


class Several:
    """The parts of a run of several nodes."""

    system_of = servers.Servers

    def __init__(self, plan, directory, programs):  # pylint: disable=unused-argument
        self.plan = plan
        self.system = self.system_of(plan.seed, directory, plan.seconds, plan.mutation, plan.has_native)

    def workload(self, recorder):
        return servers.RoutedWorkload(self.system, recorder, self.plan.seed, doors=self.plan.doors or servers.DOORS)

    def nemesis(self, recorder):
        plan = self.plan
        return servers.ServersNemesis(self.system, recorder, plan.seed, servers.KINDS if plan.faults is None else plan.faults, plan.scale)

    @staticmethod
    def heal(nemesis):
        nemesis.heal()

    def collect(self, online=False):
        return self.system.collect(online)


class Cluster(Several):
    """The parts of a run of a cluster of Citus."""

    system_of = citus.Cluster


TOPOLOGIES = {"single": Single, "servers": Several, "citus": Cluster}


def as_dict(facts):
    """Facts as facts.json has them."""
    return facts if isinstance(facts, dict) else dict(vars(facts))


def run(plan, keep=None, say=lambda text: None):
    """Runs a plan. keep: a directory for the log, the facts, and the logs of all processes; else they are removed, unless something is wrong."""
    directory = pathlib.Path(keep) if keep else private_directory("pgonce-torture-")
    directory.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    result = Result(plan, [])
    try:
        judge(plan, directory, result, say)
    except Exception:  # pylint: disable=broad-except
        result.problem = traceback.format_exc()
    result.seconds = time.monotonic() - begun
    if result.status:
        (directory / "report.txt").write_text(result.text() + "\n", encoding="utf-8")
    if not keep and (not result.status or plan.mutation):
        shutil.rmtree(directory, ignore_errors=True)
    elif result.status:
        say(f"kept: {directory}")
    return result


def judge(plan, directory, result, say):
    """Fills the result; raises where the harness itself fails."""
    programs = languages.prepared(languages.named(plan.doors), getattr(plan.mutation, "tree", None) or ROOT)
    parts = TOPOLOGIES[plan.topology](plan, directory, programs)
    system = parts.system
    path = directory / "history.jsonl"
    recorder, workload, watch, nemesis = None, None, None, None
    try:
        system.start()
        recorder = history.Recorder(path)
        recorder.phase("started")
        workload = parts.workload(recorder)
        workload.start()
        result.clients = workload.through
        say(f"runs, in {directory}")
        watch = Watch(parts, path, plan.until) if plan.until else None
        nemesis = parts.nemesis(recorder)
        nemesis.run(plan.seconds, until=watch.broken.is_set if watch else None)
        wait_until(lambda: len(workload.intents) >= plan.at_least, f"{plan.at_least} intents", FINISH_PATIENCE_S)
        if watch is None or not watch.broken.is_set():
            parts.heal(nemesis)
        else:
            system.heal()
        recorder.phase("healed")
        say("healed")
        if watch is None or not watch.broken.is_set():
            workload.finish(FINISH_PATIENCE_S)
            recorder.phase("finished")
            say("finished")
            nemesis.close()
            result.facts = parts.collect()
        else:
            workload.stop()
            log = history.read(path)
            result.facts, result.history = parts.collect(online=True), log
            result.violations = checker.check(log, result.facts, online=True)
            return
        result.history = history.read(path)
        (directory / "facts.json").write_text(json.dumps(result.facts, default=str), encoding="utf-8")
        result.violations = checker.check(result.history, result.facts)
    except Exception:
        say("the harness failed; the last words of its processes:")
        for name in sorted(os.listdir(directory)):
            if name.endswith(".log"):
                say(f"--- {name}\n" + (directory / name).read_text(errors="replace")[-2000:])
        raise
    finally:
        if watch is not None:
            watch.close()
        if nemesis is not None:
            nemesis.close()
        if workload is not None:
            workload.stop()
        if recorder is not None:
            recorder.close()
        system.destroy()
