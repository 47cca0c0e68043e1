# SPDX-License-Identifier: PostgreSQL
"""Decides from the log of a run and from what the databases hold whether every promise was kept. Pure functions: check(history, facts)
gives a list of violations, each with the rule, the intent's name, and why. The log has what the clients saw, the facts what there is.

An intent is what its name says, (tenant, scope, key), whoever attempted it: a conflicting payload or tenant is an attempt as any other.
Rules judge what is certain only. What the log cannot tell (an attempt without an answer) counts for the system, never against it."""

import base64
import collections
import dataclasses
import hashlib

NO_EFFECT = ("refused", "mismatch", "expired", "busy", "failed")  # each says: this attempt certainly did nothing
BY_HTTP = ("handoff", "naive", "http", "endpoint", "leased")  # modes
ELSEWHERE = ("endpoint", "leased")  # of a client's service: it claims
LEASE_S = 4  # of their scopes (schema.sql)
BREAKS = ("destroy", "commit")  # what is around the effect of an attempt that must leave nothing (languages.py)
SERVICE_RETURNS_S = 120
NOTICED_S = 20  # a gateway that was stopped, and whose connection says nothing, knows by then that its server is gone (docs/reference/gateway.md)
OVERTAKEN_S = 60  # longer than a consumer is away until others have its partitions
SLOTS = 64
FORGET_SLACK_S = 10  # of the clock faults that are too small for the contract to notice


@dataclasses.dataclass(frozen=True)
class Violation:
    rule: str
    name: tuple  # (tenant, scope, key), or ("aggregate", which), or ("door", which)
    text: str


class Attempt:
    """One try, from its beginning to its answer, if there was one."""

    def __init__(self, intent, record):
        self.intent = intent
        self.number, self.attempt = record["intent"], record["attempt"]
        self.began = record["t"]
        self.client = record.get("client")
        self.late = bool(record.get("late"))
        self.neighbour = record.get("neighbour")
        self.name = (record.get("tenant", intent["tenant"]), intent["scope"], intent["key"])
        self.payload = record.get("payload", intent["payload"])
        self.answer = None

    @property
    def verdict(self):
        return self.answer["verdict"] if self.answer else None

    @property
    def ended(self):
        return self.answer["t"] if self.answer else None

    def said(self):
        """What an acknowledgement consists of."""
        return self.answer.get("status"), self.answer.get("body")

    def __str__(self):
        return f"attempt {self.number}/{self.attempt}"


class Case:
    """All that is known of one intent."""

    def __init__(self, name):
        self.name = name
        self.attempts, self.effects = [], []
        self.stored = None

    @property
    def acknowledged(self):
        return [a for a in self.attempts if a.verdict == "acknowledged"]

    @property
    def at_most(self):
        return any(a.intent.get("at_most") for a in self.attempts)

    @property
    def direct(self):
        """A message that a client published itself; its effect is the consumer's."""
        return any(a.intent["door"] == "message" for a in self.attempts)

    @property
    def forget_after_s(self):
        given = [a.intent.get("forget_after_s") for a in self.attempts]
        return min((s for s in given if s is not None), default=None)

    def may_be_forgotten(self, t):
        """Its retention may have passed by then."""
        if self.forget_after_s is None or t is None:
            return self.forget_after_s is not None
        ends = [a.ended if a.ended is not None else a.began for a in self.attempts if not a.late]
        return t > min(ends, default=0) + self.forget_after_s - FORGET_SLACK_S


class Story:
    """The log and the facts, put together by intent. `facts` is a dict as facts.json has it, or None: the log alone."""

    def __init__(self, history, facts):
        self.facts = facts or {}
        self.intents, self.attempts, self.faults, self.phases = {}, {}, [], []
        self.cases = {}
        self.decided = []  # by the operator
        self.dumped = []  # and restored
        self.granted = []  # fences, to keys that come again
        self.open_twice = []  # slots, as the witness saw them
        self.given_up = set()  # intents whose clients asked for a while only, since their keys are soon forgotten
        for record in history.records:
            kind = record["kind"]
            if kind == "intent":
                self.intents[record["intent"]] = record
            elif kind == "attempt":
                attempt = Attempt(self.intents[record["intent"]], record)
                self.attempts[attempt.number, attempt.attempt] = attempt
                self.case(attempt.name).attempts.append(attempt)
            elif kind == "answer":
                self.attempts[record["intent"], record["attempt"]].answer = record
            elif kind == "decided":
                self.decided.append(record)
            elif kind == "open_twice":
                self.open_twice.append(record)
            elif kind == "granted":
                self.granted.append(record)
            elif kind == "dumped":
                self.dumped.append(record)
            elif kind == "given_up":
                self.given_up.add(record["intent"])
            elif kind == "fault":
                self.faults.append(record)
            elif kind == "phase":
                self.phases.append(record)
        for table in ("effects", "ledger"):
            for row in self.rows(table):
                self.case(name_of(row)).effects.append({**row, "table": table})
        for row in self.rows("intents"):
            self.case(name_of(row)).stored = row
        self.sent = {(*name_of(row), row["nth"]): row for row in self.rows("events")}
        self.applied = [row for row in self.rows("applied") if not row.get("branch")]
        self.applied_of_branch = [row for row in self.rows("applied") if row.get("branch")]

    def rows(self, what):
        return self.facts.get(what) or []

    def case(self, name):
        if name not in self.cases:
            self.cases[name] = Case(name)
        return self.cases[name]

    def phase(self, name):
        """When it was reached; None: not yet."""
        return next((record["t"] for record in self.phases if record["phase"] == name), None)

    def had_fault(self, kind):
        return any(record["fault"] == kind for record in self.faults)


def name_of(row):
    return row["tenant"], row["scope"], row["key"]


def succeeded(answer):
    """An HTTP status, an exit status, or none at all."""
    status = answer.get("status")
    return status is None or status == 0 or 200 <= status < 400


def stored_as(attempt):
    """The state that an acknowledged attempt has left, at every door."""
    return "succeeded" if succeeded(attempt.answer) else "failed_final"


RULES = {}  # name: (rule, whether it can be judged while the run goes on)


def rule(online):
    def add(function):
        RULES[function.__name__] = (function, online)
        return function

    return add


# Effects.


@rule(online=True)
def at_most_one(story):
    """Promise 1: at most one effect of any intent, however it was answered."""
    for case in story.cases.values():
        if len(case.effects) > 1:
            by = ", ".join(f"attempt {row.get('intent')}/{row.get('attempt')} by {row.get('door')}" for row in case.effects)
            yield case.name, f"{len(case.effects)} effects: {by}"


@rule(online=True)
def one_effect_per_acknowledged(story):
    """Promise 2: an acknowledged success has its effect; an acknowledged failure has none; and it is the effect of that request."""
    for case in story.cases.values():
        if case.direct:
            continue
        for attempt in case.acknowledged:
            if not succeeded(attempt.answer):
                if case.effects:
                    yield case.name, f"{attempt} was answered with a failure, and there is an effect"
            elif not case.effects:
                yield case.name, f"{attempt} was acknowledged, and there is no effect"
            elif all(row["payload"] != attempt.payload for row in case.effects):
                yield case.name, f"{attempt} was acknowledged, and the effect is of another request: {case.effects[0]['payload']!r}"


@rule(online=True)
def none_for_refused(story):
    """An attempt that was told that it did nothing did nothing."""
    for case in story.cases.values():
        for row in case.effects:
            attempt = story.attempts.get((row.get("intent"), row.get("attempt")))
            if attempt is None:
                yield case.name, f"an effect of nobody's attempt: {row}"
            elif attempt.verdict in NO_EFFECT:
                yield case.name, f"{attempt} was answered {attempt.verdict} ({attempt.answer.get('code')}), and has an effect"
            elif attempt.name != case.name:
                yield case.name, f"the effect of {attempt}, which is one of {attempt.name}"
            elif attempt.payload != row["payload"]:
                yield case.name, f"{attempt} has an effect that it did not ask for: {row['payload']!r}"


@rule(online=True)
def nothing_of_the_broken(story):
    """Promise 1: an effect commits only with the whole answer that its handler finished. One that broke its answer off, or tried to end the transaction itself,
    has no effect, and its answer is not acknowledged."""
    for attempt in story.attempts.values():
        if attempt.neighbour not in BREAKS:
            continue
        case = story.case(attempt.name)
        if any((row.get("intent"), row.get("attempt")) == (attempt.number, attempt.attempt) for row in case.effects):
            yield case.name, f"{attempt} ended with {attempt.neighbour}, and has an effect"
        if attempt.verdict == "acknowledged" and not attempt.answer.get("replayed") and succeeded(attempt.answer):
            yield case.name, f"{attempt} ended with {attempt.neighbour}, and was acknowledged"


@rule(online=True)
def under_its_fence(story):
    """Fences: an effect that commits with its outcome was made under the fence that is stored. Who was taken over had none."""
    for stored in story.rows("fences"):
        for row in story.case(name_of(stored)).effects:
            if row.get("fence") is not None and row["table"] == "effects" and row["fence"] != stored["fence"]:
                yield name_of(stored), f"the effect was made under fence {row['fence']}, and the intent is at {stored['fence']}"


@rule(online=True)
def fences_rise(story):
    """Fences: each that is granted to a key is above all that it has had, also where its intent was deleted meanwhile. Else a late report of an earlier
    attempt passes for the present one's."""
    highest = {}
    for record in story.granted:
        name = name_of(record)
        last = highest.get(name)
        if last is not None and record["fence"] <= last["fence"]:
            yield name, f"fence {record['fence']} was granted ({record['how']}) at {record['t']:.1f} s, after fence {last['fence']} at {last['t']:.1f} s"
        if last is None or record["fence"] > last["fence"]:
            highest[name] = record


@rule(online=True)
def told_at_once(story):
    """Who comes second in the same transaction learns it before its work and not after it, having waited for the first."""
    for attempt in story.attempts.values():
        if attempt.intent["mode"] == "transaction" and attempt.answer and attempt.answer.get("code") == "P4010":
            yield attempt.name, f"{attempt} was let in beside another, and refused at its end"


@rule(online=True)
def open_on_one_node(story):
    """Several nodes: a slot is open on at most one of them, at every moment."""
    for record in story.open_twice:
        yield ("", "slot", str(record["slot"])), f"it was open on both nodes at {record['t']:.1f} s: {record['on']}"


@rule(online=False)
def open_on_some_node(story):
    """Several nodes: in the end each slot is open, on one node."""
    if "slots" not in story.facts:
        return
    counted = collections.Counter(row["slot"] for row in story.rows("slots"))
    for slot in range(SLOTS):
        if counted[slot] != 1:
            where = [f"{row['node']}, epoch {row['epoch']}" for row in story.rows("slots") if row["slot"] == slot]
            yield ("", "slot", str(slot)), f"in the end it is open on {counted[slot]} nodes: {where}"


# Answers.


@rule(online=True)
def same_bytes(story):
    """Promise 2: every acknowledgement is the same status and bytes, of one request, and is what is stored."""
    for case in story.cases.values():
        first = None
        for attempt in case.acknowledged:
            if first is None:
                first = attempt
            elif attempt.payload != first.payload:
                yield case.name, f"{attempt} and {first} were both acknowledged, and asked for different things"
            elif not case.direct and attempt.said() != first.said():
                yield case.name, f"{attempt} was told {attempt.said()}, {first} {first.said()}"
        if first is None or case.direct:
            continue
        for attempt in case.attempts:
            if attempt.began > first.ended and attempt.verdict in ("in_doubt", "expired") and not case.may_be_forgotten(attempt.ended):
                yield case.name, f"{attempt} was told {attempt.verdict} after {first} was acknowledged"
        row = case.stored
        if row is None:
            continue
        if row["state"] is None:
            if not case.may_be_forgotten(story.facts.get("t")):
                yield case.name, f"{first} was acknowledged, and nothing is stored of it"
        elif row["state"] != stored_as(first):
            yield case.name, f"{first} was acknowledged with {first.said()[0]}, and the intent is {row['state']}"
        elif (row["status"], row["body"]) != first.said():
            yield case.name, f"{first} was told {first.said()}, and stored is {(row['status'], row['body'])}"


@rule(online=True)
def asked_anew(story):
    """Promise 2: what the gateway has in memory is of the server that it has. Once it knows of a failover, it tells from memory only what it asked of the new one."""
    for begun, over in failovers(story):
        for case in story.cases.values():
            asked = [a for a in case.attempts if (a.ended is None or a.ended > begun) and not is_cached(a)]
            for attempt in case.attempts:
                if is_cached(attempt) and attempt.began > over + NOTICED_S and not any(a.began < attempt.ended for a in asked):
                    yield case.name, f"{attempt} was answered from memory, and since the failover at {begun:.1f} s nobody has asked the database"


@rule(online=True)
def whole_answers(story):
    """Promise 2: an acknowledged answer is the one that its execution made, to its last byte. digest: of the bytes that it made. By HTTP: elsewhere an answer may
    be given as JSON, which has several spellings, or before the effect is made."""
    for case in story.cases.values():
        digests = {row["digest"] for row in case.effects if row.get("digest")}
        attempt = next((a for a in case.acknowledged if succeeded(a.answer) and a.answer.get("body") is not None), None)
        if attempt is None or attempt.intent["mode"] not in BY_HTTP or len(digests) != 1:
            continue
        body = base64.b64decode(attempt.answer["body"])
        if hashlib.sha256(body).hexdigest() not in digests:
            yield case.name, f"{attempt} was told {len(body)} bytes that are not the answer of its effect: {body[:80]!r}"


def is_cached(attempt):
    return bool(attempt.answer and attempt.answer.get("cached"))


def failovers(story):
    """(the old primary was alive, the new one is certainly primary) of each that was done."""
    begun = None
    for record in story.faults:
        if record["fault"] != "failover":
            continue
        if record["action"] == "begin":
            begun = record["t"]
        elif begun is not None:
            if not str(record.get("detail")).startswith("not now"):
                yield begun, record["t"]
            begun = None


@rule(online=True)
def tenants_apart(story):
    """No answer's bytes, of which each execution makes its own, are told to anybody who asked for another intent."""
    told = {}
    for case in story.cases.values():
        for attempt in case.attempts:
            body = (attempt.answer or {}).get("body")
            if not body or attempt.verdict != "acknowledged":
                continue
            other = told.setdefault(body, attempt)
            if other.name != case.name:
                yield case.name, f"{attempt} was told the answer of {other}, one of {other.name}"


@rule(online=True)
def expired_never_reopens(story):
    """Promise 7: after "too late" nothing runs: no attempt that began later has an effect or an acknowledgement."""
    for case in story.cases.values():
        ends = [a.ended for a in case.attempts if a.verdict == "expired"]
        if not ends:
            continue
        for attempt in case.attempts:
            if attempt.began <= min(ends):
                continue
            if attempt.verdict == "acknowledged":
                yield case.name, f"{attempt} was acknowledged after the key was told to be expired"
            if any((row.get("intent"), row.get("attempt")) == (attempt.number, attempt.attempt) for row in case.effects):
                yield case.name, f"{attempt} has an effect after the key was told to be expired"


# Events and messages.


@rule(online=False)
def event_iff_effect(story):
    """Promise 3: an effect has exactly its events, and there is no event without its effect."""
    arrived = {(*name_of(row), row["nth"]) for row in story.applied if not row["direct"]}
    for case in story.cases.values():
        for row in case.effects:
            for nth in range(1, (row.get("events") or 0) + 1):
                if (*case.name, nth) not in story.sent and (*case.name, nth) not in arrived:
                    yield case.name, f"the effect has no event {nth}"
    for key in sorted({*story.sent, *arrived}):
        case = story.cases.get(key[:3])
        if case is None or all(key[3] > (row.get("events") or 0) for row in case.effects):
            yield key[:3], f"event {key[3]} is of no effect"


def preceding(story):
    """aggregate: {(step, nth): the event before it}, of all events that effects have, in both databases."""
    expected = collections.defaultdict(set)
    for row in story.rows("effects") + story.rows("branch"):
        for nth in range(1, (row.get("events") or 0) + 1):
            expected[row["aggregate"]].add((row["step"], nth))
    return {aggregate: dict(zip(sorted(places)[1:], sorted(places))) for aggregate, places in expected.items()}


@rule(online=True)
def order_per_aggregate(story):
    """The consumer applies the events of an aggregate in the order of its steps and leaves none out."""
    before = preceding(story)
    highest, seen = {}, set()
    for row in story.rows("applied"):
        if row["direct"]:
            continue
        aggregate, place = row["aggregate"], (row["step"], row["nth"])
        if (aggregate, place) in seen:
            continue  # a second time: consumer_exactly_once says so
        seen.add((aggregate, place))
        last = highest.get(aggregate)
        if last is not None and place < last:
            yield ("aggregate", aggregate), f"step {place} was applied after step {last}"
        else:
            previous = before.get(aggregate, {}).get(place)
            if previous is not None and (aggregate, previous) not in seen:
                yield ("aggregate", aggregate), f"step {place} was applied before step {previous}"
            highest[aggregate] = place
    taken = collections.Counter((row["aggregate"], row["step"]) for row in story.rows("effects") if row.get("step") is not None)
    for (aggregate, step), count in taken.items():
        if count > 1:
            yield ("aggregate", aggregate), f"step {step} was taken by {count} effects"


@rule(online=True)
def published_in_order(story):
    """Each relay publishes the events of an aggregate in the order of its steps, and leaves none out. What was published before may come again at any time."""
    before, highest, seen = preceding(story), {}, set()
    for row in story.rows("published"):
        which, place = (row["relay"], row["aggregate"]), (row["step"], row["nth"])
        if (which, place) in seen:
            continue
        seen.add((which, place))
        last = highest.get(which)
        if last is not None and place < last:
            yield ("aggregate", row["aggregate"]), f"step {place} was published by {row['relay']} ({row['by']}) after step {last}"
            continue
        previous = before.get(row["aggregate"], {}).get(place)
        if previous is not None and (which, previous) not in seen:
            yield ("aggregate", row["aggregate"]), f"step {place} was published by {row['relay']} ({row['by']}) before step {previous}"
        highest[which] = place


def ids_of(events):
    return {(*name_of(row), row["nth"]): row["event_id"] for row in events}


@rule(online=False)
def each_relay_whole(story):
    """Promise 3: each relay publishes every event of the outbox and nothing else, under the event's own id, whatever another relay publishes at the same broker."""
    ids = ids_of(story.rows("events"))
    found = collections.defaultdict(set)
    for row in story.rows("published"):
        found[row["relay"], *name_of(row), row["nth"]].add(row["event_id"])
    emitted = {(*case.name, nth) for case in story.cases.values() for row in case.effects for nth in range(1, (row.get("events") or 0) + 1)}
    for relay in story.rows("copies"):
        for event in sorted(emitted):
            if (relay, *event) not in found:
                yield event[:3], f"event {event[3]} was never published by the relay {relay}"
    for (relay, *event), published in found.items():
        if relay not in story.rows("copies"):
            continue
        if tuple(event) not in emitted:
            yield tuple(event[:3]), f"the relay {relay} published event {event[3]}, which no effect has"
        elif len(published | ({ids[tuple(event)]} if tuple(event) in ids else set())) > 1:
            yield tuple(event[:3]), f"the relay {relay} published event {event[3]} as {sorted(published)}, and its id is {ids.get(tuple(event))}"


@rule(online=True)
def sleeper_is_silent(story):
    """A relay that is stopped until another has taken over publishes, from then on until it is the active one again, no more than the one event of an aggregate
    that it was sending, and again what it had published itself. Brokers that do not say when they took an event are not judged."""
    for sleep in story.rows("sleeps"):
        until = min((turn["at"] for turn in story.rows("turns") if turn["by"] == sleep["by"] and turn["at"] >= sleep["since"]), default=float("inf"))
        had, late = collections.defaultdict(set), collections.defaultdict(set)
        for row in story.rows("published"):
            if row["relay"] == "torture" and row["by"] == sleep["by"] and row["at"] is not None and row["at"] < until:
                (had if row["at"] < sleep["since"] else late)[row["aggregate"]].add((row["step"], row["nth"]))
        for aggregate, places in late.items():
            new = sorted(places - had[aggregate])
            if len(new) > 1:
                yield ("aggregate", aggregate), f"{sleep['by']} slept through a takeover from {sleep['since']:.3f} on, and published steps {new} afterwards"


@rule(online=True)
def consumer_exactly_once(story):
    """Promise 4: no message is applied twice."""
    counted = collections.Counter(row["message_id"] for row in story.rows("applied"))
    counted_places = collections.Counter((*name_of(row), row["nth"]) for row in story.applied if not row["direct"])
    for row in story.applied:
        if counted.pop(row["message_id"], 0) > 1:
            yield name_of(row), f"message {row['message_id']} was applied more than once"
        elif not row["direct"] and counted_places.pop((*name_of(row), row["nth"]), 0) > 1:
            yield name_of(row), f"event {row['nth']} was applied more than once, under several message ids"
    for row in story.applied:
        if row["direct"] and name_of(row) not in story.cases:
            yield name_of(row), f"message {row['message_id']} was published by nobody"


@rule(online=False)
def databases_apart(story):
    """Promises 3 and 4: events of equal names in two databases that publish into one destination are two, under two ids, and both are applied, once each."""
    ids, others = ids_of(story.rows("events")), ids_of(story.rows("branch_events"))
    for name in sorted(ids.keys() & others.keys()):
        if ids[name] == others[name]:
            yield name[:3], f"event {name[3]} has the id {ids[name]} in both databases"
    arrived = collections.Counter((*name_of(row), row["nth"]) for row in story.applied_of_branch)
    emitted = {(*name_of(row), nth) for row in story.rows("branch") for nth in range(1, row["events"] + 1)}
    for name in sorted(emitted | arrived.keys()):
        if name not in emitted or arrived[name] != 1:
            yield name[:3], f"event {name[3]} of the branch was {'emitted' if name in emitted else 'not emitted'}, and applied {arrived[name]} times"


@rule(online=True)
def partitions_read(story):
    """Promise 4: whoever comes and goes, each partition has a consumer that reads it: no message waits while what others got a minute later is applied, and in
    the end the group has read all."""
    applied = {row["message_id"] for row in story.rows("applied")}
    taken = applied | {row["text"] for row in story.rows("parked_messages")}
    latest = max((record["at"] for record in story.rows("records") if record["message_id"] in applied), default=0)
    waiting = {}
    for record in story.rows("records"):
        if record["message_id"] not in taken:
            waiting.setdefault(record["partition"], record)
    for partition, record in waiting.items():
        if latest - record["at"] > OVERTAKEN_S:
            yield ("", "partition", str(partition)), f"it was not read from offset {record['offset']} on, for {latest - record['at']:.0f} s in which others were"
    for row in story.rows("committed"):
        left = [record for record in story.rows("records") if record["partition"] == row["partition"] and record["offset"] >= row["offset"]]
        if left:
            yield ("", "partition", str(row["partition"])), f"{len(left)} messages were not read in the end, from offset {row['offset']} on"


@rule(online=False)
def nothing_lost(story):
    """Promise 3: every event and every message that the broker took has arrived in the end; nothing waits, nothing was given up."""
    if not story.facts.get("consumed", True):
        return  # nobody reads the events
    arrived = {(*name_of(row), row["nth"]) for row in story.applied if not row["direct"]}
    direct = {name_of(row) for row in story.applied if row["direct"]}
    for case in story.cases.values():
        for row in case.effects:
            for nth in range(1, (row.get("events") or 0) + 1):
                if (*case.name, nth) not in arrived:
                    yield case.name, f"event {nth} never arrived"
        if case.direct and case.acknowledged and case.name not in direct:
            yield case.name, "the broker took the message, and it never arrived"
    for what in ("parked_events", "parked_messages"):
        for row in story.rows(what):
            yield ("", what, row.get("text", "")), f"{what}: {row}"


@rule(online=True)
def none_blamed(story):
    """Promise 3: no event counts an attempt for the batch that it was in: a broker refuses batches for their size, and no event is too large itself."""
    for row in story.rows("blamed"):
        yield ("", "event", ""), f"{row['by']} counted an attempt: {row['text']}"


@rule(online=True)
def none_buried(story):
    """Promise 4: nothing is given up that could be applied, however old it looks: in the torture, every event and every message can."""
    for row in story.rows("dead"):
        yield ("", "dead", row.get("text", "")), f"dead: {row}"


@rule(online=True)
def dumps_restore(story):
    """Dumps: a plain one that was taken in the midst is restored without an error, holds what its snapshot held, what was stored is replayed there, and no
    relay goes on there by the progress of the original."""
    name = ("", "dump", "")
    for record in story.dumped:
        if "said" in record:
            yield name, f"restoring it failed: {record['said']}"
            continue
        for what, had in record["had"].items():
            if record["has"].get(what) != had:
                yield name, f"its snapshot held of the {what} (rows, checksum) {had}, and restored are {record['has'].get(what)}"
        if record.get("replayed") != record.get("stored"):
            yield name, f"an intent was stored with {record.get('stored')}, and attempting it in the copy gave {record.get('replayed')}"
        if record.get("relay", "P4080") != "P4080":
            yield name, "a relay in the copy takes the original's progress for its own: it would leave events out, or publish old ones"


# What is known in the end.


@rule(online=False)
def nothing_in_doubt(story):
    """Promise 5: in doubt is only what nobody can know: some attempt at it that began before the doubt has no definite answer."""
    for case in story.cases.values():
        if case.stored is None or case.stored["state"] != "in_doubt":
            continue
        if not case.at_most:
            yield case.name, "it is in doubt, in a scope where that can always be found out"
            continue
        first = min((a.ended for a in case.attempts if a.verdict == "in_doubt"), default=None)
        early = [a for a in case.attempts if first is None or a.began <= first]
        # A report that came late lifts a doubt, and the next attempt leaves another: more were let in than could have been before the first.
        lifted = (case.stored["fence"] or 0) > sum(was_let_in(a) for a in early)
        if not any(leaves_doubt(a) for a in (case.attempts if lifted else early)):
            yield case.name, "it is in doubt, and every attempt at it has a definite answer"


@rule(online=True)
def decided_for_good(story):
    """Promise 5: what an operator has decided is stored, and nobody is told "in doubt" any more."""
    for record in story.decided:
        case = story.case(name_of(story.intents[record["intent"]]))
        row = case.stored
        if row is not None and (row["state"], row["body"]) != ("succeeded", record["body"]):
            yield case.name, f"an operator decided that it succeeded with {record['body']}, and stored is {(row['state'], row['body'])}"
        for attempt in case.attempts:
            if attempt.began > record["t"] and attempt.verdict == "in_doubt":
                yield case.name, f"{attempt} was told in_doubt after an operator's decision"


@rule(online=True)
def asked_in_time(story):
    """Promise 5: what is in doubt is decided by verify only when its attempt's lease has passed: until then it may still act. An answer that nobody acts on
    is no breach, since the row had changed meanwhile; nor is a clock that was set back in between."""
    early = {(*name_of(row), row["fence"]) for row in story.rows("questions") if (row["lease_until"] or 0) > max(row["began"], row["at"])}
    for row in story.rows("decided_early"):
        if (*name_of(row), row["fence"]) in early:
            yield name_of(row), f"attempt {row['fence']} was in doubt, and verify decided while its lease held for {row['lease_until'] - row['at']:.1f} s"


@rule(online=False)
def verify_is_believed(story):
    """Promise 5: what verify says is what is decided: what happened is a success, and what is absent is not there and does not come."""
    for row in story.rows("questions"):
        case = story.case(name_of(row))
        if row["answer"] == "happened" and case.stored is not None and case.stored["state"] not in (None, "succeeded"):
            yield case.name, f"verify answered happened of attempt {row['fence']}, and the intent is {case.stored['state']}"
        if row["answer"] == "absent" and any(effect["fence"] <= row["fence"] for effect in case.effects):
            yield case.name, f"verify answered absent of attempt {row['fence']}, and an effect is there of that attempt or an earlier one"


def was_let_in(attempt):
    """It ran, and failed; not: it met no database."""
    return attempt.verdict == "failed" and not attempt.answer["code"].startswith(("connect", "lost", "08", "25", "40", "53", "55", "57"))


def leaves_doubt(attempt):
    """Nobody knows how it ended. Who is told "in doubt" met what another left; only a command may have been in doubt about itself. loose: it did
    nothing, but its claim may have been granted. A service whose connection was lost claims anew: after a whole lease it may meet its own claim, of which it
    has never heard."""
    if attempt.answer and attempt.answer.get("loose"):
        return True
    of_its_own = attempt.intent["door"] == "run" or (attempt.intent["mode"] in ELSEWHERE and attempt.answer and attempt.ended - attempt.began >= LEASE_S)
    return attempt.verdict in (None, "unknown") or (attempt.verdict == "in_doubt" and of_its_own)


@rule(online=False)
def nothing_stuck(story):
    """No intent is left running when nobody works at it."""
    for row in story.rows("stuck"):
        yield name_of(row), f"it runs for ever: its lease ended {row['now'] - row['lease_until']:.0f} s ago"
    for case in story.cases.values():
        row = case.stored
        if row is None or row["state"] != "processing":
            continue
        held = row["lease_until"] is not None and row["lease_until"] > story.facts["now"]
        if not (held and story.had_fault("clock")):  # a lease taken while the clock was ahead lasts until then
            yield case.name, f"it still runs, under a lease until {row['lease_until']} (now {story.facts['now']})"


@rule(online=False)
def all_answered(story):
    """Whoever goes on asking is answered in the end: with the outcome, with a refusal, or that it is in doubt."""
    if story.phase("finished") is None:
        return
    for case in story.cases.values():
        if not case.attempts or case.direct or any(a.verdict in ("acknowledged", "refused", "expired") for a in case.attempts):
            continue
        row = case.stored
        if all(a.number in story.given_up for a in case.attempts):
            continue
        if any(a.verdict == "in_doubt" for a in case.attempts) or (row and row["state"] in ("in_doubt", "processing")):
            continue  # other rules judge these
        if all(a.verdict == "mismatch" for a in case.attempts):
            yield case.name, "every attempt was told that the key is another request's, and there is none"
        elif not all(a.payload != a.intent["payload"] or a.name[0] != a.intent["tenant"] for a in case.attempts):
            last = case.attempts[-1]
            yield case.name, f"{len(case.attempts)} attempts, and none was answered; the last: {last.verdict} ({(last.answer or {}).get('code')})"


@rule(online=False)
def service_returns(story):
    """After all is healed every door that is used acknowledges something within two minutes: a broker that was killed last takes one to be back, on a loaded machine."""
    healed = story.phase("healed")
    if healed is None:
        return
    for door, first, answered in returns(story, healed):
        if answered is None or answered - max(healed, first) > SERVICE_RETURNS_S:
            after = "never" if answered is None else f"after {answered - max(healed, first):.0f} s"
            yield ("door", door), f"it acknowledged {after}, from when all was healed"


def returns(story, since):
    """For each door: (door, the first attempt that was open after `since`, the first acknowledgement after it)."""
    first, answered = {}, {}
    for attempt in story.attempts.values():
        door = attempt.intent["door"]
        if attempt.ended is not None and attempt.ended < since:
            continue
        if attempt.began >= since:
            first[door] = min(first.get(door, attempt.began), attempt.began)
        if attempt.verdict == "acknowledged":
            answered[door] = min(answered.get(door, attempt.ended), attempt.ended)
    # A door of which all is in doubt or refused by then has nothing to acknowledge.
    owed = {a.intent["door"] for a in story.attempts.values() if a.began >= since and a.verdict in (None, "unknown", "busy", "failed", "acknowledged")}
    return [(door, first[door], answered.get(door)) for door in sorted(first) if door in owed]


def check(history, facts, online=False):
    """All violations, by rule. online: the run goes on, and only what can't change any more is judged. The log must have been read before
    the facts then."""
    story = Story(history, facts)
    found = []
    for name, (judge, while_running) in RULES.items():
        if while_running or not online:
            found += [Violation(name, who, text) for who, text in judge(story)]
    return found
