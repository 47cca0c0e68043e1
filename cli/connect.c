/* SPDX-License-Identifier: PostgreSQL */
/* connect.c: see connect.h. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "config.h"
#include "connect.h"
#include "conninfo.h"

typedef struct standard {
	const char *keyword;
	const char *variable; /* the environment variable that says otherwise */
	const char *value;
} standard;

static const standard standards[] = {
    {"connect_timeout", "PGCONNECT_TIMEOUT", "10"},
    /* A server that vanished is noticed in seconds, not in the kernel's quarter of an hour. */
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

char *connect_conninfo(const cli_invocation *invocation)
{
	char problem[CONNINFO_PROBLEM_BYTES];
	char *conninfo =
	    conninfo_settled(invocation->given[OPTION_DSN] ? invocation->text[OPTION_DSN] : "", standard_of, problem);

	if (conninfo == NULL) {
		cli_fail(invocation, CLI_USAGE, "pgonce help, and the PostgreSQL manual: Connection Strings",
		         "option --dsn: %s", problem);
	}
	return conninfo;
}

int connect_session(const cli_invocation *invocation, const char *conninfo, once_session **session)
{
	once_error *error = NULL;

	return once_session_open(conninfo, session, &error) == ONCE_OK ? CLI_OK : cli_report_error(invocation, error);
}

int connect_plain(const cli_invocation *invocation, const char *conninfo, PGconn **connection)
{
	PGconn *made = PQconnectdb(conninfo);

	if (PQstatus(made) == CONNECTION_OK) {
		*connection = made;
		return CLI_OK;
	}
	/* libpq's own words for a server's, in whatever language: "FATAL:  ...". */
	bool answered = made != NULL && strstr(PQerrorMessage(made), ":  ") != NULL;
	int result = cli_fail(
	    invocation, CLI_NO_SERVER,
	    answered ? "the server is there and refuses: change what it names, or --dsn; where its connections are taken, "
	               "try again"
	             : "start the server, or say where it is with --dsn or PGHOST; pgonce dev starts a private one",
	    "%s", made == NULL ? "out of memory" : PQerrorMessage(made));
	PQfinish(made);
	return result;
}

PGresult *connect_query(PGconn *connection, enum sql_id id, int parameter_count, const char *const *parameters)
{
	assert(sql_queries[id].parameter_count == parameter_count);
	return PQexecParams(connection, sql_queries[id].text, parameter_count, NULL, parameters, NULL, NULL, 0);
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
