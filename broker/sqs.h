/* SPDX-License-Identifier: PostgreSQL */
/* sqs.h: what the sink and the source of SQS share: queues by name, and requests in JSON. */
#pragma once

#include <jansson.h>

#include "aws.h"
#include "aws_attributes.h"

/* What one message, or one call, may have; a queue may say less (MaximumMessageSize). */
#define SQS_MESSAGE_BYTES_MAX ((size_t)1 << 20)
#define SQS_BATCH_MAX 10

/* "orders", "orders.fifo", or a queue's URL. */
bool sqs_is_queue(const char *text);
bool sqs_is_fifo(const char *queue);
/* The name in a URL; a name itself. */
const char *sqs_name(const char *queue);
/* The call as JSON; `request` is taken over. False: memory is out, or a text of it is no UTF-8. */
bool sqs_call(aws_call *call, const char *target, json_t *request);
/*
 * The queue's URL, by asking for it (waits for the answer) unless it is one. AWS_DONE: *url (free
 * it); else problem.
 */
aws_result sqs_find(aws_client *client, const char *queue, char **url, char problem[BROKER_PROBLEM_BYTES]);
/*
 * A message of SendMessage and SendMessageBatch; NULL: memory is out, or the body is no text. For a
 * FIFO queue `group` and `deduplication` are given.
 */
json_t *sqs_message(once_bytes body, const aws_attributes *attributes, const char *group, const char *deduplication);
