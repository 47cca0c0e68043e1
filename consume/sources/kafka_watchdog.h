/* SPDX-License-Identifier: PostgreSQL */
/*
 * kafka_watchdog.h: notices a partition that has messages and gives none. Of one that gave nothing
 * for a while the broker is asked where it ends. If that is above what was read, and what was
 * fetched since then brings nothing of it, it is stalled. Used by kafka.c alone.
 */
#pragma once

#include "kafka_progress.h"
#include "stall.h"

typedef struct watchdog {
	int64_t after_ms; /* so long a partition may give nothing; the rest is the watchdog's own */
	wait_clock clock;
	int64_t asked_ms; /* on the clock: when ends were asked for last */
	/* A round is over when all is taken that was fetched at its beginning. */
	uint64_t rounds;
	size_t ahead; /* so much is left in this one */
} watchdog;

/* A message was read, or the partition's end seen: the next has that offset. NULL: not ours. */
void watchdog_read(watchdog *watchdog, progress *progress, int64_t offset);
/*
 * To be called whenever messages were waited for; `fetched`: so many are not taken yet. May ask the
 * broker, once in half of after_ms, for a second at most.
 */
void watchdog_look(watchdog *watchdog, progress *list, rd_kafka_t *client, size_t fetched);
/* Is one stalled? Then `problem` says which, and how many more are. */
bool watchdog_stalled(const watchdog *watchdog, const progress *list, char *problem, size_t bytes);
