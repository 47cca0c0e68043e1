/* SPDX-License-Identifier: PostgreSQL */
/*
 * fuzz_fingerprint.c: a request's fingerprint does not depend on how its body is cut into pieces,
 * and differs where one byte does; the canonical form of JSON is JSON, is its own canonical form,
 * and does not depend on the order of members or on space. tests/fuzz/test_fuzz.py builds and runs
 * it. Input: a byte (how to cut), then method, target and content type, each ended by a line feed,
 * and the body.
 */
#include <stdio.h>

#include "fuzz.h"
#include "pgonce_batcher.h"

static const unsigned char salt[ONCE_SALT_BYTES] = {1, 2, 3};

typedef struct request {
	char *parts[3];
	const char *body;
	size_t body_bytes;
} request;

static once_fingerprint fingerprint_of(const request *request, uint8_t cut)
{
	once_hash *hash = NULL;
	once_fingerprint fingerprint;
	must(once_hash_start(salt, request->parts[0], request->parts[1], request->parts[2], request->body_bytes, &hash,
	                     NULL) == ONCE_OK);
	size_t at = 0;
	size_t seed = cut;
	while (at < request->body_bytes) {
		seed = seed * 31 + 7;
		size_t left = request->body_bytes - at;
		size_t length = cut == 0 ? left : seed % (left + 1);
		must(once_hash_add(hash, (once_bytes){request->body + at, length}, NULL) == ONCE_OK);
		at += length;
	}
	must(once_hash_add(hash, (once_bytes){"x", 1}, NULL) == ONCE_USAGE);
	must(once_hash_finish(hash, &fingerprint, NULL) == ONCE_OK);
	once_hash_free(hash);
	return fingerprint;
}

static bool same(once_fingerprint a, once_fingerprint b)
{
	return memcmp(a.bytes, b.bytes, sizeof a.bytes) == 0;
}

/* The canonical form of {"first":body,"second":body}, spaced out; NULL where there is none. */
static char *canonical_object(const char *first, const char *second, const char *body, size_t body_bytes)
{
	char *text = malloc(2 * body_bytes + 64);
	must(text != NULL);
	size_t length = (size_t)sprintf(text, " {\"%s\" : ", first);
	memcpy(text + length, body, body_bytes);
	length += body_bytes;
	length += (size_t)sprintf(text + length, ",\n\"%s\":\t", second);
	memcpy(text + length, body, body_bytes);
	length += body_bytes;
	text[length++] = '}';
	char *canonical = NULL;
	size_t canonical_length = 0;
	must(once_json_canonical((once_bytes){text, length}, &canonical, &canonical_length, NULL) == ONCE_OK);
	free(text);
	if (canonical == NULL) {
		return NULL;
	}
	char *terminated = realloc(canonical, canonical_length + 1);
	must(terminated != NULL);
	terminated[canonical_length] = '\0';
	return terminated;
}

/* body is JSON. */
static void check_members(const char *body, size_t body_bytes)
{
	char *forwards = canonical_object("a", "b", body, body_bytes);
	char *backwards = canonical_object("\\u0062", "a", body, body_bytes);
	/* Nested as deep as allowed already, it is too deep now. */
	must((forwards == NULL) == (backwards == NULL));
	must(forwards == NULL || strcmp(forwards, backwards) == 0);
	must(canonical_object("a", "\\u0061", body, body_bytes) == NULL);
	free(forwards);
	free(backwards);
}

static void check_canonical(const char *body, size_t body_bytes)
{
	char *once = NULL;
	char *twice = NULL;
	size_t length = 0;
	size_t twice_length = 0;
	must(once_json_canonical((once_bytes){body, body_bytes}, &once, &length, NULL) == ONCE_OK);
	if (once == NULL) {
		return;
	}
	/*
	 * What grows most is a number such as 1e99, to a hundred digits; they may take it past the
	 * longest text.
	 */
	must(length > 0 && length <= 25 * body_bytes);
	must(once_json_canonical((once_bytes){once, length}, &twice, &twice_length, NULL) == ONCE_OK);
	must(twice != NULL ? twice_length == length && memcmp(once, twice, length) == 0
	                   : length > ONCE_CANONICAL_BYTES_MAX);
	free(twice);
	free(once);
	check_members(body, body_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size == 0) {
		return 0;
	}
	uint8_t cut = data[0];
	char *copy = malloc(size);
	must(copy != NULL);
	memcpy(copy, data + 1, size - 1);
	copy[size - 1] = '\0';
	char *at = copy;
	char *end = copy + size - 1;
	request request;
	for (int i = 0; i < 3; i++) {
		char *line = memchr(at, '\n', (size_t)(end - at));
		request.parts[i] = at;
		at = line == NULL ? end : line + 1;
		if (line != NULL) {
			*line = '\0';
		}
	}
	request.body = at;
	request.body_bytes = (size_t)(end - at);

	once_fingerprint whole = fingerprint_of(&request, 0);
	must(same(whole, fingerprint_of(&request, cut)));
	check_canonical(request.body, request.body_bytes);
	if (request.body_bytes > 0) {
		at[cut % request.body_bytes] ^= 1;
		must(!same(whole, fingerprint_of(&request, cut)));
	}
	free(copy);
	return 0;
}
