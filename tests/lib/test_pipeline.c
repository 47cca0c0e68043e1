/* SPDX-License-Identifier: PostgreSQL */
/*
 * test_pipeline.c: what an execution costs, counted in libpq's own trace: round trips, and
 * statements that the server parses; and what becomes of prepared statements that somebody has
 * taken away.
 */
#include "support.h"

#include "internal.h"

static once_session *session;
static once_fingerprint fingerprint;

static void start_anew(void)
{
	session = open_session();
	run_sql(session, "SET client_min_messages = warning; CREATE TABLE IF NOT EXISTS piped (key text)");
	run_sql(session, "TRUNCATE piped");
	once_session_prepare(session, true);
}

static int stored(const char *key)
{
	char sql[200];
	snprintf(sql, sizeof sql, "SELECT count(*) FROM piped WHERE key = '%s'", key);
	return query_int(session, sql);
}

/* ---- Counting ---- */

typedef struct count {
	int trips;
	int parses;
	int savepoints;
	char *text;
	size_t length;
	FILE *file;
} count;

static void start_count(count *count)
{
	*count = (struct count){0};
	count->file = open_memstream(&count->text, &count->length);
	PQtrace(once_session_connection(session), count->file);
}

static int lines_with(const char *text, const char *piece)
{
	int lines = 0;
	for (const char *at = strstr(text, piece); at != NULL; at = strstr(at + 1, piece)) {
		lines++;
	}
	return lines;
}

/* A round trip ends with ReadyForQuery: the client waits for no other. */
static void stop_count(count *count)
{
	PQuntrace(once_session_connection(session));
	fclose(count->file);
	count->trips = lines_with(count->text, "\tReadyForQuery\t");
	count->parses = lines_with(count->text, "\tParse\t");
	count->savepoints = lines_with(count->text, "SAVEPOINT") + lines_with(count->text, "savepoint");
	free(count->text);
}

/* ---- Executions ---- */

typedef struct effect {
	const char *key;
	const char *before; /* run first, in each run */
	const char *failing;
	once_effect_result ends;
	int runs;
	bool leaves_pipeline;
	PGpipelineStatus saw;
	PGTransactionStatusType saw_transaction;
	char isolation[32];
} effect;

static once_effect_result insert(PGconn *connection, void *argument, once_outcome *outcome, PGresult **failed)
{
	effect *effect = argument;
	(void)failed;
	effect->runs++;
	effect->saw = PQpipelineStatus(connection);
	effect->saw_transaction = PQtransactionStatus(connection);
	PGresult *level = PQexec(connection, "SHOW transaction_isolation");
	snprintf(effect->isolation, sizeof effect->isolation, "%s", PQgetvalue(level, 0, 0));
	PQclear(level);
	if (effect->before != NULL) {
		PQclear(PQexec(connection, effect->before));
	}
	PQclear(PQexecParams(connection, "INSERT INTO piped VALUES ($1)", 1, NULL, &effect->key, NULL, NULL, 0));
	if (effect->failing != NULL) {
		PQclear(PQexec(connection, effect->failing));
	}
	if (effect->leaves_pipeline) {
		assert_int_equal(PQenterPipelineMode(connection), 1);
		assert_int_equal(PQsendQueryParams(connection, "SELECT 1", 0, NULL, NULL, NULL, NULL, 0), 1);
	}
	outcome->response_body = bytes_of("answer");
	return effect->ends;
}

enum {
	TRIPS_OF_EFFECT = 2 /* SHOW, INSERT */
};

static once_code execute(effect *effect, const char *isolation, once_error **error)
{
	once_answer *answer = NULL;
	const once_intent intent = {.scope = "piped", .key = effect->key};
	const once_options options = {.isolation = isolation};
	once_code code = once_execute(session, &intent, &fingerprint, insert, effect, &options, &answer, error);
	assert_true(code != ONCE_OK || once_answer_response_body(answer).length == 6);
	once_answer_free(answer);
	return code;
}

static once_code execute_list(const char *key, size_t statement_count, const once_statement *statements,
                              once_error **error)
{
	once_answer *answer = NULL;
	const once_intent intent = {.scope = "piped", .key = key};
	const once_outcome outcome = {.response_body = bytes_of("answer")};
	once_code code = once_execute_statements(session, &intent, &fingerprint, statement_count, statements, &outcome,
	                                         NULL, &answer, error);
	once_answer_free(answer);
	return code;
}

/* One insert of the key, and `more` (NULL: nothing). */
static once_code execute_insert(const char *key, const char *more, once_error **error)
{
	const once_statement statements[] = {
	    {.sql = "INSERT INTO piped VALUES ($1)", .parameter_count = 1, .parameters = &key}, {.sql = more}};
	return execute_list(key, more == NULL ? 1 : 2, statements, error);
}

/* An execution of each kind, its round trips and what it parses. */
static count cost_of_effect(const char *key, once_effect_result ends)
{
	once_error *error = NULL;
	count count;
	effect effect = {.key = key, .ends = ends};
	start_count(&count);
	once_code code = execute(&effect, NULL, &error);
	stop_count(&count);
	assert_int_equal(code, ends == ONCE_EFFECT_DONE ? ONCE_OK : ONCE_FINAL_FAILURE);
	once_error_free(error);
	/* The effect's own: SHOW is a simple query; an INSERT with parameters is parsed each time. */
	count.trips -= effect.runs * TRIPS_OF_EFFECT;
	count.parses -= effect.runs;
	return count;
}

static count cost_of_list(const char *key)
{
	once_error *error = NULL;
	count count;
	start_count(&count);
	once_code code = execute_insert(key, NULL, &error);
	stop_count(&count);
	assert_ok(code, error);
	return count;
}

static void assert_cost(count count, int trips, int parses)
{
	assert_int_equal(count.savepoints, 0);
	if (count.trips != trips || count.parses != parses) {
		fail_msg("%d round trips and %d parsed, not %d and %d", count.trips, count.parses, trips, parses);
	}
}

/* ---- What it costs ---- */

static void begin_travels_with_start_and_commit_with_finish(void **state)
{
	(void)state;
	start_anew();
	once_session_prepare(session, false);
	assert_cost(cost_of_effect("new", ONCE_EFFECT_DONE), 2, 4);
	assert_cost(cost_of_effect("new", ONCE_EFFECT_DONE), 2, 2); /* a replay: ROLLBACK is a query */
	/* A failure takes one more: the rollback travels with the second start. */
	assert_cost(cost_of_effect("failed", ONCE_EFFECT_FAILED), 3, 8);
	assert_int_equal(stored("new"), 1);
	assert_int_equal(stored("failed"), 0);
	once_session_close(session);
}

static void a_list_takes_one_round_trip_and_its_replay_two(void **state)
{
	(void)state;
	start_anew();
	once_session_prepare(session, false);
	assert_cost(cost_of_list("list"), 1, 4);
	assert_cost(cost_of_list("list"), 2, 6);
	assert_int_equal(stored("list"), 1);
	once_session_close(session);
}

static void what_is_prepared_is_parsed_once_and_in_no_round_trip_of_its_own(void **state)
{
	(void)state;
	start_anew();
	assert_cost(cost_of_list("first"), 1, 4);
	assert_cost(cost_of_list("second"), 1, 0);
	assert_cost(cost_of_list("second"), 2, 2); /* ROLLBACK and start are new */
	assert_cost(cost_of_list("second"), 2, 0);
	assert_cost(cost_of_effect("third", ONCE_EFFECT_DONE), 2, 1); /* finish is new */
	assert_cost(cost_of_effect("fourth", ONCE_EFFECT_DONE), 2, 0);
	assert_cost(cost_of_effect("fourth", ONCE_EFFECT_DONE), 2, 0);
	assert_cost(cost_of_effect("fifth", ONCE_EFFECT_FAILED), 3, 1); /* the question before ROLLBACK */
	assert_cost(cost_of_effect("sixth", ONCE_EFFECT_FAILED), 3, 0);
	assert_int_equal(query_int(session, "SELECT count(*) FROM piped"), 4);
	once_session_close(session);
}

static void the_effect_sees_an_ordinary_connection_in_its_transaction(void **state)
{
	(void)state;
	start_anew();
	static const char *const levels[] = {"read committed", "repeatable read", "serializable"};
	for (size_t i = 0; i < 6; i++) {
		char key[32];
		snprintf(key, sizeof key, "level %d", (int)i);
		once_error *error = NULL;
		effect effect = {.key = key};
		once_session_prepare(session, i % 2 == 0);
		assert_ok(execute(&effect, levels[i / 2], &error), error);
		assert_int_equal(effect.saw, PQ_PIPELINE_OFF);
		assert_int_equal(effect.saw_transaction, PQTRANS_INTRANS);
		assert_string_equal(effect.isolation, levels[i / 2]);
	}
	once_session_close(session);
}

/* ---- What may not commit ---- */

static void a_pipeline_that_the_effect_leaves_open_is_refused_and_taken_back(void **state)
{
	(void)state;
	start_anew();
	once_error *error = NULL;
	effect effect = {.key = "left", .leaves_pipeline = true};
	assert_code(ONCE_USAGE, execute(&effect, NULL, &error), error);
	assert_int_equal(PQpipelineStatus(once_session_connection(session)), PQ_PIPELINE_OFF);
	assert_int_equal(stored("left"), 0);
	effect.leaves_pipeline = false;
	assert_ok(execute(&effect, NULL, &error), error);
	assert_int_equal(stored("left"), 1);
	once_session_close(session);
}

static void a_failed_statement_that_the_effect_ignores_commits_nothing(void **state)
{
	start_anew();
	once_session_prepare(session, *state != NULL);
	once_error *error = NULL;
	effect effect = {.key = "ignored", .failing = "SELECT 1/0"};
	once_code code = execute(&effect, NULL, &error);
	assert_int_equal(code, ONCE_DATABASE);
	assert_string_equal(once_error_sqlstate(error), "25P02");
	assert_false(once_error_outcome_unknown(error));
	once_error_free(error);
	assert_int_equal(stored("ignored"), 0);
	assert_int_equal(PQtransactionStatus(once_session_connection(session)), PQTRANS_IDLE);
	once_session_close(session);
}

static void what_only_the_commit_finds_wrong_is_an_error_and_no_unknown(void **state)
{
	(void)state;
	start_anew();
	run_sql(session, "CREATE TABLE deferred (n integer UNIQUE DEFERRABLE INITIALLY DEFERRED)");
	run_sql(session, "INSERT INTO deferred VALUES (1)");
	for (int prepares = 0; prepares < 2; prepares++) {
		once_error *error = NULL;
		once_session_prepare(session, prepares == 1);
		effect effect = {.key = "deferred", .failing = "INSERT INTO deferred VALUES (1)"};
		once_code code =
		    prepares == 1 ? execute_insert("deferred", effect.failing, &error) : execute(&effect, NULL, &error);
		assert_int_equal(code, ONCE_DATABASE);
		assert_string_equal(once_error_sqlstate(error), "23505");
		assert_false(once_error_outcome_unknown(error));
		once_error_free(error);
		assert_int_equal(stored("deferred"), 0);
	}
	run_sql(session, "DROP TABLE deferred");
	once_session_close(session);
}

/* Whatever start says but "go on", the server skips what stands behind it. */
static void no_statement_of_a_list_runs_behind_a_start_that_says_no(void **state)
{
	start_anew();
	once_session_prepare(session, *state != NULL);
	once_error *error = NULL;
	once_answer *answer = NULL;
	once_session *rival = open_session();
	run_sql(session, "CREATE SEQUENCE ran");
	/* A sequence is not taken back by a rollback: it shows what was run at all. */
	const char *key = *state != NULL ? "no, prepared" : "no";
	static const char run[] = "SELECT nextval('ran')";
	const once_intent intent = {.scope = "piped", .key = key};
	run_sql(rival, "BEGIN");
	assert_ok(once_start(rival, &intent, &fingerprint, &answer, &error), error);
	once_answer_free(answer);
	assert_code(ONCE_ACTIVE, execute_insert(key, run, &error), error);
	run_sql(rival, "ROLLBACK");
	assert_ok(execute_insert(key, NULL, &error), error);
	assert_ok(execute_insert(key, run, &error), error); /* a replay */
	fingerprint.bytes[0] ^= 1;
	assert_code(ONCE_MISMATCH, execute_insert(key, run, &error), error);
	fingerprint.bytes[0] ^= 1;
	assert_int_equal(query_int(session, "SELECT is_called::integer FROM ran"), 0);
	assert_int_equal(stored(key), 1);
	run_sql(session, "DROP SEQUENCE ran");
	once_session_close(rival);
	once_session_close(session);
}

/* finish_new says "finished" once, and start, which is to read the outcome, finds nothing. */
static void an_outcome_that_goes_away_while_it_is_read_is_no_answer(void **state)
{
	(void)state;
	start_anew();
	run_sql(session,
	        "CREATE SEQUENCE met; ALTER FUNCTION once.finish_new RENAME TO own_finish_new;"
	        "CREATE FUNCTION once.finish_new(scope text, key text, fingerprint bytea, response_status integer,"
	        "  response_body bytea, response_headers jsonb, result_type text, result_id text, state text,"
	        "  error_code text, error_message text, tenant text, traceparent text) RETURNS integer "
	        "LANGUAGE plpgsql AS $$ BEGIN IF nextval('public.met') = 1 THEN RAISE SQLSTATE 'P4020'; END IF;"
	        "  RETURN once.own_finish_new(scope, key, fingerprint, response_status, NULL, NULL, response_body);"
	        "END $$");
	once_error *error = NULL;
	assert_ok(execute_insert("away", NULL, &error), error);
	assert_int_equal(stored("away"), 1);
	run_sql(session, "DROP FUNCTION once.finish_new; ALTER FUNCTION once.own_finish_new RENAME TO finish_new;"
	                 "DROP SEQUENCE met");
	once_session_close(session);
}

static void a_list_with_a_statement_that_would_end_its_transaction_is_refused(void **state)
{
	(void)state;
	start_anew();
	once_error *error = NULL;
	static const char *const misfits[] = {"COMMIT",
	                                      "end",
	                                      " ;\n-- a comment\n; commit and chain",
	                                      "/* a /* nested */ one */ROLLBACK TO a",
	                                      "Abort;",
	                                      "begin",
	                                      "START TRANSACTION",
	                                      "prepare/**/transaction 'x'",
	                                      "copy piped from stdin"};
	for (size_t i = 0; i < sizeof misfits / sizeof misfits[0]; i++) {
		assert_code(ONCE_USAGE, execute_insert("misfit", misfits[i], &error), error);
	}
	const once_statement missing = {.sql = NULL};
	assert_code(ONCE_USAGE, execute_list("misfit", 1, &missing, &error), error);
	assert_int_equal(stored("misfit"), 0);
	static const char *const fits[] = {"/* commit */ SELECT 1",
	                                   "-- commit\nSELECT 1",
	                                   "PREPARE commit AS SELECT 1",
	                                   "SAVEPOINT commit",
	                                   "/* never closed",
	                                   "-- only",
	                                   "",
	                                   "ends"};
	for (size_t i = 0; i < sizeof fits / sizeof fits[0]; i++) {
		assert_true(statement_fits_list(fits[i]));
	}
	once_session_close(session);
}

static void a_statement_that_is_empty_does_nothing_and_is_no_error(void **state)
{
	(void)state;
	start_anew();
	once_error *error = NULL;
	static const char *const empty[] = {"", " ; ", "-- only a comment"};
	for (size_t i = 0; i < sizeof empty / sizeof empty[0]; i++) {
		for (int again = 0; again < 2; again++) {
			char key[40];
			snprintf(key, sizeof key, "empty %zu %d", i, again);
			assert_ok(execute_insert(key, empty[i], &error), error);
			assert_int_equal(stored(key), 1);
		}
	}
	once_session_close(session);
}

/* ---- What was prepared and is gone ---- */

static void prepared_statements_that_are_gone_are_prepared_anew(void **state)
{
	(void)state;
	static const char *const thefts[] = {"DISCARD ALL", "DEALLOCATE ALL"};
	start_anew();
	for (size_t i = 0; i < 2; i++) {
		char key[3][32];
		for (int n = 0; n < 3; n++) {
			snprintf(key[n], sizeof key[n], "gone %d %d", (int)i, n);
		}
		cost_of_list("warm");
		run_sql(session, thefts[i]);
		assert_cost(cost_of_list(key[0]), 2, 4); /* nothing was open, so nothing is rolled back */
		assert_cost(cost_of_list(key[1]), 1, 4);
		assert_cost(cost_of_list(key[2]), 1, 0);
		assert_int_equal(stored(key[0]), 1);
	}
	cost_of_effect("warm too", ONCE_EFFECT_DONE);
	run_sql(session, "DISCARD ALL");
	assert_cost(cost_of_effect("gone effect", ONCE_EFFECT_DONE), 3, 4);
	assert_int_equal(stored("gone effect"), 1);
	once_session_close(session);
}

static void a_finish_that_is_gone_has_the_effect_rolled_back_and_run_again(void **state)
{
	(void)state;
	start_anew();
	once_error *error = NULL;
	cost_of_effect("warm for finish", ONCE_EFFECT_DONE);
	effect effect = {.key = "gone within", .before = "DEALLOCATE ALL"};
	assert_ok(execute(&effect, NULL, &error), error);
	assert_int_equal(effect.runs, 2);
	assert_int_equal(stored("gone within"), 1);
	once_session_close(session);
}

static void a_plan_whose_result_has_changed_is_made_anew(void **state)
{
	(void)state;
	start_anew();
	once_error *error = NULL;
	count count;
	static const char read[] = "SELECT * FROM shape";
	run_sql(session, "CREATE TABLE shape (a integer)");
	assert_ok(execute_insert("shape 1", read, &error), error);
	run_sql(session, "ALTER TABLE shape ADD b text");
	assert_ok(execute_insert("shape 2", read, &error), error);
	assert_int_equal(stored("shape 2"), 1);
	start_count(&count);
	assert_ok(execute_insert("shape 3", read, &error), error);
	stop_count(&count);
	/* In the execution before, what was outdated was taken away, and all was sent as text. */
	assert_cost(count, 1, 1);
	start_count(&count);
	assert_ok(execute_insert("shape 4", read, &error), error);
	stop_count(&count);
	assert_cost(count, 1, 0);
	/* What the statement itself does not support is no news of the plan. */
	once_code code = execute_insert("shape 5", "SELECT '{}'::json = '{}' FOR UPDATE", &error);
	assert_int_equal(code, ONCE_DATABASE);
	once_error_free(error);
	error = NULL;
	for (int i = 0; i < 2; i++) {
		code = execute_insert("shape 6", "DO $$ BEGIN RAISE SQLSTATE '0A000'; END $$", &error);
		assert_int_equal(code, ONCE_DATABASE);
		assert_string_equal(once_error_sqlstate(error), "0A000");
		once_error_free(error);
		error = NULL;
	}
	run_sql(session, "DROP TABLE shape");
	once_session_close(session);
}

static void a_name_that_is_taken_by_the_same_text_is_used(void **state)
{
	(void)state;
	start_anew();
	once_session *own = session;
	once_session *other = NULL;
	once_error *error = NULL;
	cost_of_list("taken 1");
	/* As behind a pooler: another session, the same connection to the server. */
	assert_ok(once_session_attach(once_session_connection(own), &other, &error), error);
	once_session_prepare(other, true);
	session = other;
	for (int i = 0; i < 3; i++) {
		char key[32];
		snprintf(key, sizeof key, "taken by another %d", i);
		cost_of_list(key);
		assert_int_equal(stored(key), 1);
	}
	/* Three times in a row something was there that it did not expect: it is off. */
	assert_cost(cost_of_list("taken off"), 1, 4);
	once_session_close(other);
	session = own;
	assert_cost(cost_of_list("taken 2"), 1, 0);
	once_session_close(session);
}

static void a_statement_that_names_something_missing_is_the_callers_error(void **state)
{
	(void)state;
	start_anew();
	once_error *error = NULL;
	for (int i = 0; i < 4; i++) {
		once_code code = execute_insert("missing", "EXECUTE nobody_prepared_me", &error);
		assert_int_equal(code, ONCE_DATABASE);
		assert_string_equal(once_error_sqlstate(error), "26000");
		once_error_free(error);
		error = NULL;
	}
	assert_int_equal(stored("missing"), 0);
	once_session_close(session);
}

static void more_texts_than_are_prepared_run_all_the_same_and_one_twice_is_parsed_once(void **state)
{
	(void)state;
	start_anew();
	once_error *error = NULL;
	for (int i = 0; i < PREPARED_TEXTS_MAX + 4; i++) {
		char sql[64];
		char key[32];
		snprintf(sql, sizeof sql, "SELECT %d", i);
		snprintf(key, sizeof key, "text %d", i);
		assert_ok(execute_insert(key, sql, &error), error);
	}
	const once_statement twice[] = {{.sql = "SELECT 1"}, {.sql = "SELECT 1"}};
	count count;
	run_sql(session, "DISCARD ALL");
	assert_ok(execute_list("twice 1", 2, twice, &error), error);
	start_count(&count);
	assert_ok(execute_list("twice 2", 2, twice, &error), error);
	stop_count(&count);
	assert_cost(count, 1, 4); /* BEGIN, finish_new, SELECT 1, COMMIT */
	once_session_close(session);
}

static void a_single_call_whose_statement_is_gone_succeeds_where_nothing_is_open(void **state)
{
	(void)state;
	start_anew();
	once_error *error = NULL;
	once_answer *answer = NULL;
	const once_intent intent = {.scope = "piped", .key = "single"};
	for (int i = 0; i < 3; i++) {
		assert_ok(once_peek(session, &intent, &answer, &error), error);
		once_answer_free(answer);
		answer = NULL;
		run_sql(session, i == 0 ? "SELECT 1" : "DEALLOCATE ALL");
	}
	for (int i = 0; i < 2; i++) {
		run_sql(session, "BEGIN");
		once_code code = once_start(session, &intent, &fingerprint, &answer, &error);
		if (i == 0) {
			assert_ok(code, error);
			once_answer_free(answer);
			answer = NULL;
			run_sql(session, "DEALLOCATE ALL");
		} else {
			assert_int_equal(code, ONCE_DATABASE);
			assert_string_equal(once_error_sqlstate(error), "26000");
			once_error_free(error);
			error = NULL;
		}
		run_sql(session, "ROLLBACK");
	}
	run_sql(session, "BEGIN");
	assert_ok(once_start(session, &intent, &fingerprint, &answer, &error), error);
	once_answer_free(answer);
	run_sql(session, "ROLLBACK");
	once_session_close(session);
}

static void a_single_call_finds_its_name_taken_or_its_plan_outdated_and_goes_on(void **state)
{
	(void)state;
	start_anew();
	once_session *other = NULL;
	once_error *error = NULL;
	once_answer *answer = NULL;
	bool held = false;
	const once_intent intent = {.scope = "piped", .key = "single taken"};
	assert_ok(once_session_attach(once_session_connection(session), &other, &error), error);
	once_session_prepare(other, true);
	assert_ok(once_peek(session, &intent, &answer, &error), error);
	once_answer_free(answer);
	answer = NULL;
	assert_ok(once_peek(other, &intent, &answer, &error), error);
	once_answer_free(answer);
	/* Inside a transaction the refusal has spoilt it. */
	run_sql(session, "BEGIN");
	assert_ok(once_release(session, &intent, 1, &held, &error), error);
	once_code code = once_release(other, &intent, 1, &held, &error);
	assert_int_equal(code, ONCE_DATABASE);
	assert_string_equal(once_error_sqlstate(error), "42P05");
	once_error_free(error);
	error = NULL;
	run_sql(session, "ROLLBACK");
	/* A plan that is outdated inside a transaction fails; the next transaction does without it. */
	run_sql(session,
	        "ALTER FUNCTION once.release RENAME TO own_release;"
	        "CREATE FUNCTION once.release(scope text, key text, fence integer, tenant text) RETURNS text LANGUAGE "
	        "sql AS 'SELECT NULL::text'");
	run_sql(session, "BEGIN");
	code = once_release(session, &intent, 1, &held, &error);
	assert_int_equal(code, ONCE_DATABASE);
	assert_string_equal(once_error_sqlstate(error), "0A000");
	once_error_free(error);
	error = NULL;
	run_sql(session, "ROLLBACK; BEGIN");
	assert_ok(once_release(session, &intent, 1, &held, &error), error);
	run_sql(session, "ROLLBACK; DROP FUNCTION once.release; ALTER FUNCTION once.own_release RENAME TO release");
	once_session_close(other);
	once_session_close(session);
}

int main(void)
{
	session = open_session();
	once_error *error = NULL;
	assert_ok(once_fingerprint_bytes(session, "", bytes_of("request"), &fingerprint, &error), error);
	once_session_close(session);
	static int prepare = 1;
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(begin_travels_with_start_and_commit_with_finish),
	    cmocka_unit_test(a_list_takes_one_round_trip_and_its_replay_two),
	    cmocka_unit_test(what_is_prepared_is_parsed_once_and_in_no_round_trip_of_its_own),
	    cmocka_unit_test(the_effect_sees_an_ordinary_connection_in_its_transaction),
	    cmocka_unit_test(a_pipeline_that_the_effect_leaves_open_is_refused_and_taken_back),
	    cmocka_unit_test(a_failed_statement_that_the_effect_ignores_commits_nothing),
	    cmocka_unit_test_prestate(a_failed_statement_that_the_effect_ignores_commits_nothing, &prepare),
	    cmocka_unit_test(what_only_the_commit_finds_wrong_is_an_error_and_no_unknown),
	    cmocka_unit_test(no_statement_of_a_list_runs_behind_a_start_that_says_no),
	    cmocka_unit_test_prestate(no_statement_of_a_list_runs_behind_a_start_that_says_no, &prepare),
	    cmocka_unit_test(an_outcome_that_goes_away_while_it_is_read_is_no_answer),
	    cmocka_unit_test(a_list_with_a_statement_that_would_end_its_transaction_is_refused),
	    cmocka_unit_test(a_statement_that_is_empty_does_nothing_and_is_no_error),
	    cmocka_unit_test(prepared_statements_that_are_gone_are_prepared_anew),
	    cmocka_unit_test(a_finish_that_is_gone_has_the_effect_rolled_back_and_run_again),
	    cmocka_unit_test(a_plan_whose_result_has_changed_is_made_anew),
	    cmocka_unit_test(a_name_that_is_taken_by_the_same_text_is_used),
	    cmocka_unit_test(a_statement_that_names_something_missing_is_the_callers_error),
	    cmocka_unit_test(more_texts_than_are_prepared_run_all_the_same_and_one_twice_is_parsed_once),
	    cmocka_unit_test(a_single_call_whose_statement_is_gone_succeeds_where_nothing_is_open),
	    cmocka_unit_test(a_single_call_finds_its_name_taken_or_its_plan_outdated_and_goes_on),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
