/* SPDX-License-Identifier: PostgreSQL */
/*
 * plain.h: text from the database, for a terminal: no byte of it may move the cursor or forge a
 * line.
 */
#pragma once

#include <stddef.h>

/*
 * How many bytes at the start of text must not reach a terminal: a control character (C0, DEL, C1),
 * the end of a line or a paragraph (U+2028, U+2029), and characters that change the direction of
 * writing, so that a line reads as another. 0: the first character is harmless.
 */
size_t plain_hidden(const char *text);
/* Text of one line, to standard output; each character that must not
 * reach a terminal becomes '?'. */
void plain_print(const char *text);
/* A complete line of it, as by printf. */
__attribute__((format(printf, 1, 2))) void plain_line(const char *format, ...);
/*
 * Text by lines, each after `prefix`, or as hex if it is not text; only the beginning if it is
 * long.
 */
void plain_bytes(const char *prefix, const unsigned char *data, size_t length);
/* The bytes of base64 with padding and without line ends. NULL if it is not valid. Free it. */
unsigned char *plain_decode(const char *text, size_t *length);
