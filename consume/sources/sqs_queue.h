/* SPDX-License-Identifier: PostgreSQL */
/*
 * sqs_queue.h: is the queue there, and does it keep the promise? Used by sqs.c alone.
 */
#pragma once

#include "aws.h"

typedef struct sqs_queue_want {
	const speaker *speaker;
	aws_client *client;
	const char *queue;      /* its name, or its URL */
	const char *dead_topic; /* another's, for copies; NULL: none */
	bool allows_redrive;
} sqs_queue_want;

/* Where its attributes may not be read: the most that there is. */
typedef struct sqs_queue_facts {
	int64_t retention_ms;  /* after which the queue itself deletes a message */
	int64_t message_bytes; /* that the largest message may have */
} sqs_queue_facts;

/*
 * Waits for answers. *url: free it. That attributes may not be read the log says. False: problem.
 */
bool sqs_queue_find(const sqs_queue_want *want, char **url, sqs_queue_facts *facts, char problem[BROKER_PROBLEM_BYTES]);
