/* SPDX-License-Identifier: PostgreSQL */
/*
 * stuck.c: pgonce stuck and pgonce in-doubt: intents that need a decision, each with the next
 * command.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "operator.h"
#include "plain.h"
#include "rows.h"
#include "story.h"

#define LONG_MS (INT64_C(10) * 60 * 1000)

/* ---- a list of intents */

/* The command to type next is a member of the row: set_commands. */
static void print_intent(const json_t *row)
{
	const char *owner = operator_text(row, "owner"), *why = operator_text(row, "reason");

	if (owner[0] != '\0') {
		plain_line("  owner %s", owner);
	}
	if (why[0] != '\0') {
		plain_line("  because %s", why);
	}
	plain_line("  %s", operator_text(row, "command"));
}

/* resolve --all narrows by this code. */
static void print_doubt(const json_t *row)
{
	if (operator_text(row, "error_code")[0] != '\0') {
		plain_line("  error %s", operator_text(row, "error_code"));
	}
	print_intent(row);
}

static void set_commands(const cli_invocation *invocation, json_t *rows, const char *verb)
{
	json_t *row = NULL;
	size_t index = 0;

	json_array_foreach(rows, index, row)
	{
		char *command = story_command(invocation, verb, operator_text(row, "tenant"), operator_text(row, "scope"),
		                              operator_text(row, "key"));
		json_object_set_new(row, "command", json_string(command));
		free(command);
	}
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

/* One list, made by each node that is asked. */
typedef struct section {
	const char *member;  /* of the answer; NULL: it is the list */
	const char *counted; /* NULL: no option cuts it */
	const rows_order *order;
} section;

static const rows_order by_lease[] = {{"lease_until", ROWS_OLDEST}, {NULL, ROWS_TEXT}};
static const rows_order by_creation[] = {{"created_at", ROWS_OLDEST}, {NULL, ROWS_TEXT}};
static const rows_order by_attempts[] = {{"attempts", ROWS_MOST}, {"created_at", ROWS_OLDEST}, {NULL, ROWS_TEXT}};
static const rows_order by_holder[] = {
    {"kind", ROWS_TEXT}, {"holder", ROWS_TEXT}, {"topic", ROWS_TEXT}, {"state", ROWS_TEXT}, {NULL, ROWS_TEXT}};
static const rows_order by_doubt[] = {
    {"since", ROWS_OLDEST}, {"scope", ROWS_TEXT}, {"key", ROWS_TEXT}, {NULL, ROWS_TEXT}};

static const section stuck_sections[] = {{"stale", "stale intents", by_lease},
                                         {"active", "running intents", by_creation},
                                         {"retried", "intents retried often", by_attempts},
                                         {"parked", NULL, by_holder}};
static const section doubt_section = {NULL, "intents in doubt", by_doubt};

enum {
	STUCK_SECTIONS = sizeof stuck_sections / sizeof stuck_sections[0]
};

/* A column for the node, with --nodes. */
static const operator_column *with_node(const cli_invocation *invocation, const operator_column *columns)
{
	return invocation->given[OPTION_NODES] ? columns : columns + 1;
}

static void print_stuck(const cli_invocation *invocation, json_t *const *lists)
{
	static const operator_column stale[] = {{"NODE", "node", COLUMN_TEXT},        {"SCOPE", "scope", COLUMN_TEXT},
	                                        {"KEY", "key", COLUMN_TEXT},          {"POLICY", "on_stale", COLUMN_TEXT},
	                                        {"STALE", "stale_ms", COLUMN_AGE},    {"AGE", "age_ms", COLUMN_AGE},
	                                        {"TRIES", "attempts", COLUMN_NUMBER}, {NULL, NULL, COLUMN_TEXT}};
	static const operator_column active[] = {{"NODE", "node", COLUMN_TEXT},     {"SCOPE", "scope", COLUMN_TEXT},
	                                         {"KEY", "key", COLUMN_TEXT},       {"AGE", "age_ms", COLUMN_AGE},
	                                         {"LEASE", "lease_ms", COLUMN_AGE}, {"TRIES", "attempts", COLUMN_NUMBER},
	                                         {NULL, NULL, COLUMN_TEXT}};
	static const operator_column retried[] = {{"NODE", "node", COLUMN_TEXT}, {"SCOPE", "scope", COLUMN_TEXT},
	                                          {"KEY", "key", COLUMN_TEXT},   {"STATE", "state", COLUMN_TEXT},
	                                          {"AGE", "age_ms", COLUMN_AGE}, {"TRIES", "attempts", COLUMN_NUMBER},
	                                          {NULL, NULL, COLUMN_TEXT}};
	static const operator_column parked[] = {{"NODE", "node", COLUMN_TEXT},     {"KIND", "kind", COLUMN_TEXT},
	                                         {"HOLDER", "holder", COLUMN_TEXT}, {"TOPIC", "topic", COLUMN_TEXT},
	                                         {"STATE", "state", COLUMN_TEXT},   {"COUNT", "items", COLUMN_NUMBER},
	                                         {"OLDEST", "age_ms", COLUMN_AGE},  {NULL, NULL, COLUMN_TEXT}};
	bool any = false;

	set_commands(invocation, lists[0], "resolve");
	set_commands(invocation, lists[1], "show");
	set_commands(invocation, lists[2], "show");
	any |= print_section(lists[0], "stale: the lease has passed and nothing was reported", with_node(invocation, stale),
	                     print_doubt, "judge all of them: pgonce recover; one of them: pgonce resolve");
	any |= print_section(lists[1], "running for long: the lease is renewed", with_node(invocation, active),
	                     print_intent, NULL);
	any |= print_section(lists[2], "retried often", with_node(invocation, retried), print_intent, NULL);
	any |= print_section(lists[3], "parked events and messages", with_node(invocation, parked), NULL,
	                     "pgonce parked list");
	if (!any) {
		puts("nothing is stuck");
	}
}

/* ---- the commands */

/* Adds what a node answers to the lists. The last parameter is for its slots. */
static int list_node(const cli_invocation *invocation, const node *node, enum sql_id id, int parameter_count,
                     const char **parameters, const section *sections, int section_count, json_t **lists)
{
	int64_t take = cli_number(invocation, OPTION_TAKE, OPERATOR_TAKE);
	char *slots = node_slots(node);
	json_t *answer = NULL;

	parameters[parameter_count - 1] = slots;
	int result = operator_query(invocation, node->connection, id, parameter_count, parameters,
	                            "cannot list the intents", &answer);
	for (int i = 0; i < section_count && result == CLI_OK; i++) {
		json_t *rows = sections[i].member == NULL ? answer : json_object_get(answer, sections[i].member);
		bool cut = sections[i].counted != NULL;
		node_mark(node, rows);
		lists[i] = lists[i] == NULL
		               ? json_incref(rows)
		               : rows_merge(lists[i], json_incref(rows), sections[i].order, cut ? (size_t)take : SIZE_MAX);
	}
	json_decref(answer);
	free(slots);
	return result;
}

static int list(const cli_invocation *invocation, enum sql_id id, int parameter_count, const char **parameters,
                const section *sections, int section_count, json_t **lists)
{
	node_list nodes;
	int result = node_list_open(invocation, &nodes);

	for (node *node = node_list_next(&nodes, NULL); node != NULL && result == CLI_OK;
	     node = node_list_next(&nodes, node)) {
		result = list_node(invocation, node, id, parameter_count, parameters, sections, section_count, lists);
	}
	result = node_list_end(invocation, &nodes, result);
	node_list_close(&nodes);
	return result;
}

static bool is_answered(int result)
{
	return result == CLI_OK || result == CLI_INCOMPLETE;
}

int cli_stuck(const cli_invocation *invocation)
{
	int64_t running_ms = cli_number(invocation, OPTION_LONGER_THAN, LONG_MS);
	char *take = operator_take(invocation);
	char *running = cli_format("%" PRId64 " milliseconds", running_ms);
	const char *parameters[] = {invocation->text[OPTION_SCOPE], invocation->text[OPTION_TENANT], running, take, NULL};
	json_t *lists[STUCK_SECTIONS] = {NULL};
	int result = list(invocation, SQL_STUCK, 5, parameters, stuck_sections, STUCK_SECTIONS, lists);

	if (is_answered(result) && invocation->given[OPTION_JSON]) {
		json_t *all = json_object();
		for (int i = 0; i < STUCK_SECTIONS; i++) {
			json_object_set(all, stuck_sections[i].member, lists[i]);
		}
		cli_print_json(all);
	} else if (is_answered(result)) {
		print_stuck(invocation, lists);
	}
	for (int i = 0; i < STUCK_SECTIONS; i++) {
		if (is_answered(result) && stuck_sections[i].counted != NULL) {
			operator_note_cut(invocation, lists[i], stuck_sections[i].counted);
		}
		json_decref(lists[i]);
	}
	free(take);
	free(running);
	return result;
}

int cli_in_doubt(const cli_invocation *invocation)
{
	static const operator_column columns[] = {{"NODE", "node", COLUMN_TEXT},        {"SCOPE", "scope", COLUMN_TEXT},
	                                          {"KEY", "key", COLUMN_TEXT},          {"AGE", "age_ms", COLUMN_AGE},
	                                          {"TRIES", "attempts", COLUMN_NUMBER}, {NULL, NULL, COLUMN_TEXT}};
	char *take = operator_take(invocation);
	const char *parameters[] = {invocation->text[OPTION_SCOPE], invocation->text[OPTION_TENANT], take, NULL};
	json_t *rows = NULL;
	int result = list(invocation, SQL_IN_DOUBT, 4, parameters, &doubt_section, 1, &rows);

	if (is_answered(result) && invocation->given[OPTION_JSON]) {
		cli_print_json(json_incref(rows));
	} else if (is_answered(result)) {
		set_commands(invocation, rows, "resolve");
		if (!print_section(rows, "in doubt: the outcome is unknown; no attempt runs until it is decided",
		                   with_node(invocation, columns), print_doubt,
		                   "ask about all of them: pgonce recover --in-doubt; decide: pgonce resolve --all")) {
			puts("nothing is in doubt");
		}
	}
	if (is_answered(result)) {
		operator_note_cut(invocation, rows, doubt_section.counted);
	}
	json_decref(rows);
	free(take);
	return result;
}
