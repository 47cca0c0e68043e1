/* SPDX-License-Identifier: PostgreSQL */
/* keep.c: pgonce keep: the keeper of one database, and its metrics. */
#include <stdlib.h>
#include <string.h>

#include "connect.h"
#include "jobs.h"
#include "keeper.h"

#define INTERVAL_STANDARD_MS 60000

static int exit_of(keeper_end end)
{
	switch (end) {
	case KEEPER_STOPPED:
		return CLI_OK;
	case KEEPER_NO_SERVER:
		return CLI_NO_SERVER;
	case KEEPER_CONTRACT:
		return CLI_CONTRACT;
	case KEEPER_HELD:
		return CLI_ACTIVE;
	case KEEPER_FAILED:
		break;
	}
	return CLI_FAILED;
}

/* A hint, if the problem has none. */
static const char *hint_of(int result)
{
	return result == CLI_NO_SERVER
	           ? "start the server, create what the message names, or set --dsn or PGHOST, PGDATABASE and PGUSER"
	       : result == CLI_ACTIVE
	           ? "that keeper does the work; this one can when it is stopped, or when its lease has passed"
	           : NULL;
}

static int keep(const cli_invocation *invocation, const char *conninfo, keeper_collector *collector)
{
	const metrics_source source = {.collect = keeper_collect, .argument = collector};
	jobs_metrics metrics;
	char *problem = NULL;
	int result = jobs_metrics_start(invocation, "keep", &source, &metrics);

	if (result != CLI_OK) {
		return result;
	}
	const keeper_call call = {.conninfo = conninfo,
	                          .name = invocation->text[OPTION_KEEPER_NAME],
	                          .once = invocation->given[OPTION_ONCE],
	                          .interval_ms = cli_number(invocation, OPTION_INTERVAL, INTERVAL_STANDARD_MS),
	                          .metrics = metrics.metrics};
	result = exit_of(keeper_run(&call, &problem));
	jobs_metrics_stop(&metrics);
	if (result != CLI_OK) {
		result = cli_fail(invocation, result, hint_of(result), "%s", problem == NULL ? "out of memory" : problem);
	}
	free(problem);
	return result;
}

static bool is_name(const char *name)
{
	static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

	return name[0] != '\0' && strlen(name) <= 63 && name[strspn(name, allowed)] == '\0';
}

int cli_keep(const cli_invocation *invocation)
{
	const speaker speaker = {.kind = "keep", .name = "*"};

	if (invocation->given[OPTION_KEEPER_NAME] && !is_name(invocation->text[OPTION_KEEPER_NAME])) {
		return cli_fail(invocation, CLI_USAGE, "pgonce help keep",
		                "option --name: 1 to 63 letters, digits, '.', '_' and '-'");
	}
	if (!runtime_stop_install()) {
		return cli_fail(invocation, CLI_FAILED, NULL, "cannot prepare for signals: %m");
	}
	if (invocation->given[OPTION_VERBOSE]) {
		runtime_log_level(RUNTIME_DEBUG);
	}
	char *conninfo = connect_conninfo(invocation);
	if (conninfo == NULL) {
		return CLI_USAGE;
	}
	keeper_collector *collector = keeper_collector_new(&speaker, conninfo);
	int result = collector == NULL ? cli_fail(invocation, CLI_FAILED, NULL, "out of memory")
	                               : keep(invocation, conninfo, collector);
	keeper_collector_free(collector);
	free(conninfo);
	return result;
}
