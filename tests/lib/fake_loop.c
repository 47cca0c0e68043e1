/* SPDX-License-Identifier: PostgreSQL */
/* fake_loop.c: the loop beside the server of fake.h, and what an operation is told. */
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fake.h"

/* ---- The loop ---- */

static void watch(void *context, int connection, int fd, bool read, bool write)
{
	fake *fake = context;
	/* Another fd than before: the old one was forgotten first. */
	struct stat socket;
	assert_int_equal(fstat(fd, &socket), 0);
	assert_true(fake->watched[connection].fd == -1 ||
	            (fake->watched[connection].fd == fd && fake->watched[connection].inode == socket.st_ino));
	fake->watched[connection].inode = socket.st_ino;
	fake->watched[connection].fd = fd;
	fake->watched[connection].read = read;
	fake->watched[connection].write = write;
}

static void forget(void *context, int connection, int fd)
{
	fake *fake = context;
	assert_int_equal(fake->watched[connection].fd, fd);
	fake->watched[connection].fd = -1;
	fake->forgotten++;
}

static void timer(void *context, int64_t due, bool idle)
{
	fake *fake = context;
	/* An adapter subtracts the time of now. */
	assert_true(due > 0);
	fake->due = due;
	fake->idle = idle;
}

static void defer(void *context)
{
	((fake *)context)->deferred = true;
}

static int64_t now(void *context)
{
	return ((fake *)context)->now;
}

static bool loop_once(fake *fake)
{
	bool worked = false;
	for (int i = 0; i < ONCE_CONNECTIONS_MAX && fake->batcher != NULL; i++) {
		if (fake->watched[i].fd < 0) {
			continue;
		}
		struct pollfd ready = {
		    .fd = fake->watched[i].fd,
		    .events = (short)((fake->watched[i].read ? POLLIN : 0) | (fake->watched[i].write ? POLLOUT : 0))};
		if (poll(&ready, 1, 0) == 1) {
			bool ended = (ready.revents & (POLLERR | POLLHUP)) != 0;
			worked = true;
			/* a socket that libpq closed, and nobody forgot */
			assert_int_equal(ready.revents & POLLNVAL, 0);
			once_batcher_ready(fake->batcher, i, ended || (ready.revents & POLLIN) != 0,
			                   ended || (ready.revents & POLLOUT) != 0);
		}
	}
	if (fake->batcher != NULL && fake->now >= fake->due) {
		worked = true;
		fake->due = ONCE_NEVER;
		once_batcher_tick(fake->batcher);
	}
	if (fake->batcher != NULL && fake->deferred) {
		worked = true;
		fake->deferred = false;
		fake->flushes++;
		once_batcher_flush(fake->batcher);
	}
	return worked;
}

void fake_turn(fake *fake)
{
	int idle = 0;
	for (int i = 0; idle < 2; i++) {
		bool worked = loop_once(fake);
		worked = fake_serve(fake) || worked;
		idle = worked ? 0 : idle + 1;
		if (i > 3000000) {
			fail_msg("the loop never rests");
		}
	}
}

void fake_pass(fake *fake, int64_t ms)
{
	int64_t until = fake->now + ms;
	fake_turn(fake);
	while (fake->due <= until) {
		fake->now = fake->due > fake->now ? fake->due : fake->now;
		fake_turn(fake);
	}
	fake->now = until;
	fake_turn(fake);
}

void fake_attach(fake *fake, const char *conninfo, const once_batcher_options *options)
{
	once_error *error = NULL;
	const once_loop loop = {
	    .context = fake, .watch = watch, .forget = forget, .timer = timer, .defer = defer, .now_ms = now};
	once_batcher_close(fake->batcher);
	fake->batcher = NULL;
	fake->deferred = false;
	fake->due = ONCE_NEVER;
	fake->idle = true;
	assert_ok(once_batcher_open(conninfo, &loop, options, &fake->batcher, &error), error);
}

void fake_open(fake *fake, const once_batcher_options *options)
{
	for (int i = 0; i < FAKE_CONNECTIONS; i++) {
		fake->connections[i].fd = 0;
	}
	/* Not the large buffers, which nobody reads before they are written. */
	memset(fake, 0, offsetof(struct fake, connections));
	memset(&fake->batcher, 0, sizeof *fake - offsetof(struct fake, batcher));
	fake->version = once_contract_version();
	fake->now = 1000000;
	for (int i = 0; i < ONCE_CONNECTIONS_MAX; i++) {
		fake->watched[i].fd = -1;
	}
	snprintf(fake->directory, sizeof fake->directory, "/tmp/pgonce-fake-XXXXXX");
	assert_non_null(mkdtemp(fake->directory));
	snprintf(fake->conninfo, sizeof fake->conninfo, "host=%s port=5432 user=u dbname=d", fake->directory);
	fake_listen(fake);
	fake_attach(fake, fake->conninfo, options);
}

void fake_close(fake *fake)
{
	char path[128];
	once_batcher_close(fake->batcher);
	fake->batcher = NULL;
	/* Nothing is left with the loop. */
	for (int i = 0; i < ONCE_CONNECTIONS_MAX; i++) {
		assert_int_equal(fake->watched[i].fd, -1);
	}
	fake_cut(fake);
	if (fake->listener >= 0) {
		close(fake->listener);
	}
	snprintf(path, sizeof path, "%s/.s.PGSQL.5432", fake->directory);
	unlink(path);
	rmdir(fake->directory);
}

/* ---- What an operation was told ---- */

void note(void *argument, const once_answer *answer, const once_error *error)
{
	seen *seen = argument;
	seen->calls++;
	assert_int_equal(answer == NULL, error != NULL);
	seen->code = once_error_code(error);
	seen->unknown = once_error_outcome_unknown(error);
	snprintf(seen->sqlstate, sizeof seen->sqlstate, "%s", once_error_sqlstate(error));
	snprintf(seen->message, sizeof seen->message, "%s %s", once_error_message(error), once_error_detail(error));
	if (answer != NULL) {
		seen->verdict = once_answer_verdict(answer);
		seen->fence = once_answer_fence(answer);
		seen->may_run = once_answer_may_run(answer);
		snprintf(seen->trace, sizeof seen->trace, "%s",
		         once_answer_traceparent(answer) == NULL ? "" : once_answer_traceparent(answer));
	}
}

once_operation *submit_claim(fake *fake, const char *key, seen *seen)
{
	once_operation *operation = NULL;
	once_error *error = NULL;
	const once_fingerprint fingerprint = {{1}};
	const once_intent intent = {.scope = "s",
	                            .key = key,
	                            .traceparent = strcmp(key, "b") == 0 ? "00-\xff\xfe" : FAKE_TRACE,
	                            .on_stale = fake->on_stale};
	assert_ok(once_batcher_claim(fake->batcher, &intent, &fingerprint, "me", 0, 0, note, seen, &operation, &error),
	          error);
	return operation;
}

once_operation *submit_complete(fake *fake, const char *key, int fence, seen *seen)
{
	once_operation *operation = NULL;
	once_error *error = NULL;
	const once_outcome outcome = {.response_status = 201, .response_body = bytes_of("done")};
	assert_ok(once_batcher_complete(fake->batcher, &(once_intent){.scope = "s", .key = key}, fence, &outcome,
	                                seen == NULL ? NULL : note, seen, &operation, &error),
	          error);
	return operation;
}

once_operation *submit_release(fake *fake, const char *key, int fence, seen *seen)
{
	once_operation *operation = NULL;
	once_error *error = NULL;
	assert_ok(once_batcher_release(fake->batcher, &(once_intent){.scope = "s", .key = key}, fence, note, seen,
	                               &operation, &error),
	          error);
	return operation;
}

once_operation *submit_peek(fake *fake, const char *key, seen *seen)
{
	once_operation *operation = NULL;
	once_error *error = NULL;
	assert_ok(
	    once_batcher_peek(fake->batcher, &(once_intent){.scope = "s", .key = key}, note, seen, &operation, &error),
	    error);
	return operation;
}

once_batcher_statistics count(const fake *fake)
{
	once_batcher_statistics statistics;
	once_batcher_count(fake->batcher, &statistics);
	return statistics;
}
