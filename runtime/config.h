/* SPDX-License-Identifier: PostgreSQL */
/*
 * config.h: the configuration file of pgonce: INI. Sections are [kind name]; what comes before the
 * first section (only dsn may) holds for all. Comments stand on lines of their own, after # or ;. A
 * value in double quotes is taken as it is. This file knows the shape; which options a section may
 * have is said by a table of its reader.
 *
 *     dsn = dbname=app
 *
 *     [relay orders]
 *     sink  = nats
 *     url   = nats://127.0.0.1:4222
 *     route = order.* -> orders.{topic}
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "value.h"

typedef struct config_entry {
	const char *name;
	const char *value;
	int line;
} config_entry;

typedef struct config_section {
	const char *kind; /* "relay", "consume"; "" for what comes before the first section */
	const char *name; /* "orders"; "" as above */
	int line;
	bool damaged;                /* lines of it could not be read: what it lacks may be in them */
	const config_entry *entries; /* in the file's order; an option may come more than once */
	size_t entry_count;
} config_section;

typedef struct config config;

/*
 * Reads a file. On success *result, which owns all its strings and lives until config_free. On
 * failure false, and *problem (free it) says file, line, and what is wrong: unreadable, no INI, a
 * section without a kind that is known, two of one name. It has a line for each mistake; so it is
 * with every problem that this header gives out.
 */
bool config_read(const char *path, config **result, char **problem);
/*
 * The same for who tells more mistakes yet: false with *result, too, where some of the file could
 * be read.
 */
bool config_read_some(const char *path, config **result, char **problem);
/* The same with the text at hand; path is for the messages. */
bool config_parse(const char *path, const char *text, size_t length, config **result, char **problem);
void config_free(config *config);
const char *config_path(const config *config);
size_t config_section_count(const config *config);
const config_section *config_section_at(const config *config, size_t index);
/*
 * The section; NULL where there is none. config_find(config, "", "") is what comes before the first
 * section: always there.
 */
const config_section *config_find(const config *config, const char *kind, const char *name);

typedef enum config_kind {
	CONFIG_TEXT,
	CONFIG_FLAG,     /* yes, no; int64_t 1, 0 */
	CONFIG_NUMBER,   /* int64_t */
	CONFIG_DURATION, /* 500ms, 60s, 5m, 2h, 7d, 4w; int64_t milliseconds */
	CONFIG_BYTES,    /* 65536, 64k, 1M, 1G; int64_t */
	CONFIG_CHOICE,   /* one word of `choices`, separated by '|'; int64_t, its index */
	CONFIG_REPEATED, /* may come more than once: the reader walks the entries itself */
	/* name is a prefix ("kafka."): all that begin so; the reader walks the entries itself */
	CONFIG_PREFIX
} config_kind;

/*
 * One row of a reader's table: what is read, checked, documented (docs/configuration.md is made
 * from these tables).
 */
typedef struct config_option {
	const char *name;
	config_kind kind;
	/*
	 * into the reader's struct: const char * for text, int64_t for the rest; unused for the last
	 * two
	 */
	size_t offset;
	const char *choices;
	int64_t minimum, maximum;
	const char *standard; /* the default, as it would be written; NULL: none */
	/* to what: "nats|rabbitmq"; NULL: everything. Checked by the reader's own rule */
	const char *applies;
	bool required;
	const char *help;
} config_option;

/*
 * Reads a section into `target` by the table (ends with name NULL): defaults first, then what is
 * written; entries of other names are left to other tables. False: *problem says file, line,
 * section, option, and what would be right; NULL where that the section is damaged says it all.
 * Texts are borrowed from the config.
 */
bool config_apply(const config *config, const config_section *section, const config_option *table, void *target,
                  char **problem);
/*
 * Is every entry of the section in one of the tables (a pipeline's and its sink's), and none twice
 * that may not be? False: *problem, with the nearest known option.
 */
bool config_known(const config *config, const config_section *section, const config_option *const *tables,
                  size_t table_count, char **problem);
/* The section's first entry of that name; NULL: it has none. */
const config_entry *config_entry_of(const config_section *section, const char *name);
/*
 * A problem with an entry or section of the config, worded like all others: "pgonce.conf:12: [relay
 * orders] url: ...". Free it.
 */
__attribute__((format(printf, 4, 5))) char *config_problem(const config *config, const config_section *section,
                                                           const config_entry *entry, const char *format, ...);
/*
 * Puts what `more` says (taken; NULL: nothing) behind *problem, but for the lines that are there
 * already.
 */
void config_problem_add(char **problem, char *more);
/*
 * A warning where the file holds a secret and everybody may read it (free it); NULL: all is well.
 */
char *config_exposed(const config *config);
/*
 * The text of the file that an entry names (secret_file and the like), without the line end after
 * it; free it. NULL: *problem: it cannot be read, is empty, or has more than 64 kB.
 */
char *config_file_text(const config *config, const config_section *section, const config_entry *entry, char **problem);

/*
 * A number, duration or size as it would be written, in the largest unit that says it exactly; in
 * buffer, which is returned.
 */
const char *config_shown(int64_t value, config_kind kind, char buffer[VALUE_SHOWN_BYTES]);
