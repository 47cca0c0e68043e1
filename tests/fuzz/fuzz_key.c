/* SPDX-License-Identifier: PostgreSQL */
/*
 * fuzz_key.c: any bytes as the value of an Idempotency-Key header. A key that comes out is one that
 * the contract takes; it is the same key when it is quoted again; what strict mode takes, lenient
 * mode takes alike; what begins with a quote is a string or nothing. tests/fuzz/test_fuzz.py builds
 * and runs it. Input: a byte (the limit), then the value.
 */

#include "fuzz.h"
#include "http.h"
#include "internal.h"

static void check_key(const char *key, size_t length, size_t length_max)
{
	must(length >= 1 && length <= length_max && strlen(key) == length);
	for (size_t i = 0; i < length; i++) {
		must(key[i] >= ' ' && key[i] <= '~');
	}
}

static void check_again_quoted(const char *key, size_t length, size_t length_max)
{
	char value[2 * ONCE_KEY_BYTES_MAX + 2];
	char again[ONCE_KEY_BYTES_MAX + 1];
	size_t at = 0;
	size_t again_length = 0;
	value[at++] = '"';
	for (size_t i = 0; i < length; i++) {
		if (key[i] == '"' || key[i] == '\\') {
			value[at++] = '\\';
		}
		value[at++] = key[i];
	}
	value[at++] = '"';
	must(key_parse((once_bytes){value, at}, true, length_max, again, &again_length) == KEY_GOOD);
	must(again_length == length && memcmp(again, key, length) == 0);
}

/* Whatever a client sends, the problem document that mentions it is JSON. */
static void check_problem(const char *detail)
{
	char out[HTTP_PROBLEM_BYTES_MAX];
	char *canonical = NULL;
	size_t canonical_length;
	bool no_memory = false;
	const http_occurrence occurrence = {
	    .type_base = detail, .detail = detail, .request = {.data = detail, .length = strlen(detail)}};
	size_t length = http_problem_write(HTTP_PROBLEM_KEY_MALFORMED, &occurrence, out, sizeof out);
	must(length > 0 && strlen(out) == length);
	must(json_canonical(out, length, &canonical, &canonical_length, &no_memory) || no_memory);
	free(canonical);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size == 0) {
		return 0;
	}
	size_t length_max = data[0] == 0 ? ONCE_KEY_BYTES_MAX : data[0];
	const char *text = (const char *)data + 1;
	once_bytes value = {text, size - 1};
	char strict[ONCE_KEY_BYTES_MAX + 1];
	char lenient[ONCE_KEY_BYTES_MAX + 1];
	size_t strict_length;
	size_t lenient_length;
	key_fault strict_fault = key_parse(value, true, length_max, strict, &strict_length);
	key_fault lenient_fault = key_parse(value, false, length_max, lenient, &lenient_length);

	size_t spaces = 0;
	while (spaces < value.length && text[spaces] == ' ') {
		spaces++;
	}
	bool quoted = spaces < value.length && text[spaces] == '"';
	must(strict_fault != KEY_GOOD || quoted);
	must(!quoted || strict_fault == lenient_fault);
	if (strict_fault == KEY_GOOD) {
		must(strict_length == lenient_length && memcmp(strict, lenient, strict_length) == 0);
	}
	if (lenient_fault == KEY_GOOD) {
		must(quoted || strpbrk(lenient, " \"\\,;") == NULL);
		check_key(lenient, lenient_length, length_max);
		check_again_quoted(lenient, lenient_length, length_max);
	} else {
		must(lenient_length == 0 && lenient[0] == '\0');
	}

	char *detail = malloc(size);
	if (detail != NULL) {
		memcpy(detail, data + 1, size - 1);
		detail[size - 1] = '\0';
		check_problem(detail);
		free(detail);
	}
	return 0;
}
