# SPDX-License-Identifier: PostgreSQL
"""An answer has redirected a request: what it leads to is the same intent, at every door, and nothing else is."""

import pytest

from .calls import OTHER_PRINT, PRINT, Once, let_lease_pass, refused, retire, run, shorten_horizon, uuid7_days_ago

THIRD_PRINT = bytes(range(2, 34))


def redirect(db, report, key="k", to=OTHER_PRINT, given=PRINT):
    """A claimed request is answered by a redirect; which report says so is the caller's."""
    once = Once(db.connect())
    fence = once.claim(key=key, fingerprint=given).fence
    if report == "fail":
        assert once.fail(key=key, fence=fence, retryable=True, redirect=to) is True
    else:
        assert once.fail_many(key=[key], fence=[fence], retryable=[True], redirect=[to])[0].verdict == "stored"
    return fence


def claim(db, fingerprint, door, key="k"):
    """The verdict of a claim, and its fence."""
    once = Once(db.connect())
    if door == "claim":
        answer = once.claim(key=key, fingerprint=fingerprint)
    else:
        answer = once.claim_many(key=[key], fingerprint=[fingerprint])[0]
    return answer.verdict, answer.fence


@pytest.mark.parametrize("door", ["claim", "claim_many"])
@pytest.mark.parametrize("report", ["fail", "fail_many"])
def test_where_a_request_is_redirected_to_the_same_intent_runs_once(db, report, door):
    first = redirect(db, report)
    assert claim(db, OTHER_PRINT, door) == ("retryable_failure", first + 1)
    assert claim(db, PRINT, door)[0] == "processing_active"
    Once(db.connect()).complete(key="k", fence=first + 1, response_status=201, response_body=b"done")
    for given in (PRINT, OTHER_PRINT):
        assert claim(db, given, door)[0] == "replay_success"
        assert Once(db.connect()).try_start(key="k", fingerprint=given).response_body == b"done"
    with refused("P4002"):
        Once(db.connect()).claim(key="k", fingerprint=THIRD_PRINT)
    assert Once(db.connect()).claim_many(key=["k"], fingerprint=[THIRD_PRINT])[0].verdict == "mismatch"
    with refused("P4002"):
        Once(db.connect()).start(key="k", fingerprint=THIRD_PRINT)


@pytest.mark.parametrize("given", [PRINT, OTHER_PRINT])
def test_it_may_run_in_a_transaction_of_the_database(db, given):
    fence = redirect(db, "fail")
    connection = db.connect()
    connection.autocommit = False
    once = Once(connection)
    assert once.start(key="k", fingerprint=given).verdict == "proceed"
    assert once.finish(key="k", fingerprint=given, response_text="done") == b"done"
    connection.commit()
    assert claim(db, PRINT, "claim_many") == ("replay_success", fence + 1)


@pytest.mark.parametrize("retryable", [False, None])
def test_only_what_may_run_again_is_redirected(db, retryable):
    once = Once(db.connect())
    once.fail(key="k", fence=once.claim(key="k").fence, retryable=retryable, redirect=OTHER_PRINT)
    assert Once(db.connect()).claim_many(key=["k"], fingerprint=[OTHER_PRINT])[0].verdict == "mismatch"


def test_a_zombie_redirects_nothing(db):
    once = Once(db.connect())
    zombie = once.claim(key="k").fence
    let_lease_pass(db, "k")
    once.claim(key="k", takeover=True)
    with refused("P4011"):
        once.fail(key="k", fence=zombie, retryable=True, redirect=OTHER_PRINT)
    assert Once(db.connect()).claim_many(key=["k"], fingerprint=[OTHER_PRINT])[0].verdict == "mismatch"


def test_redirects_that_lead_in_circles_are_kept_once_and_a_long_way_ends(db):
    for given, to in ((PRINT, OTHER_PRINT), (OTHER_PRINT, PRINT), (PRINT, PRINT), (PRINT, OTHER_PRINT)):
        redirect(db, "fail_many", to=to, given=given)
    assert db.value("SELECT cardinality(redirects) FROM once.intent WHERE key = 'k'") == 1
    for number in range(30):
        redirect(db, "fail", to=bytes([number]) * 32)
    assert db.value("SELECT cardinality(redirects) FROM once.intent WHERE key = 'k'") == 20
    assert claim(db, bytes([29]) * 32, "claim_many")[0] == "retryable_failure"
    assert Once(db.connect()).claim_many(key=["k"], fingerprint=[bytes([9]) * 32])[0].verdict == "mismatch"


def test_a_redirect_uses_up_no_attempt_twenty_times(db):
    db.execute("SELECT once.set_scope('orders', max_attempts => 1)")
    redirect(db, "fail")
    assert claim(db, OTHER_PRINT, "claim")[0] == "retryable_failure"
    db.execute("DELETE FROM once.intent")
    for number in range(21):
        redirect(db, "fail", to=bytes([number]) * 32)
    assert claim(db, PRINT, "claim_many")[0] == "final_failure"


def test_a_report_that_adds_a_redirect_is_not_the_one_that_was_stored(db):
    once = Once(db.connect())
    fence = once.claim(key="k").fence
    assert once.fail(key="k", fence=fence, retryable=True) is True
    with refused("P4011"):
        once.fail(key="k", fence=fence, retryable=True, redirect=OTHER_PRINT)
    once.connection.rollback()
    assert redirect(db, "fail") == fence + 1
    assert Once(db.connect()).fail(key="k", fence=fence + 1, retryable=True, redirect=OTHER_PRINT) is False


def test_what_is_no_fingerprint_is_refused_and_spoils_no_neighbour(db):
    once = Once(db.connect())
    fences = [once.claim(key=key).fence for key in ("k", "l")]
    with refused("P4003"):
        once.fail(key="k", fence=fences[0], retryable=True, redirect=b"short")
    rows = once.fail_many(key=["k", "l"], fence=fences, retryable=[True, True], redirect=[b"short", OTHER_PRINT])
    assert [(row.verdict, row.refused_code) for row in rows] == [("invalid", "P4003"), ("stored", None)]


def test_late_retries_of_a_retired_day_come_by_either_request_too(db):
    shorten_horizon(db)
    key = uuid7_days_ago(db, 2)
    fence = redirect(db, "fail", key)
    once = Once(db.connect())
    once.complete(key=key, fence=once.claim(key=key, fingerprint=OTHER_PRINT).fence, response_body=b"done")
    assert run(db.connect(), "SELECT fence FROM once.intent WHERE key = %s", key)[0][0] == fence + 1
    db.execute("UPDATE once.intent SET expires_at = clock_timestamp() + interval '90 days' WHERE key = %s", key)
    retire(db, 2)
    for given in (PRINT, OTHER_PRINT):
        assert claim(db, given, "claim", key)[0] == "replay_success"
