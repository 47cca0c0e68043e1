/* SPDX-License-Identifier: PostgreSQL */
/* sqs_queue.h: checks that the queue exists and keeps the promise. Used by sqs.c alone. */
#pragma once

#include "aws.h"

typedef struct sqs_queue_want {
	const speaker *speaker;
	aws_client *client;
	const char *queue;      /* its name, or its URL */
	const char *dead_topic; /* another queue's, for copies; NULL: not set */
	bool allows_redrive;
} sqs_queue_want;

/* If its attributes may not be read: the maximum values. */
typedef struct sqs_queue_facts {
	int64_t retention_ms;  /* after which the queue itself deletes a message */
	int64_t message_bytes; /* the largest message allowed */
} sqs_queue_facts;

/*
 * Waits for answers. *url: free it. If the attributes may not be read, that is logged. False:
 * problem.
 */
bool sqs_queue_find(const sqs_queue_want *want, char **url, sqs_queue_facts *facts, char problem[BROKER_PROBLEM_BYTES]);
