/* SPDX-License-Identifier: PostgreSQL */
/*
 * memory.h: allocation for long-running jobs: without memory the process ends at once, with a
 * message. That is like a crash, and loses nothing: unfinished work is repeated after a restart.
 */
#pragma once

#include <stddef.h>

/* called in that case; also for other allocators' failures */
_Noreturn void memory_out(void);
void *memory_take(size_t bytes);               /* zeroed; never NULL */
void *memory_grow(void *memory, size_t bytes); /* realloc; never NULL */
/* realloc to count * size; never NULL */
void *memory_array(void *memory, size_t count, size_t size);
char *memory_copy(const char *text); /* NULL gives NULL */
/* Free it. */
__attribute__((format(printf, 1, 2))) char *memory_format(const char *format, ...);
