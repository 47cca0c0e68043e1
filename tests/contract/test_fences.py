# SPDX-License-Identifier: PostgreSQL
"""An attempt that lost its lease is shut out: its fence is old, and nothing that it reports is stored."""

import pytest

from .calls import Once, code_of, let_lease_pass, refused


def lost_lease(db, key="k"):
    """A zombie's fence, and the fence of its successor, which is at work."""
    once = Once(db.connect())
    zombie = once.claim(key=key, owner="zombie").fence
    let_lease_pass(db, key)
    taken = once.claim(key=key, owner="successor")
    assert (taken.verdict, taken.fence, taken.attempts) == ("processing_stale", zombie + 1, 2)
    return zombie, taken.fence


def row_of(db, key="k"):
    return db.row("SELECT * FROM once.intent WHERE key = %s", key)


def test_an_attempt_that_lost_its_lease_cannot_complete(db):
    zombie, successor = lost_lease(db)
    before = row_of(db)
    with refused("P4010") as caught:
        Once(db.connect()).complete(key="k", fence=zombie, response_body=b"zombie")
    assert f"the intent is processing under fence {successor}, the attempt has fence {zombie}" in caught.value.diag.message_detail
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
    assert f"under fence {successor}, the attempt has fence {zombie}" in caught.value.diag.message_detail
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
    again = once.claim(key="k")
    assert (again.verdict, again.fence, again.attempts) == ("processing_stale", successor + 1, 2)
    assert once.release(key="k", fence=again.fence) is True
    assert once.claim_many(key=["k"])[0].verdict == "processing_stale"  # however often
    with refused("P4010"):
        once.complete(key="k", fence=zombie)


def test_a_released_takeover_is_in_doubt_where_the_attempts_are_used_up(db):
    once = Once(db.connect())
    db.execute("SELECT once.set_scope('orders', max_attempts => 1)")
    once.claim(key="k")
    let_lease_pass(db, "k")
    db.execute("SELECT once.set_scope('orders', max_attempts => 2)")
    assert once.release(key="k", fence=once.claim(key="k").fence) is True
    db.execute("SELECT once.set_scope('orders', max_attempts => 1)")
    assert once.claim(key="k").verdict == "in_doubt"


def test_an_attempt_after_a_released_takeover_that_reports_ends_the_doubt(db):
    once = Once(db.connect())
    _, successor = lost_lease(db)
    once.release(key="k", fence=successor)
    once.fail(key="k", fence=once.claim(key="k").fence, retryable=True)
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


def test_a_begin_over_a_stale_attempt_shuts_out_the_zombie(db):
    once = Once(db.connect())
    zombie = once.claim(key="k").fence
    let_lease_pass(db, "k")
    assert once.begin(key="k").fence == zombie + 1
    once.finish(key="k", response_body=b"begun")
    with refused("P4010"):
        once.complete(key="k", fence=zombie, response_body=b"zombie")
    assert (once.peek(key="k").fence, once.peek(key="k").response_body) == (zombie + 1, b"begun")


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
        once.begin(key="k")
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


def test_a_completion_that_races_a_takeover_ends_in_exactly_one_of_the_two(db):
    """The zombie reports while its successor's claim is uncommitted: it waits for that one short transaction, and is
    then refused."""
    once = Once(db.connect())
    zombie = once.claim(key="k").fence
    let_lease_pass(db, "k")
    successor = db.connect(isolation="READ COMMITTED")
    taken = Once(successor).claim(key="k")
    late = db.connect(lock_timeout="300ms")
    assert code_of(lambda: Once(late).complete(key="k", fence=zombie)) in ("55P03", "P4010")
    successor.commit()
    with refused("P4010"):
        once.complete(key="k", fence=zombie)
    assert once.complete(key="k", fence=taken.fence) is True
