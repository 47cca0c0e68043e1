/* SPDX-License-Identifier: PostgreSQL */
/*
 * envelope.h: an event as a message: its headers and body. The names of the headers are a
 * stable format (docs/reference/events.md): "plain", or CloudEvents 1.0 in the binary mode of the
 * transport's binding.
 */
#pragma once

#include "event.h"

typedef enum envelope_form {
	ENVELOPE_PLAIN,
	ENVELOPE_CLOUDEVENTS
} envelope_form;

/* A message's key. Kafka chooses the partition by it, and compacts by it. */
typedef enum envelope_key {
	ENVELOPE_KEY_AGGREGATE, /* the aggregate's id */
	ENVELOPE_KEY_TENANT,
	ENVELOPE_KEY_EVENT, /* the event's id */
	ENVELOPE_KEY_HEADER,
	ENVELOPE_KEY_NONE
} envelope_key;

typedef struct envelope {
	const char *sink; /* its name */
	envelope_form form;
	const char *prefix; /* of CloudEvents' names: "ce-", "ce_", "cloudEvents:" */
	/* values may only be printable ASCII (HTTP, and NATS, whose binding requires the same) */
	bool is_http_like;
	const char *source; /* CloudEvents' source */
	envelope_key key;
	const char *key_header; /* a header of the event, for ENVELOPE_KEY_HEADER */
} envelope;

/* By the sink's name ("kafka"). Both texts are borrowed. The key is the aggregate's id. */
envelope envelope_for(const char *sink, envelope_form form, const char *source);
/* "aggregate", "tenant", "event", "header:NAME", "none"; `text` is borrowed. False: another one. */
bool envelope_read_key(const char *text, envelope_key *key, const char **header);
/* Fills event->message, except its destination, in the event's memory. */
void envelope_fill(const envelope *envelope, event *event);
