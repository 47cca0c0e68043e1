/* SPDX-License-Identifier: PostgreSQL */
/*
 * apply.c: a batch in one transaction: the inbox, the handler, what has to wait, COMMIT. Where a handler fails, the batch is split by
 * savepoints until the message is found that fails; where only the COMMIT fails (a deferred constraint), by transactions. Whoever comes
 * here calls again with the same batch until it is done: the inbox makes that harmless.
 */
#include "consumer.h"

#include <stdio.h>
#include <string.h>

enum {
	ISOLATE_AFTER = 5, /* failures in a row that are nobody's fault, before those are looked for whose they are */
	ACTIVE_TRIES = 8,  /* before a message that another process is applying is put aside */
	ACTIVE_WAIT_MS = 1000
};

typedef struct batch {
	consumer *consumer;
	message *messages;
	size_t count;
	bool isolating; /* failures that are nobody's fault are laid to single messages too, uncounted */
	bool ask_again; /* a payload was not jsonb against our belief: ask the server, then again */
	int active_tries;
	size_t applied, duplicates, parked; /* of this try */
} batch;

/* ---- calls within the transaction */

bool apply_handle(consumer *consumer, message *const *messages, size_t count, failure *failure)
{
	parameters given = {0};
	int ids = parameters_array(&given, PARAMETER_TEXT);
	int topics = parameters_array(&given, PARAMETER_TEXT);
	int keys = parameters_array(&given, PARAMETER_TEXT);
	int headers = parameters_array(&given, PARAMETER_JSONB);
	int payloads = parameters_array(&given, PARAMETER_BYTEA);
	int are_json = parameters_array(&given, PARAMETER_BOOLEAN);

	for (size_t i = 0; i < count; i++) {
		parameters_add_text(&given, ids, message_own_id(messages[i]));
		parameters_add_text(&given, topics, messages[i]->topic);
		parameters_add_text(&given, keys, messages[i]->key);
		parameters_add_text(&given, headers, messages[i]->headers);
		parameters_add(&given, payloads, messages[i]->payload.data, messages[i]->payload.length);
		parameters_add_number(&given, are_json, messages[i]->json == JSON_YES);
	}
	return database_run(&consumer->database, SQL_HANDLE, &given, failure);
}

/* A failure of the contract's own functions is no message's fault: it is our role's rights, or the installation. */
static bool nobodys_fault(failure *failure)
{
	failure->kind = failure->kind == FAILURE_FAULT ? FAILURE_PASSING : failure->kind;
	return false;
}

static PGresult *receive(batch *batch, message *const *messages, size_t count, failure *failure)
{
	const settings *settings = &batch->consumer->settings;
	parameters given = {0};

	parameters_text(&given, batch->consumer->service.name);
	int ids = parameters_array(&given, PARAMETER_TEXT);
	int keys = parameters_array(&given, PARAMETER_TEXT);
	int fingerprints = parameters_array(&given, PARAMETER_BYTEA);
	parameters_text(&given, settings->tenant);
	parameters_boolean(&given, settings->on_dead == ON_DEAD_SKIP);
	int traces = parameters_array(&given, PARAMETER_TEXT);
	for (size_t i = 0; i < count; i++) {
		parameters_add_text(&given, ids, messages[i]->id);
		parameters_add_text(&given, keys, messages[i]->key);
		parameters_add(&given, fingerprints, messages[i]->fingerprint.bytes, ONCE_FINGERPRINT_BYTES);
		parameters_add_text(&given, traces, messages[i]->traceparent);
	}
	PGresult *result = database_query(&batch->consumer->database, SQL_RECEIVE, &given, failure);
	if (result == NULL) {
		nobodys_fault(failure);
	} else if ((size_t)PQntuples(result) != count) {
		failure_set(failure, FAILURE_PASSING, "once.receive_many answered %d rows for %zu messages: run pgonce doctor",
		            PQntuples(result), count);
		PQclear(result);
		result = NULL;
	}
	return result;
}

/* ---- verdicts */

typedef enum decision {
	DECIDE_NOTHING,
	DECIDE_HANDLE,
	DECIDE_PARK,
	DECIDE_FAIL /* the whole try */
} decision;

static decision decide_invalid(batch *batch, message *message, const char *code, parking *parking, failure *failure)
{
	if (strcmp(code, CODE_EXPIRED) == 0) {
		*parking = parked_dead(batch->consumer, message, CODE_EXPIRED, EXPIRED_ID);
		return DECIDE_PARK;
	}
	if (strcmp(code, "P4001") != 0 && strcmp(code, "P4099") != 0) {
		failure_set(failure, FAILURE_PASSING, "once.receive_many refused the message %s with %s%s", message->id, code,
		            strcmp(code, CODE_NO_DAY) == 0 ? ": the day of its id has no partition: run the keeper" : "");
		snprintf(failure->sqlstate, sizeof failure->sqlstate, "%s", code);
		return DECIDE_FAIL;
	}
	struct failure own;
	failure_set(
	    &own, FAILURE_FAULT, "%s",
	    code[4] == '1'
	        ? "the message's id is a UUIDv7 from the future: its producer's clock is wrong"
	        : "the message's id is in the inbox in an unfinished state: an attempt under a lease left it; pgonce show");
	snprintf(own.sqlstate, sizeof own.sqlstate, "%s", code);
	*parking = parked_after_failure(batch->consumer, message, &own, true, 0);
	return DECIDE_PARK;
}

static decision decide(batch *batch, message *message, const char *verdict, const char *code, parking *parking,
                       failure *failure)
{
	if (strcmp(verdict, "process") == 0) {
		return DECIDE_HANDLE;
	}
	if (strcmp(verdict, "duplicate") == 0) {
		batch->duplicates++;
		return DECIDE_NOTHING;
	}
	if (strcmp(verdict, "parked") == 0) {
		return DECIDE_NOTHING; /* delivered again while it waits here */
	}
	if (strcmp(verdict, "blocked") == 0) {
		*parking = parked_waiting(message, 0);
		return DECIDE_PARK;
	}
	if (strcmp(verdict, "mismatch") == 0) {
		message_refuse(message, &batch->consumer->arena, CODE_REUSED_ID,
		               "the id %s came before with another payload: its producer reuses ids", message->id);
		*parking = parked_dead(batch->consumer, message, message->unusable_code, message->unusable);
		return DECIDE_PARK;
	}
	if (strcmp(verdict, "active") == 0 && batch->active_tries >= ACTIVE_TRIES) {
		*parking = parked_waiting(message, ACTIVE_WAIT_MS);
		return DECIDE_PARK;
	}
	if (strcmp(verdict, "active") == 0) {
		failure_set(failure, FAILURE_PASSING, "another process is applying the message %s", message->id);
		snprintf(failure->sqlstate, sizeof failure->sqlstate, "P4029");
		return DECIDE_FAIL;
	}
	return decide_invalid(batch, message, code, parking, failure);
}

/* Messages that have an id, in order: the inbox, the handler for those that are new, and what must wait. */
static bool apply_usable(batch *batch, message **messages, size_t count, failure *failure)
{
	arena *arena = &batch->consumer->arena;
	message **handled = arena_take(arena, (count + 1) * sizeof(message *));
	parking *parkings = arena_take(arena, (count + 1) * sizeof *parkings);
	size_t handled_count = 0;
	size_t parked_count = 0;
	bool good = true;

	PGresult *result = receive(batch, messages, count, failure);
	if (result == NULL) {
		return false;
	}
	for (size_t i = 0; i < count && good; i++) {
		switch (decide(batch, messages[i], PQgetvalue(result, (int)i, 1), PQgetvalue(result, (int)i, 2),
		               &parkings[parked_count], failure)) {
		case DECIDE_HANDLE:
			handled[handled_count++] = messages[i];
			break;
		case DECIDE_PARK:
			parked_count++;
			break;
		case DECIDE_FAIL:
			good = false;
			break;
		case DECIDE_NOTHING:
			break;
		}
	}
	PQclear(result);
	good = good && (handled_count == 0 || apply_handle(batch->consumer, handled, handled_count, failure));
	if (good && parked_count > 0 && !parked_store(batch->consumer, parkings, parked_count, failure)) {
		good = nobodys_fault(failure);
	}
	batch->applied += good ? handled_count : 0;
	batch->parked += good ? parked_count : 0;
	return good;
}

/*
 * A part of the batch. One that cannot be used splits it: what comes before it is done before it is parked, what comes after it and has its
 * key then waits behind it.
 */
static bool apply_part(batch *batch, size_t first, size_t end, failure *failure)
{
	message **usable = arena_take(&batch->consumer->arena, (end - first + 1) * sizeof(message *));
	size_t count = 0;
	bool good = true;

	for (size_t i = first; i < end && good; i++) {
		message *message = &batch->messages[i];
		if (message->unusable == NULL) {
			usable[count++] = message;
			continue;
		}
		good = count == 0 || apply_usable(batch, usable, count, failure);
		count = 0;
		parking parking = parked_dead(batch->consumer, message, message->unusable_code, message->unusable);
		if (good && !parked_store(batch->consumer, &parking, 1, failure)) {
			good = nobodys_fault(failure);
		}
		batch->parked++;
	}
	return good && (count == 0 || apply_usable(batch, usable, count, failure));
}

/* ---- finding who fails */

static bool is_of_a_message(const batch *batch, const failure *failure)
{
	return failure->kind == FAILURE_FAULT || failure->kind == FAILURE_CANCELED ||
	       (batch->isolating && failure->kind == FAILURE_PASSING);
}

static bool park_failed(batch *batch, size_t at, failure *failure)
{
	message *message = &batch->messages[at];

	if (consumer_doubts(message, failure)) {
		/* All of them at once: each by itself would cost a try of the whole batch. */
		for (size_t i = 0; i < batch->count; i++) {
			(void)consumer_doubts(&batch->messages[i], failure);
		}
		batch->ask_again = true;
		failure->kind = FAILURE_PASSING;
		return false;
	}
	parking parking = parked_after_failure(batch->consumer, message, failure, failure->kind != FAILURE_PASSING, 0);
	batch->parked++;
	return parked_store(batch->consumer, &parking, 1, failure) || nobodys_fault(failure);
}

static bool try_part(batch *batch, size_t first, size_t end, failure *failure);

/* A part that is known to fail as a whole. */
static bool split(batch *batch, size_t first, size_t end, failure *failure)
{
	if (end - first == 1) {
		return park_failed(batch, first, failure);
	}
	size_t middle = first + (end - first) / 2;
	return try_part(batch, first, middle, failure) && try_part(batch, middle, end, failure);
}

static bool try_part(batch *batch, size_t first, size_t end, failure *failure)
{
	database *database = &batch->consumer->database;
	struct failure ignored;
	size_t applied = batch->applied;
	size_t duplicates = batch->duplicates;
	size_t parked = batch->parked;
	consumer_tally tally = batch->consumer->tally;

	if (!database_run(database, SQL_PART_BEGIN, NULL, failure)) {
		return nobodys_fault(failure);
	}
	if (apply_part(batch, first, end, failure)) {
		return database_run(database, SQL_PART_END, NULL, failure) || nobodys_fault(failure);
	}
	if (!is_of_a_message(batch, failure)) {
		return false;
	}
	batch->applied = applied;
	batch->duplicates = duplicates;
	batch->parked = parked;
	batch->consumer->tally = tally;
	/* `failure` is the message's: it is kept. */
	if (!database_run(database, SQL_PART_ROLLBACK, NULL, &ignored) ||
	    !database_run(database, SQL_PART_END, NULL, &ignored)) {
		*failure = ignored;
		return nobodys_fault(failure);
	}
	return split(batch, first, end, failure);
}

static void count_anew(batch *batch)
{
	batch->applied = batch->duplicates = batch->parked = 0;
	batch->consumer->tally = (consumer_tally){0};
}

/* A part in a transaction of its own. */
static bool transact(batch *batch, size_t first, size_t end, failure *failure)
{
	database *database = &batch->consumer->database;
	bool good = database_begin(database, failure);

	count_anew(batch);
	good = good && apply_part(batch, first, end, failure);
	if (!good && database->in_transaction && is_of_a_message(batch, failure)) {
		struct failure cause = *failure;
		count_anew(batch);
		database_rollback(database);
		good = database_begin(database, failure);
		if (good) {
			*failure = cause;
			good = split(batch, first, end, failure);
		}
		if (good && batch->isolating && cause.kind == FAILURE_PASSING && batch->applied == 0 && end - first > 1) {
			*failure = cause; /* it is everybody: the server's trouble, not a message's */
			good = false;
		}
	}
	if (!good) {
		database_rollback(database);
		count_anew(batch);
		return false;
	}
	if (database_commit(database, failure)) {
		consumer_count(batch->consumer, batch->applied, batch->duplicates);
		return true;
	}
	count_anew(batch);
	/* Where it is everybody, what parks a message does not commit either. */
	if (!is_of_a_message(batch, failure)) {
		return false;
	}
	if (end - first == 1) {
		return park_failed(batch, first, failure);
	}
	size_t middle = first + (end - first) / 2;
	return transact(batch, first, middle, failure) && transact(batch, middle, end, failure);
}

bool apply_batch(consumer *consumer, message *messages, size_t count)
{
	batch batch = {.consumer = consumer, .messages = messages, .count = count};
	int64_t started_ms = service_now_ms();

	for (int failures = 0;;) {
		failure failure = {0};
		if (!consumer_connected(consumer)) {
			return false;
		}
		batch.ask_again = false;
		batch.isolating = failures > ISOLATE_AFTER;
		if (consumer_prepare_messages(consumer, messages, count, &failure) && transact(&batch, 0, count, &failure)) {
			break;
		}
		database_rollback(&consumer->database);
		if (batch.ask_again && service_stopping()) {
			return false;
		}
		if (batch.ask_again) {
			continue;
		}
		batch.active_tries += strcmp(failure.sqlstate, "P4029") == 0;
		failures++;
		if (!consumer_pause(consumer, failures, &failure)) {
			return false;
		}
	}
	consumer->parked += (int64_t)batch.parked;
	service_log(&consumer->service, SERVICE_DEBUG, "batch",
	            "messages=%zu applied=%zu duplicates=%zu parked=%zu ms=%lld", count, batch.applied, batch.duplicates,
	            batch.parked, (long long)(service_now_ms() - started_ms));
	return true;
}
