/* SPDX-License-Identifier: PostgreSQL */
/*
 * schedule.c: see schedule.h. A hash table of chains, and a list of lanes, each with a list of its
 * ready events. A chain without events and mark is removed at once; a lane without ready events
 * leaves the list.
 */
#include "schedule.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "hash.h"
#include "memory.h"

enum {
	BUCKETS_FIRST = 1024
};

typedef struct chain {
	struct chain *next; /* in its bucket */
	uint64_t hash;
	uint64_t mark; /* reads up to this number do not know of a parking; 0: no mark */
	struct chain *mark_before, *mark_after;
	event *first, *last;
	/* The aggregate's name. A NULL type and an empty type differ. */
	bool has_type;
	bool is_event; /* the name is the id of an event without an aggregate */
	const char *tenant, *type, *id;
	char texts[];
} chain;

struct schedule {
	chain **buckets;
	size_t bucket_count;
	size_t chain_count;
	chain *marked;
	lane *turn_first, *turn_last;
	lane *all; /* of events without a lane */
	size_t waiting;
};

/* ---- chains by name */

typedef struct name {
	bool has_type, is_event;
	const char *tenant, *type, *id;
	uint64_t hash;
} name;

/* The end of each text is hashed too, so that "ab", "c" and "a", "bc" differ. */
static uint64_t hash_text(uint64_t hash, const char *text)
{
	return hash_bytes(hash, text, strlen(text) + 1);
}

static name name_of(const event *event)
{
	bool free = event->aggregate_id == NULL;
	name made = {.has_type = !free && event->aggregate_type != NULL,
	             .is_event = free,
	             .tenant = event->tenant,
	             .type = !free && event->aggregate_type != NULL ? event->aggregate_type : "",
	             .id = free ? event->event_id : event->aggregate_id};
	uint64_t hash = HASH_START ^ (uint64_t)(made.has_type + 2 * made.is_event);

	hash = hash_text(hash_text(hash_text(hash, made.tenant), made.type), made.id);
	made.hash = hash ^ hash >> 32;
	return made;
}

static chain *find(const schedule *schedule, const name *name)
{
	chain *at = schedule->buckets[name->hash & (schedule->bucket_count - 1)];

	while (at != NULL && (at->hash != name->hash || at->has_type != name->has_type || at->is_event != name->is_event ||
	                      strcmp(at->id, name->id) != 0 || strcmp(at->tenant, name->tenant) != 0 ||
	                      strcmp(at->type, name->type) != 0)) {
		at = at->next;
	}
	return at;
}

static void grow(schedule *schedule)
{
	size_t count = schedule->bucket_count * 2;
	chain **buckets = memory_take(count * sizeof(void *));

	for (size_t i = 0; i < schedule->bucket_count; i++) {
		for (chain *at = schedule->buckets[i], *next = NULL; at != NULL; at = next) {
			next = at->next;
			at->next = buckets[at->hash & (count - 1)];
			buckets[at->hash & (count - 1)] = at;
		}
	}
	free(schedule->buckets);
	schedule->buckets = buckets;
	schedule->bucket_count = count;
}

/*
 * The chain of the event's aggregate, created if it is missing. Its texts are copied: because of
 * its mark it may outlive the event.
 */
static chain *chain_of(schedule *schedule, const event *event)
{
	name name = name_of(event);
	chain *found = find(schedule, &name);

	if (found != NULL) {
		return found;
	}
	if (schedule->chain_count >= schedule->bucket_count) {
		grow(schedule);
	}
	size_t tenant = strlen(name.tenant) + 1, type = strlen(name.type) + 1, id = strlen(name.id) + 1;
	chain *made = memory_take(sizeof *made + tenant + type + id);
	made->hash = name.hash;
	made->has_type = name.has_type;
	made->is_event = name.is_event;
	made->tenant = memcpy(made->texts, name.tenant, tenant);
	made->type = memcpy(made->texts + tenant, name.type, type);
	made->id = memcpy(made->texts + tenant + type, name.id, id);
	chain **bucket = &schedule->buckets[name.hash & (schedule->bucket_count - 1)];
	made->next = *bucket;
	*bucket = made;
	schedule->chain_count++;
	return made;
}

static void drop_if_unused(schedule *schedule, chain *chain)
{
	if (chain->first != NULL || chain->mark != 0) {
		return;
	}
	struct chain **at = &schedule->buckets[chain->hash & (schedule->bucket_count - 1)];
	while (*at != chain) {
		at = &(*at)->next;
	}
	*at = chain->next;
	schedule->chain_count--;
	free(chain);
}

/* ---- ready events */

static lane *lane_of(const schedule *schedule, const event *event)
{
	return event->lane != NULL ? event->lane : schedule->all;
}

static void turn_add(schedule *schedule, lane *lane)
{
	lane->turn_after = NULL;
	lane->turn_before = schedule->turn_last;
	*(schedule->turn_last == NULL ? &schedule->turn_first : &schedule->turn_last->turn_after) = lane;
	schedule->turn_last = lane;
}

static void turn_take_out(schedule *schedule, lane *lane)
{
	*(lane->turn_before == NULL ? &schedule->turn_first : &lane->turn_before->turn_after) = lane->turn_after;
	*(lane->turn_after == NULL ? &schedule->turn_last : &lane->turn_after->turn_before) = lane->turn_before;
	lane->turn_before = lane->turn_after = NULL;
}

static void ready_insert_after(schedule *schedule, event *event, struct event *before)
{
	lane *lane = lane_of(schedule, event);

	if (lane->ready_first == NULL) {
		turn_add(schedule, lane);
	}
	event->place = EVENT_READY;
	event->ready_before = before;
	event->ready_after = before == NULL ? lane->ready_first : before->ready_after;
	*(event->ready_after == NULL ? &lane->ready_last : &event->ready_after->ready_before) = event;
	*(before == NULL ? &lane->ready_first : &before->ready_after) = event;
}

static void ready_append(schedule *schedule, event *event)
{
	ready_insert_after(schedule, event, lane_of(schedule, event)->ready_last);
}

static void ready_take_out(schedule *schedule, event *event)
{
	lane *lane = lane_of(schedule, event);

	*(event->ready_before == NULL ? &lane->ready_first : &event->ready_before->ready_after) = event->ready_after;
	*(event->ready_after == NULL ? &lane->ready_last : &event->ready_after->ready_before) = event->ready_before;
	event->ready_before = event->ready_after = NULL;
	if (lane->ready_first == NULL) {
		turn_take_out(schedule, lane);
	}
}

/* ---- for the pipeline */

schedule *schedule_new(void)
{
	schedule *made = memory_take(sizeof *made);

	made->bucket_count = BUCKETS_FIRST;
	made->buckets = memory_take(made->bucket_count * sizeof(void *));
	made->all = memory_take(sizeof *made->all + 1);
	return made;
}

void schedule_free(schedule *schedule)
{
	if (schedule == NULL) {
		return;
	}
	event_free_list(schedule_clear(schedule));
	free(schedule->all);
	free(schedule->buckets);
	free(schedule);
}

void schedule_add(schedule *schedule, event *event)
{
	chain *chain = chain_of(schedule, event);

	assert(event->place == EVENT_OUTSIDE);
	event->chain = chain;
	event->chain_after = NULL;
	event->chain_before = chain->last;
	*(chain->last == NULL ? &chain->first : &chain->last->chain_after) = event;
	chain->last = event;
	schedule->waiting++;
	if (chain->first == event) {
		ready_append(schedule, event);
	} else {
		event->place = EVENT_BEHIND;
	}
}

event *schedule_next(schedule *schedule, size_t room)
{
	lane *lane = schedule->turn_first;

	while (lane != NULL && !lane_has_room(lane, room)) {
		lane = lane->turn_after;
	}
	if (lane == NULL) {
		return NULL;
	}
	event *next = lane->ready_first;
	ready_take_out(schedule, next);
	if (lane->ready_first != NULL) {
		turn_take_out(schedule, lane);
		turn_add(schedule, lane);
	}
	next->place = EVENT_IN_FLIGHT;
	schedule->waiting--;
	return next;
}

void schedule_put_back(schedule *schedule, event *event)
{
	struct event *before = NULL;

	assert(event->place == EVENT_IN_FLIGHT);
	for (struct event *at = lane_of(schedule, event)->ready_first; at != NULL && at->id < event->id;
	     at = at->ready_after) {
		before = at;
	}
	ready_insert_after(schedule, event, before);
	schedule->waiting++;
}

void schedule_put_last(schedule *schedule, event *event)
{
	assert(event->place == EVENT_IN_FLIGHT);
	ready_append(schedule, event);
	schedule->waiting++;
}

/* Removes it from its chain, the list and the counts. */
static void take_out(schedule *schedule, event *event)
{
	chain *chain = event->chain;

	if (event->place == EVENT_READY) {
		ready_take_out(schedule, event);
	}
	if (event->place != EVENT_IN_FLIGHT) {
		schedule->waiting--;
	}
	*(event->chain_before == NULL ? &chain->first : &event->chain_before->chain_after) = event->chain_after;
	*(event->chain_after == NULL ? &chain->last : &event->chain_after->chain_before) = event->chain_before;
	event->chain_before = event->chain_after = NULL;
	event->chain = NULL;
	event->place = EVENT_OUTSIDE;
}

void schedule_remove(schedule *schedule, event *event)
{
	chain *chain = event->chain;

	take_out(schedule, event);
	if (chain->first != NULL && chain->first->place == EVENT_BEHIND) {
		ready_append(schedule, chain->first);
	}
	drop_if_unused(schedule, chain);
}

event *schedule_remove_chain(schedule *schedule, event *event)
{
	chain *chain = event->chain;
	struct event *first = NULL, **end = &first;

	take_out(schedule, event);
	for (struct event *at = chain->first, *next = NULL; at != NULL; at = next) {
		next = at->chain_after;
		if (at->place != EVENT_IN_FLIGHT) {
			take_out(schedule, at);
			at->list_after = NULL;
			*end = at;
			end = &at->list_after;
		}
	}
	drop_if_unused(schedule, chain);
	return first;
}

event *schedule_clear(schedule *schedule)
{
	event *first = NULL, **end = &first;

	for (size_t i = 0; i < schedule->bucket_count; i++) {
		while (schedule->buckets[i] != NULL) {
			chain *chain = schedule->buckets[i];
			chain->mark = 0;
			if (chain->first == NULL) {
				drop_if_unused(schedule, chain);
				continue;
			}
			event *at = chain->first;
			bool in_flight = at->place == EVENT_IN_FLIGHT;
			take_out(schedule, at);
			if (!in_flight) {
				at->list_after = NULL;
				*end = at;
				end = &at->list_after;
			}
			drop_if_unused(schedule, chain);
		}
	}
	schedule->marked = NULL;
	return first;
}

bool schedule_busy(schedule *schedule, const event *event)
{
	name name = name_of(event);
	const chain *chain = find(schedule, &name);

	return chain != NULL && chain->last != NULL && chain->last->fetch != event->fetch;
}

void schedule_mark(schedule *schedule, const event *event, uint64_t fetch)
{
	chain *chain = chain_of(schedule, event);

	if (chain->mark == 0) {
		chain->mark_before = NULL;
		chain->mark_after = schedule->marked;
		if (schedule->marked != NULL) {
			schedule->marked->mark_before = chain;
		}
		schedule->marked = chain;
	}
	chain->mark = fetch > chain->mark ? fetch : chain->mark;
}

bool schedule_marked(schedule *schedule, const event *event)
{
	name name = name_of(event);
	const chain *chain = find(schedule, &name);

	return chain != NULL && event->fetch <= chain->mark;
}

void schedule_forget_marks(schedule *schedule, uint64_t fetch)
{
	for (chain *at = schedule->marked, *next = NULL; at != NULL; at = next) {
		next = at->mark_after;
		if (at->mark >= fetch) {
			continue;
		}
		*(at->mark_before == NULL ? &schedule->marked : &at->mark_before->mark_after) = next;
		if (next != NULL) {
			next->mark_before = at->mark_before;
		}
		at->mark = 0;
		drop_if_unused(schedule, at);
	}
}

bool schedule_has_ready(const schedule *schedule)
{
	return schedule->turn_first != NULL;
}

lane *schedule_turns(const schedule *schedule)
{
	return schedule->turn_first;
}

size_t schedule_waiting(const schedule *schedule)
{
	return schedule->waiting;
}

size_t schedule_chains(const schedule *schedule)
{
	return schedule->chain_count;
}
