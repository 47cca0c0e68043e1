/* SPDX-License-Identifier: PostgreSQL */
/*
 * json_text.h: questions about a JSON text, answered without building anything: does PostgreSQL's
 * jsonb accept it, and what is at a JSON pointer (RFC 6901). Numbers keep their text.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "arena.h"
#include "pgonce.h"

typedef enum json_answer {
	JSON_NO,  /* certainly not: not JSON, not UTF-8, or with a \u0000, which jsonb refuses */
	JSON_YES, /* certainly, in a UTF8 database */
	/*
	 * JSON that may exceed a limit of the server (depth, size of numbers, length): ask the server
	 */
	JSON_UNSURE
} json_answer;

json_answer json_text_check(once_bytes text);
/* True: a JSON pointer: "", or '/' and so on, with no '~' except ~0 and ~1. */
bool json_pointer_valid(const char *pointer);

typedef enum json_found {
	JSON_FOUND,     /* a string (decoded), or a number, true, false (as written) */
	JSON_NOT_THERE, /* no such member, or null */
	JSON_NOT_PLAIN, /* an object or an array */
	JSON_NOT_JSON
} json_found;
/*
 * As in jsonb, the last of several members with one name counts. With JSON_FOUND, *value and
 * *length are in the arena (NUL-terminated).
 */
json_found json_text_find(once_bytes text, const char *pointer, arena *arena, char **value, size_t *length);

/* "..." with JSON's escapes, in the arena. The text must be UTF-8. */
char *json_text_quote(arena *arena, const char *text);
