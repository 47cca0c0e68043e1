/* SPDX-License-Identifier: PostgreSQL */
/*
 * test_json.c: the canonical form of JSON: what is one request, what stays two, and what is no JSON
 * at all.
 */
#include "support.h"

#include "internal.h"

typedef struct json_case {
	const char *in;
	const char *out; /* NULL: not JSON */
} json_case;

#define Z14 "00000000000000"
#define Z98 Z14 Z14 Z14 Z14 Z14 Z14 Z14

static const json_case cases[] = {
    {"{}", "{}"},
    {" [ ] ", "[]"},
    {"{\"b\":1,\"a\":2}", "{\"a\": 2, \"b\": 1}"},
    {"{ \"b\" : [ 1 , {\"d\":null,\"c\":true} ] , \"a\" : false }",
     "{\"a\": false, \"b\": [1, {\"c\": true, \"d\": null}]}"},
    {"{\"aa\":1,\"a\":2,\"ab\":3}", "{\"a\": 2, \"aa\": 1, \"ab\": 3}"},
    {"100000000000000000.01", "100000000000000000.01"},
    {"[1.0,1.00,1e2,-0,0.5E+3]", "[1, 1, 100, 0, 500]"},
    {"[-0.0,10e-1,0e99,-12.0500,1E-3,-250e-3,0.0001e2,1e0002,-1e-1]",
     "[0, 1, 0, -12.05, 0.001, -0.25, 0.01, 100, -0.1]"},
    {"\"\\u0041\\u00e9\\ud83d\\ude00\\/\\n\"", "\"A\xc3\xa9\xf0\x9f\x98\x80/\\n\""},
    {"{\"\\u0061\":1,\"b\":2}", "{\"a\": 1, \"b\": 2}"},
    {"\"\\\"\\\\\"", "\"\\\"\\\\\""},
    {"\t[\r\n1\t,\n2 ]\r", "[1, 2]"},
    {"\"\\b\\f\\n\\r\\t\"", "\"\\b\\f\\n\\r\\t\""},
    {"\"\\u0001\\u001F\x7f\"", "\"\\u0001\\u001f\x7f\""},
    {"\"\\u00E9\\u20ac\\uFFFD\"", "\"\xc3\xa9\xe2\x82\xac\xef\xbf\xbd\""},
    {"\"\xe0\xa0\x80\xed\x9f\xbf\xf0\x90\x80\x80\xf4\x8f\xbf\xbf\"",
     "\"\xe0\xa0\x80\xed\x9f\xbf\xf0\x90\x80\x80\xf4\x8f\xbf\xbf\""},
    {"{\"i\":9,\"h\":8,\"g\":7,\"f\":6,\"e\":5,\"d\":4,\"c\":3,\"b\":2,\"a\":1}",
     "{\"a\": 1, \"b\": 2, \"c\": 3, \"d\": 4, \"e\": 5, \"f\": 6, \"g\": 7, \"h\": 8, \"i\": 9}"},
    {"{\"\":1}", "{\"\": 1}"},
    /* In the order of what the names say: shorter first, in bytes, whatever their spelling. */
    {"{\"bb\":1,\"\\n\":2,\"\\u00e9\":3,\"!\":4,\"\\\"\":5}",
     "{\"\\n\": 2, \"!\": 4, \"\\\"\": 5, \"bb\": 1, \"\xc3\xa9\": 3}"},
    {"{\"b\":{\"y\":1,\"x\":2},\"a\":{\"w\":3}}", "{\"a\": {\"w\": 3}, \"b\": {\"x\": 2, \"y\": 1}}"},
    {"-1e99", NULL},
    {"1e-99", NULL},
    {"0e100", NULL},
    {"12e98", "12" Z98},
    {"123e98", NULL},
    {"\"\\u0000\"", NULL},
    {"{\"a\":{},\"b\":{\"a\":1,\"a\":1}}", NULL},
    {"\"\\u00g0\"", NULL},
    {"\"\\u00/0\"", NULL},
    {"\"\\u00:0\"", NULL},
    {"\"\\u00`0\"", NULL},
    {"\"\\ud800x\"", NULL},
    {"\"\\ud800\\n\"", NULL},
    {"\"\\ud800\\ue000\"", NULL},
    {"\"\xe0\x9f\xbf\"", NULL},
    {"\"\xf0\x8f\xbf\xbf\"", NULL},
    {"\"\xf4\x90\x80\x80\"", NULL},
    {"\"\xf5\x80\x80\x80\"", NULL},
    {"\"\xe2\x82x\"", NULL},
    {"\"\xe2\x82\"", NULL},
    {"\"\x80\"", NULL},
    {"{\"a\" 1}", NULL},
    {"{\"a\":1 \"b\":2}", NULL},
    {"[\"a\x01\"]", NULL},
    {"{\"a\":1,\"\\u0061\":2}", NULL},
    {"{\"a\":1,}", NULL},
    {"[1,]", NULL},
    {"[1 2]", NULL},
    {"01", NULL},
    {"1.", NULL},
    {".5", NULL},
    {"+1", NULL},
    {"1e", NULL},
    {"nul", NULL},
    {"\"\\ud800\"", NULL},
    {"\"\\udc00\"", NULL},
    {"\"\\ud800\\u0041\"", NULL},
    {"\"\\x\"", NULL},
    {"\"\x01\"", NULL},
    {"\"\xff\"", NULL},
    {"\"\xc0\x80\"", NULL},
    {"\"\xed\xa0\x80\"", NULL},
    {"\"open", NULL},
    {"{\"a\"}", NULL},
    {"{a:1}", NULL},
    {"{\"a\":1", NULL},
    {"", NULL},
    {"{} {}", NULL},
};

static void each_text_has_its_canonical_form_or_none(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		char *out = NULL;
		size_t length = 0;
		bool no_memory = false;
		bool good = json_canonical(cases[i].in, strlen(cases[i].in), &out, &length, &no_memory);
		if (cases[i].out == NULL) {
			if (good) {
				fail_msg("%s was taken for JSON", cases[i].in);
			}
			continue;
		}
		if (!good || length != strlen(cases[i].out) || memcmp(out, cases[i].out, length) != 0) {
			fail_msg("%s became %.*s", cases[i].in, good ? (int)length : 4, good ? out : "none");
		}
		/* Canonical forms are their own. */
		char *again = NULL;
		size_t again_length = 0;
		assert_true(json_canonical(out, length, &again, &again_length, &no_memory));
		assert_int_equal(again_length, length);
		assert_memory_equal(again, out, length);
		free(again);
		free(out);
	}
}

static bool has_form(const char *text, size_t length)
{
	char *out = NULL;
	size_t out_length;
	bool no_memory;
	bool good = json_canonical(text, length, &out, &out_length, &no_memory);
	free(out);
	return good;
}

static void depth_length_and_numbers_are_bounded(void **state)
{
	(void)state;
	static char large[ONCE_CANONICAL_BYTES_MAX + 1];
	char text[200];
	for (size_t depth = 63; depth <= 65; depth++) {
		memset(text, '[', depth);
		memset(text + depth, ']', depth);
		assert_int_equal(has_form(text, 2 * depth), depth <= 64);
		text[depth] = '1';
		memset(text + depth + 1, ']', depth);
		assert_int_equal(has_form(text, 2 * depth + 1), depth <= 64);
	}
	memset(text, '1', sizeof text);
	assert_true(has_form(text, 100));
	assert_false(has_form(text, 101));
	text[1] = '.';
	assert_true(has_form(text, 100));
	assert_false(has_form(text, 101));
	memset(large, ' ', sizeof large);
	large[7] = '1';
	assert_true(has_form(large, ONCE_CANONICAL_BYTES_MAX));
	assert_false(has_form(large, ONCE_CANONICAL_BYTES_MAX + 1));
}

static void every_prefix_of_a_document_is_refused_and_read_within_its_bounds(void **state)
{
	(void)state;
	static const char text[] = "{\"k\":[1,-2.5e+10,\"\\u00e9\\ud83d\\ude00\xc3\xa9\",{\"x\":null}],\"a\":true}";
	for (size_t length = 0; length < sizeof text - 1; length++) {
		/* A copy of exactly this size, so that the address sanitizer sees a read past it. */
		char *copy = malloc(length + (length == 0));
		memcpy(copy, text, length);
		char *out = NULL;
		size_t out_length;
		bool no_memory;
		assert_false(json_canonical(copy, length, &out, &out_length, &no_memory));
		free(copy);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(each_text_has_its_canonical_form_or_none),
	    cmocka_unit_test(depth_length_and_numbers_are_bounded),
	    cmocka_unit_test(every_prefix_of_a_document_is_refused_and_read_within_its_bounds),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
