/* SPDX-License-Identifier: PostgreSQL */
/*
 * test_batcher.c: the batcher on a server that is well: what goes into a batch, what an operation
 * is told, what a bad one does to its neighbours, and what callbacks may do.
 */
#include "fake.h"

static fake rig;
static const once_fingerprint print = {{1}};

/* The connections are made, so that the next batch is the next statement. */
static void warm_up(const once_batcher_options *options)
{
	seen peeked = {0};
	fake_open(&rig, options);
	submit_peek(&rig, "warm", &peeked);
	fake_pass(&rig, 50);
	assert_int_equal(peeked.verdict, ONCE_ABSENT);
	rig.syncs = rig.statements = rig.largest = rig.flushes = 0;
}

static char keys[400][16];
static seen told[400];

static void submit_claims(int from, int to)
{
	for (int i = from; i < to; i++) {
		snprintf(keys[i], sizeof keys[i], "k%d", i);
		told[i] = (seen){0};
		submit_claim(&rig, keys[i], &told[i]);
	}
}

static void check_granted(int from, int to)
{
	for (int i = from; i < to; i++) {
		assert_int_equal(told[i].calls, 1);
		assert_int_equal(told[i].verdict, ONCE_NEW_CLAIM);
	}
}

/* ---- Batches ---- */

static void what_one_round_brings_goes_out_as_one_batch(void **state)
{
	(void)state;
	warm_up(NULL);
	submit_claims(0, 100);
	assert_int_equal(told[0].calls, 0);
	fake_turn(&rig);
	check_granted(0, 100);
	assert_int_equal(rig.statements, 1);
	assert_int_equal(rig.largest, 100);
	assert_int_equal(rig.syncs, 1);
	assert_int_equal(count(&rig).batches[0], 2);
	assert_int_equal(count(&rig).operations[0], 101);
	uint64_t batches = 0;
	for (int i = 0; i < ONCE_LATENCY_BUCKETS; i++) {
		batches += count(&rig).latency[i];
	}
	assert_int_equal(batches, 2);
	fake_close(&rig);
}

static void a_batch_grows_while_another_is_in_flight(void **state)
{
	(void)state;
	warm_up(NULL);
	rig.silent = true;
	submit_claims(0, 1);
	fake_turn(&rig);
	submit_claims(1, 50);
	fake_turn(&rig);
	submit_claims(50, 100);
	fake_turn(&rig);
	assert_int_equal(count(&rig).batches[0], 2);
	rig.silent = false;
	fake_turn(&rig);
	check_granted(0, 100);
	assert_int_equal(count(&rig).batches[0], 3);
	assert_int_equal(rig.largest, 99);
	fake_close(&rig);
}

static void groups_of_all_kinds_share_one_commit(void **state)
{
	(void)state;
	seen seen[8] = {0};
	once_error *error = NULL;
	warm_up(NULL);
	const char *const tenants[] = {"b", "a", "b", ""};
	for (int i = 0; i < 4; i++) {
		assert_ok(once_batcher_claim(rig.batcher, &(once_intent){.tenant = tenants[i], .scope = "s", .key = "claim"},
		                             &print, NULL, i * 1000, 0, note, &seen[i], NULL, &error),
		          error);
	}
	submit_peek(&rig, "peek", &seen[4]);
	fake_turn(&rig);
	for (int i = 0; i < 4; i++) {
		/*
		 * Two of tenant b differ in their leases, and so in their statements; the second finds the
		 * first.
		 */
		assert_int_equal(seen[i].verdict, i == 2 ? ONCE_PROCESSING_ACTIVE : ONCE_NEW_CLAIM);
	}
	assert_int_equal(seen[4].verdict, ONCE_ABSENT);
	assert_int_equal(rig.statements, 5);
	assert_int_equal(rig.syncs, 1);
	rig.syncs = 0;
	fake_put(&rig, "renew", ONCE_STATE_PROCESSING);
	fake_put(&rig, "fail", ONCE_STATE_PROCESSING);
	fake_put(&rig, "complete", ONCE_STATE_PROCESSING);
	fake_put(&rig, "release", ONCE_STATE_PROCESSING);
	submit_release(&rig, "release", 1, &seen[0]);
	submit_complete(&rig, "complete", 1, &seen[1]);
	assert_ok(once_batcher_fail(rig.batcher, &(once_intent){.scope = "s", .key = "fail"}, 1, ONCE_FAILURE_FINAL, NULL,
	                            note, &seen[2], NULL, &error),
	          error);
	/* A renewal goes before the report that ends its attempt. */
	assert_ok(once_batcher_renew(rig.batcher, &(once_intent){.scope = "s", .key = "complete"}, 1, 5000, note, &seen[3],
	                             NULL, &error),
	          error);
	submit_release(&rig, "nobody's", 1, &seen[4]);
	fake_turn(&rig);
	for (int i = 0; i < 4; i++) {
		assert_int_equal(seen[i].verdict, ONCE_STORED);
	}
	assert_int_equal(seen[4].verdict, ONCE_REPORT_REFUSED);
	assert_int_equal(rig.syncs, 1);
	assert_int_equal(fake_find(&rig, "fail")->state, ONCE_STATE_FAILED_FINAL);
	fake_close(&rig);
}

static void a_batch_has_at_most_batch_max_operations(void **state)
{
	(void)state;
	warm_up(&(once_batcher_options){.batch_max = 7});
	submit_claims(0, 100);
	fake_turn(&rig);
	check_granted(0, 100);
	assert_int_equal(rig.largest, 7);
	assert_int_equal(rig.syncs, 15);
	fake_close(&rig);
}

static void a_batch_has_at_most_batch_bytes_max_and_a_larger_operation_goes_alone(void **state)
{
	(void)state;
	static char body[50000];
	once_error *error = NULL;
	warm_up(&(once_batcher_options){.batch_bytes_max = 25000});
	const size_t sizes[] = {9000, 9000, 9000, 50000, 1, 1, 1};
	for (int i = 0; i < 7; i++) {
		const once_outcome outcome = {.response_body = {.data = body, .length = sizes[i]}};
		snprintf(keys[i], sizeof keys[i], "k%d", i);
		told[i] = (seen){0};
		fake_put(&rig, keys[i], ONCE_STATE_PROCESSING);
		assert_ok(once_batcher_complete(rig.batcher, &(once_intent){.scope = "s", .key = keys[i]}, 1, &outcome, note,
		                                &told[i], NULL, &error),
		          error);
	}
	fake_turn(&rig);
	for (int i = 0; i < 7; i++) {
		assert_int_equal(told[i].verdict, ONCE_STORED);
	}
	assert_int_equal(rig.syncs, 4); /* 2, 1, the large one, 3 */
	fake_close(&rig);
}

static void a_batch_waits_to_grow_for_batch_age_at_most(void **state)
{
	(void)state;
	warm_up(&(once_batcher_options){.batch_age_ms = 20, .batch_max = 50});
	submit_claims(0, 3);
	fake_pass(&rig, 10);
	submit_claims(3, 5);
	fake_pass(&rig, 9);
	assert_int_equal(rig.statements, 0);
	fake_pass(&rig, 1);
	check_granted(0, 5);
	assert_int_equal(rig.statements, 1);
	/* Full, it does not wait. */
	submit_claims(5, 55);
	fake_turn(&rig);
	check_granted(5, 55);
	fake_close(&rig);
}

static void more_than_pending_max_operations_are_refused_at_once(void **state)
{
	(void)state;
	once_error *error = NULL;
	seen late = {0};
	fake_open(&rig, &(once_batcher_options){.pending_max = 10});
	submit_claims(0, 10);
	once_code code =
	    once_batcher_peek(rig.batcher, &(once_intent){.scope = "s", .key = "k"}, note, &late, NULL, &error);
	assert_true(once_error_retriable(error));
	assert_code(ONCE_OVERLOADED, code, error);
	assert_int_equal(count(&rig).pending, 10);
	fake_turn(&rig);
	check_granted(0, 10);
	submit_peek(&rig, "k", &late);
	fake_turn(&rig);
	assert_int_equal(late.calls, 1);
	fake_close(&rig);
}

static void more_than_pending_bytes_max_are_refused_at_once(void **state)
{
	(void)state;
	static char body[60000];
	once_error *error = NULL;
	const once_outcome outcome = {.response_body = {.data = body, .length = sizeof body}};
	const once_outcome giant = {.response_body = {.data = body, .length = SIZE_MAX}};
	const once_intent intent = {.scope = "s", .key = "k"};
	fake_open(&rig, &(once_batcher_options){.pending_bytes_max = 100000});
	assert_ok(once_batcher_complete(rig.batcher, &intent, 1, &outcome, NULL, NULL, NULL, &error), error);
	assert_in_range(count(&rig).pending_bytes, 60000, 62000);
	assert_code(ONCE_OVERLOADED, once_batcher_complete(rig.batcher, &intent, 1, &outcome, NULL, NULL, NULL, &error),
	            error);
	assert_code(ONCE_OVERLOADED, once_batcher_complete(rig.batcher, &intent, 1, &giant, NULL, NULL, NULL, &error),
	            error);
	fake_turn(&rig);
	assert_int_equal(count(&rig).pending_bytes, 0);
	fake_close(&rig);
}

/* ---- Neighbours ---- */

static void set_bad(const char *key, const char *sqlstate, int times)
{
	snprintf(rig.bad_key, sizeof rig.bad_key, "%s", key);
	snprintf(rig.bad_sqlstate, sizeof rig.bad_sqlstate, "%s", sqlstate);
	rig.bad_count = times;
}

static void an_element_that_spoils_its_statement_gets_the_error_alone(void **state)
{
	bool at_commit = *state != NULL;
	seen other = {0};
	once_error *error = NULL;
	warm_up(NULL);
	set_bad("k3", "22P02", -1);
	rig.bad_sync = at_commit;
	submit_claims(0, 8);
	assert_ok(once_batcher_claim(rig.batcher, &(once_intent){.tenant = "other", .scope = "s", .key = "k"}, &print, NULL,
	                             0, 0, note, &other, NULL, &error),
	          error);
	fake_turn(&rig);
	assert_int_equal(other.verdict, ONCE_NEW_CLAIM);
	for (int i = 0; i < 8; i++) {
		assert_int_equal(told[i].calls, 1);
		if (i == 3) {
			assert_int_equal(told[i].code, ONCE_DATABASE);
			assert_string_equal(told[i].sqlstate, "22P02");
		} else {
			assert_int_equal(told[i].verdict, ONCE_NEW_CLAIM);
		}
	}
	/* Of a commit nobody knows whose fault it is, so that the groups come apart first. */
	assert_int_equal(count(&rig).failed_transactions, at_commit ? 3 : 2);
	assert_int_equal(count(&rig).connects, 2);
	/* The ones after it go together again. */
	rig.bad_key[0] = '\0';
	rig.syncs = 0;
	submit_claims(10, 20);
	fake_turn(&rig);
	assert_int_equal(rig.syncs, 1);
	fake_close(&rig);
}

static void trouble_that_passes_is_tried_again_but_not_for_ever(void **state)
{
	(void)state;
	static const char *const sqlstates[] = {"40001", "40P01", "55P03", "57014", "53200"};
	for (int i = 0; i < 5; i++) {
		warm_up(NULL);
		set_bad("k1", sqlstates[i], 4);
		submit_claims(0, 3);
		fake_pass(&rig, 1000);
		check_granted(0, 3);
		set_bad("k4", sqlstates[i], -1);
		submit_claims(3, 6);
		rig.statements = 0;
		fake_pass(&rig, 1000);
		assert_int_equal(rig.statements, 5);
		assert_string_equal(told[4].sqlstate, sqlstates[i]);
		assert_int_equal(told[3].calls + told[4].calls + told[5].calls, 3);
		fake_close(&rig);
	}
}

static void a_refused_tenant_is_told_so_and_spoils_nobody(void **state)
{
	(void)state;
	seen refused[20] = {0};
	once_error *error = NULL;
	warm_up(NULL);
	snprintf(rig.refused_tenant, sizeof rig.refused_tenant, "eve");
	submit_claims(0, 10);
	for (int i = 0; i < 20; i++) {
		snprintf(keys[i + 20], sizeof keys[0], "e%d", i);
		assert_ok(once_batcher_claim(rig.batcher, &(once_intent){.tenant = "eve", .scope = "s", .key = keys[i + 20]},
		                             &print, NULL, 0, 0, note, &refused[i], NULL, &error),
		          error);
	}
	fake_turn(&rig);
	check_granted(0, 10);
	for (int i = 0; i < 20; i++) {
		assert_int_equal(refused[i].code, ONCE_REFUSED);
	}
	assert_int_equal(rig.statements, 3);
	fake_close(&rig);
}

static void a_refused_salt_disturbs_no_claim(void **state)
{
	(void)state;
	seen salts[2] = {0};
	once_error *error = NULL;
	warm_up(NULL);
	snprintf(rig.refused_tenant, sizeof rig.refused_tenant, "eve");
	submit_claims(0, 10);
	assert_ok(once_batcher_salt(rig.batcher, "eve", note, &salts[0], NULL, &error), error);
	assert_ok(once_batcher_salt(rig.batcher, "adam", note, &salts[1], NULL, &error), error);
	fake_turn(&rig);
	check_granted(0, 10);
	assert_int_equal(salts[0].code, ONCE_REFUSED);
	unsigned char salt[ONCE_SALT_BYTES];
	assert_int_equal(salts[1].verdict, ONCE_STORED);
	assert_true(once_batcher_known_salt(rig.batcher, "adam", salt));
	assert_false(once_batcher_known_salt(rig.batcher, "eve", salt));
	assert_int_equal(rig.statements, 3);
	fake_close(&rig);
}

static void a_malformed_element_is_an_error_of_its_own(void **state)
{
	(void)state;
	seen malformed = {0};
	warm_up(NULL);
	submit_claims(0, 2);
	submit_claim(&rig, "malformed", &malformed);
	fake_turn(&rig);
	check_granted(0, 2);
	assert_int_equal(malformed.code, ONCE_KEY_MALFORMED);
	assert_string_equal(malformed.sqlstate, "P4001");
	assert_non_null(strstr(malformed.message, "key='malformed'"));
	assert_int_equal(rig.statements, 1);
	fake_close(&rig);
}

static void what_would_spoil_a_batch_is_refused_when_it_is_submitted(void **state)
{
	(void)state;
	static const char *const bad[] = {"\xff",         "a\x80",           "\xc3",     "\xc0\x80",
	                                  "\xe0\x80\x80", "\xed\xa0\x80",    "\xe2\x82", "\xf4\x90\x80\x80",
	                                  "\xf8",         "\xf0\x8f\xbf\xbf"};
	static const char *const good[] = {
	    "a", "\xc3\xa4", "\xe2\x82\xac", "\xed\x9f\xbf", "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf"};
	seen seen = {0};
	once_error *error = NULL;
	fake_open(&rig, NULL);
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		const once_outcome outcome = {.error_message = bad[i]};
		const once_intent good_intent = {.scope = "s", .key = "k"};
		assert_code(
		    ONCE_KEY_MALFORMED,
		    once_batcher_peek(rig.batcher, &(once_intent){.scope = "s", .key = bad[i]}, note, &seen, NULL, &error),
		    error);
		assert_code(
		    ONCE_SCOPE_REQUIRED,
		    once_batcher_peek(rig.batcher, &(once_intent){.scope = bad[i], .key = "k"}, note, &seen, NULL, &error),
		    error);
		assert_code(ONCE_REFUSED, once_batcher_salt(rig.batcher, bad[i], note, &seen, NULL, &error), error);
		assert_code(ONCE_USAGE,
		            once_batcher_complete(rig.batcher, &good_intent, 1, &outcome, note, &seen, NULL, &error), error);
		assert_code(ONCE_USAGE,
		            once_batcher_claim(rig.batcher, &good_intent, &print, bad[i], 0, 0, note, &seen, NULL, &error),
		            error);
	}
	assert_int_equal(count(&rig).pending, 0);
	for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
		assert_ok(once_batcher_salt(rig.batcher, good[i], note, &seen, NULL, &error), error);
	}
	assert_code(ONCE_KEY_MALFORMED,
	            once_batcher_peek(rig.batcher, &(once_intent){.scope = "s"}, note, &seen, NULL, &error), error);
	assert_code(ONCE_SCOPE_REQUIRED,
	            once_batcher_peek(rig.batcher, &(once_intent){.key = "k"}, note, &seen, NULL, &error), error);
	assert_code(ONCE_USAGE, once_batcher_peek(rig.batcher, NULL, note, &seen, NULL, &error), error);
	assert_code(ONCE_USAGE,
	            once_batcher_peek(rig.batcher, &(once_intent){.scope = "s", .key = "k"}, NULL, NULL, NULL, &error),
	            error);
	assert_code(ONCE_USAGE,
	            once_batcher_peek(NULL, &(once_intent){.scope = "s", .key = "k"}, note, &seen, NULL, &error), error);
	fake_close(&rig);
}

static void a_long_owner_keeps_what_makes_it_unique(void **state)
{
	(void)state;
	char owner[400];
	seen claimed = {0};
	once_error *error = NULL;
	memset(owner, 0, sizeof owner);
	for (int i = 0; i < 120; i++) {
		memcpy(owner + 3 * i, "\xe2\x82\xac", 3);
	}
	warm_up(NULL);
	fake_lose(&rig, STEP_COMMITTED, 1);
	assert_ok(once_batcher_claim(rig.batcher, &(once_intent){.scope = "s", .key = "k"}, &print, owner, 0, 0, note,
	                             &claimed, NULL, &error),
	          error);
	fake_pass(&rig, 3000);
	assert_int_equal(claimed.verdict, ONCE_NEW_CLAIM);
	const char *stored = fake_find(&rig, "k")->owner;
	assert_true(strlen(stored) < 255);
	assert_int_equal(strchr(stored, '#') - stored, 198); /* whole characters */
	fake_close(&rig);
}

/* ---- The contract, statements, salts ---- */

/* The statements of batches ask for no order: a function's rows come in its own. */
static void rows_in_another_order_are_nobodys_answers(void **state)
{
	seen seen[4] = {{0}};
	(void)state;
	warm_up(NULL);
	rig.misorders = true;
	submit_claim(&rig, "a", &seen[0]);
	submit_claim(&rig, "b", &seen[1]);
	fake_turn(&rig);
	assert_int_equal(seen[0].code, ONCE_CONTRACT);
	assert_int_equal(seen[1].code, ONCE_CONTRACT);
	submit_complete(&rig, "a", 1, &seen[2]);
	submit_complete(&rig, "b", 1, &seen[3]);
	fake_turn(&rig);
	assert_int_equal(seen[2].code, ONCE_CONTRACT);
	assert_int_equal(seen[3].code, ONCE_CONTRACT);
	fake_close(&rig);
}

static void an_older_contract_is_said_to_be_one(void **state)
{
	bool missing = *state != NULL;
	seen claimed = {0};
	seen later = {0};
	fake_open(&rig, NULL);
	rig.version = missing ? rig.version : rig.version - 1;
	snprintf(rig.missing, sizeof rig.missing, "%s", missing ? "contract_version" : "");
	submit_claim(&rig, "k", &claimed);
	fake_turn(&rig);
	assert_int_equal(claimed.code, ONCE_CONTRACT);
	assert_false(count(&rig).connected[0]);
	rig.version = once_contract_version();
	rig.missing[0] = '\0';
	submit_claim(&rig, "k", &later);
	fake_pass(&rig, 3000);
	assert_int_equal(later.verdict, ONCE_NEW_CLAIM);
	fake_close(&rig);
}

static void a_newer_contract_is_spoken_to(void **state)
{
	(void)state;
	seen claimed = {0};
	fake_open(&rig, NULL);
	rig.version++;
	submit_claim(&rig, "k", &claimed);
	fake_turn(&rig);
	assert_int_equal(claimed.verdict, ONCE_NEW_CLAIM);
	fake_close(&rig);
}

static void statements_are_prepared_with_the_check_if_wanted(void **state)
{
	(void)state;
	seen stored = {0};
	warm_up(&(once_batcher_options){.prepare = true});
	assert_int_equal(rig.prepares, 12);
	submit_claims(0, 5);
	submit_complete(&rig, "warm", 1, &stored);
	fake_turn(&rig);
	check_granted(0, 5);
	assert_int_equal(stored.verdict, ONCE_REPORT_REFUSED);
	assert_int_equal(rig.prepares, 12);
	fake_close(&rig);
}

static void a_pooler_that_forgets_statements_gets_plain_ones(void **state)
{
	(void)state;
	warm_up(&(once_batcher_options){.prepare = true});
	for (int i = 0; i < FAKE_CONNECTIONS; i++) {
		rig.connections[i].prepared = 0;
	}
	submit_claims(0, 5);
	fake_pass(&rig, 3000);
	check_granted(0, 5);
	assert_int_equal(rig.prepares, 12);
	fake_close(&rig);
}

static void salts_are_fetched_once_and_remembered(void **state)
{
	(void)state;
	unsigned char salt[ONCE_SALT_BYTES];
	once_error *error = NULL;
	seen seen[300] = {0};
	char tenant[16];
	warm_up(NULL);
	assert_false(once_batcher_known_salt(rig.batcher, "t", salt));
	for (int i = 0; i < 5; i++) {
		assert_ok(once_batcher_salt(rig.batcher, "t", note, &seen[i], NULL, &error), error);
	}
	assert_ok(once_batcher_salt(rig.batcher, NULL, note, &seen[5], NULL, &error), error);
	fake_turn(&rig);
	assert_int_equal(rig.statements, 2);
	for (int i = 0; i < 6; i++) {
		assert_int_equal(seen[i].verdict, ONCE_STORED);
	}
	assert_true(once_batcher_known_salt(rig.batcher, "t", salt));
	assert_int_equal(salt[0], 't');
	assert_true(once_batcher_known_salt(rig.batcher, NULL, salt));
	assert_true(once_batcher_known_salt(rig.batcher, "", salt));
	assert_false(once_batcher_known_salt(rig.batcher, "tt", salt));
	/* A bounded number of them. */
	int known = 0;
	for (int i = 0; i < 2000; i++) {
		snprintf(tenant, sizeof tenant, "tenant %d", i);
		assert_ok(once_batcher_salt(rig.batcher, tenant, note, &seen[0], NULL, &error), error);
	}
	fake_turn(&rig);
	for (int i = 0; i < 2000; i++) {
		snprintf(tenant, sizeof tenant, "tenant %d", i);
		known += once_batcher_known_salt(rig.batcher, tenant, salt);
	}
	assert_in_range(known, 200, 256);
	/* Behind a new connection there may be another server. */
	fake_cut(&rig);
	fake_pass(&rig, 1000);
	assert_false(once_batcher_known_salt(rig.batcher, "tenant 1999", salt));
	fake_close(&rig);
}

/* ---- Callbacks ---- */

typedef struct act {
	enum {
		ACT_FORGET_SELF,
		ACT_FORGET_OTHERS,
		ACT_SUBMIT,
		ACT_CLOSE,
		ACT_ALL_AT_ONCE
	} what;
	once_operation *own;
	once_operation *others[10];
	seen *seen;
	seen next;
	int calls;
} act;

static void play(void *argument, const once_answer *answer, const once_error *error)
{
	act *act = argument;
	act->calls++;
	if (act->what == ACT_FORGET_SELF || act->what == ACT_ALL_AT_ONCE) {
		once_operation_forget(act->own);
	}
	if (act->what == ACT_FORGET_OTHERS || act->what == ACT_ALL_AT_ONCE) {
		for (int i = 0; i < 10; i++) {
			once_operation_forget(act->others[i]);
		}
	}
	if (act->what == ACT_SUBMIT || act->what == ACT_ALL_AT_ONCE) {
		submit_claim(&rig, "next", &act->next);
		assert_int_equal(act->next.calls, 0);
		/* The loop's calls are for the loop. */
		once_batcher_flush(rig.batcher);
		once_batcher_tick(rig.batcher);
		once_batcher_ready(rig.batcher, 0, true, true);
		assert_int_equal(act->next.calls, 0);
	}
	if (act->what == ACT_CLOSE || act->what == ACT_ALL_AT_ONCE) {
		once_batcher *batcher = rig.batcher;
		once_error *refused = NULL;
		rig.batcher = NULL;
		once_batcher_close(batcher);
		once_batcher_close(batcher);
		assert_code(
		    ONCE_CONNECTION,
		    once_batcher_peek(batcher, &(once_intent){.scope = "s", .key = "k"}, note, act->seen, NULL, &refused),
		    refused);
	}
	/* What the callback was given lives until it returns. */
	assert_true(answer == NULL || once_answer_verdict(answer) == ONCE_NEW_CLAIM);
	assert_true(error == NULL || once_error_message(error)[0] != '\0');
}

static void a_callback_may_forget_submit_and_close(void **state)
{
	(void)state;
	/*
	 * Told by an answer, by an error of the statement, by the deadline, by the contract's absence.
	 */
	for (int how = 0; how < 4; how++) {
		for (int what = ACT_FORGET_SELF; what <= ACT_ALL_AT_ONCE; what++) {
			act act = {.what = what};
			seen others[10] = {0};
			once_error *error = NULL;
			act.seen = &others[0];
			if (how < 2) {
				warm_up(&(once_batcher_options){.operation_timeout_ms = 1000});
			} else {
				fake_open(&rig, &(once_batcher_options){.operation_timeout_ms = 1000});
			}
			if (how == 1) {
				snprintf(rig.refused_tenant, sizeof rig.refused_tenant, "t");
			} else if (how == 2) {
				fake_refuse(&rig);
			} else if (how == 3) {
				rig.version = 99;
			}
			assert_ok(once_batcher_claim(rig.batcher,
			                             &(once_intent){.tenant = how == 1 ? "t" : "", .scope = "s", .key = "first"},
			                             &print, NULL, 0, 0, play, &act, &act.own, &error),
			          error);
			for (int i = 0; i < 10; i++) {
				snprintf(keys[i], sizeof keys[i], "k%d", i);
				act.others[i] = submit_claim(&rig, keys[i], &others[i]);
			}
			if (how < 2) {
				fake_turn(&rig);
			} else {
				fake_pass(&rig, 1000);
			}
			assert_int_equal(act.calls, 1);
			for (int i = 0; i < 10; i++) {
				bool forgotten = what == ACT_FORGET_OTHERS || what == ACT_ALL_AT_ONCE;
				assert_int_equal(others[i].calls, forgotten ? 0 : 1);
				if (what == ACT_CLOSE) {
					assert_int_equal(others[i].code, ONCE_CONNECTION);
				}
			}
			if (what == ACT_SUBMIT && how < 2) {
				assert_int_equal(act.next.verdict, ONCE_NEW_CLAIM);
			}
			if (what == ACT_FORGET_OTHERS && how == 0) {
				/* Granted to those who were forgotten in that moment: given back. */
				assert_int_equal(fake_find(&rig, "k9")->state, ONCE_STATE_FAILED_RETRYABLE);
				assert_int_equal(count(&rig).released_claims, 10);
			}
			if (rig.batcher == NULL) {
				fake_turn(&rig);
			}
			fake_close(&rig);
		}
	}
}

static void close_ends_everything_and_says_what_is_unknown(void **state)
{
	(void)state;
	seen queued = {0};
	warm_up(NULL);
	rig.silent = true;
	submit_claims(0, 5);
	fake_turn(&rig);
	submit_claim(&rig, "queued", &queued);
	submit_complete(&rig, "forgotten", 1, NULL);
	once_batcher_close(rig.batcher);
	rig.batcher = NULL;
	for (int i = 0; i < 5; i++) {
		assert_int_equal(told[i].code, ONCE_CONNECTION);
		assert_true(told[i].unknown);
	}
	assert_int_equal(queued.code, ONCE_CONNECTION);
	assert_false(queued.unknown);
	assert_int_equal(rig.due, ONCE_NEVER);
	once_batcher_close(NULL);
	rig.silent = false;
	fake_close(&rig);
}

static void what_cannot_be_opened_is_refused(void **state)
{
	(void)state;
	once_batcher *batcher = NULL;
	once_error *error = NULL;
	fake_open(&rig, NULL);
	once_loop loop = {0};
	assert_code(ONCE_USAGE, once_batcher_open("", &loop, NULL, &batcher, &error), error);
	assert_code(ONCE_USAGE, once_batcher_open("", NULL, NULL, &batcher, &error), error);
	assert_code(ONCE_USAGE, once_batcher_open("", &loop, NULL, NULL, &error), error);
	once_poll *poll = NULL;
	assert_code(ONCE_USAGE, once_poll_open("no such = word", NULL, &poll, &error), error);
	assert_code(ONCE_USAGE, once_poll_open("", &(once_batcher_options){.batch_age_ms = -1}, &poll, &error), error);
	assert_code(ONCE_USAGE, once_poll_open("", NULL, NULL, &error), error);
	assert_null(poll);
	assert_null(batcher);
	fake_close(&rig);
}

static void nobody_is_contacted_before_the_first_operation(void **state)
{
	(void)state;
	fake_open(&rig, NULL);
	once_batcher_flush(rig.batcher);
	once_batcher_tick(rig.batcher);
	fake_pass(&rig, 100000);
	assert_int_equal(rig.accepted, 0);
	fake_close(&rig);
}

int main(void)
{
	static int yes;
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(what_one_round_brings_goes_out_as_one_batch),
	    cmocka_unit_test(a_batch_grows_while_another_is_in_flight),
	    cmocka_unit_test(groups_of_all_kinds_share_one_commit),
	    cmocka_unit_test(a_batch_has_at_most_batch_max_operations),
	    cmocka_unit_test(a_batch_has_at_most_batch_bytes_max_and_a_larger_operation_goes_alone),
	    cmocka_unit_test(a_batch_waits_to_grow_for_batch_age_at_most),
	    cmocka_unit_test(more_than_pending_max_operations_are_refused_at_once),
	    cmocka_unit_test(more_than_pending_bytes_max_are_refused_at_once),
	    cmocka_unit_test(an_element_that_spoils_its_statement_gets_the_error_alone),
	    cmocka_unit_test_prestate(an_element_that_spoils_its_statement_gets_the_error_alone, &yes),
	    cmocka_unit_test(trouble_that_passes_is_tried_again_but_not_for_ever),
	    cmocka_unit_test(a_refused_tenant_is_told_so_and_spoils_nobody),
	    cmocka_unit_test(a_refused_salt_disturbs_no_claim),
	    cmocka_unit_test(a_malformed_element_is_an_error_of_its_own),
	    cmocka_unit_test(what_would_spoil_a_batch_is_refused_when_it_is_submitted),
	    cmocka_unit_test(a_long_owner_keeps_what_makes_it_unique),
	    cmocka_unit_test(rows_in_another_order_are_nobodys_answers),
	    cmocka_unit_test(an_older_contract_is_said_to_be_one),
	    cmocka_unit_test_prestate(an_older_contract_is_said_to_be_one, &yes),
	    cmocka_unit_test(a_newer_contract_is_spoken_to),
	    cmocka_unit_test(statements_are_prepared_with_the_check_if_wanted),
	    cmocka_unit_test(a_pooler_that_forgets_statements_gets_plain_ones),
	    cmocka_unit_test(salts_are_fetched_once_and_remembered),
	    cmocka_unit_test(a_callback_may_forget_submit_and_close),
	    cmocka_unit_test(close_ends_everything_and_says_what_is_unknown),
	    cmocka_unit_test(what_cannot_be_opened_is_refused),
	    cmocka_unit_test(nobody_is_contacted_before_the_first_operation),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
