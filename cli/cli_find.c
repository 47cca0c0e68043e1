/* SPDX-License-Identifier: PostgreSQL */
/* cli_find.c: pgonce find: which intents made this result, emitted this event, belong to this trace ... (once.find). */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "parked.h"
#include "plain.h"
#include "story.h"

enum {
	LISTED_STANDARD = 100,
	TRACE_DIGITS = 32,
	TRACEPARENT_LENGTH = 55, /* 00-32-16-2 */
	PARAMETERS = 11
};

/* What the options say, as the statement's parameters; what is made here is freed with the marks. */
typedef struct marks {
	const char *parameters[PARAMETERS];
	char *made[PARAMETERS];
	int made_count;
} marks;

static const char *keep(marks *marks, char *text)
{
	marks->made[marks->made_count++] = text;
	return text;
}

static void marks_free(marks *marks)
{
	for (int i = 0; i < marks->made_count; i++) {
		free(marks->made[i]);
	}
}

static bool is_hex(const char *text, size_t length)
{
	for (size_t i = 0; i < length; i++) {
		if (!isxdigit((unsigned char)text[i])) {
			return false;
		}
	}
	return true;
}

/* The trace's 32 digits in "00-<trace>-<span>-01", or the digits alone. NULL: it is neither. */
static char *read_trace(const char *text)
{
	size_t length = strlen(text);
	const char *digits = length == TRACE_DIGITS                                                            ? text
	                     : length == TRACEPARENT_LENGTH && text[2] == '-' && text[3 + TRACE_DIGITS] == '-' ? text + 3
	                                                                                                       : NULL;
	if (digits == NULL || !is_hex(digits, TRACE_DIGITS)) {
		return NULL;
	}
	char *trace = cli_duplicate(digits);
	trace[TRACE_DIGITS] = '\0';
	for (char *at = trace; *at != '\0'; at++) {
		*at = (char)tolower((unsigned char)*at);
	}
	return trace;
}

static int read_when(const cli_invocation *invocation, PGconn *connection, option_id id, marks *marks, int index)
{
	char *when = NULL;
	int result = parked_read_time(invocation, connection, id, true, &when);

	marks->parameters[index] = keep(marks, when);
	return result;
}

static int read_result(const cli_invocation *invocation, marks *marks)
{
	if (invocation->given[OPTION_RESULT] && invocation->given[OPTION_RESULT_ID]) {
		return cli_fail(invocation, CLI_USAGE, "pgonce help find", "only one of --result and --result-id");
	}
	if (invocation->given[OPTION_RESULT]) {
		char *type = NULL;
		marks->parameters[4] = cli_result(invocation, OPTION_RESULT,
		                                  "--result order:17, or --result-id 17 for a result of any type", &type);
		if (marks->parameters[4] == NULL) {
			return CLI_USAGE;
		}
		marks->parameters[3] = keep(marks, type);
	} else if (invocation->given[OPTION_RESULT_ID]) {
		marks->parameters[4] = invocation->text[OPTION_RESULT_ID];
	}
	return CLI_OK;
}

static int read_marks(const cli_invocation *invocation, marks *marks)
{
	int64_t take = invocation->given[OPTION_TAKE] ? invocation->number[OPTION_TAKE] : LISTED_STANDARD;

	marks->parameters[0] = parked_option(invocation, OPTION_FIND_TENANT);
	marks->parameters[1] = parked_option(invocation, OPTION_FIND_SCOPE);
	marks->parameters[2] = parked_option(invocation, OPTION_INTENT_STATE);
	marks->parameters[5] = parked_option(invocation, OPTION_EVENT);
	marks->parameters[7] = parked_option(invocation, OPTION_OWNER);
	marks->parameters[10] = keep(marks, cli_format("%lld", (long long)take));
	if (marks->parameters[5] != NULL && !parked_is_uuid(marks->parameters[5])) {
		return cli_fail(invocation, CLI_USAGE, "pgonce outbox list shows events and their ids",
		                "option --event: '%s' is no event's id: it is a UUID", marks->parameters[5]);
	}
	if (invocation->given[OPTION_TRACE]) {
		char *trace = read_trace(invocation->text[OPTION_TRACE]);
		if (trace == NULL) {
			return cli_fail(invocation, CLI_USAGE, "the 32 hexadecimal digits of the trace, or the whole traceparent",
			                "option --trace: '%s' is neither a trace's id nor a traceparent",
			                invocation->text[OPTION_TRACE]);
		}
		marks->parameters[6] = keep(marks, trace);
	}
	return read_result(invocation, marks);
}

/* ---- telling */

static void print_more(const json_t *row)
{
	const char *tenant = parked_text(row, "tenant"), *owner = parked_text(row, "owner");
	const char *trace = parked_text(row, "traceparent");
	const char *separator = "  ";

	if (tenant[0] != '\0') {
		printf("%stenant ", separator);
		plain_print(tenant);
		separator = ", ";
	}
	if (parked_text(row, "result_id")[0] != '\0' || parked_text(row, "result_type")[0] != '\0') {
		printf("%sresult ", separator);
		plain_print(parked_text(row, "result_type"));
		putchar(' ');
		plain_print(parked_text(row, "result_id"));
		separator = ", ";
	}
	if (owner[0] != '\0') {
		printf("%sowner ", separator);
		plain_print(owner);
		separator = ", ";
	}
	if (strlen(trace) == TRACEPARENT_LENGTH) {
		printf("%strace %.*s", separator, TRACE_DIGITS, trace + 3);
		separator = ", ";
	}
	if (json_is_true(json_object_get(row, "archived"))) {
		printf("%sarchived", separator);
		separator = ", ";
	}
	if (separator[0] == ',') {
		putchar('\n');
	}
}

static void print_found(const json_t *found)
{
	static const parked_column columns[] = {{"SCOPE", "scope", COLUMN_TEXT},      {"KEY", "key", COLUMN_TEXT},
	                                        {"STATE", "state", COLUMN_TEXT},      {"AGE", "age_ms", COLUMN_AGE},
	                                        {"TRIES", "attempts", COLUMN_NUMBER}, {NULL, NULL, COLUMN_TEXT}};
	const json_t *first = json_array_get(found, 0);

	parked_print_table(found, columns, print_more);
	char *command = json_array_size(found) == 1 ? story_command("show", parked_text(first, "tenant"),
	                                                            parked_text(first, "scope"), parked_text(first, "key"))
	                                            : cli_duplicate("pgonce show --scope SCOPE --key KEY");
	fputs("\nthe whole story: ", stdout);
	plain_print(command);
	putchar('\n');
	free(command);
}

int cli_find(const cli_invocation *invocation)
{
	marks marks = {.made_count = 0};
	once_session *session = NULL;
	json_t *found = NULL;
	char *conninfo = NULL;
	int result = read_marks(invocation, &marks);

	if (result == CLI_OK && (conninfo = connect_conninfo(invocation)) == NULL) {
		result = CLI_USAGE;
	}
	if (result == CLI_OK) {
		result = connect_session(invocation, conninfo, &session);
	}
	PGconn *connection = session != NULL ? once_session_connection(session) : NULL;
	if (result == CLI_OK) {
		result = read_when(invocation, connection, OPTION_SINCE, &marks, 8);
	}
	if (result == CLI_OK) {
		result = read_when(invocation, connection, OPTION_UNTIL, &marks, 9);
	}
	if (result == CLI_OK) {
		result = parked_query(invocation, connection, SQL_FIND, PARAMETERS, marks.parameters, "cannot find", &found);
	}
	if (result == CLI_OK && invocation->given[OPTION_JSON]) {
		cli_print_json(json_incref(found));
	} else if (result == CLI_OK && json_array_size(found) > 0) {
		print_found(found);
	}
	if (result == CLI_OK && json_array_size(found) == 0) {
		result = cli_fail(invocation, CLI_NOT_FOUND,
		                  "leave a mark out, or check the database; what a transaction that is still open does is not "
		                  "seen, and a result is only found where the outcome names it (result_type, result_id)",
		                  "no intent has all these marks, in database %s", PQdb(connection));
	} else if (result == CLI_OK && strtoull(marks.parameters[10], NULL, 10) == json_array_size(found)) {
		cli_note(invocation, "only the newest %s are listed; --limit N lists more", marks.parameters[10]);
	}
	json_decref(found);
	once_session_close(session);
	free(conninfo);
	marks_free(&marks);
	return result;
}
