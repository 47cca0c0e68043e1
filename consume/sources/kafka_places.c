/* SPDX-License-Identifier: PostgreSQL */
/*
 * kafka_places.c: finds a start for each partition whose place is not in the log (kafka_start.h
 * says which), logs it, and has the partition read from there. See kafka_source.h.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kafka_source.h"
#include "memory.h"

enum {
	ASK_AGAIN_MS = 3000, /* between two questions where a partition begins */
	LEAD_MS = 5000       /* see lead_again */
};

bool kafka_is_incremental(const source *source)
{
	const char *protocol = rd_kafka_rebalance_protocol(source->client);

	return protocol != NULL && strcmp(protocol, "COOPERATIVE") == 0;
}

void kafka_lead_messages(source *source, const char *topic, int32_t partition)
{
	rd_kafka_queue_t *queue = rd_kafka_queue_get_partition(source->client, topic, partition);

	if (queue != NULL) {
		rd_kafka_queue_forward(queue, source->messages);
		rd_kafka_queue_destroy(queue);
	}
}

static const char *group_of(const source *source)
{
	return source->settings.group == NULL ? source->section->name : source->settings.group;
}

void kafka_say_refused(const source *source, const progress *progress, char problem[BROKER_PROBLEM_BYTES])
{
	snprintf(problem, BROKER_PROBLEM_BYTES,
	         "%.100s is not read: the group's offset is missing or not in the log, and %s", progress->part,
	         source->rules.reset == RD_KAFKA_OFFSET_INVALID ? "kafka.auto.offset.reset is error"
	                                                        : "the inbox may have forgotten the first messages");
}

static void refuse(source *source, progress *progress)
{
	char problem[BROKER_PROBLEM_BYTES], group[RUNTIME_QUOTE_BYTES], quoted[RUNTIME_QUOTE_BYTES];

	progress->state = PROGRESS_REFUSED;
	kafka_say_refused(source, progress, problem);
	runtime_log(source->speaker, RUNTIME_ERROR, "refused",
	            "topic=%s partition=%" PRId32 " offset=%" PRId64
	            " group=%s problem=%s hint=\"set the group's offset%s\"",
	            progress->topic, progress->partition, progress->place, runtime_quote(group_of(source), group),
	            runtime_quote(problem, quoted),
	            source->rules.reset == RD_KAFKA_OFFSET_INVALID ? "" : ", or say forgotten = apply");
}

void kafka_lose_place(source *source, const rd_kafka_message_t *message)
{
	progress *progress = progress_find(source->progress, rd_kafka_topic_name(message->rkt), message->partition);

	if (progress == NULL) {
		return;
	}
	progress->place = message->offset >= 0 ? message->offset : -1;
	if (source->rules.reset == RD_KAFKA_OFFSET_INVALID) {
		refuse(source, progress);
	} else {
		progress->state = PROGRESS_PLACELESS;
		progress->placeless_ms = runtime_now_ms();
		source->placeless = true;
	}
}

/* Commits the group's offset at once, so that the next start knows where this one began. */
static void begin_anew(source *source, const start *start)
{
	char group[RUNTIME_QUOTE_BYTES];

	kafka_want(source->wanted, start->topic, start->partition, start->at);
	runtime_log(source->speaker, start->place < 0 ? RUNTIME_INFO : RUNTIME_WARNING, "begun",
	            "topic=%s partition=%" PRId32 " offset=%" PRId64 " group=%s hint=\"the group's offset %s\"",
	            start->topic, start->partition, start->at, runtime_quote(group_of(source), group),
	            start->place < 0 ? "was missing" : "was not in the log: the topic was made anew, or its log was cut");
}

/*
 * The group's offset moves past them, so that the next start does not report them again. The count
 * is an upper limit: in a topic that is compacted or written by transactions some offsets have no
 * message.
 */
static void say_unread(source *source, const start *start)
{
	int64_t offset = kafka_lowest(&source->out, start->topic, start->partition, start->at);

	source->unread += (uint64_t)(start->at - start->place);
	runtime_log(source->speaker, RUNTIME_ERROR, "lost-to-retention",
	            "topic=%s partition=%" PRId32 " from=%" PRId64 " to=%" PRId64 " count=%" PRId64
	            " hint=\"the broker deleted them before this group had read them\"",
	            start->topic, start->partition, start->place, start->at, start->at - start->place);
	kafka_want(source->wanted, start->topic, start->partition,
	           kafka_lowest(&source->held, start->topic, start->partition, offset));
}

/*
 * Starts reading the found partitions again, at the offset set by settle. Without incremental
 * assignment all partitions are assigned again: the others go on after the last message taken, and
 * the client drops what it has fetched of them.
 */
static void read_again(source *source)
{
	bool incremental = kafka_is_incremental(source);
	rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(16);

	for (progress *each = source->progress; each != NULL; each = each->next) {
		if (each->state == PROGRESS_FOUND || (each->state == PROGRESS_READ && !incremental)) {
			each->state = PROGRESS_READ;
			each->is_led = false;
			rd_kafka_topic_partition_list_add(list, each->topic, each->partition)->offset =
			    each->after >= 0 ? each->after : RD_KAFKA_OFFSET_INVALID;
		}
	}
	if (incremental) {
		rd_kafka_error_destroy(rd_kafka_incremental_unassign(source->client, list));
		rd_kafka_error_destroy(rd_kafka_incremental_assign(source->client, list));
	} else {
		rd_kafka_assign(source->client, list);
	}
	source->leads_again = true;
	source->lead_until_ms = runtime_now_ms() + LEAD_MS;
	rd_kafka_topic_partition_list_destroy(list);
}

/*
 * Some time after read_again the client's thread ends the earlier reading and then forgets the
 * partition's queue. So this repeats for a while, and until a message has come from each.
 */
static void lead_again(source *source)
{
	bool goes_on = runtime_now_ms() < source->lead_until_ms;

	for (const progress *each = source->leads_again ? source->progress : NULL; each != NULL; each = each->next) {
		if (each->state == PROGRESS_READ) {
			kafka_lead_messages(source, each->topic, each->partition);
			goes_on |= !each->is_led;
		}
	}
	source->leads_again = source->leads_again && goes_on;
}

static bool is_due(const progress *progress)
{
	return progress->state == PROGRESS_PLACELESS && runtime_now_ms() >= progress->ask_at_ms;
}

/* True: it must be read from `at` on. */
static bool settle(source *source, const start *start)
{
	progress *progress = progress_find(source->progress, start->topic, start->partition);

	if (start->kind != START_UNASKED) {
		progress->ask_at_ms = runtime_now_ms() + ASK_AGAIN_MS;
	}
	switch (start->kind) {
	case START_ANEW:
		begin_anew(source, start);
		break;
	case START_AFTER:
		say_unread(source, start);
		break;
	case START_FORGOTTEN:
		refuse(source, progress);
		return false;
	default:
		return false;
	}
	progress->state = PROGRESS_FOUND;
	progress->after = start->at;
	return true;
}

void kafka_say_trouble(source *source, const char *problem)
{
	char quoted[RUNTIME_QUOTE_BYTES];

	snprintf(source->trouble, sizeof source->trouble, "%s", problem);
	runtime_log(source->speaker, RUNTIME_WARNING, "trouble", "problem=%s", runtime_quote(source->trouble, quoted));
}

/* For the partitions that are due: each once per ASK_AGAIN_MS. */
static void ask_places(source *source)
{
	char problem[BROKER_PROBLEM_BYTES];
	int due = 0, count = 0;
	bool placeless = false;

	for (const progress *each = source->placeless ? source->progress : NULL; each != NULL; each = each->next) {
		placeless |= each->state == PROGRESS_PLACELESS;
		due += is_due(each);
	}
	source->placeless = placeless;
	if (due == 0) {
		return;
	}
	start *starts = memory_take((size_t)due * sizeof *starts);
	for (progress *each = source->progress; each != NULL && count < due; each = each->next) {
		if (is_due(each)) {
			starts[count++] = (start){.topic = each->topic, .partition = each->partition, .place = each->place};
		}
	}
	starts_ask(source->client, &source->rules, starts, count, problem);
	if (problem[0] != '\0' && strcmp(problem, source->trouble) != 0) {
		kafka_say_trouble(source, problem);
	}
	bool found = false;
	for (int i = 0; i < count; i++) {
		found |= settle(source, &starts[i]);
	}
	if (found) {
		kafka_commit_all(source);
		read_again(source);
	}
	free(starts);
}

void kafka_find_places(source *source)
{
	ask_places(source);
	lead_again(source);
}
