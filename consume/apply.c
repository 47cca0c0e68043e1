/* SPDX-License-Identifier: PostgreSQL */
/*
 * apply.c: a batch in one transaction: inbox, handler, parking, COMMIT. If a handler fails,
 * savepoints split the batch until the failing message is found. If only the COMMIT fails (a
 * deferred constraint), the batch is split into transactions. Called by handler_sql.c and retry.c.
 */
#include "apply.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "parked.h"

enum {
	/* after so many failures in a row that point to no message, single messages are blamed */
	ISOLATE_AFTER = 5,
	ACTIVE_TRIES = 8, /* before a message that another process is applying is parked */
	ACTIVE_WAIT_MS = 1000
};

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

/* If the contract's own functions fail, the cause is the role's rights or the installation. */
static bool nobodys_fault(failure *failure)
{
	failure->kind = failure->kind == FAILURE_FAULT ? FAILURE_PASSING : failure->kind;
	return false;
}

PGresult *apply_inbox(consumer *consumer, message *const *messages, size_t count, bool ordered, failure *failure)
{
	parameters given = {0};

	parameters_text(&given, consumer->speaker.name);
	int ids = parameters_array(&given, PARAMETER_TEXT);
	int keys = parameters_array(&given, PARAMETER_TEXT);
	int fingerprints = parameters_array(&given, PARAMETER_BYTEA);
	parameters_text(&given, consumer->settings.tenant);
	parameters_boolean(&given, consumer->settings.on_dead == ON_DEAD_SKIP);
	int traces = parameters_array(&given, PARAMETER_TEXT);
	for (size_t i = 0; i < count; i++) {
		parameters_add_text(&given, ids, messages[i]->id);
		parameters_add_text(&given, keys, ordered ? messages[i]->line : NULL);
		parameters_add(&given, fingerprints, messages[i]->fingerprint.bytes, ONCE_FINGERPRINT_BYTES);
		parameters_add_text(&given, traces, messages[i]->traceparent);
	}
	return database_query(&consumer->database, SQL_RECEIVE, &given, failure);
}

bool apply_allowed(consumer *consumer, failure *failure)
{
	PGresult *result = apply_inbox(consumer, NULL, 0, true, failure);

	PQclear(result);
	return result != NULL;
}

static PGresult *receive(message_batch *batch, message *const *messages, size_t count, failure *failure)
{
	PGresult *result = apply_inbox(batch->consumer, messages, count, true, failure);

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

/* Messages by what happens to them. Duplicates and already parked ones are only counted. */
typedef struct sorted {
	message **handled;
	parking *parkings;
	size_t handled_count, parked_count;
} sorted;

/* The inbox refused the message. True: the message's fault, it is parked. */
static bool sort_invalid(message_batch *batch, message *message, const char *code, sorted *sorted, failure *failure)
{
	struct failure own;

	if (strcmp(code, CODE_EXPIRED) == 0) {
		sorted->parkings[sorted->parked_count++] = park_dead(batch->consumer, message, CODE_EXPIRED, EXPIRED_ID);
		return true;
	}
	if (strcmp(code, "P4001") != 0 && strcmp(code, "P4099") != 0) {
		failure_set(failure, FAILURE_PASSING, "once.receive_many refused the message %s with %s%s", message->id, code,
		            strcmp(code, CODE_NO_DAY) == 0 ? ": the day of its id has no partition yet" : "");
		snprintf(failure->sqlstate, sizeof failure->sqlstate, "%s", code);
		return false;
	}
	failure_set(
	    &own, FAILURE_FAULT, "%s",
	    code[4] == '1'
	        ? "the message's id is a UUIDv7 from the future: its producer's clock is wrong"
	        : "the message's id is in the inbox in an unfinished state: an attempt under a lease left it; pgonce show");
	snprintf(own.sqlstate, sizeof own.sqlstate, "%s", code);
	sorted->parkings[sorted->parked_count++] = park_failed(batch->consumer, message, &own, true, 0);
	return true;
}

/* False: the whole try fails. */
static bool sort(message_batch *batch, message *message, const char *verdict, const char *code, sorted *sorted,
                 failure *failure)
{
	consumer *consumer = batch->consumer;
	bool active = strcmp(verdict, "processing_active") == 0;

	if (active && batch->active_tries < ACTIVE_TRIES) {
		failure_set(failure, FAILURE_PASSING, "another process is applying the message %s", message->id);
		snprintf(failure->sqlstate, sizeof failure->sqlstate, "P4029");
		return false;
	}
	if (strcmp(verdict, "process") == 0) {
		sorted->handled[sorted->handled_count++] = message;
	} else if (strcmp(verdict, "duplicate") == 0) {
		consumer->counts.open.duplicates++;
	} else if (strcmp(verdict, "parked") == 0) {
		consumer->counts.open.known++;
		parked_came_again(consumer, message);
	} else if (active || strcmp(verdict, "blocked") == 0) {
		sorted->parkings[sorted->parked_count++] = park_waiting(message, active ? ACTIVE_WAIT_MS : 0);
	} else if (strcmp(verdict, "mismatch") == 0) {
		message_refuse(message, &batch->arena, CODE_REUSED_ID,
		               "the id %s came before with another payload: its producer reuses ids", message->id);
		sorted->parkings[sorted->parked_count++] =
		    park_dead(consumer, message, message->unusable_code, message->unusable);
	} else {
		return sort_invalid(batch, message, code, sorted, failure);
	}
	return true;
}

/* Messages with an id, in order: inbox, handler for the new ones, parking. */
static bool apply_usable(message_batch *batch, message **messages, size_t count, failure *failure)
{
	consumer *consumer = batch->consumer;
	sorted sorted = {.handled = arena_take(&consumer->arena, count * sizeof(message *)),
	                 .parkings = arena_take(&consumer->arena, count * sizeof(parking))};

	PGresult *result = receive(batch, messages, count, failure);
	bool good = result != NULL;
	for (size_t i = 0; i < count && good; i++) {
		good = sort(batch, messages[i], PQgetvalue(result, (int)i, 1), PQgetvalue(result, (int)i, 2), &sorted, failure);
	}
	PQclear(result);
	good = good && (sorted.handled_count == 0 || apply_handle(consumer, sorted.handled, sorted.handled_count, failure));
	if (good && sorted.parked_count > 0 && !parked_store(consumer, sorted.parkings, sorted.parked_count, failure)) {
		good = nobodys_fault(failure);
	}
	consumer->counts.open.applied += good ? sorted.handled_count : 0;
	return good;
}

/*
 * A part of the batch. An unusable message splits it: the messages before it are applied before it
 * is parked, and later messages with its key then wait behind it.
 */
static bool apply_part(message_batch *batch, size_t first, size_t end, failure *failure)
{
	message **usable = arena_take(&batch->consumer->arena, (end - first + 1) * sizeof(message *));
	uint64_t before = tally_messages(&batch->consumer->counts.open);
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
		parking parking = park_dead(batch->consumer, message, message->unusable_code, message->unusable);
		if (good && !parked_store(batch->consumer, &parking, 1, failure)) {
			good = nobodys_fault(failure);
		}
	}
	good = good && (count == 0 || apply_usable(batch, usable, count, failure));
	assert(!good || tally_messages(&batch->consumer->counts.open) - before == end - first);
	return good;
}

/* ---- finding the failing message */

static bool is_of_a_message(const message_batch *batch, const failure *failure)
{
	return failure->kind == FAILURE_FAULT || failure->kind == FAILURE_CANCELED ||
	       (batch->isolating && failure->kind == FAILURE_PASSING);
}

static bool park_one(message_batch *batch, size_t at, failure *failure)
{
	message *message = &batch->messages[at];

	if (prepare_doubts(message, failure)) {
		/* All of them at once: asking for each separately would cost a try of the whole batch. */
		for (size_t i = 0; i < batch->count; i++) {
			(void)prepare_doubts(&batch->messages[i], failure);
		}
		batch->ask_again = true;
		failure->kind = FAILURE_PASSING;
		return false;
	}
	parking parking = park_failed(batch->consumer, message, failure, failure->kind != FAILURE_PASSING, 0);
	return parked_store(batch->consumer, &parking, 1, failure) || nobodys_fault(failure);
}

static bool try_part(message_batch *batch, size_t first, size_t end, failure *failure);

/* Splits a part that is known to fail as a whole. */
static bool split(message_batch *batch, size_t first, size_t end, failure *failure)
{
	if (end - first == 1) {
		return park_one(batch, first, failure);
	}
	size_t middle = first + (end - first) / 2;
	return try_part(batch, first, middle, failure) && try_part(batch, middle, end, failure);
}

static bool try_part(message_batch *batch, size_t first, size_t end, failure *failure)
{
	database *database = &batch->consumer->database;
	struct failure ignored;
	tally before = batch->consumer->counts.open;
	size_t unsent = batch->consumer->graves.count;

	if (!database_command(database, "SAVEPOINT part", failure)) {
		return nobodys_fault(failure);
	}
	if (apply_part(batch, first, end, failure)) {
		return database_command(database, "RELEASE SAVEPOINT part", failure) || nobodys_fault(failure);
	}
	if (!is_of_a_message(batch, failure)) {
		return false;
	}
	batch->consumer->counts.open = before;
	batch->consumer->graves.count = unsent;
	/* `failure` describes the message's error and is kept. */
	if (!database_command(database, "ROLLBACK TO SAVEPOINT part", &ignored) ||
	    !database_command(database, "RELEASE SAVEPOINT part", &ignored)) {
		*failure = ignored;
		return nobodys_fault(failure);
	}
	return split(batch, first, end, failure);
}

/* All messages of the open part are applied or parked; COMMIT makes this durable. */
static bool commit(message_batch *batch, size_t size, failure *failure)
{
	consumer *consumer = batch->consumer;
	const tally open = consumer->counts.open;

	assert(tally_messages(&open) == size);
	if (!database_commit(&consumer->database, failure)) {
		return false;
	}
	counts_commit(&consumer->counts);
	consumer->parked += (int64_t)tally_parked(&open);
	return true;
}

static bool begin(consumer *consumer, failure *failure)
{
	consumer->counts.open = (tally){0};
	return database_begin(&consumer->database, failure);
}

/* One part in its own transaction. */
static bool transact(message_batch *batch, size_t first, size_t end, failure *failure)
{
	consumer *consumer = batch->consumer;
	database *database = &consumer->database;
	const size_t unsent = consumer->graves.count; /* of the committed parts */
	bool good = begin(consumer, failure) && apply_part(batch, first, end, failure);

	if (!good && database->in_transaction && is_of_a_message(batch, failure)) {
		struct failure cause = *failure;
		database_rollback(database);
		consumer->graves.count = unsent;
		good = begin(consumer, failure);
		if (good) {
			*failure = cause;
			good = split(batch, first, end, failure);
		}
		if (good && batch->isolating && cause.kind == FAILURE_PASSING && consumer->counts.open.applied == 0 &&
		    end - first > 1) {
			*failure = cause; /* all messages fail: the server's fault, not a message's */
			good = false;
		}
	}
	if (!good) {
		database_rollback(database);
		return false;
	}
	if (commit(batch, end - first, failure)) {
		return true;
	}
	consumer->graves.count = unsent;
	/* If all messages fail, a COMMIT that parks one fails too. */
	if (!is_of_a_message(batch, failure)) {
		return false;
	}
	if (end - first == 1) {
		consumer->counts.open = (tally){0};
		bool parked = park_one(batch, first, failure);
		consumer->parked += parked;
		return parked;
	}
	size_t middle = first + (end - first) / 2;
	return transact(batch, first, middle, failure) && transact(batch, middle, end, failure);
}

bool apply_batch(message_batch *batch, failure *failure)
{
	consumer *consumer = batch->consumer;
	const tally *now = &consumer->counts.committed;
	int64_t started_ms = runtime_now_ms();
	bool good = false;
	tally before;

	batch->isolating = batch->failures > ISOLATE_AFTER;
	do {
		before = *now;
		batch->ask_again = false;
		consumer->graves.count = 0;
		good = prepare_messages(consumer, batch->messages, batch->count, failure) &&
		       transact(batch, 0, batch->count, failure);
		database_rollback(&consumer->database);
		consumer->counts.open = (tally){0};
	} while (!good && batch->ask_again && !runtime_stopping());
	if (!good) {
		/* The copies for committed parts are sent after those messages' next turn. */
		consumer->graves.count = 0;
		batch->failures++;
		batch->active_tries += strcmp(failure->sqlstate, "P4029") == 0;
		return false;
	}
	assert(tally_messages(now) - tally_messages(&before) == batch->count);
	runtime_log(
	    &consumer->speaker, RUNTIME_DEBUG, "batch", "messages=%zu applied=%llu duplicates=%llu parked=%llu ms=%lld",
	    batch->count, (unsigned long long)(now->applied - before.applied),
	    (unsigned long long)(now->duplicates - before.duplicates),
	    (unsigned long long)(tally_parked(now) - tally_parked(&before)), (long long)(runtime_now_ms() - started_ms));
	return true;
}
