/* SPDX-License-Identifier: PostgreSQL */
/* apply.h: how the SQL handler applies messages: new ones (apply.c) and parked ones (retry.c). */
#pragma once

#include "consumer.h"

typedef struct message_batch {
	consumer *consumer;
	arena arena; /* of its messages */
	message *messages;
	size_t count;
	int failures;     /* failed tries */
	int active_tries; /* of these, because another process was applying one of the messages */
	/* Of one try. */
	/* failures that point to no message are blamed on single messages too, uncounted */
	bool isolating;
	bool ask_again; /* a payload believed to be jsonb was not: ask the server, then try again */
} message_batch;

/*
 * One try. True: every message is committed as applied or parked. False: *failure, and no
 * transaction is open. Call it again until it returns true; the inbox makes repeats harmless.
 */
bool apply_batch(message_batch *batch, failure *failure);
/* Calls the handler for messages in order, in the open transaction. */
bool apply_handle(consumer *consumer, message *const *messages, size_t count, failure *failure);
/*
 * The inbox's verdicts on messages, one row each (clear the result), in the open transaction. NULL:
 * *failure. ordered: a message waits behind a parked message of its key.
 */
PGresult *apply_inbox(consumer *consumer, message *const *messages, size_t count, bool ordered, failure *failure);
/* True: the role may call everything that apply_batch calls. */
bool apply_allowed(consumer *consumer, failure *failure);

/*
 * Tries parked messages that are due, for a limited time. *most is how many to ask for, at least 1;
 * it is adjusted to the results. False: the server failed; no transaction is open.
 */
bool retry_due(consumer *consumer, int *most, failure *failure);
