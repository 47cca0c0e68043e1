# SPDX-License-Identifier: PostgreSQL
"""Who does the faults: a schedule that the seed alone decides, and the one who follows it."""

import fnmatch
import heapq
import random
import threading
import time

from .faults import BY_KIND, KINDS, of_services
from .system import NotNow

FIRST_S = 2  # the workload has begun
PACE_S = 1.8  # between two begins, on average


def kinds_of(text):
    """Of an option: 'all', 'none', or names separated by commas, each a kind or kind:pattern, where the pattern says which targets (kill:gateway*).
    ValueError where a name is none."""
    if text in ("all", "none", ""):
        return () if text == "none" else KINDS
    entries = tuple(text.split(","))
    unknown = [entry for entry in entries if entry.partition(":")[0] not in KINDS]
    if unknown:
        raise ValueError(f"no such fault: {', '.join(unknown)}; there are {', '.join(KINDS)}")
    return entries


def targets_of(entry, services=()):
    """Those of the kind that the pattern fits; where none does, the pattern itself, which is then of the workload's processes."""
    kind, _, pattern = entry.partition(":")
    targets = (*BY_KIND[kind].targets, *of_services(kind, services))
    return [target for target in targets if fnmatch.fnmatch(target, pattern or "*")] or [pattern]


def schedule(seed, seconds, kinds=KINDS, scale=1, services=()):
    """[(at_s, kind, target, duration_s, parameters)], in the order of their beginnings. Depends on nothing but its arguments. Kinds come as often as
    their weights say, and none is long in coming: they are drawn like cards, and all are dealt before the deck is shuffled anew. kinds: as
    kinds_of gives them. scale: so many times as many faults. services: languages whose services have faults as well."""
    draw = random.Random(f"{seed}/nemesis")
    plan, deck, at = [], [], FIRST_S
    targets = {}  # by entry; likewise
    while kinds and at < seconds - 1:
        if not deck:
            deck = [entry for entry in sorted(set(kinds)) for _ in range(BY_KIND[entry.partition(":")[0]].weight)]
            draw.shuffle(deck)
        entry = deck.pop()
        fault = BY_KIND[entry.partition(":")[0]]
        if not targets.get(entry):
            targets[entry] = targets_of(entry, services)
            draw.shuffle(targets[entry])
        target = targets[entry].pop()
        duration = min(draw.uniform(fault.least, fault.most), seconds - at)
        plan.append((round(at, 3), fault.kind, target, round(duration, 3), fault.draw(draw)))
        at += draw.expovariate(scale / PACE_S)
    return plan


class Nemesis:
    """Follows the schedule, one step after another, so that a fault that takes long delays what comes next; many are at work at a time. What could
    not be done as things were (the primary was down already) says so in the history. stop(): from another thread, ends it early."""

    def __init__(self, system, recorder, seed, faults=KINDS, scale=1):
        self.system, self.recorder, self.seed, self.faults, self.scale = system, recorder, seed, tuple(faults), scale
        self.stopping = threading.Event()
        self.done = {}  # how many of each kind

    def stop(self):
        self.stopping.set()

    close = stop

    def _wait(self, until, condition):
        """Until that time, or an early end."""
        while (rest := until - time.monotonic()) > 0 and not self.stopping.wait(min(rest, 0.2)):
            if condition is not None and condition():
                self.stop()

    def run(self, seconds, until=None):
        """until: a condition; when it is true it ends early."""
        begun = time.monotonic()
        plan = schedule(self.seed, seconds, self.faults, self.scale, tuple(self.system.services))
        steps = [(fault[0], number, fault, None) for number, fault in enumerate(plan)]
        heapq.heapify(steps)
        while steps and not self.stopping.is_set():
            at, number, fault, undo = heapq.heappop(steps)
            self._wait(begun + at, until)
            if undo is not None:
                self.end(fault, undo)
                continue
            if self.stopping.is_set():
                break
            undo = self.begin(fault)
            if undo is not None and fault[3] > 0:
                heapq.heappush(steps, (max(at, time.monotonic() - begun) + fault[3], number, fault, undo))
            elif undo is not None:
                self.end(fault, undo)
        for _, _, fault, undo in steps:  # stopped early
            if undo is not None:
                self.end(fault, undo)
        self._wait(begun + seconds, until)

    def begin(self, fault):
        """What undoes it; None where it could not be done."""
        _, kind, target, duration, parameters = fault
        context = BY_KIND[kind].do(self.system, target, **parameters)
        # Noted before it is done: no answer may be younger than the fault that it suffered from, and seem to have had none.
        self.recorder.fault(kind, target, "begin", f"for {duration:.1f} s")
        try:
            detail = context.__enter__()
        except NotNow as why:
            self.recorder.fault(kind, target, "end", f"not now: {why}")
            return None
        self.done[kind] = self.done.get(kind, 0) + 1
        return context, detail

    def end(self, fault, undo):
        _, kind, target, _, _ = fault
        context, detail = undo
        context.__exit__(None, None, None)
        self.recorder.fault(kind, target, "end", detail)
