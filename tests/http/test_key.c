/* SPDX-License-Identifier: PostgreSQL */
/*
 * test_key.c: the vectors of spec/vectors/keys.json, strict and lenient, every byte, and the
 * lengths.
 */
#include "support.h"

#include "internal.h"

typedef struct key_case {
	const char *value;
	key_fault fault; /* where a bare key is taken */
	const char *key;
} key_case;

/* clang-format off */
static const key_case cases[] = {
    /* spec: key-cases */
    {"\"8e03978e-40d5-43dd-bc93-6894a57f9324\"", KEY_GOOD, "8e03978e-40d5-43dd-bc93-6894a57f9324"},
    {"8e03978e-40d5-43dd-bc93-6894a57f9324", KEY_GOOD, "8e03978e-40d5-43dd-bc93-6894a57f9324"},
    {"\"a\"", KEY_GOOD, "a"},
    {"a", KEY_GOOD, "a"},
    {"   \"a b\"  ", KEY_GOOD, "a b"},
    {"  a  ", KEY_GOOD, "a"},
    {"\"  a  \"", KEY_GOOD, "  a  "},
    {"\" \"", KEY_GOOD, " "},
    {"\"a\\\"b\\\\c\"", KEY_GOOD, "a\"b\\c"},
    {"\"\\\\\\\"\"", KEY_GOOD, "\\\""},
    {"\"!#$%&'()*+,-./:;<=>?@[]^_`{|}~\"", KEY_GOOD, "!#$%&'()*+,-./:;<=>?@[]^_`{|}~"},
    {"!#$%&'()*+-./:<=>?@[]^_`{|}~", KEY_GOOD, "!#$%&'()*+-./:<=>?@[]^_`{|}~"},
    {"\"a, b;c=d\"", KEY_GOOD, "a, b;c=d"},
    {"\"A\"", KEY_GOOD, "A"},
    {"\"a\";q", KEY_GOOD, "a"},
    {"\"a\"; q", KEY_GOOD, "a"},
    {"\"a\";   q=1", KEY_GOOD, "a"},
    {"\"a\";b=-1.5;c=tok/en:x;d=?0;e=:YWJj:;*f=\"x;y,\\\"z\"", KEY_GOOD, "a"},
    {"\"a\";a_b-c.d*0=1", KEY_GOOD, "a"},
    {"\"a\";a=1;a=2", KEY_GOOD, "a"},
    {"\"a\";b=:YQ:", KEY_GOOD, "a"},
    {"\"a\";b=:YQ==:", KEY_GOOD, "a"},
    {"\"a\";b=::", KEY_GOOD, "a"},
    {"\"a\";b=123456789012345", KEY_GOOD, "a"},
    {"\"a\";b=123456789012.123", KEY_GOOD, "a"},
    {"\"a\";b=*", KEY_GOOD, "a"},
    {"kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk", KEY_GOOD, "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk"},
    {"\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\"", KEY_GOOD, "\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\""},
    {":YWJj:", KEY_GOOD, ":YWJj:"},
    {"?1", KEY_GOOD, "?1"},
    {"1.5", KEY_GOOD, "1.5"},
    {"", KEY_EMPTY, ""},
    {"   ", KEY_EMPTY, ""},
    {"\"\"", KEY_EMPTY, ""},
    {"\"\";a=1", KEY_EMPTY, ""},
    {"\"", KEY_UNTERMINATED, ""},
    {"\"a", KEY_UNTERMINATED, ""},
    {"\"a\\\"", KEY_UNTERMINATED, ""},
    {"\"a\\", KEY_UNTERMINATED, ""},
    {"\"\\a\"", KEY_BAD_ESCAPE, ""},
    {"\"a\\ \"", KEY_BAD_ESCAPE, ""},
    {"\"\\u0041\"", KEY_BAD_ESCAPE, ""},
    {"a\011b", KEY_BAD_BYTE, ""},
    {"\011a", KEY_BAD_BYTE, ""},
    {"\"a\"\012", KEY_BAD_BYTE, ""},
    {"\"\303\251\"", KEY_BAD_BYTE, ""},
    {"\"a\177\"", KEY_BAD_BYTE, ""},
    {"\"a\", \"b\"", KEY_TRAILING, ""},
    {"\"a\"\"b\"", KEY_TRAILING, ""},
    {"\"a\"b", KEY_TRAILING, ""},
    {"\"a\" ;q=1", KEY_TRAILING, ""},
    {"\"a\"=1", KEY_TRAILING, ""},
    {"\"a\";b=1=2", KEY_TRAILING, ""},
    {"\"a\";b=1.5.6", KEY_TRAILING, ""},
    {"\"a\";b=?11", KEY_TRAILING, ""},
    {"\"a\";", KEY_BAD_PARAMETER, ""},
    {"\"a\";A=1", KEY_BAD_PARAMETER, ""},
    {"\"a\";q=", KEY_BAD_PARAMETER, ""},
    {"\"a\";q=1.", KEY_BAD_PARAMETER, ""},
    {"\"a\";q=1234567890123456", KEY_BAD_PARAMETER, ""},
    {"\"a\";q=1234567890123.1", KEY_BAD_PARAMETER, ""},
    {"\"a\";q=1.1234", KEY_BAD_PARAMETER, ""},
    {"\"a\";q=?2", KEY_BAD_PARAMETER, ""},
    {"\"a\";q=:YQ=:", KEY_BAD_PARAMETER, ""},
    {"\"a\";q=:Y:", KEY_BAD_PARAMETER, ""},
    {"\"a\";q=:YWJj=:", KEY_BAD_PARAMETER, ""},
    {"\"a\";q=\"x", KEY_BAD_PARAMETER, ""},
    {"\"a\";q=\"\\x\"", KEY_BAD_PARAMETER, ""},
    {"\"a\"; ;q", KEY_BAD_PARAMETER, ""},
    {"\"a\";q=(1)", KEY_BAD_PARAMETER, ""},
    {"a, b", KEY_NOT_A_STRING, ""},
    {"a b", KEY_NOT_A_STRING, ""},
    {"a\"b\"", KEY_NOT_A_STRING, ""},
    {"a\\b", KEY_NOT_A_STRING, ""},
    {"a;q=1", KEY_NOT_A_STRING, ""},
    {",", KEY_NOT_A_STRING, ""},
    {";", KEY_NOT_A_STRING, ""},
    {"kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk", KEY_TOO_LONG, ""},
    {"\"kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk\"", KEY_TOO_LONG, ""},
    {"\"kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk", KEY_TOO_LONG, ""},
    {"kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk,", KEY_TOO_LONG, ""},
    {"\"a b\"", KEY_GOOD, "a b"},
    {"\"!#$%&'()*+,-./0123456789:;<=>?@\"", KEY_GOOD, "!#$%&'()*+,-./0123456789:;<=>?@"},
    {"\"ABCDEFGHIJKLMNOPQRSTUVWXYZ[]^_`\"", KEY_GOOD, "ABCDEFGHIJKLMNOPQRSTUVWXYZ[]^_`"},
    {"\"abcdefghijklmnopqrstuvwxyz{|}~\"", KEY_GOOD, "abcdefghijklmnopqrstuvwxyz{|}~"},
    {"\"a, b\"", KEY_GOOD, "a, b"},
    {"\"a;b=c\"", KEY_GOOD, "a;b=c"},
    {"\"\\\"\"", KEY_GOOD, "\""},
    {"\"\\\\\"", KEY_GOOD, "\\"},
    {"\"\\n\"", KEY_BAD_ESCAPE, ""},
    {"\"\\ \"", KEY_BAD_ESCAPE, ""},
    {"\"\\\"", KEY_UNTERMINATED, ""},
    {"\"a b", KEY_UNTERMINATED, ""},
    {"\"a;b=\\\"c\\\"", KEY_UNTERMINATED, ""},
    {" ", KEY_EMPTY, ""},
    {"    ", KEY_EMPTY, ""},
    {"  \"\" ", KEY_EMPTY, ""},
    {" \"a\"", KEY_GOOD, "a"},
    {"\"a\" ", KEY_GOOD, "a"},
    {"   \"a\"   ", KEY_GOOD, "a"},
    {"\011\"a\"", KEY_BAD_BYTE, ""},
    {"\"a\"\011", KEY_BAD_BYTE, ""},
    {"\"a\";\011b", KEY_BAD_BYTE, ""},
    {"\"a\011b\"", KEY_BAD_BYTE, ""},
    {"\"a\012b\"", KEY_BAD_BYTE, ""},
    {"\"a\015b\"", KEY_BAD_BYTE, ""},
    {"\"a\001\"", KEY_BAD_BYTE, ""},
    {"\"a\037\"", KEY_BAD_BYTE, ""},
    {"\"a\";b=\"\303\251\"", KEY_BAD_BYTE, ""},
    {"a\177", KEY_BAD_BYTE, ""},
    {"caf\303\251", KEY_BAD_BYTE, ""},
    {"\"a\" b", KEY_TRAILING, ""},
    {"\"a\" \"b\"", KEY_TRAILING, ""},
    {"\"a\",", KEY_TRAILING, ""},
    {"\"a\",\"a\"", KEY_TRAILING, ""},
    {"\"a\" ;b", KEY_TRAILING, ""},
    {"\"a\";b ;c", KEY_TRAILING, ""},
    {"\"a\";b, \"c\"", KEY_TRAILING, ""},
    {"\"a\";b=1,2", KEY_TRAILING, ""},
    {"\"a\";b=\"c\"d", KEY_TRAILING, ""},
    {"\"a\";B", KEY_BAD_PARAMETER, ""},
    {"\"a\";b", KEY_GOOD, "a"},
    {"\"a\"; b", KEY_GOOD, "a"},
    {"\"a\";   b", KEY_GOOD, "a"},
    {"\"a\";b;c;d", KEY_GOOD, "a"},
    {"\"a\";b=1; c=2;b=3 ", KEY_GOOD, "a"},
    {"\"a\";*", KEY_GOOD, "a"},
    {"\"a\";*b0_-.*", KEY_GOOD, "a"},
    {"\"a\";b0_-.*=1", KEY_GOOD, "a"},
    {"\"a\"; ", KEY_BAD_PARAMETER, ""},
    {"\"a\";;b", KEY_BAD_PARAMETER, ""},
    {"\"a\";0b", KEY_BAD_PARAMETER, ""},
    {"\"a\";_b", KEY_BAD_PARAMETER, ""},
    {"\"a\";-b", KEY_BAD_PARAMETER, ""},
    {"\"a\";=1", KEY_BAD_PARAMETER, ""},
    {"\"a\";\"b\"", KEY_BAD_PARAMETER, ""},
    {"\"a\";b=", KEY_BAD_PARAMETER, ""},
    {"\"a\";b= 1", KEY_BAD_PARAMETER, ""},
    {"\"a\";b =1", KEY_TRAILING, ""},
    {"\"a\";bC", KEY_TRAILING, ""},
    {"\"a\";b=0", KEY_GOOD, "a"},
    {"\"a\";b=-0", KEY_GOOD, "a"},
    {"\"a\";b=007", KEY_GOOD, "a"},
    {"\"a\";b=999999999999999", KEY_GOOD, "a"},
    {"\"a\";b=-999999999999999", KEY_GOOD, "a"},
    {"\"a\";b=1000000000000000", KEY_BAD_PARAMETER, ""},
    {"\"a\";b=-1000000000000000", KEY_BAD_PARAMETER, ""},
    {"\"a\";b=-", KEY_BAD_PARAMETER, ""},
    {"\"a\";b=--1", KEY_BAD_PARAMETER, ""},
    {"\"a\";b=+1", KEY_BAD_PARAMETER, ""},
    {"\"a\";b=-a", KEY_BAD_PARAMETER, ""},
    {"\"a\";b=1a", KEY_TRAILING, ""},
    {"\"a\";b=1.5", KEY_GOOD, "a"},
    {"\"a\";b=-1.125", KEY_GOOD, "a"},
    {"\"a\";b=1234567890123.1", KEY_BAD_PARAMETER, ""},
    {"\"a\";b=1.1234", KEY_BAD_PARAMETER, ""},
    {"\"a\";b=1.", KEY_BAD_PARAMETER, ""},
    {"\"a\";b=.5", KEY_BAD_PARAMETER, ""},
    {"\"a\";b=-.5", KEY_BAD_PARAMETER, ""},
    {"\"a\";b=1.2.3", KEY_TRAILING, ""},
    {"\"a\";b=1.5e3", KEY_TRAILING, ""},
    {"\"a\";b=\"\"", KEY_GOOD, "a"},
    {"\"a\";b=\"c d;,\\\"\\\\\"", KEY_GOOD, "a"},
    {"\"a\";b=\"c", KEY_BAD_PARAMETER, ""},
    {"\"a\";b=\"\\c\"", KEY_BAD_PARAMETER, ""},
    {"\"a\";b=\"c\\", KEY_BAD_PARAMETER, ""},
    {"\"a\";b=c", KEY_GOOD, "a"},
    {"\"a\";b=C", KEY_GOOD, "a"},
    {"\"a\";b=*c!#$%&'*+-.^_`|~:/0Z", KEY_GOOD, "a"},
    {"\"a\";b=!c", KEY_BAD_PARAMETER, ""},
    {"\"a\";b=/c", KEY_BAD_PARAMETER, ""},
    {"\"a\";b=c(d", KEY_TRAILING, ""},
    {"\"a\";b=c=d", KEY_TRAILING, ""},
    {"\"a\";b=:cHJldGVuZA==:", KEY_GOOD, "a"},
    {"\"a\";b=:cHJldGVuZA:", KEY_GOOD, "a"},
    {"\"a\";b=:abcd+/09:", KEY_GOOD, "a"},
    {"\"a\";b=:YWI=:", KEY_GOOD, "a"},
    {"\"a\";b=:", KEY_BAD_PARAMETER, ""},
    {"\"a\";b=:abcd", KEY_BAD_PARAMETER, ""},
    {"\"a\";b=:ab cd:", KEY_BAD_PARAMETER, ""},
    {"\"a\";b=:ab-_:", KEY_BAD_PARAMETER, ""},
    {"\"a\";b=:a:", KEY_BAD_PARAMETER, ""},
    {"\"a\";b=:abcde:", KEY_BAD_PARAMETER, ""},
    {"\"a\";b=:=:", KEY_BAD_PARAMETER, ""},
    {"\"a\";b=:ab=c:", KEY_BAD_PARAMETER, ""},
    {"\"a\";b=:ab=:", KEY_BAD_PARAMETER, ""},
    {"\"a\";b=:abcd====:", KEY_BAD_PARAMETER, ""},
    {"\"a\";b=?0", KEY_GOOD, "a"},
    {"\"a\";b=?1;c=?0", KEY_GOOD, "a"},
    {"\"a\";b=?", KEY_BAD_PARAMETER, ""},
    {"\"a\";b=?2", KEY_BAD_PARAMETER, ""},
    {"\"a\";b=?t", KEY_BAD_PARAMETER, ""},
    {"\"a\";b=?01", KEY_TRAILING, ""},
    {"\"a\";b=(1)", KEY_BAD_PARAMETER, ""},
    {"\"a\";b=@1", KEY_BAD_PARAMETER, ""},
    {"\"a\";b=%\"c\"", KEY_BAD_PARAMETER, ""},
    {"\"a\";b=;c", KEY_BAD_PARAMETER, ""},
    {"abc", KEY_GOOD, "abc"},
    {"*abc", KEY_GOOD, "*abc"},
    {"123", KEY_GOOD, "123"},
    {"-1.5", KEY_GOOD, "-1.5"},
    {"@1659578233", KEY_GOOD, "@1659578233"},
    {"'a'", KEY_GOOD, "'a'"},
    {"  a ", KEY_GOOD, "a"},
    {"(\"a\")", KEY_NOT_A_STRING, ""},
    {"%\"a\"", KEY_NOT_A_STRING, ""},
    {"a,b", KEY_NOT_A_STRING, ""},
    {"a;b=1", KEY_NOT_A_STRING, ""},
    {"a\"", KEY_NOT_A_STRING, ""},
    {"\\\"a\\\"", KEY_NOT_A_STRING, ""},
    /* end of spec */
};
/* clang-format on */

/* A bare key is no string; what begins with a quote fares the same. */
static key_fault strict_fault(const key_case *tried)
{
	bool is_quoted = tried->value[strspn(tried->value, " ")] == '"';
	return is_quoted || tried->fault == KEY_EMPTY || tried->fault == KEY_BAD_BYTE ? tried->fault : KEY_NOT_A_STRING;
}

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
	key_fault expected = strict ? strict_fault(tried) : tried->fault;
	key_fault fault = parse(tried->value, strlen(tried->value), strict, ONCE_KEY_BYTES_MAX, key);
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
		if (cases[i].fault != KEY_GOOD) {
			continue;
		}
		char value[2 * ONCE_KEY_BYTES_MAX + 3];
		char key[ONCE_KEY_BYTES_MAX + 1];
		size_t length = quote(cases[i].key, strlen(cases[i].key), value);
		assert_int_equal(parse(value, length, true, ONCE_KEY_BYTES_MAX, key), KEY_GOOD);
		assert_string_equal(key, cases[i].key);
	}
}

static void a_nul_is_a_bad_byte_also_at_the_end(void **state)
{
	(void)state;
	char key[ONCE_KEY_BYTES_MAX + 1];
	assert_int_equal(parse("\"a\"\0", 4, false, ONCE_KEY_BYTES_MAX, key), KEY_BAD_BYTE);
	assert_int_equal(parse("a\0b", 3, false, ONCE_KEY_BYTES_MAX, key), KEY_BAD_BYTE);
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
		once_code code = once_key_of_header((once_bytes){cases[i].value, strlen(cases[i].value)}, false,
		                                    ONCE_KEY_BYTES_MAX, key, &error);
		assert_int_equal(code, cases[i].fault == KEY_GOOD ? ONCE_OK : ONCE_KEY_MALFORMED);
		assert_string_equal(key, cases[i].fault == KEY_GOOD ? cases[i].key : "");
		assert_string_equal(once_error_detail(error), cases[i].fault == KEY_GOOD ? "" : key_fault_text(cases[i].fault));
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
	    cmocka_unit_test(a_nul_is_a_bad_byte_also_at_the_end),
	    cmocka_unit_test(each_fault_has_a_sentence_of_its_own),
	    cmocka_unit_test(the_public_function_says_the_same_and_why),
	    cmocka_unit_test(no_value_is_an_empty_one_and_a_wrong_call_is_said),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
