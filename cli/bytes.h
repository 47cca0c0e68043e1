/* SPDX-License-Identifier: PostgreSQL */
/*
 * bytes.h: a growing byte buffer with a maximum. Zero-initialise it with its maximum; free it with
 * bytes_free.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

typedef struct bytes {
	unsigned char *data;
	size_t length;
	size_t capacity;
	size_t bytes_max; /* never grows beyond */
} bytes;

/* False, and nothing is appended, if it would exceed the maximum. */
bool bytes_append(bytes *bytes, const void *data, size_t length);
void bytes_free(bytes *bytes);
/*
 * Reads a file, or standard input for "-". 0, EFBIG if it is larger than the maximum, or another
 * errno.
 */
int bytes_read_file(bytes *bytes, const char *path);
