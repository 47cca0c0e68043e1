/* SPDX-License-Identifier: PostgreSQL */
/*
 * test_key.c: every production of a Structured Field String and its parameters accepted, every way to be malformed
 * refused, and bare keys. Each row is tried strict and lenient; a quoted value must fare the same in both.
 */
#include "support.h"

typedef struct key_case {
	const char *value;
	size_t length;
	http_key_fault strict;
	http_key_fault lenient;
	const char *key; /* where a mode is good */
} key_case;

/* sizeof, so that a value may hold a NUL. */
#define GOOD(value, key)                                                                                               \
	{                                                                                                                  \
		value, sizeof(value) - 1, HTTP_KEY_GOOD, HTTP_KEY_GOOD, key                                                    \
	}
#define BAD(value, fault)                                                                                              \
	{                                                                                                                  \
		value, sizeof(value) - 1, fault, fault, NULL                                                                   \
	}
#define BARE(value, key)                                                                                               \
	{                                                                                                                  \
		value, sizeof(value) - 1, HTTP_KEY_NOT_A_STRING, HTTP_KEY_GOOD, key                                            \
	}

static const key_case cases[] = {
    /* sf-string = DQUOTE *chr DQUOTE; chr = unescaped / escaped; unescaped = %x20-21 / %x23-5B / %x5D-7E */
    GOOD("\"8e03978e-40d5-43dd-bc93-6894a57f9324\"", "8e03978e-40d5-43dd-bc93-6894a57f9324"),
    GOOD("\"a\"", "a"),
    GOOD("\" \"", " "),
    GOOD("\"a b\"", "a b"),
    GOOD("\"  a  \"", "  a  "),
    GOOD("\"!#$%&'()*+,-./0123456789:;<=>?@\"", "!#$%&'()*+,-./0123456789:;<=>?@"),
    GOOD("\"ABCDEFGHIJKLMNOPQRSTUVWXYZ[]^_`\"", "ABCDEFGHIJKLMNOPQRSTUVWXYZ[]^_`"),
    GOOD("\"abcdefghijklmnopqrstuvwxyz{|}~\"", "abcdefghijklmnopqrstuvwxyz{|}~"),
    GOOD("\"a, b\"", "a, b"),
    GOOD("\"a;b=c\"", "a;b=c"),
    /* escaped = "\" ( DQUOTE / "\" ) */
    GOOD("\"\\\"\"", "\""),
    GOOD("\"\\\\\"", "\\"),
    GOOD("\"a\\\"b\\\\c\"", "a\"b\\c"),
    GOOD("\"\\\\\\\"\"", "\\\""),
    BAD("\"\\a\"", HTTP_KEY_BAD_ESCAPE),
    BAD("\"\\n\"", HTTP_KEY_BAD_ESCAPE),
    BAD("\"\\ \"", HTTP_KEY_BAD_ESCAPE),
    BAD("\"\\u0041\"", HTTP_KEY_BAD_ESCAPE),
    BAD("\"a\\", HTTP_KEY_UNTERMINATED),
    BAD("\"\\\"", HTTP_KEY_UNTERMINATED),
    BAD("\"", HTTP_KEY_UNTERMINATED),
    BAD("\"a", HTTP_KEY_UNTERMINATED),
    BAD("\"a b", HTTP_KEY_UNTERMINATED),
    BAD("\"a;b=\\\"c\\\"", HTTP_KEY_UNTERMINATED),
    /* Nothing, and what is as good as nothing. */
    BAD("", HTTP_KEY_EMPTY),
    BAD(" ", HTTP_KEY_EMPTY),
    BAD("    ", HTTP_KEY_EMPTY),
    BAD("\"\"", HTTP_KEY_EMPTY),
    BAD("  \"\" ", HTTP_KEY_EMPTY),
    BAD("\"\";a=1", HTTP_KEY_EMPTY),
    /* Leading and trailing SP; nothing else counts as space. */
    GOOD(" \"a\"", "a"),
    GOOD("\"a\" ", "a"),
    GOOD("   \"a\"   ", "a"),
    BAD("\t\"a\"", HTTP_KEY_BAD_BYTE),
    BAD("\"a\"\t", HTTP_KEY_BAD_BYTE),
    BAD("\"a\";\tb", HTTP_KEY_BAD_BYTE),
    /* Control characters and non-ASCII, wherever they stand. */
    BAD("\"a\tb\"", HTTP_KEY_BAD_BYTE),
    BAD("\"a\nb\"", HTTP_KEY_BAD_BYTE),
    BAD("\"a\rb\"", HTTP_KEY_BAD_BYTE),
    BAD("\"a\0b\"", HTTP_KEY_BAD_BYTE),
    BAD("\"a\x01\"", HTTP_KEY_BAD_BYTE),
    BAD("\"a\x1f\"", HTTP_KEY_BAD_BYTE),
    BAD("\"a\x7f\"", HTTP_KEY_BAD_BYTE),
    BAD("\"a\x80\"", HTTP_KEY_BAD_BYTE),
    BAD("\"\xc3\xa9\"", HTTP_KEY_BAD_BYTE),
    BAD("\"\xff\"", HTTP_KEY_BAD_BYTE),
    BAD("\"a\";b=\"\xc3\xa9\"", HTTP_KEY_BAD_BYTE),
    BAD("\"a\"\0", HTTP_KEY_BAD_BYTE),
    BAD("a\0b", HTTP_KEY_BAD_BYTE),
    BAD("a\x7f", HTTP_KEY_BAD_BYTE),
    BAD("caf\xc3\xa9", HTTP_KEY_BAD_BYTE),
    BAD("a\tb", HTTP_KEY_BAD_BYTE),
    /* Bytes after the item; a list. */
    BAD("\"a\"b", HTTP_KEY_TRAILING),
    BAD("\"a\" b", HTTP_KEY_TRAILING),
    BAD("\"a\"\"b\"", HTTP_KEY_TRAILING),
    BAD("\"a\" \"b\"", HTTP_KEY_TRAILING),
    BAD("\"a\",", HTTP_KEY_TRAILING),
    BAD("\"a\", \"b\"", HTTP_KEY_TRAILING),
    BAD("\"a\",\"a\"", HTTP_KEY_TRAILING),
    BAD("\"a\"=1", HTTP_KEY_TRAILING),
    BAD("\"a\" ;b", HTTP_KEY_TRAILING), /* no space before a parameter */
    BAD("\"a\";b ;c", HTTP_KEY_TRAILING),
    BAD("\"a\";b, \"c\"", HTTP_KEY_TRAILING),
    BAD("\"a\";b=1,2", HTTP_KEY_TRAILING),
    BAD("\"a\";b=\"c\"d", HTTP_KEY_TRAILING),
    BAD("\"a\";B", HTTP_KEY_BAD_PARAMETER),
    /* parameters = *( ";" *SP parameter ); param-name = key = ( lcalpha / "*" ) *( lcalpha / DIGIT / "_" / "-" / "." / "*" ) */
    GOOD("\"a\";b", "a"),
    GOOD("\"a\"; b", "a"),
    GOOD("\"a\";   b", "a"),
    GOOD("\"a\";b;c;d", "a"),
    GOOD("\"a\";b=1; c=2;b=3 ", "a"),
    GOOD("\"a\";*", "a"),
    GOOD("\"a\";*b0_-.*", "a"),
    GOOD("\"a\";b0_-.*=1", "a"),
    BAD("\"a\";", HTTP_KEY_BAD_PARAMETER),
    BAD("\"a\"; ", HTTP_KEY_BAD_PARAMETER),
    BAD("\"a\";;b", HTTP_KEY_BAD_PARAMETER),
    BAD("\"a\";0b", HTTP_KEY_BAD_PARAMETER),
    BAD("\"a\";_b", HTTP_KEY_BAD_PARAMETER),
    BAD("\"a\";-b", HTTP_KEY_BAD_PARAMETER),
    BAD("\"a\";=1", HTTP_KEY_BAD_PARAMETER),
    BAD("\"a\";\"b\"", HTTP_KEY_BAD_PARAMETER),
    BAD("\"a\";b=", HTTP_KEY_BAD_PARAMETER),
    BAD("\"a\";b= 1", HTTP_KEY_BAD_PARAMETER),
    BAD("\"a\";b =1", HTTP_KEY_TRAILING),
    BAD("\"a\";bC", HTTP_KEY_TRAILING),
    /* sf-integer = ["-"] 1*15DIGIT */
    GOOD("\"a\";b=0", "a"),
    GOOD("\"a\";b=-0", "a"),
    GOOD("\"a\";b=007", "a"),
    GOOD("\"a\";b=999999999999999", "a"),
    GOOD("\"a\";b=-999999999999999", "a"),
    BAD("\"a\";b=1000000000000000", HTTP_KEY_BAD_PARAMETER),
    BAD("\"a\";b=-1000000000000000", HTTP_KEY_BAD_PARAMETER),
    BAD("\"a\";b=-", HTTP_KEY_BAD_PARAMETER),
    BAD("\"a\";b=--1", HTTP_KEY_BAD_PARAMETER),
    BAD("\"a\";b=+1", HTTP_KEY_BAD_PARAMETER),
    BAD("\"a\";b=-a", HTTP_KEY_BAD_PARAMETER),
    BAD("\"a\";b=1a", HTTP_KEY_TRAILING),
    /* sf-decimal = ["-"] 1*12DIGIT "." 1*3DIGIT */
    GOOD("\"a\";b=1.5", "a"),
    GOOD("\"a\";b=-1.125", "a"),
    GOOD("\"a\";b=123456789012.123", "a"),
    BAD("\"a\";b=1234567890123.1", HTTP_KEY_BAD_PARAMETER),
    BAD("\"a\";b=1.1234", HTTP_KEY_BAD_PARAMETER),
    BAD("\"a\";b=1.", HTTP_KEY_BAD_PARAMETER),
    BAD("\"a\";b=.5", HTTP_KEY_BAD_PARAMETER),
    BAD("\"a\";b=-.5", HTTP_KEY_BAD_PARAMETER),
    BAD("\"a\";b=1.2.3", HTTP_KEY_TRAILING),
    BAD("\"a\";b=1.5e3", HTTP_KEY_TRAILING),
    /* sf-string */
    GOOD("\"a\";b=\"\"", "a"),
    GOOD("\"a\";b=\"c d;,\\\"\\\\\"", "a"),
    BAD("\"a\";b=\"c", HTTP_KEY_BAD_PARAMETER),
    BAD("\"a\";b=\"\\c\"", HTTP_KEY_BAD_PARAMETER),
    BAD("\"a\";b=\"c\\", HTTP_KEY_BAD_PARAMETER),
    /* sf-token = ( ALPHA / "*" ) *( tchar / ":" / "/" ) */
    GOOD("\"a\";b=c", "a"),
    GOOD("\"a\";b=C", "a"),
    GOOD("\"a\";b=*", "a"),
    GOOD("\"a\";b=*c!#$%&'*+-.^_`|~:/0Z", "a"),
    BAD("\"a\";b=!c", HTTP_KEY_BAD_PARAMETER),
    BAD("\"a\";b=/c", HTTP_KEY_BAD_PARAMETER),
    BAD("\"a\";b=c(d", HTTP_KEY_TRAILING),
    BAD("\"a\";b=c=d", HTTP_KEY_TRAILING),
    /* sf-binary = ":" *(base64) ":" */
    GOOD("\"a\";b=::", "a"),
    GOOD("\"a\";b=:cHJldGVuZA==:", "a"),
    GOOD("\"a\";b=:cHJldGVuZA:", "a"), /* missing padding is synthesised */
    GOOD("\"a\";b=:abcd+/09:", "a"),
    GOOD("\"a\";b=:YWI=:", "a"),
    BAD("\"a\";b=:", HTTP_KEY_BAD_PARAMETER),
    BAD("\"a\";b=:abcd", HTTP_KEY_BAD_PARAMETER),
    BAD("\"a\";b=:ab cd:", HTTP_KEY_BAD_PARAMETER),
    BAD("\"a\";b=:ab-_:", HTTP_KEY_BAD_PARAMETER),
    BAD("\"a\";b=:a:", HTTP_KEY_BAD_PARAMETER),
    BAD("\"a\";b=:abcde:", HTTP_KEY_BAD_PARAMETER),
    BAD("\"a\";b=:=:", HTTP_KEY_BAD_PARAMETER),
    BAD("\"a\";b=:ab=c:", HTTP_KEY_BAD_PARAMETER),
    BAD("\"a\";b=:ab=:", HTTP_KEY_BAD_PARAMETER),
    BAD("\"a\";b=:abcd====:", HTTP_KEY_BAD_PARAMETER),
    /* sf-boolean = "?" ( "0" / "1" ) */
    GOOD("\"a\";b=?0", "a"),
    GOOD("\"a\";b=?1;c=?0", "a"),
    BAD("\"a\";b=?", HTTP_KEY_BAD_PARAMETER),
    BAD("\"a\";b=?2", HTTP_KEY_BAD_PARAMETER),
    BAD("\"a\";b=?t", HTTP_KEY_BAD_PARAMETER),
    BAD("\"a\";b=?01", HTTP_KEY_TRAILING),
    /* No bare item at all; an inner list is no bare item, nor are the types of RFC 9651. */
    BAD("\"a\";b=(1)", HTTP_KEY_BAD_PARAMETER),
    BAD("\"a\";b=@1", HTTP_KEY_BAD_PARAMETER),
    BAD("\"a\";b=%\"c\"", HTTP_KEY_BAD_PARAMETER),
    BAD("\"a\";b=;c", HTTP_KEY_BAD_PARAMETER),
    /* The other types of items are no keys in strict mode; to the lenient one they are bare keys, letter for letter. */
    BARE("abc", "abc"),
    BARE("*abc", "*abc"),
    BARE("8e03978e-40d5-43dd-bc93-6894a57f9324", "8e03978e-40d5-43dd-bc93-6894a57f9324"),
    BARE("123", "123"),
    BARE("-1.5", "-1.5"),
    BARE("?1", "?1"),
    BARE(":YWJj:", ":YWJj:"),
    BARE("@1659578233", "@1659578233"),
    BARE("'a'", "'a'"),
    BARE("  a ", "a"),
    BARE("!#$%&'()*+-./:<=>?@[]^_`{|}~", "!#$%&'()*+-./:<=>?@[]^_`{|}~"),
    BAD("(\"a\")", HTTP_KEY_NOT_A_STRING),
    BAD("%\"a\"", HTTP_KEY_NOT_A_STRING),
    /* Never a bare key: what could be a list, a parameter, or the remains of a string. */
    BAD("a b", HTTP_KEY_NOT_A_STRING),
    BAD("a,b", HTTP_KEY_NOT_A_STRING),
    BAD("a, b", HTTP_KEY_NOT_A_STRING),
    BAD("a;b=1", HTTP_KEY_NOT_A_STRING),
    BAD("a\"", HTTP_KEY_NOT_A_STRING),
    BAD("a\"b\"", HTTP_KEY_NOT_A_STRING),
    BAD("a\\b", HTTP_KEY_NOT_A_STRING),
    BAD("\\\"a\\\"", HTTP_KEY_NOT_A_STRING),
    BAD(",", HTTP_KEY_NOT_A_STRING),
    BAD(";", HTTP_KEY_NOT_A_STRING),
};

static http_key_fault parse(const char *value, size_t length, bool strict, size_t length_max, char *key)
{
	/* On the heap and not terminated, so that the sanitizer sees a step too far. */
	char *copy = malloc(length > 0 ? length : 1);
	memcpy(copy, value, length);
	size_t key_length = 12345;
	memset(key, 'x', HTTP_KEY_MAX + 1);
	http_key_fault fault = http_key_parse((http_text){copy, length}, strict, length_max, key, &key_length);
	free(copy);
	assert_int_equal(strlen(key), key_length);
	assert_int_equal(fault == HTTP_KEY_GOOD, key_length > 0);
	return fault;
}

static void check(const key_case *tried, bool strict)
{
	char key[HTTP_KEY_MAX + 1];
	http_key_fault expected = strict ? tried->strict : tried->lenient;
	http_key_fault fault = parse(tried->value, tried->length, strict, HTTP_KEY_MAX, key);
	if (fault != expected) {
		fail_msg("%s (%s): expected %s, got %s", tried->value, strict ? "strict" : "lenient",
		         http_key_fault_text(expected), http_key_fault_text(fault));
	}
	assert_string_equal(key, expected == HTTP_KEY_GOOD ? tried->key : "");
}

static void each_value_is_a_key_or_has_its_fault_strict_and_lenient(void **state)
{
	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		check(&cases[i], true);
		check(&cases[i], false);
	}
}

static void every_byte_in_a_string_is_taken_or_refused_as_the_grammar_says(void **state)
{
	(void)state;
	for (int c = 0; c < 256; c++) {
		char value[] = {'"', 'a', (char)c, 'b', '"'};
		char key[HTTP_KEY_MAX + 1];
		http_key_fault expected = c < 0x20 || c > 0x7e ? HTTP_KEY_BAD_BYTE
		                          : c == '"'           ? HTTP_KEY_TRAILING
		                          : c == '\\'          ? HTTP_KEY_BAD_ESCAPE
		                                               : HTTP_KEY_GOOD;
		assert_int_equal(parse(value, sizeof value, true, HTTP_KEY_MAX, key), expected);
		assert_int_equal(parse(value, sizeof value, false, HTTP_KEY_MAX, key), expected);
		if (expected == HTTP_KEY_GOOD) {
			assert_int_equal((unsigned char)key[1], c);
		}
	}
}

static void every_byte_in_a_bare_key_is_taken_or_refused(void **state)
{
	(void)state;
	for (int c = 0; c < 256; c++) {
		char value[] = {'a', (char)c, 'b'};
		char key[HTTP_KEY_MAX + 1];
		http_key_fault expected = c < 0x20 || c > 0x7e                                        ? HTTP_KEY_BAD_BYTE
		                          : c == ' ' || c == '"' || c == '\\' || c == ',' || c == ';' ? HTTP_KEY_NOT_A_STRING
		                                                                                      : HTTP_KEY_GOOD;
		assert_int_equal(parse(value, sizeof value, false, HTTP_KEY_MAX, key), expected);
	}
}

static void a_key_has_at_most_the_length_that_is_asked_for(void **state)
{
	(void)state;
	static const size_t limits[] = {1, 2, 64, 254, HTTP_KEY_MAX};
	for (size_t i = 0; i < COUNT(limits); i++) {
		for (size_t length = limits[i] > 1 ? limits[i] - 1 : 1; length <= limits[i] + 1; length++) {
			/* Escapes count once, since the key counts and not its spelling. */
			char key[HTTP_KEY_MAX + 2];
			char value[2 * HTTP_KEY_MAX + 5];
			char parsed[HTTP_KEY_MAX + 1];
			memset(key, '"', sizeof key);
			size_t value_length = quote(key, length, value);
			http_key_fault expected = length > limits[i] ? HTTP_KEY_TOO_LONG : HTTP_KEY_GOOD;
			assert_int_equal(parse(value, value_length, true, limits[i], parsed), expected);
			memset(key, 'k', sizeof key);
			assert_int_equal(parse(key, length, false, limits[i], parsed), expected);
		}
	}
}

static void a_limit_beyond_the_contracts_is_the_contracts(void **state)
{
	(void)state;
	char value[HTTP_KEY_MAX + 1];
	char key[HTTP_KEY_MAX + 1];
	memset(value, 'k', sizeof value);
	assert_int_equal(parse(value, HTTP_KEY_MAX, false, 100000, key), HTTP_KEY_GOOD);
	assert_int_equal(parse(value, HTTP_KEY_MAX + 1, false, 100000, key), HTTP_KEY_TOO_LONG);
}

static void a_key_is_one_quoted_and_bare(void **state)
{
	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		if (cases[i].lenient != HTTP_KEY_GOOD) {
			continue;
		}
		char value[2 * HTTP_KEY_MAX + 3];
		char key[HTTP_KEY_MAX + 1];
		size_t length = quote(cases[i].key, strlen(cases[i].key), value);
		assert_int_equal(parse(value, length, true, HTTP_KEY_MAX, key), HTTP_KEY_GOOD);
		assert_string_equal(key, cases[i].key);
	}
}

static void what_begins_with_a_quote_is_a_string_or_nothing(void **state)
{
	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		const char *first = cases[i].value + strspn(cases[i].value, " ");
		if (*first == '"') {
			assert_int_equal(cases[i].strict, cases[i].lenient);
		}
	}
}

static void each_fault_has_a_sentence_of_its_own(void **state)
{
	(void)state;
	for (int i = 0; i <= HTTP_KEY_TOO_LONG; i++) {
		for (int j = 0; j < i; j++) {
			assert_string_not_equal(http_key_fault_text((http_key_fault)i), http_key_fault_text((http_key_fault)j));
		}
		assert_true(strlen(http_key_fault_text((http_key_fault)i)) < HTTP_PROBLEM_DETAIL_MAX - 20);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(each_value_is_a_key_or_has_its_fault_strict_and_lenient),
	    cmocka_unit_test(every_byte_in_a_string_is_taken_or_refused_as_the_grammar_says),
	    cmocka_unit_test(every_byte_in_a_bare_key_is_taken_or_refused),
	    cmocka_unit_test(a_key_has_at_most_the_length_that_is_asked_for),
	    cmocka_unit_test(a_limit_beyond_the_contracts_is_the_contracts),
	    cmocka_unit_test(a_key_is_one_quoted_and_bare),
	    cmocka_unit_test(what_begins_with_a_quote_is_a_string_or_nothing),
	    cmocka_unit_test(each_fault_has_a_sentence_of_its_own),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
