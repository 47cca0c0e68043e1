/* SPDX-License-Identifier: PostgreSQL */
/* nodes_file.h: a file that names the nodes that share the tenants (--nodes). */
#pragma once

#include "cli.h"

/* Takes the node of a line, 1 for the first line of the file. CLI_OK: go on with the next. */
typedef int nodes_file_taker(void *argument, int line, const char *conninfo);

/*
 * Calls `take` for each node of the file --nodes, which has a connection string per line. Empty
 * lines and lines that begin with # do not count. Each connection string is settled
 * (connect_settled). All lines are checked before the first is taken: a mistake in a line, the same
 * line twice, or a file without a node is CLI_USAGE after an error message. Otherwise CLI_OK,
 * or the first other code that `take` returned.
 */
int nodes_file_read(const cli_invocation *invocation, nodes_file_taker *take, void *argument);
