/* SPDX-License-Identifier: PostgreSQL */
/*
 * test_ended.c: an effect that ends its transaction itself. Whatever it says then, and wherever it
 * went on, the intent is in doubt and nothing runs again. What only looks like it is no doubt.
 */
#include <time.h>

#include "support.h"

static once_session *session;
static once_session *rival;
static once_fingerprint fingerprint;

enum {
	STATEMENTS_MAX = 6
};

/* What an effect does, and how often it ran. */
typedef struct script {
	const char *statements[STATEMENTS_MAX]; /* of its first run */
	once_effect_result ends;                /* of its first run; the others are done */
	bool is_rival;                          /* the rival has the intent afterwards */
	const char *prepared;                   /* prepared and executed after them */
	const char *unread;                     /* sent, and its result left */
	bool is_pipelined;                      /* ... in pipeline mode, which is left open */
	bool resets;                            /* the connection, and fails in a transaction there */
	int runs;
} script;

static void run_all(PGconn *connection, const char *const statements[], PGresult **failed)
{
	for (int i = 0; i < STATEMENTS_MAX && statements[i] != NULL; i++) {
		PGresult *result = PQexec(connection, statements[i]);
		if (PQresultStatus(result) == PGRES_FATAL_ERROR) {
			PQclear(*failed);
			*failed = result;
		} else {
			PQclear(result);
		}
	}
}

static once_effect_result play(PGconn *connection, void *argument, once_outcome *outcome, PGresult **failed)
{
	static const char *const again[STATEMENTS_MAX] = {"BEGIN", "SELECT 1/0"};
	script *script = argument;
	PQclear(PQexec(connection, "INSERT INTO ended_effect VALUES (1)"));
	outcome->response_status = 201;
	outcome->response_body = bytes_of("done");
	if (++script->runs > 1) {
		return ONCE_EFFECT_DONE;
	}
	run_all(connection, script->statements, failed);
	if (script->prepared != NULL) {
		PQclear(PQprepare(connection, "", script->prepared, 0, NULL));
		PQclear(PQexecPrepared(connection, "", 0, NULL, NULL, NULL, 0));
	}
	if (script->resets) {
		PQreset(connection);
		run_all(connection, again, failed);
	}
	if (script->is_pipelined) {
		assert_int_equal(PQenterPipelineMode(connection), 1);
		assert_int_equal(PQsendQueryParams(connection, script->unread, 0, NULL, NULL, NULL, NULL, 0), 1);
	} else if (script->unread != NULL) {
		assert_int_equal(PQsendQuery(connection, script->unread), 1);
	}
	if (script->is_rival) {
		run_sql(rival, "SELECT once.start('ended', 'rival', decode(repeat('07', 32), 'hex'))");
	}
	return script->ends;
}

static once_code execute(once_session *on, const char *key, script *script, int64_t deadline_ms, once_error **error)
{
	once_answer *answer = NULL;
	const once_intent intent = {.scope = "ended", .key = key};
	once_code code = once_execute(on, &intent, &fingerprint, play, script, &(once_options){.deadline_ms = deadline_ms},
	                              &answer, error);
	once_answer_free(answer);
	return code;
}

static void assert_stored(const char *key, once_verdict verdict, const char *error_code)
{
	once_error *error = NULL;
	once_answer *answer = NULL;
	assert_ok(once_peek(rival, &(once_intent){.scope = "ended", .key = key}, &answer, &error), error);
	assert_int_equal(once_answer_verdict(answer), verdict);
	const char *stored = once_answer_error_code(answer);
	assert_string_equal(stored == NULL ? "" : stored, error_code);
	once_answer_free(answer);
}

static void assert_doubt(const once_error *error)
{
	assert_string_equal(once_error_sqlstate(error), "P4031");
	assert_false(once_error_retriable(error));
	assert_true(once_error_outcome_unknown(error));
}

static int effects(void)
{
	return query_int(rival, "SELECT count(*) FROM ended_effect");
}

/* With each end; afterwards a retry is refused. */
static void assert_in_doubt(const char *name, const script *of, int effects_of_each)
{
	for (int ends = ONCE_EFFECT_DONE; ends <= ONCE_EFFECT_ABORT; ends++) {
		char key[100];
		once_error *error = NULL;
		script script = *of;
		script.ends = (once_effect_result)ends;
		snprintf(key, sizeof key, "%s, %d", name, ends);
		run_sql(rival, "TRUNCATE ended_effect");
		for (int attempts = 0; attempts < 2; attempts++) {
			once_code code = execute(session, key, &script, 0, &error);
			if (code != ONCE_IN_DOUBT || script.runs != 1 || effects() != effects_of_each) {
				fail_msg("%s: %s %s, %d runs, %d effects", key, once_code_name(code), once_error_message(error),
				         script.runs, effects());
			}
			if (attempts == 0) {
				assert_doubt(error);
				assert_string_equal(once_error_detail(error), "");
			}
			once_error_free(error);
			error = NULL;
			assert_int_equal(PQtransactionStatus(once_session_connection(session)), PQTRANS_IDLE);
			assert_stored(key, ONCE_IN_DOUBT_STORED, "transaction_ended");
		}
	}
}

static void an_effect_that_ends_its_transaction_is_in_doubt_whatever_it_says(void **state)
{
	(void)state;
	assert_in_doubt("commit", &(script){.statements = {"COMMIT"}}, 1);
	assert_in_doubt("end", &(script){.statements = {"END", "SELECT 1"}}, 1);
	assert_in_doubt("rollback", &(script){.statements = {"ROLLBACK"}}, 0);
	assert_in_doubt("refused", &(script){.statements = {"INSERT INTO ended_check VALUES (1), (1)", "COMMIT"}}, 0);
	assert_in_doubt("autocommit", &(script){.statements = {"ROLLBACK", "INSERT INTO ended_effect VALUES (2)"}}, 1);
	assert_in_doubt("read only", &(script){.statements = {"TRUNCATE ended_effect", "COMMIT", "SELECT 1"}}, 0);
}

static void an_effect_that_goes_on_in_another_transaction_is_in_doubt_whatever_it_says(void **state)
{
	(void)state;
	assert_in_doubt("commit, begin",
	                &(script){.statements = {"COMMIT", "BEGIN", "INSERT INTO ended_effect VALUES (2)"}}, 1);
	assert_in_doubt("in one string", &(script){.statements = {"COMMIT; BEGIN"}}, 1);
	assert_in_doubt("chain", &(script){.statements = {"COMMIT AND CHAIN"}}, 1);
	assert_in_doubt("rollback, begin", &(script){.statements = {"ROLLBACK", "START TRANSACTION"}}, 0);
	/* Started again there, the intent could be finished. */
	assert_in_doubt("started again",
	                &(script){.statements = {"COMMIT", "BEGIN",
	                                         "SELECT once.start('ended', 'started again, ' || e, decode(repeat('07', "
	                                         "32), 'hex')) FROM generate_series(0, 3) AS e"}},
	                1);
}

/* Nothing can be asked there. */
static void an_effect_whose_other_transaction_fails_is_in_doubt_whatever_it_says(void **state)
{
	(void)state;
	assert_in_doubt("commit, failed", &(script){.statements = {"COMMIT", "BEGIN", "SELECT 1/0"}}, 1);
	assert_in_doubt("commit, failed, in one string", &(script){.statements = {"COMMIT; BEGIN; SELECT 1/0"}}, 1);
	assert_in_doubt("rollback, failed",
	                &(script){.statements = {"ROLLBACK", "INSERT INTO ended_effect VALUES (2)", "BEGIN", "SELECT 1/0"}},
	                1);
	assert_in_doubt("failed commit",
	                &(script){.statements = {"INSERT INTO ended_check VALUES (1), (1)", "COMMIT",
	                                         "INSERT INTO ended_effect VALUES (2)", "BEGIN", "SELECT 1/0"}},
	                1);
	assert_in_doubt("reset", &(script){.resets = true}, 0);
}

/* ROLLBACK TO has the same command tag. */
static void a_rollback_after_a_savepoint_is_told_from_a_rollback_to_it(void **state)
{
	(void)state;
	assert_in_doubt("savepoint, begin",
	                &(script){.statements = {"SAVEPOINT s", "ROLLBACK", "INSERT INTO ended_effect VALUES (2)", "BEGIN",
	                                         "SELECT 1/0"}},
	                1);
	assert_in_doubt("savepoint, chain", &(script){.statements = {"SAVEPOINT s", "ROLLBACK AND CHAIN"}}, 0);
	assert_in_doubt("savepoint, commit", &(script){.statements = {"SAVEPOINT s", "ROLLBACK TO s", "COMMIT"}}, 1);
}

static void an_end_whose_result_the_effect_leaves_unread_is_seen(void **state)
{
	(void)state;
	assert_in_doubt("unread", &(script){.unread = "COMMIT"}, 1);
	assert_in_doubt("unread, failed", &(script){.unread = "COMMIT; BEGIN; SELECT 1/0"}, 1);
	assert_in_doubt("pipelined", &(script){.unread = "COMMIT", .is_pipelined = true}, 1);
}

#define LOSS "SELECT pg_terminate_backend(pg_backend_pid())"

static void an_effect_that_loses_its_connection_after_its_commit_is_in_doubt(void **state)
{
	(void)state;
	assert_in_doubt("lost", &(script){.statements = {"COMMIT", LOSS}}, 1);
	assert_in_doubt("lost after a rollback",
	                &(script){.statements = {"ROLLBACK", "INSERT INTO ended_effect VALUES (2)", LOSS}}, 1);
	assert_in_doubt("lost in another transaction", &(script){.statements = {"COMMIT", "BEGIN", LOSS}}, 1);
}

/* ---- No doubt ---- */

static void savepoints_and_a_repeated_begin_are_no_end(void **state)
{
	(void)state;
	static const script harmless[] = {
	    {.statements = {"SAVEPOINT s", "INSERT INTO ended_effect VALUES (2)", "ROLLBACK TO s"}},
	    {.statements = {"SAVEPOINT s", "SELECT 1/0", "ROLLBACK TO s", "SELECT 1"}},
	    {.statements = {"SAVEPOINT s", "ROLLBACK TO s", "RELEASE s"}},
	    {.statements = {"SAVEPOINT s", "SELECT 1/0"}, .prepared = "ROLLBACK TO s"},
	    {.statements = {"BEGIN", "SELECT 1"}},
	    {.statements = {"PREPARE p AS SELECT 1", "DEALLOCATE p"}},
	    {.statements = {"SELECT 1"}},
	};
	static const once_code codes[] = {[ONCE_EFFECT_DONE] = ONCE_OK,
	                                  [ONCE_EFFECT_FAILED] = ONCE_FINAL_FAILURE,
	                                  [ONCE_EFFECT_RETRY] = ONCE_OK,
	                                  [ONCE_EFFECT_ABORT] = ONCE_EFFECT};
	for (size_t i = 0; i < sizeof harmless / sizeof harmless[0]; i++) {
		for (int ends = ONCE_EFFECT_DONE; ends <= ONCE_EFFECT_ABORT; ends++) {
			char key[100];
			once_error *error = NULL;
			script script = harmless[i];
			script.ends = (once_effect_result)ends;
			snprintf(key, sizeof key, "harmless %zu, %d", i, ends);
			run_sql(rival, "TRUNCATE ended_effect");
			once_code code = execute(session, key, &script, 0, &error);
			if (code != codes[ends]) {
				fail_msg("%s: %s %s", key, once_code_name(code), once_error_message(error));
			}
			once_error_free(error);
			assert_int_equal(script.runs, ends == ONCE_EFFECT_RETRY ? 2 : 1);
			assert_int_equal(effects(), codes[ends] == ONCE_OK);
		}
	}
}

static void a_failed_statement_is_no_end(void **state)
{
	(void)state;
	static const script failing[] = {
	    {.statements = {"SELECT 1/0", "SELECT 1"}},
	    {.statements = {"BEGIN", "SELECT 1/0"}},
	    {.statements = {"SAVEPOINT s", "SELECT 1/0", "ROLLBACK TO s", "SELECT 1/0"}},
	};
	for (size_t i = 0; i < sizeof failing / sizeof failing[0]; i++) {
		once_error *error = NULL;
		script script = failing[i];
		script.ends = ONCE_EFFECT_RETRY;
		run_sql(rival, "TRUNCATE ended_effect");
		assert_code(ONCE_DATABASE, execute(session, "failing", &script, 0, &error), error);
		assert_int_equal(script.runs, 1);
		assert_int_equal(effects(), 0);
		assert_stored("failing", ONCE_ABSENT, "");
	}
}

static void an_effect_that_loses_its_connection_runs_again(void **state)
{
	(void)state;
	static const script losing[] = {
	    {.statements = {LOSS}},
	    {.statements = {"SAVEPOINT s", "ROLLBACK TO s", LOSS}},
	};
	for (size_t i = 0; i < sizeof losing / sizeof losing[0]; i++) {
		for (int ends = ONCE_EFFECT_DONE; ends <= ONCE_EFFECT_RETRY; ends++) {
			char key[100];
			once_error *error = NULL;
			script script = losing[i];
			script.ends = (once_effect_result)ends;
			snprintf(key, sizeof key, "losing %zu, %d", i, ends);
			run_sql(rival, "TRUNCATE ended_effect");
			assert_ok(execute(session, key, &script, 0, &error), error);
			assert_int_equal(script.runs, 2);
			assert_int_equal(effects(), 1);
		}
	}
}

static void an_effect_that_gives_up_does_not_run_again_even_if_its_connection_is_lost(void **state)
{
	(void)state;
	once_error *error = NULL;
	once_session *own = open_session();
	script script = {.statements = {LOSS}, .ends = ONCE_EFFECT_ABORT};
	run_sql(rival, "TRUNCATE ended_effect");
	assert_code(ONCE_EFFECT, execute(own, "gives up", &script, 0, &error), error);
	assert_int_equal(script.runs, 1);
	assert_int_equal(effects(), 0);
	once_session_close(own);
}

static void a_result_that_an_effect_leaves_unread_is_a_mistake_and_nothing_is_committed(void **state)
{
	(void)state;
	for (int is_pipelined = 0; is_pipelined < 2; is_pipelined++) {
		once_error *error = NULL;
		script script = {.unread = "SELECT 1", .is_pipelined = is_pipelined};
		run_sql(rival, "TRUNCATE ended_effect");
		assert_code(ONCE_USAGE, execute(session, "unread alone", &script, 0, &error), error);
		assert_int_equal(script.runs, 1);
		assert_int_equal(effects(), 0);
		assert_stored("unread alone", ONCE_ABSENT, "");
	}
}

/* ---- A doubt that cannot be stored ---- */

static void a_doubt_that_cannot_be_stored_is_said_to_be_none(void **state)
{
	(void)state;
	once_error *error = NULL;
	once_session *attached = NULL;
	PGconn *connection = PQconnectdb(getenv("PGONCE_TEST_DSN"));
	script script = {.statements = {"COMMIT", LOSS}, .ends = ONCE_EFFECT_RETRY};
	run_sql(rival, "TRUNCATE ended_effect");
	assert_ok(once_session_attach(connection, &attached, &error), error);
	assert_int_equal(execute(attached, "attached", &script, 0, &error), ONCE_IN_DOUBT);
	assert_doubt(error);
	assert_non_null(strstr(once_error_message(error), "the doubt is not stored"));
	assert_string_not_equal(once_error_detail(error), "");
	once_error_free(error);
	assert_int_equal(script.runs, 1);
	assert_int_equal(effects(), 1);
	assert_stored("attached", ONCE_ABSENT, "");
	once_session_close(attached);
	PQfinish(connection);
}

/* A prepared transaction holds the intent's lock: nothing runs while it is undecided. */
static void a_prepared_transaction_keeps_the_intent_until_it_is_decided(void **state)
{
	(void)state;
	once_error *error = NULL;
	script script = {.statements = {"PREPARE TRANSACTION 'ended'"}};
	run_sql(rival, "TRUNCATE ended_effect");
	for (int attempts = 0; attempts < 2; attempts++) {
		once_code code = execute(session, "prepared", &script, 50, &error);
		assert_int_equal(code, attempts == 0 ? ONCE_IN_DOUBT : ONCE_ACTIVE);
		if (attempts == 0) {
			assert_doubt(error);
			assert_non_null(strstr(once_error_message(error), "the doubt is not stored"));
		}
		once_error_free(error);
		error = NULL;
		assert_int_equal(script.runs, 1);
	}
	run_sql(rival, "ROLLBACK PREPARED 'ended'");
	assert_int_equal(effects(), 0);
}

/* The lock went with the transaction, so another attempt may have begun. */
static void a_doubt_waits_until_the_deadline_for_another_attempt(void **state)
{
	(void)state;
	once_error *error = NULL;
	script script = {.statements = {"COMMIT"}, .ends = ONCE_EFFECT_RETRY, .is_rival = true};
	run_sql(rival, "BEGIN");
	assert_int_equal(execute(session, "rival", &script, 50, &error), ONCE_IN_DOUBT);
	assert_doubt(error);
	assert_non_null(strstr(once_error_detail(error), "another transaction holds the intent"));
	once_error_free(error);
	error = NULL;
	run_sql(rival, "ROLLBACK");

	/* The server ends this one. */
	once_session *kept = rival;
	rival = open_session();
	run_sql(rival, "SET idle_in_transaction_session_timeout = 50");
	run_sql(rival, "BEGIN");
	script.runs = 0;
	assert_code(ONCE_IN_DOUBT, execute(session, "rival", &script, 0, &error), error);
	once_session_close(rival);
	rival = kept;
	assert_stored("rival", ONCE_IN_DOUBT_STORED, "transaction_ended");
}

static void an_outcome_that_another_attempt_has_stored_meanwhile_is_kept(void **state)
{
	(void)state;
	once_error *error = NULL;
	script script = {
	    .statements = {"COMMIT", "SELECT once.finish_new('ended', 'meanwhile', decode(repeat('07', 32), 'hex'), 201)"},
	    .ends = ONCE_EFFECT_RETRY};
	time_t began = time(NULL);
	assert_int_equal(execute(session, "meanwhile", &script, 600000, &error), ONCE_IN_DOUBT);
	assert_in_range(time(NULL) - began, 0, 300);
	assert_doubt(error);
	assert_non_null(strstr(once_error_detail(error), "replay_success"));
	once_error_free(error);
	assert_int_equal(script.runs, 1);
	assert_stored("meanwhile", ONCE_REPLAY_SUCCESS, "");
}

int main(void)
{
	session = open_session();
	rival = open_session();
	memset(fingerprint.bytes, 7, sizeof fingerprint.bytes);
	run_sql(rival, "CREATE TABLE ended_effect (n integer)");
	run_sql(rival, "CREATE TABLE ended_check (n integer UNIQUE DEFERRABLE INITIALLY DEFERRED)");
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(an_effect_that_ends_its_transaction_is_in_doubt_whatever_it_says),
	    cmocka_unit_test(an_effect_that_goes_on_in_another_transaction_is_in_doubt_whatever_it_says),
	    cmocka_unit_test(an_effect_whose_other_transaction_fails_is_in_doubt_whatever_it_says),
	    cmocka_unit_test(a_rollback_after_a_savepoint_is_told_from_a_rollback_to_it),
	    cmocka_unit_test(an_end_whose_result_the_effect_leaves_unread_is_seen),
	    cmocka_unit_test(an_effect_that_loses_its_connection_after_its_commit_is_in_doubt),
	    cmocka_unit_test(savepoints_and_a_repeated_begin_are_no_end),
	    cmocka_unit_test(a_failed_statement_is_no_end),
	    cmocka_unit_test(an_effect_that_loses_its_connection_runs_again),
	    cmocka_unit_test(an_effect_that_gives_up_does_not_run_again_even_if_its_connection_is_lost),
	    cmocka_unit_test(a_result_that_an_effect_leaves_unread_is_a_mistake_and_nothing_is_committed),
	    cmocka_unit_test(a_doubt_that_cannot_be_stored_is_said_to_be_none),
	    cmocka_unit_test(a_prepared_transaction_keeps_the_intent_until_it_is_decided),
	    cmocka_unit_test(a_doubt_waits_until_the_deadline_for_another_attempt),
	    cmocka_unit_test(an_outcome_that_another_attempt_has_stored_meanwhile_is_kept),
	};
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	once_session_close(rival);
	once_session_close(session);
	return failed;
}
