/* SPDX-License-Identifier: PostgreSQL */
/*
 * form.h: the parameters of one request: those of its query, and of a body of type
 * application/x-www-form-urlencoded. Only what is wrong with a parameter itself is found here; what
 * it means is for the page, and its SQL.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum {
	FORM_FIELDS_MAX = 1100,
	FORM_NAME_BYTES_MAX = 64
};

typedef struct form_field {
	char *name;
	char *value;
} form_field;

/* Zero-initialise. */
typedef struct form {
	form_field *fields;
	size_t count, capacity;
	char *wrong; /* the first mistake, which names the parameter; NULL: none */
} form;

/* Decoded already. */
void form_add(form *form, const char *name, size_t name_length, const char *value, size_t value_length);
/* name=value&name=value, as a browser writes it (the URL standard, section 5.1). */
void form_read(form *form, const char *text, size_t length);
/* The value, or NULL; of several the first. */
const char *form_value(const form *form, const char *name);
/* Takes the parameter out, and returns its value (free it), or NULL. */
char *form_take(form *form, const char *name);
/* How many there are of this name. */
size_t form_count(const form *form, const char *name);
void form_free(form *form);
