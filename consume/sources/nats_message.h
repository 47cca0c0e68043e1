/* SPDX-License-Identifier: PostgreSQL */
/*
 * nats_message.h: a message of JetStream as a delivery, and back as a message to publish. Used by
 * nats.c alone.
 */
#pragma once

#include <nats/nats.h>

#include "delivery.h"

/*
 * Does it say where in a stream it stands, which is also where it is acknowledged? Somebody else's
 * who publishes to where we listen does not: without a place it would be taken for every other one
 * that has none.
 */
bool nats_message_has_place(natsMsg *message);
/* Takes the message over: natsMsg_Destroy(delivery->owned) and free(delivery) end it. */
delivery *nats_message_wrap(natsMsg *message, const char *stream);
/* *copy: to be destroyed by the caller, also after a failure. */
natsStatus nats_message_copy(natsMsg **copy, const char *topic, const source_message *message,
                             const source_header *more, size_t more_count);
