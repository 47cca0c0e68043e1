/* SPDX-License-Identifier: PostgreSQL */
/*
 * arena.h: memory that is freed all at once: a batch's strings. No function returns NULL: without
 * memory the process ends, which is the same as a crash: uncommitted work is repeated.
 */
#pragma once

#include <stddef.h>

#include "memory.h"

typedef struct arena_block arena_block;

typedef struct arena {
	arena_block *blocks; /* newest first; a zeroed arena is empty */
} arena;

/* aligned for anything; not cleared */
void *arena_take(arena *arena, size_t bytes);
char *arena_text(arena *arena, const void *data, size_t length); /* a copy, NUL-terminated */
__attribute__((format(printf, 2, 3))) char *arena_format(arena *arena, const char *format, ...);
void arena_clear(arena *arena);
