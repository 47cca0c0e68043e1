/* SPDX-License-Identifier: PostgreSQL */
/* cli_doctor.c: pgonce doctor: runs the checks of sql/doctor_*.sql and a few that only a client can make, and says what to do. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "connect.h"
#include "install.h"

typedef struct checkup {
	const cli_invocation *invocation;
	PGconn *connection;
	json_t *rows; /* with --json */
	int warned;
	int failed;
} checkup;

static void note(checkup *checkup, const char *check, const char *level, const char *found, const char *advice)
{
	bool well = strcmp(level, "ok") == 0;

	checkup->warned += strcmp(level, "warn") == 0;
	checkup->failed += strcmp(level, "fail") == 0;
	if (checkup->rows != NULL) {
		json_t *row = json_pack("{s:s, s:s, s:s}", "check", check, "level", level, "found", found);
		json_object_set_new(row, "advice", well ? json_null() : json_string(advice));
		json_array_append_new(checkup->rows, row);
		return;
	}
	printf("%-4s  %-26s %s\n", level, check, found);
	if (!well) {
		printf("      %-26s -> %s\n", "", advice);
	}
}

/* Runs one file of checks. What this role may not look at is a warning, not a failure. */
static void run_checks(checkup *checkup, enum sql_id id, int parameter_count, const char *const *parameters)
{
	PGresult *rows = connect_query(checkup->connection, id, parameter_count, parameters);

	if (PQresultStatus(rows) != PGRES_TUPLES_OK) {
		const char *sqlstate = PQresultErrorField(rows, PG_DIAG_SQLSTATE);
		const char *message = PQresultErrorField(rows, PG_DIAG_MESSAGE_PRIMARY);
		bool forbidden = sqlstate != NULL && strcmp(sqlstate, "42501") == 0;
		char *found = cli_format("%s (SQLSTATE %s)", message != NULL ? message : "no answer",
		                         sqlstate != NULL ? sqlstate : "none");
		note(checkup, sql_queries[id].name, forbidden ? "warn" : "fail", found,
		     "run pgonce doctor as the owner of the contract");
		free(found);
	} else {
		for (int row = 0; row < PQntuples(rows); row++) {
			note(checkup, PQgetvalue(rows, row, 0), PQgetvalue(rows, row, 1), PQgetvalue(rows, row, 2),
			     PQgetvalue(rows, row, 3));
		}
	}
	PQclear(rows);
}

static void check_server(checkup *checkup)
{
	struct timespec now;
	char clock[48];
	const char *parameter = clock;

	clock_gettime(CLOCK_REALTIME, &now);
	snprintf(clock, sizeof clock, "%lld.%09ld", (long long)now.tv_sec, now.tv_nsec);
	run_checks(checkup, SQL_DOCTOR_SERVER, 1, &parameter);
}

static bool works(PGresult *result)
{
	bool good = PQresultStatus(result) == PGRES_TUPLES_OK || PQresultStatus(result) == PGRES_COMMAND_OK;

	PQclear(result);
	return good;
}

/* A pooler hands out process numbers of its own; what it pools by shows in what it refuses. */
static void check_pooling(checkup *checkup)
{
	PGconn *connection = checkup->connection;
	PGresult *answer = connect_query(connection, SQL_BACKEND_PID, 0, NULL);
	bool pooled =
	    PQresultStatus(answer) == PGRES_TUPLES_OK && atoi(PQgetvalue(answer, 0, 0)) != PQbackendPID(connection);

	PQclear(answer);
	bool transactions = works(connect_query(connection, SQL_BEGIN_TRANSACTION, 0, NULL)) &&
	                    works(connect_query(connection, SQL_ROLLBACK, 0, NULL));
	note(checkup, "pooling", transactions ? "ok" : "fail",
	     !transactions ? "statement pooling: transactions are refused"
	     : pooled      ? "behind a pooler, which keeps transactions whole"
	                   : "a direct connection",
	     "set pool_mode = transaction (or session) for this database");
	bool prepared = works(PQprepare(connection, "pgonce_doctor", sql_queries[SQL_BACKEND_PID].text, 0, NULL)) &&
	                works(PQexecPrepared(connection, "pgonce_doctor", 0, NULL, NULL, NULL, 0));
	note(checkup, "prepared statements", prepared ? "ok" : "warn",
	     prepared ? "work here" : "do not last on this connection",
	     "turn off prepared statements in your driver, or set max_prepared_statements in PgBouncer 1.21 or later");
}

/* Returns whether there is a contract whose tables can be looked at. */
static bool check_contract(checkup *checkup)
{
	install_state state;
	bool there = false;

	if (install_inspect(checkup->invocation, checkup->connection, &state) != CLI_OK) {
		note(checkup, "contract", "fail", "it could not be looked for", "see the message above");
		return false;
	}
	switch (state.status) {
	case INSTALL_ABSENT:
		note(checkup, "contract", "fail", "not installed", install_hint(state.status));
		break;
	case INSTALL_CURRENT: {
		char *found =
		    cli_format("version %d, current, as installed by pgonce %s", state.contract_version, state.release);
		note(checkup, "contract", "ok", found, "");
		free(found);
		there = true;
		break;
	}
	case INSTALL_UNREADABLE:
		note(checkup, "contract", "warn", state.detail, install_hint(state.status));
		there = true;
		break;
	case INSTALL_EXTENSION:
	case INSTALL_BEHIND:
	case INSTALL_AHEAD:
	case INSTALL_TAMPERED:
		note(checkup, "contract", "fail", state.detail, install_hint(state.status));
		there = true;
		break;
	case INSTALL_FOREIGN:
		note(checkup, "contract", "fail", state.detail, install_hint(state.status));
		break;
	}
	return there;
}

int cli_doctor(const cli_invocation *invocation)
{
	checkup checkup = {.invocation = invocation, .rows = invocation->given[OPTION_JSON] ? json_array() : NULL};
	char *conninfo = connect_conninfo(invocation);
	int result = conninfo == NULL ? CLI_USAGE : connect_plain(invocation, conninfo, &checkup.connection);

	if (result == CLI_OK) {
		check_server(&checkup);
		check_pooling(&checkup);
		if (check_contract(&checkup)) {
			run_checks(&checkup, SQL_DOCTOR_OWNER, 0, NULL);
			run_checks(&checkup, SQL_DOCTOR_TABLES, 0, NULL);
		}
		result = checkup.failed > 0 ? CLI_FAILED : CLI_OK;
		if (checkup.rows != NULL) {
			cli_print_json(json_pack("{s:b, s:i, s:i, s:O}", "well", checkup.failed == 0, "warnings", checkup.warned,
			                         "failures", checkup.failed, "checks", checkup.rows));
		} else {
			printf("\n%d to repair, %d to mind\n", checkup.failed, checkup.warned);
		}
	}
	json_decref(checkup.rows);
	PQfinish(checkup.connection);
	free(conninfo);
	return result;
}
