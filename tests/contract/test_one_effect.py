# SPDX-License-Identifier: PostgreSQL
"""At most one effect per intent, and one answer for all attempts, however many run at once; and none of them waits."""

import threading

import psycopg2
import pytest

from .calls import LEVELS, Once, allow_takeover, effects, in_threads, let_lease_pass, make_effect, refused, run, uuid7_days_ago

ATTEMPTS = 64
DOORS = ("same transaction", "leased", "both")
RACES = ("40001", "P4029")  # what an attempt is told to come again for


def door_of(doors, n):
    return ("same transaction", "leased")[n % 2] if doors == "both" else doors


def attempt_in_one_transaction(connection, key, n):
    """Retries until it has an answer. Returns the answer."""
    once = Once(connection)
    while True:
        try:
            started = once.start(key=key)
            if started.verdict == "replay_success":
                connection.rollback()
                return started.response_body
            make_effect(connection, key, n)
            once.finish(key=key, response_body=b"answer %d" % n)
            connection.commit()
            return b"answer %d" % n
        except psycopg2.Error as error:
            connection.rollback()
            if error.pgcode not in RACES:
                raise


def attempt_under_lease(connection, key, n):
    once = Once(connection)
    while True:
        try:
            claimed = once.claim(key=key, owner=f"attempt {n}")
            connection.commit()
            if claimed.verdict == "replay_success":
                return claimed.response_body
            if claimed.verdict != "processing_active":
                assert claimed.verdict == "new_claim"
                make_effect(connection, key, n)
                connection.commit()
                assert once.complete(key=key, fence=claimed.fence, response_body=b"answer %d" % n)
                connection.commit()
                return b"answer %d" % n
        except psycopg2.Error as error:
            connection.rollback()
            if error.pgcode not in RACES:
                raise


ATTEMPT = {"same transaction": attempt_in_one_transaction, "leased": attempt_under_lease}


@pytest.mark.parametrize("doors", DOORS)
@pytest.mark.parametrize("level", LEVELS)
def test_64_parallel_attempts_have_one_effect_and_one_answer(db, level, doors):
    connections = [db.connect(isolation=level, lock_timeout="10s") for _ in range(ATTEMPTS)]
    together = threading.Barrier(ATTEMPTS)

    def attempt(n):
        together.wait()
        return ATTEMPT[door_of(doors, n)](connections[n], "k", n)

    answers = in_threads([lambda n=n: attempt(n) for n in range(ATTEMPTS)])
    assert effects(db, "k") == 1
    assert db.value("SELECT count(*) FROM once.intent") == 1
    assert set(answers) == {b"answer %d" % db.value("SELECT attempt FROM effect")}


@pytest.mark.parametrize("doors", DOORS)
@pytest.mark.parametrize("level", LEVELS)
def test_63_losers_are_told_while_the_winner_is_still_at_work(db, level, doors):
    """The winner keeps its transaction open until all losers have their answer: one that waited for it would run into
    lock_timeout."""
    connections = [db.connect(isolation=level, lock_timeout="5s") for _ in range(ATTEMPTS)]
    together = threading.Barrier(ATTEMPTS)
    told = threading.Semaphore(0)

    def attempt(n):
        once = Once(connections[n])
        together.wait()
        if door_of(doors, n) == "leased":
            claimed = once.claim(key="k")
            if claimed.verdict == "new_claim":
                for _ in range(ATTEMPTS - 1):
                    assert told.acquire(timeout=30)
                make_effect(connections[n], "k", n)
                once.complete(key="k", fence=claimed.fence, response_body=b"answer")
                connections[n].commit()
                return "won"
            verdict = claimed.verdict
        else:
            try:
                once.start(key="k")
                for _ in range(ATTEMPTS - 1):
                    assert told.acquire(timeout=30)
                make_effect(connections[n], "k", n)
                once.finish(key="k", response_body=b"answer")
                connections[n].commit()
                return "won"
            except psycopg2.Error as error:
                verdict = error.pgcode
        connections[n].rollback()
        told.release()
        return verdict

    verdicts = in_threads([lambda n=n: attempt(n) for n in range(ATTEMPTS)])
    assert verdicts.count("won") == 1
    assert set(verdicts) - {"won"} <= {"P4029", "processing_active"}
    assert effects(db, "k") == 1
    assert Once(connections[0]).start(key="k").response_body == b"answer"


def test_a_second_start_is_told_at_once_that_the_first_is_running(db):
    first, second = (db.connect(isolation="READ COMMITTED", lock_timeout="1s") for _ in range(2))
    Once(first).start(key="k")
    with refused("P4029"):
        Once(second).start(key="k")
    second.rollback()
    Once(first).finish(key="k", response_body=b"done")
    with refused("P4029"):  # finished, but not yet committed
        Once(second).start(key="k")
    second.rollback()
    first.commit()
    assert Once(second).start(key="k").verdict == "replay_success"


def test_a_second_finish_new_is_told_at_once_while_the_first_is_uncommitted(db):
    """In READ COMMITTED, where it inserts without asking for a conflict: the lock is what stands between."""
    key = uuid7_days_ago(db, 0)
    first, second = (db.connect(isolation="READ COMMITTED", lock_timeout="5s") for _ in range(2))
    Once(first).finish_new(key=key, response_body=b"first")
    with refused("P4029"):
        Once(second).finish_new(key=key, response_body=b"second")
    second.rollback()
    first.commit()
    with refused("P4020"):
        Once(second).finish_new(key=key, response_body=b"second")


def test_a_second_claim_is_told_at_once_while_the_first_is_uncommitted(db):
    first, second = (db.connect(isolation="READ COMMITTED", lock_timeout="1s") for _ in range(2))
    assert Once(first).claim(key="k").verdict == "new_claim"
    assert Once(second).claim(key="k").verdict == "processing_active"
    assert [row.verdict for row in Once(second).claim_many(key=["k"])] == ["processing_active"]
    with refused("P4029"):
        Once(second).start(key="k")


def test_finish_without_start_does_not_wait_for_a_running_attempt(db):
    first, second = (db.connect(isolation="READ COMMITTED", lock_timeout="1s") for _ in range(2))
    Once(first).start(key="k")
    Once(first).finish(key="k")
    with refused("P4012"):
        Once(second).finish(key="k")


def open_completion(db, stale=False):
    """An attempt reports in a transaction that is still open: complete() may run in the effect's own."""
    attempt = db.connect(isolation="READ COMMITTED")
    fence = Once(db.connect()).claim(key="k").fence
    if stale:
        allow_takeover(db)
        let_lease_pass(db, "k")
    Once(attempt).complete(key="k", fence=fence)


@pytest.mark.parametrize("stale", [False, True])
def test_a_claim_does_not_wait_for_an_open_completion(db, stale):
    open_completion(db, stale)
    assert Once(db.connect(lock_timeout="1s")).claim(key="k").verdict == "processing_active"


@pytest.mark.parametrize("stale", [False, True])
def test_a_batch_of_claims_does_not_wait_for_an_open_completion(db, stale):
    open_completion(db, stale)
    assert [row.verdict for row in Once(db.connect(lock_timeout="1s")).claim_many(key=["k", "new"])] == [
        "processing_active",
        "new_claim",
    ]


@pytest.mark.parametrize("stale", [False, True])
def test_start_and_finish_do_not_wait_for_an_open_completion(db, stale):
    open_completion(db, stale)
    connection = db.connect(isolation="READ COMMITTED", lock_timeout="1s")
    with refused("P4010", "P4029", "40001"):
        Once(connection).start(key="k")
        Once(connection).finish(key="k")


@pytest.mark.parametrize("stale", [False, True])
def test_finish_new_does_not_wait_for_an_open_completion(db, stale):
    open_completion(db, stale)
    with refused("P4029"):
        Once(db.connect(lock_timeout="1s")).finish_new(key="k")


def test_an_operators_decision_does_not_wait_for_an_open_completion(db):
    open_completion(db, stale=True)
    with refused("P4070", "P4029"):
        Once(db.connect(lock_timeout="1s")).resolve(key="k", as_state="failed_retryable")


def test_intents_of_other_scopes_keys_and_tenants_do_not_meet(db):
    names = [
        ("", "orders", "ab"),
        ("", "ordersa", "b"),
        ("", "orders", "a"),
        ("t", "orders", "ab"),
        ("to", "rders", "ab"),
    ]
    connections = [db.connect(isolation="READ COMMITTED") for _ in names]
    for connection, (tenant, scope, key) in zip(connections, names):
        assert Once(connection).start(tenant=tenant, scope=scope, key=key).verdict == "proceed"
        Once(connection).finish(tenant=tenant, scope=scope, key=key, response_body=(tenant + scope + key).encode())
    for connection in connections:
        connection.commit()
    for tenant, scope, key in names:
        assert (
            Once(connections[0]).start(tenant=tenant, scope=scope, key=key).response_body
            == (tenant + scope + key).encode()
        )


def test_a_rolled_back_attempt_leaves_no_trace(db):
    connection = db.connect(isolation="READ COMMITTED")
    Once(connection).start(key="k")
    make_effect(connection, "k")
    Once(connection).finish(key="k")
    connection.rollback()
    assert db.value("SELECT count(*) FROM once.intent") == 0
    assert Once(connection).start(key="k").verdict == "proceed"


def test_every_retry_gets_every_part_of_the_first_answer(db):
    connection = db.connect()
    once = Once(connection)
    run(connection, "BEGIN")
    assert once.start(key="k").verdict == "proceed"
    returned = once.finish(
        key="k",
        response_status=201,
        response_body=b"\x00body\xff",
        response_headers='{"Location": "/orders/7"}',
        result_type="order",
        result_id="7",
    )
    run(connection, "COMMIT")
    assert returned == b"\x00body\xff"
    for verdict, row in (
        ("replay_success", once.start(key="k")),
        ("replay_success", once.claim(key="k")),
        ("replay_success", once.peek(key="k")),
        ("replay_success", once.claim_many(key=["k"])[0]),
        ("replay_success", once.peek_many(key=["k"])[0]),
    ):
        assert (
            row.verdict,
            row.state,
            row.response_status,
            row.response_body,
            row.response_headers,
            row.result_type,
            row.result_id,
            row.fence,
        ) == (verdict, "succeeded", 201, b"\x00body\xff", {"Location": "/orders/7"}, "order", "7", 1)


def attempt_in_a_pipeline(connection, key, n):
    """The outcome first, then the effect. Returns the answer."""
    once = Once(connection)
    while True:
        try:
            assert once.finish_new(key=key, response_body=b"answer %d" % n) == 1
            make_effect(connection, key, n)
            connection.commit()
            return b"answer %d" % n
        except psycopg2.Error as error:
            connection.rollback()
            if error.pgcode == "P4020":
                return once.start(key=key).response_body
            if error.pgcode not in RACES:
                raise


@pytest.mark.parametrize("level", LEVELS)
def test_attempts_whose_outcome_comes_before_the_effect_have_one_effect_and_one_answer_too(db, level):
    connections = [db.connect(isolation=level, lock_timeout="10s") for _ in range(16)]
    together = threading.Barrier(16)

    def attempt(n):
        together.wait()
        run_attempt = attempt_in_a_pipeline if n % 4 else attempt_in_one_transaction
        return run_attempt(connections[n], "k", n)

    answers = in_threads([lambda n=n: attempt(n) for n in range(16)])
    assert effects(db, "k") == 1
    assert set(answers) == {b"answer %d" % db.value("SELECT attempt FROM effect")}


def test_an_outcome_that_came_before_its_effect_is_gone_with_it(db):
    connection = db.connect(isolation="READ COMMITTED")
    once = Once(connection)
    assert once.finish_new(key="k", response_body=b"undone") == 1
    with refused("P4029"):
        Once(db.connect(lock_timeout="1s")).start(key="k")
    connection.rollback()
    assert once.start(key="k").verdict == "proceed"


def test_finish_new_returns_the_fence_of_a_takeover(db):
    allow_takeover(db)
    once = Once(db.connect())
    once.claim(key="k")
    let_lease_pass(db, "k")
    assert once.finish_new(key="k", response_body=b"second") == 2
    assert once.start(key="k").response_body == b"second"
    with refused("P4010"):
        once.complete(key="k", fence=1)


def test_the_same_key_with_another_request_is_a_mismatch_and_changes_nothing(db):
    once, other = Once(db.connect()), Once(db.connect(), fingerprint=b"another request!")
    once.finish_new(key="finished", response_body=b"first")
    once.claim(key="leased")
    before = db.rows("SELECT * FROM once.intent ORDER BY key")
    for key in ("finished", "leased"):
        for call in (other.start, other.claim, other.finish_new):
            with refused("P4002"):
                call(key=key)
    assert [
        row.verdict
        for row in Once(db.connect()).claim_many(key=["finished", "leased"], fingerprint=[b"another request!"] * 2)
    ] == ["mismatch"] * 2
    assert db.rows("SELECT * FROM once.intent ORDER BY key") == before


def test_a_mismatch_tells_nothing_of_the_stored_answer(db):
    Once(db.connect()).finish_new(key="k", response_body=b"secret", error_message="secret")
    row = Once(db.connect()).claim_many(key=["k"], fingerprint=[b"another request!"])[0]
    assert row.verdict == "mismatch" and not any(row[2:])
    with refused("P4002") as caught:
        Once(db.connect(), fingerprint=b"another request!").start(key="k")
    assert "secret" not in str(caught.value)
