/* SPDX-License-Identifier: PostgreSQL */
/* consume.c: pgonce consume: runs the consumers of the configuration file, a thread each. */
#include "consume.h"
#include "cli.h"
#include "jobs.h"

static int run(const config *config, const config_section *section, const job_options *options, char **problem)
{
	const consume_job job = {.config = config,
	                         .section = section,
	                         .conninfo = options->conninfo,
	                         .once = options->once,
	                         .log_batches = options->log_batches,
	                         .metrics = options->metrics};

	switch (consume_run(&job, problem)) {
	case CONSUME_STOPPED:
		return CLI_OK;
	case CONSUME_NO_SERVER:
		return CLI_NO_SERVER;
	case CONSUME_CONTRACT:
		return CLI_CONTRACT;
	case CONSUME_FAILED:
		break;
	}
	return CLI_FAILED;
}

int cli_consume(const cli_invocation *invocation)
{
	static const job_kind kind = {
	    .kind = "consume", .plural = "consumers", .check = consume_check, .note = consume_note, .run = run};

	return jobs_run(invocation, &kind);
}
