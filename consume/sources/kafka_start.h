/* SPDX-License-Identifier: PostgreSQL */
/*
 * kafka_start.h: where to read a partition whose place is not in its log: the group has no offset
 * (expired, or the partition was never read), the messages after the offset were deleted
 * (retention), or the log is another one (the topic was recreated). librdkafka would go to the
 * beginning or the end without a report. For kafka.c.
 */
#pragma once

#include <stdint.h>

#include <librdkafka/rdkafka.h>

#include "broker.h"

typedef struct start_rules {
	/* of auto.offset.reset: RD_KAFKA_OFFSET_BEGINNING, _END, _INVALID (error) */
	int64_t reset;
	/* A partition does not start over with messages older than this; 0: with any. */
	int64_t remembered_ms;
} start_rules;

typedef enum start_kind {
	START_UNASKED,  /* there was no time left: it must be asked about first */
	START_UNKNOWN,  /* the broker does not tell */
	START_ANEW,     /* at `at`: the partition's beginning, or end */
	START_AFTER,    /* at `at`: messages between `place` and it were deleted, or are skipped */
	START_FORGOTTEN /* not at all: it would begin with messages older than remembered_ms */
} start_kind;

typedef struct start {
	const char *topic;
	int32_t partition;
	int64_t place; /* the offset that is not in the log; below 0: none */
	start_kind kind;
	int64_t at;
} start;

/*
 * Sets kind and at of each. Asks the brokers, each about its own partitions. If they hang, it takes
 * at most 7 seconds. problem: why a partition is START_UNKNOWN; "": none is.
 */
void starts_ask(rd_kafka_t *client, const start_rules *rules, start *starts, int count,
                char problem[BROKER_PROBLEM_BYTES]);
/* Reads auto.offset.reset like librdkafka; NULL: not set, which means `earliest`. */
int64_t starts_reset(const char *value);
