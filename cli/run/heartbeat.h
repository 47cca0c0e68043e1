/* SPDX-License-Identifier: PostgreSQL */
/*
 * heartbeat.h: a thread that renews the lease of a claimed intent at a third of the lease, on a
 * session that only it uses while it runs, so that a database that does not answer holds up neither
 * CMD's output nor its signals.
 */
#pragma once

#include "cli.h"

typedef struct heartbeat heartbeat;

enum {
	HEARTBEAT_LOST = 'L', /* another attempt has the intent: reported once, then no more renewals */
	/* a whole lease has passed without a renewal: reported once; it keeps trying */
	HEARTBEAT_LATE = 'U',
	HEARTBEAT_ENDED = 'E' /* the thread is done with its session */
};

/* Takes the session. NULL if no thread can be created; the session then stays the caller's. */
heartbeat *heartbeat_start(const char *conninfo, once_session *session, const once_intent *intent, int fence,
                           int64_t lease_ms);
/*
 * Readable when it has a message; -1 after its last one. heartbeat_take reads one message; 0: none.
 */
int heartbeat_fd(const heartbeat *heartbeat);
char heartbeat_take(heartbeat *heartbeat);
/*
 * Stops it, returns the session (NULL: it has none, or hangs in a call) and the time of the last
 * renewal (CLOCK_MONOTONIC).
 */
once_session *heartbeat_stop(heartbeat *heartbeat, int64_t *renewed_at_ms);

int64_t monotonic_ms(void);
