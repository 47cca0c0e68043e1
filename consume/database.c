/* SPDX-License-Identifier: PostgreSQL */
/* database.c: see database.h. */
#include "database.h"

#include <assert.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arena.h"
#include "json_text.h"

#define ALIVE_MS 250 /* less than a third of the least time that a broker waits for a sign of life (NATS: ack_wait) */
#define HANDLER_PLACE "pgonce_handler"

/* ---- what went wrong */

/* Classes and codes of the manual's appendix "PostgreSQL Error Codes". */
failure_kind failure_kind_of(const char *sqlstate)
{
	static const char *const no_server[] = {"08", "57P", "25006", "53300", "28", "3D000"};
	static const char *const passing[] = {"40001", "40P01", "55P03", "53", "58", "XX", "P4098"};

	if (sqlstate == NULL || sqlstate[0] == '\0') {
		return FAILURE_CONNECTION;
	}
	for (size_t i = 0; i < sizeof no_server / sizeof no_server[0]; i++) {
		if (strncmp(sqlstate, no_server[i], strlen(no_server[i])) == 0) {
			return FAILURE_CONNECTION;
		}
	}
	for (size_t i = 0; i < sizeof passing / sizeof passing[0]; i++) {
		if (strncmp(sqlstate, passing[i], strlen(passing[i])) == 0) {
			return FAILURE_PASSING;
		}
	}
	return strcmp(sqlstate, "57014") == 0 ? FAILURE_CANCELED : FAILURE_FAULT;
}

/* Cuts at `room` bytes, not inside of a character, and drops the last line's end. */
static void cut(char *text, size_t room)
{
	size_t length = strnlen(text, room);

	while (length > 0 && (text[length - 1] == '\n' || text[length - 1] == ' ')) {
		length--;
	}
	text[length] = '\0';
	while (length > 0 && !json_text_is_text(text, length)) {
		text[--length] = '\0';
	}
}

void failure_set(failure *failure, failure_kind kind, const char *format, ...)
{
	va_list arguments;

	failure->kind = kind;
	failure->sqlstate[0] = '\0';
	va_start(arguments, format);
	vsnprintf(failure->text, sizeof failure->text, format, arguments);
	va_end(arguments);
	cut(failure->text, sizeof failure->text - 1);
}

void failure_of_result(const database *database, const PGresult *result, failure *failure)
{
	static const struct {
		int field;
		const char *title;
	} parts[] = {
	    {PG_DIAG_MESSAGE_DETAIL, "; detail: "}, {PG_DIAG_MESSAGE_HINT, "; hint: "}, {PG_DIAG_CONTEXT, "; context: "}};
	const char *sqlstate = result == NULL ? NULL : PQresultErrorField(result, PG_DIAG_SQLSTATE);
	const char *message = result == NULL ? NULL : PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);

	failure->kind = PQstatus(database->connection) == CONNECTION_OK ? failure_kind_of(sqlstate) : FAILURE_CONNECTION;
	snprintf(failure->sqlstate, sizeof failure->sqlstate, "%s", sqlstate == NULL ? "" : sqlstate);
	snprintf(failure->text, sizeof failure->text, "%s",
	         message != NULL ? message : PQerrorMessage(database->connection));
	cut(failure->text, sizeof failure->text - 1);
	for (size_t i = 0; result != NULL && i < sizeof parts / sizeof parts[0]; i++) {
		const char *more = PQresultErrorField(result, parts[i].field);
		size_t used = strlen(failure->text);
		if (more != NULL) {
			snprintf(failure->text + used, sizeof failure->text - used, "%s%s", parts[i].title, more);
			cut(failure->text, sizeof failure->text - 1);
		}
	}
}

/*
 * An ERROR of a handler, or of a deferred trigger at COMMIT, ends the statement and no more, whatever its SQLSTATE: postgres_fdw raises 08001
 * where the foreign server is away, and anybody may RAISE 25006. What ends our own connection is FATAL.
 */
static void believe_only_the_server(enum sql_id id, const PGresult *result, failure *failure)
{
	const char *severity = result == NULL ? NULL : PQresultErrorField(result, PG_DIAG_SEVERITY_NONLOCALIZED);

	if ((id == SQL_HANDLE || id == SQL_COMMIT) && failure->kind == FAILURE_CONNECTION && severity != NULL &&
	    strcmp(severity, "ERROR") == 0) {
		failure->kind = FAILURE_PASSING;
	}
}

void failure_of_error(const once_error *error, failure *failure)
{
	const char *sqlstate = once_error_sqlstate(error);
	once_code code = once_error_code(error);

	failure_set(failure, FAILURE_FAULT, "%s%s%s%s%s", once_error_message(error),
	            once_error_detail(error)[0] ? "; " : "", once_error_detail(error),
	            once_error_hint(error)[0] ? "; " : "", once_error_hint(error));
	snprintf(failure->sqlstate, sizeof failure->sqlstate, "%s", sqlstate);
	failure->kind = sqlstate[0] != '\0' ? failure_kind_of(sqlstate)
	                : code == ONCE_CONNECTION || code == ONCE_OUTCOME_UNKNOWN || code == ONCE_DEADLINE
	                    ? FAILURE_CONNECTION
	                    : FAILURE_PASSING;
}

/* ---- results */

int32_t result_integer(const PGresult *result, int row, int column)
{
	const unsigned char *at = (const unsigned char *)PQgetvalue(result, row, column);

	if (PQgetlength(result, row, column) != 4) {
		return 0;
	}
	return (int32_t)((uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3]);
}

int64_t result_bigint(const PGresult *result, int row, int column)
{
	const unsigned char *at = (const unsigned char *)PQgetvalue(result, row, column);
	uint64_t number = 0;

	for (int i = 0; i < 8 && PQgetlength(result, row, column) == 8; i++) {
		number = number << 8 | at[i];
	}
	return (int64_t)number;
}

bool result_is_true(const PGresult *result, int row, int column)
{
	return PQgetlength(result, row, column) == 1 && PQgetvalue(result, row, column)[0] != 0;
}

/* ---- the connection */

/* What a handler says by RAISE NOTICE is for the server's log: here it could hold a payload. */
static void ignore_notice(void *argument, const PGresult *result)
{
	(void)argument;
	(void)result;
}

bool database_connect(database *database, failure *failure)
{
	once_error *error = NULL;

	database_disconnect(database);
	database->connection = PQconnectdb(database->conninfo);
	if (PQstatus(database->connection) != CONNECTION_OK) {
		failure_set(failure, FAILURE_CONNECTION, "%s",
		            database->connection == NULL ? "out of memory" : PQerrorMessage(database->connection));
		database_disconnect(database);
		return false;
	}
	PQsetNoticeReceiver(database->connection, ignore_notice, NULL);
	if (once_session_attach(database->connection, &database->session, &error) != ONCE_OK ||
	    once_session_check(database->session, &error) != ONCE_OK) {
		failure_of_error(error, failure);
		once_error_free(error);
		database_disconnect(database);
		return false;
	}
	once_session_prepare(database->session, database->prepares);
	database->is_there = true;
	service_database(1);
	return true;
}

void database_disconnect(database *database)
{
	if (database->is_there) {
		database->is_there = false;
		service_database(-1);
	}
	once_session_close(database->session);
	PQfinish(database->connection);
	database->session = NULL;
	database->connection = NULL;
	database->in_transaction = false;
	memset(database->prepared, 0, sizeof database->prepared);
}

/* The answer to what was sent; the first error of it, where there is one. NULL: the connection is gone. */
static PGresult *await_result(database *database)
{
	PGresult *kept = NULL;

	for (;;) {
		while (PQisBusy(database->connection)) {
			struct pollfd wait = {.fd = PQsocket(database->connection), .events = POLLIN};
			int ready = poll(&wait, 1, ALIVE_MS);
			if (ready == 0 && database->alive != NULL) {
				database->alive(database->argument);
			}
			if (ready > 0 && !PQconsumeInput(database->connection)) {
				break; /* PQgetResult says the rest */
			}
		}
		PGresult *next = PQgetResult(database->connection);
		if (next == NULL) {
			return kept;
		}
		if (kept != NULL && PQresultStatus(kept) == PGRES_FATAL_ERROR) {
			PQclear(next);
			continue;
		}
		PQclear(kept);
		kept = next;
	}
}

static const char *text_of(const database *database, enum sql_id id)
{
	return id == SQL_HANDLE ? database->handle_text : sql_queries[id].text;
}

static bool is_good(const PGresult *result)
{
	ExecStatusType status = PQresultStatus(result);

	return status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK;
}

static bool prepare(database *database, enum sql_id id, const parameters *parameters, failure *failure)
{
	if (!PQsendPrepare(database->connection, sql_queries[id].name, text_of(database, id), parameters->count,
	                   parameters->types)) {
		failure_of_result(database, NULL, failure);
		return false;
	}
	PGresult *result = await_result(database);
	database->prepared[id] = is_good(result);
	if (!database->prepared[id]) {
		failure_of_result(database, result, failure);
		/* A statement of ours that the server does not know how to run: not the business of a message. */
		failure->kind = failure->kind == FAILURE_FAULT ? FAILURE_PASSING : failure->kind;
	}
	PQclear(result);
	return database->prepared[id];
}

PGresult *database_query(database *database, enum sql_id id, parameters *parameters, failure *failure)
{
	PGresult *result = NULL;
	int sent = 0;

	assert(sql_queries[id].parameter_count == parameters->count);
	failure->kind = FAILURE_NONE;
	if (database->connection == NULL) {
		failure_set(failure, FAILURE_CONNECTION, "there is no connection");
		goto done;
	}
	if (!parameters_seal(parameters)) {
		failure_set(failure, FAILURE_FAULT, "the messages are too large for one statement");
		goto done;
	}
	bool with_preparing = database->prepares && parameters->count > 0;
	if (with_preparing && !database->prepared[id] && !prepare(database, id, parameters, failure)) {
		goto done;
	}
	if (with_preparing) {
		sent = PQsendQueryPrepared(database->connection, sql_queries[id].name, parameters->count, parameters->values,
		                           parameters->lengths, parameters->formats, 1);
	} else {
		sent = PQsendQueryParams(database->connection, text_of(database, id), parameters->count, parameters->types,
		                         parameters->values, parameters->lengths, parameters->formats, 1);
	}
	if (sent) {
		result = await_result(database);
	}
	if (!is_good(result)) {
		failure_of_result(database, result, failure);
		if (PQstatus(database->connection) == CONNECTION_OK) {
			believe_only_the_server(id, result, failure);
		}
		PQclear(result);
		result = NULL;
	}
done:
	parameters_free(parameters);
	return result;
}

bool database_run(database *database, enum sql_id id, parameters *given, failure *failure)
{
	parameters none = {0};
	PGresult *result = database_query(database, id, given != NULL ? given : &none, failure);

	PQclear(result);
	return result != NULL;
}

bool database_begin(database *database, failure *failure)
{
	database->in_transaction = database_run(database, SQL_BEGIN, NULL, failure);
	return database->in_transaction;
}

bool database_commit(database *database, failure *failure)
{
	parameters none = {0};
	PGresult *result = database_query(database, SQL_COMMIT, &none, failure);
	bool committed = result != NULL && strcmp(PQcmdStatus(result), "COMMIT") == 0;

	database->in_transaction = false;
	if (result != NULL && !committed) {
		failure_set(failure, FAILURE_PASSING, "COMMIT was answered with %s", PQcmdStatus(result));
	}
	PQclear(result);
	return committed;
}

void database_rollback(database *database)
{
	failure failure;

	if (database->in_transaction && !database_run(database, SQL_ROLLBACK, NULL, &failure)) {
		database_disconnect(database);
	}
	database->in_transaction = false;
}

/* ---- the handler */

static char *describe(const char *format, const char *first, const char *second)
{
	char *text = NULL;

	/* The formats are this file's own, with two strings each. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
	int length = snprintf(NULL, 0, format, first, second);
	text = memory_take((size_t)length + 1);
	snprintf(text, (size_t)length + 1, format, first, second);
#pragma GCC diagnostic pop
	return text;
}

char *database_find_handler(database *database, const char *handler, failure *failure)
{
	parameters named = {0};
	char *problem = NULL;

	parameters_text(&named, handler);
	PGresult *result = database_query(database, SQL_FIND_HANDLER, &named, failure);
	if (result == NULL) {
		if (failure->kind == FAILURE_FAULT || failure->kind == FAILURE_PASSING) {
			problem =
			    describe("'%s' cannot be looked up as a function's name (schema.name, quoted where SQL would): %s",
			             handler, failure->text);
			failure->kind = FAILURE_NONE;
		}
		return problem;
	}
	const char *others = PQgetvalue(result, 0, 4);
	const char *role = PQgetvalue(result, 0, 6);
	if (strcmp(PQgetvalue(result, 0, 5), "UTF8") != 0) {
		problem = describe("the database's encoding is %s%s: messages need one in UTF8", PQgetvalue(result, 0, 5), "");
	} else if (PQgetisnull(result, 0, 0)) {
		problem = others[0] != '\0' ? describe("there is no function %s(once.message), only %s: a handler takes one "
		                                       "argument, of type once.message",
		                                       handler, others)
		                            : describe("there is no function %s(once.message) that the role %s finds: create "
		                                       "it, or name it with its schema",
		                                       handler, role);
	} else if (!result_is_true(result, 0, 1)) {
		problem = describe("%s is a procedure, an aggregate or a window function%s: a handler is a function, which "
		                   "cannot commit by itself",
		                   handler, "");
	} else if (result_is_true(result, 0, 2)) {
		problem = describe("%s returns a set%s: a handler returns void or one value, which nobody reads", handler, "");
	} else if (!result_is_true(result, 0, 3)) {
		problem =
		    describe("the role %s may not execute %s: GRANT EXECUTE on it, and USAGE on its schema", role, handler);
	} else {
		const char *text = sql_queries[SQL_HANDLE].text;
		const char *place = strstr(text, HANDLER_PLACE);
		const char *name = PQgetvalue(result, 0, 0);
		assert(place != NULL);
		size_t before = (size_t)(place - text);
		size_t size = strlen(text) + strlen(name) + 1;
		free(database->handle_text);
		database->handle_text = memory_take(size);
		snprintf(database->handle_text, size, "%.*s%s%s", (int)before, text, name, place + strlen(HANDLER_PLACE));
	}
	PQclear(result);
	return problem;
}
