/* SPDX-License-Identifier: PostgreSQL */
/*
 * nats_inbox.h: where messages come in, one after another. A queue of our own behind a subscription
 * with a callback: the library's natsSubscription_NextMsg takes a message for the server's "no
 * responders", and destroys it, where it has the header "Status: 503" and no payload, as any
 * producer may send one. Used by nats.c alone.
 */
#pragma once

#include <nats/nats.h>

typedef struct nats_inbox nats_inbox;

/* Subscribes; the connection outlives it. NULL with *status: it cannot. */
nats_inbox *nats_inbox_open(natsConnection *connection, natsStatus *status);
/* The subject for what is to come here. */
const char *nats_inbox_subject(const nats_inbox *inbox);
/*
 * The next, waiting at most timeout_ms: NATS_OK (the caller destroys it), NATS_TIMEOUT,
 * NATS_CONNECTION_CLOSED, NATS_NO_MEMORY (one that came could not be kept).
 */
natsStatus nats_inbox_take(nats_inbox *inbox, int timeout_ms, natsMsg **message);
/* Nothing comes any more, and what came can be taken; waits at most timeout_ms. */
void nats_inbox_end(nats_inbox *inbox, int timeout_ms);
/* What nobody took is destroyed. Takes NULL. */
void nats_inbox_close(nats_inbox *inbox);
