/* SPDX-License-Identifier: PostgreSQL */
/*
 * test_kafka_start.c: where partitions begin whose place is not in their log, where some brokers do
 * not say it. Against librdkafka's own mock of three brokers.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include <librdkafka/rdkafka.h>
#include <librdkafka/rdkafka_mock.h>

#include "runtime.h"
#include "sources/kafka_start.h"

enum {
	PARTITIONS = 3,
	MESSAGES = 4, /* in each */
	PATIENCE_MS = 60000,
	LIST_OFFSETS = 2 /* the request's number */
};

typedef struct world {
	rd_kafka_t *of_mock, *client;
	rd_kafka_mock_cluster_t *mock;
} world;

static rd_kafka_t *client(rd_kafka_type_t type, const char *servers)
{
	char error[512];
	rd_kafka_conf_t *conf = rd_kafka_conf_new();

	if (servers != NULL) {
		assert_int_equal(rd_kafka_conf_set(conf, "bootstrap.servers", servers, error, sizeof error), RD_KAFKA_CONF_OK);
	}
	if (type == RD_KAFKA_CONSUMER) {
		assert_int_equal(rd_kafka_conf_set(conf, "group.id", "g", error, sizeof error), RD_KAFKA_CONF_OK);
	}
	rd_kafka_t *made = rd_kafka_new(type, conf, error, sizeof error);
	assert_non_null(made);
	return made;
}

/* Each partition has a leader of its own; the client has met all of them. */
static int begin(void **state)
{
	static world world;

	world.of_mock = client(RD_KAFKA_PRODUCER, NULL);
	world.mock = rd_kafka_mock_cluster_new(world.of_mock, PARTITIONS);
	assert_int_equal(rd_kafka_mock_topic_create(world.mock, "orders", PARTITIONS, 1), RD_KAFKA_RESP_ERR_NO_ERROR);
	const char *servers = rd_kafka_mock_cluster_bootstraps(world.mock);
	rd_kafka_t *producer = client(RD_KAFKA_PRODUCER, servers);
	for (int i = 0; i < PARTITIONS; i++) {
		assert_int_equal(rd_kafka_mock_partition_set_leader(world.mock, "orders", i, i + 1), 0);
		for (int n = 0; n < MESSAGES; n++) {
			assert_int_equal(rd_kafka_producev(producer, RD_KAFKA_V_TOPIC("orders"), RD_KAFKA_V_PARTITION(i),
			                                   RD_KAFKA_V_VALUE((void *)"m", 1), RD_KAFKA_V_END),
			                 RD_KAFKA_RESP_ERR_NO_ERROR);
		}
	}
	assert_int_equal(rd_kafka_flush(producer, PATIENCE_MS), RD_KAFKA_RESP_ERR_NO_ERROR);
	rd_kafka_destroy(producer);
	world.client = client(RD_KAFKA_CONSUMER, servers);
	for (int i = 0; i < PARTITIONS; i++) {
		int64_t low, high;
		assert_int_equal(rd_kafka_query_watermark_offsets(world.client, "orders", i, &low, &high, PATIENCE_MS),
		                 RD_KAFKA_RESP_ERR_NO_ERROR);
		assert_int_equal(high, MESSAGES);
	}
	*state = &world;
	return 0;
}

static int end(void **state)
{
	world *world = *state;

	rd_kafka_destroy(world->client);
	rd_kafka_mock_cluster_destroy(world->mock);
	rd_kafka_destroy(world->of_mock);
	return 0;
}

static void ask_all(const world *world, int64_t reset, start starts[PARTITIONS], char problem[BROKER_PROBLEM_BYTES])
{
	for (int i = 0; i < PARTITIONS; i++) {
		starts[i] = (start){.topic = "orders", .partition = i, .place = -1};
	}
	starts_ask(world->client, &(start_rules){.reset = reset}, starts, PARTITIONS, problem);
}

static void each_begins_where_the_rule_says(void **state)
{
	start starts[PARTITIONS];
	char problem[BROKER_PROBLEM_BYTES];

	ask_all(*state, RD_KAFKA_OFFSET_BEGINNING, starts, problem);
	for (int i = 0; i < PARTITIONS; i++) {
		assert_int_equal(starts[i].kind, START_ANEW);
		assert_int_equal(starts[i].at, 0);
	}
	ask_all(*state, RD_KAFKA_OFFSET_END, starts, problem);
	for (int i = 0; i < PARTITIONS; i++) {
		assert_int_equal(starts[i].kind, START_ANEW);
		assert_int_equal(starts[i].at, MESSAGES);
	}
	assert_string_equal(problem, "");
}

/* Broken on purpose: asked in one question, none of the three gets an answer. */
static void a_partition_without_a_leader_holds_up_no_other(void **state)
{
	world *world = *state;
	start starts[PARTITIONS];
	char problem[BROKER_PROBLEM_BYTES];

	assert_int_equal(rd_kafka_mock_partition_set_leader(world->mock, "orders", 1, -1), 0);
	ask_all(world, RD_KAFKA_OFFSET_BEGINNING, starts, problem);
	assert_int_equal(starts[0].kind, START_ANEW);
	assert_int_equal(starts[1].kind, START_UNKNOWN);
	assert_int_equal(starts[2].kind, START_ANEW);
	assert_string_equal(problem, "cannot ask where orders/1 begins: it has no leader");
	assert_int_equal(rd_kafka_mock_partition_set_leader(world->mock, "orders", 1, 2), 0);
	ask_all(world, RD_KAFKA_OFFSET_BEGINNING, starts, problem);
	assert_int_equal(starts[1].kind, START_ANEW);
}

/* The time is over for those that were not asked; they are the first next time. */
static void a_broker_that_hangs_holds_up_no_other_for_long(void **state)
{
	world *world = *state;
	start starts[PARTITIONS];
	char problem[BROKER_PROBLEM_BYTES];

	rd_kafka_mock_broker_push_request_error_rtts(world->mock, 1, LIST_OFFSETS, 1, RD_KAFKA_RESP_ERR_NO_ERROR,
	                                             PATIENCE_MS);
	int64_t began_ms = runtime_now_ms();
	ask_all(world, RD_KAFKA_OFFSET_BEGINNING, starts, problem);
	assert_true(runtime_now_ms() - began_ms < PATIENCE_MS / 2);
	assert_int_equal(starts[0].kind, START_UNKNOWN);
	assert_int_equal(starts[1].kind, START_UNASKED);
	/* Who leads what is asked of any broker, perhaps of the one that hangs. */
	starts_ask(world->client, &(start_rules){.reset = RD_KAFKA_OFFSET_BEGINNING}, &starts[1], 2, problem);
	assert_int_equal(starts[1].kind, START_ANEW);
	assert_int_equal(starts[2].kind, START_ANEW);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(each_begins_where_the_rule_says),
	    cmocka_unit_test(a_partition_without_a_leader_holds_up_no_other),
	    cmocka_unit_test(a_broker_that_hangs_holds_up_no_other_for_long),
	};

	return cmocka_run_group_tests(tests, begin, end);
}
