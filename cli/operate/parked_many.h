/* SPDX-License-Identifier: PostgreSQL */
/* parked_many.h: pgonce outbox and dead, retry and discard without an EVENT or ID: one decision
 * about all parked events or messages that the options name (once.outbox_retry_many,
 * once.dead_retry_many ...). */
#pragma once

#include "connect.h"

/* Of what many are decided about. */
typedef struct parked_kind {
	const char *one, *many; /* "event", "events" */
	const char *operand;    /* "EVENT" */
	/*
	 * What narrows them, as the statements take it, after the reason and before "a dry run?" and
	 * "after which"; --older-than as a time. Ends with OPTION_COUNT.
	 */
	const option_id *narrowing;
	/* Those of them that one EVENT may have, too; ends with OPTION_COUNT. */
	const option_id *of_one;
	const char *holder;  /* "relay": who has them parked */
	const char *title;   /* "RELAY" */
	const char *counted; /* "EVENTS" */
	const char *pending; /* why none is pending */
	const char *delayed; /* why none is delayed; NULL: they may be */
} parked_kind;

/* Before there is a connection: the command line of retry and discard. */
int parked_check_decision(const cli_invocation *invocation, const parked_kind *kind);
/*
 * The statement answers holder, topic, state, why they were skipped (NULL: they are decided about),
 * how many, and after which the next piece begins. done: what it means, for people.
 */
int parked_many(const cli_invocation *invocation, PGconn *connection, const parked_kind *kind, enum sql_id statement,
                const char *done);
