/* SPDX-License-Identifier: PostgreSQL */
/* init.c: pgonce init: installs or upgrades the contract, or
 * prints it. The work is in install.c. */
#include <stdlib.h>

#include "connect.h"
#include "install.h"
#include "native.h"

/* Notices of the contract's SQL, for example about roles that it may not create. */
static void tell_notice(void *argument, const PGresult *notice)
{
	const char *severity = PQresultErrorField(notice, PG_DIAG_SEVERITY_NONLOCALIZED);

	if (severity != NULL && (severity[0] == 'N' || severity[0] == 'W')) {
		cli_note(argument, "%s", PQresultErrorField(notice, PG_DIAG_MESSAGE_PRIMARY));
	}
}

static void print_result(const cli_invocation *invocation, const install_result *result, bool native)
{
	const char *done = result->before.status == INSTALL_ABSENT               ? "installed"
	                   : result->migrations_run > 0 || result->code_replaced ? "upgraded"
	                                                                         : "current";

	if (invocation->given[OPTION_JSON]) {
		cli_print_json(json_pack("{s:s, s:s, s:i, s:s, s:i, s:b, s:i, s:b}", "result", done, "database",
		                         result->before.database, "contract", install_newest_version(), "pgonce",
		                         PGONCE_RELEASE, "migrations_run", result->migrations_run, "functions_replaced",
		                         result->code_replaced, "partitions_added", result->days_added, "native", native));
	} else if (done[0] == 'c') {
		printf("contract %d (pgonce %s) is already current in database %s; partitions added: %d\n",
		       install_newest_version(), PGONCE_RELEASE, result->before.database, result->days_added);
	} else {
		printf("contract %d (pgonce %s) %s in database %s: migrations run: %d, functions and grants %s, partitions "
		       "added: %d\n",
		       install_newest_version(), PGONCE_RELEASE, done, result->before.database, result->migrations_run,
		       result->code_replaced ? "written" : "kept", result->days_added);
	}
}

int cli_init(const cli_invocation *invocation)
{
	PGconn *connection = NULL;
	install_result result;

	if (invocation->given[OPTION_PRINT]) {
		install_print(stdout);
		return CLI_OK;
	}
	char *conninfo = connect_conninfo(invocation);
	if (conninfo == NULL) {
		return CLI_USAGE;
	}
	int exit_code = connect_plain(invocation, conninfo, &connection);
	if (exit_code == CLI_OK) {
		PQsetNoticeReceiver(connection, tell_notice, (void *)(uintptr_t)invocation);
		exit_code = install_contract(invocation, connection, &result);
	}
	if (exit_code == CLI_OK) {
		bool native = !invocation->given[OPTION_NO_NATIVE] && native_install(invocation, connection);
		print_result(invocation, &result, native);
	}
	PQfinish(connection);
	free(conninfo);
	return exit_code;
}
