/* SPDX-License-Identifier: PostgreSQL */
/*
 * fuzz.h: what the fuzz targets share: what must hold, and the input taken apart piece by piece. At
 * the input's end everything is 0 and empty.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Where it does not hold, the log says what. */
#define must(promise) ((promise) ? (void)0 : must_have(#promise, __LINE__))

static inline void must_have(const char *promise, int line)
{
	fprintf(stderr, "line %d: not so: %s\n", line, promise);
	abort();
}

typedef struct input {
	const uint8_t *data;
	size_t size;
} input;

static inline uint8_t take_byte(input *in)
{
	if (in->size == 0) {
		return 0;
	}
	in->size--;
	return *in->data++;
}

static inline uint64_t take_number(input *in)
{
	uint64_t number = 0;

	for (int i = 0; i < 8; i++) {
		number = number << 8 | take_byte(in);
	}
	return number;
}

/*
 * Exactly as many bytes as are asked for, or as there are, in memory of their own, with a NUL
 * behind them: free it.
 */
static inline char *take_bytes(input *in, size_t length)
{
	length = length < in->size ? length : in->size;
	char *bytes = malloc(length + 1);

	must(bytes != NULL);
	if (length > 0) {
		memcpy(bytes, in->data, length);
	}
	bytes[length] = '\0';
	in->data += length;
	in->size -= length;
	return bytes;
}

/* A byte says how many; *length (may be NULL): how many there were. */
static inline char *take_text(input *in, size_t *length)
{
	size_t wanted = take_byte(in);

	if (length != NULL) {
		*length = wanted < in->size ? wanted : in->size;
	}
	return take_bytes(in, wanted);
}
