/* SPDX-License-Identifier: PostgreSQL */
/* native.c: see native.h. */
#include <stdlib.h>
#include <string.h>

#include "native.h"

static bool is_true(const PGresult *rows, const char *column)
{
	return PQgetvalue(rows, 0, PQfnumber(rows, column))[0] == 't';
}

static const char *text_of(const PGresult *rows, const char *column)
{
	return PQgetvalue(rows, 0, PQfnumber(rows, column));
}

static const char *message_of(const PGresult *result)
{
	const char *message = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);

	return message != NULL ? message : "no answer";
}

static bool is_there(const PGresult *state)
{
	return text_of(state, "installed")[0] != '\0';
}

static bool is_wanted(const PGresult *state)
{
	const char *available = text_of(state, "available");

	return available[0] != '\0' && strcmp(available, text_of(state, "installed")) != 0;
}

/* NULL, or the answer with the reason. */
static PGresult *run(PGconn *connection, enum sql_id command, ExecStatusType expected)
{
	PGresult *result = connect_query(connection, command, 0, NULL);

	if (PQresultStatus(result) == expected) {
		PQclear(result);
		return NULL;
	}
	return result;
}

/*
 * In a transaction, under the lock of installations: two CREATE EXTENSION at once collide, so the
 * second checks again.
 */
static PGresult *put_there(PGconn *connection)
{
	PGresult *failure = run(connection, SQL_INSTALL_LOCK, PGRES_TUPLES_OK);

	if (failure != NULL) {
		return failure;
	}
	PGresult *state = connect_query(connection, SQL_NATIVE_STATE, 0, NULL);
	if (PQresultStatus(state) != PGRES_TUPLES_OK) {
		return state;
	}
	if (is_wanted(state)) {
		failure = run(connection, is_there(state) ? SQL_NATIVE_UPDATE : SQL_NATIVE_CREATE, PGRES_COMMAND_OK);
	}
	PQclear(state);
	return failure;
}

/* A separate transaction, after the contract's: a failure here does not affect it. */
static bool install(const cli_invocation *invocation, PGconn *connection)
{
	PQclear(PQexec(connection, "BEGIN ISOLATION LEVEL READ COMMITTED"));
	PGresult *failure = put_there(connection);
	PGresult *end = PQexec(connection, failure == NULL ? "COMMIT" : "ROLLBACK");
	bool good = failure == NULL && PQresultStatus(end) == PGRES_COMMAND_OK;

	if (!good) {
		cli_note(invocation, "pgonce_native is left out, SQL does the same: %s",
		         message_of(failure != NULL ? failure : end));
	}
	PQclear(failure);
	PQclear(end);
	return good;
}

bool native_install(const cli_invocation *invocation, PGconn *connection)
{
	PGresult *state = connect_query(connection, SQL_NATIVE_STATE, 0, NULL);
	bool there = false;

	if (PQresultStatus(state) == PGRES_TUPLES_OK) {
		there = is_there(state);
		if (is_wanted(state) && is_true(state, "may")) {
			there = install(invocation, connection) || there;
		} else if (is_wanted(state)) {
			cli_note(invocation, "pgonce_native %s is on this server: pgonce init by a superuser has it answer here",
			         text_of(state, "available"));
		}
	}
	PQclear(state);
	return there;
}

/* Whether the plan names one of the library's functions. */
static bool is_in_plan(const PGresult *plan)
{
	for (int row = 0; row < PQntuples(plan); row++) {
		if (strstr(PQgetvalue(plan, row, 0), "once_native.") != NULL) {
			return true;
		}
	}
	return false;
}

static void set(native_state *state, native_use use, const char *first, const char *second, const char *third)
{
	state->use = use;
	snprintf(state->detail, sizeof state->detail, "%s%.100s%.100s", first, second, third);
}

/* Why the library leaves calls for intents and events to SQL: "" if it does not. */
static void look_for_obstacle(PGconn *connection, const char *version, bool planned, native_state *state)
{
	PGresult *rows = connect_query(connection, SQL_NATIVE_OBSTACLE, 0, NULL);
	const char *intents = PQresultStatus(rows) == PGRES_TUPLES_OK ? text_of(rows, "intents") : message_of(rows);
	const char *events = PQresultStatus(rows) == PGRES_TUPLES_OK ? text_of(rows, "events") : "";

	state->use = NATIVE_C;
	if (intents[0] != '\0' || !planned) {
		state->use = NATIVE_UNTRUSTED;
		snprintf(state->detail, sizeof state->detail, "SQL, though pgonce_native %s is here: %.200s", version,
		         intents[0] != '\0' ? intents : "this role may not call its functions");
	} else if (events[0] != '\0') {
		state->use = NATIVE_UNTRUSTED;
		snprintf(state->detail, sizeof state->detail, "C: pgonce_native %s, but SQL for once.emit: %.200s", version,
		         events);
	} else {
		snprintf(state->detail, sizeof state->detail, "C: pgonce_native %s", version);
	}
	PQclear(rows);
}

static void try_it(PGconn *connection, const char *version, native_state *state)
{
	PGresult *result = connect_query(connection, SQL_NATIVE_LOAD, 0, NULL);

	if (PQresultStatus(result) != PGRES_TUPLES_OK) {
		set(state, NATIVE_BROKEN, "SQL, since pgonce_native cannot be loaded: ", message_of(result), "");
		PQclear(result);
		return;
	}
	PQclear(result);
	result = connect_query(connection, SQL_NATIVE_PLAN, 0, NULL);
	if (PQresultStatus(result) != PGRES_TUPLES_OK) {
		set(state, NATIVE_UNKNOWN, "pgonce_native ", version, " is here, and this role may not call once.start");
	} else {
		look_for_obstacle(connection, version, is_in_plan(result), state);
	}
	PQclear(result);
}

void native_inspect(PGconn *connection, native_state *state)
{
	PGresult *rows = connect_query(connection, SQL_NATIVE_STATE, 0, NULL);

	if (PQresultStatus(rows) != PGRES_TUPLES_OK) {
		set(state, NATIVE_UNKNOWN, "it could not be looked for: ", message_of(rows), "");
		PQclear(rows);
		return;
	}
	const char *available = text_of(rows, "available");
	const char *installed = text_of(rows, "installed");
	if (!is_true(rows, "has_functions")) {
		bool could_be = available[0] != '\0';
		set(state, NATIVE_SQL, "SQL", could_be ? "; this server also has pgonce_native " : "",
		    could_be ? available : "");
	} else if (installed[0] != '\0' && strcmp(installed, available) != 0) {
		char *differ = cli_format("the database has pgonce_native %s, the server's files are of %s", installed,
		                          available[0] != '\0' ? available : "none");
		set(state, NATIVE_OTHER, differ, "", "");
		free(differ);
	} else {
		try_it(connection, installed, state);
	}
	PQclear(rows);
}
