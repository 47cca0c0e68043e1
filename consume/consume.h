/* SPDX-License-Identifier: PostgreSQL */
/*
 * consume.h: a consumer: one [consume NAME] section, one source, one handler. Takes messages,
 * applies each exactly once, acknowledges. A consumer runs in one thread; several run side by side.
 */
#pragma once

#include "config.h"
#include "metrics.h"
#include "runtime.h"

typedef enum consume_result {
	CONSUME_STOPPED,   /* as asked; or with `once`: the source is idle */
	CONSUME_FAILED,    /* *problem says why: the handler, the broker's settings */
	CONSUME_NO_SERVER, /* with `once`: PostgreSQL cannot be reached */
	CONSUME_CONTRACT   /* the contract is missing, too old, or the role may not use it */
} consume_result;

typedef struct consume_job {
	const config *config;
	const config_section *section;
	const char *conninfo;
	bool once;        /* end when the source has been idle for 2 s */
	bool log_batches; /* a line for each */
	metrics *metrics; /* NULL: not counted */
} consume_job;

/* The section's options, without any connection. False: *problem (free it). */
bool consume_check(const config *config, const config_section *section, char **problem);
/* What to know of one that is right: lines for people (free it); NULL: nothing. */
char *consume_note(const config *config, const config_section *section);

/* Until runtime_stopping, or for good. *problem (free it) where it is not CONSUME_STOPPED. */
consume_result consume_run(const consume_job *job, char **problem);
/* The table of options that all consumers have, for the documentation; ends with name NULL. */
extern const config_option consume_options[];
