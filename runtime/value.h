/* SPDX-License-Identifier: PostgreSQL */
/*
 * value.h: values that users write, on the command line and in the configuration: numbers,
 * durations, sizes, words. Knows no option.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef enum value_kind {
	VALUE_NUMBER,
	VALUE_DURATION, /* milliseconds: 500ms, 60s, 5m, 2h, 7d, 4w */
	VALUE_BYTES     /* 4096, 64k, 5M, 1G, also 64kB, 64KiB: k is 1024 */
} value_kind;

/*
 * A whole number and its unit. False: the text is not one, or is negative. A value that does not
 * fit becomes INT64_MAX, which no option accepts.
 */
bool value_parse(value_kind kind, const char *text, int64_t *value);
#define VALUE_SHOWN_BYTES 32
/* In the largest unit that gives a whole number; 7d rather than 1w. Returns the buffer. */
const char *value_show(value_kind kind, int64_t value, char buffer[VALUE_SHOWN_BYTES]);
/* The index of the text among the words, which are separated by '|'. */
bool value_choose(const char *choices, const char *text, int64_t *index);
/*
 * How many letters must be changed, added or removed to turn one into the other (Levenshtein);
 * words of more than 63 letters are far from everything.
 */
int value_distance(const char *a, const char *b);
