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

/* What --join did. */
typedef struct joined {
	bool now; /* false: it had joined before */
	int policies;
	int bindings;
} joined;

/* What the node to join says of itself; free it. CLI_OK, or an exit code after an error message. */
static int read_node(const cli_invocation *invocation, char **node)
{
	PGconn *connection = NULL;
	PGresult *rows = NULL;
	char *conninfo = connect_conninfo_of(invocation, OPTION_JOIN);
	int exit_code = conninfo == NULL ? CLI_USAGE : connect_plain(invocation, conninfo, &connection);

	if (exit_code == CLI_OK) {
		exit_code = connect_run(invocation, connection, SQL_NODE_READ, 0, NULL,
		                        "nothing was changed: the node to join cannot be read", &rows);
	}
	if (exit_code == CLI_OK) {
		*node = cli_duplicate(PQgetvalue(rows, 0, 0));
	}
	PQclear(rows);
	PQfinish(connection);
	free(conninfo);
	return exit_code;
}

/*
 * In a transaction, then waits for those that are older. If it is interrupted in between, the node
 * has joined, and a second run waits.
 */
static int join_node(const cli_invocation *invocation, PGconn *connection, const char *node, joined *joined)
{
	PGresult *rows = NULL;
	const char *given[] = {node};
	int exit_code = connect_run(invocation, connection, SQL_NODE_JOIN, 1, given,
	                            "the contract is installed, but the database has not joined", &rows);

	if (exit_code == CLI_OK) {
		joined->now = PQgetvalue(rows, 0, 0)[0] == 't';
		joined->policies = atoi(PQgetvalue(rows, 0, 1));
		joined->bindings = atoi(PQgetvalue(rows, 0, 2));
		exit_code = connect_run(invocation, connection, SQL_NODE_DIVIDE, 0, NULL,
		                        "the database has joined, but older transactions may be open: run it again", NULL);
	}
	PQclear(rows);
	return exit_code;
}

static json_t *joined_as_json(const joined *joined)
{
	return joined == NULL ? json_null()
	                      : json_pack("{s:b, s:i, s:i}", "now", joined->now, "policies", joined->policies, "bindings",
	                                  joined->bindings);
}

/* joined: NULL without --join. */
static void print_result(const cli_invocation *invocation, const install_result *result, bool native,
                         const joined *joined)
{
	const char *done = result->before.status == INSTALL_ABSENT               ? "installed"
	                   : result->migrations_run > 0 || result->code_replaced ? "upgraded"
	                                                                         : "current";

	if (invocation->given[OPTION_JSON]) {
		cli_print_json(json_pack("{s:s, s:s, s:i, s:s, s:i, s:b, s:i, s:b, s:o}", "result", done, "database",
		                         result->before.database, "contract", install_newest_version(), "pgonce",
		                         PGONCE_RELEASE, "migrations_run", result->migrations_run, "functions_replaced",
		                         result->code_replaced, "partitions_added", result->days_added, "native", native,
		                         "joined", joined_as_json(joined)));
	} else if (done[0] == 'c') {
		printf("contract %d (pgonce %s) is already current in database %s; partitions added: %d\n",
		       install_newest_version(), PGONCE_RELEASE, result->before.database, result->days_added);
	} else {
		printf("contract %d (pgonce %s) %s in database %s: migrations run: %d, functions and grants %s, partitions "
		       "added: %d\n",
		       install_newest_version(), PGONCE_RELEASE, done, result->before.database, result->migrations_run,
		       result->code_replaced ? "written" : "kept", result->days_added);
	}
	if (joined != NULL && !invocation->given[OPTION_JSON]) {
		printf(joined->now ? "joined, with no slot open: policies: %d, bindings: %d\n"
		                   : "had joined before, and keeps its slots: policies: %d, bindings: %d\n",
		       joined->policies, joined->bindings);
	}
}

/* --accept-newer: *left if the contract is newer, and stays. CLI_OK, or an exit code. */
static int leave_newer(const cli_invocation *invocation, PGconn *connection, bool *left)
{
	install_state state;
	int exit_code = install_inspect(invocation, connection, &state);

	*left = exit_code == CLI_OK && state.status == INSTALL_AHEAD;
	if (*left && invocation->given[OPTION_JSON]) {
		cli_print_json(json_pack("{s:s, s:s, s:i, s:s}", "result", "newer", "database", state.database, "contract",
		                         state.contract_version, "pgonce", PGONCE_RELEASE));
	} else if (*left) {
		printf("the contract in database %s is newer than this pgonce %s: nothing was changed\n", state.database,
		       PGONCE_RELEASE);
	}
	return exit_code;
}

int cli_init(const cli_invocation *invocation)
{
	PGconn *connection = NULL;
	install_result result;
	joined joined = {.now = false};
	char *node = NULL;
	bool left = false;

	if (invocation->given[OPTION_PRINT]) {
		install_print(stdout);
		return CLI_OK;
	}
	char *conninfo = connect_conninfo(invocation);
	if (conninfo == NULL) {
		return CLI_USAGE;
	}
	int exit_code = invocation->given[OPTION_JOIN] ? read_node(invocation, &node) : CLI_OK;
	if (exit_code == CLI_OK) {
		exit_code = connect_plain(invocation, conninfo, &connection);
	}
	if (exit_code == CLI_OK && invocation->given[OPTION_ACCEPT_NEWER]) {
		exit_code = leave_newer(invocation, connection, &left);
	}
	if (exit_code == CLI_OK && !left) {
		PQsetNoticeReceiver(connection, tell_notice, (void *)(uintptr_t)invocation);
		exit_code = install_contract(invocation, connection, &result);
	}
	if (exit_code == CLI_OK && node != NULL) {
		exit_code = join_node(invocation, connection, node, &joined);
	}
	if (exit_code == CLI_OK && !left) {
		bool native = !invocation->given[OPTION_NO_NATIVE] && native_install(invocation, connection);
		print_result(invocation, &result, native, node != NULL ? &joined : NULL);
	}
	PQfinish(connection);
	free(node);
	free(conninfo);
	return exit_code;
}
