/* SPDX-License-Identifier: PostgreSQL */
/*
 * schedule.h: which event may be handed to the sink next. The events of an aggregate form a chain,
 * in their order; an event without an aggregate is a separate chain. One event of a chain is out at
 * a time. Ready events wait in the lane of their host (lane.h), and lanes take turns. It knows
 * neither SQL nor sinks.
 *
 * Marks: an aggregate is marked when one of its events is parked, since a read that began before
 * the parking was committed does not show that later events are blocked. Reads are numbered; a mark
 * holds for all reads up to its number.
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
 * The next event for the sink, now in flight: from the next lane that may have one of the `room`
 * free places. NULL: no event may go.
 */
event *schedule_next(schedule *schedule, size_t room);
/* The sink did not take it: ready again, before all later ones. */
void schedule_put_back(schedule *schedule, event *event);
/*
 * The sink was away, or hangs on this event: ready again, behind all that are ready in its lane.
 * Later events of its aggregate still wait for it.
 */
void schedule_put_last(schedule *schedule, event *event);
/* Removes an event (delivered or parked); the one behind it is ready. */
void schedule_remove(schedule *schedule, event *event);
/*
 * Removes an event, and all events of its chain that are not in flight: these are returned as a
 * list, in their order.
 */
event *schedule_remove_chain(schedule *schedule, event *event);
/* Removes all events and marks; events that are not in flight are returned as a list. */
event *schedule_clear(schedule *schedule);

/* True: its aggregate has events here from another read. */
bool schedule_busy(schedule *schedule, const event *event);
/* Marks the event's aggregate as parked for the reads up to number `fetch`. */
void schedule_mark(schedule *schedule, const event *event, uint64_t fetch);
/* True: an event of its aggregate was parked that this event's read could not see. */
bool schedule_marked(schedule *schedule, const event *event);
/* Forgets the marks for reads before number `fetch`: they are all over. */
void schedule_forget_marks(schedule *schedule, uint64_t fetch);

bool schedule_has_ready(const schedule *schedule);
/* The first lane with ready events; the others follow by turn_after. */
lane *schedule_turns(const schedule *schedule);
/* Without those in flight. */
size_t schedule_waiting(const schedule *schedule);
size_t schedule_chains(const schedule *schedule); /* for tests: chains that remain */
