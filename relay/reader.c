/* SPDX-License-Identifier: PostgreSQL */
/*
 * reader.c: see reader.h. Statements are prepared once per session and answered in PostgreSQL's binary format. Rows of events are read one by one, as
 * they come, so that no result is ever in memory whole.
 */
#include "reader.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"
#include "row.h"
#include "sql.h"

enum {
	FORMAT_TEXT = 0,
	FORMAT_BINARY = 1,
	PARAMETERS_MAX = 6,
	/* How long an answer is waited for when the process is to stop. */
	STOP_PATIENCE_MS = 5000,
	PROBLEM_BYTES = 1000
};

struct reader {
	const service *service;
	const relay_settings *settings;
	const char *conninfo;
	once_session *session;
	PGconn *connection;
	char *patterns;
	int64_t stop_at_ms; /* 0: not stopping */
	int64_t asked_ms, proved_ms;
	/* what is being fetched */
	row_arrays arrays;
	const reader_item *items;
	size_t item_count, items_read;
	bool fetching, full;
	event *first, **end;
	size_t bytes;
	char problem[PROBLEM_BYTES];
};

typedef struct parameters {
	const char *values[PARAMETERS_MAX];
	int lengths[PARAMETERS_MAX];
	int formats[PARAMETERS_MAX];
	int count;
} parameters;

static void add_text(parameters *parameters, const char *text)
{
	parameters->values[parameters->count++] = text;
}

static void add_binary(parameters *parameters, const char *data, size_t length)
{
	parameters->values[parameters->count] = data;
	parameters->lengths[parameters->count] = (int)length;
	parameters->formats[parameters->count++] = FORMAT_BINARY;
}

reader *reader_new(const service *service, const relay_settings *settings, const char *conninfo)
{
	reader *made = memory_get(sizeof *made);

	made->service = service;
	made->settings = settings;
	made->conninfo = conninfo;
	made->patterns = routes_patterns(&settings->routes);
	return made;
}

void reader_free(reader *reader)
{
	if (reader == NULL) {
		return;
	}
	reader_disconnect(reader);
	row_arrays_free(&reader->arrays);
	free(reader->patterns);
	free(reader);
}

const char *reader_problem(const reader *reader)
{
	return reader->problem;
}

void reader_disconnect(reader *reader)
{
	once_session_close(reader->session);
	reader->session = NULL;
	reader->connection = NULL;
	reader->fetching = false;
	event_free_list(reader->first);
	reader->first = NULL;
	reader->end = &reader->first;
}

/* ---- errors */

/* Into one line. */
static void set_problem(reader *reader, const char *message, const char *detail, const char *hint)
{
	message = message == NULL ? "" : strncmp(message, "pgonce: ", 8) == 0 ? message + 8 : message;
	snprintf(reader->problem, sizeof reader->problem, "%s%s%s%s%s%s", message,
	         detail != NULL && detail[0] != '\0' ? " (" : "", detail == NULL ? "" : detail,
	         detail != NULL && detail[0] != '\0' ? ")" : "", hint != NULL && hint[0] != '\0' ? "; " : "",
	         hint == NULL ? "" : hint);
	size_t length = strlen(reader->problem);
	while (length > 0 && (unsigned char)reader->problem[length - 1] <= ' ') {
		reader->problem[--length] = '\0';
	}
	for (char *at = reader->problem; *at != '\0'; at++) {
		if ((unsigned char)*at < ' ') {
			*at = ' ';
		}
	}
}

/* What the relay cannot go on with until somebody has acted; all else may pass by itself. */
static reader_code code_of_sqlstate(const char *sqlstate)
{
	/* A missing schema, function, table, type or column: no contract, or an old one. No right to use it. */
	static const char *const contract[] = {"3F000", "42883", "42P01", "42704", "42703", "42501"};

	if (strcmp(sqlstate, "P4080") == 0) {
		return READER_REFUSED;
	}
	for (size_t i = 0; i < sizeof contract / sizeof contract[0]; i++) {
		if (strcmp(sqlstate, contract[i]) == 0) {
			return READER_CONTRACT;
		}
	}
	return READER_LOST;
}

static reader_code failed(reader *reader, const PGresult *result)
{
	const char *sqlstate = result == NULL ? NULL : PQresultErrorField(result, PG_DIAG_SQLSTATE);

	if (sqlstate == NULL) {
		set_problem(reader, PQerrorMessage(reader->connection), NULL, NULL);
		return READER_LOST;
	}
	reader_code code = code_of_sqlstate(sqlstate);
	const char *hint = PQresultErrorField(result, PG_DIAG_MESSAGE_HINT);
	if (hint == NULL && code == READER_CONTRACT) {
		hint = strcmp(sqlstate, "42501") == 0 ? "grant once_relay to the role" : "run pgonce init";
	}
	set_problem(reader, PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY),
	            PQresultErrorField(result, PG_DIAG_MESSAGE_DETAIL), hint);
	return code;
}

/* ---- sending and waiting */

static void cancel(reader *reader)
{
	char ignored[256];
	PGcancel *handle = PQgetCancel(reader->connection);

	if (handle != NULL) {
		PQcancel(handle, ignored, sizeof ignored);
		PQfreeCancel(handle);
	}
}

/* Waits until there is something to read. Signals of other threads, and the wish to stop, do not end it at once. */
static reader_code wait_readable(reader *reader)
{
	while (PQisBusy(reader->connection)) {
		bool stopping = service_stopping();
		struct pollfd wait[2] = {{.fd = PQsocket(reader->connection), .events = POLLIN},
		                         {.fd = stopping ? -1 : service_stop_fd(), .events = POLLIN}};
		int64_t now = service_now_ms();
		if (stopping && reader->stop_at_ms == 0) {
			reader->stop_at_ms = now + STOP_PATIENCE_MS;
		}
		if (reader->stop_at_ms != 0 && now >= reader->stop_at_ms) {
			cancel(reader);
			set_problem(reader, "PostgreSQL did not answer in time for stopping", NULL, NULL);
			return READER_STOPPED;
		}
		int timeout = reader->stop_at_ms == 0 ? -1 : (int)(reader->stop_at_ms - now);
		if (poll(wait, 2, timeout) < 0 && errno != EINTR) {
			set_problem(reader, strerror(errno), NULL, NULL);
			return READER_LOST;
		}
		if (wait[0].revents != 0 && PQconsumeInput(reader->connection) == 0) {
			set_problem(reader, PQerrorMessage(reader->connection), NULL, NULL);
			return READER_LOST;
		}
	}
	return READER_OK;
}

static reader_code send_statement(reader *reader, enum sql_id id, const parameters *parameters)
{
	const sql_query *query = &sql_queries[id];

	assert(query->parameter_count == parameters->count && !reader->fetching);
	reader->stop_at_ms = 0;
	reader->asked_ms = service_now_ms();
	if (PQsendQueryPrepared(reader->connection, query->name, parameters->count, parameters->values, parameters->lengths,
	                        parameters->formats, FORMAT_BINARY) == 0) {
		set_problem(reader, PQerrorMessage(reader->connection), NULL, NULL);
		return READER_LOST;
	}
	return READER_OK;
}

/* The next result; *result NULL: there are no more. */
static reader_code next_result(reader *reader, PGresult **result)
{
	reader_code code = wait_readable(reader);

	*result = code == READER_OK ? PQgetResult(reader->connection) : NULL;
	return code;
}

/* Reads to the statement's end. */
static reader_code finish_statement(reader *reader)
{
	PGresult *result = NULL;
	reader_code code;

	while ((code = next_result(reader, &result)) == READER_OK && result != NULL) {
		PQclear(result);
	}
	return code;
}

/* Runs a statement that gives one result; *result is for the caller to clear where READER_OK. */
static reader_code run(reader *reader, enum sql_id id, const parameters *parameters, PGresult **result)
{
	PGresult *answer = NULL;
	reader_code code = send_statement(reader, id, parameters);

	if (code == READER_OK) {
		code = next_result(reader, &answer);
	}
	if (code == READER_OK && PQresultStatus(answer) != PGRES_TUPLES_OK) {
		code = failed(reader, answer);
	}
	reader_code rest =
	    code == READER_OK || code == READER_CONTRACT || code == READER_REFUSED ? finish_statement(reader) : code;
	code = code == READER_OK ? rest : code;
	if (code != READER_OK) {
		PQclear(answer);
		return code;
	}
	reader->proved_ms = reader->asked_ms;
	*result = answer;
	return READER_OK;
}

/* ---- connecting */

static reader_code prepare(reader *reader)
{
	for (int i = 0; i < SQL_COUNT; i++) {
		PGresult *result = PQprepare(reader->connection, sql_queries[i].name, sql_queries[i].text, 0, NULL);
		reader_code code = PQresultStatus(result) == PGRES_COMMAND_OK ? READER_OK : failed(reader, result);
		PQclear(result);
		if (code != READER_OK) {
			return code;
		}
	}
	return READER_OK;
}

/* The settings of the session; and the process that answers must be the one that greeted: a pooler's is another. */
static reader_code set_up(reader *reader)
{
	parameters parameters = {0};
	PGresult *result = NULL;

	add_text(&parameters, reader->settings->name);
	reader_code code = run(reader, SQL_RELAY_SESSION, &parameters, &result);
	if (code != READER_OK) {
		return code;
	}
	if (row_int4(result, 0, 0) != PQbackendPID(reader->connection)) {
		set_problem(reader, "a connection pooler stands between the relay and PostgreSQL", NULL,
		            "connect to PostgreSQL itself (dsn): a relay holds a lock of its session, which a pooler would "
		            "hand to others");
		code = READER_POOLER;
	}
	PQclear(result);
	return code;
}

/* What the server says besides its answers ("terminating connection ..."). */
static void on_notice(void *argument, const char *message)
{
	const reader *reader = argument;
	char quoted[SERVICE_QUOTE_BYTES];

	service_log(reader->service, SERVICE_WARNING, "notice", "message=%s", service_quote(message, quoted));
}

reader_code reader_connect(reader *reader)
{
	once_error *error = NULL;

	reader_disconnect(reader);
	once_code opened = once_session_open(reader->conninfo, &reader->session, &error);
	if (opened != ONCE_OK) {
		set_problem(reader, once_error_message(error), once_error_detail(error), once_error_hint(error));
		reader_code code = opened == ONCE_CONTRACT || code_of_sqlstate(once_error_sqlstate(error)) == READER_CONTRACT
		                       ? READER_CONTRACT
		                       : READER_LOST;
		once_error_free(error);
		return code;
	}
	reader->connection = once_session_connection(reader->session);
	PQsetNoticeProcessor(reader->connection, on_notice, reader);
	reader_code code = prepare(reader);
	return code == READER_OK ? set_up(reader) : code;
}

/* ---- the contract's functions */

reader_code reader_take(reader *reader, bool *taken, reader_progress *progress)
{
	parameters parameters = {0};
	PGresult *result = NULL;

	add_text(&parameters, reader->settings->name);
	add_text(&parameters, reader->patterns);
	add_text(&parameters, reader->settings->start == START_NOW ? "true" : "false");
	reader_code code = run(reader, SQL_RELAY_TAKE, &parameters, &result);
	if (code != READER_OK) {
		return code;
	}
	*taken = row_bool(result, 0, 0);
	*progress = (reader_progress){
	    .seen = row_text(result, 0, 1), .reading = row_text(result, 0, 2), .after_id = row_int8(result, 0, 3)};
	PQclear(result);
	return READER_OK;
}

reader_code reader_look(reader *reader, const char *seen, char **reading, bool *changed, bool *flushed)
{
	parameters parameters = {0};
	PGresult *result = NULL;

	add_text(&parameters, reader->settings->name);
	add_text(&parameters, seen);
	reader_code code = run(reader, SQL_RELAY_LOOK, &parameters, &result);
	if (code != READER_OK) {
		return code;
	}
	*reading = row_text(result, 0, 0);
	*changed = row_bool(result, 0, 1);
	*flushed = row_bool(result, 0, 2);
	PQclear(result);
	return READER_OK;
}

reader_code reader_flush(reader *reader)
{
	parameters parameters = {0};
	PGresult *result = NULL;
	reader_code code = run(reader, SQL_RELAY_FLUSH, &parameters, &result);

	if (code == READER_OK) {
		PQclear(result);
	}
	return code;
}

reader_code reader_prove(reader *reader)
{
	parameters parameters = {0};
	PGresult *result = NULL;
	reader_code code = run(reader, SQL_RELAY_PROVE, &parameters, &result);

	if (code == READER_OK) {
		PQclear(result);
	}
	return code;
}

int64_t reader_proved_ms(const reader *reader)
{
	return reader->proved_ms;
}

reader_code reader_list(reader *reader, const char *seen, const char *reading, int64_t after_id, size_t most,
                        reader_item *items, size_t *count)
{
	parameters parameters = {0};
	PGresult *result = NULL;
	char after[24], take[24];

	snprintf(after, sizeof after, "%lld", (long long)after_id);
	snprintf(take, sizeof take, "%zu", most);
	add_text(&parameters, reader->settings->name);
	add_text(&parameters, seen);
	add_text(&parameters, reading);
	add_text(&parameters, after);
	add_text(&parameters, take);
	reader_code code = run(reader, SQL_RELAY_LIST, &parameters, &result);
	if (code != READER_OK) {
		return code;
	}
	*count = (size_t)PQntuples(result) < most ? (size_t)PQntuples(result) : most;
	for (size_t i = 0; i < *count; i++) {
		items[i] = (reader_item){.id = row_int8(result, (int)i, 0),
		                         .xid = (uint64_t)row_int8(result, (int)i, 1),
		                         .day = row_int4(result, (int)i, 2)};
	}
	PQclear(result);
	return READER_OK;
}

reader_code reader_settle(reader *reader, const char *seen, const char *reading, int64_t after_id,
                          const int64_t *delivered, size_t delivered_count, const char *parked)
{
	parameters parameters = {0};
	PGresult *result = NULL;
	char after[24];
	size_t length = 0;
	char *array = delivered_count == 0 ? NULL : row_int8_array(delivered, delivered_count, &length);

	snprintf(after, sizeof after, "%lld", (long long)after_id);
	add_text(&parameters, reader->settings->name);
	add_text(&parameters, seen);
	add_text(&parameters, reading);
	add_text(&parameters, after);
	add_binary(&parameters, array, length);
	add_text(&parameters, parked);
	reader_code code = run(reader, SQL_RELAY_SETTLE, &parameters, &result);
	free(array);
	if (code == READER_OK) {
		PQclear(result);
	}
	return code;
}

reader_code reader_parked(reader *reader, int64_t most, int64_t *parked)
{
	parameters parameters = {0};
	PGresult *result = NULL;
	char limit[24];

	snprintf(limit, sizeof limit, "%lld", (long long)most);
	add_text(&parameters, reader->settings->name);
	add_text(&parameters, limit);
	reader_code code = run(reader, SQL_RELAY_PARKED, &parameters, &result);
	if (code == READER_OK) {
		*parked = row_int8(result, 0, 0);
		PQclear(result);
	}
	return code;
}

/* ---- events, row by row */

static const char *skip_dead(const reader *reader)
{
	return reader->settings->on_dead == ON_DEAD_SKIP ? "true" : "false";
}

static reader_code start_rows(reader *reader, enum sql_id id, const parameters *parameters)
{
	reader_code code = send_statement(reader, id, parameters);

	reader->first = NULL;
	reader->end = &reader->first;
	reader->bytes = 0;
	reader->full = false;
	if (code == READER_OK) {
		PQsetSingleRowMode(reader->connection);
		reader->fetching = true;
	}
	return code;
}

/* Keeps a row, while there is room; the first that finds none ends the statement, and those on their way are dropped. */
static void take_row(reader *reader, const PGresult *result)
{
	if (reader->full) {
		return;
	}
	if (reader->bytes >= READER_BYTES_MAX) {
		reader->full = true;
		cancel(reader);
		return;
	}
	event *event = row_event(result);
	reader->bytes += event->bytes;
	*reader->end = event;
	reader->end = &event->list_after;
}

/* READER_OK with *more false: the statement is at its end. */
static reader_code take_result(reader *reader, PGresult *result, bool *more)
{
	reader_code code = READER_OK;
	ExecStatusType status = PQresultStatus(result);

	*more = result != NULL;
	if (status == PGRES_SINGLE_TUPLE) {
		take_row(reader, result);
	} else if (result != NULL && status != PGRES_TUPLES_OK && !reader->full) {
		code = failed(reader, result);
	}
	PQclear(result);
	return code;
}

static reader_code finish_rows(reader *reader, event **first)
{
	reader_code code = READER_OK;
	bool more = true;

	while (code == READER_OK && more) {
		PGresult *result = NULL;
		code = next_result(reader, &result);
		if (code == READER_OK) {
			code = take_result(reader, result, &more);
		}
	}
	reader->fetching = false;
	if (code != READER_OK) {
		event_free_list(reader->first);
		reader->first = NULL;
	} else {
		reader->proved_ms = reader->asked_ms;
	}
	*first = reader->first;
	reader->first = NULL;
	return code;
}

reader_code reader_fetch_start(reader *reader, const reader_item *items, size_t count)
{
	parameters parameters = {0};

	row_arrays_fill(&reader->arrays, items, count);
	add_text(&parameters, reader->settings->name);
	add_binary(&parameters, reader->arrays.ids, reader->arrays.ids_length);
	add_binary(&parameters, reader->arrays.xids, reader->arrays.xids_length);
	add_binary(&parameters, reader->arrays.days, reader->arrays.days_length);
	add_text(&parameters, skip_dead(reader));
	reader->items = items;
	reader->item_count = count;
	return start_rows(reader, SQL_RELAY_FETCH, &parameters);
}

bool reader_fetching(const reader *reader)
{
	return reader->fetching;
}

reader_code reader_fetch_finish(reader *reader, event **first, size_t *read)
{
	reader_code code = finish_rows(reader, first);

	*read = reader->item_count;
	if (code == READER_OK && reader->full) {
		/* Events come in the items' order: what lies behind the last one that was kept was not read. */
		const event *last = *first;
		while (last->list_after != NULL) {
			last = last->list_after;
		}
		*read = 0;
		while (reader->items[*read].id != last->id) {
			(*read)++;
		}
		(*read)++;
	}
	return code;
}

reader_code reader_due(reader *reader, size_t most, event **first)
{
	parameters parameters = {0};
	char take[24];

	snprintf(take, sizeof take, "%zu", most);
	add_text(&parameters, reader->settings->name);
	add_text(&parameters, take);
	add_text(&parameters, skip_dead(reader));
	reader_code code = start_rows(reader, SQL_RELAY_DUE, &parameters);
	if (code == READER_OK) {
		code = finish_rows(reader, first);
	}
	for (event *at = code == READER_OK ? *first : NULL; at != NULL; at = at->list_after) {
		at->known = true;
	}
	return code;
}
