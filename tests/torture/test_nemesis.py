# SPDX-License-Identifier: PostgreSQL
"""The schedule depends on the seed and on nothing else, has every kind in it soon, and is followed; what cannot be done says so."""

import re
import threading
import time
import types

import psycopg2
import pytest

from . import citus, faults as table, servers
from .history import Recorder, read
from .nemesis import KINDS, PACE_S, Nemesis, kinds_of, schedule
from .run import Plan, run
from .system import LINKS


def test_a_seed_gives_the_same_schedule_each_time_and_another_seed_another_one():
    assert schedule(17, 120) == schedule(17, 120)
    assert schedule(17, 120) != schedule(18, 120)


def test_no_fault_begins_after_the_end_or_lasts_beyond_it_and_every_kind_comes_soon():
    for seed in range(20):
        plan = schedule(seed, 100)
        assert all(2 <= at < 99 and at + duration <= 100.001 for at, _, _, duration, _ in plan)
        assert [fault[0] for fault in plan] == sorted(fault[0] for fault in plan)
        dealt = sum(fault.weight for fault in table.TABLE)
        assert {kind for _, kind, *_ in plan[:dealt]} == set(KINDS) or len(plan) < dealt
        assert 100 / PACE_S / 2 < len(plan) < 100 / PACE_S * 2


def test_faults_last_as_long_as_the_table_says_and_hit_what_it_names():
    seen = set()
    for seed in range(60):
        for at, kind, target, duration, _ in schedule(seed, 100):
            fault = table.BY_KIND[kind]
            assert target in fault.targets and duration <= fault.most + 0.001
            assert duration >= min(fault.least, 100 - at) - 0.001
            seen.add((kind, target))
    assert seen == {(fault.kind, target) for fault in table.TABLE for target in fault.targets}


def test_every_link_may_be_cut_slow_lossy_and_half_open():
    for kind in ("cut", "delay", "loss", "half_open"):
        assert table.BY_KIND[kind].targets == LINKS


def test_the_clock_steps_only_as_far_as_something_is_promised():
    steps = [fault[4]["ahead_s"] for seed in range(200) for fault in schedule(seed, 60, ("clock",))]
    assert all(-3 <= step <= 3 or 600 < step <= table.LEAP_MOST_S for step in steps)
    assert min(steps) < -1 and max(steps) > 3600


def test_kinds_and_patterns_limit_what_is_drawn():
    assert {kind for _, kind, *_ in schedule(3, 60, kinds_of("kill,pause"))} == {"kill", "pause"}
    assert {target for _, _, target, *_ in schedule(3, 60, kinds_of("kill:gateway*"))} == {"gateway", "gateway-worker"}
    assert {target for _, _, target, *_ in schedule(3, 60, kinds_of("pause:lib-*"))} == {"lib-*"}
    assert not schedule(3, 60, kinds_of("none")) and kinds_of("all") == KINDS
    assert len(schedule(3, 60, KINDS, scale=4)) > 2 * len(schedule(3, 60, KINDS))
    with pytest.raises(ValueError, match="earthquake"):
        kinds_of("kill,earthquake")


class Recording:
    """A system of links only, which notes what they are told."""

    def __init__(self):
        self.said = []
        self.extra, self.processes, self.standby, self.services = [], [], None, {}
        self.links = {name: self.link(name) for name in LINKS}

    def link(self, name):
        return types.SimpleNamespace(**{
            mode: lambda *values, mode=mode: self.said.append((name, mode, *values)) for mode in ("cut", "delay", "lossy", "half_open", "whole")
        })  # fmt: skip


@pytest.fixture
def recorder(tmp_path):
    made = Recorder(tmp_path / "history.jsonl")
    made.path = tmp_path / "history.jsonl"
    yield made
    made.close()


def test_each_fault_is_done_undone_and_recorded_and_all_are_undone_at_the_end(recorder):
    system = Recording()
    nemesis = Nemesis(system, recorder, 5, ("cut", "half_open"), scale=20)
    begun = time.monotonic()
    nemesis.run(4)
    assert time.monotonic() - begun >= 4
    count = sum(nemesis.done.values())
    assert count == len(schedule(5, 4, ("cut", "half_open"), 20)) >= 5
    assert sum(said[1] == "whole" for said in system.said) == count and len(system.said) == 2 * count
    records = read(recorder.path).of("fault")
    assert [record["action"] for record in records].count("begin") == [record["action"] for record in records].count("end") == count


def test_it_ends_early_when_its_condition_is_true_or_it_is_told_to_and_undoes_what_is_at_work(recorder):
    for how in ("until", "stop"):
        system = Recording()
        nemesis = Nemesis(system, recorder, 6, ("half_open",), scale=10)
        if how == "stop":
            timer = threading.Timer(3, nemesis.stop)
            timer.start()
        nemesis.run(600, until=(lambda said=system.said: len(said) >= 3) if how == "until" else None)
        assert 2 * sum(said[1] == "whole" for said in system.said) == len(system.said) >= 2


def test_what_cannot_be_done_says_so_and_is_not_counted(recorder):
    nemesis = Nemesis(Recording(), recorder, 6, ("pause:lib-*",), scale=10)
    nemesis.run(4)
    assert not nemesis.done
    ends = [record for record in read(recorder.path).of("fault") if record["action"] == "end"]
    assert ends and all(record["detail"] == "not now: there is no lib-*" for record in ends)


def test_a_part_of_a_process_is_not_taken_for_a_name():
    assert table.parts_of("primary-backend") == ("primary", "backend")
    assert table.parts_of("lib-1") == ("lib-1", "")


def test_faults_of_several_servers_are_named_and_repeated():
    assert servers.kinds_of("move,kill") == ("move", "kill") and servers.kinds_of("none") == ()
    with pytest.raises(ValueError, match="failover"):
        servers.kinds_of("move,failover")
    again = Plan(7, 60, faults=("move",), topology="servers").command()
    assert again == "make torture SEED=7 MINUTES=1 TOPOLOGY=servers FAULTS=move"


def test_a_router_takes_the_node_with_the_highest_epoch():
    told = {"a": {3: 1}, "b": {3: 2}, "c": None}

    class System:
        nodes, slots = tuple(told), {"acme": 3}

        @staticmethod
        def open_on(node):
            if told[node] is None:
                raise psycopg2.OperationalError("it is away")
            return told[node]

    router = servers.Router(System)
    assert router.node_of("acme") == 1
    told["b"], told["c"] = {}, {3: 5}
    assert router.node_of("acme") == 1, "until it asks again"
    router.ask()
    assert router.node_of("acme") == 2


def test_in_a_cluster_each_table_of_schema_sql_is_either_on_all_nodes_together_or_on_each():
    shared, rest = citus.halves()
    assert re.findall(r"CREATE TABLE torture\.(\w+)", shared) == ["aggregate", "effect"]
    assert "CREATE TABLE torture.ledger" in rest and "CREATE FUNCTION torture.advance" in rest


def test_without_citus_a_run_in_a_cluster_says_what_it_needs(monkeypatch):
    monkeypatch.setattr(citus, "BINDIR", None)
    result = run(Plan(7, 1, topology="citus"))
    assert result.status == 2 and "make test-citus SOURCE=DIR" in result.problem
