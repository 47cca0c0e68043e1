/* SPDX-License-Identifier: PostgreSQL */
/*
 * consume.h: a consumer: one [consume NAME] section, one source, one handler. It takes messages,
 * applies each exactly once, and acknowledges it. A consumer runs in one thread; several can run
 * side by side.
 */
#pragma once

#include "config.h"
#include "metrics.h"
#include "runtime.h"

typedef enum consume_result {
	CONSUME_STOPPED,   /* on request; or with `once`: the source is idle */
	CONSUME_FAILED,    /* *problem says why: the handler, the broker's settings */
	CONSUME_NO_SERVER, /* with `once`: PostgreSQL cannot be reached */
	CONSUME_CONTRACT   /* the contract is missing or too old, or the role may not use it */
} consume_result;

typedef struct consume_job {
	const config *config;
	const config_section *section;
	const char *conninfo;
	bool once;        /* end when the source has been idle for 2 s */
	bool log_batches; /* one log line for each */
	metrics *metrics; /* NULL: not counted */
} consume_job;

/* Checks the section's options without any connection. False: *problem (free it). */
bool consume_check(const config *config, const config_section *section, char **problem);
/* Notes on a valid section, lines for people (free it); NULL: no notes. */
char *consume_note(const config *config, const config_section *section);

/* Runs until runtime_stopping, or until it fails. *problem (free it) unless CONSUME_STOPPED. */
consume_result consume_run(const consume_job *job, char **problem);
/* The options that all consumers have, for the documentation; ends with name NULL. */
extern const config_option consume_options[];
