/* SPDX-License-Identifier: PostgreSQL */
/*
 * dead_topic.c: see dead_topic.h. A message is dead only once its copy is sent, and the copy is
 * sent only once it is stored that the message's attempts are used up. If the process dies in
 * between, the copy is sent after the message's next turn. Called by everything that applies
 * messages.
 */
#include "dead_topic.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "parked.h"
#include "utf8.h"

enum {
	ERROR_HEADER_BYTES = 800,
	SEND_MS = 5000, /* for all dead messages together */
	SEND_LEAST_MS = 1000,
	/* After a send as slow as this, the broker is not accepting: it gets a pause. */
	SLOW_MS = 1000,
	AWAY_FIRST_MS = 5000,
	AWAY_MOST_MS = 60000
};

/* A header's value may contain no line end. */
static const char *one_line(arena *arena, const char *text)
{
	char *line = arena_text(arena, text, strnlen(text, ERROR_HEADER_BYTES));

	for (char *at = line; *at != '\0'; at++) {
		*at = (unsigned char)*at < ' ' || *at == 0x7f ? ' ' : *at;
	}
	for (size_t length = strlen(line); !utf8_is_text(line, length); length--) {
		line[length - 1] = '\0';
	}
	return line;
}

static once_bytes bytes_of(const char *text)
{
	return (once_bytes){.data = text, .length = strlen(text)};
}

/* Sends a copy with the error's details. True: the broker has it. */
static bool send_copy(consumer *consumer, const parking *dead, int timeout_ms, char problem[256])
{
	arena *arena = &consumer->arena;
	const message *message = dead->message;
	const source_message parked = {.key = message->key == NULL ? (once_bytes){0} : bytes_of(message->key)};
	source_message copy = message->delivery == NULL ? parked : *message->delivery;

	if (message->delivery == NULL) {
		copy.headers = message_headers(message->headers, arena, &copy.header_count);
	}
	source_header *headers = arena_take(arena, (copy.header_count + 1) * sizeof *headers);
	size_t used = 0;
	for (size_t i = 0; i < copy.header_count; i++) {
		/* The message's deduplication id would make the copy a duplicate of the message. */
		const char *name = copy.headers[i].name;
		if (strcasecmp(name, "Nats-Msg-Id") != 0 && strncasecmp(name, "Pgonce-Dead-", 12) != 0) {
			headers[used++] = copy.headers[i];
		}
	}
	const source_header more[] = {
	    {"Pgonce-Dead-Id", bytes_of(message->id)},
	    {"Pgonce-Dead-Consumer", bytes_of(consumer->speaker.name)},
	    {"Pgonce-Dead-Topic", bytes_of(message->topic)},
	    {"Pgonce-Dead-Error", bytes_of(one_line(arena, dead->error == NULL ? "" : dead->error))},
	    {"Pgonce-Dead-Sqlstate", bytes_of(dead->sqlstate == NULL ? "" : dead->sqlstate)},
	    {"Pgonce-Dead-Attempts", bytes_of(arena_format(arena, "%d", dead->attempts))},
	};
	copy.topic = message->topic;
	copy.payload = message->payload;
	copy.headers = headers;
	copy.header_count = used;
	return consumer->settings.class->publish(consumer->source, consumer->settings.dead_topic, &copy, more,
	                                         sizeof more / sizeof more[0], timeout_ms, problem);
}

/* Leases must be renewed meanwhile. */
static int64_t patience_ms(const settings *settings)
{
	int64_t lease_ms = settings->lease_ms / 3 > SEND_LEAST_MS ? settings->lease_ms / 3 : SEND_LEAST_MS;

	return settings->endpoint != NULL && lease_ms < SEND_MS ? lease_ms : SEND_MS;
}

/* An immediate refusal costs nothing: only a broker that refuses slowly gets a pause. */
static void note_result(consumer *consumer, bool sent, int64_t took_ms)
{
	graves *graves = &consumer->graves;

	if (sent) {
		graves->failures = 0;
	} else if (took_ms >= SLOW_MS) {
		graves->failures++;
		graves->from_ms = runtime_now_ms() + runtime_backoff_ms(graves->failures, AWAY_FIRST_MS, AWAY_MOST_MS);
	}
}

/* Moves the sent ones to the front; returns their number. *tried: false if it was not yet time to
 * send any. */
static size_t send_copies(consumer *consumer, parking *unsent, size_t count, bool *tried)
{
	graves *graves = &consumer->graves;
	int64_t until_ms = runtime_now_ms() + patience_ms(&consumer->settings);
	int64_t left_ms = until_ms - runtime_now_ms();
	size_t sent_count = 0;

	for (size_t i = 0; i < count && left_ms > 0 && runtime_now_ms() >= graves->from_ms && !runtime_stopping(); i++) {
		const parking dead = parked_dead_of(&unsent[i]);
		char problem[256] = "";
		int64_t started_ms = runtime_now_ms();
		bool sent = send_copy(consumer, &dead, (int)left_ms, problem);
		*tried = true;
		note_result(consumer, sent, runtime_now_ms() - started_ms);
		if (sent) {
			unsent[i] = unsent[sent_count];
			unsent[sent_count++] = dead;
		} else {
			snprintf(graves->problem, sizeof graves->problem, "%s", problem);
		}
		left_ms = until_ms - runtime_now_ms();
	}
	return sent_count;
}

bool dead_topic_send(consumer *consumer, failure *failure)
{
	parking *parkings = consumer->graves.unsent;
	size_t count = consumer->graves.count;
	char quoted[RUNTIME_QUOTE_BYTES];
	bool tried = false;

	assert(!consumer->database.in_transaction);
	consumer->graves.count = 0;
	size_t sent_count = send_copies(consumer, parkings, count, &tried);
	for (size_t i = 0; i < count; i++) {
		if (i >= sent_count) {
			parkings[i] = parked_unsent(consumer, &parkings[i]);
		}
		parked_log(consumer, &parkings[i]);
	}
	if (!tried) {
		return true; /* already stored as unsent */
	}
	if (sent_count < count) {
		metric_count(consumer->counts.dead_unsent, count - sent_count);
		runtime_log(&consumer->speaker, RUNTIME_WARNING, "dead_topic", "problem=%s unsent=%zu",
		            runtime_quote(consumer->graves.problem, quoted), count - sent_count);
	}
	if (!parked_store(consumer, parkings, count, failure)) {
		return false;
	}
	consumer->graves.count = 0; /* the unsent ones wait for their turn */
	if (consumer->settings.on_dead == ON_DEAD_SKIP) {
		consumer->look_due_ms = 0; /* messages that waited behind them are due */
	}
	return true;
}
