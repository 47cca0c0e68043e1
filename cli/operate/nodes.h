/* SPDX-License-Identifier: PostgreSQL */
/* nodes.h: pgonce doctor --nodes: compares the nodes that share the tenants. */
#pragma once

#include "checkup.h"

/*
 * The nodes of --nodes. CLI_OK after its checks, even if they failed, or an exit code after an
 * error message.
 */
int nodes_check(checkup *checkup);
