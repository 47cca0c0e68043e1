/* SPDX-License-Identifier: PostgreSQL */
/*
 * test_batcher_loss.c: the batcher when connections are lost, on a server that loses them at chosen
 * steps: every operation ends, no intent is given to two, none is kept by nobody.
 */
#include "fake.h"

static fake rig;

static void each_step_of_connecting_can_be_lost_and_the_operation_is_carried_out(void **state)
{
	(void)state;
	for (fake_step step = STEP_ACCEPT; step <= STEP_CHECK_HALF; step++) {
		for (int times = 1; times < 4; times++) {
			seen claimed = {0};
			seen completed = {0};
			fake_open(&rig, NULL);
			fake_lose(&rig, step, times);
			submit_claim(&rig, "k", &claimed);
			fake_pass(&rig, 5000);
			assert_int_equal(rig.lost, times);
			assert_int_equal(claimed.verdict, ONCE_NEW_CLAIM);
			submit_complete(&rig, "k", 1, &completed);
			fake_pass(&rig, 5000);
			assert_int_equal(completed.verdict, ONCE_STORED);
			assert_int_equal(count(&rig).connect_failures, times);
			assert_int_equal(count(&rig).connects, 2);
			fake_close(&rig);
		}
	}
}

static void a_claim_lost_at_any_step_is_granted_once(void **state)
{
	(void)state;
	for (fake_step step = STEP_STATEMENT; step <= STEP_TERMINATED; step++) {
		for (int times = 1; times < 5; times++) {
			seen claimed[3] = {0};
			fake_open(&rig, NULL);
			fake_lose(&rig, step, times);
			submit_claim(&rig, "a", &claimed[0]);
			submit_claim(&rig, "b", &claimed[1]);
			submit_claim(&rig, "c", &claimed[2]);
			fake_pass(&rig, 9000);
			assert_true(rig.lost >= 1);
			for (int i = 0; i < 3; i++) {
				assert_int_equal(claimed[i].calls, 1);
				assert_int_equal(claimed[i].verdict, ONCE_NEW_CLAIM);
				assert_int_equal(claimed[i].fence, 1);
				assert_true(claimed[i].may_run);
				assert_string_equal(claimed[i].trace, i == 1 ? "" : FAKE_TRACE);
			}
			assert_int_equal(fake_find(&rig, "a")->granted, 1);
			assert_int_equal(fake_find(&rig, "c")->granted, 1);
			assert_int_equal(count(&rig).resolved_claims, step >= STEP_COMMITTED && step <= STEP_LAST_BYTE ? 3 : 0);
			/* What was found is renewed: its lease has been running. */
			assert_int_equal(rig.renewals, count(&rig).resolved_claims);
			assert_int_equal(count(&rig).pending, 0);
			fake_close(&rig);
		}
	}
}

static void answers_that_came_before_the_end_count(void **state)
{
	(void)state;
	static seen claimed[200];
	static char keys[200][8];
	fake_open(&rig, NULL);
	fake_lose(&rig, STEP_ANSWERED, 1);
	for (int i = 0; i < 200; i++) {
		snprintf(keys[i], sizeof keys[i], "k%d", i);
		submit_claim(&rig, keys[i], &claimed[i]);
	}
	fake_pass(&rig, 3000);
	for (int i = 0; i < 200; i++) {
		assert_int_equal(claimed[i].verdict, ONCE_NEW_CLAIM);
	}
	assert_int_equal(rig.lost, 1);
	assert_int_equal(count(&rig).resent, 0);
	fake_close(&rig);
}

/* Somebody may be taking it over. */
static void a_lost_claim_whose_lease_has_passed_is_not_run_under_it(void **state)
{
	(void)state;
	seen claimed = {0};
	fake_open(&rig, NULL);
	rig.ages = true;
	fake_lose(&rig, STEP_COMMITTED, 1);
	submit_claim(&rig, "k", &claimed);
	fake_pass(&rig, 3000);
	assert_int_equal(count(&rig).resolved_claims, 0);
	assert_int_equal(claimed.verdict, ONCE_RETRYABLE_FAILURE); /* given back, and claimed again */
	assert_int_equal(claimed.fence, 2);
	fake_close(&rig);
}

static void reports_lost_at_any_step_are_stored_and_said_to_be(void **state)
{
	(void)state;
	for (fake_step step = STEP_STATEMENT; step <= STEP_TERMINATED; step++) {
		seen stored = {0};
		seen failed = {0};
		seen renewed = {0};
		seen released = {0};
		once_error *error = NULL;
		fake_open(&rig, NULL);
		fake_put(&rig, "complete", ONCE_STATE_PROCESSING);
		fake_put(&rig, "fail", ONCE_STATE_PROCESSING);
		fake_put(&rig, "renew", ONCE_STATE_PROCESSING);
		fake_put(&rig, "release", ONCE_STATE_PROCESSING);
		fake_lose(&rig, step, 2);
		submit_complete(&rig, "complete", 1, &stored);
		assert_ok(once_batcher_fail(rig.batcher, &(once_intent){.scope = "s", .key = "fail"}, 1, ONCE_FAILURE_IN_DOUBT,
		                            NULL, note, &failed, NULL, &error),
		          error);
		assert_ok(once_batcher_renew(rig.batcher, &(once_intent){.scope = "s", .key = "renew"}, 1, 0, note, &renewed,
		                             NULL, &error),
		          error);
		submit_release(&rig, "release", 1, &released);
		fake_pass(&rig, 9000);
		assert_int_equal(stored.verdict, ONCE_STORED);
		assert_int_equal(failed.verdict, ONCE_STORED);
		assert_int_equal(renewed.verdict, ONCE_STORED);
		assert_int_equal(stored.calls + failed.calls + renewed.calls + released.calls, 4);
		assert_int_equal(fake_find(&rig, "complete")->state, ONCE_STATE_SUCCEEDED);
		assert_int_equal(fake_find(&rig, "fail")->state, ONCE_STATE_IN_DOUBT);
		assert_int_equal(fake_find(&rig, "renew")->state, ONCE_STATE_PROCESSING);
		assert_int_equal(fake_find(&rig, "release")->state, ONCE_STATE_FAILED_RETRYABLE);
		assert_int_equal(released.code, ONCE_OK);
		assert_true(rig.lost >= 1);
		fake_close(&rig);
	}
}

static void of_two_claims_of_one_intent_lost_together_one_is_granted(void **state)
{
	(void)state;
	for (int times = 1; times < 7; times++) {
		seen claimed[4] = {0};
		int may_run = 0;
		fake_open(&rig, NULL);
		fake_lose(&rig, times < 4 ? STEP_COMMITTED : STEP_STATEMENT, times < 4 ? times : times - 3);
		for (int i = 0; i < 4; i++) {
			submit_claim(&rig, "same", &claimed[i]);
		}
		fake_pass(&rig, 9000);
		for (int i = 0; i < 4; i++) {
			assert_int_equal(claimed[i].calls, 1);
			assert_int_equal(claimed[i].verdict, claimed[i].may_run ? ONCE_NEW_CLAIM : ONCE_PROCESSING_ACTIVE);
			may_run += claimed[i].may_run;
		}
		assert_int_equal(may_run, 1);
		assert_true(claimed[0].may_run); /* they keep their order */
		fake_close(&rig);
	}
}

static void a_lost_claim_of_an_intent_that_another_holds_is_not_taken_for_ours(void **state)
{
	(void)state;
	seen claimed = {0};
	fake_open(&rig, NULL);
	fake_intent *other = fake_put(&rig, "k", ONCE_STATE_PROCESSING);
	other->fingerprint[0] = 1;
	snprintf(other->owner, sizeof other->owner, "me#0000000000000001.1");
	fake_lose(&rig, STEP_COMMITTED, 1);
	submit_claim(&rig, "k", &claimed);
	fake_pass(&rig, 9000);
	assert_int_equal(claimed.verdict, ONCE_PROCESSING_ACTIVE);
	assert_false(claimed.may_run);
	assert_int_equal(count(&rig).resolved_claims, 0);
	fake_close(&rig);
}

static void a_lost_takeover_is_said_to_be_one(void **state)
{
	(void)state;
	seen stale = {0};
	seen released = {0};
	fake_open(&rig, NULL);
	fake_intent *lost = fake_put(&rig, "stale", ONCE_STATE_PROCESSING);
	lost->fingerprint[0] = 1;
	lost->stale = true;
	fake_intent *given_back = fake_put(&rig, "released", ONCE_STATE_FAILED_RETRYABLE);
	given_back->fingerprint[0] = 1;
	given_back->attempts = 0;
	fake_lose(&rig, STEP_COMMITTED, 1);
	submit_claim(&rig, "stale", &stale);
	submit_claim(&rig, "released", &released);
	fake_pass(&rig, 9000);
	assert_int_equal(stale.verdict, ONCE_PROCESSING_STALE);
	assert_int_equal(released.verdict, ONCE_NEW_CLAIM); /* nobody's work has started before */
	assert_int_equal(stale.fence, 2);
	assert_true(stale.may_run && released.may_run);
	assert_int_equal(fake_find(&rig, "stale")->granted, 1);
	fake_close(&rig);
}

/* It cannot have taken over where it takes nothing over. */
static void a_lost_claim_after_a_failure_is_said_to_be_what_it_may_be(void **state)
{
	static const once_verdict verdicts[] = {[ONCE_ON_STALE_POLICY] = ONCE_PROCESSING_STALE,
	                                        [ONCE_ON_STALE_IN_DOUBT] = ONCE_RETRYABLE_FAILURE,
	                                        [ONCE_ON_STALE_TAKEOVER] = ONCE_PROCESSING_STALE};
	(void)state;
	for (once_on_stale on_stale = ONCE_ON_STALE_POLICY; on_stale <= ONCE_ON_STALE_TAKEOVER; on_stale++) {
		seen claimed = {0};
		fake_open(&rig, NULL);
		rig.on_stale = on_stale;
		fake_put(&rig, "k", ONCE_STATE_FAILED_RETRYABLE)->fingerprint[0] = 1;
		fake_lose(&rig, STEP_COMMITTED, 1);
		submit_claim(&rig, "k", &claimed);
		fake_pass(&rig, 9000);
		assert_int_equal(claimed.verdict, verdicts[on_stale]);
		assert_true(claimed.may_run);
		assert_int_equal(claimed.fence, 2);
		fake_close(&rig);
	}
}

/* The old backend still runs the lost batch: its lock shows, its row does not. */
static void a_lost_claim_that_commits_late_is_waited_for(void **state)
{
	bool commits = *state != NULL;
	seen claimed = {0};
	fake_open(&rig, NULL);
	fake_lose(&rig, STEP_COMMITTED, 1);
	submit_claim(&rig, "k", &claimed);
	rig.deafens = true;
	fake_turn(&rig);
	assert_int_equal(rig.lost, 1);
	fake_find(&rig, "k")->hidden = true;
	rig.deaf = false;
	fake_pass(&rig, 3000);
	assert_int_equal(claimed.calls, 0);
	assert_true(rig.statements > 6);
	assert_true(rig.statements < 60); /* with pauses in between */
	if (commits) {
		fake_find(&rig, "k")->hidden = false;
	} else {
		rig.intent_count = 0;
	}
	fake_pass(&rig, 2000);
	assert_int_equal(claimed.verdict, ONCE_NEW_CLAIM);
	assert_int_equal(fake_find(&rig, "k")->granted, 1);
	assert_int_equal(count(&rig).resolved_claims, commits);
	fake_close(&rig);
}

static void a_claim_that_is_lost_again_and_again_ends_unknown(void **state)
{
	(void)state;
	seen claimed = {0};
	fake_open(&rig, &(once_batcher_options){.operation_timeout_ms = 600000});
	fake_lose(&rig, STEP_STATEMENT, 1000);
	submit_claim(&rig, "k", &claimed);
	fake_pass(&rig, 300000);
	assert_int_equal(claimed.calls, 1);
	assert_int_equal(claimed.code, ONCE_OUTCOME_UNKNOWN);
	assert_true(claimed.unknown);
	assert_int_equal(rig.lost, 9);
	fake_close(&rig);
}

static void a_claim_whose_submitter_was_told_too_late_is_given_back(void **state)
{
	bool forgets = *state != NULL;
	seen claimed = {0};
	once_batcher_options options = {.operation_timeout_ms = 1000, .answer_timeout_ms = 60000};
	fake_open(&rig, &options);
	submit_peek(&rig, "warm", &claimed);
	fake_turn(&rig);
	claimed = (seen){0};
	rig.silent = true;
	once_operation *operation = submit_claim(&rig, "k", &claimed);
	fake_turn(&rig);
	if (forgets) {
		once_operation_forget(operation);
	} else {
		fake_pass(&rig, 2000);
		assert_int_equal(claimed.code, ONCE_OUTCOME_UNKNOWN);
		assert_true(claimed.unknown);
	}
	rig.silent = false;
	fake_pass(&rig, 10);
	assert_int_equal(claimed.calls, forgets ? 0 : 1);
	assert_int_equal(fake_find(&rig, "k")->granted, 1);
	assert_int_equal(fake_find(&rig, "k")->state, ONCE_STATE_FAILED_RETRYABLE);
	assert_int_equal(fake_find(&rig, "k")->attempts, 0);
	assert_int_equal(count(&rig).released_claims, 1);
	assert_int_equal(count(&rig).pending, 0);
	assert_true(rig.idle);
	fake_close(&rig);
}

static void a_lost_claim_of_a_submitter_who_left_is_found_and_given_back(void **state)
{
	bool forgets = *state != NULL;
	seen claimed = {0};
	fake_open(&rig, &(once_batcher_options){.operation_timeout_ms = 1000});
	fake_lose(&rig, STEP_COMMITTED, 1);
	once_operation *operation = submit_claim(&rig, "k", &claimed);
	rig.deafens = true;
	fake_turn(&rig);
	assert_int_equal(rig.lost, 1);
	fake_refuse(&rig);
	rig.deaf = false;
	fake_turn(&rig);
	if (forgets) {
		once_operation_forget(operation);
	}
	fake_pass(&rig, 3000);
	assert_int_equal(claimed.code, forgets ? ONCE_OK : ONCE_OUTCOME_UNKNOWN);
	assert_int_equal(claimed.calls, forgets ? 0 : 1);
	fake_listen(&rig);
	fake_pass(&rig, 5000);
	assert_int_equal(fake_find(&rig, "k")->state, ONCE_STATE_FAILED_RETRYABLE);
	assert_int_equal(fake_find(&rig, "k")->granted, 1);
	assert_int_equal(count(&rig).pending, 0);
	fake_close(&rig);
}

static void a_lost_claim_that_was_never_granted_is_not_claimed_for_nobody(void **state)
{
	(void)state;
	seen claimed = {0};
	fake_open(&rig, &(once_batcher_options){.operation_timeout_ms = 1000});
	fake_lose(&rig, STEP_STATEMENT, 1);
	submit_claim(&rig, "k", &claimed);
	rig.deafens = true;
	fake_turn(&rig);
	assert_int_equal(rig.lost, 1);
	fake_refuse(&rig);
	rig.deaf = false;
	fake_pass(&rig, 3000);
	assert_int_equal(claimed.code, ONCE_OUTCOME_UNKNOWN);
	fake_listen(&rig);
	fake_pass(&rig, 20000);
	assert_null(fake_find(&rig, "k"));
	assert_int_equal(count(&rig).pending, 0);
	fake_close(&rig);
}

/*
 * An attempt whose worker was lost may have run: whoever comes next must be told that it takes over
 * from it.
 */
static void a_takeover_that_nobody_waits_for_is_never_given_back_as_unrun(void **state)
{
	(void)state;
	enum {
		FORGOTTEN,
		TOLD,
		LOST_AND_FORGOTTEN,
		LOST_AND_STALE
	};
	for (int how = FORGOTTEN; how <= LOST_AND_STALE; how++) {
		seen first = {0};
		seen next = {0};
		fake_open(&rig, &(once_batcher_options){.operation_timeout_ms = 1000, .answer_timeout_ms = 60000});
		submit_peek(&rig, "warm", &first);
		fake_turn(&rig);
		fake_intent *intent = fake_put(&rig, "k", ONCE_STATE_PROCESSING);
		intent->fingerprint[0] = 1;
		intent->stale = true;
		fake_lose(&rig, how >= LOST_AND_FORGOTTEN ? STEP_COMMITTED : STEP_NONE, 1);
		rig.deafens = true;
		rig.silent = how < LOST_AND_FORGOTTEN;
		once_operation *operation = submit_claim(&rig, "k", &first);
		fake_turn(&rig);
		if (how == TOLD) {
			fake_pass(&rig, 2000);
		} else if (how != LOST_AND_STALE) {
			once_operation_forget(operation);
		}
		rig.ages = how == LOST_AND_STALE;
		rig.silent = rig.deaf = false;
		fake_pass(&rig, 900);
		rig.ages = false;
		if (how == LOST_AND_STALE) {
			assert_int_equal(first.verdict, ONCE_PROCESSING_STALE);
		} else {
			submit_claim(&rig, "k", &next);
			fake_pass(&rig, 10);
			assert_int_equal(next.verdict, ONCE_PROCESSING_STALE);
			assert_int_equal(next.fence, 3);
		}
		assert_int_equal(count(&rig).pending, 0);
		fake_close(&rig);
	}
}

static void a_claim_that_was_rolled_back_is_not_made_again_for_nobody(void **state)
{
	static const char *const sqlstates[] = {"40001", "22P02"};
	(void)state;
	for (int i = 0; i < 2; i++) {
		seen seen[2] = {0};
		fake_open(&rig, NULL);
		submit_peek(&rig, "warm", &seen[0]);
		fake_turn(&rig);
		rig.silent = true;
		once_operation *operation = submit_claim(&rig, "k", &seen[0]);
		submit_claim(&rig, "neighbour", &seen[1]);
		fake_turn(&rig);
		once_operation_forget(operation);
		snprintf(rig.bad_key, sizeof rig.bad_key, "k");
		snprintf(rig.bad_sqlstate, sizeof rig.bad_sqlstate, "%s", sqlstates[i]);
		rig.bad_count = 1;
		rig.silent = false;
		fake_pass(&rig, 2000);
		assert_null(fake_find(&rig, "k"));
		assert_int_equal(seen[1].verdict, ONCE_NEW_CLAIM);
		assert_int_equal(count(&rig).pending, 0);
		fake_close(&rig);
	}
}

static void a_claim_not_sent_is_dropped_when_it_is_forgotten(void **state)
{
	(void)state;
	seen claimed = {0};
	fake_open(&rig, NULL);
	once_operation_forget(submit_claim(&rig, "k", &claimed));
	assert_int_equal(count(&rig).pending, 0);
	fake_turn(&rig);
	assert_null(fake_find(&rig, "k"));
	assert_int_equal(claimed.calls, 0);
	fake_close(&rig);
}

static void a_report_is_tried_on_after_its_submitter_was_told(void **state)
{
	bool forgets = *state != NULL;
	seen stored = {0};
	fake_open(&rig, &(once_batcher_options){.operation_timeout_ms = 1000});
	fake_put(&rig, "k", ONCE_STATE_PROCESSING);
	fake_refuse(&rig);
	once_operation *operation = submit_complete(&rig, "k", 1, &stored);
	if (forgets) {
		once_operation_forget(operation);
	}
	fake_pass(&rig, 5000);
	assert_int_equal(stored.calls, forgets ? 0 : 1);
	assert_int_equal(stored.code, forgets ? ONCE_OK : ONCE_DEADLINE);
	assert_int_equal(stored.unknown, !forgets);
	assert_int_equal(count(&rig).pending, 1);
	assert_false(rig.idle);
	fake_listen(&rig);
	fake_pass(&rig, 4000);
	assert_int_equal(fake_find(&rig, "k")->state, ONCE_STATE_SUCCEEDED);
	assert_int_equal(count(&rig).pending, 0);
	fake_close(&rig);
}

static void a_report_is_not_tried_for_ever(void **state)
{
	(void)state;
	seen stored = {0};
	fake_open(&rig, &(once_batcher_options){.operation_timeout_ms = 1000});
	fake_refuse(&rig);
	submit_complete(&rig, "k", 1, &stored);
	fake_pass(&rig, 9900);
	assert_int_equal(count(&rig).pending, 1);
	fake_pass(&rig, 200);
	assert_int_equal(count(&rig).pending, 0);
	assert_true(rig.idle);
	fake_close(&rig);
}

int main(void)
{
	static int yes;
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(each_step_of_connecting_can_be_lost_and_the_operation_is_carried_out),
	    cmocka_unit_test(a_claim_lost_at_any_step_is_granted_once),
	    cmocka_unit_test(answers_that_came_before_the_end_count),
	    cmocka_unit_test(a_lost_claim_whose_lease_has_passed_is_not_run_under_it),
	    cmocka_unit_test(reports_lost_at_any_step_are_stored_and_said_to_be),
	    cmocka_unit_test(of_two_claims_of_one_intent_lost_together_one_is_granted),
	    cmocka_unit_test(a_lost_claim_of_an_intent_that_another_holds_is_not_taken_for_ours),
	    cmocka_unit_test(a_lost_takeover_is_said_to_be_one),
	    cmocka_unit_test(a_lost_claim_after_a_failure_is_said_to_be_what_it_may_be),
	    cmocka_unit_test_prestate(a_lost_claim_that_commits_late_is_waited_for, &yes),
	    cmocka_unit_test(a_lost_claim_that_commits_late_is_waited_for),
	    cmocka_unit_test(a_claim_that_is_lost_again_and_again_ends_unknown),
	    cmocka_unit_test(a_claim_whose_submitter_was_told_too_late_is_given_back),
	    cmocka_unit_test_prestate(a_claim_whose_submitter_was_told_too_late_is_given_back, &yes),
	    cmocka_unit_test(a_lost_claim_of_a_submitter_who_left_is_found_and_given_back),
	    cmocka_unit_test_prestate(a_lost_claim_of_a_submitter_who_left_is_found_and_given_back, &yes),
	    cmocka_unit_test(a_lost_claim_that_was_never_granted_is_not_claimed_for_nobody),
	    cmocka_unit_test(a_takeover_that_nobody_waits_for_is_never_given_back_as_unrun),
	    cmocka_unit_test(a_claim_that_was_rolled_back_is_not_made_again_for_nobody),
	    cmocka_unit_test(a_claim_not_sent_is_dropped_when_it_is_forgotten),
	    cmocka_unit_test(a_report_is_tried_on_after_its_submitter_was_told),
	    cmocka_unit_test_prestate(a_report_is_tried_on_after_its_submitter_was_told, &yes),
	    cmocka_unit_test(a_report_is_not_tried_for_ever),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
