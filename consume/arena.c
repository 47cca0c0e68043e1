/* SPDX-License-Identifier: PostgreSQL */
/* arena.c: see arena.h. */
#include "arena.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	FIRST_BYTES = 1024, /* most arenas hold one message; each further block is twice as large */
	BLOCK_BYTES = 65536,
	ALIGNMENT = 16
};

struct arena_block {
	arena_block *next;
	size_t used, size;
	_Alignas(ALIGNMENT) unsigned char data[];
};

void *arena_take(arena *arena, size_t bytes)
{
	arena_block *block = arena->blocks;
	size_t rounded = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;

	if (block == NULL || block->size - block->used < rounded) {
		size_t usual = block == NULL ? FIRST_BYTES : block->size < BLOCK_BYTES ? 2 * block->size : BLOCK_BYTES;
		size_t size = rounded > usual ? rounded : usual;
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
		memory_out();
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
