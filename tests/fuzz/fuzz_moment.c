/* SPDX-License-Identifier: PostgreSQL */
/*
 * fuzz_moment.c: times and spans of the command. A time that is written is read as it was; what is
 * read has the form of a time; whatever is shown fits where it is shown; spans are told by their
 * size alone. tests/fuzz/test_fuzz.py builds and runs it. Input: a number of microseconds, an
 * offset, a text.
 */
#include <inttypes.h>
#include <stdio.h>
#include <time.h>

#include "fuzz.h"
#include "operate/moment.h"

static void check_written(int64_t microseconds, int offset_minutes)
{
	char text[80], shown[32];
	int64_t read = 0;
	time_t local = (time_t)(microseconds / 1000000 + offset_minutes * 60);
	struct tm parts;

	must(gmtime_r(&local, &parts) != NULL);
	int minutes = offset_minutes < 0 ? -offset_minutes : offset_minutes;
	snprintf(text, sizeof text, "%04d-%02d-%02dT%02d:%02d:%02d.%06d%c%02d:%02d", parts.tm_year + 1900, parts.tm_mon + 1,
	         parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec, (int)(microseconds % 1000000),
	         offset_minutes < 0 ? '-' : '+', minutes / 60, minutes % 60);
	must(moment_parse(text, &read) && read == microseconds);
	moment_shown(text, shown, sizeof shown);
	must(strlen(shown) == 23 && strncmp(shown, text, 10) == 0 && strncmp(shown + 11, text + 11, 12) == 0);
}

static void check_any(const char *text)
{
	static const char form[] = "0000-00-00T00:00:00";
	char shown[24];
	int64_t read = 0;

	memset(shown, 'x', sizeof shown);
	moment_shown(text, shown, sizeof shown);
	must(memchr(shown, '\0', sizeof shown) != NULL);
	if (!moment_parse(text, &read)) {
		return;
	}
	for (size_t i = 0; i < sizeof form - 1; i++) {
		must(form[i] == '0' ? text[i] >= '0' && text[i] <= '9' : text[i] == form[i]);
	}
	must(strspn(text, "0123456789-T:.+") == strlen(text));
}

static void check_span(int64_t span, int64_t now)
{
	char text[24], opposite[24], small[4], relative[32];

	moment_span(span, text, sizeof text);
	must(text[0] >= '0' && text[0] <= '9');
	if (span != INT64_MIN) {
		moment_span(-span, opposite, sizeof opposite);
		must(strcmp(text, opposite) == 0);
	}
	moment_span(span, small, sizeof small);
	moment_relative(now / 4, span / 4, relative, sizeof relative);
	must(relative[0] != '\0');
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	input in = {data, size};
	uint64_t number = take_number(&in);
	int offset = (int8_t)take_byte(&in) * 7;
	char *text = take_bytes(&in, in.size);

	/* Years 1970 to 9999, as PostgreSQL writes them with four digits. */
	check_written((int64_t)(number % (UINT64_C(253370764800) * 1000000)) + INT64_C(86400000000), offset);
	check_span((int64_t)number, (int64_t)(number * 31));
	check_any(text);
	free(text);
	return 0;
}
