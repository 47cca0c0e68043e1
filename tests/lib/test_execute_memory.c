/* SPDX-License-Identifier: PostgreSQL */
/*
 * test_execute_memory.c: each allocation of libpq fails in turn during an execution. Whatever is
 * said then, nothing hangs, no answer is taken for another statement's, and the retry finds or
 * makes the one effect. Needs fail_libpq.so in LD_PRELOAD.
 */
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "support.h"

extern int fail_libpq_countdown __attribute__((weak)); /* of fail_libpq.c, where that is loaded */

static once_session *watcher;

/*
 * libpq 15 without memory for the result of a Sync waits for another one (fe-protocol3.c, 'Z'),
 * which nobody can see from outside: the timeout that the network would have. One that comes too
 * soon, on a busy machine, does no harm.
 */
static once_session *starved;
static volatile sig_atomic_t hangs;

static void hang_up(int signal)
{
	(void)signal;
	hangs++;
	shutdown(PQsocket(once_session_connection(starved)), SHUT_RDWR);
}

static once_effect_result insert(PGconn *connection, void *argument, once_outcome *outcome, PGresult **failed)
{
	const char *const parameters[] = {argument};
	/* The effect has memory: what it would do without is its own business. */
	int countdown = fail_libpq_countdown;
	fail_libpq_countdown = -1;
	PGresult *result = PQexecParams(connection, "INSERT INTO starved VALUES ($1)", 1, NULL, parameters, NULL, NULL, 0);
	fail_libpq_countdown = countdown;
	if (PQresultStatus(result) != PGRES_COMMAND_OK) {
		*failed = result;
		return ONCE_EFFECT_RETRY;
	}
	PQclear(result);
	outcome->response_body = bytes_of("answer");
	return ONCE_EFFECT_DONE;
}

static once_effect_result refuse(PGconn *connection, void *argument, once_outcome *outcome, PGresult **failed)
{
	once_effect_result done = insert(connection, argument, outcome, failed);
	return done == ONCE_EFFECT_DONE ? ONCE_EFFECT_FAILED : done;
}

typedef struct way {
	const char *name;
	bool list;
	bool fails; /* for good */
	bool prepares;
	bool attached;
} way;

static once_code execute(const way *way, once_session *session, const char *key, once_error **error)
{
	const once_fingerprint fingerprint = {{7}};
	const once_intent intent = {.scope = "starved", .key = key};
	const once_statement statement = {
	    .sql = "INSERT INTO starved VALUES ($1)", .parameter_count = 1, .parameters = &key};
	const once_outcome outcome = {.response_body = bytes_of("answer")};
	const once_options options = {.deadline_ms = 20000, .wait_ms = 20000}; /* a lost backend may live on */
	once_answer *answer = NULL;
	once_code code = way->list ? once_execute_statements(session, &intent, &fingerprint, 1, &statement, &outcome,
	                                                     &options, &answer, error)
	                           : once_execute(session, &intent, &fingerprint, way->fails ? refuse : insert,
	                                          (void *)(uintptr_t)key, &options, &answer, error);
	if (code == ONCE_OK) {
		assert_int_equal(once_answer_response_body(answer).length, 6);
		assert_memory_equal(once_answer_response_body(answer).data, "answer", 6);
	}
	once_answer_free(answer);
	return code;
}

static once_session *open_on(const way *way, PGconn **connection)
{
	once_session *session = NULL;
	once_error *error = NULL;
	*connection = NULL;
	if (way->attached) {
		*connection = PQconnectdb(getenv("PGONCE_TEST_DSN"));
		assert_ok(once_session_attach(*connection, &session, &error), error);
	} else {
		session = open_session();
	}
	once_session_prepare(session, way->prepares);
	return session;
}

static int effects_of(const char *key)
{
	char sql[100];
	snprintf(sql, sizeof sql, "SELECT count(*) FROM starved WHERE key = '%s'", key);
	return query_int(watcher, sql);
}

static int failures_of(const char *key)
{
	char sql[200];
	snprintf(sql, sizeof sql, "SELECT count(*) FROM once.intent WHERE key = '%s' AND state = 'failed_final'", key);
	return query_int(watcher, sql);
}

/* An effect, or a stored failure without one. */
static void assert_done(const way *way, const char *key, bool done)
{
	assert_int_equal(effects_of(key), done && !way->fails);
	assert_int_equal(failures_of(key), done && way->fails);
}

static void starve(const way *way)
{
	int n;
	once_code good = way->fails ? ONCE_FINAL_FAILURE : ONCE_OK;
	hangs = 0;
	for (n = 1; n < 500; n++) {
		char key[64];
		once_error *error = NULL;
		PGconn *connection = NULL;
		snprintf(key, sizeof key, "%s %d", way->name, n);
		once_session *session = open_on(way, &connection);
		starved = session;
		alarm(2);
		fail_libpq_countdown = n;
		once_code code = execute(way, session, key, &error);
		alarm(0);
		bool failed = fail_libpq_countdown == 0;
		fail_libpq_countdown = -1;
		/* What is said is true: an effect is there, or none is, or that is unknown. */
		/* A failure is stored before the error that says so is made, for which memory may be missing. */
		if (code == good || (!once_error_outcome_unknown(error) && code != ONCE_NO_MEMORY)) {
			assert_done(way, key, code == good);
		}
		once_error_free(error);
		error = NULL;
		if (PQstatus(once_session_connection(session)) == CONNECTION_OK) {
			assert_int_equal(PQpipelineStatus(once_session_connection(session)), PQ_PIPELINE_OFF);
			assert_int_equal(PQtransactionStatus(once_session_connection(session)), PQTRANS_IDLE);
		} else {
			once_session_close(session);
			PQfinish(connection);
			session = open_on(way, &connection);
		}
		code = execute(way, session, key, &error);
		assert_int_equal(code, good);
		once_error_free(error);
		assert_done(way, key, true);
		once_session_close(session);
		PQfinish(connection);
		if (!failed) {
			break;
		}
	}
	print_message("%s: %d allocations of libpq failed in turn, %d hung\n", way->name, n - 1, (int)hangs);
	assert_true(n > 5);
	/*
	 * Its own, at the Sync of each pipeline, and once more for the place of the witness in its
	 * result, from the effect on; one more would be ours.
	 */
	assert_true(hangs <= (way->list ? 1 : way->fails ? 5 : 3));
}

static void each_allocation_of_libpq_fails_in_turn_and_what_is_said_is_true(void **state)
{
	(void)state;
	static const way ways[] = {{.name = "effect"},
	                           {.name = "effect, attached", .attached = true},
	                           {.name = "effect, prepared", .prepares = true},
	                           {.name = "failure", .fails = true},
	                           {.name = "failure, attached", .fails = true, .attached = true},
	                           {.name = "failure, prepared", .fails = true, .prepares = true},
	                           {.name = "list", .list = true},
	                           {.name = "list, attached", .list = true, .attached = true},
	                           {.name = "list, prepared", .list = true, .prepares = true},
	                           {.name = "list, prepared, attached", .list = true, .prepares = true, .attached = true}};
	if (&fail_libpq_countdown == NULL) {
		skip();
	}
	for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
		starve(&ways[i]);
	}
}

int main(void)
{
	signal(SIGALRM, hang_up);
	watcher = open_session();
	run_sql(watcher, "CREATE TABLE starved (key text)");
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(each_allocation_of_libpq_fails_in_turn_and_what_is_said_is_true),
	};
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	once_session_close(watcher);
	return failed;
}
