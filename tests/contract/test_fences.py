# SPDX-License-Identifier: PostgreSQL
"""An attempt that lost its lease is shut out: its fence is old, and nothing that it reports is stored."""

import pytest

from .calls import LEVELS, PRINT, Once, allow_takeover, code_of, let_lease_pass, now_ms, refused, run, uuid7
from .keeping import expire, keeper


def lost_lease(db, key="k"):
    """A zombie's fence, and the fence of its successor, which is at work."""
    once = Once(db.connect())
    zombie = once.claim(key=key, owner="zombie").fence
    let_lease_pass(db, key)
    taken = once.claim(key=key, owner="successor", takeover=True)
    assert (taken.verdict, taken.fence, taken.attempts) == ("processing_stale", zombie + 1, 2)
    return zombie, taken.fence


def row_of(db, key="k"):
    return db.row("SELECT * FROM once.intent WHERE key = %s", key)


def test_an_attempt_that_lost_its_lease_cannot_complete(db):
    zombie, successor = lost_lease(db)
    before = row_of(db)
    with refused("P4010") as caught:
        Once(db.connect()).complete(key="k", fence=zombie, response_body=b"zombie")
    assert f"the intent is processing under fence {successor}; the attempt has fence {zombie}" in caught.value.diag.message_detail
    assert Once(db.connect()).complete_many(key=["k"], fence=[zombie])[0].verdict == "refused"
    assert row_of(db) == before
    assert Once(db.connect()).complete(key="k", fence=successor, response_body=b"successor") is True
    with refused("P4010"):
        Once(db.connect()).complete(key="k", fence=zombie, response_body=b"zombie")
    assert Once(db.connect()).peek(key="k").response_body == b"successor"


@pytest.mark.parametrize("retryable", [True, False, None])
def test_an_attempt_that_lost_its_lease_cannot_fail(db, retryable):
    zombie, successor = lost_lease(db)
    before = row_of(db)
    with refused("P4011") as caught:
        Once(db.connect()).fail(key="k", fence=zombie, retryable=retryable)
    assert f"under fence {successor}; the attempt has fence {zombie}" in caught.value.diag.message_detail
    assert Once(db.connect()).fail_many(key=["k"], fence=[zombie], retryable=[retryable])[0].verdict == "refused"
    assert row_of(db) == before


def test_an_attempt_that_lost_its_lease_cannot_renew(db):
    zombie, _ = lost_lease(db)
    before = row_of(db)
    assert Once(db.connect()).renew(key="k", fence=zombie, lease="1 hour") is False
    assert Once(db.connect()).renew_many(key=["k"], fence=[zombie], lease="1 hour")[0].renewed is False
    assert row_of(db) == before


def test_an_attempt_that_lost_its_lease_cannot_release(db):
    zombie, _ = lost_lease(db)
    before = row_of(db)
    assert Once(db.connect()).release(key="k", fence=zombie) is False
    assert row_of(db) == before


def test_a_released_takeover_leaves_the_silent_attempt_as_unknown_as_it_was(db):
    """Its own work never started; that of the one before it may have."""
    once = Once(db.connect())
    zombie, successor = lost_lease(db)
    assert once.release(key="k", fence=successor) is True
    assert (once.peek(key="k").state, row_of(db).attempts) == ("processing", 1)
    again = once.claim(key="k", takeover=True)
    assert (again.verdict, again.fence, again.attempts) == ("processing_stale", successor + 1, 2)
    assert once.release(key="k", fence=again.fence) is True
    assert once.claim_many(key=["k"], takeover=True)[0].verdict == "processing_stale"  # however often
    with refused("P4010"):
        once.complete(key="k", fence=zombie)


def test_a_released_takeover_is_in_doubt_where_the_attempts_are_used_up(db):
    once = Once(db.connect())
    db.execute("SELECT once.set_scope('orders', max_attempts => 1)")
    once.claim(key="k")
    let_lease_pass(db, "k")
    db.execute("SELECT once.set_scope('orders', max_attempts => 2)")
    assert once.release(key="k", fence=once.claim(key="k", takeover=True).fence) is True
    db.execute("SELECT once.set_scope('orders', max_attempts => 1)")
    assert once.claim(key="k").verdict == "in_doubt"


def test_an_attempt_after_a_released_takeover_that_reports_ends_the_doubt(db):
    once = Once(db.connect())
    _, successor = lost_lease(db)
    once.release(key="k", fence=successor)
    once.fail(key="k", fence=once.claim(key="k", takeover=True).fence, retryable=True)
    again = once.claim(key="k")
    assert again.verdict == "retryable_failure"
    assert once.release(key="k", fence=again.fence) is True
    assert once.claim(key="k").verdict == "retryable_failure"


def test_a_release_and_a_new_claim_shut_out_the_zombie(db):
    once = Once(db.connect())
    zombie = once.claim(key="k").fence
    assert once.release(key="k", fence=zombie) is True
    for call in (
        lambda: once.complete(key="k", fence=zombie),
        lambda: once.fail(key="k", fence=zombie, retryable=True),
    ):
        assert code_of(call) in ("P4010", "P4011")  # already before anybody claims anew
    taken = once.claim(key="k")
    assert (taken.verdict, taken.fence) == ("retryable_failure", zombie + 1)
    assert taken.attempts == 1  # work that never started is not counted
    with refused("P4010"):
        once.complete(key="k", fence=zombie)
    assert once.renew(key="k", fence=zombie) is False
    assert once.release(key="k", fence=zombie) is False


def test_a_start_over_a_stale_attempt_shuts_out_the_zombie(db):
    once = Once(db.connect())
    zombie = once.claim(key="k").fence
    allow_takeover(db)
    let_lease_pass(db, "k")
    assert once.start(key="k").fence == zombie + 1
    once.finish_new(key="k", response_body=b"started")
    with refused("P4010"):
        once.complete(key="k", fence=zombie, response_body=b"zombie")
    assert (once.peek(key="k").fence, once.peek(key="k").response_body) == (zombie + 1, b"started")


def test_an_operators_decision_shuts_out_the_zombie(db):
    once = Once(db.connect())
    zombie = once.claim(key="k").fence
    let_lease_pass(db, "k")
    assert once.resolve(key="k", as_state="failed_retryable") == "processing"
    with refused("P4010"):
        once.complete(key="k", fence=zombie)
    assert once.claim(key="k").fence == zombie + 2
    with refused("P4010"):
        once.complete(key="k", fence=zombie)


def test_a_lease_that_passed_is_still_the_attempts_own_until_somebody_takes_over(db):
    once = Once(db.connect())
    for key, report in (
        ("complete", lambda f: once.complete(key="complete", fence=f)),
        ("renew", lambda f: once.renew(key="renew", fence=f)),
        ("fail", lambda f: once.fail(key="fail", fence=f, retryable=True)),
        ("release", lambda f: once.release(key="release", fence=f)),
    ):
        fence = once.claim(key=key).fence
        let_lease_pass(db, key)
        assert report(fence) is True, key


def test_a_renewed_lease_keeps_others_out(db):
    once = Once(db.connect())
    fence = once.claim(key="k", lease="1 second").fence
    let_lease_pass(db, "k")
    assert once.renew(key="k", fence=fence, lease="1 hour") is True
    assert once.claim(key="k").verdict == "processing_active"
    with refused("P4029"):
        once.start(key="k")
    assert db.value("SELECT lease_until > clock_timestamp() + interval '59 minutes' FROM once.intent")


def test_a_completion_sent_twice_is_stored_once_and_told_so(db):
    once = Once(db.connect())
    fence = once.claim(key="k").fence
    outcome = dict(key="k", fence=fence, response_status=200, response_body=b"a", response_headers='{"a": 1}')
    assert once.complete(**outcome) is True
    before = row_of(db)
    assert once.complete(**outcome) is False
    many = once.complete_many(
        key=["k"], fence=[fence], response_status=[200], response_body=[b"a"], response_headers=['{"a": 1}']
    )
    assert many[0].verdict == "repeated"
    assert row_of(db) == before


@pytest.mark.parametrize("retryable", [True, False, None])
def test_a_failure_sent_twice_is_stored_once_and_told_so(db, retryable):
    once = Once(db.connect())
    fence = once.claim(key="k").fence
    failure = dict(key="k", fence=fence, retryable=retryable, error_code="card_declined", error_message="no")
    assert once.fail(**failure) is True
    before = row_of(db)
    assert once.fail(**failure) is False
    many = once.fail_many(
        key=["k"], fence=[fence], retryable=[retryable], error_code=["card_declined"], error_message=["no"]
    )
    assert many[0].verdict == "repeated"
    assert row_of(db) == before


@pytest.mark.parametrize(
    "other",
    [
        {"response_body": b"b"},
        {"response_status": 201},
        {"response_headers": '{"a": 2}'},
        {"result_type": "refund"},
        {"result_id": "8"},
    ],
)
def test_a_second_completion_with_another_outcome_is_refused(db, other):
    once = Once(db.connect())
    fence = once.claim(key="k").fence
    outcome = dict(
        key="k",
        fence=fence,
        response_status=200,
        response_body=b"a",
        response_headers='{"a": 1}',
        result_type="order",
        result_id="7",
    )
    once.complete(**outcome)
    with refused("P4010"):
        once.complete(**{**outcome, **other})


def test_a_fence_from_the_future_or_none_holds_nothing(db):
    once = Once(db.connect())
    once.claim(key="k")
    for fence in (0, 2, -1, 2**31 - 1, None):
        assert code_of(lambda: once.complete(key="k", fence=fence)) == "P4010"
        assert code_of(lambda: once.fail(key="k", fence=fence, retryable=True)) == "P4011"
        assert once.renew(key="k", fence=fence) is False
        assert once.release(key="k", fence=fence) is False


def test_nobody_can_report_on_an_intent_that_does_not_exist(db):
    once = Once(db.connect())
    assert code_of(lambda: once.complete(key="k", fence=1)) == "P4010"
    assert code_of(lambda: once.fail(key="k", fence=1, retryable=True)) == "P4011"
    assert once.renew(key="k", fence=1) is False
    assert once.release(key="k", fence=1) is False
    assert db.value("SELECT count(*) FROM once.intent") == 0


def test_the_attempt_that_is_in_doubt_may_still_report_what_it_knows(db):
    once = Once(db.connect())
    fence = once.claim(key="k").fence
    once.fail(key="k", fence=fence, retryable=None)
    assert once.claim(key="k").verdict == "in_doubt"
    assert once.complete(key="k", fence=fence, response_body=b"it happened") is True
    assert once.claim(key="k").response_body == b"it happened"


@pytest.mark.parametrize("noted", [False, True])
def test_a_completion_that_races_a_takeover_ends_in_exactly_one_of_the_two(db, noted):
    """The zombie reports while its successor's claim is uncommitted: it waits for that one short transaction, and is
    then refused."""
    once = Once(db.connect())
    zombie = once.claim(key="k").fence
    let_lease_pass(db, "k")
    if noted:
        assert once.claim(key="k").verdict == "in_doubt"
    successor = db.connect(isolation="READ COMMITTED")
    taken = Once(successor).claim(key="k", takeover=True)
    late = db.connect(lock_timeout="300ms")
    assert code_of(lambda: Once(late).complete(key="k", fence=zombie)) in ("55P03", "P4010")
    successor.commit()
    with refused("P4010"):
        once.complete(key="k", fence=zombie)
    assert once.complete(key="k", fence=taken.fence) is True


@pytest.mark.parametrize("noted", [False, True])
def test_a_takeover_that_meets_an_open_report_does_not_run(db, noted):
    once = Once(db.connect())
    zombie = once.claim(key="k").fence
    let_lease_pass(db, "k")
    if noted:
        assert once.claim(key="k").verdict == "in_doubt"
    reporting = db.connect(isolation="READ COMMITTED")
    assert Once(reporting).complete(key="k", fence=zombie) is True
    assert once.claim(key="k", takeover=True).verdict == "processing_active"
    reporting.rollback()
    assert once.claim(key="k", takeover=True).verdict == "processing_stale"


def test_a_completion_that_races_a_doubt_ends_it(db):
    """It waits for the claim that notes the doubt, which is one short transaction; and is stored: the attempt itself knows."""
    once = Once(db.connect())
    late = once.claim(key="k").fence
    let_lease_pass(db, "k")
    doubting = db.connect(isolation="READ COMMITTED")
    assert Once(doubting).claim(key="k").verdict == "in_doubt"
    assert code_of(lambda: Once(db.connect(lock_timeout="300ms")).complete(key="k", fence=late)) == "55P03"
    doubting.commit()
    assert once.complete(key="k", fence=late, response_body=b"late") is True
    assert once.claim(key="k").response_body == b"late"


def test_a_claim_notes_no_doubt_where_the_report_is_under_way(db):
    once = Once(db.connect())
    late = once.claim(key="k").fence
    let_lease_pass(db, "k")
    reporting = db.connect(isolation="READ COMMITTED")
    assert Once(reporting).complete(key="k", fence=late) is True
    assert once.claim(key="k").verdict == once.claim_many(key=["k"])[0].verdict == "processing_active"
    assert not [row for row in db.rows("SELECT * FROM once.recover()") if row.key]
    reporting.commit()
    assert once.claim(key="k").verdict == "replay_success"


# ---- a key that was forgotten, and comes again ----


def forget(db, key):
    """Its retention passes, and a keeper works."""
    expire(db, key)
    keeper(db).work("purge")
    assert db.rows("SELECT FROM once.intent WHERE key = %s", key) == []
    db.execute("DELETE FROM once.keeper_step")  # which rests after a pass


def taken_over_and_forgotten(db, key="k"):
    """The fences of a zombie and of its successor, whose failure is forgotten."""
    zombie, successor = lost_lease(db, key)
    Once(db.connect()).fail(key=key, fence=successor, retryable=True)
    forget(db, key)
    return zombie, successor


def start_and_finish(once, key):
    run(once.connection, "BEGIN")
    fence = once.start(key=key).fence
    once.finish(key=key)
    run(once.connection, "COMMIT")
    return fence


DOORS = {
    "claim": lambda once, key: once.claim(key=key).fence,
    "claim_many": lambda once, key: once.claim_many(key=["other", key])[1].fence,
    "start, finish": start_and_finish,
    "finish_new": lambda once, key: once.finish_new(key=key),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_key_that_was_forgotten_comes_again_under_a_higher_fence(db, door):
    before = taken_over_and_forgotten(db)
    told = DOORS[door](Once(db.connect()), "k")
    assert told == row_of(db).fence == max(before) + 1


@pytest.mark.parametrize("door", ["receive", "receive_many"])
def test_a_key_that_was_forgotten_is_received_under_a_higher_fence(db, door):
    before = taken_over_and_forgotten(db)
    if door == "receive":
        Once(db.connect()).receive(consumer="orders", message_id="k")
    else:
        run(db.connect(), "SELECT once.receive_many('orders', ARRAY['other', 'k'], NULL, %s)", [PRINT, PRINT])
    assert row_of(db).fence == max(before) + 1


def test_finish_stores_the_fence_that_start_gave_though_others_are_forgotten_in_between(db):
    _, successor = lost_lease(db, "other")
    Once(db.connect()).fail(key="other", fence=successor, retryable=True)
    once = Once(db.connect())
    run(once.connection, "BEGIN")
    fence = once.start(key="k").fence
    forget(db, "other")
    once.finish(key="k")
    run(once.connection, "COMMIT")
    assert row_of(db).fence == fence


def test_a_late_report_is_not_taken_for_that_of_the_key_that_came_again(db):
    once = Once(db.connect())
    for fence in taken_over_and_forgotten(db):
        again = once.claim(key="k")
        assert again.verdict == "new_claim"
        before = row_of(db)
        for report in (
            lambda: once.complete(key="k", fence=fence, response_body=b"zombie"),
            lambda: once.fail(key="k", fence=fence, retryable=False),
        ):
            assert code_of(report) in ("P4010", "P4011")
        assert once.renew(key="k", fence=fence) is once.release(key="k", fence=fence) is False
        assert row_of(db) == before
        assert once.release(key="k", fence=again.fence) is True
        forget(db, "k")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("door", DOORS)
def test_a_snapshot_from_before_the_key_was_known_hides_no_fence(db, level, door):
    late = db.connect()
    run(late, f"BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM once.intent, once.setting, once.fence_floor_seq")
    before = taken_over_and_forgotten(db)
    assert DOORS[door](Once(late), "k") > max(before)


def test_nobody_begins_a_key_while_it_is_being_forgotten(db):
    """The purge holds its lock until the deletion is committed, and the fence with it is known before."""
    late = db.connect(isolation="REPEATABLE READ")
    run(late, "SELECT count(*) FROM once.intent")
    zombie, successor = lost_lease(db)
    Once(db.connect()).fail(key="k", fence=successor, retryable=True)
    expire(db, "k")
    working = keeper(db)
    run(working.connection, "BEGIN")
    working.work("purge")
    assert code_of(lambda: Once(late).start(key="k")) == "P4029"  # though it sees nothing
    other = Once(db.connect(lock_timeout="1s"))
    assert other.claim(key="k").verdict == "processing_active"
    assert code_of(lambda: other.start(key="k")) == code_of(lambda: other.finish_new(key="k")) == "P4029"
    run(working.connection, "COMMIT")
    assert other.claim(key="k").fence == successor + 1 > zombie


def test_a_purge_that_is_rolled_back_leaves_its_intents_under_their_fences(db):
    _, successor = lost_lease(db)
    Once(db.connect()).fail(key="k", fence=successor, retryable=True)
    expire(db, "k")
    working = keeper(db)
    run(working.connection, "BEGIN")
    working.work("purge")
    run(working.connection, "ROLLBACK")
    assert Once(db.connect()).claim(key="k").fence == successor + 1
    assert Once(db.connect()).claim(key="other").fence > successor  # what the purge has counted stays counted


def test_keys_that_carry_their_day_begin_at_one(db):
    """They never come again: nothing is looked up for them."""
    taken_over_and_forgotten(db)
    for number, (name, door) in enumerate(DOORS.items()):
        assert door(Once(db.connect()), uuid7(now_ms(db), number)) == 1, name


def test_the_highest_fence_counts_whatever_is_forgotten_after_it(db):
    for n in range(3):
        Once(db.connect()).receive(message_id=f"m{n}")
    _, high = taken_over_and_forgotten(db, "high")
    db.execute("UPDATE once.intent SET completed_at = completed_at - interval '8 days', created_at = created_at - interval '8 days'")
    keeper(db).work("purge")
    assert db.value("SELECT count(*) FROM once.intent") == 0
    assert Once(db.connect()).claim(key="high").fence == high + 1
