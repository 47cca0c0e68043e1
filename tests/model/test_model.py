# SPDX-License-Identifier: PostgreSQL
"""The model of the protocol (model/, model/README.md): every state of each small configuration is searched, each mutation is caught, nothing in the
model is dead, and its words and changes of state are those of the database."""
import pathlib
import re
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "model"))
import check  # noqa: E402
import trail  # noqa: E402

TRANSITIONS = check.HERE / "transitions.pml"
EDGE = re.compile(r":: was == (\w+) && by == (\w+) && becomes == (\w+) -> skip")


def edges():
    """The line and the change of state, of each edge of the model."""
    return {
        number: tuple(None if word == "none" else word for word in found.groups())
        for number, line in enumerate(TRANSITIONS.read_text().split("\n"), 1)
        if (found := EDGE.search(line))
    }


@pytest.fixture(scope="module")
def searched():
    """What was found, by configuration; filled by the tests of this file."""
    return {}


@pytest.mark.parametrize("configuration", check.SMALL, ids=lambda each: each.name)
def test_nothing_goes_wrong_in_any_state(configuration, searched, tmp_path):
    found = check.search(configuration, tmp_path)[0]
    print(f"{found.states:,} states, depth {found.depth:,}, {found.seconds:.1f} s")
    assert found.errors == 0, found.violated
    assert not found.truncated
    searched[configuration.name] = found


@pytest.mark.parametrize("configuration", filter(check.formulas_within, check.SMALL), ids=lambda each: each.name)
def test_every_run_is_as_the_formulas_say(configuration, tmp_path):
    formulas = check.formulas_within(configuration)
    for formula, found in zip(formulas, check.search(configuration, tmp_path, formulas)):
        print(f"{formula.name}: {found.states:,} states, depth {found.depth:,}, {found.seconds:.1f} s")
        assert found.errors == 0, (formula.name, found.violated)
        assert not found.truncated


@pytest.mark.parametrize("mutation", [each for each in check.MUTATIONS if each.caught_by], ids=lambda each: each.name)
def test_the_mutation_is_caught(mutation, tmp_path):
    found = check.search(mutation, tmp_path)[0]
    assert found.errors > 0
    assert mutation.caught_by in found.violated


BROKEN = [(mutation, formula) for mutation in check.MUTATIONS for formula in check.formulas_broken_by(mutation)]


@pytest.mark.parametrize("mutation, formula", BROKEN, ids=lambda each: each.name)
def test_the_formula_is_seen_to_fail_with_no_assertion_to_help_it(mutation, formula, tmp_path):
    assert check.search(mutation, tmp_path, [formula], alone=True)[0].errors > 0


def test_every_formula_is_searched_and_seen_to_fail():
    stated = {name for file in check.HERE.glob("*.pml") for name in re.findall(r"^ltl (\w+)", file.read_text(), re.M)}
    assert {formula.name for formula in check.FORMULAS} == stated
    assert {name for formula in check.FORMULAS for name in formula.within.split()} <= {each.name for each in (*check.SMALL, *check.LARGE)}
    assert all(any(formula in check.formulas_within(each) for each in check.SMALL) for formula in check.FORMULAS)
    assert {formula for _, formula in BROKEN} == set(check.FORMULAS)
    documented = (check.HERE / "README.md").read_text()
    for formula in check.FORMULAS:
        within, broken_by = (", ".join(names.split()) for names in (formula.within, formula.broken_by))
        assert re.search(rf"^\| `{formula.name}` \| {formula.property} \| .* \| {within} \| {broken_by} \|$", documented, re.M), formula.name
    assert all(mutation.caught_by or check.formulas_broken_by(mutation) for mutation in check.MUTATIONS)


# An operator in the model knows the truth, and never finds that a reported failure was a success.
NEVER = {("failed_retryable", "resolve", "succeeded")}


def test_every_change_of_state_happens_in_some_configuration(searched):
    if set(searched) != {each.name for each in check.SMALL}:
        pytest.skip("not all configurations were searched here")
    reached = set()
    for configuration in check.SMALL:
        if configuration.file == "nodes.pml":
            continue  # spin merges the steps of `change` there with the next ones, and does not count them
        found = searched[configuration.name]
        missed = found.unreached.get("backend", found.unreached.get("consumer", set()))
        reached |= {edge for line, edge in edges().items() if ("transitions.pml", line) not in missed}
    assert set(edges().values()) - reached == NEVER


def test_the_states_and_their_changes_are_those_of_the_contract(db):
    words = [row.word for row in db.rows("SELECT unnest(enum_range(NULL::once.state))::text AS word")]
    declared = [re.split(r",\s*", names) for names in re.findall(r"^mtype = \{ (.*) \};", TRANSITIONS.read_text(), re.M)]
    assert declared[0] == ["none", *words]
    assert set(declared[1]) == {row.event for row in db.rows("SELECT event FROM once.transition")}
    in_table = {tuple(row) for row in db.rows("SELECT from_state, event, to_state FROM once.transition")}
    assert set(edges().values()) == in_table
    assert len(edges()) == len(in_table)


def test_the_model_uses_the_verdicts_of_the_contract(db):
    said = db.value("SELECT string_agg(prosrc, ' ') FROM pg_proc WHERE pronamespace = 'once'::regnamespace AND proname IN ('_claim', '_verdict', '_take_over')")
    verdicts = re.findall(r"^mtype = \{ (new_claim, .*) \};", (check.HERE / "intent.pml").read_text(), re.M)
    for verdict in verdicts[0].split(", "):
        assert f"'{verdict}'" in said


def test_a_counterexample_is_told_as_a_timeline(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["trail.py", "completion_before_commit"])
    trail.main()
    told = capsys.readouterr().out
    assert "once._claim" in told and "gone[who] = 1" in told and "violated: assertion violated" in told
