/* SPDX-License-Identifier: PostgreSQL */
/* json_escape.h: escapes after a backslash in a string of JSON (RFC 8259, section 7). */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static inline bool json_read_hex4(const unsigned char **at, const unsigned char *end, uint32_t *number)
{
	if (end - *at < 4) {
		return false;
	}
	*number = 0;
	for (int i = 0; i < 4; i++) {
		unsigned char c = *(*at)++;
		if (c >= '0' && c <= '9') {
			*number = *number << 4 | (uint32_t)(c - '0');
		} else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') {
			*number = *number << 4 | (uint32_t)((c | 0x20) - 'a' + 10);
		} else {
			return false;
		}
	}
	return true;
}

#define JSON_ESCAPE_BYTES_MAX 11 /* ud83d\ude00 */

/*
 * Continues after the backslash. False: it is not an escape, or half a surrogate pair. It may be
 * that of U+0000.
 */
static inline bool json_read_escape(const unsigned char **at, const unsigned char *end, uint32_t *c)
{
	static const char names[] = "\"\\/bfnrt";
	static const char meanings[] = "\"\\/\b\f\n\r\t";
	uint32_t low = 0;

	if (*at == end || **at == '\0') {
		return false;
	}
	unsigned char name = *(*at)++;
	const char *known = strchr(names, name);
	if (known != NULL) {
		*c = (unsigned char)meanings[known - names];
		return true;
	}
	if (name != 'u' || !json_read_hex4(at, end, c) || (*c >= 0xDC00 && *c <= 0xDFFF)) {
		return false;
	}
	if (*c >= 0xD800 && *c <= 0xDBFF) {
		if (end - *at < 2 || (*at)[0] != '\\' || (*at)[1] != 'u') {
			return false;
		}
		*at += 2;
		if (!json_read_hex4(at, end, &low) || low < 0xDC00 || low > 0xDFFF) {
			return false;
		}
		*c = 0x10000 + ((*c - 0xD800) << 10) + (low - 0xDC00);
	}
	return true;
}
