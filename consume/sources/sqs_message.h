/* SPDX-License-Identifier: PostgreSQL */
/*
 * sqs_message.h: an SQS message as a delivery, and back as a message to send. Used by sqs.c and
 * sqs_errands.c.
 */
#pragma once

#include <jansson.h>

#include "aws_attributes.h"
#include "aws_sign.h"
#include "delivery.h"

/*
 * From an answer's `message`, which is kept (delivery->owned); release it. reply is its receipt
 * handle. NULL: not a message. queue: the queue's name; it must outlive the delivery.
 */
delivery *sqs_message_wrap(json_t *message, const char *queue);
/* Its payload is no longer needed. */
void sqs_message_empty(delivery *delivery);
void sqs_message_release(delivery *delivery);
/* Its message group; "" in a standard queue. */
const char *sqs_message_group(const delivery *delivery);
/* A random, unique id of 32 digits. False: there is no randomness. */
bool sqs_message_id(char id[AWS_SHA256_HEX_BYTES]);
/* A copy in SendMessage's form, with `more` headers; NULL: it is not text. */
json_t *sqs_message_copy(const source_message *message, const source_header *more, size_t more_count, bool fifo);
