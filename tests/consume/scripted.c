/* SPDX-License-Identifier: PostgreSQL */
/*
 * scripted.c: a source for tests that needs no broker: messages are the lines of a file (JSON),
 * what is acknowledged goes to another file, so that a process that is killed finds what was not.
 * Takes the place of consume/sources.c.
 *     {"topic": "t", "key": "k", "payload": "...", "headers": {"name": "value"}, "coordinates": "t/1"}
 * payload64, key64 and values {"base64": ...} are bytes. {"control": "lost"} voids what is out,
 * {"control": "away"} (with or without a "problem") is a broker that is away once, {"control":
 * "void"} takes what is fetched next away while it is out: it comes again.
 */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "arena.h"
#include "source.h"

typedef enum place {
	WAITING,
	OUT,
	DONE
} place;

typedef struct line {
	json_t *json;
	place place;
	int generation; /* of the delivery that counts */
} line;

typedef struct delivery {
	source_message message;
	size_t index;
	int generation;
	arena arena;
} delivery;

typedef struct script_options {
	const char *script, *acks, *dead, *hang, *alive;
	int64_t has_order;
} script_options;

struct source {
	script_options options;
	line *lines;
	size_t count;
	FILE *file;
	int acks;
	int generation;
	bool voids; /* what is fetched next */
	size_t out; /* deliveries */
};

static const config_option options[] = {
    {.name = "script",
     .kind = CONFIG_TEXT,
     .offset = offsetof(script_options, script),
     .required = true,
     .help = "the messages"},
    {.name = "acks",
     .kind = CONFIG_TEXT,
     .offset = offsetof(script_options, acks),
     .required = true,
     .help = "the acknowledged"},
    {.name = "dead", .kind = CONFIG_TEXT, .offset = offsetof(script_options, dead), .help = "where the dead topic is"},
    {.name = "hang",
     .kind = CONFIG_TEXT,
     .offset = offsetof(script_options, hang),
     .help = "while this file exists the dead topic takes nothing; a byte for each try"},
    {.name = "alive",
     .kind = CONFIG_TEXT,
     .offset = offsetof(script_options, alive),
     .help = "a byte for each time that it is kept alive"},
    {.name = NULL},
};

static bool script_check(const config *config, const config_section *section, char **problem)
{
	script_options read = {0};

	return config_apply(config, section, options, &read, problem);
}

/* Lines that were added since. */
static void read_more(source *source)
{
	char *text = NULL;
	size_t size = 0;

	clearerr(source->file);
	for (;;) {
		long start = ftell(source->file);
		ssize_t length = getline(&text, &size, source->file);
		if (length <= 0 || text[length - 1] != '\n') {
			fseek(source->file, start, SEEK_SET);
			break;
		}
		json_error_t error;
		json_t *json = json_loads(text, JSON_ALLOW_NUL, &error);
		if (json == NULL) {
			fprintf(stderr, "script: %s: %s\n", error.text, text);
			abort();
		}
		source->lines = realloc(source->lines, (source->count + 1) * sizeof *source->lines);
		source->lines[source->count++] = (line){.json = json};
	}
	free(text);
}

static bool script_open(const speaker *speaker, const config *config, const config_section *section,
                        source_bounds bounds, bool ordered, source **result, char **problem)
{
	(void)ordered;
	source *source = calloc(1, sizeof *source);
	size_t index = 0;

	(void)speaker;
	(void)bounds;
	if (!config_apply(config, section, options, &source->options, problem)) {
		free(source);
		return false;
	}
	source->file = fopen(source->options.script, "r");
	source->acks = open(source->options.acks, O_RDWR | O_CREAT | O_APPEND, 0666);
	if (source->file == NULL || source->acks < 0) {
		*problem = strdup(strerror(errno));
		free(source);
		return false;
	}
	read_more(source);
	FILE *acks = fdopen(dup(source->acks), "r");
	while (fscanf(acks, "%zu", &index) == 1) {
		source->lines[index].place = DONE;
	}
	fclose(acks);
	*result = source;
	return true;
}

static once_bytes bytes_of(arena *arena, const json_t *value)
{
	const char *encoded = json_string_value(json_object_get(value, "base64"));

	if (encoded != NULL) {
		size_t length = strlen(encoded);
		unsigned char *data = arena_take(arena, length + 1);
		int written = EVP_DecodeBlock(data, (const unsigned char *)encoded, (int)length);
		size_t padding = length >= 2 ? (size_t)(encoded[length - 1] == '=') + (encoded[length - 2] == '=') : 0;
		return (once_bytes){.data = data, .length = (size_t)written - padding};
	}
	return (once_bytes){.data = json_string_value(value), .length = json_string_length(value)};
}

static source_message *deliver(source *source, size_t index)
{
	const json_t *json = source->lines[index].json;
	const json_t *headers = json_object_get(json, "headers");
	delivery *made = calloc(1, sizeof *made);
	source_header *list = arena_take(&made->arena, (json_array_size(headers) + 1) * sizeof *list);
	size_t i = 0;
	json_t *pair = NULL;

	json_array_foreach(headers, i, pair)
	{
		once_bytes name = bytes_of(&made->arena, json_array_get(pair, 0));
		list[i] = (source_header){.name = arena_text(&made->arena, name.data, name.length),
		                          .value = bytes_of(&made->arena, json_array_get(pair, 1))};
	}
	made->index = index;
	made->generation = source->lines[index].generation = source->generation;
	source->lines[index].place = OUT;
	once_bytes topic = bytes_of(&made->arena, json_object_get(json, "topic"));
	made->message =
	    (source_message){.topic = topic.data == NULL ? "t" : arena_text(&made->arena, topic.data, topic.length),
	                     .key = bytes_of(&made->arena, json_object_get(json, "key")),
	                     .payload = bytes_of(&made->arena, json_object_get(json, "payload")),
	                     .headers = list,
	                     .header_count = json_array_size(headers),
	                     .coordinates = json_string_value(json_object_get(json, "coordinates")),
	                     .own = made};
	return &made->message;
}

/* As a rebalance does between a fetch and the acknowledgement. */
static void make_void(source *source)
{
	source->generation++;
	for (size_t j = 0; j < source->count; j++) {
		source->lines[j].place = source->lines[j].place == OUT ? WAITING : source->lines[j].place;
	}
}

static source_state script_fetch(source *source, size_t most, size_t most_bytes, int timeout_ms,
                                 source_message **messages, size_t *count, char problem[256])
{
	size_t bytes = 0;

	*count = 0;
	problem[0] = '\0';
	if (most == 0) {
		FILE *alive = source->options.alive == NULL ? NULL : fopen(source->options.alive, "a");
		if (alive != NULL) {
			fputc('.', alive);
			fclose(alive);
		}
		return SOURCE_OK;
	}
	read_more(source);
	for (size_t i = 0; i < source->count && *count < most; i++) {
		const char *control = json_string_value(json_object_get(source->lines[i].json, "control"));
		if (source->lines[i].place != WAITING) {
			continue;
		}
		if (control == NULL) {
			bytes += json_string_length(json_object_get(source->lines[i].json, "payload"));
			if (bytes > most_bytes && source->out > 0) {
				break;
			}
			source->out++;
			messages[(*count)++] = deliver(source, i);
			continue;
		}
		if (*count > 0) {
			return SOURCE_OK; /* what is before it, first */
		}
		source->lines[i].place = DONE;
		source->voids = source->voids || strcmp(control, "void") == 0;
		if (strcmp(control, "away") == 0) {
			const char *said = json_string_value(json_object_get(source->lines[i].json, "problem"));
			snprintf(problem, 256, "%s", said != NULL ? said : "away, as the script says");
			return SOURCE_UNAVAILABLE;
		}
		if (strcmp(control, "lost") == 0) {
			make_void(source);
			return SOURCE_LOST;
		}
	}
	if (*count > 0 && source->voids) {
		make_void(source);
		source->voids = false;
	}
	if (*count == 0) {
		usleep((unsigned)(timeout_ms < 20 ? timeout_ms : 20) * 1000);
	}
	return SOURCE_OK;
}

static void settle(source *source, source_message *const *messages, size_t count, place place)
{
	size_t size = 0;
	char *text = calloc(count + 1, 21);

	for (size_t i = 0; i < count; i++) {
		delivery *delivery = messages[i]->own;
		line *line = &source->lines[delivery->index];
		if (line->place == OUT && line->generation == delivery->generation) {
			line->place = place;
			size += place == DONE ? (size_t)sprintf(text + size, "%zu\n", delivery->index) : 0;
		}
		source->out--;
		arena_clear(&delivery->arena);
		/* whoever still looks at it, falls */
		memset((void *)messages[i], 0xff, sizeof *messages[i]);
		free(delivery);
	}
	if (size > 0 && write(source->acks, text, size) != (ssize_t)size) {
		abort();
	}
	free(text);
}

static source_state script_acknowledge(source *source, source_message *const *messages, size_t count, char problem[256])
{
	problem[0] = '\0';
	settle(source, messages, count, DONE);
	return SOURCE_OK;
}

static void script_give_back(source *source, source_message *const *messages, size_t count)
{
	settle(source, messages, count, WAITING);
}

static bool script_publish(source *source, const char *topic, const source_message *message, const source_header *more,
                           size_t more_count, int timeout_ms, char problem[256])
{
	int hang = source->options.hang == NULL ? -1 : open(source->options.hang, O_WRONLY | O_APPEND);

	if (hang >= 0) {
		bool told = write(hang, ".", 1) == 1;
		close(hang);
		usleep((useconds_t)timeout_ms * 1000);
		snprintf(problem, 256, told ? "no answer in time" : "cannot write");
		return false;
	}
	FILE *file = source->options.dead == NULL ? NULL : fopen(source->options.dead, "a");
	if (file == NULL) {
		snprintf(problem, 256, "no such topic");
		return false;
	}
	json_t *json = json_pack("{s:s, s:s%}", "topic", topic, "payload", (const char *)message->payload.data,
	                         message->payload.length);
	json_t *headers = json_object();
	for (size_t i = 0; i < message->header_count + more_count; i++) {
		const source_header *header =
		    i < message->header_count ? &message->headers[i] : &more[i - message->header_count];
		json_object_set_new(headers, header->name, json_stringn(header->value.data, header->value.length));
	}
	json_object_set_new(json, "headers", headers);
	json_dumpf(json, file, JSON_COMPACT);
	fputc('\n', file);
	fclose(file);
	json_decref(json);
	return true;
}

static void script_close(source *source)
{
	for (size_t i = 0; i < source->count; i++) {
		json_decref(source->lines[i].json);
	}
	free(source->lines);
	fclose(source->file);
	close(source->acks);
	free(source);
}

#define SCRIPTED(script_name, orders)                                                                                  \
	{                                                                                                                  \
		.name = script_name, .options = options, .has_coordinates = true, .shares_order = orders, .open = script_open, \
		.check = script_check, .fetch = script_fetch, .acknowledge = script_acknowledge,                               \
		.give_back = script_give_back, .publish = script_publish, .close = script_close                                \
	}
/* As Kafka's partitions, and as a queue that all members share. */
static const source_class source_script = SCRIPTED("script", true);
static const source_class source_queue = SCRIPTED("queue", false);
static const source_class *const sources[] = {&source_script, &source_queue};

const source_class *source_at(size_t index)
{
	return index < sizeof sources / sizeof sources[0] ? sources[index] : NULL;
}

const source_class *source_find(const char *name)
{
	for (size_t i = 0; source_at(i) != NULL; i++) {
		if (strcmp(source_at(i)->name, name) == 0) {
			return source_at(i);
		}
	}
	return NULL;
}
