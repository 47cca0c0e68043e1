/* SPDX-License-Identifier: PostgreSQL */
/* rows.h: the order of a list, to merge the lists of several nodes as if one had made it. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

typedef enum rows_by {
	ROWS_OLDEST, /* first, of a time as PostgreSQL's JSON has it */
	ROWS_NEWEST,
	ROWS_MOST, /* of a number */
	ROWS_TEXT  /* by its bytes, as COLLATE "C" */
} rows_by;

typedef struct rows_order {
	const char *member;
	rows_by by;
} rows_order;

/* Below zero: `one` comes before `other`. The order ends with member NULL. */
int rows_compare(const json_t *one, const json_t *other, const rows_order *order);
/*
 * The first rows of two sorted arrays of objects, as one sorted array; of equal rows that of
 * `first` comes before. Takes both references.
 */
json_t *rows_merge(json_t *first, json_t *second, const rows_order *order, size_t count_max);
