/* SPDX-License-Identifier: PostgreSQL */
/*
 * headers.c: which headers are stored and replayed, and their form in the contract's
 * response_headers. The gateway calls it when an answer is stored and when it is replayed. It
 * writes and reads the JSON itself: two fixed forms are less code than a library needs, one block
 * of memory has the result, and the server that loads the module loads no further library.
 */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "buffer.h"
#include "json_escape.h"
#include "utf8.h"

enum {
	ENCODED_MAX = 16 << 20
};

/* ---- Which ---- */

/* clang-format off */
static const char *const kept_by_default[] = {
    /* spec: headers-kept */
    /*
     * By default: what describes the answer and holds for every attempt alike. Names that an
     * application invents are usually X-; those of browsers' access control belong to the
     * answer, or a page could read the first one and not its replay.
     */
    "accept-patch", "accept-post", "access-control-*", "allow", "cache-control", "content-*",
    "cross-origin-*", "deprecation", "digest", "etag", "expires", "last-modified", "link",
    "location", "permissions-policy", "pragma", "preference-applied", "ratelimit-*", "refresh",
    "repr-digest", "referrer-policy", "request-id", "retry-after", "sunset", "traceparent", "vary",
    "warning", "x-*",
    /* end of spec */
};

static const char *const never[] = {
    /* spec: headers-never */
    /* Credentials: meant for the client of the first attempt, at that moment. */
    "set-cookie", "set-cookie2", "www-authenticate", "authentication-info",
    "authentication-control", "proxy-authenticate", "proxy-authentication-info", "authorization",
    "proxy-authorization", "clear-site-data", "dpop-nonce", "replay-nonce",
    /* Of one connection. */
    "connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
    "alt-svc", "http2-settings",
    /* Framing, and what the server says anew. */
    "content-length", "accept-ranges", "date", "server", "age", "via", "status",
    /* Instructions to the proxy. */
    "x-accel-*", "x-sendfile",
    /* The door's own. */
    "idempotency-replayed", "idempotency-traceparent", "idempotency-key", "once-*",
    /* end of spec */
};

static const char *const secret[] = {
    /* spec: headers-secret */
    /*
     * Words in the name of a header whose value is a credential, also as a part of a longer
     * name.
     */
    "access-key", "access-token", "api-key", "apikey", "auth-token", "bearer", "credential", "csrf",
    "id-token", "jwt", "passwd", "password", "private-key", "refresh-token", "secret",
    "security-token", "session-id", "session-token", "xsrf",
    /* end of spec */
};
/* clang-format on */

static bool matches(http_text name, const char *pattern, size_t length)
{
	if (length > 0 && pattern[length - 1] == '*') {
		return name.length >= length - 1 && strncasecmp(name.data, pattern, length - 1) == 0;
	}
	return name.length == length && strncasecmp(name.data, pattern, length) == 0;
}

static bool matches_any(http_text name, const char *const *patterns, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		if (matches(name, patterns[i], strlen(patterns[i]))) {
			return true;
		}
	}
	return false;
}

static bool is_secret(http_text name)
{
	/* Access-Control-Allow-Credentials contains none: it says that a page may send them. */
	if (matches(name, "access-control-*", strlen("access-control-*"))) {
		return false;
	}
	for (size_t i = 0; i < sizeof secret / sizeof secret[0]; i++) {
		size_t length = strlen(secret[i]);

		for (size_t at = 0; at + length <= name.length; at++) {
			/* Most positions differ in the first letter, which costs no call. */
			if ((name.data[at] | 0x20) == secret[i][0] && strncasecmp(name.data + at, secret[i], length) == 0) {
				return true;
			}
		}
	}
	return false;
}

bool http_header_never(http_text name)
{
	return matches_any(name, never, sizeof never / sizeof never[0]) || is_secret(name);
}

bool http_header_kept(http_text name, const http_text *allowed, size_t count)
{
	bool named = false;

	if (name.length == 0) {
		return false;
	}
	if (count == 0) {
		named = matches_any(name, kept_by_default, sizeof kept_by_default / sizeof kept_by_default[0]);
	}
	for (size_t i = 0; !named && i < count; i++) {
		named = matches(name, allowed[i].data, allowed[i].length);
	}
	return named && !http_header_never(name);
}

bool http_header_reserved(http_text name)
{
	static const char *const markers[] = {"idempotency-replayed", "idempotency-traceparent"};
	char dashed[sizeof "idempotency-traceparent"];
	size_t length = name.length < sizeof dashed ? name.length : sizeof dashed;
	for (size_t i = 0; i < length; i++) {
		dashed[i] = name.data[i] == '_' ? '-' : name.data[i];
	}
	for (size_t i = 0; i < sizeof markers / sizeof markers[0]; i++) {
		if (length == strlen(markers[i]) && strncasecmp(dashed, markers[i], length) == 0) {
			return true;
		}
	}
	return length >= 5 && strncasecmp(dashed, "once-", 5) == 0;
}

/* ---- Writing ---- */

/* May it be sent as a header? Otherwise it could end the header, or the whole head, early. */
static bool sendable(http_text name, http_text value)
{
	if (name.length == 0) {
		return false;
	}
	for (size_t i = 0; i < name.length; i++) {
		unsigned char c = (unsigned char)name.data[i];
		if (c <= ' ' || c > '~' || strchr("\"(),/:;<=>?@[\\]{}", c) != NULL) {
			return false;
		}
	}
	for (size_t i = 0; i < value.length; i++) {
		if (value.data[i] == '\0' || value.data[i] == '\r' || value.data[i] == '\n') {
			return false;
		}
	}
	return true;
}

static bool printable(http_text value)
{
	for (size_t i = 0; i < value.length; i++) {
		if ((value.data[i] < ' ' && value.data[i] != '\t') || value.data[i] > '~') {
			return false;
		}
	}
	return true;
}

static void write_hex(buffer *out, http_text value)
{
	static const char digits[] = "0123456789abcdef";
	buffer_text(out, "null, \"");
	for (size_t i = 0; i < value.length; i++) {
		unsigned char c = (unsigned char)value.data[i];
		char pair[2] = {digits[c >> 4], digits[c & 15]};
		buffer_add(out, pair, 2);
	}
	buffer_text(out, "\"");
}

bool http_headers_encode(const http_header *headers, size_t count, char **json)
{
	if (count > HTTP_HEADERS_MAX) {
		return false;
	}
	buffer out = {.length_max = ENCODED_MAX};
	buffer_text(&out, "{\"h\": [");
	bool first = true;
	for (size_t i = 0; i < count; i++) {
		if (!sendable(headers[i].name, headers[i].value)) {
			continue;
		}
		buffer_text(&out, first ? "[" : ", [");
		first = false;
		buffer_json(&out, headers[i].name);
		buffer_text(&out, ", ");
		if (printable(headers[i].value)) {
			buffer_json(&out, headers[i].value);
		} else {
			write_hex(&out, headers[i].value);
		}
		buffer_text(&out, "]");
	}
	buffer_text(&out, "]}");
	size_t length;
	char *text = buffer_take(&out, &length);
	if (text == NULL) {
		return false;
	}
	*json = text;
	return true;
}

/* ---- Reading ---- */

/* Reads twice: first only counting, with headers and text NULL; then into a block of that size. */
typedef struct header_reader {
	const char *at; /* terminated */
	http_header *headers;
	size_t count;
	char *text;
	size_t bytes;
} header_reader;

static void skip_space(header_reader *in)
{
	in->at += strspn(in->at, " \t\r\n");
}

/* With surrounding space. */
static bool take(header_reader *in, char wanted)
{
	skip_space(in);
	if (*in->at != wanted) {
		return false;
	}
	in->at++;
	skip_space(in);
	return true;
}

static bool take_null(header_reader *in)
{
	if (strncmp(in->at, "null", 4) != 0) {
		return false;
	}
	in->at += 4;
	return true;
}

static void put(header_reader *in, unsigned char c)
{
	if (in->text != NULL) {
		in->text[in->bytes] = (char)c;
	}
	in->bytes++;
}

static int hex_digit(char c)
{
	return c >= '0' && c <= '9'   ? c - '0'
	       : c >= 'a' && c <= 'f' ? c - 'a' + 10
	       : c >= 'A' && c <= 'F' ? c - 'A' + 10
	                              : -1;
}

static bool escape(header_reader *in)
{
	const unsigned char *at = (const unsigned char *)in->at;
	char bytes[4];
	uint32_t c = 0;
	if (!json_read_escape(&at, at + strnlen(in->at, JSON_ESCAPE_BYTES_MAX), &c)) {
		return false;
	}
	in->at = (const char *)at;
	size_t length = utf8_put(bytes, c);
	for (size_t i = 0; i < length; i++) {
		put(in, (unsigned char)bytes[i]);
	}
	return true;
}

static http_text text_since(const header_reader *in, size_t start)
{
	return (http_text){.data = in->text == NULL ? NULL : in->text + start, .length = in->bytes - start};
}

static bool string(header_reader *in, http_text *text)
{
	size_t start = in->bytes;
	if (*in->at != '"') {
		return false;
	}
	in->at++;
	while (*in->at != '"') {
		if ((unsigned char)*in->at < ' ') { /* also at the end */
			return false;
		}
		if (*in->at == '\\') {
			in->at++;
			if (!escape(in)) {
				return false;
			}
		} else {
			put(in, (unsigned char)*in->at++);
		}
	}
	in->at++;
	*text = text_since(in, start);
	return true;
}

static bool hex_string(header_reader *in, http_text *text)
{
	size_t start = in->bytes;
	if (*in->at != '"') {
		return false;
	}
	in->at++;
	while (*in->at != '"') {
		int high = hex_digit(in->at[0]);
		int low = high < 0 ? -1 : hex_digit(in->at[1]);
		if (low < 0) {
			return false;
		}
		put(in, (unsigned char)(high << 4 | low));
		in->at += 2;
	}
	in->at++;
	*text = text_since(in, start);
	return true;
}

/* A number is sent as written: {"Retry-After": 5}. */
static bool string_or_number(header_reader *in, http_text *text)
{
	size_t length = strspn(in->at, "-.0123456789");
	if (length == 0) {
		return string(in, text);
	}
	size_t start = in->bytes;
	for (size_t i = 0; i < length; i++) {
		put(in, (unsigned char)*in->at++);
	}
	*text = text_since(in, start);
	return true;
}

static bool add(header_reader *in, http_text name, http_text value)
{
	if (in->count == HTTP_HEADERS_MAX) {
		return false;
	}
	if (in->headers != NULL) {
		if (!sendable(name, value)) {
			return false;
		}
		in->headers[in->count] = (http_header){.name = name, .value = value};
	}
	in->count++;
	return true;
}

/* The rest of an array of pairs, after its first '[' of two. */
static bool pairs(header_reader *in)
{
	do {
		http_text name;
		http_text value;
		if (!take(in, '[') || !string(in, &name) || !take(in, ',')) {
			return false;
		}
		if (take_null(in) ? !take(in, ',') || !hex_string(in, &value) : !string(in, &value)) {
			return false;
		}
		if (!take(in, ']') || !add(in, name, value)) {
			return false;
		}
	} while (take(in, ','));
	return take(in, ']');
}

/* One member of the flat form, after its name and the colon. */
static bool values(header_reader *in, http_text name)
{
	http_text value;
	if (take_null(in)) {
		return true;
	}
	if (!take(in, '[')) {
		return string_or_number(in, &value) && add(in, name, value);
	}
	if (take(in, ']')) {
		return true;
	}
	do {
		if (!string_or_number(in, &value) || !add(in, name, value)) {
			return false;
		}
	} while (take(in, ','));
	return take(in, ']');
}

/* {"h": [[ identifies the form with pairs; in the flat form a header named h has strings. */
static bool begins_with_pairs(const header_reader *in)
{
	header_reader ahead = {.at = in->at};
	http_text name;
	return string(&ahead, &name) && ahead.bytes == 1 && in->at[1] == 'h' && take(&ahead, ':') && take(&ahead, '[') &&
	       *ahead.at == '[';
}

static bool document(header_reader *in)
{
	if (!take(in, '{')) {
		return false;
	}
	if (take(in, '}')) {
		return *in->at == '\0';
	}
	http_text name;
	if (begins_with_pairs(in)) {
		in->at = strchr(in->at, '[') + 1;
		return pairs(in) && take(in, '}') && *in->at == '\0';
	}
	do {
		if (!string(in, &name) || !take(in, ':') || !values(in, name)) {
			return false;
		}
	} while (take(in, ','));
	return take(in, '}') && *in->at == '\0';
}

bool http_headers_decode(const char *json, http_header **headers, size_t *count)
{
	*headers = NULL;
	*count = 0;
	if (json == NULL) {
		return true;
	}
	header_reader sizes = {.at = json};
	if (!document(&sizes)) {
		return false;
	}
	if (sizes.count == 0) {
		return true;
	}
	size_t table_bytes = sizes.count * sizeof(http_header);
	http_header *block = malloc(table_bytes + sizes.bytes);
	if (block == NULL) {
		return false;
	}
	header_reader in = {.at = json, .headers = block, .text = (char *)block + table_bytes};
	if (!document(&in)) {
		free(block);
		return false;
	}
	*headers = block;
	*count = in.count;
	return true;
}
