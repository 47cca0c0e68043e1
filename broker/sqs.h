/* SPDX-License-Identifier: PostgreSQL */
/* sqs.h: shared by the SQS sink and source: queues by name, and requests in JSON. */
#pragma once

#include <jansson.h>

#include "aws.h"
#include "aws_attributes.h"

/* The limit of a message, or of a call; a queue may set a lower one (MaximumMessageSize). */
#define SQS_MESSAGE_BYTES_MAX ((size_t)1 << 20)
#define SQS_BATCH_MAX 10

/* "orders", "orders.fifo", or a queue's URL. */
bool sqs_is_queue(const char *text);
bool sqs_is_fifo(const char *queue);
/* The name in a URL; a name is returned unchanged. */
const char *sqs_name(const char *queue);
/* The call as JSON; `request` is taken over. False: out of memory, or a text in it is not UTF-8. */
bool sqs_call(aws_call *call, const char *target, json_t *request);
/*
 * The queue's URL, asked from SQS (waits for the answer) unless it is one already. AWS_DONE: *url
 * (free it); else problem.
 */
aws_result sqs_find(aws_client *client, const char *queue, char **url, char problem[BROKER_PROBLEM_BYTES]);
/*
 * A message for SendMessage and SendMessageBatch; NULL: out of memory, or the body is not text. For
 * a FIFO queue `group` and `deduplication` are given.
 */
json_t *sqs_message(once_bytes body, const aws_attributes *attributes, const char *group, const char *deduplication);
