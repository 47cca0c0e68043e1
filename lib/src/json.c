/* SPDX-License-Identifier: PostgreSQL */
/*
 * json.c: the canonical form of a JSON text, for fingerprints: the text of PostgreSQL's jsonb,
 * which SQL gets at no cost, its numbers without trailing zeros. docs/reference/fingerprint.md
 * specifies it; once._json_body is the same in SQL. It does not use a JSON library, because those
 * read numbers as doubles: 100000000000000000.01 and .02 would be one request. One recursive
 * descent over the input writes the output; the members of an object are written, then sorted.
 */
#include <stdlib.h>

#include "internal.h"
#include "json_escape.h"
#include "utf8.h"

enum {
	DEPTH_MAX = 64,
	/* Without these limits a few bytes, 1e99999, would become that many digits. */
	NUMBER_CHARACTERS_MAX = 100,
	EXPONENT_MAX = 99
};

typedef struct json_output {
	char *data;
	size_t length;
	size_t capacity;
} json_output;

typedef struct json_reader {
	const unsigned char *at;
	const unsigned char *end;
	json_output out;
	json_output names; /* of the members of the open objects, decoded */
	bool is_name;      /* also the target of the string being read */
	bool no_memory;
} json_reader;

static bool value(json_reader *in, int depth);

static bool append(json_reader *in, json_output *out, const void *data, size_t length)
{
	if (out->capacity - out->length < length) {
		size_t capacity = (out->capacity + length) * 2;
		char *grown = realloc(out->data, capacity);
		if (grown == NULL) {
			in->no_memory = true;
			return false;
		}
		out->data = grown;
		out->capacity = capacity;
	}
	memcpy(out->data + out->length, data, length);
	out->length += length;
	return true;
}

static bool emit(json_reader *in, const void *data, size_t length)
{
	return append(in, &in->out, data, length);
}

/* A character of a string: as it is written, and decoded. */
static bool emit_character(json_reader *in, const void *written, size_t written_length, const void *bytes,
                           size_t length)
{
	return emit(in, written, written_length) && (!in->is_name || append(in, &in->names, bytes, length));
}

static void skip_space(json_reader *in)
{
	while (in->at < in->end && (*in->at == ' ' || *in->at == '\t' || *in->at == '\n' || *in->at == '\r')) {
		in->at++;
	}
}

static bool take(json_reader *in, unsigned char wanted)
{
	if (in->at == in->end || *in->at != wanted) {
		return false;
	}
	in->at++;
	return true;
}

/* A code point as UTF-8, escaped only where JSON demands it. */
static bool emit_code_point(json_reader *in, uint32_t c)
{
	static const char hex[] = "0123456789abcdef";
	static const char short_of[0x20] = {['\b'] = 'b', ['\f'] = 'f', ['\n'] = 'n', ['\r'] = 'r', ['\t'] = 't'};
	char bytes[4];
	size_t length = utf8_put(bytes, c);
	if (c >= 0x80) {
		return emit_character(in, bytes, length, bytes, length);
	}
	if (c == '"' || c == '\\' || (c < 0x20 && short_of[c] != '\0')) {
		char written[2] = {'\\', c < 0x20 ? short_of[c] : (char)c};
		return emit_character(in, written, sizeof written, bytes, 1);
	}
	if (c < 0x20) {
		char written[6] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};
		return emit_character(in, written, sizeof written, bytes, 1);
	}
	return emit_character(in, bytes, 1, bytes, 1);
}

/* jsonb cannot store U+0000. */
static bool escape(json_reader *in)
{
	uint32_t c = 0;
	return json_read_escape(&in->at, in->end, &c) && c != 0 && emit_code_point(in, c);
}

static bool character(json_reader *in)
{
	const unsigned char *at = in->at;
	size_t length = utf8_length(at, (size_t)(in->end - at));
	in->at += length;
	return length > 0 && emit_character(in, at, length, at, length);
}

static bool string(json_reader *in)
{
	if (!take(in, '"') || !emit(in, "\"", 1)) {
		return false;
	}
	while (in->at < in->end) {
		unsigned char c = *in->at;
		if (c == '"') {
			in->at++;
			return emit(in, "\"", 1);
		}
		if (c < 0x20) {
			return false;
		}
		if (c == '\\') {
			in->at++;
			if (!escape(in)) {
				return false;
			}
		} else if (!character(in)) {
			return false;
		}
	}
	return false;
}

static size_t digits(json_reader *in)
{
	const unsigned char *start = in->at;
	while (in->at < in->end && *in->at >= '0' && *in->at <= '9') {
		in->at++;
	}
	return (size_t)(in->at - start);
}

/*
 * 0.DIGITS times ten to the power of point, in plain notation. Neither the first digit nor the last
 * is 0; no digits: zero. False if it is too long to have a canonical form.
 */
static bool emit_number(json_reader *in, bool negative, const char *digits, int count, int point)
{
	char plain[NUMBER_CHARACTERS_MAX + EXPONENT_MAX + 3];
	size_t length = 0;
	if (count == 0) {
		return emit(in, "0", 1);
	}
	if (negative) {
		plain[length++] = '-';
	}
	/* The first digit has place 0. */
	for (int place = point < 1 ? point - 1 : 0; place < count || place < point; place++) {
		if (place == point) {
			plain[length++] = '.';
		}
		plain[length++] = place >= 0 && place < count ? digits[place] : '0';
	}
	return length <= NUMBER_CHARACTERS_MAX && emit(in, plain, length);
}

/* The exponent after the e; false if there is none, or it is beyond EXPONENT_MAX. */
static bool exponent(json_reader *in, int *power)
{
	bool negative = take(in, '-');
	if (!negative) {
		take(in, '+');
	}
	const unsigned char *at = in->at;
	bool good = digits(in) > 0;
	for (; at < in->at && good; at++) {
		*power = *power * 10 + (*at - '0');
		good = *power <= EXPONENT_MAX;
	}
	*power = negative ? -*power : *power;
	return good;
}

static bool number(json_reader *in)
{
	const unsigned char *start = in->at;
	bool negative = take(in, '-');
	const unsigned char *whole = in->at;
	size_t whole_count = take(in, '0') ? 1 : digits(in);
	size_t fraction_count = 0;
	int power = 0;
	if (whole_count == 0) {
		return false;
	}
	if (take(in, '.')) {
		fraction_count = digits(in);
		if (fraction_count == 0) {
			return false;
		}
	}
	const unsigned char *fraction = in->at - fraction_count;
	if (in->at < in->end && (*in->at | 0x20) == 'e') {
		in->at++;
		if (!exponent(in, &power)) {
			return false;
		}
	}
	if (in->at - start > NUMBER_CHARACTERS_MAX) {
		return false;
	}
	char all[NUMBER_CHARACTERS_MAX];
	memcpy(all, whole, whole_count);
	memcpy(all + whole_count, fraction, fraction_count);
	size_t first = 0;
	size_t end = whole_count + fraction_count;
	while (first < end && all[first] == '0') {
		first++;
	}
	while (end > first && all[end - 1] == '0') {
		end--;
	}
	return emit_number(in, negative, all + first, (int)(end - first), (int)whole_count - (int)first + power);
}

static bool word(json_reader *in, const char *text)
{
	size_t length = strlen(text);
	if ((size_t)(in->end - in->at) < length || memcmp(in->at, text, length) != 0) {
		return false;
	}
	in->at += length;
	return emit(in, text, length);
}

static bool array(json_reader *in, int depth)
{
	if (!emit(in, "[", 1)) {
		return false;
	}
	in->at++;
	skip_space(in);
	if (take(in, ']')) {
		return emit(in, "]", 1);
	}
	for (;;) {
		if (!value(in, depth)) {
			return false;
		}
		if (take(in, ']')) {
			return emit(in, "]", 1);
		}
		if (!take(in, ',') || !emit(in, ", ", 2)) {
			return false;
		}
	}
}

/* A member as in the output, its name decoded. */
typedef struct member {
	const char *name;
	size_t name_length;
	const char *text;
	size_t length;
} member;

/* jsonb's order: a shorter name first, in bytes of UTF-8; of one length, by their values. */
static int compare_members(const void *left, const void *right)
{
	const member *a = left;
	const member *b = right;
	if (a->name_length != b->name_length) {
		return a->name_length < b->name_length ? -1 : 1;
	}
	return a->name_length == 0 ? 0 : memcmp(a->name, b->name, a->name_length);
}

/*
 * Removes the members that were just written from the output, and writes them again in order. False
 * if two have the same name.
 */
static bool write_in_order(json_reader *in, size_t start, size_t names_start, member *members, size_t count)
{
	if (count == 0) {
		return true;
	}
	size_t length = in->out.length - start;
	char *copy = malloc(length + 1);
	if (copy == NULL) {
		in->no_memory = true;
		return false;
	}
	memcpy(copy, in->out.data + start, length);
	const char *text = copy;
	const char *name = in->names.data == NULL ? "" : in->names.data + names_start;
	for (size_t i = 0; i < count; i++) {
		members[i].text = text;
		members[i].name = name;
		text += members[i].length;
		name += members[i].name_length;
	}
	qsort(members, count, sizeof members[0], compare_members);
	in->out.length = start;
	bool good = true;
	for (size_t i = 0; i < count && good; i++) {
		good = i == 0 || (compare_members(&members[i - 1], &members[i]) != 0 && emit(in, ", ", 2));
		good = good && emit(in, members[i].text, members[i].length);
	}
	free(copy);
	return good;
}

static bool name(json_reader *in)
{
	skip_space(in);
	in->is_name = true;
	bool good = string(in);
	in->is_name = false;
	skip_space(in);
	return good && take(in, ':') && emit(in, ": ", 2);
}

static bool object(json_reader *in, int depth)
{
	member *members = NULL;
	size_t count = 0;
	size_t capacity = 0;
	bool good = emit(in, "{", 1);
	size_t start = in->out.length;
	size_t names_start = in->names.length;
	in->at++;
	skip_space(in);
	bool more = good && !take(in, '}');
	while (more) {
		size_t member_start = in->out.length;
		size_t name_start = in->names.length;
		good = name(in);
		size_t name_length = in->names.length - name_start;
		good = good && value(in, depth);
		if (!good) {
			break;
		}
		if (count == capacity) {
			capacity = capacity == 0 ? 8 : capacity * 2;
			member *grown = realloc(members, capacity * sizeof *members);
			if (grown == NULL) {
				in->no_memory = true;
				good = false;
				break;
			}
			members = grown;
		}
		members[count++] = (member){.name_length = name_length, .length = in->out.length - member_start};
		if (take(in, '}')) {
			more = false;
		} else if (!take(in, ',')) {
			good = false;
			break;
		}
	}
	good = good && write_in_order(in, start, names_start, members, count) && emit(in, "}", 1);
	in->names.length = names_start;
	free(members);
	return good;
}

/* A value with surrounding space, inside of depth arrays and objects. */
static bool value(json_reader *in, int depth)
{
	bool good = false;
	skip_space(in);
	if (in->at == in->end) {
		return false;
	}
	switch (*in->at) {
	case '{':
		good = depth < DEPTH_MAX && object(in, depth + 1);
		break;
	case '[':
		good = depth < DEPTH_MAX && array(in, depth + 1);
		break;
	case '"':
		good = string(in);
		break;
	case 't':
		good = word(in, "true");
		break;
	case 'f':
		good = word(in, "false");
		break;
	case 'n':
		good = word(in, "null");
		break;
	default:
		good = number(in);
		break;
	}
	skip_space(in);
	return good;
}

bool json_canonical(const char *text, size_t length, char **out, size_t *out_length, bool *no_memory)
{
	json_reader in = {.at = (const unsigned char *)text, .end = (const unsigned char *)text + length};
	bool good = length <= ONCE_CANONICAL_BYTES_MAX && value(&in, 0) && in.at == in.end;
	free(in.names.data);
	*no_memory = in.no_memory;
	if (!good) {
		free(in.out.data);
		return false;
	}
	*out = in.out.data;
	*out_length = in.out.length;
	return true;
}
