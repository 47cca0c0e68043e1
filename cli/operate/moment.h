/* SPDX-License-Identifier: PostgreSQL */
/*
 * moment.h: times and spans, as the database writes them and as people read them. Knows no clock:
 * "now" is the database's.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Microseconds since 1970 of "2026-01-31T12:00:00.123456+05:30", PostgreSQL's JSON of a
 * timestamptz. False: it is not one.
 */
bool moment_parse(const char *text, int64_t *microseconds);
/* "850ms", "3.2s", "5m 20s", "3h 4m", "12d 3h": two units at most; the sign is left out. */
void moment_span(int64_t microseconds, char *text, size_t size);
/* "3m 2s ago", "in 5d 3h", "now". */
void moment_relative(int64_t microseconds, int64_t now, char *text, size_t size);
/* "2026-01-31 12:00:00.123", in the zone of the text. */
void moment_shown(const char *text, char *shown, size_t size);
