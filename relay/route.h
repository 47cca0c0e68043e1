/* SPDX-License-Identifier: PostgreSQL */
/*
 * route.h: where events go: the lines `route = order.* -> shop.{topic}` of a relay's section. The
 * first that matches an event's topic wins; an event that none matches is not this relay's.
 */
#pragma once

#include "config.h"
#include "event.h"

typedef struct route {
	char *pattern;     /* a topic, or its beginning */
	bool is_beginning; /* the pattern was written with a * at its end */
	char *destination; /* may hold {topic} and {tenant} */
} route;

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
const route *routes_find(const routes *routes, const char *topic);
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
