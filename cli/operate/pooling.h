/* SPDX-License-Identifier: PostgreSQL */
/*
 * pooling.h: what stands between the command and the server, seen from the client's side alone. For
 * doctor.
 */
#pragma once

#include <libpq-fe.h>
#include <stdbool.h>

typedef enum pooling_mode {
	POOLING_NONE,
	POOLING_TRANSACTION,
	POOLING_SESSION, /* or a pool so busy that no connection was ever shared while we looked */
	POOLING_STATEMENT
} pooling_mode;

/*
 * Opens a second connection for the moment where there is a pooler. Blocks for at most a few
 * seconds.
 */
pooling_mode pooling_of(PGconn *connection, const char *conninfo);
const char *pooling_text(pooling_mode mode);
/* Whether a statement that was prepared is still there at the next call. */
bool pooling_keeps_prepared(PGconn *connection);
