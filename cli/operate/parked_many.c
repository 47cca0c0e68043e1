/* SPDX-License-Identifier: PostgreSQL */
/*
 * parked_many.c: see parked_many.h. A short transaction for each part, so that a running relay or
 * consumer never waits long. The contract decides; this file asks for the next part until there is
 * none, and counts. Without --yes the contract only counts.
 */
#include "parked_many.h"

#include <stdlib.h>
#include <string.h>

#include "operator.h"
#include "plain.h"

const option_id parked_filters[PARKED_FILTERS + 1] = {OPTION_KIND,  OPTION_RELAY, OPTION_CONSUMER, OPTION_TENANT,
                                                      OPTION_TOPIC, OPTION_TYPE,  OPTION_ERROR,    OPTION_STATE,
                                                      OPTION_UNTIL, OPTION_COUNT};
/* Those that select one of several with the same ID. */
static const option_id of_one[] = {OPTION_KIND, OPTION_RELAY, OPTION_CONSUMER, OPTION_TENANT, OPTION_COUNT};
static const option_id of_many[] = {OPTION_YES, OPTION_DRY_RUN, OPTION_COUNT};

typedef struct decisions {
	char *before; /* as the server reads --until; NULL: not given */
	/*
	 * [{"kind": ..., "holder": ..., "topic": ..., "state": ..., "items": n}], in the order of
	 * arrival
	 */
	json_t *groups;
	/* The same, with "code": those that stay as they were. */
	json_t *skipped;
	json_int_t events, messages, skipped_count;
} decisions;

static bool is_among(option_id id, const option_id *list)
{
	for (; *list != OPTION_COUNT; list++) {
		if (*list == id) {
			return true;
		}
	}
	return false;
}

static bool is_text(const char *text, const char *other)
{
	return text != NULL && strcmp(text, other) == 0;
}

static int fail_usage(const cli_invocation *invocation, const char *text)
{
	return cli_fail(invocation, CLI_USAGE, "pgonce help parked", "%s", text);
}

int parked_check_filters(const cli_invocation *invocation)
{
	const char *kind = invocation->text[OPTION_KIND], *state = invocation->text[OPTION_STATE];
	bool of_messages = invocation->given[OPTION_CONSUMER] || is_text(kind, "message");

	if (invocation->given[OPTION_RELAY] && of_messages) {
		return fail_usage(invocation,
		                  "a relay has events, and a consumer has messages: --relay fits neither --consumer "
		                  "nor --kind message");
	}
	if (invocation->given[OPTION_CONSUMER] && is_text(kind, "event")) {
		return fail_usage(invocation, "a consumer has messages: --consumer does not fit --kind event");
	}
	if (of_messages && (is_text(state, "pending") || is_text(state, "delayed"))) {
		return fail_usage(invocation,
		                  "a message is waiting, retrying or dead, never pending or delayed: the broker has it");
	}
	return CLI_OK;
}

void parked_set_filters(const cli_invocation *invocation, const char *before, const char **parameters)
{
	for (int i = 0; i < PARKED_FILTERS; i++) {
		option_id id = parked_filters[i];
		parameters[i] = id == OPTION_UNTIL ? before : invocation->text[id];
	}
}

/* "--kind, --relay or --state": free it. */
static char *filters_text(void)
{
	char *text = cli_duplicate("");

	for (int i = 0; i < PARKED_FILTERS; i++) {
		cli_append(&text, "%s--%s",
		           i == 0                    ? ""
		           : i == PARKED_FILTERS - 1 ? " or "
		                                     : ", ",
		           cli_options[parked_filters[i]].name);
	}
	return text;
}

static int check_many(const cli_invocation *invocation, const char *verb)
{
	bool is_narrowed = false;
	int result = parked_check_filters(invocation);

	for (int i = 0; i < PARKED_FILTERS; i++) {
		is_narrowed = is_narrowed || invocation->given[parked_filters[i]];
	}
	if (result != CLI_OK) {
		return result;
	}
	if (!is_narrowed) {
		char *options = filters_text();
		result = cli_fail(invocation, CLI_USAGE, "pgonce help parked",
		                  "%s: which one? Write %s ID, or say which ones with %s", verb, verb, options);
		free(options);
		return result;
	}
	if (is_text(invocation->text[OPTION_STATE], "pending")) {
		return fail_usage(invocation, "a pending event is not parked: its relay has not reached it yet");
	}
	if (invocation->given[OPTION_YES] && invocation->given[OPTION_DRY_RUN]) {
		return fail_usage(invocation, "--dry-run and --yes are opposites");
	}
	return invocation->given[OPTION_YES] ? operator_check_reason(invocation, verb) : CLI_OK;
}

/* The first given option that is only for many; OPTION_COUNT: none. */
static option_id find_of_many(const cli_invocation *invocation)
{
	const option_id *const lists[] = {parked_filters, of_many};

	for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
		for (const option_id *id = lists[i]; *id != OPTION_COUNT; id++) {
			if (invocation->given[*id] && !is_among(*id, of_one)) {
				return *id;
			}
		}
	}
	return OPTION_COUNT;
}

int parked_check_decision(const cli_invocation *invocation)
{
	const char *verb = invocation->operands[0];

	if (invocation->operand_count < 2) {
		return check_many(invocation, verb);
	}
	option_id given = find_of_many(invocation);
	if (given != OPTION_COUNT) {
		return cli_fail(invocation, CLI_USAGE, "pgonce help parked",
		                "%s ID is about one event or message: --%s is for many, without ID", verb,
		                cli_options[given].name);
	}
	int result = parked_check_filters(invocation);
	return result == CLI_OK ? operator_check_reason(invocation, verb) : result;
}

static bool is_same(const json_t *object, const char *member, const char *text)
{
	return strcmp(operator_text(object, member), text) == 0;
}

/* NULL: SQL's. */
static const char *cell(const PGresult *rows, int row, int column)
{
	return PQgetisnull(rows, row, column) ? NULL : PQgetvalue(rows, row, column);
}

static void count(decisions *decisions, const PGresult *rows, int row)
{
	const char *kind = PQgetvalue(rows, row, 0), *holder = cell(rows, row, 1), *topic = PQgetvalue(rows, row, 2);
	const char *state = PQgetvalue(rows, row, 3), *code = cell(rows, row, 4);
	json_int_t found = strtoll(PQgetvalue(rows, row, 5), NULL, 10);
	json_t *groups = code == NULL ? decisions->groups : decisions->skipped;
	size_t index = 0;
	json_t *known = NULL;

	if (found == 0) {
		return; /* a row that only has the cursor */
	}
	if (code != NULL) {
		decisions->skipped_count += found;
	} else if (strcmp(kind, "message") == 0) {
		decisions->messages += found;
	} else {
		decisions->events += found;
	}
	json_array_foreach(groups, index, known)
	{
		if (is_same(known, "kind", kind) && is_same(known, "holder", holder == NULL ? "" : holder) &&
		    is_same(known, "topic", topic) && is_same(known, "state", state) &&
		    is_same(known, "code", code == NULL ? "" : code)) {
			found += json_integer_value(json_object_get(known, "items"));
			break;
		}
	}
	if (index == json_array_size(groups)) {
		known = json_pack("{s:s, s:s?, s:s, s:s, s:s*}", "kind", kind, "holder", holder, "topic", topic, "state", state,
		                  "code", code);
		json_array_append_new(groups, known);
	}
	json_object_set_new(known, "items", json_integer(found));
}

static void tell_json(const cli_invocation *invocation, const decisions *decisions)
{
	const char *parameters[PARKED_FILTERS] = {NULL};
	json_t *filters = json_object();

	parked_set_filters(invocation, decisions->before, parameters);
	for (int i = 0; i < PARKED_FILTERS; i++) {
		option_id id = parked_filters[i];
		json_object_set_new(filters, cli_options[id].name, json_pack("s?", parameters[i]));
	}
	cli_print_json(json_pack("{s:s, s:b, s:o, s:s?, s:I, s:O, s:O}", "what", invocation->operands[0], "dry_run",
	                         !invocation->given[OPTION_YES], "filters", filters, "reason",
	                         invocation->text[OPTION_REASON], "items", decisions->events + decisions->messages,
	                         "groups", decisions->groups, "skipped", decisions->skipped));
}

/* "3 events, 1 message": free it. */
static char *counted(const decisions *decisions)
{
	char *text = cli_duplicate("");

	if (decisions->events > 0 || decisions->messages == 0) {
		cli_append(&text, "%" JSON_INTEGER_FORMAT " event%s", decisions->events, decisions->events == 1 ? "" : "s");
	}
	if (decisions->messages > 0 || decisions->events == 0) {
		cli_append(&text, "%s%" JSON_INTEGER_FORMAT " message%s", text[0] != '\0' ? ", " : "", decisions->messages,
		           decisions->messages == 1 ? "" : "s");
	}
	return text;
}

static void tell(const cli_invocation *invocation, const char *done, const decisions *decisions)
{
	static const operator_column columns[] = {{"KIND", "kind", COLUMN_TEXT},     {"HOLDER", "holder", COLUMN_TEXT},
	                                          {"TOPIC", "topic", COLUMN_TEXT},   {"STATE", "state", COLUMN_TEXT},
	                                          {"COUNT", "items", COLUMN_NUMBER}, {NULL, NULL, COLUMN_TEXT}};
	static const operator_column skipped_columns[] = {
	    {"SKIPPED", "code", COLUMN_TEXT}, {"HOLDER", "holder", COLUMN_TEXT}, {"TOPIC", "topic", COLUMN_TEXT},
	    {"STATE", "state", COLUMN_TEXT},  {"COUNT", "items", COLUMN_NUMBER}, {NULL, NULL, COLUMN_TEXT}};
	bool is_done = invocation->given[OPTION_YES];

	if (invocation->given[OPTION_JSON]) {
		tell_json(invocation, decisions);
		return;
	}
	char *text = counted(decisions);
	plain_line("%s: %s%s%s", invocation->operands[0], text, is_done ? ": " : "",
	           is_done ? done : " (dry run: nothing was changed; --yes --reason TEXT does it)");
	free(text);
	if (json_array_size(decisions->groups) > 0) {
		operator_print_table(decisions->groups, columns, NULL);
	}
	if (decisions->skipped_count > 0) {
		operator_print_table(decisions->skipped, skipped_columns, NULL);
	}
}

/* One part, in its own transaction. */
static int decide_piece(const cli_invocation *invocation, PGconn *connection, enum sql_id statement, int size,
                        const char *const *parameters, PGresult **rows)
{
	PGresult *answer = connect_query(connection, statement, size, parameters);
	bool is_lost = PQstatus(connection) != CONNECTION_OK;
	int result = CLI_OK;

	if (PQresultStatus(answer) != PGRES_TUPLES_OK) {
		/* An error from the server means that the transaction was rolled back. */
		result = cli_report_result(invocation, connection, answer,
		                           is_lost && invocation->given[OPTION_YES]
		                               ? "the last decisions may or may not be stored: run it again"
		                               : "cannot decide");
		PQclear(answer);
		answer = NULL;
	}
	*rows = answer;
	return result;
}

static int decide_all(const cli_invocation *invocation, PGconn *connection, enum sql_id statement, decisions *decisions)
{
	enum {
		FIRST = 1,
		DRY_RUN = FIRST + PARKED_FILTERS,
		AFTER,
		PARAMETERS
	};
	const char *parameters[PARAMETERS] = {invocation->text[OPTION_REASON]};
	int result = CLI_OK;
	bool more = true;
	char *after = NULL;

	parked_set_filters(invocation, decisions->before, parameters + FIRST);
	parameters[DRY_RUN] = invocation->given[OPTION_YES] ? "false" : "true";
	while (more) {
		PGresult *rows = NULL;
		parameters[AFTER] = after;
		result = decide_piece(invocation, connection, statement, PARAMETERS, parameters, &rows);
		free(after);
		after = NULL;
		for (int row = 0; result == CLI_OK && row < PQntuples(rows); row++) {
			count(decisions, rows, row);
			if (row == 0 && !PQgetisnull(rows, row, 6)) {
				after = cli_duplicate(PQgetvalue(rows, row, 6));
			}
		}
		PQclear(rows);
		more = result == CLI_OK && after != NULL;
	}
	free(after);
	return result;
}

int parked_many(const cli_invocation *invocation, PGconn *connection, enum sql_id statement, const char *done)
{
	decisions decisions = {.groups = json_array(), .skipped = json_array()};
	int result = operator_read_time(invocation, connection, OPTION_UNTIL, true, &decisions.before);

	if (result == CLI_OK) {
		result = decide_all(invocation, connection, statement, &decisions);
		if (result == CLI_OK || (invocation->given[OPTION_YES] && decisions.events + decisions.messages > 0)) {
			tell(invocation, done, &decisions);
		}
	}
	if (result == CLI_OK && decisions.skipped_count > 0) {
		result = cli_fail(invocation, CLI_REFUSED,
		                  "P4029: an attempt or another decision is in progress: run it again. Other codes: "
		                  "retry or discard one "
		                  "of them by its ID, and read the error",
		                  "%" JSON_INTEGER_FORMAT " message%s unchanged", decisions.skipped_count,
		                  decisions.skipped_count == 1 ? " stays" : "s stay");
	}
	json_decref(decisions.groups);
	json_decref(decisions.skipped);
	free(decisions.before);
	return result;
}
