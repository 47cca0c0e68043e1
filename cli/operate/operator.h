/* SPDX-License-Identifier: PostgreSQL */
/*
 * operator.h: shared by the commands for operators: verbs (list, show, retry ...), answers that are
 * JSON, lists for people.
 */
#pragma once

#include "connect.h"

typedef struct operator_verb {
	const char *name;
	const char *operand; /* its operand, "EVENT"; NULL: none */
	bool is_operand_optional;
	bool needs_reason;
	/* other than --dsn, --json and, if needed, --reason; ends with OPTION_COUNT */
	const option_id *options;
	/* Further checks of the command line: CLI_OK, or a code after an error message. */
	int (*check)(const cli_invocation *invocation);
	int (*run)(const cli_invocation *invocation, PGconn *connection, const char *operand);
} operator_verb;

/*
 * Reads the operands, refuses options that this verb does not take, connects, runs. `verbs` ends
 * with name NULL.
 */
int operator_run(const cli_invocation *invocation, const operator_verb *verbs);

/* Is there a --reason? CLI_OK, or CLI_USAGE after saying that this verb needs it. */
int operator_check_reason(const cli_invocation *invocation, const char *verb);

/* --limit, or its default, as a parameter; free it. */
char *operator_take(const cli_invocation *invocation);
/* Prints a note if the list has as many rows as --limit allows. */
void operator_note_cut(const cli_invocation *invocation, const json_t *list, const char *what);
/*
 * Runs a statement whose answer is one JSON value. CLI_OK, with *json (SQL's NULL is JSON's null),
 * or an exit code after an error message.
 */
int operator_query(const cli_invocation *invocation, PGconn *connection, enum sql_id id, int parameter_count,
                   const char *const *parameters, const char *what, json_t **json);

/* 8-4-4-4-12 hexadecimal digits? */
bool operator_is_uuid(const char *text);
/*
 * The option as the server reads a time, or, with `spans`, as a time ago ("2h"). Sent separately,
 * so that an invalid time is distinguished from other failures. CLI_OK, with *when (NULL if the
 * option is not given; free it), or a code after an error message.
 */
int operator_read_time(const cli_invocation *invocation, PGconn *connection, option_id id, bool spans, char **when);

enum {
	OPERATOR_COLUMNS_MAX = 9,
	OPERATOR_TAKE = 100 /* --limit if it is not given */
};

typedef enum column_kind {
	COLUMN_TEXT,
	COLUMN_NUMBER,
	COLUMN_AGE /* milliseconds */
} column_kind;

typedef struct operator_column {
	const char *title;
	const char *member;
	column_kind kind;
} operator_column;

/* A table of the rows, an array of objects; the columns end with title NULL. `more` (NULL:
 * none) prints a line below each row. */
void operator_print_table(const json_t *rows, const operator_column *columns, void (*more)(const json_t *row));
/*
 * The same in parts, initially zeroed: each is printed below those before it, in columns that only
 * grow.
 */
typedef struct operator_table {
	int widths[OPERATOR_COLUMNS_MAX];
	bool has_head;
} operator_table;
void operator_print_part(operator_table *table, const json_t *rows, const operator_column *columns,
                         void (*more)(const json_t *row));
/*
 * At most this many columns of it, with one per character; it is cut between characters. Free it.
 */
char *operator_cut(const char *text, int columns);
/* " 10 attempts, again in 3m: the error", as much as fits on a line. */
void operator_print_state(const json_t *row, const char *before);
/* "name value"; nothing if the member is null or missing. */
void operator_print_member(const json_t *object, const char *name, const char *member);
void operator_print_decisions(const json_t *object);
const char *operator_text(const json_t *object, const char *member); /* "" if there is none */
