/* SPDX-License-Identifier: PostgreSQL */
/*
 * reader.c: see reader.h. Rows of events are read one by one as they arrive, so that a whole result
 * is never in memory.
 */
#include "reader.h"

#include <assert.h>
#include <stdlib.h>

#include "memory.h"
#include "row.h"
#include "sql.h"

enum {
	STOP_PATIENCE_MS = 5000 /* how long to wait for an answer when stopping */
};

struct reader {
	const relay_settings *settings;
	database database;
	char *patterns;
	failure failure;
};

reader *reader_new(const relay_settings *settings, const char *conninfo)
{
	reader *made = memory_take(sizeof *made);

	made->settings = settings;
	made->database = (database){.conninfo = conninfo,
	                            .role = "once_relay",
	                            .queries = sql_queries,
	                            .prepares = true,
	                            .is_jobs = true,
	                            .stop_ms = STOP_PATIENCE_MS};
	made->patterns = routes_patterns(&settings->routes);
	return made;
}

void reader_free(reader *reader)
{
	if (reader != NULL) {
		reader_disconnect(reader);
		free(reader->patterns);
		free(reader);
	}
}

const failure *reader_failure(const reader *reader)
{
	return &reader->failure;
}

void reader_disconnect(reader *reader)
{
	database_disconnect(&reader->database);
}

/* Most statements name the relay first. */
static parameters named(const reader *reader)
{
	parameters given = {0};

	parameters_text(&given, reader->settings->name);
	return given;
}

static PGresult *query(reader *reader, enum sql_id id, parameters *given)
{
	return database_query(&reader->database, id, given, &reader->failure);
}

/* ---- connecting */

/*
 * Sets the session. The server process that answers must be the one that accepted the connection:
 * through a pooler it is another one.
 */
bool reader_connect(reader *reader)
{
	if (!database_connect(&reader->database, &reader->failure)) {
		return false;
	}
	parameters given = named(reader);
	PGresult *result = query(reader, SQL_RELAY_SESSION, &given);
	bool good = result != NULL;
	if (good && result_integer(result, 0, 0) != PQbackendPID(reader->database.connection)) {
		failure_set_pooler(&reader->failure, "relay", "");
		good = false;
	}
	PQclear(result);
	if (!good) {
		reader_disconnect(reader); /* so that it does not count as connected */
	}
	return good;
}

/* ---- the contract's functions */

bool reader_take(reader *reader, bool *taken, reader_progress *progress)
{
	parameters given = named(reader);

	parameters_text(&given, reader->patterns);
	parameters_boolean(&given, reader->settings->start == START_NOW);
	PGresult *result = query(reader, SQL_RELAY_TAKE, &given);
	if (result == NULL) {
		return false;
	}
	*taken = result_is_true(result, 0, 0);
	*progress = (reader_progress){.seen = result_text(result, 0, 1),
	                              .reading = result_text(result, 0, 2),
	                              .after_id = result_bigint(result, 0, 3)};
	PQclear(result);
	return true;
}

bool reader_look(reader *reader, const char *seen, char **reading, bool *changed, bool *flushed)
{
	parameters given = named(reader);

	parameters_text(&given, seen);
	PGresult *result = query(reader, SQL_RELAY_LOOK, &given);
	if (result == NULL) {
		return false;
	}
	*reading = result_text(result, 0, 0);
	*changed = result_is_true(result, 0, 1);
	*flushed = result_is_true(result, 0, 2);
	PQclear(result);
	return true;
}

bool reader_flush(reader *reader)
{
	return database_run(&reader->database, SQL_RELAY_FLUSH, NULL, &reader->failure);
}

bool reader_prove(reader *reader)
{
	return database_run(&reader->database, SQL_RELAY_PROVE, NULL, &reader->failure);
}

int64_t reader_proved_ms(const reader *reader)
{
	return reader->database.answered_ms;
}

bool reader_list(reader *reader, const char *seen, const char *reading, int64_t after_id, size_t most,
                 reader_item *items, size_t *count)
{
	parameters given = named(reader);

	parameters_text(&given, seen);
	parameters_text(&given, reading);
	parameters_bigint(&given, after_id);
	parameters_integer(&given, (int32_t)most);
	PGresult *result = query(reader, SQL_RELAY_LIST, &given);
	if (result == NULL) {
		return false;
	}
	*count = (size_t)PQntuples(result) < most ? (size_t)PQntuples(result) : most;
	for (size_t i = 0; i < *count; i++) {
		items[i] = (reader_item){.id = result_bigint(result, (int)i, 0),
		                         .xid = (uint64_t)result_bigint(result, (int)i, 1),
		                         .day = result_integer(result, (int)i, 2)};
	}
	PQclear(result);
	return true;
}

bool reader_settle(reader *reader, const char *seen, const char *reading, int64_t after_id, const int64_t *delivered,
                   size_t delivered_count, const char *parked)
{
	parameters given = named(reader);

	parameters_text(&given, seen);
	parameters_text(&given, reading);
	parameters_bigint(&given, after_id);
	int array = parameters_array(&given, PARAMETER_BIGINT);
	for (size_t i = 0; i < delivered_count; i++) {
		parameters_add_number(&given, array, delivered[i]);
	}
	parameters_text(&given, parked);
	return database_run(&reader->database, SQL_RELAY_SETTLE, &given, &reader->failure);
}

bool reader_parked(reader *reader, int64_t most, bool weighed, int64_t *parked)
{
	parameters given = named(reader);

	parameters_bigint(&given, most);
	parameters_boolean(&given, weighed);
	PGresult *result = query(reader, SQL_RELAY_PARKED, &given);
	if (result != NULL) {
		*parked = result_bigint(result, 0, 0);
		PQclear(result);
	}
	return result != NULL;
}

bool reader_release(reader *reader, size_t most, int64_t *released, int64_t *wait_ms)
{
	parameters given = {0};

	parameters_integer(&given, (int32_t)most);
	PGresult *result = query(reader, SQL_RELAY_RELEASE, &given);
	if (result != NULL) {
		*released = result_bigint(result, 0, 0);
		*wait_ms = PQgetisnull(result, 0, 1) ? -1 : result_bigint(result, 0, 1);
		PQclear(result);
	}
	return result != NULL;
}

/* ---- events, row by row */

typedef struct events {
	event *first, **end, *last;
	size_t bytes;
	bool full;
} events;

/* Keeps a row if there is room; the first row without room ends the statement. */
static bool take_row(void *argument, const PGresult *row)
{
	events *events = argument;

	events->full = events->bytes >= READER_BYTES_MAX;
	if (!events->full) {
		event *event = row_event(row);
		events->bytes += event->bytes;
		events->last = event;
		*events->end = event;
		events->end = &event->list_after;
	}
	return !events->full;
}

static bool read_events(reader *reader, enum sql_id id, parameters *given, events *events)
{
	*events = (struct events){0};
	events->end = &events->first;
	if (!database_stream(&reader->database, id, given, take_row, events, &reader->failure)) {
		event_free_list(events->first);
		return false;
	}
	return true;
}

bool reader_fetch(reader *reader, const reader_item *items, size_t count, event **first, size_t *read)
{
	parameters given = named(reader);
	events events;
	int ids = parameters_array(&given, PARAMETER_BIGINT);
	int xids = parameters_array(&given, PARAMETER_XID8);
	int days = parameters_array(&given, PARAMETER_INTEGER);

	for (size_t i = 0; i < count; i++) {
		parameters_add_number(&given, ids, items[i].id);
		parameters_add_number(&given, xids, (int64_t)items[i].xid);
		parameters_add_number(&given, days, items[i].day);
	}
	parameters_boolean(&given, reader->settings->on_dead == ON_DEAD_SKIP);
	if (!read_events(reader, SQL_RELAY_FETCH, &given, &events)) {
		return false;
	}
	*first = events.first;
	*read = count;
	if (events.full) {
		/*
		 * Events come in the items' order: the items behind the last kept event were not read.
		 */
		for (*read = 1; items[*read - 1].id != events.last->id; (*read)++) {
			assert(*read < count);
		}
	}
	return true;
}

bool reader_due(reader *reader, size_t most, event **first)
{
	parameters given = named(reader);
	events events;

	parameters_integer(&given, (int32_t)most);
	parameters_boolean(&given, reader->settings->on_dead == ON_DEAD_SKIP);
	if (!read_events(reader, SQL_RELAY_DUE, &given, &events)) {
		return false;
	}
	for (event *at = events.first; at != NULL; at = at->list_after) {
		at->known = true;
	}
	*first = events.first;
	return true;
}
