/* SPDX-License-Identifier: PostgreSQL */
/*
 * options.c: reads a command line against the command table. Knows the shapes of values (durations, sizes), and no command.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

const cli_command *cli_find_command(const char *name)
{
	for (int i = 0; i < cli_command_count; i++) {
		if (strcmp(cli_commands[i].name, name) == 0) {
			return &cli_commands[i];
		}
	}
	return NULL;
}

/* Levenshtein's distance, of words of at most 31 characters; longer ones are far from everything. */
static int distance(const char *a, const char *b)
{
	enum {
		LENGTH_MAX = 31
	};
	size_t a_length = strlen(a);
	size_t b_length = strlen(b);
	int row[LENGTH_MAX + 1];

	if (a_length > LENGTH_MAX || b_length > LENGTH_MAX) {
		return LENGTH_MAX;
	}
	for (size_t j = 0; j <= b_length; j++) {
		row[j] = (int)j;
	}
	for (size_t i = 1; i <= a_length; i++) {
		int diagonal = row[0];
		row[0] = (int)i;
		for (size_t j = 1; j <= b_length; j++) {
			int best = diagonal + (a[i - 1] != b[j - 1]);
			if (row[j] + 1 < best) {
				best = row[j] + 1;
			}
			if (row[j - 1] + 1 < best) {
				best = row[j - 1] + 1;
			}
			diagonal = row[j];
			row[j] = best;
		}
	}
	return row[b_length];
}

const char *cli_nearest_command(const char *word)
{
	const char *nearest = NULL;
	int least = 3;

	for (int i = 0; i < cli_command_count; i++) {
		int d = distance(word, cli_commands[i].name);
		if (d < least) {
			least = d;
			nearest = cli_commands[i].name;
		}
	}
	return nearest;
}

static const char *nearest_option(const cli_command *command, const char *word)
{
	const char *nearest = NULL;
	int least = 3;

	for (int i = 0; i < command->use_count; i++) {
		const char *name = cli_options[command->uses[i].id].name;
		int d = distance(word, name);
		if (d < least) {
			least = d;
			nearest = name;
		}
	}
	return nearest;
}

/* A whole number and a unit; false where it is none, negative, or larger than fits. */
static bool parse_amount(const char *text, int64_t *amount, const char **unit)
{
	char *end = NULL;

	if (text[0] < '0' || text[0] > '9') {
		return false;
	}
	errno = 0;
	long long value = strtoll(text, &end, 10);
	if (errno != 0) {
		return false;
	}
	*amount = value;
	*unit = end;
	return true;
}

typedef struct unit {
	const char *name;
	int64_t factor;
} unit;

static bool parse_with_units(const char *text, const unit *units, int64_t *value)
{
	const char *name = NULL;
	int64_t amount = 0;

	if (!parse_amount(text, &amount, &name)) {
		return false;
	}
	for (const unit *u = units; u->name != NULL; u++) {
		if (strcmp(u->name, name) == 0) {
			return !__builtin_mul_overflow(amount, u->factor, value);
		}
	}
	return false;
}

/* Each larger than the one before it, of equal ones the first is how it is written. */
static const unit durations[] = {
    {"ms", 1},
    {"s", 1000},
    {"m", 60 * 1000},
    {"h", 60 * 60 * 1000},
    {"d", 24 * 60 * 60 * 1000},
    {"w", 7 * 24 * 60 * 60 * 1000},
    {NULL, 0},
};
#define KIB 1024
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)
static const unit sizes[] = {
    {"", 1},    {"B", 1},    {"k", KIB},   {"K", KIB}, {"kB", KIB}, {"KB", KIB},  {"KiB", KIB},
    {"M", MIB}, {"MB", MIB}, {"MiB", MIB}, {"G", GIB}, {"GB", GIB}, {"GiB", GIB}, {NULL, 0},
};

bool cli_parse_duration(const char *text, int64_t *milliseconds)
{
	return parse_with_units(text, durations, milliseconds);
}

bool cli_parse_bytes(const char *text, int64_t *bytes)
{
	return parse_with_units(text, sizes, bytes);
}

/* In the largest unit in which it is a whole number. */
static char *write_with_unit(const unit *units, int64_t number)
{
	const unit *best = units;

	for (const unit *u = units; u->name != NULL; u++) {
		if (number > 0 && number % u->factor == 0 && u->factor > best->factor) {
			best = u;
		}
	}
	return cli_format("%" PRId64 "%s", number / best->factor, best->name);
}

static bool parse_number(const char *text, int64_t *number)
{
	static const unit units[] = {{"", 1}, {NULL, 0}};
	return parse_with_units(text, units, number);
}

static bool is_choice(const char *choices, const char *text)
{
	size_t length = strlen(text);

	for (const char *at = choices; at != NULL && length > 0; at = strchr(at, '|'), at = at == NULL ? NULL : at + 1) {
		if (strncmp(at, text, length) == 0 && (at[length] == '|' || at[length] == '\0')) {
			return true;
		}
	}
	return false;
}

static int usage_error(const cli_invocation *invocation, const char *format, const char *first, const char *second)
{
	char *hint = cli_format("pgonce help %s", invocation->command->name);
	int result = CLI_USAGE;

	/* The formats are this file's own, each with at most two strings. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
	char *message = cli_format(format, first, second);
#pragma GCC diagnostic pop
	result = cli_fail(invocation, CLI_USAGE, hint, "%s", message);
	free(message);
	free(hint);
	return result;
}

static int out_of_range(const cli_invocation *invocation, const cli_option *option, const char *value)
{
	static const unit plain[] = {{"", 1}, {NULL, 0}};
	const unit *units = option->kind == KIND_DURATION ? durations : option->kind == KIND_BYTES ? sizes : plain;
	char *least = write_with_unit(units, option->minimum);
	char *most = write_with_unit(units, option->maximum);
	char *text = cli_format("'%s' is out of range: %s to %s", value, least, most);
	int result = usage_error(invocation, "option --%s: %s", option->name, text);

	free(text);
	free(most);
	free(least);
	return result;
}

static int store_value(cli_invocation *invocation, option_id id, const char *value)
{
	const cli_option *option = &cli_options[id];
	int64_t number = 0;
	bool good = true;

	if (invocation->given[id] && option->kind != KIND_FLAG) {
		return usage_error(invocation, "option --%s is given twice", option->name, "");
	}
	switch (option->kind) {
	case KIND_FLAG:
	case KIND_TEXT:
		break;
	case KIND_NUMBER:
		good = parse_number(value, &number);
		break;
	case KIND_DURATION:
		good = cli_parse_duration(value, &number);
		break;
	case KIND_BYTES:
		good = cli_parse_bytes(value, &number);
		break;
	case KIND_CHOICE:
		if (!is_choice(option->choices, value)) {
			return usage_error(invocation, "option --%s: one of %s", option->name, option->choices);
		}
		break;
	}
	if (!good) {
		const char *what = option->kind == KIND_DURATION ? "duration (500ms, 60s, 5m, 2h, 7d, 4w)"
		                   : option->kind == KIND_BYTES  ? "size (4096, 64k, 5M, 1G)"
		                                                 : "number";
		char *text = cli_format("'%s' is no %s", value, what);
		int result = usage_error(invocation, "option --%s: %s", option->name, text);
		free(text);
		return result;
	}
	if ((option->kind == KIND_NUMBER || option->kind == KIND_DURATION || option->kind == KIND_BYTES) &&
	    (number < option->minimum || number > option->maximum)) {
		return out_of_range(invocation, option, value);
	}
	invocation->given[id] = true;
	invocation->text[id] = value;
	invocation->number[id] = number;
	return CLI_OK;
}

/* The option of this command with that name (letter 0) or letter (name NULL); OPTION_COUNT where there is none. */
static option_id find_option(const cli_command *command, const char *name, size_t name_length, char letter)
{
	for (int i = -1; i < command->use_count; i++) {
		option_id id = i < 0 ? OPTION_HELP : command->uses[i].id;
		const cli_option *option = &cli_options[id];
		if (name != NULL ? strlen(option->name) == name_length && strncmp(option->name, name, name_length) == 0
		                 : letter != 0 && option->letter == letter) {
			return id;
		}
	}
	return OPTION_COUNT;
}

static int unknown_option(const cli_invocation *invocation, const char *word)
{
	const char *start = word + strspn(word, "-");
	char *name = cli_duplicate(start);
	name[strcspn(name, "=")] = '\0';
	const char *nearest = nearest_option(invocation->command, name);
	int result = nearest != NULL ? usage_error(invocation, "unknown option %s; did you mean --%s?", word, nearest)
	                             : usage_error(invocation, "unknown option %s", word, "");
	free(name);
	return result;
}

static int check_whole(cli_invocation *invocation)
{
	const cli_command *command = invocation->command;

	for (int i = 0; i < command->use_count; i++) {
		if (command->uses[i].required && !invocation->given[command->uses[i].id]) {
			const cli_option *option = &cli_options[command->uses[i].id];
			return usage_error(invocation, "option --%s %s is required", option->name, option->argument);
		}
	}
	switch (command->operands) {
	case OPERANDS_NONE:
		if (invocation->operand_count > 0) {
			return usage_error(invocation, "unexpected argument '%s'", invocation->operands[0], "");
		}
		break;
	case OPERANDS_ONE_OPTIONAL:
		if (invocation->operand_count > 1) {
			return usage_error(invocation, "unexpected argument '%s'", invocation->operands[1], "");
		}
		break;
	case OPERANDS_WORDS:
		break;
	case OPERANDS_COMMAND:
		if (invocation->operand_count == 0) {
			return usage_error(invocation, "no command is given after --", "", "");
		}
		break;
	}
	return CLI_OK;
}

int cli_parse(const cli_command *command, int argc, char **argv, cli_invocation *invocation)
{
	int result = CLI_OK;
	int words = 0; /* operands that options follow: kept in order at argv's beginning, which is read already */
	int i = 1;

	*invocation = (cli_invocation){.command = command};
	/* Known first, so that a complaint about another option is JSON already. */
	for (int j = 1; j < argc && strcmp(argv[j], "--") != 0; j++) {
		invocation->given[OPTION_JSON] |=
		    strcmp(argv[j], "--json") == 0 && find_option(command, "json", 4, 0) != OPTION_COUNT;
	}
	for (; i < argc && result == CLI_OK; i++) {
		const char *word = argv[i];
		if (strcmp(word, "--") == 0) {
			i++;
			break;
		}
		if (word[0] != '-' || word[1] == '\0') {
			if (command->operands != OPERANDS_WORDS) {
				break;
			}
			argv[words++] = argv[i];
			continue;
		}
		const char *value = NULL;
		option_id id = OPTION_COUNT;
		if (word[1] == '-') {
			size_t name_length = strcspn(word + 2, "=");
			id = find_option(command, word + 2, name_length, 0);
			value = word[2 + name_length] == '=' ? word + 2 + name_length + 1 : NULL;
		} else {
			id = find_option(command, NULL, 0, word[1]);
			value = word[2] != '\0' ? word + 2 : NULL;
		}
		if (id == OPTION_COUNT) {
			return unknown_option(invocation, word);
		}
		if (cli_options[id].kind == KIND_FLAG && value != NULL) {
			return usage_error(invocation, "option --%s takes no value", cli_options[id].name, "");
		}
		if (cli_options[id].kind != KIND_FLAG && value == NULL) {
			if (i + 1 >= argc) {
				return usage_error(invocation, "option --%s needs a value: %s", cli_options[id].name,
				                   cli_options[id].argument);
			}
			value = argv[++i];
		}
		if (id == OPTION_HELP) {
			invocation->given[OPTION_HELP] = true;
			return CLI_OK;
		}
		result = store_value(invocation, id, value);
	}
	if (result != CLI_OK) {
		return result;
	}
	/* For a command without operands, options may also follow a stray word; it is an error all the same. */
	for (; words > 0 && i < argc; i++) {
		argv[words++] = argv[i]; /* after "--" */
	}
	invocation->operands = words > 0 ? argv : argv + i;
	invocation->operand_count = words > 0 ? words : argc - i;
	return check_whole(invocation);
}

once_intent cli_intent(const cli_invocation *invocation)
{
	return (once_intent){.tenant = invocation->given[OPTION_TENANT] ? invocation->text[OPTION_TENANT] : "",
	                     .scope = invocation->text[OPTION_SCOPE],
	                     .key = invocation->text[OPTION_KEY]};
}

const char *cli_result(const cli_invocation *invocation, option_id id, const char *hint, char **type)
{
	const char *text = invocation->text[id];
	const char *colon = strchr(text, ':');

	if (colon == NULL || colon == text || colon[1] == '\0') {
		cli_fail(invocation, CLI_USAGE, hint, "option --%s: '%s' is no TYPE:ID", cli_options[id].name, text);
		return NULL;
	}
	*type = cli_duplicate(text);
	(*type)[colon - text] = '\0';
	return colon + 1;
}
