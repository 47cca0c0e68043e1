/* SPDX-License-Identifier: PostgreSQL */
/* options.c: reads a command line by the command table. Knows no command. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "value.h"

static const char *nearest_option(const cli_command *command, const char *word)
{
	const char *nearest = NULL;
	int least = 3;

	for (int i = 0; i < command->use_count; i++) {
		const char *name = cli_options[command->uses[i].id].name;
		int d = value_distance(word, name);
		if (d < least) {
			least = d;
			nearest = name;
		}
	}
	return nearest;
}

static int usage_error(const cli_invocation *invocation, const char *format, const char *first, const char *second)
{
	char *hint = cli_format("pgonce help %s", invocation->command->name);
	int result = CLI_USAGE;

	/* The formats are all in this file, each with at most two strings. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
	char *message = cli_format(format, first, second);
#pragma GCC diagnostic pop
	result = cli_fail(invocation, CLI_USAGE, hint, "%s", message);
	free(message);
	free(hint);
	return result;
}

static value_kind kind_of(const cli_option *option)
{
	return option->kind == KIND_DURATION ? VALUE_DURATION : option->kind == KIND_BYTES ? VALUE_BYTES : VALUE_NUMBER;
}

/* "'8d' is out of range: 100ms to 7d (ms, s, m, h, d, w)": always names the allowed values. */
static int refuse_amount(const cli_invocation *invocation, const cli_option *option, const char *value,
                         const char *problem)
{
	value_kind kind = kind_of(option);
	char least[VALUE_SHOWN_BYTES], most[VALUE_SHOWN_BYTES];
	char *text = cli_format("'%s' is %s: %s to %s%s", value, problem, value_show(kind, option->minimum, least),
	                        value_show(kind, option->maximum, most),
	                        kind == VALUE_DURATION ? " (ms, s, m, h, d, w)"
	                        : kind == VALUE_BYTES  ? " (B, k, M, G)"
	                                               : "");
	int result = usage_error(invocation, "option --%s: %s", option->name, text);

	free(text);
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
	case KIND_DURATION:
	case KIND_BYTES:
		good = value_parse(kind_of(option), value, &number);
		break;
	case KIND_CHOICE:
		if (!value_choose(cli_choices(invocation->command, id), value, &number)) {
			return usage_error(invocation, "option --%s: one of %s", option->name,
			                   cli_choices(invocation->command, id));
		}
		break;
	}
	if (!good) {
		return refuse_amount(invocation, option, value,
		                     option->kind == KIND_DURATION ? "no duration"
		                     : option->kind == KIND_BYTES  ? "no size"
		                                                   : "no number");
	}
	if ((option->kind == KIND_NUMBER || option->kind == KIND_DURATION || option->kind == KIND_BYTES) &&
	    (number < option->minimum || number > option->maximum)) {
		return refuse_amount(invocation, option, value, "out of range");
	}
	invocation->given[id] = true;
	invocation->text[id] = value;
	invocation->number[id] = number;
	return CLI_OK;
}

/*
 * The option of this command with that name (letter 0) or letter (name NULL); OPTION_COUNT if there
 * is none.
 */
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
	const char *hint = invocation->command->unknown_hint;
	int result = nearest != NULL ? usage_error(invocation, "unknown option %s; did you mean --%s?", word, nearest)
	             : hint != NULL  ? cli_fail(invocation, CLI_USAGE, hint, "unknown option %s", word)
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
	if (invocation->given[OPTION_DSN] && invocation->given[OPTION_NODES]) {
		return usage_error(invocation, "only one of --dsn and --nodes", "", "");
	}
	if (invocation->given[OPTION_ACCEPT_NEWER] && (invocation->given[OPTION_JOIN] || invocation->given[OPTION_PRINT])) {
		return usage_error(invocation, "--accept-newer goes neither with --join nor with --print", "", "");
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
	/*
	 * operands followed by options: kept in order at the beginning of argv, which is already read
	 */
	int words = 0;
	int i = 1;

	*invocation = (cli_invocation){.command = command};
	/* Read first, so that an error message about another option is already JSON. */
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
	/*
	 * For a command without operands, options may also follow a stray word; it is still an error.
	 */
	for (; words > 0 && i < argc; i++) {
		argv[words++] = argv[i]; /* after "--" */
	}
	invocation->operands = words > 0 ? argv : argv + i;
	invocation->operand_count = words > 0 ? words : argc - i;
	return check_whole(invocation);
}

const char *cli_text(const cli_invocation *invocation, option_id id, const char *standard)
{
	return invocation->given[id] ? invocation->text[id] : standard;
}

int64_t cli_number(const cli_invocation *invocation, option_id id, int64_t standard)
{
	return invocation->given[id] ? invocation->number[id] : standard;
}

once_intent cli_intent(const cli_invocation *invocation)
{
	return (once_intent){.tenant = cli_text(invocation, OPTION_TENANT, ""),
	                     .scope = invocation->text[OPTION_SCOPE],
	                     .key = invocation->text[OPTION_KEY]};
}

int cli_result(const cli_invocation *invocation, option_id id, const char *hint, char **type, const char **result)
{
	const char *text = invocation->text[id];
	const char *colon = strchr(text, ':');

	if (colon == NULL || colon == text || colon[1] == '\0') {
		return cli_fail(invocation, CLI_USAGE, hint, "option --%s: '%s' is not TYPE:ID", cli_options[id].name, text);
	}
	*type = cli_duplicate(text);
	(*type)[colon - text] = '\0';
	*result = colon + 1;
	return CLI_OK;
}
