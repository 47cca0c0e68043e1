/* SPDX-License-Identifier: PostgreSQL */
/*
 * route.h: where events go: the lines `route = order.* -> shop.{topic}` of a relay's section, or
 * `route = order.* if type = order.paid and header region = eu -> paid`. The first that matches an
 * event wins; an event whose topic none matches is not this relay's. The topics alone are told to
 * the database, so a route with conditions has one without behind it, for what does not meet them.
 */
#pragma once

#include "config.h"
#include "event.h"

/* A text, or the beginning of one: written with a * at its end. */
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
	route_condition *conditions; /* all of them are to be met */
	size_t condition_count;
	char *destination; /* may hold {topic} and {tenant} */
	bool leaves_out;   /* the destination is ROUTE_NOWHERE */
} route;

/* The destination of events that the relay takes and does not send. */
#define ROUTE_NOWHERE "/dev/null"

typedef struct routes {
	route *items;
	size_t count;
} routes;

/*
 * The routes of a section; where it has none, all topics go to `standard`. False: *problem (free
 * it).
 */
bool routes_read(const config *config, const config_section *section, const char *standard, routes *result,
                 char **problem);
void routes_free(routes *routes);
/* NULL: no route matches. */
const route *routes_find(const routes *routes, const event *event);
/*
 * What a sink checks itself: the destination of an entry `route`, a part of its value. NULL: the
 * entry is another, is malformed, or leads nowhere.
 */
const char *route_entry_destination(const config_entry *entry);
/* The same, and that of an entry `dead_topic`: all that the sink is given. */
const char *route_entry_target(const config_entry *entry);
/* NULL, or what is wrong with what stands behind ->. */
const char *route_wrong_destination(const char *destination);
/*
 * The destination for an event, in its memory. In a URL what is put in for {topic} and {tenant} is
 * percent-encoded, so that a tenant's name cannot lead to another path.
 */
const char *route_destination(const route *route, event *event);
/*
 * LIKE patterns that match what the routes match, as the text of a PostgreSQL array; NULL: every
 * topic. Free it.
 */
char *routes_patterns(const routes *routes);
