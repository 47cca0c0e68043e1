/* SPDX-License-Identifier: PostgreSQL */
/* route.c: see route.h. */
#include "route.h"

#include <stdlib.h>
#include <string.h>

#include "memory.h"

static const char placeholder_topic[] = "{topic}";
static const char placeholder_tenant[] = "{tenant}";

static bool is_space(char c)
{
	return c == ' ' || c == '\t';
}

/* The text between two points without the spaces around it. Free it. */
static char *trimmed(const char *from, const char *to)
{
	while (from < to && is_space(*from)) {
		from++;
	}
	while (to > from && is_space(to[-1])) {
		to--;
	}
	return memory_format("%.*s", (int)(to - from), from);
}

/* NULL, or what is wrong with it. */
static const char *wrong_pattern(const char *pattern)
{
	const char *star = strchr(pattern, '*');

	if (pattern[0] == '\0') {
		return "a topic must stand before ->";
	}
	return star != NULL && star[1] != '\0' ? "a * may stand at the end of the topic only" : NULL;
}

static const char *wrong_destination(const char *destination)
{
	if (destination[0] == '\0') {
		return "a destination must stand after ->";
	}
	for (const char *at = strchr(destination, '{'); at != NULL; at = strchr(at + 1, '{')) {
		if (strncmp(at, placeholder_topic, strlen(placeholder_topic)) != 0 &&
		    strncmp(at, placeholder_tenant, strlen(placeholder_tenant)) != 0) {
			return "only {topic} and {tenant} are put in for a { in the destination";
		}
	}
	return NULL;
}

static void add(routes *routes, char *pattern, char *destination)
{
	size_t length = strlen(pattern);
	bool is_beginning = length > 0 && pattern[length - 1] == '*';

	if (is_beginning) {
		pattern[length - 1] = '\0';
	}
	routes->items = memory_array(routes->items, routes->count + 1, sizeof *routes->items);
	routes->items[routes->count++] =
	    (route){.pattern = pattern, .is_beginning = is_beginning, .destination = destination};
}

/* What is wrong with it, for people; NULL: it was added. */
static char *read_route(const config *config, const config_section *section, const config_entry *entry, routes *result)
{
	const char *arrow = strstr(entry->value, "->");

	if (arrow == NULL) {
		return config_problem(config, section, entry,
		                      "write it as TOPIC -> DESTINATION, for example order.* -> shop.{topic}");
	}
	char *pattern = trimmed(entry->value, arrow);
	char *destination = trimmed(arrow + 2, entry->value + strlen(entry->value));
	const char *wrong = wrong_pattern(pattern);
	wrong = wrong != NULL ? wrong : wrong_destination(destination);
	if (wrong != NULL) {
		free(pattern);
		free(destination);
		return config_problem(config, section, entry, "%s", wrong);
	}
	add(result, pattern, destination);
	return NULL;
}

bool routes_read(const config *config, const config_section *section, const char *standard, routes *result,
                 char **problem)
{
	char *problems = NULL;

	*result = (routes){0};
	for (size_t i = 0; i < section->entry_count; i++) {
		if (strcmp(section->entries[i].name, "route") == 0) {
			config_problem_add(&problems, read_route(config, section, &section->entries[i], result));
		}
	}
	if (problems != NULL) {
		routes_free(result);
		*problem = problems;
		return false;
	}
	if (result->count == 0) {
		add(result, memory_copy("*"), memory_copy(standard));
	}
	return true;
}

void routes_free(routes *routes)
{
	for (size_t i = 0; i < routes->count; i++) {
		free(routes->items[i].pattern);
		free(routes->items[i].destination);
	}
	free(routes->items);
	*routes = (struct routes){0};
}

const route *routes_find(const routes *routes, const char *topic)
{
	for (size_t i = 0; i < routes->count; i++) {
		const route *route = &routes->items[i];
		if (route->is_beginning ? strncmp(topic, route->pattern, strlen(route->pattern)) == 0
		                        : strcmp(topic, route->pattern) == 0) {
			return route;
		}
	}
	return NULL;
}

/* ---- destinations */

/* RFC 3986, section 2.3: the characters that mean themselves anywhere in a URL. */
static bool is_unreserved(unsigned char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || strchr("-._~", c) != NULL;
}

/* Appends the text; returns where it ends. `to` has room for three times its length. */
static char *put(char *to, const char *text, bool encode)
{
	static const char digits[] = "0123456789ABCDEF";

	for (; *text != '\0'; text++) {
		unsigned char c = (unsigned char)*text;
		if (!encode || is_unreserved(c)) {
			*to++ = *text;
		} else {
			*to++ = '%';
			*to++ = digits[c >> 4];
			*to++ = digits[c & 15];
		}
	}
	return to;
}

/*
 * Dots alone would walk up the path; they are the one thing that percent-encoding leaves as it is.
 */
static bool is_dots(const char *text)
{
	return strcmp(text, ".") == 0 || strcmp(text, "..") == 0;
}

static const char *safe_in_url(const char *text, bool is_url)
{
	return is_url && is_dots(text) ? "_" : text;
}

const char *route_destination(const route *route, event *event)
{
	if (strchr(route->destination, '{') == NULL) {
		return route->destination;
	}
	bool is_url = strncmp(route->destination, "http://", 7) == 0 || strncmp(route->destination, "https://", 8) == 0;
	size_t holes = 0;
	for (const char *at = route->destination; (at = strchr(at, '{')) != NULL; at++) {
		holes++;
	}
	const char *topic = safe_in_url(event->topic, is_url);
	const char *tenant = safe_in_url(event->tenant, is_url);
	char *made = event_get(event, strlen(route->destination) + holes * 3 * (strlen(topic) + strlen(tenant)) + 1);
	char *to = made;
	for (const char *from = route->destination; *from != '\0';) {
		if (strncmp(from, placeholder_topic, strlen(placeholder_topic)) == 0) {
			to = put(to, topic, is_url);
			from += strlen(placeholder_topic);
		} else if (strncmp(from, placeholder_tenant, strlen(placeholder_tenant)) == 0) {
			to = put(to, tenant, is_url);
			from += strlen(placeholder_tenant);
		} else {
			*to++ = *from++;
		}
	}
	*to = '\0';
	return made;
}

/* ---- for the database */

char *routes_patterns(const routes *routes)
{
	size_t length = sizeof "{}";

	for (size_t i = 0; i < routes->count; i++) {
		if (routes->items[i].is_beginning && routes->items[i].pattern[0] == '\0') {
			return NULL;
		}
		/*
		 * Each byte may become a backslash for LIKE, itself escaped for the array, and the byte,
		 * escaped too.
		 */
		length += strlen(routes->items[i].pattern) * 4 + sizeof "\"%\",";
	}
	char *text = memory_take(length);
	char *to = text;
	*to++ = '{';
	for (size_t i = 0; i < routes->count; i++) {
		to = to - text > 1 ? stpcpy(to, ",\"") : stpcpy(to, "\"");
		for (const char *from = routes->items[i].pattern; *from != '\0'; from++) {
			if (strchr("\\%_", *from) != NULL) {
				to = stpcpy(to, "\\\\");
			}
			if (strchr("\\\"", *from) != NULL) {
				*to++ = '\\';
			}
			*to++ = *from;
		}
		to = stpcpy(to, routes->items[i].is_beginning ? "%\"" : "\"");
	}
	stpcpy(to, "}");
	return text;
}
