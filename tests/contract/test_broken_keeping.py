# SPDX-License-Identifier: PostgreSQL
"""Each guarantee of keeping taken out on purpose: the tests must notice. As test_broken_on_purpose.py."""

import pytest
from harness.mutation import assert_noticed, both, mutate, replace

from . import test_doubts as doubts
from . import test_fences as fences
from . import test_keep_days as days
from . import test_keep_rest as rest
from . import test_outbox_operators as operators
from .calls import Once, let_lease_pass
from .keeping import Keeper, settled


def never_completed(db):
    """What was not completed is not past either: the other guard of what runs or is in doubt."""
    mutate(db, "_sql_deletable", "i.completed_at +", "i.updated_at +")


def no_clock(function):
    held = "once._deletion_held()" if function in ("_keep_close", "_keep_closed", "_keep_purge", "_keep_archive") else "once._clock_held()"
    return replace(function, held, "NULL::text")


def late(phase):
    return lambda db: days.test_a_late_retry_is_answered_or_refused_and_never_runs(db, phase)


def unsteady(moved):
    return lambda db: rest.test_nothing_is_forgotten_by_an_unsteady_clock(db, moved)


# what is taken out: (how, the checks that must fail then)
BROKEN = {
    "a day is not looked through before it is closed": (
        replace("_keep_close", "EXIT WHEN why IS NOT NULL", "why := NULL"),
        [days.test_an_attempt_under_a_lease_holds_its_day_open],
    ),
    "closing raises no limit": (
        replace("_close_day", "greatest(s.closed_before, day + 1)", "s.closed_before"),
        [late("closed"), lambda db: days.test_a_day_that_is_closed_is_never_made_again(db, "detached")],
    ),
    "days close in any order": (
        replace("_close_day", "IF oldest < day THEN", "IF false THEN"),
        [days.test_a_day_is_not_closed_while_an_earlier_one_is_open],
    ),
    "a closed day takes what passed the gate before": (
        replace("_refuse_closed", "RAISE EXCEPTION USING", "RETURN NEW; RAISE EXCEPTION USING"),
        [days.test_an_attempt_that_found_the_day_open_and_inserts_after_it_was_closed_is_to_try_again],
    ),
    "a lease does not hold a closed day": (
        replace("_keep_closed", "piece.through THEN", "piece.through OR piece.held IS NOT NULL THEN"),
        [days.test_an_attempt_that_renews_its_lease_in_a_closed_day_holds_it_there],
    ),
    "a stale attempt is not put in doubt": (
        replace("_retire_blocks", "i.lease_until <= $1 FOR UPDATE", "false FOR UPDATE"),
        [lambda db: days.test_a_stale_attempt_of_the_day_may_report_until_its_row_is_moved(db, "dropped")],
    ),
    "doubt is not recorded": (
        replace("_retire_blocks", "PERFORM once._record(", "PERFORM concat("),
        [lambda db: days.test_a_stale_attempt_of_the_day_may_report_until_its_row_is_moved(db, "doubted")],
    ),
    "nothing outlives its day": (
        replace("_retire_blocks", "IF NOT moving THEN", "IF true THEN"),
        [
            late("dropped"),
            lambda db: days.test_a_decision_is_taken_in_every_phase_and_kept(db, "open"),
            lambda db: days.test_a_keeper_that_is_killed_in_a_step_leaves_it_to_the_next(db, "move"),
        ],
    ),
    "what is moved stays where it was": (
        replace("_retire_blocks", "DELETE FROM {leaf} AS i WHERE i.ctid = ANY (ARRAY(SELECT f.address FROM free AS f)) RETURNING i.*",
                "SELECT i.* FROM {leaf} AS i WHERE i.ctid = ANY (ARRAY(SELECT f.address FROM free AS f))"),
        [late("moved")],
    ),
    "everything outlives its day": (
        replace("_retire_blocks", "AND NOT {deletable}", "AND (true OR {deletable})"),
        [late("dropped")],
    ),
    "a row that is being decided on is left behind": (
        replace("_retire_blocks", "IF held IS NULL THEN", "IF false THEN"),
        [days.test_a_row_that_is_being_decided_on_is_not_moved_away_from_under_it],
    ),
    "moving waits for who decides": (
        replace("_retire_blocks", "|| outlives || $sql$ FOR UPDATE SKIP LOCKED", "|| outlives || $sql$ FOR UPDATE"),
        [days.test_a_row_that_is_being_decided_on_is_not_moved_away_from_under_it],
    ),
    "one pass, and no last look": (
        both(
            replace("_keep_closed", "c.moved > 0", "false"),
            replace("_keep_closed", "phase <> 'doubt') AS w", "phase = 'move') AS w"),
        ),
        [
            days.test_what_becomes_worth_keeping_behind_the_mover_is_moved_too,
            days.test_the_last_look_finds_what_was_stored_after_the_last_pass,
        ],
    ),
    "an interrupted detaching is started anew": (
        replace("_keep_detach", "IF pending THEN", "IF false THEN"),
        [lambda db: days.test_a_concurrent_detaching_that_was_interrupted_is_finished(db, "plainly")],
    ),
    "a failed archive is skipped": (
        replace("_keep_closed", "WHEN phase = 'doubt' THEN 'move'", "WHEN phase = 'doubt' THEN 'detach'"),
        [days.test_a_full_disk_at_the_archive_stops_the_move_only],
    ),
    "keepers need no lease": (
        replace("_keep_begin", "AND k.lease_until > now", ""),
        [rest.test_one_keeper_works_at_a_time_until_its_lease_passes_or_it_lets_go],
    ),
    "a lease is taken from its holder": (
        both(
            replace("keep_take", "IF FOUND THEN RETURN false", "IF false THEN RETURN false"),
            replace("keep_take", "k.lease_until <= now OR", "true OR"),
        ),
        [rest.test_one_keeper_works_at_a_time_until_its_lease_passes_or_it_lets_go],
    ),
    "a lease of a clock that was ahead is waited for": (
        replace("keep_take", " AND (k.last_round > now + interval '1 minute') IS NOT TRUE", ""),
        [rest.test_one_keeper_works_at_a_time_until_its_lease_passes_or_it_lets_go],
    ),
    "any snapshot will do": (
        replace("_keep_begin", "current_setting('transaction_isolation') <> 'read committed'", "false"),
        [rest.test_a_step_is_refused_that_does_not_exist_or_above_read_committed],
    ),
    "the first reading of the clock is trusted": (
        replace("_clock", "INSERT INTO once.clock (read_at, unsteady_since, why) VALUES (now,",
                "INSERT INTO once.clock (read_at, steady, unsteady_since, why) VALUES (now, '1 day',"),
        [unsteady("never read")],
    ),
    "a leap of the clock is trusted": (replace("_clock", "3 * last.longest_pause", "interval '1 year'"), [unsteady("forward")]),
    "a step back of the clock is trusted": (replace("_clock", "pause < interval '0' THEN", "false THEN"), [unsteady("back")]),
    "a step back makes long leaps usual": (
        replace("_clock", "-pause); pause := interval '0';", "-pause);"),
        [rest.test_a_clock_that_stepped_back_is_trusted_with_no_longer_leaps],
    ),
    "a leap that was put right is usual": (
        replace("_clock", "last.longest_pause := interval '0';", ""),
        [rest.test_a_leap_that_was_put_right_makes_no_other_one_usual],
    ),
    "a leap on top of a leap is believed": (
        replace("_clock", "least(pause, settle / 12, interval '5 minutes')", "pause"),
        [rest.test_a_leap_on_top_of_a_leap_does_not_end_the_wait_for_the_first],
    ),
    "what is usual of the clock is not learnt": (
        replace("_clock", "3 * last.longest_pause", "interval '0'"),
        [rest.test_a_keeper_that_comes_by_seldom_but_regularly_finds_a_steady_clock],
    ),
    **{
        f"the step {step} does not look at the clock": (no_clock(f"_keep_{step}"), [unsteady("never read")])
        for step in ("close", "closed", "outbox", "purge", "archive", "dead", "decisions")
    },
    "relays hold nothing": (
        replace("_backlog", "WHERE o.day = day AND (", "WHERE false AND ("),
        [rest.test_what_a_relay_has_still_to_deliver_holds_everything_that_is_not_older],
    ),
    "parked events hold nothing": (
        replace("_backlog", "WHERE p.relay = relay.relay", "WHERE false"),
        [rest.test_a_parked_event_holds_too_and_a_relay_of_another_cluster_everything],
    ),
    "a relay of another cluster holds nothing": (
        replace("_backlog", "needed_from := '-infinity'", "needed_from := NULL"),
        [rest.test_a_parked_event_holds_too_and_a_relay_of_another_cluster_everything],
    ),
    "a backlog does not keep days open": (
        replace("_keep_close", "once._needed(due)", "NULL"),
        [
            rest.test_what_a_relay_has_still_to_deliver_holds_everything_that_is_not_older,
            rest.test_what_a_consumer_may_get_again_is_not_forgotten_for_it,
        ],
    ),
    "consumers hold nothing": (
        replace("_sql_deletable", "c.\"position\" <= i.created_at + ($1).skew", "false"),
        [
            rest.test_what_a_consumer_may_get_again_is_not_forgotten_for_it,
            rest.test_a_row_that_a_consumer_needs_outlives_its_closed_day,
        ],
    ),
    "a consumer of another tenant holds": (
        replace("_sql_deletable", "AND c.tenant = i.tenant", ""),
        [rest.test_what_a_consumer_may_get_again_is_not_forgotten_for_it],
    ),
    "each report of a consumer is written": (
        replace("consumer_report", "WHERE excluded.\"position\" < c.\"position\" OR", "WHERE true OR"),
        [rest.test_a_report_of_a_consumer_writes_only_where_it_moved],
    ),
    "what runs or is in doubt is purged": (
        both(replace("_delete_intents", "i.state IN ('succeeded', 'failed_final', 'failed_retryable')", "true"), never_completed),
        [rest.test_only_what_is_expired_and_finished_is_purged],
    ),
    "retention is not looked at": (
        replace("_sql_deletable", "($1).retention) <= ($1).now)", "($1).retention) IS NOT NULL)"),
        [rest.test_only_what_is_expired_and_finished_is_purged],
    ),
    "purging disturbs attempts": (
        replace("_delete_intents", "FOR UPDATE SKIP LOCKED", "FOR UPDATE"),
        [rest.test_purging_goes_piece_by_piece_and_disturbs_nobody],
    ),
    "a full batch that could not delete all goes on": (
        replace("_delete_past", "gone.due < 500 OR gone.number = 0", "gone.number < 500"),
        [rest.test_purging_goes_piece_by_piece_and_disturbs_nobody],
    ),
    "a forgotten fence is not remembered": (
        replace("_keep_purge", "PERFORM setval(", "PERFORM concat("),
        [fences.test_a_late_report_is_not_taken_for_that_of_the_key_that_came_again],
    ),
    "the last fence that was forgotten counts, and not the highest": (
        replace("_keep_purge", "piece.highest >= once._first_fence()", "piece.highest IS NOT NULL"),
        [fences.test_the_highest_fence_counts_whatever_is_forgotten_after_it],
    ),
    "a key is forgotten without its lock": (
        replace("_delete_intents", "pg_try_advisory_xact_lock(once._lock_id(d.tenant, d.scope, d.key))", "true"),
        [fences.test_nobody_begins_a_key_while_it_is_being_forgotten],
    ),
    "a dead event is given up beside a decision about it": (
        replace("_keep_dead", "FOR UPDATE SKIP LOCKED;", "LIMIT 1;"),
        [operators.test_the_keeper_gives_no_event_up_about_which_an_operator_is_deciding],
    ),
    "verify is not asked": (
        replace("_recover", "on_stale = 'verify' THEN", "on_stale = 'never' THEN"),
        [rest.test_each_stale_intent_is_judged_by_its_scope],
    ),
    "a verify function that raises stops the others": (
        replace("_ask", "WHEN OTHERS THEN", "WHEN division_by_zero THEN"),
        [rest.test_each_stale_intent_is_judged_by_its_scope],
    ),
    "used-up attempts are not abandoned": (
        replace("_recover_one", "(stored.attempts >= policy.max_attempts) IS TRUE", "false"),
        [rest.test_each_stale_intent_is_judged_by_its_scope],
    ),
    "recovery is not recorded": (
        replace("_give_up", "PERFORM once._record(", "PERFORM concat("),
        [rest.test_each_stale_intent_is_judged_by_its_scope],
    ),
    "recovery does not look again before it stores": (
        replace(
            "_hold", "AND i.fence = fence AND i.state = state AND i.lease_until IS NOT DISTINCT FROM lease_until", ""
        ),
        [rest.test_an_attempt_may_report_while_its_verify_function_is_asked_and_keeps_the_last_word],
    ),
    "recovery takes no lock": (
        replace("_recover", "AND pg_try_advisory_xact_lock(", "AND 0 <> (SELECT 1) + 0 * abs("),
        [rest.test_an_intent_that_is_being_taken_over_is_left_out],
    ),
    "recovery begins each block anew": (
        replace("_recover", "AND i.ctid > $1 AND", "AND $1 IS NOT NULL AND"),
        [rest.test_recovery_comes_to_an_end_with_very_many_that_stay_stale],
    ),
    "slow verify functions are all asked in one call": (
        replace("_recover", "interval '250 milliseconds'", "interval '1 hour'"),
        [rest.test_slow_verify_functions_are_asked_a_few_at_a_time_and_all_in_the_end],
    ),
    "the fence stays when a doubt is decided": (
        replace("_decide", "fence = fence + 1", "fence = fence"),
        [lambda db: doubts.test_all_in_doubt_are_decided_in_pieces_each_recorded_as_a_single_one_is(db, "failed_final")],
    ),
    "many decisions look at no report": (
        replace("_decide", "IF source = 'once.intent'::regclass AND NOT", "IF false AND NOT"),
        [doubts.test_what_another_is_deciding_or_reporting_is_skipped_and_counted_and_nobody_waits],
    ),
    "many decisions take no lock": (
        replace("resolve_many", "AND pg_try_advisory_xact_lock(", "AND 0 <> (SELECT 1) + 0 * abs("),
        [doubts.test_what_another_is_deciding_or_reporting_is_skipped_and_counted_and_nobody_waits],
    ),
    "a dry run decides": (
        replace("resolve_many", "done := dry_run IS TRUE;", "done := false;"),
        [doubts.test_a_dry_run_counts_and_changes_nothing],
    ),
    "a later attempt is decided about as well": (
        replace("_doubtful", "i.updated_at < $7", "i.created_at < $7"),
        [doubts.test_all_attempts_of_what_a_time_selects_lie_within_it],
    ),
    "many decisions are of other scopes, too": (
        replace("_doubtful", "($4 IS NULL OR i.scope COLLATE \"C\" = $4)", "($4 IS NULL OR $4 IS NOT NULL)"),
        [doubts.test_scope_tenant_error_and_time_narrow_what_is_decided],
    ),
    "the archive is not read for doubts": (
        replace("_doubtful", "ARRAY['once.intent', 'once.archive']::regclass[], ARRAY['{n}', '1000000000 + {n}'], ARRAY[statement, statement]",
                "ARRAY['once.intent']::regclass[], ARRAY['{n}'], ARRAY[statement]"),
        [lambda db: doubts.test_what_is_in_doubt_of_a_retired_day_is_decided_and_asked_about_wherever_it_is(db, "moved")],
    ),
    "doubts are read anew for each piece": (
        replace("_doubtful", "AND i.ctid > $1 AND", "AND $1 IS NOT NULL AND"),
        [doubts.test_very_many_that_stay_in_doubt_come_to_an_end],
    ),
    "a verify function that does not know lets a doubt run": (
        replace("_recover_doubt", "ELSIF answer = 'absent' THEN", "ELSIF answer <> 'happened' THEN"),
        [doubts.test_verify_functions_are_asked_about_what_is_in_doubt_and_decide_it],
    ),
    "attempts that are used up run again after a doubt": (
        replace("_recover_doubt", "(stored[n]).attempts >= (once._policy(scope)).max_attempts", "false"),
        [doubts.test_verify_functions_are_asked_about_what_is_in_doubt_and_decide_it],
    ),
    "the keeper asks about doubts": (
        replace("_recover", "i.state = 'processing' AND i.lease_until <= $2", "i.state IN ('processing', 'in_doubt') AND $2 IS NOT NULL"),
        [doubts.test_the_keeper_and_recovery_of_the_stale_ask_nothing_about_what_is_in_doubt],
    ),
    "the sweep recovers nothing": (
        replace("_keep_sweep", "IF place.place IS NOT NULL THEN", "IF false THEN"),
        [rest.test_the_sweep_recovers_and_counts_what_is_left],
    ),
    "a day that was retired after the snapshot never was": (
        replace("_archived", "bucket > 0 AND", "false AND"),
        [lambda db: days.test_a_snapshot_from_before_the_whole_retirement_of_a_day_is_to_try_again_at_every_door(db, "by hand", "REPEATABLE READ")],
    ),
    "the outbox forgets at once": (
        replace("_keep_outbox", "+ keeps", "+ 0 * keeps"),
        [rest.test_a_day_of_the_outbox_goes_when_all_have_passed_it_and_its_retention_too],
    ),
    "the archive forgets what is in doubt": (
        both(replace("_delete_intents", "i.state IN ('succeeded', 'failed_final', 'failed_retryable')", "true"), never_completed),
        [rest.test_the_archive_forgets_what_has_expired_and_drops_empty_months_and_keeps_doubt],
    ),
    "dead letters stay dead": (
        replace("_keep_dead", "p.state = 'dead' AND p.updated_at < before", "false"),
        [rest.test_dead_letters_are_given_up_after_their_retention_and_what_waits_behind_goes_on],
    ),
    "decisions of what is in doubt are forgotten": (
        replace("_delete_decisions", "o.state = 'in_doubt'", "false"),
        [rest.test_decisions_are_forgotten_after_their_retention_but_not_of_what_is_in_doubt],
    ),
    "a failing step stops the round": (
        replace("keep", "WHEN OTHERS THEN", "WHEN division_by_zero THEN"),
        [rest.test_a_call_of_keep_does_a_whole_round_and_goes_on_after_a_failing_step],
    ),
}


def does_its_plain_work(db):
    """What is taken out must be that guarantee, and not the function as a whole: each still runs."""
    settled(db, horizon_days=30)
    keep = Keeper(db.connect())
    for number in range(2):
        once = Once(db.connect())
        once.finish_new(key=f"plain {number}")
        once.claim(key=f"stale {number}")
        let_lease_pass(db, f"stale {number}")
    db.execute("SELECT * FROM once.recover()")
    keep.round()
    db.execute("DELETE FROM once.intent; DELETE FROM once.decision; DELETE FROM once.clock; DELETE FROM once.keeper_step")
    db.execute("DELETE FROM once.keeper")


@pytest.mark.parametrize("broken", BROKEN)
def test_the_tests_notice_when(server, broken):
    assert_noticed(server, *BROKEN[broken], does_its_plain_work, also=(TypeError, LookupError))
