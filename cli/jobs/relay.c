/* SPDX-License-Identifier: PostgreSQL */
/* relay.c: pgonce relay: runs the relays of the configuration file, a thread each (jobs.c). */
#include <string.h>

#include "jobs.h"
#include "relay.h"

static int run(const config *config, const config_section *section, const job_options *options, char **problem)
{
	const relay_call call = {.conninfo = options->conninfo, .once = options->once, .metrics = options->metrics};

	switch (relay_run(config, section, &call, problem)) {
	case RELAY_STOPPED:
		return CLI_OK;
	case RELAY_NO_SERVER:
		return CLI_NO_SERVER;
	case RELAY_CONTRACT:
		return CLI_CONTRACT;
	case RELAY_REFUSED:
		return CLI_REFUSED;
	case RELAY_UNDELIVERED:
	case RELAY_FAILED:
		break;
	}
	return CLI_FAILED;
}

static const char *takes(const config_section *section)
{
	for (size_t i = 0; i < section->entry_count; i++) {
		if (strcmp(section->entries[i].name, "sink") == 0 && strcmp(section->entries[i].value, "stdout") == 0) {
			return "standard output";
		}
	}
	return NULL;
}

int cli_relay(const cli_invocation *invocation)
{
	static const job_kind kind = {
	    .kind = "relay", .plural = "relays", .check = relay_check, .note = relay_note, .takes = takes, .run = run};

	return jobs_run(invocation, &kind);
}
