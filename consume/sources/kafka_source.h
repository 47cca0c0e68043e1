/* SPDX-License-Identifier: PostgreSQL */
/*
 * kafka_source.h: shared by the files of this source: a member of a consumer group. kafka.c has the
 * group, the messages and the interface; kafka_commit.c commits; kafka_places.c finds where a
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
	rd_kafka_queue_t *messages;                    /* of all our partitions */
	rd_kafka_queue_t *answers;                     /* of commits */
	bool committing;                               /* a commit is in progress */
	int64_t commit_at_ms;                          /* not before */
	rd_kafka_topic_partition_list_t *wanted;       /* to be committed */
	rd_kafka_topic_partition_list_t *acknowledged; /* of one call */
	delivery_list out, held;
	uint64_t serial;
	progress *progress;
	watchdog watchdog;
	int assigned; /* partitions */
	start_rules rules;
	bool placeless;   /* at least one may be PROGRESS_PLACELESS */
	bool leads_again; /* at least one may not feed `messages` */
	int64_t lead_until_ms;
	uint64_t unread; /* messages deleted unread, and not reported yet */
	bool lost;
	int64_t checked_ms;
	char trouble[BROKER_PROBLEM_BYTES]; /* why there may be no partitions; "": no reason */
	kafka_producer producer;            /* for dead messages */
};

/* A problem that lasts until partitions are assigned, or a message comes. */
void kafka_say_trouble(source *source, const char *problem);

/* ---- kafka_commit.c ---- */
/*
 * The offset up to which a partition may be committed: `offset`, or the lowest message still in the
 * list.
 */
int64_t kafka_lowest(const delivery_list *list, const char *topic, int32_t partition, int64_t offset);
/* The offset must be committed, unless a higher one must. */
void kafka_want(rd_kafka_topic_partition_list_t *wanted, const char *topic, int32_t partition, int64_t offset);
/* Takes the answer to the commit in progress, if it comes in time. */
void kafka_take_answer(source *source, int timeout_ms);
/* Sends the noted offsets, unless a commit is in progress. */
void kafka_commit(source *source);
/* As far as possible within five seconds; the rest is delivered again. */
void kafka_commit_all(source *source);

/* ---- kafka_places.c ---- */
bool kafka_is_incremental(const source *source);
/* Call it for each assignment: librdkafka forgets a partition's queue when the partition is taken
 * away. */
void kafka_lead_messages(source *source, const char *topic, int32_t partition);
/* The client has stopped reading the message's partition, and everything it had fetched was
 * taken. */
void kafka_lose_place(source *source, const rd_kafka_message_t *message);
/* Call it repeatedly: asks about partitions that have lost their place, and starts reading them. */
void kafka_find_places(source *source);
/* Describes a partition that is not read at all. */
void kafka_say_refused(const source *source, const progress *progress, char problem[BROKER_PROBLEM_BYTES]);
