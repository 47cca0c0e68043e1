/* SPDX-License-Identifier: PostgreSQL */
/*
 * metrics_server.h: an HTTP server for metrics alone: GET and HEAD of /metrics (OpenMetrics),
 * /health (200 while the process serves) and /once/ready (200 while its jobs have their database,
 * else 503). It has threads of its own, bounded connections and timeouts; what it answers is public
 * to whoever reaches the address.
 */
#pragma once

#include "metrics.h"

/* "127.0.0.1:9187", "[::1]:9187", "localhost:9187". */
bool metrics_address_is_good(const char *address);

/*
 * What is asked at each scrape besides the process's own figures: a registry of its own, or NULL
 * where it could not be had; freed after use. Called by several threads; may block for a while.
 */
typedef struct metrics_source {
	metrics *(*collect)(void *argument);
	void *argument;
} metrics_source;

typedef struct metrics_server metrics_server;

/*
 * Serves `metrics` (borrowed) and, where given, what the source says. Port 0: a free one. NULL:
 * *problem (free it) says why: the address is taken, or not this machine's.
 */
metrics_server *metrics_server_start(const char *address, metrics *metrics, const metrics_source *source,
                                     char **problem);
/* Where it listens: "127.0.0.1:9187". */
const char *metrics_server_address(const metrics_server *server);
/* Waits for answers that are under way. */
void metrics_server_stop(metrics_server *server);
