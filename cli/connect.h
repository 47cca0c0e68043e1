/* SPDX-License-Identifier: PostgreSQL */
/* connect.h: connections, from --dsn and the environment; and the command's own SQL (cli/sql/). */
#pragma once

#include "cli.h"
#include "conninfo.h"
#include "sql.h"

/*
 * The connection string to use: --dsn or the environment, plus settings for a command line tool if
 * neither has them (a bound on connecting, a name for the server's list of sessions, UTF-8). NULL
 * after an error message. Free it.
 */
char *connect_conninfo(const cli_invocation *invocation);
/*
 * A connection string with the same settings; NULL: problem says what is wrong with it. Free it.
 */
char *connect_settled(const char *dsn, char problem[CONNINFO_PROBLEM_BYTES]);
/* connect_conninfo for the connection string of another option. */
char *connect_conninfo_of(const cli_invocation *invocation, option_id option);
/*
 * The same, for a process that has neither this one's environment nor its home directory: it
 * contains what libpq would take from there, including a password.
 */
char *connect_fixed_conninfo(const cli_invocation *invocation);
char *connect_fixed_conninfo_of(const cli_invocation *invocation, option_id option);
/* A session with that connection string. CLI_OK, or an exit code after an error message. */
int connect_open(const cli_invocation *invocation, once_session **session);
/* A session on a connection string. CLI_OK, or an exit code after an error message. */
int connect_session(const cli_invocation *invocation, const char *conninfo, once_session **session);
/* A plain connection, for tasks that must work without the contract; as above. */
int connect_plain(const cli_invocation *invocation, const char *conninfo, PGconn **connection);
/*
 * Runs one of the command's own statements. NULL only if out of memory; the caller checks the
 * status and clears it.
 */
PGresult *connect_query(PGconn *connection, enum sql_id id, int parameter_count, const char *const *parameters);
/* Runs a transaction command (BEGIN, COMMIT), without parameters and rows. CLI_OK, or as above. */
int connect_command(const cli_invocation *invocation, PGconn *connection, const char *command, const char *what);
/*
 * Runs it, expects rows or none, and reports a failure. CLI_OK, with *result (NULL: not needed) for
 * the caller to clear.
 */
int connect_run(const cli_invocation *invocation, PGconn *connection, enum sql_id id, int parameter_count,
                const char *const *parameters, const char *what, PGresult **result);
/*
 * Runs it so that the rows can be taken one by one as they arrive: only one is in memory. The
 * caller takes all of them (connect_next), or closes the connection. CLI_OK, or an exit code after
 * an error message.
 */
int connect_send(const cli_invocation *invocation, PGconn *connection, enum sql_id id, int parameter_count,
                 const char *const *parameters, const char *what);
/* Waits for the next row (clear it), or the end (*row is NULL). As above. */
int connect_next(const cli_invocation *invocation, PGconn *connection, const char *what, PGresult **row);
