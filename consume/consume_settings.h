/* SPDX-License-Identifier: PostgreSQL */
/* consume_settings.h: the options of a [consume NAME] section, without those of its source. */
#pragma once

#include "consume.h"
#include "message.h"
#include "source.h"

typedef enum on_dead {
	ON_DEAD_BLOCK, /* the rest of its key waits for an operator */
	ON_DEAD_SKIP
} on_dead;

typedef enum ids {
	IDS_OPAQUE,
	IDS_UUIDV7 /* a UUIDv7 has its birthday */
} ids;

typedef struct settings {
	const char *dsn, *source, *handler, *endpoint, *id, *order_by, *tenant, *dead_topic;
	int64_t batch, prefetch, memory, attempts, retry_first_ms, retry_most_ms, on_dead, parked_max, prepare, ids;
	/* of endpoint */
	int64_t lease_ms, timeout_ms, in_flight, response_max;
	const char *ca_file, *certificate_file, *key_file;
	/* read from the options above */
	const source_class *class;
	origin id_from, key_from;
} settings;

bool settings_read(const config *config, const config_section *section, settings *settings, char **problem);
