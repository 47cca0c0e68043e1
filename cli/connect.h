/* SPDX-License-Identifier: PostgreSQL */
/*
 * connect.h: connections, as --dsn and the environment say; and the command's own SQL (cli/sql/).
 */
#pragma once

#include "cli.h"
#include "sql.h"

/*
 * The connection string to use: --dsn or the environment, plus what a command line tool needs where
 * neither says otherwise (a bound on connecting, a name for the server's list of sessions, UTF-8).
 * NULL after saying what is wrong. Free it.
 */
char *connect_conninfo(const cli_invocation *invocation);
/*
 * The same, for a process that has neither this one's environment nor its home directory: it holds
 * what libpq would take from there, a password too.
 */
char *connect_fixed_conninfo(const cli_invocation *invocation);
/* A session on that. CLI_OK, or an exit code after saying what is wrong. */
int connect_open(const cli_invocation *invocation, once_session **session);
/* A session on a connection string. CLI_OK, or an exit code after saying what is wrong. */
int connect_session(const cli_invocation *invocation, const char *conninfo, once_session **session);
/* A plain connection, for what must work without the contract; as above. */
int connect_plain(const cli_invocation *invocation, const char *conninfo, PGconn **connection);
/*
 * Runs one of the command's own statements. Never NULL but out of memory; the caller looks at the
 * status and clears it.
 */
PGresult *connect_query(PGconn *connection, enum sql_id id, int parameter_count, const char *const *parameters);
/*
 * Runs a command of transactions (BEGIN, COMMIT), which has no parameters and no rows. CLI_OK, or
 * as above.
 */
int connect_command(const cli_invocation *invocation, PGconn *connection, const char *command, const char *what);
/*
 * Runs it, expects rows or none, and reports a failure. CLI_OK, with *result (NULL allowed: not
 * wanted) for the caller to clear.
 */
int connect_run(const cli_invocation *invocation, PGconn *connection, enum sql_id id, int parameter_count,
                const char *const *parameters, const char *what, PGresult **result);
/*
 * Runs it, and hands over the rows one by one as they come, so that however many there are, one is
 * in memory. False from `take`: that is enough; the connection is of no further use then. CLI_OK,
 * or an exit code after saying what is wrong, before the first row or behind any.
 */
typedef bool connect_taker(void *argument, const PGresult *row);
int connect_stream(const cli_invocation *invocation, PGconn *connection, enum sql_id id, int parameter_count,
                   const char *const *parameters, const char *what, connect_taker *take, void *argument);
