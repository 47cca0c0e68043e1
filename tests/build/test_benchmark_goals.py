# SPDX-License-Identifier: PostgreSQL
"""The limit beside a benchmark's goal (bench/goals.py): the ratio that CPUs and the disk allow."""

import os
import runpy
import time

import pytest

from harness.postgres import ROOT

GOALS = runpy.run_path(str(ROOT / "bench/goals.py"))
possible, limit, row, sync_ms = (GOALS[name] for name in ("possible", "limit", "row", "sync_ms"))
MACHINE = {"cpus": 2, "clients": 16, "sync_ms": 0.1}


def side(cpu_us, syncs=0, **more):
    return {"cpu_us": cpu_us, "syncs": syncs, **more}


@pytest.mark.parametrize(
    ("cost", "machine", "per_second"),
    [
        (side(100), {}, 20_000),  # two CPUs, each request 100 us of them
        (side(100), {"cpus": 4}, 40_000),
        (side(100), {"clients": 1}, 10_000),  # one client's request is in one place at a time
        (side(100, alone_us=80), {}, 12_500),  # one thread does 80 us of each request
        (side(100, alone_us=40), {}, 20_000),
        (side(10, syncs=1), {"clients": 1}, 10_000),  # one client waits for each of its syncs
        (side(10, syncs=2), {"clients": 1}, 5_000),
        (side(10, syncs=2), {"clients": 16}, 80_000),  # sixteen share them
        (side(10, syncs=2), {"clients": 16, "sync_ms": 2.0}, 4_000),
        (side(10, syncs=2 / 64), {"clients": 1, "sync_ms": 3.2}, 10_000),  # a batch of 64 waits twice
        (side(100, syncs=2), {"sync_ms": 0}, 20_000),
    ],
)
def test_what_is_possible_is_the_least_of_what_cpus_one_thread_and_syncs_allow(cost, machine, per_second):
    assert possible(cost, **{**MACHINE, **machine}) == pytest.approx(per_second)


def test_a_limit_is_the_ratio_of_what_is_possible_for_both():
    assert limit(side(150), side(100), **MACHINE) == pytest.approx(2 / 3)
    # Where syncs decide, twice as many are half.
    assert limit(side(150, syncs=2), side(100, syncs=1), **{**MACHINE, "sync_ms": 10}) == pytest.approx(0.5)
    # Our syncs decide, their CPU time does.
    assert limit(side(50, syncs=2), side(100), **{**MACHINE, "sync_ms": 2}) == pytest.approx(4_000 / 20_000)


@pytest.mark.parametrize(("ours", "theirs"), [(side(0), side(100)), (side(100), side(0)), ({"syncs": 1}, side(100)), (side(100), {"syncs": 1})])
def test_there_is_no_limit_without_a_cpu_time(ours, theirs):
    assert limit(ours, theirs, **MACHINE) is None


def test_a_row_says_whether_its_goal_is_met():
    assert row("a", (">=", 0.66), 0.66, 0.7) == {"what": "a", "goal": ">= 0.66", "measured": 0.66, "limit": 0.7, "met": True}
    assert row("a", (">=", 0.66), 0.6599)["met"] is False and row("a", ("<=", 25), 25.5)["met"] is False and row("a", ("<=", 0), 0)["met"] is True
    assert row("a", None, 0.5, connections=8) == {"what": "a", "connections": 8, "goal": None, "measured": 0.5, "limit": None, "met": None}
    assert row("a", (">=", 30000), 1)["goal"] == ">= 30,000"


def test_a_sync_is_timed_and_its_delay_added(tmp_path, monkeypatch):
    real = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda file: (time.sleep(0.02), real(file))[1])
    assert 20 <= sync_ms(tmp_path)
    assert sync_ms(tmp_path, 1000) >= 1020 and list(tmp_path.iterdir()) == []


@pytest.fixture
def loaded(monkeypatch):
    """What a program of bench/ defines."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return lambda name: runpy.run_path(str(ROOT / f"bench/{name}.py"), run_name="loaded")


def answered(per_second, **us):
    return {"per_second": per_second, "p99_ms": 1.0, "us": us}


def test_the_gateways_limit_is_of_all_parts_but_idle_and_of_two_syncs(loaded):
    gateway = loaded("gateway")
    rounds = {
        ("gateway/unique", 64): [answered(20_000, gateway=20, postgresql=70, wrk=10, idle=40)],
        ("peer_always/unique", 64): [answered(5_000, peer_always=80, redis_always=20, wrk=10, idle=60)],
        ("peer_everysec/unique", 64): [answered(10_000, peer_everysec=80, redis_everysec=20, wrk=10, idle=60)],
    }
    fast = {goal["what"]: goal for goal in gateway["judge"](rounds, False, [0.1])}
    # 2 CPUs by 100 us, of one thread that takes 80.
    assert fast["unique keys, of the peer, always"]["limit"] == pytest.approx(min(os.cpu_count() / 100, 1 / 20) / min(os.cpu_count() / 110, 1 / 80), abs=0.001)
    assert fast["unique keys, of the peer, always"]["met"] is True and fast["unique keys, of the peer, everysec"]["met"] is None
    # With 8 ms for each of two syncs 64 clients get 4,000 answers.
    slow = {goal["what"]: goal for goal in gateway["judge"](rounds, False, [8.0], 8.0)}
    assert slow["unique keys, of the peer, everysec"]["limit"] == pytest.approx(4_000 / min(os.cpu_count() / 110e-6, 12_500), abs=0.001)
    assert slow["unique keys, of the peer, always"]["limit"] == pytest.approx(1)


def test_twice_an_earlier_commit_is_a_goal_where_that_was_measured(loaded):
    gateway = loaded("gateway")
    rounds = {("gateway/unique", 64): [answered(9_000, gateway=20, postgresql=70, wrk=10, idle=40)]}
    for native, key in ((False, "sql"), (True, "native")):
        gateway["BEFORE"]["per_second"].update({key: 5_000})
        (goal,) = gateway["judge"](rounds, native, [2.1], 2)
        assert (goal["measured"], goal["met"], goal["goal"], goal["limit"]) == (1.8, False, ">= 2", pytest.approx(64 / (2 * 2.1e-3) / 5_000, abs=0.001))
        assert gateway["judge"](rounds, native, [5.1], 5) == []
        gateway["BEFORE"]["per_second"].update({key: None})
        assert gateway["judge"](rounds, native, [2.1], 2) == []


def test_the_peer_that_syncs_always_comes_first_at_each_number_of_connections(loaded):
    gateway = loaded("gateway")
    assert [goal[3] for goal in gateway["GOALS"][:4]] == [1, 8, 64, 256] == list(gateway["CONNECTIONS"])
    assert all(goal[2] == "peer_always/unique" and None not in goal[6:] for goal in gateway["GOALS"][:4])


def test_a_clients_limit_counts_its_peers_syncs(loaded):
    clients = loaded("clients")

    def row(per_second, **cpu_us):
        return {"per_second": per_second, "cpu_us": {"redis": 0, "wrk": 0, **cpu_us}}

    rounds = {
        "bare": [row(5_000, service=100, postgresql=100)],
        "pgonce": [row(3_000, service=200, postgresql=200)],
        "redis_always": [row(4_000, service=100, postgresql=100)],
        "redis_everysec": [row(4_500, service=100, postgresql=100)],
    }
    # At 100 ms a sync nothing else counts: pgonce waits for one, the peer for three (Node) or two (Go).
    for language, of_always in (("node", 3), ("go", 2)):
        limits = {goal["of"][1]: goal["limit"] for goal in clients["judge"]({language: (rounds, [100.0])}, False)}
        assert limits == {"bare": 1, "redis_always": of_always, "redis_everysec": 1}
    native = {goal["of"][1]: goal["goal"] for goal in clients["judge"]({"go": (rounds, [0.1])}, True)}
    assert native == {"bare": ">= 0.6", "redis_always": ">= 1", "redis_everysec": ">= 0.9"}
    assert {goal["of"][1]: goal["goal"] for goal in clients["judge"]({"go": (rounds, [0.1])}, False)} == {"bare": None, "redis_always": ">= 0.9", "redis_everysec": ">= 0.75"}


def test_what_a_registry_does_not_give_is_left_out_and_a_broken_build_is_not(loaded):
    clients = loaded("clients")
    missing = clients["Missing"]
    with pytest.raises(missing, match="^sh could not fetch what it needs: npm ERR! network request failed, ECONNREFUSED$"):
        clients["run"]("sh", "-c", "echo one; echo 'npm ERR! network request failed, ECONNREFUSED' >&2; exit 1")
    assert clients["run"]("sh", "-c", "echo found; echo 'npm WARN Connection was slow' >&2") == "found\n"
    with pytest.raises(RuntimeError, match="undefined: x"):
        clients["run"]("sh", "-c", "echo 'main.go:3: undefined: x' >&2; exit 1")
    with pytest.raises(missing, match="nothing-like-this: missing"):
        clients["needs"]("sh", "nothing-like-this")


def test_the_fixed_cost_of_a_batch_is_without_the_arrays_and_without_the_elements(loaded):
    instructions = loaded("instructions")
    counts = {"SELECT 1": 23_000}
    for size in (3, 64):
        counts[f"arrays of {size}"] = 140_000 + 11_000 * size
        counts[f"claim_many of {size}"] = counts[f"arrays of {size}"] + 457_000 + 62_000 * size
        counts[f"claim and complete, batches of {size}"] = counts[f"claim_many of {size}"] + counts[f"arrays of {size}"] + 426_000 + 55_000 * size
    assert instructions["batch_costs"](counts, "claim_many") == (457_000, 62_000) and instructions["batch_costs"](counts, "complete_many") == (426_000, 55_000)
    assert instructions["batch_costs"](counts, "receive_many") is None
    goals = {goal["what"]: goal for goal in instructions["judge"]({**counts, "emit": 210_000, "start and finish": 380_001}, False)}
    assert goals["claim_many before the first element, instructions"]["measured"] == 457_000
    assert goals["emit of an intent, instructions"]["met"] is True and goals["start and finish, instructions"]["met"] is False
    assert (goals["emit of an intent, instructions"]["limit"], goals["start and finish, instructions"]["limit"]) == (23_000, 92_000)
