/* SPDX-License-Identifier: PostgreSQL */
/*
 * sqs_queue.h: is the queue there, and does it keep the promise? Used by source_sqs.c alone.
 */
#pragma once

#include "aws.h"

typedef struct sqs_queue_want {
	const service *service;
	aws_client *client;
	const char *queue; /* its name, or its URL */
	bool allows_redrive;
} sqs_queue_want;

/*
 * Waits for answers. *url: free it. *retention_ms: after which the queue itself deletes a message;
 * the longest there is where its attributes may not be read, which the log says. False: problem.
 */
bool sqs_queue_find(const sqs_queue_want *want, char **url, int64_t *retention_ms, char problem[BROKER_PROBLEM_BYTES]);
