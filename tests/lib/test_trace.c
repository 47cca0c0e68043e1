/* SPDX-License-Identifier: PostgreSQL */
/*
 * test_trace.c: the trace of an attempt through each call of the library: stored with the intent,
 * told to every later attempt, put on its events; and what is none is judged alike by the library
 * and the database.
 */
#include "support.h"

#define TRACE "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
#define LATER "00-11111111111111111111111111111111-2222222222222222-00"

static once_session *session;
static const once_fingerprint fingerprint = {{7}};
static const once_outcome outcome = {.response_status = 200};

static const char *text_of(const char *query, const char *parameter)
{
	static char text[256];
	PGresult *result =
	    PQexecParams(once_session_connection(session), query, 1, NULL, (const char *const[]){parameter}, NULL, NULL, 0);
	if (PQresultStatus(result) != PGRES_TUPLES_OK) {
		fail_msg("%s", PQerrorMessage(once_session_connection(session)));
	}
	bool none = PQntuples(result) == 0 || PQgetisnull(result, 0, 0);
	snprintf(text, sizeof text, "%s", none ? "" : PQgetvalue(result, 0, 0));
	PQclear(result);
	return text;
}

static const char *stored(const char *key)
{
	return text_of("SELECT traceparent FROM once.intent WHERE key = $1", key);
}

static void the_library_and_the_database_take_the_same_for_a_traceparent(void **state)
{
	(void)state;
	static const char *const texts[] = {
	    TRACE,
	    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00",
	    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-ff",
	    "",
	    "00",
	    "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	    "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	    "00-0AF7651916CD43DD8448EB211C80319C-B7AD6B7169203331-01",
	    "00-00000000000000000000000000000000-b7ad6b7169203331-01",
	    "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
	    "00-00000000000000000000000000000001-0000000000000001-00",
	    "00-0af7651916cd43dd8448eb211c80319-cb7ad6b7169203331-01",
	    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1",
	    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-011",
	    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01 ",
	    " 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1",
	    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0g",
	    "00-0af7651916cd43dd-448eb211c80319c-b7ad6b7169203331-01",
	    "00_0af7651916cd43dd8448eb211c80319c_b7ad6b7169203331_01",
	    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b71692033\xc3\xa9-01",
	};
	int good = 0;
	for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
		bool valid = once_traceparent_valid(texts[i]);
		assert_string_equal(text_of("SELECT once._trace($1)", texts[i]), valid ? texts[i] : "");
		good += valid;
	}
	assert_int_equal(good, 4);
	assert_false(once_traceparent_valid(NULL));
	assert_false(once_traceparent_valid("00-\xff\xfe"));
}

static void a_claims_trace_is_told_to_every_later_attempt_but_not_to_a_mismatch(void **state)
{
	(void)state;
	once_error *error = NULL;
	once_answer *answer = NULL;
	const once_fingerprint other = {{8}};
	once_intent intent = {.scope = "t", .key = "claim", .traceparent = TRACE};
	assert_ok(once_claim(session, &intent, &fingerprint, "a", 60000, 0, &answer, &error), error);
	assert_string_equal(once_answer_traceparent(answer), TRACE);
	once_answer_free(answer);
	intent.traceparent = LATER;
	assert_ok(once_claim(session, &intent, &fingerprint, "b", 60000, 0, &answer, &error), error);
	assert_int_equal(once_answer_verdict(answer), ONCE_PROCESSING_ACTIVE);
	assert_string_equal(once_answer_traceparent(answer), TRACE);
	once_answer_free(answer);
	assert_ok(once_fail(session, &intent, 1, ONCE_FAILURE_RETRYABLE, NULL, &error), error);
	assert_ok(once_claim(session, &intent, &fingerprint, "b", 60000, 0, &answer, &error), error);
	assert_true(once_answer_may_run(answer));
	assert_string_equal(once_answer_traceparent(answer), TRACE);
	once_answer_free(answer);
	assert_ok(once_complete(session, &intent, 2, &outcome, &error), error);
	intent.traceparent = NULL;
	assert_ok(once_claim(session, &intent, &fingerprint, "c", 0, 0, &answer, &error), error);
	assert_int_equal(once_answer_verdict(answer), ONCE_REPLAY_SUCCESS);
	assert_string_equal(once_answer_traceparent(answer), TRACE);
	once_answer_free(answer);
	assert_ok(once_peek(session, &intent, &answer, &error), error);
	assert_string_equal(once_answer_traceparent(answer), TRACE);
	once_answer_free(answer);
	once_answers *answers = NULL;
	const once_fingerprint prints[] = {other, fingerprint};
	const once_intent both[] = {intent, intent};
	assert_ok(once_claim_many(session, "", 2, both, prints, "d", 0, 0, &answers, &error), error);
	assert_int_equal(once_answer_verdict(once_answers_at(answers, 0)), ONCE_MISMATCHED);
	assert_null(once_answer_traceparent(once_answers_at(answers, 0)));
	assert_string_equal(once_answer_traceparent(once_answers_at(answers, 1)), TRACE);
	once_answers_free(answers);
}

static void each_element_of_a_batch_has_its_own_trace_and_a_bad_one_spoils_none(void **state)
{
	(void)state;
	once_error *error = NULL;
	once_answers *answers = NULL;
	const once_intent intents[] = {{.scope = "t", .key = "b1", .traceparent = TRACE},
	                               {.scope = "t", .key = "b2", .traceparent = "00-\xff\xfe"},
	                               {.scope = "t", .key = "b3"},
	                               {.scope = "t", .key = "b4", .traceparent = LATER}};
	static const char *const expected[] = {TRACE, "", "", LATER};
	const once_fingerprint prints[4] = {fingerprint, fingerprint, fingerprint, fingerprint};
	assert_ok(once_claim_many(session, "", 4, intents, prints, "a", 0, 0, &answers, &error), error);
	for (size_t i = 0; i < 4; i++) {
		const char *told = once_answer_traceparent(once_answers_at(answers, i));
		assert_int_equal(once_answer_verdict(once_answers_at(answers, i)), ONCE_NEW_CLAIM);
		assert_string_equal(told == NULL ? "" : told, expected[i]);
		assert_string_equal(stored(intents[i].key), expected[i]);
	}
	once_answers_free(answers);
}

static once_effect_result do_nothing(PGconn *connection, void *argument, once_outcome *made, PGresult **failed)
{
	(void)failed;
	(void)connection;
	(void)argument;
	made->response_status = 201;
	return ONCE_EFFECT_DONE;
}

static void an_execution_stores_its_trace_and_tells_it_fresh_and_stored(void **state)
{
	(void)state;
	static const char *const keys[] = {"execute", "statements"};
	const once_statement statement = {.sql = "SELECT 1"};
	for (int form = 0; form < 2; form++) {
		for (int i = 0; i < 2; i++) {
			once_error *error = NULL;
			once_answer *answer = NULL;
			const once_intent intent = {.scope = "t", .key = keys[form], .traceparent = i == 0 ? TRACE : LATER};
			once_code code = form == 0
			                     ? once_execute(session, &intent, &fingerprint, do_nothing, NULL, NULL, &answer, &error)
			                     : once_execute_statements(session, &intent, &fingerprint, 1, &statement, &outcome,
			                                               NULL, &answer, &error);
			assert_ok(code, error);
			assert_int_equal(once_answer_verdict(answer), i == 0 ? ONCE_PROCEED : ONCE_REPLAY_SUCCESS);
			assert_string_equal(once_answer_traceparent(answer), TRACE);
			once_answer_free(answer);
		}
		assert_string_equal(stored(keys[form]), TRACE);
	}
}

static void an_event_carries_its_own(void **state)
{
	(void)state;
	once_error *error = NULL;
	char id[37];
	const once_intent cause = {.scope = "stock", .key = "trace m-1", .traceparent = TRACE};
	const char *find = "SELECT traceparent FROM once.outbox WHERE event_id = $1::uuid";
	once_event event = {.topic = "orders", .payload = "{}", .traceparent = LATER};
	assert_ok(once_emit(session, NULL, &cause, &event, id, &error), error);
	assert_string_equal(text_of(find, id), LATER);
}

int main(void)
{
	session = open_session();
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_library_and_the_database_take_the_same_for_a_traceparent),
	    cmocka_unit_test(a_claims_trace_is_told_to_every_later_attempt_but_not_to_a_mismatch),
	    cmocka_unit_test(each_element_of_a_batch_has_its_own_trace_and_a_bad_one_spoils_none),
	    cmocka_unit_test(an_execution_stores_its_trace_and_tells_it_fresh_and_stored),
	    cmocka_unit_test(an_event_carries_its_own),
	};
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	once_session_close(session);
	return failed;
}
