/* SPDX-License-Identifier: PostgreSQL */
/*
 * pace.c: how many connections a batcher uses, and how long it gathers operations, by the time that
 * a commit takes. Two connections are best where that is a fraction of a millisecond: more of them
 * have smaller batches. On a slow disk (cloud volumes take 1 to 5 ms) an operation waits for its
 * connection, then for the sync of another's commit, then for its own; on more connections all that
 * wait share the next sync. Pure: the caller has the clock.
 */
#include "evented.h"

enum {
	SAMPLES = 64,          /* batches that a decision takes, */
	WINDOW_MS = 500,       /* and at least this long; */
	WINDOW_MS_MAX = 30000, /* one with fewer batches by then needs no connection more than two */
	/* Of a batch's time: what the server's CPU spends on an operation, not its disk. */
	OPERATION_US = 40,
	SLOW_US = 1500, /* one connection more above this, */
	FAST_US = 1000, /* one less below this */
	/* The same for the average operations of a batch: a lone client waits for no other. */
	MANY = 3,
	FEW = 2,
	GATHER_PARTS = 4 /* of a commit's time, one: how long is gathered */
};

void pace_start(pace *pace, int64_t now_ms)
{
	*pace = (struct pace){.connections = CORE_WIRES, .opened_ms = now_ms, .shortest_us = INT64_MAX};
}

void pace_took(pace *pace, int64_t took_us, size_t operations)
{
	/* The shortest: a sync takes at least this long; other things make the others longer. */
	int64_t own_us = took_us - OPERATION_US * (int64_t)operations;
	pace->shortest_us = own_us < pace->shortest_us ? own_us : pace->shortest_us;
	pace->operations += operations;
	pace->batches++;
}

int pace_decide(const pace *pace, int most)
{
	int connections = pace->connections;
	if (pace->batches < SAMPLES || pace->shortest_us < FAST_US || pace->operations < FEW * pace->batches) {
		connections--;
	} else if (pace->shortest_us >= SLOW_US && pace->operations >= MANY * pace->batches) {
		connections++;
	}
	connections = connections > most ? most : connections;
	return connections < CORE_WIRES ? CORE_WIRES : connections;
}

bool pace_turn(pace *pace, int most, int64_t now_ms)
{
	int64_t age_ms = now_ms - pace->opened_ms;
	if (age_ms < WINDOW_MS || (pace->batches < SAMPLES && age_ms < WINDOW_MS_MAX)) {
		return false;
	}
	struct pace next = {.connections = pace_decide(pace, most),
	                    .opened_ms = now_ms,
	                    .shortest_us = INT64_MAX,
	                    .commit_us = pace->batches > 0 ? pace->shortest_us : pace->commit_us};
	*pace = next;
	return true;
}

int64_t pace_due(const pace *pace)
{
	return pace->connections > CORE_WIRES ? pace->opened_ms + WINDOW_MS_MAX : ONCE_NEVER;
}

int64_t pace_gather_ms(const pace *pace)
{
	return pace->connections > CORE_WIRES ? 1 + pace->commit_us / (INT64_C(1000) * GATHER_PARTS) : 0;
}
