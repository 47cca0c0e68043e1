/* SPDX-License-Identifier: PostgreSQL */
/*
 * help.c: the command table as text: help, man pages (roff), and docs/reference/command.md. No text
 * about a command is written here.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli.h"
#include "configuration.h"
#include "roff.h"

enum {
	WIDTH = 96,
	OPTION_COLUMN = 28
};

/* Words of text, filled to WIDTH; the first line starts at `column`, the others at `indent`. */
static void print_filled(FILE *out, const char *text, int indent, int column)
{
	const char *separator = "";

	while (*text != '\0') {
		int length = (int)strcspn(text, " ");
		if (*separator != '\0' && column + 1 + length > WIDTH) {
			fprintf(out, "\n%*s", indent, "");
			column = indent;
			separator = "";
		}
		column += fprintf(out, "%s%.*s", separator, length, text);
		separator = " ";
		text += length;
		text += strspn(text, " ");
	}
	fputc('\n', out);
}

static bool is_example(const char *paragraph)
{
	return strncmp(paragraph, "  ", 2) == 0;
}

static char *option_left_side(const cli_option *option)
{
	char letter[8] = "    ";

	if (option->letter != 0) {
		snprintf(letter, sizeof letter, "-%c, ", option->letter);
	}
	return cli_format("%s--%s%s%s", letter, option->name, option->argument != NULL ? " " : "",
	                  option->argument != NULL ? option->argument : "");
}

/* The choices, and whether the option is required. */
static char *option_help(const cli_command *command, option_id id, bool required)
{
	const char *choices = cli_choices(command, id);

	return cli_format("%s%s%s%s", cli_option_help(command, id), choices != NULL ? "; one of " : "",
	                  choices != NULL ? choices : "", required ? " (required)" : "");
}

static void print_option(FILE *out, const cli_command *command, option_id id, bool required)
{
	const cli_option *option = &cli_options[id];
	char *left = option_left_side(option);
	char *help = option_help(command, id, required);
	int column = fprintf(out, "  %s  ", left);

	if (column > OPTION_COLUMN) {
		fputc('\n', out);
		column = 0;
	}
	fprintf(out, "%*s", OPTION_COLUMN - column, "");
	print_filled(out, help, OPTION_COLUMN, OPTION_COLUMN);
	free(help);
	free(left);
}

static bool exits_with(const cli_command *command, int code)
{
	if (code == CLI_OK || code == CLI_FAILED || code == CLI_USAGE) {
		return true;
	}
	for (const int *exit = command->exits; *exit != 0; exit++) {
		if (*exit == code) {
			return true;
		}
	}
	return false;
}

void help_overview(FILE *out)
{
	fputs("pgonce makes retries harmless: an intent has one durable effect and one answer.\n\nUsage: pgonce COMMAND "
	      "[OPTIONS]\n\n",
	      out);
	for (int i = 0; i < cli_command_count; i++) {
		fprintf(out, "  %-10s %s\n", cli_commands[i].name, cli_commands[i].summary);
	}
	fputs("\npgonce help COMMAND tells more of one.\n", out);
}

void help_command(FILE *out, const cli_command *command)
{
	fprintf(out, "pgonce %s: %s\n\nUsage: pgonce %s %s\n", command->name, command->summary, command->name,
	        command->usage);
	bool in_examples = false;
	for (const char *const *paragraph = command->about; *paragraph != NULL; paragraph++) {
		if (is_example(*paragraph)) {
			fprintf(out, "%s%s\n", in_examples ? "" : "\nExamples:\n", *paragraph);
			in_examples = true;
		} else {
			fputc('\n', out);
			print_filled(out, *paragraph, 0, 0);
		}
	}
	fputs("\nOptions:\n", out);
	for (int i = 0; i < command->use_count; i++) {
		print_option(out, command, command->uses[i].id, command->uses[i].required);
	}
	print_option(out, command, OPTION_HELP, false);
	fputs("\nExit status:\n", out);
	for (int i = 0; i < exit_code_count; i++) {
		if (exits_with(command, exit_codes[i].code)) {
			fprintf(out, "  %-6s ", exit_codes[i].shown);
			print_filled(out, exit_codes[i].meaning, 9, 9);
		}
	}
}

/* ---- roff ---- */

static void roff_exit_codes(FILE *out, const cli_command *command)
{
	fputs(".SH EXIT STATUS\n", out);
	for (int i = 0; i < exit_code_count; i++) {
		if (command == NULL || exits_with(command, exit_codes[i].code)) {
			fprintf(out, ".TP\n.B %s\n", exit_codes[i].shown);
			roff_line(out, exit_codes[i].meaning);
		}
	}
}

static void roff_option(FILE *out, const cli_command *command, option_id id, bool required)
{
	const cli_option *option = &cli_options[id];
	char *help = option_help(command, id, required);

	fputs(".TP\n", out);
	fputs(".BR ", out);
	if (option->letter != 0) {
		fprintf(out, "\\-%c \", \" ", option->letter);
	}
	fputs("\\-\\-", out);
	roff_text(out, option->name);
	fprintf(out, " \" %s\"\n", option->argument != NULL ? option->argument : "");
	roff_line(out, help);
	free(help);
}

static void roff_overview(FILE *out, const cli_command *command)
{
	(void)command;
	roff_head(out, "pgonce", 1, "make retries harmless: one durable effect and one answer per intent");
	fputs(".SH SYNOPSIS\n.B pgonce\n.I COMMAND\n[\\fIOPTIONS\\fR]\n.SH COMMANDS\n", out);
	for (int i = 0; i < cli_command_count; i++) {
		fprintf(out, ".TP\n.BR pgonce\\-%s (1)\n", cli_commands[i].name);
		roff_line(out, cli_commands[i].summary);
	}
	roff_exit_codes(out, NULL);
}

static bool uses_option(const cli_command *command, option_id id)
{
	for (int i = 0; i < command->use_count; i++) {
		if (command->uses[i].id == id) {
			return true;
		}
	}
	return false;
}

static void roff_command(FILE *out, const cli_command *command)
{
	char *page = cli_format("pgonce-%s", command->name);

	roff_head(out, page, 1, command->summary);
	fprintf(out, ".SH SYNOPSIS\n.B pgonce %s\n", command->name);
	roff_line(out, command->usage);
	fputs(".SH DESCRIPTION\n", out);
	bool in_examples = false;
	for (const char *const *paragraph = command->about; *paragraph != NULL; paragraph++) {
		if (is_example(*paragraph)) {
			fputs(in_examples ? "" : ".SH EXAMPLES\n", out);
			in_examples = true;
			fputs(".PP\n.nf\n", out);
			roff_line(out, *paragraph + 2);
			fputs(".fi\n", out);
		} else {
			fputs(".PP\n", out);
			roff_line(out, *paragraph);
		}
	}
	fputs(".SH OPTIONS\n", out);
	for (int i = 0; i < command->use_count; i++) {
		roff_option(out, command, command->uses[i].id, command->uses[i].required);
	}
	roff_option(out, command, OPTION_HELP, false);
	roff_exit_codes(out, command);
	fputs(uses_option(command, OPTION_CONFIG) ? ".SH SEE ALSO\n.BR pgonce (1),\n.BR pgonce.conf (5)\n"
	                                          : ".SH SEE ALSO\n.BR pgonce (1)\n",
	      out);
	free(page);
}

/* Writes one page, with `write`, for the command if there is one. */
static int write_page(const cli_invocation *invocation, const char *directory, const char *name,
                      void (*write)(FILE *out, const cli_command *command), const cli_command *command)
{
	char *path = cli_format("%s/%s", directory, name);
	FILE *out = fopen(path, "we");
	int result = CLI_OK;

	if (out != NULL) {
		write(out, command);
	}
	if (out == NULL || fclose(out) != 0) {
		result = cli_fail(invocation, CLI_FAILED, NULL, "cannot write %s: %s", path, strerror(errno));
	}
	free(path);
	return result;
}

static void roff_configuration_page(FILE *out, const cli_command *command)
{
	(void)command;
	configuration_roff(out);
}

static int write_pages(const cli_invocation *invocation, const char *directory)
{
	if (mkdir(directory, 0755) != 0 && errno != EEXIST) {
		return cli_fail(invocation, CLI_FAILED, NULL, "cannot make directory %s: %s", directory, strerror(errno));
	}
	int result = write_page(invocation, directory, "pgonce.1", roff_overview, NULL);
	for (int i = 0; i < cli_command_count && result == CLI_OK; i++) {
		char *name = cli_format("pgonce-%s.1", cli_commands[i].name);
		result = write_page(invocation, directory, name, roff_command, &cli_commands[i]);
		free(name);
	}
	return result != CLI_OK ? result
	                        : write_page(invocation, directory, "pgonce.conf.5", roff_configuration_page, NULL);
}

/* ---- Markdown ---- */

/*
 * In a table a bar would end the cell; elsewhere angle brackets and stars have no meaning in these
 * texts.
 */
static void markdown_cell(FILE *out, const char *text)
{
	for (; *text != '\0'; text++) {
		if (*text == '|') {
			fputc('\\', out);
		}
		fputc(*text, out);
	}
}

static void markdown_option(FILE *out, const cli_command *command, option_id id, bool required)
{
	const cli_option *option = &cli_options[id];
	char *help = option_help(command, id, required);

	fputs("| ", out);
	if (option->letter != 0) {
		fprintf(out, "`-%c`, ", option->letter);
	}
	fprintf(out, "`--%s%s", option->name, option->argument != NULL ? " " : "");
	markdown_cell(out, option->argument != NULL ? option->argument : "");
	fputs("` | ", out);
	markdown_cell(out, help);
	fputs(" |\n", out);
	free(help);
}

static void markdown_command(FILE *out, const cli_command *command)
{
	fprintf(out, "\n## pgonce %s\n\n%c%s.\n\n    pgonce %s %s\n", command->name, command->summary[0] - 'a' + 'A',
	        command->summary + 1, command->name, command->usage);
	bool in_examples = false;
	for (const char *const *paragraph = command->about; *paragraph != NULL; paragraph++) {
		if (is_example(*paragraph)) {
			fprintf(out, "%s    %s\n", in_examples ? "" : "\nExamples:\n\n", *paragraph + 2);
			in_examples = true;
		} else {
			fprintf(out, "\n%s\n", *paragraph);
		}
	}
	fputs("\n| option | |\n| --- | --- |\n", out);
	for (int i = 0; i < command->use_count; i++) {
		markdown_option(out, command, command->uses[i].id, command->uses[i].required);
	}
	markdown_option(out, command, OPTION_HELP, false);
	fputs("\nExit status:", out);
	const char *separator = " ";
	for (int i = 0; i < exit_code_count; i++) {
		if (exits_with(command, exit_codes[i].code)) {
			fprintf(out, "%s%s", separator, exit_codes[i].shown);
			separator = ", ";
		}
	}
	fputs(".\n", out);
}

static void markdown_all(FILE *out)
{
	fputs("<!-- SPDX-License-Identifier: PostgreSQL -->\n<!-- Generated by `pgonce help --markdown`. -->\n# The "
	      "command pgonce\n\n"
	      "| command | |\n| --- | --- |\n",
	      out);
	for (int i = 0; i < cli_command_count; i++) {
		fprintf(out, "| [`pgonce %s`](#pgonce-%s) | %s |\n", cli_commands[i].name, cli_commands[i].name,
		        cli_commands[i].summary);
	}
	fputs("\n## Exit status\n\n| code | meaning |\n| --- | --- |\n", out);
	for (int i = 0; i < exit_code_count; i++) {
		fprintf(out, "| %s | ", exit_codes[i].shown);
		markdown_cell(out, exit_codes[i].meaning);
		fputs(" |\n", out);
	}
	for (int i = 0; i < cli_command_count; i++) {
		markdown_command(out, &cli_commands[i]);
	}
}

int cli_help(const cli_invocation *invocation)
{
	if (invocation->given[OPTION_MAN]) {
		return write_pages(invocation, invocation->text[OPTION_MAN]);
	}
	if (invocation->given[OPTION_MARKDOWN]) {
		/* The one document that is not about commands. */
		if (invocation->operand_count > 0 && strcmp(invocation->operands[0], "configuration") == 0) {
			configuration_markdown(stdout);
		} else {
			markdown_all(stdout);
		}
		return CLI_OK;
	}
	if (invocation->given[OPTION_COMPLETION]) {
		help_completion(stdout, invocation->text[OPTION_COMPLETION]);
		return CLI_OK;
	}
	if (invocation->operand_count == 0) {
		help_overview(stdout);
		return CLI_OK;
	}
	const char *name = invocation->operands[0];
	const cli_command *command = cli_find_command(name);
	if (command == NULL) {
		const char *nearest = cli_nearest_command(name);
		return cli_fail(invocation, CLI_USAGE, "pgonce help", "unknown command '%s'%s%s%s", name,
		                nearest != NULL ? "; did you mean '" : "", nearest != NULL ? nearest : "",
		                nearest != NULL ? "'?" : "");
	}
	help_command(stdout, command);
	return CLI_OK;
}
