/* SPDX-License-Identifier: PostgreSQL */
/*
 * services.h: what pgonce dev runs besides the server: the keeper; two example services and the gateway before them; NATS, a relay and a
 * consumer. Each is found again by a lock that its processes hold, so a stale number misleads nobody. For cli_dev.c, which holds the server's lock meanwhile.
 */
#pragma once

#include "server.h"

/* Starts those that do not run. Where something that they need is not installed, says so and is content. CLI_OK, or after saying. */
int services_start(const server *server);
/* Ends those that run: the gateway first, when it has finished what is at work. CLI_OK, or after saying. */
int services_stop(const server *server);
/* {"url": ...} of the running gateway and what is behind it; JSON null where it does not run. */
json_t *services_describe(const server *server);
/* {"metrics": URL, "pid": N} of the keeper; JSON null where it does not run. */
json_t *services_describe_keeper(const server *server);
/* {"url": ...} of NATS, of the relay to it and the consumer from it; JSON null where they do not run. */
json_t *services_describe_events(const server *server);
