/* SPDX-License-Identifier: PostgreSQL */
/*
 * clock.c: time and pauses, declared in runtime.h. Apart from runtime.c, which calls notify.c: that
 * reads the clock.
 */
#include <sys/random.h>
#include <time.h>

#include "runtime.h"

int64_t runtime_now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int64_t runtime_backoff_ms(int failures, int64_t first_ms, int64_t most_ms)
{
	int64_t whole = first_ms;
	uint64_t random = 0;

	for (int i = 1; i < failures && whole < most_ms; i++) {
		whole *= 2;
	}
	whole = whole < most_ms ? whole : most_ms;
	if (getrandom(&random, sizeof random, GRND_NONBLOCK) != sizeof random) {
		random = (uint64_t)runtime_now_ms();
	}
	return whole / 2 + (int64_t)(random % (uint64_t)(whole - whole / 2 + 1));
}
