/* SPDX-License-Identifier: PostgreSQL */
/*
 * cli.h: declarations shared by all files of the command: the tables of commands (commands.c) and
 * options (option_table.c), a parsed command line (options.c), and the functions for output
 * (report.c).
 */
#pragma once

#include <jansson.h>
#include <libpq-fe.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "pgonce.h"

/* Exit codes. Their meaning is in exit_codes[] (commands.c), from
 * which the documentation is made. */
enum cli_exit {
	CLI_OK = 0,
	CLI_FAILED = 1,
	CLI_USAGE = 2,
	CLI_NO_SERVER = 3,
	CLI_CONTRACT = 4,
	CLI_NOT_FOUND = 5,
	CLI_INCOMPLETE = 6,
	CLI_REFUSED = 10,
	CLI_ACTIVE = 11,
	CLI_IN_DOUBT = 12,
	CLI_MISMATCH = 13,
	CLI_EXPIRED = 14,
	CLI_LEASE_LOST = 15,
	CLI_OUTCOME_UNKNOWN = 16,
	CLI_OUTPUT_LOST = 17,
	CLI_NOT_EXECUTABLE = 126,
	CLI_COMMAND_NOT_FOUND = 127,
	CLI_SIGNAL_BASE = 128
};

typedef struct exit_code {
	int code;
	const char *shown; /* "128+n" */
	const char *meaning;
} exit_code;

extern const exit_code exit_codes[];
extern const int exit_code_count;

typedef enum option_id {
	OPTION_DSN,
	OPTION_JSON,
	OPTION_HELP,
	OPTION_TENANT,
	OPTION_SCOPE,
	OPTION_KEY,
	OPTION_PRINT,
	OPTION_NO_NATIVE,
	OPTION_ACCEPT_NEWER,
	OPTION_JOIN,
	OPTION_DIR,
	OPTION_DETACH,
	OPTION_STOP,
	OPTION_CHECK,
	OPTION_NO_CONSOLE,
	OPTION_LEASE,
	OPTION_RETENTION,
	OPTION_RETRY_FAILED,
	OPTION_ON_STALE,
	OPTION_INPUT,
	OPTION_OUTPUT_MAX,
	OPTION_VERBOSE,
	OPTION_TRACEPARENT,
	OPTION_ALL,
	OPTION_AS,
	OPTION_REASON,
	OPTION_STATUS,
	OPTION_BODY,
	OPTION_HEADERS,
	OPTION_RESULT,
	OPTION_ERROR_CODE,
	OPTION_UNTIL,
	OPTION_DRY_RUN,
	OPTION_LISTEN,
	OPTION_UPSTREAM,
	OPTION_REQUIRED,
	OPTION_TENANT_FROM,
	OPTION_ON_5XX,
	OPTION_USER,
	OPTION_PRINT_CONFIG,
	OPTION_NGINX,
	OPTION_MODULE,
	OPTION_CONFIG,
	OPTION_CHECK_CONFIG,
	OPTION_ONCE,
	OPTION_METRICS,
	OPTION_INTERVAL,
	OPTION_KEEPER_NAME,
	OPTION_KIND,
	OPTION_RELAY,
	OPTION_CONSUMER,
	OPTION_TOPIC,
	OPTION_SINCE,
	OPTION_FORCE,
	OPTION_STATE,
	OPTION_TYPE,
	OPTION_ERROR,
	OPTION_YES,
	OPTION_TAKE,
	OPTION_RESULT_ID,
	OPTION_EVENT,
	OPTION_TRACE,
	OPTION_OWNER,
	OPTION_LONGER_THAN,
	OPTION_RECOVER_IN_DOUBT,
	OPTION_RATE,
	OPTION_BODY_BYTES,
	OPTION_HEADER_BYTES,
	OPTION_KEY_FORM,
	OPTION_SCOPE_BYTES,
	OPTION_TENANT_BYTES,
	OPTION_EVENTS_PER_INTENT,
	OPTION_EVENT_BYTES,
	OPTION_LEASED,
	OPTION_SAME_TRANSACTION,
	OPTION_TRANSACTION_MAX,
	OPTION_HELD_MAX,
	OPTION_NODES,
	OPTION_FROM,
	OPTION_TO,
	OPTION_VIA,
	OPTION_WAIT,
	OPTION_ALLOW_DECISIONS,
	OPTION_USER_HEADER,
	OPTION_TRUSTED_ADDRESS,
	OPTION_PUBLIC_HOST,
	OPTION_PROMETHEUS,
	OPTION_PROMETHEUS_JOB,
	OPTION_MAN,
	OPTION_MARKDOWN,
	OPTION_COMPLETION,
	OPTION_COUNT
} option_id;

typedef enum option_kind {
	KIND_FLAG,
	KIND_TEXT,
	KIND_NUMBER,
	KIND_DURATION, /* stored in milliseconds */
	KIND_BYTES,
	KIND_CHOICE /* one word of `choices`, which are separated by '|' */
} option_kind;

typedef struct cli_option {
	const char *name; /* without the dashes */
	char letter;      /* 0: no short form */
	option_kind kind;
	const char *argument; /* the value's name in help; NULL for a flag */
	const char *choices;  /* for --state: the command's own */
	int64_t minimum;      /* for numbers, durations (ms) and bytes */
	int64_t maximum;
	const char *help;
} cli_option;

extern const cli_option cli_options[OPTION_COUNT];

typedef struct option_use {
	option_id id;
	bool required;
} option_use;

typedef enum operand_rule {
	OPERANDS_NONE,
	OPERANDS_ONE_OPTIONAL,
	OPERANDS_WORDS,  /* any number; options may follow them */
	OPERANDS_COMMAND /* CMD and its arguments, after "--" */
} operand_rule;

typedef struct cli_invocation cli_invocation;

typedef struct cli_command {
	const char *name;
	const char *summary; /* one line */
	const char *usage;   /* what follows "pgonce NAME" */
	/* paragraphs; a line that starts with two spaces is an example, shown unchanged */
	const char *const *about;
	const option_use *uses;
	int use_count;
	const char *states;       /* the values of --state, separated by '|'; NULL: no such option */
	const char *unknown_hint; /* the place for other settings; NULL: pgonce help NAME */
	operand_rule operands;
	const int *exits;                             /* codes other than 0, 1 and 2; ends with 0 */
	int (*run)(const cli_invocation *invocation); /* NULL: cli_help, which reads this table */
} cli_command;

extern const cli_command cli_commands[];
extern const int cli_command_count;

const cli_command *cli_find_command(const char *name);
/* The command that a mistyped word probably means; NULL if none is close. */
const char *cli_nearest_command(const char *word);

/* A parsed command line. For an option that is not given, the text is NULL and the number 0. */
struct cli_invocation {
	const cli_command *command;
	bool given[OPTION_COUNT];
	const char *text[OPTION_COUNT];
	int64_t number[OPTION_COUNT];
	char *const *operands;
	int operand_count;
};

/* options.c */
/* argv starts at the command's name. CLI_OK, or CLI_USAGE after an error message. */
int cli_parse(const cli_command *command, int argc, char **argv, cli_invocation *invocation);
/* The option's value, or its default. */
const char *cli_text(const cli_invocation *invocation, option_id id, const char *standard);
int64_t cli_number(const cli_invocation *invocation, option_id id, int64_t standard);
once_intent cli_intent(const cli_invocation *invocation);
/*
 * TYPE:ID of a given option. CLI_OK, with *type (free it) and *result, which points into the
 * option, or CLI_USAGE after an error message.
 */
int cli_result(const cli_invocation *invocation, option_id id, const char *hint, char **type, const char **result);

/* option_table.c */
/* What an option does in this command. */
const char *cli_option_help(const cli_command *command, option_id id);
/* The choices of a KIND_CHOICE for this command; NULL for other kinds. */
const char *cli_choices(const cli_command *command, option_id id);

/*
 * report.c: messages for people go to stderr, one line each; with --json they are one JSON object
 * each.
 */
typedef struct cli_problem {
	int exit_code;
	const char *sqlstate; /* "" or NULL if there is none; also below */
	const char *message;
	const char *detail; /* names the intent */
	const char *hint;
} cli_problem;

/* returns exit_code */
int cli_report(const cli_invocation *invocation, const cli_problem *problem);
/* frees error; returns its exit code */
int cli_report_error(const cli_invocation *invocation, once_error *error);
int cli_report_result(const cli_invocation *invocation, PGconn *connection, PGresult *result, const char *what);
__attribute__((format(printf, 4, 5))) int cli_fail(const cli_invocation *invocation, int exit_code, const char *hint,
                                                   const char *format, ...);
__attribute__((format(printf, 2, 3))) void cli_note(const cli_invocation *invocation, const char *format, ...);
void cli_print_json(json_t *json); /* to stdout, indented; takes the reference */
int cli_exit_of_code(once_code code);
/* "tenant='' scope='jobs' key='a'", for messages that do not come from the server; free it. */
char *cli_intent_text(const once_intent *intent);
/*
 * text.c: text, which the caller frees, and zeroed memory. Never NULL: out of memory, the command
 * ends.
 */
__attribute__((format(printf, 1, 2))) char *cli_format(const char *format, ...);
__attribute__((format(printf, 2, 3))) void cli_append(char **text, const char *format, ...);
__attribute__((format(printf, 1, 0))) char *cli_format_list(const char *format, va_list arguments);
void *cli_allocate(size_t bytes);
char *cli_duplicate(const char *text);

/* The commands. */
int cli_init(const cli_invocation *invocation);
int cli_dev(const cli_invocation *invocation);
int cli_run(const cli_invocation *invocation);
int cli_show(const cli_invocation *invocation);
int cli_find(const cli_invocation *invocation);
int cli_stuck(const cli_invocation *invocation);
int cli_in_doubt(const cli_invocation *invocation);
int cli_resolve(const cli_invocation *invocation);
int cli_recover(const cli_invocation *invocation);
int cli_top(const cli_invocation *invocation);
int cli_doctor(const cli_invocation *invocation);
int cli_plan(const cli_invocation *invocation);
int cli_version(const cli_invocation *invocation);
int cli_gateway(const cli_invocation *invocation);
int cli_keep(const cli_invocation *invocation);
int cli_relay(const cli_invocation *invocation);
int cli_consume(const cli_invocation *invocation);
int cli_console(const cli_invocation *invocation);
int cli_rehome(const cli_invocation *invocation);
int cli_parked(const cli_invocation *invocation);
int cli_help(const cli_invocation *invocation);
/* help.c */
void help_overview(FILE *out);
void help_command(FILE *out, const cli_command *command);
/* The completion of command lines for bash, zsh or fish. */
void help_completion(FILE *out, const char *shell);
