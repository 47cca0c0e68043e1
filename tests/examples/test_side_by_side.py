# SPDX-License-Identifier: PostgreSQL
"""All examples may be tried in one database."""

import re

from harness.postgres import ROOT

MAKES = re.compile(r"^CREATE TABLE (?:IF NOT EXISTS )?([\w.]+)", re.M)


def test_no_two_examples_make_the_same_table():
    """IF NOT EXISTS would take the one of another, with other columns, and say nothing."""
    made = {}
    for path in (ROOT / "examples").rglob("*.sql"):
        if not {"node_modules", "target", ".venv"} & set(path.parts):
            for table in MAKES.findall(path.read_text()):
                made.setdefault(table, []).append(str(path.relative_to(ROOT)))
    assert len(made) >= 10
    assert {table: paths for table, paths in made.items() if len(paths) > 1} == {}
