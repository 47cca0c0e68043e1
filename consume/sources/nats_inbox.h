/* SPDX-License-Identifier: PostgreSQL */
/*
 * nats_inbox.h: where messages arrive, in order: a queue filled by a subscription's callback. The
 * library's natsSubscription_NextMsg is not used: it mistakes a message with the header "Status:
 * 503" and no payload, which any producer may send, for the server's "no responders", and destroys
 * it. Used by nats.c alone.
 */
#pragma once

#include <nats/nats.h>

typedef struct nats_inbox nats_inbox;

/* Subscribes; the connection must outlive it. NULL with *status on failure. */
nats_inbox *nats_inbox_open(natsConnection *connection, natsStatus *status);
/* The subject for messages that should arrive here. */
const char *nats_inbox_subject(const nats_inbox *inbox);
/*
 * The next message, waiting at most timeout_ms: NATS_OK (the caller destroys it), NATS_TIMEOUT,
 * NATS_CONNECTION_CLOSED, NATS_NO_MEMORY (a message that came could not be kept).
 */
natsStatus nats_inbox_take(nats_inbox *inbox, int timeout_ms, natsMsg **message);
/* Afterwards nothing more arrives, and arrived messages can be taken; waits at most timeout_ms. */
void nats_inbox_end(nats_inbox *inbox, int timeout_ms);
/* Destroys messages that were not taken. Accepts NULL. */
void nats_inbox_close(nats_inbox *inbox);
