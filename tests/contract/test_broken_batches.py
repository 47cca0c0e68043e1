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
        replace("claim_many", "pg_try_advisory_xact_lock(once._lock_id(tenant, scope[n], key[n]))", "true"),
        [batches.test_two_open_batches_over_the_same_intents_never_wait_and_share_nothing],
    ),
    "the same key twice is plain": (
        replace("claim_many", "EXIT short WHEN length(array_to_tsvector(key)) <> size;", "NULL;"),
        [batches.test_the_same_key_twice_in_a_batch_is_one_claim],
    ),
    "a batch is plain under any snapshot": (
        replace("claim_many", "current_setting('transaction_isolation') = 'read committed' AND", ""),
        [
            lambda db: plain.test_under_an_old_snapshot_a_batch_that_others_were_faster_with_ends_in_40001(db, "claim_many", False, "REPEATABLE READ"),
            lambda db: plain.test_under_an_old_snapshot_no_batch_is_plain(db, "SERIALIZABLE"),
        ],
    ),
    "no batch is plain": (
        replace("claim_many", "EXIT short WHEN (current_setting", "EXIT short WHEN true OR (current_setting"),
        [
            lambda db: plain.test_a_plain_batch_takes_few_statements_whatever_its_size(db, "claim_many", True),
            lambda db: plain.test_a_plain_batch_of_undated_keys_locks_their_table_alone(db, "claim_many"),
        ],
    ),
    "a plain batch does not look": (
        replace("claim_many", "AND NOT EXISTS (SELECT FROM generate_series(1, size) AS n", "AND NOT EXISTS (SELECT FROM generate_series(1, 0) AS n"),
        [
            lambda db: plain.test_what_came_to_be_after_the_batchs_own_snapshot_is_seen(db, True),
            lambda db: plain.test_one_old_or_locked_or_bad_or_repeated_element_among_new_ones_gets_what_it_gets_alone(db, False),
        ],
    ),
    "every day is open to a plain batch": (
        replace("claim_many", "EXIT short WHEN NOT once._is_open(first_bucket);", ""),
        [lambda db: plain.test_a_batch_whose_day_is_closed_before_it_inserts_is_to_try_again(db, "claim_many")],
    ),
    "a plain batch inserts into today's table, whatever day that is by then": (
        replace("claim_many", "WHERE first_bucket = once._today() AND", "WHERE"),
        [plain.test_a_batch_of_today_whose_day_ends_before_it_inserts_keeps_its_day],
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
        replace("_quick_check_batch", "concat('[1:', size, ']') = ALL (dims) AND", ""),
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
        [lambda db: plain.test_reports_of_the_same_intents_take_their_rows_in_one_order_and_do_not_deadlock(db, (2, 1, 0))],
    ),
    "completions of today are stored before those of other keys": (
        replace("complete_many", "EXIT all_of_today WHEN once._match_day(key[n], once._today()) IS NULL;", "NULL;"),
        [lambda db, order=order: plain.test_reports_of_the_same_intents_take_their_rows_in_one_order_and_do_not_deadlock(db, order) for order in ((1, 2, 0), (1, 0, 2))],
    ),
    "what is stored already is forgotten": (
        replace("complete_many", "once._store_many(stored, tenant", "once._store_many(NULL, tenant"),
        [lambda db: plain.test_what_a_batch_has_stored_before_it_goes_on_with_other_elements_is_stored_and_not_repeated(db, "complete_many", "undated")],
    ),
    "what is stored already is tried again": (
        replace("_store_many", "IF NOT dated AND stored IS NULL THEN", "IF NOT dated THEN"),
        [lambda db: plain.test_what_a_batch_has_stored_before_it_goes_on_with_other_elements_is_stored_and_not_repeated(db, "complete_many", "undated")],
    ),
    "reports of a day are stored one by one": (
        replace("_store_many", "IF last_bucket > 0 THEN", "IF false THEN"),
        [lambda db: plain.test_a_plain_batch_takes_few_statements_whatever_its_size(db, "fail_many", True)],
    ),
    "completions of today are stored like those of another day": (
        replace("complete_many", "ELSIF once._match_day(key[1], once._today()) IS NOT NULL THEN", "ELSIF false THEN"),
        [
            lambda db: plain.test_a_plain_batch_takes_few_statements_whatever_its_size(db, "complete_many", True),
            plain.test_completions_of_todays_keys_open_todays_table_alone,
        ],
    ),
    **{
        f"{function} of undated keys goes through all tables": (
            replace(function, "once.intent_d0", "once.intent"),
            [lambda db, batch=batch: plain.test_a_plain_batch_of_undated_keys_locks_their_table_alone(db, batch)],
        )
        for function, batch in (("_store_undated", "fail_many"), ("complete_many", "complete_many"))
    },
    **{
        f"{function} looks at no fence": (
            replace(function, "i.fence = fence[e.n] AND", ""),
            [lambda db, batch=batch, first=first: plain.test_a_report_under_an_old_fence_is_refused_among_plain_ones(db, batch, first) for first in uuids],
        )
        for function, batch, uuids in (("_store_undated", "fail_many", [False]), ("_store_of_day", "fail_many", [True]), ("complete_many", "complete_many", [False, True]))
    },
    **{
        f"plain reports of {function} are of any status": (
            replace(function, "once._is_plain(", "true OR once._is_plain("),
            [lambda db, batch=batch: outcomes.test_an_outcome_that_is_none_is_refused_at_every_door_and_stores_nothing(db, {"response_status": 99999}, batch)],
        )
        for function, batch in (("_store_undated", "fail_many"), ("complete_many", "complete_many"))
    },
    "plain reports forget where they were redirected to": (
        replace("_store_undated", "redirect[n] IS NULL AND", ""),
        [lambda db: redirects.test_where_a_request_is_redirected_to_the_same_intent_runs_once(db, "fail_many", "claim")],
    ),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_the_tests_notice_when(server, broken):
    assert_noticed(server, *BROKEN[broken], does_its_plain_work)
