/* SPDX-License-Identifier: PostgreSQL */
/* aws_attributes.c: see aws_attributes.h. Source: the SQS developer guide, "Message metadata". */
#include "aws_attributes.h"

#include <ctype.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "aws_sign.h"
#include "memory.h"

enum {
	NAME_BYTES_MAX = 256,
	GROUP_BYTES_MAX = 128
};

static bool is_name(const char *name)
{
	size_t length = strlen(name);

	if (length == 0 || length > NAME_BYTES_MAX || name[0] == '.' || name[length - 1] == '.' ||
	    strstr(name, "..") != NULL || strncasecmp(name, "AWS.", 4) == 0 || strncasecmp(name, "Amazon.", 7) == 0 ||
	    strcmp(name, AWS_REST_NAME) == 0) {
		return false;
	}
	for (const char *at = name; *at != '\0'; at++) {
		if (!isalnum((unsigned char)*at) && strchr("_-.", *at) == NULL) {
			return false;
		}
	}
	return true;
}

/* The text as JSON; NULL if it is not UTF-8, which jansson requires. */
static json_t *text_of(once_bytes value)
{
	return json_stringn(value.length == 0 ? "" : value.data, value.length);
}

/* True: text without the control characters that an attribute may not contain. */
static bool is_text(once_bytes value)
{
	json_t *text = text_of(value);
	bool is = text != NULL;

	json_decref(text);
	for (size_t i = 0; is && i < value.length; i++) {
		unsigned char c = ((const unsigned char *)value.data)[i];
		is = c >= ' ' || c == '\t' || c == '\n' || c == '\r';
	}
	return is;
}

bool aws_attribute_is_binary(const aws_header *header)
{
	return !is_text(header->value);
}

/* U+FFFE and U+FFFF are valid UTF-8, but refused. */
static bool has_noncharacter(once_bytes body)
{
	const unsigned char *bytes = body.data;

	for (size_t i = 0; i + 2 < body.length; i++) {
		if (bytes[i] == 0xef && bytes[i + 1] == 0xbf && bytes[i + 2] >= 0xbe) {
			return true;
		}
	}
	return false;
}

bool aws_body_is_text(once_bytes body)
{
	return body.length > 0 && is_text(body) && !has_noncharacter(body);
}

char *aws_base64(once_bytes value)
{
	char *text = memory_take((value.length + 2) / 3 * 4 + 1);

	EVP_EncodeBlock((unsigned char *)text, value.length == 0 ? (const void *)"" : value.data, (int)value.length);
	return text;
}

static json_t *encoded(once_bytes value)
{
	char *text = aws_base64(value);
	json_t *json = json_string(text);

	free(text);
	return json;
}

static bool has_name(const aws_attributes *attributes, const char *name)
{
	for (size_t i = 0; i < attributes->count; i++) {
		if (strcmp(attributes->items[i].name, name) == 0) {
			return true;
		}
	}
	return false;
}

/* True: it can be an attribute. Empty values cannot. */
static bool fits(const aws_attributes *attributes, const aws_header *header)
{
	return is_name(header->name) && header->value.length > 0 && !has_name(attributes, header->name);
}

void aws_attributes_make(const aws_header *headers, size_t count, aws_attributes *attributes)
{
	size_t room = AWS_ATTRIBUTES_MAX;
	json_t *rest = NULL;

	/* At most two passes: with all ten attributes for headers, or with nine and the rest in the
	 * tenth. */
	for (bool whole = false; !whole; room--) {
		whole = true;
		json_decref(rest);
		rest = NULL;
		*attributes = (aws_attributes){0};
		for (size_t i = 0; i < count; i++) {
			if (attributes->count < room && fits(attributes, &headers[i])) {
				attributes->items[attributes->count++] = headers[i];
				continue;
			}
			whole = room < AWS_ATTRIBUTES_MAX;
			rest = rest == NULL ? json_object() : rest;
			const char *name = headers[i].name;
			json_t *value = is_text(headers[i].value) ? text_of(headers[i].value)
			                                          : json_pack("{s:o}", "base64", encoded(headers[i].value));
			json_object_set_new(rest, name, value);
		}
	}
	if (rest != NULL) {
		attributes->rest = json_dumps(rest, JSON_COMPACT);
		json_decref(rest);
		if (attributes->rest == NULL) {
			memory_out();
		}
		attributes->items[attributes->count++] = (aws_header){
		    .name = AWS_REST_NAME, .value = {.data = attributes->rest, .length = strlen(attributes->rest)}};
	}
}

void aws_attributes_clear(aws_attributes *attributes)
{
	free(attributes->rest);
	*attributes = (aws_attributes){0};
}

size_t aws_attributes_bytes(const aws_attributes *attributes)
{
	size_t bytes = 0;

	for (size_t i = 0; i < attributes->count; i++) {
		bytes += strlen(attributes->items[i].name) + strlen("String") + attributes->items[i].value.length;
	}
	return bytes;
}

json_t *aws_attributes_json(const aws_attributes *attributes)
{
	json_t *object = json_object();

	for (size_t i = 0; i < attributes->count; i++) {
		const aws_header *each = &attributes->items[i];
		json_t *value = aws_attribute_is_binary(each)
		                    ? json_pack("{s:s, s:o}", "DataType", "Binary", "BinaryValue", encoded(each->value))
		                    : json_pack("{s:s, s:o}", "DataType", "String", "StringValue", text_of(each->value));
		json_object_set_new(object, each->name, value);
	}
	return object;
}

/* ASCII letters, digits and punctuation, without our prefix. */
static bool is_group(once_bytes key)
{
	const char *text = key.data;

	for (size_t i = 0; i < key.length; i++) {
		if (text[i] <= ' ' || text[i] > '~') {
			return false;
		}
	}
	return key.length > 0 && key.length <= GROUP_BYTES_MAX &&
	       !(key.length >= strlen("pgonce:") && memcmp(text, "pgonce:", strlen("pgonce:")) == 0);
}

void aws_group(once_bytes key, const char *id, char group[AWS_GROUP_BYTES])
{
	char hex[AWS_SHA256_HEX_BYTES];

	if (key.data == NULL) {
		snprintf(group, AWS_GROUP_BYTES, AWS_GROUP_OF_ONE "%.100s", id);
	} else if (is_group(key)) {
		snprintf(group, AWS_GROUP_BYTES, "%.*s", (int)key.length, (const char *)key.data);
	} else if (aws_sha256_hex(key, hex)) {
		snprintf(group, AWS_GROUP_BYTES, AWS_GROUP_HASHED "%s", hex);
	} else {
		abort(); /* without a hash, keys would collide */
	}
}
