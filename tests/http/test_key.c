/* SPDX-License-Identifier: PostgreSQL */
/*
 * test_key.c: every production of a Structured Field String and its parameters accepted, every way
 * to be malformed refused, and bare keys. Each row is tried strict and lenient; a quoted value must
 * fare the same in both.
 */
#include "support.h"

#include "internal.h"

typedef struct key_case {
	const char *value;
	size_t length;
	key_fault strict;
	key_fault lenient;
	const char *key; /* where a mode is good */
} key_case;

/* sizeof, so that a value may hold a NUL. */
#define GOOD(value, key)                                                                                               \
	{                                                                                                                  \
		value, sizeof(value) - 1, KEY_GOOD, KEY_GOOD, key                                                              \
	}
#define BAD(value, fault)                                                                                              \
	{                                                                                                                  \
		value, sizeof(value) - 1, fault, fault, NULL                                                                   \
	}
#define BARE(value, key)                                                                                               \
	{                                                                                                                  \
		value, sizeof(value) - 1, KEY_NOT_A_STRING, KEY_GOOD, key                                                      \
	}

static const key_case cases[] = {
    /*
     * sf-string = DQUOTE *chr DQUOTE; chr = unescaped / escaped; unescaped = %x20-21 / %x23-5B /
     * %x5D-7E
     */
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
    BAD("\"\\a\"", KEY_BAD_ESCAPE),
    BAD("\"\\n\"", KEY_BAD_ESCAPE),
    BAD("\"\\ \"", KEY_BAD_ESCAPE),
    BAD("\"\\u0041\"", KEY_BAD_ESCAPE),
    BAD("\"a\\", KEY_UNTERMINATED),
    BAD("\"\\\"", KEY_UNTERMINATED),
    BAD("\"", KEY_UNTERMINATED),
    BAD("\"a", KEY_UNTERMINATED),
    BAD("\"a b", KEY_UNTERMINATED),
    BAD("\"a;b=\\\"c\\\"", KEY_UNTERMINATED),
    /* Nothing, and what is as good as nothing. */
    BAD("", KEY_EMPTY),
    BAD(" ", KEY_EMPTY),
    BAD("    ", KEY_EMPTY),
    BAD("\"\"", KEY_EMPTY),
    BAD("  \"\" ", KEY_EMPTY),
    BAD("\"\";a=1", KEY_EMPTY),
    /* Leading and trailing SP; nothing else counts as space. */
    GOOD(" \"a\"", "a"),
    GOOD("\"a\" ", "a"),
    GOOD("   \"a\"   ", "a"),
    BAD("\t\"a\"", KEY_BAD_BYTE),
    BAD("\"a\"\t", KEY_BAD_BYTE),
    BAD("\"a\";\tb", KEY_BAD_BYTE),
    /* Control characters and non-ASCII, wherever they stand. */
    BAD("\"a\tb\"", KEY_BAD_BYTE),
    BAD("\"a\nb\"", KEY_BAD_BYTE),
    BAD("\"a\rb\"", KEY_BAD_BYTE),
    BAD("\"a\0b\"", KEY_BAD_BYTE),
    BAD("\"a\x01\"", KEY_BAD_BYTE),
    BAD("\"a\x1f\"", KEY_BAD_BYTE),
    BAD("\"a\x7f\"", KEY_BAD_BYTE),
    BAD("\"a\x80\"", KEY_BAD_BYTE),
    BAD("\"\xc3\xa9\"", KEY_BAD_BYTE),
    BAD("\"\xff\"", KEY_BAD_BYTE),
    BAD("\"a\";b=\"\xc3\xa9\"", KEY_BAD_BYTE),
    BAD("\"a\"\0", KEY_BAD_BYTE),
    BAD("a\0b", KEY_BAD_BYTE),
    BAD("a\x7f", KEY_BAD_BYTE),
    BAD("caf\xc3\xa9", KEY_BAD_BYTE),
    BAD("a\tb", KEY_BAD_BYTE),
    /* Bytes after the item; a list. */
    BAD("\"a\"b", KEY_TRAILING),
    BAD("\"a\" b", KEY_TRAILING),
    BAD("\"a\"\"b\"", KEY_TRAILING),
    BAD("\"a\" \"b\"", KEY_TRAILING),
    BAD("\"a\",", KEY_TRAILING),
    BAD("\"a\", \"b\"", KEY_TRAILING),
    BAD("\"a\",\"a\"", KEY_TRAILING),
    BAD("\"a\"=1", KEY_TRAILING),
    BAD("\"a\" ;b", KEY_TRAILING), /* no space before a parameter */
    BAD("\"a\";b ;c", KEY_TRAILING),
    BAD("\"a\";b, \"c\"", KEY_TRAILING),
    BAD("\"a\";b=1,2", KEY_TRAILING),
    BAD("\"a\";b=\"c\"d", KEY_TRAILING),
    BAD("\"a\";B", KEY_BAD_PARAMETER),
    /*
     * parameters = *( ";" *SP parameter ); param-name = key = ( lcalpha / "*" ) *( lcalpha / DIGIT
     * / "_" / "-" / "." / "*" )
     */
    GOOD("\"a\";b", "a"),
    GOOD("\"a\"; b", "a"),
    GOOD("\"a\";   b", "a"),
    GOOD("\"a\";b;c;d", "a"),
    GOOD("\"a\";b=1; c=2;b=3 ", "a"),
    GOOD("\"a\";*", "a"),
    GOOD("\"a\";*b0_-.*", "a"),
    GOOD("\"a\";b0_-.*=1", "a"),
    BAD("\"a\";", KEY_BAD_PARAMETER),
    BAD("\"a\"; ", KEY_BAD_PARAMETER),
    BAD("\"a\";;b", KEY_BAD_PARAMETER),
    BAD("\"a\";0b", KEY_BAD_PARAMETER),
    BAD("\"a\";_b", KEY_BAD_PARAMETER),
    BAD("\"a\";-b", KEY_BAD_PARAMETER),
    BAD("\"a\";=1", KEY_BAD_PARAMETER),
    BAD("\"a\";\"b\"", KEY_BAD_PARAMETER),
    BAD("\"a\";b=", KEY_BAD_PARAMETER),
    BAD("\"a\";b= 1", KEY_BAD_PARAMETER),
    BAD("\"a\";b =1", KEY_TRAILING),
    BAD("\"a\";bC", KEY_TRAILING),
    /* sf-integer = ["-"] 1*15DIGIT */
    GOOD("\"a\";b=0", "a"),
    GOOD("\"a\";b=-0", "a"),
    GOOD("\"a\";b=007", "a"),
    GOOD("\"a\";b=999999999999999", "a"),
    GOOD("\"a\";b=-999999999999999", "a"),
    BAD("\"a\";b=1000000000000000", KEY_BAD_PARAMETER),
    BAD("\"a\";b=-1000000000000000", KEY_BAD_PARAMETER),
    BAD("\"a\";b=-", KEY_BAD_PARAMETER),
    BAD("\"a\";b=--1", KEY_BAD_PARAMETER),
    BAD("\"a\";b=+1", KEY_BAD_PARAMETER),
    BAD("\"a\";b=-a", KEY_BAD_PARAMETER),
    BAD("\"a\";b=1a", KEY_TRAILING),
    /* sf-decimal = ["-"] 1*12DIGIT "." 1*3DIGIT */
    GOOD("\"a\";b=1.5", "a"),
    GOOD("\"a\";b=-1.125", "a"),
    GOOD("\"a\";b=123456789012.123", "a"),
    BAD("\"a\";b=1234567890123.1", KEY_BAD_PARAMETER),
    BAD("\"a\";b=1.1234", KEY_BAD_PARAMETER),
    BAD("\"a\";b=1.", KEY_BAD_PARAMETER),
    BAD("\"a\";b=.5", KEY_BAD_PARAMETER),
    BAD("\"a\";b=-.5", KEY_BAD_PARAMETER),
    BAD("\"a\";b=1.2.3", KEY_TRAILING),
    BAD("\"a\";b=1.5e3", KEY_TRAILING),
    /* sf-string */
    GOOD("\"a\";b=\"\"", "a"),
    GOOD("\"a\";b=\"c d;,\\\"\\\\\"", "a"),
    BAD("\"a\";b=\"c", KEY_BAD_PARAMETER),
    BAD("\"a\";b=\"\\c\"", KEY_BAD_PARAMETER),
    BAD("\"a\";b=\"c\\", KEY_BAD_PARAMETER),
    /* sf-token = ( ALPHA / "*" ) *( tchar / ":" / "/" ) */
    GOOD("\"a\";b=c", "a"),
    GOOD("\"a\";b=C", "a"),
    GOOD("\"a\";b=*", "a"),
    GOOD("\"a\";b=*c!#$%&'*+-.^_`|~:/0Z", "a"),
    BAD("\"a\";b=!c", KEY_BAD_PARAMETER),
    BAD("\"a\";b=/c", KEY_BAD_PARAMETER),
    BAD("\"a\";b=c(d", KEY_TRAILING),
    BAD("\"a\";b=c=d", KEY_TRAILING),
    /* sf-binary = ":" *(base64) ":" */
    GOOD("\"a\";b=::", "a"),
    GOOD("\"a\";b=:cHJldGVuZA==:", "a"),
    GOOD("\"a\";b=:cHJldGVuZA:", "a"), /* missing padding is synthesised */
    GOOD("\"a\";b=:abcd+/09:", "a"),
    GOOD("\"a\";b=:YWI=:", "a"),
    BAD("\"a\";b=:", KEY_BAD_PARAMETER),
    BAD("\"a\";b=:abcd", KEY_BAD_PARAMETER),
    BAD("\"a\";b=:ab cd:", KEY_BAD_PARAMETER),
    BAD("\"a\";b=:ab-_:", KEY_BAD_PARAMETER),
    BAD("\"a\";b=:a:", KEY_BAD_PARAMETER),
    BAD("\"a\";b=:abcde:", KEY_BAD_PARAMETER),
    BAD("\"a\";b=:=:", KEY_BAD_PARAMETER),
    BAD("\"a\";b=:ab=c:", KEY_BAD_PARAMETER),
    BAD("\"a\";b=:ab=:", KEY_BAD_PARAMETER),
    BAD("\"a\";b=:abcd====:", KEY_BAD_PARAMETER),
    /* sf-boolean = "?" ( "0" / "1" ) */
    GOOD("\"a\";b=?0", "a"),
    GOOD("\"a\";b=?1;c=?0", "a"),
    BAD("\"a\";b=?", KEY_BAD_PARAMETER),
    BAD("\"a\";b=?2", KEY_BAD_PARAMETER),
    BAD("\"a\";b=?t", KEY_BAD_PARAMETER),
    BAD("\"a\";b=?01", KEY_TRAILING),
    /* No bare item at all; an inner list is no bare item, nor are the types of RFC 9651. */
    BAD("\"a\";b=(1)", KEY_BAD_PARAMETER),
    BAD("\"a\";b=@1", KEY_BAD_PARAMETER),
    BAD("\"a\";b=%\"c\"", KEY_BAD_PARAMETER),
    BAD("\"a\";b=;c", KEY_BAD_PARAMETER),
    /*
     * The other types of items are no keys in strict mode; to the lenient one they are bare keys,
     * letter for letter.
     */
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
    BAD("(\"a\")", KEY_NOT_A_STRING),
    BAD("%\"a\"", KEY_NOT_A_STRING),
    /* Never a bare key: what could be a list, a parameter, or the remains of a string. */
    BAD("a b", KEY_NOT_A_STRING),
    BAD("a,b", KEY_NOT_A_STRING),
    BAD("a, b", KEY_NOT_A_STRING),
    BAD("a;b=1", KEY_NOT_A_STRING),
    BAD("a\"", KEY_NOT_A_STRING),
    BAD("a\"b\"", KEY_NOT_A_STRING),
    BAD("a\\b", KEY_NOT_A_STRING),
    BAD("\\\"a\\\"", KEY_NOT_A_STRING),
    BAD(",", KEY_NOT_A_STRING),
    BAD(";", KEY_NOT_A_STRING),
};

static key_fault parse(const char *value, size_t length, bool strict, size_t length_max, char *key)
{
	/* On the heap and not terminated, so that the sanitizer sees a step too far. */
	char *copy = malloc(length > 0 ? length : 1);
	memcpy(copy, value, length);
	size_t key_length = 12345;
	memset(key, 'x', ONCE_KEY_BYTES_MAX + 1);
	key_fault fault = key_parse((once_bytes){copy, length}, strict, length_max, key, &key_length);
	free(copy);
	assert_int_equal(strlen(key), key_length);
	assert_int_equal(fault == KEY_GOOD, key_length > 0);
	return fault;
}

static void check(const key_case *tried, bool strict)
{
	char key[ONCE_KEY_BYTES_MAX + 1];
	key_fault expected = strict ? tried->strict : tried->lenient;
	key_fault fault = parse(tried->value, tried->length, strict, ONCE_KEY_BYTES_MAX, key);
	if (fault != expected) {
		fail_msg("%s (%s): expected %s, got %s", tried->value, strict ? "strict" : "lenient", key_fault_text(expected),
		         key_fault_text(fault));
	}
	assert_string_equal(key, expected == KEY_GOOD ? tried->key : "");
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
		char key[ONCE_KEY_BYTES_MAX + 1];
		key_fault expected = c < 0x20 || c > 0x7e ? KEY_BAD_BYTE
		                     : c == '"'           ? KEY_TRAILING
		                     : c == '\\'          ? KEY_BAD_ESCAPE
		                                          : KEY_GOOD;
		assert_int_equal(parse(value, sizeof value, true, ONCE_KEY_BYTES_MAX, key), expected);
		assert_int_equal(parse(value, sizeof value, false, ONCE_KEY_BYTES_MAX, key), expected);
		if (expected == KEY_GOOD) {
			assert_int_equal((unsigned char)key[1], c);
		}
	}
}

static void every_byte_in_a_bare_key_is_taken_or_refused(void **state)
{
	(void)state;
	for (int c = 0; c < 256; c++) {
		char value[] = {'a', (char)c, 'b'};
		char key[ONCE_KEY_BYTES_MAX + 1];
		key_fault expected = c < 0x20 || c > 0x7e                                        ? KEY_BAD_BYTE
		                     : c == ' ' || c == '"' || c == '\\' || c == ',' || c == ';' ? KEY_NOT_A_STRING
		                                                                                 : KEY_GOOD;
		assert_int_equal(parse(value, sizeof value, false, ONCE_KEY_BYTES_MAX, key), expected);
	}
}

static void a_key_has_at_most_the_length_that_is_asked_for(void **state)
{
	(void)state;
	static const size_t limits[] = {1, 2, 64, 254, ONCE_KEY_BYTES_MAX};
	for (size_t i = 0; i < COUNT(limits); i++) {
		for (size_t length = limits[i] > 1 ? limits[i] - 1 : 1; length <= limits[i] + 1; length++) {
			/* Escapes count once, since the key counts and not its spelling. */
			char key[ONCE_KEY_BYTES_MAX + 2];
			char value[2 * ONCE_KEY_BYTES_MAX + 5];
			char parsed[ONCE_KEY_BYTES_MAX + 1];
			memset(key, '"', sizeof key);
			size_t value_length = quote(key, length, value);
			key_fault expected = length > limits[i] ? KEY_TOO_LONG : KEY_GOOD;
			assert_int_equal(parse(value, value_length, true, limits[i], parsed), expected);
			memset(key, 'k', sizeof key);
			assert_int_equal(parse(key, length, false, limits[i], parsed), expected);
		}
	}
}

static void a_limit_beyond_the_contracts_is_the_contracts(void **state)
{
	(void)state;
	char value[ONCE_KEY_BYTES_MAX + 1];
	char key[ONCE_KEY_BYTES_MAX + 1];
	memset(value, 'k', sizeof value);
	assert_int_equal(parse(value, ONCE_KEY_BYTES_MAX, false, 100000, key), KEY_GOOD);
	assert_int_equal(parse(value, ONCE_KEY_BYTES_MAX + 1, false, 100000, key), KEY_TOO_LONG);
}

static void a_key_is_one_quoted_and_bare(void **state)
{
	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		if (cases[i].lenient != KEY_GOOD) {
			continue;
		}
		char value[2 * ONCE_KEY_BYTES_MAX + 3];
		char key[ONCE_KEY_BYTES_MAX + 1];
		size_t length = quote(cases[i].key, strlen(cases[i].key), value);
		assert_int_equal(parse(value, length, true, ONCE_KEY_BYTES_MAX, key), KEY_GOOD);
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
	for (int i = 0; i <= KEY_TOO_LONG; i++) {
		for (int j = 0; j < i; j++) {
			assert_string_not_equal(key_fault_text((key_fault)i), key_fault_text((key_fault)j));
		}
		assert_true(strlen(key_fault_text((key_fault)i)) < HTTP_PROBLEM_DETAIL_MAX - 20);
	}
}

static void the_public_function_says_the_same_and_why(void **state)
{
	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		char key[ONCE_KEY_BYTES_MAX + 1];
		once_error *error = NULL;
		once_code code =
		    once_key_of_header((once_bytes){cases[i].value, cases[i].length}, false, ONCE_KEY_BYTES_MAX, key, &error);
		assert_int_equal(code, cases[i].lenient == KEY_GOOD ? ONCE_OK : ONCE_KEY_MALFORMED);
		assert_string_equal(key, cases[i].lenient == KEY_GOOD ? cases[i].key : "");
		assert_string_equal(once_error_detail(error),
		                    cases[i].lenient == KEY_GOOD ? "" : key_fault_text(cases[i].lenient));
		once_error_free(error);
	}
}

static void no_value_is_an_empty_one_and_a_wrong_call_is_said(void **state)
{
	(void)state;
	char key[ONCE_KEY_BYTES_MAX + 1];
	assert_int_equal(once_key_of_header((once_bytes){NULL, 0}, false, 10, key, NULL), ONCE_KEY_MALFORMED);
	assert_int_equal(once_key_of_header((once_bytes){NULL, 1}, false, 10, key, NULL), ONCE_USAGE);
	assert_int_equal(once_key_of_header((once_bytes){"a", 1}, false, 0, key, NULL), ONCE_USAGE);
	assert_int_equal(once_key_of_header((once_bytes){"a", 1}, false, 10, NULL, NULL), ONCE_USAGE);
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
	    cmocka_unit_test(the_public_function_says_the_same_and_why),
	    cmocka_unit_test(no_value_is_an_empty_one_and_a_wrong_call_is_said),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
