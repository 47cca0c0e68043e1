/* SPDX-License-Identifier: PostgreSQL */
/*
 * nats_message.h: a JetStream message as a delivery, and back as a message to publish. Used by
 * nats.c alone.
 */
#pragma once

#include <nats/nats.h>

#include "delivery.h"

/*
 * True: the message says where in a stream it is, which is also where it is acknowledged. A message
 * that another client published to our subject does not: all messages without a place would be
 * taken for the same one.
 */
bool nats_message_has_place(natsMsg *message);
/* Takes over the message: natsMsg_Destroy(delivery->owned) and free(delivery) end it. */
delivery *nats_message_wrap(natsMsg *message, const char *stream);
/* *copy: the caller destroys it, also after a failure. */
natsStatus nats_message_copy(natsMsg **copy, const char *topic, const source_message *message,
                             const source_header *more, size_t more_count);
