/* SPDX-License-Identifier: PostgreSQL */
/* retry.c: parked messages whose turn has come, tried again. Called by handler_sql.c. */
#include "apply.h"

#include <assert.h>
#include <string.h>

#include "parked.h"

enum {
	WORK_MS = 200, /* at a stretch: new messages get their turn too */
	ACTIVE_WAIT_MS = 1000,
	TOGETHER_MAX = 100 /* in one transaction */
};
#define TOGETHER_BYTES_MAX ((size_t)4 * 1024 * 1024)

/* process[i]: it is to be applied; else it was before. What the inbox refuses is raised. */
static bool receive(consumer *consumer, message *const *messages, size_t count, bool *process, failure *failure)
{
	parameters given = {0};

	parameters_text(&given, consumer->service.name);
	int ids = parameters_array(&given, PARAMETER_TEXT);
	int fingerprints = parameters_array(&given, PARAMETER_BYTEA);
	parameters_text(&given, consumer->settings.tenant);
	int traces = parameters_array(&given, PARAMETER_TEXT);
	for (size_t i = 0; i < count; i++) {
		parameters_add_text(&given, ids, messages[i]->id);
		parameters_add(&given, fingerprints, messages[i]->fingerprint.bytes, ONCE_FINGERPRINT_BYTES);
		parameters_add_text(&given, traces, messages[i]->traceparent);
	}
	PGresult *result = database_query(&consumer->database, SQL_RECEIVE_PARKED, &given, failure);
	assert(result == NULL || (size_t)PQntuples(result) == count);
	for (size_t i = 0; result != NULL && i < count; i++) {
		process[i] = strcmp(PQgetvalue(result, (int)i, 0), "process") == 0;
	}
	PQclear(result);
	return result != NULL;
}

/* Applies all in the open transaction, and commits. *refused: the inbox failed, not the handler. */
static bool apply_all(consumer *consumer, message *const *messages, size_t count, bool *refused, failure *failure)
{
	bool *process = arena_take(&consumer->arena, count * sizeof *process);
	message **handled = arena_take(&consumer->arena, count * sizeof(message *));
	size_t handled_count = 0;

	*refused = !receive(consumer, messages, count, process, failure);
	if (*refused) {
		return false;
	}
	for (size_t i = 0; i < count; i++) {
		if (process[i]) {
			handled[handled_count++] = messages[i];
		}
	}
	if ((handled_count > 0 && !apply_handle(consumer, handled, handled_count, failure)) ||
	    !parked_remove(consumer, (const message *const *)messages, count, failure) ||
	    !database_commit(&consumer->database, failure)) {
		return false;
	}
	consumer->counts.open = (tally){.applied = handled_count, .duplicates = count - handled_count};
	counts_commit(&consumer->counts);
	consumer->parked = consumer->parked > (int64_t)count ? consumer->parked - (int64_t)count : 0;
	return true;
}

/*
 * After its transaction is rolled back: when it is to be tried again, in a transaction of its own.
 * A handler may raise any SQLSTATE, so the contract's codes mean something only where the inbox
 * `refused`.
 */
static bool park_again(consumer *consumer, message *message, bool refused, failure *failure)
{
	parking parking;

	assert(!consumer->database.in_transaction);
	if (refused && strcmp(failure->sqlstate, "P4029") == 0) {
		parking = park_waiting(message, ACTIVE_WAIT_MS);
	} else if (refused &&
	           (strcmp(failure->sqlstate, CODE_REUSED_ID) == 0 || strcmp(failure->sqlstate, CODE_EXPIRED) == 0)) {
		parking = park_dead(consumer, message, failure->sqlstate, failure->text);
	} else {
		parking = park_failed(consumer, message, failure, failure->kind != FAILURE_PASSING, 0);
	}
	return parked_store(consumer, &parking, 1, failure);
}

/* One message in a transaction of its own. False: the server's trouble. */
static bool retry_one(consumer *consumer, message *message, failure *failure)
{
	database *database = &consumer->database;
	struct message *const one = message;
	bool refused = false;

	if (message->unusable != NULL) {
		parking parking = park_dead(consumer, message, message->unusable_code, message->unusable);
		return parked_store(consumer, &parking, 1, failure);
	}
	if (!prepare_json(consumer, message, failure) || !database_begin(database, failure)) {
		return false;
	}
	bool applied = apply_all(consumer, &one, 1, &refused, failure);
	if (!applied && failure->kind != FAILURE_CONNECTION && prepare_doubts(message, failure)) {
		struct failure first = *failure;
		database_rollback(database);
		if (!prepare_json(consumer, message, failure)) {
			return false;
		}
		if (message->json == JSON_NO) {
			applied = database_begin(database, failure) && apply_all(consumer, &one, 1, &refused, failure);
		} else {
			*failure = first;
		}
	}
	if (applied) {
		return true;
	}
	database_rollback(database);
	return failure->kind != FAILURE_CONNECTION && park_again(consumer, message, refused, failure);
}

/*
 * Those that are due are heads of their keys, so that none waits for another of them: together in
 * one transaction, and only where that fails each by itself. *count: how many there were.
 */
static bool retry_some(consumer *consumer, int *most, arena *arena, size_t *count, failure *failure)
{
	database *database = &consumer->database;
	PGresult *due = NULL;
	bool refused = false;

	if (!database_begin(database, failure) || !parked_look(consumer, *most, &due, failure)) {
		return false;
	}
	*count = (size_t)PQntuples(due);
	message *messages = arena_take(arena, *count * sizeof *messages);
	message **list = arena_take(arena, *count * sizeof(message *));
	size_t bytes = 0;
	bool together = true;
	for (size_t i = 0; i < *count; i++) {
		parked_read(due, (int)i, arena, &messages[i]);
		list[i] = &messages[i];
		bytes += messages[i].payload.length;
		/* Only those that are known to be fit for a handler, and small. */
		together =
		    together && messages[i].unusable == NULL && messages[i].json != JSON_UNSURE && bytes <= TOGETHER_BYTES_MAX;
	}
	PQclear(due);
	if (*count == 0) {
		return database_commit(database, failure);
	}
	if (together && apply_all(consumer, list, *count, &refused, failure)) {
		*most = *most < TOGETHER_MAX / 2 ? 2 * *most : TOGETHER_MAX;
		return true;
	}
	database_rollback(database);
	if (together && failure->kind == FAILURE_CONNECTION) {
		return false;
	}
	*most = 1 + *most / 4;
	int64_t started_ms = service_now_ms();
	for (size_t i = 0; i < *count && service_now_ms() - started_ms < WORK_MS && !service_stopping(); i++) {
		if (!retry_one(consumer, &messages[i], failure)) {
			return false;
		}
	}
	return true;
}

bool retry_due(consumer *consumer, int *most, failure *failure)
{
	int64_t started_ms = service_now_ms();
	size_t count = 1;
	bool good = true;

	if (!parked_is_due(consumer)) {
		return true;
	}
	while (good && count > 0 && consumer->parked > 0 && service_now_ms() - started_ms < WORK_MS) {
		arena arena = {0};
		good = retry_some(consumer, most, &arena, &count, failure);
		arena_clear(&arena);
	}
	if (!good) {
		database_rollback(&consumer->database);
	} else if (count > 0) {
		consumer->look_due_ms = 0; /* there may be more */
	}
	return good;
}
