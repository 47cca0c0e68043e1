/* SPDX-License-Identifier: PostgreSQL */
/* apply.h: how the SQL handler applies messages: new ones (apply.c), parked ones (retry.c). */
#pragma once

#include "consumer.h"

typedef struct message_batch {
	consumer *consumer;
	arena arena; /* of its messages */
	message *messages;
	size_t count;
	int failures;     /* tries that failed */
	int active_tries; /* of them, since another process was applying one of the messages */
	/* Of one try. */
	/* failures that are nobody's fault are laid to single messages too, uncounted */
	bool isolating;
	bool ask_again; /* a payload was not jsonb against our belief: ask the server, then again */
} message_batch;

/*
 * One try: true: all that can be is committed, all else parked. False: *failure, and no transaction
 * is open; call again, until it is true: the inbox makes that harmless.
 */
bool apply_batch(message_batch *batch, failure *failure);
/* Calls the handler for messages in order, in the transaction that is open. */
bool apply_handle(consumer *consumer, message *const *messages, size_t count, failure *failure);
/*
 * The inbox's verdicts on messages, a row each (clear them), in the transaction that is open; NULL:
 * *failure. ordered: one waits behind a parked message of its key.
 */
PGresult *apply_inbox(consumer *consumer, message *const *messages, size_t count, bool ordered, failure *failure);
/* May the role call what apply_batch calls? */
bool apply_allowed(consumer *consumer, failure *failure);

/*
 * Tries parked messages that are due, for a while; *most is how many to ask for, at least 1, and
 * learns from what happens. False: the server's trouble; no transaction is open.
 */
bool retry_due(consumer *consumer, int *most, failure *failure);
