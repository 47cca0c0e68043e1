/* SPDX-License-Identifier: PostgreSQL */
/*
 * delivery.h: shared by the sources: a message with its place in the broker's order, and lists of
 * messages in that order. Each source has two lists: out (with the caller) and held (given back, or
 * read ahead). Used by source_*.c alone.
 */
#pragma once

#include "source.h"

typedef struct delivery {
	source_message message; /* first: a source_message of fetch is a delivery */
	struct delivery *previous, *next;
	/* rises in the order of arrival, or in stream order (NATS) */
	uint64_t serial;
	int64_t sequence; /* Kafka's offset, the delivery tag, the stream's sequence */
	/* number of this delivery within the consumer, from 1, redeliveries counted too (NATS) */
	int64_t nth;
	int32_t partition;  /* Kafka's */
	int64_t created_ms; /* the broker's time, or the producer's; 0: unknown */
	int64_t touched_ms; /* when the broker was last told that it is in progress (NATS) */
	const char *reply;  /* the subject that acknowledges it (NATS) */
	bool is_void;       /* the broker will deliver it again */
	size_t bytes;       /* of its message, while it is in a list */
	void *owned;        /* the client library's message, which owns the borrowed data */
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

/* Has room for headers (message.headers) and for *text. Free it with free(). */
delivery *delivery_new(size_t header_count, size_t text_bytes, char **text);
/* Inserts by serial; without a search if the serial is the highest, as it usually is. */
void delivery_add(delivery_list *list, delivery *delivery);
void delivery_remove(delivery_list *list, delivery *delivery);
/* Removes and returns the first; NULL if the list is empty. */
delivery *delivery_take(delivery_list *list);
/* Marks all as void. */
void delivery_void_all(delivery_list *list);
/*
 * Moves up to `most` held messages to the caller, in order, within most_bytes; if none is out, the
 * first may be of any size. Returns how many.
 */
size_t delivery_hand_over(delivery_list *held, delivery_list *out, size_t most, size_t most_bytes,
                          source_message **messages);
/* Moves them back to held; void ones are released. */
void delivery_give_back(delivery_list *out, delivery_list *held, source_message *const *messages, size_t count,
                        void (*release)(delivery *delivery));
void delivery_release_all(delivery_list *list, void (*release)(delivery *delivery));
