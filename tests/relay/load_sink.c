/* SPDX-License-Identifier: PostgreSQL */
/*
 * load_sink.c: how many messages a second a sink delivers, without a relay before it: load_sink
 * CONFIG RELAY DESTINATION COUNT IN_FLIGHT. Bodies of 200 bytes, a key of its own for each place in
 * flight. Prints one line of JSON; exit status 1 where not all were delivered.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sink.h"

enum {
	RESULTS_MAX = 256,
	BODY_BYTES = 200,
	PATIENCE_MS = 60000
};

typedef struct place {
	sink_message message;
	char event_id[40], key[32];
	struct place *next;
} place;

static const sink_header headers[] = {{"Pgonce-Event-Type", "order_placed"}, {"Pgonce-Aggregate-Type", "order"}};
static char body[BODY_BYTES];

static place *places_new(size_t count, const char *destination)
{
	place *places = calloc(count, sizeof *places);

	memset(body, 'x', sizeof body);
	for (size_t i = 0; places != NULL && i < count; i++) {
		place *place = &places[i];
		snprintf(place->key, sizeof place->key, "key%zu", i);
		place->message = (sink_message){.destination = destination,
		                                .event_id = place->event_id,
		                                .key = place->key,
		                                .content_type = "application/json",
		                                .headers = headers,
		                                .header_count = sizeof headers / sizeof headers[0],
		                                .body = {.data = body, .length = sizeof body},
		                                .user = place};
		place->next = i + 1 < count ? place + 1 : NULL;
	}
	return places;
}

/*
 * A place is sent only when its former message has its result: one message of a key at a time, as
 * the pipeline does it.
 */
static long run(const sink_class *class, sink *sink, place *unused, long count)
{
	sink_result results[RESULTS_MAX];
	long sent = 0, done = 0, delivered = 0;
	int64_t until_ms = runtime_now_ms() + PATIENCE_MS;
	static long salt;

	salt += count;
	while (done < count && runtime_now_ms() < until_ms) {
		while (sent < count && unused != NULL) {
			snprintf(unused->event_id, sizeof unused->event_id, "%08lx-0000-4000-8000-%012lx", (unsigned long)getpid(),
			         salt + sent);
			if (!class->send(sink, &unused->message)) {
				break;
			}
			unused = unused->next;
			sent++;
		}
		size_t got = class->poll(sink, 100, results, RESULTS_MAX);
		for (size_t i = 0; i < got; i++) {
			place *place = results[i].message->user;
			place->next = unused;
			unused = place;
			done++;
			delivered += results[i].verdict == SINK_DELIVERED;
			if (results[i].verdict != SINK_DELIVERED) {
				fprintf(stderr, "%s\n", results[i].problem);
			}
		}
	}
	return delivered;
}

int main(int argc, char **argv)
{
	static const speaker speaker = {.kind = "relay", .name = "loaded"};
	config *config = NULL;
	char *problem = NULL;
	sink *sink = NULL;

	if (argc != 6 || !config_read(argv[1], &config, &problem)) {
		fprintf(stderr, "%s\n",
		        problem != NULL ? problem : "usage: load_sink CONFIG RELAY DESTINATION COUNT IN_FLIGHT");
		return 2;
	}
	const config_section *section = config_find(config, "relay", argv[2]);
	const sink_class *class = NULL;
	for (size_t i = 0; section != NULL && i < section->entry_count; i++) {
		if (strcmp(section->entries[i].name, "sink") == 0) {
			class = sink_find(section->entries[i].value);
		}
	}
	if (class == NULL || !class->open(&speaker, config, section, &sink, &problem)) {
		fprintf(stderr, "%s\n", problem != NULL ? problem : "no such section, or no such sink");
		return 2;
	}
	long count = strtol(argv[4], NULL, 10);
	size_t in_flight = strtoul(argv[5], NULL, 10);
	place *places = places_new(in_flight, argv[3]);
	long warm = run(class, sink, places, 1);
	free(places);
	places = places_new(in_flight, argv[3]);
	int64_t start_ms = runtime_now_ms();
	long delivered = run(class, sink, places, count);
	double seconds = (double)(runtime_now_ms() - start_ms) / 1000;
	printf("{\"delivered\": %ld, \"seconds\": %.3f, \"per_second\": %.0f}\n", delivered, seconds,
	       (double)delivered / seconds);
	class->close(sink);
	free(places);
	config_free(config);
	return warm == 1 && delivered == count ? 0 : 1;
}
