/* SPDX-License-Identifier: PostgreSQL */
/*
 * parked.c: messages that wait: what becomes of one that failed, storing it, and finding those
 * whose turn has come. The order of a key is the database's business (once.message_due gives them
 * in it). Called by all that applies messages.
 */
#include "parked.h"

#include <assert.h>
#include <string.h>

#include "line.h"

enum {
	LOOK_MS = 100, /* between two looks for due ones */
	ERROR_HEADER_BYTES = 800,
	DEAD_TOPIC_MS = 5000
};

static const char *const state_names[] = {
    [PARKED_WAITING] = "waiting", [PARKED_RETRYING] = "retrying", [PARKED_DEAD] = "dead"};

/* ---- the dead topic */

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

static once_bytes bytes_of(const char *text)
{
	return (once_bytes){.data = text, .length = strlen(text)};
}

/* A copy with what happened to it. True: the broker has it. */
static bool send_dead(consumer *consumer, const message *message, const parking *parking, char problem[256])
{
	arena *arena = &consumer->arena;
	const source_message parked = {.key = message->key == NULL ? (once_bytes){0} : bytes_of(message->key)};
	source_message copy = message->delivery == NULL ? parked : *message->delivery;

	if (message->delivery == NULL) {
		copy.headers = message_headers(message->headers, arena, &copy.header_count);
	}
	source_header *headers = arena_take(arena, copy.header_count * sizeof *headers);
	size_t used = 0;
	for (size_t i = 0; i < copy.header_count; i++) {
		/* Its own id of deduplication would make the copy a duplicate of the message. */
		const char *name = copy.headers[i].name;
		if (strcasecmp(name, "Nats-Msg-Id") != 0 && strncasecmp(name, "Pgonce-Dead-", 12) != 0) {
			headers[used++] = copy.headers[i];
		}
	}
	const source_header more[] = {
	    {"Pgonce-Dead-Id", bytes_of(message->id)},
	    {"Pgonce-Dead-Consumer", bytes_of(consumer->service.name)},
	    {"Pgonce-Dead-Topic", bytes_of(message->topic)},
	    {"Pgonce-Dead-Error", bytes_of(one_line(arena, parking->error == NULL ? "" : parking->error))},
	    {"Pgonce-Dead-Sqlstate", bytes_of(parking->sqlstate == NULL ? "" : parking->sqlstate)},
	    {"Pgonce-Dead-Attempts", bytes_of(arena_format(arena, "%d", parking->attempts))},
	};
	copy.topic = message->topic;
	copy.payload = message->payload;
	copy.headers = headers;
	copy.header_count = used;
	return consumer->settings.class->publish(consumer->source, consumer->settings.dead_topic, &copy, more,
	                                         sizeof more / sizeof more[0], DEAD_TOPIC_MS, problem);
}

/* ---- what becomes of a message */

/* Dead, unless its copy cannot be sent: then it is tried again, and only its key waits. */
static parking die(consumer *consumer, message *message, parking parking)
{
	char problem[256] = "";
	char quoted[SERVICE_QUOTE_BYTES];

	parking.state = PARKED_DEAD;
	parking.wait_ms = 0;
	message->sent =
	    consumer->settings.dead_topic != NULL && (message->sent || send_dead(consumer, message, &parking, problem));
	if (consumer->settings.dead_topic != NULL && !message->sent) {
		parking.state = PARKED_RETRYING;
		/* For a message that no handler can have, this is what its attempts are: the waits grow. */
		parking.attempts = parking.attempts > message->attempts ? parking.attempts : message->attempts + 1;
		parking.wait_ms =
		    service_backoff_ms(parking.attempts, consumer->settings.retry_first_ms, consumer->settings.retry_most_ms);
		parking.error = arena_format(&consumer->arena, "%s (dead, but not yet sent to %s: %s)", parking.error,
		                             consumer->settings.dead_topic, problem);
		service_log(&consumer->service, SERVICE_WARNING, "dead_topic", "problem=%s", service_quote(problem, quoted));
	}
	service_log(&consumer->service, SERVICE_ERROR, state_names[parking.state], "message=%s sqlstate=%s attempts=%d",
	            service_quote(message->id, quoted), parking.sqlstate == NULL ? "none" : parking.sqlstate,
	            parking.attempts);
	return parking;
}

parking park_failed(consumer *consumer, message *message, const failure *failure, bool counted, int64_t at_least_ms)
{
	const settings *settings = &consumer->settings;
	int attempts = message->attempts + (counted ? 1 : 0);
	char quoted[SERVICE_QUOTE_BYTES];
	parking parking = {.message = message,
	                   .state = PARKED_RETRYING,
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

parking park_dead(consumer *consumer, message *message, const char *sqlstate, const char *error)
{
	return die(consumer, message,
	           (parking){.message = message, .attempts = message->attempts, .error = error, .sqlstate = sqlstate});
}

parking park_waiting(const message *message, int64_t wait_ms)
{
	return (parking){.message = message, .state = PARKED_WAITING, .attempts = message->attempts, .wait_ms = wait_ms};
}

/* ---- storing and finding */

static void count_parking(tally *open, const parking *parking)
{
	open->parked[parking->state]++;
	open->mismatched +=
	    parking->state == PARKED_DEAD && parking->sqlstate != NULL && strcmp(parking->sqlstate, CODE_REUSED_ID) == 0;
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

	assert(count > 0);
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
		parameters_add_text(&given, to++, message->line);
		parameters_add_text(&given, to++, message->headers);
		parameters_add(&given, to++, message->payload.data, message->payload.length);
		parameters_add(&given, to++, message->fingerprint.bytes, ONCE_FINGERPRINT_BYTES);
		parameters_add_text(&given, to++, state_names[parkings[i].state]);
		parameters_add_number(&given, to++, parkings[i].attempts);
		parameters_add_number(&given, to++, parkings[i].wait_ms);
		parameters_add_text(&given, to++, parkings[i].error);
		parameters_add_text(&given, to++, parkings[i].sqlstate);
	}
	if (!database_run(&consumer->database, SQL_PARK, &given, failure)) {
		return false;
	}
	for (size_t i = 0; i < count; i++) {
		count_parking(&consumer->counts.open, &parkings[i]);
	}
	if (!consumer->database.in_transaction) {
		counts_commit(&consumer->counts);
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

bool parked_is_due(const consumer *consumer)
{
	return consumer->parked > 0 && service_now_ms() >= consumer->look_due_ms;
}

bool parked_goes_on(const consumer *consumer)
{
	return consumer->parked > 0 && consumer->look_due_ms == 0;
}

bool parked_look(consumer *consumer, int most, bool lines, PGresult **due, failure *failure)
{
	parameters given = {0};
	int64_t asked_ms = service_now_ms();

	parameters_text(&given, consumer->service.name);
	parameters_text(&given, consumer->settings.tenant);
	parameters_integer(&given, most);
	parameters_boolean(&given, consumer->settings.on_dead == ON_DEAD_SKIP);
	parameters_boolean(&given, lines);
	*due = database_query(&consumer->database, SQL_DUE, &given, failure);
	/* A look that is expensive, since many wait behind dead ones, is taken seldom. */
	int64_t now_ms = service_now_ms();
	consumer->look_due_ms = now_ms + LOOK_MS + 10 * (now_ms - asked_ms);
	return *due != NULL;
}

static char *text_of(const PGresult *due, int row, int column, arena *arena)
{
	return PQgetisnull(due, row, column)
	           ? NULL
	           : arena_text(arena, PQgetvalue(due, row, column), (size_t)PQgetlength(due, row, column));
}

void parked_read(const PGresult *due, int row, const origin *key, arena *arena, message *message)
{
	size_t header_count = 0;

	*message =
	    (struct message){.id = text_of(due, row, 0, arena),
	                     .topic = text_of(due, row, 1, arena),
	                     .line = text_of(due, row, 2, arena),
	                     .headers = PQgetisnull(due, row, 3) ? "{}" : text_of(due, row, 3, arena),
	                     .payload = {.data = text_of(due, row, 4, arena), .length = (size_t)PQgetlength(due, row, 4)},
	                     .attempts = result_integer(due, row, 6)};
	const source_header *headers = message_headers(message->headers, arena, &header_count);
	message->key = key->kind == ORIGIN_KEY ? line_key(headers, header_count, message->line, arena) : message->line;
	message->traceparent = message_trace(headers, header_count, arena);
	message->json = json_text_check(message->payload);
	if (PQgetlength(due, row, 5) == ONCE_FINGERPRINT_BYTES) {
		memcpy(message->fingerprint.bytes, PQgetvalue(due, row, 5), ONCE_FINGERPRINT_BYTES);
	}
	if (strncmp(message->id, UNUSABLE_ID_PREFIX, strlen(UNUSABLE_ID_PREFIX)) == 0) {
		message->unusable =
		    "no handler can have this message (it has no id of its own): discard it, and have it sent anew";
		message->unusable_code = CODE_NO_ID;
	}
}

bool parked_remove(consumer *consumer, const message *const *messages, size_t count, failure *failure)
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
