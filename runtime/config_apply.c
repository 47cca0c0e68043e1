/* SPDX-License-Identifier: PostgreSQL */
/*
 * config_apply.c: values by their readers' tables: what they mean, whether they are in range, and
 * which option was probably meant. Knows the shapes of values, and no option except dsn.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- values */

static value_kind kind_of(config_kind kind)
{
	return kind == CONFIG_DURATION ? VALUE_DURATION : kind == CONFIG_BYTES ? VALUE_BYTES : VALUE_NUMBER;
}

const char *config_shown(int64_t value, config_kind kind, char buffer[VALUE_SHOWN_BYTES])
{
	return value_show(kind_of(kind), value, buffer);
}

static bool parse_flag(const char *text, int64_t *flag)
{
	*flag = strcmp(text, "yes") == 0;
	return *flag == 1 || strcmp(text, "no") == 0;
}

/* The text as a value of the option. On failure `expected` describes a correct value. */
static bool parse_value(const config_option *option, const char *text, int64_t *number, char *expected, size_t size)
{
	char minimum[VALUE_SHOWN_BYTES], maximum[VALUE_SHOWN_BYTES];
	const char *least = config_shown(option->minimum, option->kind, minimum);
	const char *most = config_shown(option->maximum, option->kind, maximum);

	switch (option->kind) {
	case CONFIG_FLAG:
		snprintf(expected, size, "write yes or no");
		return parse_flag(text, number);
	case CONFIG_CHOICE:
		snprintf(expected, size, "write one of %s", option->choices);
		return value_choose(option->choices, text, number);
	case CONFIG_DURATION:
		snprintf(expected, size, "write a duration of %s to %s: a whole number with its unit (ms, s, m, h, d, w)",
		         least, most);
		break;
	case CONFIG_BYTES:
		snprintf(expected, size, "write a size of %s to %s: a whole number, also with k, M or G", least, most);
		break;
	case CONFIG_NUMBER:
		snprintf(expected, size, "write a whole number of %s to %s", least, most);
		break;
	case CONFIG_TEXT:
	case CONFIG_REPEATED:
	case CONFIG_PREFIX:
		return true;
	}
	return value_parse(kind_of(option->kind), text, number) && *number >= option->minimum && *number <= option->maximum;
}

static bool store(const config_option *option, const char *text, void *target, char *expected, size_t size)
{
	char *at = (char *)target + option->offset;
	int64_t number = 0;

	if (option->kind == CONFIG_REPEATED || option->kind == CONFIG_PREFIX) {
		return true;
	}
	if (text != NULL && !parse_value(option, text, &number, expected, size)) {
		return false;
	}
	if (option->kind == CONFIG_TEXT) {
		memcpy(at, &text, sizeof text);
	} else {
		memcpy(at, &number, sizeof number);
	}
	return true;
}

/* ---- a section by a table */

const config_entry *config_entry_of(const config_section *section, const char *name)
{
	for (size_t i = 0; i < section->entry_count; i++) {
		if (strcmp(section->entries[i].name, name) == 0) {
			return &section->entries[i];
		}
	}
	return NULL;
}

/* The section's entry with that name, or the one before the first section. */
static const config_entry *find_entry(const config *config, const config_section *section, const char *name,
                                      const config_section **found_in)
{
	const config_section *const places[] = {section, config_find(config, "", "")};

	for (size_t i = 0; i < 2; i++) {
		const config_entry *entry = config_entry_of(places[i], name);
		if (entry != NULL) {
			*found_in = places[i];
			return entry;
		}
	}
	return NULL;
}

bool config_apply(const config *config, const config_section *section, const config_option *table, void *target,
                  char **problem)
{
	char expected[512];

	*problem = NULL;
	for (const config_option *option = table; option->name != NULL; option++) {
		const config_section *found_in = section;
		const config_entry *entry = find_entry(config, section, option->name, &found_in);
		const char *value = entry != NULL ? entry->value : option->standard;
		char *wrong = NULL;
		if (entry == NULL && option->required && !section->damaged) {
			wrong = config_problem(config, section, NULL, "option %s is missing: %s", option->name, option->help);
		} else if (!store(option, value, target, expected, sizeof expected)) {
			wrong = config_problem(config, found_in, entry, "'%s': %s", value, expected);
		} else if (entry != NULL && option->required && entry->value[0] == '\0') {
			wrong = config_problem(config, found_in, entry, "is empty: %s", option->help);
		}
		config_problem_add(problem, wrong);
	}
	/* A damaged section may say anything: the caller must not use it. */
	return *problem == NULL && !section->damaged;
}

/* ---- names */

static bool is_named(const config_option *option, const char *name)
{
	size_t length = strlen(option->name);

	return option->kind == CONFIG_PREFIX ? strncmp(option->name, name, length) == 0 && name[length] != '\0'
	                                     : strcmp(option->name, name) == 0;
}

static const config_option *find_option(const config_option *const *tables, size_t table_count, const char *name)
{
	for (size_t i = 0; i < table_count; i++) {
		for (const config_option *option = tables[i]; option->name != NULL; option++) {
			if (is_named(option, name)) {
				return option;
			}
		}
	}
	return NULL;
}

/* Names the nearest known option, or all of them if none is near. */
static char *unknown(const config *config, const config_section *section, const config_entry *entry,
                     const config_option *const *tables, size_t table_count)
{
	const char *nearest = NULL;
	char all[1024];
	size_t used = 0;
	int least = 4;

	all[0] = '\0';
	for (size_t i = 0; i < table_count; i++) {
		for (const config_option *option = tables[i]; option->name != NULL; option++) {
			int far = value_distance(entry->name, option->name);
			if (far < least && far < (int)strlen(option->name)) {
				least = far;
				nearest = option->name;
			}
			int length = snprintf(all + used, sizeof all - used, "%s%s%s", used > 0 ? ", " : "", option->name,
			                      option->kind == CONFIG_PREFIX ? "*" : "");
			used += length > 0 && (size_t)length < sizeof all - used ? (size_t)length : 0;
		}
	}
	all[used] = '\0'; /* removes a name cut off at the end */
	return nearest != NULL ? config_problem(config, section, entry, "unknown option; did you mean %s?", nearest)
	                       : config_problem(config, section, entry, "unknown option; the options are %s", all);
}

bool config_known(const config *config, const config_section *section, const config_option *const *tables,
                  size_t table_count, char **problem)
{
	*problem = NULL;
	for (size_t i = 0; i < section->entry_count; i++) {
		const config_entry *entry = &section->entries[i];
		const config_option *option = find_option(tables, table_count, entry->name);
		if (option == NULL) {
			config_problem_add(problem, unknown(config, section, entry, tables, table_count));
			continue;
		}
		for (size_t j = 0; j < i && option->kind != CONFIG_REPEATED; j++) {
			if (strcmp(section->entries[j].name, entry->name) == 0) {
				config_problem_add(problem, config_problem(config, section, entry,
				                                           "is already set in line %d: remove one of them",
				                                           section->entries[j].line));
				break;
			}
		}
	}
	return *problem == NULL;
}

/* ---- files that entries name */

static const char *read_text(int fd, char *text, size_t size, size_t *length)
{
	ssize_t count = 0;

	*length = 0;
	while (*length < size && (count = read(fd, text + *length, size - *length)) != 0) {
		if (count < 0 && errno != EINTR) {
			return strerror(errno);
		}
		*length += count > 0 ? (size_t)count : 0;
	}
	if (*length == size) {
		return "it has more than 64 kB";
	}
	while (*length > 0 && (text[*length - 1] == '\n' || text[*length - 1] == '\r')) {
		(*length)--;
	}
	text[*length] = '\0';
	if (*length == 0) {
		return "it is empty";
	}
	return strlen(text) != *length ? "it holds a NUL byte" : NULL;
}

char *config_file_text(const config *config, const config_section *section, const config_entry *entry, char **problem)
{
	enum {
		TEXT_BYTES = 64 * 1024
	};
	size_t length = 0;
	int fd = open(entry->value, O_RDONLY | O_CLOEXEC | O_NOCTTY);
	char *text = malloc(TEXT_BYTES);
	const char *wrong = fd < 0 ? strerror(errno) : text == NULL ? "out of memory" : NULL;

	*problem = NULL;
	if (wrong == NULL) {
		wrong = read_text(fd, text, TEXT_BYTES, &length);
	}
	if (fd >= 0) {
		close(fd);
	}
	if (wrong != NULL) {
		*problem = config_problem(config, section, entry, "the file '%s' cannot be used: %s", entry->value, wrong);
		free(text);
		return NULL;
	}
	return text;
}
