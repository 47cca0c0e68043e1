/* SPDX-License-Identifier: PostgreSQL */
/*
 * fuzz_config.c: the configuration file. Any bytes are read, or refused with a problem that names
 * the file; what was read, written again with every value in quotes, is read as the same; and a
 * table applied to it gives values in their ranges, or a problem. tests/fuzz/test_fuzz.py builds
 * and runs it. Input: the file.
 */
#include <stdio.h>

#include "config.h"
#include "fuzz.h"

typedef struct values {
	const char *text;
	int64_t flag, number, duration, bytes, choice;
} values;

static const config_option table[] = {
    {.name = "dsn", .kind = CONFIG_TEXT, .offset = offsetof(values, text), .required = true, .help = "h"},
    {.name = "flag", .kind = CONFIG_FLAG, .offset = offsetof(values, flag), .standard = "no"},
    {.name = "number",
     .kind = CONFIG_NUMBER,
     .offset = offsetof(values, number),
     .minimum = 1,
     .maximum = 100,
     .standard = "7"},
    {.name = "duration",
     .kind = CONFIG_DURATION,
     .offset = offsetof(values, duration),
     .minimum = 1,
     .maximum = 86400000,
     .standard = "5m"},
    {.name = "bytes",
     .kind = CONFIG_BYTES,
     .offset = offsetof(values, bytes),
     .minimum = 1,
     .maximum = INT64_MAX,
     .standard = "1"},
    {.name = "choice",
     .kind = CONFIG_CHOICE,
     .offset = offsetof(values, choice),
     .choices = "one|two|three",
     .standard = "two"},
    {.name = "route", .kind = CONFIG_REPEATED},
    {.name = "kafka.", .kind = CONFIG_PREFIX},
    {.name = NULL}};
static const config_option *const tables[] = {table};

static void check_problem(char *problem)
{
	must(problem != NULL && strncmp(problem, "f.conf", 6) == 0);
	free(problem);
}

static char *written(const config *config, size_t *length)
{
	char *text = NULL;
	FILE *out = open_memstream(&text, length);

	must(out != NULL);
	for (size_t i = 0; i < config_section_count(config); i++) {
		const config_section *section = config_section_at(config, i);
		if (i > 0) {
			fprintf(out, "[%s %s]\n", section->kind, section->name);
		}
		for (size_t j = 0; j < section->entry_count; j++) {
			fprintf(out, "%s=\"%s\"\n", section->entries[j].name, section->entries[j].value);
		}
	}
	must(fclose(out) == 0);
	return text;
}

static void check_same(const config *a, const config *b)
{
	must(config_section_count(a) == config_section_count(b));
	for (size_t i = 0; i < config_section_count(a); i++) {
		const config_section *one = config_section_at(a, i), *other = config_section_at(b, i);
		must(strcmp(one->kind, other->kind) == 0 && strcmp(one->name, other->name) == 0);
		must(config_find(a, one->kind, one->name) == one && one->entry_count == other->entry_count);
		for (size_t j = 0; j < one->entry_count; j++) {
			must(strcmp(one->entries[j].name, other->entries[j].name) == 0);
			must(strcmp(one->entries[j].value, other->entries[j].value) == 0);
		}
	}
}

static void check_section(const config *config, const config_section *section)
{
	values values;
	char *problem = NULL;

	if (!config_known(config, section, tables, 1, &problem) ||
	    !config_apply(config, section, table, &values, &problem)) {
		check_problem(problem);
		return;
	}
	must(problem == NULL && values.text != NULL && values.text[0] != '\0');
	must((values.flag | 1) == 1 && values.number >= 1 && values.number <= 100 && values.bytes >= 1);
	must(values.duration >= 1 && values.duration <= 86400000 && values.choice >= 0 && values.choice <= 2);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	config *read = NULL, *again = NULL;
	char *problem = NULL;
	size_t length = 0;

	if (!config_parse("f.conf", (const char *)data, size, &read, &problem)) {
		must(read == NULL);
		check_problem(problem);
		return 0;
	}
	must(problem == NULL);
	char *text = written(read, &length);
	must(config_parse("f.conf", text, length, &again, &problem));
	check_same(read, again);
	for (size_t i = 0; i < config_section_count(read); i++) {
		check_section(read, config_section_at(read, i));
	}
	free(config_exposed(read));
	free(text);
	config_free(again);
	config_free(read);
	return 0;
}
