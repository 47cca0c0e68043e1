/* SPDX-License-Identifier: PostgreSQL */
/*
 * parked_many.h: pgonce parked, retry and discard without an ID: one decision about all parked
 * events and messages that match the options (once.parked_retry_many, once.parked_discard_many).
 */
#pragma once

#include "connect.h"

enum {
	PARKED_FILTERS = 9
};

/*
 * The filters of a list or a decision, in the order of the statements' parameters; ends with
 * OPTION_COUNT.
 */
extern const option_id parked_filters[PARKED_FILTERS + 1];

/* Can the filters be combined? CLI_OK, or CLI_USAGE after an error message. */
int parked_check_filters(const cli_invocation *invocation);
/* The filters as parameters. before: --until as the server reads a time; NULL: not given. */
void parked_set_filters(const cli_invocation *invocation, const char *before, const char **parameters);
/* Before connecting: checks the command line of retry and discard. */
int parked_check_decision(const cli_invocation *invocation);
/* done: the meaning of the decision, for people. */
int parked_many(const cli_invocation *invocation, PGconn *connection, enum sql_id statement, const char *done);
