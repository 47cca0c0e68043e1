/* SPDX-License-Identifier: PostgreSQL */
/*
 * text.c: the command's memory, and text composed in it. Out of memory, the command ends with a
 * message.
 */
#include <stdlib.h>
#include <string.h>

#include "cli.h"

void *cli_allocate(size_t bytes)
{
	void *memory = calloc(1, bytes == 0 ? 1 : bytes);

	if (memory == NULL) {
		fputs("pgonce: out of memory\n", stderr);
		exit(CLI_FAILED);
	}
	return memory;
}

char *cli_duplicate(const char *text)
{
	size_t length = strlen(text);
	char *copy = cli_allocate(length + 1);

	memcpy(copy, text, length);
	return copy;
}

char *cli_format_list(const char *format, va_list arguments)
{
	char *text = NULL;

	if (vasprintf(&text, format, arguments) < 0) {
		fputs("pgonce: out of memory\n", stderr);
		exit(CLI_FAILED);
	}
	return text;
}

char *cli_format(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	char *text = cli_format_list(format, arguments);
	va_end(arguments);
	return text;
}

void cli_append(char **text, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	char *more = cli_format_list(format, arguments);
	va_end(arguments);
	char *longer = cli_format("%s%s", *text, more);
	free(more);
	free(*text);
	*text = longer;
}
