# SPDX-License-Identifier: PostgreSQL
"""A claim's own retention is counted from its outcome, as the scope's is: whatever came before it, and however late it is told, an answer is
kept for as long as it was promised."""

import pytest

from .calls import Once, run
from .keeping import keeper


def finish_over(once, fence):
    """The attempt failed, and another one does it in its own transaction."""
    once.fail(key="k", fence=fence, retryable=True)
    yield
    assert once.start(key="k").verdict == "proceed"
    once.finish_new(key="k", response_body=b"answer")


def complete_late(once, fence):
    yield
    once.complete(key="k", fence=fence, response_body=b"answer")


def complete_many_late(once, fence):
    yield
    assert once.complete_many(key=["k"], fence=[fence], response_body=[b"answer"])[0].verdict == "stored"


def fail_late(once, fence):
    yield
    once.fail(key="k", fence=fence, retryable=False, response_body=b"answer")


def lift_doubt(once, fence):
    once.fail(key="k", fence=fence, retryable=None)
    yield
    once.complete(key="k", fence=fence, response_body=b"answer")


def resolve_late(once, fence):
    once.fail(key="k", fence=fence, retryable=None)
    yield
    run(once.connection, "SELECT once.resolve('orders', 'k', 'succeeded', 'it happened', response_text => 'answer')")


def take_over_late(once, fence):
    once.fail(key="k", fence=fence, retryable=True)
    yield
    once.complete(key="k", fence=once.claim(key="k").fence, response_body=b"answer")


@pytest.mark.parametrize("way", [finish_over, complete_late, complete_many_late, fail_late, lift_doubt, resolve_late, take_over_late])
def test_an_answer_that_comes_late_is_kept_as_long_as_one_that_comes_at_once(db, way):
    once, keep = Once(db.connect()), keeper(db)
    steps = way(once, once.claim(key="k", retention="1 hour").fence)
    next(steps)
    db.execute("UPDATE once.intent SET created_at = created_at - interval '2 hours', updated_at = updated_at - interval '2 hours',"
               " expires_at = expires_at - interval '2 hours', completed_at = completed_at - interval '2 hours'")  # fmt: skip
    next(steps, None)
    keep.work("purge")
    assert once.peek(key="k").response_body == b"answer"
    kept = "SELECT extract(epoch FROM (s.told ->> 'expires_at')::timestamptz - (s.told ->> 'completed_at')::timestamptz) FROM once.story('orders', 'k') AS s (told)"
    assert db.value(kept) == 3600
    db.execute("UPDATE once.intent SET completed_at = completed_at - interval '61 minutes'")
    keep.work("purge")
    assert once.peek(key="k").verdict == "absent"


def test_a_takeover_with_a_retention_of_its_own_changes_it_and_one_without_does_not(db):
    once = Once(db.connect())
    term = "SELECT extract(epoch FROM expires_at - created_at) FROM once.intent"
    fence = once.claim(key="k", retention="1 hour").fence
    for given, expected in (({}, 3600), ({"retention": "3 hours"}, 10800), ({}, 10800)):
        once.fail(key="k", fence=fence, retryable=True)
        db.execute("UPDATE once.intent SET created_at = created_at - interval '1 day', expires_at = expires_at - interval '1 day'")
        fence = once.claim(key="k", **given).fence
        assert db.value(term) == expected


def test_what_has_no_answer_does_not_expire(db):
    once = Once(db.connect())
    once.claim(key="k", retention="1 hour")
    assert db.value("SELECT once.story('orders', 'k') ->> 'expires_at'") is None
