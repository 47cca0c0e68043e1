/* SPDX-License-Identifier: PostgreSQL */
/* capture.c: writes and reads the format of capture.h. */
#include <assert.h>
#include <string.h>

#include "capture.h"

enum {
	HEAD_BYTES = 5,
	COUNTS_BYTES = 16,
	/* The space that capture_truncate and capture_finish always need. */
	RESERVED_BYTES = HEAD_BYTES + COUNTS_BYTES + HEAD_BYTES + 1
};

static void put_number(unsigned char *at, uint64_t number, int bytes)
{
	for (int i = 0; i < bytes; i++) {
		at[i] = (unsigned char)(number >> (8 * (bytes - 1 - i)));
	}
}

static uint64_t get_number(const unsigned char *at, int bytes)
{
	uint64_t number = 0;

	for (int i = 0; i < bytes; i++) {
		number = number << 8 | at[i];
	}
	return number;
}

void capture_start(capture *capture, size_t bytes_max)
{
	assert(bytes_max >= CAPTURE_BYTES_MIN);
	memset(capture, 0, sizeof *capture);
	capture->bytes.bytes_max = bytes_max;
}

static void add_chunk(capture *capture, char kind, const void *data, size_t length)
{
	unsigned char head[HEAD_BYTES];

	head[0] = (unsigned char)kind;
	put_number(head + 1, length, 4);
	capture->chunk_at = capture->bytes.length;
	capture->chunk_kind = kind;
	bool fits = bytes_append(&capture->bytes, head, sizeof head) && bytes_append(&capture->bytes, data, length);
	assert(fits);
	(void)fits;
}

void capture_add(capture *capture, char kind, const void *data, size_t length)
{
	assert(kind == 'o' || kind == 'e');
	*(kind == 'o' ? &capture->out_bytes : &capture->err_bytes) += length;
	if (capture->truncated || length == 0) {
		return;
	}
	size_t needed = length + (capture->chunk_kind == kind ? 0 : HEAD_BYTES) + RESERVED_BYTES;
	if (needed > capture->bytes.bytes_max - capture->bytes.length) {
		capture_truncate(capture);
		return;
	}
	if (capture->chunk_kind != kind) {
		add_chunk(capture, kind, data, length);
		return;
	}
	bool fits = bytes_append(&capture->bytes, data, length);
	assert(fits);
	(void)fits;
	/* A capture is at most 64 MiB, so a chunk's length always fits into its four bytes. */
	put_number(capture->bytes.data + capture->chunk_at + 1, capture->bytes.length - capture->chunk_at - HEAD_BYTES, 4);
}

void capture_truncate(capture *capture)
{
	capture->truncated = true;
	capture->bytes.length = 0;
	capture->chunk_kind = 0;
}

void capture_finish(capture *capture, int exit_status)
{
	unsigned char status = (unsigned char)exit_status;

	if (capture->truncated) {
		unsigned char counts[COUNTS_BYTES];
		capture->bytes.length = 0;
		put_number(counts, capture->out_bytes, 8);
		put_number(counts + 8, capture->err_bytes, 8);
		add_chunk(capture, 't', counts, sizeof counts);
	}
	add_chunk(capture, 'x', &status, 1);
	int stored_status = 0;
	assert(capture_check(capture->bytes.data, capture->bytes.length, &stored_status) && stored_status == exit_status);
	(void)stored_status;
}

void capture_free(capture *capture)
{
	bytes_free(&capture->bytes);
}

bool capture_next(const unsigned char *data, size_t length, size_t *offset, capture_chunk *chunk)
{
	if (length - *offset < HEAD_BYTES) {
		return false;
	}
	const unsigned char *head = data + *offset;
	size_t chunk_bytes = (size_t)get_number(head + 1, 4);
	if (chunk_bytes > length - *offset - HEAD_BYTES) {
		return false;
	}
	chunk->kind = (char)head[0];
	chunk->data = head + HEAD_BYTES;
	chunk->length = chunk_bytes;
	*offset += HEAD_BYTES + chunk_bytes;
	return true;
}

bool capture_check(const unsigned char *data, size_t length, int *exit_status)
{
	size_t offset = 0;
	capture_chunk chunk;

	while (capture_next(data, length, &offset, &chunk)) {
		switch (chunk.kind) {
		case 'o':
		case 'e':
			break;
		case 't':
			if (chunk.length != COUNTS_BYTES) {
				return false;
			}
			break;
		case 'x':
			if (chunk.length != 1 || offset != length) {
				return false;
			}
			*exit_status = chunk.data[0];
			return true;
		default:
			return false;
		}
	}
	return false;
}

void capture_counts(const capture_chunk *chunk, uint64_t *out_bytes, uint64_t *err_bytes)
{
	assert(chunk->kind == 't' && chunk->length == COUNTS_BYTES);
	*out_bytes = get_number(chunk->data, 8);
	*err_bytes = get_number(chunk->data + 8, 8);
}
