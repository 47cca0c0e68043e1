/* SPDX-License-Identifier: PostgreSQL */
/*
 * keeper.h: the command's interface to the keeper: it runs the contract's steps
 * (once_job.keep_step) piece by piece, in rounds, while it holds the lease. The contract decides
 * what a step does, and whether it may.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "metrics.h"
#include "runtime.h"

typedef enum keeper_end {
	KEEPER_STOPPED,   /* on request; or with `once`: the round is done */
	KEEPER_NO_SERVER, /* with `once` only: PostgreSQL could not be reached, or was lost */
	KEEPER_CONTRACT,  /* the contract is missing, too old or too new, or the role may not use it */
	KEEPER_HELD,      /* with `once` only: another keeper has the lease */
	KEEPER_FAILED     /* with `once` only: a step failed; the others were done */
} keeper_end;

typedef struct keeper_call {
	const char *conninfo;
	const char *name;    /* NULL: the machine's name; made unique for each process */
	bool once;           /* one round, without pauses */
	int64_t interval_ms; /* between rounds that had nothing left to do */
	metrics *metrics;    /* NULL: not counted */
} keeper_call;

/*
 * Runs until runtime_stop, or until it cannot go on: then *problem (free it) says why. Blocks; call
 * runtime_stop_install before.
 */
keeper_end keeper_run(const keeper_call *call, char **problem);

/* The database's own metrics (once.metrics), over a separate connection: a metrics_source. */
typedef struct keeper_collector keeper_collector;
/* NULL: out of memory */
keeper_collector *keeper_collector_new(const speaker *speaker, const char *conninfo);
void keeper_collector_free(keeper_collector *collector);
/*
 * NULL only if out of memory: without the database it has only pgonce_up 0. Takes some seconds at
 * most.
 */
metrics *keeper_collect(void *collector);
