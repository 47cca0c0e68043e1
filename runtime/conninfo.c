/* SPDX-License-Identifier: PostgreSQL */
/* conninfo.c: see conninfo.h. */
#include "conninfo.h"

#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool conninfo_is_name(const char *text)
{
	return text[0] != '\0' && strchr(text, '=') == NULL && strstr(text, "://") == NULL;
}

/* True: the quoted text is a character that libpq misses, not one that it found. */
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
 * If true, no part of it is repeated; otherwise the word that libpq could not read helps to find
 * it.
 */
static bool may_hold_password(const char *text)
{
	return strstr(text, "pass") != NULL || strchr(text, '@') != NULL || strstr(text, "://") != NULL;
}

/*
 * libpq quotes the text that it could not read: keeps the sentence without it, up to the last
 * quote, since the quoted text may contain quotes.
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

char *conninfo_with(const char *text, const char *keyword, const char *value)
{
	char *made = NULL;
	size_t size = 0;
	FILE *out = open_memstream(&made, &size);

	if (out == NULL) {
		return NULL;
	}
	fprintf(out, "%s ", text); /* the last of repeated keywords counts */
	write_setting(out, keyword, value);
	return fclose(out) == 0 ? made : NULL;
}

static const char *find(const PQconninfoOption *options, const char *keyword)
{
	for (const PQconninfoOption *option = options; option != NULL && option->keyword != NULL; option++) {
		if (strcmp(option->keyword, keyword) == 0) {
			return option->val;
		}
	}
	return NULL;
}

/* libpq's defaults, with the service that the string names, which overrides PGSERVICE. */
static PQconninfoOption *defaults_of(const PQconninfoOption *said)
{
	static const char *const names[][2] = {{"service", "PGSERVICE"}, {"servicefile", "PGSERVICEFILE"}};

	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
		const char *value = find(said, names[i][0]);
		if (value != NULL) {
			setenv(names[i][1], value, 1);
		}
	}
	return PQconndefaults();
}

/*
 * PQconndefaults ignores a missing service. A connection attempt reports it before it goes to the
 * network.
 */
static bool has_service(const char *text, char problem[CONNINFO_PROBLEM_BYTES])
{
	char *nowhere = NULL;
	char *no_address = conninfo_with(text, "hostaddr", "");

	nowhere = no_address == NULL ? NULL : conninfo_with(no_address, "host", "/");
	PGconn *connection = nowhere == NULL ? NULL : PQconnectStart(nowhere);
	bool has = connection != NULL && PQdb(connection) != NULL;
	if (!has) {
		keep_sentence(text, connection == NULL ? "out of memory" : PQerrorMessage(connection), problem);
	}
	PQfinish(connection);
	free(no_address);
	free(nowhere);
	return has;
}

/* The default: in the home directory, if the file exists. */
static void write_password_file(FILE *out)
{
	const char *home = getenv("HOME");
	char path[4096];

	if (home != NULL && home[0] == '/' && snprintf(path, sizeof path, "%s/.pgpass", home) < (int)sizeof path &&
	    access(path, F_OK) == 0) {
		write_setting(out, "passfile", path);
	}
}

char *conninfo_fixed(const char *text, char problem[CONNINFO_PROBLEM_BYTES])
{
	PQconninfoOption *said = parse(text, problem);
	PQconninfoOption *defaults = said == NULL ? NULL : defaults_of(said);
	char *fixed = NULL;
	size_t size = 0;

	if (said == NULL || !has_service(text, problem)) {
		PQconninfoFree(said);
		PQconninfoFree(defaults);
		return NULL;
	}
	FILE *out = defaults == NULL ? NULL : open_memstream(&fixed, &size);
	for (const PQconninfoOption *option = defaults; out != NULL && option->keyword != NULL; option++) {
		const char *value = find(said, option->keyword);
		value = value != NULL ? value : option->val;
		if (value != NULL && strncmp(option->keyword, "service", strlen("service")) != 0) {
			write_setting(out, option->keyword, value);
		} else if (strcmp(option->keyword, "passfile") == 0) {
			write_password_file(out);
		}
	}
	PQconninfoFree(said);
	PQconninfoFree(defaults);
	if (out == NULL || fclose(out) != 0) {
		free(fixed);
		snprintf(problem, CONNINFO_PROBLEM_BYTES, "out of memory");
		return NULL;
	}
	return fixed;
}

char *conninfo_value(const char *text, const char *keyword)
{
	PQconninfoOption *options = PQconninfoParse(text, NULL);
	const char *value = find(options, keyword);
	char *copy = value == NULL ? NULL : strdup(value);

	PQconninfoFree(options);
	return copy;
}
