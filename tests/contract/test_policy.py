# SPDX-License-Identifier: PostgreSQL
"""The policy of a scope: lease, retention, attempts, and what becomes of an attempt that fell silent."""

import pytest

from .calls import Once, allow_takeover, code_of, let_lease_pass, refused
from .keeping import keeper
from .test_keep_rest import make_verify, says


def policy(db, text, scope="orders"):
    return db.row(f"SELECT * FROM once.set_scope('{scope}', {text})")


def verify_function(db, answer, body="NULL"):
    """A verify function that gives this answer and counts its calls."""
    db.execute("CREATE SEQUENCE IF NOT EXISTS public.asked")
    db.execute(
        "CREATE OR REPLACE FUNCTION public.ask(tenant text, scope text, key text) RETURNS once.verification LANGUAGE"
        f" sql AS $$ SELECT nextval('public.asked'); SELECT {answer}, 201, {body}::bytea, '{{\"a\": 1}}'::jsonb,"
        " 'order', key $$"
    )
    policy(db, "verify => 'public.ask'")


def stale(db, key="k"):
    Once(db.connect()).claim(key=key)
    let_lease_pass(db, key)


def test_a_scope_without_a_policy_has_the_default(db):
    Once(db.connect()).claim(key="k")
    assert db.value("SELECT lease_until - updated_at = interval '60 seconds' FROM once.intent")
    policy(db, "lease => '5 minutes'", "")
    Once(db.connect()).claim(key="k2")
    assert db.value("SELECT lease_until - updated_at = interval '5 minutes' FROM once.intent WHERE key = 'k2'")
    policy(db, "lease => '7 seconds'")
    Once(db.connect()).claim_many(key=["k3"])
    assert db.value("SELECT lease_until - updated_at = interval '7 seconds' FROM once.intent WHERE key = 'k3'")
    Once(db.connect()).claim(key="k4", lease="9 seconds")
    assert db.value("SELECT lease_until - updated_at = interval '9 seconds' FROM once.intent WHERE key = 'k4'")


def test_what_set_scope_leaves_out_stays_or_comes_from_the_default(db):
    policy(db, "lease => '5 minutes', max_attempts => 9", "")
    first = policy(db, "retention => '2 days'")
    assert (first.scope, str(first.lease), first.retention.days, first.max_attempts, first.on_stale) == (
        "orders",
        "0:05:00",
        2,
        9,
        "in_doubt",
    )
    second = policy(db, "max_attempts => 0, on_stale => 'takeover'")
    assert (second.retention.days, second.max_attempts, second.on_stale) == (2, None, "takeover")
    assert db.value("SELECT count(*) FROM once.scope WHERE scope = 'orders'") == 1


@pytest.mark.parametrize(
    "wrong, codes",
    [
        ("lease => '0'", ("23514",)),
        ("lease => '8 days'", ("23514",)),
        ("lease => '-12 months 361 days'", ("23514",)),  # as if a month had 30 days, it is one day
        ("lease => '1 month -22 days -12 hours'", ("23514",)),
        ("retention => '-1 day'", ("23514",)),
        ("retention => '-12 months 361 days'", ("23514",)),
        ("retention => '101 years'", ("23514",)),
        ("retention => '300000 years'", ("23514",)),
        ("max_attempts => -1", ("23514",)),
        ("on_stale => 'guess'", ("23514",)),
        ("on_stale => 'verify'", ("23514", "22023")),
        ("response_bytes_max => 100", ("23514",)),
        ("response_bytes_max => 67108865", ("23514",)),
        ("verify => 'public.none'", ("42883",)),
        ("verify => 'public.wrong'", ("42P13",)),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_and_the_old_one_stays(db, wrong, codes):
    db.execute("CREATE FUNCTION public.wrong(text, text, text) RETURNS text LANGUAGE sql AS 'SELECT $1'")
    policy(db, "lease => '5 minutes'")
    before = db.rows("SELECT * FROM once.scope ORDER BY scope")
    with refused(*codes):
        policy(db, wrong)
    assert db.rows("SELECT * FROM once.scope ORDER BY scope") == before
    for scope in ("NULL", "repeat('s', 256)"):
        assert code_of(lambda: db.execute(f"SELECT once.set_scope({scope})")) == "P4000"
    for control in ("\x01", "\n", "\x1e", "\x1f", "\x7f"):
        assert code_of(lambda: db.execute("SELECT once.set_scope(%s)", f"a{control}b")) == "P4000"
    assert db.rows("SELECT * FROM once.scope ORDER BY scope") == before
    db.execute("SELECT once.set_scope('a b~ö')")


def test_the_default_policy_cannot_be_lost(db):
    policy(db, "lease => '1 hour'", "")
    assert db.value("SELECT count(*) FROM once.scope WHERE scope = ''") == 1


def recover(db, key):
    return {row.key: row.decided for row in db.rows("SELECT * FROM once.recover()")}[key]


@pytest.mark.parametrize("door", ["claim", "claim_many", "recover", "sweep", "start"])
def test_an_attempt_that_fell_silent_is_in_doubt_and_nothing_runs_again(db, door):
    """Nobody has set anything."""
    stale(db)
    once = Once(db.connect())
    keep = keeper(db)
    if door == "start":
        with refused("P4031"):
            once.start(key="k")
        assert once.try_start(key="k").verdict == "in_doubt"
    else:
        said = {
            "claim": lambda: once.claim(key="k").verdict,
            "claim_many": lambda: once.claim_many(key=["k"])[0].verdict,
            "recover": lambda: recover(db, "k"),
            "sweep": lambda: keep.work("sweep") and once.peek(key="k").verdict,
        }[door]()
        assert (said, once.peek(key="k").state, once.peek(key="k").error_code) == ("in_doubt", "in_doubt", "stale")
        assert once.claim(key="k").verdict == once.claim_many(key=["k"])[0].verdict == "in_doubt"
    assert once.complete(key="k", fence=1, response_text="late") is True  # only the attempt itself knows
    assert once.start(key="k").response_body == b"late"


def test_takeover_runs_again_under_the_next_fence(db):
    allow_takeover(db)
    stale(db)
    row = Once(db.connect()).claim(key="k", owner="second")
    assert (row.verdict, row.fence, row.attempts, row.state) == ("processing_stale", 2, 2, "processing")


def claimed(door, db, **arguments):
    """A claim of k through this door."""
    once = Once(db.connect())
    return once.claim(key="k", **arguments) if door == "claim" else once.claim_many(key=["k"], **arguments)[0]


DOORS = pytest.mark.parametrize("door", ["claim", "claim_many"])


@DOORS
def test_a_claim_that_must_not_take_over_leaves_a_doubt(db, door):
    allow_takeover(db)
    stale(db)
    for takeover in (False, None, False):  # once it is in doubt, a policy takes nothing over
        row = claimed(door, db, takeover=takeover)
        assert (row.verdict, row.fence, row.state) == ("in_doubt", 1, "in_doubt")
    assert Once(db.connect()).complete(key="k", fence=1) is True  # it was at work all the time


@DOORS
@pytest.mark.parametrize("noted", [False, True])
def test_a_claim_whose_work_is_safe_to_repeat_takes_over_from_silence_whoever_has_noted_it(db, door, noted):
    stale(db)
    if noted:
        assert recover(db, "k") == "in_doubt"
    row = claimed(door, db, takeover=True, owner="second")
    assert (row.verdict, row.fence, row.attempts, row.state, row.error_message) == ("processing_stale", 2, 2, "processing", None)
    assert claimed(door, db, takeover=True).verdict == "processing_active"
    with refused("P4010"):
        Once(db.connect()).complete(key="k", fence=1)
    assert Once(db.connect()).complete(key="k", fence=2) is True


@DOORS
@pytest.mark.parametrize("outcome", [{}, {"response_status": 500}])
def test_no_claim_takes_over_from_a_doubt_that_was_reported(db, door, outcome):
    doubtful(db, error_code="stale", **outcome)
    for _ in range(2):
        row = claimed(door, db, takeover=True)
        assert (row.verdict, row.fence, row.state) == ("in_doubt", 1, "in_doubt")
        let_lease_pass(db, "k")


@DOORS
@pytest.mark.parametrize("noted", [False, True])
def test_no_claim_takes_over_when_the_attempts_are_used_up(db, door, noted):
    policy(db, "max_attempts => 1")
    stale(db)
    if noted:
        assert recover(db, "k") == "in_doubt"
    assert claimed(door, db, takeover=True).verdict == "in_doubt"


@pytest.mark.parametrize("takeover", [False, True])
@pytest.mark.parametrize("answer, verdict", [("absent", "retryable_failure"), ("happened", "replay_success"), ("unknown", "in_doubt")])
def test_a_claim_believes_a_verify_function_whatever_it_says_of_takeovers(db, answer, verdict, takeover):
    make_verify(db, answer, says(answer))
    Once(db.connect()).claim(key="k", scope=answer)
    let_lease_pass(db, "k")
    for _ in range(2 if answer == "unknown" else 1):
        assert Once(db.connect()).claim(key="k", scope=answer, takeover=takeover).verdict == verdict


def test_in_doubt_lets_no_attempt_run_until_it_is_resolved(db):
    policy(db, "on_stale => 'in_doubt'")
    stale(db)
    once = Once(db.connect())
    with refused("P4031"):
        once.start(key="k")
    for _ in range(2):
        row = once.claim(key="k")
        assert (row.verdict, row.state, row.error_code) == ("in_doubt", "in_doubt", "stale")
    with refused("P4031"):
        once.start(key="k")
    assert once.resolve(key="k", as_state="failed_retryable", reason="the provider has no such payment") == "in_doubt"
    assert once.start(key="k").verdict == "proceed"
    decision = db.row("SELECT * FROM once.decision WHERE kind = 'resolve'")
    assert (decision.decided_by, decision.reason, decision.from_state, decision.to_state) == (
        "postgres",
        "the provider has no such payment",
        "in_doubt",
        "failed_retryable",
    )


def test_verify_happened_replays_the_outcome_that_it_found_at_every_door(db):
    verify_function(db, "'happened'", "'\\x6f6b00'")
    for door in ("start", "claim", "claim_many"):
        stale(db, door)
        once = Once(db.connect())
        row = {
            "start": lambda: once.start(key=door),
            "claim": lambda: once.claim(key=door),
            "claim_many": lambda: once.claim_many(key=[door])[0],
        }[door]()
        assert row.verdict == "replay_success"
        assert (
            row.state,
            row.response_status,
            row.response_headers,
            row.response_body,
            row.result_type,
            row.result_id,
        ) == ("succeeded", 201, {"a": 1}, b"ok\0", "order", door)
        again = once.start(key=door)
        assert (again.verdict, again.response_body) == ("replay_success", b"ok\0")
    assert db.value("SELECT last_value FROM public.asked") == 3  # never asked twice
    assert db.value("SELECT count(*) FROM once.decision WHERE reason LIKE 'verify%%'") == 3


def test_verify_absent_lets_the_next_attempt_run(db):
    verify_function(db, "'absent'")
    stale(db, "a"), stale(db, "b")
    row = Once(db.connect()).claim(key="a")
    assert (row.verdict, row.fence, row.attempts) == ("retryable_failure", 2, 2)
    assert Once(db.connect()).start(key="b").verdict == "proceed"


def test_a_takeover_tells_a_silent_attempt_from_one_that_certainly_had_no_effect(db):
    once = Once(db.connect())
    stale(db, "silent")
    once.claim(key="failed")
    once.fail(key="failed", fence=1, retryable=True)
    verify_function(db, "'absent'")
    stale(db, "absent")
    policy(db, "on_stale => 'takeover'")
    assert once.claim(key="silent").verdict == "processing_stale"
    assert once.claim(key="failed").verdict == "retryable_failure"
    policy(db, "verify => 'public.ask'")
    assert once.claim_many(key=["absent"])[0].verdict == "retryable_failure"


@pytest.mark.parametrize("answer", ["'unknown'", "NULL", "'perhaps'", "''"])
def test_verify_unknown_or_anything_else_is_in_doubt(db, answer):
    verify_function(db, answer)
    stale(db)
    with refused("P4031"):
        Once(db.connect()).start(key="k")
    row = Once(db.connect()).claim(key="k")
    assert (row.verdict, row.state) == ("in_doubt", "in_doubt")


def doubtful(db, key="k", error_code="lost", **outcome):
    once = Once(db.connect())
    once.claim(key=key)
    once.fail(key=key, fence=1, retryable=None, error_code=error_code, **outcome)


def claims(db, key):
    """A claim through each door."""
    return {
        "claim": lambda: Once(db.connect()).claim(key=key),
        "claim_many": lambda: Once(db.connect()).claim_many(key=[key])[0],
    }


@pytest.mark.parametrize("door", ["claim", "claim_many"])
def test_a_claim_asks_verify_of_what_is_in_doubt(db, door):
    verify_function(db, "'happened'", "'\\x6f6b00'")
    doubtful(db, "happened", response_status=500)
    row = claims(db, "happened")[door]()
    assert (row.verdict, row.state, row.response_status, row.response_body, row.error_code) == ("replay_success", "succeeded", 201, b"ok\0", None)
    assert claims(db, "happened")[door]().verdict == "replay_success"
    assert db.value("SELECT last_value FROM public.asked") == 1
    verify_function(db, "'absent'")
    doubtful(db, "absent", response_status=500)
    row = claims(db, "absent")[door]()
    assert (row.verdict, row.state, row.fence, row.attempts) == ("retryable_failure", "processing", 2, 2)
    verify_function(db, "'unknown'")
    doubtful(db, "unknown", response_status=500)
    for _ in range(2):
        row = claims(db, "unknown")[door]()
        assert (row.verdict, row.state, row.fence, row.response_status, row.error_code) == ("in_doubt", "in_doubt", 1, 500, "lost")
    assert [tuple(row) for row in db.rows("SELECT key, from_state, to_state, kind FROM once.decision ORDER BY 1")] == [
        ("absent", "in_doubt", "processing", "takeover"),
        ("happened", "in_doubt", "succeeded", "verify"),
    ]


@pytest.mark.parametrize("door", ["claim", "claim_many"])
def test_a_doubt_without_an_answer_keeps_its_lease_and_is_verified_after_it(db, door):
    verify_function(db, "'happened'")
    doubtful(db)
    for state in ("unasked", "asked"):
        row = claims(db, "k")[door]()
        assert row.verdict == ("in_doubt" if state == "unasked" else "replay_success")
        let_lease_pass(db, "k")
    assert db.value("SELECT last_value FROM public.asked") == 1


def test_a_doubt_stays_where_verify_says_absent_and_attempts_are_used_up(db):
    verify_function(db, "'absent'")
    policy(db, "max_attempts => 1")
    doubtful(db, response_status=500)
    assert Once(db.connect()).claim(key="k").verdict == "in_doubt"
    assert db.value("SELECT error_code FROM once.intent") == "lost"


def test_a_verify_function_that_raises_about_a_doubt_spoils_no_other_claim_of_its_batch(db):
    db.execute(
        "CREATE FUNCTION public.down(text, text, text) RETURNS once.verification LANGUAGE plpgsql AS $$BEGIN RAISE"
        " EXCEPTION 'down'; END$$"
    )
    policy(db, "verify => 'public.down'")
    doubtful(db, response_status=500)
    before = db.rows("SELECT * FROM once.intent")
    rows = Once(db.connect()).claim_many(key=["k", "other"])
    assert [row.verdict for row in rows] == ["in_doubt", "new_claim"]
    assert db.rows("SELECT * FROM once.intent WHERE key = 'k'") == before


def test_the_attempt_itself_may_end_a_doubt_until_a_claim_has_taken_it_over(db):
    verify_function(db, "'absent'")
    doubtful(db, response_status=500)
    Once(db.connect()).claim(key="k")
    with refused("P4010"):
        Once(db.connect()).complete(key="k", fence=1)


def test_verify_is_not_asked_about_a_live_or_finished_intent(db):
    verify_function(db, "'happened'")
    once = Once(db.connect())
    once.claim(key="live")
    once.finish_new(key="done")
    assert once.claim(key="live").verdict == "processing_active"
    assert once.claim(key="done").verdict == "replay_success"
    once.peek(key="live")
    assert db.value("SELECT is_called FROM public.asked") is False


def test_a_verify_function_that_raises_changes_nothing(db):
    db.execute(
        "CREATE FUNCTION public.broken(text, text, text) RETURNS once.verification LANGUAGE plpgsql AS $$BEGIN RAISE"
        " EXCEPTION 'down'; END$$"
    )
    policy(db, "verify => 'public.broken'")
    stale(db)
    before = db.rows("SELECT * FROM once.intent")
    for call in (Once(db.connect()).start, Once(db.connect()).claim):
        assert code_of(lambda: call(key="k")) == "P0001"
    assert db.rows("SELECT * FROM once.intent") == before


def test_attempts_that_are_used_up_abandon_a_retryable_intent_for_good(db):
    policy(db, "max_attempts => 2")
    once = Once(db.connect())
    for attempt in (1, 2):
        assert once.claim(key="k").attempts == attempt
        once.fail(key="k", fence=attempt, retryable=True, error_message="provider down")
    with refused("P4030"):
        once.start(key="k")
    row = once.claim(key="k")
    assert (row.verdict, row.state, row.error_code, row.error_message) == (
        "final_failure",
        "failed_final",
        "abandoned",
        "abandoned after 2 attempts: provider down",
    )
    with refused("P4030"):
        once.start(key="k")


def test_an_abandoned_intent_has_no_answer_of_an_attempt_that_failed(db):
    policy(db, "max_attempts => 1")
    once = Once(db.connect())
    once.claim(key="k")
    once.fail(key="k", fence=1, retryable=True, response_status=503, response_text="later", response_headers='{"a": "b"}', error_code="down")
    seen = once.try_start(key="k"), once.claim(key="k"), once.claim(key="k"), once.peek(key="k")
    assert [(row.response_status, row.response_body, row.response_headers) for row in seen] == [(None, None, None)] * 4
    assert {row.error_code for row in seen} == {"abandoned"}
    assert [row.verdict for row in seen] == ["final_failure"] * 4


def test_attempts_that_are_used_up_leave_a_stale_intent_in_doubt(db):
    policy(db, "max_attempts => 1, on_stale => 'takeover'")
    stale(db)
    assert Once(db.connect()).claim(key="k").verdict == "in_doubt"


def test_verify_absent_with_attempts_used_up_is_in_doubt(db):
    verify_function(db, "'absent'")
    policy(db, "max_attempts => 1")
    stale(db)
    with refused("P4031"):
        Once(db.connect()).start(key="k")
    assert Once(db.connect()).claim(key="k").verdict == "in_doubt"


def test_released_attempts_do_not_count(db):
    policy(db, "max_attempts => 1")
    once = Once(db.connect())
    for fence in (1, 2, 3):
        assert once.claim(key="k").fence == fence
        assert once.release(key="k", fence=fence)
    assert once.claim(key="k").verdict == "retryable_failure"


@pytest.mark.parametrize("state", ["live", "succeeded", "failed_final", None])
def test_an_operator_cannot_decide_what_is_running_finished_or_unknown(db, state):
    once = Once(db.connect())
    if state:
        once.claim(key="k")
    if state == "succeeded":
        once.complete(key="k", fence=1)
    elif state == "failed_final":
        once.fail(key="k", fence=1, retryable=False)
    before = db.rows("SELECT * FROM once.intent")
    for as_state in ("succeeded", "failed_retryable", "failed_final"):
        assert code_of(lambda: once.resolve(key="k", as_state=as_state)) == "P4070"
    assert db.rows("SELECT * FROM once.intent") == before
    assert db.value("SELECT count(*) FROM once.decision") == 0


def test_a_lease_that_was_taken_while_the_clock_was_ahead_is_listed_and_decided_as_one_that_has_passed(db):
    once = Once(db.connect())
    for key, lease in (("ahead", "1 second"), ("longest", "7 days")):
        once.claim(key=key, lease=lease)
    db.execute("UPDATE once.intent SET lease_until = lease_until + interval '1 year', updated_at = now() + interval '1 year' WHERE key = 'ahead'")
    assert db.rows("SELECT key, stale_for::text FROM once.stuck") == [("ahead", "00:00:00")]
    assert db.rows("SELECT in_flight, stale FROM once.top()") == [(1, 1)]
    assert code_of(lambda: once.resolve(key="longest", as_state="succeeded")) == "P4070"
    assert once.resolve(key="ahead", as_state="failed_retryable") == "processing"
    assert code_of(lambda: once.complete(key="ahead", fence=1)) == "P4010"
    assert once.claim(key="ahead").verdict == "retryable_failure"


@pytest.mark.parametrize(
    "wrong",
    [
        {"reason": ""},
        {"reason": "  "},
        {"reason": None},
        {"as_state": "processing"},
        {"as_state": "in_doubt"},
        {"as_state": "bogus"},
        {"as_state": None},
    ],
)
def test_a_decision_needs_a_reason_and_an_outcome(db, wrong):
    once = Once(db.connect())
    once.claim(key="k")
    once.fail(key="k", fence=1, retryable=None)
    assert code_of(lambda: once.resolve(**{"key": "k", "as_state": "succeeded", "reason": "why", **wrong})) == "P4070"
    assert once.peek(key="k").state == "in_doubt"


def test_a_decision_waits_for_no_running_attempt(db):
    allow_takeover(db)
    stale(db)
    taking_over = db.connect(isolation="READ COMMITTED")
    Once(taking_over).start(key="k")
    with refused("P4070"):
        Once(db.connect(lock_timeout="1s")).resolve(key="k", as_state="failed_final")
