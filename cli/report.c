/* SPDX-License-Identifier: PostgreSQL */
/*
 * report.c: pgonce's errors and notes: one line on stderr, or one JSON object with --json. Only
 * here an error becomes an exit code.
 */
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "plain.h"

/*
 * Messages of libpq have several lines and end in a newline; here each is one line, and no byte can
 * forge another.
 */
static char *one_line(const char *text)
{
	char *copy = cli_duplicate(text == NULL ? "" : text);
	char *to = copy;

	for (const char *from = copy; *from != '\0'; from++) {
		size_t hidden = plain_hidden(from);
		char c = hidden > 0 ? ' ' : *from;
		from += hidden > 1 ? hidden - 1 : 0;
		if (c == ' ' && (to == copy || to[-1] == ' ')) {
			continue;
		}
		*to++ = c;
	}
	while (to > copy && to[-1] == ' ') {
		to--;
	}
	*to = '\0';
	return copy;
}

static const char *without_prefix(const char *message)
{
	return strncmp(message, "pgonce: ", 8) == 0 ? message + 8 : message;
}

static void print_name(const cli_invocation *invocation)
{
	if (invocation != NULL && invocation->command != NULL) {
		fprintf(stderr, "pgonce %s: ", invocation->command->name);
	} else {
		fputs("pgonce: ", stderr);
	}
}

static bool wants_json(const cli_invocation *invocation)
{
	return invocation != NULL && invocation->given[OPTION_JSON];
}

static void print_json_line(json_t *json)
{
	json_dumpf(json, stderr, JSON_COMPACT | JSON_PRESERVE_ORDER);
	fputc('\n', stderr);
	json_decref(json);
}

static void set_text(json_t *object, const char *name, const char *value)
{
	if (value != NULL && value[0] != '\0') {
		/* jansson drops text that is not UTF-8; the other members still describe the error. */
		json_object_set_new(object, name, json_string(value));
	}
}

int cli_report(const cli_invocation *invocation, const cli_problem *problem)
{
	char *message = one_line(problem->message);
	char *detail = one_line(problem->detail);
	char *hint = one_line(problem->hint);
	const char *sqlstate = problem->sqlstate == NULL ? "" : problem->sqlstate;

	if (wants_json(invocation)) {
		json_t *error = json_object();
		json_object_set_new(error, "exit", json_integer(problem->exit_code));
		set_text(error, "sqlstate", sqlstate);
		set_text(error, "message", without_prefix(message));
		set_text(error, "detail", detail);
		set_text(error, "hint", hint);
		print_json_line(json_pack("{s:o}", "error", error));
	} else {
		print_name(invocation);
		fputs(without_prefix(message), stderr);
		if (sqlstate[0] != '\0') {
			fprintf(stderr, " (SQLSTATE %s)", sqlstate);
		}
		if (detail[0] != '\0') {
			fprintf(stderr, ": %s", detail);
		}
		/* Without a server the hint is part of the one line. */
		if (hint[0] != '\0') {
			fprintf(stderr, problem->exit_code == CLI_NO_SERVER ? "; %s" : "\nhint: %s", hint);
		}
		fputc('\n', stderr);
	}
	free(message);
	free(detail);
	free(hint);
	return problem->exit_code;
}

int cli_fail(const cli_invocation *invocation, int exit_code, const char *hint, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	char *message = cli_format_list(format, arguments);
	va_end(arguments);
	cli_report(invocation, &(cli_problem){.exit_code = exit_code, .message = message, .hint = hint});
	free(message);
	return exit_code;
}

void cli_note(const cli_invocation *invocation, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	char *message = cli_format_list(format, arguments);
	va_end(arguments);
	char *line = one_line(message);
	if (wants_json(invocation)) {
		print_json_line(json_pack("{s:s}", "note", line));
	} else {
		print_name(invocation);
		fprintf(stderr, "%s\n", line);
	}
	free(line);
	free(message);
}

int cli_exit_of_code(once_code code)
{
	switch (code) {
	case ONCE_OK:
		return CLI_OK;
	case ONCE_CONNECTION:
		return CLI_NO_SERVER;
	case ONCE_CONTRACT:
		return CLI_CONTRACT;
	case ONCE_ACTIVE:
		return CLI_ACTIVE;
	case ONCE_IN_DOUBT:
		return CLI_IN_DOUBT;
	case ONCE_MISMATCH:
		return CLI_MISMATCH;
	case ONCE_EXPIRED:
		return CLI_EXPIRED;
	case ONCE_OUTCOME_UNKNOWN:
		return CLI_OUTCOME_UNKNOWN;
	case ONCE_SCOPE_REQUIRED:
	case ONCE_KEY_MALFORMED:
	case ONCE_REFUSED:
	case ONCE_COMPLETION_REFUSED:
	case ONCE_NOT_STARTED:
	case ONCE_UNFINISHED:
	case ONCE_ALREADY_STARTED:
	case ONCE_ANOTHER_FINGERPRINT:
	case ONCE_FAILURE_REFUSED:
	case ONCE_ALREADY_FINISHED:
	case ONCE_FINAL_FAILURE:
	case ONCE_MESSAGE_MISMATCH:
	case ONCE_EVENT_MISMATCH:
	case ONCE_RELAY_FOREIGN:
	case ONCE_TOO_LARGE:
	case ONCE_RESOLUTION_REFUSED:
	case ONCE_PARTITION_MISSING:
	case ONCE_SLOT_CLOSED:
	case ONCE_UNKNOWN_STATE:
		return CLI_REFUSED;
	case ONCE_SERIALIZATION:
	case ONCE_DEADLINE:
	case ONCE_DATABASE:
	case ONCE_USAGE:
	case ONCE_NO_MEMORY:
	case ONCE_EFFECT:
	case ONCE_OVERLOADED:
		break;
	}
	return CLI_FAILED;
}

#define NO_RIGHT                                                                                                       \
	"grant the role the privileges in docs/how/services.md, Roles (once_reader to read), or connect as the "           \
	"contract's owner"

int cli_report_error(const cli_invocation *invocation, once_error *error)
{
	int exit_code = cli_exit_of_code(once_error_code(error));
	const char *hint = once_error_hint(error);

	if (exit_code == CLI_CONTRACT) {
		hint = "run pgonce init against this database, as the owner of the contract; pgonce doctor has details";
	} else if (exit_code == CLI_NO_SERVER && once_error_sqlstate(error)[0] == '\0') {
		hint = "start the server, or set --dsn or PGHOST (and PGPASSWORD, if needed); pgonce dev starts a private one";
	} else if (hint[0] == '\0' && strcmp(once_error_sqlstate(error), "42501") == 0) {
		hint = NO_RIGHT;
	}
	cli_report(invocation, &(cli_problem){.exit_code = exit_code,
	                                      .sqlstate = once_error_sqlstate(error),
	                                      .message = once_error_message(error),
	                                      .detail = once_error_detail(error),
	                                      .hint = hint});
	once_error_free(error);
	return exit_code;
}

int cli_report_result(const cli_invocation *invocation, PGconn *connection, PGresult *result, const char *what)
{
	const char *sqlstate = PQresultErrorField(result, PG_DIAG_SQLSTATE);
	const char *primary = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
	const char *hint = PQresultErrorField(result, PG_DIAG_MESSAGE_HINT);
	int exit_code = cli_exit_of_code(once_code_of_sqlstate(sqlstate));
	char *message = cli_format("%s: %s", what, primary != NULL ? primary : PQerrorMessage(connection));

	if (hint == NULL && sqlstate != NULL && strcmp(sqlstate, "42501") == 0) {
		hint = NO_RIGHT;
	}
	cli_report(invocation, &(cli_problem){.exit_code = exit_code,
	                                      .sqlstate = sqlstate,
	                                      .message = message,
	                                      .detail = PQresultErrorField(result, PG_DIAG_MESSAGE_DETAIL),
	                                      .hint = hint});
	free(message);
	return exit_code;
}

void cli_print_json(json_t *json)
{
	json_dumpf(json, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_ENCODE_ANY);
	fputc('\n', stdout);
	json_decref(json);
}

char *cli_intent_text(const once_intent *intent)
{
	return cli_format("tenant='%s' scope='%s' key='%s'", intent->tenant == NULL ? "" : intent->tenant, intent->scope,
	                  intent->key);
}
