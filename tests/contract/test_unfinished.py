# SPDX-License-Identifier: PostgreSQL
"""once.strict: where an intent was started and not finished, the end of the transaction fails, and takes the effect back."""

import psycopg2
import pytest

from .calls import LEVELS, OTHER_PRINT, Once, effects, let_lease_pass, make_effect, now_ms, refused, run, uuid7
from .logins import make_logins


def connect(db, level="READ COMMITTED"):
    return db.connect(isolation=level, **{"once.strict": "on"})


@pytest.mark.parametrize("end", ["COMMIT", "PREPARE TRANSACTION 'forgotten'"])
def test_a_forgotten_finish_fails_the_end_of_the_transaction(db, end):
    connection = connect(db)
    assert Once(connection).start(key="k").verdict == "proceed"
    make_effect(connection, "k")
    with refused("P4013") as caught:
        run(connection, end)
    assert "key='k'" in caught.value.diag.message_detail and "once.finish" in caught.value.diag.message_hint
    connection.rollback()
    assert effects(db, "k") == 0
    assert Once(connection).start(key="k").verdict == "proceed"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("function", ["start", "try_start"])
def test_each_start_owes_an_outcome_at_each_level(db, function, level):
    connection = connect(db, level)
    for key in ("k", uuid7(now_ms(db))):
        getattr(Once(connection), function)(key=key)
        with refused("P4013"):
            connection.commit()
        getattr(Once(connection), function)(key=key)
        Once(connection).finish(key=key)
        connection.commit()
    assert db.value("SELECT count(*) FROM once.intent WHERE state = 'succeeded'") == 2


def test_a_transaction_with_nothing_to_finish_commits(db):
    Once(db.connect()).finish_new(key="done")
    Once(db.connect()).finish_new(key="failed", state="failed_final")
    connection = connect(db)
    once = Once(connection)
    assert once.start(key="done").verdict == "replay_success"
    assert once.try_start(key="failed").verdict == "final_failure"
    once.finish_new(key="new")
    once.claim(key="claimed")
    once.receive(message_id="m")
    connection.commit()


def test_the_one_that_was_forgotten_is_named(db):
    connection = connect(db)
    once = Once(connection)
    for key in ("a", "b", "c"):
        once.start(key=key)
    for key in ("c", "a"):
        once.finish(key=key)
    with refused("P4013") as caught:
        connection.commit()
    assert "key='b'" in caught.value.diag.message_detail
    assert db.value("SELECT count(*) FROM once.intent") == 0


@pytest.mark.parametrize("state", ["failed_retryable", "failed_final", "succeeded"])
def test_every_outcome_is_one(db, state):
    connection = connect(db)
    Once(connection).start(key="k")
    Once(connection).finish(key="k", state=state)
    connection.commit()


def test_a_savepoint_that_is_rolled_back_takes_the_start_with_it(db):
    connection = connect(db)
    run(connection, "SAVEPOINT a")
    Once(connection).start(key="k")
    run(connection, "SAVEPOINT b")
    Once(connection).start(key="l")
    run(connection, "RELEASE b")
    run(connection, "ROLLBACK TO a")
    connection.commit()


def test_an_exception_block_that_catches_takes_the_start_with_it(db):
    connection = connect(db)
    run(connection, """DO $$ BEGIN
        BEGIN
            PERFORM once.start('orders', 'k', decode(repeat('00', 32), 'hex'));
            PERFORM 1 / 0;
        EXCEPTION WHEN division_by_zero THEN NULL;
        END;
    END $$""")
    connection.commit()


@pytest.mark.parametrize("ends", ["RELEASE a", "ROLLBACK TO a"])
def test_a_finish_in_a_savepoint_counts_if_that_is_kept(db, ends):
    connection = connect(db)
    once = Once(connection)
    once.start(key="k")
    run(connection, "SAVEPOINT a")
    run(connection, "SAVEPOINT b")
    once.finish(key="k")
    run(connection, "RELEASE b")
    run(connection, ends)
    if ends == "RELEASE a":
        connection.commit()
    else:
        with refused("P4013"):
            connection.commit()


def test_a_finish_after_one_that_was_rolled_back_counts(db):
    connection = connect(db)
    once = Once(connection)
    once.start(key="k")
    for ends in ("ROLLBACK TO a", "RELEASE a"):
        run(connection, "SAVEPOINT a")
        once.finish(key="k", response_text=ends)
        run(connection, ends)
    connection.commit()
    assert Once(connection).start(key="k").response_body == b"RELEASE a"


def test_a_start_after_a_retryable_finish_owes_another_outcome(db):
    connection = connect(db)
    once = Once(connection)
    once.start(key="k")
    once.finish(key="k", state="failed_retryable")
    assert once.start(key="k").fence == 2
    with refused("P4013"):
        connection.commit()


def test_the_outcome_of_an_earlier_attempt_is_not_this_ones(db):
    Once(db.connect()).finish_new(key="k", state="failed_retryable")
    connection = connect(db)
    assert Once(connection).start(key="k").verdict == "proceed"
    with refused("P4013"):
        connection.commit()


def test_a_claim_is_no_outcome(db):
    connection = connect(db)
    once = Once(connection)
    once.start(key="k")
    assert once.claim(key="k").verdict == "new_claim"
    with refused("P4013"):
        connection.commit()
    once.start(key="k")
    once.complete(key="k", fence=once.claim(key="k").fence)
    connection.commit()


def test_a_stale_claim_that_start_takes_over_owes_an_outcome(db):
    db.execute("SELECT once.set_scope('orders', on_stale => 'takeover')")
    Once(db.connect()).claim(key="k")
    let_lease_pass(db, "k")
    connection = connect(db)
    assert Once(connection).start(key="k").fence == 2
    with refused("P4013"):
        connection.commit()
    Once(connection).start(key="k")
    Once(connection).finish(key="k")
    connection.commit()


def test_in_autocommit_start_itself_fails(db):
    connection = db.connect(**{"once.strict": "on"})
    with refused("P4013") as caught:
        Once(connection).start(key="k")
    assert "utocommit" in caught.value.diag.message_hint


def test_start_and_finish_in_one_statement_need_no_transaction_block(db):
    db.execute("""CREATE FUNCTION place(k text, f bytea, finishes boolean) RETURNS text LANGUAGE plpgsql AS $$
        DECLARE answer once.started := once.start('orders', k, f);
        BEGIN
            IF finishes AND answer.verdict = 'proceed' THEN
                PERFORM once.finish('orders', k, f, 201, 'done');
            END IF;
            RETURN answer.verdict;
        END $$""")
    connection = db.connect(**{"once.strict": "on"})
    with refused("P4013"):
        run(connection, "SELECT place('k', %s, false)", OTHER_PRINT)
    assert [run(connection, "SELECT place('k', %s, true)", OTHER_PRINT)[0][0] for _ in range(2)] == ["proceed", "replay_success"]


def test_a_procedure_that_commits_is_told_in_between(db):
    connection = db.connect(**{"once.strict": "on"})
    commits = """DO $$ DECLARE f bytea := decode(repeat('00', 32), 'hex'); BEGIN
        PERFORM once.start('orders', 'a', f); PERFORM once.finish('orders', 'a', f); COMMIT;
        PERFORM once.start('orders', 'b', f); {} COMMIT;
    END $$"""
    with refused("P4013") as caught:
        run(connection, commits.format(""))
    assert "key='b'" in caught.value.diag.message_detail
    assert db.rows("SELECT key FROM once.intent") == [("a",)]
    db.execute("DELETE FROM once.intent")
    run(connection, commits.format("PERFORM once.finish('orders', 'b', f);"))


def test_a_read_only_transaction_owes_nothing(db):
    connection = db.connect(**{"once.strict": "on"})
    run(connection, "BEGIN READ ONLY")
    assert Once(connection).start(key="k").verdict == "proceed"
    run(connection, "COMMIT")


def test_what_is_prepared_with_its_outcome_is_committed_with_it(db):
    connection = connect(db)
    Once(connection).start(key="k")
    Once(connection).finish(key="k", response_text="done")
    run(connection, "PREPARE TRANSACTION 'whole'")
    connection.rollback()
    db.execute("COMMIT PREPARED 'whole'")
    assert Once(connection).start(key="k").response_body == b"done"


def test_strict_is_a_setting_of_a_role_or_a_database(db):
    db.execute(f"ALTER DATABASE {db.name} SET once.strict = on")
    connection = db.connect()
    with refused("P4013"):
        Once(connection).start(key="k")
    for word in ("off", "false", "no", "0"):
        run(connection, f"SET once.strict = '{word}'")
        assert Once(connection).start(key="k").verdict == "proceed"
    for word in ("true", "yes", "1"):
        run(connection, f"SET once.strict = '{word}'")
        with refused("P4013"):
            Once(connection).start(key="k")


def test_a_word_that_is_neither_is_refused(db):
    connection = db.connect()
    run(connection, "BEGIN")
    Once(connection).start(key="k")
    run(connection, "ROLLBACK")
    with pytest.raises(psycopg2.Error, match="maybe"):
        run(connection, "SET once.strict = 'maybe'")
        Once(connection).start(key="k")


def test_an_ordinary_role_is_held_to_it_and_touches_no_table(db):
    make_logins(db)
    connection = db.connect("app", **{"once.strict": "on"})
    with refused("P4013"):
        Once(connection).start(key="k")
    run(connection, "BEGIN")
    Once(connection).start(key="k")
    Once(connection).finish(key="k")
    run(connection, "COMMIT")
    with refused("42501"):
        run(connection, "SELECT once._check_finished('', 'orders', 'k', 1)")
    with refused("42501"):
        run(connection, "INSERT INTO once.unfinished VALUES ('', 'orders', 'k', 1)")


def test_no_row_is_ever_stored(db):
    connection = connect(db)
    for end in (connection.commit, connection.rollback):
        Once(connection).start(key="k")
        Once(connection).finish(key="k", state="failed_retryable")
        end()
    assert db.value("SELECT count(*) FROM once.unfinished") == 0
