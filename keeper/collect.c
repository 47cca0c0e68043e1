/* SPDX-License-Identifier: PostgreSQL */
/*
 * collect.c: once.metrics() as a source of metrics. One query at a time, and none within a second
 * of the last: simultaneous scrapes share an answer, or its absence.
 */
#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "database.h"
#include "keeper.h"
#include "sql.h"

enum {
	FRESH_MS = 1000,
	CONNECT_MS = 5000,
	ASK_MS = 5000,
	LABELS_MAX = 16
};

struct keeper_collector {
	speaker speaker;
	pthread_mutex_t lock;
	database database;
	failure failure;
	PGresult *rows; /* NULL: the database could not be asked */
	int64_t asked_ms;
	bool has_asked;
	int reloads;  /* runtime_reloads at the time of the connection */
	bool failing; /* logged */
};

keeper_collector *keeper_collector_new(const speaker *speaker, const char *conninfo)
{
	keeper_collector *made = calloc(1, sizeof *made);

	if (made != NULL && pthread_mutex_init(&made->lock, NULL) != 0) {
		free(made);
		made = NULL;
	}
	if (made != NULL) {
		made->speaker = *speaker;
		made->database = (database){.conninfo = conninfo,
		                            .role = "once_reader",
		                            .queries = sql_queries,
		                            .connect_ms = CONNECT_MS,
		                            .answer_ms = ASK_MS};
	}
	return made;
}

void keeper_collector_free(keeper_collector *collector)
{
	if (collector != NULL) {
		PQclear(collector->rows);
		database_disconnect(&collector->database);
		pthread_mutex_destroy(&collector->lock);
		free(collector);
	}
}

/* ---- asking */

static bool ask(keeper_collector *collector)
{
	database *database = &collector->database;
	failure *failure = &collector->failure;

	if (collector->reloads != runtime_reloads()) { /* it may be another database now */
		collector->reloads = runtime_reloads();
		database_disconnect(database);
	}
	bool was_open = database->connection != NULL;
	if (was_open || database_connect(database, failure)) {
		collector->rows = database_query(database, SQL_METRICS, NULL, failure);
	}
	/* The connection may have been lost at any time since the last scrape. */
	if (failure->kind == FAILURE_CONNECTION && was_open && database_connect(database, failure)) {
		collector->rows = database_query(database, SQL_METRICS, NULL, failure);
	}
	return collector->rows != NULL;
}

static void refresh(keeper_collector *collector)
{
	char quoted[RUNTIME_QUOTE_BYTES];

	if (collector->has_asked && runtime_now_ms() - collector->asked_ms < FRESH_MS) {
		return;
	}
	PQclear(collector->rows);
	collector->rows = NULL;
	bool good = ask(collector);
	collector->has_asked = true;
	collector->asked_ms = runtime_now_ms();
	if (!good && !collector->failing && collector->failure.kind != FAILURE_STOPPED) {
		runtime_log(&collector->speaker, RUNTIME_WARNING, "metrics_failed", "sqlstate=%s problem=%s",
		            collector->failure.sqlstate, runtime_quote(collector->failure.text, quoted));
	}
	collector->failing = !good;
}

/* ---- reading the answer */

/* A flat object of texts. Returns how many; -1: not one. The texts belong to json. */
static int labels_of(const json_t *json, metric_label labels[LABELS_MAX])
{
	const char *name;
	json_t *value;
	int count = 0;

	if (!json_is_object(json) || json_object_size(json) > LABELS_MAX) {
		return -1;
	}
	json_object_foreach((json_t *)(uintptr_t)json, name, value)
	{
		if (!json_is_string(value)) {
			return -1;
		}
		labels[count++] = (metric_label){.name = name, .value = json_string_value(value)};
	}
	return count;
}

static double number_of(const char *text)
{
	return strcmp(text, "Infinity") == 0    ? INFINITY
	       : strcmp(text, "-Infinity") == 0 ? -INFINITY
	       : strcmp(text, "NaN") == 0       ? NAN
	                                        : strtod(text, NULL);
}

static void add_row(metrics *metrics, const PGresult *rows, int row)
{
	metric_label labels[LABELS_MAX];
	const char *text = PQgetisnull(rows, row, 3) ? "{}" : PQgetvalue(rows, row, 3);
	metric_kind kind = strcmp(PQgetvalue(rows, row, 1), "counter") == 0 ? METRIC_COUNTER : METRIC_GAUGE;
	json_t *json = json_loads(text, 0, NULL);
	int count = labels_of(json, labels);

	if (count >= 0 && !PQgetisnull(rows, row, 4)) {
		metric_set(
		    metrics_add(metrics, kind, PQgetvalue(rows, row, 0), PQgetvalue(rows, row, 2), labels, (size_t)count),
		    number_of(PQgetvalue(rows, row, 4)));
	}
	json_decref(json);
}

metrics *keeper_collect(void *argument)
{
	keeper_collector *collector = argument;
	metrics *metrics = metrics_new();

	pthread_mutex_lock(&collector->lock);
	refresh(collector);
	metric_set(metrics_add(metrics, METRIC_GAUGE, "pgonce_up", "1: the database has answered this scrape.", NULL, 0),
	           collector->rows != NULL);
	for (int row = 0; row < PQntuples(collector->rows); row++) {
		add_row(metrics, collector->rows, row);
	}
	pthread_mutex_unlock(&collector->lock);
	return metrics;
}
