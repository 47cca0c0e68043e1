/* SPDX-License-Identifier: PostgreSQL */
/* moment.c: see moment.h. */
#include "moment.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SECOND_US INT64_C(1000000)

enum {
	DATE_LENGTH = 10,         /* 2026-01-31 */
	SECONDS_LENGTH = 19,      /* 2026-01-31T12:00:00 */
	MILLISECONDS_LENGTH = 23, /* 2026-01-31T12:00:00.123 */
	FRACTION_DIGITS = 6
};

/* sscanf alone accepts signs and spaces as digits. */
static bool has_form(const char *text)
{
	static const char form[] = "0000-00-00T00:00:00";

	for (size_t i = 0; i < sizeof form - 1; i++) {
		if (form[i] == '0' ? text[i] < '0' || text[i] > '9' : text[i] != form[i]) {
			return false;
		}
	}
	return strspn(text + SECONDS_LENGTH, "0123456789.:+-") == strlen(text + SECONDS_LENGTH);
}

bool moment_parse(const char *text, int64_t *microseconds)
{
	struct tm parts = {.tm_isdst = 0};
	int64_t fraction = 0;
	int hours = 0, minutes = 0, read = 0;

	if (text == NULL || !has_form(text) ||
	    sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2d%n", &parts.tm_year, &parts.tm_mon, &parts.tm_mday, &parts.tm_hour,
	           &parts.tm_min, &parts.tm_sec, &read) != 6 ||
	    read != SECONDS_LENGTH) {
		return false;
	}
	parts.tm_year -= 1900;
	parts.tm_mon -= 1;
	const char *at = text + read;
	if (*at == '.') {
		at++;
		for (int i = 0; i < FRACTION_DIGITS; i++) {
			fraction = 10 * fraction + (*at >= '0' && *at <= '9' ? *at++ - '0' : 0);
		}
	}
	if (*at != '+' && *at != '-' && *at != '\0') {
		return false;
	}
	if (*at != '\0' && sscanf(at + 1, "%2d:%2d", &hours, &minutes) < 1) {
		return false;
	}
	int64_t offset = (int64_t)(hours * 60 + minutes) * 60 * (*at == '-' ? -1 : 1);
	*microseconds = ((int64_t)timegm(&parts) - offset) * SECOND_US + fraction;
	return true;
}

void moment_span(int64_t microseconds, char *text, size_t size)
{
	static const struct {
		int64_t seconds;
		const char *name;
		int64_t part; /* of the unit below */
		const char *part_name;
	} units[] = {{86400, "d", 3600, "h"}, {3600, "h", 60, "m"}, {60, "m", 1, "s"}};
	int64_t span = microseconds >= 0 ? microseconds : microseconds == INT64_MIN ? INT64_MAX : -microseconds;

	for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
		int64_t seconds = span / SECOND_US;
		if (seconds >= units[i].seconds) {
			int64_t part = seconds % units[i].seconds / units[i].part;
			int length = snprintf(text, size, "%" PRId64 "%s", seconds / units[i].seconds, units[i].name);
			if (part > 0 && length > 0 && (size_t)length < size) {
				snprintf(text + length, size - (size_t)length, " %" PRId64 "%s", part, units[i].part_name);
			}
			return;
		}
	}
	if (span >= 10 * SECOND_US) {
		snprintf(text, size, "%" PRId64 "s", span / SECOND_US);
	} else if (span >= SECOND_US) {
		snprintf(text, size, "%" PRId64 ".%" PRId64 "s", span / SECOND_US, span % SECOND_US / (SECOND_US / 10));
	} else {
		snprintf(text, size, "%" PRId64 "ms", span / 1000);
	}
}

void moment_relative(int64_t microseconds, int64_t now, char *text, size_t size)
{
	char span[32];
	int64_t ago = now - microseconds;

	moment_span(ago, span, sizeof span);
	if (ago > -SECOND_US && ago < SECOND_US) {
		snprintf(text, size, "now");
	} else {
		snprintf(text, size, ago > 0 ? "%s ago" : "in %s", span);
	}
}

void moment_shown(const char *text, char *shown, size_t size)
{
	int64_t parsed = 0;

	if (!moment_parse(text, &parsed)) {
		snprintf(shown, size, "%s", text != NULL ? text : "?");
		return;
	}
	size_t length = text[SECONDS_LENGTH] == '.' ? strspn(text + SECONDS_LENGTH + 1, "0123456789") : 0;
	length = length > MILLISECONDS_LENGTH - SECONDS_LENGTH - 1 ? MILLISECONDS_LENGTH - SECONDS_LENGTH - 1 : length;
	char digits[4] = "000";
	memcpy(digits, text + SECONDS_LENGTH + (length > 0), length);
	snprintf(shown, size, "%.*s %.*s.%s", DATE_LENGTH, text, SECONDS_LENGTH - DATE_LENGTH - 1, text + DATE_LENGTH + 1,
	         digits);
}
