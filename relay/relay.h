/* SPDX-License-Identifier: PostgreSQL */
/*
 * relay.h: what the command calls of the relays: one relay is one [relay NAME] section, run by one
 * thread.
 */
#pragma once

#include "config.h"
#include "metrics.h"
#include "pgonce.h"
#include "runtime.h"

typedef enum relay_end {
	RELAY_STOPPED,     /* as asked, or with `once` because nothing was left to do */
	RELAY_NO_SERVER,   /* with `once` only: PostgreSQL could not be reached */
	RELAY_CONTRACT,    /* the contract is missing, too old, too new, or the role may not use it */
	RELAY_REFUSED,     /* the progress means nothing in this database (P4080) */
	RELAY_UNDELIVERED, /* with `once` only: events are parked */
	RELAY_FAILED       /* anything else that does not pass by itself */
} relay_end;

typedef struct relay_call {
	const char *conninfo; /* of the database */
	bool once;            /* end when there is nothing to do now */
	metrics *metrics;     /* NULL: not counted */
} relay_call;

/* What a section may say besides its sink's options; docs/configuration.md is made from it. */
extern const config_option relay_options[];
/* Is the section right, as far as that shows without connecting? False: *problem (free it). */
bool relay_check(const config *config, const config_section *section, char **problem);
/* What to know of one that is right: lines for people (free it); NULL: nothing. */
char *relay_note(const config *config, const config_section *section);
/*
 * Runs the relay until runtime_stop, or until it cannot go on: then *problem (free it) says why and
 * what to do. Blocks; call runtime_stop_install before.
 */
relay_end relay_run(const config *config, const config_section *section, const relay_call *call, char **problem);
