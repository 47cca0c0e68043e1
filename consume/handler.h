/* SPDX-License-Identifier: PostgreSQL */
/*
 * handler.h: what applies a consumer's messages: the one interface that a SQL function
 * (handler_sql.c) and an HTTP endpoint (handler_http.c) implement. A handler takes deliveries over,
 * and hands each back once: settled or undone. It never talks to the broker, but for copies of dead
 * messages (parked.c).
 */
#pragma once

#include "database.h"
#include "source.h"

typedef struct consumer consumer;
typedef struct handler handler; /* each handler's own */

typedef struct handler_load {
	size_t room;       /* messages that it would take now */
	size_t room_bytes; /* and so many bytes of them; of a first one, any number */
	size_t out;        /* deliveries that it has */
	size_t held;       /* messages that it has: parked ones that are tried again are among them */
	size_t calls;      /* that are open: a stop waits for them */
} handler_load;

typedef struct handler_class {
	handler *(*open)(consumer *consumer);
	/* On a new connection; NULL: nothing to ask. FAILURE_FAULT: what it needs is not there. */
	bool (*check)(consumer *consumer, failure *failure);
	handler_load (*load)(const handler *handler);
	/* Takes deliveries over, no more than it has room for, in the broker's order. */
	void (*take)(handler *handler, source_message *const *deliveries, size_t count);
	/*
	 * Goes on, for a moment, with what it has and with parked messages that are due. False:
	 * *failure of the database; no transaction is open, and the next call tries again what is not
	 * settled.
	 */
	bool (*work)(handler *handler, failure *failure);
	/* Hands back, in order, what is committed or parked, and so is all before it. */
	size_t (*hand_back_settled)(handler *handler, source_message **deliveries);
	/* Hands back all that is left, undone; its calls are broken off, and its leases run out. */
	size_t (*hand_back_undone)(handler *handler, source_message **deliveries);
	void (*close)(handler *handler);
} handler_class;

extern const handler_class handler_sql, handler_http;
