/* SPDX-License-Identifier: PostgreSQL */
/* buffer.c: text that grows up to a limit: see buffer.h. */
#include "buffer.h"
#include "utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Room for length bytes and a NUL. */
static bool reserve(buffer *buffer, size_t length)
{
	if (buffer->failed || length >= buffer->length_max - buffer->length) {
		buffer->failed = true;
		return false;
	}
	size_t needed = buffer->length + length + 1;
	if (needed > buffer->capacity) {
		size_t capacity = needed * 2 > 256 ? needed * 2 : 256;
		char *grown = realloc(buffer->data, capacity);
		if (grown == NULL) {
			buffer->failed = true;
			return false;
		}
		buffer->data = grown;
		buffer->capacity = capacity;
	}
	return true;
}

void buffer_add(buffer *buffer, const char *data, size_t length)
{
	if (length > 0 && reserve(buffer, length)) {
		memcpy(buffer->data + buffer->length, data, length);
		buffer->length += length;
	}
}

void buffer_text(buffer *buffer, const char *text)
{
	buffer_add(buffer, text, strlen(text));
}

void buffer_format(buffer *buffer, const char *format, ...)
{
	char text[256];
	va_list arguments;
	va_start(arguments, format);
	int length = vsnprintf(text, sizeof text, format, arguments);
	va_end(arguments);
	if (length < 0 || (size_t)length >= sizeof text) {
		buffer->failed = true;
		return;
	}
	buffer_add(buffer, text, (size_t)length);
}

static void add_json_byte(buffer *buffer, char byte)
{
	if (byte == '"' || byte == '\\') {
		char escaped[2] = {'\\', byte};
		buffer_add(buffer, escaped, 2);
	} else if (byte >= ' ' && byte <= '~') {
		buffer_add(buffer, &byte, 1);
	} else {
		buffer_format(buffer, "\\u%04x", (unsigned char)byte);
	}
}

void buffer_json(buffer *buffer, http_text text)
{
	buffer_add(buffer, "\"", 1);
	for (size_t i = 0; i < text.length; i++) {
		add_json_byte(buffer, text.data[i]);
	}
	buffer_add(buffer, "\"", 1);
}

void buffer_json_utf8(buffer *buffer, http_text text)
{
	buffer_add(buffer, "\"", 1);
	for (size_t i = 0; i < text.length;) {
		size_t bytes = utf8_length((const unsigned char *)&text.data[i], text.length - i);
		if (bytes <= 1) {
			add_json_byte(buffer, text.data[i++]);
		} else {
			buffer_add(buffer, &text.data[i], bytes);
			i += bytes;
		}
	}
	buffer_add(buffer, "\"", 1);
}

char *buffer_take(buffer *buffer, size_t *length)
{
	char *data = NULL;
	if (reserve(buffer, 0)) {
		data = buffer->data;
		data[buffer->length] = '\0';
		*length = buffer->length;
	} else {
		free(buffer->data);
	}
	buffer->data = NULL;
	return data;
}
