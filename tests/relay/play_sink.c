/* SPDX-License-Identifier: PostgreSQL */
/*
 * play_sink.c: one sink without a relay before it, for tests (tests/relay/sinks.py): play_sink
 * CONFIG RELAY [check]. Takes messages as lines of JSON on standard input, and writes each result
 * as a line of JSON when it comes. {"permit_ms": N}: what is sent may be for N ms more; null: not any
 * more. Ends when the input has ended and every message has its result, or when a line says "close". Exit status 2: the configuration is refused; the problem is on
 * standard error.
 */
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sink.h"

enum {
	LINE_BYTES_MAX = 4 * 1024 * 1024,
	HEADERS_MAX = 64,
	RESULTS_MAX = 64
};

typedef struct play {
	const sink_class *class;
	sink *sink;
	char *input; /* what is read and not yet a line */
	size_t used;
	bool ended, closed;
	size_t out;            /* messages without a result */
	sink_message *waiting; /* one that the sink did not take yet */
	sink_message **all;    /* freed at the end: the sink may still have them when it is closed */
	size_t all_count;
} play;

static const char *text_of(const json_t *json, const char *name, const char *otherwise)
{
	const char *text = json_string_value(json_object_get(json, name));
	return text != NULL ? text : otherwise;
}

/* What is no text comes as "body_hex". */
static once_bytes body_of(json_t *json)
{
	const char *hex = json_string_value(json_object_get(json, "body_hex"));
	const char *text = text_of(json, "body", "{}");

	if (hex == NULL) {
		return (once_bytes){.data = text, .length = strlen(text)};
	}
	size_t length = strlen(hex) / 2;
	char *bytes = calloc(1, length + 1);
	for (size_t i = 0; i < length; i++) {
		unsigned int byte = 0;
		sscanf(hex + 2 * i, "%2x", &byte);
		bytes[i] = (char)byte;
	}
	return (once_bytes){.data = bytes, .length = length};
}

static sink_message *make_message(json_t *json)
{
	sink_message *message = calloc(1, sizeof *message);
	sink_header *headers = calloc(HEADERS_MAX, sizeof *headers);
	const char *name = NULL;
	json_t *value = NULL;

	*message = (sink_message){.destination = text_of(json, "destination", ""),
	                          .route = text_of(json, "route", NULL),
	                          .event_id = text_of(json, "event_id", "00000000-0000-4000-8000-000000000000"),
	                          .key = text_of(json, "key", NULL),
	                          .content_type = text_of(json, "content_type", "application/json"),
	                          .headers = headers,
	                          .body = body_of(json),
	                          .user = json};
	json_object_foreach(json_object_get(json, "headers"), name, value)
	{
		if (message->header_count < HEADERS_MAX) {
			headers[message->header_count++] = (sink_header){.name = name, .value = json_string_value(value)};
		}
	}
	return message;
}

static void free_message(sink_message *message)
{
	if (json_object_get(message->user, "body_hex") != NULL) {
		free((void *)(uintptr_t)message->body.data);
	}
	json_decref(message->user);
	free((void *)(uintptr_t)message->headers);
	free(message);
}

/* Takes the next line, if there is one whole. */
static void take_line(play *play)
{
	char *end = memchr(play->input, '\n', play->used);

	if (end == NULL || play->waiting != NULL) {
		return;
	}
	size_t length = (size_t)(end - play->input) + 1;
	json_t *json = json_loadb(play->input, length, JSON_DECODE_ANY, NULL);
	memmove(play->input, end + 1, play->used - length);
	play->used -= length;
	json_t *permit = json_object_get(json, "permit_ms");
	if (json_is_string(json) || permit != NULL) {
		play->closed = permit == NULL;
		if (permit != NULL) {
			play->class->permit(play->sink, json_is_null(permit) ? 0 : runtime_now_ms() + json_integer_value(permit));
		}
		json_decref(json);
	} else if (json != NULL) {
		play->waiting = make_message(json);
		play->all = realloc(play->all, (play->all_count + 1) * sizeof *play->all);
		play->all[play->all_count++] = play->waiting;
	}
}

static void read_input(play *play)
{
	ssize_t count = read(STDIN_FILENO, play->input + play->used, LINE_BYTES_MAX - play->used);

	if (count > 0) {
		play->used += (size_t)count;
	} else if (count == 0) {
		play->ended = true;
	}
}

static void print_result(const sink_result *result)
{
	static const char *const names[] = {
	    [SINK_DELIVERED] = "delivered",     [SINK_REFUSED] = "refused",   [SINK_FINAL] = "final",
	    [SINK_UNAVAILABLE] = "unavailable", [SINK_WITHHELD] = "withheld", [SINK_FENCED] = "fenced"};
	json_t *line =
	    json_pack("{s:s, s:s, s:I, s:s}", "event_id", result->message->event_id, "verdict", names[result->verdict],
	              "retry_after_ms", (json_int_t)result->retry_after_ms, "problem", result->problem);

	json_dumpf(line, stdout, JSON_COMPACT);
	putchar('\n');
	fflush(stdout);
	json_decref(line);
}

static void turn(play *play)
{
	sink_result results[RESULTS_MAX];

	take_line(play);
	if (play->waiting != NULL && play->class->send(play->sink, play->waiting)) {
		play->waiting = NULL;
		play->out++;
	}
	bool busy = memchr(play->input, '\n', play->used) != NULL && play->waiting == NULL;
	if (play->out > 0 || play->waiting != NULL) {
		size_t count = play->class->poll(play->sink, busy ? 0 : 5, results, RESULTS_MAX);
		for (size_t i = 0; i < count; i++) {
			print_result(&results[i]);
			play->out--;
		}
	}
	struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
	if (!play->ended && !busy && play->waiting == NULL && poll(&input, 1, play->out > 0 ? 0 : 1000) > 0) {
		read_input(play);
	}
}

int main(int argc, char **argv)
{
	static const speaker speaker = {.kind = "relay", .name = "played"};
	play play = {.input = calloc(1, LINE_BYTES_MAX)};
	config *config = NULL;
	char *problem = NULL;
	const config_section *section = NULL;

	if (argc < 3 || play.input == NULL || !config_read(argv[1], &config, &problem) ||
	    (section = config_find(config, "relay", argv[2])) == NULL) {
		fprintf(stderr, "%s\n", problem != NULL ? problem : "usage: play_sink CONFIG RELAY [check]");
		return 1;
	}
	for (size_t i = 0; i < section->entry_count; i++) {
		if (strcmp(section->entries[i].name, "sink") == 0) {
			play.class = sink_find(section->entries[i].value);
		}
	}
	if (play.class == NULL) {
		fputs("there is no such sink\n", stderr);
		return 1;
	}
	bool checked = argc > 3;
	if (checked ? !play.class->check(config, section, &problem)
	            : !play.class->open(&speaker, config, section, &play.sink, &problem)) {
		fprintf(stderr, "%s\n", problem);
		free(problem);
		config_free(config);
		free(play.input);
		return 2;
	}
	if (!checked) {
		puts("open");
		fflush(stdout);
		while (!play.closed &&
		       (!play.ended || play.out > 0 || play.waiting != NULL || memchr(play.input, '\n', play.used) != NULL)) {
			turn(&play);
		}
		play.class->close(play.sink);
	}
	for (size_t i = 0; i < play.all_count; i++) {
		free_message(play.all[i]);
	}
	free(play.all);
	config_free(config);
	free(play.input);
	return 0;
}
