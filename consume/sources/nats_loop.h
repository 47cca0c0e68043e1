/* SPDX-License-Identifier: PostgreSQL */
/*
 * nats_loop.h: would a copy for dead_topic come back to the same consumer? Then it would die there
 * again, and its copy too, without end. Used by nats.c alone.
 */
#pragma once

#include <nats/nats.h>

#include "broker.h"

typedef enum nats_loop {
	NATS_LOOP_NO,
	NATS_LOOP_YES,    /* problem says how the copy comes back */
	NATS_LOOP_UNKNOWN /* the server did not tell; problem says why */
} nats_loop;

/* True: the pattern ("order.>", "order.*.paid") matches the subject. */
bool nats_subject_takes(const char *pattern, const char *subject);
/* Asks about the stream. filter: the part of it that is read; NULL: all. */
nats_loop nats_loop_find(jsCtx *js, const char *stream, const char *filter, const char *dead_topic,
                         char problem[BROKER_PROBLEM_BYTES]);
