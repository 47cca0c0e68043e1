/* SPDX-License-Identifier: PostgreSQL */
/* filter.h: a value of JSON as text in a page: the filters of render.h, and the escaping. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "buffer.h"

typedef enum filter {
	FILTER_NONE,
	FILTER_AGE,
	FILTER_BYTES,
	FILTER_NUMBER,
	FILTER_TIME,
	FILTER_URL,
	FILTER_JSON
} filter;

/* False: there is no such filter. */
bool filter_find(const char *name, filter *filter);
/* Escaped for HTML, also for an attribute in quotes. NULL and null: nothing. */
void filter_write(buffer *out, filter filter, const json_t *value);
