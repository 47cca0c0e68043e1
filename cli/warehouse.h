/* SPDX-License-Identifier: PostgreSQL */
/*
 * warehouse.h: what the relay and the consumer of pgonce dev need before they start: a second database "warehouse" in the private
 * server, with the contract and examples/orders/stock.sql in it, a stream in NATS, and a configuration file. For services.c, which
 * runs them.
 */
#pragma once

#include "server.h"

#define WAREHOUSE_DATABASE "warehouse"
#define WAREHOUSE_STREAM "ORDERS"

/* The database; what is there already stays. CLI_OK, or after saying. */
int warehouse_make_database(const server *server);
/* The stream, of all subjects order.>; one that is there stays. CLI_OK, or after saying. In stream.c: only in a build with NATS. */
int warehouse_make_stream(const server *server, const char *url);
/* Writes the configuration. CLI_OK, or after saying. */
int warehouse_write_config(const server *server, const char *path, const char *url);
