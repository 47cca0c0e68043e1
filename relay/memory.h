/* SPDX-License-Identifier: PostgreSQL */
/*
 * memory.h: allocation as the relay does it: where memory is out the process ends at once, with a message. Nothing is lost by that: what was
 * not settled is delivered again.
 */
#pragma once

#include <stddef.h>

_Noreturn void memory_out(void);                             /* what they do then; for other allocators' failures */
void *memory_get(size_t bytes);                              /* zeroed; never NULL */
void *memory_array(void *memory, size_t count, size_t size); /* realloc to count * size; never NULL */
char *memory_copy(const char *text);                         /* NULL gives NULL */
/* Free it. */
__attribute__((format(printf, 1, 2))) char *memory_format(const char *format, ...);
