# SPDX-License-Identifier: PostgreSQL
"""The clients of the torture are honest and stubborn: without faults every intent is acknowledged with one effect; every door retries; a
client that dies leaves what the contract says, and claims to know nothing that it was not told.

Seen to fail: with `failed` for a COMMIT without an answer (doors.Session.commit), and without the gate of schema.sql, where the zombie of a
verified effect makes a second one."""

import base64
import collections
import contextlib
import dataclasses
import json
import pathlib
import random
import threading
import time
import urllib.parse

import psycopg2
import pytest

from harness.nginx import BUILD
from harness.postgres import wait_until

from . import decisions, doors, dumps, history, upstream
from .doors import Intent, LibDoor, Orders, RunDoor, SqlDoor
from .run import Plan, run
from .workload import GROUPS, HTTP, LIB, SERVED_WITH, SQL, STYLES, Workload

CLIENT = BUILD / "tests/torture/torture_client"
PROGRAM = BUILD / "cli/pgonce"
SCHEMA = (pathlib.Path(__file__).parent / "schema.sql").read_text()
LEASE_S = 0.5


class Direct(doors.HttpDoor):
    """To a service, with what the gateway would tell it."""

    def __init__(self, address, watch):
        super().__init__(address, watch)
        self.fence, self.heads, self.intent = 1, [], None

    def attempt(self, intent, number, payload, orders):
        self.intent = intent
        return super().attempt(intent, number, payload, orders)

    def exchange(self, method, target, headers, body, orders):
        told = {"Tenant": self.intent.tenant, "Scope": self.intent.scope, "Key": self.intent.key, "Fence": str(self.fence)}
        response = super().exchange(method, target, headers + [(f"Once-{name}", urllib.parse.quote(value)) for name, value in told.items()], body, orders)
        self.heads.append("\n".join(f"{name.title()}: {value}" for name, value in response.headers))
        return response


# A run without faults.


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """The result of a run without faults: its history and its facts."""
    result = run(Plan(30, 12, "nats", faults=(), at_least=500), keep=tmp_path_factory.mktemp("calm"))
    assert result.status == 0, result.text()
    return result


def ends(calm):
    """(the record of each intent, the verdicts of its own payload's attempts, its effects)"""
    verdicts, effects = collections.defaultdict(list), collections.defaultdict(list)
    others = {(record["intent"], record["attempt"]) for record in calm.history.of("attempt") if "payload" in record}
    for (number, attempt), answer in calm.history.answers.items():
        if (number, attempt) not in others:
            verdicts[number].append(answer["verdict"])
    for row in calm.facts["effects"] + calm.facts["ledger"]:
        effects[row["intent"]].append(row)
    return [(record, verdicts[number], effects[number]) for number, record in calm.history.intents.items()]


def test_without_faults_every_intent_is_acknowledged_with_one_effect(calm):
    checked = 0
    for record, verdicts, effects in ends(calm):
        if not record["key"].isascii():
            assert set(verdicts) <= {"refused"} and verdicts and not effects, record
        elif record["door"] == "message":
            assert "acknowledged" in verdicts, record
        elif record.get("at_most") and "in_doubt" in verdicts:
            assert len(effects) <= 1, record
        else:
            assert "acknowledged" in verdicts, (record, verdicts)
            assert len(effects) == (0 if record.get("final") else 1), (record, effects)
            checked += 1
    assert checked > 100


def test_every_door_and_mode_is_used_and_acknowledges(calm):
    said = collections.Counter((record["door"], record["mode"], record["scope"]) for record, verdicts, _ in ends(calm) if "acknowledged" in verdicts)
    expected = {(door, kind.mode, kind.scope) for door, (kinds, *_) in GROUPS.items() for kind in kinds}
    assert set(said) == expected, expected - set(said)


def test_every_door_retries_and_duplicates_are_replayed(calm):
    tries, same, at_once = collections.Counter(), collections.Counter(), collections.Counter()
    log, running = calm.history, {}
    told = collections.defaultdict(set)
    for record in log.records:
        if record["kind"] == "attempt" and "payload" not in record:
            tries[log.intents[record["intent"]]["door"]] += record["attempt"] > 1
            running[record["intent"]] = running.get(record["intent"], 0) + 1
            at_once[log.intents[record["intent"]]["door"]] += running[record["intent"]] > 1
        elif record["kind"] == "answer" and "attempt" in record:
            running[record["intent"]] = max(0, running.get(record["intent"], 0) - 1)
            if record["verdict"] == "acknowledged" and record.get("body") is not None:
                same[log.intents[record["intent"]]["door"]] += bool(told[record["intent"]])
                told[record["intent"]].add(record["body"])
    for door in GROUPS:
        assert tries[door] > 3, (door, tries)
        assert door == "message" or same[door] > 0, (door, same)
    assert all(len(bodies) == 1 for bodies in told.values())
    for door in ("sql", "lib", "http"):
        assert at_once[door] > 0, at_once


def test_conflicting_payloads_are_refused_and_leave_nothing(calm):
    others = {record["payload"]: record for record in calm.history.of("attempt") if "payload" in record}
    refused = collections.Counter()
    for record in others.values():
        answer = calm.history.answers[record["intent"], record["attempt"]]
        assert answer["verdict"] in ("mismatch", "busy", "expired"), answer
        refused[calm.history.intents[record["intent"]]["door"]] += answer["verdict"] == "mismatch"
    assert all(refused[door] > 0 for door in ("sql", "lib", "http")), refused
    assert not [row for row in calm.facts["effects"] + calm.facts["ledger"] if row["payload"] in others]


def test_another_tenants_same_key_is_another_intent(calm):
    by_key = collections.defaultdict(list)
    bodies = collections.defaultdict(set)
    for (number, _), answer in calm.history.answers.items():
        if answer["verdict"] == "acknowledged" and answer.get("body"):  # what an operator has decided has none
            bodies[number].add(answer["body"])
    for record, _, _ in ends(calm):
        by_key[record["scope"], record["key"]].append(record)
    twins = [records for records in by_key.values() if len(records) > 1]
    assert twins and all(len({record["tenant"] for record in records}) == len(records) for records in twins)
    assert any(all(bodies[record["intent"]] for record in records) for records in twins)
    for records in twins:
        told = [body for record in records for body in bodies[record["intent"]]]
        assert len(told) == len(set(told))


def test_stored_failures_are_answered_again_and_have_no_effect(calm):
    finals = [(record, effects) for record, verdicts, effects in ends(calm) if record.get("final") and "acknowledged" in verdicts]
    assert len({record["door"] for record, _ in finals}) >= 3
    assert not any(effects for _, effects in finals)


def test_what_is_published_twice_is_applied_once(calm):
    published = collections.Counter(record["intent"] for record in calm.history.of("attempt"))
    twice = {record["key"] for record, *_ in ends(calm) if record["door"] == "message" and published[record["intent"]] > 1}
    applied = collections.Counter(row["message_id"] for row in calm.facts["applied"])
    assert twice and all(applied[key] == 1 for key in twice)
    old = {record["key"] for record, *_ in ends(calm) if record["door"] == "message" and not record["key"].startswith("direct/")}
    assert old and all(applied[key] == 1 for key in old)
    assert any(not row["direct"] for row in calm.facts["applied"])


def test_a_dump_is_restored_with_all_that_it_held(calm):
    (dumped,) = calm.history.of("dumped")
    assert dumped["had"] == dumped["has"] and dumped["replayed"] == dumped["stored"]
    assert all(dumped["had"][what][0] > 0 for what in ("intents", "events", "effects", "ledger"))


# The seed.


class NoRecorder:
    """Numbers, and nothing else."""

    def __init__(self):
        self.drawn, self.last = [], 0

    def number(self):
        self.last += 1
        return self.last

    def intent(self, *fields, **more):
        self.drawn.append((fields, more))


def drawn(seed, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 1_800_000_000.0)
    recorder = NoRecorder()
    workload = Workload(type("System", (), {})(), recorder, seed)
    for group in workload.groups.values():
        for _ in range(60):
            group.place()
    return recorder.drawn


def test_a_seed_draws_the_same_intents_again_and_another_seed_others(monkeypatch):
    assert drawn(1, monkeypatch) == drawn(1, monkeypatch) != drawn(2, monkeypatch)


def test_keys_are_of_all_kinds_and_no_two_alike(monkeypatch):
    fields = [fields for fields, _ in drawn(1, monkeypatch)]
    keys = collections.Counter((tenant, scope, key) for _, _, _, tenant, scope, key, _ in fields)
    assert max(keys.values()) == 1
    texts = [key for _, _, key in keys]
    assert any(len(key) == 255 for key in texts) and any(not key.isascii() for key in texts)
    days = {int(key.replace("-", "")[:12], 16) // 86_400_000 for _, scope, key in keys if scope == "aged"}
    assert days == {1_800_000_000 // 86_400 - 2, 1_800_000_000 // 86_400 - 3}


def test_doors_can_be_chosen():
    system = type("System", (), {})()
    assert set(Workload(system, NoRecorder(), 1).groups) == set(GROUPS)
    few = Workload(system, NoRecorder(), 1, doors=["sql/fenced", "http"]).groups
    assert {name: tuple(group.kinds) for name, group in few.items()} == {
        "sql": tuple(kind for kind in SQL if kind.scope == "fenced"), "http": HTTP,
    }  # fmt: skip
    assert few["http"].rate > GROUPS["http"][2]
    assert any(kind.scope == "fenced" for kind in LIB)


def test_slow_intents_are_attempted_again_while_they_are_at_work():
    workload = Workload(type("System", (), {})(), NoRecorder(), 1, doors=["sql/fenced"])
    group = workload.groups["sql"]
    for _ in range(400):
        group.place()
    jobs = {}
    for job in group.jobs:
        jobs.setdefault(job.intents[0].number, []).append(job)
    slow = [number for number in jobs if workload.is_slow(workload.intents[number])]
    assert 2 <= len(slow) <= 20
    for number, its in jobs.items():
        again = max(job.due for job in its) - min(job.due for job in its)
        assert (again > 3) == (number in slow)
        waits = workload.orders(workload.intents[number], its[0], random.Random(number)).before_s
        assert (waits > 3) == (number in slow)


# Each door alone, and what it claims to know.


@pytest.fixture
def shop(db):
    db.execute(SCHEMA)
    for scope in ("accounts", "fenced", "verified", "asked", "doubtful", "jobs"):
        db.execute("SELECT once.set_scope(%s, lease => make_interval(secs => %s))", scope, LEASE_S)
    return db


@pytest.fixture(scope="module")
def watch():
    return doors.Watch()


def an_intent(mode, scope, number=1, final=False, tenant="söder & cie"):
    payload = {"i": number, "tenant": tenant, "key": f"key {number}", "final": final, "aggregate": "a1", "events": 2, "caused": False}
    return Intent(number, "", mode, tenant, scope, f"key {number}", json.dumps(payload), final)


def effects(db):
    return [(row.intent, row.attempt) for row in db.rows("SELECT intent, attempt FROM torture.effect UNION ALL SELECT intent, attempt FROM torture.ledger")]


class Clients:
    """A door of each kind, and attempts in their order."""

    def __init__(self, shop, watch, directory):
        self.ledger = directory / "ledger"
        self.sql = SqlDoor(shop.dsn(), watch)
        self.lib = LibDoor("lib", CLIENT, shop.dsn(), directory / "lib.log")
        self.run = RunDoor("run", PROGRAM, shop.dsn(), self.ledger)
        self.attempts = 0

    def attempt(self, door, intent, payload=None, **orders):
        self.attempts += 1
        return getattr(self, door).attempt(intent, self.attempts, payload or intent.payload, Orders(**orders))

    def insist(self, door, intent, verdict="acknowledged", patience_s=20):
        """Attempts it until that is the answer."""
        deadline = time.monotonic() + patience_s
        while True:
            answer = self.attempt(door, intent)
            if answer.verdict == verdict:
                return answer
            assert answer.verdict in ("busy", "failed", "unknown", "in_doubt") and time.monotonic() < deadline, answer
            time.sleep(0.05)


@pytest.fixture
def clients(shop, watch, tmp_path):
    each = Clients(shop, watch, tmp_path)
    yield each
    for door in (each.sql, each.lib, each.run):
        door.close()


MODES = [("transaction", "accounts"), ("fenced", "fenced"), ("verified", "verified"), ("doubtful", "doubtful")]


@pytest.mark.parametrize("mode, scope", MODES)
@pytest.mark.parametrize("door, other", [("sql", "lib"), ("lib", "sql")])
def test_what_one_door_did_the_other_replays(shop, clients, door, other, mode, scope):
    intent = an_intent(mode, scope)
    first, again = clients.attempt(door, intent), clients.attempt(other, intent)
    assert first.verdict == again.verdict == "acknowledged" and again.replayed and not first.replayed
    assert first.body and (first.status, first.body) == (again.status, again.body) and first.status == 201
    conflict = clients.attempt(other, intent, intent.payload.replace("false", "true", 1))
    assert conflict.verdict == "mismatch"
    assert len(effects(shop)) == 1


@pytest.mark.parametrize("mode, scope", MODES)
@pytest.mark.parametrize("way", doors.WAYS)
def test_an_answer_is_the_bytes_that_were_given_in_whatever_way(shop, clients, way, mode, scope):
    given = []
    for number, style in enumerate((None, *STYLES), 1):
        intent = an_intent(mode, scope, number)
        intent = dataclasses.replace(intent, payload=json.dumps(json.loads(intent.payload) | {"style": style}))
        first = clients.attempt("sql", intent, way=way)
        table = "ledger" if mode in ("verified", "doubtful") else "effect"
        (made,) = shop.rows(f"SELECT body FROM torture.{table} WHERE intent = %s", number)
        assert first.verdict == "acknowledged" and first.body == made.body, first
        for door in ("sql", "lib"):
            again = clients.attempt(door, intent)
            assert again.replayed and (again.status, again.body) == (201, first.body), (style, again)
        given.append(first.body)
    assert b"" in given and any(body.startswith(b"\\x41") for body in given) and any(b"\\\\" in body for body in given)
    assert any(not body.isascii() for body in given) and sum(doors.is_json(body.decode()) for body in given) == 2


@pytest.mark.parametrize("mode, scope", MODES)
@pytest.mark.parametrize("door", ["sql", "lib"])
def test_a_failure_for_good_is_stored_and_one_for_now_is_not(shop, clients, door, mode, scope):
    final = an_intent(mode, scope, 1, final=True)
    first, again = clients.attempt(door, final), clients.attempt(door, final)
    assert (first.verdict, first.status, first.body) == (again.verdict, again.status, again.body) == ("acknowledged", 422, again.body) and again.body
    passing = an_intent(mode, scope, 2)
    assert clients.attempt(door, passing, retry=True).verdict == "failed"
    assert effects(shop) == []
    assert clients.attempt(door, passing).verdict == "acknowledged"
    assert len(effects(shop)) == 1


def test_try_start_tells_what_start_raises(shop, clients):
    plain, final = an_intent("transaction", "accounts", 1), an_intent("transaction", "accounts", 2, final=True)
    lost, running = an_intent("transaction", "doubtful", 3), an_intent("transaction", "accounts", 4)
    other = plain.payload.replace("false", "true", 1)

    def told(intent, payload=None):
        answers = [clients.attempt("sql", intent, payload, trying=trying) for trying in (False, True)]
        first, second = ((answer.verdict, answer.status, answer.body, answer.replayed) for answer in answers)
        assert first == second, answers
        return first[0]

    assert clients.attempt("sql", plain, trying=True).verdict == clients.attempt("sql", final, trying=True).verdict == "acknowledged"
    clients.attempt("sql", an_intent("doubtful", "doubtful", 3), leave="done")
    clients.insist("sql", an_intent("doubtful", "doubtful", 3), "in_doubt")
    assert [told(plain), told(plain, other), told(final), told(lost)] == ["acknowledged", "mismatch", "acknowledged", "in_doubt"]
    with contextlib.closing(psycopg2.connect(shop.dsn())) as connection, connection.cursor() as cursor:
        cursor.execute(doors.BEGIN, (running.scope, running.key, running.payload.encode(), running.tenant, running.tenant))
        assert told(running) == "busy"
        connection.rollback()
    assert clients.attempt("sql", running, trying=True).verdict == told(running) == "acknowledged"
    assert sorted(each for each, _ in effects(shop)) == [1, 3, 4]


def test_who_forgets_begin_is_refused_and_leaves_nothing(shop, clients):
    intent = an_intent("transaction", "accounts")
    refused = clients.attempt("sql", intent, apart=True)
    assert (refused.verdict, refused.code) == ("failed", "P4012")
    assert effects(shop) == [] and shop.rows("SELECT 1 FROM once.intent") == []
    assert clients.attempt("sql", intent).verdict == clients.attempt("sql", intent, apart=True).verdict == "acknowledged"


def test_a_doubt_is_asked_about_when_its_lease_has_passed_and_what_is_found_is_the_answer(shop, clients):
    answers = set()
    for number in range(1, 9):  # of one key in three verify cannot tell at first
        intent = an_intent("verified", "asked", number)
        clients.attempts += clients.attempts % 2  # the next one leaves its doubt
        first = clients.attempt("sql", intent, doubt_s=0.1) if number % 2 else clients.attempt("sql", intent, leave="claimed")
        assert first.verdict == "unknown"
        assert clients.attempt("sql", intent).verdict in ("in_doubt", "busy")  # its lease holds
        answer = clients.insist("sql", intent)
        asked = shop.rows("SELECT answer, lease_until > at AS early FROM torture.question WHERE key = %s AND fence = 1 ORDER BY position", intent.key)
        assert asked[-1].answer == ("happened" if number % 2 else "absent") and not any(row.early for row in asked)
        assert answer.replayed == bool(number % 2)
        answers |= {row.answer for row in asked}
    assert answers == {"happened", "absent", "unknown"} and sorted(each for each, _ in effects(shop)) == list(range(1, 9))


def test_an_attempt_may_lift_its_own_doubt(shop, clients):
    clients.attempts = 1
    assert clients.attempt("sql", an_intent("verified", "asked"), doubt_s=0.1).verdict == "acknowledged"
    assert shop.value("SELECT state FROM once.intent") == "succeeded"


@pytest.mark.parametrize("door, mode, scope, steps, end", [
    ("sql", "transaction", "accounts", ("begun", "finished"), "acknowledged"),
    ("sql", "fenced", "fenced", ("claimed", "written"), "acknowledged"),
    ("sql", "verified", "verified", ("claimed", "written", "done"), "acknowledged"),
    ("sql", "doubtful", "doubtful", ("claimed", "done"), "in_doubt"),
    ("lib", "transaction", "accounts", ("begun", "written"), "acknowledged"),
    ("lib", "fenced", "fenced", ("claimed", "written"), "acknowledged"),
    ("lib", "verified", "verified", ("claimed", "done"), "acknowledged"),
    ("lib", "doubtful", "doubtful", ("claimed", "done"), "in_doubt"),
])  # fmt: skip
def test_who_dies_in_the_middle_does_not_know_and_the_next_finds_out(shop, clients, door, mode, scope, steps, end):
    for number, step in enumerate(steps, 1):
        intent = an_intent(mode, scope, number)
        assert clients.attempt(door, intent, leave=step).verdict == "unknown"
        done = (number, clients.attempts) in effects(shop)
        assert done == (step == "done")
        clients.insist(door, intent, end)
        assert [each for each, _ in effects(shop)].count(number) == (1 if end == "acknowledged" or done else 0)


@pytest.mark.parametrize("step, lines", [("claimed", 0), ("done", 1)])
def test_a_job_whose_runner_dies_is_in_doubt(clients, step, lines):
    intent = an_intent("job", "jobs")
    assert clients.attempt("run", intent, leave=step).verdict == "unknown"
    clients.insist("run", intent, "in_doubt")
    assert len(clients.ledger.read_text().splitlines() if clients.ledger.exists() else []) == lines


def test_a_connection_that_is_lost_in_commit_is_unknown_and_before_it_failed(shop, clients):
    shop.execute("CREATE FUNCTION torture.die() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END'")
    shop.execute("CREATE CONSTRAINT TRIGGER die AFTER INSERT ON torture.effect DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION torture.die()")
    intent = an_intent("transaction", "accounts")
    assert clients.attempt("sql", intent).verdict == "unknown"
    shop.execute("DROP TRIGGER die ON torture.effect")
    shop.execute("CREATE TRIGGER die AFTER INSERT ON torture.effect FOR EACH ROW EXECUTE FUNCTION torture.die()")
    assert clients.attempt("sql", intent).verdict == "failed"
    shop.execute("DROP TRIGGER die ON torture.effect")
    assert clients.attempt("sql", intent).verdict == "acknowledged"


@pytest.mark.parametrize("mode, scope", [("fenced", "fenced"), ("verified", "verified")])
@pytest.mark.parametrize("door", ["sql", "lib"])
def test_who_was_taken_over_has_no_effect_any_more(shop, watch, clients, tmp_path, door, mode, scope):
    intent = an_intent(mode, scope)
    slow = Clients(shop, watch, tmp_path)
    slow.attempts = 100
    answers = []
    zombie = threading.Thread(target=lambda: answers.append(slow.attempt(door, intent, before_s=4 * LEASE_S)))
    zombie.start()
    wait_until(lambda: shop.rows("SELECT 1 FROM once.intent"), "the first claim")
    assert clients.insist("sql", intent).verdict == "acknowledged"
    zombie.join()
    getattr(slow, door).close()
    assert answers[0].verdict in ("failed", "unknown"), answers
    assert len(effects(shop)) == 1 and effects(shop)[0][1] < 100


def test_a_killed_caller_of_the_library_is_unknown_and_the_next_is_another_process(shop, clients):
    intent = an_intent("fenced", "fenced")
    clients.attempt("lib", an_intent("fenced", "fenced", 9))
    killer = threading.Thread(target=lambda: (wait_until(lambda: shop.rows("SELECT 1 FROM once.intent WHERE key = 'key 1'"), "a claim"), clients.lib.target.kill()))
    killer.start()
    first = clients.lib.target.pid
    assert clients.attempt("lib", intent, before_s=8).verdict == "unknown"
    killer.join()
    assert clients.insist("lib", intent).verdict == "acknowledged"
    assert clients.lib.target.pid not in (None, first)
    assert len(effects(shop)) == 2


def test_a_batch_has_an_answer_for_each(shop, clients):
    intents = [an_intent("doubtful", "doubtful", number, final=number == 2) for number in range(1, 6)]
    clients.attempt("lib", intents[3])
    answers = clients.lib.attempt_many([(intent, 10, intent.payload) for intent in intents], Orders())
    assert [(answer.verdict, answer.status) for answer in answers] == [("acknowledged", 422 if n == 2 else 201) for n in range(1, 6)]
    assert [answer.replayed for answer in answers] == [False, False, False, True, False]
    assert sorted(effects(shop)) == [(1, 10), (3, 10), (4, 1), (5, 10)]


def test_a_job_is_run_once_and_replayed(shop, clients):
    intent = an_intent("job", "jobs")
    assert clients.attempt("run", intent, retry=True).verdict == "failed"
    first, again = clients.attempt("run", intent), clients.attempt("run", intent)
    assert (first.verdict, first.status, first.body) == (again.verdict, again.status, again.body) == ("acknowledged", 0, again.body) and again.body
    assert clients.attempt("run", intent, intent.payload + " ").verdict == "mismatch"
    final = an_intent("job", "jobs", 2, final=True)
    assert [clients.attempt("run", final).status for _ in range(2)] == [7, 7]
    lines = clients.ledger.read_text().splitlines()
    assert len(lines) == 1 and lines[0].split(" ", 3)[3] == intent.payload
    assert shop.value("SELECT count(*) FROM once.intent WHERE state = 'failed_final'") == 1


def test_a_killed_job_is_in_doubt(shop, clients):
    intent = an_intent("job", "jobs")
    killer = threading.Thread(target=lambda: (wait_until(lambda: clients.ledger.exists() and clients.ledger.read_text(), "the effect"), clients.run.target.kill()))
    killer.start()
    assert clients.attempt("run", intent, after_s=3).verdict == "unknown"
    killer.join()
    wait_until(lambda: shop.rows("SELECT 1 FROM once.intent WHERE lease_until < clock_timestamp()"), "the end of its lease")
    assert clients.attempt("run", intent).verdict == "in_doubt"
    assert len(clients.ledger.read_text().splitlines()) == 1


@pytest.mark.parametrize("door, other", [("sql", "lib"), ("lib", "sql")])
def test_an_operator_decides_what_the_ledger_shows_and_each_door_tells_it(shop, clients, door, other):
    intent = an_intent("doubtful", "doubtful")
    clients.attempt(door, intent, leave="done")
    clients.insist(door, intent, "in_doubt")
    with contextlib.closing(psycopg2.connect(shop.dsn())) as connection:
        body = decisions.decide(connection, intent)
        assert decisions.decide(connection, intent) is None  # it is decided
    told = [clients.attempt(each, intent) for each in (door, other)]
    assert body and [(answer.verdict, answer.status, answer.body, answer.replayed) for answer in told] == [("acknowledged", 201, body, True)] * 2
    assert len(effects(shop)) == 1


def test_an_operator_recovers_what_verify_can_tell(shop, clients):
    class System:
        direct_dsn = staticmethod(shop.dsn)

    operator = decisions.Operator(System, None, 1, None, [])
    intent = an_intent("verified", "asked")
    clients.attempts = 2
    assert clients.attempt("sql", intent, doubt_s=0.1).verdict == "unknown"

    def recovered():
        operator.recover()
        return shop.value("SELECT state FROM once.intent") == "succeeded"

    assert not recovered()  # its lease holds
    wait_until(recovered, "the end of its lease")
    assert clients.attempt("sql", intent).replayed and len(effects(shop)) == 1


def test_an_operator_leaves_in_doubt_what_the_ledger_does_not_show(shop, clients):
    intent = an_intent("doubtful", "doubtful")
    clients.attempt("sql", intent, leave="claimed")
    clients.insist("sql", intent, "in_doubt")
    with contextlib.closing(psycopg2.connect(shop.dsn())) as connection:
        assert decisions.decide(connection, intent) is None
    assert clients.attempt("sql", intent).verdict == "in_doubt"


@pytest.mark.parametrize("door", ["sql", "lib"])
def test_who_reports_after_an_operator_has_decided_is_refused_and_told_the_same(shop, watch, clients, tmp_path, door):
    intent = an_intent("doubtful", "doubtful")
    slow = Clients(shop, watch, tmp_path)
    answers = []
    zombie = threading.Thread(target=lambda: answers.append(slow.attempt(door, intent, after_s=6 * LEASE_S)))
    zombie.start()
    wait_until(lambda: effects(shop), "the effect")
    clients.insist("sql", intent, "in_doubt")
    with contextlib.closing(psycopg2.connect(shop.dsn())) as connection:
        body = decisions.decide(connection, intent)
    zombie.join()
    getattr(slow, door).close()
    assert answers[0].verdict == "unknown", answers
    told = clients.attempt(door, intent)
    assert body and (told.verdict, told.body, told.replayed) == ("acknowledged", body, True)
    assert len(effects(shop)) == 1


def test_what_an_operator_has_decided_is_written_down_and_attempted_again(shop, clients, tmp_path, monkeypatch):
    monkeypatch.setattr(decisions, "SHARE", 1)
    known, unknown = an_intent("doubtful", "doubtful", 1), an_intent("doubtful", "doubtful", 2)
    clients.attempt("sql", known, leave="done")
    clients.attempt("sql", unknown, leave="claimed")
    for intent in (known, unknown):
        clients.insist("sql", intent, "in_doubt")
    away, again, problems = [True], [], []

    class System:  # its database is away at first
        @staticmethod
        def direct_dsn():
            return shop.dsn() if not away or away.pop() is None else "host=/nowhere"

    recorder = history.Recorder(tmp_path / "history.jsonl")
    operator = decisions.Operator(System, recorder, 1, again.append, problems)
    operator.start()
    for intent in (known, unknown, an_intent("fenced", "fenced", 3), known):
        operator.ask(intent)
    wait_until(operator.is_idle, "the operator")
    operator.stop()
    recorder.close()
    stored = shop.value("SELECT response_body FROM once.intent WHERE key = 'key 1'")
    assert [(record["intent"], base64.b64decode(record["body"])) for record in history.read(tmp_path / "history.jsonl").of("decided")] == [(1, bytes(stored))]
    assert again == [known] and not problems and not operator.is_alive()


@pytest.mark.parametrize("kind", [upstream.Naive, upstream.Handoff])
def test_what_is_around_a_services_answer_is_what_the_orders_say_and_its_effect_is_as_without(shop, watch, tmp_path, kind):
    service, mode = kind(tmp_path / "service", shop.dsn()), kind.__name__.lower()
    door = Direct(service.path, watch)
    try:
        for number, neighbour in enumerate((None, *SERVED_WITH), 1):
            intent = an_intent(mode, mode, number)
            door.fence = shop.row(doors.CLAIM, mode, intent.key, intent.payload.encode(), intent.tenant, "gateway", intent.tenant).fence
            answer = door.attempt(intent, 1, intent.payload, Orders(neighbour=neighbour))
            cut = neighbour == "cut"
            assert (answer.verdict, answer.status) == ("unknown" if cut else "acknowledged", 201), (neighbour, answer)
            rows = [*shop.rows("SELECT body FROM torture.effect WHERE intent = %s", number), *shop.rows("SELECT body FROM torture.ledger WHERE intent = %s", number)]
            assert len(rows) == 1 and (cut or bytes(rows[0].body) == answer.body), neighbour
        assert "Trailer: X-Sum" in door.heads[-1] and all("chunked" in head for head in door.heads[1:])
        not_now = door.attempt(an_intent(mode, mode, 9), 1, "{}", Orders(retry=True, neighbour="cut"))
        assert (not_now.verdict, not_now.code) == ("failed", "503 upstream")
    finally:
        door.close()
        service.close()


def test_a_conversation_that_is_not_answered_ends(shop, watch):
    """A server that accepts, and is silent."""
    session = doors.Session(shop.dsn(), watch)
    begun = time.monotonic()
    with pytest.raises(psycopg2.Error):
        with session.within(0.5):
            session.row("SELECT pg_sleep(30)")
    assert time.monotonic() - begun < 15
    with session.within(5):
        assert session.value("SELECT 1") == 1
    session.close()


def test_histories_of_a_run_can_be_read(calm):
    assert isinstance(calm.history, history.History)
    phases = [record["phase"] for record in calm.history.of("phase")]
    assert phases == ["started", "healed", "drained", "finished"]


def test_a_dump_that_a_fault_spoils_is_taken_again_and_another_error_is_said(tmp_path, monkeypatch):
    system = type("System", (), {"seconds": 0, "directory": tmp_path})()
    monkeypatch.setattr(dumps, "PAUSE_S", 0)
    for last, ended in ({"had": {}}, "dumped"), (psycopg2.errors.UndefinedFunction("no such function"), "problem"):
        ends, written, problems = iter([dumps.Spoilt("killed"), psycopg2.OperationalError("lost"), last]), [], []

        def once(ends=ends):
            end = next(ends)
            if isinstance(end, Exception):
                raise end
            return end

        dumper = dumps.Dumper(system, type("Recorder", (), {"record": lambda *record, written=written, **_: written.append(record)})(), 1, problems)
        monkeypatch.setattr(dumper, "dump_and_restore", once)
        dumper.start()
        dumper.finish(20)
        assert (len(written), len(problems)) == ((1, 0) if ended == "dumped" else (0, 1)), problems
