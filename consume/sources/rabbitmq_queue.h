/* SPDX-License-Identifier: PostgreSQL */
/*
 * rabbitmq_queue.h: the queue that a consumer reads, and whether it drops messages. For rabbitmq.c.
 */
#pragma once

#include "rabbitmq.h"

#define RABBITMQ_NO_LIMIT (-1)

typedef struct rabbitmq_queue_want {
	const speaker *speaker;
	const char *queue, *exchange, *bind; /* exchange NULL: it is not bound */
	bool declare, is_quorum;             /* is_quorum: for a queue that is created */
	bool allows_limit;
} rabbitmq_queue_want;

/*
 * Finds the queue, or creates and binds it. *limit: after how many returns the queue drops a
 * message, as far as AMQP shows it (it does not show a policy), or RABBITMQ_NO_LIMIT. False:
 * problem; also if the queue has a limit and that is not allowed.
 */
bool rabbitmq_queue_find(amqp_connection_state_t connection, const rabbitmq_queue_want *want, int64_t *limit,
                         char problem[BROKER_PROBLEM_BYTES]);
/* How often a quorum queue delivered the message before; 0: never, or not a quorum queue. */
int64_t rabbitmq_deliveries(const amqp_basic_properties_t *properties);
