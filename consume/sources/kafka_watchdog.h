/* SPDX-License-Identifier: PostgreSQL */
/*
 * kafka_watchdog.h: notices a partition that has messages but delivers none. If a partition
 * delivered nothing for a while, the broker is asked for its end. If that is above what was read,
 * and later fetches bring none of it, the partition is stalled. Used by kafka.c alone.
 */
#pragma once

#include "kafka_progress.h"
#include "stall.h"

typedef struct watchdog {
	int64_t after_ms; /* how long a partition may deliver nothing; the other fields are private */
	wait_clock clock;
	int64_t asked_ms; /* on the clock: when ends were last asked for */
	/* A round is over when everything fetched at its beginning is taken. */
	uint64_t rounds;
	size_t ahead; /* how many are left in this round */
} watchdog;

/* A message was read, or the partition's end seen: this is the next offset. NULL: not ours. */
void watchdog_read(watchdog *watchdog, progress *progress, int64_t offset);
/*
 * Call it whenever messages were waited for; `fetched`: how many are not taken yet. May ask the
 * broker, once per half of after_ms, for at most a second.
 */
void watchdog_look(watchdog *watchdog, progress *list, rd_kafka_t *client, size_t fetched);
/* True: one is stalled; `problem` says which, and how many more. */
bool watchdog_stalled(const watchdog *watchdog, const progress *list, char *problem, size_t bytes);
