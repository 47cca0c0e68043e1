/* SPDX-License-Identifier: PostgreSQL */
/* nodes_file.c: see nodes_file.h. */
#include "nodes_file.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "connect.h"

enum {
	FILE_BYTES_MAX = 1 << 20,
	NODES_MAX = 1000
};

typedef struct entry {
	int line;
	char *conninfo;
} entry;

typedef struct entries {
	entry list[NODES_MAX];
	int count;
} entries;

static int read_file(const cli_invocation *invocation, const char *path, char **text)
{
	bytes read = {.bytes_max = FILE_BYTES_MAX};
	int error = bytes_read_file(&read, path);

	if (error != 0 || !bytes_append(&read, "", 1)) {
		bytes_free(&read);
		return cli_fail(invocation, CLI_USAGE, "one connection string per line", "option --nodes: %s: %s", path,
		                strerror(error != 0 ? error : EFBIG));
	}
	*text = (char *)read.data;
	return CLI_OK;
}

static int add_line(const cli_invocation *invocation, entries *entries, int number, const char *line)
{
	const char *path = invocation->text[OPTION_NODES];
	char problem[CONNINFO_PROBLEM_BYTES];

	if (entries->count == NODES_MAX) {
		return cli_fail(invocation, CLI_USAGE, NULL, "option --nodes: %s has more than %d nodes", path, NODES_MAX);
	}
	char *conninfo = connect_settled(line, problem);
	if (conninfo == NULL) {
		return cli_fail(invocation, CLI_USAGE, "the PostgreSQL manual: Connection Strings",
		                "option --nodes: line %d of %s: %s", number, path, problem);
	}
	for (int i = 0; i < entries->count; i++) {
		if (strcmp(entries->list[i].conninfo, conninfo) == 0) {
			free(conninfo);
			return cli_fail(invocation, CLI_USAGE, "remove one of them",
			                "option --nodes: lines %d and %d of %s name the same node", entries->list[i].line, number,
			                path);
		}
	}
	entries->list[entries->count++] = (entry){.line = number, .conninfo = conninfo};
	return CLI_OK;
}

static int read_lines(const cli_invocation *invocation, char *text, entries *entries)
{
	char *rest = text;
	int number = 0;
	int result = CLI_OK;

	for (char *line = strsep(&rest, "\n"); line != NULL && result == CLI_OK; line = strsep(&rest, "\n")) {
		number++;
		while (isspace((unsigned char)*line)) {
			line++;
		}
		if (*line != '\0' && *line != '#') {
			result = add_line(invocation, entries, number, line);
		}
	}
	return result != CLI_OK || entries->count > 0
	           ? result
	           : cli_fail(invocation, CLI_USAGE, "one connection string per line", "option --nodes: %s names no node",
	                      invocation->text[OPTION_NODES]);
}

int nodes_file_read(const cli_invocation *invocation, nodes_file_taker *take, void *argument)
{
	entries *entries = cli_allocate(sizeof *entries);
	char *text = NULL;
	int result = read_file(invocation, invocation->text[OPTION_NODES], &text);

	if (result == CLI_OK) {
		result = read_lines(invocation, text, entries);
	}
	for (int i = 0; i < entries->count; i++) {
		result = result == CLI_OK ? take(argument, entries->list[i].line, entries->list[i].conninfo) : result;
		free(entries->list[i].conninfo);
	}
	free(text);
	free(entries);
	return result;
}
