/* SPDX-License-Identifier: PostgreSQL */
/*
 * top.c: pgonce top: the contract's current activity, as text or as JSON. top_picture.c prints it.
 */
#include <poll.h>
#include <stdlib.h>

#include "connect.h"
#include "top_picture.h"

enum {
	SLOW_MS = 3000 /* a query that takes longer than this is reported */
};

/* The answer to one query; the caller clears it. A late one is reported, and waited for. */
static PGresult *ask(const cli_invocation *invocation, PGconn *connection, enum sql_id id)
{
	PGresult *answer = NULL, *next = NULL;

	if (PQsendQueryParams(connection, sql_queries[id].text, 0, NULL, NULL, NULL, NULL, 0) == 1) {
		struct pollfd waited = {.fd = PQsocket(connection), .events = POLLIN};
		if (poll(&waited, 1, SLOW_MS) == 0) {
			cli_note(invocation, "the database has not answered for %d s", SLOW_MS / 1000);
		}
	}
	while ((next = PQgetResult(connection)) != NULL) {
		PQclear(answer);
		answer = next;
	}
	return answer;
}

/* NULL: the query failed, which is reported; *result is the command's then. The caller frees. */
static json_t *ask_json(const cli_invocation *invocation, PGconn *connection, enum sql_id id, int *result)
{
	PGresult *answer = ask(invocation, connection, id);
	json_t *json = NULL;

	if (PQresultStatus(answer) != PGRES_TUPLES_OK || PQntuples(answer) != 1) {
		*result = cli_report_result(invocation, connection, answer, "cannot look");
	} else {
		json = json_loads(PQgetvalue(answer, 0, 0), 0, NULL);
	}
	PQclear(answer);
	return json;
}

static int look(const cli_invocation *invocation, PGconn *connection)
{
	int result = CLI_OK;
	json_t *running = ask_json(invocation, connection, SQL_TOP_RUNNING, &result);
	json_t *now = running != NULL ? ask_json(invocation, connection, SQL_TOP, &result) : NULL;

	if (now != NULL) {
		top_join(now, running);
		if (invocation->given[OPTION_JSON]) {
			cli_print_json(json_incref(now));
		} else {
			top_print(now);
		}
	}
	json_decref(running);
	json_decref(now);
	return result;
}

int cli_top(const cli_invocation *invocation)
{
	once_session *session = NULL;
	char *conninfo = connect_conninfo(invocation);

	if (conninfo == NULL) {
		return CLI_USAGE;
	}
	int result = connect_session(invocation, conninfo, &session);
	if (result == CLI_OK) {
		result = look(invocation, once_session_connection(session));
	}
	once_session_close(session);
	free(conninfo);
	return result;
}
