/* SPDX-License-Identifier: PostgreSQL */
/* find.c: pgonce find: which intents made this result, emitted this event,
 * belong to this trace ... (once.find). */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "operator.h"
#include "plain.h"
#include "story.h"

enum {
	TRACE_DIGITS = 32,
	TRACEPARENT_LENGTH = 55, /* 00-32-16-2 */
	PARAMETERS = 11,
	PART_ROWS = 1000
};

/* The options as the statement's parameters; memory allocated here is freed with the marks. */
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
	int result = operator_read_time(invocation, connection, id, true, &when);

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
		int result =
		    cli_result(invocation, OPTION_RESULT, "--result order:17, or --result-id 17 for a result of any type",
		               &type, &marks->parameters[4]);
		if (result != CLI_OK) {
			return result;
		}
		marks->parameters[3] = keep(marks, type);
	} else if (invocation->given[OPTION_RESULT_ID]) {
		marks->parameters[4] = invocation->text[OPTION_RESULT_ID];
	}
	return CLI_OK;
}

static int read_marks(const cli_invocation *invocation, marks *marks)
{
	marks->parameters[0] = invocation->text[OPTION_TENANT];
	marks->parameters[1] = invocation->text[OPTION_SCOPE];
	marks->parameters[2] = invocation->text[OPTION_STATE];
	marks->parameters[5] = invocation->text[OPTION_EVENT];
	marks->parameters[7] = invocation->text[OPTION_OWNER];
	marks->parameters[10] = keep(marks, operator_take(invocation));
	if (marks->parameters[5] != NULL && !operator_is_uuid(marks->parameters[5])) {
		return cli_fail(invocation, CLI_USAGE, "pgonce parked list shows events and their ids",
		                "option --event: '%s' is not an event's id, which is a UUID", marks->parameters[5]);
	}
	if (invocation->given[OPTION_TRACE]) {
		char *trace = read_trace(invocation->text[OPTION_TRACE]);
		if (trace == NULL) {
			return cli_fail(
			    invocation, CLI_USAGE, "the 32 hexadecimal digits of the trace, or the complete traceparent",
			    "option --trace: '%s' is neither a trace's id nor a traceparent", invocation->text[OPTION_TRACE]);
		}
		marks->parameters[6] = keep(marks, trace);
	}
	return read_result(invocation, marks);
}

/* ---- telling */

static void print_more(const json_t *row)
{
	char *trace = read_trace(operator_text(row, "traceparent"));
	char *result = cli_format("%s %s", operator_text(row, "result_type"), operator_text(row, "result_id"));
	const struct {
		const char *name;
		const char *value; /* empty: it has none */
	} marks[] = {{"tenant ", operator_text(row, "tenant")},
	             {"result ", strlen(result) > 1 ? result : ""},
	             {"owner ", operator_text(row, "owner")},
	             {"trace ", trace != NULL ? trace : ""},
	             {"", json_is_true(json_object_get(row, "archived")) ? "archived" : ""}};
	const char *separator = "  ";

	for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
		if (marks[i].value[0] != '\0') {
			printf("%s%s", separator, marks[i].name);
			plain_print(marks[i].value);
			separator = ", ";
		}
	}
	if (separator[0] == ',') {
		putchar('\n');
	}
	free(result);
	free(trace);
}

/* The found rows, printed while they arrive: only a part of them is in memory. */
typedef struct listing {
	bool as_json;
	size_t count;
	json_t *part;  /* for people: rows that are not printed yet; the first of all stays */
	json_t *first; /* for people */
	operator_table table;
	int write_error; /* the errno; 0: none */
	bool unknown;    /* a row is not JSON */
} listing;

static void print_part(listing *listing)
{
	static const operator_column columns[] = {{"SCOPE", "scope", COLUMN_TEXT},      {"KEY", "key", COLUMN_TEXT},
	                                          {"STATE", "state", COLUMN_TEXT},      {"AGE", "age_ms", COLUMN_AGE},
	                                          {"TRIES", "attempts", COLUMN_NUMBER}, {NULL, NULL, COLUMN_TEXT}};

	if (json_array_size(listing->part) > 0) {
		operator_print_part(&listing->table, listing->part, columns, print_more);
		json_array_clear(listing->part);
	}
}

/*
 * An element of the document, formatted as in the whole: an array of it alone is "[", the element,
 * and "\n]".
 */
static void print_element(const listing *listing, json_t *row)
{
	json_t *array = json_pack("[O]", row);
	char *text = json_dumps(array, JSON_INDENT(2) | JSON_PRESERVE_ORDER);

	if (text != NULL) {
		printf("%c%.*s", listing->count == 0 ? '[' : ',', (int)strlen(text) - 3, text + 1);
	}
	free(text);
	json_decref(array);
}

static bool take(void *argument, const PGresult *row)
{
	listing *listing = argument;
	/* Numbers larger than a double holds exactly occur only in texts. */
	json_t *json = json_loads(PQgetvalue(row, 0, 0), JSON_ALLOW_NUL, NULL);

	if (json == NULL) {
		listing->unknown = true;
		return false;
	}
	if (listing->as_json) {
		print_element(listing, json);
	} else {
		listing->first = listing->first == NULL ? json_incref(json) : listing->first;
		json_array_append(listing->part, json);
		if (json_array_size(listing->part) == PART_ROWS) {
			print_part(listing);
		}
	}
	json_decref(json);
	listing->count++;
	listing->write_error = ferror(stdout) != 0 ? errno : 0;
	return listing->write_error == 0;
}

static void print_end(listing *listing)
{
	if (listing->as_json) {
		fputs(listing->count > 0 ? "\n]\n" : "[]\n", stdout);
		return;
	}
	if (listing->count == 0) {
		return;
	}
	const json_t *first = listing->first;
	char *command = listing->count == 1 ? story_command("show", operator_text(first, "tenant"),
	                                                    operator_text(first, "scope"), operator_text(first, "key"))
	                                    : cli_duplicate("pgonce show --scope SCOPE --key KEY");
	putchar('\n');
	plain_line("the whole story: %s", command);
	free(command);
}

static int list(const cli_invocation *invocation, PGconn *connection, const marks *marks)
{
	listing listing = {.as_json = invocation->given[OPTION_JSON], .part = json_array()};
	int result =
	    connect_stream(invocation, connection, SQL_FIND, PARAMETERS, marks->parameters, "cannot find", take, &listing);

	print_part(&listing);
	if (result != CLI_OK && listing.count > 0) {
		cli_note(invocation, "the list is incomplete: %zu intents", listing.count);
	} else if (result == CLI_OK && listing.unknown) {
		result =
		    cli_fail(invocation, CLI_FAILED, "pgonce doctor", "cannot find: the contract answered in an unknown form");
	} else if (result == CLI_OK && listing.write_error != 0) {
		result = cli_fail(invocation, CLI_FAILED, NULL, "cannot write to standard output: %s",
		                  strerror(listing.write_error));
	} else if (result == CLI_OK) {
		print_end(&listing);
	}
	if (result == CLI_OK && listing.count == 0) {
		result = cli_fail(invocation, CLI_NOT_FOUND,
		                  "omit an option, or check the database; the work of an open transaction is not visible, and "
		                  "a result is found only if the outcome names it (result_type, result_id)",
		                  "no intent matches all these options, in database %s", PQdb(connection));
	} else if (result == CLI_OK && strtoull(marks->parameters[10], NULL, 10) == listing.count) {
		cli_note(invocation, "only the newest %s are listed; --limit N lists more", marks->parameters[10]);
	}
	json_decref(listing.part);
	json_decref(listing.first);
	return result;
}

int cli_find(const cli_invocation *invocation)
{
	marks marks = {.made_count = 0};
	once_session *session = NULL;
	int result = read_marks(invocation, &marks);

	if (result == CLI_OK) {
		result = connect_open(invocation, &session);
	}
	PGconn *connection = session != NULL ? once_session_connection(session) : NULL;
	if (result == CLI_OK) {
		result = read_when(invocation, connection, OPTION_SINCE, &marks, 8);
	}
	if (result == CLI_OK) {
		result = read_when(invocation, connection, OPTION_UNTIL, &marks, 9);
	}
	if (result == CLI_OK) {
		result = list(invocation, connection, &marks);
	}
	once_session_close(session);
	marks_free(&marks);
	return result;
}
