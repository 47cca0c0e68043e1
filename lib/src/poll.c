/* SPDX-License-Identifier: PostgreSQL */
/*
 * poll.c: a batcher on poll(2): the smallest adapter that keeps all the promises of once_loop. Its
 * sockets, one timer, one flag for a due flush.
 */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>

#include "internal.h"
#include "pgonce_batcher.h"

enum {
	CONNECTIONS = ONCE_CONNECTIONS_MAX
};

struct once_poll {
	once_batcher *batcher;
	struct pollfd watched[CONNECTIONS];
	int64_t due_ms;
	bool flush;
	bool running;
	bool closed; /* by a callback: freed when it returns */
};

static void watch(void *context, int connection, int fd, bool read, bool write)
{
	once_poll *poll = context;
	poll->watched[connection] =
	    (struct pollfd){.fd = fd, .events = (short)((read ? POLLIN : 0) | (write ? POLLOUT : 0))};
}

static void forget(void *context, int connection, int fd)
{
	once_poll *poll = context;
	(void)fd;
	poll->watched[connection] = (struct pollfd){.fd = -1};
}

static void set_timer(void *context, int64_t due_ms, bool idle)
{
	once_poll *poll = context;
	(void)idle;
	poll->due_ms = due_ms;
}

static void defer(void *context)
{
	once_poll *poll = context;
	poll->flush = true;
}

static int64_t clock_ms(void *context)
{
	(void)context;
	return now_ms();
}

once_code once_poll_open(const char *conninfo, const once_batcher_options *options, once_poll **poll,
                         once_error **error)
{
	if (poll == NULL) {
		return error_usage(error, "poll must not be NULL");
	}
	once_poll *made = calloc(1, sizeof *made);
	if (made == NULL) {
		return error_no_memory(error);
	}
	made->due_ms = ONCE_NEVER;
	for (int i = 0; i < CONNECTIONS; i++) {
		made->watched[i].fd = -1;
	}
	const once_loop loop = {
	    .context = made, .watch = watch, .forget = forget, .timer = set_timer, .defer = defer, .now_ms = clock_ms};
	once_code code = once_batcher_open(conninfo, &loop, options, &made->batcher, error);
	if (code != ONCE_OK) {
		free(made);
		return code;
	}
	*poll = made;
	return ONCE_OK;
}

once_batcher *once_poll_batcher(once_poll *poll)
{
	return poll->batcher;
}

/* How long poll(2) may wait: until the caller's timeout or the batcher's timer ends. */
static int wait_ms(const once_poll *poll, int64_t timeout_ms)
{
	int64_t now = now_ms();
	int64_t left_ms = poll->due_ms == ONCE_NEVER ? -1 : poll->due_ms > now ? poll->due_ms - now : 0;
	if (left_ms < 0 || (timeout_ms >= 0 && timeout_ms < left_ms)) {
		left_ms = timeout_ms;
	}
	return left_ms < 0 ? -1 : left_ms > INT_MAX ? INT_MAX : (int)left_ms;
}

static void flush_if_due(once_poll *poll)
{
	while (!poll->closed && poll->flush) {
		poll->flush = false;
		once_batcher_flush(poll->batcher);
	}
}

static void handle(once_poll *poll, const struct pollfd ready[CONNECTIONS])
{
	for (int i = 0; i < CONNECTIONS && !poll->closed; i++) {
		/* Handling one connection's events may have closed the other's socket. */
		if (ready[i].revents != 0 && ready[i].fd == poll->watched[i].fd) {
			bool ended = (ready[i].revents & (POLLERR | POLLHUP | POLLNVAL)) != 0;
			once_batcher_ready(poll->batcher, i, ended || (ready[i].revents & POLLIN) != 0,
			                   ended || (ready[i].revents & POLLOUT) != 0);
		}
	}
	if (!poll->closed && now_ms() >= poll->due_ms) {
		poll->due_ms = ONCE_NEVER;
		once_batcher_tick(poll->batcher);
	}
	flush_if_due(poll);
}

once_code once_poll_run(once_poll *poll_, int64_t timeout_ms, once_error **error)
{
	if (poll_ == NULL || poll_->running) {
		return error_usage(error, "once_poll_run takes a poll, and is not called from a callback");
	}
	poll_->running = true;
	flush_if_due(poll_);
	once_code code = ONCE_OK;
	if (!poll_->closed) {
		struct pollfd ready[CONNECTIONS];
		memcpy(ready, poll_->watched, sizeof ready);
		int count = poll(ready, CONNECTIONS, wait_ms(poll_, timeout_ms));
		if (count >= 0) {
			handle(poll_, ready);
		} else if (errno != EINTR) {
			code = error_usage(error, "poll(2) failed");
		}
	}
	poll_->running = false;
	if (poll_->closed) {
		free(poll_);
	}
	return code;
}

void once_poll_close(once_poll *poll)
{
	if (poll == NULL || poll->closed) {
		return;
	}
	poll->closed = true;
	/*
	 * Within a callback the batcher frees itself when that returns, and calls no hook until then.
	 */
	once_batcher_close(poll->batcher);
	if (!poll->running) {
		free(poll);
	}
}
