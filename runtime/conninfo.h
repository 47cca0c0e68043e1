/* SPDX-License-Identifier: PostgreSQL */
/*
 * conninfo.h: connection strings as people write them: libpq's, or a database's name alone. Nothing
 * here connects.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Without '=' and '://' it is a database's name, as in PQconnectdbParams. */
bool conninfo_is_name(const char *text);

#define CONNINFO_PROBLEM_BYTES 256
/*
 * Can libpq read it? False: *problem says what is wrong, without any part of the string where that
 * may be a password: problems are logged.
 */
bool conninfo_good(const char *text, char problem[CONNINFO_PROBLEM_BYTES]);

/*
 * The standard for a keyword that the string (and the environment, and a service file) leaves open;
 * NULL: libpq's own.
 */
typedef const char *conninfo_standard(const char *keyword);
/*
 * The same connection, as keyword='value' pairs, with what is left open filled in; free it. NULL:
 * conninfo_good says why, or memory is out (then *problem says that).
 */
char *conninfo_settled(const char *text, conninfo_standard *standard, char problem[CONNINFO_PROBLEM_BYTES]);

/*
 * The same connection, with what libpq would add from the environment (PGHOST, PGPASSWORD, ...), a
 * service file and the home directory: for a process that has none of them. It may hold a password.
 * Free it. NULL: as above.
 */
char *conninfo_fixed(const char *text, char problem[CONNINFO_PROBLEM_BYTES]);
/* The value of a keyword, or NULL; free it. */
char *conninfo_value(const char *text, const char *keyword);
/* The same connection but for one keyword; free it. NULL: out of memory. */
char *conninfo_with(const char *text, const char *keyword, const char *value);
