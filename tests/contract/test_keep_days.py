# SPDX-License-Identifier: PostgreSQL
"""The keeper retires a day in short transactions. At each moment of it a late retry is answered or refused and never runs,
reports and decisions are kept, and whoever stops it anywhere, others go on."""

import contextlib
import time

import psycopg2
import pytest

from harness.postgres import wait_until

from .calls import Once, code_of, hold_days, in_threads, let_lease_pass, refused, retire, run
from .keeping import PHASES, STEPS, Keeper, finished, keeper, old_day, old_key, phase_of, settled, where
from .test_buckets import DOORS, code_at
from .test_receive_many import receive_many


@pytest.mark.parametrize("phase", PHASES)
def test_a_late_retry_is_answered_or_refused_and_never_runs(db, phase):
    keep = keeper(db)
    kept = finished(db, 1)
    expired = finished(db, 2, expired=True)
    failed = old_key(db, 3)
    once = Once(db.connect())
    once.claim(key=failed)
    once.fail(key=failed, fence=1, retryable=True)
    keep.retire(phase)
    for number, door in enumerate(DOORS, 10):
        if phase == "open":
            continue
        assert code_at(door, once, old_key(db, number)) == "P4041", door
        if door != "receive":
            assert code_at(door, once, failed) == "P4041", door
    assert once.start(key=kept).response_body == once.claim(key=kept).response_body == b"kept"
    assert once.claim_many(key=[kept])[0].response_body == once.peek(key=kept).response_body == b"kept"
    assert code_of(lambda: once.finish_new(key=kept)) == "P4020"
    if phase == "dropped":
        assert once.claim(key=expired).verdict == "expired"
        assert where(db, kept)[0].startswith("once.archive_") and not where(db, expired)
        assert phase_of(db) == []
        assert not db.value("SELECT to_regclass(%s) IS NOT NULL", f"once.intent_closed_d{old_day(db)}")
    elif PHASES[phase] < PHASES["detached"]:
        assert once.start(key=expired).response_body == b"kept"
    assert len(where(db, kept)) == 1


@pytest.mark.parametrize("phase", PHASES)
def test_a_stale_attempt_of_the_day_may_report_until_its_row_is_moved(db, phase):
    keep = keeper(db)
    key = old_key(db)
    once = Once(db.connect())
    once.claim(key=key)
    let_lease_pass(db, key)
    keep.retire(phase)
    if PHASES[phase] < PHASES["moved"]:
        assert once.complete(key=key, fence=1, response_body=b"late") is True
        keep.retire()
        assert once.start(key=key).response_body == b"late"
    else:
        assert code_of(lambda: once.complete(key=key, fence=1)) == "P4010"
        keep.retire()
        assert once.claim(key=key).verdict == "in_doubt"
        assert once.resolve(key=key, as_state="failed_final") == "in_doubt"
        assert once.claim(key=key).verdict == "final_failure"
    decided = db.rows("SELECT from_state, to_state FROM once.decision WHERE key = %s ORDER BY decided_at", key)
    assert bool(decided) == (PHASES[phase] >= PHASES["doubted"])
    assert not decided or tuple(decided[0]) == ("processing", "in_doubt")


@pytest.mark.parametrize("report", ["fail", "release"])
@pytest.mark.parametrize("phase", ["closed", "doubted"])
def test_other_reports_of_the_day_are_taken_and_do_not_reopen_it(db, phase, report):
    keep = keeper(db)
    key = old_key(db)
    once = Once(db.connect())
    once.claim(key=key)
    let_lease_pass(db, key)
    keep.retire(phase)
    if report == "fail":
        assert once.fail(key=key, fence=1, retryable=True) is True
    else:
        assert once.release(key=key, fence=1) is (phase == "closed")
    for door in ("start", "finish", "claim", "claim_many"):
        assert code_at(door, once, key) in ("P4041", None if phase == "doubted" and report == "release" else "P4041", "P4031")
    assert once.claim(key=key).verdict in ("expired", "in_doubt")
    keep.retire()
    assert once.claim(key=key).verdict in ("expired", "in_doubt")


@pytest.mark.parametrize("phase", PHASES)
def test_a_decision_is_taken_in_every_phase_and_kept(db, phase):
    keep = keeper(db)
    key = old_key(db)
    once = Once(db.connect())
    once.claim(key=key)
    once.fail(key=key, fence=1, retryable=None)
    keep.retire(phase)
    assert once.resolve(key=key, as_state="succeeded", response_body=b"it did") == "in_doubt"
    keep.retire()
    assert once.start(key=key).response_body == b"it did"
    assert len(where(db, key)) == 1


def test_a_decision_on_a_row_that_is_being_moved_is_refused_and_not_lost(db):
    keep = keeper(db)
    key = old_key(db)
    once = Once(db.connect())
    once.claim(key=key)
    once.fail(key=key, fence=1, retryable=None)
    keep.retire("doubted")
    moving = db.connect(isolation="READ COMMITTED")
    run(moving, "SELECT once_job.keep_step('keeper', 'move')")
    with refused("P4070"):
        once.resolve(key=key, as_state="succeeded")
    moving.commit()
    assert once.resolve(key=key, as_state="succeeded", response_body=b"it did") == "in_doubt"
    keep.retire()
    assert once.start(key=key).response_body == b"it did"


def test_a_row_that_is_being_decided_on_is_not_moved_away_from_under_it(db):
    keep = keeper(db)
    key = old_key(db)
    Once(db.connect()).claim(key=key)
    Once(db.connect()).fail(key=key, fence=1, retryable=None)
    keep.retire("doubted")
    deciding = db.connect(isolation="READ COMMITTED")
    Once(deciding).resolve(key=key, as_state="succeeded", response_body=b"it did")
    assert "a row is being changed" in keep.work("move")[-1]
    assert [row.what for row in db.rows("SELECT what FROM once.retention_held()")] == ["day"]
    deciding.commit()
    keep.retire()
    assert Once(db.connect()).start(key=key).response_body == b"it did"


def test_what_becomes_worth_keeping_behind_the_mover_is_moved_too(db):
    keep = keeper(db)
    finished(db, 1)
    key = old_key(db, 2)
    once = Once(db.connect())
    once.claim(key=key)
    once.fail(key=key, fence=1, retryable=True)
    keep.retire("doubted")
    assert keep.step("move").done == 1
    once.resolve(key=key, as_state="succeeded", response_body=b"it did")
    keep.retire()
    assert once.start(key=key).response_body == b"it did"


def test_the_last_look_finds_what_was_stored_after_the_last_pass(db):
    keep = keeper(db)
    key = old_key(db)
    once = Once(db.connect())
    once.claim(key=key)
    once.fail(key=key, fence=1, retryable=True)
    keep.retire("detached")
    table = f"once.intent_closed_d{old_day(db)}"
    db.execute(f"UPDATE {table} SET state = 'succeeded', response_body = 'late', completed_at = clock_timestamp()")
    for look in (once.start, once.claim, once.peek):
        assert look(key=key).response_body == b"late"  # also before that look
    keep.retire()
    assert once.start(key=key).response_body == b"late"


def test_an_attempt_under_a_lease_holds_its_day_open(db):
    keep = keeper(db)
    key = old_key(db)
    once = Once(db.connect())
    once.claim(key=key)
    piece = keep.step("close")
    assert (piece.done, piece.more) == (0, False) and key in piece.detail
    held = db.rows("SELECT what, hint FROM once.retention_held()")
    assert [row.what for row in held] == ["day"] and key in held[0].hint
    assert once.claim(key=key).verdict == "processing_active"
    once.complete(key=key, fence=1, response_body=b"done")
    keep.retire()
    assert once.claim(key=key).response_body == b"done"


def test_a_day_is_not_closed_while_an_earlier_one_is_open(db):
    """Else some doors would let a new intent of the earlier day run, and others would say that it is expired."""
    keep = keeper(db)
    earlier, later = old_day(db), old_day(db) + 1
    with refused("55000") as caught:
        db.execute("SELECT once._close_day(%s)", later)
    assert f"day {later} cannot be closed while day {earlier} is open" in str(caught.value) and f"Close day {earlier} first" in caught.value.diag.message_hint
    once = Once(db.connect())
    for number, door in enumerate(DOORS):
        assert code_at(door, once, old_key(db, number)) is None, door
    db.execute("UPDATE once.intent SET lease_until = clock_timestamp() - interval '1 second' WHERE state = 'processing'")
    keep.work("close")
    db.execute("SELECT once._close_day(%s)", later)
    for number, door in enumerate(DOORS, len(DOORS)):
        assert code_at(door, once, old_key(db, number)) == "P4041", door


def test_an_attempt_that_renews_its_lease_in_a_closed_day_holds_it_there(db):
    keep = keeper(db)
    key = old_key(db)
    once = Once(db.connect())
    once.claim(key=key)
    let_lease_pass(db, key)
    keep.retire("closed")
    assert once.renew(key=key, fence=1, lease="1 hour") is True
    assert key in keep.work("doubt")[-1]
    keep.retire()
    assert phase_of(db) == [(old_day(db), "doubt")]
    once.complete(key=key, fence=1, response_body=b"done")
    keep.retire()
    assert once.claim(key=key).response_body == b"done"


@pytest.mark.parametrize("kind", ["open", "prepared"])
def test_a_transaction_inside_the_day_holds_it_and_days_are_made_nevertheless(db, kind):
    keep = keeper(db)
    key = old_key(db)
    attempt = db.connect(isolation="READ COMMITTED")
    Once(attempt).start(key=key)
    Once(attempt).finish(key=key, response_body=b"just in time")
    if kind == "prepared":
        run(attempt, "PREPARE TRANSACTION 'inside'")
        run(attempt, "ROLLBACK")
    with refused("55P03"):
        keep.step("close")
    run(keep.connection, "SELECT once_job.keep_failed('keeper', 'close', '55P03', 'the lock')")
    status = {row.step: row for row in db.rows("SELECT * FROM once.keeper_status()")}
    assert "55P03" in status["close"].last_error and status["close"].last_success is None
    db.execute("SELECT once.set_keeping(days_ahead => 4)")
    assert keep.step("days").done == 4
    if kind == "prepared":
        db.execute("COMMIT PREPARED 'inside'")
    else:
        attempt.commit()
    keep.retire()
    assert Once(db.connect()).start(key=key).response_body == b"just in time"


def test_an_attempt_that_found_the_day_open_and_inserts_after_it_was_closed_is_to_try_again(db):
    """The gate has let it pass; then its insert waits for the closing."""
    keep = keeper(db)
    key = old_key(db)
    Once(db.connect()).receive(birthdays=True, message_id=old_key(db, 2))
    closing = db.connect(isolation="READ COMMITTED")
    run(closing, "SELECT once_job.keep_step('keeper', 'close')")

    def commit_when_it_waits():
        wait_until(
            lambda: db.value("SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'relation'") == 1,
            "the attempt to wait",
        )
        closing.commit()

    codes = in_threads(
        [lambda: code_of(lambda: Once(db.connect()).receive(birthdays=True, message_id=key)), commit_when_it_waits]
    )
    assert codes[0] == "40001"
    assert code_of(lambda: Once(db.connect()).receive(birthdays=True, message_id=key)) == "P4041"
    keep.retire()
    assert code_of(lambda: Once(db.connect()).receive(birthdays=True, message_id=key)) == "P4041"


@pytest.mark.parametrize("step", STEPS)
def test_a_keeper_that_is_killed_in_a_step_leaves_it_to_the_next(db, step):
    keep = keeper(db)
    kept, stale = finished(db, 1), old_key(db, 2)
    once = Once(db.connect())
    once.claim(key=stale)
    let_lease_pass(db, stale)
    for before in STEPS[: STEPS.index(step)]:
        keep.work(before)
    killed = db.connect(isolation="READ COMMITTED")
    run(killed, "SELECT once_job.keep_step('keeper', %s)", step)
    db.execute("SELECT pg_terminate_backend(%s)", killed.info.backend_pid)
    wait_until(
        lambda: not db.rows("SELECT FROM pg_stat_activity WHERE pid = %s", killed.info.backend_pid), "its end"
    )
    assert once.start(key=kept).response_body == b"kept"
    keep.retire()
    assert phase_of(db) == []
    assert once.start(key=kept).response_body == b"kept" and once.claim(key=stale).verdict == "in_doubt"


def has_concurrent_detach(db):
    return db.value("SELECT current_setting('server_version_num')::integer >= 140000")


def test_a_day_is_detached_without_a_lock_that_stops_anybody_where_the_caller_can(db):
    if not has_concurrent_detach(db):
        pytest.skip("before PostgreSQL 14")
    keep = keeper(db)
    kept = finished(db, 1)
    keep.retire("moved")
    piece = keep.step("detach", concurrently=True)
    assert piece.command.endswith("CONCURRENTLY") and piece.more
    keep.work("detach", concurrently=True)
    keep.retire()
    assert Once(db.connect()).start(key=kept).response_body == b"kept" and phase_of(db) == []


@pytest.mark.parametrize("then", ["concurrently", "plainly", "by hand"])
def test_a_concurrent_detaching_that_was_interrupted_is_finished(db, then):
    if not has_concurrent_detach(db):
        pytest.skip("before PostgreSQL 14")
    keep = keeper(db)
    kept = finished(db, 1)
    keep.retire("moved")
    command = keep.step("detach", concurrently=True).command
    reader = db.connect(isolation="READ COMMITTED")
    run(reader, "SELECT count(*) FROM once.intent")  # which the detaching waits for
    detaching = db.connect()

    def interrupt():
        wait_until(lambda: db.value("SELECT bool_or(inhdetachpending) FROM pg_inherits"), "the first half")
        db.execute("SELECT pg_terminate_backend(%s)", detaching.info.backend_pid)

    def detach():
        with contextlib.suppress(psycopg2.Error):
            run(detaching, command)

    in_threads([detach, interrupt])
    assert Once(db.connect()).start(key=kept).response_body == b"kept"
    reader.rollback()
    if then == "by hand":
        retire(db, 7)
    else:
        if then == "concurrently":
            assert keep.step("detach", concurrently=True).command.endswith("FINALIZE")
        keep.work("detach", concurrently=then == "concurrently")
        keep.retire()
    assert phase_of(db) == [] and Once(db.connect()).start(key=kept).response_body == b"kept"


def test_two_keepers_at_once_do_no_harm(db):
    settled(db, 1)  # five days are past it
    kept = [finished(db, number) for number in range(50)]
    gone = [finished(db, number, expired=True) for number in range(50, 60)]
    keepers = [Keeper(db.connect()) for _ in range(2)]

    def keep(each):
        deadline = time.monotonic() + 150
        while (phase_of(db) or db.value("SELECT count(*) FROM once._days('once.intent', 'intent_d') AS d") > 4) and (
            time.monotonic() < deadline
        ):
            for step in STEPS:
                with contextlib.suppress(psycopg2.errors.LockNotAvailable, psycopg2.errors.UndefinedTable):
                    each.work(step)

    in_threads([lambda: keep(keepers[0]), lambda: keep(keepers[1])], patience_s=200)
    assert phase_of(db) == []
    once = Once(db.connect())
    assert {once.peek(key=key).response_body for key in kept} == {b"kept"}
    assert {once.claim(key=key).verdict for key in gone} == {"expired"}
    assert db.value("SELECT count(*) FROM once.archive") == 50


@pytest.mark.parametrize("phase", PHASES)
def test_a_day_that_is_being_retired_can_be_retired_by_hand(db, phase):
    keep = keeper(db)
    kept = finished(db, 1)
    keep.retire(phase)
    retire(db, 7)
    assert phase_of(db) == [] and Once(db.connect()).start(key=kept).response_body == b"kept"
    keep.retire()
    assert Once(db.connect()).start(key=kept).response_body == b"kept"
    assert code_of(lambda: Once(db.connect()).start(key=old_key(db, 2))) == "P4041"


@pytest.mark.parametrize("phase", ["closed", "moved", "detached", "dropped"])
def test_a_day_that_is_closed_is_never_made_again(db, phase):
    keep = keeper(db)
    adding = db.connect(isolation="READ COMMITTED")
    run(adding, "SELECT closed_before FROM once.setting")
    keep.retire(phase)
    db.execute("SELECT once.set_keeping(horizon_days => 30)")
    run(adding, "SELECT once.add_days()")
    adding.commit()
    keep.step("days")
    assert db.value("SELECT to_regclass(%s)", f"once.intent_d{old_day(db)}") is None
    assert code_of(lambda: Once(db.connect()).start(key=old_key(db, 2))) == "P4041"


def test_a_full_disk_at_the_archive_stops_the_move_only(db):
    keep = keeper(db)
    kept = finished(db, 1)
    keep.retire("doubted")
    db.execute(
        "CREATE FUNCTION public.full() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION USING ERRCODE = '53100', MESSAGE = 'No space left on device'; END $$"
    )
    db.execute("CREATE TRIGGER is_full BEFORE INSERT ON once.archive FOR EACH ROW EXECUTE FUNCTION public.full()")
    with refused("53100"):
        keep.step("move")
    run(keep.connection, "SELECT once_job.keep_failed('keeper', 'move', '53100', 'No space left on device')")
    assert Once(db.connect()).start(key=kept).response_body == b"kept"
    db.execute("SELECT once.set_keeping(days_ahead => 3)")
    assert keep.step("days").done == 2
    for step in ("detach", "drop"):
        assert keep.step(step).done == 0
    db.execute("DROP TRIGGER is_full ON once.archive")
    keep.retire()
    assert where(db, kept)[0].startswith("once.archive_") and phase_of(db) == []


@pytest.mark.parametrize("door", ["start", "claim", "peek", "receive"])
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("phase", [phase for phase in PHASES if phase not in ("open", "dropped")])
def test_a_snapshot_from_before_the_end_of_a_day_is_not_told_that_an_owed_answer_is_expired(db, phase, level, door):
    keep = keeper(db)
    key = old_key(db, 1)
    Once(db.connect()).receive(birthdays=True, message_id=key) if door == "receive" else Once(db.connect()).finish_new(key=key, response_body=b"kept")
    keep.retire(phase)
    old = db.connect(isolation=level)
    run(old, "SELECT 1 FROM pg_class LIMIT 1")
    keep.retire()

    def answer(once):
        return once.receive(birthdays=True, message_id=key) == "duplicate" if door == "receive" else getattr(once, door)(key=key).response_body == b"kept"

    run(old, "SAVEPOINT a")
    answers = []
    code = code_of(lambda: answers.append(answer(Once(old))))
    assert answers == [True] if PHASES[phase] >= PHASES["moved"] else code == "40001"
    assert answer(Once(db.connect()))
    if door != "receive":
        run(old, "ROLLBACK TO a")
        assert code_of(lambda: Once(old).start(key=old_key(db, 2))) in ("P4041", "40001")


ASKED = {
    "peek": lambda once, key: once.peek(key=key),
    "peek_many": lambda once, key: once.peek_many(key=[key]),
    "story": lambda once, key: once.story(key=key),
    "start": lambda once, key: once.start(key=key),
    "claim": lambda once, key: once.claim(key=key),
    "claim_many": lambda once, key: once.claim_many(key=[key]),
    "finish": lambda once, key: once.finish_new(key=key),
    "resolve": lambda once, key: once.resolve(key=key, as_state="succeeded"),
    "receive": lambda once, key: once.receive(consumer="orders", birthdays=True, message_id=key),
    "receive_many": lambda once, key: receive_many(once.connection, [key], consumer="orders", birthdays=True),
}


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("way", ["by the keeper", "by hand"])
def test_a_snapshot_from_before_the_whole_retirement_of_a_day_is_to_try_again_at_every_door(db, way, level):
    keep = keeper(db)
    key = old_key(db, 1)
    Once(db.connect()).finish_new(key=key, response_body=b"kept")
    old = db.connect(isolation=level)
    run(old, "SELECT 1 FROM pg_class LIMIT 1")
    keep.retire() if way == "by the keeper" else db.execute("SELECT once.retire_day(%s)", old_day(db))
    for door, call in ASKED.items():
        run(old, "SAVEPOINT a")
        assert (door, code_of(lambda: call(Once(old), key))) == (door, "40001")
        run(old, "ROLLBACK TO a")
    old.rollback()
    assert Once(old).start(key=key).response_body == b"kept"


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_a_day_that_never_was_and_cannot_be_made_is_missing_under_every_snapshot(db, level):
    db.execute(f"DROP TABLE once.intent_d{old_day(db)}")
    hold_days(db)
    connection = db.connect(isolation=level)
    for door, code in (("start", "P4098"), ("claim", "P4098"), ("receive", "P4098"), ("peek", None), ("story", None)):
        run(connection, "SAVEPOINT a")
        assert (door, code_of(lambda: ASKED[door](Once(connection), old_key(db, 1)))) == (door, code)
        run(connection, "ROLLBACK TO a")


@pytest.mark.parametrize("door", ["start", "claim"])
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("phase", ["closed", "doubted"])
def test_a_snapshot_from_before_an_answer_was_stored_in_a_closed_day_is_to_try_again(db, phase, level, door):
    keep = keeper(db)
    key = old_key(db)
    once = Once(db.connect())
    once.claim(key=key)
    once.fail(key=key, fence=1, retryable=True)
    keep.retire(phase)
    old, none, late = (db.connect(isolation=level) for _ in range(3))
    for connection in (old, none):
        run(connection, "SELECT 1 FROM pg_class LIMIT 1")
    assert code_at(door, Once(none), key) == "P4041"
    none.rollback()
    once.resolve(key=key, as_state="succeeded", response_body=b"it did")
    assert code_at(door, Once(old), key) == "40001"
    assert getattr(Once(late), door)(key=key).response_body == b"it did"


def test_a_snapshot_that_waits_for_the_drop_of_its_day_is_to_try_again(db):
    keep = keeper(db)
    key = old_key(db)
    once = Once(db.connect())
    once.claim(key=key)
    once.fail(key=key, fence=1, retryable=True)
    keep.retire("detached")
    db.execute(f"UPDATE once.intent_closed_d{old_day(db)} SET state = 'succeeded', response_body = 'late', completed_at = clock_timestamp()")
    old = db.connect(isolation="REPEATABLE READ")
    run(old, "SELECT 1 FROM pg_class LIMIT 1")
    assert keep.step("drop").done == 1  # moved
    keep.connection.autocommit = False
    while run(keep.connection, "SELECT to_regclass(%s) IS NOT NULL AS there", f"once.intent_closed_d{old_day(db)}")[0].there:
        keep.connection.commit()
        keep.step("drop")

    def commit_when_it_waits():
        wait_until(lambda: db.value("SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'relation'") == 1, "the attempt to wait")
        keep.connection.commit()

    def attempt():
        with refused("40001") as raised:
            Once(old).start(key=key)
        return raised.value.diag

    told = in_threads([attempt, commit_when_it_waits])[0]
    assert key in told.message_detail and told.message_hint
    assert once.start(key=key).response_body == b"late"


def test_a_transaction_with_an_old_snapshot_never_runs_in_a_closed_day(db):
    keep = keeper(db)
    key = old_key(db, 1)
    once = Once(db.connect())
    once.claim(key=key)
    once.fail(key=key, fence=1, retryable=True)
    old = {door: db.connect(isolation="REPEATABLE READ") for door in ("start", "claim", "finish", "receive")}
    for connection in old.values():
        run(connection, "SELECT 1 FROM pg_class LIMIT 1")
    keep.retire("closed")
    for door, connection in old.items():
        for number in (1, 2) if door != "receive" else (2,):
            run(connection, "SAVEPOINT a")
            assert code_at(door, Once(connection), old_key(db, number)) in ("P4041", "P4098", "40001"), (door, number)
            run(connection, "ROLLBACK TO a")
