/* SPDX-License-Identifier: PostgreSQL */
/*
 * play_source.c: play_source CONFIG NAME PREFETCH MEMORY: opens the source of a [consume NAME] section and
 * obeys commands from standard input, a line each; every command is answered by one line of JSON.
 * Deliveries are named by the number that fetch gave them.
 *
 *     fetch MOST TIMEOUT_MS [BYTES]    {"state", "problem", "messages": [{"n", "topic", "key", "payload", "headers": [[name, value], ...], "coordinates"}]}
 *     ack N...                 {"state", "problem"}        also: ack all
 *     back N...                {"state"}                   also: back all
 *     publish TOPIC N          {"state", "problem"}
 *     positions                {"state", "positions": [[part, milliseconds or null at the end, behind_ms], ...]}
 *     stalled                  {"state": "ok" or "unavailable", "problem"}
 *     close                    closes the source and ends; the end of input does so, too
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "source.h"

enum {
	OUT_MOST = 100000,
	LINE_BYTES = 1 << 20,
	PUBLISH_MS = 10000
};

static source_message *out[OUT_MOST]; /* by number; NULL: handed back */
static size_t given;

/* Text; {"hex": ...} where it is none. */
static json_t *text(once_bytes bytes)
{
	json_t *text = bytes.data == NULL ? json_null() : json_stringn(bytes.data, bytes.length);
	char *hex = text == NULL ? calloc(2, bytes.length + 1) : NULL;

	for (size_t i = 0; hex != NULL && i < bytes.length; i++) {
		snprintf(hex + 2 * i, 3, "%02x", ((const unsigned char *)bytes.data)[i]);
	}
	text = text != NULL ? text : json_pack("{s:s}", "hex", hex);
	free(hex);
	return text;
}

static json_t *describe(const source_message *message, size_t number)
{
	json_t *headers = json_array();

	for (size_t i = 0; i < message->header_count; i++) {
		json_array_append_new(headers, json_pack("[s, o]", message->headers[i].name, text(message->headers[i].value)));
	}
	return json_pack("{s:i, s:s, s:o, s:o, s:o, s:s?}", "n", (int)number, "topic", message->topic, "key",
	                 text(message->key), "payload", text(message->payload), "headers", headers, "coordinates",
	                 message->coordinates);
}

static void answer(source_state state, const char *problem, json_t *messages)
{
	static const char *const states[] = {"ok", "unavailable", "lost"};
	json_t *line = json_pack("{s:s, s:s, s:o*}", "state", states[state], "problem", problem, "messages", messages);

	json_dumpf(line, stdout, JSON_COMPACT);
	putchar('\n');
	fflush(stdout);
	json_decref(line);
}

static void fetch(const source_class *class, source *source, size_t most, size_t most_bytes, int timeout_ms)
{
	source_message **messages = calloc(most + 1, sizeof *messages);
	json_t *list = json_array();
	char problem[256] = "";
	size_t count = 0;
	source_state state = class->fetch(source, most, most_bytes, timeout_ms, messages, &count, problem);

	if (given + count > OUT_MOST) {
		fprintf(stderr, "more than %d messages\n", OUT_MOST);
		exit(2);
	}
	for (size_t i = 0; i < count; i++, given++) {
		out[given] = messages[i];
		json_array_append_new(list, describe(messages[i], given));
	}
	free(messages);
	answer(state, problem, list);
}

/* The deliveries that the words name, which are no longer out after this. */
static size_t chosen(char *words, source_message **messages)
{
	size_t count = 0;

	if (strcmp(words, "all") == 0) {
		for (size_t i = 0; i < given; i++) {
			if (out[i] != NULL) {
				messages[count++] = out[i];
				out[i] = NULL;
			}
		}
		return count;
	}
	for (char *rest = NULL, *word = strtok_r(words, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
		size_t number = strtoul(word, NULL, 10);
		if (number >= given || out[number] == NULL) {
			fprintf(stderr, "%s is not out\n", word);
			exit(2);
		}
		messages[count++] = out[number];
		out[number] = NULL;
	}
	return count;
}

static void hand_back(const source_class *class, source *source, char *words, bool done)
{
	static source_message *messages[OUT_MOST];
	char problem[256] = "";
	size_t count = chosen(words, messages);
	source_state state = SOURCE_OK;

	if (done) {
		state = class->acknowledge(source, messages, count, problem);
	} else {
		class->give_back(source, messages, count);
	}
	answer(state, problem, NULL);
}

static void publish(const source_class *class, source *source, const char *topic, size_t number)
{
	const source_header more = {.name = "why", .value = {.data = "dead", .length = 4}};
	char problem[256] = "";
	bool published = class->publish(source, topic, out[number], &more, 1, PUBLISH_MS, problem);

	answer(published ? SOURCE_OK : SOURCE_UNAVAILABLE, problem, NULL);
}

static void positions(const source_class *class, source *source)
{
	static source_position list[100];
	json_t *found = json_array();
	size_t count = class->positions(source, list, 100);

	for (size_t i = 0; i < count; i++) {
		json_t *at = list[i].at_ms == SOURCE_AT_END ? json_null() : json_integer(list[i].at_ms);
		json_array_append_new(found, json_pack("[s, o, I]", list[i].part, at, (json_int_t)list[i].behind_ms));
	}
	json_t *line = json_pack("{s:s, s:o}", "state", "ok", "positions", found);
	json_dumpf(line, stdout, JSON_COMPACT);
	putchar('\n');
	fflush(stdout);
	json_decref(line);
}

static void obey(const source_class *class, source *source, char *line)
{
	char topic[256];
	size_t most, most_bytes = SIZE_MAX, number;
	int timeout_ms;

	if (sscanf(line, "fetch %zu %d %zu", &most, &timeout_ms, &most_bytes) >= 2) {
		fetch(class, source, most, most_bytes, timeout_ms);
	} else if (strncmp(line, "ack ", 4) == 0) {
		hand_back(class, source, line + 4, true);
	} else if (strncmp(line, "back ", 5) == 0) {
		hand_back(class, source, line + 5, false);
	} else if (sscanf(line, "publish %255s %zu", topic, &number) == 2 && number < given && out[number] != NULL) {
		publish(class, source, topic, number);
	} else if (strcmp(line, "stalled") == 0) {
		char problem[256] = "";
		bool stalled = class->stalled != NULL && class->stalled(source, problem);
		answer(stalled ? SOURCE_UNAVAILABLE : SOURCE_OK, problem, NULL);
	} else if (strcmp(line, "positions") == 0) {
		positions(class, source);
	} else {
		fprintf(stderr, "not a command: %s\n", line);
		exit(2);
	}
}

int main(int argc, char **argv)
{
	static char line[LINE_BYTES];
	config *config = NULL;
	source *source = NULL;
	char *problem = NULL;

	if (argc != 5 || !config_read(argv[1], &config, &problem)) {
		fprintf(stderr, "%s\n", problem == NULL ? "play_source CONFIG NAME PREFETCH MEMORY" : problem);
		return 2;
	}
	const config_section *section = config_find(config, "consume", argv[2]);
	const speaker speaker = {.kind = "consume", .name = argv[2]};
	const source_bounds bounds = {.messages = strtoll(argv[3], NULL, 10), .bytes = strtoll(argv[4], NULL, 10)};
	const source_class *class = NULL;
	bool ordered = true;
	for (size_t i = 0; section != NULL && i < section->entry_count; i++) {
		ordered = ordered &&
		          (strcmp(section->entries[i].name, "order_by") != 0 || strcmp(section->entries[i].value, "none") != 0);
		class = strcmp(section->entries[i].name, "source") == 0 ? source_find(section->entries[i].value) : class;
	}
	if (class == NULL || !class->check(config, section, &problem) ||
	    !class->open(&speaker, config, section, bounds, ordered, &source, &problem)) {
		fprintf(stderr, "%s\n", problem == NULL ? "no such section, or no such source" : problem);
		free(problem);
		config_free(config);
		return 2;
	}
	free(problem);
	while (fgets(line, sizeof line, stdin) != NULL) {
		line[strcspn(line, "\n")] = '\0';
		if (strcmp(line, "close") == 0) {
			break;
		}
		obey(class, source, line);
	}
	class->close(source);
	config_free(config);
	return 0;
}
