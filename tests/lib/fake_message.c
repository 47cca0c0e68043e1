/* SPDX-License-Identifier: PostgreSQL */
/* fake_message.c: see fake_message.h. */
#include "fake_message.h"

/* ---- Messages out ---- */

static unsigned char *reserve(fake_connection *to, size_t length)
{
	assert_true(to->output_length + length <= sizeof to->output);
	unsigned char *at = to->output + to->output_length;
	to->output_length += length;
	return at;
}

void message_put(fake_connection *to, const void *data, size_t length)
{
	memcpy(reserve(to, length), data, length);
}

void message_number(fake_connection *to, uint32_t number, int bytes)
{
	unsigned char *at = reserve(to, (size_t)bytes);
	for (int i = bytes - 1; i >= 0; i--) {
		at[i] = (unsigned char)number;
		number >>= 8;
	}
}

size_t message_start(fake_connection *to, char type)
{
	message_put(to, &type, 1);
	message_number(to, 0, 4);
	return to->output_length - 4;
}

void message_end(fake_connection *to, size_t started)
{
	uint32_t length = (uint32_t)(to->output_length - started);
	for (int i = 3; i >= 0; i--) {
		to->output[started + (size_t)i] = (unsigned char)length;
		length >>= 8;
	}
}

void message_string(fake_connection *to, const char *text)
{
	message_put(to, text, strlen(text) + 1);
}

void message_simple(fake_connection *to, char type)
{
	message_end(to, message_start(to, type));
}

void message_parameter(fake_connection *to, const char *name, const char *value)
{
	size_t at = message_start(to, 'S');
	message_string(to, name);
	message_string(to, value);
	message_end(to, at);
}

void message_ready(fake_connection *to)
{
	size_t at = message_start(to, 'Z');
	message_put(to, "I", 1);
	message_end(to, at);
}

void message_error(fake_connection *to, const char *sqlstate, const char *message)
{
	size_t at = message_start(to, 'E');
	message_put(to, "SERROR", 7);
	message_put(to, "C", 1);
	message_string(to, sqlstate);
	message_put(to, "M", 1);
	message_string(to, message);
	message_put(to, "", 1);
	message_end(to, at);
	to->failed = true;
}

void message_columns(fake_connection *to, const char *const *columns, int count)
{
	size_t at = message_start(to, 'T');
	message_number(to, (uint32_t)count, 2);
	for (int i = 0; i < count; i++) {
		char type = columns[i][0];
		message_string(to, columns[i] + 1);
		message_number(to, 0, 4);
		message_number(to, 0, 2);
		message_number(to, type == 'i' ? 23 : type == 'y' ? 17 : type == 'b' ? 16 : 25, 4);
		message_number(to, UINT16_MAX, 2);
		message_number(to, UINT32_MAX, 4);
		message_number(to, 1, 2);
	}
	message_end(to, at);
}

void message_null(fake_connection *to)
{
	message_number(to, UINT32_MAX, 4);
}

void message_text(fake_connection *to, const char *text)
{
	message_number(to, (uint32_t)strlen(text), 4);
	message_put(to, text, strlen(text));
}

void message_int(fake_connection *to, int number)
{
	message_number(to, 4, 4);
	message_number(to, (uint32_t)number, 4);
}

void message_bool(fake_connection *to, bool value)
{
	message_number(to, 1, 4);
	message_number(to, value, 1);
}

void message_complete(fake_connection *to)
{
	size_t at = message_start(to, 'C');
	message_string(to, "SELECT 1");
	message_end(to, at);
}

/* ---- Parameters in ---- */

uint32_t parameter_number(const unsigned char *at, int bytes)
{
	uint32_t number = 0;
	for (int i = 0; i < bytes; i++) {
		number = number << 8 | at[i];
	}
	return number;
}

int parameter_count(const fake_parameter *array)
{
	return parameter_number(array->data, 4) == 0 ? 0 : (int)parameter_number(array->data + 12, 4);
}

fake_parameter parameter_at(const fake_parameter *array, int index)
{
	const unsigned char *at = array->data + 20;
	for (;; index--) {
		uint32_t length = parameter_number(at, 4);
		fake_parameter found = {.data = length == UINT32_MAX ? NULL : at + 4,
		                        .length = length == UINT32_MAX ? 0 : length};
		if (index == 0) {
			return found;
		}
		at += 4 + found.length;
	}
}

void parameter_copy(char out[FAKE_NAME], fake_parameter from)
{
	assert_true(from.length < FAKE_NAME);
	if (from.length > 0) {
		memcpy(out, from.data, from.length);
	}
	out[from.length] = '\0';
}
