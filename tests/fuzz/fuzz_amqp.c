/* SPDX-License-Identifier: PostgreSQL */
/*
 * fuzz_amqp.c: a message's properties and headers as RabbitMQ sends them, decoded by librabbitmq,
 * as text: as many pairs as there are properties and headers, in a buffer that they fill to its
 * end; text and bytes as they were; tables and lists as JSON. tests/fuzz/test_fuzz.py builds and
 * runs it. Input: the frame's payload after the body's size: flags, then the properties.
 */
#include <jansson.h>

#include "fuzz.h"
#include "sources/amqp_text.h"

static void check_header(const amqp_table_entry_t *entry, const source_header *header)
{
	size_t name_length = entry->key.len == 0 ? 0 : strnlen(entry->key.bytes, entry->key.len);
	const amqp_field_value_t *value = &entry->value;

	must(strlen(header->name) == name_length &&
	     memcmp(header->name, entry->key.len == 0 ? "" : entry->key.bytes, name_length) == 0);
	if (value->kind == AMQP_FIELD_KIND_UTF8 || value->kind == AMQP_FIELD_KIND_BYTES) {
		must(header->value.length == value->value.bytes.len);
		must(header->value.length == 0 ||
		     memcmp(header->value.data, value->value.bytes.bytes, header->value.length) == 0);
	} else if (value->kind == AMQP_FIELD_KIND_TABLE || value->kind == AMQP_FIELD_KIND_ARRAY) {
		json_t *json = json_loadb(header->value.data, header->value.length, JSON_ALLOW_NUL, NULL);
		must(value->kind == AMQP_FIELD_KIND_TABLE ? json_is_object(json) : json_is_array(json));
		must(value->kind == AMQP_FIELD_KIND_TABLE ? json_object_size(json) <= (size_t)value->value.table.num_entries
		                                          : json_array_size(json) == (size_t)value->value.array.num_entries);
		json_decref(json);
	} else {
		must(header->value.length < 64 && strlen(header->value.data) == header->value.length);
	}
}

static void check_properties(const amqp_basic_properties_t *properties)
{
	text_buffer buffer = {0};
	size_t count = amqp_text_headers(properties, &buffer);
	size_t table = properties->_flags & AMQP_BASIC_HEADERS_FLAG ? (size_t)properties->headers.num_entries : 0;
	size_t at = 0;

	must(count >= table && count <= table + 9);
	for (size_t i = 0; i < count; i++) {
		source_header header = {0};
		must(at < buffer.length);
		at = amqp_text_pair(&buffer, at, &header);
		must(at <= buffer.length && ((const char *)header.value.data)[header.value.length] == '\0');
		if (i >= count - table) {
			check_header(&properties->headers.entries[i - (count - table)], &header);
		}
	}
	must(at == buffer.length);
	text_buffer_free(&buffer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	amqp_pool_t pool;
	void *decoded = NULL;
	input in = {data, size};
	char *copy = take_bytes(&in, size);

	init_amqp_pool(&pool, 4096);
	if (amqp_decode_properties(AMQP_BASIC_CLASS, &pool, (amqp_bytes_t){.len = size, .bytes = copy}, &decoded) ==
	    AMQP_STATUS_OK) {
		check_properties(decoded);
	}
	empty_amqp_pool(&pool);
	free(copy);
	return 0;
}
