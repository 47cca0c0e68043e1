/* SPDX-License-Identifier: PostgreSQL */
/* kafka_start.c: see kafka_start.h. */
#include "kafka_start.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "memory.h"
#include "runtime.h"

enum {
	/* Any broker, about leaders. If it hangs, each partition is asked about separately. */
	WHO_MS = 1000,
	/* One broker; each of a few questions waits behind a fetch that waits for messages. */
	ASK_MS = 3000,
	ALL_MS = 3000, /* after which no other broker is asked */
	LEADERLESS = -1,
	ALONE = -2 /* and below: for a partition whose leader is unknown */
};

int64_t starts_reset(const char *value)
{
	static const struct {
		const char *name;
		int64_t offset;
	} known[] = {
	    {"latest", RD_KAFKA_OFFSET_END},
	    {"largest", RD_KAFKA_OFFSET_END},
	    {"end", RD_KAFKA_OFFSET_END},
	    {"error", RD_KAFKA_OFFSET_INVALID},
	};

	for (size_t i = 0; value != NULL && i < sizeof known / sizeof known[0]; i++) {
		if (strcasecmp(value, known[i].name) == 0) {
			return known[i].offset;
		}
	}
	return RD_KAFKA_OFFSET_BEGINNING;
}

/* The partitions that one broker is asked about. */
typedef struct share {
	rd_kafka_t *client;
	start **starts;
	int count;
	int64_t until_ms;
	char *problem;
} share;

/*
 * The offsets at a time, or of the beginnings or ends. Destroy it; NULL: no answer. A partition
 * with an error has an offset below 0, and is START_UNKNOWN.
 */
static rd_kafka_topic_partition_list_t *ask(const share *share, int64_t what)
{
	rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(share->count);
	int64_t left_ms = share->until_ms - runtime_now_ms();

	for (int i = 0; i < share->count; i++) {
		rd_kafka_topic_partition_list_add(list, share->starts[i]->topic, share->starts[i]->partition)->offset = what;
	}
	rd_kafka_resp_err_t error = rd_kafka_offsets_for_times(share->client, list, left_ms > 1 ? (int)left_ms : 1);
	for (int i = 0; i < share->count; i++) {
		start *start = share->starts[i];
		const rd_kafka_topic_partition_t *found =
		    rd_kafka_topic_partition_list_find(list, start->topic, start->partition);
		rd_kafka_resp_err_t of_one = error != RD_KAFKA_RESP_ERR_NO_ERROR ? error : found->err;
		if (of_one != RD_KAFKA_RESP_ERR_NO_ERROR) {
			start->kind = START_UNKNOWN;
			snprintf(share->problem, BROKER_PROBLEM_BYTES, "cannot ask where %.120s/%" PRId32 " begins: %s",
			         start->topic, start->partition, rd_kafka_err2str(of_one));
		}
	}
	if (error != RD_KAFKA_RESP_ERR_NO_ERROR) {
		rd_kafka_topic_partition_list_destroy(list);
		return NULL;
	}
	return list;
}

static int64_t offset_in(const rd_kafka_topic_partition_list_t *list, const start *start)
{
	return rd_kafka_topic_partition_list_find(list, start->topic, start->partition)->offset;
}

/*
 * Asks whether a message comes before the first that is young enough. If that one is the first of
 * all, later ones were written later, even if their time is earlier: they were applied later too,
 * and are remembered.
 */
static void ask_age(const share *share, const start_rules *rules)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	int64_t young_ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000 - rules->remembered_ms;
	rd_kafka_topic_partition_list_t *first = ask(share, 0);
	rd_kafka_topic_partition_list_t *young = first == NULL ? NULL : ask(share, young_ms > 0 ? young_ms : 0);

	for (int i = 0; young != NULL && i < share->count; i++) {
		start *start = share->starts[i];
		int64_t first_offset = offset_in(first, start), young_offset = offset_in(young, start);
		if (start->kind == START_ANEW && first_offset >= 0 && (young_offset < 0 || young_offset > first_offset)) {
			start->kind = START_FORGOTTEN;
		}
	}
	if (first != NULL) {
		rd_kafka_topic_partition_list_destroy(first);
	}
	if (young != NULL) {
		rd_kafka_topic_partition_list_destroy(young);
	}
}

static void decide(start *start, int64_t first, int64_t at)
{
	if (start->kind != START_UNKNOWN && first >= 0 && at >= 0) {
		start->kind = start->place >= 0 && start->place < first ? START_AFTER : START_ANEW;
		start->at = at;
	}
}

static void ask_share(const share *share, const start_rules *rules)
{
	rd_kafka_topic_partition_list_t *firsts = ask(share, RD_KAFKA_OFFSET_BEGINNING);
	rd_kafka_topic_partition_list_t *ends =
	    firsts != NULL && rules->reset == RD_KAFKA_OFFSET_END ? ask(share, RD_KAFKA_OFFSET_END) : NULL;
	const rd_kafka_topic_partition_list_t *at = rules->reset == RD_KAFKA_OFFSET_END ? ends : firsts;

	for (int i = 0; at != NULL && i < share->count; i++) {
		decide(share->starts[i], offset_in(firsts, share->starts[i]), offset_in(at, share->starts[i]));
	}
	if (at != NULL && rules->reset == RD_KAFKA_OFFSET_BEGINNING && rules->remembered_ms > 0) {
		ask_age(share, rules);
	}
	if (firsts != NULL) {
		rd_kafka_topic_partition_list_destroy(firsts);
	}
	if (ends != NULL) {
		rd_kafka_topic_partition_list_destroy(ends);
	}
}

/* The number of the broker that leads it. */
static int32_t leader_of(const struct rd_kafka_metadata *metadata, const start *start)
{
	for (int t = 0; t < metadata->topic_cnt; t++) {
		const struct rd_kafka_metadata_topic *topic = &metadata->topics[t];
		for (int p = 0; strcmp(topic->topic, start->topic) == 0 && p < topic->partition_cnt; p++) {
			if (topic->partitions[p].id == start->partition) {
				return topic->partitions[p].leader;
			}
		}
	}
	return LEADERLESS;
}

/*
 * A partition without a leader would delay the others in one question, and a broker that hangs
 * those of all brokers.
 */
void starts_ask(rd_kafka_t *client, const start_rules *rules, start *starts, int count,
                char problem[BROKER_PROBLEM_BYTES])
{
	const struct rd_kafka_metadata *metadata = NULL;

	problem[0] = '\0';
	rd_kafka_resp_err_t error = rd_kafka_metadata(client, 0, NULL, &metadata, WHO_MS);
	int32_t *leaders = memory_take((size_t)count * sizeof *leaders);
	start **asked = memory_take((size_t)count * sizeof(start *));
	for (int i = 0; i < count; i++) {
		starts[i].kind = START_UNASKED;
		leaders[i] = error == RD_KAFKA_RESP_ERR_NO_ERROR ? leader_of(metadata, &starts[i]) : ALONE - i;
		if (leaders[i] == LEADERLESS) {
			starts[i].kind = START_UNKNOWN;
			snprintf(problem, BROKER_PROBLEM_BYTES, "cannot ask where %.120s/%" PRId32 " begins: it has no leader",
			         starts[i].topic, starts[i].partition);
		}
	}
	int64_t until_ms = runtime_now_ms() + ALL_MS;
	for (int i = 0; i < count && runtime_now_ms() < until_ms; i++) {
		share share = {.client = client, .starts = asked, .until_ms = runtime_now_ms() + ASK_MS, .problem = problem};
		for (int j = i; starts[i].kind == START_UNASKED && j < count; j++) {
			if (starts[j].kind == START_UNASKED && leaders[j] == leaders[i]) {
				asked[share.count++] = &starts[j];
			}
		}
		if (share.count > 0) {
			ask_share(&share, rules);
		}
	}
	if (metadata != NULL) {
		rd_kafka_metadata_destroy(metadata);
	}
	free(leaders);
	free(asked);
}
