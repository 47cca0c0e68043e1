# SPDX-License-Identifier: PostgreSQL
"""CREATE EXTENSION pgonce: the same contract as pgonce init, from the same files. tests/contract/test_dumps.py dumps and restores it."""

import re

import pytest

from harness.extension import VERSION, extended_server
from harness.postgres import ROOT


@pytest.fixture(scope="module")
def extended():
    """A server whose extension folder holds pgonce."""
    with extended_server() as server:
        yield server


@pytest.fixture
def database(extended):
    made = extended.empty_database()
    made.execute("CREATE EXTENSION pgonce")
    made.execute("SELECT once.add_days()")
    yield made
    made.drop()


BEGIN = "SELECT verdict FROM once.start('s', 'k', '0123456789abcdef')"
FINISH = "SELECT once.finish('s', 'k', '0123456789abcdef', response_body => '\\x00ff'::bytea)"
OBJECTS = """
    SELECT p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ')' || md5(p.prosrc || coalesce(p.proconfig::text, '')) FROM pg_proc AS p
     WHERE p.pronamespace IN ('once'::regnamespace, 'once_job'::regnamespace)
    UNION ALL
    SELECT 'schema ' || n.nspname || ' ' || n.nspowner::regrole || ' ' || ARRAY(SELECT a::text FROM unnest(n.nspacl) AS a ORDER BY 1)::text FROM pg_namespace AS n
     WHERE n.nspname IN ('once', 'once_job')
    UNION ALL
    SELECT a.attrelid::regclass || '.' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod) || a.attnotnull FROM pg_attribute AS a
      JOIN pg_class AS c ON c.oid = a.attrelid WHERE c.relnamespace = 'once'::regnamespace AND a.attnum > 0
    UNION ALL
    SELECT version || name || checksum FROM once.migration
    ORDER BY 1"""


def test_the_extension_runs_an_intent(database):
    connection = database.connect(autocommit=False)
    cursor = connection.cursor()
    cursor.execute(BEGIN)
    assert cursor.fetchone() == ("proceed",)
    cursor.execute(FINISH)
    connection.commit()
    assert database.value(BEGIN) == "replay_success"
    assert database.value("SELECT extversion FROM pg_extension WHERE extname = 'pgonce'") == VERSION


def test_the_extension_makes_the_same_objects_as_the_installer(extended, database):
    plain = extended.new_database()
    assert database.rows(OBJECTS) == plain.rows(OBJECTS)
    plain.drop()


def test_dropping_the_extension_leaves_nothing(extended):
    """As docs/operations.md says."""
    said = (ROOT / "docs/operations.md").read_text()
    command = re.search(r"^DROP SCHEMA .*made as an extension: (DROP EXTENSION .*)$", said, re.M)[1]
    made = extended.empty_database()
    made.execute("CREATE EXTENSION pgonce")
    made.execute("SELECT once.add_days()")
    made.execute(command)
    assert made.rows("SELECT nspname FROM pg_namespace WHERE nspname ~ '^once'") == []
    made.execute("CREATE EXTENSION pgonce")
    made.drop()
