/* SPDX-License-Identifier: PostgreSQL */
/*
 * slow_disk.c: a disk whose syncs take longer, as those of cloud volumes do. Preloaded into a
 * server (LD_PRELOAD), it lets each fsync and fdatasync sleep after the real one. The file that
 * PGONCE_SLOW_DISK names holds for how many microseconds, and may change while servers run.
 * tests/harness/disk.py compiles it. O_DSYNC (wal_sync_method = open_datasync) is not delayed.
 */
#define _GNU_SOURCE

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

typedef int sync_function(int fd);

static volatile const int32_t *delay_us;
static sync_function *real_fsync, *real_fdatasync;

/* When the program starts: it may hide its environment later, and has one thread now. */
__attribute__((constructor)) static void find_delay(void)
{
	static const int32_t none = 0;
	const char *path = getenv("PGONCE_SLOW_DISK");
	int fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
	void *at = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *delay_us, PROT_READ, MAP_SHARED, fd, 0);
	if (fd >= 0) {
		(void)close(fd);
	}
	delay_us = at == MAP_FAILED ? &none : at;
	*(void **)&real_fsync = dlsym(RTLD_NEXT, "fsync");
	*(void **)&real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
}

static int delayed(int result)
{
	int error = errno;
	int32_t us = *delay_us;
	if (us > 0) {
		struct timespec left = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000L};
		(void)prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL); /* not 50 us more */
		while (clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left) == EINTR) {
		}
	}
	errno = error;
	return result;
}

int fsync(int fd)
{
	return delayed(real_fsync(fd));
}

int fdatasync(int fd)
{
	return delayed(real_fdatasync(fd));
}
