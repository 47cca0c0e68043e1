/* SPDX-License-Identifier: PostgreSQL */
/* form.c: see form.h. */
#include "form.h"

#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"
#include "utf8.h"

static char *copy(const char *text, size_t length)
{
	char *made = memory_take(length + 1);

	if (length > 0) {
		memcpy(made, text, length);
	}
	return made;
}

static void find_wrong(form *form, char *wrong)
{
	if (form->wrong == NULL) {
		form->wrong = wrong;
	} else {
		free(wrong);
	}
}

void form_add(form *form, const char *name, size_t name_length, const char *value, size_t value_length)
{
	if (name_length > FORM_NAME_BYTES_MAX || !utf8_is_text(name, name_length)) {
		find_wrong(form, memory_copy("a parameter's name is too long, or not UTF-8"));
	} else if (!utf8_is_text(value, value_length)) {
		find_wrong(form, memory_format("parameter '%.*s': not UTF-8", (int)name_length, name));
	} else if (form->count == FORM_FIELDS_MAX) {
		find_wrong(form, memory_format("more than %d parameters", FORM_FIELDS_MAX));
	} else {
		if (form->count == form->capacity) {
			form->capacity = form->capacity == 0 ? 16 : 2 * form->capacity;
			form->fields = memory_array(form->fields, form->capacity, sizeof *form->fields);
		}
		form->fields[form->count++] = (form_field){.name = copy(name, name_length), .value = copy(value, value_length)};
	}
}

static int digit_of(char c)
{
	return isdigit((unsigned char)c) ? c - '0' : isxdigit((unsigned char)c) ? (c | 0x20) - 'a' + 10 : -1;
}

/* In place; a % that begins no byte stays, as browsers leave it. Returns the length. */
static size_t decode(char *text, size_t length)
{
	size_t to = 0;

	for (size_t from = 0; from < length; from++) {
		int high = text[from] == '%' && length - from > 2 ? digit_of(text[from + 1]) : -1;
		int low = high >= 0 ? digit_of(text[from + 2]) : -1;
		if (low >= 0) {
			text[to++] = (char)(high << 4 | low);
			from += 2;
		} else {
			text[to++] = (char)(text[from] == '+' ? ' ' : text[from]);
		}
	}
	return to;
}

void form_read(form *form, const char *text, size_t length)
{
	char *copied = copy(text, length);
	char *end = copied + length;

	for (char *at = copied; at < end;) {
		char *next = memchr(at, '&', (size_t)(end - at));
		char *stop = next == NULL ? end : next;
		char *equals = memchr(at, '=', (size_t)(stop - at));
		char *value = equals == NULL ? stop : equals + 1;
		if (stop > at) {
			size_t name_length = decode(at, (size_t)((equals == NULL ? stop : equals) - at));
			size_t value_length = decode(value, (size_t)(stop - value));
			form_add(form, at, name_length, value, value_length);
		}
		at = stop + 1;
	}
	free(copied);
}

const char *form_value(const form *form, const char *name)
{
	for (size_t i = 0; i < form->count; i++) {
		if (strcmp(form->fields[i].name, name) == 0) {
			return form->fields[i].value;
		}
	}
	return NULL;
}

char *form_take(form *form, const char *name)
{
	for (size_t i = 0; i < form->count; i++) {
		if (strcmp(form->fields[i].name, name) == 0) {
			char *value = form->fields[i].value;
			free(form->fields[i].name);
			form->fields[i] = form->fields[--form->count];
			return value;
		}
	}
	return NULL;
}

size_t form_count(const form *form, const char *name)
{
	size_t count = 0;

	for (size_t i = 0; i < form->count; i++) {
		count += strcmp(form->fields[i].name, name) == 0;
	}
	return count;
}

void form_free(form *form)
{
	for (size_t i = 0; i < form->count; i++) {
		free(form->fields[i].name);
		free(form->fields[i].value);
	}
	free(form->fields);
	free(form->wrong);
	*form = (struct form){0};
}
