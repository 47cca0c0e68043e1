/* SPDX-License-Identifier: PostgreSQL */
/*
 * test_contract.c: every function of the contract through the library, and the library's words held
 * against the database's.
 */
#include "support.h"

#include "sql.h"

static once_session *session;

static once_fingerprint fingerprint_of(const char *text)
{
	once_fingerprint fingerprint;
	once_error *error = NULL;
	assert_ok(once_fingerprint_bytes(session, NULL, bytes_of(text), &fingerprint, &error), error);
	return fingerprint;
}

static void every_embedded_query_prepares_with_its_number_of_parameters(void **state)
{
	(void)state;
	for (int i = 0; i < SQL_COUNT; i++) {
		PGconn *connection = once_session_connection(session);
		PGresult *prepared = PQprepare(connection, "probe", sql_queries[i].text, 0, NULL);
		if (PQresultStatus(prepared) != PGRES_COMMAND_OK) {
			fail_msg("%s: %s", sql_queries[i].name, PQerrorMessage(connection));
		}
		PGresult *described = PQdescribePrepared(connection, "probe");
		assert_int_equal(PQnparams(described), sql_queries[i].parameter_count);
		PQclear(described);
		PQclear(prepared);
		run_sql(session, "DEALLOCATE probe");
	}
}

static void the_states_of_c_are_those_of_the_database_in_their_order(void **state)
{
	(void)state;
	PGresult *result = PQexec(once_session_connection(session), "SELECT unnest(enum_range(NULL::once.state))");
	assert_int_equal(PQntuples(result), ONCE_STATE_IN_DOUBT);
	for (int i = 0; i < PQntuples(result); i++) {
		assert_string_equal(PQgetvalue(result, i, 0), once_state_name((once_state)(i + 1)));
	}
	PQclear(result);
}

static void the_codes_of_c_are_those_of_the_database(void **state)
{
	(void)state;
	PGresult *result = PQexec(once_session_connection(session), "SELECT code, name FROM once.errors()");
	assert_true(PQntuples(result) > 10);
	for (int i = 0; i < PQntuples(result); i++) {
		once_code code = once_code_of_sqlstate(PQgetvalue(result, i, 0));
		assert_string_equal(once_code_name(code), PQgetvalue(result, i, 1));
	}
	PQclear(result);
}

static void the_library_and_the_database_speak_one_version(void **state)
{
	(void)state;
	once_error *error = NULL;
	assert_ok(once_session_check(session, &error), error);
	assert_int_equal(query_int(session, "SELECT once.contract_version()"), once_contract_version());
}

/* So that the contract can be upgraded first. */
static void a_newer_contract_is_spoken_to_and_an_older_one_is_not(void **state)
{
	(void)state;
	once_error *error = NULL;
	run_sql(session, "BEGIN");
	run_sql(session, "INSERT INTO once.migration (version, name, checksum, pgonce) "
	                 "SELECT once.contract_version() + 1, '9999_later', repeat('0', 64), '9.0.0'");
	assert_ok(once_session_check(session, &error), error);
	run_sql(session, "DELETE FROM once.migration WHERE version >= once.contract_version() - 1");
	assert_int_equal(once_session_check(session, &error), ONCE_CONTRACT);
	assert_non_null(strstr(once_error_message(error), "this library needs version"));
	assert_non_null(strstr(once_error_hint(error), "pgonce init"));
	once_error_free(error);
	run_sql(session, "ROLLBACK");
}

static void a_fingerprint_made_here_is_the_one_made_there(void **state)
{
	(void)state;
	once_error *error = NULL;
	once_fingerprint here = fingerprint_of("some bytes");
	PGresult *there = PQexecParams(once_session_connection(session), "SELECT once.fingerprint('some bytes'::bytea)", 0,
	                               NULL, NULL, NULL, NULL, 1);
	assert_int_equal(PQgetlength(there, 0, 0), ONCE_FINGERPRINT_BYTES);
	assert_memory_equal(PQgetvalue(there, 0, 0), here.bytes, ONCE_FINGERPRINT_BYTES);
	PQclear(there);
	once_fingerprint json;
	assert_ok(once_fingerprint_json(session, NULL, "{\"b\": 1, \"a\": 2}", &json, &error), error);
	there = PQexecParams(once_session_connection(session), "SELECT once.fingerprint('{\"a\":2,\"b\":1}'::jsonb)", 0,
	                     NULL, NULL, NULL, NULL, 1);
	assert_memory_equal(PQgetvalue(there, 0, 0), json.bytes, ONCE_FINGERPRINT_BYTES);
	PQclear(there);
	assert_code(ONCE_DATABASE, once_fingerprint_json(session, NULL, "{", &json, &error), error);
}

static void a_tenant_has_255_characters_of_any_size(void **state)
{
	(void)state;
	once_error *error = NULL;
	static const char *const characters[] = {"a", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x94\x91"};
	for (size_t i = 0; i < sizeof characters / sizeof characters[0]; i++) {
		char tenant[255 * 4 + 1] = "";
		for (int n = 0; n < 255; n++) {
			strcat(tenant, characters[i]);
		}
		once_fingerprint once, again;
		assert_ok(once_fingerprint_bytes(session, tenant, bytes_of("x"), &once, &error), error);
		assert_ok(once_fingerprint_bytes(session, tenant, bytes_of("x"), &again, &error), error);
		assert_memory_equal(once.bytes, again.bytes, ONCE_FINGERPRINT_BYTES);
	}
}

static void requests_differ_in_each_part_and_not_in_json_spelling(void **state)
{
	(void)state;
	once_error *error = NULL;
	once_fingerprint base, other;
	once_bytes body = bytes_of("{\"amount\": 1.50, \"to\": \"x\"}");
	once_bytes same = bytes_of("{\"to\":\"x\",\"amount\":1.50}");
	assert_ok(once_fingerprint_request(session, "t", "POST", "/pay", "application/json", body, true, &base, &error),
	          error);
	assert_ok(once_fingerprint_request(session, "t", "POST", "/pay", "application/json", same, true, &other, &error),
	          error);
	assert_memory_equal(base.bytes, other.bytes, ONCE_FINGERPRINT_BYTES);
	assert_ok(once_fingerprint_request(session, "t", "POST", "/pay", "application/json", same, false, &other, &error),
	          error);
	assert_memory_not_equal(base.bytes, other.bytes, ONCE_FINGERPRINT_BYTES);
	assert_ok(once_fingerprint_request(session, "u", "POST", "/pay", "application/json", body, true, &other, &error),
	          error);
	assert_memory_not_equal(base.bytes, other.bytes, ONCE_FINGERPRINT_BYTES);
	assert_ok(once_fingerprint_request(session, "t", "PATCH", "/pay", "application/json", body, true, &other, &error),
	          error);
	assert_memory_not_equal(base.bytes, other.bytes, ONCE_FINGERPRINT_BYTES);
	assert_ok(once_fingerprint_request(session, "t", "POST", "/pay/", "application/json", body, true, &other, &error),
	          error);
	assert_memory_not_equal(base.bytes, other.bytes, ONCE_FINGERPRINT_BYTES);
	assert_ok(once_fingerprint_request(session, "t", "POST/", "pay", "application/json", body, true, &other, &error),
	          error);
	assert_memory_not_equal(base.bytes, other.bytes, ONCE_FINGERPRINT_BYTES);
}

static void a_transaction_of_the_callers_begins_finishes_and_is_replayed_byte_for_byte(void **state)
{
	(void)state;
	once_error *error = NULL;
	once_answer *answer = NULL;
	static int runs;
	char key[16];
	snprintf(key, sizeof key, "tx %d", runs++);
	once_intent intent = {.scope = "c", .key = key};
	once_fingerprint fingerprint = fingerprint_of("tx");
	unsigned char body[256];
	for (int i = 0; i < 256; i++) {
		body[i] = (unsigned char)i;
	}
	once_outcome outcome = {.response_status = 201,
	                        .response_headers = "{\"content-type\": \"x/y\"}",
	                        .response_body = {.data = body, .length = sizeof body},
	                        .result_type = "order",
	                        .result_id = "7"};
	run_sql(session, "BEGIN");
	assert_ok(once_start(session, &intent, &fingerprint, &answer, &error), error);
	assert_int_equal(once_answer_verdict(answer), ONCE_PROCEED);
	assert_true(once_answer_may_run(answer));
	assert_int_equal(once_answer_fence(answer), 1);
	once_answer_free(answer);
	assert_ok(once_finish(session, &intent, &fingerprint, ONCE_STATE_SUCCEEDED, &outcome, &error), error);
	run_sql(session, "COMMIT");
	run_sql(session, "BEGIN");
	assert_ok(once_start(session, &intent, &fingerprint, &answer, &error), error);
	assert_int_equal(once_answer_verdict(answer), ONCE_REPLAY_SUCCESS);
	assert_false(once_answer_may_run(answer));
	assert_int_equal(once_answer_response_status(answer), 201);
	assert_int_equal(once_answer_response_body(answer).length, sizeof body);
	assert_memory_equal(once_answer_response_body(answer).data, body, sizeof body);
	assert_string_equal(once_answer_response_headers(answer), "{\"content-type\": \"x/y\"}");
	assert_string_equal(once_answer_result_type(answer), "order");
	assert_string_equal(once_answer_result_id(answer), "7");
	assert_null(once_answer_error_code(answer));
	once_answer_free(answer);
	answer = NULL;
	once_fingerprint other = fingerprint_of("another request");
	once_code code = once_start(session, &intent, &other, &answer, &error);
	assert_int_equal(code, ONCE_MISMATCH);
	assert_string_equal(once_error_sqlstate(error), "P4002");
	assert_non_null(strstr(once_error_detail(error), "key='tx "));
	assert_true(once_error_hint(error)[0] != '\0');
	assert_false(once_error_retriable(error));
	once_error_free(error);
	run_sql(session, "ROLLBACK");
}

static void a_claim_lives_from_lease_to_outcome(void **state)
{
	(void)state;
	once_error *error = NULL;
	once_answer *answer = NULL;
	bool held = false;
	once_intent intent = {.tenant = "acme", .scope = "c", .key = "claim"};
	once_fingerprint fingerprint = fingerprint_of("claim");
	assert_ok(once_claim(session, &intent, &fingerprint, "worker 1", 60000, 0, &answer, &error), error);
	assert_int_equal(once_answer_verdict(answer), ONCE_NEW_CLAIM);
	assert_true(once_answer_may_run(answer));
	int fence = once_answer_fence(answer);
	once_answer_free(answer);
	assert_ok(once_claim(session, &intent, &fingerprint, "worker 2", 60000, 0, &answer, &error), error);
	assert_int_equal(once_answer_verdict(answer), ONCE_PROCESSING_ACTIVE);
	assert_false(once_answer_may_run(answer));
	assert_non_null(once_answer_lease_until(answer));
	once_answer_free(answer);
	assert_ok(once_renew(session, &intent, fence, 60000, &held, &error), error);
	assert_true(held);
	assert_ok(once_renew(session, &intent, fence + 1, 60000, &held, &error), error);
	assert_false(held);
	assert_ok(once_release(session, &intent, fence, &held, &error), error);
	assert_true(held);
	assert_ok(once_claim(session, &intent, &fingerprint, "worker 3", 0, 0, &answer, &error), error);
	assert_int_equal(once_answer_verdict(answer), ONCE_RETRYABLE_FAILURE);
	assert_true(once_answer_may_run(answer));
	fence = once_answer_fence(answer);
	once_answer_free(answer);
	assert_ok(
	    once_fail(session, &intent, fence, ONCE_FAILURE_IN_DOUBT, &(once_outcome){.error_code = "timeout"}, &error),
	    error);
	assert_ok(once_peek(session, &intent, &answer, &error), error);
	assert_int_equal(once_answer_verdict(answer), ONCE_IN_DOUBT_STORED);
	assert_int_equal(once_answer_state(answer), ONCE_STATE_IN_DOUBT);
	assert_string_equal(once_answer_error_code(answer), "timeout");
	assert_string_equal(once_answer_owner(answer), "worker 3");
	assert_int_equal(once_answer_attempts(answer), 1);
	once_answer_free(answer);
	once_state before;
	assert_code(ONCE_RESOLUTION_REFUSED,
	            once_resolve(session, &intent, ONCE_STATE_SUCCEEDED, " ", NULL, &before, &error), error);
	assert_ok(once_resolve(session, &intent, ONCE_STATE_FAILED_RETRYABLE, "the provider knows nothing of it", NULL,
	                       &before, &error),
	          error);
	assert_int_equal(before, ONCE_STATE_IN_DOUBT);
	once_outcome outcome = {.response_status = 200, .response_body = bytes_of("done")};
	assert_code(ONCE_COMPLETION_REFUSED, once_complete(session, &intent, fence, &outcome, &error), error);
	assert_ok(once_claim(session, &intent, &fingerprint, NULL, 0, 3600000, &answer, &error), error);
	assert_code(ONCE_COMPLETION_REFUSED, once_complete(session, &intent, fence, &outcome, &error), error);
	fence = once_answer_fence(answer);
	once_answer_free(answer);
	assert_ok(once_complete(session, &intent, fence, &outcome, &error), error);
	assert_ok(once_complete(session, &intent, fence, &outcome, &error), error); /* as sent again */
	assert_code(ONCE_COMPLETION_REFUSED, once_complete(session, &intent, fence - 1, &outcome, &error), error);
	outcome.response_status = 201;
	assert_code(ONCE_COMPLETION_REFUSED, once_complete(session, &intent, fence, &outcome, &error), error);
	assert_code(ONCE_FAILURE_REFUSED, once_fail(session, &intent, fence, ONCE_FAILURE_FINAL, NULL, &error), error);
	error = NULL;
	intent.key = "nobody knows me";
	assert_ok(once_peek(session, &intent, &answer, &error), error);
	assert_int_equal(once_answer_verdict(answer), ONCE_ABSENT);
	once_answer_free(answer);
}

/* The verdict of a claim by this fingerprint, and its fence. */
static once_verdict claim_by(const once_intent *intent, const char *print, int *fence)
{
	once_error *error = NULL;
	once_answers *answers = NULL;
	once_fingerprint fingerprint = fingerprint_of(print);
	assert_ok(once_claim_many(session, "", 1, intent, &fingerprint, NULL, 60000, 0, &answers, &error), error);
	once_verdict verdict = once_answer_verdict(once_answers_at(answers, 0));
	*fence = once_answer_fence(once_answers_at(answers, 0));
	once_answers_free(answers);
	return verdict;
}

static void a_redirected_request_is_the_same_intent(void **state)
{
	(void)state;
	once_error *error = NULL;
	once_answers *answers = NULL;
	once_intent intent = {.tenant = "", .scope = "c", .key = "redirected"};
	once_fingerprint there = fingerprint_of("there");
	once_fingerprint further = fingerprint_of("further");
	once_outcome to_there = {.redirect = &there};
	once_outcome to_further = {.redirect = &further};
	once_failure retryable = ONCE_FAILURE_RETRYABLE;
	int fence;
	assert_int_equal(claim_by(&intent, "here", &fence), ONCE_NEW_CLAIM);
	assert_ok(once_fail(session, &intent, fence, retryable, &to_there, &error), error);
	assert_int_equal(claim_by(&intent, "further", &fence), ONCE_MISMATCHED);
	assert_int_equal(claim_by(&intent, "there", &fence), ONCE_RETRYABLE_FAILURE);
	assert_ok(once_fail_many(session, "", 1, &intent, &fence, &retryable, &to_further, &answers, &error), error);
	assert_int_equal(once_answer_verdict(once_answers_at(answers, 0)), ONCE_STORED);
	once_answers_free(answers);
	assert_int_equal(claim_by(&intent, "further", &fence), ONCE_RETRYABLE_FAILURE);
	assert_int_equal(claim_by(&intent, "here", &fence), ONCE_PROCESSING_ACTIVE);
	assert_int_equal(claim_by(&intent, "elsewhere", &fence), ONCE_MISMATCHED);
}

static void a_batch_answers_each_element_in_order_and_spoils_none(void **state)
{
	(void)state;
	enum {
		COUNT = 4
	};
	once_error *error = NULL;
	once_answers *answers = NULL;
	once_intent intents[COUNT] = {
	    {.scope = "b", .key = "1"}, {.scope = "b", .key = ""}, {.scope = "b", .key = "1"}, {.scope = "b", .key = "2"}};
	once_fingerprint fingerprints[COUNT];
	for (int i = 0; i < COUNT; i++) {
		fingerprints[i] = fingerprint_of("batch");
	}
	assert_ok(once_claim_many(session, "", COUNT, intents, fingerprints, "me", 0, 0, &answers, &error), error);
	assert_int_equal(once_answer_verdict(once_answers_at(answers, 0)), ONCE_NEW_CLAIM);
	assert_int_equal(once_answer_verdict(once_answers_at(answers, 1)), ONCE_INVALID);
	assert_string_equal(once_answer_error_code(once_answers_at(answers, 1)), "P4001");
	assert_int_equal(once_answer_verdict(once_answers_at(answers, 2)), ONCE_PROCESSING_ACTIVE);
	assert_int_equal(once_answer_verdict(once_answers_at(answers, 3)), ONCE_NEW_CLAIM);
	assert_null(once_answers_at(answers, COUNT));
	once_answers_free(answers);

	int fences[COUNT] = {1, 1, 7, 1};
	bool held[COUNT];
	assert_ok(once_renew_many(session, NULL, COUNT, intents, fences, 0, held, &error), error);
	assert_true(held[0] && !held[1] && !held[2] && held[3]);
	once_outcome outcomes[COUNT] = {
	    {.response_status = 200, .response_body = bytes_of("one"), .response_headers = "{}"},
	    {0},
	    {.response_status = 500},
	    {.response_body = {.data = "", .length = 0}}};
	assert_ok(once_complete_many(session, "", COUNT - 1, intents, fences, outcomes, &answers, &error), error);
	assert_int_equal(once_answer_verdict(once_answers_at(answers, 0)), ONCE_STORED);
	assert_int_equal(once_answer_verdict(once_answers_at(answers, 1)), ONCE_INVALID);
	assert_int_equal(once_answer_verdict(once_answers_at(answers, 2)), ONCE_REPORT_REFUSED);
	once_answers_free(answers);
	once_failure failures[1] = {ONCE_FAILURE_FINAL};
	outcomes[3].error_code = "no";
	assert_ok(once_fail_many(session, "", 1, &intents[3], &fences[3], failures, &outcomes[3], &answers, &error), error);
	assert_int_equal(once_answer_verdict(once_answers_at(answers, 0)), ONCE_STORED);
	once_answers_free(answers);
	once_answer *answer = NULL;
	assert_ok(once_peek(session, &intents[0], &answer, &error), error);
	assert_int_equal(once_answer_response_body(answer).length, 3);
	once_answer_free(answer);
	answer = NULL;
	assert_code(ONCE_KEY_MALFORMED, once_peek(session, &intents[1], &answer, &error), error);
	assert_ok(once_peek(session, &intents[3], &answer, &error), error);
	assert_int_equal(once_answer_verdict(answer), ONCE_FINAL_FAILURE_STORED);
	assert_non_null(once_answer_response_body(answer).data);
	assert_int_equal(once_answer_response_body(answer).length, 0);
	once_answer_free(answer);
	assert_ok(once_claim_many(session, "", 0, NULL, NULL, NULL, 0, 0, &answers, &error), error);
	assert_null(once_answers_at(answers, 0));
	once_answers_free(answers);
}

static void emit_bytes_works(void)
{
	unsigned char all[256];
	for (size_t i = 0; i < sizeof all; i++) {
		all[i] = (unsigned char)i;
	}
	once_error *error = NULL;
	char first[37], second[37];
	const once_intent cause = {.scope = "c", .key = "bytes"};
	const once_event event = {
	    .topic = "encoded", .aggregate_type = "order", .aggregate_id = "1", .headers = "{\"h\": \"1\"}"};
	once_bytes payload = {.data = all, .length = sizeof all};
	assert_ok(once_emit_bytes(session, NULL, &cause, &event, payload, "application/avro", first, &error), error);
	assert_ok(once_emit_bytes(session, NULL, &cause, &event, payload, "application/avro", second, &error), error);
	assert_string_equal(first, second);
	payload.length--;
	assert_code(ONCE_EVENT_MISMATCH,
	            once_emit_bytes(session, NULL, &cause, &event, payload, "application/avro", second, &error), error);
	assert_code(ONCE_DATABASE, once_emit_bytes(session, NULL, NULL, &event, payload, NULL, second, &error), error);
	assert_code(ONCE_DATABASE,
	            once_emit_bytes(session, NULL, NULL, &event, (once_bytes){0}, "application/avro", second, &error),
	            error);
	PGresult *stored = PQexec(
	    once_session_connection(session),
	    "SELECT event_id, content_type, payload_bytes = (SELECT string_agg(set_byte('\\x00', 0, n), '' ORDER BY n) "
	    "FROM generate_series(0, 255) AS n), aggregate_id, headers->>'h' FROM once.outbox WHERE key = 'bytes'");
	assert_int_equal(1, PQntuples(stored));
	assert_string_equal(first, PQgetvalue(stored, 0, 0));
	assert_string_equal("application/avro", PQgetvalue(stored, 0, 1));
	assert_string_equal("t", PQgetvalue(stored, 0, 2));
	assert_string_equal("1", PQgetvalue(stored, 0, 3));
	assert_string_equal("1", PQgetvalue(stored, 0, 4));
	PQclear(stored);
}

static void events_work(void **state)
{
	(void)state;
	once_error *error = NULL;
	char first[37], second[37];
	once_intent cause = {.scope = "c", .key = "event"};
	once_event event = {.topic = "orders",
	                    .payload = "{\"id\": 1}",
	                    .aggregate_type = "order",
	                    .aggregate_id = "1",
	                    .headers = "{\"h\": \"1\"}"};
	assert_ok(once_emit(session, NULL, &cause, &event, first, &error), error);
	assert_ok(once_emit(session, NULL, &cause, &event, second, &error), error);
	assert_string_equal(first, second);
	event.payload = "{\"id\": 2}";
	assert_code(ONCE_EVENT_MISMATCH, once_emit(session, NULL, &cause, &event, second, &error), error);
	assert_ok(once_emit(session, NULL, NULL, &event, second, &error), error);
	assert_string_not_equal(first, second);
	once_event later = event;
	later.not_before = "2090-10-29 02:30+01";
	cause.key = "delayed";
	assert_ok(once_emit(session, NULL, &cause, &later, first, &error), error);
	assert_ok(once_emit(session, NULL, &cause, &later, second, &error), error);
	assert_string_equal(first, second);
	PGresult *held =
	    PQexec(once_session_connection(session),
	           "SELECT d.event_id, d.topic, d.not_before = '2090-10-29 01:30+00', NOT EXISTS (SELECT FROM "
	           "once.outbox AS o WHERE o.event_id = d.event_id) FROM once.delayed_event AS d WHERE d.scope = "
	           "'c' AND d.key = 'delayed'");
	assert_int_equal(1, PQntuples(held));
	assert_string_equal(first, PQgetvalue(held, 0, 0));
	assert_string_equal("orders", PQgetvalue(held, 0, 1));
	assert_string_equal("t", PQgetvalue(held, 0, 2));
	assert_string_equal("t", PQgetvalue(held, 0, 3));
	PQclear(held);
	emit_bytes_works();
}

static void prepared_statements_answer_the_same(void **state)
{
	(void)state;
	once_session_prepare(session, true);
	a_transaction_of_the_callers_begins_finishes_and_is_replayed_byte_for_byte(NULL);
	once_session_prepare(session, false);
}

static void wrong_calls_are_usage_errors_and_change_nothing(void **state)
{
	(void)state;
	once_error *error = NULL;
	once_answer *answer = NULL;
	once_intent intent = {.scope = "c", .key = "usage"};
	assert_code(ONCE_USAGE, once_start(NULL, &intent, NULL, &answer, &error), error);
	run_sql(session, "BEGIN");
	assert_code(ONCE_REFUSED, once_start(session, &intent, NULL, &answer, &error), error);
	run_sql(session, "ROLLBACK");
	assert_code(ONCE_USAGE, once_finish(session, &intent, NULL, ONCE_STATE_IN_DOUBT, &(once_outcome){0}, &error),
	            error);
	assert_code(ONCE_USAGE, once_fail(session, &intent, 1, (once_failure)9, NULL, &error), error);
	once_intent nameless = {.key = "k"};
	once_fingerprint fingerprint = fingerprint_of("x");
	assert_code(ONCE_SCOPE_REQUIRED, once_claim(session, &nameless, &fingerprint, NULL, 0, 0, &answer, &error), error);
	assert_code(ONCE_USAGE, once_session_attach(NULL, NULL, &error), error);
	/* Without an error object the code alone tells. */
	assert_int_equal(once_claim(session, &nameless, &fingerprint, NULL, 0, 0, &answer, NULL), ONCE_SCOPE_REQUIRED);
	assert_null(answer);
}

static void no_server_is_a_connection_error_that_says_where(void **state)
{
	(void)state;
	once_error *error = NULL;
	once_session *none = NULL;
	once_code code = once_session_open("host=/nonexistent/directory dbname=nowhere", &none, &error);
	assert_int_equal(code, ONCE_CONNECTION);
	assert_non_null(strstr(once_error_message(error), "/nonexistent/directory"));
	assert_true(once_error_retriable(error));
	assert_null(none);
	once_error_free(error);
}

/* A server that is there says why not: what no retry mends is told apart from what passes. */
static void a_server_that_refuses_is_told_from_one_that_is_away(void **state)
{
	(void)state;
	static const struct {
		const char *with;
		const char *sqlstate;
		bool retriable;
		const char *message;
		const char *hint;
	} refused[] = {{"dbname=nowhere", "3D000", false, "\"nowhere\" does not exist", "create what the message names"},
	               {"user=nobody_has_me", "28000", false, "nobody_has_me", "create what the message names"},
	               {"user=full_role", "53300", true, "too many connections", "connections are taken"}};
	run_sql(session, "CREATE ROLE full_role LOGIN CONNECTION LIMIT 0");
	for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
		char dsn[1024];
		once_error *error = NULL;
		once_session *none = NULL;
		snprintf(dsn, sizeof dsn, "%s %s", getenv("PGONCE_TEST_DSN"), refused[i].with);
		assert_int_equal(once_session_open(dsn, &none, &error), ONCE_CONNECTION);
		assert_null(none);
		assert_string_equal(once_error_sqlstate(error), refused[i].sqlstate);
		assert_true(once_error_retriable(error) == refused[i].retriable);
		assert_non_null(strstr(once_error_message(error), refused[i].message));
		assert_non_null(strstr(once_error_hint(error), refused[i].hint));
		assert_null(strstr(once_error_hint(error), "Is the server running"));
		once_error_free(error);
	}
	run_sql(session, "DROP ROLE full_role");
}

static void a_missing_contract_names_the_command(void **state)
{
	(void)state;
	once_error *error = NULL;
	once_session *bare = NULL;
	char dsn[1024];
	snprintf(dsn, sizeof dsn, "%s dbname=template1", getenv("PGONCE_TEST_DSN"));
	once_code code = once_session_open(dsn, &bare, &error);
	assert_int_equal(code, ONCE_CONTRACT);
	assert_non_null(strstr(once_error_hint(error), "pgonce init"));
	once_error_free(error);
}

int main(void)
{
	session = open_session();
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_embedded_query_prepares_with_its_number_of_parameters),
	    cmocka_unit_test(the_states_of_c_are_those_of_the_database_in_their_order),
	    cmocka_unit_test(the_codes_of_c_are_those_of_the_database),
	    cmocka_unit_test(the_library_and_the_database_speak_one_version),
	    cmocka_unit_test(a_newer_contract_is_spoken_to_and_an_older_one_is_not),
	    cmocka_unit_test(a_fingerprint_made_here_is_the_one_made_there),
	    cmocka_unit_test(a_tenant_has_255_characters_of_any_size),
	    cmocka_unit_test(requests_differ_in_each_part_and_not_in_json_spelling),
	    cmocka_unit_test(a_transaction_of_the_callers_begins_finishes_and_is_replayed_byte_for_byte),
	    cmocka_unit_test(a_claim_lives_from_lease_to_outcome),
	    cmocka_unit_test(a_redirected_request_is_the_same_intent),
	    cmocka_unit_test(a_batch_answers_each_element_in_order_and_spoils_none),
	    cmocka_unit_test(events_work),
	    cmocka_unit_test(prepared_statements_answer_the_same),
	    cmocka_unit_test(wrong_calls_are_usage_errors_and_change_nothing),
	    cmocka_unit_test(no_server_is_a_connection_error_that_says_where),
	    cmocka_unit_test(a_server_that_refuses_is_told_from_one_that_is_away),
	    cmocka_unit_test(a_missing_contract_names_the_command),
	};
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	once_session_close(session);
	return failed;
}
