/* SPDX-License-Identifier: PostgreSQL */
/*
 * test_batcher_server.c: the batcher on the server that PGONCE_TEST_DSN names, over the poll loop:
 * thousands of operations, bad ones among them, and the failures that only a real server has.
 */
#include <time.h>

#include "fake.h"

static once_session *session;
static const once_fingerprint print = {{1}};

static once_poll *open_loop(const char *more, const once_batcher_options *options)
{
	char conninfo[600];
	once_poll *loop = NULL;
	once_error *error = NULL;
	snprintf(conninfo, sizeof conninfo, "%s %s", getenv("PGONCE_TEST_DSN"), more);
	assert_ok(once_poll_open(conninfo, options, &loop, &error), error);
	return loop;
}

static once_batcher_statistics counted(once_poll *loop)
{
	once_batcher_statistics statistics;
	once_batcher_count(once_poll_batcher(loop), &statistics);
	return statistics;
}

static void run_all(once_poll *loop)
{
	once_error *error = NULL;
	while (counted(loop).pending > 0) {
		assert_ok(once_poll_run(loop, -1, &error), error);
	}
}

static void claim(once_poll *loop, const char *tenant, const char *key, seen *seen)
{
	once_error *error = NULL;
	assert_ok(once_batcher_claim(once_poll_batcher(loop),
	                             &(once_intent){.tenant = tenant, .scope = "batcher", .key = key}, &print, "test",
	                             60000, 0, note, seen, NULL, &error),
	          error);
}

static void complete(once_poll *loop, const char *tenant, const char *key, const char *headers, seen *seen)
{
	once_error *error = NULL;
	const once_outcome outcome = {.response_status = 201, .response_body = bytes_of(key), .response_headers = headers};
	assert_ok(once_batcher_complete(once_poll_batcher(loop),
	                                &(once_intent){.tenant = tenant, .scope = "batcher", .key = key}, 1, &outcome, note,
	                                seen, NULL, &error),
	          error);
}

enum {
	MANY = 4000
};
static seen told[MANY];
static char keys[MANY][32];
static char tenants[MANY][16];

/* Every seventh is of a form that fails: how it is submitted, its key, its headers. */
static void thousands_over_many_tenants_with_bad_ones_among_them_all_get_their_own_answer(void **state)
{
	static const char *const bad_headers[] = {"{", "{\"a\":\"\\u0000\"}", "not json"};
	(void)state;
	for (int prepare = 0; prepare < 2; prepare++) {
		/* A slow machine's answers are late, and not lost. */
		const once_batcher_options options = {
		    .prepare = prepare, .answer_timeout_ms = 60000, .operation_timeout_ms = 60000};
		once_poll *loop = open_loop("", &options);
		for (int i = 0; i < MANY; i++) {
			told[i] = (seen){0};
			snprintf(tenants[i], sizeof tenants[i], "t%d", i % 37);
			snprintf(keys[i], sizeof keys[i], i % 7 == 0 ? "\xc3\xa4 %d %d" : "k %d %d", i, prepare);
			claim(loop, tenants[i], keys[i], &told[i]);
		}
		run_all(loop);
		for (int i = 0; i < MANY; i++) {
			assert_int_equal(told[i].calls, 1);
			assert_int_equal(told[i].code, i % 7 == 0 ? ONCE_KEY_MALFORMED : ONCE_OK);
			assert_int_equal(told[i].verdict, i % 7 == 0 ? ONCE_VERDICT_NONE : ONCE_NEW_CLAIM);
		}
		for (int i = 0; i < MANY; i++) {
			told[i] = (seen){0};
			complete(loop, tenants[i], keys[i], i % 11 == 0 ? bad_headers[i % 3] : "{\"a\": \"b\"}", &told[i]);
		}
		run_all(loop);
		for (int i = 0; i < MANY; i++) {
			assert_int_equal(told[i].calls, 1);
			if (i % 11 == 0) {
				assert_int_equal(told[i].code, ONCE_DATABASE);
				assert_string_equal(told[i].sqlstate, i % 3 == 1 ? "22P05" : "22P02");
			} else if (i % 7 == 0) {
				assert_int_equal(told[i].code, ONCE_KEY_MALFORMED);
			} else {
				assert_int_equal(told[i].verdict, ONCE_STORED);
			}
		}
		assert_int_equal(counted(loop).connects, 2);
		once_poll_close(loop);
	}
	char expected[200];
	snprintf(expected, sizeof expected,
	         "SELECT count(*) FROM once.intent WHERE scope = 'batcher' AND key LIKE 'k %%'"
	         " AND state = 'succeeded' AND convert_from(response_body, 'UTF8') = key");
	int good = 0;
	for (int i = 0; i < MANY; i++) {
		good += i % 7 != 0 && i % 11 != 0;
	}
	assert_int_equal(query_int(session, expected), 2 * good);
}

static void every_kind_of_operation_means_what_its_function_means(void **state)
{
	(void)state;
	seen seen[8] = {0};
	once_error *error = NULL;
	once_poll *loop = open_loop("", NULL);
	once_batcher *batcher = once_poll_batcher(loop);
	const once_outcome outcome = {.response_status = 402, .error_code = "declined", .error_message = "the card"};
	claim(loop, "", "all 1", &seen[0]);
	claim(loop, "", "all 2", &seen[1]);
	claim(loop, "", "all 1", &seen[2]);
	run_all(loop);
	assert_int_equal(seen[0].verdict, ONCE_NEW_CLAIM);
	assert_int_equal(seen[2].verdict, ONCE_PROCESSING_ACTIVE);
	const once_intent one = {.scope = "batcher", .key = "all 1"};
	const once_intent two = {.scope = "batcher", .key = "all 2"};
	assert_ok(once_batcher_renew(batcher, &one, 1, 5000, note, &seen[0], NULL, &error), error);
	assert_ok(once_batcher_renew(batcher, &one, 9, 5000, note, &seen[1], NULL, &error), error);
	assert_ok(once_batcher_release(batcher, &two, 1, note, &seen[2], NULL, &error), error);
	assert_ok(once_batcher_release(batcher, &two, 9, note, &seen[3], NULL, &error), error);
	assert_ok(once_batcher_fail(batcher, &one, 1, ONCE_FAILURE_FINAL, &outcome, note, &seen[4], NULL, &error), error);
	assert_ok(once_batcher_salt(batcher, "", note, &seen[5], NULL, &error), error);
	run_all(loop);
	assert_int_equal(seen[0].verdict, ONCE_STORED);
	assert_int_equal(seen[1].verdict, ONCE_REPORT_REFUSED);
	assert_int_equal(seen[2].verdict, ONCE_STORED);
	assert_int_equal(seen[3].verdict, ONCE_REPORT_REFUSED);
	assert_int_equal(seen[4].verdict, ONCE_STORED);
	unsigned char salt[ONCE_SALT_BYTES];
	assert_int_equal(seen[5].verdict, ONCE_STORED);
	assert_true(once_batcher_known_salt(batcher, "", salt));
	assert_ok(once_batcher_peek(batcher, &one, note, &seen[0], NULL, &error), error);
	claim(loop, "", "all 2", &seen[1]);
	run_all(loop);
	assert_int_equal(seen[0].verdict, ONCE_FINAL_FAILURE_STORED);
	assert_int_equal(seen[1].verdict, ONCE_RETRYABLE_FAILURE);
	assert_int_equal(seen[1].fence, 2);
	assert_true(seen[1].may_run);
	once_poll_close(loop);
}

/* The error comes after all the tuples, from the Sync. */
static void a_commit_that_fails_is_no_answer(void **state)
{
	(void)state;
	seen seen[10] = {0};
	once_poll *loop = open_loop("", NULL);
	run_sql(session, "CREATE FUNCTION spoil() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF new.key = 'poison' THEN"
	                 " RAISE EXCEPTION USING ERRCODE = '23514', MESSAGE = 'poisoned'; END IF; RETURN NULL; END $$");
	run_sql(session,
	        "CREATE CONSTRAINT TRIGGER spoil AFTER INSERT OR UPDATE ON once.intent DEFERRABLE INITIALLY DEFERRED"
	        " FOR EACH ROW EXECUTE FUNCTION spoil()");
	for (int i = 0; i < 10; i++) {
		snprintf(keys[i], sizeof keys[i], i == 4 ? "poison" : "neighbour %d", i);
		claim(loop, i < 7 ? "" : "another", keys[i], &seen[i]);
	}
	run_all(loop);
	for (int i = 0; i < 10; i++) {
		assert_int_equal(seen[i].calls, 1);
		assert_int_equal(seen[i].verdict, i == 4 ? ONCE_VERDICT_NONE : ONCE_NEW_CLAIM);
	}
	assert_int_equal(seen[4].code, ONCE_DATABASE);
	assert_string_equal(seen[4].sqlstate, "23514");
	/* Once for each wire; that of the reports, which has nothing to do, may not be done with it. */
	assert_in_range(counted(loop).connects, 1, 2);
	assert_int_equal(counted(loop).failed_transactions, 3);
	run_sql(session, "DROP TRIGGER spoil ON once.intent");
	once_poll_close(loop);
}

static void a_report_waits_for_a_locked_row_and_holds_up_no_other_for_long(void **state)
{
	(void)state;
	seen seen[3] = {0};
	once_error *error = NULL;
	once_poll *loop = open_loop("options='-c lock_timeout=40ms'", NULL);
	claim(loop, "", "locked", &seen[0]);
	claim(loop, "", "free", &seen[1]);
	run_all(loop);
	run_sql(session, "BEGIN");
	run_sql(session, "SELECT FROM once.intent WHERE key = 'locked' FOR UPDATE");
	memset(seen, 0, sizeof seen);
	complete(loop, "", "locked", "{}", &seen[0]);
	complete(loop, "", "free", "{}", &seen[1]);
	while (counted(loop).failed_transactions < 2) {
		assert_ok(once_poll_run(loop, -1, &error), error);
	}
	run_sql(session, "COMMIT");
	run_all(loop);
	assert_int_equal(seen[0].verdict, ONCE_STORED);
	assert_int_equal(seen[1].verdict, ONCE_STORED);
	once_poll_close(loop);
}

/* The reports' own connection waits for a row; so the next ones go with claims. */
static void a_report_that_waits_holds_up_no_claim_that_it_went_with(void **state)
{
	(void)state;
	seen seen[5] = {0};
	once_error *error = NULL;
	once_poll *loop = open_loop("", NULL);
	claim(loop, "", "held 1", &seen[0]);
	claim(loop, "", "held 2", &seen[1]);
	claim(loop, "", "not held", &seen[2]);
	run_all(loop);
	run_sql(session, "BEGIN");
	run_sql(session, "SELECT FROM once.intent WHERE key LIKE 'held _' FOR UPDATE");
	memset(seen, 0, sizeof seen);
	complete(loop, "", "held 1", "{}", &seen[0]);
	assert_ok(once_poll_run(loop, 0, &error), error);
	complete(loop, "", "held 2", "{}", &seen[1]);
	claim(loop, "", "new", &seen[3]);
	while (seen[3].calls == 0) {
		assert_ok(once_poll_run(loop, -1, &error), error);
	}
	assert_int_equal(seen[3].verdict, ONCE_NEW_CLAIM);
	assert_int_equal(counted(loop).failed_transactions, 1);
	/* While both wait, a report goes with the next claim. */
	complete(loop, "", "not held", "{}", &seen[2]);
	claim(loop, "", "newer", &seen[4]);
	while (seen[4].calls + seen[2].calls < 2) {
		assert_ok(once_poll_run(loop, -1, &error), error);
	}
	assert_int_equal(seen[4].verdict, ONCE_NEW_CLAIM);
	assert_int_equal(seen[2].verdict, ONCE_STORED);
	assert_int_equal(seen[0].calls + seen[1].calls, 0);
	run_sql(session, "COMMIT");
	run_all(loop);
	assert_int_equal(seen[0].verdict, ONCE_STORED);
	assert_int_equal(seen[1].verdict, ONCE_STORED);
	assert_int_equal(counted(loop).failed_transactions, 1);
	assert_int_equal(counted(loop).timeouts, 0);
	once_poll_close(loop);
}

static void a_takeover_given_back_is_a_takeover_for_the_next_attempt_too(void **state)
{
	(void)state;
	seen first = {0};
	seen next = {0};
	once_error *error = NULL;
	once_operation *operation = NULL;
	const once_intent intent = {.scope = "batcher", .key = "lost"};
	run_sql(session, "SELECT once.set_scope('batcher', on_stale => 'takeover')");
	once_poll *loop = open_loop("", NULL);
	claim(loop, "", "lost", &first);
	run_all(loop);
	run_sql(session, "UPDATE once.intent SET lease_until = now() - interval '1 second' WHERE key = 'lost'");
	assert_ok(once_batcher_claim(once_poll_batcher(loop), &intent, &print, "test", 60000, 0, note, &first, &operation,
	                             &error),
	          error);
	first.calls = 0;
	once_batcher_flush(once_poll_batcher(loop)); /* sent, and not answered before it is forgotten */
	once_operation_forget(operation);
	run_all(loop);
	assert_int_equal(first.calls, 0);
	assert_int_equal(counted(loop).released_claims, 1);
	/* A lease of a millisecond. */
	while (query_int(session,
	                 "SELECT count(*) FROM once.intent WHERE key = 'lost' AND lease_until < clock_timestamp()") == 0) {
	}
	claim(loop, "", "lost", &next);
	run_all(loop);
	assert_int_equal(next.verdict, ONCE_PROCESSING_STALE);
	assert_int_equal(next.fence, 3);
	once_poll_close(loop);
	run_sql(session, "SELECT once.set_scope('batcher', on_stale => 'in_doubt')");
}

static void a_role_that_is_refused_a_tenant_is_told_so_for_that_tenant_alone(void **state)
{
	(void)state;
	seen seen[4] = {0};
	run_sql(session, "DROP ROLE IF EXISTS batcher_bound");
	run_sql(session, "CREATE ROLE batcher_bound LOGIN");
	run_sql(session, "GRANT once_tenant TO batcher_bound");
	run_sql(session, "SELECT once.bind('batcher_bound', 'ours')");
	once_poll *loop = open_loop("user=batcher_bound", NULL);
	claim(loop, "ours", "bound", &seen[0]);
	claim(loop, "theirs", "bound", &seen[1]);
	claim(loop, "theirs", "bound 2", &seen[2]);
	run_all(loop);
	assert_int_equal(seen[0].verdict, ONCE_NEW_CLAIM);
	assert_int_equal(seen[1].code, ONCE_REFUSED);
	assert_int_equal(seen[2].code, ONCE_REFUSED);
	once_poll_close(loop);
	run_sql(session, "SELECT once.unbind('batcher_bound', 'ours')");
	run_sql(session, "DROP ROLE batcher_bound");
}

static void a_role_without_rights_and_a_database_without_the_contract_are_said_to_be_so(void **state)
{
	(void)state;
	seen seen[2] = {0};
	run_sql(session, "DROP ROLE IF EXISTS batcher_nobody");
	run_sql(session, "CREATE ROLE batcher_nobody LOGIN");
	once_poll *loop = open_loop("user=batcher_nobody", NULL);
	claim(loop, "", "k", &seen[0]);
	run_all(loop);
	assert_string_equal(seen[0].sqlstate, "42501");
	once_poll_close(loop);
	run_sql(session, "DROP ROLE batcher_nobody");
	loop = open_loop("dbname=template1", NULL);
	claim(loop, "", "k", &seen[1]);
	run_all(loop);
	assert_int_equal(seen[1].code, ONCE_CONTRACT);
	once_poll_close(loop);
}

static void answers_much_larger_than_the_requests_come_in_smaller_batches(void **state)
{
	(void)state;
	static char body[200000];
	static seen seen[200];
	once_error *error = NULL;
	const once_intent intent = {.scope = "batcher", .key = "large"};
	once_poll *loop = open_loop("", &(once_batcher_options){.batch_bytes_max = 1000000});
	const once_outcome outcome = {.response_status = 200, .response_body = {.data = body, .length = sizeof body}};
	claim(loop, "", "large", &seen[0]);
	run_all(loop);
	assert_ok(once_batcher_complete(once_poll_batcher(loop), &intent, 1, &outcome, note, &seen[0], NULL, &error),
	          error);
	run_all(loop);
	assert_int_equal(seen[0].verdict, ONCE_STORED);
	claim(loop, "", "large", &seen[0]);
	run_all(loop);
	uint64_t before = counted(loop).batches[0];
	for (int i = 0; i < 200; i++) {
		claim(loop, "", "large", &seen[i]);
	}
	run_all(loop);
	for (int i = 0; i < 200; i++) {
		assert_int_equal(seen[i].verdict, ONCE_REPLAY_SUCCESS);
	}
	assert_in_range(counted(loop).batches[0] - before, 40, 70);
	once_poll_close(loop);
}

typedef struct closer {
	once_poll *loop;
	int calls;
} closer;

static void close_loop(void *argument, const once_answer *answer, const once_error *error)
{
	closer *closer = argument;
	once_error *refused = NULL;
	closer->calls++;
	assert_true(answer != NULL || error != NULL);
	assert_code(ONCE_USAGE, once_poll_run(closer->loop, 0, &refused), refused);
	once_poll_close(closer->loop);
	once_poll_close(closer->loop);
}

static void a_poll_loop_may_be_closed_by_a_callback(void **state)
{
	(void)state;
	closer closer = {.loop = open_loop("", NULL)};
	seen others[3] = {0};
	once_error *error = NULL;
	assert_ok(once_batcher_peek(once_poll_batcher(closer.loop), &(once_intent){.scope = "batcher", .key = "k"},
	                            close_loop, &closer, NULL, &error),
	          error);
	for (int i = 0; i < 3; i++) {
		claim(closer.loop, "", "closing", &others[i]);
	}
	while (closer.calls == 0) {
		assert_ok(once_poll_run(closer.loop, -1, &error), error);
	}
	assert_int_equal(closer.calls, 1);
	assert_int_equal(others[2].calls, 1);
	once_poll_close(NULL);
}

static void a_poll_loop_waits_no_longer_than_it_is_told(void **state)
{
	(void)state;
	once_error *error = NULL;
	once_poll *loop = open_loop("", NULL);
	struct timespec before;
	struct timespec after;
	clock_gettime(CLOCK_MONOTONIC, &before);
	assert_ok(once_poll_run(loop, 30, &error), error);
	clock_gettime(CLOCK_MONOTONIC, &after);
	assert_true((after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000 >= 29);
	assert_code(ONCE_USAGE, once_poll_run(NULL, 0, &error), error);
	once_poll_close(loop);
}

/* ---- Several nodes ---- */

static void execute(const char *statement)
{
	PGresult *result = PQexec(once_session_connection(session), statement);
	assert_true(PQresultStatus(result) == PGRES_COMMAND_OK || PQresultStatus(result) == PGRES_TUPLES_OK);
	PQclear(result);
}

static void ask_slots(once_poll *loop, seen *seen)
{
	once_error *error = NULL;
	memset(seen, 0, sizeof *seen);
	assert_ok(once_batcher_slots(once_poll_batcher(loop), note, seen, NULL, &error), error);
	run_all(loop);
}

static int slot_seen;

static void note_slot(void *argument, const once_answer *answer, const once_error *error)
{
	note(argument, answer, error);
	slot_seen = answer == NULL ? -1 : once_answer_slot(answer);
}

static int ask_slot_of(once_poll *loop, const char *tenant)
{
	seen seen = {0};
	once_error *error = NULL;
	assert_ok(once_batcher_slot_of(once_poll_batcher(loop), tenant, note_slot, &seen, NULL, &error), error);
	run_all(loop);
	assert_int_equal(seen.verdict, ONCE_STORED);
	return slot_seen;
}

/* 0: the slot is closed, or not known. */
static int64_t epoch_of(once_poll *loop, int slot)
{
	bool open = true;
	int64_t epoch = once_batcher_slot_epoch(once_poll_batcher(loop), slot, &open);
	return open ? epoch : 0;
}

/* A node that is not divided is as one that is away. */
static void slots_are_asked_with_each_connection_and_on_demand(void **state)
{
	(void)state;
	const once_batcher_options options = {.divided = true, .impatient = true, .prepare = true};
	seen seen[3] = {0};
	once_error *error = NULL;
	once_poll *loop = open_loop("", &options);
	ask_slots(loop, &seen[0]);
	assert_int_equal(seen[0].code, ONCE_CONNECTION);
	assert_int_equal(counted(loop).connects, 0);
	assert_int_equal(epoch_of(loop, 0), 0);
	once_poll_close(loop);
	execute("CALL once.divide(true)");
	loop = open_loop("", &options);
	int slot = ask_slot_of(loop, "acme");
	assert_int_equal(slot, ask_slot_of(loop, "acme"));
	assert_true(slot >= 0 && slot < ONCE_SLOTS);
	assert_int_equal(epoch_of(loop, slot), 1); /* asked when it connected */
	assert_int_equal(epoch_of(loop, -1), 0);
	assert_int_equal(epoch_of(loop, ONCE_SLOTS), 0);
	char statement[80];
	snprintf(statement, sizeof statement, "SELECT once_job.close_slot(%d)", slot);
	execute(statement);
	/*
	 * The reports' connection is lost, and its next one finds the slot closed: only what the claims'
	 * connection says counts, in its order.
	 */
	while (counted(loop).connects < 2) {
		assert_ok(once_poll_run(loop, 1000, &error), error);
	}
	execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
	        " AND datname = current_database() AND query NOT LIKE '%once.slot_of%'");
	while (counted(loop).connects < 3) {
		assert_ok(once_poll_run(loop, 1000, &error), error);
	}
	/* All claims of the tenant have one statement, and one round trip tells them. */
	uint64_t before = counted(loop).failed_transactions;
	for (int i = 0; i < 3; i++) {
		claim(loop, "acme", keys[i], &seen[i]);
	}
	run_all(loop);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(seen[i].code, ONCE_SLOT_CLOSED);
	}
	assert_int_equal(counted(loop).failed_transactions, before + 1);
	assert_int_equal(epoch_of(loop, slot), 1); /* as the claims' connection was told last */
	ask_slots(loop, &seen[0]);
	assert_int_equal(seen[0].verdict, ONCE_STORED);
	assert_int_equal(epoch_of(loop, slot), 0);
	bool open = true;
	assert_int_equal(once_batcher_slot_epoch(once_poll_batcher(loop), slot, &open), 1);
	assert_false(open);
	snprintf(statement, sizeof statement, "SELECT once_job.open_slot(%d, 5000000000)", slot);
	execute(statement);
	ask_slots(loop, &seen[0]);
	assert_int_equal(epoch_of(loop, slot), INT64_C(5000000000));
	once_poll_close(loop);
	execute("CALL once.undivide()");
	loop = open_loop("", NULL);
	assert_code(ONCE_USAGE, once_batcher_slots(once_poll_batcher(loop), note, &seen[0], NULL, &error), error);
	assert_code(ONCE_USAGE, once_batcher_slot_of(once_poll_batcher(loop), "t", note, &seen[0], NULL, &error), error);
	assert_code(ONCE_USAGE, once_batcher_slots(NULL, note, &seen[0], NULL, &error), error);
	once_poll_close(loop);
}

int main(void)
{
	session = open_session();
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(thousands_over_many_tenants_with_bad_ones_among_them_all_get_their_own_answer),
	    cmocka_unit_test(every_kind_of_operation_means_what_its_function_means),
	    cmocka_unit_test(a_commit_that_fails_is_no_answer),
	    cmocka_unit_test(a_report_waits_for_a_locked_row_and_holds_up_no_other_for_long),
	    cmocka_unit_test(a_report_that_waits_holds_up_no_claim_that_it_went_with),
	    cmocka_unit_test(a_takeover_given_back_is_a_takeover_for_the_next_attempt_too),
	    cmocka_unit_test(a_role_that_is_refused_a_tenant_is_told_so_for_that_tenant_alone),
	    cmocka_unit_test(a_role_without_rights_and_a_database_without_the_contract_are_said_to_be_so),
	    cmocka_unit_test(answers_much_larger_than_the_requests_come_in_smaller_batches),
	    cmocka_unit_test(a_poll_loop_may_be_closed_by_a_callback),
	    cmocka_unit_test(a_poll_loop_waits_no_longer_than_it_is_told),
	    cmocka_unit_test(slots_are_asked_with_each_connection_and_on_demand),
	};
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	once_session_close(session);
	return failed;
}
