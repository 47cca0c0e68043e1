# SPDX-License-Identifier: PostgreSQL
"""Which statements would end a transaction, by their text."""

import pytest

from pgonce import UsageError
from pgonce._control import Guard

REFUSED = [
    "COMMIT", "commit", " \n commit ;", "BEGIN", "begin isolation level serializable", "START TRANSACTION", "ROLLBACK", "rollback work", "ABORT", "END", "end transaction",
    "PREPARE TRANSACTION 'x'", "COMMIT PREPARED 'x'", "ROLLBACK PREPARED 'x'", "COMMIT AND CHAIN", "INSERT INTO effect VALUES ('a'); COMMIT", "/* a /* b */ c */ commit",
    "-- a\ncommit", "SELECT ';'; COMMIT", "SELECT $a$ ; $a$; COMMIT", "SELECT E'\\'; '; COMMIT", 'SELECT ";"; COMMIT', b"COMMIT", ";;COMMIT", "SELECT 1 /* ; */; ROLLBACK",
]  # fmt: skip
TAKEN = [
    "SELECT 1", "SAVEPOINT a", "ROLLBACK TO a", "ROLLBACK TO SAVEPOINT a", "ROLLBACK WORK TO a", "RELEASE a", "INSERT INTO commit VALUES ('; COMMIT')", "SELECT $$; COMMIT$$",
    "SELECT $q$ $$; COMMIT $q$", "DO $$ BEGIN PERFORM 1; END $$", "SELECT CASE WHEN true THEN 1 END", "PREPARE a AS SELECT 1", "-- COMMIT", "/* ; COMMIT */ SELECT 1", 'SELECT "; COMMIT"',
    "SELECT E'\\'; COMMIT'", "SELECT begin FROM start", "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; SELECT 2; END", "", ";",
]  # fmt: skip


@pytest.mark.parametrize("sql", REFUSED)
def test_a_statement_that_would_end_the_transaction_is_refused(sql):
    with pytest.raises(UsageError, match="mode='lease'"):
        Guard().check(sql)


@pytest.mark.parametrize("sql", TAKEN)
def test_any_other_statement_passes(sql):
    Guard().check(sql)


@pytest.mark.parametrize("sql", ["SET LOCAL ROLE a", "set role a", "RESET ROLE", "RESET ALL", "SELECT set_config('role', 'a', true)", "SET SESSION AUTHORIZATION a"])
def test_a_change_of_the_role_is_noted(sql):
    guard = Guard()
    guard.check("SELECT 1")
    assert not guard.role
    guard.check(sql)
    assert guard.role
