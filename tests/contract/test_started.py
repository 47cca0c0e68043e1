# SPDX-License-Identifier: PostgreSQL
"""once.finish belongs to the transaction that has started the intent, and knows it; once.try_start decides as once.start
does, and raises nothing that a caller did not do wrong."""

import concurrent.futures

import psycopg2
import pytest


from .calls import LEVELS, OTHER_PRINT, PRINT, Once, code_of, effects, let_lease_pass, make_effect, now_ms, refused, retire, run, shorten_horizon, uuid7, uuid7_days_ago
from .test_keep_rest import make_verify

LIKE_START = "verdict state response_status response_body response_headers result_type result_id error_code error_message fence traceparent".split()


def autocommitting(db):
    """As a driver or a pool hands it out that was told nothing of transactions."""
    return db.connect(**{"once.strict": "off"})


def test_in_autocommit_finish_fails_and_nothing_is_stored(db):
    connection = autocommitting(db)
    with connection.cursor() as cursor:
        cursor.execute("SELECT verdict FROM once.start('orders', 'k', %s)", (PRINT,))
        assert cursor.fetchone() == ("proceed",)
        with refused("P4012") as caught:
            cursor.execute("SELECT once.finish('orders', 'k', %s, 201, 'done')", (PRINT,))
    assert "this transaction has started no intent" in caught.value.diag.message_detail
    assert "one transaction" in caught.value.diag.message_hint and "utocommit" in caught.value.diag.message_hint
    assert db.value("SELECT count(*) FROM once.intent") == 0
    connection.close()


def test_a_service_in_autocommit_is_told_before_it_doubles_anything(db):
    """Twenty keys, eight attempts each, all at once: every attempt that had its effect is an error, none is a success."""

    def attempt(number):
        connection = autocommitting(db)
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT verdict FROM once.start('orders', %s, %s)", (f"k{number % 20}", PRINT))
                make_effect(connection, f"k{number % 20}", number)
                cursor.execute("SELECT once.finish('orders', %s, %s, 201, 'done')", (f"k{number % 20}", PRINT))
            return "succeeded"
        except psycopg2.Error as error:
            return error.pgcode
        finally:
            connection.close()

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        told = list(pool.map(attempt, range(160)))
    assert set(told) <= {"P4012", "P4029"} and "P4012" in told


@pytest.mark.parametrize("level", LEVELS)
def test_start_and_finish_in_one_transaction_at_every_level(db, level):
    connection = db.connect(isolation=level)
    once = Once(connection)
    assert once.start(key="k").verdict == "proceed"
    assert once.finish(key="k", response_text="done") == b"done"
    connection.commit()
    assert Once(db.connect()).start(key="k").response_body == b"done"


def test_a_start_that_was_rolled_back_to_a_savepoint_is_none(db):
    connection = db.connect(isolation="READ COMMITTED")
    run(connection, "SAVEPOINT a")
    Once(connection).start(key="k")
    run(connection, "ROLLBACK TO a")
    with refused("P4012"):
        Once(connection).finish(key="k")


def test_a_start_within_a_savepoint_that_was_released_counts(db):
    connection = db.connect(isolation="READ COMMITTED")
    run(connection, "SAVEPOINT a")
    Once(connection).start(key="k")
    run(connection, "RELEASE a")
    Once(connection).finish(key="k")
    connection.commit()
    assert Once(db.connect()).start(key="k").verdict == "replay_success"


def test_another_transaction_of_the_same_session_is_another(db):
    connection = db.connect(isolation="READ COMMITTED", **{"once.strict": "off"})
    for ending in (connection.commit, connection.rollback):
        Once(connection).start(key="k")
        ending()
        with refused("P4012"):
            Once(connection).finish(key="k")
        connection.rollback()


def test_a_start_is_of_its_tenant_scope_and_key_alone(db):
    connection = db.connect(isolation="READ COMMITTED")
    Once(connection).start(key="another")
    Once(connection).start(tenant="a", scope="b", key="c")
    for name in ({"tenant": "b"}, {"scope": "c"}, {"key": "b"}, {"tenant": "", "scope": "ab"}, {"tenant": "ab", "scope": ""},
                 {"tenant": "b", "scope": "c", "key": "1"}):
        run(connection, "SAVEPOINT s")
        with refused("P4012", "P4000"):
            Once(connection).finish(**{"tenant": "a", "scope": "b", "key": "c", **name})
        run(connection, "ROLLBACK TO s")
    Once(connection).finish(tenant="a", scope="b", key="c")
    connection.commit()


def test_only_proceed_is_a_start(db):
    Once(db.connect()).finish_new(key="done")
    connection = db.connect(isolation="READ COMMITTED")
    assert Once(connection).start(key="done").verdict == "replay_success"
    with refused("P4012"):
        Once(connection).finish(key="done")


def test_many_intents_of_one_transaction_are_finished_in_any_order(db):
    connection = db.connect(isolation="READ COMMITTED")
    once = Once(connection)
    for n in range(300):
        assert once.start(key=f"k{n}").verdict == "proceed"
    for n in reversed(range(300)):
        once.finish(key=f"k{n}", response_text=str(n))
    connection.commit()
    assert db.value("SELECT count(*) FROM once.intent WHERE state = 'succeeded'") == 300


def test_a_transaction_that_finishes_retryably_may_start_and_finish_again(db):
    connection = db.connect(isolation="READ COMMITTED")
    once = Once(connection)
    for fence, state in ((1, "failed_retryable"), (2, "failed_retryable"), (3, "succeeded")):
        assert once.start(key="k").fence == fence
        once.finish(key="k", state=state)
    connection.commit()
    assert db.row("SELECT fence, state::text FROM once.intent") == (3, "succeeded")


# ---- the fingerprint that start took ----


@pytest.mark.parametrize("dated", [False, True])
def test_finish_with_another_fingerprint_than_start_took_is_refused_and_leaves_no_trace(db, dated):
    key = uuid7(now_ms(db)) if dated else "k"
    connection = db.connect(isolation="READ COMMITTED")
    once = Once(connection)
    assert once.start(key=key).verdict == "proceed"
    make_effect(connection, key)
    with refused("P4015") as caught:
        once.finish(key=key, fingerprint=OTHER_PRINT, response_text="another's")
    assert "fingerprint" in caught.value.diag.message_hint
    connection.rollback()
    assert db.value("SELECT count(*) FROM once.intent") == 0 == effects(db, key)
    assert once.start(key=key).verdict == "proceed"
    once.finish(key=key, response_text="its own")
    connection.commit()
    assert once.start(key=key).response_body == b"its own"


def test_finish_with_another_fingerprint_is_refused_where_a_failure_is_taken_over(db):
    Once(db.connect()).finish_new(key="k", state="failed_retryable")
    once = Once(db.connect(isolation="READ COMMITTED"))
    assert once.start(key="k").fence == 2
    with refused("P4015"):
        once.finish(key="k", fingerprint=OTHER_PRINT)


def test_finish_knows_the_fingerprint_whatever_form_bytes_have_by_then(db):
    connection = db.connect(isolation="READ COMMITTED")
    once = Once(connection)
    for key, before, after in (("a", "hex", "escape"), ("b", "escape", "hex"), ("c", "escape", "escape")):
        run(connection, f"SET LOCAL bytea_output = {before}")
        once.start(key=key)
        run(connection, f"SET LOCAL bytea_output = {after}")
        once.finish(key=key, response_text=key)
    connection.commit()
    assert db.value("SELECT count(*) FROM once.intent WHERE state = 'succeeded'") == 3


# ---- a second start ----


@pytest.mark.parametrize("fingerprint", [PRINT, OTHER_PRINT])
@pytest.mark.parametrize("dated", [False, True])
@pytest.mark.parametrize("first", ["start", "try_start"])
@pytest.mark.parametrize("function", ["start", "try_start", "finish_new"])
def test_a_second_start_in_one_transaction_is_refused_whatever_began_and_whatever_it_brings(db, function, first, dated, fingerprint):
    key = uuid7(now_ms(db)) if dated else "k"
    once = Once(db.connect(isolation="READ COMMITTED"))
    once.start(key="another")
    getattr(once, first)(key=key)
    with refused("P4014") as caught:
        getattr(once, function)(key=key, fingerprint=fingerprint)
    assert caught.value.diag.message_hint and f"key='{key}'" in caught.value.diag.message_detail


def test_a_second_start_in_one_transaction_is_refused(db, function="start"):
    once = Once(db.connect(isolation="READ COMMITTED"))
    once.start(key="k")
    with refused("P4014"):
        getattr(once, function)(key="k")


def test_a_second_start_of_what_is_taken_over_is_refused(db):
    Once(db.connect()).finish_new(key="k", state="failed_retryable")
    once = Once(db.connect(isolation="READ COMMITTED"))
    assert once.start(key="k").verdict == "proceed"
    with refused("P4014"):
        once.start(key="k")


def test_a_start_that_was_rolled_back_to_a_savepoint_may_be_made_again_with_another_request(db):
    connection = db.connect(isolation="READ COMMITTED")
    once = Once(connection)
    run(connection, "SAVEPOINT a")
    once.start(key="k")
    run(connection, "ROLLBACK TO a")
    assert once.start(key="k", fingerprint=OTHER_PRINT).verdict == "proceed"
    once.finish(key="k", fingerprint=OTHER_PRINT)
    connection.commit()


def test_a_start_that_an_exception_block_has_undone_may_be_made_again(db):
    db.execute("""CREATE FUNCTION tries(f bytea) RETURNS text LANGUAGE plpgsql AS $$
        DECLARE answer once.started;
        BEGIN
            BEGIN
                answer := once.start('orders', 'k', f);
                PERFORM 1 / 0;
            EXCEPTION WHEN division_by_zero THEN NULL;
            END;
            answer := once.start('orders', 'k', f);
            PERFORM once.finish('orders', 'k', f, 201, 'done');
            RETURN answer.verdict;
        END $$""")
    assert db.value("SELECT tries(%s)", PRINT) == "proceed"


def test_a_second_start_after_finish_is_a_replay(db):
    once = Once(db.connect(isolation="READ COMMITTED"))
    once.start(key="k")
    once.finish(key="k", response_text="done")
    assert once.start(key="k").response_body == b"done"
    with refused("P4020"):
        once.finish_new(key="k")


# ---- what P4012 says ----


def why_not(db, prepare, key="k", **given):
    """The DETAIL of a finish after this."""
    connection = db.connect(isolation="READ COMMITTED")
    prepare(Once(connection))
    with refused("P4012") as caught:
        Once(connection).finish(key=key, **given)
    connection.rollback()
    return caught.value.diag.message_detail


def test_the_refusal_of_finish_says_what_this_transaction_has_started(db):
    def starts(*keys):
        return lambda once: [once.start(key=key, tenant="acme") for key in keys]

    assert why_not(db, starts()).endswith("; this transaction has started no intent")
    assert why_not(db, starts("other")).endswith("; this transaction has started tenant='acme' scope='orders' key='other'")
    many = why_not(db, starts(*"abcde"))
    assert many.endswith("key='e', tenant='acme' scope='orders' key='d', tenant='acme' scope='orders' key='c' and 2 more"), many
    hostile = why_not(db, lambda once: once.start(key="k", scope="a\nb", tenant="t" * 200))
    assert "\n" not in hostile and "scope='a?b'" in hostile and "t" * 81 not in hostile


def test_the_refusal_of_finish_tells_a_claim_from_a_replay(db):
    Once(db.connect()).finish_new(key="done")
    assert "under fence 1: once.complete and once.fail report a claim" in why_not(db, lambda once: once.claim(key="k"))
    assert "it is succeeded: where once.start said replay_success there is nothing to finish" in why_not(db, lambda once: once.start(key="done"), "done")
    assert "succeeded" not in why_not(db, lambda once: None, "done", fingerprint=OTHER_PRINT)  # another request's


def test_the_refusal_of_a_report_says_which_of_its_causes_it_has(db):
    """complete and fail, each after what makes it refuse."""
    old = uuid7_days_ago(db, 2)
    once = Once(db.connect())
    for key in ("done", "taken", "open"):
        once.claim(key=key)
    once.complete(key="done", fence=1)
    let_lease_pass(db, "taken")
    db.execute("SELECT once.set_scope('orders', on_stale => 'takeover')")
    once.claim(key="taken")
    for report, code, sentence in (
        (lambda once, **of: once.complete(response_text="x", **of), "P4010", "the completion is refused"),
        (lambda once, **of: once.fail(retryable=True, **of), "P4011", "the failure is refused"),
    ):
        for key, fence, start, cause, hint in (
            ("none", 1, False, "there is no such claim", "once.claim"),
            (old, 1, False, "there is no such claim", "once.claim"),
            ("none", 1, True, "this transaction started the intent and did not claim it", "once.finish"),
            ("done", 1, False, "the intent has another outcome already", "once.peek"),
            ("taken", 1, False, "another attempt has taken over", "discard"),
            ("open", 2, False, "this fence was never given", "once.claim"),
        ):
            attempt = Once(db.connect(isolation="READ COMMITTED"))
            if start:
                attempt.start(key=key)
            with refused(code) as caught:
                report(attempt, key=key, fence=fence)
            assert caught.value.diag.message_primary == f"pgonce: {sentence}: {cause}"
            assert hint in caught.value.diag.message_hint and f"key='{key}'" in caught.value.diag.message_detail
            attempt.connection.rollback()


def test_what_the_policy_forbids_is_refused_by_start_and_so_by_finish(db):
    once = Once(db.connect(isolation="READ COMMITTED"))
    Once(db.connect()).claim(key="k")
    let_lease_pass(db, "k")
    with refused("P4012"):
        once.finish(key="k")
    once.connection.rollback()
    with refused("P4031"):
        once.start(key="k")


# ---- try_start ----


def test_try_start_tells_every_decision_in_its_row_and_the_transaction_lives(db):
    shorten_horizon(db)
    once = Once(db.connect())
    once.finish_new(key="done", response_status=201, response_text="done")
    once.finish_new(key="failed", state="failed_final", response_status=402, response_text="no money", error_code="declined")
    once.claim(key="running")
    once.fail(key="doubt", fence=once.claim(key="doubt").fence, retryable=None)
    once.finish_new(key="again", state="failed_retryable")
    expired = uuid7_days_ago(db, 2)
    retire(db, 2)
    connection = db.connect(isolation="READ COMMITTED")
    attempt = Once(connection)
    assert attempt.try_start(key="done")[:5] == ("replay_success", "succeeded", 201, b"done", None)
    failed = attempt.try_start(key="failed")
    assert (failed.verdict, failed.state, failed.response_status, failed.response_body) == ("final_failure", "failed_final", 402, b"no money")
    assert failed.error_code == "declined"
    assert attempt.try_start(key="running").verdict == "processing_active"
    assert attempt.try_start(key="doubt").verdict == "in_doubt"
    assert attempt.try_start(key=expired).verdict == "expired"
    mismatch = attempt.try_start(key="done", fingerprint=OTHER_PRINT)
    assert mismatch.verdict == "mismatch" and not any(mismatch[1:])
    for key, fence in (("again", 2), ("new", 1)):
        proceeds = attempt.try_start(key=key)
        assert (proceeds.verdict, proceeds.fence) == ("proceed", fence)
        attempt.finish(key=key, response_text="now")
    connection.commit()
    assert {once.try_start(key=key).response_body for key in ("again", "new")} == {b"now"}


@pytest.mark.parametrize("key", ["done", "running", "doubt", "failed"])
def test_what_try_start_does_not_let_proceed_finish_refuses(db, key):
    once = Once(db.connect())
    once.finish_new(key="done")
    once.finish_new(key="failed", state="failed_final")
    once.claim(key="running")
    once.fail(key="doubt", fence=once.claim(key="doubt").fence, retryable=None)
    attempt = Once(db.connect(isolation="READ COMMITTED"))
    assert attempt.try_start(key=key).verdict != "proceed"
    with refused("P4012"):
        attempt.finish(key=key)


def test_an_attempt_that_runs_elsewhere_is_active_to_try_start(db):
    first, second = (Once(db.connect(isolation="READ COMMITTED")) for _ in range(2))
    assert first.try_start(key="k").verdict == "proceed"
    assert second.try_start(key="k").verdict == "processing_active"
    first.finish(key="k", response_text="a")
    first.connection.commit()
    assert second.try_start(key="k").response_body == b"a"


def test_a_verify_function_that_raises_is_a_doubt_to_try_start(db):
    make_verify(db, "broken", "RAISE EXCEPTION 'no answer';")
    Once(db.connect()).claim(key="k", scope="broken")
    let_lease_pass(db, "k")
    once = Once(db.connect(isolation="READ COMMITTED"))
    assert once.try_start(key="k", scope="broken").verdict == "in_doubt"
    with refused("P0001"):
        once.start(key="k", scope="broken")


@pytest.mark.parametrize(
    "bad, code",
    [({"key": ""}, "P4001"), ({"scope": ""}, "P4000"), ({"fingerprint": b"short"}, "P4003"), ({"tenant": None}, "P4003")],
)
def test_try_start_raises_bad_input_alone(db, bad, code):
    assert code_of(lambda: Once(db.connect()).try_start(**{"key": "k", **bad})) == code


def test_a_key_from_the_future_is_bad_input_to_try_start(db):
    assert code_of(lambda: Once(db.connect()).try_start(key=uuid7(now_ms(db) + 3 * 86_400_000))) == "P4001"


def test_try_start_answers_with_the_columns_of_start(db):
    connection = db.connect()
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM once.try_start('orders', 'k', %s)", (PRINT,))
        assert [column.name for column in cursor.description] == LIKE_START
