/* SPDX-License-Identifier: PostgreSQL */
/* copy.c: copies the memory of slots by logical replication. See move.h. */
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>

#include "move.h"

enum {
	POLL_MS = 50,
	TELL_MS = 5000,
	START_MS = 60000, /* for the target to start a worker */
	ERRORS_MAX = 3,
	LAG_MAX = 1 << 20, /* bytes of WAL that the target may be behind when the first slot closes */
	LAG_MS = 10000,    /* after this time so many more will do, since a busy node never has less */
	LAG_BUSY = 16 << 20
};

static int run(const move *move, const node_end *end, enum sql_id id, const char *what)
{
	return connect_run(move->invocation, end->connection, id, 0, NULL, what, NULL);
}

int copy_end(move *move)
{
	const char *left = "the subscription pgonce_rehome is left: run it again";
	PGresult *rows = NULL;
	int result = connect_run(move->invocation, move->target.connection, SQL_REHOME_DISABLE, 0, NULL, left, &rows);

	if (result == CLI_OK && !PQgetisnull(rows, 0, 0)) {
		const char *subscription[] = {PQgetvalue(rows, 0, 0)};
		result =
		    connect_run(move->invocation, move->source.connection, SQL_REHOME_RELEASE, 1, subscription, left, NULL);
		result = result != CLI_OK ? result : run(move, &move->target, SQL_REHOME_UNSUBSCRIBE, left);
	}
	PQclear(rows);
	return result != CLI_OK ? result
	                        : run(move, &move->source, SQL_REHOME_UNPUBLISH,
	                              "the publication pgonce_rehome and its replication slot are left: run it again");
}

static int stop_copy(const move *move)
{
	return cli_fail(move->invocation, CLI_FAILED, "run it again", "stopped; no slot has moved");
}

/*
 * Runs a statement that may wait for other sessions for long; a signal cancels it. As connect_run
 * otherwise.
 */
static int run_long(const move *move, const node_end *end, enum sql_id id, int count, const char *const *parameters,
                    const char *what)
{
	PGresult *rows = NULL;
	int64_t told = move_now();
	bool cancelled = false;

	if (PQsendQueryParams(end->connection, sql_queries[id].text, count, NULL, parameters, NULL, NULL, 0) == 0) {
		return cli_report_result(move->invocation, end->connection, NULL, what);
	}
	while (PQconsumeInput(end->connection) != 0 && PQisBusy(end->connection) != 0) {
		struct pollfd socket = {.fd = PQsocket(end->connection), .events = POLLIN};
		(void)poll(&socket, 1, POLL_MS);
		if (move_is_stopped() && !cancelled) {
			char problem[256];
			PGcancel *cancel = PQgetCancel(end->connection);
			cancelled = PQcancel(cancel, problem, sizeof problem) != 0;
			PQfreeCancel(cancel);
		}
		if (move_now() - told > TELL_MS * INT64_C(1000)) {
			told = move_now();
			cli_note(move->invocation,
			         "still waiting for transactions that are open on %s: see pg_stat_activity and pg_prepared_xacts",
			         end->name);
		}
	}
	int result = CLI_OK;
	for (rows = PQgetResult(end->connection); rows != NULL; rows = PQgetResult(end->connection)) {
		if (PQresultStatus(rows) != PGRES_TUPLES_OK && result == CLI_OK) {
			result = cancelled ? stop_copy(move) : cli_report_result(move->invocation, end->connection, rows, what);
		}
		PQclear(rows);
	}
	return result == CLI_OK && PQstatus(end->connection) != CONNECTION_OK
	           ? cli_report_result(move->invocation, end->connection, NULL, what)
	           : result;
}

static int begin(const move *move, const node_end *end)
{
	char *archive = json_dumps(json_object_get(move->source.facts, "archive"), JSON_COMPACT | JSON_ENCODE_ANY);
	const char *months[] = {archive};
	int result = run_long(move, end, SQL_REHOME_BEGIN, 1, months, "the copy cannot begin");

	free(archive);
	return result;
}

static int set_up(move *move)
{
	const char *cannot_publish = "the memory cannot be published";
	char *numbers = move_numbers(move, STAGE_OPEN);
	char *via =
	    connect_fixed_conninfo_of(move->invocation, move->invocation->given[OPTION_VIA] ? OPTION_VIA : OPTION_FROM);
	const char *slots[] = {numbers};
	int result = via == NULL ? CLI_USAGE : CLI_OK;

	if (result == CLI_OK) {
		result =
		    connect_run(move->invocation, move->source.connection, SQL_REHOME_PUBLISH, 1, slots, cannot_publish, NULL);
	}
	if (result == CLI_OK) {
		result = run_long(move, &move->source, SQL_REHOME_REPLICATION_SLOT, 0, NULL, cannot_publish);
	}
	if (result == CLI_OK) {
		const char *subscription[] = {via, json_string_value(json_object_get(move->source.facts, "replication_slot"))};
		result =
		    connect_run(move->invocation, move->target.connection, SQL_REHOME_SUBSCRIBE, 2, subscription,
		                "the target cannot read the source; --via names it as the target's server reaches it", NULL);
	}
	result = result != CLI_OK ? result : begin(move, &move->source);
	result = result != CLI_OK ? result : begin(move, &move->target);
	free(via);
	free(numbers);
	return result;
}

static int64_t cell(const PGresult *rows, int column)
{
	return strtoll(PQgetvalue(rows, 0, column), NULL, 10);
}

/* The coming days, which a long copy may reach. */
static int add_days(const move *move)
{
	int result = run(move, &move->target, SQL_ADD_DAYS, "cannot make the coming days");

	return result != CLI_OK ? result : run(move, &move->source, SQL_ADD_DAYS, "cannot make the coming days");
}

/* Until the target has all rows. */
static int wait_for_rows(move *move)
{
	int64_t began = move_now();
	int64_t told = began;
	int64_t worked = began;

	for (;;) {
		PGresult *rows = NULL;
		int result = connect_run(move->invocation, move->target.connection, SQL_REHOME_PROGRESS, 0, NULL,
		                         "cannot see how far the copy is", &rows);
		if (result == CLI_OK && PQntuples(rows) == 0) {
			result = cli_fail(move->invocation, CLI_FAILED, "run it again",
			                  "someone has dropped the subscription on %s", move->target.name);
		}
		int64_t incomplete = result == CLI_OK ? cell(rows, 0) : 0;
		int64_t workers = result == CLI_OK ? cell(rows, 1) : 0;
		int64_t errors = result == CLI_OK ? cell(rows, 2) : 0;
		int64_t copied = result == CLI_OK ? cell(rows, 3) : 0;
		PQclear(rows);
		if (result != CLI_OK || incomplete == 0) {
			return result;
		}
		int64_t now = move_now();
		worked = workers > 0 ? now : worked;
		if (errors >= ERRORS_MAX) {
			return cli_fail(move->invocation, CLI_FAILED,
			                "its log says why; if it cannot reach the source, --via names the source as it does",
			                "the copy fails on %s", move->target.name);
		}
		if (now - worked > START_MS * INT64_C(1000)) {
			return cli_fail(move->invocation, CLI_FAILED,
			                "raise max_logical_replication_workers and max_worker_processes there; its log says more",
			                "%s starts no worker for the copy", move->target.name);
		}
		if (move_is_stopped()) {
			return stop_copy(move);
		}
		if (now - told > TELL_MS * INT64_C(1000)) {
			told = now;
			cli_note(move->invocation, "copying for %d s: tables left: %d, rows of the present ones: %" PRId64,
			         (int)((now - began) / 1000000), (int)incomplete, copied);
			result = add_days(move);
			if (result != CLI_OK) {
				return result;
			}
		}
		move_sleep_ms(POLL_MS);
	}
}

/* Until it is nearly up to date, so that a slot is closed only for an instant. */
static int wait_for_changes(move *move)
{
	int64_t began = move_now();
	int64_t told = began;

	for (;;) {
		PGresult *rows = NULL;
		int result = connect_run(move->invocation, move->source.connection, SQL_REHOME_LAG, 0, NULL,
		                         "cannot see how far the target is", &rows);
		int64_t lag = result == CLI_OK && PQntuples(rows) == 1 ? cell(rows, 0) : 0;
		PQclear(rows);
		if (result != CLI_OK || lag <= (move_now() - began > LAG_MS * INT64_C(1000) ? LAG_BUSY : LAG_MAX)) {
			return result;
		}
		if (move_is_stopped()) {
			return stop_copy(move);
		}
		if (move_now() - told > TELL_MS * INT64_C(1000)) {
			told = move_now();
			cli_note(move->invocation, "%s has still to apply %" PRId64 " bytes of WAL", move->target.name, lag);
			result = add_days(move);
			if (result != CLI_OK) {
				return result;
			}
		}
		move_sleep_ms(POLL_MS);
	}
}

/* The server's own connection for the copy takes the settings of the role. */
static void warn_of_timeout(const move *move)
{
	json_int_t timeout = json_integer_value(json_object_get(move->source.facts, "statement_timeout"));

	if (timeout > 0) {
		cli_note(move->invocation,
		         "each table must be copied within %lld ms, the statement_timeout of this role on %s: set it to 0 for "
		         "a role "
		         "that moves slots",
		         (long long)timeout, move->source.name);
	}
}

int copy_begin(move *move)
{
	warn_of_timeout(move);
	return set_up(move);
}

int copy_wait(move *move)
{
	int result = wait_for_rows(move);

	return result != CLI_OK ? result : wait_for_changes(move);
}
