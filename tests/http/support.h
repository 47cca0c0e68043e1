/* SPDX-License-Identifier: PostgreSQL */
/*
 * support.h: what the tests of lib/http share: cmocka, texts, and allocations that fail on demand
 * (memory.c).
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "http.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static inline http_text text_of(const char *text)
{
	return (http_text){.data = text, .length = strlen(text)};
}

/* A key as a Structured Field String, with its quotes. out: 2 * ONCE_KEY_BYTES_MAX + 3 bytes. */
static inline size_t quote(const char *key, size_t length, char *out)
{
	size_t at = 0;
	out[at++] = '"';
	for (size_t i = 0; i < length; i++) {
		if (key[i] == '"' || key[i] == '\\') {
			out[at++] = '\\';
		}
		out[at++] = key[i];
	}
	out[at++] = '"';
	out[at] = '\0';
	return at;
}

/* The allocation that brings this to 0 fails; below 0 none does. */
extern int memory_countdown;
