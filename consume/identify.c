/* SPDX-License-Identifier: PostgreSQL */
/*
 * identify.c: finds a delivery's id, key and headers (as JSON). For any input bytes the result is
 * something the contract accepts: a producer's mistake must end as one dead message, not as a loop.
 */
#include "message.h"

#include <ctype.h>
#include <jansson.h>
#include <openssl/evp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "line.h"
#include "utf8.h"

enum {
	ID_BYTES_MAX = 255,
	UUID_BYTES_MAX = 45, /* urn:uuid: and 36 */
	UUID_DIGITS = 32,
	UUID_VERSION_DIGIT = 13,
	SHOWN_BYTES_MAX = 200 /* of an id or a name in an error */
};
#define DERIVED_PREFIX "sha256:"
#define KEY_HEADER "Pgonce-Key"

bool origin_read(const char *text, origin *origin)
{
	*origin = (struct origin){0};
	if (strncmp(text, "header:", 7) == 0) {
		*origin = (struct origin){.kind = ORIGIN_HEADER, .name = text + 7};
		return text[7] != '\0';
	}
	if (strncmp(text, "json:", 5) == 0) {
		*origin = (struct origin){.kind = ORIGIN_POINTER, .name = text + 5};
		return json_pointer_valid(text + 5);
	}
	if (strcmp(text, "coordinates") == 0) {
		origin->kind = ORIGIN_COORDINATES;
	} else if (strcmp(text, "key") == 0) {
		origin->kind = ORIGIN_KEY;
	} else if (strcmp(text, "none") != 0) {
		return false;
	}
	return true;
}

/* ---- bytes as text */

typedef struct piece {
	const void *data;
	size_t length;
} piece;

/* The prefix and the SHA-256 of the pieces, each preceded by its length. */
static char *hashed(arena *arena, const char *prefix, const piece *pieces, size_t count)
{
	unsigned char digest[32] = {0};
	char hex[2 * sizeof digest + 1];
	EVP_MD_CTX *context = EVP_MD_CTX_new();
	bool good = context != NULL && EVP_DigestInit_ex(context, EVP_sha256(), NULL) == 1;

	for (size_t i = 0; i < count && good; i++) {
		uint64_t length = pieces[i].length;
		good = EVP_DigestUpdate(context, &length, sizeof length) == 1 &&
		       (length == 0 || EVP_DigestUpdate(context, pieces[i].data, pieces[i].length) == 1);
	}
	if (!good || EVP_DigestFinal_ex(context, digest, NULL) != 1) {
		abort(); /* without a hash, ids would collide */
	}
	EVP_MD_CTX_free(context);
	for (size_t i = 0; i < sizeof digest; i++) {
		snprintf(hex + 2 * i, 3, "%02x", digest[i]);
	}
	return arena_format(arena, "%s%s", prefix, hex);
}

/*
 * Keeps printable ASCII, and writes backslashes and all else as \xNN: different inputs give
 * different texts.
 */
static char *escaped(arena *arena, const void *data, size_t length)
{
	char *text = arena_take(arena, 4 * length + 1);
	char *to = text;

	for (size_t i = 0; i < length; i++) {
		unsigned char c = ((const unsigned char *)data)[i];
		if (c >= ' ' && c < 0x7f && c != '\\') {
			*to++ = (char)c;
		} else {
			to += sprintf(to, "\\x%02x", c);
		}
	}
	*to = '\0';
	return text;
}

/* For people: long values are shortened. */
static char *shown(arena *arena, const void *data, size_t length)
{
	return length <= SHOWN_BYTES_MAX ? escaped(arena, data, length)
	                                 : arena_format(arena, "%s...", escaped(arena, data, SHOWN_BYTES_MAX));
}

static char *base64(arena *arena, const char *prefix, once_bytes bytes)
{
	size_t before = strlen(prefix);
	char *text = arena_take(arena, before + (bytes.length + 2) / 3 * 4 + 1);

	memcpy(text, prefix, before);
	EVP_EncodeBlock((unsigned char *)text + before, bytes.data, (int)bytes.length);
	return text;
}

/* ---- an id */

static const source_header *last_header(const source_message *delivery, const char *name)
{
	for (size_t i = delivery->header_count; i > 0; i--) {
		if (strcasecmp(delivery->headers[i - 1].name, name) == 0) {
			return &delivery->headers[i - 1];
		}
	}
	return NULL;
}

static bool is_plain_id(const void *data, size_t length)
{
	for (size_t i = 0; i < length; i++) {
		unsigned char c = ((const unsigned char *)data)[i];
		if (c < ' ' || c > '~') {
			return false;
		}
	}
	return length >= 1 && length <= ID_BYTES_MAX;
}

static bool begins_with(once_bytes bytes, const char *prefix)
{
	return bytes.length >= strlen(prefix) && memcmp(bytes.data, prefix, strlen(prefix)) == 0;
}

/*
 * Accepts every spelling that once._bucket takes for a UUIDv7, and some more: that function looks
 * at more than the version.
 */
static bool may_be_uuidv7(once_bytes id)
{
	static const char urn[] = "urn:uuid:";
	const char *at = id.data;
	size_t digits = 0;
	bool version_7 = false;

	if (id.length > UUID_BYTES_MAX) {
		return false;
	}
	for (size_t i = id.length >= strlen(urn) && strncasecmp(at, urn, strlen(urn)) == 0 ? strlen(urn) : 0; i < id.length;
	     i++) {
		if (isxdigit((unsigned char)at[i])) {
			digits++;
			version_7 = version_7 || (digits == UUID_VERSION_DIGIT && at[i] == '7');
		} else if (strchr("-{}", at[i]) == NULL) {
			return false;
		}
	}
	return digits == UUID_DIGITS && version_7;
}

/*
 * An id that the contract refuses, or that looks like one of pgonce's, is hashed, so that
 * the message is not lost.
 */
static const char *id_of_bytes(arena *arena, once_bytes bytes, bool opaque)
{
	if (!is_plain_id(bytes.data, bytes.length) || begins_with(bytes, DERIVED_PREFIX) ||
	    begins_with(bytes, UNUSABLE_ID_PREFIX) || begins_with(bytes, OPAQUE_ID_PREFIX)) {
		return hashed(arena, DERIVED_PREFIX, &(piece){bytes.data, bytes.length}, 1);
	}
	return arena_format(arena, "%s%.*s", opaque && may_be_uuidv7(bytes) ? OPAQUE_ID_PREFIX : "", (int)bytes.length,
	                    (const char *)bytes.data);
}

const char *message_own_id(const message *message)
{
	return message->id +
	       (strncmp(message->id, OPAQUE_ID_PREFIX, strlen(OPAQUE_ID_PREFIX)) == 0 ? strlen(OPAQUE_ID_PREFIX) : 0);
}

/* The bytes at an origin. data NULL: not found, and *why has the reason. */
static once_bytes bytes_at(const source_message *delivery, const origin *from, arena *arena, const char **why)
{
	const source_header *header = NULL;
	char *value = NULL;
	size_t length = 0;

	*why = NULL;
	switch (from->kind) {
	case ORIGIN_HEADER:
		header = last_header(delivery, from->name);
		if (header == NULL || header->value.data == NULL || header->value.length == 0) {
			*why = arena_format(arena, "its header %s is %s", from->name, header == NULL ? "missing" : "empty");
			return (once_bytes){0};
		}
		return header->value;
	case ORIGIN_POINTER:
		switch (json_text_find(delivery->payload, from->name, arena, &value, &length)) {
		case JSON_FOUND:
			*why = length == 0 ? arena_format(arena, "%s in its payload is empty", from->name) : NULL;
			return (once_bytes){.data = length == 0 ? NULL : value, .length = length};
		case JSON_NOT_THERE:
			*why = arena_format(arena, "its payload has no %s", from->name);
			break;
		case JSON_NOT_PLAIN:
			*why = arena_format(arena, "%s in its payload is an object or an array", from->name);
			break;
		case JSON_NOT_JSON:
			*why = "its payload is not JSON";
			break;
		}
		return (once_bytes){0};
	case ORIGIN_COORDINATES:
		*why = "its broker gives it no coordinates";
		return (once_bytes){.data = delivery->coordinates,
		                    .length = delivery->coordinates == NULL ? 0 : strlen(delivery->coordinates)};
	case ORIGIN_KEY:
		if (delivery->key.data != NULL && delivery->key.length > 0) {
			return delivery->key;
		}
		header = last_header(delivery, KEY_HEADER);
		return header != NULL && header->value.length > 0 ? header->value : (once_bytes){0};
	case ORIGIN_NONE:
		break;
	}
	return (once_bytes){0};
}

/* A key that is not text is kept as a key: its messages stay in order. */
static const char *key_of_bytes(arena *arena, once_bytes bytes)
{
	if (bytes.data == NULL) {
		return NULL;
	}
	return utf8_is_text(bytes.data, bytes.length) ? arena_text(arena, bytes.data, bytes.length)
	                                              : base64(arena, "base64:", bytes);
}

/* ---- headers */

/*
 * Handlers see one name for the content type, from any broker: NATS writes it in capitals, Kafka in
 * lower case, RabbitMQ has it as a property.
 */
static const char *name_of(const char *name)
{
	return strcasecmp(name, "content-type") == 0 ? "content-type" : name;
}

/*
 * A header's value in JSON: text as a string; other bytes as {"base64": "..."}, which no text looks
 * like.
 */
static const char *header_json(arena *arena, once_bytes value)
{
	if (value.data == NULL) {
		return "null";
	}
	if (utf8_is_text(value.data, value.length)) {
		return json_text_quote(arena, arena_text(arena, value.data, value.length));
	}
	return arena_format(arena, "{\"base64\": \"%s\"}", base64(arena, "", value));
}

static const char *bad_name(const source_message *delivery)
{
	for (size_t i = 0; i < delivery->header_count; i++) {
		const char *name = delivery->headers[i].name;
		if (!utf8_is_text(name, strlen(name))) {
			return name;
		}
	}
	return NULL;
}

/*
 * An object; for a repeated name jsonb keeps the last value. If one name is not text, all names are
 * escaped: if only that one were, it could become another header's name and hide its value.
 */
static const char *headers_json(const source_message *delivery, bool names_are_text, arena *arena)
{
	char *json = NULL;
	size_t size = 0;
	FILE *to = open_memstream(&json, &size);

	for (size_t i = 0; to != NULL && i < delivery->header_count; i++) {
		const source_header *header = &delivery->headers[i];
		const char *name = names_are_text ? name_of(header->name) : escaped(arena, header->name, strlen(header->name));
		fprintf(to, "%s%s: %s", i == 0 ? "" : ", ", json_text_quote(arena, name), header_json(arena, header->value));
	}
	if (to == NULL || fclose(to) != 0) {
		memory_out();
	}
	const char *text = arena_format(arena, "{%s}", json);
	free(json);
	return text;
}

static once_bytes decoded(arena *arena, const char *text)
{
	size_t length = strlen(text);
	unsigned char *bytes = arena_take(arena, length + 1);
	int written = EVP_DecodeBlock(bytes, (const unsigned char *)text, (int)length);
	size_t padding = length >= 2 ? (size_t)(text[length - 1] == '=') + (text[length - 2] == '=') : 0;

	size_t used = written < (int)padding ? 0 : (size_t)written - padding;

	bytes[used] = '\0'; /* a caller that sends it on as a header takes it for text */
	return (once_bytes){.data = bytes, .length = used};
}

source_header *message_headers(const char *json, arena *arena, size_t *count)
{
	json_t *object = json_loads(json == NULL ? "{}" : json, 0, NULL);
	source_header *headers = arena_take(arena, (json_object_size(object) + 1) * sizeof *headers);
	const char *name = NULL;
	json_t *value = NULL;

	*count = 0;
	json_object_foreach(object, name, value)
	{
		const char *encoded = json_string_value(json_object_get(value, "base64"));
		const char *text = json_string_value(value);
		headers[(*count)++] = (source_header){
		    .name = arena_text(arena, name, strlen(name)),
		    .value = encoded != NULL ? decoded(arena, encoded)
		             : text != NULL
		                 ? (once_bytes){.data = arena_text(arena, text, strlen(text)), .length = strlen(text)}
		                 : (once_bytes){0},
		};
	}
	json_decref(object);
	return headers;
}

const char *message_trace(const source_header *headers, size_t count, arena *arena)
{
	const char *found = NULL;

	for (size_t i = 0; i < count; i++) {
		if (strcasecmp(headers[i].name, "traceparent") != 0) {
			continue;
		}
		const once_bytes value = headers[i].value;
		if (found != NULL || value.data == NULL || memchr(value.data, '\0', value.length) != NULL) {
			return NULL;
		}
		found = arena_text(arena, value.data, value.length);
	}
	return once_traceparent_valid(found) ? found : NULL;
}

/* ---- a message */

/* An id that no other message has, even one with the same id. */
static const char *unusable_id(const message *message, arena *arena)
{
	const source_message *delivery = message->delivery;
	const char *id = message->id == NULL ? "" : message->id;
	const char *coordinates = delivery->coordinates == NULL ? "" : delivery->coordinates;
	/* the whole topic, not the shortened one */
	const char *topic = delivery->topic == NULL ? "" : delivery->topic;
	const piece pieces[] = {{id, strlen(id)},
	                        {coordinates, strlen(coordinates)},
	                        {topic, strlen(topic)},
	                        {message->headers, strlen(message->headers)},
	                        {delivery->payload.data, delivery->payload.data == NULL ? 0 : delivery->payload.length}};

	return hashed(arena, UNUSABLE_ID_PREFIX, pieces, sizeof pieces / sizeof pieces[0]);
}

void message_refuse(message *message, arena *arena, const char *code, const char *format, ...)
{
	char text[1024];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof text, format, arguments);
	va_end(arguments);
	if (message->delivery != NULL) { /* a parked message already has an id in the inbox */
		message->id = unusable_id(message, arena);
	}
	message->unusable = arena_text(arena, text, strlen(text));
	/* copied: it may belong to a result */
	message->unusable_code = arena_text(arena, code, strlen(code));
}

void message_identify(source_message *delivery, const origin *id, const origin *key, arena *arena, message *message)
{
	const char *topic = delivery->topic == NULL ? "" : delivery->topic;
	const char *why = NULL;
	const char *ignored = NULL;
	const char *bad = bad_name(delivery);
	bool topic_is_text = utf8_is_text(topic, strlen(topic));

	*message = (struct message){.delivery = delivery, .payload = delivery->payload};
	message->topic = topic_is_text ? topic : shown(arena, topic, strlen(topic));
	message->json = json_text_check(delivery->payload);
	message->key = key_of_bytes(arena, bytes_at(delivery, key, arena, &ignored));
	message->line = key->kind == ORIGIN_KEY ? line_of(delivery->headers, delivery->header_count, message->key, arena)
	                                        : message->key;
	message->headers = headers_json(delivery, bad == NULL, arena);
	message->traceparent = message_trace(delivery->headers, delivery->header_count, arena);
	once_bytes bytes = bytes_at(delivery, id, arena, &why);
	if (bytes.data == NULL) {
		message_refuse(message, arena, CODE_NO_ID,
		               "the message has no id: %s; send it with one, or set `id =` to where it is", why);
		return;
	}
	message->id = id_of_bytes(arena, bytes, id->opaque);
	if (delivery->undecoded != NULL) {
		message_refuse(message, arena, CODE_UNDECODED, "the message's payload cannot be decoded: %s",
		               delivery->undecoded);
	} else if (!topic_is_text) {
		message_refuse(message, arena, CODE_NO_TEXT, "the message's topic is not UTF-8: %s", message->topic);
	} else if (bad != NULL) {
		message_refuse(message, arena, CODE_NO_TEXT, "the name of one of the message's headers is not UTF-8: %s",
		               shown(arena, bad, strlen(bad)));
	}
}
