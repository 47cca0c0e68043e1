/* SPDX-License-Identifier: PostgreSQL */
/*
 * lane.h: how the hosts of one sink share its room. Each host that can hang without the others has
 * a lane (sink_class.lane), with the events that are ready for it, and how it answers. A host may
 * have three times as many calls open as are left for others, so that the last is never taken by
 * one that has some. A host that hangs gets nothing more than a call now and then, which tells
 * whether it is back. Schedule and delivery use it; it sends nothing itself.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct event;

typedef struct lane {
	struct lane *next; /* in its bucket */
	uint64_t hash;
	/* the schedule's: what is ready, and the lanes that have something, in turn */
	struct event *ready_first, *ready_last;
	struct lane *turn_before, *turn_after;
	size_t in_flight;
	int64_t silent_ms; /* since when a call waits without any answer; 0: none does */
	int64_t sent_ms;   /* the last call */
	double latency_ms; /* of answers, smoothed */
	bool told;         /* the log says that it hangs */
	char name[];       /* "": the lane of a sink that is one as a whole, without limits */
} lane;

typedef struct lanes lanes;

lanes *lanes_new(void);
void lanes_free(lanes *lanes);
/*
 * The lane of this name, upper and lower case alike; it lives as long as the lanes. Beyond 10,000
 * names several share one. NULL where the name is empty.
 */
lane *lanes_find(lanes *lanes, const char *name);

/* A call went out; the result of one that was sent at sent_ms has come. */
void lane_sent(lane *lane, int64_t now_ms);
/* silent: neither an answer nor a refusal at once. */
void lane_answered(lane *lane, int64_t sent_ms, bool silent, int64_t now_ms);
void lane_withheld(lane *lane, int64_t now_ms);

bool lane_hangs(const lane *lane, int64_t now_ms);
/* May one that hangs be tried? free of `most` calls are not open. */
bool lane_may_try(const lane *lane, size_t free, size_t most, int64_t now_ms);
/* May one that does not hang have one of the `free` calls? */
bool lane_has_room(const lane *lane, size_t free);
