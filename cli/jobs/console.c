/* SPDX-License-Identifier: PostgreSQL */
/* console.c: pgonce console: the web console of one database. */
#include "console.h"

#include <stdlib.h>

#include "connect.h"
#include "operate/checkup.h"
#include "runtime.h"

#define LISTEN_STANDARD "127.0.0.1:9480"

static json_t *doctor(void *argument)
{
	return doctor_look(argument);
}

static int serve(const cli_invocation *invocation, const char *conninfo)
{
	const console_call call = {.conninfo = conninfo,
	                           .listen = cli_text(invocation, OPTION_LISTEN, LISTEN_STANDARD),
	                           .allow_decisions = invocation->given[OPTION_ALLOW_DECISIONS],
	                           .user_header = invocation->text[OPTION_USER_HEADER],
	                           .trusted_addresses = invocation->text[OPTION_TRUSTED_ADDRESS],
	                           .public_hosts = invocation->text[OPTION_PUBLIC_HOST],
	                           .prometheus = invocation->text[OPTION_PROMETHEUS],
	                           .prometheus_job = invocation->text[OPTION_PROMETHEUS_JOB],
	                           .doctor = doctor,
	                           .argument = (void *)(uintptr_t)invocation};
	char *problem = console_mistake(&call);
	int result = CLI_OK;

	if (problem != NULL) {
		result = cli_fail(invocation, CLI_USAGE, "pgonce help console", "%s", problem);
	} else if (!console_run(&call, &problem)) {
		result = cli_fail(invocation, CLI_FAILED, NULL, "%s", problem);
	}
	free(problem);
	return result;
}

int cli_console(const cli_invocation *invocation)
{
	if (!runtime_stop_install()) {
		return cli_fail(invocation, CLI_FAILED, NULL, "cannot prepare for signals: %m");
	}
	char *conninfo = connect_conninfo(invocation);
	int result = conninfo == NULL ? CLI_USAGE : serve(invocation, conninfo);
	free(conninfo);
	return result;
}
