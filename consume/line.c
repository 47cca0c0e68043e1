/* SPDX-License-Identifier: PostgreSQL */
/* line.c: see line.h. */
#include "line.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "utf8.h"

/* The last header with that name; NULL if it is missing or empty. */
static const source_header *find(const source_header *headers, size_t count, const char *prefix, const char *name)
{
	size_t length = strlen(prefix);

	for (size_t i = count; i > 0; i--) {
		const source_header *header = &headers[i - 1];
		if (strncasecmp(header->name, prefix, length) == 0 && strcasecmp(header->name + length, name) == 0) {
			return header->value.length > 0 ? header : NULL;
		}
	}
	return NULL;
}

typedef struct aggregate {
	const source_header *tenant, *type;
} aggregate;

/* Both forms of the relay's envelope; with CloudEvents only the type shows that a relay sent it. */
static aggregate aggregate_of(const source_header *headers, size_t count)
{
	static const char *const prefixes[] = {"ce-", "ce_", "cloudEvents:"};

	aggregate plain = {.tenant = find(headers, count, "Pgonce-", "Tenant"),
	                   .type = find(headers, count, "Pgonce-", "Aggregate-Type")};

	if (plain.tenant != NULL || plain.type != NULL) {
		return plain;
	}
	for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++) {
		const source_header *type = find(headers, count, prefixes[i], "aggregatetype");
		if (type != NULL) {
			return (aggregate){.tenant = find(headers, count, prefixes[i], "tenant"), .type = type};
		}
	}
	return (aggregate){0};
}

/* '/' and '%' as %2F and %25; bytes that are not text too. */
static const char *part(arena *arena, const void *data, size_t length)
{
	bool is_text = utf8_is_text(data, length);
	char *text = arena_take(arena, 3 * length + 1);
	char *to = text;

	for (size_t i = 0; i < length; i++) {
		unsigned char c = ((const unsigned char *)data)[i];
		if (c == '/' || c == '%' || (!is_text && (c <= ' ' || c >= 0x7f))) {
			to += sprintf(to, "%%%02X", c);
		} else {
			*to++ = (char)c;
		}
	}
	*to = '\0';
	return text;
}

static const char *part_of(arena *arena, const source_header *header)
{
	return header == NULL ? "" : part(arena, header->value.data, header->value.length);
}

const char *line_of(const source_header *headers, size_t count, const char *key, arena *arena)
{
	aggregate found = key == NULL ? (aggregate){0} : aggregate_of(headers, count);

	if (found.tenant == NULL && found.type == NULL) {
		return key;
	}
	return arena_format(arena, "%s%s%s/%s", part_of(arena, found.tenant), found.tenant == NULL ? "" : "/",
	                    part_of(arena, found.type), part(arena, key, strlen(key)));
}

const char *line_key(const source_header *headers, size_t count, const char *line, arena *arena)
{
	const char *last = line == NULL ? NULL : strrchr(line, '/');
	unsigned int byte = 0;

	if (last == NULL) {
		return line;
	}
	char *key = arena_take(arena, strlen(last));
	char *to = key;
	for (const char *from = last + 1; *from != '\0'; from++) {
		if (*from == '%' && sscanf(from + 1, "%2X", &byte) == 1 && byte != 0 && from[1] != '\0' && from[2] != '\0') {
			*to++ = (char)byte;
			from += 2;
		} else {
			*to++ = *from;
		}
	}
	*to = '\0';
	/* Otherwise line_of did not make this line: it is a key with a '/' in it. */
	const char *made = line_of(headers, count, key, arena);
	return strcmp(made, line) == 0 ? key : line;
}
