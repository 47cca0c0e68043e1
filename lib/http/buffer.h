/* SPDX-License-Identifier: PostgreSQL */
/*
 * buffer.h: text that grows up to a limit. A failure (memory, the limit) is remembered, so that a
 * writer checks once, at its end. The files of lib/http that write JSON and metrics use it, and the
 * console, for its pages.
 */
#pragma once

#include "http.h"

typedef struct buffer {
	char *data;
	size_t length;
	size_t capacity;
	size_t length_max;
	bool failed;
} buffer;

void buffer_add(buffer *buffer, const char *data, size_t length);
void buffer_text(buffer *buffer, const char *text);
__attribute__((format(printf, 2, 3))) void buffer_format(buffer *buffer, const char *format, ...);
/* A JSON string with its quotes. ASCII out: any byte outside printable ASCII is \u00xx. */
void buffer_json(buffer *buffer, http_text text);
/* The same, but valid UTF-8 beyond ASCII stays unchanged. */
void buffer_json_utf8(buffer *buffer, http_text text);
/* Terminates the text and returns it. NULL, and nothing to free, after a failure. */
char *buffer_take(buffer *buffer, size_t *length);
