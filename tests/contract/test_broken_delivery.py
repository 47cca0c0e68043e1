# SPDX-License-Identifier: PostgreSQL
"""As test_broken_on_purpose, for the way out and the way in: each guarantee taken out, and the tests that notice."""

import pytest
from harness.mutation import assert_noticed, both, replace, run_sql

from . import test_emit_later as later
from . import test_errors as errors
from . import test_outbox as outbox
from . import test_outbox_days as days
from . import test_outbox_operators as operators
from . import test_outbox_many as many_parked
from . import test_parked_many as many_dead
from . import test_parked as parked
from . import test_plain_batches as plain
from . import test_receive_many as many
from . import test_relay as relay
from . import test_relay_cluster as cluster
from . import test_relay_cost as cost
from .calls import today
from .test_broken_on_purpose import does_its_plain_work


def with_things(check):
    """The fixture `thing`, where no pytest gives it."""

    def run(db):
        db.execute("CREATE TABLE thing (id text PRIMARY KEY, n integer NOT NULL DEFAULT 0)")
        db.execute("INSERT INTO thing SELECT g FROM generate_series(1, 6) AS g")
        check(db)

    return run


def with_moved(check, *arguments):
    """The fixture `yesterday` of test_emit_later."""
    return lambda db: check(db, later.mover(db), *arguments)


def with_yesterday(check, *arguments):
    def run(db):
        day = today(db) - 1
        db.execute(f"CREATE TABLE once.outbox_d{day} PARTITION OF once.outbox FOR VALUES FROM ({day}) TO ({day + 1})")
        check(db, day, *arguments)

    return run


LOCKED = """UPDATE once.relay AS r
       SET written_by = CASE WHEN r.written_by = r.xmin THEN pg_current_xact_id()::xid ELSE '0' END
     WHERE r.relay = relay COLLATE "C" RETURNING r.* INTO stored"""

# what is taken out: (how, the checks that must fail then)
BROKEN = {
    "transactions that were running are forgotten": (
        replace("relay_list", "o.xid = ANY (late)", "false"),
        [
            relay.test_a_transaction_that_commits_late_does_not_hold_up_the_others_and_is_not_skipped,
            relay.test_a_writer_with_an_old_snapshot_is_listed_when_it_commits,
            relay.test_a_prepared_transaction_is_listed_when_it_commits_even_after_a_restart_of_its_session,
        ],
    ),
    "a batch is what is visible while it is listed": (
        replace("relay_list", "AND pg_visible_in_snapshot(o.xid, now)", ""),
        [relay.test_what_commits_between_the_look_and_the_listing_belongs_to_the_next_batch],
    ),
    "a batch is ordered by xid": (
        replace("relay_list", "ORDER BY n.id LIMIT take", "ORDER BY n.xid, n.id LIMIT take"),
        [
            with_things(
                lambda db: relay.test_events_of_one_aggregate_are_published_in_the_order_of_its_lock_and_not_of_the_xids(
                    db, "1", 1
                )
            )
        ],
    ),
    "a batch goes on from its beginning": (
        replace("relay_list", "above bigint := coalesce(after_id, 0)", "above bigint := 0"),
        [relay.test_a_batch_that_was_left_in_the_middle_goes_on_exactly_there],
    ),
    "what lies beyond the window is left out": (
        replace("relay_list", "EXIT WHEN take = 0 OR upto = 9223372036854775807", "EXIT"),
        [relay.test_a_batch_is_listed_in_pieces_of_any_size_without_a_gap],
    ),
    "a look notices new transactions only": (
        replace(
            "relay_look",
            "reading <> seen::pg_snapshot::text",
            "pg_snapshot_xmax(reading::pg_snapshot) > pg_snapshot_xmax(seen::pg_snapshot)",
        ),
        [relay.test_a_look_sees_the_end_of_an_old_transaction_though_no_new_one_began],
    ),
    "a synchronous standby is taken for informed": (
        replace("relay_look", "AND current_setting('synchronous_standby_names') = ''", ""),
        [relay.test_with_a_synchronous_standby_nothing_counts_as_flushed_before_relay_flush],
    ),
    "a flush leaves it to the session whether to wait": (
        replace("relay_flush", "set_config('synchronous_commit', 'on', true)", "1"),
        [relay.test_relay_flush_waits_for_the_disk_whatever_the_session_prefers_and_leaves_it_at_that],
    ),
    "two may have one relay": (
        replace("relay_take", "NOT pg_try_advisory_lock(once._relay_lock(relay))", "false"),
        [relay.test_two_sessions_never_work_for_one_relay_and_the_second_takes_over_when_the_first_dies],
    ),
    "anybody may settle": (
        replace("relay_settle", "NOT once._relay_held(relay)", "false"),
        [
            lambda db: relay.test_a_session_that_does_not_hold_the_relay_cannot_settle(db, "never had"),
            lambda db: relay.test_a_session_that_does_not_hold_the_relay_cannot_settle(db, "gave back"),
            lambda db: relay.test_a_session_that_does_not_hold_the_relay_cannot_settle(db, "another has"),
        ],
    ),
    "a shared lock will do": (
        replace("_relay_held", "l.mode = 'ExclusiveLock' AND", ""),
        [lambda db: relay.test_a_session_that_does_not_hold_the_relay_cannot_settle(db, "never had")],
    ),
    "any cluster's progress will do": (
        replace("_relay_own", "AND r.written_by = r.xmin", ""),
        [
            cluster.test_a_relay_of_another_cluster_is_refused_and_its_lock_is_free_again,
            lambda db: errors.test_a_refusal_names_its_code_the_intent_and_a_hint(db, "P4080"),
        ],
    ),
    "what an operator writes is ours": (
        replace("_relay_row", "CASE WHEN r.written_by = r.xmin THEN pg_current_xact_id()::xid ELSE '0' END", "pg_current_xact_id()::xid"),
        [cluster.test_what_operators_do_does_not_make_another_clusters_relay_our_own],
    ),
    "what is settled is ours": (
        replace("relay_settle", "AND r.written_by = r.xmin", ""),
        [cluster.test_progress_that_is_replaced_under_a_relay_is_not_made_its_own_by_settling],
    ),
    "what is written within a savepoint is another's": (
        replace("_relay_sign", "r.written_by NOT IN (r.xmin, '0')", "false"),
        [
            lambda db, change=change: cluster.test_a_relay_stays_its_databases_own_whoever_writes_its_row_within_savepoints(db, change)
            for change in ("settle", "operator")
        ],
    ),
    "progress may be ahead": (
        replace("relay_take", "pg_snapshot_xmax(coalesce(stored.reading, stored.seen)) >", "'0' >"),
        [cluster.test_progress_ahead_of_all_transactions_is_refused],
    ),
    "a refused relay stays locked": (
        replace("relay_take", "PERFORM pg_advisory_unlock(once._relay_lock(relay));", ""),
        [cluster.test_a_relay_of_another_cluster_is_refused_and_its_lock_is_free_again],
    ),
    "foreign events keep their xids": (
        replace("_adopt_events", "o.xid >= n.beyond", "false"),
        [
            cluster.test_an_adopted_relay_goes_on_with_what_commits_from_now_on,
            cluster.test_a_new_relay_in_a_restored_database_reads_the_events_that_came_with_it,
        ],
    ),
    "foreign parked events lose their events": (
        replace("_adopt_events", "UPDATE once.parked_event AS p SET xid = '3'", "UPDATE once.parked_event AS p SET xid = p.xid"),
        [cluster.test_what_was_parked_stays_parked_with_an_adopted_relay],
    ),
    "what is new takes numbers of old": (
        replace("_adopt_events", "n.last >=", "false AND n.last >="),
        [
            cluster.test_after_adoption_what_is_new_takes_no_number_that_something_of_old_has,
            cluster.test_a_new_relay_in_a_replicated_database_meets_no_two_events_of_one_number,
        ],
    ),
    "a new relay takes its own open events for foreign": (
        replace("_adopt_events", "o.xid <> n.own", "true"),
        [cluster.test_a_new_relay_leaves_the_events_of_open_transactions_alone],
    ),
    "a relay in use may be dropped": (
        both(
            replace("drop_relay", "NOT pg_try_advisory_xact_lock(once._relay_lock(relay))", "false"),
            replace("relay_adopt", "NOT pg_try_advisory_xact_lock(once._relay_lock(relay))", "false"),
        ),
        [cluster.test_a_relay_in_use_is_not_adopted_or_dropped],
    ),
    "the whole outbox is searched": (
        both(
            replace("relay_list", "o.xid >= first_xid AND o.xid < end_xid", "NOT pg_visible_in_snapshot(o.xid, before)"),
            run_sql("ALTER FUNCTION once_job.relay_list RESET enable_seqscan"),
        ),
        [
            cost.test_plans_made_on_an_empty_outbox_stay_searches_when_it_has_filled,
            lambda db: cost.compare_costs(db, 50_000),
        ],
    ),
    "a fetch searches by transaction only": (
        replace("relay_fetch", "e.xid = u.xid AND e.id = u.id", "e.id = u.id"),
        [lambda db: cost.compare_costs(db, 50_000)],
    ),
    "an aggregate is not held up": (
        replace("relay_fetch", "any_parked AND o.id > ANY", "false AND o.id > ANY"),
        [outbox.test_a_failing_event_holds_up_its_own_aggregate_only],
    ),
    "whatever is due is given": (
        replace("relay_due", "AND p.id <= ALL (", "AND 0 <= ALL ("),
        [outbox.test_a_dead_event_blocks_its_aggregate_until_it_is_decided_on_or_where_dead_ones_are_skipped],
    ),
    "the waits of a clock that was ahead are waited for": (
        replace("relay_due", "> now + interval '1 second' THEN", "IS NULL THEN"),
        [outbox.test_a_wait_that_began_by_a_clock_that_was_ahead_ends_when_it_has_stepped_back],
    ),
    "a message's wait of a clock that was ahead is waited for": (
        replace("message_due", "> now + interval '1 second' THEN", "IS NULL THEN"),
        [parked.test_a_wait_that_began_by_a_clock_that_was_ahead_ends_when_it_has_stepped_back],
    ),
    "what stands behind a dead event stays due": (
        replace("_demote", "WHERE p.ctid = ANY (behind)", "WHERE false"),
        [cost.test_what_stands_behind_dead_events_is_not_looked_at_for_ever],
    ),
    "what stands behind a dead event stays due while there is more to do": (
        replace("relay_due", "IF due IS DISTINCT FROM heads THEN", "IF coalesce(cardinality(heads), 0) < take THEN"),
        [cost.test_what_stands_behind_dead_events_is_not_looked_at_for_ever_by_a_relay_that_always_has_more_to_do],
    ),
    "a decision is missed by what is put aside at the same time": (
        replace("_demote", "PERFORM once._relay_row(relay);", "PERFORM once._relay_row(relay); EXIT;"),
        [lambda db: outbox.test_a_decision_that_is_made_while_those_behind_are_put_aside_frees_them(db, "discard")],
    ),
    "an older snapshot's decision misses what was put aside": (
        replace("_demote", "PERFORM once._relay_row(relay);", ""),
        [
            lambda db: outbox.test_a_decision_by_a_snapshot_from_before_those_behind_were_put_aside_frees_them_or_fails(
                db, "discard", "REPEATABLE READ"
            )
        ],
    ),
    "a relay's look waits for an open decision": (
        replace("_demote", "FOR UPDATE SKIP LOCKED", "FOR UPDATE"),
        [lambda db: outbox.test_an_open_decision_keeps_no_relay_from_looking(db, "discard")],
    ),
    "whoever looks puts aside": (
        replace("_demote", "NOT once._relay_held(relay)", "false"),
        [outbox.test_a_look_by_another_session_puts_nothing_aside],
    ),
    "a retry is forgotten when the attempt under way fails": (
        replace("relay_settle", "e.attempts > p.attempts + 1", "false"),
        [
            lambda db: outbox.test_a_retry_that_comes_while_an_attempt_is_under_way_holds_and_that_one_is_the_first(
                db, True
            )
        ],
    ),
    "a chain has gaps": (
        replace("relay_due", "WHERE f.free", ""),
        [outbox.test_a_chain_is_given_whole_when_its_head_is_due_and_stops_at_what_waits_for_something_else],
    ),
    "nobody follows": (
        replace("_promote", "WHERE h.next_at = 'infinity') AS f", "WHERE false) AS f"),
        [
            outbox.test_an_aggregate_without_a_type_keeps_its_order_too,
            operators.test_a_discarded_event_frees_its_aggregate,
            outbox.test_an_event_that_dies_lets_the_next_one_go_where_dead_ones_are_skipped,
        ],
    ),
    "what waits is always due": (
        replace("relay_settle", "THEN 'infinity'", "THEN now"),
        [
            lambda db: outbox.test_thousands_that_wait_behind_one_cost_nothing_when_others_are_looked_for(db, "dead", 0),
        ],
    ),
    "operators and relays pass by each other": (
        replace("_relay_row", LOCKED, "SELECT r.* INTO stored FROM once.relay AS r WHERE r.relay = relay COLLATE \"C\""),
        [
            lambda db: outbox.test_an_event_that_is_parked_behind_one_that_is_just_being_discarded_is_not_stuck(
                db, "the operator"
            )
        ],
    ),
    "the discarded rise from the dead": (
        replace("relay_settle", "e.known IS NOT TRUE AND", ""),
        [outbox.test_an_event_that_was_discarded_while_it_was_under_way_does_not_come_back],
    ),
    "a decision needs no reason": (
        replace("_reason", "(reason ~ '[^[:space:]]') IS NOT TRUE", "false"),
        [lambda db: operators.test_no_decision_without_a_reason(db, " \t")],
    ),
    "a day goes though a relay is behind": (
        replace("_outbox_needed", "o.xid >= pg_snapshot_xmax(r.seen)", "false"),
        [with_yesterday(days.test_a_day_goes_when_every_relay_has_passed_it)],
    ),
    "a day goes though a relay has not seen all of it": (
        replace("_outbox_needed", "o.xid = ANY (ARRAY(SELECT x FROM pg_snapshot_xip(r.seen) AS x))", "false"),
        [
            with_yesterday(days.test_a_day_into_which_a_transaction_may_still_write_stays, "open"),
            with_yesterday(days.test_a_day_into_which_a_transaction_may_still_write_stays, "prepared"),
        ],
    ),
    "a day goes with its parked events": (
        replace("_outbox_needed", "WHERE p.day = day GROUP BY", "WHERE false GROUP BY"),
        [with_yesterday(days.test_a_day_stays_while_an_event_of_it_is_parked)],
    ),
    "a day goes though nobody reads": (
        replace("_outbox_needed", "NOT EXISTS (SELECT FROM once.relay)", "false"),
        [with_yesterday(days.test_a_day_with_events_that_nobody_could_have_published_stays)],
    ),
    "a day is looked at before its lock only": (
        replace(
            "retire_outbox",
            "IN ACCESS EXCLUSIVE MODE', day); PERFORM once._check_retired(day);",
            "IN ACCESS EXCLUSIVE MODE', day);",
        ),
        [with_yesterday(days.test_an_event_that_commits_while_the_retiring_waits_is_not_lost)],
    ),
    "a day is retired under any snapshot": (
        replace("retire_outbox", "current_setting('transaction_isolation') <> 'read committed'", "false"),
        [with_yesterday(days.test_a_day_is_not_retired_under_an_old_snapshot)],
    ),
    "a batch of messages takes no lock": (
        both(
            replace("receive_many", "pg_try_advisory_xact_lock(once._lock_id(tenant, consumer, n.id))", "true"),
            replace("_receivable", "pg_try_advisory_xact_lock(once._lock_id(tenant, consumer, message_id))", "true"),
        ),
        [many.test_a_message_that_another_transaction_is_applying_is_active_and_nobody_waits],
    ),
    "a plain batch of messages takes no lock": (
        replace("receive_many", "pg_try_advisory_xact_lock(once._lock_id(tenant, consumer, message_ids[n]))", "true"),
        [many.test_a_message_that_another_transaction_is_applying_is_active_and_nobody_waits],
    ),
    "the same message twice is plain": (
        replace("receive_many", "EXIT short WHEN length(array_to_tsvector(message_ids)) <> size;", "NULL;"),
        [many.test_the_same_message_twice_in_a_batch_is_processed_once],
    ),
    "a batch of messages is plain under any snapshot": (
        replace("receive_many", "EXIT short WHEN current_setting('transaction_isolation') <> 'read committed';", ""),
        [
            lambda db: plain.test_under_an_old_snapshot_a_batch_that_others_were_faster_with_ends_in_40001(db, "receive_many", True, "REPEATABLE READ"),
            lambda db: many.test_an_old_snapshot_never_processes_what_was_processed_since(db, "REPEATABLE READ"),
        ],
    ),
    "no batch of messages is plain": (
        replace("receive_many", "EXIT short WHEN current_setting", "EXIT short; EXIT short WHEN current_setting"),
        [lambda db: plain.test_a_plain_batch_takes_few_statements_whatever_its_size(db, "receive_many", False)],
    ),
    "a plain batch of messages does not look": (
        replace("receive_many", "AND NOT EXISTS (SELECT FROM generate_series(1, size) AS n", "AND NOT EXISTS (SELECT FROM generate_series(1, 0) AS n"),
        [lambda db: plain.test_what_came_to_be_after_the_batchs_own_snapshot_is_seen(db, False), many.test_messages_are_processed_once_and_are_duplicates_ever_after],
    ),
    "every day is open to a plain batch of messages": (
        replace("receive_many", "EXIT short WHEN NOT once._is_open(first_bucket);", ""),
        [lambda db: plain.test_a_batch_whose_day_is_closed_before_it_inserts_is_to_try_again(db, "receive_many")],
    ),
    "a plain batch of messages does not look for parked ones": (
        replace("receive_many", "AND NOT EXISTS (SELECT FROM once.parked_message AS p WHERE p.consumer = consumer COLLATE \"C\" AND p.tenant = tenant COLLATE \"C\");", ";"),
        [plain.test_a_batch_of_messages_beside_a_parked_one_looks_at_each],
    ),
    "a batch of messages has no ON CONFLICT": (
        replace("receive_many", "ON CONFLICT DO NOTHING", ""),
        [lambda db: many.test_an_old_snapshot_never_processes_what_was_processed_since(db, "REPEATABLE READ")],
    ),
    "a batch compares no fingerprints": (
        replace("receive_many", "s.fingerprint <> u.fingerprint", "false"),
        [many.test_another_payload_is_a_mismatch_and_an_unfinished_lease_is_told],
    ),
    "the same message twice is two": (
        replace("receive_many", "n.first_ord = n.ord", "true"),
        [many.test_the_same_message_twice_in_a_batch_is_processed_once],
    ),
    "what another process applies is parked behind it": (
        replace("message_park", "ORDER BY p.message_id FOR UPDATE", "ORDER BY p.message_id"),
        [parked.test_a_message_that_another_process_is_applying_is_not_parked_behind_it],
    ),
    "a message that is parked is received": (
        replace("receive_many", "IF held[n] IN ('parked', 'P4050') THEN", "IF false THEN"),
        [many.test_a_message_behind_a_parked_one_of_its_key_is_blocked_and_not_entered],
    ),
    "parked messages hold up nobody": (
        replace("receive_many", "held[n] = 'blocked' OR", ""),
        [
            many.test_a_message_behind_a_parked_one_of_its_key_is_blocked_and_not_entered,
            many.test_dead_messages_block_their_key_unless_they_are_skipped,
        ],
    ),
    "what fails in a batch holds up nobody": (
        replace("receive_many", "OR keys[n] = ANY (behind)", ""),
        [many.test_what_cannot_be_processed_in_this_batch_blocks_what_follows_it_with_its_key],
    ),
    "retired days are forgotten in a batch": (
        replace("_receivable", "stored := once._archived(tenant, consumer, message_id, bucket)", "stored := NULL"),
        [many.test_a_message_of_a_retired_day_is_a_duplicate_where_it_is_remembered_and_else_expired],
    ),
    "every day is open to a batch": (
        replace("_receivable", "day := once._open_day(bucket)", "day := 'open'"),
        [many.test_a_bad_element_spoils_nothing],
    ),
    "two processes wait for each other": (
        replace("message_due", "FOR UPDATE OF p SKIP LOCKED", "FOR UPDATE OF p"),
        [parked.test_two_processes_never_take_the_same_message_nor_the_next_of_its_key],
    ),
    "two processes take the same": (
        replace("message_due", "FOR UPDATE OF p SKIP LOCKED", ""),
        [
            parked.test_two_processes_never_take_the_same_message_nor_the_next_of_its_key,
            parked.test_a_process_that_dies_gives_back_what_it_had_taken,
        ],
    ),
    "whatever message is due is given": (
        replace("message_due", "AND p.position <= ALL (", "AND 0 <= ALL ("),
        [parked.test_only_the_first_of_a_key_is_due_and_messages_without_a_key_wait_for_nobody],
    ),
    "a line has gaps": (
        both(replace("message_due", "WHERE n.free AND", "WHERE"), replace("message_due", "WHERE f.follows", "")),
        [parked.test_a_line_is_given_when_its_first_is_due_and_ends_at_what_waits_for_something_else],
    ),
    "the first line takes all": (
        replace("message_due", "followers := (take - cardinality(taken)) / cardinality(taken);", "followers := take - cardinality(taken);"),
        [parked.test_lines_get_an_equal_share_and_come_in_the_order_in_which_they_came],
    ),
    "a line goes on behind what another has locked": (
        replace("message_due", "WHERE f.follows", ""),
        [parked.test_a_line_ends_before_a_message_that_another_has_locked_and_whoever_has_its_first_has_it],
    ),
    "an operator decides on what is being applied": (
        replace("message_due", "FOR UPDATE OF p SKIP LOCKED) AS l", ") AS l"),
        [parked.test_a_line_ends_before_a_message_that_another_has_locked_and_whoever_has_its_first_has_it],
    ),
    "a line of any size is given": (
        replace("message_due", "AND n.bytes <= bytes_most / cardinality(taken)", ""),
        [parked.test_what_follows_is_bounded_in_bytes],
    ),
    "a long queue is looked through": (
        replace("message_due", "few CONSTANT integer := 500", "few CONSTANT integer := 500000"),
        [parked.test_thousands_behind_one_dead_message_are_not_looked_at_each_time],
    ),
    "an applied message may be parked": (
        replace("message_park", "i.fingerprint = e.fingerprint AND i.state = 'succeeded'", "false"),
        [parked.test_an_applied_message_is_not_parked],
    ),
    "a discarded message is forgotten": (
        replace("_decide_message", "known = 'new'", "known = 'never'"),
        [lambda db: parked.test_a_discarded_message_is_a_duplicate_ever_after_and_frees_its_key(db, False)],
    ),
    "a message of a forgotten day is retried": (
        replace("_decide_message", "IF bucket > 0 AND", "IF false AND"),
        [parked.test_a_dead_message_of_a_forgotten_day_is_not_retried_since_no_attempt_would_be_let_in],
    ),
    "a message that cannot be remembered is discarded": (
        replace("_decide_message", "known IN ('P4001', 'P4098')", "false"),
        [lambda db: parked.test_a_message_whose_day_is_not_open_is_not_discarded_since_it_could_not_be_remembered(db, 0, "P4098")],
    ),
    "a dry run changes some messages": (
        replace("_decide_many", "IF NOT dry_run AND cardinality", "IF cardinality"),
        [lambda db: many_dead.test_a_dry_run_counts_and_changes_nothing_and_is_what_it_does_unless_told_otherwise(db, "discard")],
    ),
    "who decides about many waits for a consumer": (
        replace("_decide_messages", "SKIP LOCKED", ""),
        [lambda db: many_dead.test_what_a_consumer_is_trying_is_skipped_and_waited_for_by_nobody(db, "retry")],
    ),
    "what is skipped is not told": (
        replace("_decide_messages", "WHERE NOT u.id = ANY (coalesce(locked, '{}'))", "WHERE false"),
        [lambda db: many_dead.test_what_a_consumer_is_trying_is_skipped_and_waited_for_by_nobody(db, "discard")],
    ),
    "many messages are decided about without their order": (
        replace("_look_at_messages", "OVER (ORDER BY q.key_hash, q.position)", "OVER (ORDER BY q.message_id)"),
        [lambda db: many_dead.test_a_run_that_was_interrupted_has_decided_about_the_first_of_a_key(db, True)],
    ),
    "many decisions meet messages that are parked meanwhile": (
        replace("_look_at_messages", "AND p.position <= until", ""),
        [many_dead.test_what_is_parked_later_is_not_met],
    ),
    "a piece takes as many locks as it is told": (
        replace("_look_at_messages", "most CONSTANT integer := 1000", "most CONSTANT integer := 1000000"),
        [many_dead.test_a_piece_looks_at_ten_thousand_decides_about_a_thousand_and_ends_where_none_fits],
    ),
    "many messages are decided about whatever their error": (
        replace("_look_at_messages", "(wanted.error IS NULL OR", "(true OR"),
        [lambda db: many_dead.test_only_what_fits_is_decided_and_each_is_recorded(db, "retry", "error")],
    ),
    "many messages are decided about whatever their tenant": (
        replace("_parked_filter", "PERFORM once._authorise(tenant);", ""),
        [
            many_dead.test_a_bound_role_decides_about_its_own_tenant_alone_whatever_it_says_it_had_before,
            many_parked.test_a_bound_role_decides_about_the_events_of_its_own_tenant_alone,
        ],
    ),
    "an event of another tenant is decided about": (
        replace("_decide_one", 'AND (tenant IS NULL OR p.tenant = tenant COLLATE "C")', ""),
        [many_parked.test_a_bound_role_decides_about_the_events_of_its_own_tenant_alone],
    ),
    "an event of another tenant is shown": (
        replace("_show_event", 'OR event.tenant <> tenant COLLATE "C"', ""),
        [many_parked.test_a_bound_role_decides_about_the_events_of_its_own_tenant_alone],
    ),
    "a delayed event of another tenant is decided about": (
        replace("_decide_one", 'AND (tenant IS NULL OR d.tenant = tenant COLLATE "C")', ""),
        [many_parked.test_a_bound_role_decides_about_no_delayed_event_of_another_tenant],
    ),
    "a decision about many ends with the events": (
        replace("_decide_many", "next := 'message:';", "next := NULL;"),
        [lambda db: many_parked.test_one_decision_is_about_events_and_then_messages(
            db, "retry", {}, {("event", "r"): 3, ("message", "mailer"): 2, ("message", "stock"): 1})],
    ),
    "a decision about events goes on with messages": (
        replace("_decide_many", "OR (part = 'message') <> (coalesce(wanted.kind, part) = 'message')", ""),
        [lambda db: many_parked.test_a_decision_goes_on_where_it_was_and_nowhere_else(db, "message:", "kind => 'event'")],
    ),
    "many events are decided about whatever their tenant": (
        replace("_look_at_events", "(wanted.tenant IS NULL OR", "(true OR"),
        [lambda db: many_parked.test_only_what_fits_is_decided_and_each_is_recorded(db, "discard", "another tenant")],
    ),
    "many events are decided about whatever their type": (
        replace("_look_at_events", "(wanted.event_type IS NULL OR", "(true OR"),
        [lambda db: many_parked.test_only_what_fits_is_decided_and_each_is_recorded(db, "discard", "another type")],
    ),
    "many events are decided about whatever their error": (
        replace("_look_at_events", "(wanted.error IS NULL OR", "(true OR"),
        [lambda db: many_parked.test_only_what_fits_is_decided_and_each_is_recorded(db, "discard", "another error")],
    ),
    "a place may be of another tenant": (
        replace("_look_at_messages", "place IS NOT NULL AND owner = coalesce(wanted.tenant, owner)", "place IS NOT NULL AND owner = coalesce(owner, wanted.tenant)"),
        [many_dead.test_a_bound_role_decides_about_its_own_tenant_alone_whatever_it_says_it_had_before],
    ),
    "one that is refused spoils the rest": (
        replace("_decide_message", "RETURN 'P4041';", "RAISE 'refused';"),
        [many_dead.test_what_no_attempt_may_run_and_what_could_not_be_remembered_is_skipped_and_the_rest_is_decided],
    ),
    "a message that is retried has used its attempts": (
        replace("_decide_message", "SET attempts = 0, next_at = now,", "SET next_at = now,"),
        [lambda db: many_dead.test_only_what_fits_is_decided_and_each_is_recorded(db, "retry", "nothing")],
    ),
    "a dry run changes something": (
        replace("_decide_many", "IF NOT dry_run AND cardinality", "IF cardinality"),
        [lambda db: many_parked.test_a_dry_run_counts_and_changes_nothing_and_is_what_it_does_unless_told_otherwise(db, "retry")],
    ),
    "many are decided about by a state that they have no more": (
        replace("_decide_events", 'AND p.id = ANY (chosen) AND (of_state IS NULL OR p.state = of_state COLLATE "C")', "AND p.id = ANY (chosen)"),
        [many_parked.test_a_relay_that_is_at_work_waits_for_a_piece_and_the_piece_for_it],
    ),
    "many are decided about beside the relay": (
        replace("_decide_events", "PERFORM once._relay_row(holder);", ""),
        [
            lambda db, first=first: many_parked.test_an_event_that_is_parked_behind_one_of_many_that_are_just_being_discarded_is_not_stuck(db, first)
            for first in ("the operator", "the relay")
        ],
    ),
    "a look holds the relay's row": (
        replace("_look_at_events", "WITH part AS MATERIALIZED", "PERFORM once._relay_row(piece.holder); WITH part AS MATERIALIZED"),
        [many_parked.test_a_look_that_finds_nothing_waits_for_no_relay],
    ),
    "all that are retried have a time of their own": (
        replace("_decide_events", "next_at = CASE WHEN g.behind THEN 'infinity' ELSE now END", "next_at = now"),
        [many_parked.test_many_that_are_retried_keep_the_order_of_their_aggregate_and_only_the_first_of_each_is_due_by_itself],
    ),
    "what stood behind many is stuck": (
        replace("_decide_events", "PERFORM once._promote(holder, aggregates);", "PERFORM 1;"),
        [many_parked.test_what_stood_behind_discarded_events_goes_on],
    ),
    "many decisions meet what is parked meanwhile": (
        replace("_look_at_events", "AND q.id <= until", ""),
        [many_parked.test_it_goes_through_all_relays_and_what_is_parked_later_is_not_met],
    ),
    "a piece has no bounds": (
        replace("_look_at_events", "LIMIT 10000) AS p", "LIMIT 1000000) AS p"),
        [many_parked.test_a_piece_looks_at_ten_thousand_and_ends_where_none_fits],
    ),
    "many are decided about whatever their age": (
        replace("_look_at_events", "(wanted.before IS NULL OR", "(true OR"),
        [lambda db: many_parked.test_only_what_fits_is_decided_and_each_is_recorded(db, "discard", "age")],
    ),
    "a rare topic that no relay takes is not seen": (
        replace("outbox_untaken", "UNION ALL SELECT u.topic, u.events, u.oldest FROM once.untaken AS u", ""),
        [operators.test_the_keeper_finds_a_rare_topic_that_no_relay_takes_behind_thousands_of_others],
    ),
    "what no relay takes is told although one takes it now": (
        replace("outbox_untaken", "WHERE NOT EXISTS (SELECT FROM once.relay AS r WHERE t.topic LIKE ANY (r.topics))", ""),
        [operators.test_the_keeper_finds_a_rare_topic_that_no_relay_takes_behind_thousands_of_others],
    ),
    "passes for what no relay takes add up": (
        replace("_keep_untaken", "DELETE FROM once.untaking;", ""),
        [operators.test_the_keeper_finds_a_rare_topic_that_no_relay_takes_behind_thousands_of_others],
    ),
    "a pass for what no relay takes never rests": (
        replace("_keep_untaken", "clock_timestamp() >= place.ended_at AND", "false AND"),
        [operators.test_the_keeper_finds_a_rare_topic_that_no_relay_takes_behind_thousands_of_others],
    ),
    "a pass for what no relay takes begins each day anew": (
        replace("_keep_untaken", "IF place.leaf <> 'outbox_d' || days[nth] THEN", "IF true THEN"),
        [operators.test_a_pass_for_what_no_relay_takes_goes_on_where_it_was_and_over_a_day_that_is_gone],
    ),
    "a pass for what no relay takes looks for a day that is gone": (
        replace("_keep_untaken", "d >= substr(", "d = substr("),
        [operators.test_a_pass_for_what_no_relay_takes_goes_on_where_it_was_and_over_a_day_that_is_gone],
    ),
    "what no relay takes is looked for where one takes all": (
        replace("_keep_untaken", "(SELECT coalesce(bool_or(r.topics IS NULL), true) FROM once.relay AS r)", "false"),
        [lambda db: operators.test_where_a_relay_takes_all_or_none_has_run_the_keeper_reads_no_event(db, None)],
    ),
    "a delayed event comes before its time": (
        replace("relay_release", "d.not_before <= now AND", ""),
        [later.test_of_what_is_delayed_only_what_is_due_is_released],
    ),
    "delayed events are released as they come": (
        replace("relay_release", "ORDER BY g.not_before, g.emitted_at", ""),
        [later.test_those_that_are_due_first_come_first_and_of_one_time_the_first_emitted],
    ),
    "two sessions release at once": (
        replace("relay_release", "NOT pg_try_advisory_xact_lock(hashtextextended('pgonce delayed', 20778))", "false"),
        [later.test_one_session_releases_at_a_time_and_the_others_go_on_without],
    ),
    "a releaser waits for a decision": (
        replace("relay_release", "FOR UPDATE SKIP LOCKED", "FOR UPDATE NOWAIT"),
        [later.test_what_is_just_being_cancelled_keeps_no_other_waiting],
    ),
    "an event that is just emitted is released too": (
        replace("relay_release", "WHERE l.key IS NULL OR pg_try_advisory_xact_lock(once._event_lock(l.tenant, l.scope, l.key, l.event_type))", ""),
        [later.test_what_emit_is_just_publishing_is_left_for_the_next_look],
    ),
    "a delayed event that was emitted on another day is published again": (
        replace("relay_release", "AND o.event_type = g.event_type", "AND false"),
        [with_moved(later.test_an_event_that_was_emitted_on_another_day_is_not_published_again)],
    ),
    "a released event has the time at which it was asked for": (
        replace("relay_release", "SELECT day, now, g.event_id", "SELECT day, g.emitted_at, g.event_id"),
        [later.test_an_event_is_held_until_it_is_due_and_then_has_all_that_was_given_and_the_time_of_its_release],
    ),
    "a released event is of a day that was told to nobody": (
        replace("relay_release", "PERFORM nextval('once.outbox_day_seq')", "EXIT"),
        [later.test_an_event_that_is_released_tomorrow_is_the_same_event_when_the_clock_has_stepped_back],
    ),
    "a releaser fails where today has no partition": (
        replace("relay_release", "IF NOT once._has_day('outbox', day) THEN RETURN; END IF;", ""),
        [later.test_where_today_has_no_partition_it_waits_and_raises_nothing],
    ),
    "events are released into a database that gets its events by a subscription": (
        replace("relay_release", "OR once._outbox_subscribed()", ""),
        [later.test_a_copy_by_logical_replication_releases_nothing],
    ),
    "what is due at once overtakes what is due already": (
        replace("emit_later", "IS NULL OR NOT EXISTS (", "IS NULL OR true OR NOT EXISTS ("),
        [later.test_an_event_whose_time_is_past_does_not_overtake_one_of_its_aggregate_that_is_due_and_not_released],
    ),
    "a delayed event is forgotten when it is emitted again": (
        replace("emit_later", "SELECT d.* INTO held FROM once.delayed_event AS d WHERE d.event_id = event_id;", "SELECT NULL INTO held WHERE false;"),
        [later.test_the_same_event_again_is_the_same_event_and_the_first_time_holds],
    ),
    "an event that was published can be delayed": (
        replace("emit_later", "AND o.event_type = kind COLLATE \"C\";", "AND false;"),
        [later.test_it_has_the_id_that_emit_gives_it_and_is_the_same_event_once_it_is_released],
    ),
    "a delayed event has another id than an emitted one": (
        replace("emit_later", "once._derived_id(s.salt, tenant, scope, key, kind)", "gen_random_uuid()"),
        [later.test_it_has_the_id_that_emit_gives_it_and_is_the_same_event_once_it_is_released],
    ),
    "two transactions delay one event": (
        replace("emit_later", "NOT pg_try_advisory_xact_lock(once._event_lock(tenant, scope, key, kind))", "false"),
        [lambda db: later.test_two_transactions_never_emit_one_event_at_once(db, "emit")],
    ),
    "an event may be delayed for ever": (
        replace("emit_later", "isfinite(not_before) AND not_before < now + interval '100 years'", "not_before IS NOT NULL"),
        [lambda db: later.test_a_time_that_is_none_is_refused(db, "'infinity'")],
    ),
    "an event that is too large is found when it is due": (
        replace("emit_later", "PERFORM once._check_event(tenant, scope, key, topic, kind, payload, NULL, NULL, headers, NULL);", ""),
        [lambda db: later.test_what_emit_refuses_is_refused_at_once_and_not_when_it_is_due(db, *later.TOO_LARGE)],
    ),
    "the event of another tenant can be cancelled": (
        replace("cancel_event", "AND d.tenant = tenant COLLATE \"C\"", ""),
        [later.test_cancelling_is_in_the_transaction_of_what_makes_it_needless],
    ),
    "what emit has published is published again when its day is gone": (
        replace("_drop_superseded", "AND o.event_type = d.event_type", "AND false"),
        [with_moved(later.test_an_event_that_emit_published_is_forgotten_when_the_day_of_that_is_dropped, by) for by in ("keeper", "retire_outbox")],
    ),
    "a decision about a delayed event leaves no trace": (
        replace("_decide_delayed", "'delayed' FROM decided AS d)", "'delayed' FROM decided AS d WHERE false)"),
        [lambda db: later.test_an_operator_releases_it_now_or_gives_it_up(db, "retry")],
    ),
    "decisions about parked events meet delayed ones": (
        both(replace("_decide_many", "WHEN wanted.state = 'delayed' THEN", "WHEN coalesce(wanted.state, 'delayed') = 'delayed' THEN"),
             replace("_decide_many", "OR (part = 'delayed') <> (wanted.state IS NOT DISTINCT FROM 'delayed')", "")),
        [lambda db: many_parked.test_delayed_events_are_decided_by_topic_and_age_and_only_if_they_are_named(db, "discard")],
    ),
    "decisions about delayed events meet what is emitted meanwhile": (
        replace("_look_at_delayed", "AND d.emitted_at <= until", ""),
        [many_parked.test_of_delayed_events_what_is_emitted_after_the_first_piece_is_not_met],
    ),
    "each look for delayed events reads them all": (
        replace("relay_release", "ORDER BY d.not_before, d.emitted_at LIMIT 1;", "WHERE d.payload IS NOT NULL ORDER BY d.not_before + interval '0' LIMIT 1;"),
        [cost.test_a_hundred_thousand_delayed_events_cost_a_look_nothing],
    ),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_the_tests_notice_when(server, broken):
    assert_noticed(server, *BROKEN[broken], does_its_plain_work, also=(TimeoutError,))
