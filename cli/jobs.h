/* SPDX-License-Identifier: PostgreSQL */
/*
 * jobs.h: running the sections of the configuration file as jobs of this process, a thread each: what pgonce relay and pgonce consume have
 * in common.
 */
#pragma once

#include "cli.h"
#include "config.h"

typedef struct job_options {
	const char *conninfo;
	bool once;        /* --once */
	bool log_batches; /* --log-batches */
} job_options;

typedef struct job_kind {
	const char *kind;   /* "relay": of sections, and in the log */
	const char *plural; /* "relays" */
	/* The options alone. False: *problem (free it). */
	bool (*check)(const config *config, const config_section *section, char **problem);
	/*
	 * The job itself, until service_stopping or for good, in a thread of its own. The exit code: CLI_OK when it stopped as asked; else
	 * *problem (free it), and all jobs of the process are stopped.
	 */
	int (*run)(const config *config, const config_section *section, const job_options *options, char **problem);
} job_kind;

/* Reads the file, runs those sections of the kind that the operands name (all, without operands). The process's exit code. */
int jobs_run(const cli_invocation *invocation, const job_kind *kind);
