/* SPDX-License-Identifier: PostgreSQL */
/*
 * relay.h: the relays' functions for the command. A relay is a [relay NAME] section, run by one
 * thread.
 */
#pragma once

#include "config.h"
#include "metrics.h"
#include "pgonce.h"
#include "runtime.h"

typedef enum relay_end {
	RELAY_STOPPED,     /* it was asked to stop, or, with `once`, nothing was left to do */
	RELAY_NO_SERVER,   /* with `once` only: PostgreSQL could not be reached */
	RELAY_CONTRACT,    /* the contract is missing, too old, too new, or the role may not use it */
	RELAY_REFUSED,     /* the progress means nothing in this database (P4080) */
	RELAY_UNDELIVERED, /* with `once` only: events are parked */
	RELAY_FAILED       /* any other failure that trying again does not fix */
} relay_end;

typedef struct relay_call {
	const char *conninfo; /* of the database */
	bool once;            /* end when there is nothing left to do */
	metrics *metrics;     /* NULL: not counted */
} relay_call;

/* A section's options, besides its sink's. docs/reference/configuration.md is made from them. */
extern const config_option relay_options[];
/* Checks the section without connecting. False: *problem (free it). */
bool relay_check(const config *config, const config_section *section, char **problem);
/* Notes on a valid section: lines for people (free it); NULL: no notes. */
char *relay_note(const config *config, const config_section *section);
/*
 * Runs the relay until runtime_stop, or until it cannot go on: then *problem (free it) says why and
 * what to do. Blocks; call runtime_stop_install before.
 */
relay_end relay_run(const config *config, const config_section *section, const relay_call *call, char **problem);
