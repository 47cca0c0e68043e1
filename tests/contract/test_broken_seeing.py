# SPDX-License-Identifier: PostgreSQL
"""What operators are promised to see, taken out of the contract in a scratch database, and the tests that notice."""

import pytest
from harness.mutation import assert_noticed, replace, run_sql

from . import test_seeing as seeing
from . import test_seeing_traces as traces
from .test_broken_on_purpose import does_its_plain_work


def malformed(db):
    traces.test_a_malformed_trace_is_as_good_as_none(db, traces.MALFORMED[-3])


COUNTED = "counted := nextval('once.counted_{}');"

# what is taken out: (how, the checks that must fail then)
BROKEN = {
    "new intents are not counted": (
        replace("finish", "AND nextval('once.counted_new') IS NOT NULL", ""),
        [seeing.test_intents_of_the_same_transaction_are_counted_too],
    ),
    "new claims are not counted": (
        replace("_claim", COUNTED.format("new"), ""),
        [seeing.test_claims_are_counted_by_what_they_were_told, seeing.test_a_count_outlives_the_rollback_of_what_was_told],
    ),
    "a batch counts only what is new": (
        replace("claim_many", "IF others <> '{}' THEN", "IF false THEN"),
        [seeing.test_a_batch_counts_as_single_claims_do],
    ),
    "a takeover is of no kind": (
        replace("attempt_counts", "('stale', 'retryable', 'process')", "('stale', 'process')"),
        [seeing.test_each_count_is_of_one_kind],
    ),
    "messages are not counted": (
        replace("receive", COUNTED.format("process"), ""),
        [seeing.test_messages_are_counted_by_what_they_were_told],
    ),
    "a replay counts whatever the transaction may": (
        replace("start", "current_setting('transaction_read_only') <> 'off' OR", ""),
        [seeing.test_a_replay_in_a_read_only_transaction_is_answered_and_not_counted],
    ),
    "a takeover forgets the trace": (
        replace("_take_over", "coalesce(i.traceparent, traceparent)", "traceparent"),
        [traces.test_a_takeover_keeps_the_trace_and_gives_one_to_an_intent_that_had_none],
    ),
    "an event has no trace but its own": (
        replace("relay_fetch", "coalesce(o.traceparent,", "nullif(o.traceparent,"),
        [traces.test_an_event_carries_its_own_trace_or_that_of_its_intent],
    ),
    "any trace is taken": (
        replace("_trace", "THEN traceparent END", "THEN traceparent ELSE traceparent END"),
        [malformed],
    ),
    "takeovers are not recorded": (
        replace("_record_attempt", "IF before.state IN ('processing', 'in_doubt') THEN", "IF false THEN"),
        [seeing.test_a_takeover_is_recorded_with_what_was_before_and_after],
    ),
    "every retry is recorded": (
        replace("_record_attempt", "(nth <= 3 OR", "(true OR"),
        [lambda db: seeing.test_of_many_retries_ever_fewer_are_recorded(db, 0)],
    ),
    "a fence is taken for the number of an attempt": (
        replace("_record_attempt", "before.attempts + 1", "before.fence + 1"),
        [lambda db: seeing.test_of_many_retries_ever_fewer_are_recorded(db, 1000)],
    ),
    "work that never started is recorded": (
        replace("_record_attempt", "before.error_code IS DISTINCT FROM 'released' AND", ""),
        [seeing.test_work_that_never_started_is_no_attempt_that_anybody_sees],
    ),
    "what was before is not recorded": (
        replace("_record", "once._summary(before)", "NULL"),
        [seeing.test_what_was_decided_says_what_the_intent_was_and_has_become],
    ),
    "top counts nothing": (
        run_sql("CREATE OR REPLACE FUNCTION once.top() RETURNS TABLE (scope text, in_flight bigint, stale bigint, in_doubt bigint,"
                " oldest_seconds double precision) LANGUAGE sql AS 'SELECT NULL::text, 0::bigint, 0::bigint, 0::bigint, 0::float8'"),
        [seeing.test_the_views_show_what_needs_a_hand],
    ),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_the_tests_notice_when(server, broken):
    assert_noticed(server, *BROKEN[broken], does_its_plain_work, also=(TypeError,))
