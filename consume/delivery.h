/* SPDX-License-Identifier: PostgreSQL */
/*
 * delivery.h: what the sources share: a message with its place in the broker's order, and lists of
 * them in that order. Each source has two: what is out (with the caller), and what waits here
 * (given back, or read ahead). Used by source_*.c alone.
 */
#pragma once

#include "source.h"

typedef struct delivery {
	source_message message; /* first: a source_message of fetch is a delivery */
	struct delivery *previous, *next;
	/* rises in the order in which they came, or in which they are in the stream (NATS) */
	uint64_t serial;
	int64_t sequence; /* Kafka's offset, the delivery tag, the stream's sequence */
	/* of the consumer's deliveries, from 1, repeated ones counted again (NATS) */
	int64_t nth;
	int32_t partition;  /* Kafka's */
	int64_t created_ms; /* the broker's time, or its producer's; 0: it says none */
	int64_t touched_ms; /* when the broker was last told that it is at work (NATS) */
	const char *reply;  /* where it is acknowledged (NATS) */
	bool is_void;       /* the broker hands it out again */
	size_t bytes;       /* of its message, once it is in a list */
	void *owned;        /* the client library's message, of which the rest is borrowed */
	source_header headers[];
} delivery;

typedef struct delivery_list {
	delivery *first, *last;
	size_t count;
	size_t bytes; /* of their messages */
} delivery_list;

static inline delivery *delivery_of(source_message *message)
{
	return (delivery *)message;
}

/* With room for headers (message.headers) and for *text. Free it with free(). */
delivery *delivery_new(size_t header_count, size_t text_bytes, char **text);
/* Into the list by its serial; where that is the highest, which is the rule, without a search. */
void delivery_add(delivery_list *list, delivery *delivery);
void delivery_remove(delivery_list *list, delivery *delivery);
/* The first, taken off the list; NULL where it is empty. */
delivery *delivery_take(delivery_list *list);
/* Says of all that they are void. */
void delivery_void_all(delivery_list *list);
/*
 * Moves up to `most` of what waits to the caller, in order, as most_bytes has room, but where none
 * is out the first of any size; returns how many.
 */
size_t delivery_hand_over(delivery_list *held, delivery_list *out, size_t most, size_t most_bytes,
                          source_message **messages);
/* Back again, but for those that are void, which are released. */
void delivery_give_back(delivery_list *out, delivery_list *held, source_message *const *messages, size_t count,
                        void (*release)(delivery *delivery));
void delivery_release_all(delivery_list *list, void (*release)(delivery *delivery));
