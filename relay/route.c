/* SPDX-License-Identifier: PostgreSQL */
/* route.c: see route.h. */
#include "route.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

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

/* The problem; NULL: it is valid. */
static const char *wrong_pattern(const char *pattern)
{
	const char *star = strchr(pattern, '*');

	if (pattern[0] == '\0') {
		return "a topic must stand before ->";
	}
	return star != NULL && star[1] != '\0' ? "a * may stand at the end of the topic only" : NULL;
}

const char *route_wrong_destination(const char *destination)
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

/* Takes over the text. */
static route_pattern pattern_of(char *text)
{
	size_t length = strlen(text);
	bool is_beginning = length > 0 && text[length - 1] == '*';

	if (is_beginning) {
		text[length - 1] = '\0';
	}
	return (route_pattern){.text = text, .is_beginning = is_beginning};
}

static bool matches(const route_pattern *pattern, const char *text)
{
	return pattern->is_beginning ? strncmp(text, pattern->text, strlen(pattern->text)) == 0
	                             : strcmp(text, pattern->text) == 0;
}

static void route_clear(route *route)
{
	for (size_t i = 0; i < route->condition_count; i++) {
		free(route->conditions[i].header);
		free(route->conditions[i].pattern.text);
	}
	free(route->conditions);
	free(route->topic.text);
	free(route->destination);
}

/* Takes over the texts. */
static route *add(routes *routes, char *topic, char *destination)
{
	routes->items = memory_array(routes->items, routes->count + 1, sizeof *routes->items);
	route *added = &routes->items[routes->count++];
	*added = (route){
	    .topic = pattern_of(topic), .destination = destination, .leaves_out = strcmp(destination, ROUTE_NOWHERE) == 0};
	return added;
}

/* "type = order.paid", "aggregate = order", "header region = eu". The problem, or NULL. */
static const char *read_condition(const char *from, const char *to, route *route)
{
	static const char said[] = "write a condition as type = ..., aggregate = ..., or header NAME = ...";
	const char *equals = memchr(from, '=', (size_t)(to - from));

	if (equals == NULL) {
		return said;
	}
	char *what = trimmed(from, equals), *value = trimmed(equals + 1, to);
	route_condition condition = {.of = ROUTE_TYPE};
	const char *star = strchr(value, '*');
	const char *wrong = value[0] == '\0'                  ? "a condition has a value behind its ="
	                    : star != NULL && star[1] != '\0' ? "a * may stand at the end of a condition's value only"
	                                                      : NULL;

	if (strncmp(what, "header", 6) == 0 && is_space(what[6])) {
		condition.of = ROUTE_HEADER;
		condition.header = trimmed(what + 6, what + strlen(what));
	} else if (strcmp(what, "aggregate") == 0) {
		condition.of = ROUTE_AGGREGATE;
	} else if (strcmp(what, "type") != 0) {
		wrong = said;
	}
	free(what);
	condition.pattern = pattern_of(value);
	route->conditions = memory_array(route->conditions, route->condition_count + 1, sizeof *route->conditions);
	route->conditions[route->condition_count++] = condition;
	return wrong;
}

/* Conditions with " and " between them. The problem, or NULL. */
static const char *read_conditions(const char *from, const char *to, route *route)
{
	static const char and[] = " and ";
	const char *wrong = NULL;

	while (from != NULL && wrong == NULL) {
		const char *end = memmem(from, (size_t)(to - from), and, strlen(and));
		wrong = read_condition(from, end == NULL ? to : end, route);
		from = end == NULL ? NULL : end + strlen(and);
	}
	return wrong;
}

/* The problem, for people; NULL: it was added. */
static char *read_route(const config *config, const config_section *section, const config_entry *entry, routes *result)
{
	static const char if_[] = " if ";
	const char *arrow = strstr(entry->value, "->");

	if (arrow == NULL) {
		return config_problem(config, section, entry,
		                      "write it as TOPIC -> DESTINATION, for example order.* -> shop.{topic}");
	}
	const char *conditions = memmem(entry->value, (size_t)(arrow - entry->value), if_, strlen(if_));
	char *topic = trimmed(entry->value, conditions != NULL ? conditions : arrow);
	char *destination = trimmed(arrow + 2, entry->value + strlen(entry->value));
	const char *wrong = wrong_pattern(topic);
	wrong = wrong != NULL ? wrong : route_wrong_destination(destination);
	route *added = add(result, topic, destination);
	if (wrong == NULL && conditions != NULL) {
		wrong = read_conditions(conditions + strlen(if_), arrow, added);
	}
	if (wrong != NULL) {
		route_clear(added);
		result->count--;
		return config_problem(config, section, entry, "%s", wrong);
	}
	return NULL;
}

/* True: it matches all topics that the other one matches, for any event. */
static bool covers(const route *route, const struct route *other)
{
	return route->condition_count == 0 && (route->topic.is_beginning || !other->topic.is_beginning) &&
	       matches(&route->topic, other->topic.text);
}

/* An event that meets no condition must not be skipped silently. */
static char *check_rest(const config *config, const config_section *section, const routes *routes)
{
	for (size_t i = 0; i < routes->count; i++) {
		const route *route = &routes->items[i];
		bool is_covered = route->condition_count == 0;
		for (size_t j = i + 1; j < routes->count && !is_covered; j++) {
			is_covered = covers(&routes->items[j], route);
		}
		if (!is_covered) {
			return config_problem(
			    config, section, config_entry_of(section, "route"),
			    "where do events of %s%s go that meet no condition? Let a route without one follow: %s%s -> "
			    "DESTINATION, or -> " ROUTE_NOWHERE " if this relay leaves them out",
			    route->topic.text, route->topic.is_beginning ? "*" : "", route->topic.text,
			    route->topic.is_beginning ? "*" : "");
		}
	}
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
	if (problems == NULL) {
		problems = check_rest(config, section, result);
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
		route_clear(&routes->items[i]);
	}
	free(routes->items);
	*routes = (struct routes){0};
}

static bool is_met(const route_condition *condition, const event *event)
{
	switch (condition->of) {
	case ROUTE_TYPE:
		return event->event_type != NULL && matches(&condition->pattern, event->event_type);
	case ROUTE_AGGREGATE:
		return event->aggregate_type != NULL && matches(&condition->pattern, event->aggregate_type);
	case ROUTE_HEADER:
		for (size_t i = 0; i < event->header_count; i++) {
			if (strcasecmp(event->headers[i].name, condition->header) == 0 &&
			    matches(&condition->pattern, event->headers[i].value)) {
				return true;
			}
		}
	}
	return false;
}

const route *routes_find(const routes *routes, const event *event)
{
	for (size_t i = 0; i < routes->count; i++) {
		const route *route = &routes->items[i];
		size_t met = 0;
		if (!matches(&route->topic, event->topic)) {
			continue;
		}
		while (met < route->condition_count && is_met(&route->conditions[met], event)) {
			met++;
		}
		if (met == route->condition_count) {
			return route;
		}
	}
	return NULL;
}

const char *route_entry_destination(const config_entry *entry)
{
	const char *arrow = strcmp(entry->name, "route") == 0 ? strstr(entry->value, "->") : NULL;

	if (arrow == NULL) {
		return NULL;
	}
	arrow += strlen("->");
	while (is_space(*arrow)) {
		arrow++;
	}
	return strcmp(arrow, ROUTE_NOWHERE) == 0 ? NULL : arrow;
}

const char *route_entry_target(const config_entry *entry)
{
	return strcmp(entry->name, "dead_topic") == 0 ? entry->value : route_entry_destination(entry);
}

/* ---- destinations */

/* RFC 3986, section 2.3: the unreserved characters. */
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

/* Dots alone would lead up the path, and percent-encoding leaves them unchanged. */
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
		if (routes->items[i].topic.is_beginning && routes->items[i].topic.text[0] == '\0') {
			return NULL;
		}
		/*
		 * Each byte may need a backslash for LIKE, and both may need one for the array.
		 */
		length += strlen(routes->items[i].topic.text) * 4 + sizeof "\"%\",";
	}
	char *text = memory_take(length);
	char *to = text;
	*to++ = '{';
	for (size_t i = 0; i < routes->count; i++) {
		to = to - text > 1 ? stpcpy(to, ",\"") : stpcpy(to, "\"");
		for (const char *from = routes->items[i].topic.text; *from != '\0'; from++) {
			if (strchr("\\%_", *from) != NULL) {
				to = stpcpy(to, "\\\\");
			}
			if (strchr("\\\"", *from) != NULL) {
				*to++ = '\\';
			}
			*to++ = *from;
		}
		to = stpcpy(to, routes->items[i].topic.is_beginning ? "%\"" : "\"");
	}
	stpcpy(to, "}");
	return text;
}
