# SPDX-License-Identifier: PostgreSQL
"""Each guarantee of the batches taken out on purpose: the tests must notice. As test_broken_on_purpose.py."""

import pytest
from harness.mutation import assert_noticed, both, replace, run_sql

from . import test_batches as batches
from . import test_hostile as hostile
from . import test_outcomes as outcomes
from . import test_plain_batches as plain
from . import test_plans as plans
from . import test_redirects as redirects
from . import test_seeing as seeing
from .test_broken_on_purpose import bound_role_at, does_its_plain_work

# what is taken out: (how, the checks that must fail then)
BROKEN = {
    # Where the index begins with the scope, as it does, such a plan is no trap.
    "reports of a batch find their rows by key, in an index that begins with the tenant": (
        both(
            run_sql("ALTER TABLE once.intent DROP CONSTRAINT intent_pkey; ALTER TABLE once.intent ADD PRIMARY KEY (tenant, scope, key, bucket)"),
            replace("_store_of_day", "AND i.ctid = e.address", "AND i.tenant = tenant AND i.scope = scope[e.n] AND i.key = key[e.n]"),
        ),
        [lambda db: plans.test_plans_made_on_an_empty_table_stay_index_lookups_when_it_has_filled(db, "vacuumed while empty", True)],
    ),
    "a plain batch takes no lock": (
        replace("claim_many", "pg_try_advisory_xact_lock(e.id)", "true"),
        [batches.test_two_open_batches_over_the_same_intents_never_wait_and_share_nothing],
    ),
    "the same key twice is plain": (
        replace("claim_many", "AND count(DISTINCT e.id) = size", ""),
        [batches.test_the_same_key_twice_in_a_batch_is_one_claim],
    ),
    "a batch is plain under any snapshot": (
        replace("claim_many", "AND current_setting('transaction_isolation') = 'read committed'", ""),
        [
            lambda db: plain.test_under_an_old_snapshot_a_batch_that_others_were_faster_with_ends_in_40001(db, "claim_many", False, "REPEATABLE READ"),
            lambda db: plain.test_under_an_old_snapshot_no_batch_is_plain(db, "SERIALIZABLE"),
        ],
    ),
    "no batch is plain": (
        replace("claim_many", "plain := plain AND first_bucket", "plain := false AND first_bucket"),
        [
            lambda db: plain.test_a_plain_batch_takes_few_statements_whatever_its_size(db, "claim_many", True),
            lambda db: plain.test_a_plain_batch_of_undated_keys_locks_their_table_alone(db, "claim_many"),
        ],
    ),
    "a plain batch does not look": (
        replace("claim_many", "WHERE NOT EXISTS (SELECT FROM generate_series(1, size) AS n", "WHERE true OR NOT EXISTS (SELECT FROM generate_series(1, size) AS n"),
        [
            lambda db: plain.test_what_came_to_be_after_the_batchs_own_snapshot_is_seen(db, True),
            lambda db: plain.test_one_old_or_locked_or_bad_or_repeated_element_among_new_ones_gets_what_it_gets_alone(db, False),
        ],
    ),
    "every day is open to a plain batch": (
        replace("claim_many", "(first_bucket = 0 OR once._is_open(first_bucket))", "true"),
        [lambda db: plain.test_a_batch_whose_day_is_closed_before_it_inserts_is_to_try_again(db, "claim_many")],
    ),
    "a plain batch has the lease of its first scope": (
        replace("claim_many", "(lease IS NOT NULL OR scope[1] = ALL (scope))", "true"),
        [plain.test_batches_of_several_scopes_without_a_lease_give_each_its_own],
    ),
    "plain claims are not counted": (
        replace("claim_many", "counted := nextval('once.counted_new');", ""),
        [seeing.test_a_batch_counts_as_single_claims_do],
    ),
    "the quick test of a batch does not look at its arrays": (
        replace("_quick_check_batch", "'[1:' || size::text || ']' = ALL (dims) AND", ""),
        [
            lambda db: hostile.test_arrays_of_unequal_length_are_refused_as_a_whole(db, "complete_many"),
            lambda db: plain.test_an_array_that_is_empty_is_none_that_is_left_out(db, {"result_id": []}),
        ],
    ),
    "batches trust every login": (
        replace("_quick_check_batch", "has_function_privilege(session_user, 'once.any_tenant()'::regprocedure, 'execute')", "true"),
        [bound_role_at("claim_many")],
    ),
    "a batch takes any lease": (
        replace("claim_many", "OR NOT once._is_term(lease, '7 days')", ""),
        [lambda db: plain.test_a_batch_refuses_a_lease_that_is_none(db, "8 days")],
    ),
    "reports take dated keys first": (
        replace("_store_many", "IF dated AND first_bucket <= 0 THEN", "IF false THEN"),
        [plain.test_reports_of_the_same_intents_take_their_rows_in_one_order_and_do_not_deadlock],
    ),
    "reports of a day are stored one by one": (
        replace("_store_many", "IF last_bucket > 0 THEN", "IF false THEN"),
        [lambda db: plain.test_a_plain_batch_takes_few_statements_whatever_its_size(db, "complete_many", True)],
    ),
    "reports of undated keys go through all tables": (
        replace("_store_undated", "once.intent_d0", "once.intent"),
        [lambda db: plain.test_a_plain_batch_of_undated_keys_locks_their_table_alone(db, "fail_many")],
    ),
    **{
        f"{function} looks at no fence": (
            replace(function, "i.fence = fence[e.n] AND", ""),
            [lambda db, first=first: plain.test_a_report_under_an_old_fence_is_refused_among_plain_ones(db, first)],
        )
        for function, first in (("_store_undated", False), ("_store_of_day", True))
    },
    "plain reports are of any status": (
        replace("_store_undated", "once._is_plain(", "true OR once._is_plain("),
        [lambda db: outcomes.test_an_outcome_that_is_none_is_refused_at_every_door_and_stores_nothing(db, {"response_status": 99999}, "complete_many")],
    ),
    "plain reports forget where they were redirected to": (
        replace("_store_undated", "redirect[n] IS NULL AND", ""),
        [lambda db: redirects.test_where_a_request_is_redirected_to_the_same_intent_runs_once(db, "fail_many", "claim")],
    ),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_the_tests_notice_when(server, broken):
    assert_noticed(server, *BROKEN[broken], does_its_plain_work)
