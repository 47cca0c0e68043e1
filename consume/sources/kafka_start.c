/* SPDX-License-Identifier: PostgreSQL */
/* kafka_start.c: see kafka_start.h. */
#include "kafka_start.h"

#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <time.h>

#include "runtime.h"

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

static int left_ms(int64_t until_ms)
{
	int64_t left_ms = until_ms - runtime_now_ms();

	return left_ms > 1 ? (int)left_ms : 1;
}

/* To ask about: all, or those alone that begin anew. */
static rd_kafka_topic_partition_list_t *list_of(const start *starts, int count, bool all, int64_t what)
{
	rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(count);

	for (int i = 0; i < count; i++) {
		if (all || starts[i].committed < 0) {
			rd_kafka_topic_partition_list_add(list, starts[i].topic, starts[i].partition)->offset = what;
		}
	}
	return list;
}

static int64_t offset_in(const rd_kafka_topic_partition_list_t *list, const start *start)
{
	return rd_kafka_topic_partition_list_find(list, start->topic, start->partition)->offset;
}

static bool say(rd_kafka_resp_err_t error, const rd_kafka_topic_partition_list_t *list,
                char problem[BROKER_PROBLEM_BYTES])
{
	const char *topic = NULL;

	for (int i = 0; error == RD_KAFKA_RESP_ERR_NO_ERROR && i < list->cnt; i++) {
		error = list->elems[i].err;
		topic = list->elems[i].topic;
	}
	if (error != RD_KAFKA_RESP_ERR_NO_ERROR) {
		snprintf(problem, BROKER_PROBLEM_BYTES, "cannot ask where the group is%s%.120s: %s",
		         topic == NULL ? "" : " in ", topic == NULL ? "" : topic, rd_kafka_err2str(error));
	}
	return error == RD_KAFKA_RESP_ERR_NO_ERROR;
}

/*
 * The offsets of a time, or of the partitions' begin or end, of those that begin anew. To be
 * destroyed; NULL: no answer for one.
 */
static rd_kafka_topic_partition_list_t *ask(rd_kafka_t *client, const start *starts, int count, int64_t what,
                                            int64_t until_ms, char problem[BROKER_PROBLEM_BYTES])
{
	rd_kafka_topic_partition_list_t *list = list_of(starts, count, false, what);
	rd_kafka_resp_err_t error = RD_KAFKA_RESP_ERR_NO_ERROR;

	if (list->cnt > 0) {
		error = rd_kafka_offsets_for_times(client, list, left_ms(until_ms));
	}
	if (say(error, list, problem)) {
		return list;
	}
	rd_kafka_topic_partition_list_destroy(list);
	return NULL;
}

static bool ask_committed(rd_kafka_t *client, start *starts, int count, int64_t until_ms,
                          char problem[BROKER_PROBLEM_BYTES])
{
	rd_kafka_topic_partition_list_t *list = list_of(starts, count, true, RD_KAFKA_OFFSET_INVALID);
	bool good = say(rd_kafka_committed(client, list, left_ms(until_ms)), list, problem);

	for (int i = 0; good && i < count; i++) {
		starts[i].committed = offset_in(list, &starts[i]);
	}
	rd_kafka_topic_partition_list_destroy(list);
	return good;
}

/*
 * An offset beyond the end is of another log: of a topic that was deleted, of a leader that is
 * gone. The client would go to the begin. A partition that does not answer keeps its offset.
 */
static void drop_strange(rd_kafka_t *client, start *starts, int count, int64_t until_ms)
{
	rd_kafka_topic_partition_list_t *ends = list_of(starts, count, true, RD_KAFKA_OFFSET_END);

	if (rd_kafka_offsets_for_times(client, ends, left_ms(until_ms)) == RD_KAFKA_RESP_ERR_NO_ERROR) {
		for (int i = 0; i < count; i++) {
			const rd_kafka_topic_partition_t *end =
			    rd_kafka_topic_partition_list_find(ends, starts[i].topic, starts[i].partition);
			if (end->err == RD_KAFKA_RESP_ERR_NO_ERROR && end->offset >= 0 && starts[i].committed > end->offset) {
				starts[i].committed = RD_KAFKA_OFFSET_INVALID;
			}
		}
	}
	rd_kafka_topic_partition_list_destroy(ends);
}

/*
 * Does a message come before the first that is young enough? Where that is the first of all, what
 * follows was written later, whatever time it bears: it was applied later, too, and is remembered.
 */
static bool ask_age(rd_kafka_t *client, const start_rules *rules, start *starts, int count, int64_t until_ms,
                    char problem[BROKER_PROBLEM_BYTES])
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	int64_t young_ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000 - rules->remembered_ms;
	rd_kafka_topic_partition_list_t *first = ask(client, starts, count, 0, until_ms, problem);
	rd_kafka_topic_partition_list_t *young =
	    first == NULL ? NULL : ask(client, starts, count, young_ms > 0 ? young_ms : 0, until_ms, problem);

	for (int i = 0; young != NULL && i < count; i++) {
		if (starts[i].committed < 0) {
			int64_t first_offset = offset_in(first, &starts[i]), young_offset = offset_in(young, &starts[i]);
			starts[i].is_forgotten = first_offset >= 0 && (young_offset < 0 || young_offset > first_offset);
		}
	}
	bool good = young != NULL;
	if (first != NULL) {
		rd_kafka_topic_partition_list_destroy(first);
	}
	if (young != NULL) {
		rd_kafka_topic_partition_list_destroy(young);
	}
	return good;
}

bool starts_ask(rd_kafka_t *client, const start_rules *rules, const rd_kafka_topic_partition_list_t *partitions,
                start *starts, char problem[BROKER_PROBLEM_BYTES])
{
	int64_t until_ms = runtime_now_ms() + START_ASK_MS;
	int count = partitions->cnt;
	bool guards = rules->reset == RD_KAFKA_OFFSET_BEGINNING && rules->remembered_ms > 0;

	for (int i = 0; i < count; i++) {
		starts[i] = (start){.topic = partitions->elems[i].topic,
		                    .partition = partitions->elems[i].partition,
		                    .committed = RD_KAFKA_OFFSET_INVALID,
		                    .anew = RD_KAFKA_OFFSET_INVALID};
	}
	if (count == 0) {
		return true;
	}
	if (!ask_committed(client, starts, count, until_ms, problem)) {
		return false;
	}
	if (guards) {
		drop_strange(client, starts, count, until_ms);
	}
	if (rules->reset == RD_KAFKA_OFFSET_INVALID) {
		return true;
	}
	rd_kafka_topic_partition_list_t *begins = ask(client, starts, count, rules->reset, until_ms, problem);
	for (int i = 0; begins != NULL && i < count; i++) {
		if (starts[i].committed < 0) {
			starts[i].anew = offset_in(begins, &starts[i]);
		}
	}
	bool good = begins != NULL && (!guards || ask_age(client, rules, starts, count, until_ms, problem));
	if (begins != NULL) {
		rd_kafka_topic_partition_list_destroy(begins);
	}
	return good;
}
