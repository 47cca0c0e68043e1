/* SPDX-License-Identifier: PostgreSQL */
/*
 * sink.h: the interface of a relay's destinations, which Kafka, RabbitMQ, NATS JetStream, SQS, SNS,
 * webhooks and stdout implement (sinks/). A sink delivers single messages, and reports for each
 * whether the broker has acknowledged it. It knows nothing of the outbox, of order or of retries:
 * the pipeline does. A sink is used by one thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config.h"
#include "pgonce.h"
#include "runtime.h"

typedef struct sink_header {
	const char *name, *value;
} sink_header;

/* An event's message, made by envelope.c. It is valid and unchanged until its result is given. */
typedef struct sink_message {
	const char *destination; /* topic, subject, routing key, or URL: from the route */
	/* the route's destination as written, with its placeholders; NULL: unknown */
	const char *route;
	const char *event_id;     /* a UUID: also the broker's deduplication id, if it has such ids */
	const char *key;          /* aggregate id; NULL: no aggregate */
	const char *content_type; /* "application/json", or the argument of once.emit_bytes */
	const sink_header *headers;
	size_t header_count;
	once_bytes body;
	bool is_bytes;      /* the body is any bytes, not JSON or text */
	int64_t created_ms; /* the event's time, milliseconds since 1970 */
	/*
	 * the copy of a dead event: its headers' requests to the broker were meant for its own
	 * destination, and may be why it died
	 */
	bool is_dead_copy;
	void *user; /* the pipeline's */
	void *own;  /* the sink's, while it has the message */
} sink_message;

typedef enum sink_verdict {
	/* acknowledged: it survives a crash of the broker, as far as the broker promises */
	SINK_DELIVERED,
	/*
	 * this message was refused (too large, no such destination, HTTP 4xx/5xx, timed out): counts as
	 * an attempt
	 */
	SINK_REFUSED,
	SINK_FINAL, /* like SINK_REFUSED, but further attempts cannot help */
	/*
	 * the whole sink cannot be reached: the same message is sent again later, and no attempt is
	 * counted
	 */
	SINK_UNAVAILABLE,
	SINK_WITHHELD, /* not sent without a permit: the same message again, nothing is counted */
	/*
	 * the broker refuses everything from this relay, since another has begun its turn there; lasts
	 * until the next permit after 0
	 */
	SINK_FENCED
} sink_verdict;

typedef struct sink_result {
	sink_message *message;
	sink_verdict verdict;
	int64_t retry_after_ms; /* as the receiver asks, or until the sink accepts it; -1: unknown */
	bool silent;            /* the receiver did not answer; only set by sinks with lanes */
	char problem[256];      /* for people: the broker's error; "" if delivered */
} sink_result;

typedef struct sink sink; /* defined by each sink */

#define SINK_LANE_BYTES 300 /* scheme, host and port */

typedef struct sink_class {
	const char *name;             /* "nats", as in `sink =` */
	const config_option *options; /* of this sink only; ends with name NULL */
	/*
	 * the most messages that it should have at a time, if the section does not set in_flight
	 */
	int64_t in_flight;
	/*
	 * Reads the section's options and prepares. It may connect to find wrong settings early, but a
	 * broker that is away is not a failure: later results are SINK_UNAVAILABLE. False: *problem
	 * (free it).
	 */
	bool (*open)(const speaker *speaker, const config *config, const config_section *section, sink **result,
	             char **problem);
	/* Checks the options for --check-config, without connecting. */
	bool (*check)(const config *config, const config_section *section, char **problem);
	/*
	 * Notes on valid options: lines for people (free it); NULL: no notes. The function may be
	 * NULL.
	 */
	char *(*note)(const config *config, const config_section *section);
	/*
	 * The part of the sink that can hang separately: the host of a message's destination. "": the
	 * sink only hangs as a whole. The function may be NULL.
	 */
	void (*lane)(const sink *sink, const sink_message *message, char name[SINK_LANE_BYTES]);
	/* Takes over a message; never blocks. False: the sink is full; poll first. */
	bool (*send)(sink *sink, sink_message *message);
	/*
	 * Fills at most `most` results and returns how many; waits at most timeout_ms for the first
	 * one. Each message gets exactly one result, within the section's `timeout`, in every case.
	 */
	size_t (*poll)(sink *sink, int timeout_ms, sink_result *results, size_t most);
	/*
	 * Until when (runtime_now_ms) the sink may pass messages on. Messages that the broker has not
	 * got by then wait for the next permit, as far as the sink can hold them back. 0: another
	 * process may have the relay now; waiting messages are withheld. Called again and again;
	 * without any permit, a sink passes messages on at once.
	 */
	void (*permit)(sink *sink, int64_t until_ms);
	/* Aborts: messages without a result get none. */
	void (*close)(sink *sink);
} sink_class;

/*
 * All sinks: EACH(name, whether this build has it). Add a new one here, in meson.build, and in its
 * own file in sinks/, which defines sink_NAME.
 */
/* clang-format off */
#define SINKS(EACH) \
	EACH(kafka, BUILT_KAFKA) \
	EACH(nats, BUILT_NATS) \
	EACH(rabbitmq, BUILT_RABBITMQ) \
	EACH(sns, BUILT_ALWAYS) \
	EACH(sqs, BUILT_ALWAYS) \
	EACH(stdout, BUILT_ALWAYS) \
	EACH(webhook, BUILT_ALWAYS)
/* clang-format on */

#define SINK_EXTERN(name, built) extern const sink_class sink_##name;
SINKS(SINK_EXTERN)
#undef SINK_EXTERN

/* By name; NULL if there is no such sink. sink_at(i) lists them, NULL past the end. */
const sink_class *sink_find(const char *name);
const sink_class *sink_at(size_t index);
