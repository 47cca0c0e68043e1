/* SPDX-License-Identifier: PostgreSQL */
/*
 * json_text.c: see json_text.h. One recursive descent that only reads; for strings it can also
 * write the decoded form. A certain answer must match PostgreSQL's: if they could differ, it
 * returns JSON_UNSURE.
 */
#include "json_text.h"
#include "json_escape.h"
#include "utf8.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum {
	DEPTH_SURE = 1000,  /* the usual max_stack_depth of 2 MB allows several times as much */
	DEPTH_MAX = 10000,  /* for this file's recursion: 100 bytes a level */
	DIGITS_SURE = 1000, /* numeric has 131,072 before the point, 16,383 after it */
	EXPONENT_DIGITS_SURE = 4
};
#define BYTES_SURE ((size_t)32 * 1024 * 1024) /* the parts of a jsonb have at most 256 MB */

typedef struct text_reader {
	const unsigned char *at, *end;
	int depth;
	bool unsure; /* beyond the limits that are certainly accepted */
	bool zero;   /* a \u0000 was found */
} text_reader;

static bool read_value(text_reader *in);

static void skip_space(text_reader *in)
{
	while (in->at < in->end && (*in->at == ' ' || *in->at == '\t' || *in->at == '\n' || *in->at == '\r')) {
		in->at++;
	}
}

static bool take(text_reader *in, unsigned char wanted)
{
	if (in->at == in->end || *in->at != wanted) {
		return false;
	}
	in->at++;
	return true;
}

/* decoded: NULL, or room for as many bytes as remain; *length: how many were written. */
static bool read_string(text_reader *in, char *decoded, size_t *length)
{
	size_t used = 0;

	if (!take(in, '"')) {
		return false;
	}
	while (in->at < in->end && *in->at >= 0x20) {
		uint32_t c = 0;
		char sequence[4];
		size_t size = 0;
		if (take(in, '"')) {
			if (length != NULL) {
				*length = used;
			}
			return true;
		}
		if (take(in, '\\')) {
			if (!json_read_escape(&in->at, in->end, &c)) {
				return false;
			}
			in->zero |= c == 0;
			size = utf8_put(sequence, c);
		} else {
			size = utf8_length(in->at, (size_t)(in->end - in->at));
			if (size == 0) {
				return false;
			}
			memcpy(sequence, in->at, size);
			in->at += size;
		}
		if (decoded != NULL) {
			memcpy(decoded + used, sequence, size);
		}
		used += size;
	}
	return false;
}

static size_t read_digits(text_reader *in)
{
	const unsigned char *start = in->at;

	while (in->at < in->end && *in->at >= '0' && *in->at <= '9') {
		in->at++;
	}
	return (size_t)(in->at - start);
}

static bool read_number(text_reader *in)
{
	const unsigned char *start = in->at;

	take(in, '-');
	if (!take(in, '0') && read_digits(in) == 0) {
		return false;
	}
	if (take(in, '.') && read_digits(in) == 0) {
		return false;
	}
	in->unsure |= in->at - start > DIGITS_SURE;
	if (in->at < in->end && (*in->at | 0x20) == 'e') {
		in->at++;
		if (!take(in, '+')) {
			take(in, '-');
		}
		size_t digits = read_digits(in);
		in->unsure |= digits > EXPONENT_DIGITS_SURE;
		return digits > 0;
	}
	return true;
}

static bool read_word(text_reader *in, const char *word)
{
	size_t length = strlen(word);

	if ((size_t)(in->end - in->at) < length || memcmp(in->at, word, length) != 0) {
		return false;
	}
	in->at += length;
	return true;
}

static bool read_array(text_reader *in)
{
	in->at++;
	skip_space(in);
	if (take(in, ']')) {
		return true;
	}
	do {
		if (!read_value(in)) {
			return false;
		}
	} while (take(in, ','));
	return take(in, ']');
}

static bool read_name(text_reader *in, char *decoded, size_t *length)
{
	skip_space(in);
	if (!read_string(in, decoded, length)) {
		return false;
	}
	skip_space(in);
	return take(in, ':');
}

static bool read_object(text_reader *in)
{
	in->at++;
	skip_space(in);
	if (take(in, '}')) {
		return true;
	}
	do {
		if (!read_name(in, NULL, NULL) || !read_value(in)) {
			return false;
		}
	} while (take(in, ','));
	return take(in, '}');
}

/* A value with the white space around it. */
static bool read_value(text_reader *in)
{
	bool good = false;

	skip_space(in);
	if (in->at == in->end || in->depth == DEPTH_MAX) {
		in->unsure |= in->depth == DEPTH_MAX;
		return false;
	}
	in->depth++;
	in->unsure |= in->depth > DEPTH_SURE;
	switch (*in->at) {
	case '{':
		good = read_object(in);
		break;
	case '[':
		good = read_array(in);
		break;
	case '"':
		good = read_string(in, NULL, NULL);
		break;
	case 't':
		good = read_word(in, "true");
		break;
	case 'f':
		good = read_word(in, "false");
		break;
	case 'n':
		good = read_word(in, "null");
		break;
	default:
		good = read_number(in);
		break;
	}
	in->depth--;
	skip_space(in);
	return good;
}

json_answer json_text_check(once_bytes text)
{
	text_reader in = {.at = text.data, .end = (const unsigned char *)text.data + text.length};

	if (text.data == NULL || text.length == 0) {
		return JSON_NO;
	}
	bool good = read_value(&in) && in.at == in.end && !in.zero;
	if (!good) {
		return in.unsure && !in.zero ? JSON_UNSURE : JSON_NO;
	}
	return in.unsure || text.length > BYTES_SURE ? JSON_UNSURE : JSON_YES;
}

/* ---- pointers */

bool json_pointer_valid(const char *pointer)
{
	if (pointer[0] != '\0' && pointer[0] != '/') {
		return false;
	}
	for (const char *at = strchr(pointer, '~'); at != NULL; at = strchr(at + 1, '~')) {
		if (at[1] != '0' && at[1] != '1') {
			return false;
		}
	}
	return utf8_is_text(pointer, strlen(pointer));
}

/* True: the decoded name equals the pointer's token (up to the next '/' or the end). */
static bool token_is(const char *token, size_t token_length, const char *name, size_t name_length)
{
	size_t used = 0;

	for (size_t i = 0; i < token_length; i++) {
		char c = token[i];
		if (c == '~' && i + 1 < token_length) {
			c = token[++i] == '1' ? '/' : '~';
		}
		if (used == name_length || name[used++] != c) {
			return false;
		}
	}
	return used == name_length;
}

/* RFC 6901, 4: "0", or digits without a leading zero. */
static bool token_index(const char *token, size_t length, size_t *index)
{
	*index = 0;
	if (length == 0 || length > 9 || (length > 1 && token[0] == '0')) {
		return false;
	}
	for (size_t i = 0; i < length; i++) {
		if (token[i] < '0' || token[i] > '9') {
			return false;
		}
		*index = *index * 10 + (size_t)(token[i] - '0');
	}
	return true;
}

/*
 * Steps into the object or array at `in`: *found is where the token's value starts, or NULL if it
 * is missing. False: not JSON.
 */
static bool find_member(text_reader *in, const char *token, size_t token_length, arena *arena,
                        const unsigned char **found)
{
	*found = NULL;
	in->at++;
	skip_space(in);
	if (take(in, '}')) {
		return true;
	}
	do {
		skip_space(in);
		text_reader measured = *in;
		size_t length = 0;
		if (!read_string(&measured, NULL, &length)) {
			return false;
		}
		char *name = arena_take(arena, length + 4);
		if (!read_name(in, name, &length)) {
			return false;
		}
		const unsigned char *value = in->at;
		if (!read_value(in)) {
			return false;
		}
		if (token_is(token, token_length, name, length)) {
			*found = value;
		}
	} while (take(in, ','));
	return take(in, '}');
}

static bool find_element(text_reader *in, const char *token, size_t token_length, const unsigned char **found)
{
	size_t wanted = 0;
	bool is_index = token_index(token, token_length, &wanted);

	*found = NULL;
	in->at++;
	skip_space(in);
	if (take(in, ']')) {
		return true;
	}
	for (size_t i = 0;; i++) {
		const unsigned char *value = in->at;
		if (!read_value(in)) {
			return false;
		}
		if (is_index && i == wanted) {
			*found = value;
		}
		if (!take(in, ',')) {
			return take(in, ']');
		}
	}
}

static json_found plain_value(text_reader *in, arena *arena, char **value, size_t *length)
{
	const unsigned char *start = in->at;

	switch (*start) {
	case '{':
	case '[':
		return JSON_NOT_PLAIN;
	case 'n':
		return JSON_NOT_THERE;
	case '"': {
		text_reader measured = *in;
		if (!read_string(&measured, NULL, length)) {
			return JSON_NOT_JSON;
		}
		*value = arena_take(arena, *length + 1);
		read_string(in, *value, length);
		(*value)[*length] = '\0';
		return JSON_FOUND;
	}
	default:
		if (*start == 't' || *start == 'f') {
			in->at += *start == 't' ? 4 : 5;
		} else if (!read_number(in)) {
			return JSON_NOT_JSON;
		}
		*length = (size_t)(in->at - start);
		*value = arena_text(arena, start, *length);
		return JSON_FOUND;
	}
}

json_found json_text_find(once_bytes text, const char *pointer, arena *arena, char **value, size_t *length)
{
	if (json_text_check(text) == JSON_NO) {
		return JSON_NOT_JSON;
	}
	text_reader in = {.at = text.data, .end = (const unsigned char *)text.data + text.length};
	skip_space(&in);
	while (*pointer == '/') {
		const char *token = pointer + 1;
		size_t token_length = strcspn(token, "/");
		const unsigned char *found = NULL;
		bool good = *in.at == '{'   ? find_member(&in, token, token_length, arena, &found)
		            : *in.at == '[' ? find_element(&in, token, token_length, &found)
		                            : true;
		if (!good) {
			return JSON_NOT_JSON;
		}
		if (found == NULL) {
			return JSON_NOT_THERE;
		}
		in.at = found;
		skip_space(&in);
		pointer = token + token_length;
	}
	return plain_value(&in, arena, value, length);
}

char *json_text_quote(arena *arena, const char *text)
{
	char *quoted = arena_take(arena, 6 * strlen(text) + 3);
	char *to = quoted;

	*to++ = '"';
	for (const char *from = text; *from != '\0'; from++) {
		unsigned char c = (unsigned char)*from;
		if (c < 0x20) {
			to += sprintf(to, "\\u%04x", c);
			continue;
		}
		if (c == '"' || c == '\\') {
			*to++ = '\\';
		}
		*to++ = (char)c;
	}
	*to++ = '"';
	*to = '\0';
	return quoted;
}
