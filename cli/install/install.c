/* SPDX-License-Identifier: PostgreSQL */
/*
 * install.c: installs and upgrades the contract. Everything happens in one transaction under an
 * advisory lock, so two at once run one after the other, and a failure leaves nothing. Uses
 * connect.c and the embedded contract.
 */
#include <stdlib.h>
#include <string.h>

#include "connect.h"
#include "install.h"

enum {
	SERVER_VERSION_MIN = 130000
};

int install_newest_version(void)
{
	int newest = 0;

	for (int i = 0; i < contract_part_count; i++) {
		if (contract_parts[i].kind == CONTRACT_MIGRATION && contract_parts[i].version > newest) {
			newest = contract_parts[i].version;
		}
	}
	return newest;
}

const char *install_hint(install_status status)
{
	static const char *const hints[] = {
	    [INSTALL_ABSENT] = "run pgonce init",
	    [INSTALL_BEHIND] = "run pgonce init as the owner of the contract: it upgrades",
	    [INSTALL_AHEAD] = "use the newer pgonce; a contract is never taken back",
	    [INSTALL_TAMPERED] =
	        "put that migration's text back, or restore the database: what else was changed is unknown",
	    [INSTALL_FOREIGN] = "rename that schema, or install into another database",
	    [INSTALL_EXTENSION] = "ALTER EXTENSION pgonce UPDATE",
	    [INSTALL_UNREADABLE] = "connect as the owner of the contract",
	    [INSTALL_CURRENT] = ""};

	return hints[status];
}

static void copy_text(char *to, size_t size, const char *from)
{
	snprintf(to, size, "%s", from);
}

/* 1.10.0 is newer than 1.9.3. Positive where a is the newer. */
static int compare_releases(const char *a, const char *b)
{
	for (;;) {
		char *a_end = NULL;
		char *b_end = NULL;
		long a_part = strtol(a, &a_end, 10);
		long b_part = strtol(b, &b_end, 10);
		if (a_part != b_part) {
			return a_part > b_part ? 1 : -1;
		}
		if (*a_end != '.' || *b_end != '.') {
			return 0;
		}
		a = a_end + 1;
		b = b_end + 1;
	}
}

static const contract_part *part_of_row(int version)
{
	for (int i = 0; i < contract_part_count; i++) {
		const contract_part *part = &contract_parts[i];
		if (version == 0 ? part->kind == CONTRACT_CODE : part->kind == CONTRACT_MIGRATION && part->version == version) {
			return part;
		}
	}
	return NULL;
}

/* Checks the rows of once.migration, which come in the order of their version. */
static void judge_migrations(const PGresult *rows, install_state *state)
{
	int migrations = 0;

	state->status = INSTALL_CURRENT;
	if (PQntuples(rows) == 0) {
		state->status = INSTALL_FOREIGN;
		copy_text(state->detail, sizeof state->detail,
		          "once.migration has no rows, as after a dump of the schema alone: load the rows of that dump; drop "
		          "schemas once and once_job only if all of their tables are empty");
		return;
	}
	for (int row = 0; row < PQntuples(rows); row++) {
		int version = atoi(PQgetvalue(rows, row, 0));
		const char *name = PQgetvalue(rows, row, 1);
		const char *checksum = PQgetvalue(rows, row, 2);
		const char *release = PQgetvalue(rows, row, 3);
		const contract_part *part = part_of_row(version);
		if (version == 0) {
			copy_text(state->release, sizeof state->release, release);
			state->code_current = part != NULL && strcmp(checksum, part->checksum) == 0;
			continue;
		}
		state->contract_version = version;
		migrations++;
		if (part == NULL) {
			state->status = INSTALL_AHEAD;
			snprintf(state->detail, sizeof state->detail,
			         "migration %d (%.60s) of pgonce %.30s is not known to this pgonce %s", version, name, release,
			         PGONCE_RELEASE);
			return;
		}
		if (strcmp(checksum, part->checksum) != 0 || version != migrations) {
			state->status = INSTALL_TAMPERED;
			snprintf(state->detail, sizeof state->detail,
			         version != migrations
			             ? "migration %d (%.60s) is recorded, but one before it is not"
			             : "migration %d (%.60s) is recorded with another checksum than this pgonce's",
			         version, name);
			return;
		}
	}
	if (!state->code_current && compare_releases(state->release, PGONCE_RELEASE) > 0) {
		state->status = INSTALL_AHEAD;
		snprintf(state->detail, sizeof state->detail, "its functions are of pgonce %s, this is pgonce %s",
		         state->release, PGONCE_RELEASE);
	} else if (migrations < install_newest_version()) {
		state->status = INSTALL_BEHIND;
		snprintf(state->detail, sizeof state->detail, "it has version %d, this pgonce brings %d", migrations,
		         install_newest_version());
	} else if (!state->code_current) {
		state->status = INSTALL_BEHIND;
		snprintf(state->detail, sizeof state->detail,
		         "its functions are of pgonce %s and differ from those of this one", state->release);
	}
}

static bool is_true(const PGresult *result, const char *column)
{
	return PQgetvalue(result, 0, PQfnumber(result, column))[0] == 't';
}

static const char *field(const PGresult *result, const char *column)
{
	return PQgetvalue(result, 0, PQfnumber(result, column));
}

int install_inspect(const cli_invocation *invocation, PGconn *connection, install_state *state)
{
	PGresult *facts = NULL;
	PGresult *rows = NULL;
	int result =
	    connect_run(invocation, connection, SQL_INSTALL_STATE, 0, NULL, "cannot look for the contract", &facts);

	*state = (install_state){.status = INSTALL_ABSENT};
	if (result != CLI_OK) {
		return result;
	}
	state->server_version = atoi(field(facts, "server_version"));
	copy_text(state->database, sizeof state->database, field(facts, "database"));
	copy_text(state->role, sizeof state->role, field(facts, "role"));
	copy_text(state->owner, sizeof state->owner, field(facts, "owner"));
	if (is_true(facts, "is_extension")) {
		state->status = INSTALL_EXTENSION;
		copy_text(state->detail, sizeof state->detail, "it was made by CREATE EXTENSION");
	}
	if (is_true(facts, "schema_exists") && !is_true(facts, "record_exists")) {
		state->status = INSTALL_FOREIGN;
		snprintf(state->detail, sizeof state->detail,
		         "there is a schema \"once\" of %s without a table once.migration: it is not pgonce's", state->owner);
	} else if (is_true(facts, "record_exists") && !is_true(facts, "readable")) {
		state->status = INSTALL_UNREADABLE;
		snprintf(state->detail, sizeof state->detail, "role %s may not read once.migration; its owner is %s",
		         state->role, state->owner);
	} else if (is_true(facts, "record_exists")) {
		bool is_extension = state->status == INSTALL_EXTENSION;
		result = connect_run(invocation, connection, SQL_MIGRATIONS, 0, NULL, "cannot read once.migration", &rows);
		if (result == CLI_OK) {
			judge_migrations(rows, state);
			if (is_extension && state->status != INSTALL_CURRENT) {
				state->status = INSTALL_EXTENSION;
			}
		}
	}
	PQclear(rows);
	PQclear(facts);
	return result;
}

/* What to do where PostgreSQL's own message does not say it; or NULL. */
static const char *hint_of_failure(const contract_part *part, const char *sqlstate)
{
	/* No roles exist yet that could be granted. */
	if (part->kind == CONTRACT_SCHEMA && strcmp(sqlstate, "42501") == 0) {
		return "connect as the owner of the database, or have them grant this role CREATE on it";
	}
	if (strcmp(sqlstate, "55P03") == 0) {
		return "a transaction holds a table of the contract: run it again when that has ended";
	}
	return NULL;
}

/* One part of the contract; PQexec, because a part is many statements. */
static int run_part(const cli_invocation *invocation, PGconn *connection, const contract_part *part)
{
	PGresult *answer = PQexec(connection, part->sql);
	ExecStatusType status = PQresultStatus(answer);
	int result = CLI_OK;

	if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK) {
		const char *sqlstate = PQresultErrorField(answer, PG_DIAG_SQLSTATE);
		char *what = cli_format("nothing was changed: part '%s' of the contract failed", part->name);
		const char *hint = hint_of_failure(part, sqlstate != NULL ? sqlstate : "");
		if (hint != NULL) {
			char *message = cli_format("%s: %s", what, PQresultErrorField(answer, PG_DIAG_MESSAGE_PRIMARY));
			result = cli_report(
			    invocation,
			    &(cli_problem){.exit_code = CLI_FAILED, .sqlstate = sqlstate, .message = message, .hint = hint});
			free(message);
		} else {
			result = cli_report_result(invocation, connection, answer, what);
		}
		free(what);
	}
	PQclear(answer);
	return result;
}

static int record_part(const cli_invocation *invocation, PGconn *connection, const contract_part *part, bool replace)
{
	char version[12];
	const char *added[] = {version, part->name, part->checksum, PGONCE_RELEASE};

	snprintf(version, sizeof version, "%d", part->version);
	return replace
	           ? connect_run(invocation, connection, SQL_REPLACE_CODE_RECORD, 3, added + 1, "nothing was changed", NULL)
	           : connect_run(invocation, connection, SQL_RECORD_PART, 4, added, "nothing was changed", NULL);
}

/*
 * The functions may be current, but incomplete, or a role may have been created since that was
 * missing then: this repairs everything for which doctor points here.
 */
static int look_for_gaps(const cli_invocation *invocation, PGconn *connection, bool *whole)
{
	PGresult *grants = NULL;
	int result = connect_run(invocation, connection, SQL_DOCTOR_GRANTS, 0, NULL, "cannot look at the grants", &grants);

	*whole = result == CLI_OK && strcmp(PQgetvalue(grants, 0, 1), "ok") == 0;
	PQclear(grants);
	return result;
}

static int apply_parts(const cli_invocation *invocation, PGconn *connection, install_result *result)
{
	const install_state *before = &result->before;
	bool is_new = before->status == INSTALL_ABSENT;
	bool whole = before->code_current;
	int exit_code = whole ? look_for_gaps(invocation, connection, &whole) : CLI_OK;

	for (int i = 0; i < contract_part_count && exit_code == CLI_OK; i++) {
		const contract_part *part = &contract_parts[i];
		switch (part->kind) {
		case CONTRACT_PREPARATION:
			break; /* has run: the checks before ran under it already */
		case CONTRACT_SCHEMA:
		case CONTRACT_RECORD:
			exit_code = is_new ? run_part(invocation, connection, part) : CLI_OK;
			break;
		case CONTRACT_UPGRADE:
			exit_code = !is_new && before->contract_version < install_newest_version()
			                ? run_part(invocation, connection, part)
			                : CLI_OK;
			break;
		case CONTRACT_MIGRATION:
			if (part->version > before->contract_version) {
				exit_code = run_part(invocation, connection, part);
				exit_code = exit_code == CLI_OK ? record_part(invocation, connection, part, false) : exit_code;
				result->migrations_run++;
			}
			break;
		case CONTRACT_CODE:
			if (!whole || result->migrations_run > 0) {
				exit_code = run_part(invocation, connection, part);
				exit_code = exit_code == CLI_OK ? record_part(invocation, connection, part, before->release[0] != '\0')
				                                : exit_code;
				result->code_replaced = true;
			}
			break;
		case CONTRACT_DAYS:
			break; /* below, so that their number is known */
		}
	}
	PGresult *days = NULL;
	if (exit_code == CLI_OK) {
		exit_code = connect_run(invocation, connection, SQL_ADD_DAYS, 0, NULL,
		                        "nothing was changed: the days cannot be added", &days);
	}
	if (exit_code == CLI_OK) {
		result->days_added = atoi(PQgetvalue(days, 0, 0));
	}
	PQclear(days);
	return exit_code;
}

int install_contract(const cli_invocation *invocation, PGconn *connection, install_result *result)
{
	*result = (install_result){.migrations_run = 0};
	/*
	 * Regardless of the default: everything that another init committed while this one waited for
	 * the lock must be visible.
	 */
	int exit_code = connect_command(invocation, connection, "BEGIN ISOLATION LEVEL READ COMMITTED", "cannot begin");
	if (exit_code != CLI_OK) {
		return exit_code;
	}
	for (int i = 0; i < contract_part_count && exit_code == CLI_OK; i++) {
		exit_code = contract_parts[i].kind == CONTRACT_PREPARATION
		                ? run_part(invocation, connection, &contract_parts[i])
		                : CLI_OK;
	}
	if (exit_code == CLI_OK) {
		exit_code = connect_run(invocation, connection, SQL_INSTALL_LOCK, 0, NULL, "nothing was changed", NULL);
	}
	if (exit_code == CLI_OK) {
		exit_code = install_inspect(invocation, connection, &result->before);
	}
	if (exit_code == CLI_OK && result->before.server_version < SERVER_VERSION_MIN) {
		exit_code =
		    cli_fail(invocation, CLI_CONTRACT, "use PostgreSQL 13 to 18",
		             "nothing was changed: this server is PostgreSQL %d", result->before.server_version / 10000);
	}
	if (exit_code == CLI_OK) {
		const install_state *before = &result->before;
		bool can_be =
		    before->status == INSTALL_ABSENT || before->status == INSTALL_CURRENT || before->status == INSTALL_BEHIND;
		exit_code = can_be ? apply_parts(invocation, connection, result)
		                   : cli_fail(invocation, before->status == INSTALL_UNREADABLE ? CLI_FAILED : CLI_CONTRACT,
		                              install_hint(before->status), "nothing was changed in database %s: %s",
		                              before->database, before->detail);
	}
	if (exit_code == CLI_OK) {
		return connect_command(invocation, connection, "COMMIT",
		                       "the contract may or may not be installed, run pgonce init again");
	}
	/* The failure is reported already; a lost connection has rolled back on its own. */
	PQclear(PQexec(connection, "ROLLBACK"));
	return exit_code;
}

/*
 * The record of a part with its values instead of $1 to $4. All of them come from pgonce: names,
 * hex digits, numbers.
 */
static void print_record(FILE *out, const contract_part *part)
{
	for (const char *at = sql_queries[SQL_RECORD_PART].text; *at != '\0'; at++) {
		if (*at != '$') {
			fputc(*at, out);
			continue;
		}
		switch (*++at) {
		case '1':
			fprintf(out, "%d", part->version);
			break;
		case '2':
			fprintf(out, "'%s'", part->name);
			break;
		case '3':
			fprintf(out, "'%s'", part->checksum);
			break;
		case '4':
			fprintf(out, "'%s'", PGONCE_RELEASE);
			break;
		default:
			break;
		}
	}
	fputs("\n\n", out);
}

void install_print(FILE *out)
{
	fputs("BEGIN;\n", out);
	for (int i = 0; i < contract_part_count; i++) {
		const contract_part *part = &contract_parts[i];
		if (part->kind == CONTRACT_UPGRADE) {
			continue;
		}
		fputs(part->sql, out);
		if (part->kind == CONTRACT_MIGRATION || part->kind == CONTRACT_CODE) {
			print_record(out, part);
		}
	}
	fputs("COMMIT;\n", out);
}
