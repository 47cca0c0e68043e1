/* SPDX-License-Identifier: PostgreSQL */
/* row.h: PostgreSQL's binary formats, as far as the relay reads and writes them. Used by reader.c alone. */
#pragma once

#include <libpq-fe.h>

#include "event.h"
#include "reader.h"

int64_t row_int8(const PGresult *result, int row, int column);
int32_t row_int4(const PGresult *result, int row, int column);
bool row_bool(const PGresult *result, int row, int column);
char *row_text(const PGresult *result, int row, int column); /* a copy; NULL for NULL */
/* The event in row 0, with the columns of relay_fetch.sql. */
event *row_event(const PGresult *result);

/* Arrays of the items' parts, as parameters. */
typedef struct row_arrays {
	char *ids, *xids, *days;
	size_t ids_length, xids_length, days_length;
	size_t room; /* in items */
} row_arrays;

void row_arrays_fill(row_arrays *arrays, const reader_item *items, size_t count);
/* A bigint[]; free it. */
char *row_int8_array(const int64_t *numbers, size_t count, size_t *length);
void row_arrays_free(row_arrays *arrays);
