/* SPDX-License-Identifier: PostgreSQL */
/* parked.h: messages that are parked in the database, so that the broker may delete them. */
#pragma once

#include "consumer.h"

typedef struct parking {
	/* Why it is parked, from the caller of parked_decide. */
	const message *message;
	/* for its key or another process; after a failed attempt; dead: no attempt can help */
	parked_state state;
	bool counted;                 /* the attempt counts against the limit */
	int64_t wait_ms;              /* at least; then the one decided */
	const char *error, *sqlstate; /* NULL: no error, which only waiting ones have */
	/* Decided. */
	int attempts;
	/* It is dead, with these values, once its copy is sent; NULL: no copy is needed. */
	const char *dead_error;
	int dead_attempts;
} parking;

#define EXPIRED_ID                                                                                                     \
	"its id is older than the inbox remembers: pgonce cannot know whether it was applied. Discard it, or apply it by " \
	"hand; a consumer with ids = opaque takes ids of any age"

/*
 * What becomes of a message: when it is tried again, or that it is dead. Logged, not stored. Its
 * texts are copied to the arena.
 */
parking parked_decide(consumer *consumer, parking wanted, arena *arena);
/* Decides about each, and stores them like parked_store. */
bool parked_park(consumer *consumer, parking *parkings, size_t count, failure *failure);

/* For a message whose copy must be sent: its state once it is sent. If it is not, its next try. */
parking parked_dead_of(const parking *unsent);
parking parked_unsent(consumer *consumer, const parking *dying);
void parked_log(const consumer *consumer, const parking *parking);
/*
 * A parked message came again, usually as a redelivery. A copy from the dead_topic that was sent
 * back changes nothing either, and is logged.
 */
void parked_came_again(const consumer *consumer, const message *message);

/*
 * Stores them, in the open transaction or in its own. Those whose copy must be sent are then among
 * the consumer's `graves`: call dead_topic_send once the transaction has ended.
 */
bool parked_store(consumer *consumer, const parking *parkings, size_t count, failure *failure);
/* Counts again. */
bool parked_count(consumer *consumer, failure *failure);
/* True: parked messages may be due, and it is time to look. */
bool parked_is_due(const consumer *consumer);
/* True: the last look found more than were handled. */
bool parked_goes_on(const consumer *consumer);
/*
 * Up to `most` due messages as rows (clear them), within the room for their bytes but at least one;
 * in a transaction they are locked. lines: with the first of each key, those that wait only for it;
 * else only the first of each key.
 */
bool parked_look(consumer *consumer, int most, bool lines, PGresult **due, failure *failure);
/* Reads one of these rows; its texts are in the arena. */
void parked_read(const PGresult *due, int row, const origin *key, arena *arena, message *message);
/* They are applied and no longer parked. */
bool parked_remove(consumer *consumer, const message *const *messages, size_t count, failure *failure);
