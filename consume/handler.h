/* SPDX-License-Identifier: PostgreSQL */
/*
 * handler.h: applies a consumer's messages: the one interface that a SQL function (handler_sql.c)
 * and an HTTP endpoint (handler_http.c) implement. A handler takes deliveries and hands each back
 * once: settled or undone. It never talks to the broker, except for copies of dead messages
 * (parked.c).
 */
#pragma once

#include "database.h"
#include "source.h"

typedef struct consumer consumer;
typedef struct handler handler; /* defined by each handler */

typedef struct handler_load {
	size_t room;       /* messages it would take now */
	size_t room_bytes; /* their bytes; a single first message may exceed it */
	size_t out;        /* deliveries it has */
	size_t held;       /* messages it has, including parked ones that are tried again */
	size_t calls;      /* open calls: a stop waits for them */
} handler_load;

typedef struct handler_class {
	handler *(*open)(consumer *consumer);
	/* On a new connection; NULL: no check. FAILURE_FAULT: something it needs is missing. */
	bool (*check)(consumer *consumer, failure *failure);
	handler_load (*load)(const handler *handler);
	/* Takes deliveries, no more than it has room for, in the broker's order. */
	void (*take)(handler *handler, source_message *const *deliveries, size_t count);
	/*
	 * Works for a moment on its messages and on parked messages that are due. False: *failure of
	 * the database; no transaction is open, and the next call retries what is not settled.
	 */
	bool (*work)(handler *handler, failure *failure);
	/* Hands back, in order, deliveries that are committed or parked, with everything before
	 * them. */
	size_t (*hand_back_settled)(handler *handler, source_message **deliveries);
	/* Hands back all the rest, undone. Its calls are aborted and its leases expire. */
	size_t (*hand_back_undone)(handler *handler, source_message **deliveries);
	void (*close)(handler *handler);
} handler_class;

extern const handler_class handler_sql, handler_http;
