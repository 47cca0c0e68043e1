/* SPDX-License-Identifier: PostgreSQL */
/*
 * parked.c: parked messages: what happens to a failed message, storing it, and finding those that
 * are due. The database keeps the order of a key (once_job.message_due returns them in it). Called
 * by everything that applies messages.
 */
#include "parked.h"

#include <assert.h>
#include <string.h>
#include <strings.h>

#include "line.h"

enum {
	LOOK_MS = 100 /* between two looks for due ones */
};

static const char *const state_names[] = {
    [PARKED_WAITING] = "waiting", [PARKED_RETRYING] = "retrying", [PARKED_DEAD] = "dead"};

/* ---- what happens to a message */

void parked_log(const consumer *consumer, const parking *parking)
{
	char quoted[RUNTIME_QUOTE_BYTES];

	runtime_log(&consumer->speaker, RUNTIME_ERROR, state_names[parking->state], "message=%s sqlstate=%s attempts=%d",
	            runtime_quote(parking->message->id, quoted), parking->sqlstate == NULL ? "none" : parking->sqlstate,
	            parking->attempts);
}

static void log_retry(const consumer *consumer, const parking *parking)
{
	char quoted[RUNTIME_QUOTE_BYTES];

	runtime_log(&consumer->speaker, RUNTIME_WARNING, "retrying", "message=%s sqlstate=%s attempts=%d wait_ms=%lld",
	            runtime_quote(parking->message->id, quoted), parking->sqlstate == NULL ? "none" : parking->sqlstate,
	            parking->attempts, (long long)parking->wait_ms);
}

void parked_came_again(const consumer *consumer, const message *message)
{
	char quoted[RUNTIME_QUOTE_BYTES];

	for (size_t i = 0; i < message->delivery->header_count; i++) {
		if (strcasecmp(message->delivery->headers[i].name, "Pgonce-Dead-Id") == 0) {
			runtime_log(&consumer->speaker, RUNTIME_WARNING, "returned",
			            "message=%s hint=\"a copy of a dead message was sent back and changes nothing: the message "
			            "is still parked; pgonce parked retry applies it\"",
			            runtime_quote(message->id, quoted));
			return;
		}
	}
}

parking parked_dead_of(const parking *unsent)
{
	parking dead = *unsent;

	dead.state = PARKED_DEAD;
	dead.wait_ms = 0;
	dead.attempts = unsent->dead_attempts;
	dead.error = unsent->dead_error;
	dead.dead_error = NULL;
	return dead;
}

/* Until the next try. */
static int64_t wait_ms(const consumer *consumer, int attempts, int64_t at_least_ms)
{
	const settings *settings = &consumer->settings;
	int64_t backoff_ms =
	    runtime_backoff_ms(attempts > 0 ? attempts : 1, settings->retry_first_ms, settings->retry_most_ms);

	return backoff_ms > at_least_ms ? backoff_ms : at_least_ms;
}

/* Until copies may be sent again. */
static int64_t away_ms(const consumer *consumer)
{
	return consumer->graves.from_ms - runtime_now_ms();
}

static const char *unsent_error(const consumer *consumer, const char *dead_error, arena *arena)
{
	const char *problem = consumer->graves.problem;

	return arena_format(arena, "%s (dead, but not yet sent to %s%s%s)", dead_error, consumer->settings.dead_topic,
	                    problem[0] == '\0' ? "" : ": ", problem);
}

parking parked_unsent(consumer *consumer, const parking *dying)
{
	parking unsent = *dying;

	unsent.wait_ms = wait_ms(consumer, dying->attempts, away_ms(consumer));
	unsent.error = unsent_error(consumer, dying->dead_error, &consumer->arena);
	return unsent;
}

parking parked_decide(consumer *consumer, parking wanted, arena *arena)
{
	const int attempts = wanted.message->attempts + (wanted.counted ? 1 : 0);
	const bool dies = wanted.state == PARKED_DEAD || (wanted.counted && attempts >= consumer->settings.attempts);
	/* Dead only once its copy is sent: until then only its key waits. */
	const bool needs_copy = dies && consumer->settings.dead_topic != NULL;
	parking decided = wanted;

	decided.attempts = attempts;
	if (wanted.state == PARKED_WAITING) {
		return decided;
	}
	decided.state = dies && !needs_copy ? PARKED_DEAD : PARKED_RETRYING;
	/* A message that no handler can have counts attempts to send its copy: the waits grow. */
	decided.attempts = needs_copy && !wanted.counted ? attempts + 1 : attempts;
	decided.wait_ms = decided.state == PARKED_DEAD
	                      ? 0
	                      : wait_ms(consumer, decided.attempts, needs_copy ? away_ms(consumer) : wanted.wait_ms);
	decided.sqlstate = wanted.sqlstate == NULL || wanted.sqlstate[0] == '\0' ? NULL : wanted.sqlstate;
	if (!dies) {
		log_retry(consumer, &decided);
	} else if (!needs_copy) {
		parked_log(consumer, &decided);
	}
	decided.error = arena_text(arena, wanted.error, strlen(wanted.error));
	if (decided.sqlstate != NULL) {
		decided.sqlstate = arena_text(arena, decided.sqlstate, strlen(decided.sqlstate));
	}
	if (needs_copy) {
		decided.dead_attempts = attempts;
		decided.dead_error = decided.error;
		decided.error = unsent_error(consumer, decided.dead_error, arena);
	}
	return decided;
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
	parameters_text(&given, consumer->speaker.name);
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
		if (parkings[i].dead_error != NULL) {
			assert(consumer->graves.count < consumer->graves.room);
			consumer->graves.unsent[consumer->graves.count++] = parkings[i];
		}
	}
	if (!consumer->database.in_transaction) {
		counts_commit(&consumer->counts);
	}
	return true;
}

bool parked_park(consumer *consumer, parking *parkings, size_t count, failure *failure)
{
	for (size_t i = 0; i < count; i++) {
		parkings[i] = parked_decide(consumer, parkings[i], &consumer->arena);
	}
	return parked_store(consumer, parkings, count, failure);
}

bool parked_count(consumer *consumer, failure *failure)
{
	parameters given = {0};

	parameters_text(&given, consumer->speaker.name);
	parameters_text(&given, consumer->settings.tenant);
	PGresult *result = database_query(&consumer->database, SQL_COUNT_PARKED, &given, failure);
	if (result == NULL) {
		return false;
	}
	consumer->parked = result_bigint(result, 0, 0);
	consumer->counted_at_ms = runtime_now_ms();
	PQclear(result);
	return true;
}

bool parked_is_due(const consumer *consumer)
{
	return consumer->parked > 0 && runtime_now_ms() >= consumer->look_due_ms;
}

bool parked_goes_on(const consumer *consumer)
{
	return consumer->parked > 0 && consumer->look_due_ms == 0;
}

bool parked_look(consumer *consumer, int most, bool lines, PGresult **due, failure *failure)
{
	parameters given = {0};
	int64_t asked_ms = runtime_now_ms();

	parameters_text(&given, consumer->speaker.name);
	parameters_text(&given, consumer->settings.tenant);
	parameters_integer(&given, most);
	parameters_boolean(&given, consumer->settings.on_dead == ON_DEAD_SKIP);
	parameters_boolean(&given, lines);
	parameters_bigint(&given, SOURCE_RECALLED_SHARE(consumer->settings.memory));
	*due = database_query(&consumer->database, SQL_DUE, &given, failure);
	/* A look is expensive if many wait behind dead ones; expensive looks are rare. */
	int64_t now_ms = runtime_now_ms();
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
		    "no handler can have this message (it came without an id, or damaged): discard it, and have it sent again";
		message->unusable_code = CODE_NO_ID;
	}
}

bool parked_remove(consumer *consumer, const message *const *messages, size_t count, failure *failure)
{
	parameters given = {0};

	parameters_text(&given, consumer->speaker.name);
	parameters_text(&given, consumer->settings.tenant);
	int ids = parameters_array(&given, PARAMETER_TEXT);
	for (size_t i = 0; i < count; i++) {
		parameters_add_text(&given, ids, messages[i]->id);
	}
	return database_run(&consumer->database, SQL_APPLIED, &given, failure);
}
