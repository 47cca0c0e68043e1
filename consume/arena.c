/* SPDX-License-Identifier: PostgreSQL */
/* arena.c: see arena.h. */
#include "arena.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK_BYTES 65536
#define ALIGNMENT 16

struct arena_block {
	arena_block *next;
	size_t used, size;
	_Alignas(ALIGNMENT) unsigned char data[];
};

static void out_of_memory(void)
{
	static const char line[] = "pgonce consume: out of memory; ended, nothing that was not committed counts as done\n";
	ssize_t written = write(STDERR_FILENO, line, sizeof line - 1);
	(void)written;
	_exit(1);
}

void *memory_grow(void *memory, size_t bytes)
{
	void *grown = realloc(memory, bytes > 0 ? bytes : 1);

	if (grown == NULL) {
		out_of_memory();
	}
	return grown;
}

void *memory_take(size_t bytes)
{
	void *taken = memory_grow(NULL, bytes);

	memset(taken, 0, bytes);
	return taken;
}

void *arena_take(arena *arena, size_t bytes)
{
	arena_block *block = arena->blocks;
	size_t rounded = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;

	if (block == NULL || block->size - block->used < rounded) {
		size_t size = rounded > BLOCK_BYTES ? rounded : BLOCK_BYTES;
		block = memory_grow(NULL, sizeof *block + size);
		block->size = size;
		block->used = 0;
		block->next = arena->blocks;
		arena->blocks = block;
	}
	void *taken = block->data + block->used;
	block->used += rounded;
	return taken;
}

char *arena_text(arena *arena, const void *data, size_t length)
{
	char *copy = arena_take(arena, length + 1);

	if (length > 0) {
		memcpy(copy, data, length);
	}
	copy[length] = '\0';
	return copy;
}

char *arena_format(arena *arena, const char *format, ...)
{
	va_list arguments;
	char *made = NULL;

	va_start(arguments, format);
	int length = vasprintf(&made, format, arguments);
	va_end(arguments);
	if (length < 0) {
		out_of_memory();
	}
	char *text = arena_text(arena, made, (size_t)length);
	free(made);
	return text;
}

void arena_clear(arena *arena)
{
	while (arena->blocks != NULL) {
		arena_block *next = arena->blocks->next;
		free(arena->blocks);
		arena->blocks = next;
	}
}
