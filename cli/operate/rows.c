/* SPDX-License-Identifier: PostgreSQL */
/* rows.c: see rows.h. */
#include "rows.h"

#include <string.h>

#include "moment.h"
#include "operator.h"

static int compare_numbers(int64_t one, int64_t other)
{
	return (one > other) - (one < other);
}

static int64_t time_of(const json_t *row, const char *member)
{
	int64_t at = 0;

	return moment_parse(operator_text(row, member), &at) ? at : 0;
}

int rows_compare(const json_t *one, const json_t *other, const rows_order *order)
{
	int compared = 0;

	for (; order->member != NULL && compared == 0; order++) {
		switch (order->by) {
		case ROWS_OLDEST:
			compared = compare_numbers(time_of(one, order->member), time_of(other, order->member));
			break;
		case ROWS_NEWEST:
			compared = compare_numbers(time_of(other, order->member), time_of(one, order->member));
			break;
		case ROWS_MOST:
			compared = compare_numbers(json_integer_value(json_object_get(other, order->member)),
			                           json_integer_value(json_object_get(one, order->member)));
			break;
		case ROWS_TEXT:
			compared = strcmp(operator_text(one, order->member), operator_text(other, order->member));
			break;
		}
	}
	return compared;
}

json_t *rows_merge(json_t *first, json_t *second, const rows_order *order, size_t count_max)
{
	json_t *merged = json_array();
	size_t of_first = 0, of_second = 0;

	while (json_array_size(merged) < count_max) {
		json_t *one = json_array_get(first, of_first), *other = json_array_get(second, of_second);
		if (one == NULL && other == NULL) {
			break;
		}
		bool takes_first = other == NULL || (one != NULL && rows_compare(one, other, order) <= 0);
		json_array_append(merged, takes_first ? one : other);
		of_first += takes_first;
		of_second += !takes_first;
	}
	json_decref(first);
	json_decref(second);
	return merged;
}
