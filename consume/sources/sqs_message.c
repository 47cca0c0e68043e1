/* SPDX-License-Identifier: PostgreSQL */
/* sqs_message.c: see sqs_message.h. */
#include "sqs_message.h"

#include <openssl/evp.h>
#include <openssl/rand.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arena.h"
#include "aws_sign.h"
#include "sqs.h"

#define KEY_HEADER "Pgonce-Key"

static const char *text_at(const json_t *object, const char *name)
{
	return json_string_value(json_object_get(object, name));
}

static size_t decoded_bytes(const char *base64)
{
	return strlen(base64) / 4 * 3;
}

/* Decodes Base64 into *place, which advances; data NULL: not Base64. */
static once_bytes decode(const char *base64, char **place)
{
	size_t length = strlen(base64);
	char *to = *place;
	int bytes = length % 4 == 0 ? EVP_DecodeBlock((unsigned char *)to, (const unsigned char *)base64, (int)length) : -1;

	if (bytes < 0) {
		return (once_bytes){0};
	}
	for (size_t i = length; i > 0 && base64[i - 1] == '=' && bytes > 0; i--) {
		bytes--;
	}
	*place += bytes + 1;
	return (once_bytes){.data = to, .length = (size_t)bytes};
}

/* ---- headers */

static once_bytes bytes_of_text(const json_t *text)
{
	return (once_bytes){.data = json_string_value(text), .length = json_string_length(text)};
}

/* An attribute's value: text unchanged; bytes decoded, into *place. */
static once_bytes value_of(const json_t *attribute, char **place)
{
	const char *binary = text_at(attribute, "BinaryValue");

	return binary != NULL ? decode(binary, place) : bytes_of_text(json_object_get(attribute, "StringValue"));
}

/* A value packed by our own sink: a text, or {"base64": ...}. */
static once_bytes packed_value(const json_t *value, char **place)
{
	const char *base64 = text_at(value, "base64");

	return base64 != NULL ? decode(base64, place) : bytes_of_text(value);
}

/* The content of the attribute in which our own sink packs headers without an attribute; NULL:
 * none. */
static json_t *unpacked(const json_t *attributes)
{
	const char *text = text_at(json_object_get(attributes, AWS_REST_NAME), "StringValue");
	json_t *packed = text == NULL ? NULL : json_loads(text, 0, NULL);

	if (packed != NULL && !json_is_object(packed)) {
		json_decref(packed);
		packed = NULL;
	}
	return packed;
}

static size_t binary_bytes(json_t *attributes, const char *member)
{
	const char *name;
	json_t *each;
	size_t bytes = 0;

	json_object_foreach(attributes, name, each)
	{
		const char *binary = text_at(each, member);
		bytes += binary == NULL ? 0 : decoded_bytes(binary) + 1;
	}
	return bytes;
}

static void add_headers(delivery *made, json_t *attributes, json_t *packed, char **place)
{
	source_header *header = made->headers;
	const char *name;
	json_t *each;

	json_object_foreach(attributes, name, each)
	{
		if (packed == NULL || strcmp(name, AWS_REST_NAME) != 0) {
			*header++ = (source_header){.name = name, .value = value_of(each, place)};
		}
	}
	json_object_foreach(packed, name, each)
	{
		*header++ = (source_header){.name = name, .value = packed_value(each, place)};
	}
	made->message.header_count = (size_t)(header - made->headers);
}

/* ---- a body that is not text */

static const source_header *find_header(const delivery *made, const char *name)
{
	for (size_t i = 0; i < made->message.header_count; i++) {
		if (strcmp(made->headers[i].name, name) == 0) {
			return &made->headers[i];
		}
	}
	return NULL;
}

/* An upper limit of the decoded body's size. */
static size_t body_bytes(const json_t *attributes, const json_t *packed, const json_t *body)
{
	bool is_encoded = json_object_get(attributes, AWS_BODY_ENCODING_NAME) != NULL ||
	                  json_object_get(packed, AWS_BODY_ENCODING_NAME) != NULL;

	return is_encoded ? decoded_bytes(json_string_value(body)) + 1 : 0;
}

static bool is_text_of(once_bytes value, const char *text)
{
	return value.length == strlen(text) && memcmp(value.data, text, value.length) == 0;
}

/* RFC 4648, section 4, with its padding and nothing else: libcrypto accepts more. */
static bool is_base64(const json_t *body)
{
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	const char *text = json_string_value(body);
	size_t length = json_string_length(body), used = strspn(text, digits);

	return length % 4 == 0 && length - used <= 2 && strspn(text + used, "=") == length - used;
}

static void drop_header(delivery *made, const char *name)
{
	size_t kept = 0;

	for (size_t i = 0; i < made->message.header_count; i++) {
		if (strcmp(made->headers[i].name, name) != 0) {
			made->headers[kept++] = made->headers[i];
		}
	}
	made->message.header_count = kept;
}

/*
 * If our own sink says that the body is encoded: restores the producer's payload, and removes that
 * header. Otherwise the body is unchanged.
 */
static void undo_encoding(delivery *made, char **place)
{
	const json_t *body = json_object_get(made->owned, "Body");
	const source_header *encoding = find_header(made, AWS_BODY_ENCODING_NAME);

	if (encoding == NULL) {
		return;
	}
	if (!is_text_of(encoding->value, AWS_BODY_ENCODING)) {
		made->message.undecoded =
		    "its attribute " AWS_BODY_ENCODING_NAME " names an encoding that is not known here: is the relay newer?";
	} else if (!is_base64(body)) {
		made->message.undecoded =
		    "its attribute " AWS_BODY_ENCODING_NAME " says " AWS_BODY_ENCODING ", but its body is not base64";
	} else {
		made->message.payload = decode(json_string_value(body), place);
		json_object_del(made->owned, "Body");
		drop_header(made, AWS_BODY_ENCODING_NAME);
	}
}

/* ---- a message */

static bool begins_with(const char *text, const char *prefix)
{
	return strncmp(text, prefix, strlen(prefix)) == 0;
}

const char *sqs_message_group(const delivery *delivery)
{
	const char *group = text_at(json_object_get(delivery->owned, "Attributes"), "MessageGroupId");

	return group == NULL ? "" : group;
}

/* The key: the group; if our own sink made the group up, the key is in the headers, or there is
 * none. */
static once_bytes key_of(const delivery *delivery)
{
	const char *group = sqs_message_group(delivery);

	if (group[0] == '\0' || begins_with(group, AWS_GROUP_OF_ONE) ||
	    (begins_with(group, AWS_GROUP_HASHED) && find_header(delivery, KEY_HEADER) != NULL)) {
		return (once_bytes){0};
	}
	return (once_bytes){.data = group, .length = strlen(group)};
}

delivery *sqs_message_wrap(json_t *message, const char *queue)
{
	const char *id = text_at(message, "MessageId"), *handle = text_at(message, "ReceiptHandle");
	const json_t *body = json_object_get(message, "Body");
	json_t *attributes = json_object_get(message, "MessageAttributes");
	const char *sent = text_at(json_object_get(message, "Attributes"), "SentTimestamp");
	char *text = NULL;

	if (id == NULL || handle == NULL || !json_is_string(body)) {
		return NULL;
	}
	json_t *packed = unpacked(attributes);
	size_t coordinates_bytes = strlen(queue) + strlen(id) + 2;
	size_t text_bytes = coordinates_bytes + binary_bytes(attributes, "BinaryValue") + binary_bytes(packed, "base64") +
	                    body_bytes(attributes, packed, body);
	delivery *made = delivery_new(json_object_size(attributes) + json_object_size(packed), text_bytes + 4, &text);
	made->owned = json_incref(message);
	if (packed != NULL) {
		/* Headers borrow from it: it lives as long as the message. */
		json_object_set_new(message, AWS_REST_NAME, packed);
	}
	made->reply = handle;
	made->created_ms = sent == NULL ? 0 : strtoll(sent, NULL, 10);
	made->message.topic = queue;
	made->message.payload = bytes_of_text(body);
	made->message.coordinates = text;
	text += snprintf(text, coordinates_bytes, "%s/%s", queue, id) + 1;
	add_headers(made, attributes, packed, &text);
	undo_encoding(made, &text);
	made->message.key = key_of(made);
	return made;
}

void sqs_message_empty(delivery *delivery)
{
	delivery->message.payload = (once_bytes){0};
	json_object_del(delivery->owned, "Body");
}

void sqs_message_release(delivery *delivery)
{
	json_decref(delivery->owned);
	free(delivery);
}

/* ---- from a delivery to a message */

bool sqs_message_id(char id[AWS_SHA256_HEX_BYTES])
{
	unsigned char bytes[16];

	if (RAND_bytes(bytes, sizeof bytes) != 1) {
		return false;
	}
	for (size_t i = 0; i < sizeof bytes; i++) {
		snprintf(id + 2 * i, 3, "%02x", bytes[i]);
	}
	return true;
}

json_t *sqs_message_copy(const source_message *message, const source_header *more, size_t more_count, bool fifo)
{
	aws_header *headers = memory_array(NULL, message->header_count + more_count + 1, sizeof *headers);
	aws_attributes attributes;
	char group[AWS_GROUP_BYTES], id[AWS_SHA256_HEX_BYTES];
	once_bytes body = message->payload;
	char *encoded = NULL;
	size_t count = 0;
	json_t *copy = NULL;

	if (!aws_body_is_text(body)) {
		encoded = aws_base64(body);
		body = (once_bytes){.data = encoded, .length = strlen(encoded)};
		headers[count++] = (aws_header){.name = AWS_BODY_ENCODING_NAME,
		                                .value = {.data = AWS_BODY_ENCODING, .length = strlen(AWS_BODY_ENCODING)}};
	}
	/* The copy's own headers come first: the others may have to share an attribute. */
	for (size_t i = 0; i < more_count; i++) {
		headers[count++] = (aws_header){.name = more[i].name, .value = more[i].value};
	}
	for (size_t i = 0; i < message->header_count; i++) {
		headers[count++] = (aws_header){.name = message->headers[i].name, .value = message->headers[i].value};
	}
	aws_attributes_make(headers, count, &attributes);
	/* For this copy alone: sending one twice is better than taking it for another. */
	if (sqs_message_id(id)) {
		aws_group(message->key, id, group);
		copy = sqs_message(body, &attributes, fifo ? group : NULL, id);
	}
	aws_attributes_clear(&attributes);
	free(headers);
	free(encoded);
	return copy;
}
