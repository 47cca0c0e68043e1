/* SPDX-License-Identifier: PostgreSQL */
/*
 * apply.h: how the SQL handler applies messages: new ones (apply.c) and parked ones (retry.c). Both
 * run the statements of transaction.h.
 */
#pragma once

#include "parked.h"

typedef struct message_batch {
	consumer *consumer;
	arena arena; /* of its messages and lists */
	message *messages;
	message **list; /* of its messages, in order */
	size_t count;
	int failures;     /* failed tries */
	int active_tries; /* of these, because another process was applying one of the messages */
	/* Of one try. */
	/* failures that point to no message are blamed on single messages too, uncounted */
	bool isolating;
	bool ask_again; /* a payload believed to be jsonb was not: ask the server, then try again */
	/* Of messages that go to the inbox together: what it says of them. */
	message **handled; /* new ones */
	parking *parkings;
	size_t handled_count, parked_count;
	size_t known_count; /* applied or parked before: nothing is done */
} message_batch;

/* The messages of these deliveries, in order. Close it when all are settled or given back. */
void apply_open(message_batch *batch, consumer *consumer, source_message *const *deliveries, size_t count);
void apply_close(message_batch *batch);
/*
 * One try. True: every message is committed as applied or parked. False: *failure, and no
 * transaction is open. Call it again until it returns true; the inbox makes repeats harmless.
 */
bool apply_batch(message_batch *batch, failure *failure);

/*
 * Tries parked messages that are due, for a limited time. *most is how many to ask for, at least 1;
 * it is adjusted to the results. False: the server failed; no transaction is open.
 */
bool retry_due(consumer *consumer, int *most, failure *failure);
