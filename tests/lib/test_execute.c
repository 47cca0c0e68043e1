/* SPDX-License-Identifier: PostgreSQL */
/*
 * test_execute.c: once_execute and once_execute_statements: one effect, one answer, and every way
 * that an attempt can end.
 */
#include "support.h"

static once_session *session;
static once_fingerprint fingerprint;

/* What an effect is told to do, and how often it ran. */
typedef struct script {
	int runs;
	int fail_runs; /* the first so many runs end with `ends` */
	once_effect_result ends;
	const char *before_end; /* a statement that fails, run before such an end */
	bool keeps_failed;      /* its result is not handed over */
	once_bytes failure_body;
	once_session *other; /* a rival transaction, run inside the effect */
	const char *other_sql;
} script;

static void setup_tables(void)
{
	run_sql(session, "SET client_min_messages = warning; CREATE TABLE IF NOT EXISTS effect (key text, n integer)");
	run_sql(session, "CREATE TABLE IF NOT EXISTS counter (id integer PRIMARY KEY, n integer)");
	run_sql(session, "TRUNCATE effect, counter");
	run_sql(session, "INSERT INTO counter VALUES (1, 0)");
}

static once_effect_result play(PGconn *connection, void *argument, once_outcome *outcome, PGresult **failed)
{
	script *script = argument;
	script->runs++;
	PQclear(PQexec(connection, "INSERT INTO effect VALUES ('k', 1)"));
	if (script->other != NULL && script->runs == 1) {
		PQclear(PQexec(connection, "SELECT n FROM counter"));
		run_sql(script->other, script->other_sql);
	}
	if (script->runs <= script->fail_runs) {
		if (script->before_end != NULL) {
			PGresult *result = PQexec(connection, script->before_end);
			if (script->keeps_failed) {
				PQclear(result);
			} else {
				*failed = result;
			}
		}
		outcome->response_status = 422;
		outcome->response_body = script->failure_body;
		outcome->error_code = "refused";
		outcome->error_message = "the card was declined";
		return script->ends;
	}
	if (script->other != NULL) {
		PGresult *result = PQexec(connection, "UPDATE counter SET n = n + 1");
		if (PQresultStatus(result) != PGRES_COMMAND_OK) {
			*failed = result;
			return ONCE_EFFECT_RETRY;
		}
		PQclear(result);
	}
	outcome->response_status = 201;
	outcome->response_body = bytes_of("done");
	return ONCE_EFFECT_DONE;
}

static int effects(void)
{
	return query_int(session, "SELECT count(*) FROM effect");
}

static void an_effect_runs_once_and_every_retry_gets_its_answer(void **state)
{
	(void)state;
	setup_tables();
	script script = {0};
	once_error *error = NULL;
	once_intent intent = {.scope = "x", .key = "once"};
	for (int i = 0; i < 3; i++) {
		once_answer *answer = NULL;
		assert_ok(once_execute(session, &intent, &fingerprint, play, &script, NULL, &answer, &error), error);
		assert_int_equal(once_answer_verdict(answer), i == 0 ? ONCE_PROCEED : ONCE_REPLAY_SUCCESS);
		assert_int_equal(once_answer_state(answer), ONCE_STATE_SUCCEEDED);
		assert_int_equal(once_answer_response_status(answer), 201);
		assert_int_equal(once_answer_response_body(answer).length, 4);
		assert_memory_equal(once_answer_response_body(answer).data, "done", 4);
		once_answer_free(answer);
	}
	assert_int_equal(script.runs, 1);
	assert_int_equal(effects(), 1);
}

static void a_final_failure_is_recorded_and_its_effect_rolled_back(void **state)
{
	(void)state;
	setup_tables();
	script script = {.fail_runs = 1, .ends = ONCE_EFFECT_FAILED};
	once_error *error = NULL;
	once_answer *answer = NULL;
	once_intent intent = {.scope = "x", .key = "final"};
	assert_code(ONCE_FINAL_FAILURE, once_execute(session, &intent, &fingerprint, play, &script, NULL, &answer, &error),
	            error);
	assert_code(ONCE_FINAL_FAILURE, once_execute(session, &intent, &fingerprint, play, &script, NULL, &answer, &error),
	            error);
	assert_int_equal(script.runs, 1);
	assert_int_equal(effects(), 0);
	assert_ok(once_peek(session, &intent, &answer, &error), error);
	assert_int_equal(once_answer_response_status(answer), 422);
	assert_string_equal(once_answer_error_message(answer), "the card was declined");
	once_answer_free(answer);
}

static void a_final_failure_after_a_failed_statement_is_recorded_all_the_same(void **state)
{
	(void)state;
	setup_tables();
	script script = {.fail_runs = 1, .ends = ONCE_EFFECT_FAILED, .before_end = "SELECT 1/0"};
	once_error *error = NULL;
	once_answer *answer = NULL;
	once_intent intent = {.scope = "x", .key = "final 2"};
	assert_code(ONCE_FINAL_FAILURE, once_execute(session, &intent, &fingerprint, play, &script, NULL, &answer, &error),
	            error);
	assert_int_equal(effects(), 0);
}

static void a_final_failure_whose_outcome_is_refused_stores_nothing(void **state)
{
	(void)state;
	setup_tables();
	static char large[2 << 20];
	script script = {
	    .fail_runs = 1, .ends = ONCE_EFFECT_FAILED, .failure_body = {.data = large, .length = sizeof large}};
	once_error *error = NULL;
	once_answer *answer = NULL;
	once_intent intent = {.scope = "x", .key = "too large"};
	assert_code(ONCE_TOO_LARGE, once_execute(session, &intent, &fingerprint, play, &script, NULL, &answer, &error),
	            error);
	assert_int_equal(script.runs, 1);
	assert_int_equal(effects(), 0);
	assert_ok(once_peek(session, &intent, &answer, &error), error);
	assert_int_equal(once_answer_verdict(answer), ONCE_ABSENT);
	once_answer_free(answer);
}

static void an_aborted_effect_leaves_no_trace(void **state)
{
	(void)state;
	setup_tables();
	script script = {.fail_runs = 1, .ends = ONCE_EFFECT_ABORT};
	once_error *error = NULL;
	once_answer *answer = NULL;
	once_intent intent = {.scope = "x", .key = "abort"};
	assert_code(ONCE_EFFECT, once_execute(session, &intent, &fingerprint, play, &script, NULL, &answer, &error), error);
	assert_int_equal(effects(), 0);
	assert_ok(once_peek(session, &intent, &answer, &error), error);
	assert_int_equal(once_answer_verdict(answer), ONCE_ABSENT);
	once_answer_free(answer);
	answer = NULL;
	assert_ok(once_execute(session, &intent, &fingerprint, play, &script, NULL, &answer, &error), error);
	once_answer_free(answer);
	assert_int_equal(effects(), 1);
}

static void an_effect_that_asks_for_it_runs_again_until_the_deadline(void **state)
{
	(void)state;
	setup_tables();
	once_error *error = NULL;
	once_answer *answer = NULL;
	once_intent intent = {.scope = "x", .key = "again"};
	script script = {.fail_runs = 3, .ends = ONCE_EFFECT_RETRY};
	assert_ok(
	    once_execute(session, &intent, &fingerprint, play, &script, &(once_options){.backoff_ms = 1}, &answer, &error),
	    error);
	once_answer_free(answer);
	answer = NULL;
	assert_int_equal(script.runs, 4);
	assert_int_equal(effects(), 1);
	script.runs = 0;
	script.fail_runs = 1000000;
	intent.key = "again in vain";
	assert_code(ONCE_DEADLINE,
	            once_execute(session, &intent, &fingerprint, play, &script,
	                         &(once_options){.backoff_ms = 1, .deadline_ms = 50}, &answer, &error),
	            error);
	assert_int_equal(effects(), 1);
}

static void the_longest_deadline_is_no_deadline(void **state)
{
	(void)state;
	setup_tables();
	once_error *error = NULL;
	once_answer *answer = NULL;
	once_intent intent = {.scope = "x", .key = "forever"};
	script script = {.fail_runs = 1, .ends = ONCE_EFFECT_RETRY};
	assert_ok(once_execute(session, &intent, &fingerprint, play, &script,
	                       &(once_options){.backoff_ms = 1, .deadline_ms = INT64_MAX}, &answer, &error),
	          error);
	assert_int_equal(script.runs, 2);
	once_answer_free(answer);
}

static void a_statement_that_fails_for_good_is_reported_with_its_sqlstate(void **state)
{
	(void)state;
	setup_tables();
	once_error *error = NULL;
	once_answer *answer = NULL;
	once_intent intent = {.scope = "x", .key = "broken"};
	script script = {.fail_runs = 1, .ends = ONCE_EFFECT_RETRY, .before_end = "SELECT 1/0"};
	once_code code = once_execute(session, &intent, &fingerprint, play, &script, NULL, &answer, &error);
	assert_int_equal(code, ONCE_DATABASE);
	assert_string_equal(once_error_sqlstate(error), "22012");
	once_error_free(error);
	assert_int_equal(script.runs, 1);
	assert_int_equal(effects(), 0);
}

static void a_missing_function_of_the_effect_is_not_a_missing_contract(void **state)
{
	(void)state;
	setup_tables();
	once_error *error = NULL;
	once_answer *answer = NULL;
	once_intent intent = {.scope = "x", .key = "missing"};
	script script = {.fail_runs = 1, .ends = ONCE_EFFECT_RETRY, .before_end = "SELECT once.nobody_has_me()"};
	once_code code = once_execute(session, &intent, &fingerprint, play, &script, NULL, &answer, &error);
	assert_int_equal(code, ONCE_DATABASE);
	assert_string_equal(once_error_sqlstate(error), "42883");
	once_error_free(error);
}

static void a_failed_statement_that_is_not_handed_over_ends_with_what_to_do(void **state)
{
	(void)state;
	setup_tables();
	once_error *error = NULL;
	once_answer *answer = NULL;
	once_intent intent = {.scope = "x", .key = "kept"};
	script script = {.fail_runs = 1, .ends = ONCE_EFFECT_RETRY, .before_end = "SELECT 1/0", .keeps_failed = true};
	once_code code = once_execute(session, &intent, &fingerprint, play, &script, NULL, &answer, &error);
	assert_int_equal(code, ONCE_EFFECT);
	assert_non_null(strstr(once_error_hint(error), "*failed"));
	once_error_free(error);
	assert_int_equal(script.runs, 1);
	assert_int_equal(effects(), 0);
}

static void a_serialization_failure_is_retried(void **state)
{
	(void)state;
	setup_tables();
	once_error *error = NULL;
	once_answer *answer = NULL;
	once_session *other = open_session();
	once_intent intent = {.scope = "x", .key = "race"};
	script script = {.other = other, .other_sql = "UPDATE counter SET n = n + 10"};
	assert_ok(once_execute(session, &intent, &fingerprint, play, &script,
	                       &(once_options){.isolation = "repeatable read"}, &answer, &error),
	          error);
	once_answer_free(answer);
	assert_int_equal(script.runs, 2);
	assert_int_equal(effects(), 1);
	assert_int_equal(query_int(session, "SELECT n FROM counter"), 11);
	once_session_close(other);
}

static void a_running_attempt_is_reported_or_waited_for(void **state)
{
	(void)state;
	setup_tables();
	once_error *error = NULL;
	once_answer *answer = NULL;
	once_session *other = open_session();
	once_intent intent = {.scope = "x", .key = "running"};
	script script = {0};
	run_sql(other, "BEGIN");
	assert_ok(once_start(other, &intent, &fingerprint, &answer, &error), error);
	once_answer_free(answer);
	answer = NULL;
	once_code code = once_execute(session, &intent, &fingerprint, play, &script, NULL, &answer, &error);
	assert_int_equal(code, ONCE_ACTIVE);
	assert_true(once_error_retriable(error));
	once_error_free(error);
	error = NULL;
	assert_code(ONCE_ACTIVE,
	            once_execute(session, &intent, &fingerprint, play, &script,
	                         &(once_options){.wait_ms = 30, .backoff_ms = 1}, &answer, &error),
	            error);
	assert_int_equal(script.runs, 0);
	run_sql(other, "ROLLBACK");
	assert_ok(
	    once_execute(session, &intent, &fingerprint, play, &script, &(once_options){.wait_ms = 5000}, &answer, &error),
	    error);
	once_answer_free(answer);
	assert_int_equal(effects(), 1);
	once_session_close(other);
}

static void a_session_inside_a_transaction_is_refused(void **state)
{
	(void)state;
	setup_tables();
	once_error *error = NULL;
	once_answer *answer = NULL;
	once_intent intent = {.scope = "x", .key = "nested"};
	script script = {0};
	run_sql(session, "BEGIN");
	assert_code(ONCE_USAGE, once_execute(session, &intent, &fingerprint, play, &script, NULL, &answer, &error), error);
	run_sql(session, "ROLLBACK");
	error = NULL;
	assert_code(ONCE_USAGE,
	            once_execute(session, &intent, &fingerprint, play, &script, &(once_options){.isolation = "chaos"},
	                         &answer, &error),
	            error);
}

static const char *const insert_parameters[] = {"k", "2"};
static const once_statement insert_once = {
    .sql = "INSERT INTO effect VALUES ($1, $2::integer)", .parameter_count = 2, .parameters = insert_parameters};

static void statements_run_once_in_one_round_trip_and_replay(void **state)
{
	bool prepare = *state != NULL;
	setup_tables();
	once_session_prepare(session, prepare);
	once_error *error = NULL;
	once_intent intent = {.scope = "x", .key = prepare ? "statements, prepared" : "statements"};
	once_outcome outcome = {.response_status = 201,
	                        .response_body = bytes_of("two"),
	                        .response_headers = "{\"a\": \"b\"}",
	                        .result_type = "effect",
	                        .result_id = "7"};
	once_statement statements[] = {insert_once, {.sql = "SELECT count(*) FROM effect"}};
	for (int i = 0; i < 3; i++) {
		once_answer *answer = NULL;
		assert_ok(
		    once_execute_statements(session, &intent, &fingerprint, 2, statements, &outcome, NULL, &answer, &error),
		    error);
		assert_int_equal(once_answer_verdict(answer), i == 0 ? ONCE_PROCEED : ONCE_REPLAY_SUCCESS);
		assert_int_equal(once_answer_fence(answer), 1);
		assert_int_equal(once_answer_response_status(answer), 201);
		assert_memory_equal(once_answer_response_body(answer).data, "two", 3);
		assert_int_equal(once_answer_response_body(answer).length, 3);
		assert_string_equal(once_answer_response_headers(answer), "{\"a\": \"b\"}");
		assert_string_equal(once_answer_result_type(answer), "effect");
		assert_string_equal(once_answer_result_id(answer), "7");
		once_answer_free(answer);
	}
	assert_int_equal(effects(), 1);
	once_session_prepare(session, false);
}

static void a_failing_statement_undoes_all_and_is_reported(void **state)
{
	(void)state;
	setup_tables();
	once_error *error = NULL;
	once_answer *answer = NULL;
	once_intent intent = {.scope = "x", .key = "bad statement"};
	once_outcome outcome = {.response_status = 201};
	once_statement statements[] = {insert_once, {.sql = "SELECT 1/0"}, insert_once};
	once_code code =
	    once_execute_statements(session, &intent, &fingerprint, 3, statements, &outcome, NULL, &answer, &error);
	assert_int_equal(code, ONCE_DATABASE);
	assert_string_equal(once_error_sqlstate(error), "22012");
	once_error_free(error);
	error = NULL;
	assert_int_equal(effects(), 0);
	assert_ok(once_peek(session, &intent, &answer, &error), error);
	assert_int_equal(once_answer_verdict(answer), ONCE_ABSENT);
	once_answer_free(answer);
	answer = NULL;
	once_fingerprint other = fingerprint;
	other.bytes[0] ^= 1;
	intent.key = "once";
	assert_code(ONCE_MISMATCH,
	            once_execute_statements(session, &intent, &other, 1, statements, &outcome, NULL, &answer, &error),
	            error);
	assert_int_equal(effects(), 0);
}

static void an_attached_session_uses_and_leaves_the_callers_connection(void **state)
{
	(void)state;
	setup_tables();
	once_error *error = NULL;
	once_answer *answer = NULL;
	once_session *attached = NULL;
	PGconn *connection = PQconnectdb(getenv("PGONCE_TEST_DSN"));
	assert_ok(once_session_attach(connection, &attached, &error), error);
	once_intent intent = {.scope = "x", .key = "attached"};
	script script = {0};
	assert_ok(once_execute(attached, &intent, &fingerprint, play, &script, NULL, &answer, &error), error);
	once_answer_free(answer);
	once_session_close(attached);
	assert_int_equal(PQstatus(connection), CONNECTION_OK);
	assert_int_equal(PQtransactionStatus(connection), PQTRANS_IDLE);
	PQfinish(connection);
	assert_int_equal(effects(), 1);
}

int main(void)
{
	session = open_session();
	once_error *error = NULL;
	assert_ok(once_fingerprint_bytes(session, "", bytes_of("request"), &fingerprint, &error), error);
	static int prepare = 1;
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(an_effect_runs_once_and_every_retry_gets_its_answer),
	    cmocka_unit_test(a_final_failure_is_recorded_and_its_effect_rolled_back),
	    cmocka_unit_test(a_final_failure_after_a_failed_statement_is_recorded_all_the_same),
	    cmocka_unit_test(a_final_failure_whose_outcome_is_refused_stores_nothing),
	    cmocka_unit_test(an_aborted_effect_leaves_no_trace),
	    cmocka_unit_test(an_effect_that_asks_for_it_runs_again_until_the_deadline),
	    cmocka_unit_test(the_longest_deadline_is_no_deadline),
	    cmocka_unit_test(a_statement_that_fails_for_good_is_reported_with_its_sqlstate),
	    cmocka_unit_test(a_missing_function_of_the_effect_is_not_a_missing_contract),
	    cmocka_unit_test(a_failed_statement_that_is_not_handed_over_ends_with_what_to_do),
	    cmocka_unit_test(a_serialization_failure_is_retried),
	    cmocka_unit_test(a_running_attempt_is_reported_or_waited_for),
	    cmocka_unit_test(a_session_inside_a_transaction_is_refused),
	    cmocka_unit_test(statements_run_once_in_one_round_trip_and_replay),
	    cmocka_unit_test_prestate(statements_run_once_in_one_round_trip_and_replay, &prepare),
	    cmocka_unit_test(a_failing_statement_undoes_all_and_is_reported),
	    cmocka_unit_test(an_attached_session_uses_and_leaves_the_callers_connection),
	};
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	once_session_close(session);
	return failed;
}
