/* SPDX-License-Identifier: PostgreSQL */
/*
 * stuck.c: pgonce stuck and pgonce in-doubt: intents that need a decision, each with the next
 * command.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "operator.h"
#include "plain.h"
#include "story.h"

#define LONG_MS (INT64_C(10) * 60 * 1000)

/* ---- a list of intents */

static void print_intent(const json_t *row, const char *verb)
{
	const char *owner = operator_text(row, "owner"), *why = operator_text(row, "reason");
	char *command =
	    story_command(verb, operator_text(row, "tenant"), operator_text(row, "scope"), operator_text(row, "key"));

	if (owner[0] != '\0') {
		plain_line("  owner %s", owner);
	}
	if (why[0] != '\0') {
		plain_line("  because %s", why);
	}
	plain_line("  %s", command);
	free(command);
}

static void print_to_show(const json_t *row)
{
	print_intent(row, "show");
}

/* resolve --all narrows by this code. */
static void print_to_resolve(const json_t *row)
{
	if (operator_text(row, "error_code")[0] != '\0') {
		plain_line("  error %s", operator_text(row, "error_code"));
	}
	print_intent(row, "resolve");
}

/* True: something was printed. */
static bool print_section(const json_t *rows, const char *title, const operator_column *columns,
                          void (*more)(const json_t *row), const char *advice)
{
	if (json_array_size(rows) == 0) {
		return false;
	}
	printf("%s\n", title);
	operator_print_table(rows, columns, more);
	if (advice != NULL) {
		printf("  %s\n", advice);
	}
	putchar('\n');
	return true;
}

static void print_stuck(const json_t *stuck)
{
	static const operator_column stale[] = {
	    {"SCOPE", "scope", COLUMN_TEXT},   {"KEY", "key", COLUMN_TEXT},   {"POLICY", "on_stale", COLUMN_TEXT},
	    {"STALE", "stale_ms", COLUMN_AGE}, {"AGE", "age_ms", COLUMN_AGE}, {"TRIES", "attempts", COLUMN_NUMBER},
	    {NULL, NULL, COLUMN_TEXT}};
	static const operator_column active[] = {{"SCOPE", "scope", COLUMN_TEXT},      {"KEY", "key", COLUMN_TEXT},
	                                         {"AGE", "age_ms", COLUMN_AGE},        {"LEASE", "lease_ms", COLUMN_AGE},
	                                         {"TRIES", "attempts", COLUMN_NUMBER}, {NULL, NULL, COLUMN_TEXT}};
	static const operator_column retried[] = {{"SCOPE", "scope", COLUMN_TEXT},      {"KEY", "key", COLUMN_TEXT},
	                                          {"STATE", "state", COLUMN_TEXT},      {"AGE", "age_ms", COLUMN_AGE},
	                                          {"TRIES", "attempts", COLUMN_NUMBER}, {NULL, NULL, COLUMN_TEXT}};
	static const operator_column parked[] = {{"KIND", "kind", COLUMN_TEXT},     {"HOLDER", "holder", COLUMN_TEXT},
	                                         {"TOPIC", "topic", COLUMN_TEXT},   {"STATE", "state", COLUMN_TEXT},
	                                         {"COUNT", "items", COLUMN_NUMBER}, {"OLDEST", "age_ms", COLUMN_AGE},
	                                         {NULL, NULL, COLUMN_TEXT}};
	bool any = false;

	any |= print_section(json_object_get(stuck, "stale"), "stale: the lease has passed and nothing was reported", stale,
	                     print_to_resolve, "judge all of them: pgonce recover; one of them: pgonce resolve");
	any |= print_section(json_object_get(stuck, "active"), "running for long: the lease is renewed", active,
	                     print_to_show, NULL);
	any |= print_section(json_object_get(stuck, "retried"), "retried often", retried, print_to_show, NULL);
	any |= print_section(json_object_get(stuck, "parked"), "parked events and messages", parked, NULL,
	                     "pgonce parked list");
	if (!any) {
		puts("nothing is stuck");
	}
}

/* ---- the commands */

static int list(const cli_invocation *invocation, enum sql_id id, int parameter_count, const char *const *parameters,
                json_t **rows)
{
	once_session *session = NULL;
	int result = connect_open(invocation, &session);

	if (result == CLI_OK) {
		result = operator_query(invocation, once_session_connection(session), id, parameter_count, parameters,
		                        "cannot list the intents", rows);
	}
	if (result == CLI_OK && invocation->given[OPTION_JSON]) {
		cli_print_json(json_incref(*rows));
	}
	once_session_close(session);
	return result;
}

int cli_stuck(const cli_invocation *invocation)
{
	int64_t running_ms = cli_number(invocation, OPTION_LONGER_THAN, LONG_MS);
	char *take = operator_take(invocation);
	char *running = cli_format("%" PRId64 " milliseconds", running_ms);
	const char *parameters[] = {invocation->text[OPTION_SCOPE], invocation->text[OPTION_TENANT], running, take};
	json_t *stuck = NULL;
	int result = list(invocation, SQL_STUCK, 4, parameters, &stuck);

	if (result == CLI_OK && !invocation->given[OPTION_JSON]) {
		print_stuck(stuck);
	}
	if (result == CLI_OK) {
		operator_note_cut(invocation, json_object_get(stuck, "stale"), "stale intents");
		operator_note_cut(invocation, json_object_get(stuck, "active"), "running intents");
		operator_note_cut(invocation, json_object_get(stuck, "retried"), "intents retried often");
	}
	json_decref(stuck);
	free(take);
	free(running);
	return result;
}

int cli_in_doubt(const cli_invocation *invocation)
{
	static const operator_column columns[] = {{"SCOPE", "scope", COLUMN_TEXT},
	                                          {"KEY", "key", COLUMN_TEXT},
	                                          {"AGE", "age_ms", COLUMN_AGE},
	                                          {"TRIES", "attempts", COLUMN_NUMBER},
	                                          {NULL, NULL, COLUMN_TEXT}};
	char *take = operator_take(invocation);
	const char *parameters[] = {invocation->text[OPTION_SCOPE], invocation->text[OPTION_TENANT], take};
	json_t *rows = NULL;
	int result = list(invocation, SQL_IN_DOUBT, 3, parameters, &rows);

	if (result == CLI_OK && !invocation->given[OPTION_JSON] &&
	    !print_section(rows, "in doubt: the outcome is unknown; no attempt runs until it is decided", columns,
	                   print_to_resolve,
	                   "ask about all of them: pgonce recover --in-doubt; decide: pgonce resolve --all")) {
		puts("nothing is in doubt");
	}
	if (result == CLI_OK) {
		operator_note_cut(invocation, rows, "intents in doubt");
	}
	json_decref(rows);
	free(take);
	return result;
}
