# SPDX-License-Identifier: PostgreSQL
"""What a run shows: figures, and the history of what went wrong, for people. Reads the log and the facts, decides nothing."""

import base64
import collections
import textwrap

from . import checker

AFTERWARDS_S = 5
RECOVERY_TELLS_S = 60  # an acknowledgement that comes later than this after a fault's end is said to be none


class Figures:
    """Counts of one run. `rows()` are (name, value) for printing, `as_dict()` is for a file."""

    def __init__(self, history, facts, violations=()):
        self.story = story = checker.Story(history, facts)
        attempts = list(story.attempts.values())
        self.attempts = len(attempts)
        self.intents = len(story.intents)
        self.verdicts = collections.Counter(attempt.verdict or "no answer" for attempt in attempts)
        self.replays = sum(bool(attempt.answer and attempt.answer.get("replayed")) for attempt in attempts)
        self.cached = sum(bool(attempt.answer and attempt.answer.get("cached")) for attempt in attempts)
        self.doors = collections.Counter(intent["door"] for intent in story.intents.values())
        self.faults = collections.Counter(record["fault"] for record in story.faults if record["action"] == "begin")
        self.faults.subtract(record["fault"] for record in story.faults if not_done(record))
        self.effects = len(story.rows("effects")) + len(story.rows("ledger"))
        self.applied = len(story.applied)
        self.in_doubt = sum(1 for case in story.cases.values() if case.stored and case.stored["state"] == "in_doubt")
        self.decided = len(story.decided)
        self.held = sum(1 for case in story.cases.values() if case.stored and case.stored["state"] == "processing")
        self.duplicates = sum(len(case.effects) - 1 for case in story.cases.values() if len(case.effects) > 1)
        self.losses = sum(violation.rule == "nothing_lost" for violation in violations)
        self.seconds = max((record["t"] for record in history.records), default=0.0)
        self.violations = collections.Counter(violation.rule for violation in violations)
        self.recoveries = list(recoveries(story))

    def answered(self):
        """The share of attempts that got a definite answer."""
        silent = self.verdicts["no answer"] + self.verdicts["unknown"]
        return 1 - silent / self.attempts if self.attempts else 0.0

    def slowest(self):
        """(seconds, door, the fault after whose end it was), or None."""
        return max(self.recoveries, key=lambda recovery: recovery[0], default=None)

    def rows(self):
        yield "seconds", f"{self.seconds:.0f}"
        yield "intents", f"{self.intents} ({counted(self.doors)})"
        yield "attempts", f"{self.attempts} ({counted(self.verdicts)}; replays {self.replays}, from memory {self.cached})"
        yield "answered", f"{self.answered():.1%} of the attempts, definitely"
        yield "effects", f"{self.effects}, applied messages {self.applied}"
        yield "faults", f"{sum(self.faults.values())} ({counted(self.faults)})"
        yield "duplicates", str(self.duplicates)
        yield "losses", str(self.losses)
        yield "in doubt", f"{self.in_doubt}, decided by the operator {self.decided}" + (f", held by a lease of a clock that was ahead {self.held}" if self.held else "")
        slowest = self.slowest()
        if slowest:
            middle = sorted(seconds for seconds, _, _ in self.recoveries)[len(self.recoveries) // 2]
            yield "recovery", f"median {middle:.1f} s, slowest {slowest[0]:.1f} s ({slowest[1]}, after {slowest[2]})"
        yield "violations", counted(self.violations) or "none"

    def as_dict(self):
        return dict(self.rows())


def counted(counter):
    return ", ".join(f"{name} {count}" for name, count in counter.most_common() if count)


def not_done(record):
    """The end of a fault that could not be done as things were."""
    return record["action"] == "end" and str(record.get("detail")).startswith("not now")


def recoveries(story):
    """After each fault's end: for each door that was asked, how long until its first acknowledgement. (seconds, door, fault)"""
    by_door = collections.defaultdict(list)
    asked = collections.defaultdict(list)
    for attempt in story.attempts.values():
        asked[attempt.intent["door"]].append(attempt.began)
        if attempt.verdict == "acknowledged":
            by_door[attempt.intent["door"]].append(attempt.ended)
    for record in story.faults:
        if record["action"] != "end" or not_done(record):
            continue
        for door, times in by_door.items():
            first = min((t for t in times if t >= record["t"]), default=None)
            if first is not None and any(record["t"] <= t <= first for t in asked[door]) and first - record["t"] < RECOVERY_TELLS_S:
                yield first - record["t"], door, f"{record['fault']} {record['target']} at {record['t']:.0f} s"


def summary(title, figures):
    rows = list(figures.rows())
    width = max(len(name) for name, _ in rows)
    lines = [title]
    for name, value in rows:
        lines += textwrap.wrap(value, 130, initial_indent=f"  {name:<{width}}  ", subsequent_indent=" " * (width + 4)) or [f"  {name}"]
    return "\n".join(lines)


def body_text(body):
    """An answer's bytes, short."""
    try:
        text = base64.b64decode(body).decode()
    except (ValueError, TypeError):
        text = str(body)
    return text if len(text) <= 100 else f"{text[:60]}... ({len(text)} characters)"


def line_of(record):
    """One record of a log, as a line of a timeline."""
    at = f"{record['t']:9.3f}"
    if record["kind"] == "intent":
        return f"{at}  intent {record['intent']}: {record['door']}/{record['mode']} tenant={record['tenant']!r} scope={record['scope']!r} key={record['key']!r} {record['payload']}"
    if record["kind"] == "attempt":
        more = " ".join(f"{name}={record[name]!r}" for name in ("payload", "tenant", "late", "isolation") if record.get(name))
        return f"{at}    attempt {record['intent']}/{record['attempt']} begins, by {record.get('client')} {more}".rstrip()
    if record["kind"] == "answer":
        body = f" {body_text(record['body'])}" if record.get("body") else ""
        said = f"{record['verdict']} {record.get('code', '')} status={record.get('status')}{' replayed' if record.get('replayed') else ''}"
        return f"{at}    attempt {record['intent']}/{record['attempt']} ends: {said}{body}"
    if record["kind"] == "fault":
        return f"{at}  fault {record['fault']} {record['target']} {record['action']} {record.get('detail') or ''}".rstrip()
    if record["kind"] == "decided":
        return f"{at}    the operator decides that intent {record['intent']} succeeded: {body_text(record['body'])}"
    return f"{at}  {record['kind']} {record.get('phase', record.get('text', ''))}"


def timeline(violation, history, facts):
    """The shortest history that shows it: what was attempted at that intent (or those of that aggregate), the faults meanwhile, and what is there."""
    story = checker.Story(history, facts)
    names = concerned(violation, story)
    numbers = {attempt.number for attempt in story.attempts.values() if attempt.name in names}
    own = [r for r in history.records if r["kind"] in ("intent", "attempt", "answer", "decided") and r["intent"] in numbers]
    if not own:
        return [f"{what}: {row}" for what, row in rows_of(names, violation, story)]
    begin, end = min(r["t"] for r in own), max(r["t"] for r in own)
    lines = [(r["t"], line_of(r)) for r in own]
    lines += [(r["t"], line_of(r)) for r in meanwhile(story.faults, begin, end)]
    lines += [(r["t"], line_of(r)) for r in story.phases if begin <= r["t"] <= end]
    return [line for _, line in sorted(lines, key=lambda pair: pair[0])] + [f"{what}: {row}" for what, row in rows_of(names, violation, story)]


def concerned(violation, story):
    if violation.name[0] == "aggregate":
        # The last few steps before the one that is wrong tell it.
        rows = [row for row in story.rows("effects") if row.get("aggregate") == violation.name[1]]
        named = [row for row in rows if f"({row['step']}, " in violation.text or violation.text.startswith(f"step {row['step']} ")]
        return {checker.name_of(row) for row in (named or rows[-6:])}
    return {violation.name}


def meanwhile(faults, begin, end):
    """The faults of which any part lies between, or a little later: what happened to an answer may show afterwards."""
    started = collections.defaultdict(list)
    for record in faults:
        which = record["fault"], record["target"]
        if record["action"] == "begin":
            started[which].append(record)
        elif started[which]:
            first = started[which].pop(0)
            if record["t"] >= begin and first["t"] <= end + AFTERWARDS_S:
                yield from (first, record)
    yield from (record for records in started.values() for record in records if record["t"] <= end + AFTERWARDS_S)


def rows_of(names, violation, story):
    for what in ("effects", "ledger", "events", "intents", "stuck"):
        for row in story.rows(what):
            if checker.name_of(row) in names:
                yield what, row
    for row in story.rows("published"):
        if checker.name_of(row) in names or (violation.name[0] == "aggregate" and row["aggregate"] == violation.name[1]):
            yield "published", row
    for row in story.applied:
        if checker.name_of(row) in names or (violation.name[0] == "aggregate" and row.get("aggregate") == violation.name[1]):
            yield "applied", row
