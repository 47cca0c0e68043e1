/* SPDX-License-Identifier: PostgreSQL */
/* buffer.h: a growing run of bytes with a maximum. Zero-initialise it with its maximum; free it with buffer_free. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

typedef struct buffer {
	unsigned char *data;
	size_t length;
	size_t capacity;
	size_t bytes_max; /* never grows beyond */
} buffer;

/* False, and nothing appended, where it would pass the maximum. */
bool buffer_append(buffer *buffer, const void *data, size_t length);
void buffer_free(buffer *buffer);
/* Reads a file, or standard input for "-". 0, EFBIG where it is larger than the maximum, or another errno. */
int buffer_read_file(buffer *buffer, const char *path);
