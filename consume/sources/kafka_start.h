/* SPDX-License-Identifier: PostgreSQL */
/*
 * kafka_start.h: where partitions begin that have just become ours. The group's offset says it, and
 * librdkafka asks for that itself. Where there is none (it has expired, or is beyond the end of a
 * topic that was made anew), what the group has had would come again: see starts_ask. For kafka.c.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <librdkafka/rdkafka.h>

#include "broker.h"

typedef struct start_rules {
	/* of auto.offset.reset: RD_KAFKA_OFFSET_BEGINNING, _END, _INVALID (error) */
	int64_t reset;
	/* What is older is not to begin with, where the group has no offset; 0: anything may. */
	int64_t remembered_ms;
} start_rules;

typedef struct start {
	const char *topic; /* the list's */
	int32_t partition;
	int64_t committed; /* the group's offset; below 0: none */
	/* Where to begin instead; below 0: at the group's offset, or as auto.offset.reset has it. */
	int64_t anew;
	bool is_forgotten; /* it would begin with messages older than remembered_ms */
} start;

enum {
	START_ASK_MS = 2000
};
/*
 * Asks the broker about all that are listed; takes START_ASK_MS at most. False: it does not say;
 * problem: for people.
 */
bool starts_ask(rd_kafka_t *client, const start_rules *rules, const rd_kafka_topic_partition_list_t *partitions,
                start *starts, char problem[BROKER_PROBLEM_BYTES]);
/* As librdkafka reads auto.offset.reset; NULL: it is not said, and `earliest`. */
int64_t starts_reset(const char *value);
