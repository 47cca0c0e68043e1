/* SPDX-License-Identifier: PostgreSQL */
/*
 * version.c: pgonce version: the versions of the command and its contract, and, with a database, of
 * the contract there.
 */
#include <stdlib.h>

#include "connect.h"
#include "install.h"

static bool names_a_database(const cli_invocation *invocation)
{
	static const char *const variables[] = {"PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE", "PGSERVICE"};

	if (invocation->given[OPTION_DSN]) {
		return true;
	}
	for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
		if (getenv(variables[i]) != NULL) {
			return true;
		}
	}
	return false;
}

static const char *describe(const install_state *state)
{
	static const char *const statuses[] = {
	    [INSTALL_ABSENT] = "not installed",
	    [INSTALL_CURRENT] = "current",
	    [INSTALL_BEHIND] = "to be upgraded",
	    [INSTALL_AHEAD] = "newer than this command",
	    [INSTALL_TAMPERED] = "changed by hand",
	    [INSTALL_FOREIGN] = "not pgonce's",
	    [INSTALL_EXTENSION] = "an extension of another version",
	    [INSTALL_UNREADABLE] = "not readable by this role",
	};

	return statuses[state->status];
}

int cli_version(const cli_invocation *invocation)
{
	json_t *json = json_pack("{s:s, s:s, s:i, s:i}", "pgonce", PGONCE_RELEASE, "libpgonce", once_version(), "contract",
	                         once_contract_version(), "libpq", PQlibVersion());
	bool in_json = invocation->given[OPTION_JSON];
	bool asks = names_a_database(invocation);
	char *conninfo = asks ? connect_conninfo(invocation) : NULL;
	PGconn *connection = NULL;
	install_state state;
	int result = CLI_OK;

	if (asks && conninfo == NULL) {
		json_decref(json);
		return CLI_USAGE;
	}
	if (!in_json) {
		printf("pgonce %s (libpgonce %s, contract %d, libpq %d.%d)\n", PGONCE_RELEASE, once_version(),
		       once_contract_version(), PQlibVersion() / 10000, PQlibVersion() % 10000);
		fflush(stdout);
	}
	if (asks) {
		result = connect_plain(invocation, conninfo, &connection);
		if (result == CLI_OK) {
			result = install_inspect(invocation, connection, &state);
		}
		if (result == CLI_OK && in_json) {
			json_object_set_new(json, "server", json_string(PQparameterStatus(connection, "server_version")));
			json_object_set_new(json, "database", json_string(state.database));
			json_object_set_new(json, "database_contract",
			                    state.status == INSTALL_UNREADABLE ? json_null()
			                                                       : json_integer(state.contract_version));
			json_object_set_new(json, "database_contract_status", json_string(describe(&state)));
		} else if (result == CLI_OK) {
			char number[16] = "";
			if (state.status != INSTALL_UNREADABLE) {
				snprintf(number, sizeof number, " %d,", state.contract_version);
			}
			printf("PostgreSQL %s, database %s: contract%s %s\n", PQparameterStatus(connection, "server_version"),
			       state.database, number, describe(&state));
		}
		PQfinish(connection);
		free(conninfo);
	}
	if (in_json) {
		cli_print_json(json);
	} else {
		json_decref(json);
	}
	return result;
}
