/* SPDX-License-Identifier: PostgreSQL */
/* amqp_text.c: see amqp_text.h. */
#include "amqp_text.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "arena.h"

enum {
	NUMBER_BYTES = 64,
	SIZE_FIRST = 1024
};

/* ---- The buffer ---- */

/* Each pair is name NUL length value NUL; the length keeps bytes that contain a NUL whole. */

void text_buffer_free(text_buffer *buffer)
{
	free(buffer->data);
	*buffer = (text_buffer){0};
}

static void append(text_buffer *buffer, const void *data, size_t length)
{
	if (length == 0) {
		return; /* there may be no memory yet */
	}
	if (buffer->length + length > buffer->size) {
		size_t size = buffer->size == 0 ? SIZE_FIRST : buffer->size;
		while (size < buffer->length + length) {
			size *= 2;
		}
		buffer->data = memory_grow(buffer->data, size);
		buffer->size = size;
	}
	memcpy(buffer->data + buffer->length, data, length);
	buffer->length += length;
}

static void append_pair(text_buffer *buffer, amqp_bytes_t name, const void *value, size_t value_length)
{
	/* A NUL would end the name early; AMQP allows it in short strings, but no real name has one. */
	size_t name_length = name.len == 0 ? 0 : strnlen(name.bytes, name.len);

	append(buffer, name_length == 0 ? "" : name.bytes, name_length);
	append(buffer, "", 1);
	append(buffer, &value_length, sizeof value_length);
	append(buffer, value == NULL ? "" : value, value_length);
	append(buffer, "", 1);
}

size_t amqp_text_pair(const text_buffer *buffer, size_t at, source_header *header)
{
	header->name = buffer->data + at;
	at += strlen(header->name) + 1;
	memcpy(&header->value.length, buffer->data + at, sizeof header->value.length);
	at += sizeof header->value.length;
	header->value.data = buffer->data + at;
	return at + header->value.length + 1;
}

/* ---- Single values ---- */

static void format_decimal(const amqp_decimal_t *decimal, char text[NUMBER_BYTES])
{
	char digits[NUMBER_BYTES];
	int scale = decimal->decimals;

	if (scale > NUMBER_BYTES / 2) {
		snprintf(text, NUMBER_BYTES, "%" PRIu32 "e-%d", decimal->value, scale);
		return;
	}
	/* At least one digit before the point. */
	int before = snprintf(digits, sizeof digits, "%0*" PRIu32, scale + 1, decimal->value) - scale;
	snprintf(text, NUMBER_BYTES, "%.*s%s%.*s", before, digits, scale == 0 ? "" : ".", scale, digits + before);
}

static void format_time(uint64_t seconds, char text[NUMBER_BYTES])
{
	time_t when = (time_t)seconds;
	struct tm parts;

	if (seconds > INT64_MAX / 2 || gmtime_r(&when, &parts) == NULL ||
	    strftime(text, NUMBER_BYTES, "%Y-%m-%dT%H:%M:%SZ", &parts) == 0) {
		snprintf(text, NUMBER_BYTES, "%" PRIu64, seconds);
	}
}

/* Numbers, times, booleans. False: another type. */
static bool format(const amqp_field_value_t *value, char text[NUMBER_BYTES])
{
	switch (value->kind) {
	case AMQP_FIELD_KIND_BOOLEAN:
		snprintf(text, NUMBER_BYTES, "%s", value->value.boolean ? "true" : "false");
		return true;
	case AMQP_FIELD_KIND_I8:
		snprintf(text, NUMBER_BYTES, "%d", value->value.i8);
		return true;
	case AMQP_FIELD_KIND_U8:
		snprintf(text, NUMBER_BYTES, "%d", value->value.u8);
		return true;
	case AMQP_FIELD_KIND_I16:
		snprintf(text, NUMBER_BYTES, "%d", value->value.i16);
		return true;
	case AMQP_FIELD_KIND_U16:
		snprintf(text, NUMBER_BYTES, "%d", value->value.u16);
		return true;
	case AMQP_FIELD_KIND_I32:
		snprintf(text, NUMBER_BYTES, "%" PRId32, value->value.i32);
		return true;
	case AMQP_FIELD_KIND_U32:
		snprintf(text, NUMBER_BYTES, "%" PRIu32, value->value.u32);
		return true;
	case AMQP_FIELD_KIND_I64:
		snprintf(text, NUMBER_BYTES, "%" PRId64, value->value.i64);
		return true;
	case AMQP_FIELD_KIND_U64:
		snprintf(text, NUMBER_BYTES, "%" PRIu64, value->value.u64);
		return true;
	case AMQP_FIELD_KIND_F32:
		snprintf(text, NUMBER_BYTES, "%.9g", (double)value->value.f32);
		return true;
	case AMQP_FIELD_KIND_F64:
		snprintf(text, NUMBER_BYTES, "%.17g", value->value.f64);
		return true;
	case AMQP_FIELD_KIND_DECIMAL:
		format_decimal(&value->value.decimal, text);
		return true;
	case AMQP_FIELD_KIND_TIMESTAMP:
		format_time(value->value.u64, text);
		return true;
	default:
		return false;
	}
}

/* ---- Tables and lists ---- */

/* Bytes that are not UTF-8 are read as ISO 8859-1, since JSON has no bytes. */
static json_t *json_text(amqp_bytes_t bytes)
{
	json_t *text = json_stringn(bytes.len == 0 ? "" : bytes.bytes, bytes.len);
	size_t length = 0;

	if (text != NULL) {
		return text;
	}
	char *wide = memory_take(2 * bytes.len + 1);
	for (size_t i = 0; i < bytes.len; i++) {
		unsigned char byte = ((const unsigned char *)bytes.bytes)[i];
		if (byte >= 0x80) {
			wide[length++] = (char)(0xC0 | byte >> 6);
			byte = 0x80 | (byte & 0x3F);
		}
		wide[length++] = (char)byte;
	}
	text = json_stringn(wide, length);
	free(wide);
	return text;
}

static json_t *json_of(const amqp_field_value_t *value);

static json_t *json_table(const amqp_table_t *table)
{
	json_t *object = json_object();

	for (int i = 0; i < table->num_entries; i++) {
		json_t *key = json_text(table->entries[i].key);
		json_object_set_new(object, json_string_value(key), json_of(&table->entries[i].value));
		json_decref(key);
	}
	return object;
}

/* librabbitmq limits how deeply they are nested. */
static json_t *json_of(const amqp_field_value_t *value)
{
	char text[NUMBER_BYTES];

	switch (value->kind) {
	case AMQP_FIELD_KIND_TABLE:
		return json_table(&value->value.table);
	case AMQP_FIELD_KIND_ARRAY: {
		json_t *list = json_array();
		for (int i = 0; i < value->value.array.num_entries; i++) {
			json_array_append_new(list, json_of(&value->value.array.entries[i]));
		}
		return list;
	}
	case AMQP_FIELD_KIND_UTF8:
	case AMQP_FIELD_KIND_BYTES:
		return json_text(value->value.bytes);
	case AMQP_FIELD_KIND_BOOLEAN:
		return json_boolean(value->value.boolean);
	case AMQP_FIELD_KIND_TIMESTAMP:
		format_time(value->value.u64, text);
		return json_string(text);
	default:
		break;
	}
	if (!format(value, text)) {
		return json_null();
	}
	json_t *number = json_loads(text, JSON_DECODE_ANY, NULL);
	return number != NULL ? number : json_string(text); /* NaN, or more than 64 bits */
}

/* ---- A whole message ---- */

static void append_value(text_buffer *buffer, amqp_bytes_t name, const amqp_field_value_t *value)
{
	char text[NUMBER_BYTES];

	if (value->kind == AMQP_FIELD_KIND_UTF8 || value->kind == AMQP_FIELD_KIND_BYTES) {
		append_pair(buffer, name, value->value.bytes.bytes, value->value.bytes.len);
	} else if (value->kind == AMQP_FIELD_KIND_TABLE || value->kind == AMQP_FIELD_KIND_ARRAY) {
		json_t *json = json_of(value);
		char *dumped = json_dumps(json, JSON_COMPACT);
		if (dumped == NULL) {
			memory_out();
		}
		append_pair(buffer, name, dumped, strlen(dumped));
		free(dumped);
		json_decref(json);
	} else if (format(value, text)) {
		append_pair(buffer, name, text, strlen(text));
	} else {
		append_pair(buffer, name, "", 0);
	}
}

size_t amqp_text_headers(const amqp_basic_properties_t *properties, text_buffer *buffer)
{
	const struct {
		amqp_flags_t flag;
		const char *name;
		amqp_bytes_t value;
	} texts[] = {
	    {AMQP_BASIC_CONTENT_TYPE_FLAG, "content-type", properties->content_type},
	    {AMQP_BASIC_CONTENT_ENCODING_FLAG, "content-encoding", properties->content_encoding},
	    {AMQP_BASIC_CORRELATION_ID_FLAG, "correlation-id", properties->correlation_id},
	    {AMQP_BASIC_REPLY_TO_FLAG, "reply-to", properties->reply_to},
	    {AMQP_BASIC_MESSAGE_ID_FLAG, "message-id", properties->message_id},
	    {AMQP_BASIC_TYPE_FLAG, "type", properties->type},
	    {AMQP_BASIC_USER_ID_FLAG, "user-id", properties->user_id},
	    {AMQP_BASIC_APP_ID_FLAG, "app-id", properties->app_id},
	};
	size_t count = 0;

	buffer->length = 0;
	for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
		if (properties->_flags & texts[i].flag) {
			append_pair(buffer, amqp_cstring_bytes(texts[i].name), texts[i].value.bytes, texts[i].value.len);
			count++;
		}
	}
	if (properties->_flags & AMQP_BASIC_TIMESTAMP_FLAG) {
		append_value(buffer, amqp_cstring_bytes("timestamp"),
		             &(amqp_field_value_t){.kind = AMQP_FIELD_KIND_TIMESTAMP, .value.u64 = properties->timestamp});
		count++;
	}
	for (int i = 0; properties->_flags & AMQP_BASIC_HEADERS_FLAG && i < properties->headers.num_entries; i++) {
		append_value(buffer, properties->headers.entries[i].key, &properties->headers.entries[i].value);
		count++;
	}
	return count;
}
