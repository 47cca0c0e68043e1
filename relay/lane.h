/* SPDX-License-Identifier: PostgreSQL */
/*
 * lane.h: how the hosts of one sink share its calls. Each host that can hang separately has a lane
 * (sink_class.lane), with the events that are ready for it and how fast it answers. A host may have
 * three times as many open calls as remain free, so a host with open calls never takes the last
 * one. A host that hangs only gets a call now and then, which shows whether it is back. The
 * schedule and the delivery use it; it sends nothing.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct event;

typedef struct lane {
	struct lane *next; /* in its bucket */
	uint64_t hash;
	/* the schedule's: ready events, and the lanes that have some, in turn */
	struct event *ready_first, *ready_last;
	struct lane *turn_before, *turn_after;
	size_t in_flight;
	int64_t silent_ms; /* since when a call has waited without any answer; 0: no call waits */
	int64_t sent_ms;   /* the last call */
	double latency_ms; /* of answers, smoothed */
	bool told;         /* the log says that it hangs */
	char name[];       /* "": the only lane of a sink that has no hosts; without limits */
} lane;

typedef struct lanes lanes;

lanes *lanes_new(void);
void lanes_free(lanes *lanes);
/*
 * The lane with this name, in any letter case; it lives as long as the lanes. Beyond 10,000 names,
 * several share a lane. NULL: the name is empty.
 */
lane *lanes_find(lanes *lanes, const char *name);

/* A call was sent; the result of the call sent at sent_ms has come. */
void lane_sent(lane *lane, int64_t now_ms);
/* silent: there was no answer and no immediate refusal. */
void lane_answered(lane *lane, int64_t sent_ms, bool silent, int64_t now_ms);
void lane_withheld(lane *lane, int64_t now_ms);

bool lane_hangs(const lane *lane, int64_t now_ms);
/* True: a hanging host may be tried. `free` of `most` calls are not open. */
bool lane_may_try(const lane *lane, size_t free, size_t most, int64_t now_ms);
/* True: a host that does not hang may have one of the `free` calls. */
bool lane_has_room(const lane *lane, size_t free);
