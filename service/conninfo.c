/* SPDX-License-Identifier: PostgreSQL */
/* conninfo.c: see conninfo.h. */
#include "conninfo.h"

#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool conninfo_is_name(const char *text)
{
	return text[0] != '\0' && strchr(text, '=') == NULL && strstr(text, "://") == NULL;
}

/* Is the quotation a sign that libpq misses, and not what it found? */
static bool is_sign(const char *wrong, const char *quote)
{
	static const char *const before[] = {"missing ", "matching ", "separator "};

	for (size_t i = 0; i < sizeof before / sizeof before[0]; i++) {
		size_t length = strlen(before[i]);
		if ((size_t)(quote - wrong) >= length && strncmp(quote - length, before[i], length) == 0) {
			return true;
		}
	}
	return false;
}

/*
 * Where it may, nothing of it is repeated; else the word that libpq stumbled over helps to find it.
 */
static bool may_hold_password(const char *text)
{
	return strstr(text, "pass") != NULL || strchr(text, '@') != NULL || strstr(text, "://") != NULL;
}

/*
 * libpq quotes what it could not read: the sentence without that, up to the last quote, since what
 * is quoted may hold quotes itself.
 */
static void keep_sentence(const char *text, const char *wrong, char problem[CONNINFO_PROBLEM_BYTES])
{
	const char *first = strchr(wrong, '"');
	const char *last = strrchr(wrong, '"');

	if (first != NULL && is_sign(wrong, first)) {
		first = strchr(first + 3, '"'); /* one character in quotes */
	}
	if (first == NULL || !may_hold_password(text)) {
		snprintf(problem, CONNINFO_PROBLEM_BYTES, "%s", wrong);
	} else {
		snprintf(problem, CONNINFO_PROBLEM_BYTES, "%.*s\"...\"%s", (int)(first - wrong), wrong, last + 1);
	}
	problem[strcspn(problem, "\n")] = '\0';
}

static PQconninfoOption *parse(const char *text, char problem[CONNINFO_PROBLEM_BYTES])
{
	char *wrong = NULL;
	PQconninfoOption *options = PQconninfoParse(text, &wrong);

	if (options == NULL) {
		keep_sentence(text, wrong == NULL ? "out of memory" : wrong, problem);
		PQfreemem(wrong);
	}
	return options;
}

bool conninfo_good(const char *text, char problem[CONNINFO_PROBLEM_BYTES])
{
	PQconninfoOption *options = conninfo_is_name(text) ? NULL : parse(text, problem);
	bool good = options != NULL || conninfo_is_name(text);

	PQconninfoFree(options);
	return good;
}

/* keyword='value', with the quoting of libpq's connection strings. */
static void write_setting(FILE *out, const char *keyword, const char *value)
{
	fprintf(out, "%s='", keyword);
	for (const char *at = value; *at != '\0'; at++) {
		if (*at == '\'' || *at == '\\') {
			fputc('\\', out);
		}
		fputc(*at, out);
	}
	fputs("' ", out);
}

char *conninfo_settled(const char *text, conninfo_standard *standard, char problem[CONNINFO_PROBLEM_BYTES])
{
	bool is_name = conninfo_is_name(text);
	PQconninfoOption *options = parse(is_name ? "" : text, problem);
	char *settled = NULL;
	size_t size = 0;

	if (options == NULL) {
		return NULL;
	}
	FILE *out = open_memstream(&settled, &size);
	for (PQconninfoOption *option = options; out != NULL && option->keyword != NULL; option++) {
		const char *value = is_name && strcmp(option->keyword, "dbname") == 0 ? text : option->val;
		value = value != NULL ? value : standard(option->keyword);
		if (value != NULL) {
			write_setting(out, option->keyword, value);
		}
	}
	PQconninfoFree(options);
	if (out == NULL || fclose(out) != 0) {
		free(settled);
		snprintf(problem, CONNINFO_PROBLEM_BYTES, "out of memory");
		return NULL;
	}
	return settled;
}
