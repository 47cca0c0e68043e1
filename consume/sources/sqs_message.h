/* SPDX-License-Identifier: PostgreSQL */
/*
 * sqs_message.h: a message of SQS as a delivery, and back as a message to send. Used by
 * sqs.c and sqs_errands.c.
 */
#pragma once

#include <jansson.h>

#include "aws_attributes.h"
#include "aws_sign.h"
#include "delivery.h"

/*
 * Of an answer's `message`, which is kept (delivery->owned); release it. reply is its receipt
 * handle. NULL: it is none. queue: the queue's name, which outlives it.
 */
delivery *sqs_message_wrap(json_t *message, const char *queue);
/* Its payload is not needed any more. */
void sqs_message_empty(delivery *delivery);
void sqs_message_release(delivery *delivery);
/* The group that it stands in; "" in a queue without FIFO. */
const char *sqs_message_group(const delivery *delivery);
/* A random one of 32 digits, which no other is like. False: there is no randomness. */
bool sqs_message_id(char id[AWS_SHA256_HEX_BYTES]);
/* A copy as SendMessage has it, with `more` headers; NULL: it is no text. */
json_t *sqs_message_copy(const source_message *message, const source_header *more, size_t more_count, bool fifo);
