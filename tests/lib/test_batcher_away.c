/* SPDX-License-Identifier: PostgreSQL */
/*
 * test_batcher_away.c: the batcher where its server is away, silent, slow or a standby, and where a
 * socket says that it is ready and is not: nothing waits for ever, and nothing is asked too often.
 */
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fake.h"

static fake rig;

static void without_a_server_operations_wait_until_their_deadline(void **state)
{
	(void)state;
	seen claimed = {0};
	seen late = {0};
	fake_open(&rig, &(once_batcher_options){.operation_timeout_ms = 3000});
	fake_refuse(&rig);
	submit_claim(&rig, "k", &claimed);
	fake_pass(&rig, 2999);
	assert_int_equal(claimed.calls, 0);
	assert_true(count(&rig).connect_failures > 3);
	assert_true(count(&rig).connect_failures < 200);
	fake_pass(&rig, 1);
	assert_int_equal(claimed.code, ONCE_DEADLINE);
	assert_false(claimed.unknown);
	assert_non_null(strstr(claimed.message, "refused")); /* why there is no connection */
	submit_claim(&rig, "late", &late);
	fake_listen(&rig);
	fake_pass(&rig, 2500);
	assert_int_equal(late.verdict, ONCE_NEW_CLAIM);
	assert_null(fake_find(&rig, "k"));
	fake_close(&rig);
}

static void who_is_impatient_is_told_at_once_that_the_server_is_away_and_reports_go_on(void **state)
{
	(void)state;
	const once_batcher_options options = {.impatient = true};
	seen claimed[3] = {0};
	seen peeked = {0};
	seen completed = {0};
	fake_open(&rig, &options);
	fake_turn(&rig);
	assert_int_equal(count(&rig).connects, 2); /* with no operation */
	submit_claim(&rig, "k", &claimed[0]);
	fake_turn(&rig);
	assert_int_equal(claimed[0].verdict, ONCE_NEW_CLAIM);
	fake_refuse(&rig);
	fake_cut(&rig);
	submit_claim(&rig, "a", &claimed[1]);
	submit_complete(&rig, "k", 1, &completed);
	fake_pass(&rig, 50); /* the first pause before reconnecting, at most */
	assert_int_equal(claimed[1].code, ONCE_CONNECTION);
	assert_false(claimed[1].unknown);
	fake_pass(&rig, 3000);
	submit_claim(&rig, "b", &claimed[2]);
	submit_peek(&rig, "k", &peeked);
	fake_turn(&rig); /* no time passes */
	assert_int_equal(claimed[2].code, ONCE_CONNECTION);
	assert_int_equal(peeked.code, ONCE_CONNECTION);
	assert_int_equal(completed.calls, 0);
	fake_listen(&rig);
	fake_pass(&rig, 2500);
	assert_int_equal(completed.verdict, ONCE_STORED);
	claimed[2] = (seen){0};
	submit_claim(&rig, "b", &claimed[2]);
	fake_turn(&rig);
	assert_int_equal(claimed[2].verdict, ONCE_NEW_CLAIM);
	fake_close(&rig);
}

/* It may have been granted: that is found out about, however long it takes. */
static void an_impatient_claim_that_was_sent_is_not_said_to_be_refused(void **state)
{
	(void)state;
	const once_batcher_options options = {.impatient = true};
	seen claimed[2] = {0};
	fake_open(&rig, &options);
	fake_turn(&rig);
	fake_refuse(&rig);
	fake_lose(&rig, STEP_COMMITTED, 1);
	submit_claim(&rig, "k", &claimed[0]);
	fake_pass(&rig, 1000);
	submit_claim(&rig, "a", &claimed[1]);
	fake_turn(&rig);
	assert_int_equal(claimed[0].calls, 0);
	assert_int_equal(claimed[1].code, ONCE_CONNECTION);
	fake_listen(&rig);
	fake_pass(&rig, 3000);
	assert_int_equal(claimed[0].verdict, ONCE_NEW_CLAIM);
	assert_int_equal(fake_find(&rig, "k")->granted, 1);
	assert_int_equal(count(&rig).resolved_claims, 1);
	fake_close(&rig);
}

/* The two connections of an impatient batcher do not ask twice. */
static void one_connection_at_a_time_asks_whether_the_server_is_back(void **state)
{
	(void)state;
	const once_batcher_options options = {.impatient = true, .connect_timeout_ms = 1000};
	fake_open(&rig, &options);
	rig.silent = true;
	fake_pass(&rig, 1100);
	assert_int_equal(rig.accepted, 2 + 1);
	fake_pass(&rig, 10000);
	assert_in_range(rig.accepted, 2 + 4, 2 + 10);
	rig.silent = false;
	fake_pass(&rig, 5000);
	assert_int_equal(count(&rig).connects, 2);
	fake_close(&rig);
}

static void a_server_that_is_silent_is_given_up_while_connecting(void **state)
{
	(void)state;
	seen claimed = {0};
	fake_open(&rig, &(once_batcher_options){.connect_timeout_ms = 500});
	rig.silent = true;
	submit_claim(&rig, "k", &claimed);
	fake_pass(&rig, 499);
	assert_int_equal(count(&rig).timeouts, 0);
	fake_pass(&rig, 1);
	assert_int_equal(count(&rig).timeouts, 2);
	rig.silent = false;
	fake_pass(&rig, 3000);
	assert_int_equal(claimed.verdict, ONCE_NEW_CLAIM);
	fake_close(&rig);
}

static void a_batch_without_an_answer_costs_its_connection_and_goes_again(void **state)
{
	(void)state;
	seen claimed = {0};
	seen stored = {0};
	fake_open(&rig, &(once_batcher_options){.answer_timeout_ms = 700});
	fake_put(&rig, "done", ONCE_STATE_PROCESSING);
	submit_peek(&rig, "warm", &claimed);
	fake_turn(&rig);
	claimed = (seen){0};
	rig.silent = true;
	submit_claim(&rig, "k", &claimed);
	submit_complete(&rig, "done", 1, &stored);
	fake_pass(&rig, 699);
	assert_int_equal(count(&rig).timeouts, 0);
	fake_pass(&rig, 1);
	assert_int_equal(count(&rig).timeouts, 2);
	assert_int_equal(claimed.calls + stored.calls, 0);
	rig.silent = false; /* and what lay in the old sockets is carried out now */
	fake_pass(&rig, 5000);
	assert_int_equal(claimed.verdict, ONCE_NEW_CLAIM);
	assert_int_equal(claimed.fence, 1);
	assert_int_equal(stored.verdict, ONCE_STORED);
	assert_int_equal(count(&rig).resent, 2);
	fake_close(&rig);
}

static void answers_that_come_byte_by_byte_are_understood(void **state)
{
	(void)state;
	seen claimed[5] = {0};
	char key[5][8];
	fake_open(&rig, NULL);
	rig.trickles = true;
	for (int i = 0; i < 5; i++) {
		snprintf(key[i], sizeof key[i], "k%d", i);
		submit_claim(&rig, key[i], &claimed[i]);
	}
	fake_pass(&rig, 100);
	for (int i = 0; i < 5; i++) {
		assert_int_equal(claimed[i].verdict, ONCE_NEW_CLAIM);
	}
	fake_close(&rig);
}

static void a_server_that_reads_slowly_gets_all(void **state)
{
	(void)state;
	static char body[600000];
	seen stored[2] = {0};
	once_error *error = NULL;
	memset(body, 'x', sizeof body);
	fake_open(&rig, NULL);
	rig.slow_reader = true;
	for (int i = 0; i < 2; i++) {
		const char *key = i == 0 ? "a" : "b";
		const once_outcome outcome = {.response_status = 200, .response_body = {.data = body, .length = 300000}};
		fake_put(&rig, key, ONCE_STATE_PROCESSING);
		assert_ok(once_batcher_complete(rig.batcher, &(once_intent){.scope = "s", .key = key}, 1, &outcome, note,
		                                &stored[i], NULL, &error),
		          error);
	}
	fake_pass(&rig, 100);
	assert_int_equal(stored[0].verdict, ONCE_STORED);
	assert_int_equal(stored[1].verdict, ONCE_STORED);
	fake_close(&rig);
}

static void an_idle_connection_that_ends_is_made_anew(void **state)
{
	(void)state;
	seen peeked = {0};
	fake_open(&rig, NULL);
	submit_peek(&rig, "k", &peeked);
	fake_turn(&rig);
	assert_true(count(&rig).connected[0] && count(&rig).connected[1]);
	assert_int_equal(rig.due, ONCE_NEVER);
	fake_refuse(&rig); /* the pause before the first try may be none */
	fake_cut(&rig);
	fake_turn(&rig);
	assert_false(count(&rig).connected[0] || count(&rig).connected[1]);
	assert_true(rig.idle); /* nobody waits for it */
	assert_true(rig.due < rig.now + 3000);
	fake_listen(&rig);
	fake_pass(&rig, 3000);
	assert_true(count(&rig).connected[0] && count(&rig).connected[1]);
	fake_close(&rig);
}

static void reconnects_come_more_and_more_rarely(void **state)
{
	(void)state;
	seen claimed = {0};
	fake_open(&rig, &(once_batcher_options){.backoff_ms = 10, .backoff_max_ms = 1000, .operation_timeout_ms = 1000000});
	fake_refuse(&rig);
	submit_claim(&rig, "k", &claimed);
	fake_pass(&rig, 200000);
	/* Full jitter: half a second each on the average, of one connection for both. */
	assert_in_range(count(&rig).connect_failures, 300, 550);
	fake_close(&rig);
}

static void a_standby_is_left(void **state)
{
	(void)state;
	seen claimed = {0};
	fake_open(&rig, NULL);
	snprintf(rig.bad_key, sizeof rig.bad_key, "k");
	snprintf(rig.bad_sqlstate, sizeof rig.bad_sqlstate, "25006");
	rig.bad_count = 2;
	submit_claim(&rig, "k", &claimed);
	fake_pass(&rig, 5000);
	assert_int_equal(claimed.verdict, ONCE_NEW_CLAIM);
	assert_int_equal(count(&rig).connects, 4);
	fake_close(&rig);
}

static void readiness_that_is_none_does_no_harm(void **state)
{
	(void)state;
	seen claimed = {0};
	fake_open(&rig, NULL);
	once_batcher_ready(rig.batcher, 0, true, true);
	submit_claim(&rig, "k", &claimed);
	for (int i = 0; i < 40 && claimed.calls == 0; i++) {
		for (int connection = -1; connection < 3; connection++) {
			once_batcher_ready(rig.batcher, connection, true, true);
			once_batcher_ready(rig.batcher, connection, false, false);
			once_batcher_tick(rig.batcher);
		}
		fake_turn(&rig);
	}
	assert_int_equal(claimed.verdict, ONCE_NEW_CLAIM);
	fake_close(&rig);
}

/*
 * libpq goes from one host to the next within one call, and the second socket may have the number
 * of the first.
 */
static void a_socket_that_libpq_exchanges_while_connecting_is_forgotten_first(void **state)
{
	(void)state;
	char conninfo[240];
	seen claimed = {0};
	fake_open(&rig, NULL);
	snprintf(conninfo, sizeof conninfo, "host=%s,%s port=5432,5432 user=u dbname=d", rig.directory, rig.directory);
	fake_attach(&rig, conninfo, NULL);
	fake_lose(&rig, STEP_NOT_YET, 2);
	submit_claim(&rig, "k", &claimed);
	fake_turn(&rig);
	assert_int_equal(claimed.verdict, ONCE_NEW_CLAIM);
	assert_int_equal(rig.lost, 2);
	assert_int_equal(count(&rig).connect_failures, 0);
	fake_close(&rig);
}

/*
 * A server whose queue is full answers nothing yet, and libpq would take its silence for success.
 */
static void readiness_that_is_none_does_not_fail_a_connection_that_is_being_made(void **state)
{
	(void)state;
	char conninfo[80];
	seen claimed = {0};
	int waiting[4];
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof address;
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	assert_int_equal(bind(listener, (struct sockaddr *)&address, size), 0);
	assert_int_equal(listen(listener, 0), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &size), 0);
	for (int i = 0; i < 4; i++) {
		waiting[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
		connect(waiting[i], (struct sockaddr *)&address, size);
	}
	snprintf(conninfo, sizeof conninfo, "hostaddr=127.0.0.1 port=%d user=u dbname=d", ntohs(address.sin_port));
	fake_open(&rig, NULL);
	fake_attach(&rig, conninfo, NULL);
	submit_claim(&rig, "k", &claimed);
	fake_turn(&rig);
	for (int i = 0; i < 10; i++) {
		once_batcher_ready(rig.batcher, 0, true, true);
		once_batcher_ready(rig.batcher, 1, true, true);
	}
	assert_int_equal(count(&rig).connect_failures, 0);
	for (int i = 0; i < 4; i++) {
		close(waiting[i]);
	}
	close(listener);
	fake_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(without_a_server_operations_wait_until_their_deadline),
	    cmocka_unit_test(who_is_impatient_is_told_at_once_that_the_server_is_away_and_reports_go_on),
	    cmocka_unit_test(an_impatient_claim_that_was_sent_is_not_said_to_be_refused),
	    cmocka_unit_test(one_connection_at_a_time_asks_whether_the_server_is_back),
	    cmocka_unit_test(a_server_that_is_silent_is_given_up_while_connecting),
	    cmocka_unit_test(a_batch_without_an_answer_costs_its_connection_and_goes_again),
	    cmocka_unit_test(answers_that_come_byte_by_byte_are_understood),
	    cmocka_unit_test(a_server_that_reads_slowly_gets_all),
	    cmocka_unit_test(an_idle_connection_that_ends_is_made_anew),
	    cmocka_unit_test(reconnects_come_more_and_more_rarely),
	    cmocka_unit_test(a_standby_is_left),
	    cmocka_unit_test(readiness_that_is_none_does_no_harm),
	    cmocka_unit_test(a_socket_that_libpq_exchanges_while_connecting_is_forgotten_first),
	    cmocka_unit_test(readiness_that_is_none_does_not_fail_a_connection_that_is_being_made),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
