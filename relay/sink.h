/* SPDX-License-Identifier: PostgreSQL */
/*
 * sink.h: where a relay publishes: the one interface that Kafka, RabbitMQ, NATS JetStream, SQS,
 * SNS, webhooks and stdout implement, a file each (sink_*.c). A sink delivers single messages and
 * says of each whether the broker itself acknowledged it. It knows nothing of the outbox, of order
 * or of retries: that is the pipeline's business. A sink is used by one thread.
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

/*
 * What is sent for one event: the envelope's work (envelope.c). Unchanged and alive until its
 * result is given.
 */
typedef struct sink_message {
	const char *destination; /* topic, subject, routing key, or URL: from the route */
	/* the route's destination as it is written, before names are put in; NULL: unknown */
	const char *route;
	const char *event_id;     /* a UUID: the broker's own deduplication id, where it has one */
	const char *key;          /* aggregate id; NULL: none */
	const char *content_type; /* "application/json", or what once.emit_bytes was given */
	const sink_header *headers;
	size_t header_count;
	once_bytes body;
	bool is_bytes;      /* the body is any bytes: no JSON, and no text */
	int64_t created_ms; /* the event's time, milliseconds since 1970 */
	/*
	 * of a dead event: what its headers ask of the broker was for its own destination, and may be
	 * why it died
	 */
	bool is_dead_copy;
	void *user; /* the pipeline's own */
	void *own;  /* the sink's own, while it has the message */
} sink_message;

typedef enum sink_verdict {
	/* acknowledged: it survives a crash of the broker, as far as the broker promises that */
	SINK_DELIVERED,
	/*
	 * this message was refused (too large, no such destination, HTTP 4xx/5xx, timed out): counts as
	 * an attempt
	 */
	SINK_REFUSED,
	SINK_FINAL, /* refused for good: as SINK_REFUSED, and no further attempt is of use */
	/*
	 * the sink as a whole cannot be reached: nobody's fault, the same message again later, no
	 * attempt counted
	 */
	SINK_UNAVAILABLE,
	SINK_WITHHELD, /* not sent, for want of a permit: the same message again, nothing counted */
	/*
	 * the broker takes nothing of this relay any more, since another has begun its turn there:
	 * until the next permit after 0
	 */
	SINK_FENCED
} sink_verdict;

typedef struct sink_result {
	sink_message *message;
	sink_verdict verdict;
	int64_t retry_after_ms; /* as the receiver asks, or until the sink takes it; -1: not said */
	bool silent;            /* the receiver has not said anything; set by sinks with lanes alone */
	char problem[256];      /* for people: what the broker said; "" when delivered */
} sink_result;

typedef struct sink sink; /* each sink's own */

#define SINK_LANE_BYTES 300 /* scheme, host and port */

typedef struct sink_class {
	const char *name;             /* "nats", as `sink =` says it */
	const config_option *options; /* those of this sink alone; ends with name NULL */
	/*
	 * how many messages it should have at a time at most, where the section does not say
	 * (in_flight)
	 */
	int64_t in_flight;
	/*
	 * Reads the section's options and prepares; connects where that tells at once of wrong
	 * settings, but a broker that is merely away is no failure: it shows as SINK_UNAVAILABLE.
	 * False: *problem (free it).
	 */
	bool (*open)(const speaker *speaker, const config *config, const config_section *section, sink **result,
	             char **problem);
	/* The options alone, for --check-config: no connection. */
	bool (*check)(const config *config, const config_section *section, char **problem);
	/*
	 * What to know of options that are right: lines for people (free it); NULL: nothing. The
	 * function may be NULL.
	 */
	char *(*note)(const config *config, const config_section *section);
	/*
	 * What can hang without the rest of the sink: the host of a message's destination. "": nothing.
	 * The function may be NULL.
	 */
	void (*lane)(const sink *sink, const sink_message *message, char name[SINK_LANE_BYTES]);
	/* Takes a message; never blocks. False: it holds as many as it may; poll first. */
	bool (*send)(sink *sink, sink_message *message);
	/*
	 * Gives results of messages taken, at most `most`, and how many; waits at most timeout_ms for
	 * the first one. Each message taken gets exactly one result, within the section's `timeout`,
	 * whatever happens.
	 */
	size_t (*poll)(sink *sink, int timeout_ms, sink_result *results, size_t most);
	/*
	 * Until when (runtime_now_ms) messages taken may be passed on; what the broker has not got by
	 * then waits for the next permit, as far as the sink can hold it back. 0: the relay may be
	 * another's by now; what waits is not sent any more, and is withheld. Called again and again; a
	 * sink that is never given one passes on at once.
	 */
	void (*permit)(sink *sink, int64_t until_ms);
	/* Breaks off: messages without a result are forgotten. */
	void (*close)(sink *sink);
} sink_class;

/*
 * All sinks: EACH(name, whether this build has it). A new one is added here, in meson.build, and in
 * a file of its own in sinks/, which defines sink_NAME.
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
