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

from . import __main__ as command, faults, languages, mutations, nemesis, services
from .checker import BREAKS
from .doors import Intent, Orders
from .languages import LANGUAGES, ClientDoor, Missing
from .links import Links
from .processes import Job
from .run import Plan, Result, run
from .test_workload import MODES, Clients, an_intent, effects, shop, watch  # pylint: disable=unused-import
from .services import LEAVES, ServiceDoor
from .workload import CLIENTS, GROUPS, KINDS_OF, STYLES, Workload, served
from .workload import Job as Attempting

WANTED = os.environ.get("PGONCE_CLIENT_DOORS", "").split(",")
UNLIMITED = {("java", "endpoint")}  # work of HttpOnce takes as long as it takes
SECONDS = int(os.environ.get("PGONCE_CLIENT_DOORS_SECONDS", "20"))


# What is decided about them.


def test_languages_are_doors_only_where_they_are_named():
    assert languages.named(None) == languages.named(("sql", "lib/fenced")) == ()
    assert languages.named(("java/doubtful", "sql", "node", "node/accounts")) == ("node", "java")


class NoSystem:
    directory = pathlib.Path("/nowhere")

    def __init__(self):
        self.recorder, self.extra, self.processes, self.services = None, [], [], {}

    def dsn(self, link):
        return f"by {link}"

    def service_address(self, language):
        return f"the service of {language}"


def test_without_a_wish_the_workload_has_the_doors_that_need_no_toolchain_and_with_one_those_that_are_named():
    assert set(Workload(NoSystem(), None, 1).groups) == set(GROUPS)
    some = Workload(NoSystem(), None, 1, doors=("sql", "python", "go/fenced"))
    assert set(some.groups) == {"sql", "python", "go"}
    assert [kind.scope for kind in some.groups["go"].kinds] == ["fenced"]
    assert {kind.mode for kind in some.groups["python"].kinds} == {"transaction", "verified", "doubtful", "http", "receive"}
    assert [kind.scope for kind in Workload(NoSystem(), None, 1, doors=("java/receive",)).groups["java"].kinds] == ["deliveries"]


def test_a_client_serves_http_where_its_requests_are_wanted():
    programs = {"go": ["door"], "node": ["node"]}
    assert set(served(("go", "node/transaction"), programs, 1)) == {"go"} == set(served(("go/http", "node/receive"), programs, 1))
    assert served(("node/http/fastify",), programs, 1) == {"node": ["node", "fastify"]}
    system = NoSystem()
    system.services = served(("go", "node/receive"), programs, 1)
    workload = Workload(system, None, 1, doors=("go", "node/receive"), programs=programs)
    assert workload.make_door("go", 1).service.address == "the service of go" and workload.make_door("node", 1).service is None


def test_services_have_faults_of_their_own_and_a_schedule_without_them_is_as_it_was():
    plain, more = (nemesis.schedule(3, 4000, services=languages) for languages in ((), ("go", "java")))
    targets = {(kind, target) for _, kind, target, *_ in more}
    assert {("kill", "go-service"), ("pause", "java-service"), ("cut", "client-go"), ("loss", "client-java"), ("half_open", "client-go")} <= targets
    assert not any("go" in target.split("-") or "java" in target for _, _, target, *_ in plain)
    assert nemesis.targets_of("kill:*-service", ("node", "python")) == ["node-service", "python-service"]


@pytest.mark.parametrize("named", LANGUAGES)
def test_every_framework_and_every_driver_of_a_language_has_its_runs(named):
    frameworks, drivers = languages.FRAMEWORKS[named], languages.DRIVERS[named]
    assert {services.framework_of(seed, named) for seed in range(50)} == set(frameworks)
    assert {languages.driver_of(seed, named, 1) for seed in range(50)} == set(drivers)
    assert {languages.driver_of(7, named, number) for number in range(1, len(drivers) + 1)} == set(drivers)
    for one in frameworks:
        wish = ("sql", f"{named}/http/{one}", "other/http/nothing")
        assert {services.framework_of(seed, named, wish) for seed in range(5)} == {one}
    for one in drivers:
        assert {languages.driver_of(seed, named, seed, (f"{named}/receive/{one}", named)) for seed in range(5)} == {one}


def test_a_report_says_which_framework_and_which_drivers_it_is_about():
    system = NoSystem()
    system.services = {"node": ["agent", "fastify"]}
    workload = Workload(system, None, 1, doors=("node", "go/receive/sql"), programs={"node": ["agent"], "go": ["agent"]})
    for number in (1, 2):
        assert workload.make_door("go", number).words == ["agent", "sql", "by client-pg"]
        assert workload.make_door("node", number).words == ["agent", "pg", "by client-pg"]
    assert Result(Plan(1, 2), [], clients=workload.through).through() == "; go: sql; node: fastify, pg"


def test_what_kills_and_stops_clients_and_breaks_their_links_reaches_them():
    system = NoSystem()
    door = Workload(system, None, 1, doors=("go",), programs={"go": ["door", "client"]}).make_door("go", 2)
    assert door.words == ["door", "client", languages.driver_of(1, "go", 2), "by client-pg"]
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


def test_a_request_or_a_message_comes_again_by_any_client_that_takes_it():
    workload = Workload(NoSystem(), None, 1, doors=("sql", "node", "java", "go/receive", "python/transaction"))
    draw = random.Random(1)
    for mode, doors in (("http", {"node", "java"}), ("receive", {"node", "java", "go"})):
        assert {workload.elsewhere(workload.groups["node"], an_intent(mode, "any"), draw).name for _ in range(400)} == doors


def test_effects_swallow_an_error_now_and_then_and_never_where_they_fail_for_good():
    workload = Workload(NoSystem(), None, 1, doors=("go",))
    one, draw = an_intent("transaction", "accounts"), random.Random(1)
    jobs = [Attempting(0, number, [one]) for number in range(1000)]
    told = [workload.orders(one, job, draw).swallow for job in jobs]
    assert 10 < sum(told) < 60 and told == [workload.orders(one, job, draw).swallow for job in jobs]
    assert any(workload.orders(an_intent("http", "requests"), job, draw).swallow for job in jobs)
    for other in (dataclasses.replace(one, final=True), an_intent("doubtful", "doubtful"), an_intent("receive", "deliveries")):
        assert not any(workload.orders(other, job, draw).swallow for job in jobs)


def test_what_is_around_an_effect_is_what_its_door_knows_and_a_seed_draws_it_again(monkeypatch):
    known = {"http": {"naive": ("cut",)}, "go": {"http": ("pieces", "destroy"), "transaction": ("commit",)}}
    monkeypatch.setattr("torture.workload.AROUND", known)
    workload = Workload(NoSystem(), None, 1, doors=("go", "node", "http"))
    jobs = [Attempting(0, number, []) for number in range(1000)]
    told = {}
    for door, mode in (("go", "http"), ("go", "transaction"), ("go", "receive"), ("node", "http"), ("http", "naive"), ("http", "handoff")):
        one = an_intent(mode, "any")
        drawn = [workload.neighbour(door, one, job, Orders()) for job in jobs]
        assert drawn == [workload.neighbour(door, one, job, Orders()) for job in jobs]
        assert not any(workload.neighbour(door, one, job, orders) for job in jobs for orders in (Orders(retry=True), Orders(swallow=True)))
        told[door, mode] = set(filter(None, drawn))
        assert len(list(filter(None, drawn))) < 200
    assert told == {("go", "http"): {"pieces", "destroy"}, ("go", "transaction"): {"commit"}, ("go", "receive"): set(), ("node", "http"): set(), ("http", "naive"): {"cut"},
                    ("http", "handoff"): set()}  # fmt: skip
    workload.hastening = True
    assert not any(workload.neighbour("go", an_intent("http", "any"), job, Orders()) for job in jobs)


def test_only_what_an_order_can_name_is_around_an_effect():
    known = {
        "http": {"pieces", "destroy", "trailers", "second", "commit"}, "transaction": {"second", "commit"}, "endpoint": {"second"},
        "leased": {"pieces", "cut", "trailers", "second"},
    }  # fmt: skip
    for language, modes in languages.NEIGHBOURS.items():
        assert language in LANGUAGES and all(set(words) <= known[mode] for mode, words in modes.items())


def test_a_door_that_nobody_knows_is_refused():
    assert command.doors("node/accounts,sql") == ("node/accounts", "sql") and command.doors("all") is None
    with pytest.raises(argparse.ArgumentTypeError, match="no such door: nodes; there are sql, .*, java"):
        command.doors("sql,nodes")
    assert command.doors("node/http/fastify,go/receive/sql") == ("node/http/fastify", "go/receive/sql")
    for wrong, ways in (("node/http/flask", "express, fastify, node-http, pg"), ("sql/accounts/pg", "none")):
        with pytest.raises(argparse.ArgumentTypeError, match=f"no such framework or driver of {wrong.split('/')[0]}: {wrong.split('/')[2]}; there are {ways}"):
            command.doors(wrong)


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
        "doubt_ms": 2000, "leave": "claimed", "isolation": "repeatable read", "way": "text", "swallow": False, "neighbour": None,
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
    assert mutation.build is None and (mutation.tree / languages.PROGRAMS[mutation.language]).exists()


def test_every_client_has_a_mutation_and_so_has_every_kind_of_door_of_theirs():
    each = [mutation for mutation in mutations.MUTATIONS.values() if mutation.language]
    assert {mutation.language for mutation in each} == set(LANGUAGES) == set(CLIENTS)
    assert {"transaction", "http", "receive"} <= {door.split("/")[1] for mutation in each for door in mutation.doors}


# What they do.


@pytest.fixture(params=LANGUAGES)
def language(request):
    if request.param not in WANTED:
        pytest.skip(f"{request.param} is not in PGONCE_CLIENT_DOORS: `make test-clients` runs it")
    return request.param


def pairs():
    """(language, two drivers), such that each driver is in one at least."""
    for name in LANGUAGES:
        drivers = languages.DRIVERS[name]
        yield from ((name, drivers[at], drivers[(at + 1) % len(drivers)]) for at in range(0, len(drivers), 2))


@pytest.fixture(params=pairs(), ids="-".join)
def clients(request, shop, watch, tmp_path):  # noqa: F811
    """As test_workload's, with two doors of one client, by these drivers."""
    language, *drivers = request.param
    if language not in WANTED:
        pytest.skip(f"{language} is not in PGONCE_CLIENT_DOORS: `make test-clients` runs it")
    each = Clients(shop, watch, tmp_path)
    each.language = language
    words = languages.prepared([language])[language]
    with contextlib.ExitStack() as stack:
        links, port = Links(), free_port()
        stack.callback(links.destroy)
        links.add("client-pg", port, shop.server.directory / f".s.PGSQL.{PORT}")
        dsn = f"hostaddr=127.0.0.1 port={port} dbname={shop.name} user=postgres connect_timeout=3"
        each.one, each.other = (
            ClientDoor(language, number, [*words, driver], dsn, tmp_path / f"{language}-{number}.log") for number, driver in enumerate(drivers, 1)
        )
        for door in (each.sql, each.lib, each.run, each.one, each.other):
            stack.callback(door.close)
        yield each


def modes_of(language):
    return [(mode, scope) for mode, scope in MODES if mode in {kind.mode for kind in KINDS_OF[language]}]


def each_number(language):
    """Intents, one of each mode."""
    return [(number, *way) for number, way in enumerate(modes_of(language), 1)]


@pytest.mark.parametrize("door, other", [("one", "sql"), ("sql", "one"), ("other", "lib"), ("one", "other"), ("other", "one")])
def test_what_a_client_did_every_door_replays_and_the_other_way_round(shop, clients, door, other):  # noqa: F811
    for number, mode, scope in each_number(clients.language):
        intent = an_intent(mode, scope, number)
        first, again = clients.attempt(door, intent), clients.attempt(other, intent)
        assert first.verdict == again.verdict == "acknowledged" and again.replayed and not first.replayed, (mode, first, again)
        assert first.body and (first.status, first.body) == (again.status, again.body) and first.status == 201
        assert clients.attempt(other, intent, intent.payload.replace("false", "true", 1)).verdict == "mismatch"
        assert len(effects(shop)) == number


@pytest.mark.parametrize("door", ["one", "other"])
def test_a_failure_for_good_takes_its_effect_back_and_one_for_now_leaves_nothing(shop, clients, door):  # noqa: F811
    for number, mode, scope in each_number(clients.language):
        final = an_intent(mode, scope, number, final=True)
        first, again, by_sql = clients.attempt(door, final), clients.attempt(door, final), clients.attempt("sql", final)
        assert (first.verdict, first.status, first.replayed) == ("acknowledged", 422, False) and first.body, (mode, first)
        for each in (again, by_sql):
            assert (each.verdict, each.status, each.body, each.replayed) == ("acknowledged", 422, first.body, True), (mode, each)
        assert effects(shop) == []
    for number, mode, scope in each_number(clients.language):
        passing = an_intent(mode, scope, 10 + number)
        for _ in range(2):  # one is released, the other reported
            assert clients.attempt(door, passing, retry=True).verdict == "failed"
        assert clients.attempt(door, passing).verdict == "acknowledged"
        assert len(effects(shop)) == number


@pytest.mark.parametrize("door", ["one", "other"])
def test_what_a_client_was_given_is_stored_byte_for_byte(shop, clients, door):  # noqa: F811
    for number, (way, style) in enumerate([(way, style) for way in ("body", "text", "json") for style in (None, *STYLES)], 1):
        mode, scope = modes_of(clients.language)[number % len(modes_of(clients.language))] if way != "json" else ("transaction", "accounts")
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


def test_a_client_that_dies_in_the_middle_claims_to_know_nothing_and_another_goes_on(shop, clients):  # noqa: F811
    ends = {"transaction": "acknowledged", "fenced": "acknowledged", "verified": "acknowledged", "doubtful": "in_doubt"}
    steps = {"transaction": ("begun", "written"), "fenced": ("claimed", "written"), "verified": ("claimed", "done"), "doubtful": ("claimed", "done")}
    number = 0
    for _, mode, scope in each_number(clients.language):
        for step in steps[mode]:
            number += 1
            intent = an_intent(mode, scope, number)
            answer = clients.attempt("one", intent, leave=step)
            assert (answer.verdict, answer.code) == ("unknown", "killed"), (mode, step, answer)
            clients.insist("one", intent, ends[mode])
            assert len([each for each, _ in effects(shop) if each == number]) == (0 if (mode, step) == ("doubtful", "claimed") else 1), (mode, step)


def die_in_commit(shop):  # noqa: F811
    """Whoever commits an effect loses its connection."""
    shop.execute("CREATE FUNCTION torture.die() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END'")
    shop.execute("CREATE CONSTRAINT TRIGGER die AFTER INSERT ON torture.effect DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION torture.die()")


def test_a_connection_that_is_lost_in_commit_leaves_nothing_and_no_doubt(shop, clients):  # noqa: F811
    die_in_commit(shop)
    intents = [an_intent(mode, scope, number) for number, mode, scope in each_number(clients.language) if mode in ("transaction", "fenced")]
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


# By HTTP.


class Served:
    """The service of a client, behind one of its frameworks, and a door to it."""

    def __init__(self, language, framework, watch, dsn, directory):  # noqa: F811
        self.language, port = language, free_port()
        words = [*languages.prepared([language])[language], framework, dsn, port]
        self.job, self.attempts = Job(f"{language}-service", words, directory / "service.log", listens=port), 0
        self.door = ServiceDoor(("127.0.0.1", port), watch)

    def start(self):
        self.job.start()
        wait_until(self.job.is_ready, self.job.tail(), languages.START_S)

    def attempt(self, intent, payload=None, **orders):
        self.attempts += 1
        return self.door.attempt(intent, self.attempts, payload or intent.payload, Orders(**orders))

    def insist(self, intent):
        """Attempts it until it is acknowledged; a service that has ended is started again."""
        answers = []

        def is_acknowledged():
            self.job.tend()
            answers.append(self.attempt(intent))
            return answers[-1].verdict == "acknowledged"

        wait_until(is_acknowledged, "an acknowledgement", languages.START_S)
        return answers[-1]

    def close(self):
        self.door.close()
        self.job.destroy()


@pytest.fixture(params=[(name, framework) for name in LANGUAGES for framework in languages.FRAMEWORKS[name]], ids="-".join)
def service(request, shop, watch, tmp_path):  # noqa: F811
    if request.param[0] not in WANTED:
        pytest.skip(f"{request.param[0]} is not in PGONCE_CLIENT_DOORS: `make test-clients` runs it")
    with contextlib.ExitStack() as stack:
        links, port = Links(), free_port()
        stack.callback(links.destroy)
        links.add("client-pg", port, shop.server.directory / f".s.PGSQL.{PORT}")
        made = Served(*request.param, watch, f"hostaddr=127.0.0.1 port={port} dbname={shop.name} user=postgres connect_timeout=3", tmp_path)
        stack.callback(made.close)
        made.start()
        yield made


def test_a_request_is_carried_out_once_and_answered_alike_and_what_fails_leaves_no_effect(shop, service):  # noqa: F811
    for number, style in enumerate((None, *STYLES), 1):
        intent = an_intent("http", "requests", number)
        intent = dataclasses.replace(intent, payload=json.dumps(json.loads(intent.payload) | {"style": style}))
        first, again = service.attempt(intent), service.attempt(intent)
        assert (first.verdict, first.status, first.replayed, again.replayed) == ("acknowledged", 201, False, True), (first, again)
        (row,) = shop.rows("SELECT body FROM torture.effect WHERE intent = %s", number)
        assert bytes(row.body) == first.body == again.body and again.status == 201, style
        assert service.attempt(intent, intent.payload.replace("false", "true", 1)).verdict == "mismatch"
    done = len(effects(shop))
    final = an_intent("http", "requests", 20, final=True)
    first, again = service.attempt(final), service.attempt(final)
    assert (first.verdict, first.status, first.body) == (again.verdict, again.status, again.body) == ("acknowledged", 422, again.body) and again.body
    passing = an_intent("http", "requests", 21)
    told = {service.attempt(passing, retry=True).verdict for _ in range(2)}
    assert told == {"failed", "unknown"} and service.attempt(passing, swallow=True).verdict == "unknown"
    assert service.attempt(dataclasses.replace(passing, key="schlüssel ☃")).verdict == "refused"
    assert len(effects(shop)) == done and service.attempt(passing).verdict == "acknowledged"


def test_a_client_that_hangs_up_or_a_service_that_is_killed_leaves_one_effect_in_the_end(shop, service):  # noqa: F811
    for number, step in enumerate((*LEAVES, "written"), 1):
        intent = an_intent("http", "requests", number)
        assert service.attempt(intent, leave=step).verdict == "unknown"
        if step == "claimed":
            assert shop.rows("SELECT 1 FROM once.intent WHERE key = %s", intent.key) == []
        if step == "written":
            wait_until(lambda: not service.job.is_running(), "its end")
        assert service.insist(intent).status == 201
        assert len(effects(shop)) == number, step
    first = service.job.pid
    service.job.kill()
    service.start()
    assert service.job.pid != first and service.insist(an_intent("http", "requests")).replayed


@pytest.mark.parametrize("mode, scope", [("endpoint", "endpoints"), ("leased", "leases")])
def test_an_effect_elsewhere_behind_a_service_has_its_answer_or_leaves_a_doubt(shop, service, mode, scope):  # noqa: F811
    if mode not in {kind.mode for kind in KINDS_OF[service.language]}:
        pytest.skip("its service has no such door")
    made = lambda: shop.value("SELECT count(*) FROM torture.ledger")  # noqa: E731
    intent = an_intent(mode, scope)
    assert service.insist(an_intent("http", "requests")).status == 201  # the first request may take longer than the 4 s that a lease has here
    first = service.attempt(intent, retry=True)
    assert first.verdict == "failed" and made() == 0, first
    first, again = service.attempt(intent), service.attempt(intent)
    assert (first.verdict, first.status, first.replayed, again.replayed, again.body) == ("acknowledged", 201, False, True, first.body) and made() == 1
    assert service.attempt(intent, intent.payload.replace("false", "true", 1)).verdict == "mismatch"
    final = an_intent(mode, scope, 2, final=True)
    first, again = service.attempt(final), service.attempt(final)
    assert (first.verdict, first.status, first.body) == (again.verdict, again.status, again.body) == ("acknowledged", 422, again.body) and made() == 1
    if (service.language, mode) not in UNLIMITED:
        late = an_intent(mode, scope, 3)
        # Its time is over before its effect. It cannot know so, and who asks next learns of the doubt. In Java the client is told, and then the handler is ended.
        assert service.attempt(late, before_s=5).verdict == "unknown"
        wait_until(lambda: service.language != "java" or service.attempt(late).verdict != "busy", "the end of its handler")
        assert service.attempt(late).verdict == "in_doubt" and made() == 1
    for number, word in enumerate(languages.NEIGHBOURS[service.language][mode], 4):
        around = an_intent(mode, scope, number)
        first = service.attempt(around, neighbour=word)
        assert first.verdict == ("unknown" if word == "cut" else "acknowledged"), (word, first)
        assert service.attempt(around).verdict == ("in_doubt" if word == "cut" else "acknowledged"), word
        assert made() == number - 2, word
    gone = an_intent(mode, scope, 20)
    assert service.attempt(gone, leave="written").verdict == "unknown"
    wait_until(lambda: not service.job.is_running(), "its end")
    service.start()
    wait_until(lambda: service.attempt(gone).verdict == "in_doubt", "its lease to pass")
    assert shop.value("SELECT count(*) FROM torture.ledger WHERE intent = 20") == 1


def test_whatever_is_around_an_effect_there_is_one_with_its_whole_answer_or_none(shop, service):  # noqa: F811
    words = languages.NEIGHBOURS.get(service.language, {}).get("http", ())
    for number, word in enumerate(words, 1):
        intent = an_intent("http", "requests", number)
        first = service.attempt(intent, neighbour=word)
        if word in BREAKS:
            assert first.verdict in ("unknown", "failed"), (word, first)
        assert len(effects(shop)) == number - (first.verdict != "acknowledged"), (word, first)
        last = service.insist(intent)
        assert last.status == 201 and len(effects(shop)) == number, word
        if first.verdict == "acknowledged":
            assert (last.body, last.replayed) == (first.body, True), word


def test_a_service_whose_connection_is_lost_in_commit_acknowledges_nothing(shop, service):  # noqa: F811
    die_in_commit(shop)
    intent = an_intent("http", "requests")
    assert service.attempt(intent).verdict in ("unknown", "failed") and effects(shop) == []
    shop.execute("DROP TRIGGER die ON torture.effect")
    assert not service.insist(intent).replayed and len(effects(shop)) == 1


# Messages.


@pytest.mark.parametrize("door, other", [("one", "other"), ("other", "one")])
def test_a_message_is_applied_once_by_whichever_process_it_comes_to(shop, clients, door, other):  # noqa: F811
    for number in (1, 2):  # some clients have two ways
        intent = an_intent("receive", "deliveries", number)
        assert clients.attempt(door, intent, retry=True).verdict == "failed" and shop.rows("SELECT 1 FROM once.intent WHERE key = %s", intent.key) == []
        first, *again = (clients.attempt(each, intent) for each in (door, door, other, other))
        assert (first.verdict, first.code, first.replayed) == ("acknowledged", "process", False), first
        assert {(each.verdict, each.code, each.replayed) for each in again} == {("acknowledged", "duplicate", True)}
        for each in (door, other):
            assert clients.attempt(each, intent, intent.payload.replace("false", "true", 1)).verdict == "mismatch"
        assert len(effects(shop)) == number and len(shop.rows("SELECT 1 FROM once.outbox")) == 2 * number
        clients.attempts += 1


def test_a_consumer_that_dies_leaves_its_message_to_the_next_delivery(shop, clients):  # noqa: F811
    open_elsewhere = "SELECT 1 FROM pg_stat_activity WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid() AND datname = current_database()"
    for number, (door, step) in enumerate((("one", "begun"), ("other", "written"), ("one", "done"), ("other", "done")), 1):
        intent = an_intent("receive", "deliveries", number)
        answer = clients.attempt(door, intent, leave=step)
        assert (answer.verdict, answer.code) == ("unknown", "killed")
        wait_until(lambda: not shop.rows(open_elsewhere), "its end")
        assert len(effects(shop)) == number - (step != "done")
        assert clients.insist("other" if door == "one" else "one", intent).replayed == (step == "done")
        assert len(effects(shop)) == number


def test_a_commit_that_is_lost_acknowledges_no_message(shop, clients):  # noqa: F811
    die_in_commit(shop)
    tried = [(number, door, an_intent("receive", "deliveries", number)) for number, door in ((1, "one"), (2, "other"))]
    for _, door, intent in tried:
        assert clients.attempt(door, intent).verdict in ("unknown", "failed")
        assert effects(shop) == [] and shop.rows("SELECT 1 FROM once.intent") == []
    shop.execute("DROP TRIGGER die ON torture.effect")
    for number, door, intent in tried:
        assert not clients.insist(door, intent).replayed and len(effects(shop)) == number


def test_a_client_under_faults_keeps_every_promise(language, capfd):
    kinds = ("kill:client", "pause:client", "kill:*-service", "pause:*-service", f"cut:client-{language}", f"half_open:client-{language}", "kill:primary*", "cut:client-pg", "delay:client-pg", "loss:client-pg", "half_open:client-pg", "terminate:primary", "failover")
    result = run(Plan(int(os.environ["PGONCE_TORTURE_SEED"]), SECONDS, doors=(language,), faults=kinds))
    with capfd.disabled():
        print("\n" + result.text())
    assert result.status == 0, result.text()
    figures = result.figures
    done = {record["mode"] for record in result.history.intents.values() if (record["scope"], record["key"]) in {(row["scope"], row["key"]) for row in result.facts["effects"]}}
    assert {"transaction", "http", "receive"} <= done
    assert figures.doors[language] > 0 and figures.verdicts["acknowledged"] > 0 and figures.effects > 0 and figures.applied > 0, "nothing happened"
