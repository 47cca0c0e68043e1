# SPDX-License-Identifier: PostgreSQL
"""What is shown of a run, how a failing one is made smaller, and the mutations: that each is what it says."""

import dataclasses

import pytest

from harness.postgres import ROOT, install_script

from . import checker, mutations, report, shrink
from .test_checker import Run


@dataclasses.dataclass(frozen=True)
class Plan:
    seconds: int = 100
    faults: tuple = None


def broken_run():
    run = Run()
    run.ordered()
    run.log("fault", fault="pause", target="gateway", action="begin")
    intent = run.done(20, door="http")
    run.log("fault", fault="kill", target="relay", action="begin")
    run.log("fault", fault="kill", target="relay", action="end")
    run.log("fault", fault="pause", target="gateway", action="end")
    run.attempt(intent, 2, replayed=True)
    run.t += 10
    run.log("fault", fault="kill", target="broker", action="begin")
    run.log("fault", fault="failover", target="primary", action="begin")
    run.log("fault", fault="failover", target="primary", action="end", detail="not now: the standby is not in sync")
    run.done(21)
    run.effect(intent, 2)
    return run


def test_the_figures_of_a_run_are_counted():
    run = broken_run()
    figures = dict(report.Figures(run, run.facts, run.check()).rows())
    assert figures["duplicates"] == "1" and figures["losses"] == "0" and figures["violations"] == "at_most_one 1"
    assert figures["intents"].startswith("5 (sql 4, http 1)") and figures["attempts"].startswith("6 (acknowledged 6; replays 1, from memory 0)")
    assert figures["faults"] == "3 (kill 2, pause 1)" and figures["answered"].startswith("100.0%")
    assert figures["recovery"].startswith("median ") and "after kill relay" in figures["recovery"]


def test_recovery_is_from_a_faults_end_to_the_first_acknowledgement_of_each_door_that_was_asked():
    run = Run()
    run.done(1, door="http")
    run.log("fault", fault="cut", target="client-pg", action="begin")
    run.log("fault", fault="cut", target="client-pg", action="end")
    ended = run.t
    intent = run.intent(2)
    run.attempt(intent, verdict="unknown")
    run.attempt(intent, 2)
    assert report.Figures(run, run.facts).recoveries == [(run.t - ended, "sql", f"cut client-pg at {ended:.0f} s")]


def test_the_history_of_a_violation_is_its_attempts_the_faults_meanwhile_and_what_there_is():
    run = broken_run()
    (violation,) = run.check()
    text = "\n".join(report.timeline(violation, run, run.facts))
    assert text.count("attempt 20/") == 4 and "attempt 21/" not in text and "attempt 1/" not in text
    assert text.count("fault pause gateway") == 2 and text.count("fault kill relay") == 2 and "broker" not in text
    assert text.count("effects: ") == 2 and text.count("intents: ") == 1


def test_the_history_of_an_aggregate_is_that_of_the_steps_that_are_wrong():
    run = Run()
    run.ordered(count=9)
    applied = run.facts["applied"]
    applied[4], applied[5] = applied[5], applied[4]
    text = "\n".join(report.timeline(run.check()[0], run, run.facts))
    assert "attempt 5/1" in text and "attempt 6/1" in text and "attempt 8/1" not in text
    assert text.count("applied: ") == 9


def test_a_smaller_run_is_found_that_still_breaks_the_rule():
    tried = []

    def run(plan):
        tried.append(plan)
        return {"at_most_one"} if plan.seconds >= 25 and "pause" in (plan.faults or "pause") else {"same_bytes"}

    best = shrink.shrink(Plan(), ["cut", "kill", "loss", "pause"], "at_most_one", run, minutes=60, say=lambda text: None)
    assert best == Plan(25, ("pause",)) and len(tried) < 12


def test_looking_for_a_smaller_run_ends_with_its_time():
    best = shrink.shrink(Plan(), ["cut", "kill"], "at_most_one", lambda plan: pytest.fail("no time for that"), minutes=0.5, say=lambda text: None)
    assert best == Plan()


@pytest.mark.parametrize("name", mutations.MUTATIONS)
def test_a_mutation_changes_what_it_says(name):
    mutation = mutations.MUTATIONS[name]
    text = install_script()
    assert (mutation.contract(text) != text) == bool(mutation.functions or mutation.script)
    assert mutation.functions or mutation.script or mutation.files
    for file, old, new in mutation.files:
        assert mutations.replaced((ROOT / file).read_text(), old, new, file) != (ROOT / file).read_text()
    assert set(mutation.rules) <= set(checker.RULES)


def test_a_mutation_of_what_is_not_there_is_an_error():
    with pytest.raises(LookupError):
        mutations.replace_in_function(install_script(), "start", "no such text", "")
    with pytest.raises(LookupError):
        mutations.replace_in_function(install_script(), "no_such_function", "BEGIN", "")


@pytest.mark.parametrize("name", [name for name, mutation in mutations.MUTATIONS.items() if not mutation.files])
def test_a_mutated_contract_still_does_its_plain_work(server, name):
    database = server.new_database()
    database.execute(mutations.MUTATIONS[name].changes(install_script()))
    try:
        begun = database.row("SELECT * FROM once.start('s', 'k', '\\x00000000000000000000000000000000')")
        database.execute("SELECT once.finish_new('s', 'l', '\\x00000000000000000000000000000000', 201, 'done')")
        replay = database.row("SELECT * FROM once.start('s', 'l', '\\x00000000000000000000000000000000')")
        assert (begun.verdict, replay.verdict, replay.response_body) == ("proceed", "replay_success", b"done")
        claimed = database.row("SELECT * FROM once.claim('s', 'm', '\\x00000000000000000000000000000000')")
        assert database.value("SELECT once.complete('s', 'm', %s, 201, 'done')", claimed.fence)
    finally:
        database.drop()
