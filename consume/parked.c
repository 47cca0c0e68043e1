/* SPDX-License-Identifier: PostgreSQL */
/*
 * parked.c: messages that wait: what becomes of one that failed, storing it, and trying those whose turn has come. The
 * order of a key is the database's business (once.message_due gives only heads).
 */
#include "consumer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	WORK_MS = 200,         /* at a stretch: new messages get their turn too */
	LOOK_MS = 100,         /* between two looks for due ones */
	COUNT_EVERY_MS = 5000, /* others park and retry too */
	ACTIVE_WAIT_MS = 1000,
	ERROR_HEADER_BYTES = 800,
	DEAD_TOPIC_MS = 5000,
	TOGETHER_MAX = 100 /* in one transaction */
};
#define TOGETHER_BYTES_MAX ((size_t)4 * 1024 * 1024)

/* ---- the dead topic */

static once_bytes key_bytes(const message *message, arena *arena)
{
	if (message->delivery != NULL) {
		return message->delivery->key;
	}
	if (message->key == NULL) {
		return (once_bytes){0};
	}
	return (once_bytes){.data = arena_text(arena, message->key, strlen(message->key)), .length = strlen(message->key)};
}

/* A header's value may have no line's end. */
static const char *one_line(arena *arena, const char *text)
{
	char *line = arena_text(arena, text, strnlen(text, ERROR_HEADER_BYTES));

	for (char *at = line; *at != '\0'; at++) {
		*at = (unsigned char)*at < ' ' || *at == 0x7f ? ' ' : *at;
	}
	for (size_t length = strlen(line); !json_text_is_text(line, length); length--) {
		line[length - 1] = '\0';
	}
	return line;
}

static source_header header_of(const char *name, const char *value)
{
	return (source_header){.name = name, .value = {.data = value, .length = strlen(value)}};
}

/* A copy with what happened to it. True: the broker has it. */
static bool send_dead(consumer *consumer, const message *message, const parking *parking, char problem[256])
{
	arena *arena = &consumer->arena;
	size_t count = 0;
	source_header *theirs = message->delivery != NULL ? NULL : message_headers(message->headers, arena, &count);
	const source_header *from = message->delivery != NULL ? message->delivery->headers : theirs;

	count = message->delivery != NULL ? message->delivery->header_count : count;
	source_header *headers = arena_take(arena, (count + 1) * sizeof *headers);
	size_t used = 0;
	for (size_t i = 0; i < count; i++) {
		/* Its own id of deduplication would make the copy a duplicate of the message. */
		if (strcasecmp(from[i].name, "Nats-Msg-Id") != 0 && strncasecmp(from[i].name, "Pgonce-Dead-", 12) != 0) {
			headers[used++] = from[i];
		}
	}
	const source_header more[] = {
	    header_of("Pgonce-Dead-Id", message->id),
	    header_of("Pgonce-Dead-Consumer", consumer->service.name),
	    header_of("Pgonce-Dead-Topic", message->topic),
	    header_of("Pgonce-Dead-Error", one_line(arena, parking->error == NULL ? "" : parking->error)),
	    header_of("Pgonce-Dead-Sqlstate", parking->sqlstate == NULL ? "" : parking->sqlstate),
	    header_of("Pgonce-Dead-Attempts", arena_format(arena, "%d", parking->attempts)),
	};
	source_message copy = {.topic = message->topic,
	                       .key = key_bytes(message, arena),
	                       .payload = message->payload,
	                       .headers = headers,
	                       .header_count = used};
	return consumer->settings.class->publish(consumer->source, consumer->settings.dead_topic, &copy, more,
	                                         sizeof more / sizeof more[0], DEAD_TOPIC_MS, problem);
}

/* ---- what becomes of a message */

/* Dead, unless its copy cannot be sent: then it is tried again, so that the copy is not lost, and only its key waits. */
static parking die(consumer *consumer, message *message, parking parking)
{
	char problem[256] = "";
	char quoted[SERVICE_QUOTE_BYTES];

	parking.state = "dead";
	parking.wait_ms = 0;
	message->sent =
	    consumer->settings.dead_topic != NULL && (message->sent || send_dead(consumer, message, &parking, problem));
	if (consumer->settings.dead_topic != NULL && !message->sent) {
		parking.state = "retrying";
		/* For a message that no handler can have, this is what its attempts are: the waits grow. */
		parking.attempts = parking.attempts > message->attempts ? parking.attempts : message->attempts + 1;
		parking.wait_ms =
		    service_backoff_ms(parking.attempts, consumer->settings.retry_first_ms, consumer->settings.retry_most_ms);
		parking.error = arena_format(&consumer->arena, "%s (dead, but not yet sent to %s: %s)", parking.error,
		                             consumer->settings.dead_topic, problem);
		service_log(&consumer->service, SERVICE_WARNING, "dead_topic", "problem=%s", service_quote(problem, quoted));
	}
	service_log(&consumer->service, SERVICE_ERROR, parking.state, "message=%s sqlstate=%s attempts=%d",
	            service_quote(message->id, quoted), parking.sqlstate == NULL ? "none" : parking.sqlstate,
	            parking.attempts);
	return parking;
}

parking parked_after_failure(consumer *consumer, message *message, const failure *failure, bool counted,
                             int64_t at_least_ms)
{
	const settings *settings = &consumer->settings;
	int attempts = message->attempts + (counted ? 1 : 0);
	char quoted[SERVICE_QUOTE_BYTES];
	parking parking = {.message = message,
	                   .state = "retrying",
	                   .attempts = attempts,
	                   .error = arena_text(&consumer->arena, failure->text, strlen(failure->text)),
	                   .sqlstate = failure->sqlstate[0] == '\0'
	                                   ? NULL
	                                   : arena_text(&consumer->arena, failure->sqlstate, strlen(failure->sqlstate))};

	if (counted && attempts >= settings->attempts) {
		return die(consumer, message, parking);
	}
	parking.wait_ms =
	    service_backoff_ms(attempts > 0 ? attempts : 1, settings->retry_first_ms, settings->retry_most_ms);
	parking.wait_ms = parking.wait_ms > at_least_ms ? parking.wait_ms : at_least_ms;
	service_log(&consumer->service, SERVICE_WARNING, "retrying", "message=%s sqlstate=%s attempts=%d wait_ms=%lld",
	            service_quote(message->id, quoted), parking.sqlstate == NULL ? "none" : parking.sqlstate, attempts,
	            (long long)parking.wait_ms);
	return parking;
}

parking parked_dead(consumer *consumer, message *message, const char *sqlstate, const char *error)
{
	return die(consumer, message,
	           (parking){.message = message, .attempts = message->attempts, .error = error, .sqlstate = sqlstate});
}

parking parked_waiting(const message *message, int64_t wait_ms)
{
	return (parking){.message = message, .state = "waiting", .attempts = message->attempts, .wait_ms = wait_ms};
}

/* ---- storing and finding */

static void tally(consumer *consumer, const parking *parking)
{
	bool is_dead = strcmp(parking->state, "dead") == 0;

	consumer->tally.dead += is_dead;
	consumer->tally.retrying += strcmp(parking->state, "retrying") == 0;
	consumer->tally.waiting += strcmp(parking->state, "waiting") == 0;
	consumer->tally.mismatched +=
	    is_dead && parking->sqlstate != NULL && strcmp(parking->sqlstate, CODE_REUSED_ID) == 0;
}

bool parked_store(consumer *consumer, const parking *parkings, size_t count, failure *failure)
{
	static const parameter_type types[] = {PARAMETER_TEXT,   PARAMETER_TEXT,  PARAMETER_TEXT, PARAMETER_JSONB,
	                                       PARAMETER_BYTEA,  PARAMETER_BYTEA, PARAMETER_TEXT, PARAMETER_INTEGER,
	                                       PARAMETER_BIGINT, PARAMETER_TEXT,  PARAMETER_TEXT};
	enum {
		FIRST = 2
	};
	parameters given = {0};

	parameters_text(&given, consumer->service.name);
	parameters_text(&given, consumer->settings.tenant);
	for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
		parameters_array(&given, types[i]);
	}
	for (size_t i = 0; i < count; i++) {
		const message *message = parkings[i].message;
		int to = FIRST;
		parameters_add_text(&given, to++, message->id);
		parameters_add_text(&given, to++, message->topic);
		parameters_add_text(&given, to++, message->key);
		parameters_add_text(&given, to++, message->headers);
		parameters_add(&given, to++, message->payload.data, message->payload.length);
		parameters_add(&given, to++, message->fingerprint.bytes, ONCE_FINGERPRINT_BYTES);
		parameters_add_text(&given, to++, parkings[i].state);
		parameters_add_number(&given, to++, parkings[i].attempts);
		parameters_add_number(&given, to++, parkings[i].wait_ms);
		parameters_add_text(&given, to++, parkings[i].error);
		parameters_add_text(&given, to++, parkings[i].sqlstate);
	}
	if (!database_run(&consumer->database, SQL_PARK, &given, failure)) {
		return false;
	}
	for (size_t i = 0; i < count; i++) {
		tally(consumer, &parkings[i]);
	}
	if (!consumer->database.in_transaction) {
		consumer_count(consumer, 0, 0);
	}
	return true;
}

bool parked_count(consumer *consumer, failure *failure)
{
	parameters given = {0};

	parameters_text(&given, consumer->service.name);
	parameters_text(&given, consumer->settings.tenant);
	PGresult *result = database_query(&consumer->database, SQL_COUNT_PARKED, &given, failure);
	if (result == NULL) {
		return false;
	}
	consumer->parked = result_bigint(result, 0, 0);
	consumer->counted_at_ms = service_now_ms();
	PQclear(result);
	return true;
}

bool parked_due(consumer *consumer, int most, message **messages, size_t *count, failure *failure)
{
	arena *arena = &consumer->arena;
	parameters given = {0};

	parameters_text(&given, consumer->service.name);
	parameters_text(&given, consumer->settings.tenant);
	parameters_integer(&given, most);
	parameters_boolean(&given, consumer->settings.on_dead == ON_DEAD_SKIP);
	PGresult *result = database_query(&consumer->database, SQL_DUE, &given, failure);
	if (result == NULL) {
		return false;
	}
	*count = (size_t)PQntuples(result);
	*messages = arena_take(arena, (*count + 1) * sizeof **messages);
	for (size_t i = 0; i < *count; i++) {
		int row = (int)i;
		message *message = &(*messages)[i];
		*message = (struct message){.attempts = result_integer(result, row, 6)};
		message->id = arena_text(arena, PQgetvalue(result, row, 0), (size_t)PQgetlength(result, row, 0));
		message->topic = arena_text(arena, PQgetvalue(result, row, 1), (size_t)PQgetlength(result, row, 1));
		message->key = PQgetisnull(result, row, 2)
		                   ? NULL
		                   : arena_text(arena, PQgetvalue(result, row, 2), (size_t)PQgetlength(result, row, 2));
		message->headers = PQgetisnull(result, row, 3)
		                       ? "{}"
		                       : arena_text(arena, PQgetvalue(result, row, 3), (size_t)PQgetlength(result, row, 3));
		size_t header_count = 0;
		const source_header *headers = message_headers(message->headers, arena, &header_count);
		message->traceparent = message_trace(headers, header_count, arena);
		message->payload.length = (size_t)PQgetlength(result, row, 4);
		message->payload.data =
		    PQgetisnull(result, row, 4) ? NULL : arena_text(arena, PQgetvalue(result, row, 4), message->payload.length);
		message->json = json_text_check(message->payload);
		if (PQgetlength(result, row, 5) == ONCE_FINGERPRINT_BYTES) {
			memcpy(message->fingerprint.bytes, PQgetvalue(result, row, 5), ONCE_FINGERPRINT_BYTES);
		}
		if (strncmp(message->id, UNUSABLE_ID_PREFIX, strlen(UNUSABLE_ID_PREFIX)) == 0) {
			message->unusable =
			    "no handler can have this message (it has no id of its own): discard it, and have it sent anew";
			message->unusable_code = CODE_NO_ID;
		}
	}
	PQclear(result);
	return true;
}

bool parked_applied(consumer *consumer, const message *const *messages, size_t count, failure *failure)
{
	parameters given = {0};

	parameters_text(&given, consumer->service.name);
	parameters_text(&given, consumer->settings.tenant);
	int ids = parameters_array(&given, PARAMETER_TEXT);
	for (size_t i = 0; i < count; i++) {
		parameters_add_text(&given, ids, messages[i]->id);
	}
	return database_run(&consumer->database, SQL_APPLIED, &given, failure);
}

/* ---- trying them */

/* process[i]: it is to be applied; else it was before. What the inbox refuses is raised. */
static bool receive_parked(consumer *consumer, message *const *messages, size_t count, bool *process, failure *failure)
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
	for (int i = 0; i < PQntuples(result) && i < (int)count; i++) {
		process[i] = strcmp(PQgetvalue(result, i, 0), "process") == 0;
	}
	PQclear(result);
	return result != NULL;
}

/* All of them, in the transaction that is open, and COMMIT. *refused: what failed is the inbox, not the handler. */
static bool apply_parked(consumer *consumer, message *const *messages, size_t count, bool *refused, failure *failure)
{
	bool *process = arena_take(&consumer->arena, count * sizeof *process);
	message **handled = arena_take(&consumer->arena, count * sizeof(message *));
	size_t handled_count = 0;

	memset(process, 0, count * sizeof *process);
	*refused = !receive_parked(consumer, messages, count, process, failure);
	if (*refused) {
		return false;
	}
	for (size_t i = 0; i < count; i++) {
		if (process[i]) {
			handled[handled_count++] = messages[i];
		}
	}
	if ((handled_count > 0 && !apply_handle(consumer, handled, handled_count, failure)) ||
	    !parked_applied(consumer, (const message *const *)messages, count, failure) ||
	    !database_commit(&consumer->database, failure)) {
		return false;
	}
	consumer_count(consumer, handled_count, count - handled_count);
	consumer->parked = consumer->parked > (int64_t)count ? consumer->parked - (int64_t)count : 0;
	return true;
}

/*
 * After its transaction is rolled back: when it is to be tried again, in a transaction of its own. A handler may raise any SQLSTATE, so the
 * contract's codes mean something only where the inbox `refused`.
 */
static bool park_again(consumer *consumer, message *message, bool refused, failure *failure)
{
	parking parking;

	if (refused && strcmp(failure->sqlstate, "P4029") == 0) {
		parking = parked_waiting(message, ACTIVE_WAIT_MS);
	} else if (refused &&
	           (strcmp(failure->sqlstate, CODE_REUSED_ID) == 0 || strcmp(failure->sqlstate, CODE_EXPIRED) == 0)) {
		parking = parked_dead(consumer, message, failure->sqlstate, failure->text);
	} else {
		parking = parked_after_failure(consumer, message, failure, failure->kind != FAILURE_PASSING, 0);
	}
	return parked_store(consumer, &parking, 1, failure);
}

typedef enum turn {
	TURN_NONE, /* nothing is due */
	TURN_TAKEN,
	TURN_FAILED /* the server's trouble */
} turn;

/* One message in a transaction of its own. False: the server's trouble. */
static bool try_one(consumer *consumer, message *message, failure *failure)
{
	database *database = &consumer->database;
	struct message *const one = message;
	bool refused = false;

	if (message->unusable != NULL) {
		parking parking = parked_dead(consumer, message, message->unusable_code, message->unusable);
		return parked_store(consumer, &parking, 1, failure);
	}
	if (!consumer_ask(consumer, message, failure) || !database_begin(database, failure)) {
		return false;
	}
	bool applied = apply_parked(consumer, &one, 1, &refused, failure);
	if (!applied && failure->kind != FAILURE_CONNECTION && consumer_doubts(message, failure)) {
		struct failure first = *failure;
		database_rollback(database);
		if (!consumer_ask(consumer, message, failure)) {
			return false;
		}
		if (message->json == JSON_NO) {
			applied = database_begin(database, failure) && apply_parked(consumer, &one, 1, &refused, failure);
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

/* May they go together: is each one known to be fit for a handler, and are they small? */
static bool fit_together(message *messages, size_t count, message **list)
{
	size_t bytes = 0;

	for (size_t i = 0; i < count; i++) {
		bytes += messages[i].payload.length;
		if (messages[i].unusable != NULL || messages[i].json == JSON_UNSURE) {
			return false;
		}
		list[i] = &messages[i];
	}
	return bytes <= TOGETHER_BYTES_MAX;
}

/*
 * Those that are due are heads of their keys, so that none waits for another of them: together in one transaction, and only where that
 * fails each by itself.
 */
static turn take_turn(consumer *consumer, failure *failure)
{
	database *database = &consumer->database;
	message *messages = NULL;
	size_t count = 0;

	consumer->due_take = consumer->due_take == 0 ? 1 : consumer->due_take;
	if (!database_begin(database, failure) || !parked_due(consumer, consumer->due_take, &messages, &count, failure)) {
		return TURN_FAILED;
	}
	if (count == 0) {
		return database_commit(database, failure) ? TURN_NONE : TURN_FAILED;
	}
	message **list = arena_take(&consumer->arena, count * sizeof(message *));
	bool refused = false;
	bool together = fit_together(messages, count, list);
	if (together && apply_parked(consumer, list, count, &refused, failure)) {
		consumer->due_take = consumer->due_take < TOGETHER_MAX / 2 ? 2 * consumer->due_take : TOGETHER_MAX;
		return TURN_TAKEN;
	}
	database_rollback(database);
	if (together && failure->kind == FAILURE_CONNECTION) {
		return TURN_FAILED;
	}
	consumer->due_take = 1 + consumer->due_take / 4;
	for (size_t i = 0; i < count; i++) {
		if (!try_one(consumer, &messages[i], failure)) {
			return TURN_FAILED;
		}
		consumer_keep_alive(consumer);
		if (service_stopping()) {
			break;
		}
	}
	return TURN_TAKEN;
}

bool parked_work(consumer *consumer)
{
	int failures = 0;
	turn turn = TURN_TAKEN;

	if (consumer->counted_at_ms + COUNT_EVERY_MS > service_now_ms() &&
	    (consumer->parked == 0 || service_now_ms() < consumer->look_due_ms)) {
		return true;
	}
	for (int64_t started_ms = service_now_ms(); turn != TURN_NONE && service_now_ms() - started_ms < WORK_MS;) {
		failure failure = {0};
		if (!consumer_connected(consumer)) {
			return false;
		}
		int64_t asked_ms = service_now_ms();
		if (consumer->counted_at_ms + COUNT_EVERY_MS <= asked_ms && !parked_count(consumer, &failure)) {
			turn = TURN_FAILED;
		} else {
			turn = consumer->parked == 0 ? TURN_NONE : take_turn(consumer, &failure);
		}
		if (turn == TURN_FAILED) {
			database_rollback(&consumer->database);
			if (!consumer_pause(consumer, ++failures, &failure)) {
				return false;
			}
		}
		/* A look that is expensive, since many wait behind dead ones, is taken seldom. */
		int64_t took_ms = service_now_ms() - asked_ms;
		consumer->look_due_ms = turn == TURN_NONE ? service_now_ms() + LOOK_MS + 10 * took_ms : 0;
		consumer_keep_alive(consumer);
		arena_clear(&consumer->arena);
	}
	return !service_stopping();
}
