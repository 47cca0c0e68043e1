/* SPDX-License-Identifier: PostgreSQL */
/*
 * redirect.c: the request that a client sends when it follows a redirect: the Location's reference
 * resolved against the request's own target (RFC 3986, section 5), as clients do it. Pure; called
 * by the gateway.
 */
#include "http.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

static http_text cut(http_text text, size_t from)
{
	return (http_text){.data = text.data + from, .length = text.length - from};
}

static bool starts(http_text text, const char *with)
{
	return text.length >= strlen(with) && strncasecmp(text.data, with, strlen(with)) == 0;
}

/* The length up to the first of these characters. */
static size_t span(http_text text, const char *ends)
{
	size_t length = 0;
	while (length < text.length && strchr(ends, text.data[length]) == NULL) {
		length++;
	}
	return length;
}

/* Clients encode other bytes in different ways, so the new request is unknown. */
static bool is_plain(http_text text)
{
	for (size_t i = 0; i < text.length; i++) {
		if (text.data[i] <= 0x20 || text.data[i] >= 0x7f || strchr("\"<>\\^`{|}", text.data[i]) != NULL) {
			return false;
		}
	}
	return true;
}

typedef struct output {
	char *at;
	size_t room;
} output;

static bool put(output *out, http_text text)
{
	if (text.length > out->room) {
		return false;
	}
	memcpy(out->at, text.data, text.length);
	out->at += text.length;
	out->room -= text.length;
	return true;
}

/*
 * As in a Host header: in lower case, without the scheme's default port. If the scheme is not
 * given, it is unknown.
 */
static bool put_host(output *out, http_text host, const char *default_port)
{
	char *start = out->at;
	size_t port_bytes = strlen(default_port);
	if (host.length == 0 || host.data[0] == ':' || memchr(host.data, '@', host.length) != NULL) {
		return false;
	}
	if (port_bytes > 0 && host.length > port_bytes &&
	    memcmp(host.data + host.length - port_bytes, default_port, port_bytes) == 0) {
		host.length -= port_bytes;
	}
	if (host.data[host.length - 1] == ':' || !put(out, host)) {
		return false;
	}
	for (; start < out->at; start++) {
		*start = (char)tolower((unsigned char)*start);
	}
	return true;
}

/* RFC 3986, section 5.2.4: path is absolute. Returns its new length. */
static size_t remove_dots(char *path, size_t length)
{
	size_t to = 0;
	for (size_t from = 0; from < length;) {
		size_t end = from + 1;
		while (end < length && path[end] != '/') {
			end++;
		}
		size_t bytes = end - from - 1;
		bool one = bytes == 1 && path[from + 1] == '.';
		bool two = bytes == 2 && path[from + 1] == '.' && path[from + 2] == '.';
		if (two) {
			while (to > 0 && path[--to] != '/') {
				/* back to the previous segment */
			}
		}
		if (!one && !two) {
			memmove(path + to, path + from, end - from);
			to += end - from;
		} else if (end == length) {
			path[to++] = '/';
		}
		from = end;
	}
	return to;
}

/* The target of a reference that has no host. */
static bool put_target(output *out, http_text base, http_text reference)
{
	http_text slash = {.data = "/", .length = 1};
	http_text path = {.data = reference.data, .length = span(reference, "?")};
	http_text query = cut(reference, path.length);
	char *start = out->at;
	if (reference.length == 0) {
		return put(out, base);
	}
	base.length = span(base, "?");
	if (path.length > 0 && path.data[0] != '/') {
		while (base.length > 0 && base.data[base.length - 1] != '/') {
			base.length--;
		}
	}
	if (((path.length == 0 || path.data[0] != '/') && !put(out, base.length == 0 ? slash : base)) || !put(out, path)) {
		return false;
	}
	size_t length = remove_dots(start, (size_t)(out->at - start));
	out->room += (size_t)(out->at - start) - length;
	out->at = start + length;
	return put(out, query);
}

bool http_redirect(http_text host, http_text target, http_text location, char *out, size_t size, http_text *to_host,
                   http_text *to_target)
{
	http_text slash = {.data = "/", .length = 1};
	output output = {.at = out, .room = size};
	const char *port = starts(location, "http:") ? ":80" : starts(location, "https:") ? ":443" : "";
	bool good;
	location.length = span(location, "#");
	if (!is_plain(location) || target.length == 0 || target.data[0] != '/') {
		return false;
	}
	if (port[0] != '\0') {
		location = cut(location, span(location, ":") + 1);
		if (!starts(location, "//")) {
			return false;
		}
	} else if (span(location, ":") < span(location, "/?")) {
		return false; /* another scheme */
	}
	if (starts(location, "//")) {
		http_text rest = cut(location, 2);
		http_text named = {.data = rest.data, .length = span(rest, "/?")};
		location = cut(rest, named.length);
		good = put_host(&output, named, port);
		target = slash;
		if (location.length == 0) {
			location = slash;
		}
	} else {
		good = put(&output, host);
	}
	*to_host = (http_text){.data = out, .length = (size_t)(output.at - out)};
	good = good && put_target(&output, target, location);
	*to_target = (http_text){.data = out + to_host->length, .length = (size_t)(output.at - out) - to_host->length};
	return good;
}
