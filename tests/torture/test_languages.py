# SPDX-License-Identifier: PostgreSQL
"""The clients of clients/ as doors of the torture: each does what the SQL door does, by its client's public functions, and is honest. What is needed to build
one is told where it is missing.

Their programs are run where PGONCE_CLIENT_DOORS names the language, as `make test-clients` does: they need its toolchain and its registry."""

import argparse
import base64
import collections
import contextlib
import dataclasses
import json
import os
import pathlib
import random

import pytest

from harness.broker import free_port
from harness.postgres import PORT, ROOT, wait_until

from . import __main__ as command, faults, languages, mutations
from .doors import Intent, Orders
from .languages import LANGUAGES, ClientDoor, Missing
from .links import Links
from .run import Plan, run
from .test_workload import MODES, Clients, an_intent, effects, shop, watch  # pylint: disable=unused-import
from .workload import CLIENTS, GROUPS, KINDS_OF, STYLES, Job, Workload

WANTED = os.environ.get("PGONCE_CLIENT_DOORS", "").split(",")
SECONDS = int(os.environ.get("PGONCE_CLIENT_DOORS_SECONDS", "20"))


# What is decided about them.


def test_languages_are_doors_only_where_they_are_named():
    assert languages.named(None) == languages.named(("sql", "lib/fenced")) == ()
    assert languages.named(("java/doubtful", "sql", "node", "node/accounts")) == ("node", "java")


class NoSystem:
    directory = pathlib.Path("/nowhere")

    def __init__(self):
        self.recorder, self.extra, self.processes = None, [], []

    def dsn(self, link):
        return f"by {link}"


def test_without_a_wish_the_workload_has_the_doors_that_need_no_toolchain_and_with_one_those_that_are_named():
    assert set(Workload(NoSystem(), None, 1).groups) == set(GROUPS)
    some = Workload(NoSystem(), None, 1, doors=("sql", "python", "go/fenced"))
    assert set(some.groups) == {"sql", "python", "go"}
    assert [kind.scope for kind in some.groups["go"].kinds] == ["fenced"]
    assert {kind.mode for kind in some.groups["python"].kinds} == {"transaction", "verified", "doubtful"}


def test_what_kills_and_stops_clients_and_breaks_their_links_reaches_them():
    system = NoSystem()
    door = Workload(system, None, 1, doors=("go",), programs={"go": ["door", "client"]}).make_door("go", 2)
    assert door.words == ["door", "client", 2, "by client-pg"]
    assert faults.process_of(system, faults.CLIENT) is faults.process_of(system, "go-*") is door.target


def test_an_attempt_in_a_transaction_comes_again_by_any_door_that_is_the_same_to_the_contract():
    workload = Workload(NoSystem(), None, 1, doors=("sql", "http", "node", "java"))
    draw, one = random.Random(1), an_intent("transaction", "accounts")
    again = collections.Counter(workload.elsewhere(workload.groups["node"], one, draw).name for _ in range(400))
    assert set(again) == {"node", "sql", "java"} and again["node"] > 200 and min(again.values()) > 20
    leased = an_intent("doubtful", "doubtful")
    assert {workload.elsewhere(workload.groups["node"], leased, draw).name for _ in range(50)} == {"node"}
    alone = Workload(NoSystem(), None, 1, doors=("go",))
    assert alone.elsewhere(alone.groups["go"], one, draw).name == "go"


def test_effects_swallow_an_error_now_and_then_and_never_where_they_fail_for_good():
    workload = Workload(NoSystem(), None, 1, doors=("go",))
    one, draw = an_intent("transaction", "accounts"), random.Random(1)
    jobs = [Job(0, number, [one]) for number in range(1000)]
    told = [workload.orders(one, job, draw).swallow for job in jobs]
    assert 10 < sum(told) < 60 and told == [workload.orders(one, job, draw).swallow for job in jobs]
    for other in (dataclasses.replace(one, final=True), an_intent("doubtful", "doubtful")):
        assert not any(workload.orders(other, job, draw).swallow for job in jobs)


def test_a_door_that_nobody_knows_is_refused():
    assert command.doors("node/accounts,sql") == ("node/accounts", "sql") and command.doors("all") is None
    with pytest.raises(argparse.ArgumentTypeError, match="no such door: nodes; there are sql, .*, java"):
        command.doors("sql,nodes")


def test_a_missing_toolchain_is_named():
    nothing = {"go": ((("true",), r"go(\d+)\.(\d+)", (1, 21), "Go 1.21 or later"),)}
    old = {"go": ((["sh", "-c", "echo go version go1.20 linux"], r"go(\d+)\.(\d+)", (1, 21), "Go 1.21 or later"),)}
    absent = {"go": ((["/nowhere/go"], r"go(\d+)\.(\d+)", (1, 21), "Go 1.21 or later"),)}
    broken = {"go": ((["sh", "-c", "echo go version go1.22; exit 1"], r"go(\d+)\.(\d+)", (1, 21), "Go 1.21 or later"),)}
    for tools in (nothing, old, absent, broken):
        tools = {"go": tuple(([ways] if isinstance(ways[0], str) else ways, *rest) for ways, *rest in tools["go"])}
        with pytest.raises(Missing, match="the door go needs Go 1.21 or later, which is not here"):
            languages.require("go", tools)
    languages.require("go", {"go": (([["sh", "-c", "echo go version go1.21.3 linux"]], r"go(\d+)\.(\d+)", (1, 21), "Go"),)})


def test_an_order_says_what_the_attempt_is_to_do():
    intent = Intent(7, "node", "doubtful", "söder", "doubtful", "k", "{}")
    order = languages.order_of(intent, 9, "{}", Orders(before_s=0.25, doubt_s=2, leave="claimed", isolation="REPEATABLE READ", way="text"))
    assert order == {
        "mode": "doubtful", "attempt": 9, "tenant": "söder", "scope": "doubtful", "key": "k", "payload": "{}", "end": "effect", "before_ms": 250, "after_ms": 0,
        "doubt_ms": 2000, "leave": "claimed", "isolation": "repeatable read", "way": "text", "swallow": False,
    }  # fmt: skip
    final = dataclasses.replace(intent, final=True)
    assert languages.order_of(final, 1, "{}", Orders())["end"] == "final" and languages.order_of(final, 1, "{}", Orders(retry=True))["end"] == "retry"


def test_an_answer_is_read_as_it_was_said():
    body = base64.b64encode("ü\0".encode()).decode()
    told = languages.read(json.dumps({"verdict": "acknowledged", "code": "", "status": 201, "body": body, "replayed": True}))
    assert (told.verdict, told.status, told.body, told.replayed, told.loose) == ("acknowledged", 201, "ü\0".encode(), True, False)
    empty = languages.read(json.dumps({"verdict": "acknowledged", "status": 201, "body": "", "replayed": False}))
    assert empty.body == b"" and empty.replayed is False
    failed = languages.read(json.dumps({"verdict": "failed", "code": "P4011", "status": 0, "body": None, "loose": True}))
    assert (failed.code, failed.status, failed.body, failed.replayed, failed.loose) == ("P4011", None, None, None, True)
    with pytest.raises((ValueError, KeyError)):
        languages.read("no answer")


@pytest.mark.parametrize("name", [name for name, mutation in mutations.MUTATIONS.items() if mutation.language])
def test_a_mutation_of_a_client_is_in_a_copy_and_nowhere_else(name, tmp_path):
    mutation = mutations.MUTATIONS[name].prepared("nowhere", tmp_path)
    assert mutation.tree != ROOT and mutation.language in languages.named(mutation.doors)
    for file, _, _ in mutation.files:
        assert (mutation.tree / file).read_text() != (ROOT / file).read_text()
    assert mutation.build is None and (mutation.tree / languages.PROGRAMS / "node.js").exists()


def test_every_client_has_a_mutation():
    assert {mutation.language for mutation in mutations.MUTATIONS.values()} - {""} == set(LANGUAGES) == set(CLIENTS)


# What they do.


@pytest.fixture(params=LANGUAGES)
def language(request):
    if request.param not in WANTED:
        pytest.skip(f"{request.param} is not in PGONCE_CLIENT_DOORS: `make test-clients` runs it")
    return request.param


@pytest.fixture
def clients(shop, watch, tmp_path, language):  # noqa: F811
    """As test_workload's, with two doors of this client: each by another driver, or with another pool."""
    each = Clients(shop, watch, tmp_path)
    words = languages.prepared([language])[language]
    with contextlib.ExitStack() as stack:
        links, port = Links(), free_port()
        stack.callback(links.destroy)
        links.add("client-pg", port, shop.server.directory / f".s.PGSQL.{PORT}")
        dsn = f"hostaddr=127.0.0.1 port={port} dbname={shop.name} user=postgres connect_timeout=3"
        each.one, each.other = (ClientDoor(language, number, words, dsn, tmp_path / f"{language}-{number}.log") for number in (1, 2))
        for door in (each.sql, each.lib, each.run, each.one, each.other):
            stack.callback(door.close)
        yield each


def modes_of(language):
    return [(mode, scope) for mode, scope in MODES if mode in {kind.mode for kind in KINDS_OF[language]}]


def each_number(language):
    """Intents, one of each mode."""
    return [(number, *way) for number, way in enumerate(modes_of(language), 1)]


@pytest.mark.parametrize("door, other", [("one", "sql"), ("sql", "one"), ("other", "lib"), ("one", "other"), ("other", "one")])
def test_what_a_client_did_every_door_replays_and_the_other_way_round(shop, clients, language, door, other):  # noqa: F811
    for number, mode, scope in each_number(language):
        intent = an_intent(mode, scope, number)
        first, again = clients.attempt(door, intent), clients.attempt(other, intent)
        assert first.verdict == again.verdict == "acknowledged" and again.replayed and not first.replayed, (mode, first, again)
        assert first.body and (first.status, first.body) == (again.status, again.body) and first.status == 201
        assert clients.attempt(other, intent, intent.payload.replace("false", "true", 1)).verdict == "mismatch"
        assert len(effects(shop)) == number


@pytest.mark.parametrize("door", ["one", "other"])
def test_a_failure_for_good_takes_its_effect_back_and_one_for_now_leaves_nothing(shop, clients, language, door):  # noqa: F811
    for number, mode, scope in each_number(language):
        final = an_intent(mode, scope, number, final=True)
        first, again, by_sql = clients.attempt(door, final), clients.attempt(door, final), clients.attempt("sql", final)
        assert (first.verdict, first.status, first.replayed) == ("acknowledged", 422, False) and first.body, (mode, first)
        for each in (again, by_sql):
            assert (each.verdict, each.status, each.body, each.replayed) == ("acknowledged", 422, first.body, True), (mode, each)
        assert effects(shop) == []
    for number, mode, scope in each_number(language):
        passing = an_intent(mode, scope, 10 + number)
        for _ in range(2):  # one is released, the other reported
            assert clients.attempt(door, passing, retry=True).verdict == "failed"
        assert clients.attempt(door, passing).verdict == "acknowledged"
        assert len(effects(shop)) == number


@pytest.mark.parametrize("door", ["one", "other"])
def test_what_a_client_was_given_is_stored_byte_for_byte(shop, clients, language, door):  # noqa: F811
    for number, (way, style) in enumerate([(way, style) for way in ("body", "text", "json") for style in (None, *STYLES)], 1):
        mode, scope = modes_of(language)[number % len(modes_of(language))] if way != "json" else ("transaction", "accounts")
        intent = an_intent(mode, scope, number)
        intent = dataclasses.replace(intent, payload=json.dumps(json.loads(intent.payload) | {"style": style}))
        first, again, by_sql = clients.attempt(door, intent, way=way), clients.attempt(door, intent), clients.attempt("sql", intent)
        assert first.verdict == "acknowledged" and again.replayed and by_sql.replayed, (way, style, first, again)
        assert first.body == again.body == by_sql.body and first.body is not None, (way, style, first, by_sql)


def test_an_effect_through_a_client_has_the_events_of_one_in_sql(shop, clients):  # noqa: F811
    by_sql = an_intent("transaction", "accounts", 9)
    assert clients.attempt("sql", by_sql).verdict == "acknowledged"
    for number, caused in ((1, False), (2, True)):
        intent = an_intent("transaction", "accounts", number)
        intent = dataclasses.replace(intent, payload=json.dumps(json.loads(intent.payload) | {"caused": caused}))
        assert clients.attempt("one" if caused else "other", intent).verdict == "acknowledged"
    events = {}
    for row in shop.rows("SELECT topic, event_type, aggregate_type, aggregate_id, tenant, payload FROM once.outbox"):
        body = row.payload if isinstance(row.payload, dict) else json.loads(row.payload)
        plain = {name: value for name, value in body.items() if name not in ("key", "step")}
        events.setdefault(body["key"], []).append((row.topic, row.event_type, row.aggregate_type, row.aggregate_id, row.tenant, json.dumps(plain, sort_keys=True)))
    assert sorted(events["key 1"]) == sorted(events["key 2"]) == sorted(events["key 9"]) and len(events["key 1"]) == 2


@pytest.mark.parametrize("door", ["one", "other"])
def test_an_error_that_an_effect_swallows_commits_nothing(shop, clients, door):  # noqa: F811
    intent = an_intent("transaction", "accounts")
    assert clients.attempt(door, intent, swallow=True).verdict == "failed"
    assert effects(shop) == [] and shop.rows("SELECT 1 FROM once.intent") == []
    assert clients.attempt(door, intent).verdict == "acknowledged"


def test_a_client_that_dies_in_the_middle_claims_to_know_nothing_and_another_goes_on(shop, clients, language):  # noqa: F811
    ends = {"transaction": "acknowledged", "fenced": "acknowledged", "verified": "acknowledged", "doubtful": "in_doubt"}
    steps = {"transaction": ("begun", "written"), "fenced": ("claimed", "written"), "verified": ("claimed", "done"), "doubtful": ("claimed", "done")}
    number = 0
    for _, mode, scope in each_number(language):
        for step in steps[mode]:
            number += 1
            intent = an_intent(mode, scope, number)
            answer = clients.attempt("one", intent, leave=step)
            assert (answer.verdict, answer.code) == ("unknown", "killed"), (mode, step, answer)
            clients.insist("one", intent, ends[mode])
            assert len([each for each, _ in effects(shop) if each == number]) == (0 if (mode, step) == ("doubtful", "claimed") else 1), (mode, step)


def test_a_connection_that_is_lost_in_commit_leaves_nothing_and_no_doubt(shop, clients, language):  # noqa: F811
    shop.execute("CREATE FUNCTION torture.die() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END'")
    shop.execute("CREATE CONSTRAINT TRIGGER die AFTER INSERT ON torture.effect DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION torture.die()")
    intents = [an_intent(mode, scope, number) for number, mode, scope in each_number(language) if mode in ("transaction", "fenced")]
    for intent in intents:
        assert clients.attempt("one", intent).verdict in ("unknown", "failed")
        assert effects(shop) == [] and shop.rows("SELECT 1 FROM once.intent WHERE state = 'in_doubt'") == []
    shop.execute("DROP TRIGGER die ON torture.effect")
    for number, intent in enumerate(intents, 1):
        clients.insist("one", intent)
        assert len(effects(shop)) == number


def test_a_doubt_that_a_client_reports_is_asked_about_and_what_is_found_is_the_answer(shop, clients):  # noqa: F811
    for number in range(1, 5):
        intent = an_intent("verified", "asked", number)
        first = clients.attempt("one", intent, doubt_s=0.1)
        assert first.verdict in ("acknowledged", "unknown"), first
        assert clients.insist("one", intent).body is not None
        assert len(effects(shop)) == number


def test_a_client_is_killed_from_outside_and_started_again(shop, clients):  # noqa: F811
    intent = an_intent("transaction", "accounts")
    assert clients.attempt("one", an_intent("transaction", "accounts", 9)).verdict == "acknowledged"
    first = clients.one.target.pid
    assert clients.one.target.kill()
    wait_until(lambda: clients.one.target.pid is None, "its end")
    assert clients.insist("one", intent).verdict == "acknowledged"
    assert clients.one.target.pid not in (None, first)


def test_a_client_under_faults_keeps_every_promise(language, capfd):
    kinds = ("kill:client", "pause:client", "kill:primary*", "cut:client-pg", "delay:client-pg", "loss:client-pg", "half_open:client-pg", "terminate:primary", "failover")
    result = run(Plan(int(os.environ["PGONCE_TORTURE_SEED"]), SECONDS, doors=(language,), faults=kinds))
    with capfd.disabled():
        print("\n" + result.text())
    assert result.status == 0, result.text()
    figures = result.figures
    assert figures.doors[language] > 0 and figures.verdicts["acknowledged"] > 0 and figures.effects > 0 and figures.applied > 0, "nothing happened"
