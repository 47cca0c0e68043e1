/* SPDX-License-Identifier: PostgreSQL */
/* relay_settings.h: the settings of a [relay NAME] section. */
#pragma once

#include "envelope.h"
#include "relay.h"
#include "route.h"

enum {
	START_OLDEST,
	START_NOW
};

enum {
	ON_DEAD_BLOCK,
	ON_DEAD_SKIP
};

typedef struct relay_settings {
	const char *name;
	const char *dsn; /* NULL: the caller's */
	const char *sink_name;
	const char *dead_topic;
	const char *ce_source; /* NULL: /pgonce/NAME */
	int64_t envelope_form, batch, in_flight, attempts, retry_first_ms, retry_most_ms, timeout_ms, on_dead, parked_max,
	    poll_most_ms, start;
	/* made of them */
	const sink_class *sink;
	routes routes;
	route dead_route; /* to dead_topic */
	envelope envelope;
	char *source;
} relay_settings;

/*
 * Reads and checks the whole section, including its sink's options; does not connect. False:
 * *problem (free it).
 */
bool relay_settings_read(const config *config, const config_section *section, relay_settings *result, char **problem);
void relay_settings_free(relay_settings *settings);
