/* SPDX-License-Identifier: PostgreSQL */
/*
 * dead_letter.c: see dead_letter.h. The headers have the same names and meanings as those of a
 * consumer's dead_topic. The outbox keeps the payload while the event is parked, so a copy without
 * it loses nothing.
 */
#include "dead_letter.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
	ERROR_HEADER_BYTES = 800,
	NUMBER_BYTES = 24,
	COPY_ID_BYTES = 70,
	DEAD_HEADERS_MAX = 7,
	SMALL_PAYLOAD_BYTES = 1024
};

static const char empty_payload[] = "null";

/* A text from a sink may be in any encoding, and a header's value has no line ends. */
static const char *plain(event *event, const char *text)
{
	size_t length = strnlen(text, ERROR_HEADER_BYTES);
	char *copy = event_get(event, length + 1);

	for (size_t i = 0; i < length; i++) {
		unsigned char c = (unsigned char)text[i];
		copy[i] = c > '~' ? '?' : c < ' ' ? ' ' : (char)c;
	}
	copy[length] = '\0';
	return copy;
}

static const char *number(event *event, long long value)
{
	char *text = event_get(event, NUMBER_BYTES);

	snprintf(text, NUMBER_BYTES, "%lld", value);
	return text;
}

/* Without the user and password of a URL: they are secret. */
static const char *shown(event *event, const char *destination)
{
	const char *host = strstr(destination, "://");
	size_t length = host == NULL ? 0 : strcspn(host + 3, "/?#");
	const char *at = host == NULL ? NULL : memrchr(host + 3, '@', length);

	if (at == NULL) {
		return plain(event, destination);
	}
	size_t bytes = strlen(destination) + 1;
	char *text = event_get(event, bytes);
	snprintf(text, bytes, "%.*s%s", (int)(host + 3 - destination), destination, at + 1);
	return plain(event, text);
}

/* An id for each death: a broker that drops repeats would drop the copy of a second one. */
static const char *copy_id(event *event)
{
	char *text = event_get(event, COPY_ID_BYTES);
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	snprintf(text, COPY_ID_BYTES, "%s-dead-%lld", event->event_id,
	         (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000);
	return text;
}

/* More headers: there is room for them (dead_letter_write). */
static void add(sink_header *headers, size_t *count, const char *name, const char *value)
{
	headers[(*count)++] = (sink_header){.name = name, .value = value};
}

void dead_letter_write(const relay_settings *settings, event *event, const char *error)
{
	sink_message *message = &event->message;
	size_t count = message->header_count;
	sink_header *headers = event_get(event, (count + DEAD_HEADERS_MAX) * sizeof *headers);

	assert(settings->dead_topic != NULL && event->death == NULL);
	if (count > 0) {
		memcpy(headers, message->headers, count * sizeof *headers);
	}
	event->death = event_copy(event, error, strlen(error));
	add(headers, &count, "Pgonce-Dead-Id", event->event_id);
	add(headers, &count, "Pgonce-Dead-Relay", plain(event, settings->name));
	add(headers, &count, "Pgonce-Dead-Topic", plain(event, event->topic));
	if (message->destination != NULL) { /* NULL: no route matches */
		add(headers, &count, "Pgonce-Dead-Destination", shown(event, message->destination));
	}
	add(headers, &count, "Pgonce-Dead-Error", plain(event, error));
	add(headers, &count, "Pgonce-Dead-Attempts", number(event, event->attempts));
	message->is_dead_copy = true;
	message->event_id = copy_id(event);
	message->headers = headers;
	message->header_count = count;
	message->destination = route_destination(&settings->dead_route, event);
	message->route = settings->dead_topic;
}

bool dead_letter_strip(event *event)
{
	sink_message *message = &event->message;

	if (event->payload.length <= SMALL_PAYLOAD_BYTES || message->body.data == empty_payload) {
		return false;
	}
	/* The event's own array, in which dead_letter_write has left one place. */
	add((sink_header *)(uintptr_t)message->headers, &message->header_count, "Pgonce-Dead-Payload-Bytes",
	    number(event, (long long)event->payload.length));
	message->body = (once_bytes){.data = empty_payload, .length = strlen(empty_payload)};
	message->content_type = "application/json";
	message->is_bytes = false;
	return true;
}

const char *dead_letter_unsent(event *event, const char *problem)
{
	/* Its name is not shown: a URL may hold a secret. */
	static const char form[] = "%s (dead, but not yet sent to dead_topic: %s)";
	size_t bytes = sizeof form + strlen(event->death) + strlen(problem);
	char *text = event_get(event, bytes);

	snprintf(text, bytes, form, event->death, problem);
	return text;
}
