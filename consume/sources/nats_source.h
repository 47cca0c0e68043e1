/* SPDX-License-Identifier: PostgreSQL */
/*
 * nats_source.h: shared by the files of this source: a durable pull consumer. nats.c has the
 * messages and the interface; nats_connection.c makes the connection, finds the durable consumer
 * and takes back what an earlier connection had. For these two alone.
 */
#pragma once

#include <nats/nats.h>

#include "arena.h"
#include "delivery.h"
#include "nats.h"
#include "nats_inbox.h"
#include "stall.h"

enum {
	NATS_SAMPLES = 64,
	NATS_ASK_MS = 5000,    /* how long a request for messages stays at the server */
	NATS_ANSWER_MS = 5000, /* for any other request to the server */
};

/* The server's time of an acknowledged message. */
typedef struct nats_sample {
	int64_t sequence, created_ms, taken_ms;
} nats_sample;

typedef struct nats_settings {
	nats_options nats; /* first */
	const char *stream, *durable, *subject;
	int64_t create, ack_wait_ms, deliver, forgotten, stalled_ms;
} nats_settings;

struct source {
	const speaker *speaker;
	nats_settings settings;
	broker_address *address;
	arena names;
	const char *name; /* of the connection, in the server's lists */
	const char *durable;
	const char *dead_topic; /* NULL: not set */
	/* the stream has taken a copy itself; it may be another server's stream of that name */
	bool took_copy;
	bool copy_is_elsewhere;
	source_bounds bounds;
	int64_t remembered_ms;      /* the inbox may have deleted older messages; 0: none */
	natsConnection *connection; /* NULL: not connected; then the next two are NULL too */
	jsCtx *js;
	nats_inbox *inbox;        /* where messages arrive */
	const char *next_subject; /* where they are requested */
	int64_t ack_wait_ms;      /* as configured at the server */
	delivery_list out, held;
	bool ordered; /* no other process may get messages */
	/* number of the consumer's last delivery that arrived, or that was made before this
	 * connection */
	int64_t last_nth;
	/* messages taken back end with this sequence, and to_come of them are still missing; 0: none */
	int64_t taken_back_to;
	size_t to_come;
	size_t asked; /* messages that the open request may still bring; 0: no open request */
	int64_t asked_until_ms;
	bool came; /* the last request brought a message */
	/* the next message is larger than the request: it is requested alone, without a limit */
	bool too_large;
	int64_t touched_ms; /* when touch_all last ran */
	/* of acknowledged messages, the latest at sample_count - 1, a ring */
	nats_sample samples[NATS_SAMPLES];
	size_t sample_count;
	stall stall;
	uint64_t pending; /* messages of the consumer that no member holds, when last asked */
	bool lost;        /* must be reported */
	int failures;     /* of connections, in a row */
	/* from then on the connection counts as stable; a message proves it earlier */
	int64_t steady_at_ms;
	int64_t retry_at_ms;
	char problem[BROKER_PROBLEM_BYTES]; /* why there is no connection */
};

/* ---- nats_connection.c ---- */
/* Connects, and finds the durable consumer. False: not now; `problem` is set. */
bool nats_reconnect(source *source);
/*
 * The durable consumer, created if it is missing; destroy *info, also after a failure. False:
 * `problem` is set.
 */
bool nats_find_consumer(source *source, jsConsumerInfo **info);
/*
 * Deliveries of this connection can no longer be acknowledged: the next connection gives them back.
 */
void nats_disconnect(source *source);
/* After a failure: `problem` is set. */
void nats_lose(source *source);
/* Sets `problem`. Returns false. */
bool nats_fail(source *source, const char *what, natsStatus status);
void nats_release(delivery *delivery);
