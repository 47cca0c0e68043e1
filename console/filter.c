/* SPDX-License-Identifier: PostgreSQL */
/* filter.c: see filter.h. */
#include "filter.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LARGEST 1e18 /* larger numbers are written as JSON does */

static const char *const names[] = {
    [FILTER_AGE] = "age",   [FILTER_BYTES] = "bytes", [FILTER_NUMBER] = "number",
    [FILTER_TIME] = "time", [FILTER_URL] = "url",     [FILTER_JSON] = "json",
};

bool filter_find(const char *name, filter *filter)
{
	for (int i = FILTER_AGE; i <= FILTER_JSON; i++) {
		if (strcmp(names[i], name) == 0) {
			*filter = (enum filter)i;
			return true;
		}
	}
	return false;
}

/* A NUL becomes U+FFFD, which HTML would make of it. */
static void add_escaped(buffer *out, const char *text, size_t length)
{
	for (const char *end = text + length; text < end;) {
		const char *at = text;
		while (at < end && *at != '\0' && strchr("&<>\"'", *at) == NULL) {
			at++;
		}
		buffer_add(out, text, (size_t)(at - text));
		if (at < end) {
			buffer_text(out, *at == '&'    ? "&amp;"
			                 : *at == '<'  ? "&lt;"
			                 : *at == '>'  ? "&gt;"
			                 : *at == '"'  ? "&quot;"
			                 : *at == '\'' ? "&#39;"
			                               : "\xEF\xBF\xBD");
		}
		text = at + 1;
	}
}

/* RFC 3986: all but the unreserved characters. */
static void add_url(buffer *out, const char *text, size_t length)
{
	static const char unreserved[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~";

	for (size_t i = 0; i < length; i++) {
		if (text[i] != '\0' && strchr(unreserved, text[i]) != NULL) {
			buffer_add(out, &text[i], 1);
		} else {
			buffer_format(out, "%%%02X", (unsigned char)text[i]);
		}
	}
}

/* The two largest units, as people say them. */
static void add_age(buffer *out, double ms)
{
	static const struct {
		double ms;
		const char *unit;
	} units[] = {{86400000, "d"}, {3600000, "h"}, {60000, "m"}, {1000, "s"}};
	enum {
		SECONDS = 3
	};

	if (fabs(ms) < 1000) {
		buffer_format(out, "%.0f ms", ms);
		return;
	}
	buffer_text(out, ms < 0 ? "-" : "");
	ms = fabs(ms);
	size_t i = 0;
	while (ms < units[i].ms) {
		i++;
	}
	buffer_format(out, "%.0f %s", floor(ms / units[i].ms), units[i].unit);
	double rest = i == SECONDS ? 0 : floor(fmod(ms, units[i].ms) / units[i + 1].ms);
	if (rest > 0) {
		buffer_format(out, " %.0f %s", rest, units[i + 1].unit);
	}
}

static void add_bytes(buffer *out, double bytes)
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
	size_t i = 0;

	while (fabs(bytes) >= 1024 && i + 1 < sizeof units / sizeof units[0]) {
		bytes /= 1024;
		i++;
	}
	buffer_format(out, i > 0 && fabs(bytes) < 10 ? "%.1f %s" : "%.0f %s", bytes, units[i]);
}

/* Thousands by commas; at most two decimals. */
static void add_number(buffer *out, double number)
{
	char digits[512];
	int length = snprintf(digits, sizeof digits, number == floor(number) ? "%.0f" : "%.2f", number);
	int whole = (int)strcspn(digits, ".");

	for (int i = 0; i < length; i++) {
		int left = whole - i;
		if (i > (digits[0] == '-') && left > 0 && left % 3 == 0) {
			buffer_text(out, ",");
		}
		buffer_add(out, &digits[i], 1);
	}
}

/* A timestamp of ISO 8601 with its zone, in UTC. False: it is not one. */
static bool add_time(buffer *out, const char *text)
{
	struct tm tm = {0};
	int hours = 0, minutes = 0;
	const char *at = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);

	if (at != NULL && *at == '.') {
		at += 1 + strspn(at + 1, "0123456789");
	}
	if (at == NULL || (strcmp(at, "Z") != 0 && sscanf(at, "%3d:%2d", &hours, &minutes) < 1)) {
		return false;
	}
	time_t time = timegm(&tm) - hours * (time_t)3600 - (*at == '-' ? -60 : 60) * (time_t)minutes;
	char shown[64];
	if (gmtime_r(&time, &tm) == NULL || strftime(shown, sizeof shown, "%F %TZ", &tm) == 0) {
		return false;
	}
	buffer_text(out, shown);
	return true;
}

/* Of any kind, as it is. */
static void add_value(buffer *out, const json_t *value, size_t flags)
{
	char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15) | flags);

	if (text == NULL) {
		out->failed = true;
	} else {
		add_escaped(out, text, strlen(text));
	}
	free(text);
}

void filter_write(buffer *out, filter filter, const json_t *value)
{
	const char *text = json_string_value(value);
	size_t length = json_string_length(value);
	bool is_number = json_is_number(value) && fabs(json_number_value(value)) < LARGEST;

	if (value == NULL || json_is_null(value)) {
		return;
	}
	if (is_number && filter == FILTER_AGE) {
		add_age(out, json_number_value(value));
	} else if (is_number && filter == FILTER_BYTES) {
		add_bytes(out, json_number_value(value));
	} else if (is_number && filter == FILTER_NUMBER) {
		add_number(out, json_number_value(value));
	} else if (filter == FILTER_JSON) {
		add_value(out, value, JSON_INDENT(2));
	} else if (text == NULL) {
		add_value(out, value, JSON_COMPACT);
	} else if (filter == FILTER_URL) {
		add_url(out, text, length);
	} else if (filter != FILTER_TIME || strlen(text) != length || !add_time(out, text)) {
		add_escaped(out, text, length);
	}
}
