/* SPDX-License-Identifier: PostgreSQL */
/* retry.c: tries parked messages that are due. Called by handler_sql.c. */
#include "apply.h"

#include <assert.h>
#include <string.h>

#include "dead_topic.h"
#include "transaction.h"

enum {
	WORK_MS = 200, /* per call: new messages get their turn too */
	ACTIVE_WAIT_MS = 1000,
	TOGETHER_MAX = 500 /* in one transaction */
};

/* ---- in the open transaction */

/*
 * Keeps those of `messages` that must be applied; the others were applied before. All must have
 * been removed from the parked ones already, or the inbox would report each as parked. False also
 * if the inbox gives a message another verdict.
 */
static bool receive_all(consumer *consumer, message *const *messages, size_t count, message **fresh,
                        size_t *fresh_count, failure *failure)
{
	PGresult *result = transaction_receive(consumer, messages, count, false, failure);
	bool good = result != NULL;

	*fresh_count = 0;
	for (size_t i = 0; i < count && good; i++) {
		const char *verdict = (int)i < PQntuples(result) ? PQgetvalue(result, (int)i, 1) : "missing";
		if (strcmp(verdict, "process") == 0) {
			fresh[(*fresh_count)++] = messages[i];
		} else if (strcmp(verdict, "duplicate") != 0) {
			failure_set(failure, FAILURE_PASSING, "the inbox answers %s for the message %s", verdict, messages[i]->id);
			good = false;
		}
	}
	PQclear(result);
	return good;
}

/* Commits messages that are applied and no longer parked. */
static bool commit(consumer *consumer, size_t applied, size_t count, failure *failure)
{
	if (!database_commit(&consumer->database, failure)) {
		return false;
	}
	consumer->counts.open = (tally){.applied = applied, .duplicates = count - applied};
	counts_commit(&consumer->counts);
	consumer->parked = consumer->parked > (int64_t)count ? consumer->parked - (int64_t)count : 0;
	return true;
}

/* Applies all, in order, or none. */
static bool apply_all(consumer *consumer, message *const *messages, size_t count, failure *failure)
{
	message **fresh = arena_take(&consumer->arena, count * sizeof(message *));
	size_t fresh_count = 0;

	return parked_remove(consumer, (const message *const *)messages, count, failure) &&
	       receive_all(consumer, messages, count, fresh, &fresh_count, failure) &&
	       (fresh_count == 0 || transaction_handle(consumer, fresh, fresh_count, failure)) &&
	       commit(consumer, fresh_count, count, failure);
}

/* *refused: the inbox failed, not the handler. */
static bool apply_one(consumer *consumer, message *message, bool *refused, failure *failure)
{
	struct message *const one = message;
	const struct message *const gone = message;
	bool process = false;

	*refused = !transaction_receive_parked(consumer, message, &process, failure);
	return !*refused && (!process || transaction_handle(consumer, &one, 1, failure)) &&
	       parked_remove(consumer, &gone, 1, failure) && commit(consumer, process ? 1 : 0, 1, failure);
}

/* ---- one message in its own transaction */

/*
 * After its transaction is rolled back: schedules its next try, in its own transaction. A handler
 * may raise any SQLSTATE, so the contract's codes mean something only if the inbox `refused`.
 */
static bool park_again(consumer *consumer, message *message, bool refused, failure *failure)
{
	parking parking = {.message = message,
	                   .state = PARKED_RETRYING,
	                   .counted = failure->kind != FAILURE_PASSING,
	                   .error = failure->text,
	                   .sqlstate = failure->sqlstate};

	assert(!consumer->database.in_transaction);
	if (refused && strcmp(failure->sqlstate, "P4029") == 0) {
		parking = (struct parking){.message = message, .state = PARKED_WAITING, .wait_ms = ACTIVE_WAIT_MS};
	} else if (refused &&
	           (strcmp(failure->sqlstate, CODE_REUSED_ID) == 0 || strcmp(failure->sqlstate, CODE_EXPIRED) == 0)) {
		parking.state = PARKED_DEAD;
		parking.counted = false;
	}
	return parked_park(consumer, &parking, 1, failure) && dead_topic_send(consumer, failure);
}

/* *applied; else it stays parked, or is parked again. False: the server failed. */
static bool retry_one(consumer *consumer, message *message, bool *applied, failure *failure)
{
	database *database = &consumer->database;
	bool refused = false;

	*applied = false;
	if (message->unusable != NULL) {
		parking parking = {
		    .message = message, .state = PARKED_DEAD, .error = message->unusable, .sqlstate = message->unusable_code};
		return parked_park(consumer, &parking, 1, failure) && dead_topic_send(consumer, failure);
	}
	if (!prepare_json(consumer, message, failure) || !database_begin(database, failure)) {
		return false;
	}
	*applied = apply_one(consumer, message, &refused, failure);
	if (!*applied && failure->kind != FAILURE_CONNECTION && prepare_doubts(message, failure)) {
		struct failure first = *failure;
		database_rollback(database);
		if (!prepare_json(consumer, message, failure)) {
			return false;
		}
		if (message->json == JSON_NO) {
			*applied = database_begin(database, failure) && apply_one(consumer, message, &refused, failure);
		} else {
			*failure = first;
		}
	}
	if (*applied) {
		return true;
	}
	database_rollback(database);
	return failure->kind != FAILURE_CONNECTION && park_again(consumer, message, refused, failure);
}

static bool is_behind(const message *message, const struct message *const *stayed, size_t count)
{
	for (size_t i = 0; i < count && message->line != NULL; i++) {
		if (stayed[i]->line != NULL && strcmp(stayed[i]->line, message->line) == 0) {
			return true;
		}
	}
	return false;
}

/* One after the other, for a limited time. Messages behind one that stays parked stay too. */
static bool retry_each(consumer *consumer, message *messages, size_t count, arena *arena, failure *failure)
{
	const message **stayed = arena_take(arena, count * sizeof(message *));
	size_t stayed_count = 0;
	int64_t started_ms = runtime_now_ms();

	for (size_t i = 0; i < count && runtime_now_ms() - started_ms < WORK_MS && !runtime_stopping(); i++) {
		bool applied = false;
		if (is_behind(&messages[i], stayed, stayed_count)) {
			continue;
		}
		if (!retry_one(consumer, &messages[i], &applied, failure)) {
			return false;
		}
		if (!applied) {
			stayed[stayed_count++] = &messages[i];
		}
	}
	return true;
}

/* ---- due messages */

/*
 * How many of the first may be applied together: those known to be fit for a handler. They are in
 * order, so no skipped message has a later one of its key applied before it.
 */
static size_t together(const message *messages, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		if (messages[i].unusable != NULL || messages[i].json == JSON_UNSURE) {
			return i;
		}
	}
	return count;
}

/*
 * Whole lines together in one transaction; if that fails, each message separately. *count: how many
 * there were.
 */
static bool retry_some(consumer *consumer, int *most, arena *arena, size_t *count, failure *failure)
{
	database *database = &consumer->database;
	PGresult *due = NULL;

	if (!database_begin(database, failure) || !parked_look(consumer, *most, true, &due, failure)) {
		return false;
	}
	*count = (size_t)PQntuples(due);
	message *messages = arena_take(arena, *count * sizeof *messages);
	message **list = arena_take(arena, *count * sizeof(message *));
	for (size_t i = 0; i < *count; i++) {
		parked_read(due, (int)i, &consumer->settings.key_from, arena, &messages[i]);
		list[i] = &messages[i];
	}
	PQclear(due);
	if (*count == 0) {
		return database_commit(database, failure);
	}
	size_t fit = together(messages, *count);
	if (fit > 0 && apply_all(consumer, list, fit, failure)) {
		*most = *most < TOGETHER_MAX / 2 ? 2 * *most : TOGETHER_MAX;
		return true;
	}
	database_rollback(database);
	if (fit > 0 && failure->kind == FAILURE_CONNECTION) {
		return false;
	}
	*most = 1 + *most / 4;
	/* If the first is not fit, it is tried alone; the others are tried together later. */
	return retry_each(consumer, messages, fit > 0 ? fit : 1, arena, failure);
}

bool retry_due(consumer *consumer, int *most, failure *failure)
{
	int64_t started_ms = runtime_now_ms();
	size_t count = 1;
	bool good = true;

	if (!parked_is_due(consumer)) {
		return true;
	}
	while (good && count > 0 && consumer->parked > 0 && runtime_now_ms() - started_ms < WORK_MS) {
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
