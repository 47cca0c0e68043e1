/* SPDX-License-Identifier: PostgreSQL */
/*
 * completion.c: the command table as programs that complete a command line, for bash, zsh and fish.
 * No name of a command or an option is written here.
 */
#include <string.h>

#include "cli.h"

typedef struct shell {
	const char *name;
	void (*write)(FILE *out);
} shell;

static bool takes_file(const cli_option *option)
{
	return option->argument != NULL && strcmp(option->argument, "FILE") == 0;
}

static bool takes_directory(const cli_option *option)
{
	return option->argument != NULL && strcmp(option->argument, "DIR") == 0;
}

/* Whether a help text's first clause ends here. */
static bool ends_clause(const char *text)
{
	return *text == '\0' || *text == ';' || (strncmp(text, ". ", 2) == 0 && text[2] >= 'A' && text[2] <= 'Z');
}

/* That clause, with a backslash before each character of `special`. */
static void print_clause(FILE *out, const char *text, const char *special)
{
	for (; !ends_clause(text); text++) {
		if (strchr(special, *text) != NULL) {
			fputc('\\', out);
		}
		fputc(*text, out);
	}
}

/* "a|b" as "a b". */
static void print_choices(FILE *out, const char *choices)
{
	for (; *choices != '\0'; choices++) {
		fputc(*choices == '|' ? ' ' : *choices, out);
	}
}

static void print_commands(FILE *out)
{
	for (int i = 0; i < cli_command_count; i++) {
		fprintf(out, "%s%s", i == 0 ? "" : " ", cli_commands[i].name);
	}
}

/* Also of --help, which every command has. */
static int option_count(const cli_command *command)
{
	return command->use_count + 1;
}

static option_id option_at(const cli_command *command, int index)
{
	return index < command->use_count ? command->uses[index].id : OPTION_HELP;
}

static const char *const head = "# SPDX-License-Identifier: PostgreSQL\n# Written by `pgonce help --completion %s`.\n";

/* ---- bash */

/* The patterns of "COMMAND OPTION" whose value comes next. */
static void bash_pattern(FILE *out, const cli_command *command, const cli_option *option)
{
	fprintf(out, "\t\"%s --%s\"", command->name, option->name);
	if (option->letter != 0) {
		fprintf(out, " | \"%s -%c\"", command->name, option->letter);
	}
	fputs(") ", out);
}

static void bash_values(FILE *out, const cli_command *command)
{
	for (int i = 0; i < command->use_count; i++) {
		const cli_option *option = &cli_options[command->uses[i].id];
		const char *choices = cli_choices(command, command->uses[i].id);
		if (option->kind == KIND_FLAG) {
			continue;
		}
		bash_pattern(out, command, option);
		if (choices != NULL) {
			fputs("words=\"", out);
			print_choices(out, choices);
			fputs("\" ;;\n", out);
		} else {
			fprintf(out, "%s ;;\n", takes_file(option) ? "kind=-f" : takes_directory(option) ? "kind=-d" : "return");
		}
	}
}

static void bash(FILE *out)
{
	fprintf(out, head, "bash");
	fputs("_pgonce() {\n"
	      "\tlocal word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]} words= "
	      "kind= "
	      "i\n"
	      "\tCOMPREPLY=()\n"
	      "\tfor ((i = 2; i < COMP_CWORD; i++)); do\n"
	      "\t\t[ \"${COMP_WORDS[i]}\" != -- ] || { mapfile -t COMPREPLY < <(compgen -c -f -- \"$word\"); return; }\n"
	      "\tdone\n"
	      "\tif [ \"$COMP_CWORD\" -eq 1 ]; then\n\t\tmapfile -t COMPREPLY < <(compgen -W \"",
	      out);
	print_commands(out);
	fputs("\" -- \"$word\")\n\t\treturn\n\tfi\n\tcase \"$command $before\" in\n", out);
	for (int i = 0; i < cli_command_count; i++) {
		bash_values(out, &cli_commands[i]);
		if (cli_commands[i].operands == OPERANDS_ONE_OPTIONAL) {
			fprintf(out, "\t\"%s %s\") words=\"", cli_commands[i].name, cli_commands[i].name);
			print_commands(out);
			fputs("\" ;;\n", out);
		}
	}
	fputs("\t*)\n\t\tcase $command in\n", out);
	for (int i = 0; i < cli_command_count; i++) {
		fprintf(out, "\t\t%s) words=\"", cli_commands[i].name);
		for (int j = 0; j < option_count(&cli_commands[i]); j++) {
			fprintf(out, "%s--%s", j == 0 ? "" : " ", cli_options[option_at(&cli_commands[i], j)].name);
		}
		fputs("\" ;;\n", out);
	}
	fputs("\t\tesac\n\t\t;;\n\tesac\n"
	      "\t# shellcheck disable=SC2086\n"
	      "\tmapfile -t COMPREPLY < <(compgen $kind -W \"$words\" -- \"$word\")\n"
	      "}\ncomplete -o filenames -F _pgonce pgonce\n",
	      out);
}

/* ---- zsh */

static void zsh_option(FILE *out, const cli_command *command, option_id id)
{
	const cli_option *option = &cli_options[id];
	const char *choices = cli_choices(command, id);

	if (option->letter != 0) {
		fprintf(out, "\t\t\t'(-%c --%s)'{-%c,--%s}'[", option->letter, option->name, option->letter, option->name);
	} else {
		fprintf(out, "\t\t\t'--%s[", option->name);
	}
	/* Within single quotes: an apostrophe would end them. */
	for (const char *at = cli_option_help(command, id); !ends_clause(at); at++) {
		if (*at == '\'') {
			fputs("'\\''", out);
		} else {
			fprintf(out, "%s%c", strchr("[]:\\", *at) != NULL ? "\\" : "", *at);
		}
	}
	fputc(']', out);
	if (option->argument != NULL) {
		fputc(':', out);
		for (const char *at = option->argument; *at != '\0'; at++) {
			fprintf(out, "%s%c", strchr(":\\", *at) != NULL ? "\\" : "", *at);
		}
		fputs(choices != NULL           ? ":("
		      : takes_file(option)      ? ":_files"
		      : takes_directory(option) ? ":_directories"
		                                : ": ",
		      out);
		if (choices != NULL) {
			print_choices(out, choices);
			fputc(')', out);
		}
	}
	fputs("' \\\n", out);
}

static void zsh(FILE *out)
{
	fputs("#compdef pgonce\n", out);
	fprintf(out, head, "zsh");
	fputs("_pgonce() {\n\tlocal -a commands=(\n", out);
	for (int i = 0; i < cli_command_count; i++) {
		fprintf(out, "\t\t'%s:", cli_commands[i].name);
		for (const char *at = cli_commands[i].summary; *at != '\0'; at++) {
			fputs(*at == '\'' ? "'\\''" : (char[]){*at, '\0'}, out);
		}
		fputs("'\n", out);
	}
	fputs("\t)\n\tif ((CURRENT == 2)); then\n\t\t_describe -t commands command commands\n\t\treturn\n\tfi\n"
	      "\tlocal command=${words[2]}\n\tshift words\n\t((CURRENT--))\n\tcase $command in\n",
	      out);
	for (int i = 0; i < cli_command_count; i++) {
		const cli_command *command = &cli_commands[i];
		fprintf(out, "\t%s)\n\t\t_arguments -S -s \\\n", command->name);
		for (int j = 0; j < option_count(command); j++) {
			zsh_option(out, command, option_at(command, j));
		}
		fputs(command->operands == OPERANDS_COMMAND        ? "\t\t\t'*::command:_normal'\n"
		      : command->operands == OPERANDS_ONE_OPTIONAL ? "\t\t\t\"1:command:(${commands[*]%%:*})\"\n"
		      : command->operands == OPERANDS_WORDS        ? "\t\t\t'*: :'\n"
		                                                   : "\t\t\t&& return\n",
		      out);
		fputs("\t\t;;\n", out);
	}
	fputs("\tesac\n}\n_pgonce \"$@\"\n", out);
}

/* ---- fish */

static void fish_option(FILE *out, const cli_command *command, option_id id)
{
	const cli_option *option = &cli_options[id];
	const char *choices = cli_choices(command, id);

	fprintf(out, "complete -c pgonce -n '__fish_seen_subcommand_from %s' -l %s", command->name, option->name);
	if (option->letter != 0) {
		fprintf(out, " -s %c", option->letter);
	}
	if (option->kind != KIND_FLAG) {
		fputs(takes_file(option)        ? " -r -F"
		      : takes_directory(option) ? " -x -a '(__fish_complete_directories)'"
		                                : " -x",
		      out);
	}
	if (choices != NULL) {
		fputs(" -a '", out);
		print_choices(out, choices);
		fputc('\'', out);
	}
	fputs(" -d '", out);
	print_clause(out, cli_option_help(command, id), "'\\");
	fputs("'\n", out);
}

static void fish(FILE *out)
{
	fprintf(out, head, "fish");
	fputs("complete -c pgonce -f\n", out);
	for (int i = 0; i < cli_command_count; i++) {
		fprintf(out, "complete -c pgonce -n __fish_use_subcommand -a %s -d '", cli_commands[i].name);
		print_clause(out, cli_commands[i].summary, "'\\");
		fputs("'\n", out);
	}
	for (int i = 0; i < cli_command_count; i++) {
		const cli_command *command = &cli_commands[i];
		for (int j = 0; j < option_count(command); j++) {
			fish_option(out, command, option_at(command, j));
		}
		if (command->operands == OPERANDS_COMMAND) {
			fprintf(out, "complete -c pgonce -n '__fish_seen_subcommand_from %s' -F\n", command->name);
		} else if (command->operands == OPERANDS_ONE_OPTIONAL) {
			fprintf(out, "complete -c pgonce -n '__fish_seen_subcommand_from %s' -a '", command->name);
			print_commands(out);
			fputs("'\n", out);
		}
	}
}

void help_completion(FILE *out, const char *name)
{
	static const shell shells[] = {{"bash", bash}, {"zsh", zsh}, {"fish", fish}};

	for (size_t i = 0; i < sizeof shells / sizeof shells[0]; i++) {
		if (strcmp(shells[i].name, name) == 0) {
			shells[i].write(out);
		}
	}
}
