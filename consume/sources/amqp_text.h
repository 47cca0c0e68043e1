/* SPDX-License-Identifier: PostgreSQL */
/*
 * amqp_text.h: a message's AMQP properties and headers, of whatever type, as text. For
 * rabbitmq.c.
 */
#pragma once

#include "librabbitmq.h"
#include "source.h"

/* Reused from message to message; text_buffer_free at the end. */
typedef struct text_buffer {
	char *data;
	size_t length, size;
} text_buffer;

void text_buffer_free(text_buffer *buffer);

/*
 * Writes the properties that are set (message-id, content-type, correlation-id, type, ..., under
 * AMQP's names) and then the headers as name, NUL, value, NUL. Text and bytes as they are; numbers
 * in decimal; truth as true and false; times in RFC 3339; tables and lists as compact JSON; nothing
 * (void) as "". How many there are.
 */
size_t amqp_text_headers(const amqp_basic_properties_t *properties, text_buffer *buffer);
/*
 * Where pair `at` of the buffer begins, and where the next one does: fills the header, whose texts
 * are borrowed.
 */
size_t amqp_text_pair(const text_buffer *buffer, size_t at, source_header *header);
