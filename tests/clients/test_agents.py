# SPDX-License-Identifier: PostgreSQL
"""The cases of spec/cases by the agent of each language: calls by each driver, requests by each framework and server, and both kinds through two doors.

They run where PGONCE_CLIENT_DOORS names the language, as `make test-clients` does: they need its toolchain and its registry. PGONCE_CLIENT_TREE: a tree with another
clients/LANGUAGE (mutations.py)."""

import json
import os
import pathlib

import pytest

from harness.postgres import ROOT
from torture import languages

from .agents import Agent, AgentCalls, AgentRequests, Server, name_of, ways
from .faults import Faults, Forwarder
from .nodes import NodeCalls, Nodes, Sent
from .suite import Plain, assert_rows

WANTED = os.environ.get("PGONCE_CLIENT_DOORS", "").split(",")
TREE = pathlib.Path(os.environ.get("PGONCE_CLIENT_TREE", ROOT))
RESULTS = {}


def by_way(file):
    each = [pytest.param(way, id=name_of(way)) for way in ways(file) if way[0] in WANTED]
    nobody = pytest.mark.skip(reason="PGONCE_CLIENT_DOORS names no client: `make test-clients` runs it")
    return pytest.mark.parametrize("way", each or [pytest.param(None, marks=nobody, id="nobody")])


@pytest.fixture(scope="module")
def server():
    server = Server()
    yield server
    server.close()


@pytest.fixture(scope="module")
def forwarder(server):
    with Forwarder(server.said) as forwarder:
        yield forwarder


@pytest.fixture(scope="module")
def nodes(server):
    nodes = Nodes(server)
    yield nodes
    nodes.close_all()


class Agents:
    """The agent that is at work, and what it has last served: each driver and framework finds the keys unused. Those of faults reach the server by the forwarder."""

    def __init__(self, server, forwarder, place):
        self.server, self.forwarder, self.place, self.words, self.agent, self.now, self.suite = server, forwarder, place, {}, None, None, None

    def of(self, file, language, driver, framework):
        if language not in self.words:
            self.words.update(languages.prepared([language], TREE))
        database = self.server.database(file)
        if self.now != (file, language, driver):
            self.close()
            port = self.forwarder.port if file == "faults" else None
            self.agent, self.now = Agent(self.words[language], driver, database, self.place / f"{language}-{driver}.log", port), (file, language, driver)
        if self.suite != (*self.now, framework):
            database.clear()
            self.suite = (*self.now, framework)
        self.agent.passed = False
        return self.agent

    def close(self):
        agent, self.agent, self.now = self.agent, None, None
        if agent is not None:
            agent.close()


@pytest.fixture(scope="module")
def agents(server, forwarder, tmp_path_factory):
    each = Agents(server, forwarder, tmp_path_factory.mktemp("agents"))
    yield each
    each.close()


@pytest.fixture(scope="module", autouse=True)
def results():
    """What was found, for the matrix in docs/reference/clients.md."""
    yield
    folder = os.environ.get("PGONCE_CONFORMANCE_RESULTS")
    for language, found in RESULTS.items() if folder else ():
        pathlib.Path(folder, f"{language}.json").write_text(json.dumps({"door": language, "results": found}, indent=1))


@pytest.fixture
def agent(request, server, agents, way):
    """Of a way. Where its case fails it is ended, for nobody knows in which state it is."""
    language, driver, framework, case = way
    file = request.node.originalname.split("_")[1].replace("fault", "faults")
    if server.said["gateway"] is None and any(step.get("door") == "gateway" for step in case["steps"]):
        pytest.skip("the gateway is not built")
    agent = agents.of(file, language, driver, framework)
    for statement in case.get("arrange", ()):
        agent.database.execute(statement)
    name, found = f"{file}/{case['name']}", RESULTS.setdefault(language, {})
    found[name], before = "fail", found.get(name, "pass")
    yield agent
    if agent.passed:
        found[name] = before
    else:
        agents.close()


def finished(agent, case, calls):
    assert_rows(agent.database, case)
    calls.close()
    agent.passed = True


@by_way("sql")
def test_sql_case(agent, way):
    case = way[-1]
    calls = AgentCalls(agent, case)
    for step in case["steps"]:
        calls.step(step)
    finished(agent, case, calls)


def effects_of(agent, case):
    effects = agent.database.value("SELECT count(*)::int FROM effect WHERE key = %s", case["name"])
    assert effects == case.get("effects", effects)


def requested(agent, way, gateway=None):
    """The steps of a case with requests."""
    _, _, framework, case = way
    requests, calls, plain = AgentRequests(agent, framework, case, gateway), AgentCalls(agent, case), Plain(agent.database, case)
    doors = {"run": calls, "sql": plain}
    try:
        for step in case["steps"]:
            doors.get(step.get("door"), requests).step({name: value for name, value in step.items() if name != "door" or value == "gateway"})
    finally:
        runs = requests.stop()
    assert runs == case.get("runs", runs)
    effects_of(agent, case)
    finished(agent, case, calls)


@by_way("http")
def test_http_case(agent, way):
    requested(agent, way)


@by_way("cross")
def test_cross_case(agent, way, server):
    requested(agent, way, server.said["gateway"])


@by_way("faults")
def test_fault_case(agent, way, forwarder):
    language, driver, framework, case = way
    faults = Faults(forwarder, agent.database, language, driver)

    def step(each):
        if "fault" in each:
            faults.step(each)
        elif each.get("door") == "sql":
            plain.step({name: value for name, value in each.items() if name != "door"})
        else:
            before = forwarder.round_trips
            (calls if "call" in each else requests).step({name: value for name, value in each.items() if name != "trips"})
            assert forwarder.round_trips - before == each.get("trips", forwarder.round_trips - before), each

    calls, plain = AgentCalls(agent, case, step), Plain(agent.database, case)
    requests = AgentRequests(agent, framework, case) if framework else None
    runs = None
    try:
        for each in case["steps"]:
            step(each)
        faults.finish()
    finally:
        forwarder.heal()
        runs = requests.stop() if requests else None
    assert runs == case.get("runs", runs)
    effects_of(agent, case)
    finished(agent, case, calls)


@by_way("nodes")
def test_nodes_case(agent, way, nodes):
    language, driver, framework, case = way

    def step(each):
        sent = Sent(nodes, language, driver)
        if "slot" in each:
            nodes.slot(each)
        elif "node" in each:
            nodes.node(each)
        elif "call" in each:
            calls.step(each)
        else:
            requests.step({name: value for name, value in each.items() if name != "sent"})
        sent.check(each)

    nodes.reset()
    agent.call("nodes", dsns=nodes.addresses(case.get("nodes", ["A", "B"])), router=case.get("router", "nodes"))
    calls = NodeCalls(agent, nodes, case, step)
    requests = AgentRequests(agent, framework, case) if framework else None
    runs = None
    try:
        for each in case["steps"]:
            step(each)
        nodes.join()
    finally:
        runs = requests.stop() if requests else None
    assert runs == case.get("runs", runs)
    for name, effects in case["effects"].items():
        assert nodes[name].database.value("SELECT count(*)::int FROM effect WHERE key = %s", case["name"]) == effects, name
    finished(agent, case, calls)
