/* SPDX-License-Identifier: PostgreSQL */
/* parked.h: messages that are put aside in the database, so that the broker may forget them. */
#pragma once

#include "consumer.h"

typedef struct parking {
	const message *message;
	parked_state state;
	int attempts;
	int64_t wait_ms;
	const char *error, *sqlstate; /* NULL: none */
	/* It is dead once its copy is sent, with these; NULL: no copy is to be sent. */
	const char *dead_error;
	int dead_attempts;
} parking;

#define EXPIRED_ID                                                                                                     \
	"its id is older than what is remembered: it cannot be known whether it was applied. Discard it, or apply it by "  \
	"hand; a consumer with ids = opaque takes ids of any age"

/* What becomes of a message; not stored yet. Its texts live for a round, or as what is given. */
/* Its attempt has failed: `counted` is whether that counts. */
parking park_failed(consumer *consumer, message *message, const failure *failure, bool counted, int64_t at_least_ms);
parking park_dead(consumer *consumer, message *message, const char *sqlstate, const char *error);
parking park_waiting(const message *message, int64_t wait_ms);

/* Of one whose copy is to be sent: what it is when it is sent; when it is not, its next try. */
parking parked_dead_of(const parking *unsent);
parking parked_unsent(consumer *consumer, const parking *dying);
void parked_log(const consumer *consumer, const parking *parking);
/*
 * One that is parked has come again, which is as a rule a redelivery. A copy for dead_topic that
 * somebody has sent back changes nothing either, and that is said.
 */
void parked_came_again(const consumer *consumer, const message *message);

/*
 * Stores them, in the transaction that is open, or as one. Those whose copy is to be sent are then
 * among the consumer's `graves`: dead_topic_send, once the transaction has ended.
 */
bool parked_store(consumer *consumer, const parking *parkings, size_t count, failure *failure);
/* Counts anew. */
bool parked_count(consumer *consumer, failure *failure);
/* Are there perhaps messages whose turn has come? Then it is time to look. */
bool parked_is_due(const consumer *consumer);
/* Were there more at the last look than were worked off? */
bool parked_goes_on(const consumer *consumer);
/*
 * Up to `most` due messages as rows (clear them), as there is room for their bytes, and at least
 * one; in a transaction they are locked. lines: behind the first of a key those that wait for it
 * alone; else the first of each key only.
 */
bool parked_look(consumer *consumer, int most, bool lines, PGresult **due, failure *failure);
/* One of these rows; its texts are in the arena. */
void parked_read(const PGresult *due, int row, const origin *key, arena *arena, message *message);
/* They are not parked any more, since they are applied. */
bool parked_remove(consumer *consumer, const message *const *messages, size_t count, failure *failure);
