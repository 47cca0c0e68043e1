/* SPDX-License-Identifier: PostgreSQL */
/*
 * envelope.c: see envelope.h. Sources: the CloudEvents 1.0.2 specification with its bindings for
 * HTTP (percent-encoding of values: section 3.1.3.2), Kafka, NATS and AMQP, and its extensions
 * "Partitioning" and "Distributed Tracing".
 */
#include "envelope.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "broker.h"

enum {
	OWN_HEADERS_MAX = 11, /* of either form */
	TIME_BYTES = 96
};

/* A prefix for an event's own header that would steer the broker. */
#define STEERING_PREFIX "Event-"

static const char json_type[] = "application/json";

envelope envelope_for(const char *sink, envelope_form form, const char *source)
{
	const char *prefix = strcmp(sink, "kafka") == 0 ? "ce_" : strcmp(sink, "rabbitmq") == 0 ? "cloudEvents:" : "ce-";
	bool is_http_like = strcmp(sink, "webhook") == 0 || strcmp(sink, "nats") == 0;

	return (envelope){.sink = sink, .form = form, .prefix = prefix, .is_http_like = is_http_like, .source = source};
}

bool envelope_read_key(const char *text, envelope_key *key, const char **header)
{
	static const char *const names[] = {[ENVELOPE_KEY_AGGREGATE] = "aggregate",
	                                    [ENVELOPE_KEY_TENANT] = "tenant",
	                                    [ENVELOPE_KEY_EVENT] = "event",
	                                    [ENVELOPE_KEY_HEADER] = "header:",
	                                    [ENVELOPE_KEY_NONE] = "none"};
	const size_t prefix = strlen(names[ENVELOPE_KEY_HEADER]);

	for (envelope_key each = ENVELOPE_KEY_AGGREGATE; each <= ENVELOPE_KEY_NONE; each++) {
		if (each != ENVELOPE_KEY_HEADER && strcmp(text, names[each]) == 0) {
			*key = each;
			*header = NULL;
			return true;
		}
	}
	*key = ENVELOPE_KEY_HEADER;
	*header = text + prefix;
	return strncmp(text, names[ENVELOPE_KEY_HEADER], prefix) == 0 && text[prefix] != '\0';
}

/* NULL: none. */
static const char *key_of(const envelope *envelope, const event *event)
{
	switch (envelope->key) {
	case ENVELOPE_KEY_AGGREGATE:
		return event->aggregate_id;
	case ENVELOPE_KEY_TENANT:
		return event->tenant[0] == '\0' ? NULL : event->tenant;
	case ENVELOPE_KEY_EVENT:
		return event->event_id;
	case ENVELOPE_KEY_HEADER:
		for (size_t i = 0; i < event->header_count; i++) {
			if (strcasecmp(event->headers[i].name, envelope->key_header) == 0) {
				return event->headers[i].value;
			}
		}
		break;
	case ENVELOPE_KEY_NONE:
		break;
	}
	return NULL;
}

/* ---- texts that are safe in a header */

typedef bool needs_encoding(unsigned char c);

/* No control characters in a header: a line end would forge another header. */
static bool is_control(unsigned char c)
{
	return c < ' ' || c == 0x7f;
}

/* HTTP binding, section 3.1.3.2. */
static bool is_outside_http(unsigned char c)
{
	return c <= ' ' || c >= 0x7f || c == '"' || c == '%';
}

/* RFC 9110, section 5.6.2: a header's name is a token. */
static bool is_outside_token(unsigned char c)
{
	return c <= ' ' || c >= 0x7f || strchr("\"(),/:;<=>?@[\\]{}", c) != NULL;
}

/*
 * The text itself if nothing must be encoded, as usual; else an encoded copy in the event's
 * memory.
 */
static const char *encoded(event *event, const char *text, needs_encoding *needs)
{
	size_t length = 0;
	size_t count = 0;

	for (; text[length] != '\0'; length++) {
		count += needs((unsigned char)text[length]);
	}
	if (count == 0) {
		return text;
	}
	char *copy = event_get(event, length + 2 * count + 1);
	char *to = copy;
	for (const char *from = text; *from != '\0'; from++) {
		if (needs((unsigned char)*from)) {
			to += snprintf(to, 4, "%%%02X", (unsigned char)*from);
		} else {
			*to++ = *from;
		}
	}
	*to = '\0';
	return copy;
}

/* ---- the event's time: RFC 3339, UTC, microseconds */

static const char *time_text(event *event)
{
	int64_t seconds = event->created_us / 1000000;
	int64_t micros = event->created_us % 1000000;
	struct tm utc;
	char *text = event_get(event, TIME_BYTES);

	if (micros < 0) {
		micros += 1000000;
		seconds--;
	}
	time_t whole = (time_t)seconds;
	gmtime_r(&whole, &utc);
	snprintf(text, TIME_BYTES, "%04d-%02d-%02dT%02d:%02d:%02d.%06dZ", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday,
	         utc.tm_hour, utc.tm_min, utc.tm_sec, (int)micros);
	return text;
}

/* ---- the event's own headers */

/* Names that the envelope or the transport sets. */
static bool is_ours(const envelope *envelope, const event *event, const char *name)
{
	if (strncasecmp(name, "Pgonce-", 7) == 0 || strcasecmp(name, "content-type") == 0) {
		return true;
	}
	if (envelope->form == ENVELOPE_CLOUDEVENTS && strncasecmp(name, envelope->prefix, strlen(envelope->prefix)) == 0) {
		return true;
	}
	return event->traceparent != NULL && strcasecmp(name, "traceparent") == 0;
}

/* An event's own header. The application may have copied it from a received message. */
static const char *own_name(const envelope *envelope, event *event, const char *name)
{
	if (!broker_header_steers(envelope->sink, name)) {
		return encoded(event, name, is_outside_token);
	}
	size_t bytes = strlen(STEERING_PREFIX) + strlen(name) + 1;
	char *prefixed = event_get(event, bytes);
	snprintf(prefixed, bytes, STEERING_PREFIX "%s", name);
	return encoded(event, prefixed, is_outside_token);
}

static void add_own(const envelope *envelope, event *event, sink_header *headers, size_t *count)
{
	for (size_t i = 0; i < event->header_count; i++) {
		const sink_header *own = &event->headers[i];
		if (own->name[0] == '\0' || is_ours(envelope, event, own->name)) {
			continue;
		}
		headers[(*count)++] = (sink_header){.name = own_name(envelope, event, own->name),
		                                    .value = encoded(event, own->value, is_control)};
	}
}

/* ---- the two forms */

typedef struct writer {
	event *event;
	sink_header *headers;
	size_t count;
} writer;

/* Names are constants or in the event's memory. NULL: no header. */
static void add_plain(writer *writer, const char *name, const char *value)
{
	if (value != NULL) {
		writer->headers[writer->count++] =
		    (sink_header){.name = name, .value = encoded(writer->event, value, is_control)};
	}
}

static void fill_plain(writer *writer)
{
	event *event = writer->event;

	add_plain(writer, "Pgonce-Event-Id", event->event_id);
	add_plain(writer, "Pgonce-Event-Type", event->event_type);
	add_plain(writer, "Pgonce-Topic", event->topic);
	add_plain(writer, "Pgonce-Tenant", event->tenant[0] == '\0' ? NULL : event->tenant);
	add_plain(writer, "Pgonce-Aggregate-Type", event->aggregate_type);
	add_plain(writer, "Pgonce-Key", event->aggregate_id);
	add_plain(writer, "Pgonce-Created-At", time_text(event));
	add_plain(writer, "traceparent", event->traceparent);
}

static void add_attribute(const envelope *envelope, writer *writer, const char *name, const char *value)
{
	/* An attribute's value must not be empty: then it is absent. */
	if (value == NULL || value[0] == '\0') {
		return;
	}
	size_t bytes = strlen(envelope->prefix) + strlen(name) + 1;
	char *full = event_get(writer->event, bytes);
	snprintf(full, bytes, "%s%s", envelope->prefix, name);
	writer->headers[writer->count++] = (sink_header){
	    .name = full, .value = encoded(writer->event, value, envelope->is_http_like ? is_outside_http : is_control)};
}

static void fill_cloudevents(const envelope *envelope, writer *writer)
{
	event *event = writer->event;

	add_attribute(envelope, writer, "specversion", "1.0");
	add_attribute(envelope, writer, "id", event->event_id);
	add_attribute(envelope, writer, "source", envelope->source);
	add_attribute(envelope, writer, "type", event->event_type);
	add_attribute(envelope, writer, "time", time_text(event));
	add_attribute(envelope, writer, "subject", event->aggregate_id);
	add_attribute(envelope, writer, "partitionkey", key_of(envelope, event));
	add_attribute(envelope, writer, "aggregatetype", event->aggregate_type);
	add_attribute(envelope, writer, "tenant", event->tenant);
	add_attribute(envelope, writer, "traceparent", event->traceparent);
	/* The hop's own tracing header says the same (extension "Distributed Tracing"). */
	add_plain(writer, "traceparent", event->traceparent);
}

void envelope_fill(const envelope *envelope, event *event)
{
	writer writer = {.event = event,
	                 .headers = event_get(event, (OWN_HEADERS_MAX + event->header_count) * sizeof *writer.headers)};

	if (envelope->form == ENVELOPE_PLAIN) {
		fill_plain(&writer);
	} else {
		fill_cloudevents(envelope, &writer);
	}
	add_own(envelope, event, writer.headers, &writer.count);
	event->message = (sink_message){.event_id = event->event_id,
	                                .key = key_of(envelope, event),
	                                .content_type = event->content_type == NULL ? json_type : event->content_type,
	                                .is_bytes = event->content_type != NULL,
	                                .headers = writer.headers,
	                                .header_count = writer.count,
	                                .body = event->payload,
	                                .created_ms = event->created_us / 1000,
	                                .user = event};
}
