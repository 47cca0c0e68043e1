# SPDX-License-Identifier: PostgreSQL
"""The judge is judged: for each rule a run that keeps it, and one for each way to break it, which exactly that rule notices."""

import base64
import hashlib

import pytest

from . import checker


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

    def check(self, online=False):
        return checker.check(self, self.facts, online)

    def broken(self, online=False):
        return {violation.rule for violation in self.check(online)}


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


# Effects.


def test_two_effects_of_one_intent(run):
    intent = run.done()
    run.effect(intent, 1, table="ledger")
    assert run.broken() == run.broken(online=True) == {"at_most_one"}


def test_two_effects_of_an_intent_that_nobody_was_told_of(run):
    intent = run.intent(at_most=True)
    run.begin(intent)
    run.attempt(intent, 2, verdict="in_doubt")
    run.stored(intent, "in_doubt")
    run.effect(intent, 1)
    run.effect(intent, 1)
    assert run.broken() == {"at_most_one"}


def test_an_acknowledged_intent_without_its_effect(run):
    run.done()
    run.facts["effects"].clear()
    assert run.broken() == run.broken(online=True) == {"one_effect_per_acknowledged"}


@pytest.mark.parametrize("door, mode", [("http", "http"), ("java", "leased"), ("go", "leased"), ("java", "http")])
def test_a_refusal_is_a_final_failure_at_every_door(run, door, mode):
    intent = run.intent(final=True, at_most=True, door=door, mode=mode)
    run.attempt(intent, status=422)
    run.stored(intent, status=422, body=answer_of(intent))
    assert run.broken() == {"same_bytes"}
    run.facts["intents"].clear()
    run.stored(intent, "failed_final", status=422, body=answer_of(intent))
    assert run.broken() == set()


def test_a_final_failure_with_an_effect(run):
    intent = run.intent(final=True)
    run.attempt(intent, status=422)
    run.stored(intent, "failed_final", status=422, body=answer_of(intent))
    assert run.broken() == set()
    run.effect(intent)
    assert run.broken() == {"one_effect_per_acknowledged"}


def test_the_effect_of_another_request(run):
    intent = run.done()
    run.attempt(intent, 2, verdict="unknown", begin={"payload": "other"}.items())
    run.facts["effects"][0].update(payload="other", attempt=2)
    assert run.broken() == {"one_effect_per_acknowledged"}


@pytest.mark.parametrize("neighbour", checker.BREAKS)
def test_an_attempt_that_breaks_its_answer_off_leaves_nothing_and_the_next_may_run(run, neighbour):
    intent = run.intent()
    run.attempt(intent, verdict="unknown", code="201 cut", begin={"neighbour": neighbour}.items())
    run.attempt(intent, 2, begin={"neighbour": "pieces"}.items())
    run.attempt(intent, 3, replayed=True, begin={"neighbour": neighbour}.items())
    run.effect(intent, 2)
    run.stored(intent)
    assert not run.broken()


@pytest.mark.parametrize("neighbour", checker.BREAKS)
def test_an_effect_of_an_attempt_that_broke_its_answer_off_is_noticed(run, neighbour):
    intent = run.intent()
    run.attempt(intent, verdict="unknown", code="201 cut", begin={"neighbour": neighbour}.items())
    run.effect(intent)
    run.attempt(intent, 2, replayed=True)
    run.stored(intent)
    assert run.broken() == {"nothing_of_the_broken"} == run.broken(online=True)


def test_half_an_answer_that_every_attempt_gets_is_noticed(run):
    intent = run.intent(door="http", mode="handoff")
    whole = hashlib.sha256(b"the whole answer").hexdigest()
    half = base64.b64encode(b"the who").decode()
    run.attempt(intent, body=half)
    run.attempt(intent, 2, body=half, replayed=True)
    run.effect(intent, digest=whole)
    run.stored(intent, body=half)
    assert run.broken() == {"whole_answers"} == run.broken(online=True)
    run.facts["effects"][0]["digest"] = hashlib.sha256(b"the who").hexdigest()
    assert not run.broken()


def test_an_answer_that_was_broken_off_and_is_acknowledged_is_noticed(run):
    intent = run.intent()
    run.attempt(intent, replayed=False, begin={"neighbour": "destroy"}.items())
    run.effect(intent, 2)
    run.attempt(intent, 2, replayed=True)
    run.stored(intent)
    assert run.broken() == {"nothing_of_the_broken"}


@pytest.mark.parametrize("verdict", checker.NO_EFFECT)
def test_an_effect_of_an_attempt_that_was_refused(run, verdict):
    intent = run.intent()
    run.attempt(intent, verdict=verdict)
    if verdict != "expired":
        run.attempt(intent, 2)
        run.stored(intent)
    run.effect(intent, 1)
    assert run.broken() == {"none_for_refused"}


def test_an_effect_of_nobody(run):
    intent = run.done()
    run.facts["effects"][0]["attempt"] = 7
    assert intent and run.broken() == {"none_for_refused"}


def test_an_effect_in_another_tenants_name(run):
    intent = run.done()
    run.attempt(intent, 2, begin={"tenant": "b"}.items(), body="b3RoZXI=")
    run.stored(intent, tenant="b", body="b3RoZXI=")
    run.effect(intent, 1, tenant="b")
    assert run.broken() == {"none_for_refused"}


def test_an_effect_that_was_not_asked_for(run):
    intent = run.intent(at_most=True)
    run.attempt(intent, verdict="unknown")
    run.effect(intent, payload="made up")
    run.stored(intent, "in_doubt")
    assert run.broken() == {"none_for_refused"}


def test_an_effect_under_a_fence_that_was_lost(run):
    intent = run.done(mode="fenced")
    run.facts["effects"][0]["fence"] = 1
    run.facts["fences"] = [{"tenant": "a", "scope": "s", "key": "k1", "fence": 2}]
    assert intent and run.broken() == run.broken(online=True) == {"under_its_fence"}
    run.facts["effects"][0]["fence"] = 2
    assert run.broken() == set()


def test_an_effect_elsewhere_that_verify_found_under_a_later_fence(run):
    intent = run.done(mode="verified")
    run.facts["ledger"] = [{**run.facts["effects"].pop(), "fence": 1}]
    run.facts["fences"] = [{"tenant": "a", "scope": "s", "key": "k1", "fence": 2}]
    assert intent and run.broken() == set()


@pytest.mark.parametrize("fences, broken", [((1, 2, 5, 6), set()), ((1, 2, 2), {"fences_rise"}), ((3, 1), {"fences_rise"}), ((1, 4, 2, 3), {"fences_rise"})])
def test_a_fence_that_a_key_has_had_before(run, fences, broken):
    run.log("granted", tenant="b", scope="s", key="k", fence=9, how="start")
    for fence in fences:
        run.log("granted", tenant="a", scope="s", key="k", fence=fence, how="new_claim")
    assert run.broken() == run.broken(online=True) == broken
    assert all(violation.name == ("a", "s", "k") for violation in run.check())


def test_a_second_attempt_that_is_refused_only_at_its_end(run):
    intent = run.done()
    run.attempt(intent, 2, verdict="failed", code="P4010")
    assert run.broken() == {"told_at_once"}
    run.records[1]["mode"] = "leased"  # it lost its lease
    assert run.broken() == set()


# Answers.


def test_a_replay_with_other_bytes(run):
    intent = run.done()
    run.attempt(intent, 2, body="b3RoZXI=")
    assert run.broken() == run.broken(online=True) == {"same_bytes"}


def test_a_replay_with_another_status(run):
    intent = run.done()
    run.attempt(intent, 2, status=200)
    assert run.broken() == {"same_bytes"}


def test_an_answer_that_is_not_what_is_stored(run):
    run.done()
    run.facts["intents"][0]["body"] = "b3RoZXI="
    assert run.broken() == {"same_bytes"}


@pytest.mark.parametrize("verdict", ["in_doubt", "expired"])
def test_a_later_attempt_that_is_told_something_else(run, verdict):
    intent = run.done()
    run.attempt(intent, 2, verdict=verdict)
    assert run.broken() == run.broken(online=True) == {"same_bytes"}
    run.records[1]["forget_after_s"] = -100  # its retention has passed
    assert run.broken() == set()


@pytest.mark.parametrize("state", ["in_doubt", "failed_final", "failed_retryable"])
def test_an_answer_that_was_taken_back(run, state):
    intent = run.intent(at_most=True)
    run.begin(intent, 2)
    run.attempt(intent)
    run.effect(intent)
    run.stored(intent, state)
    assert run.broken() == {"same_bytes"}


def test_an_answer_that_is_forgotten_before_its_time(run):
    run.done(forget_after_s=None)
    run.facts["intents"][0]["state"] = None
    assert run.broken() == {"same_bytes"}
    run.records[1]["forget_after_s"] = 5000
    assert run.broken() == {"same_bytes"}
    run.records[1]["forget_after_s"] = 50
    assert run.broken() == set()


def test_two_requests_under_one_key_both_acknowledged(run):
    intent = run.done()
    run.attempt(intent, 2, begin={"payload": "other"}.items())
    assert "same_bytes" in run.broken()


def test_the_answer_of_another_tenants_intent(run):
    intent = run.done()
    run.attempt(intent, 2, begin={"tenant": "b"}.items())
    run.effect(intent, 2, tenant="b")
    run.stored(intent, tenant="b")
    assert run.broken() == run.broken(online=True) == {"tenants_apart"}


@pytest.mark.parametrize("verdict", ["acknowledged", "unknown"])
def test_an_expired_key_that_runs_again(run, verdict):
    intent = run.intent(uuid7=True, at_most=True)
    run.attempt(intent, verdict="expired")
    run.attempt(intent, 2, verdict=verdict)
    run.effect(intent, 2)
    run.stored(intent, "succeeded" if verdict == "acknowledged" else "in_doubt")
    assert run.broken() == {"expired_never_reopens"}


def test_an_attempt_that_was_at_work_when_the_key_expired_for_another(run):
    intent = run.intent(uuid7=True)
    run.begin(intent, 1)
    run.attempt(intent, 2, verdict="expired")
    run.end(intent, 1)
    run.effect(intent, 1)
    run.stored(intent)
    assert run.broken() == set()


# Events and messages.


def test_an_effect_without_its_event(run):
    run.ordered()
    lost = run.facts["events"].pop()
    run.facts["applied"].pop()
    assert lost and run.broken() == {"event_iff_effect", "nothing_lost"}
    assert run.broken(online=True) == set()


def test_an_effect_with_one_of_its_two_events(run):
    run.ordered(events=2)
    run.facts["events"].pop()
    run.facts["applied"].pop()
    assert run.broken() == {"event_iff_effect", "nothing_lost"}


def test_an_event_without_its_effect(run):
    run.ordered()
    intent = run.intent(30)
    run.attempt(intent, verdict="failed")
    run.event({**run.effect(intent), "aggregate": "h", "step": 1})
    assert run.broken() == {"none_for_refused", "event_iff_effect"}
    run.facts["effects"].pop()
    assert run.broken() == {"event_iff_effect"}


def test_an_event_that_only_arrived_and_whose_row_is_retired_already(run):
    run.ordered()
    run.facts["events"].clear()
    assert run.broken() == set()


def test_events_of_an_aggregate_out_of_order(run):
    run.ordered()
    applied = run.facts["applied"]
    applied[0], applied[1] = applied[1], applied[0]
    assert run.broken() == run.broken(online=True) == {"order_per_aggregate"}


def test_two_events_of_one_effect_out_of_order(run):
    run.ordered(events=2)
    applied = run.facts["applied"]
    applied[0], applied[1] = applied[1], applied[0]
    assert run.broken() == {"order_per_aggregate"}


def test_an_event_that_was_left_out(run):
    run.ordered()
    del run.facts["applied"][1]
    assert run.broken(online=True) == {"order_per_aggregate"}
    assert run.broken() == {"order_per_aggregate", "nothing_lost"}


def test_an_event_that_never_arrives(run):
    run.ordered()
    run.facts["applied"].pop()
    assert run.broken(online=True) == set()  # it may still come
    assert run.broken() == {"nothing_lost"}


def test_events_that_are_published_out_of_order(run):
    run.ordered()
    published = run.facts["published"]
    published[1], published[2] = published[2], published[1]
    assert run.broken() == run.broken(online=True) == {"published_in_order"}


def test_an_event_that_is_published_again_after_newer_ones(run):
    run.ordered()
    run.publish(1)
    assert run.broken() == set()


def test_two_relays_whose_copies_are_whole(run):
    run.mirrored(events=2)
    run.publish(1, relay="mirror")
    assert run.broken() == run.broken(online=True) == set()


@pytest.mark.parametrize("relay", ["torture", "mirror"])
def test_an_event_that_one_of_two_relays_leaves_out(run, relay):
    run.mirrored()
    published = run.facts["published"]
    published.remove(next(row for row in published if row["relay"] == relay and row["step"] == 2))
    assert run.broken() == {"each_relay_whole", "published_in_order"} and run.broken(online=True) == {"published_in_order"}


def test_an_event_that_one_of_two_relays_has_not_published_yet(run):
    run.mirrored()
    run.facts["published"].pop()
    assert run.broken() == {"each_relay_whole"} and run.broken(online=True) == set()


def test_two_relays_each_of_which_publishes_in_an_order_of_its_own(run):
    run.mirrored()
    run.facts["published"].sort(key=lambda row: (row["relay"], row["step"] if row["relay"] == "torture" else -row["step"]))
    assert run.broken() == run.broken(online=True) == {"published_in_order"}


@pytest.mark.parametrize("event_id", ["another", "k1/1"])
def test_an_event_that_a_relay_publishes_under_another_id(run, event_id):
    run.mirrored()
    run.facts["published"].pop()
    run.publish(3, relay="mirror", event_id=event_id)
    assert run.broken() == {"each_relay_whole"}


def test_an_event_that_a_relay_publishes_and_no_effect_has(run):
    run.mirrored()
    run.publish(4, relay="mirror")
    assert run.broken() == {"each_relay_whole"}


def two_databases(run):
    run.ordered()
    for step in (1, 2, 3):
        run.branched(step)


def test_events_of_equal_names_in_two_databases(run):
    two_databases(run)
    assert run.broken() == run.broken(online=True) == set()


def test_events_of_equal_names_in_two_databases_that_have_one_id(run):
    run.ordered()
    run.branched(1, event_id="k1/1")
    assert run.broken() == {"databases_apart", "consumer_exactly_once"}
    run.facts["applied"].pop()  # the inbox knows it
    assert run.broken() == {"databases_apart"}


@pytest.mark.parametrize("step, broken", [(3, {"databases_apart"}), (2, {"databases_apart", "order_per_aggregate"})])
def test_an_event_of_the_second_database_that_never_arrives(run, step, broken):
    two_databases(run)
    applied = run.facts["applied"]
    applied.remove(next(row for row in applied if row.get("branch") and row["step"] == step))
    assert run.broken() == broken and run.broken(online=True) == broken - {"databases_apart"}


def test_an_event_of_the_second_database_that_is_applied_twice_or_without_its_effect(run):
    two_databases(run)
    run.arrive({**run.facts["branch_events"][0], "event_id": "another"}, branch=True)
    assert run.broken() == {"databases_apart"}
    run.facts["applied"].pop()
    run.facts["branch"].pop()
    assert run.broken() == {"databases_apart"}


def test_events_of_the_second_database_out_of_order(run):
    two_databases(run)
    applied = run.facts["applied"]
    applied[3], applied[4] = applied[4], applied[3]
    assert run.broken() == run.broken(online=True) == {"order_per_aggregate"}


def sleeps(run):
    """relay-a publishes a step and is stopped at 10, while it sends the next one; relay-b goes on from there at 12."""
    run.facts["copies"] = []
    run.facts["sleeps"].append({"by": "relay-a", "since": 10.0})
    run.facts["turns"] += [{"by": "relay-a", "at": 1.0}, {"by": "relay-b", "at": 11.0}]
    run.publish(1, at=9.0)
    run.publish(2, at=10.1)
    for step in (2, 3, 4, 5):
        run.publish(step, by="relay-b", at=12.0)


@pytest.mark.parametrize("steps", [(3,), (3, 4)])
def test_a_relay_that_slept_through_a_takeover_and_goes_on_with_what_it_had(run, steps):
    sleeps(run)
    for step in steps:
        run.publish(step, at=15.0)
    assert run.broken() == run.broken(online=True) == {"sleeper_is_silent"}


def test_a_relay_that_slept_through_a_takeover_and_sends_what_it_was_sending_or_had_published(run):
    sleeps(run)
    for step in (1, 2):
        run.publish(step, at=15.0)
    run.publish(1, aggregate="h", at=15.0)
    assert run.broken() == set()


def test_a_relay_that_slept_through_a_takeover_and_takes_over_again(run):
    sleeps(run)
    run.facts["turns"].append({"by": "relay-a", "at": 14.0})
    for step in (3, 4, 5, 6):
        run.publish(step, at=15.0)
    assert run.broken() == set()


def test_a_step_that_two_effects_took(run):
    run.ordered()
    for row in run.facts["effects"][1], run.facts["events"][1], run.facts["applied"][1]:
        row["step"] = 1
    assert run.broken() == {"order_per_aggregate"}


def test_an_event_that_is_applied_twice(run):
    run.ordered()
    run.arrive(run.facts["events"][0])
    assert run.broken() == run.broken(online=True) == {"consumer_exactly_once"}


def test_an_event_that_is_applied_under_two_ids(run):
    run.ordered()
    run.arrive({**run.facts["events"][0], "event_id": "another"})
    assert run.broken() == {"consumer_exactly_once"}


def test_a_published_message_that_is_applied_twice(run):
    sent = run.message()
    run.message_arrives(sent)
    run.message_arrives(sent)
    assert run.broken() == {"consumer_exactly_once"}


def test_a_message_of_nobody(run):
    run.message_arrives({"key": "m5"})
    assert run.broken() == {"consumer_exactly_once"}


def test_a_message_that_the_broker_took_and_that_never_arrives(run):
    run.message()
    assert run.broken() == {"nothing_lost"}
    assert run.broken(online=True) == set()


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
    assert run.broken(online=True) == ({"partitions_read"} if broken else set())


@pytest.mark.parametrize("offsets, broken", [((2, 4), False), ((2, 3), True), ((0, 4), True), ((2, 9), False)])
def test_a_partition_that_has_something_left_in_the_end(run, offsets, broken):
    partitions(run, {}, ("p0a", "p0b", "p1a", "p1b"))
    run.facts["committed"] = [{"partition": partition, "offset": offset} for partition, offset in enumerate(offsets)]
    assert run.broken() == ({"partitions_read"} if broken else set())


@pytest.mark.parametrize("what", ["parked_events", "parked_messages"])
def test_what_still_waits_in_the_end(run, what):
    run.facts[what].append({"text": "message 7 of orders"})
    assert run.broken() == {"nothing_lost"}
    assert run.broken(online=True) == set()


def test_an_event_that_is_blamed_for_its_batch(run):
    run.facts["blamed"] = [{"by": "relay-a", "text": "event=parked attempts=1"}]
    assert run.broken() == run.broken(online=True) == {"none_blamed"}


def test_what_is_given_up(run):
    run.facts["dead"].append({"text": "message 7 of orders"})
    assert run.broken() == run.broken(online=True) == {"none_buried"}


# Dumps.


@pytest.mark.parametrize("fields, broken", [
    ({}, False), ({"said": "ERROR:  42601: syntax error"}, True), ({"has": {"intents": [3, "x"], "effects": [1, "y"]}}, True),
    ({"has": {"intents": [2, "x"]}}, True), ({"replayed": [201, "other"]}, True), ({"replayed": "proceed"}, True), ({"has": {"intents": [2, "z"], "effects": [1, "y"]}}, True),
    ({"relay": "P4080"}, False), ({"relay": "taken"}, True),
])  # fmt: skip
def test_a_dump_that_is_not_what_it_was_taken_of(run, fields, broken):
    held = {"intents": [2, "x"], "effects": [1, "y"]}
    run.log("dumped", **{"had": held, "has": held, "stored": [201, "b"], "replayed": [201, "b"], **fields})
    assert run.broken() == run.broken(online=True) == ({"dumps_restore"} if broken else set())


# What is known in the end.


@pytest.mark.parametrize("verdict", ["busy", "failed"])
def test_a_doubt_without_a_reason(run, verdict):
    intent = run.intent(at_most=True)
    run.attempt(intent, verdict=verdict)
    run.attempt(intent, 2, verdict="in_doubt")
    run.stored(intent, "in_doubt")
    assert run.broken() == {"nothing_in_doubt"}


def test_a_doubt_that_a_claim_left_behind_may_have_made(run):
    intent = run.intent(at_most=True)
    run.attempt(intent, verdict="failed", loose=True)
    run.attempt(intent, 2, verdict="in_doubt")
    run.stored(intent, "in_doubt")
    assert run.broken() == set()


def test_a_doubt_whose_only_reason_came_after_it(run):
    intent = run.intent(at_most=True)
    run.attempt(intent, verdict="failed")
    run.attempt(intent, 2, verdict="in_doubt")
    run.begin(intent, 3)
    run.stored(intent, "in_doubt")
    assert run.broken() == {"nothing_in_doubt"}


@pytest.mark.parametrize("fence, code, broken", [(2, "503 upstream", set()), (1, "503 upstream", {"nothing_in_doubt"}), (1, "lost", set())])
def test_a_doubt_that_was_lifted_by_a_late_report_and_left_again(run, fence, code, broken):
    intent = run.intent(at_most=True)
    run.attempt(intent, verdict="failed", code=code)
    run.attempt(intent, 2, verdict="in_doubt")
    run.begin(intent, 3)
    run.stored(intent, "in_doubt", fence=fence)
    assert run.broken() == broken


def test_a_doubt_that_the_attempt_itself_was_told_of(run):
    """Its own work may have been what nobody knows the end of: a command that was killed, a service that broke off."""
    intent = run.intent(at_most=True, door="run")
    run.attempt(intent, verdict="in_doubt", code="exit 77")
    run.stored(intent, "in_doubt")
    assert run.broken() == set()


@pytest.mark.parametrize("mode, took_s, broken", [("endpoint", 5, set()), ("endpoint", 3, {"nothing_in_doubt"}), ("doubtful", 5, {"nothing_in_doubt"})])
def test_a_doubt_of_a_claim_that_its_service_has_never_heard_of(run, mode, took_s, broken):
    intent = run.intent(at_most=True, door="java", mode=mode)
    run.begin(intent)
    run.t += took_s - 1
    run.end(intent, verdict="in_doubt")
    run.stored(intent, "in_doubt", error_code="stale")
    assert run.broken() == broken


def test_a_doubt_where_it_can_be_found_out(run):
    intent = run.intent()
    run.begin(intent)
    run.stored(intent, "in_doubt")
    assert run.broken() == {"nothing_in_doubt"}


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
    assert run.broken() == run.broken(online=True) == ({"asked_in_time"} if broken else set())


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
    assert run.broken() == run.broken(online=True) == {"decided_for_good"}


def test_an_intent_that_runs_for_ever(run):
    intent = run.intent()
    run.begin(intent)
    run.stored(intent, "processing", lease_until=900.0)
    assert run.broken() == {"nothing_stuck"}
    run.facts["intents"].clear()
    run.facts["stuck"].append({"tenant": "a", "scope": "s", "key": "k1", "lease_until": 900.0, "now": 1000.0})
    assert run.broken() == {"nothing_stuck"}


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


@pytest.mark.parametrize("verdict", ["unknown", "failed", "busy", None])
def test_an_intent_that_is_never_answered(run, verdict):
    intent = run.intent()
    run.begin(intent)
    if verdict:
        run.end(intent, verdict=verdict)
    assert run.broken() == set()
    run.phase("finished")
    assert run.broken() == {"all_answered"}


@pytest.mark.parametrize("given_up", [True, False])
def test_an_intent_whose_client_asked_for_a_while_only(run, given_up):
    intent = run.intent(forget_after_s=45)
    run.attempt(intent, verdict="failed", code="lost")
    if given_up:
        run.log("given_up", intent=1)
    run.phase("finished")
    assert run.broken() == (set() if given_up else {"all_answered"})


def test_a_key_that_is_another_requests_which_nobody_made(run):
    intent = run.intent()
    run.attempt(intent, verdict="mismatch")
    run.phase("finished")
    assert run.broken() == {"all_answered"}


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


def test_every_rule_was_broken_by_a_test():
    """The tests above name each rule."""
    text = open(__file__, encoding="utf-8").read()
    assert [name for name in checker.RULES if f'"{name}"' not in text] == []
