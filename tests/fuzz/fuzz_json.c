/* SPDX-License-Identifier: PostgreSQL */
/*
 * fuzz_json.c: three readers of JSON of one mind: the canonical form (lib/src/json.c), the
 * questions to a text (consume/json_text.c), jansson. What one takes all take, but for limits that
 * are theirs; the canonical form has the same value, and is the same for every other way to write
 * that value; a pointer leads to the same place. tests/fuzz/test_fuzz.py builds and runs it. Input:
 * flags for how to write it, a pointer, the text.
 */
#include <jansson.h>

#include "fuzz.h"
#include "internal.h"
#include "json_text.h"
#include "utf8.h"

/* What jansson alone refuses: numbers beyond its types, depth, a NUL in a name. */
static bool is_own_limit(const json_error_t *error)
{
	enum json_error_code code = json_error_code(error);

	return code == json_error_numeric_overflow || code == json_error_stack_overflow ||
	       code == json_error_null_byte_in_key;
}

static bool has_real(const json_t *value)
{
	size_t index;
	const char *name;
	json_t *part;

	json_array_foreach((json_t *)value, index, part)
	{
		if (has_real(part)) {
			return true;
		}
	}
	json_object_foreach((json_t *)value, name, part)
	{
		if (has_real(part)) {
			return true;
		}
	}
	return json_is_real(value);
}

/* The same value written in another way, and the canonical form of that. */
static void check_written_anew(const json_t *value, uint8_t flags, const char *canonical, size_t length)
{
	size_t how = JSON_ENCODE_ANY | JSON_INDENT(flags & 7) | (flags & 8 ? JSON_SORT_KEYS : 0) |
	             (flags & 16 ? JSON_ENSURE_ASCII : 0) | (flags & 32 ? JSON_ESCAPE_SLASH : 0) |
	             (flags & 64 ? JSON_COMPACT : 0);
	char *written = json_dumps(value, how);
	char *again = NULL;
	size_t again_length = 0;
	bool no_memory = false;

	must(written != NULL);
	must(json_canonical(written, strlen(written), &again, &again_length, &no_memory));
	must(again_length == length && memcmp(again, canonical, length) == 0);
	free(again);
	free(written);
}

static bool check_canonical(const char *text, size_t size, uint8_t flags, json_answer answer)
{
	json_error_t error;
	char *canonical = NULL;
	size_t length = 0;
	bool no_memory = false;
	bool good = json_canonical(text, size, &canonical, &length, &no_memory);
	json_t *theirs = json_loadb(text, size, JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &error);

	must(!no_memory);
	if (good) {
		must(theirs != NULL || is_own_limit(&error));
		must(answer == JSON_YES || answer == JSON_UNSURE);
	}
	/* jansson rounds a real number, and takes 1.0 for another one than 1. */
	if (good && theirs != NULL && !has_real(theirs)) {
		json_t *again = json_loadb(canonical, length, JSON_DECODE_ANY, NULL);
		must(again != NULL && json_equal(again, theirs));
		json_decref(again);
		check_written_anew(theirs, flags, canonical, length);
	}
	/*
	 * It takes 65 brackets to be nested deeper than 64, and a long number to be beyond a number's
	 * limits.
	 */
	size_t brackets = 0;
	for (size_t i = 0; i < size; i++) {
		brackets += text[i] == '[' || text[i] == '{';
	}
	must(good || theirs == NULL || brackets > 64 || has_real(theirs) || memmem(text, size, "\\u0000", 6) != NULL ||
	     memchr(text, '\0', size) != NULL);
	json_decref(theirs);
	free(canonical);
	return good;
}

/* RFC 6901 once more, over jansson's tree. NULL: not there. */
static const json_t *walk(const json_t *value, const char *pointer)
{
	while (*pointer == '/' && value != NULL) {
		size_t length = strcspn(++pointer, "/");
		char *token = strndup(pointer, length);
		char *to = token;
		for (const char *from = token; *from != '\0'; from++) {
			*to++ = *from != '~' ? *from : *++from == '0' ? '~' : '/';
		}
		*to = '\0';
		if (json_is_array(value)) {
			size_t digits = strspn(token, "0123456789");
			bool is_index = digits > 0 && digits < 10 && token[digits] == '\0' && (token[0] != '0' || digits == 1);
			value = is_index ? json_array_get(value, strtoul(token, NULL, 10)) : NULL;
		} else {
			value = json_object_get(value, token);
		}
		free(token);
		pointer += length;
	}
	return value;
}

static void check_pointer(const char *text, size_t size, const char *pointer, const json_t *theirs)
{
	arena arena = {0};
	char *value = NULL;
	size_t length = 0;
	const json_t *there = walk(theirs, pointer);

	switch (json_text_find((once_bytes){.data = text, .length = size}, pointer, &arena, &value, &length)) {
	case JSON_FOUND: {
		must(value != NULL && strlen(value) == length);
		if (json_is_string(there)) {
			must(strcmp(json_string_value(there), value) == 0);
		} else {
			json_t *read = json_loads(value, JSON_DECODE_ANY, NULL);
			must(read != NULL && json_equal(read, there));
			json_decref(read);
		}
		break;
	}
	case JSON_NOT_THERE:
		must(there == NULL || json_is_null(there));
		break;
	case JSON_NOT_PLAIN:
		must(json_is_object(there) || json_is_array(there));
		break;
	case JSON_NOT_JSON:
		must(false);
	}
	arena_clear(&arena);
}

/* Any text, quoted, is JSON and is that text. */
static void check_quoted(const char *text)
{
	arena arena = {0};
	json_t *read = json_loads(json_text_quote(&arena, text), JSON_DECODE_ANY, NULL);

	must(json_is_string(read) && strcmp(json_string_value(read), text) == 0);
	json_decref(read);
	arena_clear(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	input in = {data, size};
	uint8_t flags = take_byte(&in);
	char *pointer = take_text(&in, NULL);
	size_t length = in.size;
	char *text = take_bytes(&in, in.size);
	json_error_t error;
	json_answer answer = json_text_check((once_bytes){.data = text, .length = length});
	json_t *theirs = json_loadb(text, length, JSON_DECODE_ANY, &error);

	must(answer != JSON_YES || theirs != NULL || is_own_limit(&error));
	/* jansson reads over a NUL between tokens. */
	must(answer != JSON_NO || theirs == NULL || memchr(text, '\0', length) != NULL);
	check_canonical(text, length, flags, answer);
	if (theirs != NULL && memchr(text, '\0', length) == NULL && json_pointer_valid(pointer)) {
		check_pointer(text, length, pointer, theirs);
	}
	if (utf8_is_text(pointer, strlen(pointer))) {
		check_quoted(pointer);
	}
	json_decref(theirs);
	free(text);
	free(pointer);
	return 0;
}
