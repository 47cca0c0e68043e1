/* SPDX-License-Identifier: PostgreSQL */
/*
 * test_batcher_more.c: the connections that a batcher has besides its two where commits take long:
 * the decision (pace.c), when they come and go, what they carry, and that nothing is lost or given
 * to two meanwhile. How long a commit takes is set here, not measured.
 */
#include "evented.h"
#include "fake.h"

static fake rig;

/* ---- The decision ---- */

static pace window_of(int connections, size_t batches, int64_t us, size_t operations)
{
	return (pace){.connections = connections, .batches = batches, .shortest_us = us, .operations = operations};
}

static int decide(int connections, size_t batches, int64_t us, size_t operations)
{
	const pace window = window_of(connections, batches, us, operations);
	return pace_decide(&window, 4);
}

static void a_slow_disk_is_given_one_more_up_to_the_bound(void **state)
{
	(void)state;
	assert_int_equal(decide(2, 64, 1500, 192), 3);
	assert_int_equal(decide(3, 64, 5000, 500), 4);
	assert_int_equal(decide(4, 64, 5000, 500), 4);
	const pace window = window_of(2, 64, 5000, 500);
	assert_int_equal(pace_decide(&window, 2), 2);
	const pace lowered = window_of(4, 64, 5000, 500);
	assert_int_equal(pace_decide(&lowered, 3), 3);
}

static void a_fast_disk_and_few_operations_need_two(void **state)
{
	(void)state;
	assert_int_equal(decide(2, 1000, 400, 50000), 2);
	assert_int_equal(decide(4, 1000, 999, 50000), 3);
	assert_int_equal(decide(3, 1000, -50, 50000), 2);
	assert_int_equal(decide(4, 64, 5000, 127), 3);  /* a lone client */
	assert_int_equal(decide(4, 63, 5000, 5000), 3); /* hardly any batches */
	assert_int_equal(decide(2, 0, INT64_MAX, 0), 2);
}

static void between_the_bounds_nothing_changes(void **state)
{
	(void)state;
	for (int connections = 2; connections <= 4; connections++) {
		assert_int_equal(decide(connections, 64, 1000, 500), connections);
		assert_int_equal(decide(connections, 64, 1499, 500), connections);
		assert_int_equal(decide(connections, 64, 5000, 128), connections);
		assert_int_equal(decide(connections, 64, 5000, 191), connections);
	}
}

static void the_shortest_time_counts_without_what_the_operations_take(void **state)
{
	(void)state;
	pace pace;
	pace_start(&pace, 0);
	for (int i = 0; i < 64; i++) {
		pace_took(&pace, i == 17 ? 2400 : 90000, 10);
	}
	assert_int_equal(pace.shortest_us, 2000);
	assert_false(pace_turn(&pace, 4, 499)); /* too soon */
	assert_true(pace_turn(&pace, 4, 500));
	assert_int_equal(pace.connections, 3);
	assert_int_equal(pace.commit_us, 2000);
	assert_false(pace_turn(&pace, 4, 1100)); /* too few */
	assert_int_equal(pace_gather_ms(&pace), 1);
	assert_int_equal(pace_due(&pace), 500 + 30000);
	assert_true(pace_turn(&pace, 4, 500 + 30000));
	assert_int_equal(pace.connections, 2);
	assert_int_equal(pace.commit_us, 2000);
	assert_int_equal(pace_gather_ms(&pace), 0);
	assert_true(pace_due(&pace) == ONCE_NEVER);
	pace.connections = 4;
	pace.commit_us = 8000;
	assert_int_equal(pace_gather_ms(&pace), 3);
}

/* ---- A batcher ---- */

static const once_batcher_options four = {.connections_max = 4, .impatient = true};

/* A window in which so many batches took so long. */
static void window(int64_t us, int batches)
{
	seen peeked = {0};
	fake_pass(&rig, 10); /* nothing is gathered any more */
	for (int i = 0; i < batches; i++) {
		pace_took(&rig.batcher->pace, us, 4);
	}
	fake_pass(&rig, 500);
	submit_peek(&rig, "window", &peeked);
	fake_pass(&rig, 10);
	assert_int_equal(peeked.calls, 1);
}

static void open_grown(void)
{
	fake_open(&rig, &four);
	fake_turn(&rig);
	window(5000, 64);
	window(5000, 64);
	assert_int_equal(count(&rig).more_connections, 2);
}

static void send(void)
{
	once_batcher_flush(rig.batcher);
}

static void more_come_on_a_slow_disk_and_go_on_a_fast_one(void **state)
{
	(void)state;
	fake_open(&rig, &four);
	fake_turn(&rig);
	assert_int_equal(rig.accepted, 2);
	for (size_t more = 1; more <= 4; more++) {
		window(5000, 64);
		assert_int_equal(count(&rig).more_connections, more > 2 ? 2 : more);
	}
	assert_int_equal(rig.accepted, 4);
	assert_int_equal(count(&rig).connects, 4);
	assert_int_equal(count(&rig).commit_us, 5000 - 4 * 40);
	window(1200, 64);
	assert_int_equal(count(&rig).more_connections, 2);
	window(500, 64);
	assert_int_equal(count(&rig).more_connections, 1);
	window(500, 64);
	assert_int_equal(count(&rig).more_connections, 0);
	assert_int_equal(rig.watched[2].fd, -1);
	assert_int_equal(rig.watched[3].fd, -1);
	assert_int_equal(count(&rig).losses, 0); /* the server is where it was */
	assert_int_equal(rig.accepted, 4);
	window(5000, 64);
	assert_int_equal(count(&rig).more_connections, 1);
	fake_close(&rig);
}

static void there_are_two_unless_more_are_allowed(void **state)
{
	(void)state;
	once_error *error = NULL;
	fake_open(&rig, NULL);
	for (int i = 0; i < 4; i++) {
		window(5000, 64);
	}
	assert_int_equal(rig.accepted, 2);
	assert_int_equal(count(&rig).more_connections, 0);
	assert_int_equal(rig.due, ONCE_NEVER);
	fake_close(&rig);
	const int wrong[] = {-1, 1, 9};
	for (int i = 0; i < 3; i++) {
		once_poll *poll = NULL;
		assert_code(ONCE_USAGE, once_poll_open("", &(once_batcher_options){.connections_max = wrong[i]}, &poll, &error),
		            error);
	}
}

static void they_go_when_little_is_to_do(void **state)
{
	(void)state;
	open_grown();
	fake_pass(&rig, 30100);
	assert_int_equal(count(&rig).more_connections, 1);
	assert_true(rig.idle); /* a loop that ends does not wait for that */
	fake_pass(&rig, 30100);
	assert_int_equal(count(&rig).more_connections, 0);
	assert_int_equal(count(&rig).losses, 0);
	assert_int_equal(rig.due, ONCE_NEVER);
	fake_close(&rig);
}

static void one_that_cannot_be_made_disturbs_nobody_and_is_tried_again_after_a_minute(void **state)
{
	(void)state;
	seen claimed = {0};
	fake_open(&rig, &four);
	fake_turn(&rig);
	fake_refuse(&rig);
	for (int i = 0; i < 5; i++) {
		window(5000, 64);
	}
	assert_int_equal(count(&rig).connect_failures, 1);
	submit_claim(&rig, "k", &claimed);
	fake_turn(&rig);
	assert_int_equal(claimed.verdict, ONCE_NEW_CLAIM);
	assert_int_equal(count(&rig).losses, 0);
	fake_listen(&rig);
	window(5000, 64);
	assert_int_equal(count(&rig).more_connections, 0);
	fake_pass(&rig, 60000);
	window(5000, 64);
	window(5000, 64);
	assert_int_equal(count(&rig).more_connections, 2);
	fake_close(&rig);
}

static void one_that_is_lost_is_a_loss_and_made_anew(void **state)
{
	(void)state;
	open_grown();
	rig.connections[3].closing = true;
	for (int i = 0; i < 20 && count(&rig).losses == 0; i++) {
		fake_pass(&rig, 100);
	}
	assert_int_equal(count(&rig).losses, 1);
	fake_pass(&rig, 3000);
	assert_int_equal(count(&rig).more_connections, 2);
	assert_int_equal(rig.accepted, 5);
	fake_close(&rig);
}

static void they_do_nothing_while_the_claims_connection_is_away(void **state)
{
	(void)state;
	seen claimed = {0}, stored = {0};
	open_grown();
	fake_put(&rig, "x", ONCE_STATE_PROCESSING);
	fake_refuse(&rig);
	rig.connections[0].closing = rig.connections[1].closing = true;
	fake_pass(&rig, 100);
	assert_false(count(&rig).connected[0]);
	assert_int_equal(count(&rig).more_connections, 2);
	int statements = rig.statements;
	submit_claim(&rig, "k", &claimed);
	submit_complete(&rig, "x", 1, &stored);
	fake_turn(&rig);
	assert_int_equal(claimed.code, ONCE_CONNECTION);
	assert_int_equal(stored.calls, 0);
	assert_int_equal(rig.statements, statements);
	fake_close(&rig);
}

/* ---- What they carry ---- */

static void claims_and_reports_share_their_transactions(void **state)
{
	(void)state;
	seen claimed = {0}, stored = {0};
	open_grown();
	fake_put(&rig, "x", ONCE_STATE_PROCESSING);
	memset(rig.order, 0, sizeof rig.order);
	submit_claim(&rig, "a", &claimed);
	submit_complete(&rig, "x", 1, &stored);
	int limits = rig.limits;
	send();
	assert_int_equal(rig.batcher->wires[3].state, WIRE_BUSY);
	assert_int_equal(rig.batcher->wires[0].state, WIRE_IDLE);
	fake_turn(&rig);
	assert_string_equal(rig.order, "ma.");
	assert_int_equal(rig.limits, limits + 1); /* the report waits for no row for long */
	assert_int_equal(claimed.verdict, ONCE_NEW_CLAIM);
	assert_int_equal(stored.verdict, ONCE_STORED);
	fake_close(&rig);
}

static void salts_are_asked_on_the_claims_connection_alone(void **state)
{
	(void)state;
	seen salts[2] = {0}, claimed = {0};
	once_error *error = NULL;
	open_grown();
	submit_claim(&rig, "a", &claimed);
	assert_ok(once_batcher_salt(rig.batcher, "t", note, &salts[0], NULL, &error), error);
	send();
	assert_int_equal(rig.batcher->wires[3].batch.operation_count, 1);
	assert_int_equal(rig.batcher->wires[0].batch.operation_count, 1);
	assert_int_equal(rig.batcher->wires[0].batch.groups[0].kind, KIND_SALT);
	/* Nothing else waits: no empty batch. */
	assert_ok(once_batcher_salt(rig.batcher, "u", note, &salts[1], NULL, &error), error);
	send();
	assert_int_equal(rig.batcher->wires[2].state, WIRE_IDLE);
	fake_turn(&rig);
	fake_pass(&rig, 10);
	assert_int_equal(claimed.calls + salts[0].calls + salts[1].calls, 3);
	fake_close(&rig);
}

static void what_follows_the_answers_is_gathered_into_one_batch(void **state)
{
	(void)state;
	seen claimed[2] = {0}, stored[2] = {0};
	open_grown();
	submit_claim(&rig, "a", &claimed[0]);
	submit_claim(&rig, "b", &claimed[1]);
	fake_turn(&rig);
	assert_int_equal(claimed[0].calls + claimed[1].calls, 2);
	memset(rig.order, 0, sizeof rig.order);
	submit_complete(&rig, "a", claimed[0].fence, &stored[0]);
	fake_turn(&rig);
	assert_string_equal(rig.order, "");
	submit_complete(&rig, "b", claimed[1].fence, &stored[1]);
	fake_turn(&rig); /* no time has passed */
	assert_string_equal(rig.order, "m.");
	assert_int_equal(stored[0].calls + stored[1].calls, 2);
	/* One that comes alone waits no longer than that. */
	seen alone = {0};
	submit_claim(&rig, "c", &alone);
	fake_turn(&rig);
	assert_int_equal(alone.calls, 0);
	fake_pass(&rig, 2);
	assert_int_equal(alone.calls, 1);
	fake_close(&rig);
}

static void a_full_batch_waits_for_no_more(void **state)
{
	(void)state;
	static seen claimed[60], stored[60];
	char key[16];
	open_grown();
	for (int i = 0; i < 60; i++) {
		snprintf(key, sizeof key, "%d", i);
		submit_claim(&rig, key, &claimed[i]);
	}
	fake_turn(&rig);
	for (int i = 0; i < GATHER_MAX; i++) {
		assert_int_equal(rig.batcher->queued[QUEUE_END], i);
		snprintf(key, sizeof key, "%d", i);
		submit_complete(&rig, key, claimed[i].fence, &stored[i]);
		fake_turn(&rig);
	}
	assert_int_equal(stored[0].calls + stored[GATHER_MAX - 1].calls, 2);
	fake_close(&rig);
}

static size_t counted(void)
{
	size_t batches = rig.batcher->pace.batches;
	fake_pass(&rig, 10);
	return rig.batcher->pace.batches - batches;
}

static void batches_that_wrote_something_count(void **state)
{
	(void)state;
	seen seen[7] = {0};
	once_error *error = NULL;
	const once_intent intent = {.scope = "s", .key = "a"};
	fake_open(&rig, &four);
	fake_turn(&rig);
	submit_claim(&rig, "a", &seen[0]);
	assert_int_equal(counted(), 1);
	submit_claim(&rig, "a", &seen[1]); /* it is active */
	submit_peek(&rig, "a", &seen[2]);
	assert_int_equal(counted(), 0);
	assert_ok(once_batcher_renew(rig.batcher, &intent, seen[0].fence, 5000, note, &seen[3], NULL, &error), error);
	assert_int_equal(counted(), 1);
	submit_complete(&rig, "a", seen[0].fence, &seen[4]);
	assert_int_equal(counted(), 1);
	submit_claim(&rig, "a", &seen[5]); /* a replay */
	submit_release(&rig, "a", seen[0].fence, &seen[6]);
	assert_int_equal(counted(), 0);
	assert_int_equal(seen[6].verdict, ONCE_REPORT_REFUSED);
	fake_close(&rig);
}

/* ---- Nothing is given to two ---- */

static void one_that_is_no_longer_wanted_ends_its_batch_first(void **state)
{
	(void)state;
	seen claimed = {0};
	open_grown();
	submit_claim(&rig, "k", &claimed);
	send();
	assert_int_equal(rig.batcher->wires[3].state, WIRE_BUSY);
	rig.batcher->pace.connections = 2;
	send();
	assert_int_equal(count(&rig).more_connections, 1); /* the idle one has gone */
	fake_turn(&rig);
	assert_int_equal(claimed.verdict, ONCE_NEW_CLAIM);
	assert_int_equal(count(&rig).more_connections, 0);
	assert_int_equal(count(&rig).losses, 0);
	assert_int_equal(fake_find(&rig, "k")->granted, 1);
	fake_close(&rig);
}

static void claims_lost_on_any_of_them_at_any_step_are_granted_once(void **state)
{
	(void)state;
	static const char *const keys[] = {"a", "b", "c"};
	for (fake_step step = STEP_STATEMENT; step <= STEP_TERMINATED; step++) {
		seen claimed[3] = {0};
		open_grown();
		fake_lose(&rig, step, 3);
		for (int i = 0; i < 3; i++) {
			submit_claim(&rig, keys[i], &claimed[i]);
			send();
		}
		assert_int_equal(rig.batcher->wires[3].state, WIRE_BUSY);
		assert_int_equal(rig.batcher->wires[2].state, WIRE_BUSY);
		assert_int_equal(rig.batcher->wires[0].state, WIRE_BUSY);
		fake_pass(&rig, 9000);
		for (int i = 0; i < 3; i++) {
			assert_int_equal(claimed[i].calls, 1);
			assert_int_equal(claimed[i].verdict, ONCE_NEW_CLAIM);
			assert_int_equal(fake_find(&rig, keys[i])->granted, 1);
		}
		assert_int_equal(rig.lost, 3);
		fake_close(&rig);
	}
}

static void of_claims_of_one_key_on_two_of_them_one_is_granted(void **state)
{
	(void)state;
	seen claimed[3] = {0};
	open_grown();
	for (int i = 0; i < 3; i++) {
		submit_claim(&rig, "k", &claimed[i]);
		send();
	}
	fake_pass(&rig, 10);
	int granted = 0;
	for (int i = 0; i < 3; i++) {
		assert_int_equal(claimed[i].calls, 1);
		granted += claimed[i].may_run;
	}
	assert_int_equal(granted, 1);
	assert_int_equal(fake_find(&rig, "k")->granted, 1);
	fake_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_slow_disk_is_given_one_more_up_to_the_bound),
	    cmocka_unit_test(a_fast_disk_and_few_operations_need_two),
	    cmocka_unit_test(between_the_bounds_nothing_changes),
	    cmocka_unit_test(the_shortest_time_counts_without_what_the_operations_take),
	    cmocka_unit_test(more_come_on_a_slow_disk_and_go_on_a_fast_one),
	    cmocka_unit_test(there_are_two_unless_more_are_allowed),
	    cmocka_unit_test(they_go_when_little_is_to_do),
	    cmocka_unit_test(one_that_cannot_be_made_disturbs_nobody_and_is_tried_again_after_a_minute),
	    cmocka_unit_test(one_that_is_lost_is_a_loss_and_made_anew),
	    cmocka_unit_test(they_do_nothing_while_the_claims_connection_is_away),
	    cmocka_unit_test(claims_and_reports_share_their_transactions),
	    cmocka_unit_test(salts_are_asked_on_the_claims_connection_alone),
	    cmocka_unit_test(what_follows_the_answers_is_gathered_into_one_batch),
	    cmocka_unit_test(a_full_batch_waits_for_no_more),
	    cmocka_unit_test(batches_that_wrote_something_count),
	    cmocka_unit_test(one_that_is_no_longer_wanted_ends_its_batch_first),
	    cmocka_unit_test(claims_lost_on_any_of_them_at_any_step_are_granted_once),
	    cmocka_unit_test(of_claims_of_one_key_on_two_of_them_one_is_granted),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
