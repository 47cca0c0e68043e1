/* SPDX-License-Identifier: PostgreSQL */
/*
 * schedule.h: which event may be handed to the sink next. Events of one aggregate stand in a chain,
 * in their order; an event without an aggregate is a chain of its own. One event of a chain is out
 * at a time. Those that are ready wait in the lane of their host (lane.h), and lanes take turns. It
 * knows neither SQL nor sinks.
 *
 * Marks: an aggregate is marked when an event of it is parked, since a read that was asked for
 * before the parking is committed does not tell that later ones are blocked by it. Reads are
 * numbered; a mark holds for all reads up to its number.
 */
#pragma once

#include "event.h"
#include "lane.h"

typedef struct schedule schedule;

schedule *schedule_new(void);
/* Frees the schedule and the events that are not in flight. */
void schedule_free(schedule *schedule);

/* Appends to the end of its aggregate's chain. */
void schedule_add(schedule *schedule, event *event);
/*
 * The next event for the sink, now in flight: of the lane whose turn it is and that may have one of
 * the `room` places that are free. NULL: there is none.
 */
event *schedule_next(schedule *schedule, size_t room);
/* It was not taken, or the sink is away: ready again, before all later ones. */
void schedule_put_back(schedule *schedule, event *event);
/* Takes an event out (delivered, or parked); the one behind it is ready. */
void schedule_remove(schedule *schedule, event *event);
/*
 * Takes an event out together with all of its chain that are not in flight; those are returned as a
 * list, in their order.
 */
event *schedule_remove_chain(schedule *schedule, event *event);
/* Takes all events out; those not in flight are returned as a list. Marks go too. */
event *schedule_clear(schedule *schedule);

/* Has its aggregate events here that another read brought? */
bool schedule_busy(schedule *schedule, const event *event);
/* Marks the event's aggregate as parked for the reads up to number `fetch`. */
void schedule_mark(schedule *schedule, const event *event, uint64_t fetch);
/* Was an event of its aggregate parked that this event's read could not know of? */
bool schedule_marked(schedule *schedule, const event *event);
/* Forgets the marks for reads before number `fetch`: none of those is to come. */
void schedule_forget_marks(schedule *schedule, uint64_t fetch);

bool schedule_has_ready(const schedule *schedule);
/* The lanes with something ready: the first, and by turn_after. */
lane *schedule_turns(const schedule *schedule);
/* Besides those in flight. */
size_t schedule_waiting(const schedule *schedule);
size_t schedule_chains(const schedule *schedule); /* for tests: that nothing is left behind */
