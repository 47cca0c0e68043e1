/* SPDX-License-Identifier: PostgreSQL */
/* memory.c: see memory.h. */
#include "memory.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void memory_out(void)
{
	static const char line[] = "pgonce: out of memory; unfinished work is repeated after a restart\n";
	ssize_t written = write(STDERR_FILENO, line, sizeof line - 1);

	(void)written;
	_exit(1);
}

static void *checked(void *memory)
{
	if (memory == NULL) {
		memory_out();
	}
	return memory;
}

void *memory_take(size_t bytes)
{
	return checked(calloc(1, bytes == 0 ? 1 : bytes));
}

void *memory_grow(void *memory, size_t bytes)
{
	return checked(realloc(memory, bytes == 0 ? 1 : bytes));
}

void *memory_array(void *memory, size_t count, size_t size)
{
	return checked(count == 0 || count > SIZE_MAX / size ? NULL : realloc(memory, count * size));
}

char *memory_copy(const char *text)
{
	return text == NULL ? NULL : checked(strdup(text));
}

char *memory_format(const char *format, ...)
{
	va_list arguments;
	char *text = NULL;

	va_start(arguments, format);
	int length = vasprintf(&text, format, arguments);
	va_end(arguments);
	return checked(length < 0 ? NULL : text);
}
