# SPDX-License-Identifier: PostgreSQL
"""pgonce_native asks for the outcome of what was started when the transaction ends, without being told to. tests/contract/test_unfinished.py has the
rest, which C and SQL do alike."""

import psycopg2
import pytest

from harness.mutation import mutate
from harness.native import answered

from .sessions import F, OTHER, uuid7


def start(key="k", fingerprint=F, function="start"):
    return f"SELECT once.{function}('s', '{key}', {fingerprint})"


def finish(key="k", more=""):
    return f"SELECT once.finish('s', '{key}', {F}, 201, 'done'{more})"


def play(native, *statements, connection=None):
    """What the last statement raises; the others must go well."""
    connection = native.connect() if connection is None else connection
    cursor = connection.cursor()
    for statement in ("BEGIN", start("warm"), "ROLLBACK", "BEGIN", *statements[:-1]):
        cursor.execute(statement)
    try:
        cursor.execute(statements[-1])
    except psycopg2.Error as error:
        cursor.execute("ROLLBACK")
        return error.pgcode
    return None


@pytest.mark.parametrize("end", ["COMMIT", "PREPARE TRANSACTION 'forgotten'"])
@pytest.mark.parametrize("key", ["k", None])
def test_a_forgotten_finish_fails_the_end_of_the_transaction(native, end, key):
    key = key or uuid7()
    assert play(native, start(key), end) == "P4013"
    assert play(native, start(key), finish(key), end.replace("forgotten", "kept")) is None
    if end != "COMMIT":
        native.execute("COMMIT PREPARED 'kept'")
    assert native.value("SELECT count(*) FROM once.intent") == 1


# Of a name with the separators of the notes in it: SQL keeps the names themselves.
SEPARATORS = ["a\x1eb", "a\x1fb", "\x1e\x1f", "a\x1e", "\x1f", "\x1e\x1f\x1fs\x1fk\x1f\\x00\x1f1"]


@pytest.mark.parametrize("name", SEPARATORS, ids=ascii)
@pytest.mark.parametrize("odd", ["tenant", "scope"])
def test_a_name_may_hold_the_separators_of_the_notes(native, odd, name):
    tenant, scope = (name, "s") if odd == "tenant" else ("", name)
    calls = {what: f"SELECT once.{what}($${scope}$$, 'k', {F}{more}, tenant => $${tenant}$$)" for what, more in (("start", ""), ("finish", ", 201, 'done'"))}
    connection = native.connect()
    before = answered(connection)
    assert play(native, calls["start"], "COMMIT", connection=connection) == "P4013"
    assert play(native, calls["start"], start("l"), finish("l"), "COMMIT", connection=connection) == "P4013"
    native.execute("DELETE FROM once.intent")
    assert play(native, "SAVEPOINT a", calls["start"], "ROLLBACK TO a", "COMMIT", connection=connection) is None
    assert play(native, start("l"), calls["start"], finish("l"), calls["finish"], "COMMIT", connection=connection) is None
    assert play(native, "SELECT 1", "COMMIT", connection=connection) is None
    assert answered(connection) - before == 5 + 9  # the warm ones, and all of these: C knows the names
    assert native.value("SELECT count(*) FROM once.intent WHERE state = 'succeeded'") == 2


def test_c_answers_both_calls_and_asks_nobody_else(native):
    """Where C has stored the outcome the contract is not asked."""
    connection = native.connect()
    play(native, "SELECT 1", connection=connection)
    before = answered(connection)
    assert play(native, start(), start("l"), finish("l"), finish(), "COMMIT", connection=connection) is None
    assert answered(connection) - before == 5  # with the warm one
    native.execute("DELETE FROM once.intent")
    assert play(native, start(), finish(), "DELETE FROM once.intent", "COMMIT") is None


def test_a_forgotten_finish_after_a_whole_transaction(native):
    connection = native.connect()
    assert play(native, start(), finish(), "COMMIT", connection=connection) is None
    native.execute("DELETE FROM once.intent")
    assert play(native, start(), "COMMIT", connection=connection) == "P4013"


@pytest.mark.parametrize("function", ["start", "try_start", "finish_new"])
def test_a_second_start_is_refused(native, function):
    assert play(native, start(), start(function=function)) == "P4014"
    assert play(native, start(), start(function=function, fingerprint=OTHER)) == "P4014"


def test_finish_with_another_fingerprint_is_refused(native):
    assert play(native, start(fingerprint=OTHER), finish()) == "P4015"


@pytest.mark.parametrize("who_starts", ["on", "off"])
@pytest.mark.parametrize("who_finishes", ["on", "off", None])
def test_it_does_not_matter_which_way_answers(native, who_starts, who_finishes):
    connection = native.connect()
    first = [f"SET LOCAL once.native = {who_starts}", start()]
    then = [f"SET LOCAL once.native = {who_finishes}", finish()] if who_finishes else []
    told = play(native, *first, *then, "SET LOCAL once.native = on", "COMMIT", connection=connection)
    assert told == (None if who_finishes else "P4013")


def test_a_library_that_is_found_in_the_middle_of_a_transaction_asks_for_all_of_it(native):
    """once.native = none: as if it had not been found."""
    for finishes in (False, True):
        with native.connect().cursor() as cursor:
            cursor.execute("SET once.native = none")
            cursor.execute("BEGIN")
            cursor.execute(start())
            cursor.execute("SELECT once_native.load()")
            cursor.execute("SET once.native = on")
            if finishes:
                cursor.execute(finish())
                cursor.execute("COMMIT")
            else:
                with pytest.raises(psycopg2.Error) as caught:
                    cursor.execute("COMMIT")
                assert caught.value.pgcode == "P4013"
    assert native.value("SELECT count(*) FROM once.intent") == 1


FINISHED_IN_SAVEPOINTS = {
    "released": (["SAVEPOINT a", "SAVEPOINT b", finish(), "RELEASE b", "RELEASE a"], None),
    "rolled back": (["SAVEPOINT a", finish(), "ROLLBACK TO a"], "P4013"),
    "released and rolled back": (["SAVEPOINT a", "SAVEPOINT b", finish(), "RELEASE b", "ROLLBACK TO a"], "P4013"),
    "rolled back and finished again": (["SAVEPOINT a", finish(), "ROLLBACK TO a", finish()], None),
    "beside one that is rolled back": ([finish(), "SAVEPOINT a", start("l"), finish("l"), "ROLLBACK TO a"], None),
}


@pytest.mark.parametrize("story", FINISHED_IN_SAVEPOINTS)
def test_a_finish_in_a_savepoint_counts_if_that_is_kept(native, story):
    statements, told = FINISHED_IN_SAVEPOINTS[story]
    assert play(native, start(), *statements, "COMMIT") == told


def test_a_start_after_a_retryable_finish_owes_another_outcome(native):
    again = [start(), finish(more=", state => 'failed_retryable'"), start()]
    assert play(native, *again, "COMMIT") == "P4013"
    assert play(native, *again, finish(), "COMMIT") is None


def test_a_read_only_transaction_owes_nothing_and_one_that_has_written_does(native):
    assert play(native, "SET TRANSACTION READ ONLY", start(), "COMMIT") is None
    native.execute("CREATE TABLE written (key text)")
    assert play(native, start(), "INSERT INTO written VALUES ('k')", "SET TRANSACTION READ ONLY", "COMMIT") == "P4013"


def test_who_says_off_is_not_asked(native):
    for statement in ("SET LOCAL once.strict = off", "SET LOCAL once.native = off"):
        assert play(native, statement, start(), "COMMIT") is None
    assert play(native, "SET LOCAL once.strict = ''", start(), "COMMIT") == "P4013"
    assert play(native, "SET LOCAL once.strict = maybe") == "22023"


def test_a_contract_that_the_library_was_not_built_for_is_not_asked(native):
    mutate(native, "_check_finished", "'P4013'", "'P4012'")
    assert play(native, start(), "COMMIT") is None
    assert play(native, "SET LOCAL once.strict = on", start(), "COMMIT") == "P4012"


def test_many_are_finished_in_any_order(native):
    keys = [f"k{number}" for number in range(300)]
    assert play(native, *map(start, keys), *map(finish, reversed(keys)), "COMMIT") is None
    keys = [f"l{number}" for number in range(300)]
    assert play(native, *map(start, keys), *map(finish, keys[1:]), "COMMIT") == "P4013"


def test_an_ordinary_role_is_held_to_it(native, roles):
    for user, code in (("native_app", "P4013"), ("native_bound", "P4013")):
        connection = native.connect(user)
        cursor = connection.cursor()
        cursor.execute("BEGIN")
        cursor.execute(f"SELECT once.start('s', 'k', {F}, 'a')")
        with pytest.raises(psycopg2.Error) as caught:
            cursor.execute("COMMIT")
        assert caught.value.pgcode == code


@pytest.mark.parametrize("user", ["native_none", "native_bound"])
def test_a_note_that_was_set_by_hand_tells_nothing_of_another_tenant(native, roles, user):
    """Else its COMMIT would fail for each key that is not there, and only for those."""
    native.execute(f"SELECT once.finish_new('s', 'there', {F}, tenant => 'b')")
    for key in ("there", "not there"):
        cursor = native.connect(user).cursor()
        cursor.execute("SELECT once_native.load(); BEGIN")
        cursor.execute(r"SELECT set_config('once.started', E'\x1e\x1fb\x1fs\x1f' || %s || E'\x1f\\x00\x1f1', true)", (key,))
        cursor.execute("COMMIT")
