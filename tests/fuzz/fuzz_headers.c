/* SPDX-License-Identifier: PostgreSQL */
/*
 * fuzz_headers.c: headers as they are stored. Any headers, written and read again, are the same
 * headers, but for those that can not be sent; what is written is JSON in ASCII. Any text that is
 * read gives headers that can be sent, or none. tests/fuzz/test_fuzz.py builds and runs it. Input:
 * 'j' and a JSON text; or 'h' and, for each header, the lengths of name and value in a byte each
 * and the two.
 */

#include "fuzz.h"
#include "http.h"
#include "internal.h"

static bool can_be_sent(const http_header *header)
{
	static const char token[] = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
	for (size_t i = 0; i < header->name.length; i++) {
		if (memchr(token, header->name.data[i], sizeof token - 1) == NULL) {
			return false;
		}
	}
	return header->name.length > 0 &&
	       (header->value.length == 0 || (memchr(header->value.data, '\0', header->value.length) == NULL &&
	                                      memchr(header->value.data, '\r', header->value.length) == NULL &&
	                                      memchr(header->value.data, '\n', header->value.length) == NULL));
}

static bool same(http_text a, http_text b)
{
	return a.length == b.length && (a.length == 0 || memcmp(a.data, b.data, a.length) == 0);
}

static void check_decoded(const char *json, const http_header *headers, size_t count)
{
	http_header *decoded = NULL;
	size_t decoded_count = 0;
	must(http_headers_decode(json, &decoded, &decoded_count));
	size_t at = 0;
	for (size_t i = 0; i < count; i++) {
		if (can_be_sent(&headers[i])) {
			must(at < decoded_count && same(decoded[at].name, headers[i].name) &&
			     same(decoded[at].value, headers[i].value));
			at++;
		}
	}
	must(at == decoded_count);
	free(decoded);
}

static void check_headers(const http_header *headers, size_t count)
{
	char *json = NULL;
	must(http_headers_encode(headers, count, &json));
	for (const char *at = json; *at != '\0'; at++) {
		must(*at >= ' ' && *at <= '~');
	}
	check_decoded(json, headers, count);
	/* jsonb gives back another text than it was given. */
	char *canonical = NULL;
	size_t length = 0;
	bool no_memory = false;
	must(json_canonical(json, strlen(json), &canonical, &length, &no_memory));
	char *text = realloc(canonical, length + 1);
	must(text != NULL);
	text[length] = '\0';
	check_decoded(text, headers, count);
	free(text);
	free(json);
}

static void try_headers(const uint8_t *data, size_t size)
{
	http_header headers[HTTP_HEADERS_MAX];
	size_t count = 0;
	while (count < HTTP_HEADERS_MAX && size >= 2 && size - 2 >= (size_t)data[0] + data[1]) {
		const char *name = (const char *)data + 2;
		headers[count++] = (http_header){{name, data[0]}, {name + data[0], data[1]}};
		size_t taken = (size_t)2 + data[0] + data[1];
		data += taken;
		size -= taken;
	}
	check_headers(headers, count);
	for (size_t i = 0; i < count; i++) {
		http_text all = {"*", 1};
		must(http_header_kept(headers[i].name, &all, 1) ==
		     (headers[i].name.length > 0 && !http_header_never(headers[i].name)));
	}
}

static void try_json(const uint8_t *data, size_t size)
{
	char *json = malloc(size + 1);
	must(json != NULL);
	memcpy(json, data, size);
	json[size] = '\0';
	http_header *headers = NULL;
	size_t count = 0;
	if (http_headers_decode(json, &headers, &count)) {
		for (size_t i = 0; i < count; i++) {
			must(can_be_sent(&headers[i]));
		}
		check_headers(headers, count);
	}
	free(headers);
	free(json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size > 0 && data[0] == 'h') {
		try_headers(data + 1, size - 1);
	} else if (size > 0) {
		try_json(data + 1, size - 1);
	}
	return 0;
}
