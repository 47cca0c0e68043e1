# SPDX-License-Identifier: PostgreSQL
"""Above READ COMMITTED a race ends in 40001, never in a second effect; savepoints, several intents, and prepared
transactions."""

import psycopg2
import pytest
from harness.mutation import mutate

from .calls import Once, code_of, effects, make_effect, now_ms, refused, run, uuid7

STRICT = ("REPEATABLE READ", "SERIALIZABLE")


@pytest.mark.parametrize("level", STRICT)
def test_an_attempt_with_an_old_snapshot_ends_in_40001_and_its_retry_replays(db, level):
    late = db.connect(isolation=level)
    run(late, "SELECT 1")  # the snapshot is from before the first attempt
    first = db.connect(isolation=level)
    for connection in (first, late):
        assert Once(connection).start(key="k").verdict == "proceed"
        make_effect(connection, "k")
        if connection is first:
            Once(connection).finish(key="k", response_body=b"first")
            connection.commit()
    with refused("40001"):
        Once(late).finish(key="k", response_body=b"late")
    late.rollback()
    assert Once(late).start(key="k").response_body == b"first"
    assert effects(db, "k") == 1


def two_at_a_time(db, level, keys):
    """How two transactions end that both look before one of them stores: None, or the code of an error."""
    connections = [db.connect(isolation=level) for _ in keys]
    for connection, key in zip(connections, keys):
        assert Once(connection).start(key=key).verdict == "proceed"
    codes = []
    for connection, key in zip(connections, keys):
        try:
            Once(connection).finish(key=key)
            connection.commit()
            codes.append(None)
        except psycopg2.Error as error:
            connection.rollback()
            codes.append(error.pgcode)
    return codes


def test_serializable_ends_in_40001_for_other_keys_too_where_they_are_neighbours_and_lower_levels_do_not(db):
    """docs/why/concepts.md says so, and what to use instead: PostgreSQL remembers what was looked for by the page of an index."""
    now = now_ms(db)
    for number, level in enumerate(("READ COMMITTED", "REPEATABLE READ")):
        assert two_at_a_time(db, level, [uuid7(now, 2 * number), uuid7(now, 2 * number + 1)]) == [None, None]
    late = [uuid7(now, 8), uuid7(now, 9)]
    assert two_at_a_time(db, "SERIALIZABLE", late) == [None, "40001"]
    # The other attempt is made again; nobody is beside it.
    once = Once(db.connect(isolation="SERIALIZABLE"))
    assert once.start(key=late[1]).verdict == "proceed"
    once.finish(key=late[1])
    once.connection.commit()
    # Keys that are spread over the index are on pages of their own.
    Once(db.connect()).claim_many(key=[f"{number:04x}" for number in range(0, 0x10000, 16)])
    assert two_at_a_time(db, "SERIALIZABLE", ["0008-a", "f008-a"]) == [None, None]


@pytest.mark.parametrize("level", STRICT)
def test_a_claim_or_a_message_with_an_old_snapshot_ends_in_40001(db, level):
    for call in (
        lambda once: once.claim(key="k"),
        lambda once: once.claim_many(key=["k"]),
        lambda once: once.receive(consumer="orders", message_id="k"),
        lambda once: once.finish_new(key="k"),
        lambda once: once.finish_new(key="k"),
    ):
        db.execute("DELETE FROM once.intent")
        late = db.connect(isolation=level)
        run(late, "SELECT 1")
        Once(db.connect()).finish_new(key="k")
        with refused("40001"):
            call(Once(late))


@pytest.mark.parametrize("level", STRICT)
def test_a_takeover_with_an_old_snapshot_ends_in_40001(db, level):
    Once(db.connect()).claim(key="k")
    db.execute("UPDATE once.intent SET lease_until = clock_timestamp() - interval '1 second'")
    late = db.connect(isolation=level)
    run(late, "SELECT 1")
    assert Once(db.connect()).claim(key="k", takeover=True).fence == 2
    with refused("40001"):
        Once(late).claim(key="k", takeover=True)


@pytest.mark.parametrize("level", STRICT)
def test_an_event_emitted_with_an_old_snapshot_ends_in_40001_so_that_the_transaction_is_retried(db, level):
    late = db.connect(isolation=level)
    run(late, "SELECT 1")
    Once(db.connect()).emit(topic="t", payload="{}", scope="orders", key="k")
    with refused("40001"):
        Once(late).emit(topic="t", payload="{}", scope="orders", key="k")


@pytest.mark.parametrize("level", STRICT)
def test_a_snapshot_from_before_midnight_makes_no_second_event_after_it(db, level):
    event = dict(topic="t", payload="{}", scope="orders", key="k")
    late = db.connect(isolation=level)
    run(late, "SELECT count(*) FROM once.outbox")
    first = Once(db.connect()).emit(**event)
    mutate(db, "emit", "clock_timestamp()", "clock_timestamp() + interval '1 day'")
    with refused("40001"):
        Once(late).emit(**event)
    late.rollback()
    # The transaction that is tried again begins after midnight.
    mutate(db, "emit", "transaction_timestamp()", "transaction_timestamp() + interval '1 day'")
    assert Once(late).emit(**event) == first
    late.commit()
    assert db.value("SELECT count(*) FROM once.outbox") == 1


@pytest.mark.parametrize("level", STRICT)
def test_an_event_of_yesterday_that_a_snapshot_hides_is_caught_by_finish(db, level):
    late = Once(db.connect(isolation=level))
    run(late.connection, "SELECT count(*) FROM once.outbox")
    first = Once(db.connect(isolation="READ COMMITTED"))
    first.start(key="k")
    first.emit(topic="t", payload="{}", scope="orders", key="k")
    first.finish(key="k")
    first.connection.commit()
    mutate(db, "emit", "clock_timestamp()", "clock_timestamp() + interval '1 day'")
    mutate(db, "emit", "transaction_timestamp()", "transaction_timestamp() + interval '1 day'")  # begun after midnight
    assert late.start(key="k").verdict == "proceed"
    late.emit(topic="t", payload="{}", scope="orders", key="k")
    with refused("40001"):
        late.finish(key="k")
    late.connection.rollback()
    assert db.value("SELECT count(*) FROM once.outbox") == 1


def test_a_transaction_goes_on_over_midnight_where_each_statement_sees_what_is_committed(db):
    event = dict(topic="t", payload="{}", scope="orders", key="k")
    late = db.connect(isolation="READ COMMITTED")
    run(late, "SELECT count(*) FROM once.outbox")
    first = Once(db.connect()).emit(**event)
    mutate(db, "emit", "clock_timestamp()", "clock_timestamp() + interval '1 day'")
    assert Once(late).emit(**event) == first
    Once(late).emit(topic="t", payload="{}")
    late.commit()
    assert db.value("SELECT count(*) FROM once.outbox") == 2


def test_one_transaction_can_begin_several_intents(db):
    connection = db.connect(isolation="READ COMMITTED")
    once = Once(connection)
    for key in ("a", "b", "c"):
        assert once.start(key=key).verdict == "proceed"
    for key in ("b", "a", "c"):
        make_effect(connection, key)
        once.finish(key=key, response_body=key.encode())
    connection.commit()
    assert [once.start(key=key).response_body for key in ("a", "b", "c")] == [b"a", b"b", b"c"]


def test_a_finished_intent_replays_in_its_own_transaction(db):
    connection = db.connect(isolation="READ COMMITTED")
    once = Once(connection)
    once.start(key="k")
    once.finish(key="k", response_body=b"a")
    assert once.start(key="k").response_body == b"a"
    with refused("P4010"):
        once.finish(key="k", response_body=b"b")


def test_a_rollback_to_a_savepoint_undoes_start_and_finish(db):
    connection, other = db.connect(isolation="READ COMMITTED"), db.connect()
    once = Once(connection)
    run(connection, "SELECT 1; SAVEPOINT s")
    once.start(key="k")
    make_effect(connection, "k")
    once.finish(key="k", response_body=b"undone")
    assert code_of(lambda: Once(other).start(key="k")) == "P4029"
    run(connection, "ROLLBACK TO s")
    assert Once(other).start(key="k").verdict == "proceed"  # others may go on at once
    assert once.start(key="k").verdict == "proceed"
    make_effect(connection, "k")
    once.finish(key="k", response_body=b"done")
    connection.commit()
    assert Once(other).start(key="k").response_body == b"done"
    assert effects(db, "k") == 1


def test_a_final_failure_is_recorded_after_its_effect_was_rolled_back(db):
    connection = db.connect(isolation="READ COMMITTED")
    once = Once(connection)
    once.start(key="k")
    run(connection, "SAVEPOINT effect")
    make_effect(connection, "k")
    run(connection, "ROLLBACK TO effect")
    once.finish(key="k", state="failed_final", error_code="declined", error_message="no money")
    connection.commit()
    assert effects(db, "k") == 0
    with refused("P4030") as caught:
        once.start(key="k")
    assert "declined: no money" in caught.value.diag.message_detail


def test_a_retryable_failure_lets_the_next_start_proceed_under_the_next_fence(db):
    once = Once(db.connect())
    once.finish_new(key="k", state="failed_retryable")
    started = once.start(key="k")
    assert (started.verdict, started.fence) == ("proceed", 2)
    once.finish_new(key="k", response_body=b"second")
    assert (once.peek(key="k").fence, once.peek(key="k").attempts) == (2, 2)


def test_a_prepared_transaction_holds_its_intent_until_it_is_decided(db):
    for key, decision in (("committed", "COMMIT"), ("rolled back", "ROLLBACK")):
        connection = db.connect()
        run(connection, "BEGIN")
        Once(connection).start(key=key)
        make_effect(connection, key)
        Once(connection).finish(key=key, response_body=b"prepared")
        run(connection, f"PREPARE TRANSACTION '{key}'")
        connection.close()
        other = Once(db.connect(lock_timeout="1s"))
        with refused("P4029"):
            other.start(key=key)
        assert other.claim(key=key).verdict == "processing_active"
        db.execute(f"{decision} PREPARED '{key}'")
        assert other.start(key=key).verdict == ("replay_success" if decision == "COMMIT" else "proceed")
        assert effects(db, key) == (1 if decision == "COMMIT" else 0)


def test_a_read_only_transaction_can_replay_but_not_claim(db):
    Once(db.connect()).finish_new(key="k", response_body=b"a")
    connection = db.connect(isolation="READ COMMITTED")
    run(connection, "SET TRANSACTION READ ONLY")
    assert Once(connection).start(key="k").response_body == b"a"
    with refused("25006"):
        Once(connection).claim(key="new")


def test_start_does_not_take_over_what_its_own_transaction_claimed(db):
    connection = db.connect(isolation="READ COMMITTED")
    once = Once(connection)
    once.claim(key="k")
    with refused("P4029"):
        once.start(key="k")


def test_a_claim_after_start_in_one_transaction_makes_finish_refuse(db):
    connection = db.connect(isolation="READ COMMITTED")
    once = Once(connection)
    once.start(key="k")
    assert once.claim(key="k").verdict == "new_claim"
    with refused("P4010"):
        once.finish(key="k")
