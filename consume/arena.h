/* SPDX-License-Identifier: PostgreSQL */
/*
 * arena.h: memory that is given back all at once: a batch's strings. Nothing returns NULL: where
 * memory is out the process ends, which is as a crash: what was not committed comes again.
 */
#pragma once

#include <stddef.h>

#include "memory.h"

typedef struct arena_block arena_block;

typedef struct arena {
	arena_block *blocks; /* newest first; zero-initialised is empty */
} arena;

/* aligned for anything; not cleared */
void *arena_take(arena *arena, size_t bytes);
char *arena_text(arena *arena, const void *data, size_t length); /* a copy with a NUL behind it */
__attribute__((format(printf, 2, 3))) char *arena_format(arena *arena, const char *format, ...);
void arena_clear(arena *arena);
