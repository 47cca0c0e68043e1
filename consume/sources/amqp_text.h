/* SPDX-License-Identifier: PostgreSQL */
/* amqp_text.h: a message's AMQP properties and headers, of any type, as text. For rabbitmq.c. */
#pragma once

#include "librabbitmq.h"
#include "source.h"

/* Reused from message to message; call text_buffer_free at the end. */
typedef struct text_buffer {
	char *data;
	size_t length, size;
} text_buffer;

void text_buffer_free(text_buffer *buffer);

/*
 * Writes the properties that are set (message-id, content-type, correlation-id, type, ..., under
 * AMQP's names) and then the headers as name, NUL, value, NUL. Text and bytes are unchanged;
 * numbers are decimal; booleans are true and false; times are RFC 3339; tables and lists are
 * compact JSON; void is "". Returns the number of pairs.
 */
size_t amqp_text_headers(const amqp_basic_properties_t *properties, text_buffer *buffer);
/*
 * Returns where the pair after `at` begins, and fills the header from the pair at `at`. Its texts
 * are borrowed.
 */
size_t amqp_text_pair(const text_buffer *buffer, size_t at, source_header *header);
