/* SPDX-License-Identifier: PostgreSQL */
/*
 * connection.c: a consumer's connection to PostgreSQL, retried until it succeeds, and the checks on
 * it: the handler, the inbox's ids, and that it is this process's turn.
 */
#include "consumer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"
#include "parked.h"

enum {
	BACKOFF_FIRST_MS = 100,
	BACKOFF_MOST_MS = 10000,
	ALIVE_MS = 250 /* see runtime/database.c */
};

void connection_keep_alive(void *argument)
{
	consumer *consumer = argument;
	source_message *none = NULL;
	size_t count = 0;
	char problem[256];

	if (consumer->source != NULL) {
		/* Deliveries lost here are committed, or will be delivered again. */
		(void)consumer->settings.class->fetch(consumer->source, 0, 0, 0, &none, &count, problem);
	}
}

bool connection_pause(consumer *consumer, int failures, const failure *failure)
{
	int64_t until_ms = runtime_now_ms() + runtime_backoff_ms(failures, BACKOFF_FIRST_MS, BACKOFF_MOST_MS);

	if (failure->kind == FAILURE_CONNECTION) {
		database_disconnect(&consumer->database);
		metric_set(consumer->counts.active, 0);
		consumer->has_turn = false;
	}
	failure_log(failure, &consumer->speaker, failures);
	for (int64_t left_ms = until_ms - runtime_now_ms(); left_ms > 0; left_ms = until_ms - runtime_now_ms()) {
		connection_keep_alive(consumer);
		if (runtime_sleep(left_ms < ALIVE_MS ? left_ms : ALIVE_MS)) {
			return false;
		}
	}
	return !runtime_stopping();
}

bool connection_fail(consumer *consumer, consume_result result, char *problem)
{
	consumer->result = result;
	consumer->problem = problem;
	database_disconnect(&consumer->database);
	return false;
}

/* Under another id a message would be applied again. FAILURE_FAULT: the inbox has such ids. */
static bool keeps_its_ids(consumer *consumer, failure *failure)
{
	bool opaque = consumer->settings.ids == IDS_OPAQUE;
	const char *other = opaque ? "uuidv7" : "opaque";
	parameters given = {0};

	parameters_text(&given, consumer->speaker.name);
	parameters_text(&given, consumer->settings.tenant);
	parameters_text(&given, other);
	PGresult *result = database_query(&consumer->database, SQL_IS_INBOX_OF, &given, failure);
	bool changed = result != NULL && result_is_true(result, 0, 0);
	if (changed && result_is_true(result, 0, 1)) {
		/* With both kinds stored, "set the other kind" would be said for either setting. */
		failure_set(
		    failure, FAILURE_FAULT,
		    "the inbox holds messages of this consumer under both kinds of ids, opaque and uuidv7: with "
		    "either it would apply those of the other kind again. Make sure that nothing else calls once.receive "
		    "for it with the other kind. Start it when the inbox no longer holds that kind (the scope's "
		    "retention; for parked messages: pgonce parked discard), or give it another name: it then applies "
		    "everything that its broker delivers");
	} else if (changed) {
		failure_set(failure, FAILURE_FAULT,
		            "the inbox holds messages of this consumer under ids = %s: under other ids it would apply "
		            "them again. Set ids = %s",
		            other, other);
	}
	PQclear(result);
	return result != NULL && !changed;
}

/* How long the inbox remembers, and whether the consumer has run before: for a source that may
 * start over. */
static bool ask_memory(consumer *consumer, failure *failure)
{
	parameters given = {0};

	parameters_text(&given, consumer->speaker.name);
	parameters_text(&given, consumer->settings.tenant);
	PGresult *result = database_query(&consumer->database, SQL_REMEMBERS, &given, failure);
	if (result == NULL) {
		return false;
	}
	consumer->remembered_ms = result_bigint(result, 0, 0);
	consumer->has_run = result_is_true(result, 0, 1);
	PQclear(result);
	return true;
}

/* On a new connection. FAILURE_FAULT: trying again will not help. */
static bool check_database(consumer *consumer, failure *failure)
{
	bool (*check)(struct consumer *, struct failure *) = consumer->handler_class->check;

	if ((check == NULL || check(consumer, failure)) && parked_count(consumer, failure) &&
	    keeps_its_ids(consumer, failure) && ask_memory(consumer, failure)) {
		return true;
	}
	if (failure->kind == FAILURE_FAULT && failure->sqlstate[0] != '\0') {
		char *refusal = memory_format("PostgreSQL refuses: %s (%s)", failure->text, failure->sqlstate);
		failure_set(failure, FAILURE_FAULT, "%s", refusal);
		free(refusal);
	}
	return false;
}

static bool take_turn(consumer *consumer, failure *failure)
{
	parameters given = {0};

	parameters_text(&given, consumer->speaker.name);
	parameters_text(&given, consumer->settings.tenant);
	parameters_integer(&given, PQbackendPID(consumer->database.connection));
	PGresult *result = database_query(&consumer->database, SQL_TAKE_TURN, &given, failure);
	bool good = result != NULL;
	if (good && PQgetisnull(result, 0, 0)) {
		failure_set_pooler(failure, "consumer", ", or set order_by = none, which needs no lock");
		good = false;
	}
	consumer->has_turn = good && result_is_true(result, 0, 0);
	PQclear(result);
	return good;
}

bool connection_ready(consumer *consumer)
{
	for (int failures = 0; consumer->database.connection == NULL;) {
		failure failure = {0};
		if (database_connect(&consumer->database, &failure) && check_database(consumer, &failure)) {
			consumer->started = true;
			metric_count(consumer->counts.connects, 1);
			runtime_log(&consumer->speaker, RUNTIME_INFO, "connected", "database=%s parked=%lld",
			            PQdb(consumer->database.connection), (long long)consumer->parked);
			break;
		}
		if (failure.kind == FAILURE_STOPPED) {
			return false;
		}
		consume_result result = failure.kind == FAILURE_CONTRACT                            ? CONSUME_CONTRACT
		                        : consumer->job->once && failure.kind == FAILURE_CONNECTION ? CONSUME_NO_SERVER
		                        : failure.kind == FAILURE_FAULT                             ? CONSUME_FAILED
		                                                                                    : CONSUME_STOPPED;
		if (!consumer->started && result != CONSUME_STOPPED) {
			return connection_fail(consumer, result, strdup(failure.text));
		}
		failure.kind = FAILURE_CONNECTION;
		if (!connection_pause(consumer, ++failures, &failure)) {
			return false;
		}
	}
	if (consumer->has_turn || consumer->settings.class->shares_order ||
	    consumer->settings.key_from.kind == ORIGIN_NONE) {
		return true;
	}
	failure failure = {0};
	if (!take_turn(consumer, &failure)) {
		if (failure.kind == FAILURE_FAULT && failure.sqlstate[0] == '\0') {
			return connection_fail(consumer, CONSUME_FAILED, strdup(failure.text));
		}
		(void)connection_pause(consumer, 1, &failure);
	}
	return consumer->has_turn;
}
