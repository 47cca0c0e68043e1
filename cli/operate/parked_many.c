/* SPDX-License-Identifier: PostgreSQL */
/*
 * parked_many.c: see parked_many.h. A short transaction for each piece, so that a running relay or
 * consumer waits for none of them long. The contract decides; this file asks for the next piece
 * until there is none, and counts. Without --yes the contract only counts.
 */
#include "parked_many.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "operator.h"
#include "plain.h"

enum {
	PARAMETERS_MAX = 12
};

typedef struct decisions {
	char *before; /* as the server reads --older-than; NULL: not given */
	/* [{"relay": ..., "topic": ..., "state": ..., "events": n}], as they were met */
	json_t *groups;
	/* Likewise, with "code": those that stay as they were. */
	json_t *skipped;
	json_int_t count, skipped_count;
} decisions;

static const option_id of_many[] = {OPTION_YES, OPTION_DRY_RUN_MANY, OPTION_COUNT};

static bool is_among(option_id id, const option_id *list)
{
	for (; *list != OPTION_COUNT; list++) {
		if (*list == id) {
			return true;
		}
	}
	return false;
}

static int fail_usage(const cli_invocation *invocation, const char *text)
{
	char *hint = cli_format("pgonce help %s", invocation->command->name);
	int result = cli_fail(invocation, CLI_USAGE, hint, "%s", text);

	free(hint);
	return result;
}

/* "--relay, --topic or --state": free it. */
static char *options_text(const option_id *list)
{
	char *text = cli_duplicate("");

	for (int i = 0; list[i] != OPTION_COUNT; i++) {
		cli_append(&text, "%s--%s",
		           i == 0                        ? ""
		           : list[i + 1] == OPTION_COUNT ? " or "
		                                         : ", ",
		           cli_options[list[i]].name);
	}
	return text;
}

static int check_many(const cli_invocation *invocation, const parked_kind *kind, const char *verb)
{
	const char *state = invocation->text[OPTION_STATE];
	bool is_narrowed = false;
	char *text = NULL;

	for (const option_id *id = kind->narrowing; *id != OPTION_COUNT; id++) {
		is_narrowed = is_narrowed || invocation->given[*id];
	}
	if (!is_narrowed) {
		char *options = options_text(kind->narrowing);
		text = cli_format("%s: which one? Write %s %s, or say which ones with %s", verb, verb, kind->operand, options);
		free(options);
	} else if (state != NULL && strcmp(state, "pending") == 0) {
		text = cli_duplicate(kind->pending);
	} else if (state != NULL && strcmp(state, "delayed") == 0 && kind->delayed != NULL) {
		text = cli_duplicate(kind->delayed);
	} else if (invocation->given[OPTION_YES] && invocation->given[OPTION_DRY_RUN_MANY]) {
		text = cli_duplicate("--dry-run and --yes are opposites");
	}
	if (text != NULL) {
		int result = fail_usage(invocation, text);
		free(text);
		return result;
	}
	return invocation->given[OPTION_YES] ? operator_check_reason(invocation, verb) : CLI_OK;
}

/* The first option given that is for many alone; OPTION_COUNT: none. */
static option_id find_of_many(const cli_invocation *invocation, const parked_kind *kind)
{
	const option_id *const lists[] = {kind->narrowing, of_many};

	for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
		for (const option_id *id = lists[i]; *id != OPTION_COUNT; id++) {
			if (invocation->given[*id] && !is_among(*id, kind->of_one)) {
				return *id;
			}
		}
	}
	return OPTION_COUNT;
}

int parked_check_decision(const cli_invocation *invocation, const parked_kind *kind)
{
	const char *verb = invocation->operands[0];

	if (invocation->operand_count < 2) {
		return check_many(invocation, kind, verb);
	}
	option_id given = find_of_many(invocation, kind);
	if (given != OPTION_COUNT) {
		char *text = cli_format("%s %s is about one %s: --%s is for many, without %s", verb, kind->operand, kind->one,
		                        cli_options[given].name, kind->operand);
		int result = fail_usage(invocation, text);
		free(text);
		return result;
	}
	return operator_check_reason(invocation, verb);
}

static bool is_same(const json_t *object, const char *member, const char *text)
{
	return strcmp(operator_text(object, member), text) == 0;
}

static void count(decisions *decisions, const parked_kind *kind, const PGresult *rows, int row)
{
	const char *holder = PQgetvalue(rows, row, 0), *topic = PQgetvalue(rows, row, 1), *state = PQgetvalue(rows, row, 2);
	const char *code = PQgetisnull(rows, row, 3) ? NULL : PQgetvalue(rows, row, 3);
	json_int_t found = strtoll(PQgetvalue(rows, row, 4), NULL, 10);
	json_t *groups = code == NULL ? decisions->groups : decisions->skipped;
	size_t index = 0;
	json_t *known = NULL;

	if (found == 0) {
		return; /* a row that only says where to go on */
	}
	*(code == NULL ? &decisions->count : &decisions->skipped_count) += found;
	json_array_foreach(groups, index, known)
	{
		if (is_same(known, kind->holder, holder) && is_same(known, "topic", topic) && is_same(known, "state", state) &&
		    is_same(known, "code", code == NULL ? "" : code)) {
			found += json_integer_value(json_object_get(known, kind->many));
			break;
		}
	}
	if (index == json_array_size(groups)) {
		known = json_pack("{s:s, s:s, s:s, s:s*}", kind->holder, holder, "topic", topic, "state", state, "code", code);
		json_array_append_new(groups, known);
	}
	json_object_set_new(known, kind->many, json_integer(found));
}

static void tell_json(const cli_invocation *invocation, const parked_kind *kind, const decisions *decisions)
{
	json_t *filters = json_object();

	for (const option_id *id = kind->narrowing; *id != OPTION_COUNT; id++) {
		bool is_time = *id == OPTION_OLDER_THAN;
		json_object_set_new(filters, is_time ? "before" : cli_options[*id].name,
		                    json_pack("s?", is_time ? decisions->before : invocation->text[*id]));
	}
	cli_print_json(json_pack("{s:s, s:b, s:o, s:s?, s:I, s:O, s:O}", "what", invocation->operands[0], "dry_run",
	                         !invocation->given[OPTION_YES], "filters", filters, "reason",
	                         invocation->text[OPTION_PARKED_REASON], kind->many, decisions->count, "groups",
	                         decisions->groups, "skipped", decisions->skipped));
}

static void tell(const cli_invocation *invocation, const parked_kind *kind, const char *done,
                 const decisions *decisions)
{
	const operator_column columns[] = {{kind->title, kind->holder, COLUMN_TEXT},
	                                   {"TOPIC", "topic", COLUMN_TEXT},
	                                   {"STATE", "state", COLUMN_TEXT},
	                                   {kind->counted, kind->many, COLUMN_NUMBER},
	                                   {NULL, NULL, COLUMN_TEXT}};
	const operator_column skipped_columns[] = {
	    {"SKIPPED", "code", COLUMN_TEXT}, columns[0], columns[1], columns[2], columns[3], columns[4]};
	bool is_done = invocation->given[OPTION_YES];

	if (invocation->given[OPTION_JSON]) {
		tell_json(invocation, kind, decisions);
		return;
	}
	plain_line("%s: %" JSON_INTEGER_FORMAT " %s%s%s", invocation->operands[0], decisions->count,
	           decisions->count == 1 ? kind->one : kind->many, is_done ? ": " : "",
	           is_done ? done : " (dry run: nothing was changed; --yes --reason TEXT does it)");
	if (decisions->count > 0) {
		operator_print_table(decisions->groups, columns, NULL);
	}
	if (decisions->skipped_count > 0) {
		operator_print_table(decisions->skipped, skipped_columns, NULL);
	}
}

/* One piece, a transaction by itself. */
static int decide_piece(const cli_invocation *invocation, PGconn *connection, enum sql_id statement, int size,
                        const char *const *parameters, PGresult **rows)
{
	PGresult *answer = connect_query(connection, statement, size, parameters);
	bool is_lost = PQstatus(connection) != CONNECTION_OK;
	int result = CLI_OK;

	if (PQresultStatus(answer) != PGRES_TUPLES_OK) {
		/* An error that the server has told is a transaction that was rolled back. */
		result = cli_report_result(invocation, connection, answer,
		                           is_lost && invocation->given[OPTION_YES]
		                               ? "the last decisions may or may not be stored, start it again"
		                               : "cannot decide");
		PQclear(answer);
		answer = NULL;
	}
	*rows = answer;
	return result;
}

static int decide_all(const cli_invocation *invocation, PGconn *connection, const parked_kind *kind,
                      enum sql_id statement, decisions *decisions)
{
	const char *parameters[PARAMETERS_MAX] = {invocation->text[OPTION_PARKED_REASON]};
	int size = 1, result = CLI_OK;
	bool more = true;
	char *after = NULL;

	for (const option_id *id = kind->narrowing; *id != OPTION_COUNT; id++) {
		assert(size < PARAMETERS_MAX - 2);
		parameters[size++] = *id == OPTION_OLDER_THAN ? decisions->before : invocation->text[*id];
	}
	parameters[size++] = invocation->given[OPTION_YES] ? "false" : "true";
	while (more) {
		PGresult *rows = NULL;
		parameters[size] = after;
		result = decide_piece(invocation, connection, statement, size + 1, parameters, &rows);
		free(after);
		after = NULL;
		for (int row = 0; result == CLI_OK && row < PQntuples(rows); row++) {
			count(decisions, kind, rows, row);
			if (row == 0 && !PQgetisnull(rows, row, 5)) {
				after = cli_duplicate(PQgetvalue(rows, row, 5));
			}
		}
		PQclear(rows);
		more = result == CLI_OK && after != NULL;
	}
	free(after);
	return result;
}

int parked_many(const cli_invocation *invocation, PGconn *connection, const parked_kind *kind, enum sql_id statement,
                const char *done)
{
	decisions decisions = {.groups = json_array(), .skipped = json_array()};
	int result = operator_read_time(invocation, connection, OPTION_OLDER_THAN, true, &decisions.before);

	if (result == CLI_OK) {
		result = decide_all(invocation, connection, kind, statement, &decisions);
		if (result == CLI_OK || (invocation->given[OPTION_YES] && decisions.count > 0)) {
			tell(invocation, kind, done, &decisions);
		}
	}
	if (result == CLI_OK && decisions.skipped_count > 0) {
		result = cli_fail(
		    invocation, CLI_REFUSED,
		    "P4029: tried, or decided about, just now: start it again; of others, retry or discard one and read "
		    "why",
		    "%" JSON_INTEGER_FORMAT " %s stay as they were", decisions.skipped_count,
		    decisions.skipped_count == 1 ? kind->one : kind->many);
	}
	json_decref(decisions.groups);
	json_decref(decisions.skipped);
	free(decisions.before);
	return result;
}
