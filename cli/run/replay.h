/* SPDX-License-Identifier: PostgreSQL */
/* replay.h: answering pgonce run from a stored outcome. */
#pragma once

#include "cli.h"

/*
 * Writes the stored output to its original streams, and returns the stored exit status. An outcome
 * that no pgonce run stored (an operator's decision) is written to standard output unchanged; its
 * status, if it has one, is the exit status. *write_error: the errno with which output could not be
 * written; 0: all was written, or its reader has gone.
 */
int replay_outcome(const cli_invocation *invocation, const once_intent *intent, const once_answer *answer,
                   int *write_error);
/* Is this answer's body in the format of pgonce run? */
bool replay_is_run(const char *response_headers, once_bytes body);
