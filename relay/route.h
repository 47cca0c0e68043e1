/* SPDX-License-Identifier: PostgreSQL */
/*
 * route.h: where events go: the lines `route = order.* -> shop.{topic}` of a relay's section, or
 * `route = order.* if type = order.paid and header region = eu -> paid`. The first that matches an
 * event wins; an event whose topic no route matches is not for this relay. The database only gets
 * the topics, so a route with conditions must be followed by one without, for the other events.
 */
#pragma once

#include "config.h"
#include "event.h"

/* A text, or a prefix: written with a * at its end. */
typedef struct route_pattern {
	char *text;
	bool is_beginning;
} route_pattern;

typedef struct route_condition {
	enum {
		ROUTE_TYPE,
		ROUTE_AGGREGATE,
		ROUTE_HEADER
	} of;
	char *header; /* its name; NULL otherwise */
	route_pattern pattern;
} route_condition;

typedef struct route {
	route_pattern topic;
	route_condition *conditions; /* all must be met */
	size_t condition_count;
	char *destination; /* may contain {topic} and {tenant} */
	bool leaves_out;   /* the destination is ROUTE_NOWHERE */
} route;

/* The destination of events that the relay takes and does not send. */
#define ROUTE_NOWHERE "/dev/null"

typedef struct routes {
	route *items;
	size_t count;
} routes;

/*
 * The routes of a section; without any, all topics go to `standard`. False: *problem (free it).
 */
bool routes_read(const config *config, const config_section *section, const char *standard, routes *result,
                 char **problem);
void routes_free(routes *routes);
/* NULL: no route matches. */
const route *routes_find(const routes *routes, const event *event);
/*
 * The destination in a `route` entry's value, for the sink's own checks. NULL: it is another entry,
 * is malformed, or leads nowhere.
 */
const char *route_entry_destination(const config_entry *entry);
/* The same, and the destination of a `dead_topic` entry: all destinations of the sink. */
const char *route_entry_target(const config_entry *entry);
/* The problem of a destination; NULL: it is valid. */
const char *route_wrong_destination(const char *destination);
/*
 * The destination for an event, in its memory. In a URL the values of {topic} and {tenant} are
 * percent-encoded, so that a tenant's name cannot lead to another path.
 */
const char *route_destination(const route *route, event *event);
/*
 * LIKE patterns that match what the routes match, as the text of a PostgreSQL array; NULL: every
 * topic. Free it.
 */
char *routes_patterns(const routes *routes);
