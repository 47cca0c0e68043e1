# SPDX-License-Identifier: PostgreSQL
"""Each guarantee of keys' days taken out on purpose: the tests must notice. As test_broken_on_purpose.py."""

import pytest
from harness.mutation import assert_noticed, both, replace

from . import test_buckets as buckets
from . import test_hostile as hostile
from . import test_keep_days as keep_days
from . import test_made_days as made_days
from . import test_today as today
from .calls import Once, refused, retire, shorten_horizon, uuid7_days_ago
from .test_broken_on_purpose import does_its_plain_work


def late_replay_from_the_archive(db):
    shorten_horizon(db)
    key = uuid7_days_ago(db, 2)
    Once(db.connect()).finish_new(key=key, response_body=b"kept")
    retire(db, 2)
    assert Once(db.connect()).start(key=key).response_body == b"kept"


def retire_only_with_nobody_under_lease(db):
    shorten_horizon(db)
    Once(db.connect()).claim(key=uuid7_days_ago(db, 2))
    with refused("55006"):
        retire(db, 2)


# what is taken out: (how, the checks that must fail then)
BROKEN = {
    "claim takes today for open whatever became of it": (
        replace("_claim", "once._is_today(bucket)", "true"),
        [lambda db: today.test_whatever_day_today_is_a_key_of_tomorrow_is_refused(db, 1), today.test_a_partition_of_today_that_is_gone_and_cannot_be_made_is_said],
    ),
    "the day is looked at before the table is locked": (
        both(
            replace("start", "ELSIF once._is_open(bucket)", "ELSIF bucket >= 0"),
            replace("_check_and_lock", "RETURN bucket;", "RETURN CASE WHEN bucket = 0 OR to_regclass('once.intent_d' || bucket) IS NOT NULL THEN bucket END;"),
        ),
        [lambda db: buckets.test_an_attempt_that_meets_the_retiring_of_its_day_is_answered_as_after_it(db, False)],
    ),
    **{
        f"{function} takes today for open whatever became of it": (
            replace(function, asked, "true"),
            [
                lambda db: buckets.test_an_attempt_that_meets_the_retiring_of_its_day_is_answered_as_after_it(db, True),
                lambda db: today.test_a_call_during_which_today_becomes_another_day_answers_as_before_or_after(db, 1),
            ],
        )
        for function, asked in (
            ("start", "once._is_today(likely)"),
            ("finish_new", "once._is_today(bucket)"),
        )
    },
    "receive takes today for open whatever became of it": (
        replace("receive", "once._is_today(bucket)", "bucket >= 0"),
        [lambda db: today.test_whatever_day_today_is_a_key_of_tomorrow_is_refused(db, 0), today.test_a_partition_of_today_that_is_gone_and_cannot_be_made_is_said],
    ),
    "today need not have begun": (
        replace("_is_today", "clock_timestamp() >= to_timestamp(once._today() * 86400::double precision)", "true"),
        [lambda db: today.test_whatever_day_today_is_a_key_of_tomorrow_is_refused(db, 1)],
    ),
    "today need not have a partition": (
        replace("_is_today", "AND to_regclass('once.intent_d' || once._today()::text) IS NOT NULL", ""),
        [
            today.test_a_partition_of_today_that_is_gone_and_cannot_be_made_is_said,
            lambda db: buckets.test_an_attempt_that_meets_the_retiring_of_its_day_is_answered_as_after_it(db, True),
        ],
    ),
    "today is a truth for ever": (
        both(replace("_today", "STABLE", "IMMUTABLE"), replace("_set_today", "STABLE", "IMMUTABLE")),
        [today.test_a_session_follows_today],
    ),
    "today goes back": (
        both(replace("add_days", "(once._today() >= today) IS NOT TRUE", "true"), replace("_move_today", "once._today() >= today OR", "")),
        [today.test_add_days_moves_today_on_and_never_back],
    ),
    "no day is made": (
        replace("_open_day", "PERFORM once._make_days(bucket);", ""),
        [made_days.test_a_key_of_a_past_day_without_a_partition_makes_it],
    ),
    "nobody notices that tomorrow is missing": (
        replace("_is_new_day", "SELECT", "SELECT false AND"),
        [lambda db: made_days.test_the_first_call_of_a_day_makes_the_next(db, door) for door in ("start", "claim", "claim_many", "emit")],
    ),
    "what cannot be made is tried again at once": (
        replace("_make_days", "OR pg_sequence_last_value('once.days_failed_seq') IN (seconds, seconds - 1)", ""),
        [made_days.test_where_ddl_is_forbidden_calls_go_on_while_their_day_is_there_and_one_a_second_tries],
    ),
    "what was closed after the snapshot is made anew": (
        replace("_make_days", "FOR SHARE", ""),
        [
            made_days.test_a_closed_day_is_not_made_anew_not_even_from_an_old_snapshot,
            lambda db: keep_days.test_a_snapshot_from_before_the_whole_retirement_of_a_day_is_to_try_again_at_every_door(db, "by the keeper", "REPEATABLE READ"),
        ],
    ),
    "a transaction that may not write makes days": (
        replace("_make_days", "current_setting('transaction_read_only') = 'on' OR", ""),
        [made_days.test_a_transaction_that_may_not_write_makes_nothing],
    ),
    "nobody moves today on": (
        replace("_move_today", "PERFORM once._set_today(today);", ""),
        [
            today.test_add_days_moves_today_on_and_never_back,
            lambda db: made_days.test_the_first_call_of_a_day_makes_the_next(db, "start"),
        ],
    ),
    "today has its keys from the day after, too": (
        replace("_match_day", "(day + 1)", "(day + 2)"),
        [today.test_the_gate_has_each_key_of_its_own_day],
    ),
    "today has its keys in either case": (
        replace("_is_dated", "'[^0-9a-f-]'", "'[^0-9a-fA-F-]'"),
        [today.test_the_gate_has_each_key_of_its_own_day],
    ),
    "today has whatever looks like its keys": (
        replace("_is_dated", """key COLLATE "C" NOT LIKE '%-%-%-%-%-%' AND""", ""),
        [today.test_the_gate_has_each_key_of_its_own_day],
    ),
    "plans open all days": (
        replace("start", "IF likely IS NOT NULL", "IF false"),
        [lambda db: today.test_start_emit_and_finish_lock_nothing_that_other_backends_look_at(db, True)],
    ),
    "a day may lie ahead": (
        replace("_is_open", "bucket <= date_part('epoch', clock_timestamp()) / 86400", "true"),
        [
            lambda db: buckets.test_a_key_from_the_future_is_malformed(db, "start"),
            lambda db: buckets.test_a_key_from_the_future_is_malformed(db, "finish"),
        ],
    ),
    "a day may have no partition": (
        replace("_is_open", "AND once._has_day('intent', bucket)", ""),
        [
            lambda db: buckets.test_a_key_from_beyond_the_horizon_is_expired(db, "start"),
            lambda db: buckets.test_a_missing_partition_that_cannot_be_made_is_said_and_add_days_makes_it(db, "finish"),
        ],
    ),
    "every day is open": (
        replace("_day_state", "IF bucket = 0 THEN", "IF true THEN"),
        [
            lambda db: buckets.test_a_key_from_beyond_the_horizon_is_expired(db, "claim"),
            lambda db: buckets.test_a_key_from_beyond_the_horizon_is_expired(db, "start"),
            lambda db: buckets.test_a_key_from_the_future_is_malformed(db, "claim"),
            lambda db: buckets.test_a_missing_partition_that_cannot_be_made_is_said_and_add_days_makes_it(db, "claim"),
        ],
    ),
    "the future is open": (
        replace("_day_state", "RETURN 'future'", "RETURN 'open'"),
        [lambda db: buckets.test_a_key_from_the_future_is_malformed(db, "claim")],
    ),
    "retiring closes nothing": (
        replace("retire_day", "greatest(s.closed_before, bucket + 1)", "s.closed_before"),
        [
            lambda db: buckets.test_a_retired_day_stays_closed_for_new_intents(db, "claim"),
            buckets.test_an_intent_whose_retention_passed_with_its_day_never_runs_again,
        ],
    ),
    "retiring keeps nothing": (
        replace("_retire_blocks", "IF NOT moving THEN", "IF true THEN"),
        [late_replay_from_the_archive, buckets.test_an_intent_in_doubt_survives_its_day_and_can_be_resolved],
    ),
    "start does not look into the archive": (
        replace("_archived", "RETURN kept", "RETURN NULL"),
        [late_replay_from_the_archive],
    ),
    "retiring ignores leases": (
        replace("retire_day", "IF piece.held IS NOT NULL THEN", "IF false THEN"),
        [retire_only_with_nobody_under_lease],
    ),
    "a UUIDv7 of any letter case is not recognised": (
        replace("_bucket", "0-9a-fA-F", "0-9a-f"),
        [buckets.test_a_uuid7_belongs_to_its_day_and_every_other_key_to_bucket_0],
    ),
    "a UUIDv7 of the first day is a key without a day": (
        replace("_bucket", "::integer, 1)", "::integer, 0)"),
        [
            buckets.test_a_uuid7_belongs_to_its_day_and_every_other_key_to_bucket_0,
            lambda db: buckets.test_a_key_from_beyond_the_horizon_is_expired(db, "claim"),
        ],
    ),
    "only one spelling of a UUIDv7 has its day": (
        replace("_bucket_of_other", "THEN once._respelled(key)", "THEN 0"),
        [
            buckets.test_a_uuid7_has_its_birthday_in_any_spelling,
            lambda db: buckets.test_a_key_from_beyond_the_horizon_is_expired(db, "start"),
        ],
    ),
    "hashes are dated": (
        replace("_respelled", "01[89a-f]", ""),
        [lambda db: buckets.test_a_key_that_only_looks_like_a_uuid7_is_an_ordinary_key(db, "0170163d86947f4e8694123456789abc")],
    ),
    "a key is where it looks as if it were": (
        replace("start", "once._is_undated(key)", "true"),
        [
            lambda db: hostile.test_a_malformed_key_is_refused_at_every_door(db, "a\nb"),
            lambda db: buckets.test_a_key_from_beyond_the_horizon_is_expired(db, "start"),
        ],
    ),
    "every spelling of a UUIDv7 looks undated": (
        replace("_is_undated", """AND key COLLATE "C" NOT LIKE ALL (ARRAY['01%', '{01%', '___:____:01%'])""", ""),
        [lambda db: today.test_a_key_that_looks_like_another_is_started_and_from_then_on_replayed(db, 0, "app")],
    ),
    "what looks like a UUIDv7 of today is one": (
        replace("_is_dated", "key COLLATE \"C\" !~ '[^0-9a-f-]'", "true"),
        [lambda db: today.test_a_key_that_looks_like_another_is_started_and_from_then_on_replayed(db, 0, "app")],
    ),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_the_tests_notice_when(server, broken):
    mutation, checks = BROKEN[broken]
    assert_noticed(server, mutation, checks, does_its_plain_work)


@pytest.mark.parametrize("check", [late_replay_from_the_archive, retire_only_with_nobody_under_lease])
def test_on_the_whole_contract_the_checks_of_this_file_pass(db, check):
    check(db)
