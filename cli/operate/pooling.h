/* SPDX-License-Identifier: PostgreSQL */
/*
 * pooling.h: a pooler between the command and the server, detected from the client's side alone.
 * For doctor.
 */
#pragma once

#include <libpq-fe.h>
#include <stdbool.h>

typedef enum pooling_mode {
	POOLING_NONE,
	POOLING_TRANSACTION,
	POOLING_SESSION, /* or a pool so busy that no connection was shared during the test */
	POOLING_STATEMENT
} pooling_mode;

/* Briefly opens a second connection if there is a pooler. Blocks for at most a few seconds. */
pooling_mode pooling_of(PGconn *connection, const char *conninfo);
const char *pooling_text(pooling_mode mode);
/* Whether a prepared statement still exists at the next call. */
bool pooling_keeps_prepared(PGconn *connection);
