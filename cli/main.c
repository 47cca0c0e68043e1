/* SPDX-License-Identifier: PostgreSQL */
/* main.c: finds the command in the table, reads its options, runs it. */
#include <fcntl.h>
#include <libpq-fe.h>
#include <openssl/crypto.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

/*
 * If a standard stream is closed at the start, the next opened file would become it, and CMD's
 * output would go there.
 */
static void open_standard_streams(void)
{
	int fd;

	do {
		fd = open("/dev/null", O_RDWR);
	} while (fd >= 0 && fd <= 2);
	if (fd > 2) {
		close(fd);
	}
}

/*
 * Every user of the machine can read the arguments of a process: a connection string with a
 * password is overwritten in place. Returns the copy to use from now on, NULL if there is nothing
 * to hide. Free it.
 */
static char *hide_password(cli_invocation *invocation)
{
	const char *shown = cli_text(invocation, OPTION_DSN, "");
	PQconninfoOption *options = PQconninfoParse(shown, NULL);
	bool is_secret = false;
	char *copy = NULL;

	for (PQconninfoOption *option = options; option != NULL && option->keyword != NULL; option++) {
		is_secret = is_secret || (strstr(option->keyword, "password") != NULL && option->val != NULL);
	}
	PQconninfoFree(options);
	if (is_secret) {
		copy = cli_duplicate(shown);
		memset((char *)(uintptr_t)shown, 'x', strlen(shown));
		invocation->text[OPTION_DSN] = copy;
	}
	return copy;
}

int main(int argc, char **argv)
{
	cli_invocation invocation;
	char *hidden = NULL;

	open_standard_streams();
	/*
	 * A job that stops may leave a thread that is still connecting over TLS (runtime/database.c).
	 */
	OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, NULL);
	if (argc < 2) {
		help_overview(stderr);
		return CLI_USAGE;
	}
	const char *name = argv[1];
	if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
		name = "help";
	} else if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) {
		name = "version";
	}
	const cli_command *command = cli_find_command(name);
	if (command == NULL) {
		const char *nearest = cli_nearest_command(name);
		return nearest != NULL
		           ? cli_fail(NULL, CLI_USAGE, "pgonce help", "unknown command '%s'; did you mean '%s'?", name, nearest)
		           : cli_fail(NULL, CLI_USAGE, "pgonce help", "unknown command '%s'", name);
	}
	int result = cli_parse(command, argc - 1, argv + 1, &invocation);
	if (result != CLI_OK) {
		return result;
	}
	hidden = hide_password(&invocation);
	if (invocation.given[OPTION_HELP]) {
		help_command(stdout, command);
		result = CLI_OK;
	} else {
		result = command->run != NULL ? command->run(&invocation) : cli_help(&invocation);
	}
	free(hidden);
	/* A full disk or a closed pipe must not look like success. */
	if ((fflush(stdout) != 0 || ferror(stdout) != 0) && result == CLI_OK) {
		return cli_fail(&invocation, CLI_FAILED, NULL, "cannot write to standard output: %m");
	}
	return result;
}
