/* SPDX-License-Identifier: PostgreSQL */
/*
 * fake_message.h: what the server in the test (fake.c) writes to a connection and reads from a
 * statement's parameters: the messages of protocol 3, field by field.
 */
#pragma once

#include "fake.h"

/* ---- Messages out: started with their type, filled, and ended, which writes their length. ---- */

size_t message_start(fake_connection *to, char type);
void message_end(fake_connection *to, size_t started);
void message_put(fake_connection *to, const void *data, size_t length);
void message_number(fake_connection *to, uint32_t number, int bytes);
void message_string(fake_connection *to, const char *text);

/* A column's value, in a row. */
void message_null(fake_connection *to);
void message_text(fake_connection *to, const char *text);
void message_int(fake_connection *to, int number);
void message_bool(fake_connection *to, bool value);

/* Whole messages. */
void message_simple(fake_connection *to, char type);
void message_parameter(fake_connection *to, const char *name, const char *value);
void message_ready(fake_connection *to);
/* The connection skips to the next Sync after it. */
void message_error(fake_connection *to, const char *sqlstate, const char *message);
/* Columns by their names, with a letter for the type: i integer, t text, y bytea, b boolean. */
void message_columns(fake_connection *to, const char *const *columns, int count);
void message_complete(fake_connection *to);

/* ---- Parameters in ---- */

uint32_t parameter_number(const unsigned char *at, int bytes);
/* Of an array of one dimension. */
int parameter_count(const fake_parameter *array);
fake_parameter parameter_at(const fake_parameter *array, int index);
void parameter_copy(char out[FAKE_NAME], fake_parameter from);
