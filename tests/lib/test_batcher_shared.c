/* SPDX-License-Identifier: PostgreSQL */
/*
 * test_batcher_shared.c: transactions of the batcher that carry reports and claims together: when
 * they do, in which order, and what becomes of one half when the other waits, fails or is lost. And
 * the counts of answers from copies, which go with them.
 */
#include "fake.h"

static fake rig;

static seen claimed[3];
static seen stored[3];
static seen renewed;
static seen held;

/*
 * A report on "held" waits for its row on the connection of the reports, for as long as that is
 * locked; so what comes now goes by the other.
 */
static void hold_reports_up(const once_batcher_options *options)
{
	seen warm = {0};
	fake_open(&rig, options);
	submit_peek(&rig, "warm", &warm);
	fake_pass(&rig, 50);
	fake_put(&rig, "held", ONCE_STATE_PROCESSING);
	snprintf(rig.locked_key, sizeof rig.locked_key, "held");
	memset(&held, 0, sizeof held);
	submit_complete(&rig, "held", 1, &held);
	fake_turn(&rig);
	assert_int_equal(held.calls, 0);
	assert_int_equal(rig.limits, 0);
	rig.syncs = 0;
	memset(rig.order, 0, sizeof rig.order);
}

static void let_go(void)
{
	rig.locked_key[0] = '\0';
}

static const char *const new_keys[] = {"a", "b", "c"};
static const char *const done_keys[] = {"x", "y", "z"};

/* Three claims, three reports and a renewal of the last, in one round of the loop. */
static void submit_both(void)
{
	once_error *error = NULL;
	memset(claimed, 0, sizeof claimed);
	memset(stored, 0, sizeof stored);
	memset(&renewed, 0, sizeof renewed);
	for (int i = 0; i < 3; i++) {
		submit_claim(&rig, new_keys[i], &claimed[i]);
		fake_put(&rig, done_keys[i], ONCE_STATE_PROCESSING)->fingerprint[0] = 1;
		submit_complete(&rig, done_keys[i], 1, &stored[i]);
	}
	assert_ok(once_batcher_renew(rig.batcher, &(once_intent){.scope = "s", .key = "z"}, 1, 5000, note, &renewed, NULL,
	                             &error),
	          error);
}

static void check_both(void)
{
	for (int i = 0; i < 3; i++) {
		assert_int_equal(claimed[i].calls, 1);
		assert_int_equal(claimed[i].verdict, ONCE_NEW_CLAIM);
		assert_int_equal(fake_find(&rig, new_keys[i])->granted, 1);
		assert_int_equal(stored[i].calls, 1);
		assert_int_equal(stored[i].verdict, ONCE_STORED);
		assert_int_equal(fake_find(&rig, done_keys[i])->state, ONCE_STATE_SUCCEEDED);
	}
	assert_int_equal(renewed.calls, 1);
}

static void close_rig(void)
{
	let_go();
	fake_pass(&rig, 9000);
	assert_int_equal(held.calls, 1);
	assert_int_equal(held.verdict, ONCE_STORED);
	assert_int_equal(count(&rig).pending, 0);
	fake_close(&rig);
}

/* ---- Together ---- */

static void reports_go_with_the_claims_while_their_own_connection_is_busy(void **state)
{
	(void)state;
	seen duplicate = {0};
	hold_reports_up(NULL);
	submit_both();
	submit_claim(&rig, "x", &duplicate);
	fake_turn(&rig);
	check_both();
	/* What may wait goes first; a claim then finds what was reported with it. */
	assert_string_equal(rig.order, "nma.");
	assert_int_equal(duplicate.verdict, ONCE_REPLAY_SUCCESS);
	assert_int_equal(renewed.verdict, ONCE_STORED);
	assert_int_equal(rig.limits, 1);
	assert_int_equal(held.calls, 0);
	assert_int_equal(count(&rig).operations[0], 1 + 4);
	assert_int_equal(count(&rig).operations[1], 1 + 4);
	assert_int_equal(count(&rig).batches[0], 2);
	assert_int_equal(count(&rig).batches[1], 2);
	close_rig();
}

static void each_has_its_own_connection_while_both_are_free(void **state)
{
	(void)state;
	seen warm = {0};
	fake_open(&rig, NULL);
	submit_peek(&rig, "warm", &warm);
	fake_pass(&rig, 50);
	rig.syncs = 0;
	submit_both();
	fake_turn(&rig);
	check_both();
	assert_int_equal(rig.syncs, 2);
	assert_int_equal(rig.limits, 0); /* one statement, as it always was */
	fake_close(&rig);
}

static void reports_alone_go_by_the_free_connection_and_do_not_wait_long_there(void **state)
{
	(void)state;
	seen done = {0};
	hold_reports_up(NULL);
	fake_put(&rig, "x", ONCE_STATE_PROCESSING);
	submit_complete(&rig, "x", 1, &done);
	fake_turn(&rig);
	assert_int_equal(done.verdict, ONCE_STORED);
	assert_int_equal(rig.limits, 1);
	close_rig();
}

static void a_full_batch_leaves_the_rest_to_the_next(void **state)
{
	(void)state;
	hold_reports_up(&(once_batcher_options){.batch_max = 4});
	submit_both();
	fake_turn(&rig);
	check_both();
	assert_int_equal(rig.syncs, 2);
	close_rig();
}

static void a_shared_batch_waits_to_grow_for_batch_age_too(void **state)
{
	(void)state;
	hold_reports_up(&(once_batcher_options){.batch_age_ms = 20});
	rig.locked_key[0] = '\0';
	fake_pass(&rig, 30);
	snprintf(rig.locked_key, sizeof rig.locked_key, "held");
	held = (seen){0};
	submit_complete(&rig, "held", 1, &held);
	fake_pass(&rig, 30);
	submit_both();
	fake_pass(&rig, 19);
	assert_int_equal(claimed[0].calls + stored[0].calls, 0);
	fake_pass(&rig, 1);
	check_both();
	close_rig();
}

/* ---- One half waits ---- */

static void a_report_that_waits_for_a_row_holds_up_no_claim_and_no_later_report(void **state)
{
	(void)state;
	seen again = {0};
	seen late[2] = {0};
	hold_reports_up(NULL);
	submit_complete(&rig, "held", 1, &again);
	submit_both();
	fake_turn(&rig); /* no time passes but the limit's, which is none here */
	for (int i = 0; i < 3; i++) {
		assert_int_equal(claimed[i].verdict, ONCE_NEW_CLAIM);
	}
	fake_pass(&rig, 3000); /* far longer than anything is tried again */
	assert_int_equal(again.calls, 0);
	assert_int_equal(rig.limits, 1 + 1); /* ... and what went apart with it */
	submit_claim(&rig, "late", &late[0]);
	fake_put(&rig, "late report", ONCE_STATE_PROCESSING);
	submit_complete(&rig, "late report", 1, &late[1]);
	fake_turn(&rig);
	assert_int_equal(late[0].verdict, ONCE_NEW_CLAIM);
	assert_int_equal(late[1].verdict, ONCE_STORED);
	assert_int_equal(again.calls + held.calls, 0);
	let_go();
	fake_pass(&rig, 100);
	assert_int_equal(again.verdict, ONCE_STORED);
	check_both();
	close_rig();
}

static void what_waits_is_sent_without_the_others(void **state)
{
	(void)state;
	seen longer = {0};
	seen later = {0};
	hold_reports_up(&(once_batcher_options){.batch_max = 2});
	fake_put(&rig, "held longer", ONCE_STATE_PROCESSING);
	submit_complete(&rig, "held longer", 1, &longer);
	fake_pass(&rig, 20); /* it has come back, and waits for the connection that is held up */
	assert_int_equal(rig.limits, 1);
	memset(claimed, 0, sizeof claimed);
	rig.silent = true;
	submit_claim(&rig, "a", &claimed[0]);
	fake_turn(&rig); /* both connections are busy now */
	/* These fill the next batch of the one; the other could take the report. */
	submit_claim(&rig, "b", &claimed[1]);
	submit_claim(&rig, "c", &claimed[2]);
	fake_put(&rig, "later", ONCE_STATE_PROCESSING);
	submit_complete(&rig, "later", 1, &later);
	fake_turn(&rig);
	snprintf(rig.locked_key, sizeof rig.locked_key, "held longer");
	rig.silent = false;
	fake_turn(&rig);
	assert_int_equal(held.verdict, ONCE_STORED);
	assert_int_equal(claimed[2].verdict, ONCE_NEW_CLAIM);
	assert_int_equal(later.verdict, ONCE_STORED);
	assert_int_equal(longer.calls, 0);
	let_go();
	fake_pass(&rig, 100);
	assert_int_equal(longer.verdict, ONCE_STORED);
	close_rig();
}

/* ---- One half fails ---- */

static void set_bad(const char *key, const char *sqlstate, int times, bool at_commit)
{
	snprintf(rig.bad_key, sizeof rig.bad_key, "%s", key);
	snprintf(rig.bad_sqlstate, sizeof rig.bad_sqlstate, "%s", sqlstate);
	rig.bad_count = times;
	rig.bad_sync = at_commit;
}

static void what_one_half_raises_does_not_spoil_the_other(void **state)
{
	bool at_commit = *state != NULL;
	static const char *const keys[] = {"b", "y"};
	for (int half = 0; half < 2; half++) {
		hold_reports_up(NULL);
		set_bad(keys[half], "22P02", -1, at_commit);
		submit_both();
		fake_pass(&rig, 100);
		for (int i = 0; i < 3; i++) {
			const seen *bad = half == 0 ? &claimed[i] : &stored[i];
			const seen *good = half == 0 ? &stored[i] : &claimed[i];
			assert_int_equal(good->calls, 1);
			assert_int_equal(good->verdict, half == 0 ? ONCE_STORED : ONCE_NEW_CLAIM);
			assert_int_equal(bad->calls, 1);
			assert_int_equal(bad->code, i == 1 ? ONCE_DATABASE : ONCE_OK);
		}
		assert_null(half == 0 ? fake_find(&rig, "b") : NULL);
		assert_int_equal(fake_find(&rig, "y")->state, half == 0 ? ONCE_STATE_SUCCEEDED : ONCE_STATE_PROCESSING);
		assert_int_equal(held.calls, 0); /* none of it waited for what is held */
		close_rig();
	}
}

static void trouble_that_passes_in_one_half_is_tried_again(void **state)
{
	(void)state;
	static const char *const sqlstates[] = {"40001", "40P01", "57014"};
	for (int i = 0; i < 6; i++) {
		hold_reports_up(NULL);
		set_bad(i < 3 ? "b" : "y", sqlstates[i % 3], 3, false);
		submit_both();
		fake_pass(&rig, 500);
		check_both();
		close_rig();
	}
}

static void a_refused_tenant_spoils_no_report(void **state)
{
	(void)state;
	const once_fingerprint print = {{1}};
	seen refused = {0};
	once_error *error = NULL;
	hold_reports_up(NULL);
	snprintf(rig.refused_tenant, sizeof rig.refused_tenant, "eve");
	assert_ok(once_batcher_claim(rig.batcher, &(once_intent){.tenant = "eve", .scope = "s", .key = "k"}, &print, NULL,
	                             0, 0, note, &refused, NULL, &error),
	          error);
	submit_both();
	fake_turn(&rig);
	check_both();
	assert_int_equal(refused.code, ONCE_REFUSED);
	close_rig();
}

static void a_limit_that_cannot_be_set_spoils_nobody(void **state)
{
	(void)state;
	for (int reports_only = 0; reports_only < 2; reports_only++) {
		hold_reports_up(NULL);
		set_bad("", reports_only ? "57014" : "22023", 0, false);
		rig.bad_limits = 1;
		if (reports_only) {
			memset(stored, 0, sizeof stored);
			fake_put(&rig, "x", ONCE_STATE_PROCESSING);
			submit_complete(&rig, "x", 1, &stored[0]);
		} else {
			submit_both();
		}
		fake_pass(&rig, 100);
		assert_int_equal(rig.bad_limits, 0);
		assert_int_equal(count(&rig).failed_transactions, 1);
		assert_int_equal(stored[0].verdict, ONCE_STORED);
		if (!reports_only) {
			check_both();
			assert_int_equal(renewed.verdict, ONCE_STORED);
		}
		close_rig();
	}
}

/* ---- Lost ---- */

static void a_connection_lost_at_any_step_leaves_both_halves_done_once(void **state)
{
	(void)state;
	for (fake_step step = STEP_STATEMENT; step <= STEP_BETWEEN; step++) {
		for (int times = 1; times < 4; times++) {
			hold_reports_up(NULL);
			fake_lose(&rig, step, times);
			submit_both();
			fake_pass(&rig, 3000);
			check_both();
			assert_true(rig.lost >= 1);
			assert_int_equal(count(&rig).resolved_claims, step >= STEP_COMMITTED && step <= STEP_LAST_BYTE ? 3 : 0);
			close_rig();
		}
	}
}

static void nothing_of_it_is_told_before_its_commit(void **state)
{
	(void)state;
	hold_reports_up(&(once_batcher_options){.operation_timeout_ms = 600000});
	fake_lose(&rig, STEP_LAST_BYTE, 1000); /* of the answer to the Sync */
	submit_both();
	fake_turn(&rig);
	assert_true(rig.lost >= 1); /* the pause before the next try may be none */
	for (int i = 0; i < 3; i++) {
		assert_int_equal(claimed[i].calls + stored[i].calls, 0);
	}
	fake_lose(&rig, STEP_NONE, 0);
	fake_pass(&rig, 3000);
	check_both();
	close_rig();
}

/* ---- Nobody waits any more ---- */

static void forgotten_in_flight_a_claim_is_given_back_and_a_report_goes_on(void **state)
{
	(void)state;
	hold_reports_up(NULL);
	memset(claimed, 0, sizeof claimed);
	fake_put(&rig, "x", ONCE_STATE_PROCESSING);
	rig.silent = true;
	once_operation *claim = submit_claim(&rig, "a", &claimed[0]);
	once_operation *report = submit_complete(&rig, "x", 1, &stored[0]);
	submit_claim(&rig, "c", &claimed[2]);
	stored[0] = (seen){0};
	fake_turn(&rig);
	once_operation_forget(claim);
	once_operation_forget(report);
	rig.silent = false;
	fake_pass(&rig, 100);
	assert_int_equal(claimed[0].calls + stored[0].calls, 0);
	assert_int_equal(fake_find(&rig, "a")->state, ONCE_STATE_FAILED_RETRYABLE);
	assert_int_equal(fake_find(&rig, "x")->state, ONCE_STATE_SUCCEEDED);
	assert_int_equal(claimed[2].verdict, ONCE_NEW_CLAIM);
	assert_int_equal(count(&rig).released_claims, 1);
	close_rig();
}

/* ---- Counts ---- */

static const once_cached three = {.replays = 3, .finals = 2, .mismatches = 1};

static once_operation *submit_count(seen *seen)
{
	once_operation *operation = NULL;
	once_error *error = NULL;
	assert_ok(once_batcher_count_cached(rig.batcher, &three, note, seen, &operation, &error), error);
	return operation;
}

static void counts_are_counted_and_tell_of_the_server(void **state)
{
	(void)state;
	const once_batcher_options options = {.caches = true, .prepare = true};
	const once_cached wrong[] = {{.replays = -1}, {.finals = -1}, {.mismatches = -1}};
	seen counted[2] = {0};
	once_error *error = NULL;
	fake_open(&rig, NULL);
	assert_code(ONCE_USAGE, once_batcher_count_cached(rig.batcher, &three, note, &counted[0], NULL, &error), error);
	fake_attach(&rig, rig.conninfo, &options);
	for (int i = 0; i < 3; i++) {
		assert_code(ONCE_USAGE, once_batcher_count_cached(rig.batcher, &wrong[i], note, &counted[0], NULL, &error),
		            error);
	}
	assert_code(ONCE_USAGE, once_batcher_count_cached(rig.batcher, NULL, note, &counted[0], NULL, &error), error);
	assert_code(ONCE_USAGE, once_batcher_count_cached(NULL, &three, note, &counted[0], NULL, &error), error);
	assert_code(ONCE_USAGE, once_batcher_count_cached(rig.batcher, &three, NULL, NULL, NULL, &error), error);
	submit_count(&counted[0]);
	submit_count(&counted[1]); /* each in a statement of its own */
	fake_pass(&rig, 50);
	assert_int_equal(counted[0].verdict, ONCE_STORED);
	assert_int_equal(counted[1].verdict, ONCE_STORED);
	assert_int_equal(rig.cached.replays, 6);
	assert_int_equal(rig.cached.finals, 4);
	assert_int_equal(rig.cached.mismatches, 2);
	assert_true(count(&rig).server != 0);
	assert_int_equal(count(&rig).retention_ms, 5000);
	/* A pooler leads to another server. */
	uint64_t before = count(&rig).server;
	rig.server = "another";
	submit_count(&counted[0]);
	fake_turn(&rig);
	assert_true(count(&rig).server != before && count(&rig).server != 0);
	assert_int_equal(count(&rig).losses, 1);
	fake_close(&rig);
}

/* There is nothing to find out about one: it is not asked for under a name that it has not got. */
static void a_count_that_is_forgotten_or_lost_asks_nothing(void **state)
{
	(void)state;
	const once_batcher_options options = {.caches = true};
	for (int forgotten = 0; forgotten < 3; forgotten++) {
		seen counted = {0};
		seen warm = {0};
		fake_open(&rig, &options);
		submit_peek(&rig, "warm", &warm);
		fake_pass(&rig, 50);
		memset(rig.order, 0, sizeof rig.order);
		fake_lose(&rig, STEP_COMMITTED, 1);
		rig.silent = rig.deafens = true;
		once_operation *operation = submit_count(&counted);
		fake_turn(&rig);
		if (forgotten == 1) {
			once_operation_forget(operation); /* in flight */
		}
		rig.silent = false;
		fake_turn(&rig);
		assert_int_equal(rig.lost, 1);
		if (forgotten == 2) {
			once_operation_forget(operation); /* lost, and not sent again yet */
		}
		assert_int_equal(count(&rig).pending, forgotten > 0 ? 0 : 1);
		rig.deaf = false;
		fake_pass(&rig, 5000);
		assert_int_equal(counted.calls, forgotten > 0 ? 0 : 1);
		assert_int_equal(rig.cached.replays, forgotten > 0 ? 3 : 6);
		assert_null(strchr(rig.order, 'e'));
		assert_int_equal(count(&rig).pending, 0);
		fake_close(&rig);
	}
}

int main(void)
{
	static int yes;
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(reports_go_with_the_claims_while_their_own_connection_is_busy),
	    cmocka_unit_test(each_has_its_own_connection_while_both_are_free),
	    cmocka_unit_test(reports_alone_go_by_the_free_connection_and_do_not_wait_long_there),
	    cmocka_unit_test(a_full_batch_leaves_the_rest_to_the_next),
	    cmocka_unit_test(a_shared_batch_waits_to_grow_for_batch_age_too),
	    cmocka_unit_test(a_report_that_waits_for_a_row_holds_up_no_claim_and_no_later_report),
	    cmocka_unit_test(what_waits_is_sent_without_the_others),
	    cmocka_unit_test(what_one_half_raises_does_not_spoil_the_other),
	    cmocka_unit_test_prestate(what_one_half_raises_does_not_spoil_the_other, &yes),
	    cmocka_unit_test(trouble_that_passes_in_one_half_is_tried_again),
	    cmocka_unit_test(a_refused_tenant_spoils_no_report),
	    cmocka_unit_test(a_limit_that_cannot_be_set_spoils_nobody),
	    cmocka_unit_test(a_connection_lost_at_any_step_leaves_both_halves_done_once),
	    cmocka_unit_test(nothing_of_it_is_told_before_its_commit),
	    cmocka_unit_test(forgotten_in_flight_a_claim_is_given_back_and_a_report_goes_on),
	    cmocka_unit_test(counts_are_counted_and_tell_of_the_server),
	    cmocka_unit_test(a_count_that_is_forgotten_or_lost_asks_nothing),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
