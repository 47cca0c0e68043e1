/* SPDX-License-Identifier: PostgreSQL */
/*
 * test_memory.c: each allocation of the library fails in turn. Whatever is called then says "no
 * memory" or succeeds, leaks nothing (the address sanitizer looks), and never leaves a second
 * effect: afterwards the same call, with memory, gives the one answer.
 */
#include <stdlib.h>

#include "support.h"

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
char *__real_strdup(const char *text);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);
char *__wrap_strdup(const char *text);

/* Fails the allocation that brings this to 0; below 0 none fails. */
static int countdown = -1;

static bool fails_now(void)
{
	return countdown > 0 && --countdown == 0;
}

void *__wrap_malloc(size_t size)
{
	return fails_now() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
	return fails_now() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *old, size_t size)
{
	return fails_now() ? NULL : __real_realloc(old, size);
}

char *__wrap_strdup(const char *text)
{
	return fails_now() ? NULL : __real_strdup(text);
}

static once_session *session;
static int serial;
static bool prepares;

static once_effect_result insert(PGconn *connection, void *argument, once_outcome *outcome, PGresult **failed)
{
	(void)failed;
	const char *const parameters[] = {argument};
	PQclear(PQexecParams(connection, "INSERT INTO memory_effect VALUES ($1)", 1, NULL, parameters, NULL, NULL, 0));
	outcome->response_body = bytes_of("answer");
	outcome->result_type = "t";
	return ONCE_EFFECT_DONE;
}

static once_effect_result refuse(PGconn *connection, void *argument, once_outcome *outcome, PGresult **failed)
{
	(void)insert(connection, argument, outcome, failed);
	return ONCE_EFFECT_FAILED;
}

/* Everything that allocates, on the intent `key`. Returns the first code that is not OK. */
static once_code use_everything(const char *key)
{
	once_error *error = NULL;
	once_answer *answer = NULL;
	once_answers *answers = NULL;
	once_fingerprint fingerprint = {{1}};
	once_intent intent = {.scope = "memory", .key = key};
	once_outcome outcome = {.response_body = bytes_of("answer")};
	once_statement statement = {.sql = "SELECT 1"};
	once_session *attached = NULL;
	char other_key[64];
	char refused_key[64];
	snprintf(other_key, sizeof other_key, "%s (claim)", key);
	snprintf(refused_key, sizeof refused_key, "%s (refused)", key);
	once_intent claimed = {.scope = "memory", .key = other_key};
	once_intent refused_intent = {.scope = "memory", .key = refused_key};
	once_code code = once_session_attach(once_session_connection(session), &attached, &error);
	if (code == ONCE_OK) {
		once_session_prepare(attached, prepares);
		code = once_fingerprint_request(attached, "", "POST", "/", "application/json",
		                                bytes_of("{\"b\":[1,2],\"a\":{\"c\":\"d\"}}"), true, &fingerprint, &error);
	}
	if (code == ONCE_OK) {
		code = once_execute(attached, &intent, &fingerprint, insert, (void *)(uintptr_t)key, NULL, &answer, &error);
	}
	once_answer_free(answer);
	answer = NULL;
	if (code == ONCE_OK) {
		code = once_execute_statements(attached, &intent, &fingerprint, 1, &statement, &outcome, NULL, &answer, &error);
	}
	once_answer_free(answer);
	answer = NULL;
	if (code == ONCE_OK) {
		once_code failed =
		    once_execute(attached, &refused_intent, &fingerprint, refuse, refused_key, NULL, &answer, &error);
		code = failed == ONCE_FINAL_FAILURE ? ONCE_OK : failed;
		once_error_free(error);
		error = NULL;
	}
	if (code == ONCE_OK) {
		code = once_claim_many(attached, "", 1, &claimed, &fingerprint, NULL, 0, 0, &answers, &error);
	}
	once_answers_free(answers);
	answers = NULL;
	if (code == ONCE_OK) {
		int fence = 1;
		code = once_complete_many(attached, "", 1, &claimed, &fence, &outcome, &answers, &error);
	}
	once_answers_free(answers);
	if (code == ONCE_OK) {
		code = once_peek(attached, &claimed, &answer, &error);
	}
	once_answer_free(answer);
	if (code == ONCE_OK) {
		/* An error object is an allocation too. */
		once_code refused = once_complete(attached, &intent, 99, &outcome, &error);
		code =
		    refused == ONCE_COMPLETION_REFUSED && once_error_code(error) == refused ? ONCE_OK : once_error_code(error);
	}
	once_error_free(error);
	once_session_close(attached);
	return code;
}

static void each_allocation_fails_in_turn_and_nothing_is_lost_or_doubled(void **state)
{
	prepares = *state != NULL;
	int before = serial;
	run_sql(session, "DROP TABLE IF EXISTS memory_effect; CREATE TABLE memory_effect (key text)");
	once_code code = ONCE_NO_MEMORY;
	int n;
	for (n = 1; n < 1000; n++) {
		char key[32];
		snprintf(key, sizeof key, "memory %d", ++serial);
		/* Each time as on a connection that knows nothing yet. */
		run_sql(session, "DEALLOCATE ALL");
		countdown = n;
		code = use_everything(key);
		bool failed = countdown == 0;
		countdown = -1;
		if (!failed) {
			break;
		}
		if (code != ONCE_NO_MEMORY && code != ONCE_OK) {
			fail_msg("allocation %d failed, and the call said %s", n, once_code_name(code));
		}
		/* With memory, the retry gets through. */
		assert_int_equal(use_everything(key), ONCE_OK);
	}
	assert_int_equal(code, ONCE_OK);
	assert_true(n > 15);
	assert_int_equal(query_int(session, "SELECT count(*) FROM memory_effect"), serial - before);
	assert_int_equal(query_int(session, "SELECT count(DISTINCT key) FROM memory_effect"), serial - before);
	print_message("%d allocations failed in turn\n", n - 1);
}

static void a_json_text_too_large_for_memory_is_told_from_a_malformed_one(void **state)
{
	(void)state;
	once_error *error = NULL;
	once_fingerprint fingerprint;
	countdown = 1;
	once_code code =
	    once_fingerprint_request(session, "", "POST", "/", NULL, bytes_of("{\"a\":1}"), true, &fingerprint, &error);
	countdown = -1;
	assert_code(ONCE_NO_MEMORY, code, error);
	assert_string_equal(once_error_message(NULL), "");
}

int main(void)
{
	session = open_session();
	static int prepare = 1;
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(each_allocation_fails_in_turn_and_nothing_is_lost_or_doubled),
	    cmocka_unit_test_prestate(each_allocation_fails_in_turn_and_nothing_is_lost_or_doubled, &prepare),
	    cmocka_unit_test(a_json_text_too_large_for_memory_is_told_from_a_malformed_one),
	};
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	once_session_close(session);
	return failed;
}
