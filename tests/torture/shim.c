/* SPDX-License-Identifier: PostgreSQL */
/*
 * shim.c: preloaded into a PostgreSQL (LD_PRELOAD), it gives its processes a clock that is wrong
 * and a disk that is full, as a small file says that they all have mapped (PGONCE_SHIM). What is
 * full is everything below PGONCE_SHIM_DIRECTORY. Monotonic clocks stay true.
 */
#undef _FILE_OFFSET_BITS /* else pwrite would be pwrite64, and there would be only one of them */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct control {
	_Atomic int64_t ahead_us; /* of the true time */
	_Atomic int64_t is_full;
};

static struct control nothing;
static struct control *control = &nothing;
static char directory[4096]; /* a copy: PostgreSQL overwrites its environment with its title */

static int (*real_clock_gettime)(clockid_t, struct timespec *);
static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static ssize_t (*real_pwritev)(int, const struct iovec *, int, off_t);
static ssize_t (*real_writev)(int, const struct iovec *, int);
static int (*real_posix_fallocate)(int, off_t, off_t);
static int (*real_fallocate)(int, int, off_t, off_t);

static void *next(const char *name)
{
	void *found = dlsym(RTLD_NEXT, name);

	if (found == NULL) {
		fprintf(stderr, "shim: there is no %s\n", name);
		abort();
	}
	return found;
}

__attribute__((constructor)) static void begin(void)
{
	const char *path = getenv("PGONCE_SHIM");
	int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);

	*(void **)&real_clock_gettime = next("clock_gettime");
	*(void **)&real_write = next("write");
	*(void **)&real_pwrite = next("pwrite");
	*(void **)&real_pwritev = next("pwritev");
	*(void **)&real_writev = next("writev");
	*(void **)&real_posix_fallocate = next("posix_fallocate");
	*(void **)&real_fallocate = next("fallocate");
	if (getenv("PGONCE_SHIM_DIRECTORY") != NULL) {
		snprintf(directory, sizeof directory, "%s", getenv("PGONCE_SHIM_DIRECTORY"));
	}
	if (file >= 0) {
		void *mapped = mmap(NULL, sizeof(struct control), PROT_READ, MAP_SHARED, file, 0);

		if (mapped != MAP_FAILED) {
			control = mapped;
		}
		close(file);
	}
}

/* ---- the clock */

static void true_time(struct timespec *now)
{
	if (real_clock_gettime == NULL) { /* before our constructor */
		*(void **)&real_clock_gettime = next("clock_gettime");
	}
	real_clock_gettime(CLOCK_REALTIME, now);
}

static void told_time(struct timespec *now)
{
	true_time(now);
	int64_t us = (int64_t)now->tv_sec * 1000000 + now->tv_nsec / 1000 + control->ahead_us;
	now->tv_nsec = (long)(us % 1000000) * 1000 + now->tv_nsec % 1000;
	now->tv_sec = (time_t)(us / 1000000);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
	if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) {
		told_time(now);
		return 0;
	}
	if (real_clock_gettime == NULL) {
		*(void **)&real_clock_gettime = next("clock_gettime");
	}
	return real_clock_gettime(clock, now);
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
	struct timespec told;

	(void)zone;
	told_time(&told);
	*now = (struct timeval){.tv_sec = told.tv_sec, .tv_usec = told.tv_nsec / 1000};
	return 0;
}

time_t time(time_t *where)
{
	struct timespec told;

	told_time(&told);
	if (where != NULL) {
		*where = told.tv_sec;
	}
	return told.tv_sec;
}

/* ---- the disk */

static bool has_no_room(int file)
{
	char name[64];
	char path[4096];

	if (control->is_full == 0 || directory[0] == '\0') {
		return false;
	}
	snprintf(name, sizeof name, "/proc/self/fd/%d", file);
	ssize_t length = readlink(name, path, sizeof path - 1);
	size_t prefix = strlen(directory);
	return length > (ssize_t)prefix && memcmp(path, directory, prefix) == 0 && path[prefix] == '/';
}

static int no_room(void)
{
	errno = ENOSPC;
	return -1;
}

ssize_t write(int file, const void *data, size_t size)
{
	return has_no_room(file) ? no_room() : real_write(file, data, size);
}

ssize_t pwrite(int file, const void *data, size_t size, off_t at)
{
	return has_no_room(file) ? no_room() : real_pwrite(file, data, size, at);
}

ssize_t pwrite64(int file, const void *data, size_t size, off_t at)
{
	return pwrite(file, data, size, at);
}

ssize_t pwritev(int file, const struct iovec *pieces, int count, off_t at)
{
	return has_no_room(file) ? no_room() : real_pwritev(file, pieces, count, at);
}

ssize_t pwritev64(int file, const struct iovec *pieces, int count, off_t at)
{
	return pwritev(file, pieces, count, at);
}

ssize_t writev(int file, const struct iovec *pieces, int count)
{
	return has_no_room(file) ? no_room() : real_writev(file, pieces, count);
}

int posix_fallocate(int file, off_t at, off_t size)
{
	return has_no_room(file) ? ENOSPC : real_posix_fallocate(file, at, size);
}

int posix_fallocate64(int file, off_t at, off_t size)
{
	return posix_fallocate(file, at, size);
}

int fallocate(int file, int mode, off_t at, off_t size)
{
	return has_no_room(file) ? no_room() : real_fallocate(file, mode, at, size);
}

int fallocate64(int file, int mode, off_t at, off_t size)
{
	return fallocate(file, mode, at, size);
}
