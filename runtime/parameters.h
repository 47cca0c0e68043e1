/* SPDX-License-Identifier: PostgreSQL */
/*
 * parameters.h: the parameters of one statement, in PostgreSQL's binary format: single values, and
 * arrays that grow one element at a time. Bytes stay bytes, and no text needs quoting. Below
 * database.h, which sends them.
 */
#pragma once

#include <libpq-fe.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PARAMETERS_MAX 16

typedef enum parameter_type {
	PARAMETER_TEXT,
	PARAMETER_BYTEA,
	PARAMETER_JSONB,
	PARAMETER_BOOLEAN,
	PARAMETER_INTEGER,
	PARAMETER_BIGINT,
	PARAMETER_XID8
} parameter_type;

typedef struct parameter {
	parameter_type type;
	bool is_array, is_null, has_null;
	unsigned char *data;
	size_t length, capacity;
	int32_t count; /* elements of an array */
} parameter;

typedef struct parameters {
	parameter list[PARAMETERS_MAX];
	int count;
	/* The form libpq needs; filled by parameters_seal. */
	Oid types[PARAMETERS_MAX];
	const char *values[PARAMETERS_MAX];
	int lengths[PARAMETERS_MAX];
	int formats[PARAMETERS_MAX];
} parameters;

/* Zero-initialise: `parameters p = {0};`. text NULL, data NULL: SQL's NULL. */
void parameters_text(parameters *parameters, const char *text);
void parameters_bytes(parameters *parameters, const void *data, size_t length);
void parameters_integer(parameters *parameters, int32_t number);
void parameters_bigint(parameters *parameters, int64_t number);
void parameters_boolean(parameters *parameters, bool value);
/* An empty array; returns its index, for the functions below. */
int parameters_array(parameters *parameters, parameter_type type);
void parameters_add(parameters *parameters, int array, const void *data,
                    size_t length); /* text, bytea, jsonb (as text) */
void parameters_add_text(parameters *parameters, int array, const char *text);
/* integer, bigint, xid8, boolean */
void parameters_add_number(parameters *parameters, int array, int64_t number);
/* False: a value is longer than the protocol allows. */
bool parameters_seal(parameters *parameters);
void parameters_free(parameters *parameters); /* empties it; it may be filled again */
