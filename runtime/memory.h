/* SPDX-License-Identifier: PostgreSQL */
/*
 * memory.h: allocation as long-running jobs do it: where memory is out the process ends at once,
 * with a message. That is as a crash, by which nothing is lost: what was not settled or committed
 * comes again.
 */
#pragma once

#include <stddef.h>

/* what they do then; for other allocators' failures */
_Noreturn void memory_out(void);
void *memory_take(size_t bytes);               /* zeroed; never NULL */
void *memory_grow(void *memory, size_t bytes); /* realloc; never NULL */
/* realloc to count * size; never NULL */
void *memory_array(void *memory, size_t count, size_t size);
char *memory_copy(const char *text); /* NULL gives NULL */
/* Free it. */
__attribute__((format(printf, 1, 2))) char *memory_format(const char *format, ...);
