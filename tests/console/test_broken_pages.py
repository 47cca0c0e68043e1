# SPDX-License-Identifier: PostgreSQL
"""Each guarantee of the console's pages taken out on purpose: the tests must notice. As contract/test_broken_on_purpose.py."""

import pytest
from contract.calls import Once
from harness.mutation import assert_noticed, replace, replaced

from . import pages
from . import test_pages as tests


def does_its_plain_work(db):
    once = Once(db.connect())
    once.claim(key="plain", scope="plain")
    assert once.complete(key="plain", scope="plain", fence=1)
    assert [each["key"] for each in tests.find(db, scope="plain")] == ["plain"]
    db.execute("DELETE FROM once.intent")


def dry(name):
    return lambda db: tests.test_a_dry_run_changes_nothing(db, name)


def thousands(db):
    tests.test_thousands_page_without_gap_or_repetition_while_others_insert_and_days_are_closed_and_archived(db)


BROKEN = {
    "a page begins with the last row of the one before": (
        replace("_find_part", "WHERE {here} AND i.ctid < $1 AND ($3 IS NULL", "WHERE {here} AND $1 IS NOT NULL AND ($3 IS NULL"),
        [lambda db: tests.test_small_lists_page_through_everything(db, 7)],
    ),
    "a page leaves out the rest of a block": (
        replace("_walk", "place := ARRAY[place[1]] || string_to_array(btrim(met.address::text, '()'), ',')::bigint[];",
                "place := ARRAY[place[1], (string_to_array(btrim(met.address::text, '()'), ',')::bigint[])[1], 0];"),
        [lambda db: tests.test_small_lists_page_through_everything(db, 7)],
    ),
    "what was listed before its day was archived is listed again": (
        replace("_find_part", "'AND i.bucket < ' || lowest", "'AND i.bucket < 999999'"),
        [thousands],
    ),
    "the archive is not searched": (
        replace("_find_part", "'AND i.bucket < ' || lowest", "'AND false'"),
        [thousands, tests.test_a_day_that_is_closed_while_the_search_stands_in_it_loses_nothing],
    ),
    "a search does not stop": (
        replace("_walk", "(has_read AND clock_timestamp() > deadline)", "false"),
        [tests.test_a_search_stops_in_time_and_says_how_far_it_came],
    ),
    "a key is looked up in one scope": (
        replace("_find_key", "WHERE s.scope IS NOT NULL AND $3 IS NULL)", "WHERE false)"),
        [tests.test_a_key_is_found_in_every_scope_and_tenant_of_an_open_a_closed_and_an_archived_day],
    ),
    "a key is looked up for every tenant": (
        replace("_find_key", "AND ($2 IS NULL OR i.tenant COLLATE \"C\" = $2)", ""),
        [tests.test_a_key_is_found_in_every_scope_and_tenant_of_an_open_a_closed_and_an_archived_day],
    ),
    "a key of a closed day is not looked up": (
        replace("_find_key", "'intent_closed_d' || day", "'none'"),
        [tests.test_a_key_is_found_in_every_scope_and_tenant_of_an_open_a_closed_and_an_archived_day],
    ),
    "a key of an archived day is not looked up": (
        replace("_find_key", "'archive_' ||", "'none_' ||"),
        [tests.test_a_key_is_found_in_every_scope_and_tenant_of_an_open_a_closed_and_an_archived_day],
    ),
    "an intent is listed for each event of its trace": (
        replace("_find_of_event", "AND (o.day, o.id) > (event.bucket, event.owner::bigint)", "AND false"),
        [tests.test_an_event_s_trace_finds_its_intent_once],
    ),
    "events are not searched": (
        replace("_find_part", "THEN 2 ELSE 3 END", "THEN 2 ELSE 2 END"),
        [tests.test_whatever_is_known_of_an_intent_finds_it, tests.test_an_event_s_trace_finds_its_intent_once],
    ),
    "errors are not searched": (
        replace("_find_part", "strpos(lower(i.error_message COLLATE \"default\"), ($5)[3]) > 0", "false"),
        [tests.test_whatever_is_known_of_an_intent_finds_it],
    ),
    "a state does not narrow what is found": (
        replace("_find_part", "coalesce('i.state = ' || quote_literal(of_state), 'true')", "'true'"),
        [tests.test_filters_narrow_what_is_found],
    ),
    "a role of one tenant finds those of all": (
        replace("_find_part", "PERFORM once._authorise(of_tenant);", ""),
        [tests.test_a_bound_role_sees_its_tenant_alone_and_learns_nothing_about_others],
    ),
    "a role of one tenant sees the doubts of all": (
        replace("doubts_part", "SELECT once._authorise($1);", ""),
        [tests.test_a_bound_role_sees_its_tenant_alone_and_learns_nothing_about_others],
    ),
    "a verify function is asked for everybody": (
        replace("ask", "'once.verify(text, text, text)', 'execute')", "'once.contract_version()', 'execute')"),
        [tests.test_the_verify_function_is_asked_for_those_who_may_and_its_error_is_shown],
    ),
    "the error of a verify function is lost": (
        replace("ask", "failure := asked.failure;", ""),
        [tests.test_the_verify_function_is_asked_for_those_who_may_and_its_error_is_shown],
    ),
    "a decision looks at no state": (
        replace("resolve_seen", "stored.fence <> seen_fence OR (stored.state::text = seen_state) IS NOT TRUE", "stored.fence <> seen_fence"),
        [tests.test_the_attempt_that_reports_first_is_a_change_though_its_fence_is_the_same],
    ),
    "a decision looks at no fence": (
        replace("resolve_seen", "stored.fence <> seen_fence OR (stored.state::text = seen_state) IS NOT TRUE", "(stored.state::text = seen_state) IS NOT TRUE"),
        [tests.test_another_doubt_of_the_same_intent_is_not_the_one_that_was_seen],
    ),
    "a decision waits for no other": (
        replace("resolve_seen", "pg_try_advisory_xact_lock(once._lock_id(tenant, scope, key))", "true"),
        [tests.test_of_two_who_decide_at_once_the_second_waits_and_sees_the_first],
    ),
    "the first decision is not told": (
        replace("resolve_seen", "AND d.fence >= seen_fence", "AND false"),
        [tests.test_whoever_decides_second_is_told_about_the_first_and_changes_nothing],
    ),
    "a dry run decides": (replace("resolve_seen", "ELSIF why IS NULL AND NOT dry_run THEN", "ELSIF why IS NULL THEN"), [dry("decide")]),
    "a dry run sets a policy": (replace("set_scope", "IF dry_run THEN", "IF false THEN"), [dry("set_scope")]),
    "a dry run replays": (replace("parked_replay", "WHERE dry_run IS NOT TRUE ORDER BY", "ORDER BY"), [tests.test_a_replay_is_counted_first_and_then_made]),
    "parked events are listed twice": (
        replace("parked_list", "(q.relay, q.id) > (part[4]", "(q.relay, q.id) >= (part[4]"),
        [lambda db: tests.test_parked_events_and_messages_page_through_everything_in_the_same_order(db, {})],
    ),
    "parked messages are lost between two consumers": (
        replace("parked_list", "(m.consumer, m.position) > (part[4] COLLATE \"C\", part[3]::bigint)", "m.position > part[3]::bigint"),
        [lambda db: tests.test_parked_events_and_messages_page_through_everything_in_the_same_order(db, {})],
    ),
    "pending events are lost between two relays": (
        replace("parked_list", "r.relay > part[4] COLLATE \"C\" OR", ""),
        [lambda db: tests.test_parked_events_and_messages_page_through_everything_in_the_same_order(db, {"state": "pending"})],
    ),
    "delayed events of one time are lost": (
        replace("parked_list", "(d.not_before, d.emitted_at, d.event_id) >", "(d.not_before, d.emitted_at + interval '1 hour', d.event_id) >"),
        [lambda db: tests.test_parked_events_and_messages_page_through_everything_in_the_same_order(db, {"state": "delayed"})],
    ),
    "a place of another list is taken": (replace("parked_list", "PERFORM once._refuse_place(after);", "NULL;"), [tests.test_a_place_of_another_list_is_refused]),
    "the event of another intent is shown": (
        replace("_show_event", "IF NOT FOUND AND key IS NOT NULL THEN", "IF false THEN"),
        [tests.test_an_event_of_an_intent_is_found_by_its_names_wherever_it_is],
    ),
    "control characters count as text": (replace("readable", "plain := NULL;", "NULL;"), [lambda db: tests.test_bytes_are_shown_as_json_as_text_or_in_hex(db)]),
    "a text is cut within a character": (replace("readable", "FOR less IN 0 .. 3 LOOP", "FOR less IN 0 .. 0 LOOP"), [lambda db: tests.test_bytes_are_shown_as_json_as_text_or_in_hex(db)]),
    "support sees bodies": (replace("outline", "'once.peek(text, text, text)', 'execute')", "'once.contract_version()', 'execute')"), [tests.test_a_role_for_support_sees_every_page_and_no_body]),
    "support sees the payloads of an intent": (replace("outline", "e.one - '{payload,payload_base64}'::text[]", "e.one - '{}'::text[]"), [tests.test_a_role_for_support_sees_every_page_and_no_body]),
    "support sees payloads": (replace("parked_outline", "WHEN body AND may_see THEN", "WHEN body THEN"), [tests.test_a_role_for_support_sees_every_page_and_no_body]),
    "latency is of all times": (replace("latency", "AND i.completed_at > clock_timestamp() - interval '1 hour'", ""), [tests.test_recent_latency_is_that_of_the_last_hour]),
}  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN)
def test_the_tests_notice_when(server, broken):
    assert_noticed(server, *BROKEN[broken], does_its_plain_work, also=(TypeError, LookupError))


STATEMENTS = {
    "ids change everything": ("change", "AND $10::text IS NULL", "", [tests.test_ids_never_touch_what_was_not_named]),
    "a change of some is a dry run": ("change", "WHERE $15::text IS NULL", "WHERE false", [tests.test_a_change_touches_what_matches_or_the_named_ones_and_says_so]),
    "a body is shown unasked": ("intent", "coalesce($3, ''), $4::text IS NOT NULL) AS doc", "coalesce($3, ''), true) AS doc", [tests.test_a_body_is_shown_only_if_asked_for_and_to_those_who_may_read_answers]),
    "a payload is shown unasked": ("message", "$6, $7, $8::text IS NOT NULL) AS doc", "$6, $7, true) AS doc", [tests.test_a_body_is_shown_only_if_asked_for_and_to_those_who_may_read_answers]),
    "absent is stored with an answer": ("decide", "$6::text = 'happened' AS has_answer", "true AS has_answer", [lambda db: tests.test_a_decision_counts_if_the_intent_is_as_it_was_seen(db, "absent")]),
    "leaving it decides": ("decide", "WHERE $6::text IS DISTINCT FROM 'leave'", "WHERE true", [tests.test_a_decision_needs_a_reason_and_a_known_word_and_leaving_it_changes_nothing]),
    "a member is missing": ("overview", "'days_ahead'", "'ahead'", [tests.test_the_samples_have_the_members_of_what_the_pages_answer]),
    "a member is not in its sample": ("find", "'done'", "'finished', true, 'done'", [tests.test_each_member_of_a_nested_document_is_in_its_sample]),
}  # fmt: skip


@pytest.mark.parametrize("broken", STATEMENTS)
def test_the_tests_notice_when_a_statement_is_wrong_and(server, broken, monkeypatch):
    name, old, new, checks = STATEMENTS[broken]
    right = pages.text_of
    assert replaced(right(name), old, new, name) != right(name)
    monkeypatch.setattr(pages, "text_of", lambda page: replaced(right(page), old, new, page) if page == name else right(page))
    assert_noticed(server, lambda db: None, checks, lambda db: None, also=(TypeError, LookupError))
