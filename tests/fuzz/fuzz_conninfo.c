/* SPDX-License-Identifier: PostgreSQL */
/*
 * fuzz_conninfo.c: connection strings of any form. What is wrong with one is said without any part
 * of it where it may hold a password; one that is good means the same after it was written anew,
 * and is not changed by that a second time. tests/fuzz/test_fuzz.py builds and runs it. Input:
 * where the secret stands, the string around it.
 */
#include <libpq-fe.h>
#include <stdio.h>

#include "conninfo.h"
#include "fuzz.h"

#define SECRET "S3cr\"t"

static const char *standard(const char *keyword)
{
	return strcmp(keyword, "connect_timeout") == 0 ? "10" : NULL;
}

static const char *value_of(const PQconninfoOption *options, const char *keyword)
{
	for (; options->keyword != NULL; options++) {
		if (strcmp(options->keyword, keyword) == 0) {
			return options->val;
		}
	}
	return NULL;
}

static void check_said(const char *text, const char *problem)
{
	must(problem[0] != '\0' && strlen(problem) < CONNINFO_PROBLEM_BYTES && strchr(problem, '\n') == NULL);
	if (strstr(text, "pass") != NULL || strchr(text, '@') != NULL || strstr(text, "://") != NULL) {
		must(strstr(problem, "S3c") == NULL && strstr(problem, "3cr") == NULL);
	}
}

static void check_settled(const char *text, const char *settled)
{
	char problem[CONNINFO_PROBLEM_BYTES];
	bool is_name = conninfo_is_name(text);
	PQconninfoOption *before = is_name ? NULL : PQconninfoParse(text, NULL), *after = PQconninfoParse(settled, NULL);
	char *again = conninfo_settled(settled, standard, problem);

	must(after != NULL && again != NULL && (is_name || before != NULL));
	for (const PQconninfoOption *option = after; option->keyword != NULL; option++) {
		const char *was = is_name ? NULL : value_of(before, option->keyword);
		if (is_name && strcmp(option->keyword, "dbname") == 0) {
			was = text;
		}
		was = was == NULL ? standard(option->keyword) : was;
		must((was == NULL && option->val == NULL) ||
		     (was != NULL && option->val != NULL && strcmp(was, option->val) == 0));
	}
	must(strcmp(settled, again) == 0);
	free(again);
	PQconninfoFree(before);
	PQconninfoFree(after);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char problem[CONNINFO_PROBLEM_BYTES], why[CONNINFO_PROBLEM_BYTES];
	input in = {data, size};
	char *before = take_text(&in, NULL);
	char *after = take_bytes(&in, in.size);
	char *text = NULL;

	must(asprintf(&text, "%s%s%s", before, size % 2 == 0 ? SECRET : "S3cret", after) >= 0);
	bool good = conninfo_good(text, problem);
	char *settled = conninfo_settled(text, standard, why);
	must(good == (settled != NULL));
	if (good) {
		check_settled(text, settled);
	} else {
		check_said(text, problem);
		check_said(text, why);
	}
	free(settled);
	free(text);
	free(after);
	free(before);
	return 0;
}
