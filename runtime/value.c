/* SPDX-License-Identifier: PostgreSQL */
/* value.c: see value.h. */
#include "value.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct unit {
	const char *name;
	int64_t factor;
	bool is_only_read;
} unit;

#define KIB INT64_C(1024)
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)
/* Of several units with one factor, the first is used for output. */
static const unit none[] = {{"", 1, false}, {NULL, 0, false}};
static const unit durations[] = {{"ms", 1, false},
                                 {"s", 1000, false},
                                 {"m", 60 * 1000, false},
                                 {"h", 60 * 60 * 1000, false},
                                 {"d", 24 * 60 * 60 * 1000, false},
                                 {"w", 7 * 24 * 60 * 60 * 1000, true},
                                 {NULL, 0, false}};
static const unit sizes[] = {{"", 1, false},     {"B", 1, true},     {"k", KIB, false},  {"K", KIB, true},
                             {"kB", KIB, true},  {"KB", KIB, true},  {"KiB", KIB, true}, {"M", MIB, false},
                             {"MB", MIB, true},  {"MiB", MIB, true}, {"G", GIB, false},  {"GB", GIB, true},
                             {"GiB", GIB, true}, {NULL, 0, false}};

static const unit *units_of(value_kind kind)
{
	return kind == VALUE_DURATION ? durations : kind == VALUE_BYTES ? sizes : none;
}

bool value_parse(value_kind kind, const char *text, int64_t *value)
{
	char *end = NULL;

	if (text[0] < '0' || text[0] > '9') {
		return false;
	}
	int64_t amount = strtoll(text, &end, 10);
	for (const unit *u = units_of(kind); u->name != NULL; u++) {
		if (strcmp(u->name, end) == 0) {
			if (__builtin_mul_overflow(amount, u->factor, value)) {
				*value = INT64_MAX;
			}
			return true;
		}
	}
	return false;
}

const char *value_show(value_kind kind, int64_t value, char buffer[VALUE_SHOWN_BYTES])
{
	const unit *best = units_of(kind);

	for (const unit *u = best; u->name != NULL; u++) {
		best = value != 0 && value % u->factor == 0 && !u->is_only_read ? u : best;
	}
	snprintf(buffer, VALUE_SHOWN_BYTES, "%" PRId64 "%s", value / best->factor, best->name);
	return buffer;
}

bool value_choose(const char *choices, const char *text, int64_t *index)
{
	size_t length = strlen(text);

	*index = 0;
	for (const char *at = choices; length > 0; (*index)++) {
		size_t word = strcspn(at, "|");
		if (word == length && strncmp(at, text, length) == 0) {
			return true;
		}
		if (at[word] == '\0') {
			return false;
		}
		at += word + 1;
	}
	return false;
}

int value_distance(const char *a, const char *b)
{
	enum {
		LENGTH_MAX = 63
	};
	size_t a_length = strlen(a);
	size_t b_length = strlen(b);
	int row[LENGTH_MAX + 1];

	if (a_length > LENGTH_MAX || b_length > LENGTH_MAX) {
		return LENGTH_MAX;
	}
	for (size_t j = 0; j <= b_length; j++) {
		row[j] = (int)j;
	}
	for (size_t i = 1; i <= a_length; i++) {
		int diagonal = row[0];
		row[0] = (int)i;
		for (size_t j = 1; j <= b_length; j++) {
			int best = diagonal + (a[i - 1] != b[j - 1]);
			best = row[j] + 1 < best ? row[j] + 1 : best;
			best = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
			diagonal = row[j];
			row[j] = best;
		}
	}
	return row[b_length];
}
