/* SPDX-License-Identifier: PostgreSQL */
/*
 * doctor.c: pgonce doctor: runs the checks of sql/doctor_*.sql, and those that only a client can
 * make (pooling.c), and prints what to do. Changes nothing.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "checkup.h"
#include "connect.h"
#include "install/install.h"
#include "install/native.h"
#include "nodes.h"
#include "pooling.h"

#define TRANSACTION_MAX_MS (INT64_C(5) * 60 * 1000)
#define HELD_MAX INT64_C(5000000)

/*
 * A file of checks. If this role may not read the tables, or the contract is too old for it, all
 * its checks are skipped: hence their names.
 */
typedef struct section {
	enum sql_id id;
	const char *checks; /* separated by '|' */
	bool needs_contract;
} section;

static const section sections[] = {
    {SQL_DOCTOR_SERVER, "server version|writable|encoding|clock", false},
    {SQL_DOCTOR_SETTINGS,
     "default isolation|synchronous_commit|fsync|max_locks_per_transaction|connections|autovacuum|"
     "idle in transaction timeout",
     false},
    {SQL_DOCTOR_ACTIVITY,
     "long transactions|idle in transaction|prepared transactions|replication slots|standby feedback|wraparound",
     false},
    {SQL_DOCTOR_CITUS, "citus", false},
    {SQL_DOCTOR_OWNER, "one owner|roles|closed to PUBLIC|closed tables|closed functions", true},
    {SQL_DOCTOR_GRANTS, "grants", true},
    {SQL_DOCTOR_SLOTS, "slots", true},
    {SQL_DOCTOR_STORAGE,
     "collation|fillfactor|autovacuum of partitions|dead rows|invalid indexes|primary keys|pending detach|row "
     "security|replica identity",
     true},
    {SQL_DOCTOR_DAYS, "partitions|days ahead", true},
    {SQL_DOCTOR_CLOSING, "closing days|consumers behind", true},
    {SQL_DOCTOR_KEEPER, "keeper|keeper steps|keeper clock|retention held", true},
    {SQL_DOCTOR_RELAYS,
     "foreign relays|relays running|events without a relay|relays behind|dead events|messages behind|dead "
     "messages|relay flush",
     true},
    {SQL_DOCTOR_CAPTURES, "captures|slots that count|publication", true},
    {SQL_DOCTOR_SWEPT, "stale intents|in doubt", true},
    {SQL_DOCTOR_FINISHES, "forgotten finishes", true},
    {SQL_DOCTOR_KEYS, "keys of each attempt|keys too coarse", true},
};

/* Each check as JSON for a program, all in one line for people. */
static void skip(checkup *checkup, const section *section, const char *found, const char *advice)
{
	char *names = cli_duplicate(section->checks);
	char *rest = names;

	for (char *name = strtok_r(names, "|", &rest); name != NULL; name = strtok_r(NULL, "|", &rest)) {
		if (checkup->rows != NULL) {
			checkup_note(checkup, name, "skipped", found, advice);
		} else {
			printf("%s%s", name == names ? "skipped  " : ", ", name);
			checkup->skipped++;
		}
	}
	if (checkup->rows == NULL) {
		printf(": %s\n         %-27s -> %s\n", found, "", advice);
	}
	free(names);
}

/* The server refused to run a file of checks. Whether that is a finding depends on the reason. */
static void explain(checkup *checkup, const section *section, const PGresult *rows)
{
	const char *sqlstate = PQresultErrorField(rows, PG_DIAG_SQLSTATE);
	const char *message = PQresultErrorField(rows, PG_DIAG_MESSAGE_PRIMARY);

	sqlstate = sqlstate != NULL ? sqlstate : "";
	if (strcmp(sqlstate, "42501") == 0) {
		skip(checkup, section, message, "run pgonce doctor as the owner of the contract");
	} else if (strcmp(sqlstate, "42P01") == 0 || strcmp(sqlstate, "42883") == 0 || strcmp(sqlstate, "42703") == 0 ||
	           strcmp(sqlstate, "3F000") == 0) {
		skip(checkup, section, "the contract here does not have it", "upgrade the contract: pgonce init");
	} else {
		char *found = cli_format("%s (SQLSTATE %s)", message != NULL ? message : "no answer",
		                         sqlstate[0] != '\0' ? sqlstate : "none");
		char *first = cli_duplicate(section->checks);
		first[strcspn(first, "|")] = '\0';
		checkup_note(checkup, first, "failed", found, "this check could not be made: see the server's log");
		free(first);
		free(found);
	}
}

static PGresult *run_section(const checkup *checkup, const section *section)
{
	const cli_invocation *invocation = checkup->invocation;
	struct timespec now;
	char first[48];
	char second[48];
	const char *parameters[] = {first, second};
	int parameter_count = 0;

	if (section->id == SQL_DOCTOR_SERVER) {
		clock_gettime(CLOCK_REALTIME, &now);
		snprintf(first, sizeof first, "%lld.%09ld", (long long)now.tv_sec, now.tv_nsec);
		parameter_count = 1;
	} else if (section->id == SQL_DOCTOR_ACTIVITY) {
		int64_t open_ms = cli_number(invocation, OPTION_TRANSACTION_MAX, TRANSACTION_MAX_MS);
		int64_t held = cli_number(invocation, OPTION_HELD_MAX, HELD_MAX);
		snprintf(first, sizeof first, "%lld.%03lld", (long long)(open_ms / 1000), (long long)(open_ms % 1000));
		snprintf(second, sizeof second, "%lld", (long long)held);
		parameter_count = 2;
	}
	return connect_query(checkup->connection, section->id, parameter_count, parameters);
}

static void run_sections(checkup *checkup, bool of_contract)
{
	for (size_t i = 0; i < sizeof sections / sizeof sections[0]; i++) {
		if (sections[i].needs_contract != of_contract) {
			continue;
		}
		PGresult *rows = run_section(checkup, &sections[i]);
		if (PQresultStatus(rows) != PGRES_TUPLES_OK) {
			explain(checkup, &sections[i], rows);
		}
		for (int row = 0; row < PQntuples(rows); row++) {
			checkup_note(checkup, PQgetvalue(rows, row, 0), PQgetvalue(rows, row, 1), PQgetvalue(rows, row, 2),
			             PQgetvalue(rows, row, 3));
		}
		PQclear(rows);
	}
}

static void check_pooling(checkup *checkup, const char *conninfo)
{
	pooling_mode mode = pooling_of(checkup->connection, conninfo);
	bool prepared = pooling_keeps_prepared(checkup->connection);

	checkup_note(checkup, "pooling", mode == POOLING_STATEMENT ? "failed" : "ok", pooling_text(mode),
	             "set pool_mode = transaction (or session) for this database");
	checkup_note(
	    checkup, "prepared statements", prepared ? "ok" : "warning",
	    prepared ? "work here" : "do not last on this connection",
	    "turn off prepared statements in your driver, or set max_prepared_statements in PgBouncer 1.21 or later");
}

/*
 * For this connection, which represents those with the same connection string. A peer on this
 * machine needs no TLS.
 */
static void check_encryption(checkup *checkup)
{
	const char *address = PQhostaddr(checkup->connection);
	const char *verified = "disable";
	PQconninfoOption *options = PQconninfo(checkup->connection);
	char *found = NULL;
	bool well = true;

	for (PQconninfoOption *option = options; option != NULL && option->keyword != NULL; option++) {
		if (strcmp(option->keyword, "sslmode") == 0 && option->val != NULL) {
			verified = option->val;
		}
	}
	if (address == NULL || address[0] == '\0' || address[0] == '/') {
		found = cli_duplicate("a unix socket");
	} else if (strncmp(address, "127.", 4) == 0 || strcmp(address, "::1") == 0) {
		found = cli_duplicate("loopback");
	} else if (!PQsslInUse(checkup->connection)) {
		found = cli_format("none: all data crosses the network to %s unencrypted", address);
		well = false;
	} else {
		well = strcmp(verified, "verify-full") == 0 || strcmp(verified, "verify-ca") == 0;
		found = cli_format("%s, sslmode=%s%s", PQsslAttribute(checkup->connection, "protocol"), verified,
		                   well ? "" : ": the server's identity was not checked");
	}
	checkup_note(checkup, "encryption", well ? "ok" : "warning", found,
	             "sslmode=verify-full and sslrootcert in every connection string");
	free(found);
	PQconninfoFree(options);
}

/* Returns whether there is a contract whose tables can be read. */
static bool check_contract(checkup *checkup)
{
	install_state state;

	if (install_inspect(checkup->invocation, checkup->connection, &state) != CLI_OK) {
		checkup_note(checkup, "contract", "failed", "it could not be checked", "see the message above");
		return false;
	}
	bool is_current = state.status == INSTALL_CURRENT;
	char *found = is_current
	                  ? cli_format("version %d, current, installed by pgonce %s", state.contract_version, state.release)
	                  : cli_duplicate(state.status == INSTALL_ABSENT ? "not installed" : state.detail);
	checkup_note(checkup, "contract",
	             is_current                           ? "ok"
	             : state.status == INSTALL_UNREADABLE ? "skipped"
	                                                  : "failed",
	             found, install_hint(state.status));
	free(found);
	return state.status != INSTALL_ABSENT && state.status != INSTALL_FOREIGN;
}

static void check_native(checkup *checkup)
{
	static const struct {
		const char *level;
		const char *advice;
	} finds[] = {
	    [NATIVE_SQL] = {"ok", ""},
	    [NATIVE_C] = {"ok", ""},
	    [NATIVE_OTHER] = {"failed", "as a superuser: ALTER EXTENSION pgonce_native UPDATE, or install the server's "
	                                "files of this pgonce, and reconnect"},
	    [NATIVE_BROKEN] = {"failed", "install the library for this version of PostgreSQL, or DROP EXTENSION "
	                                 "pgonce_native"},
	    [NATIVE_UNTRUSTED] = {"warning", "undo the change, or install contract and library of one pgonce (pgonce init) "
	                                     "and reconnect; else DROP EXTENSION pgonce_native"},
	    [NATIVE_UNKNOWN] = {"skipped", "run pgonce doctor as the owner of the contract"},
	};
	native_state state;

	native_inspect(checkup->connection, &state);
	checkup_note(checkup, "native", finds[state.use].level, state.detail, finds[state.use].advice);
}

static int check_database(checkup *checkup)
{
	char *conninfo = connect_conninfo(checkup->invocation);
	int result = conninfo == NULL ? CLI_USAGE : connect_plain(checkup->invocation, conninfo, &checkup->connection);

	if (result == CLI_OK) {
		run_sections(checkup, false);
		check_pooling(checkup, conninfo);
		check_encryption(checkup);
		if (check_contract(checkup)) {
			check_native(checkup);
			run_sections(checkup, true);
		}
	}
	PQfinish(checkup->connection);
	free(conninfo);
	return result;
}

/* With --json. */
static json_t *document_of(const checkup *checkup)
{
	return json_pack("{s:b, s:i, s:i, s:i, s:O}", "well", checkup->failed == 0, "warnings", checkup->warned, "failures",
	                 checkup->failed, "skipped", checkup->skipped, "checks", checkup->rows);
}

json_t *doctor_look(const cli_invocation *invocation)
{
	checkup checkup = {.invocation = invocation, .rows = json_array()};
	json_t *document = check_database(&checkup) == CLI_OK ? document_of(&checkup) : NULL;

	json_decref(checkup.rows);
	return document;
}

int cli_doctor(const cli_invocation *invocation)
{
	checkup checkup = {.invocation = invocation, .rows = invocation->given[OPTION_JSON] ? json_array() : NULL};
	int result = invocation->given[OPTION_NODES] ? nodes_check(&checkup) : check_database(&checkup);

	if (result == CLI_OK) {
		result = checkup.failed > 0 ? CLI_FAILED : CLI_OK;
		if (checkup.rows != NULL) {
			cli_print_json(document_of(&checkup));
		} else {
			printf("\n%d to repair, %d warnings, %d skipped\n", checkup.failed, checkup.warned, checkup.skipped);
		}
	}
	json_decref(checkup.rows);
	return result;
}
