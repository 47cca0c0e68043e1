/* SPDX-License-Identifier: PostgreSQL */
/*
 * jobs.h: running the sections of the configuration file as jobs of this process, a thread each:
 * the common part of pgonce relay and pgonce consume.
 */
#pragma once

#include "cli.h"
#include "config.h"
#include "metrics_server.h"

typedef struct job_options {
	const char *conninfo;
	bool once;        /* --once */
	bool log_batches; /* --log-batches */
	metrics *metrics; /* NULL: not requested */
} job_options;

typedef struct job_kind {
	const char *kind;   /* "relay": of sections, and in the log */
	const char *plural; /* "relays" */
	/* The options alone. False: *problem (free it). */
	bool (*check)(const config *config, const config_section *section, char **problem);
	/* Notes about a valid section: lines for people (free it); NULL: none. */
	char *(*note)(const config *config, const config_section *section);
	/*
	 * A thing that only one job of a process can use, and this one does ("standard output"); NULL:
	 * none.
	 */
	const char *(*takes)(const config_section *section);
	/*
	 * The job itself, until runtime_stopping or for good, in its own thread. Returns the exit code:
	 * CLI_OK when it stopped on request; otherwise *problem (free it), and all jobs of the process
	 * are stopped.
	 */
	int (*run)(const config *config, const config_section *section, const job_options *options, char **problem);
} job_kind;

/*
 * --metrics: a registry, and a server for it and for `source` (NULL: nothing); both NULL without
 * the option. CLI_OK, or a code after an error message. Ended by jobs_metrics_stop.
 */
typedef struct jobs_metrics {
	metrics *metrics;
	metrics_server *server;
} jobs_metrics;
int jobs_metrics_start(const cli_invocation *invocation, const char *kind, const metrics_source *source,
                       jobs_metrics *result);
void jobs_metrics_stop(jobs_metrics *metrics);

/*
 * Reads the file, runs those sections of the kind that the operands name (all, without operands).
 * Returns the process's exit code.
 */
int jobs_run(const cli_invocation *invocation, const job_kind *kind);
