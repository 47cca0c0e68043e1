/* SPDX-License-Identifier: PostgreSQL */
/*
 * fuzz_event.c: an event as the database sends it, in PostgreSQL's binary formats, and what a relay
 * makes of it. Whatever bytes come, the row is read within its bounds; texts come out as they went
 * in; no header has a control character; a URL keeps its form whatever the topic is called; and the
 * patterns that the database filters by match just the topics that the routes do.
 * tests/fuzz/test_fuzz.py builds and runs it. Input: a byte (the envelope), the headers' array, the
 * texts of the row, lines of routes.
 */
#include <libpq-fe.h>
#include <stdio.h>
#include <strings.h>

#include "envelope.h"
#include "fuzz.h"
#include "route.h"
#include "row.h"

enum {
	COLUMNS = 15, /* of relay_fetch.sql */
	FIRST_TEXT = 4,
	TEXTS = 6,
	HEADERS = 10,
	PAYLOAD = 11
};

typedef struct texts {
	char *text[TEXTS]; /* topic, event_type, aggregate_type, aggregate_id, tenant, traceparent */
} texts;

static void set(PGresult *result, int column, const void *value, size_t length)
{
	char *copy = malloc(length + 1);
	must(copy != NULL);
	if (length > 0) {
		memcpy(copy, value, length);
	}
	must(PQsetvalue(result, 0, column, copy, (int)length) == 1);
	free(copy);
}

static PGresult *make_row(input *in, texts *texts)
{
	PGresult *result = PQmakeEmptyPGresult(NULL, PGRES_TUPLES_OK);
	PGresAttDesc columns[COLUMNS];
	size_t length = 0;

	for (int i = 0; i < COLUMNS; i++) {
		columns[i] = (PGresAttDesc){.name = (char *)"c", .format = 1};
	}
	must(result != NULL && PQsetResultAttrs(result, COLUMNS, columns) == 1);
	char *headers = take_text(in, &length);
	set(result, HEADERS, headers, length);
	free(headers);
	uint64_t numbers = take_number(in);
	for (int i = 0; i < COLUMNS; i++) {
		if (i < FIRST_TEXT || i > HEADERS) {
			set(result, i, &numbers, i % 3 == 2 ? 4 : numbers % 9);
		}
	}
	for (int i = 0; i < TEXTS; i++) {
		texts->text[i] = take_text(in, NULL);
		set(result, FIRST_TEXT + i, texts->text[i], strlen(texts->text[i]));
	}
	return result;
}

static void check_event(const event *event, const texts *texts)
{
	const char *const read[TEXTS] = {event->topic,        event->event_type, event->aggregate_type,
	                                 event->aggregate_id, event->tenant,     event->traceparent};

	for (int i = 0; i < TEXTS; i++) {
		must(strcmp(read[i], texts->text[i]) == 0);
	}
	must(strlen(event->event_id) < EVENT_ID_BYTES);
	size_t bytes = 0;
	for (size_t i = 0; i < event->header_count; i++) {
		bytes += strlen(event->headers[i].name) + strlen(event->headers[i].value);
	}
	must(bytes <= 255 && event->header_count <= 255);
}

static void check_envelope(event *event, uint8_t form)
{
	static const char *const sinks[] = {"kafka", "rabbitmq", "nats", "webhook"};
	envelope envelope = envelope_for(sinks[form & 3], form & 4 ? ENVELOPE_CLOUDEVENTS : ENVELOPE_PLAIN, "/source");

	envelope_fill(&envelope, event);
	for (size_t i = 0; i < event->message.header_count; i++) {
		const sink_header *header = &event->message.headers[i];
		must(header->name[0] != '\0');
		for (const char *at = header->name; *at != '\0'; at++) {
			must(*at > ' ' && *at < 0x7f);
		}
		for (const char *at = header->value; *at != '\0'; at++) {
			must((unsigned char)*at >= ' ' && *at != 0x7f);
		}
	}
}

/*
 * LIKE, as PostgreSQL has it; the pattern is inside of an array's text, in quotes and escaped for
 * that. Leaves *pattern behind the closing quote.
 */
static bool like(const char *topic, const char **pattern)
{
	bool good = true;
	const char *at = *pattern + 1;

	must(**pattern == '"');
	for (; *at != '"'; at++) {
		char c = *at == '\\' ? *++at : *at; /* the array's escape */
		must(c != '\0');
		if (c == '%') {
			must(at[1] == '"'); /* only the star at an end becomes one */
			topic += strlen(topic);
			continue;
		}
		must(c != '_');
		if (c == '\\') { /* LIKE's escape */
			c = *++at == '\\' ? *++at : *at;
		}
		good = good && *topic == c;
		topic += good;
	}
	*pattern = at + 1;
	return good && *topic == '\0';
}

static bool any_like(const char *topic, const char *patterns)
{
	bool found = false;

	must(*patterns == '{');
	for (const char *at = patterns + 1; *at != '}';) {
		found = like(topic, &at) || found;
		must(*at == ',' || *at == '}');
		at += *at == ',';
	}
	return found;
}

static void check_routes(const routes *routes, event *event)
{
	const route *route = routes_find(routes, event);
	char *patterns = routes_patterns(routes);

	must((route != NULL) == (patterns == NULL || any_like(event->topic, patterns)));
	free(patterns);
	if (route == NULL) {
		return;
	}
	const char *destination = route_destination(route, event);
	size_t fixed = strcspn(route->destination, "{");
	must(strncmp(destination, route->destination, fixed) == 0);
	if (strncmp(route->destination, "https://", 8) == 0 && route->destination[fixed] != '\0') {
		/* What was put in has none of the characters that part a URL, nor a step up. */
		size_t slashes = 0, slashes_made = 0;
		for (const char *at = route->destination; *at != '\0'; at++) {
			slashes += strchr("/?#@:", *at) != NULL;
		}
		for (const char *at = destination; *at != '\0'; at++) {
			slashes_made += strchr("/?#@:", *at) != NULL;
		}
		must(slashes == slashes_made);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	input in = {data, size};
	uint8_t form = take_byte(&in);
	texts texts;
	config *config = NULL;
	routes routes;
	char *problem = NULL;
	PGresult *result = make_row(&in, &texts);
	event *event = row_event(result);

	check_event(event, &texts);
	check_envelope(event, form);
	if (config_parse("f.conf", (const char *)in.data, in.size, &config, &problem)) {
		if (routes_read(config, config_section_at(config, 0), "{topic}", &routes, &problem)) {
			check_routes(&routes, event);
			routes_free(&routes);
		}
		config_free(config);
	}
	free(problem);
	event_free(event);
	PQclear(result);
	for (int i = 0; i < TEXTS; i++) {
		free(texts.text[i]);
	}
	return 0;
}
