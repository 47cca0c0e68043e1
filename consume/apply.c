/* SPDX-License-Identifier: PostgreSQL */
/*
 * apply.c: a batch in one transaction: inbox, handler, parking, COMMIT. If a handler fails,
 * savepoints split the batch until the failing message is found. If only the COMMIT fails (a
 * deferred constraint), the batch is split into transactions. Called by handler_sql.c.
 */
#include "apply.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "transaction.h"

enum {
	/* after so many failures in a row that point to no message, single messages are blamed */
	ISOLATE_AFTER = 5,
	ACTIVE_TRIES = 8, /* before a message that another process is applying is parked */
	ACTIVE_WAIT_MS = 1000
};

/* If the contract's own functions fail, the cause is the role's rights or the installation. */
static bool nobodys_fault(failure *failure)
{
	failure->kind = failure->kind == FAILURE_FAULT ? FAILURE_PASSING : failure->kind;
	return false;
}

/* ---- the inbox's verdicts */

static parking dead(const message *message, const char *sqlstate, const char *error)
{
	return (parking){.message = message, .state = PARKED_DEAD, .sqlstate = sqlstate, .error = error};
}

static void to_park(message_batch *batch, parking parking)
{
	batch->parkings[batch->parked_count++] = parking;
}

/* The inbox refused the message. True: the message's fault, it is parked. */
static bool sort_invalid(message_batch *batch, message *message, const char *code, failure *failure)
{
	parking parking = {.message = message, .state = PARKED_RETRYING, .counted = true};

	if (strcmp(code, CODE_EXPIRED) == 0) {
		parking = dead(message, CODE_EXPIRED, EXPIRED_ID);
	} else if (strcmp(code, CODE_NO_ID) == 0) {
		parking.sqlstate = CODE_NO_ID;
		parking.error = "the message's id is a UUIDv7 from the future: its producer's clock is wrong";
	} else if (strcmp(code, CODE_UNFINISHED) == 0) {
		parking.sqlstate = CODE_UNFINISHED;
		parking.error = "the message's id is in the inbox in an unfinished state: an attempt under a lease left it; "
		                "pgonce show";
	} else {
		failure_set(failure, FAILURE_PASSING, "once.receive_many refused the message %s with %s%s", message->id, code,
		            strcmp(code, CODE_NO_DAY) == 0 ? ": the day of its id has no partition yet" : "");
		snprintf(failure->sqlstate, sizeof failure->sqlstate, "%s", code);
		return false;
	}
	to_park(batch, parking);
	return true;
}

/* False: the whole try fails. */
static bool sort(message_batch *batch, message *message, const char *verdict, const char *code, failure *failure)
{
	consumer *consumer = batch->consumer;
	bool active = strcmp(verdict, "processing_active") == 0;

	if (active && batch->active_tries < ACTIVE_TRIES) {
		failure_set(failure, FAILURE_PASSING, "another process is applying the message %s", message->id);
		snprintf(failure->sqlstate, sizeof failure->sqlstate, "P4029");
		return false;
	}
	if (strcmp(verdict, "process") == 0) {
		batch->handled[batch->handled_count++] = message;
	} else if (strcmp(verdict, "duplicate") == 0) {
		consumer->counts.open.duplicates++;
		batch->known_count++;
	} else if (active || strcmp(verdict, "blocked") == 0) {
		to_park(batch, (parking){.message = message, .state = PARKED_WAITING, .wait_ms = active ? ACTIVE_WAIT_MS : 0});
	} else if (strcmp(verdict, "mismatch") == 0) {
		message_refuse(message, &batch->arena, CODE_REUSED_ID,
		               "the id %s came before with another payload: its producer reuses ids", message->id);
		to_park(batch, dead(message, message->unusable_code, message->unusable));
	} else if (strcmp(verdict, "parked") != 0) {
		return sort_invalid(batch, message, code, failure);
	} else {
		consumer->counts.open.known++;
		batch->known_count++;
		parked_came_again(consumer, message);
	}
	return true;
}

/* Asks the inbox about messages with an id, and sorts them by its verdicts. */
static bool receive(message_batch *batch, size_t first, size_t count, failure *failure)
{
	PGresult *result = transaction_receive(batch->consumer, batch->list + first, count, true, failure);
	bool good = result != NULL || nobodys_fault(failure);

	if (good && (size_t)PQntuples(result) != count) {
		failure_set(failure, FAILURE_PASSING, "once.receive_many answered %d rows for %zu messages: run pgonce doctor",
		            PQntuples(result), count);
		good = false;
	}
	for (size_t i = 0; i < count && good; i++) {
		good =
		    sort(batch, batch->list[first + i], PQgetvalue(result, (int)i, 1), PQgetvalue(result, (int)i, 2), failure);
	}
	PQclear(result);
	return good;
}

/* ---- a part of the batch */

/* One unusable message, or usable ones in order: inbox, handler for the new ones, parking. */
static bool apply_run(message_batch *batch, size_t first, size_t count, failure *failure)
{
	consumer *consumer = batch->consumer;
	message *message = batch->list[first];
	bool good = true;

	batch->handled_count = batch->parked_count = batch->known_count = 0;
	if (message->unusable != NULL) {
		to_park(batch, dead(message, message->unusable_code, message->unusable));
	} else {
		good =
		    receive(batch, first, count, failure) &&
		    (batch->handled_count == 0 || transaction_handle(consumer, batch->handled, batch->handled_count, failure));
	}
	if (good && batch->parked_count > 0 && !parked_park(consumer, batch->parkings, batch->parked_count, failure)) {
		good = nobodys_fault(failure);
	}
	consumer->counts.open.applied += good ? batch->handled_count : 0;
	assert(!good || batch->handled_count + batch->parked_count + batch->known_count == count);
	return good;
}

/*
 * A part of the batch. An unusable message splits it: the messages before it are applied before it
 * is parked, and later messages with its key then wait behind it.
 */
static bool apply_part(message_batch *batch, size_t first, size_t end, failure *failure)
{
	bool good = true;

	for (size_t at = first, next = first; at < end && good; at = next) {
		bool usable = batch->list[at]->unusable == NULL;
		for (next = at + 1; usable && next < end && batch->list[next]->unusable == NULL; next++) {
		}
		good = apply_run(batch, at, next - at, failure);
	}
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
	parking parking = {.message = message,
	                   .state = PARKED_RETRYING,
	                   .counted = failure->kind != FAILURE_PASSING,
	                   .error = failure->text,
	                   .sqlstate = failure->sqlstate};
	return parked_park(batch->consumer, &parking, 1, failure) || nobodys_fault(failure);
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

void apply_open(message_batch *batch, consumer *consumer, source_message *const *deliveries, size_t count)
{
	const settings *settings = &consumer->settings;
	arena *arena = &batch->arena;

	batch->consumer = consumer;
	batch->count = count;
	batch->messages = arena_take(arena, count * sizeof *batch->messages);
	batch->list = arena_take(arena, count * sizeof(message *));
	batch->handled = arena_take(arena, count * sizeof(message *));
	batch->parkings = arena_take(arena, count * sizeof *batch->parkings);
	for (size_t i = 0; i < count; i++) {
		message_identify(deliveries[i], &settings->id_from, &settings->key_from, arena, &batch->messages[i]);
		batch->list[i] = &batch->messages[i];
	}
}

void apply_close(message_batch *batch)
{
	arena_clear(&batch->arena);
	*batch = (message_batch){0};
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
