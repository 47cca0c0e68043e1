/* SPDX-License-Identifier: PostgreSQL */
/*
 * outbox_many.c: see outbox_many.h. A short transaction for each piece, so that a running relay
 * waits for none of them long. The contract decides; this file asks for the next piece until there
 * is none, and counts. Without --yes the contract only counts.
 */
#include "outbox_many.h"

#include <stdlib.h>
#include <string.h>

#include "operator.h"
#include "plain.h"

enum {
	PARAMETERS = 7
};

typedef struct decisions {
	char *before; /* as the server reads --older-than; NULL: not given */
	/* [{"relay": ..., "topic": ..., "state": ..., "events": n}], as they were met */
	json_t *groups;
	json_int_t events;
} decisions;

static const option_id narrowing[] = {OPTION_TOPIC, OPTION_STATE, OPTION_OLDER_THAN};
static const option_id of_many[] = {OPTION_TOPIC, OPTION_STATE, OPTION_OLDER_THAN, OPTION_YES, OPTION_DRY_RUN_MANY};

static int check_many(const cli_invocation *invocation, const char *verb)
{
	const char *state = invocation->text[OPTION_STATE];
	bool is_narrowed = invocation->given[OPTION_RELAY];

	for (size_t i = 0; i < sizeof narrowing / sizeof narrowing[0]; i++) {
		is_narrowed = is_narrowed || invocation->given[narrowing[i]];
	}
	if (!is_narrowed) {
		return cli_fail(invocation, CLI_USAGE, "pgonce help outbox",
		                "%s: which one? Write %s EVENT, or say which ones with --topic, --state, --older-than or "
		                "--relay",
		                verb, verb);
	}
	if (state != NULL && strcmp(state, "pending") == 0) {
		return cli_fail(invocation, CLI_USAGE, "pgonce help outbox",
		                "a pending event is not parked: its relay has not come to it yet");
	}
	if (invocation->given[OPTION_YES] && invocation->given[OPTION_DRY_RUN_MANY]) {
		return cli_fail(invocation, CLI_USAGE, "pgonce help outbox", "--dry-run and --yes are opposites");
	}
	return invocation->given[OPTION_YES] ? operator_check_reason(invocation, verb) : CLI_OK;
}

int outbox_check_decision(const cli_invocation *invocation)
{
	const char *verb = invocation->operands[0];

	if (invocation->operand_count < 2) {
		return check_many(invocation, verb);
	}
	for (size_t i = 0; i < sizeof of_many / sizeof of_many[0]; i++) {
		if (invocation->given[of_many[i]]) {
			return cli_fail(invocation, CLI_USAGE, "pgonce help outbox",
			                "%s EVENT is about one event: --%s is for many, without EVENT", verb,
			                cli_options[of_many[i]].name);
		}
	}
	return operator_check_reason(invocation, verb);
}

static bool is_same(const json_t *object, const char *member, const char *text)
{
	return strcmp(operator_text(object, member), text) == 0;
}

static void count(decisions *decisions, const PGresult *rows, int row)
{
	const char *relay = PQgetvalue(rows, row, 0), *topic = PQgetvalue(rows, row, 1), *state = PQgetvalue(rows, row, 2);
	json_int_t events = strtoll(PQgetvalue(rows, row, 3), NULL, 10);
	size_t index = 0;
	json_t *known = NULL;

	if (events == 0) {
		return; /* a row that only says where to go on */
	}
	decisions->events += events;
	json_array_foreach(decisions->groups, index, known)
	{
		if (is_same(known, "relay", relay) && is_same(known, "topic", topic) && is_same(known, "state", state)) {
			events += json_integer_value(json_object_get(known, "events"));
			break;
		}
	}
	if (index == json_array_size(decisions->groups)) {
		known = json_pack("{s:s, s:s, s:s}", "relay", relay, "topic", topic, "state", state);
		json_array_append_new(decisions->groups, known);
	}
	json_object_set_new(known, "events", json_integer(events));
}

static void tell(const cli_invocation *invocation, const char *done, const decisions *decisions)
{
	static const operator_column columns[] = {{"RELAY", "relay", COLUMN_TEXT},
	                                          {"TOPIC", "topic", COLUMN_TEXT},
	                                          {"STATE", "state", COLUMN_TEXT},
	                                          {"EVENTS", "events", COLUMN_NUMBER},
	                                          {NULL, NULL, COLUMN_TEXT}};
	const char *verb = invocation->operands[0];
	bool is_done = invocation->given[OPTION_YES];

	if (invocation->given[OPTION_JSON]) {
		json_t *filters = json_pack("{s:s?, s:s?, s:s?, s:s?}", "relay", invocation->text[OPTION_RELAY], "topic",
		                            invocation->text[OPTION_TOPIC], "state", invocation->text[OPTION_STATE], "before",
		                            decisions->before);
		cli_print_json(json_pack("{s:s, s:b, s:o, s:s?, s:I, s:O}", "what", verb, "dry_run", !is_done, "filters",
		                         filters, "reason", invocation->text[OPTION_PARKED_REASON], "events", decisions->events,
		                         "groups", decisions->groups));
		return;
	}
	plain_line("%s: %" JSON_INTEGER_FORMAT " event%s%s%s", verb, decisions->events, decisions->events == 1 ? "" : "s",
	           is_done ? ": " : "", is_done ? done : " (dry run: nothing was changed; --yes --reason TEXT does it)");
	if (decisions->events > 0) {
		operator_print_table(decisions->groups, columns, NULL);
	}
}

/* One piece, a transaction by itself. */
static int decide_piece(const cli_invocation *invocation, PGconn *connection, enum sql_id statement,
                        const char *const *parameters, PGresult **rows)
{
	PGresult *answer = connect_query(connection, statement, PARAMETERS, parameters);
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

int outbox_many(const cli_invocation *invocation, PGconn *connection, enum sql_id statement, const char *done)
{
	decisions decisions = {.groups = json_array()};
	char *after = NULL;
	PGresult *rows = NULL;
	int result = operator_read_time(invocation, connection, OPTION_OLDER_THAN, true, &decisions.before);
	bool more = result == CLI_OK;

	while (more) {
		const char *parameters[PARAMETERS] = {invocation->text[OPTION_PARKED_REASON],
		                                      invocation->text[OPTION_RELAY],
		                                      invocation->text[OPTION_TOPIC],
		                                      invocation->text[OPTION_STATE],
		                                      decisions.before,
		                                      invocation->given[OPTION_YES] ? "false" : "true",
		                                      after};
		result = decide_piece(invocation, connection, statement, parameters, &rows);
		free(after);
		after = NULL;
		for (int row = 0; result == CLI_OK && row < PQntuples(rows); row++) {
			count(&decisions, rows, row);
			if (row == 0 && !PQgetisnull(rows, row, 4)) {
				after = cli_duplicate(PQgetvalue(rows, row, 4));
			}
		}
		PQclear(rows);
		rows = NULL;
		more = result == CLI_OK && after != NULL;
	}
	if (result == CLI_OK || (invocation->given[OPTION_YES] && decisions.events > 0)) {
		tell(invocation, done, &decisions);
	}
	json_decref(decisions.groups);
	free(after);
	free(decisions.before);
	return result;
}
