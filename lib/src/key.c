/* SPDX-License-Identifier: PostgreSQL */
/*
 * key.c: the key in the value of an Idempotency-Key header: a Structured Field String (RFC 8941
 * section 4.2.5) with parameters (4.2.3.2), or a bare key. Pure. The gateway calls it before any
 * look-up; once.key_of_header is the same grammar in SQL, and spec/vectors/keys.json checks that
 * they agree. Generic Structured Fields processing ignores a field that does not parse; here that
 * would turn a bad key into an unprotected request, so each malformed value is a fault.
 */
#include "internal.h"

typedef struct key_reader {
	const char *at;
	const char *end;
} key_reader;

static bool at_end(const key_reader *in)
{
	return in->at == in->end;
}

/* The next byte without consuming it; at the end NUL, which no value contains. */
static char next(const key_reader *in)
{
	return at_end(in) ? '\0' : *in->at;
}

static bool take(key_reader *in, char wanted)
{
	if (next(in) != wanted) {
		return false;
	}
	in->at++;
	return true;
}

static void skip_spaces(key_reader *in)
{
	while (take(in, ' ')) {
	}
}

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static bool is_lower(char c)
{
	return c >= 'a' && c <= 'z';
}

static bool is_alpha(char c)
{
	return is_lower(c) || (c >= 'A' && c <= 'Z');
}

static bool is_one_of(char c, const char *set)
{
	return c != '\0' && strchr(set, c) != NULL;
}

/* The target of a string's text; out NULL: none. */
typedef struct sink {
	char *out;
	size_t length;
	size_t length_max;
} sink;

static bool put(sink *to, char c)
{
	if (to->out == NULL) {
		return true;
	}
	if (to->length == to->length_max) {
		return false;
	}
	to->out[to->length++] = c;
	return true;
}

/* Reads from after the opening quote to after the closing one. */
static key_fault string(key_reader *in, sink *to)
{
	while (!at_end(in)) {
		char c = *in->at++;
		if (c == '"') {
			return KEY_GOOD;
		}
		if (c == '\\') {
			if (at_end(in)) {
				return KEY_UNTERMINATED;
			}
			c = *in->at++;
			if (c != '"' && c != '\\') {
				return KEY_BAD_ESCAPE;
			}
		}
		if (!put(to, c)) {
			return KEY_TOO_LONG;
		}
	}
	return KEY_UNTERMINATED;
}

static size_t digits(key_reader *in)
{
	const char *start = in->at;
	while (is_digit(next(in))) {
		in->at++;
	}
	return (size_t)(in->at - start);
}

/* RFC 8941 section 4.2.4: at most 15 digits; with a point at most 12
 * before it, and 1 to 3 after. */
static bool number(key_reader *in)
{
	take(in, '-');
	size_t whole = digits(in);
	if (!take(in, '.')) {
		return whole >= 1 && whole <= 15;
	}
	size_t fraction = digits(in);
	return whole >= 1 && whole <= 12 && fraction >= 1 && fraction <= 3;
}

/* Section 4.2.7, after the opening colon. Invalid base64 is refused; missing padding is not. */
static bool byte_sequence(key_reader *in)
{
	size_t count = 0;
	while (is_alpha(next(in)) || is_digit(next(in)) || is_one_of(next(in), "+/")) {
		in->at++;
		count++;
	}
	size_t padding = 0;
	while (take(in, '=')) {
		padding++;
	}
	return take(in, ':') && count % 4 != 1 && (padding == 0 || (padding <= 2 && (count + padding) % 4 == 0));
}

static bool token(key_reader *in)
{
	in->at++;
	while (is_alpha(next(in)) || is_digit(next(in)) || is_one_of(next(in), "!#$%&'*+-.^_`|~:/")) {
		in->at++;
	}
	return true;
}

static bool bare_item(key_reader *in)
{
	char c = next(in);
	sink nowhere = {.out = NULL};
	if (c == '-' || is_digit(c)) {
		return number(in);
	}
	if (c == '*' || is_alpha(c)) {
		return token(in);
	}
	if (take(in, '"')) {
		return string(in, &nowhere) == KEY_GOOD;
	}
	if (take(in, ':')) {
		return byte_sequence(in);
	}
	if (take(in, '?')) {
		return take(in, '0') || take(in, '1');
	}
	return false;
}

static bool parameters(key_reader *in)
{
	while (take(in, ';')) {
		skip_spaces(in);
		if (!is_lower(next(in)) && next(in) != '*') {
			return false;
		}
		while (is_lower(next(in)) || is_digit(next(in)) || is_one_of(next(in), "_-.*")) {
			in->at++;
		}
		if (take(in, '=') && !bare_item(in)) {
			return false;
		}
	}
	return true;
}

static key_fault quoted(key_reader *in, sink *to)
{
	in->at++;
	key_fault fault = string(in, to);
	if (fault != KEY_GOOD) {
		return fault;
	}
	if (!parameters(in)) {
		return KEY_BAD_PARAMETER;
	}
	return at_end(in) ? KEY_GOOD : KEY_TRAILING;
}

static key_fault bare(key_reader *in, sink *to)
{
	for (; !at_end(in); in->at++) {
		if (is_one_of(*in->at, " \"\\,;")) {
			return KEY_NOT_A_STRING;
		}
		if (!put(to, *in->at)) {
			return KEY_TOO_LONG;
		}
	}
	return KEY_GOOD;
}

static key_fault parse(key_reader *in, bool strict, sink *to)
{
	/*
	 * A key's header contains only printable ASCII, so this is one rule and not one per production.
	 */
	for (const char *at = in->at; at < in->end; at++) {
		if (*at < ' ' || *at > '~') {
			return KEY_BAD_BYTE;
		}
	}
	skip_spaces(in);
	while (in->end > in->at && in->end[-1] == ' ') {
		in->end--;
	}
	if (at_end(in)) {
		return KEY_EMPTY;
	}
	key_fault fault;
	if (*in->at == '"') {
		fault = quoted(in, to);
	} else if (strict) {
		return KEY_NOT_A_STRING;
	} else {
		fault = bare(in, to);
	}
	return fault == KEY_GOOD && to->length == 0 ? KEY_EMPTY : fault;
}

key_fault key_parse(once_bytes value, bool strict, size_t length_max, char *key, size_t *key_length)
{
	key_reader in = {.at = value.data, .end = (const char *)value.data + value.length};
	sink to = {.out = key, .length_max = length_max < ONCE_KEY_BYTES_MAX ? length_max : ONCE_KEY_BYTES_MAX};
	key_fault fault = parse(&in, strict, &to);
	*key_length = fault == KEY_GOOD ? to.length : 0;
	key[*key_length] = '\0';
	return fault;
}

static const char *const sentences[] = {
    [KEY_GOOD] = "The key is well formed.",
    /* spec: key-faults */
    [KEY_EMPTY] = "The key is empty.",
    [KEY_UNTERMINATED] = "The key begins with a quote and has no closing one.",
    [KEY_BAD_ESCAPE] = "In a quoted key a backslash must be followed by a quote or a backslash.",
    [KEY_BAD_BYTE] = "The key's header holds a control character or one that is not ASCII.",
    [KEY_TRAILING] = "After the quoted key comes something that is not a parameter; a list of keys is not allowed.",
    [KEY_BAD_PARAMETER] = "A parameter after the quoted key is malformed.",
    [KEY_NOT_A_STRING] = ("The key must be a quoted string, such as \"8e03978e-40d5-43dd-bc93-6894a57f9324\"; "
                          "without quotes it holds characters that are not allowed there, or quotes are required."),
    [KEY_TOO_LONG] = "The key is too long.",
    /* end of spec */
};

const char *key_fault_text(key_fault fault)
{
	return (unsigned)fault < sizeof sentences / sizeof sentences[0] ? sentences[fault] : "The key is malformed.";
}

once_code once_key_of_header(once_bytes value, bool strict, size_t length_max, char *key, once_error **error)
{
	if (key == NULL || length_max == 0 || (value.data == NULL && value.length > 0)) {
		return error_usage(error, "key must not be NULL, nor length_max 0");
	}
	size_t length;
	once_bytes given = value.data == NULL ? (once_bytes){.data = ""} : value;
	key_fault fault = key_parse(given, strict, length_max, key, &length);
	if (fault != KEY_GOOD) {
		return error_make(error, ONCE_KEY_MALFORMED, "P4001", false, "the key is missing or malformed",
		                  key_fault_text(fault), "Send 1 to 255 printable ASCII characters, in quotes.");
	}
	return ONCE_OK;
}
