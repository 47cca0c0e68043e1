/* SPDX-License-Identifier: PostgreSQL */
/*
 * utf8.h: characters of UTF-8 as RFC 3629 defines them: no overlong form, no surrogate, nothing
 * above U+10FFFF.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/*
 * The length of the character that begins at `at`, of which `left` (at least 1) bytes may be read;
 * 0: no character begins there.
 */
static inline size_t utf8_length(const unsigned char *at, size_t left)
{
	unsigned char low = *at == 0xE0 ? 0xA0 : *at == 0xF0 ? 0x90 : 0x80;
	unsigned char high = *at == 0xED ? 0x9F : *at == 0xF4 ? 0x8F : 0xBF;
	size_t length = *at >= 0xF0 ? 4 : *at >= 0xE0 ? 3 : 2;

	if (*at < 0x80) {
		return 1;
	}
	if (*at < 0xC2 || *at > 0xF4 || left < length || at[1] < low || at[1] > high) {
		return 0;
	}
	for (size_t i = 2; i < length; i++) {
		if ((at[i] & 0xC0) != 0x80) {
			return 0;
		}
	}
	return length;
}

/* True: UTF-8 without NUL, as PostgreSQL's type text requires. */
static inline bool utf8_is_text(const void *data, size_t length)
{
	const unsigned char *at = data;
	const unsigned char *end = at + length;

	while (at < end) {
		/* Most is ASCII. */
		size_t step = *at < 0x80 ? *at != '\0' : utf8_length(at, (size_t)(end - at));
		if (step == 0) {
			return false;
		}
		at += step;
	}
	return true;
}

/* Writes a code point (no surrogate), and returns its bytes. */
static inline size_t utf8_put(char to[4], uint32_t c)
{
	static const unsigned char heads[] = {0, 0, 0xC0, 0xE0, 0xF0};
	size_t length = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;

	for (size_t i = length - 1; i > 0; i--, c >>= 6) {
		to[i] = (char)(0x80 | (c & 0x3F));
	}
	to[0] = (char)(heads[length] | c);
	return length;
}
