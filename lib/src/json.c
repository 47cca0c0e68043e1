/* SPDX-License-Identifier: PostgreSQL */
/*
 * json.c: the canonical form of a JSON text, for fingerprints. Written here and not borrowed, because a JSON library
 * reads numbers as doubles: 100000000000000000.01 and .02 would be one request. Numbers keep their text; strings are
 * compared decoded. One recursive descent over the input writes the output; the members of an object are written, then
 * put in order.
 */
#include <stdlib.h>

#include "internal.h"

enum {
	DEPTH_MAX = 64
};

typedef struct buffer {
	char *data;
	size_t length;
	size_t capacity;
} buffer;

typedef struct reader {
	const unsigned char *at;
	const unsigned char *end;
	buffer out;
	bool no_memory;
} reader;

static bool value(reader *in, int depth);

static bool emit(reader *in, const void *data, size_t length)
{
	buffer *out = &in->out;
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

static void skip_space(reader *in)
{
	while (in->at < in->end && (*in->at == ' ' || *in->at == '\t' || *in->at == '\n' || *in->at == '\r')) {
		in->at++;
	}
}

static bool take(reader *in, unsigned char wanted)
{
	if (in->at == in->end || *in->at != wanted) {
		return false;
	}
	in->at++;
	return true;
}

static bool hex4(reader *in, uint32_t *number)
{
	if (in->end - in->at < 4) {
		return false;
	}
	*number = 0;
	for (int i = 0; i < 4; i++) {
		unsigned char c = *in->at++;
		uint32_t digit;
		if (c >= '0' && c <= '9') {
			digit = c - '0';
		} else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') {
			digit = (c | 0x20u) - 'a' + 10;
		} else {
			return false;
		}
		*number = *number << 4 | digit;
	}
	return true;
}

/* A code point as UTF-8, escaped only where JSON demands it. */
static bool emit_code_point(reader *in, uint32_t c)
{
	static const char hex[] = "0123456789abcdef";
	char bytes[6];
	if (c == '"' || c == '\\') {
		bytes[0] = '\\';
		bytes[1] = (char)c;
		return emit(in, bytes, 2);
	}
	if (c < 0x20) {
		memcpy(bytes, "\\u00", 4);
		bytes[4] = hex[c >> 4];
		bytes[5] = hex[c & 15];
		return emit(in, bytes, 6);
	}
	if (c < 0x80) {
		bytes[0] = (char)c;
		return emit(in, bytes, 1);
	}
	if (c < 0x800) {
		bytes[0] = (char)(0xC0 | c >> 6);
		bytes[1] = (char)(0x80 | (c & 0x3F));
		return emit(in, bytes, 2);
	}
	if (c < 0x10000) {
		bytes[0] = (char)(0xE0 | c >> 12);
		bytes[1] = (char)(0x80 | (c >> 6 & 0x3F));
		bytes[2] = (char)(0x80 | (c & 0x3F));
		return emit(in, bytes, 3);
	}
	bytes[0] = (char)(0xF0 | c >> 18);
	bytes[1] = (char)(0x80 | (c >> 12 & 0x3F));
	bytes[2] = (char)(0x80 | (c >> 6 & 0x3F));
	bytes[3] = (char)(0x80 | (c & 0x3F));
	return emit(in, bytes, 4);
}

static bool escape(reader *in)
{
	if (in->at == in->end) {
		return false;
	}
	uint32_t c;
	uint32_t low;
	switch (*in->at++) {
	case '"':
		return emit_code_point(in, '"');
	case '\\':
		return emit_code_point(in, '\\');
	case '/':
		return emit_code_point(in, '/');
	case 'b':
		return emit_code_point(in, '\b');
	case 'f':
		return emit_code_point(in, '\f');
	case 'n':
		return emit_code_point(in, '\n');
	case 'r':
		return emit_code_point(in, '\r');
	case 't':
		return emit_code_point(in, '\t');
	case 'u':
		if (!hex4(in, &c)) {
			return false;
		}
		if (c >= 0xDC00 && c <= 0xDFFF) {
			return false;
		}
		if (c >= 0xD800 && c <= 0xDBFF) {
			if (!take(in, '\\') || !take(in, 'u') || !hex4(in, &low) || low < 0xDC00 || low > 0xDFFF) {
				return false;
			}
			c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
		}
		return emit_code_point(in, c);
	default:
		return false;
	}
}

/* One UTF-8 sequence, checked as RFC 3629 wants: no overlong form, no surrogate, nothing above U+10FFFF. */
static bool utf8(reader *in)
{
	const unsigned char *at = in->at;
	size_t left = (size_t)(in->end - at);
	size_t length;
	if (at[0] < 0x80) {
		length = 1;
	} else if (at[0] >= 0xC2 && at[0] <= 0xDF) {
		length = 2;
	} else if (at[0] >= 0xE0 && at[0] <= 0xEF) {
		length = 3;
	} else if (at[0] >= 0xF0 && at[0] <= 0xF4) {
		length = 4;
	} else {
		return false;
	}
	if (left < length) {
		return false;
	}
	for (size_t i = 1; i < length; i++) {
		if ((at[i] & 0xC0) != 0x80) {
			return false;
		}
	}
	if ((at[0] == 0xE0 && at[1] < 0xA0) || (at[0] == 0xED && at[1] > 0x9F) || (at[0] == 0xF0 && at[1] < 0x90) ||
	    (at[0] == 0xF4 && at[1] > 0x8F)) {
		return false;
	}
	in->at += length;
	return emit(in, at, length);
}

static bool string(reader *in)
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
		} else if (!utf8(in)) {
			return false;
		}
	}
	return false;
}

static bool digits(reader *in)
{
	const unsigned char *start = in->at;
	while (in->at < in->end && *in->at >= '0' && *in->at <= '9') {
		in->at++;
	}
	return in->at > start;
}

static bool number(reader *in)
{
	const unsigned char *start = in->at;
	take(in, '-');
	if (!take(in, '0') && !digits(in)) {
		return false;
	}
	if (take(in, '.') && !digits(in)) {
		return false;
	}
	if (in->at < in->end && (*in->at | 0x20) == 'e') {
		in->at++;
		if (!take(in, '+')) {
			take(in, '-');
		}
		if (!digits(in)) {
			return false;
		}
	}
	return emit(in, start, (size_t)(in->at - start));
}

static bool word(reader *in, const char *text)
{
	size_t length = strlen(text);
	if ((size_t)(in->end - in->at) < length || memcmp(in->at, text, length) != 0) {
		return false;
	}
	in->at += length;
	return emit(in, text, length);
}

static bool array(reader *in, int depth)
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
		if (!take(in, ',') || !emit(in, ",", 1)) {
			return false;
		}
	}
}

/* A member as it stands in the output: its name (with quotes) and the whole of it. */
typedef struct member {
	char *text;
	size_t name_length;
	size_t length;
} member;

static int compare_members(const void *left, const void *right)
{
	const member *a = left;
	const member *b = right;
	size_t shorter = a->name_length < b->name_length ? a->name_length : b->name_length;
	int order = memcmp(a->text, b->text, shorter);
	if (order != 0) {
		return order;
	}
	return a->name_length == b->name_length ? 0 : a->name_length < b->name_length ? -1 : 1;
}

/*
 * Cuts the members that were just written off the output, and writes them again in order. False where two have one
 * name.
 */
static bool write_in_order(reader *in, size_t start, member *members, size_t count)
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
	size_t offset = 0;
	for (size_t i = 0; i < count; i++) {
		members[i].text = copy + offset;
		offset += members[i].length;
	}
	qsort(members, count, sizeof members[0], compare_members);
	in->out.length = start;
	bool good = true;
	for (size_t i = 0; i < count && good; i++) {
		good = i == 0 || (compare_members(&members[i - 1], &members[i]) != 0 && emit(in, ",", 1));
		good = good && emit(in, members[i].text, members[i].length);
	}
	free(copy);
	return good;
}

static bool object(reader *in, int depth)
{
	member *members = NULL;
	size_t count = 0;
	size_t capacity = 0;
	bool good = emit(in, "{", 1);
	size_t start = in->out.length;
	in->at++;
	skip_space(in);
	bool more = good && !take(in, '}');
	while (more) {
		size_t member_start = in->out.length;
		skip_space(in);
		good = string(in);
		size_t name_length = in->out.length - member_start;
		skip_space(in);
		good = good && take(in, ':') && emit(in, ":", 1) && value(in, depth);
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
	good = good && write_in_order(in, start, members, count) && emit(in, "}", 1);
	free(members);
	return good;
}

/* A value with the space around it. */
static bool value(reader *in, int depth)
{
	bool good = false;
	skip_space(in);
	if (in->at == in->end || depth == DEPTH_MAX) {
		return false;
	}
	switch (*in->at) {
	case '{':
		good = object(in, depth + 1);
		break;
	case '[':
		good = array(in, depth + 1);
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
	reader in = {.at = (const unsigned char *)text, .end = (const unsigned char *)text + length};
	bool good = value(&in, 0) && in.at == in.end;
	*no_memory = in.no_memory;
	if (!good) {
		free(in.out.data);
		return false;
	}
	*out = in.out.data;
	*out_length = in.out.length;
	return true;
}
