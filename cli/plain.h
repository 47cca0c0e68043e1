/* SPDX-License-Identifier: PostgreSQL */
/* plain.h: what comes from the database, for a terminal: no byte of it may move the cursor or forge a line. */
#pragma once

#include <stddef.h>
#include <stdio.h>

/* Text of one line; control characters become '?'. plain_print: to standard output. */
void plain_write(FILE *out, const char *text);
void plain_print(const char *text);
/* Text by lines, each after `prefix`, or, where it is none, as hex; the beginning of what is long. */
void plain_bytes(FILE *out, const char *prefix, const unsigned char *data, size_t length);
/* The bytes of base64 that is padded and without line ends. NULL where it is none. Free it. */
unsigned char *plain_decode(const char *text, size_t *length);
