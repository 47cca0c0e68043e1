/* SPDX-License-Identifier: PostgreSQL */
/*
 * rabbitmq_queue.h: the queue that a consumer reads, and does it give messages up? For
 * rabbitmq.c.
 */
#pragma once

#include "rabbitmq.h"

#define RABBITMQ_NO_LIMIT (-1)

typedef struct rabbitmq_queue_want {
	const speaker *speaker;
	const char *queue, *exchange, *bind; /* exchange NULL: it is not bound */
	bool declare, is_quorum;             /* is_quorum: of one that is made */
	bool allows_limit;
} rabbitmq_queue_want;

/*
 * Finds the queue, or makes and binds it. *limit: after so many returns the queue gives a message
 * up, as far as AMQP shows it (a policy it does not show), or RABBITMQ_NO_LIMIT. False: problem;
 * also where there is such a limit that is not allowed.
 */
bool rabbitmq_queue_find(amqp_connection_state_t connection, const rabbitmq_queue_want *want, int64_t *limit,
                         char problem[BROKER_PROBLEM_BYTES]);
/* How often a message of a quorum queue was delivered before; 0: never, or another queue's. */
int64_t rabbitmq_deliveries(const amqp_basic_properties_t *properties);
