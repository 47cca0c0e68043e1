/* SPDX-License-Identifier: PostgreSQL */
/* openmetrics.c: see openmetrics.h. The rules of the formats, without any figures. */
#include "openmetrics.h"
#include "utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define WHOLE_MAX 9007199254740992.0 /* 2^53 */

void openmetrics_label(buffer *out, http_text text)
{
	for (size_t i = 0; i < text.length;) {
		unsigned char c = (unsigned char)text.data[i];
		size_t length = utf8_length((const unsigned char *)text.data + i, text.length - i);
		if (c == '\n') {
			buffer_text(out, "\\n");
		} else if (c == '"' || c == '\\') {
			char escaped[2] = {'\\', (char)c};
			buffer_add(out, escaped, 2);
		} else if (length == 0 || c == 0) {
			buffer_text(out, "?");
		} else {
			buffer_add(out, text.data + i, length);
		}
		i += length == 0 ? 1 : length;
	}
}

void openmetrics_family(buffer *out, const char *type, const char *name, const char *help)
{
	buffer_text(out, "# TYPE ");
	buffer_text(out, name);
	buffer_text(out, " ");
	buffer_text(out, type);
	buffer_text(out, "\n# HELP ");
	buffer_text(out, name);
	buffer_text(out, " ");
	/* escaped by the same rules */
	openmetrics_label(out, (http_text){.data = help, .length = strlen(help)});
	buffer_text(out, "\n");
}

void openmetrics_number(buffer *out, double number)
{
	if (isnan(number)) {
		buffer_text(out, "NaN");
	} else if (isinf(number)) {
		buffer_text(out, number > 0 ? "+Inf" : "-Inf");
	} else if (fabs(number) < WHOLE_MAX && number == (double)(int64_t)number) {
		buffer_format(out, "%.0f", number);
	} else {
		char text[32];
		snprintf(text, sizeof text, "%.15g", number);
		buffer_format(out, strtod(text, NULL) == number ? "%.15g" : "%.17g", number);
	}
}

bool openmetrics_accepted(http_text accept)
{
	static const char wanted[] = "application/openmetrics-text";
	size_t length = sizeof wanted - 1;

	for (size_t i = 0; i + length <= accept.length; i++) {
		if (strncasecmp(accept.data + i, wanted, length) == 0) {
			return true;
		}
	}
	return false;
}

/* For a line "# HELP name text" or "# TYPE name type", the position after the name. */
static const char *name_end(const char *line)
{
	const char *name = line + sizeof "# HELP " - 1;
	return name + strcspn(name, " \n");
}

char *openmetrics_to_prometheus(char *text, size_t *length)
{
	buffer out = {.length_max = SIZE_MAX};
	const char *suffix = "";

	for (const char *line = text; line != NULL && *line != '\0'; line = strchr(line, '\n') + 1) {
		size_t rest = strcspn(line, "\n") + 1;
		bool is_type = strncmp(line, "# TYPE ", 7) == 0, is_help = strncmp(line, "# HELP ", 7) == 0;
		if (strncmp(line, "# UNIT ", 7) == 0 || strncmp(line, "# EOF", 5) == 0) {
			continue;
		}
		if (is_type || is_help) {
			/* In that format a counter has the name of its samples. */
			const char *end = name_end(line);
			suffix = is_help ? suffix : strncmp(end, " counter\n", 9) == 0 ? "_total" : "";
			buffer_add(&out, line, (size_t)(end - line));
			buffer_text(&out, suffix);
			rest -= (size_t)(end - line);
			line = end;
		}
		for (size_t i = 0; i < rest; i++) {
			/* Quotes are escaped in labels only. */
			bool is_escape = is_help && line[i] == '\\';
			i += is_escape && line[i + 1] == '"' ? 1 : 0;
			buffer_add(&out, line + i, is_escape && line[i] == '\\' ? 2 : 1);
			i += is_escape && line[i] == '\\' ? 1 : 0;
		}
	}
	out.failed = out.failed || text == NULL;
	free(text);
	return buffer_take(&out, length);
}
