/* SPDX-License-Identifier: PostgreSQL */
/*
 * conninfo.h: connection strings as users write them: libpq's, or only a database's name. Nothing
 * here connects.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Without '=' and '://' it is a database's name, as in PQconnectdbParams. */
bool conninfo_is_name(const char *text);

#define CONNINFO_PROBLEM_BYTES 256
/*
 * True: libpq can read it. False: *problem describes the mistake, without any part of the string
 * that may be a password: problems are logged.
 */
bool conninfo_good(const char *text, char problem[CONNINFO_PROBLEM_BYTES]);

/*
 * The default for a keyword that the string (and the environment, and a service file) leaves open;
 * NULL: libpq's own.
 */
typedef const char *conninfo_standard(const char *keyword);
/*
 * The same connection, as keyword='value' pairs, with open keywords filled in; free it. NULL:
 * conninfo_good says why, or out of memory (then *problem says so).
 */
char *conninfo_settled(const char *text, conninfo_standard *standard, char problem[CONNINFO_PROBLEM_BYTES]);

/*
 * The same connection, with everything that libpq would add from the environment (PGHOST,
 * PGPASSWORD, ...), a service file and the home directory: for a process without them. It may
 * contain a password. Free it. NULL: as above.
 */
char *conninfo_fixed(const char *text, char problem[CONNINFO_PROBLEM_BYTES]);
/* A keyword's value, or NULL; free it. */
char *conninfo_value(const char *text, const char *keyword);
/* The same connection with one keyword changed; free it. NULL: out of memory. */
char *conninfo_with(const char *text, const char *keyword, const char *value);
