/* SPDX-License-Identifier: PostgreSQL */
/*
 * fail_libpq.c: for LD_PRELOAD: makes a chosen allocation of libpq itself fail, and of nothing
 * else. test_batcher_memory.c sets the countdown. Not with the address sanitizer, which has an
 * allocator of its own.
 */
#include <errno.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* glibc's own allocator, by the names that it exports for this. */
void *__libc_malloc(size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_calloc(size_t count, size_t size);
void *malloc(size_t size);
void *realloc(void *old, size_t size);
void *calloc(size_t count, size_t size);

extern int fail_libpq_countdown;
int fail_libpq_countdown = -1;

static uintptr_t start;
static uintptr_t end;

static int find_libpq(struct dl_phdr_info *info, size_t size, void *data)
{
	(void)size;
	(void)data;
	if (strstr(info->dlpi_name, "/libpq.so") == NULL) {
		return 0;
	}
	start = info->dlpi_addr;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		uintptr_t last = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz;
		end = last > end ? last : end;
	}
	return 1;
}

static int fails(const void *caller)
{
	if (fail_libpq_countdown <= 0) {
		return 0;
	}
	if (end == 0) {
		dl_iterate_phdr(find_libpq, NULL);
	}
	if ((uintptr_t)caller < start || (uintptr_t)caller >= end || --fail_libpq_countdown > 0) {
		return 0;
	}
	errno = ENOMEM;
	return 1;
}

void *malloc(size_t size)
{
	return fails(__builtin_return_address(0)) ? NULL : __libc_malloc(size);
}

void *realloc(void *old, size_t size)
{
	return fails(__builtin_return_address(0)) ? NULL : __libc_realloc(old, size);
}

void *calloc(size_t count, size_t size)
{
	return fails(__builtin_return_address(0)) ? NULL : __libc_calloc(count, size);
}
