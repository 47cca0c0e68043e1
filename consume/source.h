/* SPDX-License-Identifier: PostgreSQL */
/*
 * source.h: the source of a consumer's messages: the one interface that Kafka, RabbitMQ, NATS
 * JetStream and SQS implement, one file each (source_*.c). A source hands over messages and
 * acknowledges them once their effects are committed. It knows nothing about PostgreSQL. One thread
 * uses a source.
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

/* One delivery. Lives until it is acknowledged or given back, even if it becomes void meanwhile. */
typedef struct source_message {
	const char *topic; /* Kafka's topic, the subject, the routing key */
	once_bytes key;    /* as the broker has it; data NULL: no key */
	once_bytes payload;
	const source_header *headers;
	size_t header_count;
	/*
	 * "orders/3/1071", "ORDERS/1071": the same on each redelivery. NULL: the broker has no such
	 * thing (RabbitMQ).
	 */
	const char *coordinates;
	/*
	 * Why no handler can have it, for people: the payload is not the producer's, only its
	 * packaging. NULL: it is fine.
	 */
	const char *undecoded;
	void *own; /* for the source's use */
} source_message;

/* The size that the bounds limit. */
static inline size_t source_message_bytes(const source_message *message)
{
	size_t bytes = message->payload.length + message->key.length;

	for (size_t i = 0; i < message->header_count; i++) {
		bytes += strlen(message->headers[i].name) + message->headers[i].value.length;
	}
	return bytes;
}

/* Limits on memory: the messages out and held at a time. */
typedef struct source_bounds {
	int64_t messages; /* prefetch = */
	/*
	 * memory =. A larger message comes alone. Messages out, messages held and those that a client
	 * library has read stay within it together.
	 */
	int64_t bytes;
} source_bounds;

/* The share of the bytes for messages out at the handler, and for one transaction of a SQL
 * function. */
#define SOURCE_OUT_SHARE(bytes) ((bytes) / 2)
#define SOURCE_TRANSACTION_SHARE(bytes) ((bytes) / 4)
/* The share for parked messages that are tried again. */
#define SOURCE_RECALLED_SHARE(bytes) ((bytes) / 8)
/* The share for messages out and held; the rest is for messages on their way. */
#define SOURCE_HERE_SHARE(bytes) ((bytes) / 4 * 3)

/*
 * After UNAVAILABLE and LOST, outstanding deliveries may be void: the broker delivers them again,
 * here or to another member. Acknowledging or giving back a void one is harmless and still frees
 * it.
 */
typedef enum source_state {
	SOURCE_OK, /* messages, or none within the time */
	/* the broker cannot be reached, or has no such stream, queue, topic; retried automatically */
	SOURCE_UNAVAILABLE,
	SOURCE_LOST /* a rebalance took partitions away, or the connection was replaced */
} source_state;

/*
 * How far a part of the source (a partition, a stream, a queue) is acknowledged, as the broker
 * knows: no message of it older than at_ms comes again. In the broker's time, milliseconds since
 * 1970, or SOURCE_AT_END: everything there was, less behind_ms.
 */
#define SOURCE_AT_END INT64_MIN
typedef struct source_position {
	const char *part; /* valid until the next call */
	int64_t at_ms;
	int64_t behind_ms;
} source_position;

typedef struct source source; /* defined by each source */

typedef struct source_class {
	const char *name;             /* "nats", the value of `source =` */
	const config_option *options; /* this source's options; ends with name NULL */
	bool has_coordinates;         /* its messages have `coordinates` */
	/*
	 * Members of one group never hold messages of one key at the same time (Kafka's partitions, the
	 * groups of SQS). If false, order needs a single active member.
	 */
	bool shares_order;
	/*
	 * Like sink_class.open (relay/sink.h). ordered: the order of keys must be kept; if the class
	 * does not share it, this is the single active member.
	 */
	bool (*open)(const speaker *speaker, const config *config, const config_section *section, source_bounds bounds,
	             bool ordered, source **result, char **problem);
	bool (*check)(const config *config, const config_section *section, char **problem);
	/*
	 * The inbox may have deleted messages older than remembered_ms; 0: it remembers all. A source
	 * that would start over with such messages does not, unless the options allow it. Called before
	 * each fetch. NULL: the source never chooses where it begins.
	 */
	void (*remember)(source *source, int64_t remembered_ms);
	/* Like sink_class.note. */
	char *(*note)(const config *config, const config_section *section);
	/*
	 * Up to `most` messages, in the broker's order, waiting at most timeout_ms for the first and
	 * not at all for more; within most_bytes, but one message of any size if none is out. May be
	 * called while earlier ones are out. problem: for people, unless SOURCE_OK. most = 0 only keeps
	 * the source alive: it returns nothing and does not wait; it stays in the group, sends
	 * heartbeats, and reports outstanding messages as in progress. Call it at least every 2 s while
	 * the caller is busy.
	 */
	source_state (*fetch)(source *source, size_t most, size_t most_bytes, int timeout_ms, source_message **messages,
	                      size_t *count, char problem[256]);
	/*
	 * Their effects are committed: the broker may delete them. Everything fetched before them must
	 * be acknowledged or given back already, or be among them.
	 */
	source_state (*acknowledge)(source *source, source_message *const *messages, size_t count, char problem[256]);
	/*
	 * Nothing was done with them: the next fetch returns those that are not void again, in the
	 * broker's order and before later ones. To keep that order, give back everything that is out
	 * before the next fetch.
	 */
	void (*give_back)(source *source, source_message *const *messages, size_t count);
	/*
	 * The positions of at most `most` parts; parts without a certain position are left out. Returns
	 * their number. May wait a moment for the broker. NULL: the source has no positions.
	 */
	size_t (*positions)(source *source, source_position *positions, size_t most);
	/*
	 * True: something that is read has messages but has delivered none for a long time while the
	 * consumer waited; problem: for people. Does not block. NULL: the source cannot know.
	 */
	bool (*stalled)(source *source, char problem[256]);
	/*
	 * The most messages that the broker may have deleted unread since the last call. NULL: the
	 * source cannot know.
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
 * All sources: EACH(name, whether this build has it). Add a new one here, in meson.build, and
 * in its own file in sources/, which defines source_NAME.
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
