/* SPDX-License-Identifier: PostgreSQL */
/* outbox_many.h: pgonce outbox retry and discard without an EVENT: one decision about all parked
 * events that --relay, --topic, --state and --older-than name (once.outbox_retry_many,
 * once.outbox_discard_many). */
#pragma once

#include "connect.h"

/* Before there is a connection: the command line of retry and discard. */
int outbox_check_decision(const cli_invocation *invocation);
int outbox_many(const cli_invocation *invocation, PGconn *connection, enum sql_id statement, const char *done);
