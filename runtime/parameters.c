/* SPDX-License-Identifier: PostgreSQL */
/*
 * parameters.c: see parameters.h. The format of arrays: array_recv in PostgreSQL's arrayfuncs.c; of
 * jsonb: jsonb_recv.
 */
#include "parameters.h"

#include <assert.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"

enum {
	ARRAY_HEAD_BYTES = 20, /* dimensions, has nulls, element's type, size, lower bound */
	JSONB_VERSION = 1
};

/* From PostgreSQL's pg_type.dat: these numbers never change. */
static const struct {
	Oid element, array;
} oids[] = {
    [PARAMETER_TEXT] = {25, 1009},    [PARAMETER_BYTEA] = {17, 1001},   [PARAMETER_JSONB] = {3802, 3807},
    [PARAMETER_BOOLEAN] = {16, 1000}, [PARAMETER_INTEGER] = {23, 1007}, [PARAMETER_BIGINT] = {20, 1016},
    [PARAMETER_XID8] = {5069, 271},
};

static void put_int32(unsigned char *at, uint32_t number)
{
	at[0] = (unsigned char)(number >> 24);
	at[1] = (unsigned char)(number >> 16);
	at[2] = (unsigned char)(number >> 8);
	at[3] = (unsigned char)number;
}

static unsigned char *append(parameter *parameter, size_t length)
{
	if (parameter->capacity - parameter->length < length) {
		parameter->capacity = (parameter->length + length) * 2;
		parameter->data = memory_grow(parameter->data, parameter->capacity);
	}
	unsigned char *at = parameter->data + parameter->length;
	parameter->length += length;
	return at;
}

static parameter *add(parameters *parameters, parameter_type type)
{
	assert(parameters->count < PARAMETERS_MAX);
	parameter *added = &parameters->list[parameters->count++];
	*added = (parameter){.type = type};
	return added;
}

static void put_bytes(parameter *parameter, const void *data, size_t length)
{
	parameter->is_null = data == NULL;
	/* not NULL, which would be SQL's NULL */
	unsigned char *at = append(parameter, length > 0 ? length : 1);
	parameter->length = length;
	if (data != NULL && length > 0) {
		memcpy(at, data, length);
	}
}

void parameters_text(parameters *parameters, const char *text)
{
	put_bytes(add(parameters, PARAMETER_TEXT), text, text == NULL ? 0 : strlen(text));
}

void parameters_bytes(parameters *parameters, const void *data, size_t length)
{
	put_bytes(add(parameters, PARAMETER_BYTEA), data, length);
}

void parameters_integer(parameters *parameters, int32_t number)
{
	unsigned char bytes[4];

	put_int32(bytes, (uint32_t)number);
	put_bytes(add(parameters, PARAMETER_INTEGER), bytes, sizeof bytes);
}

static void put_int64(unsigned char *at, int64_t number)
{
	put_int32(at, (uint32_t)((uint64_t)number >> 32));
	put_int32(at + 4, (uint32_t)number);
}

void parameters_bigint(parameters *parameters, int64_t number)
{
	unsigned char bytes[8];

	put_int64(bytes, number);
	put_bytes(add(parameters, PARAMETER_BIGINT), bytes, sizeof bytes);
}

void parameters_boolean(parameters *parameters, bool value)
{
	put_bytes(add(parameters, PARAMETER_BOOLEAN), value ? "\1" : "\0", 1);
}

int parameters_array(parameters *parameters, parameter_type type)
{
	parameter *array = add(parameters, type);

	array->is_array = true;
	memset(append(array, ARRAY_HEAD_BYTES), 0, ARRAY_HEAD_BYTES);
	return parameters->count - 1;
}

void parameters_add(parameters *parameters, int array, const void *data, size_t length)
{
	assert(array < parameters->count && parameters->list[array].is_array);
	parameter *to = &parameters->list[array];
	size_t prefix = to->type == PARAMETER_JSONB && data != NULL ? 1 : 0;

	to->count++;
	if (data == NULL) {
		to->has_null = true;
		put_int32(append(to, 4), UINT32_MAX);
		return;
	}
	put_int32(append(to, 4), (uint32_t)(length + prefix));
	if (prefix > 0) {
		append(to, 1)[0] = JSONB_VERSION;
	}
	if (length > 0) {
		memcpy(append(to, length), data, length);
	}
}

void parameters_add_text(parameters *parameters, int array, const char *text)
{
	parameters_add(parameters, array, text, text == NULL ? 0 : strlen(text));
}

void parameters_add_number(parameters *parameters, int array, int64_t number)
{
	unsigned char bytes[8];

	put_int64(bytes, number);
	switch (parameters->list[array].type) {
	case PARAMETER_BIGINT:
	case PARAMETER_XID8:
		parameters_add(parameters, array, bytes, 8);
		break;
	case PARAMETER_BOOLEAN:
		parameters_add(parameters, array, bytes + 7, 1);
		break;
	default:
		parameters_add(parameters, array, bytes + 4, 4);
		break;
	}
}

bool parameters_seal(parameters *parameters)
{
	for (int i = 0; i < parameters->count; i++) {
		parameter *each = &parameters->list[i];
		if (each->length > INT_MAX) {
			return false;
		}
		if (each->is_array) {
			put_int32(each->data, each->count > 0);
			put_int32(each->data + 4, each->has_null);
			put_int32(each->data + 8, oids[each->type].element);
			put_int32(each->data + 12, (uint32_t)each->count);
			put_int32(each->data + 16, 1);
		}
		parameters->types[i] = each->is_array ? oids[each->type].array : oids[each->type].element;
		parameters->values[i] = each->is_null ? NULL : (const char *)each->data;
		/* An array without elements has no dimensions, so nothing follows its element type. */
		parameters->lengths[i] = each->is_array && each->count == 0 ? 12 : (int)each->length;
		parameters->formats[i] = 1;
	}
	return true;
}

void parameters_free(parameters *parameters)
{
	for (int i = 0; i < parameters->count; i++) {
		free(parameters->list[i].data);
	}
	parameters->count = 0;
}
