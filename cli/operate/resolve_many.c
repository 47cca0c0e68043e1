/* SPDX-License-Identifier: PostgreSQL */
/*
 * resolve_many.c: see resolve_many.h. A short transaction for each part: a decided intent is no
 * longer in doubt, so after an interruption just start it again. The contract decides; this file
 * asks for the next part until there is none, and counts.
 */
#include "resolve_many.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "operator.h"
#include "plain.h"

enum {
	PARAMETERS = 12
};

typedef struct decisions {
	char *since, *until; /* as the server reads them; NULL: not given */
	/*
	 * [{"error": ..., "decided": n, "skipped": n}], in the order of arrival; with --nodes of each
	 * node
	 */
	json_t *errors;
	size_t earlier; /* so many of them are of the nodes before */
	int64_t decided;
	int64_t skipped; /* decided, or being reported, by another session */
} decisions;

char *resolve_many_named(const cli_invocation *invocation)
{
	const option_id narrowing[] = {OPTION_ERROR_CODE, OPTION_SINCE, OPTION_UNTIL};
	const char *tenant = invocation->text[OPTION_TENANT];
	const char *scope = invocation->text[OPTION_SCOPE];
	char *named = tenant == NULL ? cli_format("all in doubt of all tenants, scope='%s'", scope)
	                             : cli_format("all in doubt of tenant='%s' scope='%s'", tenant, scope);

	for (size_t i = 0; i < sizeof narrowing / sizeof narrowing[0]; i++) {
		const char *text = invocation->text[narrowing[i]];
		if (text != NULL) {
			cli_append(&named, " %s='%s'", cli_options[narrowing[i]].name, text);
		}
	}
	return named;
}

static char *hexadecimal(once_bytes bytes)
{
	static const char digits[] = "0123456789abcdef";

	if (bytes.data == NULL) {
		return NULL;
	}
	char *text = cli_allocate(2 * bytes.length + 1);
	for (size_t i = 0; i < bytes.length; i++) {
		unsigned char byte = ((const unsigned char *)bytes.data)[i];
		text[2 * i] = digits[byte >> 4];
		text[2 * i + 1] = digits[byte & 15];
	}
	return text;
}

static void count(decisions *decisions, const PGresult *rows, int row)
{
	const char *error = PQgetisnull(rows, row, 0) ? NULL : PQgetvalue(rows, row, 0);
	int64_t decided = strtoll(PQgetvalue(rows, row, 1), NULL, 10);
	int64_t skipped = strtoll(PQgetvalue(rows, row, 2), NULL, 10);
	size_t index = 0;
	json_t *known = NULL;

	decisions->decided += decided;
	decisions->skipped += skipped;
	for (index = decisions->earlier; index < json_array_size(decisions->errors); index++) {
		known = json_array_get(decisions->errors, index);
		const char *met = json_string_value(json_object_get(known, "error"));
		if (met == NULL ? error == NULL : error != NULL && strcmp(met, error) == 0) {
			decided += json_integer_value(json_object_get(known, "decided"));
			skipped += json_integer_value(json_object_get(known, "skipped"));
			break;
		}
	}
	if (decided + skipped == 0) {
		return; /* a row that only has the cursor */
	}
	if (index == json_array_size(decisions->errors)) {
		json_array_append_new(decisions->errors, known = json_pack("{s:s?}", "error", error));
	}
	json_object_set_new(known, "decided", json_integer(decided));
	json_object_set_new(known, "skipped", json_integer(skipped));
}

static void tell(const cli_invocation *invocation, const char *reason, decisions *decisions)
{
	const char *as = invocation->text[OPTION_AS];
	bool dry_run = invocation->given[OPTION_DRY_RUN];
	size_t index = 0;
	const json_t *each = NULL;

	if (invocation->given[OPTION_JSON]) {
		const char *tenant = invocation->text[OPTION_TENANT];
		json_t *filters = json_pack("{s:s?, s:s?, s:s?}", "error_code", invocation->text[OPTION_ERROR_CODE], "since",
		                            decisions->since, "until", decisions->until);
		cli_print_json(json_pack("{s:s, s:s?, s:b, s:o, s:s, s:s, s:b, s:I, s:I, s:O}", "scope",
		                         invocation->text[OPTION_SCOPE], "tenant", tenant, "all_tenants", tenant == NULL,
		                         "filters", filters, "to", as, "reason", reason, "dry_run", dry_run, "decided",
		                         (json_int_t)decisions->decided, "skipped", (json_int_t)decisions->skipped, "errors",
		                         decisions->errors));
		return;
	}
	char *named = resolve_many_named(invocation);
	plain_line("%s: %" PRId64 " -> %s%s", named, decisions->decided, as,
	           dry_run ? " (dry run: nothing was changed)" : "");
	free(named);
	json_array_foreach(decisions->errors, index, each)
	{
		const char *error = json_string_value(json_object_get(each, "error")), *node = operator_text(each, "node");
		plain_line("  %8" JSON_INTEGER_FORMAT "  %s%s%s", json_integer_value(json_object_get(each, "decided")), node,
		           node[0] != '\0' ? ": " : "", error != NULL ? error : "(no error code)");
	}
	if (decisions->skipped > 0) {
		printf("  %8" PRId64 "  skipped: others are deciding or reporting them; run it again\n", decisions->skipped);
	}
}

/* One part, in its own transaction. */
static int resolve_piece(const cli_invocation *invocation, PGconn *connection, const char *const *parameters,
                         PGresult **rows)
{
	PGresult *answer = connect_query(connection, SQL_RESOLVE_MANY, PARAMETERS, parameters);
	bool is_lost = PQstatus(connection) != CONNECTION_OK;
	int result = CLI_OK;

	if (PQresultStatus(answer) != PGRES_TUPLES_OK) {
		/* An error from the server means that the transaction was rolled back. */
		result = cli_report_result(invocation, connection, answer,
		                           is_lost && !invocation->given[OPTION_DRY_RUN]
		                               ? "the last decisions may or may not be stored: run it again"
		                               : "cannot decide");
		PQclear(answer);
		answer = NULL;
	}
	*rows = answer;
	return result;
}

static int resolve_node(const cli_invocation *invocation, const node *node, const char *reason,
                        const once_outcome *outcome, decisions *decisions)
{
	char *status = cli_format("%d", outcome->response_status);
	char *body = hexadecimal(outcome->response_body);
	char *after = NULL;
	PGresult *rows = NULL;
	int result = CLI_OK;
	bool more = true;

	decisions->earlier = json_array_size(decisions->errors);
	while (more) {
		const char *parameters[PARAMETERS] = {invocation->text[OPTION_SCOPE],
		                                      invocation->text[OPTION_AS],
		                                      reason,
		                                      outcome->response_status != 0 ? status : NULL,
		                                      body,
		                                      outcome->response_headers,
		                                      invocation->text[OPTION_TENANT],
		                                      invocation->text[OPTION_ERROR_CODE],
		                                      decisions->since,
		                                      decisions->until,
		                                      invocation->given[OPTION_DRY_RUN] ? "true" : "false",
		                                      after};
		result = resolve_piece(invocation, node->connection, parameters, &rows);
		free(after);
		after = NULL;
		for (int row = 0; result == CLI_OK && row < PQntuples(rows); row++) {
			count(decisions, rows, row);
			if (row == 0 && !PQgetisnull(rows, row, 3)) {
				after = cli_duplicate(PQgetvalue(rows, row, 3));
			}
		}
		PQclear(rows);
		rows = NULL;
		more = result == CLI_OK && after != NULL;
	}
	for (size_t i = decisions->earlier; node->name != NULL && i < json_array_size(decisions->errors); i++) {
		json_object_set_new(json_array_get(decisions->errors, i), "node", json_string(node->name));
	}
	free(after);
	free(body);
	free(status);
	return result;
}

int resolve_many(const cli_invocation *invocation, const node_list *nodes, const char *reason,
                 const once_outcome *outcome)
{
	decisions decisions = {.errors = json_array()};
	PGconn *connection = node_list_next(nodes, NULL)->connection;
	int result = node_list_check_open(invocation, nodes);

	if (result == CLI_OK) {
		result = operator_read_time(invocation, connection, OPTION_SINCE, true, &decisions.since);
	}
	if (result == CLI_OK) {
		result = operator_read_time(invocation, connection, OPTION_UNTIL, true, &decisions.until);
	}
	for (node *node = node_list_next(nodes, NULL); node != NULL && result == CLI_OK;
	     node = node_list_next(nodes, node)) {
		result = resolve_node(invocation, node, reason, outcome, &decisions);
	}
	if (result == CLI_OK || decisions.decided > 0) {
		tell(invocation, reason, &decisions);
	}
	if (result == CLI_OK && decisions.skipped > 0) {
		result = CLI_IN_DOUBT;
	}
	json_decref(decisions.errors);
	free(decisions.until);
	free(decisions.since);
	return node_list_end(invocation, nodes, result);
}
