/* SPDX-License-Identifier: PostgreSQL */
/* connect.c: see connect.h. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "config.h"
#include "connect.h"

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

/* key='value', with the quoting of libpq's connection strings. */
static void add_setting(char **conninfo, const char *keyword, const char *value)
{
	char *quoted = cli_allocate(2 * strlen(value) + 1);
	char *to = quoted;

	for (const char *from = value; *from != '\0'; from++) {
		if (*from == '\'' || *from == '\\') {
			*to++ = '\\';
		}
		*to++ = *from;
	}
	char *longer = cli_format("%s%s='%s' ", *conninfo, keyword, quoted);
	free(*conninfo);
	free(quoted);
	*conninfo = longer;
}

char *connect_conninfo(const cli_invocation *invocation)
{
	const char *dsn = invocation->given[OPTION_DSN] ? invocation->text[OPTION_DSN] : "";
	/* libpq reads a string without '=' and '://' as a database's name only in PQconnectdbParams; people expect it here too. */
	bool is_name = dsn[0] != '\0' && strchr(dsn, '=') == NULL && strstr(dsn, "://") == NULL;
	char *problem = NULL;
	PQconninfoOption *options = PQconninfoParse(is_name ? "" : dsn, &problem);

	if (options == NULL) {
		cli_fail(invocation, CLI_USAGE, "pgonce help, and the PostgreSQL manual: Connection Strings",
		         "option --dsn: %s", config_conninfo_fault(dsn, problem));
		PQfreemem(problem);
		return NULL;
	}
	char *conninfo = cli_duplicate("");
	for (PQconninfoOption *option = options; option->keyword != NULL; option++) {
		const char *value = is_name && strcmp(option->keyword, "dbname") == 0 ? dsn : option->val;
		value = value != NULL ? value : standard_of(option->keyword);
		if (value != NULL) {
			add_setting(&conninfo, option->keyword, value);
		}
	}
	PQconninfoFree(options);
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
	int result = cli_fail(invocation, CLI_NO_SERVER,
	                      "start the server, or say where it is with --dsn or PGHOST; pgonce dev starts a private one",
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
