/* SPDX-License-Identifier: PostgreSQL */
/*
 * test_identify.c: ids, keys and headers of deliveries; JSON pointers as RFC 6901 has them; hostile
 * bytes. No server.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "message.h"
#include "utf8.h"

static once_bytes bytes(const char *text)
{
	return (once_bytes){.data = text, .length = strlen(text)};
}

/* What stands at the pointer: the text, or in brackets why there is none. */
static const char *at(arena *arena, const char *text, const char *pointer)
{
	static const char *const reasons[] = {
	    [JSON_NOT_THERE] = "(none)", [JSON_NOT_PLAIN] = "(not plain)", [JSON_NOT_JSON] = "(no JSON)"};
	char *value = NULL;
	size_t length = 0;
	json_found found = json_text_find(bytes(text), pointer, arena, &value, &length);

	if (found != JSON_FOUND) {
		return reasons[found];
	}
	assert_int_equal(strlen(value), length);
	return value;
}

/* RFC 6901, 5: the example, and what each pointer gives. */
static void pointers_of_the_rfc(void **state)
{
	static const char document[] =
	    "{\"foo\": [\"bar\", \"baz\"], \"\": 0, \"a/b\": 1, \"c%d\": 2, \"e^f\": 3, \"g|h\": 4, \"i\\\\j\": 5, "
	    "\"k\\\"l\": 6, \" \": 7, \"m~n\": 8}";
	arena arena = {0};

	(void)state;
	assert_string_equal(at(&arena, document, ""), "(not plain)");
	assert_string_equal(at(&arena, document, "/foo"), "(not plain)");
	assert_string_equal(at(&arena, document, "/foo/0"), "bar");
	assert_string_equal(at(&arena, document, "/"), "0");
	assert_string_equal(at(&arena, document, "/a~1b"), "1");
	assert_string_equal(at(&arena, document, "/c%d"), "2");
	assert_string_equal(at(&arena, document, "/e^f"), "3");
	assert_string_equal(at(&arena, document, "/g|h"), "4");
	assert_string_equal(at(&arena, document, "/i\\j"), "5");
	assert_string_equal(at(&arena, document, "/k\"l"), "6");
	assert_string_equal(at(&arena, document, "/ "), "7");
	assert_string_equal(at(&arena, document, "/m~0n"), "8");
	arena_clear(&arena);
}

static void pointers_to_what_is_not_there(void **state)
{
	arena arena = {0};

	(void)state;
	assert_string_equal(at(&arena, "{\"a\": [1, 2]}", "/a/2"), "(none)");
	assert_string_equal(at(&arena, "{\"a\": [1, 2]}", "/a/01"), "(none)");
	assert_string_equal(at(&arena, "{\"a\": [1, 2]}", "/a/-"), "(none)");
	assert_string_equal(at(&arena, "{\"a\": [1, 2]}", "/a/99999999999999999999"), "(none)");
	assert_string_equal(at(&arena, "{\"a\": \"text\"}", "/a/b"), "(none)");
	assert_string_equal(at(&arena, "{\"a\": null}", "/a"), "(none)");
	assert_string_equal(at(&arena, "[]", "/0"), "(none)");
	assert_string_equal(at(&arena, "", "/a"), "(no JSON)");
	assert_string_equal(at(&arena, "{\"a\": 1", "/a"), "(no JSON)");
	assert_string_equal(at(&arena, "{\"a\": 1, \"b\": \"\\u0000\"}", "/a"),
	                    /* jsonb would not take it either */
	                    "(no JSON)");
	assert_string_equal(at(&arena, "{\"a\": 1, \"a\": 2}", "/a"), "2"); /* as jsonb: the last */
	assert_string_equal(at(&arena, "{\"\\u0061\": \"\\ud83d\\ude00\"}", "/a"), "\xf0\x9f\x98\x80");
	assert_string_equal(at(&arena, "{\"a\": 1.50e3}", "/a"), "1.50e3");
	assert_string_equal(at(&arena, " \"whole\" ", ""), "whole");
	arena_clear(&arena);
}

static void pointers_that_are_none(void **state)
{
	(void)state;
	assert_true(json_pointer_valid("") && json_pointer_valid("/") && json_pointer_valid("/a~0~1/b"));
	assert_false(json_pointer_valid("a"));
	assert_false(json_pointer_valid("/a~"));
	assert_false(json_pointer_valid("/~2"));
	assert_false(json_pointer_valid("/\xff"));
}

static void origins(void **state)
{
	origin origin;

	(void)state;
	assert_true(origin_read("header:X-Id", &origin) && origin.kind == ORIGIN_HEADER);
	assert_string_equal(origin.name, "X-Id");
	assert_true(origin_read("json:/a", &origin) && origin.kind == ORIGIN_POINTER);
	assert_true(origin_read("none", &origin) && origin.kind == ORIGIN_NONE);
	assert_false(origin_read("header:", &origin));
	assert_false(origin_read("json:a", &origin));
	assert_false(origin_read("Header:a", &origin));
	assert_false(origin_read("", &origin));
}

/*
 * Every prefix, and every single byte changed, of a text: nothing may be read beyond its end (the
 * sanitizers see it).
 */
static void no_text_is_read_beyond_its_end(void **state)
{
	static const char text[] =
	    "{\"a\\u00e9\\ud83d\\ude00\": [1.5e-3, true, null, \"\xf0\x9f\x98\x80\"], \"b\": {\"c\": -0}}";
	arena arena = {0};
	char *value = NULL;
	size_t found = 0;

	(void)state;
	for (size_t length = 0; length < sizeof text; length++) {
		char *exact = malloc(length + (length == 0));
		memcpy(exact, text, length);
		(void)json_text_check((once_bytes){.data = exact, .length = length});
		(void)json_text_find((once_bytes){.data = exact, .length = length}, "/b/c", &arena, &value, &found);
		for (size_t i = 0; i < length; i++) {
			for (int c = 1; c < 256; c += 7) {
				exact[i] = (char)c;
				(void)json_text_check((once_bytes){.data = exact, .length = length});
				(void)json_text_find((once_bytes){.data = exact, .length = length}, "/b/c", &arena, &value, &found);
			}
			exact[i] = text[i];
		}
		free(exact);
		arena_clear(&arena);
	}
}

static void whatever_comes_has_an_id_that_the_contract_takes(void **state)
{
	const origin id = {.kind = ORIGIN_HEADER, .name = "id"};
	const origin key = {.kind = ORIGIN_KEY};
	arena arena = {0};
	unsigned seed = 1;

	(void)state;
	for (int round = 0; round < 2000; round++) {
		char noise[3][64];
		for (size_t i = 0; i < sizeof noise; i++) {
			((char *)noise)[i] = (char)(rand_r(&seed) % (round % 3 == 0 ? 128 : 256));
		}
		noise[0][20] = noise[1][20] = '\0';
		const source_header headers[] = {
		    {.name = noise[0], .value = {.data = noise[1], .length = 40}},
		    {.name = "ID", .value = {.data = noise[2], .length = (size_t)(rand_r(&seed) % 60)}}};
		source_message delivery = {.topic = noise[1],
		                           .key = {.data = noise[0], .length = (size_t)(rand_r(&seed) % 60)},
		                           .payload = {.data = noise[2], .length = 60},
		                           .headers = headers,
		                           .header_count = 2};
		message message;
		message_identify(&delivery, &id, &key, &arena, &message);
		size_t length = strlen(message.id);
		assert_in_range(length, 1, 255);
		for (size_t i = 0; i < length; i++) {
			assert_in_range(message.id[i], ' ', '~');
		}
		assert_true(utf8_is_text(message.topic, strlen(message.topic)));
		assert_true(message.key == NULL || utf8_is_text(message.key, strlen(message.key)));
		assert_int_equal(json_text_check(bytes(message.headers)), JSON_YES);
		assert_true(message.unusable == NULL ||
		            strncmp(message.id, UNUSABLE_ID_PREFIX, strlen(UNUSABLE_ID_PREFIX)) == 0);
		arena_clear(&arena);
	}
}

static const char *id_in_inbox(arena *arena, const char *id, bool opaque, const char **own)
{
	const origin from = {.kind = ORIGIN_HEADER, .name = "id", .opaque = opaque};
	const source_header header = {.name = "id", .value = bytes(id)};
	source_message delivery = {.topic = "t", .headers = &header, .header_count = 1};
	message message;

	message_identify(&delivery, &from, &from, arena, &message);
	assert_null(message.unusable);
	*own = message_own_id(&message);
	return message.id;
}

static void an_opaque_id_that_may_be_a_uuidv7_has_a_prefix_of_which_no_handler_knows(void **state)
{
	static const char *const dated[] = {"0190163d-8694-7f4e-8694-123456789abc",
	                                    "0190163D-8694-7F4E-8694-123456789ABC",
	                                    "00000000-0001-7000-8000-000000000001",
	                                    "ffffffff-ffff-7fff-ffff-ffffffffffff",
	                                    "0190163d86947f4e8694123456789abc",
	                                    "0190-163d-8694-7f4e-8694-1234-5678-9abc",
	                                    "{0190163d-8694-7f4e-8694-123456789abc}",
	                                    "{0190163D86947F4E8694123456789ABC}",
	                                    "Urn:uuid:0190163d-8694-7f4e-8694-123456789abc"};
	static const char *const others[] = {"order-7",
	                                     "0190163d-8694-4f4e-8694-123456789abc",
	                                     "0190163d-8694-7f4e-8694-123456789ab",
	                                     "invoice:0190163d-8694-7f4e-8694-123456789abc",
	                                     "0190163d-8694-7f4e-8694-123456789abcd",
	                                     "urn:uuid:",
	                                     "7",
	                                     "-",
	                                     "{}"};
	arena arena = {0};
	const char *own = NULL;

	(void)state;
	for (size_t i = 0; i < sizeof dated / sizeof dated[0]; i++) {
		const char *id = id_in_inbox(&arena, dated[i], true, &own);
		assert_int_equal(strncmp(id, OPAQUE_ID_PREFIX, strlen(OPAQUE_ID_PREFIX)), 0);
		assert_string_equal(id + strlen(OPAQUE_ID_PREFIX), dated[i]);
		assert_string_equal(own, dated[i]);
		assert_string_equal(id_in_inbox(&arena, dated[i], false, &own), dated[i]);
		assert_string_equal(own, dated[i]);
	}
	for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
		assert_string_equal(id_in_inbox(&arena, others[i], true, &own), others[i]);
		assert_string_equal(own, others[i]);
	}
	/* Another's, which must not pass for ours. */
	assert_int_equal(strncmp(id_in_inbox(&arena, OPAQUE_ID_PREFIX "x", true, &own), "sha256:", 7), 0);
	assert_int_equal(strncmp(id_in_inbox(&arena, OPAQUE_ID_PREFIX "x", false, &own), "sha256:", 7), 0);
	arena_clear(&arena);
}

/*
 * Bytes that are no text come back from JSON as they were, and end: who sends them on as a header
 * takes them for a text.
 */
static void a_header_of_bytes_ends_where_its_bytes_end(void **state)
{
	static const char *const values[] = {"\xff", "\xff\xfe", "\xff\xfe\xfd", "\xff\xfe\xfd\xfc"};
	const origin id = {.kind = ORIGIN_HEADER, .name = "id"};
	arena arena = {0};

	(void)state;
	for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
		const source_header headers[] = {{.name = "id", .value = bytes("1")},
		                                 {.name = "raw", .value = bytes(values[i])}};
		source_message delivery = {.topic = "t", .headers = headers, .header_count = 2};
		message message;
		size_t count = 0;
		message_identify(&delivery, &id, &id, &arena, &message);
		const source_header *again = message_headers(message.headers, &arena, &count);
		assert_int_equal(count, 2);
		const source_header *raw = strcmp(again[0].name, "raw") == 0 ? &again[0] : &again[1];
		assert_int_equal(raw->value.length, strlen(values[i]));
		assert_string_equal(raw->value.data, values[i]);
		arena_clear(&arena);
	}
}

/*
 * Such a message is parked: a header with a name that is no text is not lost for it, nor another
 * that is called what it is shown as.
 */
static void no_header_is_hidden_by_the_name_of_another(void **state)
{
	const origin id = {.kind = ORIGIN_HEADER, .name = "id"};
	const source_header headers[] = {{.name = "id", .value = bytes("1")},
	                                 {.name = "a\\xff", .value = bytes("text")},
	                                 {.name = "a\xff", .value = bytes("none")},
	                                 {.name = "a\xfe", .value = bytes("another")}};
	source_message delivery = {.topic = "t", .headers = headers, .header_count = 4};
	arena arena = {0};
	message message;

	(void)state;
	message_identify(&delivery, &id, &id, &arena, &message);
	assert_string_equal(message.unusable, "the name of one of the message's headers is not UTF-8: a\\xff");
	assert_string_equal(
	    message.headers,
	    "{\"id\": \"1\", \"a\\\\x5cxff\": \"text\", \"a\\\\xff\": \"none\", \"a\\\\xfe\": \"another\"}");
	arena_clear(&arena);
}

/* Of a long topic that is no text an error shows the beginning; what is told apart is the whole. */
static void topics_that_are_no_text_are_told_apart_by_their_last_byte(void **state)
{
	const origin id = {.kind = ORIGIN_HEADER, .name = "id"};
	char topics[2][302];
	char first[256];
	arena arena = {0};

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		memset(topics[i], '\xff', 300);
		memcpy(topics[i] + 300, i == 0 ? "a" : "b", 2);
		source_message delivery = {.topic = topics[i], .coordinates = NULL};
		message message;
		message_identify(&delivery, &id, &id, &arena, &message);
		assert_non_null(message.unusable);
		if (i == 0) {
			strcpy(first, message.id);
		} else {
			assert_string_not_equal(first, message.id);
		}
		arena_clear(&arena);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(pointers_of_the_rfc),
	    cmocka_unit_test(pointers_to_what_is_not_there),
	    cmocka_unit_test(pointers_that_are_none),
	    cmocka_unit_test(origins),
	    cmocka_unit_test(no_text_is_read_beyond_its_end),
	    cmocka_unit_test(an_opaque_id_that_may_be_a_uuidv7_has_a_prefix_of_which_no_handler_knows),
	    cmocka_unit_test(a_header_of_bytes_ends_where_its_bytes_end),
	    cmocka_unit_test(no_header_is_hidden_by_the_name_of_another),
	    cmocka_unit_test(topics_that_are_no_text_are_told_apart_by_their_last_byte),
	    cmocka_unit_test(whatever_comes_has_an_id_that_the_contract_takes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
