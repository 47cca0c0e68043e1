# SPDX-License-Identifier: PostgreSQL
"""The judge is judged: for each rule made-up runs that keep it, and one for each way to break it, which exactly that rule notices. The tables
have a line for each; the functions below them are runs that need more. That the judge notices the real system without a guarantee, and is silent
with it, is for mutations.py."""

import base64
import hashlib

import pytest

from . import checker

WHILE_IT_RUNS = {
    "at_most_one", "one_effect_per_acknowledged", "none_for_refused", "nothing_of_the_broken", "under_its_fence", "fences_rise", "told_at_once", "open_on_one_node",
    "same_bytes", "asked_anew", "whole_answers", "tenants_apart", "expired_never_reopens", "order_per_aggregate", "published_in_order",
    "sleeper_is_silent", "consumer_exactly_once", "partitions_read", "none_blamed", "none_buried", "dumps_restore", "decided_for_good", "asked_in_time",
}  # fmt: skip


class Run:
    """A made-up run that keeps every promise. Its methods add to the log and to what the databases hold; the tests break something."""

    def __init__(self):
        self.records, self.t = [], 0.0
        self.facts = {
            **{what: [] for what in ("effects", "ledger", "events", "published", "applied", "intents", "stuck", "parked_events", "parked_messages", "dead", "sleeps", "turns", "branch", "branch_events")},
            "copies": ["torture"],
            "now": 1000.0,
            "t": 1000.0,
        }
        self.phase("started")

    def log(self, kind, **fields):
        self.t += 1.0
        self.records.append({"t": self.t, "kind": kind, **fields})
        return self.records[-1]

    def phase(self, phase):
        self.log("phase", phase=phase)

    def intent(self, number=1, key=None, door="sql", **fields):
        record = {"intent": number, "door": door, "mode": "transaction", "tenant": "a", "scope": "s", "key": key or f"k{number}", "uuid7": False,
                  "payload": f"pay {number}", "aggregate": None, "forget_after_s": None, **fields}  # fmt: skip
        self.log("intent", **record)
        return record

    def begin(self, intent, attempt=1, **fields):
        self.log("attempt", intent=intent["intent"], attempt=attempt, client="c", **fields)

    def end(self, intent, attempt=1, verdict="acknowledged", code="00000", **fields):
        if verdict == "acknowledged":
            fields = {"status": 201, "body": answer_of(intent), **fields}
        self.log("answer", intent=intent["intent"], attempt=attempt, verdict=verdict, code=code, **fields)

    def attempt(self, intent, attempt=1, verdict="acknowledged", begin=(), **fields):
        self.begin(intent, attempt, **dict(begin))
        self.end(intent, attempt, verdict, **fields)

    def effect(self, intent, attempt=1, table="effects", **fields):
        row = {"tenant": intent["tenant"], "scope": intent["scope"], "key": intent["key"], "payload": intent["payload"], "intent": intent["intent"],
               "attempt": attempt, "door": intent["door"], "at": self.t, "aggregate": None, "step": None, "events": 0, **fields}  # fmt: skip
        self.facts[table].append(row)
        return row

    def stored(self, intent, state="succeeded", **fields):
        answered = {"status": 201, "body": answer_of(intent)} if state == "succeeded" else {"status": None, "body": None}
        row = {"tenant": intent["tenant"], "scope": intent["scope"], "key": intent["key"], "state": state, "fence": 1, "attempts": 1,
               "lease_until": None, "archived": False, "error_code": None, **answered, **fields}  # fmt: skip
        self.facts["intents"].append(row)
        return row

    def done(self, number=1, **fields):
        """An intent with everything that belongs to it."""
        intent = self.intent(number, **fields)
        self.attempt(intent)
        self.effect(intent)
        self.stored(intent)
        return intent

    def event(self, effect, nth=1):
        """It is emitted and arrives."""
        name = {field: effect[field] for field in ("tenant", "scope", "key", "aggregate", "step")}
        self.facts["events"].append({"event_id": f"{effect['key']}/{nth}", "nth": nth, **name})
        self.publish(effect["step"], nth, effect["aggregate"])
        self.arrive(self.facts["events"][-1])

    def publish(self, step, nth=1, aggregate="g", by="relay-a", at=None, relay="torture", event_id=None):
        """at: None: the broker does not say."""
        self.facts["published"].append({"tenant": "a", "scope": "s", "key": f"k{step}", "aggregate": aggregate, "step": step, "nth": nth, "by": by, "at": at,
                                        "relay": relay, "event_id": event_id or f"k{step}/{nth}"})  # fmt: skip

    def mirrored(self, count=3, events=1):
        """As ordered, with a second relay."""
        self.facts["copies"] = ["torture", "mirror"]
        self.ordered(count, events)
        for step in range(1, count + 1):
            for nth in range(1, events + 1):
                self.publish(step, nth, relay="mirror")

    def arrive(self, event, **fields):
        applied = self.facts["applied"]
        applied.append({"position": len(applied) + 1, "message_id": event["event_id"], "direct": False,
                        **{k: v for k, v in event.items() if k != "event_id"}, **fields})  # fmt: skip

    def ordered(self, count=3, events=1):
        """Intents of one aggregate, each with its step and its events."""
        for number in range(1, count + 1):
            intent = self.done(number, aggregate="g", events=events)
            self.facts["effects"][-1].update(aggregate="g", step=number, events=events)
            for nth in range(1, events + 1):
                self.event(self.facts["effects"][-1], nth)
            assert intent

    def branched(self, step, key=None, events=1, event_id=None):
        """The effect of that step happens in the second database, too; its events arrive."""
        effect = {"tenant": "a", "scope": "s", "key": key or f"k{step}", "aggregate": "branch/g", "step": step, "events": events}
        self.facts["branch"].append(effect)
        for nth in range(1, events + 1):
            event = {**{field: effect[field] for field in ("tenant", "scope", "key", "aggregate", "step")}, "nth": nth,
                     "event_id": event_id or f"branch/{effect['key']}/{nth}"}  # fmt: skip
            self.facts["branch_events"].append(event)
            self.arrive(event, branch=True)

    def message(self, number=9, verdict="acknowledged"):
        intent = self.intent(number, key=f"m{number}", door="message", scope="messages", mode="inbox")
        self.attempt(intent, verdict=verdict)
        return intent

    def message_arrives(self, intent):
        self.arrive({"event_id": intent["key"], "tenant": "a", "scope": "messages", "key": intent["key"], "aggregate": None, "step": None, "nth": 1},
                    direct=True)  # fmt: skip

    def story(self, attempts, effects=(), stored="succeeded", facts=None, finished=False, **fields):
        """An intent with these attempts: a verdict each, "begins" if it never ends, or (verdict, more fields). effects: the numbers of the attempts that
        made one, or (number, more fields). stored: the states of its rows in once.intent, or (state, more fields)."""
        intent = self.intent(**fields)
        for number, each in enumerate(attempts, 1):
            verdict, more = each if isinstance(each, tuple) else (each, {})
            if verdict == "begins":
                self.begin(intent, number, **more)
            else:
                self.attempt(intent, number, verdict, **more)
        for each in effects:
            number, more = each if isinstance(each, tuple) else (each, {})
            self.effect(intent, number, **more)
        for each in stored if isinstance(stored, list) else [stored]:
            state, more = each if isinstance(each, tuple) else (each, {})
            self.stored(intent, state, **more)
        self.facts.update(facts or {})
        if finished:
            self.phase("finished")

    def check(self, online=False):
        return checker.check(self, self.facts, online)

    def broken(self):
        """The rules. What can be judged while the run goes on is found then, too."""
        broken, early = ({violation.rule for violation in self.check(online)} for online in (False, True))
        assert early == broken & WHILE_IT_RUNS
        return broken


def answer_of(intent):
    return base64.b64encode(f"answer {intent['intent']}".encode()).decode()


@pytest.fixture
def run():
    return Run()


def test_a_run_that_keeps_everything_is_clean(run):
    """All that is allowed, at once: nothing of it may be taken for a violation."""
    run.ordered(count=4, events=2)
    lost = run.intent(10)
    run.attempt(lost, verdict="unknown", code="08006")
    run.attempt(lost, 2, verdict="busy", code="P4029")
    run.attempt(lost, 3, replayed=True)
    run.attempt(lost, 4, verdict="mismatch", code="P4002", begin={"payload": "other"}.items())
    run.effect(lost)
    run.stored(lost)
    for doubt, table in ((run.intent(11, door="http", at_most=True), None), (run.intent(12, door="run", at_most=True), "ledger")):
        run.begin(doubt)
        run.attempt(doubt, 2, verdict="in_doubt", code="P4031")
        run.stored(doubt, "in_doubt")
        if table:
            run.effect(doubt, table=table)
    other = run.intent(13)  # the same key, of two tenants
    run.attempt(other)
    run.effect(other)
    run.stored(other)
    run.attempt(other, 2, begin={"tenant": "b"}.items(), body="b3RoZXI=")
    run.effect(other, 2, tenant="b")
    run.stored(other, tenant="b", body="b3RoZXI=")
    failed = run.intent(14, final=True)
    for attempt in (1, 2):
        run.attempt(failed, attempt, status=422)
    run.stored(failed, "failed_final", status=422, body=answer_of(failed))
    late = run.intent(15, uuid7=True)
    run.attempt(late, verdict="expired", code="P4041")
    run.stored(late, None)
    gone = run.intent(16, forget_after_s=30)
    run.attempt(gone)
    run.effect(gone)
    run.stored(gone, None)
    sent = run.message()
    run.message_arrives(sent)
    run.message(8, verdict="unknown")
    run.phase("healed")
    after = run.intent(20)
    run.attempt(after)
    run.effect(after)
    run.stored(after)
    run.phase("finished")
    assert run.check() == []
    assert run.check(online=True) == []


# What becomes of one intent.

DONE = "acknowledged"
OTHER = "b3RoZXI="
HALF = base64.b64encode(b"the who").decode()
WHOLE_DIGEST, HALF_DIGEST = (hashlib.sha256(text).hexdigest() for text in (b"the whole answer", b"the who"))
FAILED = ("failed_final", {"status": 422, "body": answer_of({"intent": 1})})
REFUSED = {"final": True, "at_most": True}
ANOTHERS = (DONE, {"begin": {"payload": "other"}})


def as_tenant_b(**fields):
    return (DONE, {"begin": {"tenant": "b"}, **fields})


def under_fence(of_the_effect, table="effects"):
    return {"effects": [(1, {"fence": of_the_effect, "table": table})], "facts": {"fences": [{"tenant": "a", "scope": "s", "key": "k1", "fence": 2}]}}


def broken_off(neighbour):
    return ("unknown", {"code": "201 cut", "begin": {"neighbour": neighbour}})


STORIES = [  # (what, how, the rules that are broken)
    ("two effects of one intent", {"attempts": [DONE], "effects": [1, (1, {"table": "ledger"})]}, "at_most_one"),
    ("two effects of an intent that nobody was told of", {"attempts": ["begins", "in_doubt"], "effects": [1, 1], "stored": "in_doubt", "at_most": True}, "at_most_one"),
    ("acknowledged without an effect", {"attempts": [DONE]}, "one_effect_per_acknowledged"),
    ("a final failure with an effect", {"attempts": [(DONE, {"status": 422})], "effects": [1], "stored": FAILED, "final": True}, "one_effect_per_acknowledged"),
    ("the effect of another request", {"attempts": [DONE, ("unknown", {"begin": {"payload": "other"}})], "effects": [(2, {"payload": "other"})]}, "one_effect_per_acknowledged"),
    *(
        (f"a refusal at {door}/{mode} {what}", {"attempts": [(DONE, {"status": 422})], "stored": stored, "door": door, "mode": mode, **REFUSED}, broken)
        for door, mode in (("http", "http"), ("java", "leased"), ("go", "leased"), ("java", "http"))
        for what, stored, broken in (("stored as a success", ("succeeded", {"status": 422}), "same_bytes"), ("stored as a final failure", FAILED, ""))
    ),
    *(
        (f"an answer broken off by {each}, {what}", {"attempts": [broken_off(each), *then], "effects": effects}, broken)
        for each in checker.BREAKS
        for what, then, effects, broken in (
            ("and the next attempt may run", [(DONE, {"begin": {"neighbour": "pieces"}}), (DONE, {"replayed": True, "begin": {"neighbour": each}})], [2], ""),
            ("whose effect stays", [(DONE, {"replayed": True})], [1], "nothing_of_the_broken"),
        )
    ),
    ("an answer that was broken off and is acknowledged", {
        "attempts": [(DONE, {"replayed": False, "begin": {"neighbour": "destroy"}}), (DONE, {"replayed": True})], "effects": [2]}, "nothing_of_the_broken"),
    *(
        (f"half an answer that every attempt gets, {what}", {
            "attempts": [(DONE, {"body": HALF}), (DONE, {"body": HALF, "replayed": True})], "effects": [(1, {"digest": digest})],
            "stored": ("succeeded", {"body": HALF}), "door": "http", "mode": "handoff"}, broken)
        for what, digest, broken in (("of a whole one", WHOLE_DIGEST, "whole_answers"), ("which is all there was", HALF_DIGEST, ""))
    ),
    *((f"an effect of an attempt that was told {verdict}", {"attempts": [verdict, DONE], "effects": [1]}, "none_for_refused") for verdict in checker.NO_EFFECT if verdict != "expired"),
    ("an effect of an attempt that was told expired", {"attempts": ["expired"], "effects": [1], "stored": []}, "none_for_refused"),
    ("an effect of nobody", {"attempts": [DONE], "effects": [7]}, "none_for_refused"),
    ("an effect in another tenant's name", {
        "attempts": [DONE, as_tenant_b(body=OTHER)], "effects": [1, (1, {"tenant": "b"})], "stored": ["succeeded", ("succeeded", {"tenant": "b", "body": OTHER})]}, "none_for_refused"),
    ("an effect that was not asked for", {"attempts": ["unknown"], "effects": [(1, {"payload": "made up"})], "stored": "in_doubt", "at_most": True}, "none_for_refused"),
    ("an effect under a fence that was lost", {"attempts": [DONE], "mode": "fenced", **under_fence(1)}, "under_its_fence"),
    ("an effect under the fence that is stored", {"attempts": [DONE], "mode": "fenced", **under_fence(2)}, ""),
    ("an effect elsewhere that verify found under a later fence", {"attempts": [DONE], "mode": "verified", **under_fence(1, "ledger")}, ""),
    ("a second attempt that is refused only at its end", {"attempts": [DONE, ("failed", {"code": "P4010"})], "effects": [1]}, "told_at_once"),
    ("a second attempt that lost its lease", {"attempts": [DONE, ("failed", {"code": "P4010"})], "effects": [1], "mode": "leased"}, ""),
    # Answers.
    ("a replay with other bytes", {"attempts": [DONE, (DONE, {"body": OTHER})], "effects": [1]}, "same_bytes"),
    ("a replay with another status", {"attempts": [DONE, (DONE, {"status": 200})], "effects": [1]}, "same_bytes"),
    ("an answer that is not what is stored", {"attempts": [DONE], "effects": [1], "stored": ("succeeded", {"body": OTHER})}, "same_bytes"),
    *(
        (f"a later attempt that is told {verdict} {what}", {"attempts": [DONE, verdict], "effects": [1], "forget_after_s": forget_after_s}, broken)
        for verdict in ("in_doubt", "expired")
        for what, forget_after_s, broken in (("instead", None, "same_bytes"), ("after the retention", -100, ""))
    ),
    *(
        (f"an answer that was taken back: {state}", {"attempts": ["begins", DONE], "effects": [2], "stored": state, "at_most": True}, "same_bytes")
        for state in ("in_doubt", "failed_final", "failed_retryable")
    ),
    *(
        (f"an answer that is forgotten, of a retention of {seconds} s", {"attempts": [DONE], "effects": [1], "stored": None, "forget_after_s": seconds}, broken)
        for seconds, broken in ((None, "same_bytes"), (5000, "same_bytes"), (50, ""))
    ),
    ("two requests under one key, both acknowledged", {"attempts": [DONE, ANOTHERS], "effects": [1]}, "one_effect_per_acknowledged same_bytes"),
    ("the answer of another tenant's intent", {
        "attempts": [DONE, as_tenant_b()], "effects": [1, (2, {"tenant": "b"})], "stored": ["succeeded", ("succeeded", {"tenant": "b"})]}, "tenants_apart"),
    *(
        (f"an expired key that runs again: {verdict}", {"attempts": ["expired", verdict], "effects": [2], "stored": state, "uuid7": True, "at_most": True}, "expired_never_reopens")
        for verdict, state in ((DONE, "succeeded"), ("unknown", "in_doubt"))
    ),
    # Doubts.
    *(
        (f"a doubt without a reason, after {verdict}", {"attempts": [verdict, "in_doubt"], "stored": "in_doubt", "at_most": True}, "nothing_in_doubt")
        for verdict in ("busy", "failed")
    ),
    ("a doubt that a claim left behind may have made", {"attempts": [("failed", {"loose": True}), "in_doubt"], "stored": "in_doubt", "at_most": True}, ""),
    ("a doubt whose only reason came after it", {"attempts": ["failed", "in_doubt", "begins"], "stored": "in_doubt", "at_most": True}, "nothing_in_doubt"),
    *(
        (f"a doubt after {code}, left again under fence {fence}", {
            "attempts": [("failed", {"code": code}), "in_doubt", "begins"], "stored": ("in_doubt", {"fence": fence}), "at_most": True}, broken)
        for fence, code, broken in ((2, "503 upstream", ""), (1, "503 upstream", "nothing_in_doubt"), (1, "lost", ""))
    ),
    # Its own work may have been what nobody knows the end of: a command that was killed, a service that broke off.
    ("a doubt that the attempt itself was told of", {"attempts": [("in_doubt", {"code": "exit 77"})], "stored": "in_doubt", "at_most": True, "door": "run"}, ""),
    ("a doubt where it can be found out", {"attempts": ["begins"], "stored": "in_doubt"}, "nothing_in_doubt"),
    # The end.
    ("an intent that runs for ever", {"attempts": ["begins"], "stored": ("processing", {"lease_until": 900.0})}, "nothing_stuck"),
    ("an intent that the contract calls stuck", {
        "attempts": ["begins"], "stored": [], "facts": {"stuck": [{"tenant": "a", "scope": "s", "key": "k1", "lease_until": 900.0, "now": 1000.0}]}}, "nothing_stuck"),
    *(
        (f"an intent that is told {verdict} and nothing else, {what}", {"attempts": [verdict], "stored": [], "finished": finished}, broken)
        for verdict in ("unknown", "failed", "busy", "begins")
        for what, finished, broken in (("so far", False, ""), ("to the end", True, "all_answered"))
    ),
    ("a key that is another request's which nobody made", {"attempts": ["mismatch"], "stored": [], "finished": True}, "all_answered"),
]  # fmt: skip


@pytest.mark.parametrize("what, how, broken", STORIES, ids=[what for what, _, _ in STORIES])
def test_what_becomes_of_one_intent_is_judged(run, what, how, broken):
    run.story(**how)
    assert run.broken() == set(broken.split())


@pytest.mark.parametrize("fences, broken", [((1, 2, 5, 6), set()), ((1, 2, 2), {"fences_rise"}), ((3, 1), {"fences_rise"}), ((1, 4, 2, 3), {"fences_rise"})])
def test_a_fence_that_a_key_has_had_before(run, fences, broken):
    run.log("granted", tenant="b", scope="s", key="k", fence=9, how="start")
    for fence in fences:
        run.log("granted", tenant="a", scope="s", key="k", fence=fence, how="new_claim")
    assert run.broken() == broken
    assert all(violation.name == ("a", "s", "k") for violation in run.check())


def test_a_slot_that_is_open_on_two_nodes_at_some_moment(run):
    run.log("open_twice", slot=7, on=[["node-a", 1], ["node-b", 2]])
    assert run.broken() == {"open_on_one_node"}


@pytest.mark.parametrize("more, broken", [([], True), ([7], False), ([7, 7], True)], ids=["nowhere", "once", "twice"])
def test_a_slot_that_is_not_open_once_in_the_end(run, more, broken):
    slots = [slot for slot in range(64) if slot != 7] + more
    run.facts["slots"] = [{"node": "node-a", "slot": slot, "epoch": 1} for slot in slots]
    assert run.broken() == ({"open_on_some_node"} if broken else set())


def test_events_that_nobody_applies_are_not_lost(run):
    run.ordered()
    run.facts["applied"].clear()
    run.facts["consumed"] = False
    assert run.broken() == set()


def test_an_attempt_that_was_at_work_when_the_key_expired_for_another(run):
    intent = run.intent(uuid7=True)
    run.begin(intent, 1)
    run.attempt(intent, 2, verdict="expired")
    run.end(intent, 1)
    run.effect(intent, 1)
    run.stored(intent)
    assert run.broken() == set()


# Events and messages.


def swap(rows, one, other):
    rows[one], rows[other] = rows[other], rows[one]


def ordered(run, change, **fields):
    run.ordered(**fields)
    change(run.facts)


def mirrored(run, change=lambda facts: None, **fields):
    run.mirrored(**fields)
    change(run.facts)


def leave_out(facts, relay):
    facts["published"].remove(next(row for row in facts["published"] if row["relay"] == relay and row["step"] == 2))


def under_another_id(run, event_id):
    mirrored(run, lambda facts: facts["published"].pop())
    run.publish(3, relay="mirror", event_id=event_id)


def two_databases(run):
    run.ordered()
    for step in (1, 2, 3):
        run.branched(step)


def never_arrives_from_the_branch(run, step):
    two_databases(run)
    applied = run.facts["applied"]
    applied.remove(next(row for row in applied if row.get("branch") and row["step"] == step))


def one_id(run):
    run.ordered()
    run.branched(1, event_id="k1/1")


def sleeps(run, *late, aggregate="g"):
    """relay-a publishes a step and is stopped at 10, while it sends the next one; relay-b goes on from there at 12; then relay-a publishes these."""
    run.facts["copies"] = []
    run.facts["sleeps"].append({"by": "relay-a", "since": 10.0})
    run.facts["turns"] += [{"by": "relay-a", "at": 1.0}, {"by": "relay-b", "at": 11.0}]
    run.publish(1, at=9.0)
    run.publish(2, at=10.1)
    for step in (2, 3, 4, 5):
        run.publish(step, by="relay-b", at=12.0)
    for step in late:
        run.publish(step, at=15.0)


def takes_over_again(run):
    sleeps(run, 3, 4, 5, 6)
    run.facts["turns"].append({"by": "relay-a", "at": 14.0})


def sends_again_what_it_had(run):
    sleeps(run, 1, 2)
    run.publish(1, aggregate="h", at=15.0)


def one_step_of_two_effects(facts):
    for what in ("effects", "events", "applied"):
        facts[what][1]["step"] = 1


def emitted_by(run, with_effect):
    run.ordered()
    intent = run.intent(30)
    run.attempt(intent, verdict="failed")
    run.event({**run.effect(intent), "aggregate": "h", "step": 1})
    if not with_effect:
        run.facts["effects"].pop()


def arrives_again(run, **fields):
    run.ordered()
    run.arrive({**run.facts["events"][0], **fields})


def message_arrives_twice(run):
    sent = run.message()
    run.message_arrives(sent)
    run.message_arrives(sent)


EVENTS = [  # (what, how, the rules that are broken)
    ("an effect without its event", lambda run: ordered(run, lambda facts: (facts["events"].pop(), facts["applied"].pop())), "event_iff_effect nothing_lost"),
    ("an effect with one of its two events", lambda run: ordered(run, lambda facts: (facts["events"].pop(), facts["applied"].pop()), events=2), "event_iff_effect nothing_lost"),
    ("an event of a refused attempt's effect", lambda run: emitted_by(run, True), "none_for_refused event_iff_effect"),
    ("an event without an effect", lambda run: emitted_by(run, False), "event_iff_effect"),
    ("an event that only arrived and whose row is retired already", lambda run: ordered(run, lambda facts: facts["events"].clear()), ""),
    ("events of an aggregate out of order", lambda run: ordered(run, lambda facts: swap(facts["applied"], 0, 1)), "order_per_aggregate"),
    ("two events of one effect out of order", lambda run: ordered(run, lambda facts: swap(facts["applied"], 0, 1), events=2), "order_per_aggregate"),
    ("an event that was left out", lambda run: ordered(run, lambda facts: facts["applied"].pop(1)), "order_per_aggregate nothing_lost"),
    ("an event that never arrives", lambda run: ordered(run, lambda facts: facts["applied"].pop()), "nothing_lost"),
    ("a step that two effects took", lambda run: ordered(run, one_step_of_two_effects), "order_per_aggregate"),
    ("events that are published out of order", lambda run: ordered(run, lambda facts: swap(facts["published"], 1, 2)), "published_in_order"),
    ("an event that is published again after newer ones", lambda run: (run.ordered(), run.publish(1)), ""),
    ("two relays whose copies are whole", lambda run: (run.mirrored(events=2), run.publish(1, relay="mirror")), ""),
    *(
        (f"an event that the relay {relay}, one of two, leaves out", lambda run, relay=relay: mirrored(run, lambda facts: leave_out(facts, relay)), "each_relay_whole published_in_order")
        for relay in ("torture", "mirror")
    ),
    ("an event that one of two relays has not published yet", lambda run: mirrored(run, lambda facts: facts["published"].pop()), "each_relay_whole"),
    ("two relays each of which publishes in an order of its own", lambda run: mirrored(run, lambda facts: facts["published"].sort(
        key=lambda row: (row["relay"], row["step"] if row["relay"] == "torture" else -row["step"]))), "published_in_order"),
    ("an event that a relay publishes under an id of no event", lambda run: under_another_id(run, "another"), "each_relay_whole"),
    ("an event that a relay publishes under another's id", lambda run: under_another_id(run, "k1/1"), "each_relay_whole"),
    ("an event that a relay publishes and no effect has", lambda run: (run.mirrored(), run.publish(4, relay="mirror")), "each_relay_whole"),
    ("events of equal names in two databases", two_databases, ""),
    ("events of two databases that have one id, both applied", one_id, "databases_apart consumer_exactly_once"),
    ("events of two databases that have one id, which the inbox knows", lambda run: (one_id(run), run.facts["applied"].pop()), "databases_apart"),
    ("the last event of the second database, which never arrives", lambda run: never_arrives_from_the_branch(run, 3), "databases_apart"),
    ("an event of the second database that never arrives", lambda run: never_arrives_from_the_branch(run, 2), "databases_apart order_per_aggregate"),
    ("an event of the second database that is applied twice", lambda run: (
        two_databases(run), run.arrive({**run.facts["branch_events"][0], "event_id": "another"}, branch=True)), "databases_apart"),
    ("an event of the second database without its effect", lambda run: (two_databases(run), run.facts["branch"].pop()), "databases_apart"),
    ("events of the second database out of order", lambda run: (two_databases(run), swap(run.facts["applied"], 3, 4)), "order_per_aggregate"),
    ("a relay that slept through a takeover and goes on with what it had", lambda run: sleeps(run, 3), "sleeper_is_silent"),
    ("a relay that slept through a takeover and goes on with all it had", lambda run: sleeps(run, 3, 4), "sleeper_is_silent"),
    ("a relay that slept through a takeover and sends what it was sending or had published", sends_again_what_it_had, ""),
    ("a relay that slept through a takeover and takes over again", takes_over_again, ""),
    ("an event that is applied twice", arrives_again, "consumer_exactly_once"),
    ("an event that is applied under two ids", lambda run: arrives_again(run, event_id="another"), "consumer_exactly_once"),
    ("a published message that is applied twice", message_arrives_twice, "consumer_exactly_once"),
    ("a message of nobody", lambda run: run.message_arrives({"key": "m5"}), "consumer_exactly_once"),
    ("a message that the broker took and that never arrives", lambda run: run.message(), "nothing_lost"),
    *(
        (f"{what} in the end", lambda run, what=what: run.facts[what].append({"text": "message 7 of orders"}), "nothing_lost")
        for what in ("parked_events", "parked_messages")
    ),
    ("an event that is blamed for its batch", lambda run: run.facts.update(blamed=[{"by": "relay-a", "text": "event=parked attempts=1"}]), "none_blamed"),
    ("what is given up", lambda run: run.facts["dead"].append({"text": "message 7 of orders"}), "none_buried"),
]  # fmt: skip


@pytest.mark.parametrize("what, how, broken", EVENTS, ids=[what for what, _, _ in EVENTS])
def test_what_becomes_of_events_and_messages_is_judged(run, what, how, broken):
    how(run)
    assert run.broken() == set(broken.split())


def partitions(run, ages, applied, parked=()):
    """Records of two partitions, the first of the second one so many seconds before the rest; those of which the message is not applied, or parked, wait."""
    run.facts["records"] = [{"partition": int(name[1]), "offset": number, "at": 1000.0 - ages.get(name, 0), "message_id": name}
                            for number, name in enumerate(("p0a", "p0b", "p1a", "p1b"))]  # fmt: skip
    for name in applied:
        sent = run.intent(len(run.records), key=name, door="message", scope="messages", mode="inbox")
        run.attempt(sent)
        run.message_arrives(sent)
    run.facts["parked_messages"] = [{"text": name} for name in parked]


@pytest.mark.parametrize("waits_s, applied, parked, broken", [
    (61, ("p0a", "p0b"), (), True), (59, ("p0a", "p0b"), (), False), (61, ("p0a", "p0b"), ("p1a", "p1b"), False), (61, ("p0a", "p0b", "p1a"), (), False),
    (61, (), (), False),  # nobody is read
])  # fmt: skip
def test_a_partition_that_waits_while_others_are_read(run, waits_s, applied, parked, broken):
    partitions(run, {"p1a": waits_s}, applied, parked)
    assert {violation.rule for violation in run.check(online=True)} == ({"partitions_read"} if broken else set())


@pytest.mark.parametrize("offsets, broken", [((2, 4), False), ((2, 3), True), ((0, 4), True), ((2, 9), False)])
def test_a_partition_that_has_something_left_in_the_end(run, offsets, broken):
    partitions(run, {}, ("p0a", "p0b", "p1a", "p1b"))
    run.facts["committed"] = [{"partition": partition, "offset": offset} for partition, offset in enumerate(offsets)]
    assert run.broken() == ({"partitions_read"} if broken else set())


# Dumps.


@pytest.mark.parametrize("fields, broken", [
    ({}, False), ({"said": "ERROR:  42601: syntax error"}, True), ({"has": {"intents": [3, "x"], "effects": [1, "y"]}}, True),
    ({"has": {"intents": [2, "x"]}}, True), ({"replayed": [201, "other"]}, True), ({"replayed": "proceed"}, True), ({"has": {"intents": [2, "z"], "effects": [1, "y"]}}, True),
    ({"relay": "P4080"}, False), ({"relay": "taken"}, True),
])  # fmt: skip
def test_a_dump_that_is_not_what_it_was_taken_of(run, fields, broken):
    held = {"intents": [2, "x"], "effects": [1, "y"]}
    run.log("dumped", **{"had": held, "has": held, "stored": [201, "b"], "replayed": [201, "b"], **fields})
    assert run.broken() == ({"dumps_restore"} if broken else set())


# What is known in the end.


@pytest.mark.parametrize("mode, took_s, broken", [("endpoint", 5, set()), ("endpoint", 3, {"nothing_in_doubt"}), ("doubtful", 5, {"nothing_in_doubt"})])
def test_a_doubt_of_a_claim_that_its_service_has_never_heard_of(run, mode, took_s, broken):
    intent = run.intent(at_most=True, door="java", mode=mode)
    run.begin(intent)
    run.t += took_s - 1
    run.end(intent, verdict="in_doubt")
    run.stored(intent, "in_doubt", error_code="stale")
    assert run.broken() == broken


def asked(run, answer, state, effect=None, **question):
    """An intent of which verify was asked, once, about its second attempt. effect: the fence of the one that is there."""
    intent = run.intent()
    run.begin(intent)
    if effect:
        run.effect(intent, table="ledger", fence=effect)
    run.stored(intent, state, fence=3)
    about = {"tenant": "a", "scope": "s", "key": "k1", "fence": 2, "lease_until": None, "at": 991.0}
    run.facts["questions"] = [{**about, "began": 990.0, "answer": answer, **question}]
    return about


@pytest.mark.parametrize("lease_until, began, decided, broken", [
    (991.5, 990.0, 991.2, True), (990.5, 990.0, None, False), (None, 990.0, None, False),
    (991.5, 990.0, None, False),  # its answer was for nothing
    (1500.0, 2000.0, 991.2, False),  # the clock was set back
])  # fmt: skip
def test_a_doubt_that_verify_decides_while_the_attempt_has_its_lease(run, lease_until, began, decided, broken):
    about = asked(run, "absent", "failed_retryable", lease_until=lease_until, began=began)
    run.facts["decided_early"] = [{**about, "lease_until": lease_until, "at": decided}] if decided else []
    assert run.broken() == ({"asked_in_time"} if broken else set())


@pytest.mark.parametrize("answer, state, effect, broken", [
    ("happened", "succeeded", 2, False), ("happened", "failed_retryable", 2, True), ("absent", "succeeded", 3, False), ("absent", "failed_final", None, False),
    ("absent", "succeeded", 2, True), ("absent", "succeeded", 1, True), ("unknown", "succeeded", 2, False),
])  # fmt: skip
def test_what_verify_said_and_what_became_of_it(run, answer, state, effect, broken):
    asked(run, answer, state, effect)
    assert run.broken() == ({"verify_is_believed"} if broken else set())


def decided(run, **stored):
    """Nobody knows how it ended; an operator does."""
    intent = run.intent(at_most=True)
    run.begin(intent)
    run.effect(intent, table="ledger")
    run.attempt(intent, 2, verdict="in_doubt")
    run.log("decided", intent=1, body=answer_of(intent))
    run.stored(intent, **stored)
    return intent


def test_what_an_operator_has_decided_is_the_answer(run):
    intent = decided(run)
    run.attempt(intent, 3, replayed=True)
    assert run.broken() == set()


@pytest.mark.parametrize("stored", [{"state": "in_doubt"}, {"body": base64.b64encode(b"a late report's").decode()}])
def test_a_decision_that_did_not_last(run, stored):
    decided(run, **stored)
    assert run.broken() == {"decided_for_good"}


def test_a_doubt_after_an_operator_has_decided(run):
    intent = decided(run)
    run.attempt(intent, 3, verdict="in_doubt")
    assert run.broken() == {"decided_for_good"}


def test_a_lease_from_a_clock_that_was_ahead(run):
    intent = run.intent()
    run.begin(intent)
    run.stored(intent, "processing", lease_until=90000.0)
    assert run.broken() == {"nothing_stuck"}
    run.log("fault", fault="clock", target="primary", action="begin", detail={})
    assert run.broken() == set()


def failover(run, detail="to postgres-b"):
    run.log("fault", fault="failover", target="primary", action="begin")
    run.log("fault", fault="failover", target="primary", action="end", detail=detail)


@pytest.mark.parametrize("after_s, asked, detail, broken", [
    (checker.NOTICED_S, False, "to postgres-b", {"asked_anew"}), (checker.NOTICED_S, True, "to postgres-b", set()),
    (checker.NOTICED_S - 3, False, "to postgres-b", set()), (checker.NOTICED_S, False, "not now: one of the two is down", set()),
])  # fmt: skip
def test_an_answer_from_memory_after_a_failover(run, after_s, asked, detail, broken):
    intent = run.done(door="http")
    run.attempt(intent, 2, cached=True, replayed=True)
    failover(run, detail)
    run.t += after_s
    if asked:
        run.attempt(intent, 3, replayed=True)
    run.attempt(intent, 4, cached=True, replayed=True)
    assert run.broken() == broken


@pytest.mark.parametrize("given_up", [True, False])
def test_an_intent_whose_client_asked_for_a_while_only(run, given_up):
    intent = run.intent(forget_after_s=45)
    run.attempt(intent, verdict="failed", code="lost")
    if given_up:
        run.log("given_up", intent=1)
    run.phase("finished")
    assert run.broken() == (set() if given_up else {"all_answered"})


def test_a_door_that_stays_shut(run):
    run.done()
    run.phase("healed")
    intent = run.intent(2, door="http")
    run.attempt(intent, verdict="unknown")
    assert run.broken() == {"service_returns"}
    run.t += checker.SERVICE_RETURNS_S
    run.attempt(intent, 2)
    run.effect(intent, 2)
    run.stored(intent)
    assert run.broken() == {"service_returns"}


def test_a_door_that_is_used_late_or_only_for_what_is_refused(run):
    run.phase("healed")
    run.t += 10 * checker.SERVICE_RETURNS_S
    run.done(door="lib")
    refused = run.intent(2, door="http", at_most=True)
    run.begin(refused)
    run.records[-1]["t"] = 0.5  # before all was healed
    run.attempt(refused, 2, verdict="in_doubt")
    run.stored(refused, "in_doubt")
    assert run.broken() == set()


def test_every_rule_is_broken_by_a_run_of_this_file_and_is_judged_when_it_can_be():
    text = open(__file__, encoding="utf-8").read()
    tables = {rule for _, _, broken in STORIES + EVENTS for rule in broken.split()}
    assert [name for name in checker.RULES if name not in tables and f'{{"{name}"}}' not in text] == []
    assert {name for name, (_, online) in checker.RULES.items() if online} == WHILE_IT_RUNS
