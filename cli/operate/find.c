/* SPDX-License-Identifier: PostgreSQL */
/* find.c: pgonce find: which intents made this result, emitted this event,
 * belong to this trace ... (once.find). */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "operator.h"
#include "plain.h"
#include "rows.h"
#include "story.h"

enum {
	TRACE_DIGITS = 32,
	TRACEPARENT_LENGTH = 55, /* 00-32-16-2 */
	PARAMETERS = 11,
	TAKE = 10, /* the parameter --limit */
	FIND_MORE = 8,
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
	marks->parameters[TAKE] = keep(marks, operator_take(invocation));
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
	bool with_node;
	size_t count;
	json_t *part;  /* for people: rows that are not printed yet; the first of all stays */
	json_t *first; /* for people */
	operator_table table;
	int write_error; /* the errno; 0: none */
} listing;

static void print_part(listing *listing)
{
	static const operator_column columns[] = {{"NODE", "node", COLUMN_TEXT}, {"SCOPE", "scope", COLUMN_TEXT},
	                                          {"KEY", "key", COLUMN_TEXT},   {"STATE", "state", COLUMN_TEXT},
	                                          {"AGE", "age_ms", COLUMN_AGE}, {"TRIES", "attempts", COLUMN_NUMBER},
	                                          {NULL, NULL, COLUMN_TEXT}};

	if (json_array_size(listing->part) > 0) {
		operator_print_part(&listing->table, listing->part, listing->with_node ? columns : columns + 1, print_more);
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

static void print_row(listing *listing, json_t *row)
{
	if (listing->as_json) {
		print_element(listing, row);
	} else {
		listing->first = listing->first == NULL ? json_incref(row) : listing->first;
		json_array_append(listing->part, row);
		if (json_array_size(listing->part) == PART_ROWS) {
			print_part(listing);
		}
	}
	listing->count++;
	listing->write_error = ferror(stdout) != 0 ? errno : 0;
}

static void print_end(const cli_invocation *invocation, listing *listing)
{
	if (listing->as_json) {
		fputs(listing->count > 0 ? "\n]\n" : "[]\n", stdout);
		return;
	}
	if (listing->count == 0) {
		return;
	}
	const json_t *first = listing->first;
	char *command = listing->count == 1 ? story_command(invocation, "show", operator_text(first, "tenant"),
	                                                    operator_text(first, "scope"), operator_text(first, "key"))
	                : listing->with_node
	                    ? cli_duplicate("pgonce show --nodes FILE --tenant TENANT --scope SCOPE --key KEY")
	                    : cli_duplicate("pgonce show --scope SCOPE --key KEY");
	putchar('\n');
	plain_line("the whole story: %s", command);
	free(command);
}

/* ---- merging ---- */

static const rows_order newest_first[] = {
    {"created_at", ROWS_NEWEST}, {"tenant", ROWS_TEXT}, {"scope", ROWS_TEXT}, {"key", ROWS_TEXT}, {NULL, ROWS_TEXT}};

/* The intents of one node, as they arrive. */
typedef struct source {
	const node *node;
	json_t *row; /* the next row, or the last that was taken; NULL: at the beginning */
	bool taken;  /* it is the last one */
	int64_t asked;
	int64_t arrived;
	bool again; /* it was asked for more, and repeats what it has answered before */
	bool ended;
} source;

static int send_query(const cli_invocation *invocation, source *source, const marks *marks, int64_t take)
{
	const char *parameters[PARAMETERS];
	char *limit = cli_format("%" PRId64, take);

	memcpy(parameters, marks->parameters, sizeof parameters);
	parameters[TAKE] = limit;
	source->asked = take;
	source->arrived = 0;
	int result = connect_send(invocation, source->node->connection, SQL_FIND, PARAMETERS, parameters, "cannot find");
	free(limit);
	return result;
}

/* Only of tenants that the node serves, and only what comes after the last one. */
static bool is_new(const source *source, const json_t *row, int slot)
{
	const node *node = source->node;

	return (node->name == NULL || !node->divided || (slot >= 0 && slot < NODE_SLOTS && node->slots[slot].serves)) &&
	       (!source->again || source->row == NULL || rows_compare(source->row, row, newest_first) < 0);
}

/*
 * The next row of the source. The rows that a move has left behind count for its limit, but are not
 * shown: if that leaves too few, the source is asked for more, and begins anew.
 */
static int advance(const cli_invocation *invocation, source *source, const marks *marks)
{
	PGresult *answer = NULL;
	int result = CLI_OK;

	while (!source->ended && source->taken && result == CLI_OK) {
		result = connect_next(invocation, source->node->connection, "cannot find", &answer);
		if (result == CLI_OK && answer == NULL) {
			source->ended = source->arrived < source->asked || source->asked == INT32_MAX;
			if (!source->ended) {
				source->again = true;
				result = send_query(invocation, source, marks,
				                    source->asked < INT32_MAX / FIND_MORE ? source->asked * FIND_MORE : INT32_MAX);
			}
			continue;
		}
		source->arrived++;
		/* Numbers larger than a double holds exactly occur only in texts. */
		json_t *row = result == CLI_OK ? json_loads(PQgetvalue(answer, 0, 0), JSON_ALLOW_NUL, NULL) : NULL;
		if (result == CLI_OK && row == NULL) {
			result = cli_fail(invocation, CLI_FAILED, "pgonce doctor",
			                  "cannot find: the contract answered in an unknown form");
		} else if (result == CLI_OK && is_new(source, row, atoi(PQgetvalue(answer, 0, 1)))) {
			if (source->node->name != NULL) {
				json_object_set_new(row, "node", json_string(source->node->name));
			}
			json_decref(source->row);
			source->row = json_incref(row);
			source->taken = false;
		}
		json_decref(row);
		PQclear(answer);
	}
	return result;
}
static source *first_of(source *sources, size_t count)
{
	source *first = NULL;

	for (size_t i = 0; i < count; i++) {
		if (!sources[i].taken && (first == NULL || rows_compare(sources[i].row, first->row, newest_first) < 0)) {
			first = &sources[i];
		}
	}
	return first;
}

/* Prints the rows of all sources in one order, until there are enough. */
static int merge(const cli_invocation *invocation, source *sources, size_t count, const marks *marks, listing *listing)
{
	size_t take = (size_t)cli_number(invocation, OPTION_TAKE, OPERATOR_TAKE);
	int result = CLI_OK;

	for (size_t i = 0; i < count && result == CLI_OK; i++) {
		result = send_query(invocation, &sources[i], marks, (int64_t)take);
	}
	for (size_t i = 0; i < count && result == CLI_OK; i++) {
		result = advance(invocation, &sources[i], marks);
	}
	while (result == CLI_OK && listing->write_error == 0) {
		source *next = first_of(sources, count);
		if (next == NULL) {
			break;
		}
		print_row(listing, next->row);
		next->taken = true;
		if (listing->count == take) {
			break;
		}
		result = advance(invocation, next, marks);
	}
	return result;
}

static int list(const cli_invocation *invocation, const node_list *nodes, const marks *marks)
{
	listing listing = {
	    .as_json = invocation->given[OPTION_JSON], .with_node = invocation->given[OPTION_NODES], .part = json_array()};
	source *sources = cli_allocate(nodes->count * sizeof *sources);
	size_t count = 0;

	for (node *node = node_list_next(nodes, NULL); node != NULL; node = node_list_next(nodes, node)) {
		sources[count++] = (source){.node = node, .taken = true};
	}
	int result = merge(invocation, sources, count, marks, &listing);
	print_part(&listing);
	if (result != CLI_OK && listing.count > 0) {
		cli_note(invocation, "the list is incomplete: %zu intents", listing.count);
	} else if (result == CLI_OK && listing.write_error != 0) {
		result = cli_fail(invocation, CLI_FAILED, NULL, "cannot write to standard output: %s",
		                  strerror(listing.write_error));
	} else if (result == CLI_OK) {
		print_end(invocation, &listing);
	}
	if (result == CLI_OK && listing.count == 0) {
		char *where = count == 1 ? node_text(sources[0].node) : cli_format("on %zu nodes", count);
		result = cli_fail(invocation, CLI_NOT_FOUND,
		                  "omit an option, or check the database; the work of an open transaction is not visible, and "
		                  "a result is found only if the outcome names it (result_type, result_id)",
		                  "no intent matches all these options, %s", where);
		free(where);
	} else if (result == CLI_OK && strtoull(marks->parameters[TAKE], NULL, 10) == listing.count) {
		cli_note(invocation, "only the newest %s are listed; --limit N lists more", marks->parameters[TAKE]);
	}
	for (size_t i = 0; i < count; i++) {
		json_decref(sources[i].row);
	}
	free(sources);
	json_decref(listing.part);
	json_decref(listing.first);
	return result;
}

int cli_find(const cli_invocation *invocation)
{
	marks marks = {.made_count = 0};
	node_list nodes = {.count = 0};
	int result = read_marks(invocation, &marks);

	if (result == CLI_OK) {
		result = node_list_open(invocation, &nodes);
	}
	PGconn *connection = result == CLI_OK ? node_list_next(&nodes, NULL)->connection : NULL;
	if (result == CLI_OK) {
		result = read_when(invocation, connection, OPTION_SINCE, &marks, 8);
	}
	if (result == CLI_OK) {
		result = read_when(invocation, connection, OPTION_UNTIL, &marks, 9);
	}
	if (result == CLI_OK) {
		result = list(invocation, &nodes, &marks);
		result = node_list_end(invocation, &nodes, result);
	}
	node_list_close(&nodes);
	marks_free(&marks);
	return result;
}
