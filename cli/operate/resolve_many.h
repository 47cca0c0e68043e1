/* SPDX-License-Identifier: PostgreSQL */
/* resolve_many.h: pgonce resolve --all: one decision about all intents of a scope
 * that are in doubt (once.resolve_many). */
#pragma once

#include "node_list.h"

/* `named` describes the intents, for a message: free it. */
char *resolve_many_named(const cli_invocation *invocation);
/* On each node that is asked, one after the other. */
int resolve_many(const cli_invocation *invocation, const node_list *nodes, const char *reason,
                 const once_outcome *outcome);
