/* SPDX-License-Identifier: PostgreSQL */
/* heartbeat.c: see heartbeat.h. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "heartbeat.h"

enum {
	PATIENCE_MS = 2000, /* how long heartbeat_stop waits for a running call */
	RETRY_MS = 500      /* between tries to reach the database, at most */
};

struct heartbeat {
	pthread_t thread;
	char *conninfo;
	once_session *session;
	once_intent intent; /* copies, since a hanging call may outlive everything else */
	int fence;
	int64_t lease_ms;
	_Atomic int64_t renewed_at_ms;
	int stop[2]; /* closed at the writing end: stop */
	int said[2];
	bool ended; /* its last message was taken */
};

int64_t monotonic_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void say(const heartbeat *heartbeat, char word)
{
	ssize_t written = write(heartbeat->said[1], &word, 1);
	(void)written; /* the pipe contains at most three bytes */
}

typedef enum renewal {
	RENEWED,
	RENEWAL_LOST,
	RENEWAL_FAILED
} renewal;

static renewal renew(heartbeat *heartbeat)
{
	bool held = false;
	int64_t asked_at_ms = monotonic_ms();

	if (heartbeat->session == NULL && once_session_open(heartbeat->conninfo, &heartbeat->session, NULL) != ONCE_OK) {
		return RENEWAL_FAILED;
	}
	if (once_renew(heartbeat->session, &heartbeat->intent, heartbeat->fence, heartbeat->lease_ms, &held, NULL) !=
	    ONCE_OK) {
		if (PQstatus(once_session_connection(heartbeat->session)) != CONNECTION_OK) {
			once_session_close(heartbeat->session);
			heartbeat->session = NULL;
		}
		return RENEWAL_FAILED;
	}
	if (!held) {
		return RENEWAL_LOST;
	}
	atomic_store(&heartbeat->renewed_at_ms, asked_at_ms);
	return RENEWED;
}

/* Waits to be stopped; false if the time passes first. */
static bool told_to_stop(const heartbeat *heartbeat, int64_t wait_ms)
{
	struct pollfd stop = {.fd = heartbeat->stop[0], .events = POLLIN};
	int64_t until_ms = monotonic_ms() + wait_ms;

	for (;;) {
		int64_t left_ms = until_ms - monotonic_ms();
		int ready = poll(&stop, 1, left_ms < 0 ? 0 : left_ms > INT32_MAX ? INT32_MAX : (int)left_ms);
		if (ready > 0) {
			return true;
		}
		if (ready == 0 && monotonic_ms() >= until_ms) {
			return false;
		}
	}
}

static void *beat(void *argument)
{
	heartbeat *heartbeat = argument;
	int64_t third_ms = heartbeat->lease_ms / 3;
	int64_t retry_ms = third_ms / 4 < RETRY_MS ? third_ms / 4 + 1 : RETRY_MS;
	int64_t wait_ms = third_ms;
	bool late = false;

	while (!told_to_stop(heartbeat, wait_ms)) {
		renewal renewal = renew(heartbeat);
		if (renewal == RENEWAL_LOST) {
			say(heartbeat, HEARTBEAT_LOST);
			break;
		}
		wait_ms = renewal == RENEWED ? third_ms : retry_ms;
		if (!late && monotonic_ms() - atomic_load(&heartbeat->renewed_at_ms) > heartbeat->lease_ms) {
			late = true;
			say(heartbeat, HEARTBEAT_LATE);
		}
	}
	say(heartbeat, HEARTBEAT_ENDED);
	return NULL;
}

static void heartbeat_free(heartbeat *heartbeat)
{
	free(heartbeat->conninfo);
	free((char *)heartbeat->intent.tenant);
	free((char *)heartbeat->intent.scope);
	free((char *)heartbeat->intent.key);
	free(heartbeat);
}

heartbeat *heartbeat_start(const char *conninfo, once_session *session, const once_intent *intent, int fence,
                           int64_t lease_ms)
{
	heartbeat *made = cli_allocate(sizeof *made);

	made->conninfo = cli_duplicate(conninfo);
	made->session = session;
	made->intent = (once_intent){.tenant = cli_duplicate(intent->tenant),
	                             .scope = cli_duplicate(intent->scope),
	                             .key = cli_duplicate(intent->key)};
	made->fence = fence;
	made->lease_ms = lease_ms;
	atomic_init(&made->renewed_at_ms, monotonic_ms());
	if (pipe2(made->stop, O_CLOEXEC) != 0) {
		heartbeat_free(made);
		return NULL;
	}
	if (pipe2(made->said, O_CLOEXEC) != 0 || pthread_create(&made->thread, NULL, beat, made) != 0) {
		close(made->stop[0]);
		close(made->stop[1]);
		heartbeat_free(made);
		return NULL;
	}
	return made;
}

int heartbeat_fd(const heartbeat *heartbeat)
{
	return heartbeat->ended ? -1 : heartbeat->said[0];
}

char heartbeat_take(heartbeat *heartbeat)
{
	char word = 0;

	if (heartbeat->ended || read(heartbeat->said[0], &word, 1) != 1) {
		return 0;
	}
	heartbeat->ended = word == HEARTBEAT_ENDED;
	return word;
}

once_session *heartbeat_stop(heartbeat *heartbeat, int64_t *renewed_at_ms)
{
	int64_t until_ms = monotonic_ms() + PATIENCE_MS;

	close(heartbeat->stop[1]);
	while (!heartbeat->ended) {
		struct pollfd said = {.fd = heartbeat->said[0], .events = POLLIN};
		int64_t left_ms = until_ms - monotonic_ms();
		if (left_ms <= 0) {
			break;
		}
		if (poll(&said, 1, (int)left_ms) > 0) {
			heartbeat_take(heartbeat);
		}
	}
	*renewed_at_ms = atomic_load(&heartbeat->renewed_at_ms);
	if (!heartbeat->ended) {
		/* It hangs in a call. It keeps its memory; the process ends soon. */
		pthread_detach(heartbeat->thread);
		return NULL;
	}
	pthread_join(heartbeat->thread, NULL);
	once_session *session = heartbeat->session;
	close(heartbeat->stop[0]);
	close(heartbeat->said[0]);
	close(heartbeat->said[1]);
	heartbeat_free(heartbeat);
	return session;
}
