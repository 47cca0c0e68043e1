/* SPDX-License-Identifier: PostgreSQL */
/*
 * kafka_start.h: where to read a partition whose place is not in its log: the group has no offset
 * (it has expired, or nobody has read the partition yet), what follows the offset was deleted
 * (retention), or the log is another one (the topic was made anew). librdkafka would go to the
 * begin or the end, and say nothing. For kafka.c.
 */
#pragma once

#include <stdint.h>

#include <librdkafka/rdkafka.h>

#include "broker.h"

typedef struct start_rules {
	/* of auto.offset.reset: RD_KAFKA_OFFSET_BEGINNING, _END, _INVALID (error) */
	int64_t reset;
	/* With messages that are older a partition does not begin anew; 0: with any. */
	int64_t remembered_ms;
} start_rules;

typedef enum start_kind {
	START_UNASKED,  /* there was no time left: it is to be asked about first */
	START_UNKNOWN,  /* the broker does not say */
	START_ANEW,     /* at `at`: where the partition begins, or ends */
	START_AFTER,    /* at `at`: what was between `place` and it was deleted, or is skipped */
	START_FORGOTTEN /* not at all: it would begin with messages older than remembered_ms */
} start_kind;

typedef struct start {
	const char *topic;
	int32_t partition;
	int64_t place; /* the offset that is not in the log; below 0: there is none */
	start_kind kind;
	int64_t at;
} start;

/*
 * Sets kind and at of each. Asks the brokers, each about its own. If they hang, it takes 7 seconds
 * at most. problem: why one is START_UNKNOWN; "" none is.
 */
void starts_ask(rd_kafka_t *client, const start_rules *rules, start *starts, int count,
                char problem[BROKER_PROBLEM_BYTES]);
/* As librdkafka reads auto.offset.reset; NULL: it is not said, and `earliest`. */
int64_t starts_reset(const char *value);
