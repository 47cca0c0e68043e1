/* SPDX-License-Identifier: PostgreSQL */
/*
 * nats_loop.h: would a copy for dead_topic come back to the consumer whose dead message it is? Then
 * it dies there again, and its copy too, without end. Used by nats.c alone.
 */
#pragma once

#include <nats/nats.h>

#include "broker.h"

typedef enum nats_loop {
	NATS_LOOP_NO,
	NATS_LOOP_YES,    /* problem says which way the copy comes back */
	NATS_LOOP_UNKNOWN /* the server did not say; problem says why */
} nats_loop;

/* Does "order.>" or "order.*.paid" take that subject? */
bool nats_subject_takes(const char *pattern, const char *subject);
/* Asks about the stream. filter: what is read of it; NULL: all. */
nats_loop nats_loop_find(jsCtx *js, const char *stream, const char *filter, const char *dead_topic,
                         char problem[BROKER_PROBLEM_BYTES]);
