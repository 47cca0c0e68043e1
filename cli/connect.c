/* SPDX-License-Identifier: PostgreSQL */
/* connect.c: see connect.h. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "config.h"
#include "connect.h"

typedef struct standard {
	const char *keyword;
	const char *variable; /* the environment variable that overrides it */
	const char *value;
} standard;

static const standard standards[] = {
    {"connect_timeout", "PGCONNECT_TIMEOUT", "10"},
    /* A vanished server is noticed in seconds, not in the kernel's quarter of an hour. */
    {"tcp_user_timeout", NULL, "15000"},
    {"fallback_application_name", NULL, "pgonce"},
    {"client_encoding", "PGCLIENTENCODING", "UTF8"},
};

static const char *standard_of(const char *keyword)
{
	for (size_t i = 0; i < sizeof standards / sizeof standards[0]; i++) {
		if (strcmp(standards[i].keyword, keyword) == 0) {
			const char *variable = standards[i].variable;
			return variable != NULL && getenv(variable) != NULL ? NULL : standards[i].value;
		}
	}
	return NULL;
}

char *connect_settled(const char *dsn, char problem[CONNINFO_PROBLEM_BYTES])
{
	return conninfo_settled(dsn, standard_of, problem);
}

char *connect_conninfo_of(const cli_invocation *invocation, option_id option)
{
	char problem[CONNINFO_PROBLEM_BYTES];
	char *conninfo = connect_settled(invocation->given[option] ? invocation->text[option] : "", problem);

	if (conninfo == NULL) {
		cli_fail(invocation, CLI_USAGE, "pgonce help, and the PostgreSQL manual: Connection Strings", "option --%s: %s",
		         cli_options[option].name, problem);
	}
	return conninfo;
}

char *connect_conninfo(const cli_invocation *invocation)
{
	return connect_conninfo_of(invocation, OPTION_DSN);
}

char *connect_fixed_conninfo(const cli_invocation *invocation)
{
	return connect_fixed_conninfo_of(invocation, OPTION_DSN);
}

char *connect_fixed_conninfo_of(const cli_invocation *invocation, option_id option)
{
	char problem[CONNINFO_PROBLEM_BYTES];
	char *conninfo = connect_conninfo_of(invocation, option);
	char *fixed = conninfo == NULL ? NULL : conninfo_fixed(conninfo, problem);

	if (conninfo != NULL && fixed == NULL) {
		cli_fail(invocation, CLI_FAILED, NULL, "%s", problem);
	}
	free(conninfo);
	return fixed;
}

int connect_session(const cli_invocation *invocation, const char *conninfo, once_session **session)
{
	once_error *error = NULL;

	return once_session_open(conninfo, session, &error) == ONCE_OK ? CLI_OK : cli_report_error(invocation, error);
}

int connect_open(const cli_invocation *invocation, once_session **session)
{
	char *conninfo = connect_conninfo(invocation);
	int result = conninfo == NULL ? CLI_USAGE : connect_session(invocation, conninfo, session);

	free(conninfo);
	return result;
}

int connect_plain(const cli_invocation *invocation, const char *conninfo, PGconn **connection)
{
	PGconn *made = PQconnectdb(conninfo);

	if (PQstatus(made) == CONNECTION_OK) {
		*connection = made;
		return CLI_OK;
	}
	bool answered = PQping(conninfo) != PQPING_NO_RESPONSE;
	int result =
	    cli_fail(invocation, CLI_NO_SERVER,
	             answered ? "the server refuses the connection: create what the message names, or change --dsn (or "
	                        "PGUSER, PGDATABASE, PGPASSWORD); if all its connections are taken, try again"
	                      : "start the server, or set --dsn or PGHOST to its address; pgonce dev starts a private one",
	             "%s", made == NULL ? "out of memory" : PQerrorMessage(made));
	PQfinish(made);
	return result;
}

PGresult *connect_query(PGconn *connection, enum sql_id id, int parameter_count, const char *const *parameters)
{
	assert(sql_queries[id].parameter_count == parameter_count);
	return PQexecParams(connection, sql_queries[id].text, parameter_count, NULL, parameters, NULL, NULL, 0);
}

int connect_command(const cli_invocation *invocation, PGconn *connection, const char *command, const char *what)
{
	PGresult *answer = PQexec(connection, command);
	int result =
	    PQresultStatus(answer) == PGRES_COMMAND_OK ? CLI_OK : cli_report_result(invocation, connection, answer, what);

	PQclear(answer);
	return result;
}

int connect_run(const cli_invocation *invocation, PGconn *connection, enum sql_id id, int parameter_count,
                const char *const *parameters, const char *what, PGresult **result)
{
	PGresult *answer = connect_query(connection, id, parameter_count, parameters);
	ExecStatusType status = PQresultStatus(answer);

	if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK) {
		int exit_code = cli_report_result(invocation, connection, answer, what);
		PQclear(answer);
		return exit_code;
	}
	if (result != NULL) {
		*result = answer;
	} else {
		PQclear(answer);
	}
	return CLI_OK;
}

int connect_send(const cli_invocation *invocation, PGconn *connection, enum sql_id id, int parameter_count,
                 const char *const *parameters, const char *what)
{
	assert(sql_queries[id].parameter_count == parameter_count);
	return PQsendQueryParams(connection, sql_queries[id].text, parameter_count, NULL, parameters, NULL, NULL, 0) != 0 &&
	               PQsetSingleRowMode(connection) != 0
	           ? CLI_OK
	           : cli_report_result(invocation, connection, NULL, what);
}

int connect_next(const cli_invocation *invocation, PGconn *connection, const char *what, PGresult **row)
{
	PGresult *answer = NULL;
	int result = CLI_OK;

	*row = NULL;
	while ((answer = PQgetResult(connection)) != NULL) {
		ExecStatusType status = PQresultStatus(answer);
		if (status == PGRES_SINGLE_TUPLE) {
			*row = answer;
			return CLI_OK;
		}
		if (status != PGRES_TUPLES_OK && result == CLI_OK) {
			result = cli_report_result(invocation, connection, answer, what);
		}
		PQclear(answer);
	}
	return result;
}
