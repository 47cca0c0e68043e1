/* SPDX-License-Identifier: PostgreSQL */
/*
 * envelope.h: what is sent for an event: its headers and body. The names of the headers are a
 * stable format (docs/events.md): "plain", or CloudEvents 1.0 in the binary mode of the transport's
 * binding.
 */
#pragma once

#include "event.h"

typedef enum envelope_form {
	ENVELOPE_PLAIN,
	ENVELOPE_CLOUDEVENTS
} envelope_form;

typedef struct envelope {
	const char *sink; /* its name */
	envelope_form form;
	const char *prefix; /* of CloudEvents' names: "ce-", "ce_", "cloudEvents:" */
	/* values go where only printable ASCII may stand (HTTP; NATS, whose binding says the same) */
	bool is_http_like;
	const char *source; /* CloudEvents' source */
} envelope;

/* By the sink's name ("kafka"). Both texts are borrowed. */
envelope envelope_for(const char *sink, envelope_form form, const char *source);
/* Fills event->message but for its destination, in the event's memory. */
void envelope_fill(const envelope *envelope, event *event);
