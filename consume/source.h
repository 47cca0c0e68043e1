/* SPDX-License-Identifier: PostgreSQL */
/*
 * source.h: where a consumer's messages come from: the one interface that Kafka, RabbitMQ, NATS
 * JetStream and SQS implement, a file each (source_*.c). A source hands over messages and
 * acknowledges them once their effects are committed. It knows nothing of PostgreSQL. A source is
 * used by one thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "config.h"
#include "pgonce.h"
#include "runtime.h"

typedef struct source_header {
	const char *name;
	once_bytes value;
} source_header;

/* One delivery. Lives until it is acknowledged or given back, also where it is void meanwhile. */
typedef struct source_message {
	const char *topic; /* Kafka's topic, the subject, the routing key */
	once_bytes key;    /* as the broker has it; data NULL: none */
	once_bytes payload;
	const source_header *headers;
	size_t header_count;
	/*
	 * "orders/3/1071", "ORDERS/1071": the same on each redelivery. NULL: the broker has none
	 * (RabbitMQ).
	 */
	const char *coordinates;
	/*
	 * Why no handler can have it, for people: the payload is not what its producer sent, but what
	 * carried it. NULL: it is fine.
	 */
	const char *undecoded;
	void *own; /* the source's own */
} source_message;

/* What bounds are about. */
static inline size_t source_message_bytes(const source_message *message)
{
	size_t bytes = message->payload.length + message->key.length;

	for (size_t i = 0; i < message->header_count; i++) {
		bytes += strlen(message->headers[i].name) + message->headers[i].value.length;
	}
	return bytes;
}

/* How much may be out, and waiting here, at a time: bounds on memory. */
typedef struct source_bounds {
	int64_t messages; /* prefetch = */
	/*
	 * memory =. A message that is larger comes alone. What is out, what waits here and what a
	 * client library has read are together within it.
	 */
	int64_t bytes;
} source_bounds;

/* Of the bytes: what a handler may have out, and the one transaction of a SQL function. */
#define SOURCE_OUT_SHARE(bytes) ((bytes) / 2)
#define SOURCE_TRANSACTION_SHARE(bytes) ((bytes) / 4)
/* And what is tried again of what is parked. */
#define SOURCE_RECALLED_SHARE(bytes) ((bytes) / 8)
/* What is out and what waits here; the rest is for what is on its way. */
#define SOURCE_HERE_SHARE(bytes) ((bytes) / 4 * 3)

/*
 * After UNAVAILABLE and LOST, deliveries that are out may be void: the broker hands them out again,
 * here or to another member. To acknowledge or to give back a void one is harmless and still frees
 * it.
 */
typedef enum source_state {
	SOURCE_OK, /* messages, or none within the time */
	/*
	 * the broker cannot be reached, or has no such stream, queue, topic; it is tried again by
	 * itself
	 */
	SOURCE_UNAVAILABLE,
	SOURCE_LOST /* a rebalance took partitions, the connection was made anew */
} source_state;

/*
 * How far a part of what is read (a partition, a stream, a queue) has been acknowledged, and the
 * broker knows it: nothing of it that is older than at_ms comes again. In the broker's time,
 * milliseconds since 1970, or SOURCE_AT_END: all that there was, less behind_ms.
 */
#define SOURCE_AT_END INT64_MIN
typedef struct source_position {
	const char *part; /* until the next call */
	int64_t at_ms;
	int64_t behind_ms;
} source_position;

typedef struct source source; /* each source's own */

typedef struct source_class {
	const char *name;             /* "nats", as `source =` says it */
	const config_option *options; /* those of this source alone; ends with name NULL */
	bool has_coordinates;         /* what it hands over has `coordinates` */
	/*
	 * Members of one group never hold messages of one key at the same time (Kafka's partitions,
	 * the groups of SQS).
	 * Where false, order needs one active member.
	 */
	bool shares_order;
	/*
	 * As sink_class.open (relay/sink.h). ordered: the order of keys is to be kept; where the class
	 * does not share it, this is the one active member.
	 */
	bool (*open)(const speaker *speaker, const config *config, const config_section *section, source_bounds bounds,
	             bool ordered, source **result, char **problem);
	bool (*check)(const config *config, const config_section *section, char **problem);
	/*
	 * The inbox may have forgotten what is older than that; 0: it remembers all. A source that
	 * would begin anew with such messages does not unless it was told to. Called before each fetch.
	 * NULL: the source never makes where it begins.
	 */
	void (*remember)(source *source, int64_t remembered_ms);
	/* As sink_class.note. */
	char *(*note)(const config *config, const config_section *section);
	/*
	 * Up to `most` messages, in the broker's order, waiting at most timeout_ms for the first and
	 * not at all for more; as many as most_bytes has room for, but one of any size where none is
	 * out. May be called while earlier ones are out. problem: for people, where the
	 * state is not OK. most = 0 keeps alive: gives nothing and does not wait; stays in the group,
	 * sends heartbeats, says that what is out is still at work. To be called every 2 s or oftener
	 * while something else keeps the caller busy.
	 */
	source_state (*fetch)(source *source, size_t most, size_t most_bytes, int timeout_ms, source_message **messages,
	                      size_t *count, char problem[256]);
	/*
	 * Their effects are committed: the broker may forget them. All that fetch gave before them are
	 * acknowledged or given back already, or among them.
	 */
	source_state (*acknowledge)(source *source, source_message *const *messages, size_t count, char problem[256]);
	/*
	 * Nothing was done with them: the next fetch gives those that are not void again, in the
	 * broker's order and before what followed. For that order, give back all that is out before the
	 * next fetch.
	 */
	void (*give_back)(source *source, source_message *const *messages, size_t count);
	/*
	 * The positions of at most `most` parts; those of which nothing is known for certain are left
	 * out. Returns their number. May wait a moment for the broker. NULL: the source knows none.
	 */
	size_t (*positions)(source *source, source_position *positions, size_t most);
	/*
	 * True: something that is read from has messages, and has given none for long, although it was
	 * waited for them; problem: for people. Blocks for nothing. NULL: the source cannot know.
	 */
	bool (*stalled)(source *source, char problem[256]);
	/*
	 * At most so many messages were deleted by the broker before they were read, since this was
	 * asked last. NULL: the source cannot know.
	 */
	uint64_t (*unread)(source *source);
	/*
	 * Sends a copy (key, payload, headers, and `more` headers) to a topic, subject or routing key
	 * of the same broker, and waits at most timeout_ms. True: the broker has acknowledged it.
	 * False: it may or may not have it.
	 */
	bool (*publish)(source *source, const char *topic, const source_message *message, const source_header *more,
	                size_t more_count, int timeout_ms, char problem[256]);
	void (*close)(source *source);
} source_class;

/*
 * All sources: EACH(name, whether this build has it). A new one is added here, in meson.build, and
 * in a file of its own in sources/, which defines source_NAME.
 */
/* clang-format off */
#define SOURCES(EACH) \
	EACH(kafka, BUILT_KAFKA) \
	EACH(rabbitmq, BUILT_RABBITMQ) \
	EACH(nats, BUILT_NATS) \
	EACH(sqs, BUILT_ALWAYS)
/* clang-format on */

#define SOURCE_EXTERN(name, built) extern const source_class source_##name;
SOURCES(SOURCE_EXTERN)
#undef SOURCE_EXTERN

/* By name; NULL if there is no such source. source_at(i) lists them, NULL past the end. */
const source_class *source_find(const char *name);
const source_class *source_at(size_t index);
