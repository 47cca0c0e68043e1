/* SPDX-License-Identifier: PostgreSQL */
/*
 * config.h: pgonce's configuration file: INI. Sections are [kind name]; an entry before the first
 * section (only dsn is allowed) applies to all. Comments are on their own lines, after # or ;. A
 * value in double quotes is taken unchanged. This file knows the shape; a reader's table lists the
 * options of its sections.
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
	const char *kind; /* "relay", "consume"; "" before the first section */
	const char *name; /* "orders"; "" as above */
	int line;
	/* some of its lines could not be read and may hold missing options */
	bool damaged;
	const config_entry *entries; /* in file order; an option may occur more than once */
	size_t entry_count;
} config_section;

typedef struct config config;

/*
 * Reads a file. On success *result owns all its strings and lives until config_free. On failure:
 * false, and *problem (free it) names the file, the line, and what is wrong: unreadable, not INI, a
 * section of an unknown kind, two with one name. It has one line per mistake, as every problem that
 * this header returns.
 */
bool config_read(const char *path, config **result, char **problem);
/*
 * The same for a caller that reports further mistakes: on failure it sets *result too, if part of
 * the file could be read.
 */
bool config_read_some(const char *path, config **result, char **problem);
/* The same with the text in memory; path is for the messages. */
bool config_parse(const char *path, const char *text, size_t length, config **result, char **problem);
void config_free(config *config);
const char *config_path(const config *config);
size_t config_section_count(const config *config);
const config_section *config_section_at(const config *config, size_t index);
/*
 * The section, or NULL if it does not exist. config_find(config, "", "") is the part before the
 * first section, which always exists.
 */
const config_section *config_find(const config *config, const char *kind, const char *name);

typedef enum config_kind {
	CONFIG_TEXT,
	CONFIG_FLAG,     /* yes, no; int64_t 1, 0 */
	CONFIG_NUMBER,   /* int64_t */
	CONFIG_DURATION, /* 500ms, 60s, 5m, 2h, 7d, 4w; int64_t milliseconds */
	CONFIG_BYTES,    /* 65536, 64k, 1M, 1G; int64_t */
	CONFIG_CHOICE,   /* one word of `choices`, separated by '|'; int64_t, its index */
	CONFIG_REPEATED, /* may occur more than once: the reader walks the entries itself */
	/* name is a prefix ("kafka.") of all names meant; the reader walks the entries itself */
	CONFIG_PREFIX
} config_kind;

/*
 * One row of a reader's table: it is read, checked, and documented (docs/reference/configuration.md
 * is generated from these tables).
 */
typedef struct config_option {
	const char *name;
	config_kind kind;
	/*
	 * into the reader's struct: const char * for text, int64_t for others; unused for the last two
	 * kinds
	 */
	size_t offset;
	const char *choices;
	int64_t minimum, maximum;
	const char *standard; /* the default, as written in the file; NULL: none */
	/* what it applies to: "nats|rabbitmq"; NULL: everything. The reader's own rule checks it */
	const char *applies;
	bool required;
	const char *help;
} config_option;

/*
 * Reads a section into `target` by the table (ends with name NULL): first the defaults, then the
 * file's values; entries with other names are left to other tables. False: *problem names the file,
 * line, section, option, and a correct value; NULL if the only problem is that the section is
 * damaged. Texts are borrowed from the config.
 */
bool config_apply(const config *config, const config_section *section, const config_option *table, void *target,
                  char **problem);
/*
 * True: the tables (a pipeline's and its sink's) contain every entry of the section, and only
 * entries that may be repeated are. False: *problem, with the nearest known option.
 */
bool config_known(const config *config, const config_section *section, const config_option *const *tables,
                  size_t table_count, char **problem);
/* The section's first entry with that name, or NULL. */
const config_entry *config_entry_of(const config_section *section, const char *name);
/*
 * A problem with an entry or section of the config, worded like all others: "pgonce.conf:12: [relay
 * orders] url: ...". Free it.
 */
__attribute__((format(printf, 4, 5))) char *config_problem(const config *config, const config_section *section,
                                                           const config_entry *entry, const char *format, ...);
/* Appends `more` (which it frees; NULL: nothing) to *problem, without the lines already there. */
void config_problem_add(char **problem, char *more);
/* A warning if the file holds a secret and every user may read it (free it); NULL: no warning. */
char *config_exposed(const config *config);
/*
 * The text of the file that an entry names (secret_file and the like), without its final line end;
 * free it. NULL: *problem: it cannot be read, is empty, or has more than 64 kB.
 */
char *config_file_text(const config *config, const config_section *section, const config_entry *entry, char **problem);

/*
 * A number, duration or size as written in the file, in the largest unit that is exact; in buffer,
 * which is returned.
 */
const char *config_shown(int64_t value, config_kind kind, char buffer[VALUE_SHOWN_BYTES]);
