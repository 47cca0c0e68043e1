/* SPDX-License-Identifier: PostgreSQL */
/*
 * config_apply.c: values by the tables of their readers: what they mean, whether they are in range, and which option was probably meant. Knows the
 * shapes of values, and no option but dsn.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- values */

typedef struct unit {
	const char *name;
	int64_t factor;
} unit;

static const unit durations[] = {
    {"ms", 1}, {"s", 1000}, {"m", 60 * 1000}, {"h", 60 * 60 * 1000}, {"d", 24 * 60 * 60 * 1000}, {NULL, 0}};
static const unit sizes[] = {{"", 1},  {"k", 1024}, {"K", 1024}, {"M", 1024 * 1024}, {"G", 1024 * 1024 * 1024},
                             {NULL, 0}};
static const unit none[] = {{"", 1}, {NULL, 0}};

/* A whole number and a unit; false where it is none or larger than fits. */
static bool parse_amount(const char *text, const unit *units, int64_t *value)
{
	char *end = NULL;

	if (text[0] < '0' || text[0] > '9') {
		return false;
	}
	errno = 0;
	long long amount = strtoll(text, &end, 10);
	if (errno != 0) {
		return false;
	}
	for (const unit *u = units; u->name != NULL; u++) {
		if (strcmp(u->name, end) == 0) {
			return !__builtin_mul_overflow((int64_t)amount, u->factor, value);
		}
	}
	return false;
}

const char *config_shown(int64_t value, config_kind kind, char buffer[CONFIG_SHOWN_BYTES])
{
	static const unit largest_duration[] = {{"d", 86400000}, {"h", 3600000}, {"m", 60000}, {"s", 1000}, {"ms", 1}};
	static const unit largest_size[] = {{"G", 1024 * 1024 * 1024}, {"M", 1024 * 1024}, {"k", 1024}, {"", 1}, {"", 1}};
	const unit *units = kind == CONFIG_DURATION ? largest_duration : kind == CONFIG_BYTES ? largest_size : NULL;

	for (int i = 0; units != NULL && i < 5; i++) {
		if (value != 0 && value % units[i].factor == 0) {
			snprintf(buffer, CONFIG_SHOWN_BYTES, "%" PRId64 "%s", value / units[i].factor, units[i].name);
			return buffer;
		}
	}
	snprintf(buffer, CONFIG_SHOWN_BYTES, "%" PRId64 "%s", value, kind == CONFIG_DURATION ? "ms" : "");
	return buffer;
}

static bool parse_choice(const char *choices, const char *text, int64_t *index)
{
	size_t length = strlen(text);

	*index = 0;
	for (const char *at = choices; length > 0; (*index)++) {
		size_t word = strcspn(at, "|");
		if (word == length && strncmp(at, text, length) == 0) {
			return true;
		}
		if (at[word] == '\0') {
			return false;
		}
		at += word + 1;
	}
	return false;
}

static bool parse_flag(const char *text, int64_t *flag)
{
	*flag = strcmp(text, "yes") == 0;
	return *flag == 1 || strcmp(text, "no") == 0;
}

/* The text as a value of the option. On failure what would be right, in `expected`. */
static bool parse_value(const config_option *option, const char *text, int64_t *number, char *expected, size_t size)
{
	char minimum[CONFIG_SHOWN_BYTES], maximum[CONFIG_SHOWN_BYTES];
	bool good = false;

	switch (option->kind) {
	case CONFIG_FLAG:
		snprintf(expected, size, "write yes or no");
		return parse_flag(text, number);
	case CONFIG_CHOICE:
		snprintf(expected, size, "write one of %s", option->choices);
		return parse_choice(option->choices, text, number);
	case CONFIG_DURATION:
		good = parse_amount(text, durations, number);
		snprintf(expected, size, "write a duration, a whole number with its unit: 500ms, 60s, 5m, 2h, 7d");
		break;
	case CONFIG_BYTES:
		good = parse_amount(text, sizes, number);
		snprintf(expected, size, "write a size: 65536, 64k, 1M");
		break;
	case CONFIG_NUMBER:
		good = parse_amount(text, none, number);
		snprintf(expected, size, "write a whole number");
		break;
	case CONFIG_TEXT:
	case CONFIG_REPEATED:
	case CONFIG_PREFIX:
		return true;
	}
	if (good && (*number < option->minimum || *number > option->maximum)) {
		snprintf(expected, size, "write %s to %s", config_shown(option->minimum, option->kind, minimum),
		         config_shown(option->maximum, option->kind, maximum));
		return false;
	}
	return good;
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

/* The section's entry of that name, or that of what comes before the first section. */
static const config_entry *find_entry(const config *config, const config_section *section, const char *name,
                                      const config_section **found_in)
{
	const config_section *const places[] = {section, config_find(config, "", "")};

	for (size_t i = 0; i < 2; i++) {
		for (size_t j = 0; j < places[i]->entry_count; j++) {
			if (strcmp(places[i]->entries[j].name, name) == 0) {
				*found_in = places[i];
				return &places[i]->entries[j];
			}
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
		if (entry == NULL && option->required) {
			*problem = config_problem(config, section, NULL, "option %s is missing: %s", option->name, option->help);
			return false;
		}
		if (!store(option, entry != NULL ? entry->value : option->standard, target, expected, sizeof expected)) {
			*problem = config_problem(config, found_in, entry, "'%s': %s",
			                          entry != NULL ? entry->value : option->standard, expected);
			return false;
		}
		if (entry != NULL && option->required && entry->value[0] == '\0') {
			*problem = config_problem(config, found_in, entry, "is empty: %s", option->help);
			return false;
		}
	}
	return true;
}

/* ---- names */

/* Levenshtein's distance, of words of at most 63 characters; longer ones are far from everything. */
static int distance(const char *a, const char *b)
{
	enum {
		LENGTH_MAX = 63
	};
	size_t a_length = strlen(a);
	size_t b_length = strlen(b);
	int row[LENGTH_MAX + 1];

	if (a_length > LENGTH_MAX || b_length > LENGTH_MAX) {
		return LENGTH_MAX;
	}
	for (size_t j = 0; j <= b_length; j++) {
		row[j] = (int)j;
	}
	for (size_t i = 1; i <= a_length; i++) {
		int diagonal = row[0];
		row[0] = (int)i;
		for (size_t j = 1; j <= b_length; j++) {
			int best = diagonal + (a[i - 1] != b[j - 1]);
			best = row[j] + 1 < best ? row[j] + 1 : best;
			best = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
			diagonal = row[j];
			row[j] = best;
		}
	}
	return row[b_length];
}

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

/* The known option that is nearest; all of them where none is near. */
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
			int far = distance(entry->name, option->name);
			if (far < least && far < (int)strlen(option->name)) {
				least = far;
				nearest = option->name;
			}
			int length = snprintf(all + used, sizeof all - used, "%s%s%s", used > 0 ? ", " : "", option->name,
			                      option->kind == CONFIG_PREFIX ? "*" : "");
			used += length > 0 && (size_t)length < sizeof all - used ? (size_t)length : 0;
		}
	}
	all[used] = '\0'; /* what did not fit whole */
	return nearest != NULL ? config_problem(config, section, entry, "unknown option; did you mean %s?", nearest)
	                       : config_problem(config, section, entry, "unknown option; there are %s", all);
}

bool config_known(const config *config, const config_section *section, const config_option *const *tables,
                  size_t table_count, char **problem)
{
	*problem = NULL;
	for (size_t i = 0; i < section->entry_count && *problem == NULL; i++) {
		const config_entry *entry = &section->entries[i];
		const config_option *option = find_option(tables, table_count, entry->name);
		if (option == NULL) {
			*problem = unknown(config, section, entry, tables, table_count);
			break;
		}
		for (size_t j = 0; j < i && option->kind != CONFIG_REPEATED; j++) {
			if (strcmp(section->entries[j].name, entry->name) == 0) {
				*problem = config_problem(config, section, entry, "is given already, in line %d: remove one of them",
				                          section->entries[j].line);
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
