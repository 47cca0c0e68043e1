# SPDX-License-Identifier: PostgreSQL
"""The mutations of the clients quote their sources as they are, and name tests that there are. `make test-clients MUTATIONS=yes` runs them."""

import re

import pytest

from . import mutations
from .agents import name_of, ways

EACH = [(language, each) for language, some in mutations.MUTATIONS.items() for each in some]
WAYS = {name_of(way) for file in ("sql", "http", "cross", "faults", "nodes") for way in ways(file)}


@pytest.mark.parametrize(("language", "each"), EACH, ids=[f"{language}-{each.guarantee}-{i}" for i, (language, each) in enumerate(EACH)])
def test_a_mutation_changes_one_place_of_its_file_and_is_for_a_test_that_there_is(language, each):
    here = mutations.ROOT / "clients" / language
    assert all(text != path.read_text() for path, text in mutations.mutated(here, each).items())
    where, name = each.test
    if where == mutations.DRIVER:
        assert name.strip("[]") in WAYS
        return
    tests = [here / "test" / f"{where}.test.js"] if language == "node" else [here / where] if language == "python" else here.glob("**/*_test.go" if language == "go" else f"{where}/**/*Test.java")
    text = "".join(path.read_text() for path in tests)
    named = re.split(r"[#/|]", name)[-1] if language != "go" else name.split("/")[0]
    assert named.removeprefix("express: ") in text


@pytest.mark.parametrize("language", sorted(mutations.MUTATIONS))
def test_each_guarantee_of_a_client_is_taken_out(language):
    missing = set(mutations.GUARANTEES) - {each.guarantee for each in mutations.MUTATIONS[language]}
    # In Java nothing of the client's own bounds the wait for a connection: DataSource.getConnection() takes no limit, and the pool has one among its settings.
    assert missing == {"java": {"pool"}}.get(language, set())
    assert len(mutations.MUTATIONS[language]) >= 8
