# SPDX-License-Identifier: PostgreSQL
"""The library with one of its guards taken out, again and again: the tests that must notice. Each mutant is built from a changed copy of native/, and
still answers what is plain.

Not here, since nobody can tell: `if (native_on)` before a statement is planned only saves the search for calls, since native_known says "not the one"
where the setting is off; CommandCounterIncrement before a look or an INSERT that follows another call of the library, which has done it after its own."""

import contextlib
import inspect
import shutil

import psycopg2
import pytest

from harness.native import install_native, library, mutant
from harness.postgres import private_directory

from . import sessions as s
from . import test_batches as b
from . import test_changes as c
from . import test_native as t
from . import test_rights as r
from . import test_unfinished as u

pytestmark = [pytest.mark.long, pytest.mark.skipif(not library().exists(), reason="native/ is not built: no headers of a server")]

STORY = lambda name: lambda server: t.test_c_answers_what_sql_answers(server, name)  # noqa: E731  # pylint: disable=unnecessary-lambda-assignment
BATCHES = lambda name: lambda server: b.test_c_answers_batches_as_sql_does(server, name)  # noqa: E731  # pylint: disable=unnecessary-lambda-assignment
REPORTS = lambda name: lambda server: b.test_c_answers_batches_of_reports_as_sql_does(server, name)  # noqa: E731  # pylint: disable=unnecessary-lambda-assignment
MESSAGES = lambda name: lambda server: b.test_c_answers_batches_of_messages_as_sql_does(server, name)  # noqa: E731  # pylint: disable=unnecessary-lambda-assignment

# (what is taken out: the changes, the test that notices, its arguments besides the database and its session)
MUTATIONS = {
    "isolation level": ([("arguments.c", "IsolationUsesXactSnapshot() || ", "")],
                        t.test_above_read_committed_a_start_sees_what_its_transaction_s_snapshot_sees, {"level": "REPEATABLE READ"}),
    "SET ROLE": ([("arguments.c", " || OidIsValid(GetCurrentRoleId())", "")], r.test_who_has_set_a_role_is_judged_by_that_role, {}),
    "the row shows at once": ([("store.c", "heap_freetuple(tuple);\n\tCommandCounterIncrement();", "heap_freetuple(tuple);")],
                              t.test_a_row_is_there_for_the_next_statement_of_a_statement_that_is_not_over, {}),
    "the right, while planning": ([("hook.c", "!native_may_execute(call->funcid, GetUserId()) ||", "")], r.test_a_right_is_missed_also_where_nothing_is_called, {}),
    "the right to the substitute": ([("hook.c", "!native_may_execute(call->funcid, GetUserId()) || !native_may_execute(substitute, GetUserId())) {", "!native_may_execute(call->funcid, GetUserId())) {")],
                                    r.test_a_substitute_that_may_not_be_called_is_none, {}),
    "the right, when called": ([("attempt.c", "if (!native_may_execute(original, GetUserId())) {", "if (false) {"), ("hook.c", "!native_may_execute(call->funcid, GetUserId()) ||", "")],
                               r.test_a_right_that_is_taken_away_is_missed_at_once, dict(zip(("given", "taken"), r.LEAVINGS[0]))),
    "a membership changes": ([("arguments.c", "CacheRegisterSyscacheCallback(AUTHMEMROLEMEM, rights_changed, (Datum)0);", "")],
                             r.test_a_right_that_is_taken_away_is_missed_at_once, dict(zip(("given", "taken"), r.LEAVINGS[0]))),
    "a function's rights change": ([("arguments.c", "CacheRegisterSyscacheCallback(PROCOID, rights_changed, (Datum)0);", "")],
                                   r.test_a_right_that_is_taken_away_is_missed_at_once, dict(zip(("given", "taken"), r.LEAVINGS[1]))),
    "a role changes": ([("arguments.c", "CacheRegisterSyscacheCallback(AUTHOID, rights_changed, (Datum)0);", "")],
                       r.test_a_right_that_is_taken_away_is_missed_at_once, dict(zip(("given", "taken"), r.LEAVINGS[2]))),
    "the database's owner changes": ([("arguments.c", "CacheRegisterSyscacheCallback(DATABASEOID, rights_changed, (Datum)0);", "")],
                                     r.test_the_database_s_owner_changes, {}),
    "off, in a call": ([("known.c", "if (!native_on) {", "if (false) {")], c.test_off_counts_at_once_also_in_a_plan_that_was_made_before, {}),
    "read-only": ([("arguments.c", "XactReadOnly || ", "")], t.test_on_a_standby_c_refuses_as_sql_does, {}),
    "the tenant": ([("arguments.c", "return native_may_execute(contract->any_tenant, GetSessionUserId());", "return true;")], r.test_who_may_not_is_refused_alike, {}),
    "the intent's lock": ([("store.c", "if (held_already) {", "if (true) { return true;")], t.test_another_attempt_is_refused_while_one_runs, {}),
    "the lock of a note": ([("store.c", "if (held_already) {", "if (held_already) { return true;")], t.test_a_note_without_the_lock_is_sql_s_business, {}),
    "a row that is changing": ([("store.c", "*changing = row != NULL && (TransactionIdIsValid(dirty.xmin) || TransactionIdIsValid(dirty.xmax));", "*changing = false;")],
                               t.test_a_message_that_is_being_applied_or_taken_away_is_sql_s_business, {}),
    "a row that is being inserted": ([("store.c", "return single;", "return true;")],
                                     t.test_an_insert_by_hand_in_an_open_transaction_is_sql_s_business, {"committed": True}),
    "a row that was stored too early": ([("store.c", "if (!single) {", "if (false) {")],
                                        t.test_an_insert_by_hand_in_an_open_transaction_is_sql_s_business, {"committed": False}),
    "an intent of which nothing is known": ([("store.c", "absent.lock == intent->lock &&", "")], t.test_finish_looks_where_the_row_may_be_there, {"story": "another intent"}),
    "a transaction that is over": ([("store.c", "&& absent.transaction == this_transaction()", "")], t.test_finish_looks_where_the_row_may_be_there, {"story": "another transaction"}),
    "what C has stored": ([("store.c", "native_forget_absent(); memset", "memset")], t.test_finish_looks_where_the_row_may_be_there, {"story": "twice"}),
    "what SQL has stored": ([("attempt.c", "native_forget_absent();", "")], t.test_finish_looks_where_the_row_may_be_there, {"story": "a claim in SQL"}),
    "a start's row that is changing": ([("attempt.c", "!changing && replay", "replay")], t.test_a_row_that_somebody_inserts_or_deletes_by_hand_is_there_or_not_as_sql_sees_it, {}),
    "whose salt": ([("salt.c", "|| !native_session_is_plain(contract)", "")], r.test_who_may_not_is_refused_alike, {}),
    "a salt's long tenant": ([("salt.c", "VARSIZE_ANY_EXHDR(tenant) > TENANT_BYTES_MAX ||", "")], STORY("salts"), {}),
    "a salt's table": ([("salt.c", "!native_is_bare(table) ||", "")], c.test_a_change_of_the_settings_sends_salt_to_sql,
                       {"change": "ALTER TABLE once.setting ENABLE ROW LEVEL SECURITY", "back": "ALTER TABLE once.setting DISABLE ROW LEVEL SECURITY"}),
    "a salt's other tables": ([("salt.c", "class->relhassubclass ||", "")], c.test_a_change_of_the_settings_sends_salt_to_sql,
                              {"change": "CREATE TABLE x () INHERITS (once.setting)", "back": "DROP TABLE x; ANALYZE once.setting"}),
    "a log that is decoded": ([("store.c", "&& !RelationIsLogicallyLogged(tables->leaf)", "")], t.test_where_the_log_is_decoded_finish_never_stores_what_it_takes_back, {}),
    "triggers": ([("known.c", "bool bare = relation->trigdesc == NULL && ", "bool bare = ")], c.test_a_change_of_the_tables_sends_finish_to_sql,
                 dict(zip(("change", "back"), s.TABLE_CHANGES[0]))),
    "CHECKs": ([("known.c", "shape->constr->num_check > 0 || ", "")], c.test_a_change_of_the_tables_sends_finish_to_sql,
               dict(zip(("change", "back"), s.TABLE_CHANGES[1]))),
    "other indexes": ([("known.c", "if (list_length(indexes) != 1) {", "if (false) {")], c.test_a_change_of_the_tables_sends_finish_to_sql,
                      dict(zip(("change", "back"), s.TABLE_CHANGES[3]))),
    "row security": ([("known.c", "relation->rd_rules == NULL && !relation->rd_rel->relrowsecurity &&", "relation->rd_rules == NULL &&")],
                     c.test_a_change_of_the_tables_sends_finish_to_sql, dict(zip(("change", "back"), s.TABLE_CHANGES[4]))),
    "the contract's text": ([("known.c", "return !none && strcmp(TextDatumGetCString(value), mirrored->source) == 0;", "return !none;")],
                            c.test_another_text_of_what_the_library_mirrors_sends_all_to_sql, dict(zip(("function", "old", "new"), c.OTHER_TEXTS[0]))),
    "the day has begun": ([("store.c", "return now > 0 && bucket <= now / USECS_PER_DAY + days_to_2000;", "return now > 0;")], STORY("tomorrow"), {}),
    "the fingerprint": ([("attempt.c", "!native_same_bytes(DatumGetByteaPP(stored[at[COLUMN_FINGERPRINT] - 1]), intent->fingerprint)", "false")],
                        STORY("mismatch"), {}),
    "the state": ([("attempt.c", "DatumGetObjectId(stored[at[COLUMN_STATE] - 1]) != contract->states[STATE_SUCCEEDED] ||", "")], STORY("failed"), {}),
    "a start before a finish": ([("attempt.c", "(noted = native_noted_start(&intent)) < 0", "(noted = 1) < 0"), ("store.c", "if (held_already) {", "if (held_already) { return true;")],
                                STORY("no start"), {}),
    "PREPARE TRANSACTION": ([("started.c", "|| event == XACT_EVENT_PRE_PREPARE", "")],
                            u.test_a_forgotten_finish_fails_the_end_of_the_transaction, {"end": "PREPARE TRANSACTION 'forgotten'", "key": "k"}),
    "COMMIT": ([("started.c", "event == XACT_EVENT_PRE_COMMIT ||", "")], u.test_a_forgotten_finish_fails_the_end_of_the_transaction, {"end": "COMMIT", "key": "k"}),
    "what C has finished": ([("attempt.c", "native_remember_finish(&intent, noted);", "")], u.test_c_answers_both_calls_and_asks_nobody_else, {}),
    "a savepoint's finish": ([("started.c", "if (event == SUBXACT_EVENT_ABORT_SUB) {", "if (false) {")], u.test_a_finish_in_a_savepoint_counts_if_that_is_kept, {"story": "rolled back"}),
    "a released savepoint's finish": ([("started.c", "one.by = parent;", "")], u.test_a_finish_in_a_savepoint_counts_if_that_is_kept, {"story": "released and rolled back"}),
    "the fence of a start": ([("started.c", "finishes[i].lock == lock && finishes[i].fence == fence", "finishes[i].lock == lock")],
                             u.test_a_start_after_a_retryable_finish_owes_another_outcome, {}),
    "another intent's finish": ([("started.c", "finishes[i].lock == lock && finishes[i].fence == fence", "finishes[i].fence == fence")],
                                u.test_many_are_finished_in_any_order, {}),
    "a transaction that is over, and what it finished": ([("started.c", "finish_count = finish_room = 0;", "")], u.test_a_forgotten_finish_after_a_whole_transaction, {}),
    "names with separators": ([("started.c", "remember_unusual(intent, fence, note.data);", "")], u.test_a_name_may_hold_the_separators_of_the_notes, {"odd": "scope", "name": "a\x1fb"}),
    "the note of such a name": ([("started.c", "*at = *at == RS ? US : *at;", "")], u.test_a_name_may_hold_the_separators_of_the_notes, {"odd": "tenant", "name": "\x1e\x1f"}),
    "a second start": ([("started.c", "if (*before != '\\0' && strstr(before, note.data) != NULL) {", "if (false) {")], u.test_a_second_start_is_refused, {"function": "start"}),
    "a second start by finish_new": ([("attempt.c", "starting ? !native_has_started_none() :", "starting ? false :")], u.test_a_second_start_is_refused, {"function": "finish_new"}),
    "a transaction that cannot write": ([("started.c", "(XactReadOnly && !TransactionIdIsValid(GetTopTransactionIdIfAny()))", "false")],
                                        u.test_a_read_only_transaction_owes_nothing_and_one_that_has_written_does, {}),
    "a transaction that could write": ([("started.c", "(XactReadOnly && !TransactionIdIsValid(GetTopTransactionIdIfAny()))", "XactReadOnly")],
                                       u.test_a_read_only_transaction_owes_nothing_and_one_that_has_written_does, {}),
    "who says off": ([("started.c", "|| !strict ||", "||")], u.test_who_says_off_is_not_asked, {}),
    "the size of a body": ([("arguments.c", "<= BODY_BYTES_PLAIN)", "<= (1 << 30))")], STORY("too large"), {}),
    "the status": ([("arguments.c", "status <= 999", "true")], STORY("a status that is none"), {}),
    "headers": ([("arguments.c", "JB_ROOT_IS_OBJECT(headers)", "true")], STORY("headers that are none"), {}),
    "the size of headers": ([("arguments.c", "native_json_length(headers) <= HEADERS_BYTES_MAX", "true")], STORY("headers that are too large"), {}),
    "the size of a result": ([("arguments.c", "!native_is_longer(given[OUTCOME_RESULT_ID], RESULT_ID_BYTES_MAX)", "true")], STORY("results that are too large"), {}),
    "the length of a message": ([("attempt.c", "native_is_longer(fcinfo->args[FINISH_ERROR_MESSAGE], ERROR_MESSAGE_MAX)", "false")], STORY("words that are cut"), {}),
    "the size of a payload": ([("outbox.c", "native_json_length(PG_GETARG_JSONB_P(EMIT_PAYLOAD)) <= PAYLOAD_BYTES_PLAIN", "true")], STORY("events that are too large"), {}),
    "the size of an event's headers": ([("arguments.c", "native_json_length(headers) <= HEADERS_BYTES_MAX", "true")], STORY("events with headers that are too large"), {}),
    "other spellings": ([("key.c", "return may_be_respelled(at, length) ? -1 : 0;", "return 0;")], STORY("spellings of a UUIDv7"), {}),
    "bytes of a key": ([("key.c", "if (at[i] < ' ' || at[i] > '~') {", "if (false) {")], STORY("bad keys"), {}),
    "a trace's form": ([("arguments.c", "return strspn(at + 3, \"0\") >= 32 || strspn(at + 36, \"0\") >= 16 ? NULL : given;", "return given;")],
                       STORY("traces that are none"), {}),
    "in one way only": ([("arguments.c", "given[OUTCOME_TEXT].isnull + given[OUTCOME_JSON].isnull + given[OUTCOME_BODY].isnull < 2", "false")], STORY("two bodies"), {}),
    "the type of a body": ([("attempt.c", "plain_types = plain_types && type == BYTEAOID;", "plain_types = true;")], STORY("another type"), {}),
    "the fence of a report": ([("claim.c", "DatumGetInt32(row->values[its_fence]) == fence", "true")], STORY("another fence"), {}),
    "the state of a report": ([("claim.c", "DatumGetObjectId(row->values[state]) == contract->states[STATE_PROCESSING] &&", "")], STORY("completed twice"), {}),
    "a row that has changed since": ([("store.c", "return done == TM_Ok;", "return true;")],
                                     t.test_a_report_waits_for_another_change_of_its_intent_and_looks_again, {"other": "SELECT once.renew('s', 'k', 1)", "committed": True, "told": [(True,)]}),
    "the index of a new version": ([("store.c", "if (done == TM_Ok && indexes == all) {", "if (false) {")],
                                   t.test_a_report_is_a_hot_update_and_on_a_full_page_the_index_is_told, {}),
    "no second entry of a HOT update": ([("store.c", "if (done == TM_Ok && indexes == all) {", "if (done == TM_Ok) {")],
                                        t.test_a_report_is_a_hot_update_and_on_a_full_page_the_index_is_told, {}),
    "the columns of another end": ([("claim.c", "replaces[emptied[i]] = true;", "")], STORY("completed after the lease"), {}),
    "what a publication needs": ([("store.c", "CheckCmdReplicaIdentity(tables->leaf, CMD_UPDATE);", "")],
                                 t.test_a_report_where_a_publication_cannot_name_the_row_is_refused_as_sql_refuses_it, {}),
    "a message's state": ([("claim.c", "DatumGetObjectId(state) == contract->states[STATE_SUCCEEDED] &&", "")], STORY("a message that is an intent"), {}),
    "a message's fingerprint": ([("claim.c", "native_same_bytes(DatumGetByteaPP(print), intent.fingerprint)", "true")], STORY("messages"), {}),
    "a message that is changing": ([("claim.c", "if (!changing &&", "if (")], t.test_a_message_that_is_being_applied_or_taken_away_is_sql_s_business, {}),
    "the day of a message": ([("claim.c", "return intent->bucket == 0 || native_day_has_begun(intent->bucket, now);", "return true;")],
                             STORY("a message of tomorrow, by its birthday"), {}),
    "the lock of a claim": ([("claim.c", "if (lease != NULL && native_lock(&intent, false) &&", "if (lease != NULL &&")], t.test_two_claims_of_one_intent_are_kept_apart, {}),
    "terms": ([("claim.c", "return lease->month == 0 && lease->day == 0 && lease->time > 0 && lease->time <= LEASE_MAX;", "return true;")],
              STORY("terms that are no hours, or none"), {}),
    "a retention": ([("claim.c", "|| !PG_ARGISNULL(CLAIM_RETENTION)", "")], STORY("terms that are no hours, or none"), {}),
    "a long owner": ([("claim.c", "if (VARSIZE_ANY_EXHDR(owner) > OWNER_MAX) {", "if (false) {")], STORY("an owner that is long"), {}),
    "the scope's own policy": ([("store.c", "if (row == NULL) {\n\t\t\tnative_key_of_text", "{\n\t\t\tnative_key_of_text")], STORY("a claim of a policy"), {}),
    "an event's lock": ([("outbox.c", "native_lock_id(native_event_lock_number(&intent, kind)) &&", "")],
                        t.test_an_event_that_another_transaction_emits_is_refused, {}),
    "an event that is being inserted": ([("outbox.c", "InitDirtySnapshot(dirty);", "dirty = *GetLatestSnapshot();")],
                                        t.test_an_event_that_somebody_inserts_by_hand_is_sql_s_business, {}),
    "earlier days": ([("outbox.c", "&& !may_be_earlier(contract, outbox, day, &intent, kind)", "")], c.test_an_event_of_an_earlier_or_later_day_is_sql_s_business, {}),
    "earlier days, both ways": ([("outbox.c", "&& !may_be_earlier(contract, outbox, day, &intent, kind)", "")], STORY("events of yesterday"), {}),
    "each earlier day": ([("outbox.c", "for (int i = 0; i < count; i++) {\n\t\toutbox_leaf leaf;", "for (int i = 0; i < count && i < 1; i++) {\n\t\toutbox_leaf leaf;")],
                         c.test_an_event_of_an_earlier_or_later_day_is_sql_s_business, {}),
    "earlier days that are not plain": ([("outbox.c", "bool found = relation == NULL ||", "bool found = relation != NULL &&")],
                                        c.test_a_change_of_an_earlier_day_s_outbox_sends_emit_to_sql, {"change": "ALTER TABLE OUTBOX RENAME TO x", "back": "ALTER TABLE once.x RENAME TO outbox_dDAY"}),
    "more earlier days": ([("outbox.c", "if (count == DAYS_KNOWN - 1) { return -1; }", "if (count == DAYS_KNOWN - 1) { break; }")],
                          c.test_more_days_of_the_outbox_than_c_looks_at_are_sql_s_business, {}),
    "later days": ([("outbox.c", "DatumGetInt64(last) / 256 == day &&", "")], c.test_an_event_of_an_earlier_or_later_day_is_sql_s_business, {}),
    "what an event needs": ([("outbox.c", "topic_bytes > 0 && kind_bytes > 0 && topic_bytes + kind_bytes <= NAMES_MAX", "true")], STORY("events that are none"), {}),
    "scope and key": ([("outbox.c", "|| PG_ARGISNULL(EMIT_SCOPE) != PG_ARGISNULL(EMIT_KEY)", "")], STORY("events that are none"), {}),
    "an event's headers": ([("outbox.c", "native_headers_are_plain(fcinfo->args[EMIT_HEADERS])", "true")], STORY("events that are none"), {}),
    "an event's id": ([("outbox.c", "id->data[7] = 0;", "")], STORY("names of events"), {}),
    "an event's salt": ([("outbox.c", "appendStringInfoChar(&hashed, 'e');", "")], STORY("names of events"), {}),
    "the table of an event's salt": ([("outbox.c", "plain = event_id != NULL &&", "plain =")], c.test_a_change_of_the_settings_sends_an_intent_s_event_to_sql, {}),
    "other defaults": ([("outbox.c", "if (shape->constr->defval[i].adnum != xid) { return native_refuse(\"a column of once.outbox has a default\"); }", "if (shape->constr->defval[i].adnum != xid) { continue; }")],
                       c.test_a_change_of_the_outbox_sends_emit_to_sql, {"change": "ALTER TABLE once.outbox ALTER COLUMN headers SET DEFAULT '{}'", "back": "ALTER TABLE once.outbox ALTER COLUMN headers DROP DEFAULT"}),
    "the locks of a batch": ([("batch.c", "if (!native_lock(&given->intents[i], false)) {", "if (false) {")], b.test_an_intent_that_another_transaction_has_started_is_left_out, {}),
    "a batch's intent that is there": ([("batch.c", "new = native_search_next(search, given->ordered[i]) == NULL;", "")], BATCHES("some that are there"), {}),
    "a batch's intent that is being inserted": ([("batch.c", "InitDirtySnapshot(dirty);", "dirty = *GetLatestSnapshot();")], b.test_an_insert_by_hand_in_an_open_transaction_is_sql_s_business, {}),
    "twice in a batch": ([("batch.c", "is_any_twice(&given)", "false")], BATCHES("twice in a batch"), {}),
    "one bucket": ([("batch.c", "intent->bucket != made->intents[0].bucket ||", "")], BATCHES("claims of several days"), {}),
    "a batch's day has begun": ([("batch.c", "native_is_open(&given->intents[0], now) &&", "")], BATCHES("claims of yesterday and tomorrow"), {}),
    "a batch's day is not over": ([("batch.c", "native_is_not_over(&given->intents[0], now) &&", "")], b.test_a_batch_that_is_not_plain_is_sql_s_business, {}),
    "numbered from 1": ([("batch.c", "ARR_LBOUND(array)[0] != 1 ||", "")], BATCHES("shapes of arrays"), {}),
    "the size of a batch": ([("batch.c", "ARR_DIMS(array)[0] > BATCH_MAX ||", "")], BATCHES("as many as there may be, and one more"), {}),
    "a batch's scopes": ([("batch.c", "scope_bytes == 0 ||", "")], BATCHES("elements that are none"), {}),
    "a batch's fingerprints": ([("batch.c", "VARSIZE_ANY_EXHDR(intent->fingerprint) < 16 ||", "")], BATCHES("elements that are none"), {}),
    "a batch's tenant": ([("batch.c", "if (VARSIZE_ANY_EXHDR(tenant) > NAME_BYTES_MAX) {", "if (false) {")], BATCHES("tenants"), {}),
    "a batch's terms": ([("batch.c", "if (!native_lease_is_plain(lease)) {", "if (false) {")], BATCHES("terms that are no hours, or none"), {}),
    "a batch's retention": ([("batch.c", "!PG_ARGISNULL(CLAIM_MANY_RETENTION) ||", "")], BATCHES("terms that are no hours, or none"), {}),
    "a batch's owner": ([("batch.c", "if (VARSIZE_ANY_EXHDR(owner) > OWNER_MAX) {", "if (false) {")], BATCHES("an owner that is long"), {}),
    "one policy": ([("batch.c", "if (!native_same_bytes(given->intents[i].scope, scope)) {", "if (false) {")], BATCHES("a policy of the scope, and another"), {}),
    "a batch's traces": ([("batch.c", "native_trace_of(DatumGetTextPP(given->values[i]))", "DatumGetTextPP(given->values[i])")], BATCHES("all that a claim has"), {}),
    "a batch's fence": ([("batch.c", "given.bucket > 0 ? 1 : native_first_fence(contract);", "1;")], BATCHES("the fence after a purge"), {}),
    "what a batch counts": ([("batch.c", "native_count(contract->counted_new, given.size);", "")], BATCHES("claims"), {}),
    "what is counted one by one": ([("store.c", "(void)nextval_internal(counter, false);", "")], b.test_a_counter_that_somebody_has_changed_counts_as_nextval_does, {"change": "INCREMENT 5"}),
    "the partition alone": ([("batch.c", "bool alone = given->bucket == 0;", "bool alone = false;")], BATCHES("claims"), {}),
    "the partition for writing": ([("batch.c", "if (!native_tables_lock(&tables, RowExclusiveLock)) {", "if (false) {")], BATCHES("claims of today"), {}),
    "a search anew": ([("store.c", "if (order < 0) { search_anew", "if (search->scope == NULL) { search_anew")], BATCHES("among many others"), {}),
    "a search of a key that other tenants have": ([("store.c", "if (search->has_row && order < 0) { /* other", "if (false) { /* other")], BATCHES("keys that other tenants have"), {}),
    "the tenant of what a search finds": ([("store.c", "order = is_null ? -1 : bytes_order(DatumGetTextPP(found), intent->tenant);", "")], REPORTS("reports on keys that other tenants have"), {}),
    "a search in another scope": ([("store.c", "search->scope != NULL && native_same_bytes(search->scope, intent->scope)", "search->scope != NULL")], BATCHES("among many others"), {}),
    "the columns of a set": ([("known.c", "if (shape == NULL || shape->natts != mirrored->result_count) { return false; }", "if (shape->natts != mirrored->result_count) { return true; }")],
                             b.test_a_substitute_that_returns_other_columns_is_none, {}),
    "the order of reports": ([("batch.c", "qsort(made->ordered, (size_t)made->size, sizeof(native_intent *), place_order);", "")], b.test_two_batches_of_reports_in_opposite_order_do_not_deadlock, {}),
    "the fences of a batch": ([("claim.c", "DatumGetInt32(row->values[its_fence]) == fence", "true")], REPORTS("other fences"), {}),
    "the states of a batch": ([("claim.c", "DatumGetObjectId(row->values[state]) == contract->states[STATE_PROCESSING] &&", "")], REPORTS("some that are completed"), {}),
    "what is left": ([("reports.c", "rest->left[place] = true;", "rest->left[batch->size - 1 - place] = true;")], REPORTS("some that have failed, or are in doubt"), {}),
    "which are left": ([("reports.c", "if (rest->left[i]) { values", "{ values"), ("reports.c", "nulls[count++] = all.nulls[i];", "nulls[count] = all.nulls[i]; count += count + 1 < rest->count;")], REPORTS("other fences"), {}),
    "the places of the rest": ([("reports.c", "one[COMPLETE_MANY_ORD] = Int32GetDatum(i + 1);", "")], REPORTS("other fences"), {}),
    "a batch's row that has changed since": ([("store.c", "return done == TM_Ok;", "return true;")],
                                             b.test_a_batch_of_reports_waits_for_another_change_of_one_of_its_intents_and_looks_again, dict(zip(("other", "committed", "told"), b.OTHERS[2]))),
    "a batch's outcomes": ([("reports.c", "|| !native_outcome_is_plain(each->given, &each->outcome)", "|| (native_outcome_is_plain(each->given, &each->outcome), false)")], REPORTS("statuses that are none"), {}),
    "the partition of reports alone": ([("reports.c", "batch.bucket == 0, &tables)", "false, &tables)")], b.test_a_batch_of_reports_locks_the_table_that_it_is_of, {"of_today": False}),
    "the partition of reports for writing": ([("reports.c", "batch.bucket, RowExclusiveLock,", "batch.bucket, AccessShareLock,")], b.test_a_batch_of_reports_locks_the_table_that_it_is_of, {"of_today": False}),
    "the index of a batch's new versions": ([("store.c", "if (done == TM_Ok && indexes == all) {", "if (false) {")], b.test_the_index_is_whole_after_batches_of_reports_that_are_hot_updates_and_others, {}),
    "the locks of messages": ([("batch.c", "if (!native_lock(&given->intents[i], false)) {", "if (false) {")], b.test_a_message_that_another_transaction_applies_is_left_out, {}),
    "messages that are there": ([("batch.c", "new = native_search_next(search, given->ordered[i]) == NULL;", "")], MESSAGES("messages"), {}),
    "a message twice": ([("batch.c", "is_any_twice(&given)", "false")], MESSAGES("a message twice"), {}),
    "what is parked": ([("store.c", "return row == NULL; }", "return true; }")], MESSAGES("messages behind one that is parked"), {}),
    "whose is parked": ([("store.c", "native_look_up(table, primary_key, keys, lengthof(keys), snapshot)", "native_look_up(table, primary_key, keys, 1, snapshot)")], b.test_plain_batches_of_messages_are_answered_in_c, {}),
    "the table of what is parked": ([("store.c", "&& !table->rd_rel->relrowsecurity && !table->rd_rel->relforcerowsecurity && OidIsValid(*primary_key);", "&& OidIsValid(*primary_key);")], b.test_a_change_of_the_table_sends_messages_to_sql,
                                    {"change": "ALTER TABLE once.parked_message ENABLE ROW LEVEL SECURITY", "back": "ALTER TABLE once.parked_message DISABLE ROW LEVEL SECURITY"}),
    "the partition of messages for writing": ([("batch.c", "|| !native_tables_lock(&tables, RowExclusiveLock)) {", ") {")], MESSAGES("messages of today, by their birthdays"), {}),
    "the fence of messages": ([("batch.c", "given.bucket > 0 ? 1 : native_first_fence(contract);", "1;")], MESSAGES("the fence of a message after a purge"), {}),
    "what a batch counts at once": ([("store.c", "data->last_value += by;", "data->last_value += by - 1;")], BATCHES("claims"), {}),
    "how long a counter's lock is held": ([("store.c", "CurrentResourceOwner = TopTransactionResourceOwner;", "")], BATCHES("a savepoint takes it back"), {}),
    "a counter's steps": ([("store.c", "form->seqincrement == 1 &&", "")], b.test_a_counter_that_somebody_has_changed_counts_as_nextval_does, {"change": "INCREMENT 5"}),
    "a counter's end": ([("store.c", "&& data->last_value <= most", "")], b.test_a_counter_that_somebody_has_changed_counts_as_nextval_does, {"change": "MAXVALUE 20"}),
    "a counter's stock": ([("store.c", "&& form->seqcache == 1", "")], b.test_a_counter_that_somebody_has_changed_counts_as_nextval_does, {"change": "CACHE 10"}),
    "a counter that is logged": ([("store.c", "plain && relation->rd_rel->relpersistence == RELPERSISTENCE_UNLOGGED", "plain")], b.test_a_counter_that_is_logged_outlives_a_crash, {}),
    "what messages count": ([("batch.c", "native_count(contract->counted_process, given.size);", "")], MESSAGES("messages"), {}),
    "the moment of messages": ([("batch.c", "row.nulls[COLUMN_COMPLETED_AT] = false;", "")], MESSAGES("messages"), {}),
    "what is counted": ([("attempt.c", "native_count(contract->counted_replay, 1);", "")], STORY("plain"), {}),
}  # fmt: skip


def works(db):
    """The mutant is loaded, and answers what is plain. A start is rolled back, since who asks at COMMIT may be what is taken out."""
    session = s.Session(db)
    for query, count in ((f"SELECT once.start('mutant', 'warm', {s.F})", None), (f"SELECT once.start('mutant', 'l', {s.F})", 1)):
        session("BEGIN")
        answered = session.answered(query)
        assert count in (None, answered)
        session("ROLLBACK")
    assert session.value("SHOW once.native") == "on"
    assert session.answered(f"SELECT once.finish_new('mutant', 'k', {s.F}, 200)") == 1
    db.execute("DELETE FROM once.intent; ALTER SEQUENCE once.counted_new RESTART")


def replace_library(monkeypatch, path):
    for module in (s, b, c, t, r):
        monkeypatch.setattr(module, "install_native", lambda database: install_native(database, path), raising=False)


def run(server, path, test, arguments):
    """One of the tests with this library."""
    db = server.new_database()
    try:
        install_native(db, path)
        works(db)
        wanted = inspect.signature(test).parameters
        given = {"server": server, "native": db, "roles": db}
        with s.roles_of(db) if "roles" in wanted else contextlib.nullcontext():
            if "session" in wanted:
                given["session"] = s.Session(db)
                given["session"](f"SELECT once.start('warm', 'up', {s.F})")
            test(**{key: value for key, value in given.items() if key in wanted}, **arguments)
    finally:
        with contextlib.suppress(psycopg2.Error):  # of a server that has crashed
            db.drop()


@pytest.fixture
def folder():
    made = private_directory("pgonce-native-")
    yield made
    shutil.rmtree(made)


@pytest.mark.parametrize("name", MUTATIONS)
def test_what_is_taken_out_is_noticed(server, folder, monkeypatch, name):
    changes, test, arguments = MUTATIONS[name]
    path = mutant(folder, *changes)
    replace_library(monkeypatch, path)
    with pytest.raises((AssertionError, psycopg2.Error)) as noticed:
        run(server, path, test, arguments)
    assert any(entry.name == test.__name__ or entry.name.startswith("test_c_answers") for entry in noticed.traceback), noticed.value


def test_where_nothing_is_taken_out_nothing_is_noticed(server, folder, monkeypatch):
    path = mutant(folder)
    replace_library(monkeypatch, path)
    for _, test, arguments in MUTATIONS.values():
        run(server, path, test, arguments)
