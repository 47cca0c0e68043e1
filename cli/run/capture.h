/* SPDX-License-Identifier: PostgreSQL */
/*
 * capture.h: how the output of a command is stored, so that it can be replayed to the right
 * streams. Format version 1: chunks of {kind, 4 bytes of length (big-endian), data}, consecutive
 * output of one stream joined:
 *   'o' 'e'  bytes of standard output, of standard error, in the order in which they were read
 *   't'      too large to be stored: two 8-byte counts (big-endian), of output and of error
 *   'x'      the last chunk: one byte, the exit status
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "bytes.h"

#define CAPTURE_CONTENT_TYPE "application/vnd.pgonce.run.v1"

typedef struct capture {
	bytes bytes;
	size_t chunk_at; /* where the open chunk starts */
	char chunk_kind; /* 0: none is open */
	bool truncated;
	uint64_t out_bytes; /* seen, stored or not */
	uint64_t err_bytes;
} capture;

/* bytes_max: of the stored form. At least CAPTURE_BYTES_MIN. */
#define CAPTURE_BYTES_MIN 64
void capture_start(capture *capture, size_t bytes_max);
void capture_add(capture *capture, char kind, const void *data, size_t length);
/* Drops the output and records that it was too large. */
void capture_truncate(capture *capture);
/*
 * Adds the last chunk. May be called again after capture_truncate, if the stored form was still too
 * large for its scope.
 */
void capture_finish(capture *capture, int exit_status);
void capture_free(capture *capture);

typedef struct capture_chunk {
	char kind;
	const unsigned char *data;
	size_t length;
} capture_chunk;

/*
 * The chunk at *offset; advances *offset. False at the end, and if the bytes are not in this format
 * (*offset is then not the end).
 */
bool capture_next(const unsigned char *data, size_t length, size_t *offset, capture_chunk *chunk);
/* Are these bytes a complete capture? Then *exit_status is its exit status. */
bool capture_check(const unsigned char *data, size_t length, int *exit_status);
/* The two counts of a 't' chunk. */
void capture_counts(const capture_chunk *chunk, uint64_t *out_bytes, uint64_t *err_bytes);
