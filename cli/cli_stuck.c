/* SPDX-License-Identifier: PostgreSQL */
/* cli_stuck.c: pgonce stuck and pgonce in-doubt: what does not come to an end by itself, each with what to type next. */
#include <inttypes.h>
#include <stdlib.h>

#include "parked.h"
#include "plain.h"
#include "story.h"

#define LONG_MS (INT64_C(10) * 60 * 1000)

enum {
	LISTED_STANDARD = 100
};

/* ---- a list of intents */

static void print_intent(const json_t *row, const char *verb)
{
	const char *owner = parked_text(row, "owner"), *why = parked_text(row, "reason");
	char *command = story_command(verb, parked_text(row, "tenant"), parked_text(row, "scope"), parked_text(row, "key"));

	if (owner[0] != '\0') {
		fputs("  owner ", stdout);
		plain_print(owner);
		putchar('\n');
	}
	if (why[0] != '\0') {
		fputs("  because ", stdout);
		plain_print(why);
		putchar('\n');
	}
	fputs("  ", stdout);
	plain_print(command);
	putchar('\n');
	free(command);
}

static void print_to_show(const json_t *row)
{
	print_intent(row, "show");
}

static void print_to_resolve(const json_t *row)
{
	print_intent(row, "resolve");
}

/* True: something was printed. */
static bool print_section(const json_t *rows, const char *title, const parked_column *columns,
                          void (*more)(const json_t *row), const char *advice)
{
	if (json_array_size(rows) == 0) {
		return false;
	}
	printf("%s\n", title);
	parked_print_table(rows, columns, more);
	if (advice != NULL) {
		printf("  %s\n", advice);
	}
	putchar('\n');
	return true;
}

static void print_stuck(const json_t *stuck)
{
	static const parked_column stale[] = {
	    {"SCOPE", "scope", COLUMN_TEXT},   {"KEY", "key", COLUMN_TEXT},   {"POLICY", "on_stale", COLUMN_TEXT},
	    {"STALE", "stale_ms", COLUMN_AGE}, {"AGE", "age_ms", COLUMN_AGE}, {"TRIES", "attempts", COLUMN_NUMBER},
	    {NULL, NULL, COLUMN_TEXT}};
	static const parked_column active[] = {{"SCOPE", "scope", COLUMN_TEXT},      {"KEY", "key", COLUMN_TEXT},
	                                       {"AGE", "age_ms", COLUMN_AGE},        {"LEASE", "lease_ms", COLUMN_AGE},
	                                       {"TRIES", "attempts", COLUMN_NUMBER}, {NULL, NULL, COLUMN_TEXT}};
	static const parked_column retried[] = {{"SCOPE", "scope", COLUMN_TEXT},      {"KEY", "key", COLUMN_TEXT},
	                                        {"STATE", "state", COLUMN_TEXT},      {"AGE", "age_ms", COLUMN_AGE},
	                                        {"TRIES", "attempts", COLUMN_NUMBER}, {NULL, NULL, COLUMN_TEXT}};
	static const parked_column events[] = {{"RELAY", "relay", COLUMN_TEXT},  {"TOPIC", "topic", COLUMN_TEXT},
	                                       {"STATE", "state", COLUMN_TEXT},  {"EVENTS", "events", COLUMN_NUMBER},
	                                       {"OLDEST", "age_ms", COLUMN_AGE}, {NULL, NULL, COLUMN_TEXT}};
	static const parked_column messages[] = {{"CONSUMER", "consumer", COLUMN_TEXT},
	                                         {"STATE", "state", COLUMN_TEXT},
	                                         {"MESSAGES", "messages", COLUMN_NUMBER},
	                                         {"OLDEST", "age_ms", COLUMN_AGE},
	                                         {NULL, NULL, COLUMN_TEXT}};
	bool any = false;

	any |= print_section(json_object_get(stuck, "stale"), "stale: the lease passed without a word", stale,
	                     print_to_resolve, "judge all of them: pgonce recover --once; one of them: pgonce resolve");
	any |= print_section(json_object_get(stuck, "active"), "running for long: the lease is renewed", active,
	                     print_to_show, NULL);
	any |= print_section(json_object_get(stuck, "retried"), "retried often", retried, print_to_show, NULL);
	any |=
	    print_section(json_object_get(stuck, "events"), "events that are parked", events, NULL, "pgonce outbox list");
	any |= print_section(json_object_get(stuck, "messages"), "messages that are parked", messages, NULL,
	                     "pgonce dead list");
	if (!any) {
		puts("nothing is stuck");
	}
}

/* ---- the commands */

/* A note for each list that is as long as it may be. */
static void note_cut(const cli_invocation *invocation, const json_t *list, const char *what, int64_t take)
{
	if ((int64_t)json_array_size(list) == take) {
		cli_note(invocation, "only the first %" PRId64 " %s are listed; --limit N lists more", take, what);
	}
}

static int list(const cli_invocation *invocation, enum sql_id id, int parameter_count, const char *const *parameters,
                json_t **rows)
{
	once_session *session = NULL;
	char *conninfo = connect_conninfo(invocation);
	int result = conninfo == NULL ? CLI_USAGE : connect_session(invocation, conninfo, &session);

	if (result == CLI_OK) {
		result = parked_query(invocation, once_session_connection(session), id, parameter_count, parameters,
		                      "cannot list the intents", rows);
	}
	if (result == CLI_OK && invocation->given[OPTION_JSON]) {
		cli_print_json(json_incref(*rows));
	}
	once_session_close(session);
	free(conninfo);
	return result;
}

static int64_t listed(const cli_invocation *invocation)
{
	return invocation->given[OPTION_TAKE] ? invocation->number[OPTION_TAKE] : LISTED_STANDARD;
}

int cli_stuck(const cli_invocation *invocation)
{
	int64_t running_ms = invocation->given[OPTION_LONGER_THAN] ? invocation->number[OPTION_LONGER_THAN] : LONG_MS;
	char *take = cli_format("%" PRId64, listed(invocation));
	char *running = cli_format("%" PRId64 " milliseconds", running_ms);
	const char *parameters[] = {parked_option(invocation, OPTION_FIND_SCOPE),
	                            parked_option(invocation, OPTION_FIND_TENANT), running, take};
	json_t *stuck = NULL;
	int result = list(invocation, SQL_STUCK, 4, parameters, &stuck);

	if (result == CLI_OK && !invocation->given[OPTION_JSON]) {
		print_stuck(stuck);
	}
	if (result == CLI_OK) {
		note_cut(invocation, json_object_get(stuck, "stale"), "stale intents", listed(invocation));
		note_cut(invocation, json_object_get(stuck, "active"), "running intents", listed(invocation));
		note_cut(invocation, json_object_get(stuck, "retried"), "intents retried often", listed(invocation));
	}
	json_decref(stuck);
	free(take);
	free(running);
	return result;
}

int cli_in_doubt(const cli_invocation *invocation)
{
	static const parked_column columns[] = {{"SCOPE", "scope", COLUMN_TEXT},
	                                        {"KEY", "key", COLUMN_TEXT},
	                                        {"AGE", "age_ms", COLUMN_AGE},
	                                        {"TRIES", "attempts", COLUMN_NUMBER},
	                                        {NULL, NULL, COLUMN_TEXT}};
	char *take = cli_format("%" PRId64, listed(invocation));
	const char *parameters[] = {parked_option(invocation, OPTION_FIND_SCOPE),
	                            parked_option(invocation, OPTION_FIND_TENANT), take};
	json_t *rows = NULL;
	int result = list(invocation, SQL_IN_DOUBT, 3, parameters, &rows);

	if (result == CLI_OK && !invocation->given[OPTION_JSON] &&
	    !print_section(rows, "in doubt: nobody knows whether the effect happened; no attempt runs until it is decided",
	                   columns, print_to_resolve,
	                   "ask about all of them: pgonce recover --once --in-doubt; decide: pgonce resolve --all")) {
		puts("nothing is in doubt");
	}
	if (result == CLI_OK) {
		note_cut(invocation, rows, "intents in doubt", listed(invocation));
	}
	json_decref(rows);
	free(take);
	return result;
}
