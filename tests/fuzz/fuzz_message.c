/* SPDX-License-Identifier: PostgreSQL */
/*
 * fuzz_message.c: any delivery of any broker becomes a message that the contract takes: an id of
 * printable ASCII, topic and key and headers that are text, headers that are JSON and can be read
 * back as they were; the same delivery has the same id, and one that is unusable an id of its own.
 * What is made of it for an HTTP handler cannot forge a header, and a gateway reads the id back. A
 * traceparent is taken just where W3C's grammar says. tests/fuzz/test_fuzz.py builds and runs it.
 * Input: where id and key come from, topic, key, coordinates, headers (until an empty name),
 * payload.
 */
#include <jansson.h>
#include <strings.h>

#include "fuzz.h"
#include "http_request.h"
#include "utf8.h"

enum {
	HEADERS_MAX = 12
};

/* Does the gateway read this Idempotency-Key as that key? */
static bool key_again(const char *value, const char *key)
{
	char read[ONCE_KEY_BYTES_MAX + 1];

	return once_key_of_header((once_bytes){value, strlen(value)}, true, ONCE_KEY_BYTES_MAX, read, NULL) == ONCE_OK &&
	       strcmp(read, key) == 0;
}

static const origin origins[] = {
    {.kind = ORIGIN_HEADER, .name = "Nats-Msg-Id"},
    {.kind = ORIGIN_HEADER, .name = "id"},
    {.kind = ORIGIN_POINTER, .name = "/id"},
    {.kind = ORIGIN_POINTER, .name = ""},
    {.kind = ORIGIN_COORDINATES},
    {.kind = ORIGIN_KEY},
    {.kind = ORIGIN_NONE},
};

static bool is_text(const char *text)
{
	return utf8_is_text(text, strlen(text));
}

static void check_id(const message *message)
{
	size_t length = strlen(message->id);

	must(length >= 1 && length <= 255);
	for (size_t i = 0; i < length; i++) {
		must(message->id[i] >= ' ' && message->id[i] <= '~');
	}
	must((message->unusable != NULL) == (strncmp(message->id, UNUSABLE_ID_PREFIX, strlen(UNUSABLE_ID_PREFIX)) == 0));
	must((message->unusable != NULL) == (message->unusable_code != NULL));
	must(message->unusable == NULL || is_text(message->unusable));
}

/*
 * Is `again` this name, as a message has it? Where the name of one header is no text all names are
 * escaped.
 */
static bool is_name(const char *again, const char *name, bool escaped)
{
	for (; escaped && *name != '\0'; name++) {
		char byte[] = {*name, '\0', '\0', '\0', '\0'};
		if (*name < ' ' || *name > '~' || *name == '\\') {
			snprintf(byte, sizeof byte, "\\x%02x", (unsigned char)*name);
		}
		if (strncmp(again, byte, strlen(byte)) != 0) {
			return false;
		}
		again += strlen(byte);
	}
	return strcmp(again, name) == 0;
}

/* The content type has one name for a handler, unless names are escaped. */
static const char *told_name(const source_header *header, bool escaped)
{
	return !escaped && strcasecmp(header->name, "content-type") == 0 ? "content-type" : header->name;
}

/* The headers as JSON: of each name the last value, whatever bytes they have. */
static void check_headers(const source_message *delivery, const message *message, arena *arena)
{
	size_t count = 0;
	json_t *object = json_loads(message->headers, 0, NULL);
	const source_header *again = message_headers(message->headers, arena, &count);
	bool escaped = false;

	must(json_is_object(object));
	for (size_t i = 0; i < delivery->header_count; i++) {
		escaped = escaped || !is_text(delivery->headers[i].name);
	}
	must(!escaped || message->unusable != NULL);
	for (size_t i = 0; i < delivery->header_count; i++) {
		const source_header *header = &delivery->headers[i], *found = NULL;
		bool is_last = true;
		for (size_t j = i + 1; j < delivery->header_count; j++) {
			is_last = is_last && strcmp(told_name(&delivery->headers[j], escaped), told_name(header, escaped)) != 0;
		}
		for (size_t j = 0; j < count; j++) {
			found = is_name(again[j].name, told_name(header, escaped), escaped) ? &again[j] : found;
		}
		if (is_last) {
			must(found != NULL && found->value.length == header->value.length);
			must(header->value.length == 0 || memcmp(found->value.data, header->value.data, header->value.length) == 0);
		}
	}
	json_decref(object);
}

static bool is_hex(const char *text, size_t length)
{
	return strspn(text, "0123456789abcdef") >= length;
}

static void check_trace(const source_message *delivery, const message *message)
{
	static const char zeros[] = "00000000000000000000000000000000";
	size_t named = 0;

	for (size_t i = 0; i < delivery->header_count; i++) {
		named += strcasecmp(delivery->headers[i].name, "traceparent") == 0;
		const char *value = delivery->headers[i].value.data;
		bool good = strlen(value) == 55 && strncmp(value, "00-", 3) == 0 && value[35] == '-' && value[52] == '-' &&
		            is_hex(value + 3, 32) && is_hex(value + 36, 16) && is_hex(value + 53, 2) &&
		            strncmp(value + 3, zeros, 32) != 0 && strncmp(value + 36, zeros, 16) != 0;
		must(once_traceparent_valid(value) == good);
	}
	must(message->traceparent == NULL || (named == 1 && once_traceparent_valid(message->traceparent)));
}

static void check_request(const message *message, arena *arena)
{
	http_call call;
	size_t own = 0;

	http_request_make(message, "https://there.example/", arena, &call);
	for (size_t i = 0; i < call.header_count; i++) {
		must(call.headers[i].name[0] != '\0' && strpbrk(call.headers[i].name, "\r\n: ") == NULL);
		must(strpbrk(call.headers[i].value, "\r\n") == NULL);
		if (strcasecmp(call.headers[i].name, "Idempotency-Key") == 0) {
			own++;
			must(key_again(call.headers[i].value, message->id));
		}
		must(strcasecmp(call.headers[i].name, "Content-Length") != 0 &&
		     strcasecmp(call.headers[i].name, "Transfer-Encoding") != 0);
	}
	must(own == 1);
}

static void check_message(source_message *delivery, const origin *id, const origin *key)
{
	arena arena = {0};
	message message, same, other;
	char changed[] = "another payload";

	message_identify(delivery, id, key, &arena, &message);
	check_id(&message);
	must(is_text(message.topic) && is_text(message.headers) && (message.key == NULL || is_text(message.key)));
	check_headers(delivery, &message, &arena);
	check_trace(delivery, &message);
	check_request(&message, &arena);
	message_identify(delivery, id, key, &arena, &same);
	must(strcmp(message.id, same.id) == 0 && (message.key == NULL) == (same.key == NULL));

	/* What has no id by what it says of itself is told apart by all that it is. */
	source_message different = *delivery;
	different.payload = (once_bytes){.data = changed, .length = sizeof changed - 1};
	message_identify(&different, id, key, &arena, &other);
	if (message.unusable != NULL && other.unusable != NULL && delivery->payload.length != different.payload.length) {
		must(strcmp(message.id, other.id) != 0);
	}
	arena_clear(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	input in = {data, size};
	source_header headers[HEADERS_MAX];
	char *names[HEADERS_MAX], *values[HEADERS_MAX];
	size_t count = 0, key_length = 0;
	uint8_t from = take_byte(&in);
	char *topic = take_text(&in, NULL);
	char *key = take_text(&in, &key_length);
	char *coordinates = take_text(&in, NULL);

	while (count < HEADERS_MAX && in.size > 0 && in.data[0] != 0) {
		size_t length = 0;
		names[count] = take_text(&in, NULL);
		values[count] = take_text(&in, &length);
		headers[count] = (source_header){.name = names[count], .value = {.data = values[count], .length = length}};
		count++;
	}
	take_byte(&in);
	size_t payload_length = in.size;
	char *payload = take_bytes(&in, in.size);
	source_message delivery = {.topic = topic,
	                           .key = {.data = key_length > 0 ? key : NULL, .length = key_length},
	                           .payload = {.data = payload, .length = payload_length},
	                           .headers = headers,
	                           .header_count = count,
	                           .coordinates = coordinates[0] == '\0' ? NULL : coordinates};
	check_message(&delivery, &origins[from % 7], &origins[from / 7 % 7]);
	for (size_t i = 0; i < count; i++) {
		free(names[i]);
		free(values[i]);
	}
	free(payload);
	free(coordinates);
	free(key);
	free(topic);
	return 0;
}
