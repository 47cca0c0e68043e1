/* SPDX-License-Identifier: PostgreSQL */
/*
 * metrics_server.h: an HTTP server for metrics only: GET and HEAD of /metrics (OpenMetrics),
 * /health (200 while the process serves) and /once/ready (200 while its jobs have their database,
 * else 503). It has its own threads, limited connections and timeouts. Any client that reaches the
 * address can read its answers.
 */
#pragma once

#include "metrics.h"

/*
 * Figures fetched at each scrape in addition to the process's own: a separate registry, or NULL if
 * they could not be fetched; freed after use. Several threads call it; it may block for a while.
 */
typedef struct metrics_source {
	metrics *(*collect)(void *argument);
	void *argument;
} metrics_source;

typedef struct metrics_server metrics_server;

/*
 * Serves `metrics` (borrowed) and, if given, the source's figures. Port 0: a free one. NULL:
 * *problem (free it) says why: the address is taken, or not this machine's.
 */
metrics_server *metrics_server_start(const char *address, metrics *metrics, const metrics_source *source,
                                     char **problem);
/* Where it listens: "127.0.0.1:9187". */
const char *metrics_server_address(const metrics_server *server);
/* Waits for answers in progress. */
void metrics_server_stop(metrics_server *server);
