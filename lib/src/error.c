/* SPDX-License-Identifier: PostgreSQL */
/*
 * error.c: the error object, and the one table that gives the meaning of each SQLSTATE to a caller.
 */
#include <stdio.h>
#include <stdlib.h>

#include "internal.h"

struct once_error {
	once_code code;
	char sqlstate[6];
	bool retriable;
	bool outcome_unknown;
	char *message;
	char *detail;
	char *hint;
};

/* Running out of memory must be reportable without memory. Never freed. */
static once_error no_memory_error = {.code = ONCE_NO_MEMORY, .retriable = true};

typedef struct code_row {
	once_code code;
	const char *name;
	const char *sqlstate; /* "" for errors that the library itself finds */
	bool retriable;
} code_row;

static const code_row code_rows[] = {
    {ONCE_OK, "ok", "", false},
    /* spec: errors */
    {ONCE_SCOPE_REQUIRED, "scope_required", "P4000", false},
    {ONCE_KEY_MALFORMED, "key_malformed", "P4001", false},
    {ONCE_MISMATCH, "mismatch", "P4002", false},
    {ONCE_REFUSED, "refused", "P4003", false},
    {ONCE_COMPLETION_REFUSED, "completion_refused", "P4010", false},
    {ONCE_FAILURE_REFUSED, "failure_refused", "P4011", false},
    {ONCE_NOT_STARTED, "not_started", "P4012", false},
    {ONCE_UNFINISHED, "unfinished", "P4013", false},
    {ONCE_ALREADY_STARTED, "already_started", "P4014", false},
    {ONCE_ANOTHER_FINGERPRINT, "another_fingerprint", "P4015", false},
    {ONCE_ALREADY_FINISHED, "already_finished", "P4020", false},
    {ONCE_ACTIVE, "active", "P4029", true},
    {ONCE_FINAL_FAILURE, "final_failure", "P4030", false},
    {ONCE_IN_DOUBT, "in_doubt", "P4031", false},
    {ONCE_EXPIRED, "expired", "P4041", false},
    {ONCE_MESSAGE_MISMATCH, "message_mismatch", "P4050", false},
    {ONCE_EVENT_MISMATCH, "event_mismatch", "P4051", false},
    {ONCE_TOO_LARGE, "too_large", "P4060", false},
    {ONCE_RESOLUTION_REFUSED, "resolution_refused", "P4070", false},
    {ONCE_RELAY_FOREIGN, "relay_foreign", "P4080", false},
    {ONCE_SLOT_CLOSED, "slot_closed", "P4097", true},
    {ONCE_PARTITION_MISSING, "partition_missing", "P4098", true},
    {ONCE_UNKNOWN_STATE, "unknown_state", "P4099", false},
    /* end of spec */
    {ONCE_SERIALIZATION, "serialization", "40001", true},
    {ONCE_SERIALIZATION, "serialization", "40P01", true},
    {ONCE_CONNECTION, "connection", "", true},
    {ONCE_OUTCOME_UNKNOWN, "outcome_unknown", "", true},
    {ONCE_DEADLINE, "deadline", "", true},
    {ONCE_DATABASE, "database", "", false},
    {ONCE_CONTRACT, "contract", "3F000", false},
    {ONCE_CONTRACT, "contract", "42883", false},
    {ONCE_USAGE, "usage", "", false},
    {ONCE_NO_MEMORY, "no_memory", "", true},
    {ONCE_EFFECT, "effect", "", false},
    {ONCE_OVERLOADED, "overloaded", "", true},
};

static const code_row *row_of_code(once_code code)
{
	for (size_t i = 0; i < sizeof code_rows / sizeof code_rows[0]; i++) {
		if (code_rows[i].code == code) {
			return &code_rows[i];
		}
	}
	return NULL;
}

const char *once_code_name(once_code code)
{
	const code_row *row = row_of_code(code);
	return row == NULL ? "unknown" : row->name;
}

once_code once_code_of_sqlstate(const char *sqlstate)
{
	if (sqlstate == NULL || sqlstate[0] == '\0') {
		return ONCE_CONNECTION;
	}
	for (size_t i = 0; i < sizeof code_rows / sizeof code_rows[0]; i++) {
		if (code_rows[i].sqlstate[0] != '\0' && strcmp(code_rows[i].sqlstate, sqlstate) == 0) {
			return code_rows[i].code;
		}
	}
	/*
	 * Class 08: connection exceptions; 57P01 to 57P03: the server is shutting down, crashed, or is
	 * not ready.
	 */
	if (strncmp(sqlstate, "08", 2) == 0 || strncmp(sqlstate, "57P0", 4) == 0) {
		return ONCE_CONNECTION;
	}
	return ONCE_DATABASE;
}

/*
 * Passing trouble of the server: too many connections, out of some resource, a lock or statement
 * that timed out.
 */
bool error_passes(const char *sqlstate)
{
	return strncmp(sqlstate, "53", 2) == 0 || strcmp(sqlstate, "55P03") == 0 || strcmp(sqlstate, "57014") == 0;
}

/*
 * The server answers and refuses: by role or password (class 28), a missing database, or no right
 * to connect.
 */
static bool error_refuses_us(const char *sqlstate)
{
	return strncmp(sqlstate, "28", 2) == 0 || strcmp(sqlstate, "3D000") == 0 || strcmp(sqlstate, "42501") == 0;
}

/* libpq ends its messages with a newline; those of this library are one line. */
static char *copy_trimmed(const char *text)
{
	size_t length = strlen(text);
	while (length > 0 && (text[length - 1] == '\n' || text[length - 1] == ' ')) {
		length--;
	}
	char *copy = malloc(length + 1);
	if (copy != NULL) {
		memcpy(copy, text, length);
		copy[length] = '\0';
	}
	return copy;
}

once_code error_make(once_error **error, once_code code, const char *sqlstate, bool outcome_unknown,
                     const char *message, const char *detail, const char *hint)
{
	if (error == NULL) {
		return code;
	}
	once_error *made = calloc(1, sizeof *made);
	if (made == NULL) {
		return error_no_memory(error);
	}
	const code_row *row = row_of_code(code);
	made->code = code;
	snprintf(made->sqlstate, sizeof made->sqlstate, "%s", text_or_empty(sqlstate));
	made->retriable =
	    (row != NULL && row->retriable && !(code == ONCE_CONNECTION && error_refuses_us(made->sqlstate))) ||
	    (code == ONCE_DATABASE && error_passes(made->sqlstate));
	made->outcome_unknown = outcome_unknown;
	made->message = copy_trimmed(text_or_empty(message));
	made->detail = copy_trimmed(text_or_empty(detail));
	made->hint = copy_trimmed(text_or_empty(hint));
	if (made->message == NULL || made->detail == NULL || made->hint == NULL) {
		once_error_free(made);
		return error_no_memory(error);
	}
	*error = made;
	return code;
}

once_code error_usage(once_error **error, const char *message)
{
	return error_make(error, ONCE_USAGE, NULL, false, message, NULL, "See the comment of this function in its header.");
}

once_code error_of_conninfo(once_error **error, const char *conninfo)
{
	char *said = NULL;
	PQconninfoOption *parsed = PQconninfoParse(conninfo, &said);
	once_code code = ONCE_OK;

	if (parsed == NULL && said == NULL) {
		code = error_no_memory(error);
	} else if (parsed == NULL) {
		/* libpq quotes the word where it failed. */
		bool may_hold_password = strstr(conninfo, "pass") != NULL || strchr(conninfo, '@') != NULL;
		code = error_usage(error, may_hold_password ? "libpq cannot read this connection string, which is not "
		                                              "repeated here since it may hold a password"
		                                            : said);
	}
	PQfreemem(said);
	PQconninfoFree(parsed);
	return code;
}

once_code error_no_memory(once_error **error)
{
	if (error != NULL) {
		*error = &no_memory_error;
	}
	return ONCE_NO_MEMORY;
}

once_code error_of_connection(once_error **error, const PGconn *connection)
{
	const char *message = connection == NULL ? "out of memory" : PQerrorMessage(connection);
	return error_make(error, ONCE_CONNECTION, NULL, false,
	                  message[0] == '\0' ? "the connection to the database is lost" : message, NULL,
	                  "Is the server running, and does the connection string (or PGHOST, PGPORT, PGDATABASE) name it?");
}

once_code error_of_refusal(once_error **error, const char *sqlstate, const char *message)
{
	const char *hint = "The server is there, and not ready yet: try again.";

	if (error_refuses_us(sqlstate)) {
		hint = "The server refuses the connection: create what the message names, or change the connection string (or "
		       "PGUSER, PGDATABASE, "
		       "PGPASSWORD).";
	} else if (strncmp(sqlstate, "53", 2) == 0) {
		hint = "The server is there, and its connections are taken: try again; have a pooler before it, or a higher "
		       "max_connections.";
	}
	return error_make(error, ONCE_CONNECTION, sqlstate, false, message, NULL, hint);
}

static once_code error_from(once_error **error, const PGconn *connection, const PGresult *result, bool is_ours)
{
	const char *sqlstate = result == NULL ? NULL : PQresultErrorField(result, PG_DIAG_SQLSTATE);
	if (sqlstate == NULL || sqlstate[0] == '\0') {
		if (PQstatus(connection) == CONNECTION_OK && result != NULL && PQresultErrorMessage(result)[0] == '\0') {
			return error_make(error, ONCE_DATABASE, NULL, false, "the server sent a result of an unexpected kind",
			                  PQresStatus(PQresultStatus(result)), NULL);
		}
		return error_of_connection(error, connection);
	}
	once_code code = once_code_of_sqlstate(sqlstate);
	const char *hint = PQresultErrorField(result, PG_DIAG_MESSAGE_HINT);
	if (code == ONCE_CONTRACT && is_ours) {
		hint = "The contract is missing here, or older than this library: run pgonce init.";
	} else if (code == ONCE_CONTRACT) {
		code = ONCE_DATABASE;
	}
	return error_make(error, code, sqlstate, false, PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY),
	                  PQresultErrorField(result, PG_DIAG_MESSAGE_DETAIL), hint);
}

once_code error_of_result(once_error **error, const PGconn *connection, const PGresult *result)
{
	return error_from(error, connection, result, true);
}

once_code error_of_callers_result(once_error **error, const PGconn *connection, const PGresult *result)
{
	return error_from(error, connection, result, false);
}

void error_discard(once_error **error)
{
	if (error != NULL) {
		once_error_free(*error);
		*error = NULL;
	}
}

void once_error_free(once_error *error)
{
	if (error == NULL || error == &no_memory_error) {
		return;
	}
	free(error->message);
	free(error->detail);
	free(error->hint);
	free(error);
}

once_code once_error_code(const once_error *error)
{
	return error == NULL ? ONCE_OK : error->code;
}

const char *once_error_sqlstate(const once_error *error)
{
	return error == NULL ? "" : error->sqlstate;
}

const char *once_error_message(const once_error *error)
{
	if (error == &no_memory_error) {
		return "out of memory";
	}
	return error == NULL ? "" : error->message;
}

const char *once_error_detail(const once_error *error)
{
	return error == NULL ? "" : text_or_empty(error->detail);
}

const char *once_error_hint(const once_error *error)
{
	return error == NULL ? "" : text_or_empty(error->hint);
}

bool once_error_retriable(const once_error *error)
{
	return error != NULL && error->retriable;
}

bool once_error_outcome_unknown(const once_error *error)
{
	return error != NULL && error->outcome_unknown;
}
