/* SPDX-License-Identifier: PostgreSQL */
/* operator.c: see operator.h. */
#include "operator.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "plain.h"
#include "value.h"

enum {
	LINE_COLUMNS = 80,
	NAME_COLUMN = 12
};

/* ---- verbs */

static const operator_verb *find_verb(const operator_verb *verbs, const char *name)
{
	for (; verbs->name != NULL; verbs++) {
		if (strcmp(verbs->name, name) == 0) {
			return verbs;
		}
	}
	return NULL;
}

static bool is_known(const operator_verb *verb, option_id id)
{
	if (id == OPTION_DSN || id == OPTION_JSON || (verb->needs_reason && id == OPTION_REASON)) {
		return true;
	}
	for (const option_id *known = verb->options; *known != OPTION_COUNT; known++) {
		if (*known == id) {
			return true;
		}
	}
	return false;
}

int operator_check_reason(const cli_invocation *invocation, const char *verb)
{
	const char *reason = invocation->text[OPTION_REASON];

	if (reason != NULL && reason[strspn(reason, " \t")] != '\0') {
		return CLI_OK;
	}
	char *hint = cli_format("pgonce help %s", invocation->command->name);
	int result = cli_fail(invocation, CLI_USAGE, hint,
	                      "%s needs --reason TEXT: it is recorded with your role and the time", verb);
	free(hint);
	return result;
}

static int check_verb(const cli_invocation *invocation, const operator_verb *verb, const char *hint)
{
	for (int i = 0; i < invocation->command->use_count; i++) {
		option_id id = invocation->command->uses[i].id;
		if (invocation->given[id] && !is_known(verb, id)) {
			return cli_fail(invocation, CLI_USAGE, hint, "%s takes no option --%s", verb->name, cli_options[id].name);
		}
	}
	if (verb->operand != NULL && !verb->is_operand_optional && invocation->operand_count < 2) {
		return cli_fail(invocation, CLI_USAGE, hint, "%s: which one? Write %s %s", verb->name, verb->name,
		                verb->operand);
	}
	if (invocation->operand_count > (verb->operand != NULL ? 2 : 1)) {
		return cli_fail(invocation, CLI_USAGE, hint, "unexpected argument '%s'",
		                invocation->operands[verb->operand != NULL ? 2 : 1]);
	}
	int result = verb->needs_reason ? operator_check_reason(invocation, verb->name) : CLI_OK;
	return result == CLI_OK && verb->check != NULL ? verb->check(invocation) : result;
}

int operator_run(const cli_invocation *invocation, const operator_verb *verbs)
{
	char *hint = cli_format("pgonce help %s", invocation->command->name);
	const char *name = invocation->operand_count > 0 ? invocation->operands[0] : "";
	const operator_verb *verb = find_verb(verbs, name);
	once_session *session = NULL;
	int result = CLI_OK;

	if (verb == NULL) {
		result = cli_fail(invocation, CLI_USAGE, hint, "%s%s%s: write pgonce %s %s",
		                  name[0] != '\0' ? "unknown word '" : "what to do", name, name[0] != '\0' ? "'" : "",
		                  invocation->command->name, invocation->command->usage);
	} else {
		result = check_verb(invocation, verb, hint);
	}
	if (result == CLI_OK) {
		result = connect_open(invocation, &session);
	}
	if (result == CLI_OK) {
		assert(verb != NULL);
		result = verb->run(invocation, once_session_connection(session),
		                   invocation->operand_count > 1 ? invocation->operands[1] : NULL);
	}
	once_session_close(session);
	free(hint);
	return result;
}

char *operator_take(const cli_invocation *invocation)
{
	return cli_format("%" PRId64, cli_number(invocation, OPTION_TAKE, OPERATOR_TAKE));
}

void operator_note_cut(const cli_invocation *invocation, const json_t *list, const char *what)
{
	int64_t take = cli_number(invocation, OPTION_TAKE, OPERATOR_TAKE);

	if ((int64_t)json_array_size(list) == take) {
		cli_note(invocation, "only the first %" PRId64 " %s are listed; --limit N lists more", take, what);
	}
}

int operator_query(const cli_invocation *invocation, PGconn *connection, enum sql_id id, int parameter_count,
                   const char *const *parameters, const char *what, json_t **json)
{
	PGresult *answer = NULL;
	int result = connect_run(invocation, connection, id, parameter_count, parameters, what, &answer);

	*json = NULL;
	if (result != CLI_OK) {
		return result;
	}
	/* Numbers larger than a double holds exactly occur only in texts. */
	*json = PQntuples(answer) != 1      ? NULL
	        : PQgetisnull(answer, 0, 0) ? json_null()
	                                    : json_loads(PQgetvalue(answer, 0, 0), JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
	PQclear(answer);
	return *json != NULL ? CLI_OK
	                     : cli_fail(invocation, CLI_FAILED, "pgonce doctor",
	                                "%s: the contract answered in an unknown form", what);
}

bool operator_is_uuid(const char *text)
{
	static const char shape[] = "00000000-0000-0000-0000-000000000000";

	if (strlen(text) != sizeof shape - 1) {
		return false;
	}
	for (size_t i = 0; i < sizeof shape - 1; i++) {
		if (shape[i] == '-' ? text[i] != '-' : strchr("0123456789abcdefABCDEF", text[i]) == NULL) {
			return false;
		}
	}
	return true;
}

int operator_read_time(const cli_invocation *invocation, PGconn *connection, option_id id, bool spans, char **when)
{
	const char *text = invocation->text[id];
	int64_t milliseconds = 0;

	*when = NULL;
	if (!invocation->given[id]) {
		return CLI_OK;
	}
	char *span = spans && value_parse(VALUE_DURATION, text, &milliseconds)
	                 ? cli_format("%" PRId64 " milliseconds", milliseconds)
	                 : NULL;
	const char *parameters[] = {span == NULL ? text : NULL, span};
	PGresult *answer = connect_query(connection, SQL_READ_TIME, 2, parameters);
	const char *sqlstate = PQresultErrorField(answer, PG_DIAG_SQLSTATE);
	int result = CLI_OK;

	if (sqlstate != NULL && strncmp(sqlstate, "22", 2) == 0) {
		result = cli_fail(invocation, CLI_USAGE,
		                  spans ? "write 2h, 7d, or 2026-01-31 12:00+00" : "write 2026-01-31 12:00+00, or yesterday",
		                  "option --%s: '%s' is not a time", cli_options[id].name, text);
	} else if (PQresultStatus(answer) != PGRES_TUPLES_OK) {
		result = cli_report_result(invocation, connection, answer, "cannot read a time");
	} else {
		*when = cli_duplicate(PQgetvalue(answer, 0, 0));
	}
	PQclear(answer);
	free(span);
	return result;
}

/* ---- lists */

const char *operator_text(const json_t *object, const char *member)
{
	const char *text = json_string_value(json_object_get(object, member));
	return text != NULL ? text : "";
}

/* Its width in columns of a terminal, as far as bytes tell. */
static int width_of(const char *text)
{
	int width = 0;

	for (; *text != '\0'; text++) {
		width += ((unsigned char)*text & 0xc0) != 0x80;
	}
	return width;
}

/* "3m", "-2h": the largest unit that is not zero. */
static void show_duration(int64_t milliseconds, char *text, size_t size)
{
	static const struct {
		int64_t milliseconds;
		char name;
	} units[] = {{86400000, 'd'}, {3600000, 'h'}, {60000, 'm'}, {1000, 's'}};

	for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
		if (milliseconds >= units[i].milliseconds || milliseconds <= -units[i].milliseconds) {
			snprintf(text, size, "%" PRId64 "%c", milliseconds / units[i].milliseconds, units[i].name);
			return;
		}
	}
	snprintf(text, size, "0s");
}

static const char *show_cell(const json_t *row, const operator_column *column, char *text, size_t size)
{
	const json_t *value = json_object_get(row, column->member);

	if (json_is_string(value)) {
		return json_string_value(value);
	}
	if (!json_is_integer(value)) {
		return "-";
	}
	if (column->kind == COLUMN_AGE) {
		show_duration(json_integer_value(value), text, size);
	} else {
		snprintf(text, size, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
	}
	return text;
}

static void print_cell(const char *text, int width, column_kind kind, bool last)
{
	int padding = width - width_of(text);

	if (kind != COLUMN_TEXT) {
		printf("%*s", padding, "");
	}
	plain_print(text);
	if (kind == COLUMN_TEXT && !last) {
		printf("%*s", padding, "");
	}
	fputs(last ? "\n" : "  ", stdout);
}

void operator_print_table(const json_t *rows, const operator_column *columns, void (*more)(const json_t *row))
{
	operator_table table = {.has_head = false};

	operator_print_part(&table, rows, columns, more);
}

static void widen(int *width, const char *text)
{
	int needed = width_of(text);

	*width = needed > *width ? needed : *width;
}

void operator_print_part(operator_table *table, const json_t *rows, const operator_column *columns,
                         void (*more)(const json_t *row))
{
	char text[64];
	size_t index = 0;
	const json_t *row = NULL;

	for (int i = 0; columns[i].title != NULL && i < OPERATOR_COLUMNS_MAX; i++) {
		widen(&table->widths[i], columns[i].title);
		json_array_foreach(rows, index, row)
		{
			widen(&table->widths[i], show_cell(row, &columns[i], text, sizeof text));
		}
	}
	for (int i = 0; columns[i].title != NULL && !table->has_head; i++) {
		print_cell(columns[i].title, table->widths[i], columns[i].kind, columns[i + 1].title == NULL);
	}
	table->has_head = true;
	json_array_foreach(rows, index, row)
	{
		for (int i = 0; columns[i].title != NULL; i++) {
			print_cell(show_cell(row, &columns[i], text, sizeof text), table->widths[i], columns[i].kind,
			           columns[i + 1].title == NULL);
		}
		if (more != NULL) {
			more(row);
		}
	}
}

char *operator_cut(const char *text, int columns)
{
	char *copy = cli_duplicate(text);

	if (width_of(copy) > columns) {
		char *at = copy;
		for (int width = 0; *at != '\0'; at++) {
			width += ((unsigned char)*at & 0xc0) != 0x80;
			if (width > columns - 3) {
				break;
			}
		}
		memcpy(at, "...", 4); /* there is room: the removed part has more than three characters */
	}
	return copy;
}

void operator_print_state(const json_t *row, const char *before)
{
	const json_t *next = json_object_get(row, "next_ms");
	json_int_t attempts = json_integer_value(json_object_get(row, "attempts"));
	const char *state = operator_text(row, "state");
	char when[32] = "", soon[16];

	if (json_is_integer(next) && strcmp(state, "dead") != 0) {
		show_duration(json_integer_value(next), soon, sizeof soon);
		snprintf(when, sizeof when, json_integer_value(next) <= 0 ? ", due now" : ", again in %s", soon);
	}
	char *line = cli_format("%s%s%" JSON_INTEGER_FORMAT " attempt%s%s%s%s", before, before[0] != '\0' ? "; " : "",
	                        attempts, attempts == 1 ? "" : "s", when,
	                        operator_text(row, "error")[0] != '\0' ? ": " : "", operator_text(row, "error"));
	char *cut = operator_cut(line, LINE_COLUMNS - 2);
	plain_line("  %s", cut);
	free(cut);
	free(line);
}

/* ---- one, whole */

void operator_print_member(const json_t *object, const char *name, const char *member)
{
	const json_t *value = json_object_get(object, member);

	if (json_is_string(value)) {
		plain_line("%-*s %s", NAME_COLUMN, name, json_string_value(value));
	} else if (json_is_integer(value)) {
		printf("%-*s %" JSON_INTEGER_FORMAT "\n", NAME_COLUMN, name, json_integer_value(value));
	} else if (json_is_object(value) && json_object_size(value) > 0) {
		char *text = json_dumps(value, JSON_COMPACT | JSON_PRESERVE_ORDER);
		plain_line("%-*s %s", NAME_COLUMN, name, text != NULL ? text : "?");
		free(text);
	}
}

void operator_print_decisions(const json_t *object)
{
	size_t index = 0;
	const json_t *decision = NULL;

	json_array_foreach(json_object_get(object, "decisions"), index, decision)
	{
		const char *relay = operator_text(decision, "relay");
		plain_line("%-*s %s by %s: %s%s%s: %s", NAME_COLUMN, index == 0 ? "decisions" : "",
		           operator_text(decision, "at"), operator_text(decision, "by"), operator_text(decision, "what"),
		           relay[0] != '\0' ? " with " : "", relay, operator_text(decision, "reason"));
	}
}
