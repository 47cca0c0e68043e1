/* SPDX-License-Identifier: PostgreSQL */
/*
 * kafka_commit.c: commits the offsets of acknowledged messages, one commit at a time, without
 * waiting for its answer: a lost commit only causes redeliveries. See kafka_source.h.
 */
#include <string.h>

#include "kafka_source.h"

enum {
	/* time limit of a commit that is waited for: when a partition goes, and at the end */
	COMMIT_MS = 5000,
	REPEAT_MS = 1000 /* before a failed commit is retried */
};

static bool is_of(const delivery *delivery, const char *topic, int32_t partition)
{
	return delivery->partition == partition && strcmp(delivery->message.topic, topic) == 0;
}

int64_t kafka_lowest(const delivery_list *list, const char *topic, int32_t partition, int64_t offset)
{
	for (const delivery *each = list->first; each != NULL; each = each->next) {
		if (!each->is_void && is_of(each, topic, partition) && each->sequence < offset) {
			offset = each->sequence;
		}
	}
	return offset;
}

void kafka_want(rd_kafka_topic_partition_list_t *wanted, const char *topic, int32_t partition, int64_t offset)
{
	rd_kafka_topic_partition_t *row = rd_kafka_topic_partition_list_find(wanted, topic, partition);

	if (row == NULL) {
		row = rd_kafka_topic_partition_list_add(wanted, topic, partition);
		row->offset = offset;
	} else if (row->offset < offset) {
		row->offset = offset;
	}
}

/*
 * Failed offsets are committed again, unless a higher one is wanted meanwhile or the partition is
 * no longer ours.
 */
static void commit_failed(source *source, rd_kafka_event_t *event)
{
	rd_kafka_resp_err_t error = rd_kafka_event_error(event);
	rd_kafka_topic_partition_list_t *failed = rd_kafka_event_topic_partition_list(event);
	char problem[BROKER_PROBLEM_BYTES], quoted[RUNTIME_QUOTE_BYTES];

	kafka_problem(&source->watch, error, problem);
	runtime_log(source->speaker, RUNTIME_WARNING, "commit-failed", "problem=%s", runtime_quote(problem, quoted));
	for (int i = 0; failed != NULL && i < failed->cnt; i++) {
		const rd_kafka_topic_partition_t *each = &failed->elems[i];
		if (progress_find(source->progress, each->topic, each->partition) != NULL) {
			kafka_want(source->wanted, each->topic, each->partition, each->offset);
		}
	}
	source->commit_at_ms = runtime_now_ms() + REPEAT_MS;
}

void kafka_take_answer(source *source, int timeout_ms)
{
	rd_kafka_event_t *event = source->committing ? rd_kafka_queue_poll(source->answers, timeout_ms) : NULL;

	if (event == NULL) {
		return;
	}
	source->committing = false;
	rd_kafka_resp_err_t error = rd_kafka_event_error(event);
	if (error != RD_KAFKA_RESP_ERR_NO_ERROR && error != RD_KAFKA_RESP_ERR__NO_OFFSET) {
		commit_failed(source, event);
	} else {
		progress_committed(source->progress, rd_kafka_event_topic_partition_list(event));
	}
	rd_kafka_event_destroy(event);
}

void kafka_commit(source *source)
{
	kafka_take_answer(source, 0);
	if (source->committing || source->wanted->cnt == 0 || runtime_now_ms() < source->commit_at_ms) {
		return;
	}
	if (rd_kafka_commit_queue(source->client, source->wanted, source->answers, NULL, NULL) ==
	    RD_KAFKA_RESP_ERR_NO_ERROR) {
		source->committing = true;
		progress_sent(source->progress);
		rd_kafka_topic_partition_list_destroy(source->wanted);
		source->wanted = rd_kafka_topic_partition_list_new(16);
	}
}

void kafka_commit_all(source *source)
{
	int64_t until_ms = runtime_now_ms() + COMMIT_MS;

	source->commit_at_ms = 0;
	for (int turns = 0; turns < 2; turns++) {
		kafka_commit(source);
		int64_t left_ms = until_ms - runtime_now_ms();
		kafka_take_answer(source, left_ms > 0 ? (int)left_ms : 0);
	}
}
