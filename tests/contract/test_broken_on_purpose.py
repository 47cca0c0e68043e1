# SPDX-License-Identifier: PostgreSQL
"""Each guarantee taken out of the contract, in a scratch database, and the tests that notice: a test that passes
without its guarantee proves nothing. After each mutation the contract still does its plain work, so that a test fails
for the missing guarantee and not for a contract that is broken altogether."""

import pytest
from harness.mutation import assert_noticed, both, mutate, replace, run_sql

from . import test_batches as batches
from . import test_crash as crash
from . import test_doubts as doubts
from . import test_emit as emit
from . import test_emit_bytes as emit_bytes
from . import test_errors as errors
from . import test_fences as fences
from . import test_fingerprints as fingerprints
from . import test_hostile as hostile
from . import test_inbox as inbox
from . import test_isolation as isolation
from . import test_limits as limits
from . import test_locks as locks
from . import test_one_effect as one_effect
from . import test_outcomes as outcomes
from . import test_plans as plans
from . import test_policy as policy
from . import test_redirects as redirects
from . import test_roles as roles
from . import test_schemas as schemas
from . import test_search_path as search_path
from . import test_started as started
from . import test_transitions as transitions
from . import test_unfinished as unfinished
from . import test_vectors as vectors
from .calls import Once, run


def has_form(db, text, form):
    vectors.test_sql_and_libpgonce_give_a_json_text_its_canonical_form_or_none(
        db.connect(), vectors.Library(), {"text": text, "canonical": form}
    )


def is_key(db, header, key):
    """None: it is refused."""
    vector = {"header": header} | ({"refused": "A parameter after the quoted key is malformed."} if key is None else {"key": key})
    vectors.test_sql_and_libpgonce_find_the_key_of_a_header_or_say_why_not(db.connect(), vectors.Library(), vector)


def reset_search_paths(db):
    for function in search_path.definers(db):
        db.execute(f"ALTER FUNCTION {function.name} RESET search_path")


def each_search_path(db):
    """The attack itself must succeed, not only the look at the catalogue."""
    assert search_path.attack(db) == set()


def no_lock(*functions):
    def apply(db):
        for function in functions:
            mutate(db, function, "pg_try_advisory_xact_lock(once._lock_id(tenant, scope, key))", "true")

    return apply


def drop_primary_key(db):
    db.execute("ALTER TABLE once.intent DROP CONSTRAINT intent_pkey")


def race_at_every_level(db):
    isolation.test_an_attempt_with_an_old_snapshot_ends_in_40001_and_its_retry_replays(db, "REPEATABLE READ")


def races_of_claims(db):
    isolation.test_a_claim_or_a_message_with_an_old_snapshot_ends_in_40001(db, "REPEATABLE READ")


def bound_role_at(function):
    return lambda db: roles.test_a_bound_role_is_refused_another_tenant_in_the_same_words_whether_or_not_the_key_exists(
        db, function
    )


FENCE = "AND i.fence = fence AND "

# what is taken out: (how, the checks that must fail then)
BROKEN = {
    "start takes no lock": (
        no_lock("start", "_check_and_lock", "_start_over"),
        [one_effect.test_a_second_start_is_told_at_once_that_the_first_is_running],
    ),
    "claim takes no lock": (
        no_lock("_claim"),
        [one_effect.test_a_second_claim_is_told_at_once_while_the_first_is_uncommitted],
    ),
    "finish does not ask who started": (
        both(
            replace("finish", "once._has_started(tenant, scope, key, fingerprint)", "true"),
            replace("finish", "once._noted_start(tenant, scope, key, fingerprint)", "coalesce(once._noted_start(tenant, scope, key, fingerprint), 1)"),
        ),
        [
            started.test_in_autocommit_finish_fails_and_nothing_is_stored,
            started.test_a_start_that_was_rolled_back_to_a_savepoint_is_none,
            started.test_another_transaction_of_the_same_session_is_another,
        ],
    ),
    "finish takes any fingerprint": (
        both(
            replace("_has_started", "key, fingerprint, '')", "key, '')"),
            replace("_noted_start", "scope, key, fingerprint, ''), 2), E'\\x1f', 1)", "scope, key, ''), 2), E'\\x1f', 2)"),
        ),
        [lambda db: started.test_finish_with_another_fingerprint_than_start_took_is_refused_and_leaves_no_trace(db, False)],
    ),
    "a fingerprint is compared as text": (
        replace("_start_of", "split_part(note, E'\\x1f', 1)::bytea <> fingerprint", "split_part(note, E'\\x1f', 1) <> fingerprint::text"),
        [started.test_finish_knows_the_fingerprint_whatever_form_bytes_have_by_then],
    ),
    "an intent may be started twice": (
        replace("_note_start", "NOT once._has_outcome(", "false AND NOT once._has_outcome("),
        [lambda db, function=function: started.test_a_second_start_in_one_transaction_is_refused(db, function) for function in ("start", "finish_new")],
    ),
    "an intent is not started again": (
        replace("_note_start", "NOT once._has_outcome(", "true OR NOT once._has_outcome("),
        [started.test_a_transaction_that_finishes_retryably_may_start_and_finish_again],
    ),
    "finish_new does not ask who has started": (
        replace("_is_first", "AND coalesce(current_setting('once.started', true), '') = ''", ""),
        [lambda db: started.test_a_second_start_in_one_transaction_is_refused(db, "finish_new")],
    ),
    "once.strict is nothing": (
        replace("_note_start", "nullif(current_setting('once.strict', true), '')::boolean AND", "false AND"),
        [lambda db: unfinished.test_a_forgotten_finish_fails_the_end_of_the_transaction(db, "COMMIT")],
    ),
    "what was claimed is taken for finished": (
        replace("_has_outcome", "AND i.state <> 'processing'", ""),
        [unfinished.test_a_claim_is_no_outcome],
    ),
    "an older outcome is taken for this start's": (
        replace("_has_outcome", "AND i.fence >= fence", ""),
        [unfinished.test_the_outcome_of_an_earlier_attempt_is_not_this_ones],
    ),
    "once.strict in a read-only transaction": (
        replace("_note_start", "AND current_setting('transaction_read_only') = 'off'", ""),
        [unfinished.test_a_read_only_transaction_owes_nothing],
    ),
    "an outcome is not looked at": (
        replace("_wrong_outcome", "WHEN status NOT", "WHEN true THEN NULL WHEN status NOT"),
        [lambda db: outcomes.test_an_outcome_that_is_none_is_refused_at_every_door_and_stores_nothing(db, {"response_status": 99999}, "complete_many")],
    ),
    "text is read as the escapes of bytea": (
        replace("_body_of", "convert_to(coalesce(response_text, response_json::text), 'UTF8')", "coalesce(response_text, response_json::text)::bytea"),
        [lambda db: outcomes.test_text_is_stored_as_it_is(db, "finish")],
    ),
    "batches take no lock": (
        both(
            replace("claim_many", "pg_try_advisory_xact_lock(once._lock_id(tenant, c.scope, c.key))", "true"),
            no_lock("_claim"),
        ),
        [batches.test_two_open_batches_over_the_same_intents_never_wait_and_share_nothing],
    ),
    "the primary key is gone": (drop_primary_key, [race_at_every_level, races_of_claims]),
    "finish has no ON CONFLICT": (
        replace("finish", "ON CONFLICT DO NOTHING", ""),
        [
            isolation.test_a_retryable_failure_lets_the_next_start_proceed_under_the_next_fence,
            fences.test_a_start_over_a_stale_attempt_shuts_out_the_zombie,
        ],
    ),
    "finish_new does not look before it inserts": (
        replace("finish_new", "NOT FOUND AND once._is_first(", "once._is_first("),
        [lambda db: one_effect.test_finish_new_does_not_wait_for_an_open_completion(db, False)],
    ),
    "finish_new has no ON CONFLICT": (
        replace("finish_new", "ON CONFLICT DO NOTHING", ""),
        [races_of_claims],
    ),
    "claim has no ON CONFLICT": (
        replace("_claim", "ON CONFLICT DO NOTHING", ""),
        [races_of_claims],
    ),
    "a takeover waits for an open report": (
        replace("_hold", "FOR UPDATE SKIP LOCKED", "FOR UPDATE"),
        [
            lambda db: one_effect.test_a_claim_does_not_wait_for_an_open_completion(db, True),
            lambda db: one_effect.test_a_batch_of_claims_does_not_wait_for_an_open_completion(db, True),
        ],
    ),
    "finish may overwrite a finished intent": (
        replace(
            "_finish_over",
            "AND i.fence = fence - 1 AND (i.state = 'failed_retryable' OR (i.state = 'processing' AND i.lease_until <= now))",
            "",
        ),
        [isolation.test_a_claim_after_start_in_one_transaction_makes_finish_refuse],
    ),
    "whoever comes to an intent that was redirected is its request": (
        replace("_same", "fingerprint = given OR", "redirects IS NOT NULL OR fingerprint = given OR"),
        [lambda db: redirects.test_where_a_request_is_redirected_to_the_same_intent_runs_once(db, "fail", "claim_many")],
    ),
    "what is final or in doubt is redirected": (
        replace("_redirected", "next_state <> 'failed_retryable'", "false"),
        [lambda db: redirects.test_only_what_may_run_again_is_redirected(db, None)],
    ),
    "reports ignore the fence": (
        replace("_report", FENCE, "AND "),
        [
            fences.test_an_attempt_that_lost_its_lease_cannot_complete,
            lambda db: fences.test_an_attempt_that_lost_its_lease_cannot_fail(db, True),
            fences.test_an_operators_decision_shuts_out_the_zombie,
            fences.test_a_fence_from_the_future_or_none_holds_nothing,
            transitions.test_no_event_with_a_wrong_fence_changes_anything,
        ],
    ),
    "complete ignores the fence": (
        replace("complete", FENCE, "AND "),
        [
            fences.test_an_attempt_that_lost_its_lease_cannot_complete,
            fences.test_an_operators_decision_shuts_out_the_zombie,
            fences.test_a_fence_from_the_future_or_none_holds_nothing,
        ],
    ),
    "a completion is stored twice": (
        replace("complete", "i.state IN ('processing', 'in_doubt')", "true"),
        [
            fences.test_a_completion_sent_twice_is_stored_once_and_told_so,
            transitions.test_the_changes_of_state_are_exactly_those_of_the_table,
        ],
    ),
    "a scope has every scope's policy": (
        replace("_policy", "ORDER BY p.scope DESC", "ORDER BY p.scope"),
        [policy.test_verify_absent_lets_the_next_attempt_run],
    ),
    "renew ignores the fence": (
        replace("_renew", FENCE, "AND "),
        [fences.test_an_attempt_that_lost_its_lease_cannot_renew],
    ),
    "release ignores the fence": (
        replace("release", FENCE, "AND "),
        [fences.test_an_attempt_that_lost_its_lease_cannot_release],
    ),
    "a takeover does not raise the fence": (
        replace("_take_over", "fence = i.fence + 1", "fence = i.fence"),
        [
            fences.test_a_release_and_a_new_claim_shut_out_the_zombie,
            fences.test_an_attempt_that_lost_its_lease_cannot_complete,
        ],
    ),
    "a decision does not raise the fence": (
        replace("_decide", "fence = fence + 1", "fence = fence"),
        [fences.test_an_operators_decision_shuts_out_the_zombie],
    ),
    "leases never hold": (
        replace("_verdict", "lease_until > now THEN", "false THEN"),
        [fences.test_a_renewed_lease_keeps_others_out],
    ),
    "a report is stored twice": (
        replace("_report", "(i.state = 'processing' OR", "(i.state IN ('processing', 'succeeded', 'failed_final') OR"),
        [
            fences.test_a_completion_sent_twice_is_stored_once_and_told_so,
            batches.test_of_two_completions_of_one_intent_in_a_batch_the_first_is_stored,
            transitions.test_the_changes_of_state_are_exactly_those_of_the_table,
        ],
    ),
    "start compares no fingerprint": (
        replace("start", "i.fingerprint = fingerprint AND ", ""),
        [one_effect.test_the_same_key_with_another_request_is_a_mismatch_and_changes_nothing],
    ),
    "verdicts compare no fingerprint": (
        replace("_verdict", "WHEN NOT same THEN 'mismatch'", ""),
        [
            one_effect.test_the_same_key_with_another_request_is_a_mismatch_and_changes_nothing,
            batches.test_the_same_key_twice_in_a_batch_is_one_claim,
        ],
    ),
    "a mismatch shows the stored answer": (
        replace("claim_many", "(verdict IN ('new_claim',", "(verdict IN ('mismatch', 'new_claim',"),
        [one_effect.test_a_mismatch_tells_nothing_of_the_stored_answer],
    ),
    "receive compares no fingerprint": (
        replace("receive", "stored.fingerprint <> fingerprint", "false"),
        [inbox.test_a_message_id_with_another_payload_is_refused],
    ),
    "emit compares no payload": (
        replace("_check_repeated", "first.payload <> payload", "false"),
        [lambda db: emit.test_the_same_event_type_with_another_content_is_refused(db, {"payload": '{"id": 8}'})],
    ),
    "emit_bytes compares no bytes": (
        replace("_check_repeated", "first.payload_bytes IS DISTINCT FROM payload_bytes", "false"),
        [lambda db: emit_bytes.test_the_same_event_type_with_other_bytes_or_another_content_type_is_refused(db, {"payload": b""})],
    ),
    "emit_bytes compares no content type": (
        replace("_check_repeated", 'first.content_type IS DISTINCT FROM content_type COLLATE "C"', "false"),
        [lambda db: emit_bytes.test_the_same_event_type_with_other_bytes_or_another_content_type_is_refused(db, {"content_type": "a/b"})],
    ),
    "emit_bytes takes any content type": (
        replace("_are_usual_bytes", "AND once._is_content_type(content_type)", ""),
        [lambda db: emit_bytes.test_a_content_type_that_no_header_can_hold_is_refused(db, "text/plain\n", 1)],
    ),
    "a large payload's content type is not looked at": (
        replace("_check_event", "once._is_content_type(content_type) IS NOT TRUE", "false"),
        [lambda db: emit_bytes.test_a_content_type_that_no_header_can_hold_is_refused(db, "text/plain\n", 9000)],
    ),
    "bytes of any size": (
        replace("_are_usual_bytes", "octet_length(payload) <= 8192", "payload IS NOT NULL"),
        [emit_bytes.test_the_bytes_of_an_event_have_the_limit_of_its_scope],
    ),
    "a payload of bytes is JSON's null, too": (
        replace("relay_fetch", "CASE WHEN o.payload_bytes IS NULL THEN o.payload END", "o.payload"),
        [emit_bytes.test_a_relay_is_given_the_bytes_and_their_content_type],
    ),
    "events are new each time": (
        replace("emit", "IF key IS NULL THEN", "IF true THEN"),
        [
            emit.test_the_same_event_of_an_intent_again_is_the_same_event,
            emit.test_an_events_id_is_the_same_across_attempts,
        ],
    ),
    "emit forgets the days after": (
        replace("_emitted_later", "o.day > day", "false"),
        [lambda db: emit.test_the_same_event_again_after_the_clock_has_stepped_back_is_the_same_event(db, False, 1)],
    ),
    **{
        f"{function} begins at one whatever was forgotten": (
            replace(function, "once._first_fence()", "1"),
            [lambda db, door=door: fences.test_a_key_that_was_forgotten_comes_again_under_a_higher_fence(db, door)],
        )
        for function, door in (("start", "start, finish"), ("finish_new", "finish_new"),
                               ("_claim", "claim"), ("claim_many", "claim_many"))
    },
    **{
        f"{function} begins at one whatever was forgotten": (
            replace(function, "once._first_fence()", "1"),
            [lambda db, function=function: fences.test_a_key_that_was_forgotten_is_received_under_a_higher_fence(db, function)],
        )
        for function in ("receive", "receive_many")
    },
    "a doubt is asked about while its attempt may be at work": (
        replace("_recover_doubt", "(doubt.stored).lease_until > clock_timestamp()", "false"),
        [lambda db: doubts.test_nothing_is_asked_about_a_doubt_whose_attempt_may_still_be_at_work(db, "absent")],
    ),
    "try_start raises what a verify function raises": (
        replace("_start_over", "IF raising THEN\n            verified", "IF true THEN\n            verified"),
        [started.test_a_verify_function_that_raises_is_a_doubt_to_try_start],
    ),
    "a claim takes over though it must not": (
        replace("_claim", "takeover IS NOT NULL", "false"),
        [lambda db: policy.test_a_claim_that_must_not_take_over_leaves_a_doubt(db, "claim")],
    ),
    "finish looks for a fence of its own": (
        replace("finish", "once._noted_start(tenant, scope, key, fingerprint)", "once._first_fence()"),
        [fences.test_finish_stores_the_fence_that_start_gave_though_others_are_forgotten_in_between],
    ),
    "emit does not say which day it is": (
        replace("_emitted_later", "PERFORM nextval('once.outbox_day_seq');", "EXIT;"),
        [
            lambda db: emit.test_the_same_event_again_after_the_clock_has_stepped_back_is_the_same_event(db, True, 2),
            emit.test_who_emits_first_after_idle_days_says_so_though_it_rolls_back,
        ],
    ),
    "an event's id without the salt": (
        replace("_derived_id", "sha256(salt || convert_to(tenant, 'UTF8'))", "''::bytea"),
        [emit.test_the_same_names_in_another_installation_are_another_event],
    ),
    "a scope of any length": (
        replace("_quick_check", "octet_length(tenant || scope) <= 255", "true"),
        [lambda db: hostile.test_a_missing_or_long_scope_is_refused_at_every_door(db, "s" * 256)],
    ),
    "no scope at all": (
        replace("_quick_check", "scope <> ''", "true"),
        [lambda db: hostile.test_a_missing_or_long_scope_is_refused_at_every_door(db, "")],
    ),
    "a fingerprint of any length": (
        replace("_quick_check", "octet_length(fingerprint) IN (16, 20, 28, 32, 48, 64)", "true"),
        [
            lambda db: hostile.test_a_missing_or_odd_fingerprint_is_refused_at_every_door(db, b"x" * 15),
            lambda db: hostile.test_a_missing_or_odd_fingerprint_is_refused_at_every_door(db, None),
        ],
    ),
    "finish_new inserts plainly above READ COMMITTED": (
        replace("finish_new", "= 'read committed'", "<> ''"),
        [races_of_claims],
    ),
    "finish_new inserts plainly without the lock": (
        no_lock("finish_new", "_check_and_lock"),
        [one_effect.test_a_second_finish_new_is_told_at_once_while_the_first_is_uncommitted],
    ),
    "absent is told as a silence": (
        replace("_take_over", "verdict := 'retryable_failure'", "verdict := 'processing_stale'"),
        [
            policy.test_verify_absent_lets_the_next_attempt_run,
            policy.test_a_takeover_tells_a_silent_attempt_from_one_that_certainly_had_no_effect,
        ],
    ),
    "keys of any characters": (
        replace("_bucket_of_other", "AND key COLLATE \"C\" ~ '^[ -~]+$'", ""),
        [lambda db: hostile.test_a_malformed_key_is_refused_at_every_door(db, "a\nb")],
    ),
    "bodies of any size": (
        replace("_too_large", "octet_length(outcome.response_body),", "0,"),
        [hostile.test_a_10_mb_body_is_refused_by_the_default_limit],
    ),
    "headers of any size": (
        replace("_is_plain", "octet_length(headers::text) <= 65536", "true"),
        [lambda db: limits.test_what_is_stored_with_an_outcome_has_a_limit_at_every_door(db, "complete", "response_headers")],
    ),
    "results of any size": (
        replace("_is_usual", "octet_length(result_id) > 2048", "false"),
        [lambda db: limits.test_what_is_stored_with_an_outcome_has_a_limit_at_every_door(db, "finish", "result_id")],
    ),
    "a report's words of any size": (
        replace("fail", "left(error_message, 4096)", "error_message"),
        [lambda db: limits.test_a_failure_with_too_many_words_is_stored_and_its_words_are_cut(db, "fail")],
    ),
    "payloads of any size": (
        replace("emit", "octet_length(payload::text) <= 8192", "payload IS NOT NULL"),
        [lambda db: limits.test_the_payload_of_an_event_has_the_limit_of_its_scope(db, None)],
    ),
    "a replay trims the body": (
        replace("start", "i.response_body,", "btrim(i.response_body, '\\x00'::bytea),"),
        [hostile.test_all_byte_values_round_trip],
    ),
    "the same key twice in a batch is two claims": (
        replace("claim_many", "c.nth = 1", "true"),
        [batches.test_the_same_key_twice_in_a_batch_is_one_claim],
    ),
    "batches of unequal arrays": (
        replace("_check_sizes", "(sizes[1] = ALL (sizes)) IS NOT TRUE", "false"),
        [lambda db: hostile.test_arrays_of_unequal_length_are_refused_as_a_whole(db, "claim_many")],
    ),
    "search_path is the caller's": (reset_search_paths, [search_path.test_every_security_definer_function_has_a_fixed_search_path_with_pg_temp_last]),
    "search_path is the caller's, and somebody lays traps": (reset_search_paths, [each_search_path]),
    "nobody is authorised": (
        replace("_check_tenant", "PERFORM once._may_name(tenant);", ""),
        [
            bound_role_at("start"),
            bound_role_at("claim"),
            bound_role_at("peek"),
            bound_role_at("emit"),
            bound_role_at("salt"),
        ],
    ),
    "batches authorise nobody": (
        replace("_check_batch", "PERFORM once._check_tenant(tenant, NULL, NULL);", ""),
        [bound_role_at("claim_many"), bound_role_at("peek_many")],
    ),
    "every login is trusted": (
        replace("_is_trusted", "has_function_privilege(session_user, 'once.any_tenant()'::regprocedure, 'execute')", "true"),
        [bound_role_at("start"), bound_role_at("finish"), bound_role_at("emit"), bound_role_at("claim")],
    ),
    "SET ROLE is ignored": (
        replace("_is_trusted", "current_setting('role') = 'none'", "true"),
        [roles.test_set_role_to_a_bound_role_binds],
    ),
    **{
        f"{function} trusts everybody": (replace(function, "once._is_trusted(tenant)", "true"), [bound_role_at(function)])
        for function in ("start", "try_start", "finish_new", "emit")
    },
    "finish trusts whoever comes after start": (
        replace("finish", "once._is_trusted(tenant)", "true"),
        [lambda db: roles.test_a_role_that_is_set_between_start_and_finish_binds(db, "k")],
    ),
    "finish trusts whoever comes after start, of today": (
        replace("finish", "once._is_trusted(tenant)", "true"),
        [lambda db: roles.test_a_role_that_is_set_between_start_and_finish_binds(db, "of today")],
    ),
    **{
        f"{function} looks at no fingerprint": (
            replace(function, "once._quick_check(tenant, scope, fingerprint)", "true"),
            [lambda db: hostile.test_a_missing_or_odd_fingerprint_is_refused_at_every_door(db, b"x" * 15)],
        )
        for function in ("start", "finish_new")
    },
    "a table is readable": (
        run_sql("GRANT SELECT ON once.intent TO once_app; GRANT USAGE ON SCHEMA once TO PUBLIC"),
        [lambda db: roles.test_no_role_but_the_owner_can_touch_any_table(db, "app")],
    ),
    "an inner function is callable": (
        run_sql("GRANT EXECUTE ON FUNCTION once._lock_id(text, text, text) TO once_app"),
        [lambda db: roles.test_a_role_can_execute_exactly_the_functions_granted_to_it(db, "app")],
    ),
    "an application may use the schema of the jobs": (
        run_sql("GRANT USAGE ON SCHEMA once_job TO once_app"),
        [lambda db: schemas.test_only_daemons_and_administrators_may_use_the_schema_of_the_jobs(db, "app")],
    ),
    "an application may call a function of the jobs": (
        run_sql("GRANT EXECUTE ON FUNCTION once_job.keep_take(text, interval) TO once_app"),
        [lambda db: schemas.test_only_daemons_and_administrators_may_use_the_schema_of_the_jobs(db, "app")],
    ),
    "a function of the jobs is among those of applications": (
        run_sql("ALTER FUNCTION once_job.relay_flush() SET SCHEMA once"),
        [schemas.test_each_function_is_in_the_schema_of_those_who_call_it],
    ),
    "salts are the same for all tenants": (
        replace("salt", "convert_to(salt.tenant, 'UTF8')", "''::bytea"),
        [roles.test_each_tenant_has_its_own_salt_and_fingerprints],
    ),
    "JSON is not canonical": (
        run_sql(
            "CREATE OR REPLACE FUNCTION once.fingerprint(request jsonb, tenant text DEFAULT '') RETURNS bytea LANGUAGE"
            " sql AS $$ SELECT sha256(uuid_send(gen_random_uuid())) $$"
        ),
        [fingerprints.test_a_fingerprint_of_json_is_of_its_canonical_form],
    ),
    "1.0 is another number than 1": (
        replace("_json_text", "IF written", "IF false AND written"),
        [fingerprints.test_a_fingerprint_of_json_is_of_its_canonical_form, lambda db: has_form(db, "1.0", "1")],
    ),
    "zeros are cut in strings, too": (
        replace("_json_text", "([],}]|$)|$)$re$", "([],}]|$))$re$"),
        [fingerprints.test_zeros_in_a_string_of_json_are_no_number],
    ),
    "the last of two members counts": (
        replace("_json_body", "= members", "<= members"),
        [lambda db: has_form(db, '{"a":1,"a":2}', None)],
    ),
    "a text has a fingerprint of its own": (
        run_sql(
            "CREATE OR REPLACE FUNCTION once.fingerprint(request text, tenant text DEFAULT '') RETURNS bytea LANGUAGE"
            " sql AS $$ SELECT sha256(once.salt(tenant) || 't'::bytea || convert_to(request, 'UTF8')) $$"
        ),
        [
            lambda db: fingerprints.test_a_text_and_its_bytes_have_one_fingerprint(db, "a"),
            lambda db: fingerprints.test_every_driver_gives_a_value_the_same_fingerprint(db, fingerprints.CALLS[0], "a"),
        ],
    ),
    "a body is bytea's escape string": (
        run_sql("DROP FUNCTION once.request_fingerprint(text, text, text, text, text, boolean)"),
        [lambda db: fingerprints.test_every_driver_gives_a_value_the_same_fingerprint(db, fingerprints.CALLS[1], r"C:\\dir")],
    ),
    "a key keeps its quotes": (
        replace("key_of_header", "IF fault IS NOT NULL", "key := given; IF fault IS NOT NULL"),
        [lambda db: is_key(db, '"a"', "a")],
    ),
    "parameters of a key are not looked at": (
        replace("key_of_header", "WHEN left(rest, 1) = ';' THEN 'A parameter after the quoted key is malformed.'", ""),
        [lambda db: is_key(db, '"a";', None)],
    ),
    "in doubt may be claimed": (
        replace(
            "_verdict", "WHEN state = 'in_doubt' THEN 'in_doubt'", "WHEN state = 'in_doubt' THEN 'retryable_failure'"
        ),
        [
            policy.test_in_doubt_lets_no_attempt_run_until_it_is_resolved,
            transitions.test_the_changes_of_state_are_exactly_those_of_the_table,
        ],
    ),
    "a final failure may be claimed": (
        replace(
            "_verdict",
            "WHEN state = 'failed_final' THEN 'final_failure'",
            "WHEN state = 'failed_final' THEN 'retryable_failure'",
        ),
        [isolation.test_a_final_failure_is_recorded_after_its_effect_was_rolled_back],
    ),
    "attempts never end": (
        replace("_verdict", "attempts >= max_attempts", "false"),
        [
            policy.test_attempts_that_are_used_up_abandon_a_retryable_intent_for_good,
            policy.test_attempts_that_are_used_up_leave_a_stale_intent_in_doubt,
        ],
    ),
    "unknown is taken for absent": (
        replace("_start_over", "verified.answer = 'unknown' OR ", ""),
        [lambda db: policy.test_verify_unknown_or_anything_else_is_in_doubt(db, "'unknown'")],
    ),
    "a doubt is verified while its attempt may still be at work": (
        replace("_claim", "AND (stored.lease_until > now) IS NOT TRUE", ""),
        [lambda db: policy.test_a_doubt_without_an_answer_keeps_its_lease_and_is_verified_after_it(db, "claim")],
    ),
    "verify is not asked of what is in doubt": (
        replace("_claim", "AND (policy.on_stale = 'verify'", "AND (false"),
        [lambda db: policy.test_a_claim_asks_verify_of_what_is_in_doubt(db, "claim_many")],
    ),
    "an odd answer of verify is believed": (
        replace("_verify", "found_out.answer := 'unknown'", "found_out.answer := 'absent'"),
        [lambda db: policy.test_verify_unknown_or_anything_else_is_in_doubt(db, "'perhaps'")],
    ),
    "an operator may decide anything": (
        replace("resolve", "ELSIF NOT EXISTS", "ELSIF false AND NOT EXISTS"),
        [lambda db: policy.test_an_operator_cannot_decide_what_is_running_finished_or_unknown(db, "succeeded")],
    ),
    "an operator may decide over a running attempt": (
        replace("resolve", "once._is_live(stored.lease_until, now)", "false"),
        [lambda db: policy.test_an_operator_cannot_decide_what_is_running_finished_or_unknown(db, "live")],
    ),
    "a lease from a clock that was ahead binds the operator": (
        replace("_is_live", "AND lease_until <= now + interval '8 days'", ""),
        [policy.test_a_lease_that_was_taken_while_the_clock_was_ahead_is_listed_and_decided_as_one_that_has_passed],
    ),
    "a day is made as default privileges say": (
        replace("_close", "a.grantee <> c.relowner", "false"),
        [roles.test_default_privileges_open_nothing_that_is_made_later],
    ),
    "a lock outlives its transaction": (
        replace("try_lock", "pg_try_advisory_xact_lock", "pg_try_advisory_lock"),
        [locks.test_a_lock_is_held_until_the_transaction_ends],
    ),
    "an intent's lock outlives its transaction": (
        replace("start", "pg_try_advisory_xact_lock", "pg_try_advisory_lock"),
        [isolation.test_a_rollback_to_a_savepoint_undoes_start_and_finish],
    ),
    "start compares with the caller's collation": (
        replace("start", 'COLLATE "C"', ""),
        [lambda db: plans.test_no_type_or_collation_of_an_argument_changes_a_plan(db, "another collation", False)],
    ),
    "sequential scans are allowed": (
        run_sql(
            "ALTER FUNCTION once.peek(text, text, text) RESET enable_seqscan; ALTER FUNCTION once.claim"
            " RESET enable_seqscan"
        ),
        [
            lambda db: plans.test_plans_made_on_an_empty_table_stay_index_lookups_when_it_has_filled(
                db, "random access is dear", False
            )
        ],
    ),
    "sequential scans are allowed to emit": (
        run_sql("ALTER FUNCTION once.emit RESET enable_seqscan"),
        [
            lambda db: plans.test_plans_made_on_an_empty_table_stay_index_lookups_when_it_has_filled(
                db, "random access is dear", False
            )
        ],
    ),
    "an index on a changing column": (
        run_sql("CREATE INDEX ON once.intent (lease_until)"),
        [
            plans.test_completing_renewing_failing_and_releasing_a_claim_are_hot_updates,
            plans.test_no_index_but_the_primary_key_slows_an_intent,
        ],
    ),
    "start writes": (
        replace("start", "BEGIN IF", "BEGIN PERFORM pg_current_xact_id(); IF"),
        [plans.test_start_writes_nothing],
    ),
    "an error says the wrong thing": (
        replace("_refuse", "HINT = coalesce(hint, known.hint)", "HINT = ''"),
        [lambda db: errors.test_a_refusal_names_its_code_the_intent_and_a_hint(db, "P4002")],
    ),
    "an error repeats hostile input": (
        replace("_refuse", "'[[:cntrl:]]'", "'impossible'"),
        [hostile.test_an_error_names_hostile_input_in_a_glimpse_on_one_line],
    ),
}


def make_effects(db):
    db.execute("CREATE TABLE effect (key text NOT NULL, attempt integer)")


def does_its_plain_work(db):
    make_effects(db)
    connection = db.connect()
    once = Once(connection)
    run(connection, "BEGIN")
    assert once.start(key="plain").verdict == "proceed"
    once.finish(key="plain", response_body=b"a")
    run(connection, "COMMIT")
    assert once.claim(key="plain claim").verdict == "new_claim"
    assert once.complete(key="plain claim", fence=1) is True
    run(connection, "DELETE FROM once.intent")


@pytest.mark.parametrize("broken", BROKEN)
def test_the_tests_notice_when(server, broken):
    mutation, checks = BROKEN[broken]
    # The traps of other sessions do not reach it, but plain work needs nothing of the search path.
    assert_noticed(server, mutation, checks, make_effects if checks == [each_search_path] else does_its_plain_work)


@pytest.mark.parametrize(
    "check",
    [
        race_at_every_level,
        races_of_claims,
        each_search_path,
    ],
)
def test_on_the_whole_contract_the_checks_of_this_file_pass(db, check):
    check(db)


def retry_reads_the_answer(db):
    for boundary in crash.BOUNDARIES:
        db.execute("DELETE FROM once.intent; DELETE FROM effect")
        crash.test_a_backend_terminated_between_any_two_statements_leaves_one_effect(db, boundary)


def test_the_crash_tests_notice_when_the_outcome_is_not_in_the_effects_transaction(db):
    """What a store on another connection would do: the outcome is lost although the effect committed."""
    mutate(
        db,
        "finish",
        "ON CONFLICT DO NOTHING",
        "ON CONFLICT DO NOTHING; DELETE FROM once.intent AS i WHERE i.key = key; PERFORM 1",
    )
    with pytest.raises(AssertionError):
        retry_reads_the_answer(db)


def test_on_the_whole_contract_the_retry_reads_the_answer(db):
    retry_reads_the_answer(db)
