/* SPDX-License-Identifier: PostgreSQL */
/*
 * rabbitmq_publisher.h: publishes copies of dead messages and waits for the broker's confirms. It
 * has its own connection, since the confirms would arrive between messages. For rabbitmq.c.
 */
#pragma once

#include "rabbitmq.h"
#include "source.h"

/* The caller sets the address and the name; the rest is zero. Both must outlive it. */
typedef struct rabbitmq_publisher {
	const broker_address *address;
	const char *name; /* of the connection, in the broker's lists */
	/* with a channel in confirm mode; NULL: none */
	amqp_connection_state_t connection;
	int64_t used_ms;
} rabbitmq_publisher;

/*
 * Like source_class.publish; connects if needed. `topic` is a queue: the default exchange delivers
 * to it, or reports that it does not exist.
 */
bool rabbitmq_publisher_send(rabbitmq_publisher *publisher, const char *topic, const source_message *message,
                             const source_header *more, size_t more_count, int timeout_ms,
                             char problem[BROKER_PROBLEM_BYTES]);
void rabbitmq_publisher_stop(rabbitmq_publisher *publisher, bool polite);
