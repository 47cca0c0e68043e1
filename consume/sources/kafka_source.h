/* SPDX-License-Identifier: PostgreSQL */
/*
 * kafka_source.h: a member of a consumer group, as the files of this source share it. kafka.c has
 * the group, the messages and the interface; kafka_commit.c commits; kafka_places.c finds where a
 * partition begins whose place is not in its log. For these three alone.
 */
#pragma once

#include "delivery.h"
#include "kafka.h"
#include "kafka_producer.h"
#include "kafka_progress.h"
#include "kafka_start.h"
#include "kafka_watchdog.h"

typedef struct kafka_settings {
	kafka_options kafka; /* first */
	const char *topics, *group;
	int64_t forgotten, stalled_ms;
} kafka_settings;

struct source {
	const speaker *speaker;
	const config *config;
	const config_section *section;
	kafka_settings settings;
	source_bounds bounds;
	rd_kafka_t *client;
	kafka_watch watch;
	rd_kafka_queue_t *messages;                    /* of all partitions that are ours */
	rd_kafka_queue_t *answers;                     /* of commits */
	bool committing;                               /* one is on its way */
	int64_t commit_at_ms;                          /* not before */
	rd_kafka_topic_partition_list_t *wanted;       /* to be committed */
	rd_kafka_topic_partition_list_t *acknowledged; /* of one call */
	delivery_list out, held;
	uint64_t serial;
	progress *progress;
	watchdog watchdog;
	int assigned; /* partitions */
	start_rules rules;
	bool placeless;   /* one of them may be PROGRESS_PLACELESS */
	bool leads_again; /* one of them may not be led to `messages` */
	int64_t lead_until_ms;
	uint64_t unread; /* messages that were deleted before they were read, and not told yet */
	bool lost;
	int64_t checked_ms;
	char trouble[BROKER_PROBLEM_BYTES]; /* why there may be no partitions; "" none */
	kafka_producer producer;            /* of dead messages */
};

/* A trouble that lasts until partitions are assigned, or a message comes. */
void kafka_say_trouble(source *source, const char *problem);

/* ---- kafka_commit.c ---- */
/*
 * The offset up to which a partition may be committed: `offset`, or that of the lowest message that
 * is in the list still.
 */
int64_t kafka_lowest(const delivery_list *list, const char *topic, int32_t partition, int64_t offset);
/* The offset must be committed, unless a higher one must. */
void kafka_want(rd_kafka_topic_partition_list_t *wanted, const char *topic, int32_t partition, int64_t offset);
/* The answer of the commit that is on its way, if it comes within the time. */
void kafka_take_answer(source *source, int timeout_ms);
/* Sends what is wanted, unless a commit is on its way. */
void kafka_commit(source *source);
/* As far as that can be had in five seconds; what cannot is delivered again. */
void kafka_commit_all(source *source);

/* ---- kafka_places.c ---- */
bool kafka_is_incremental(const source *source);
/* When it is taken away librdkafka forgets where its messages go; so this is for each time. */
void kafka_lead_messages(source *source, const char *topic, int32_t partition);
/* The client has stopped to read the message's partition, and all that it had fetched was taken. */
void kafka_lose_place(source *source, const rd_kafka_message_t *message);
/* To be called again and again: asks about those that have lost it, and has them read. */
void kafka_find_places(source *source);
/* Of a partition that is not read at all. */
void kafka_say_refused(const source *source, const progress *progress, char problem[BROKER_PROBLEM_BYTES]);
