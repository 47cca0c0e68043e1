/* SPDX-License-Identifier: PostgreSQL */
/*
 * runtime.c: see runtime.h. The only process state that jobs share: the log's level, the request to
 * stop, and which jobs have a database.
 */
#include "runtime.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "notify.h"

#define LINE_BYTES 4096
#define QUOTED_BYTES_MAX 1000

static atomic_int level_shown = RUNTIME_INFO;
static atomic_bool stopping = false;
static atomic_int signals = 0; /* apart from `stopping`, which a failed job sets too */
static int stop_fd = -1;
static int reload_fd = -1;
static atomic_int reloads = 0;
static atomic_int jobs = 0;
static atomic_int databases = 0;
static atomic_int stalls = 0;

/* ---- the log */

void runtime_log_level(runtime_level level)
{
	atomic_store(&level_shown, (int)level);
}

void runtime_log(const speaker *speaker, runtime_level level, const char *event, const char *format, ...)
{
	static const char *const names[] = {"error", "warning", "info", "debug"};
	char line[LINE_BYTES];
	char zone[32];
	struct timespec now;
	struct tm utc;
	va_list arguments;

	if ((int)level > atomic_load(&level_shown)) {
		return;
	}
	clock_gettime(CLOCK_REALTIME, &now);
	gmtime_r(&now.tv_sec, &utc);
	strftime(zone, sizeof zone, "%Y-%m-%dT%H:%M:%S", &utc);
	int length = snprintf(line, sizeof line, "%s.%03ldZ level=%s %s=%s event=%s ", zone, now.tv_nsec / 1000000,
	                      names[level], speaker->kind, speaker->name, event);
	size_t used = length < 0 ? 0 : (size_t)length < sizeof line - 2 ? (size_t)length : sizeof line - 2;
	va_start(arguments, format);
	length = vsnprintf(line + used, sizeof line - 1 - used, format, arguments);
	va_end(arguments);
	used += length < 0 ? 0 : (size_t)length < sizeof line - 2 - used ? (size_t)length : sizeof line - 2 - used;
	while (used > 0 && line[used - 1] == ' ') {
		used--;
	}
	line[used++] = '\n';
	ssize_t written = write(STDERR_FILENO, line, used);
	(void)written; /* a log that cannot be written is no reason to stop */
}

const char *runtime_quote(const char *text, char buffer[RUNTIME_QUOTE_BYTES])
{
	size_t used = 0;

	buffer[used++] = '"';
	for (size_t i = 0; text[i] != '\0' && i < QUOTED_BYTES_MAX; i++) {
		unsigned char c = (unsigned char)text[i];
		if (c == '"' || c == '\\') {
			buffer[used++] = '\\';
		}
		buffer[used++] = c < ' ' || c == 0x7f ? ' ' : (char)c;
	}
	buffer[used++] = '"';
	buffer[used] = '\0';
	return buffer;
}

/* ---- stopping */

static void on_signal(int signal_number)
{
	if (atomic_fetch_add(&signals, 1) > 0) {
		_exit(128 + signal_number);
	}
	notify_stopping();
	runtime_stop();
}

/* Signal handlers call it too: only async-signal-safe calls. */
static void wake(int fd)
{
	const uint64_t one = 1;
	int saved = errno;

	if (fd >= 0) {
		ssize_t written = write(fd, &one, sizeof one);
		(void)written; /* it is readable already */
	}
	errno = saved;
}

static bool drain(int fd)
{
	uint64_t count = 0;

	return read(fd, &count, sizeof count) == sizeof count;
}

static void on_hang_up(int signal_number)
{
	(void)signal_number;
	wake(reload_fd);
}

static bool handle(int signal_number, void (*handler)(int))
{
	struct sigaction action = {.sa_handler = handler};

	sigemptyset(&action.sa_mask);
	return sigaction(signal_number, &action, NULL) == 0;
}

bool runtime_stop_install(void)
{
	notify_start();
	stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	reload_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return stop_fd >= 0 && reload_fd >= 0 && handle(SIGTERM, on_signal) && handle(SIGINT, on_signal) &&
	       handle(SIGHUP, on_hang_up) && handle(SIGPIPE, SIG_IGN);
}

void runtime_stop(void)
{
	atomic_store(&stopping, true);
	wake(stop_fd);
}

bool runtime_stopping(void)
{
	return atomic_load(&stopping);
}

int runtime_stop_fd(void)
{
	return stop_fd;
}

static bool sleep_for(int64_t milliseconds, int waking_fd)
{
	int64_t until = runtime_now_ms() + milliseconds;
	struct pollfd wait[] = {{.fd = stop_fd, .events = POLLIN}, {.fd = waking_fd, .events = POLLIN}};

	while (!runtime_stopping() && wait[1].revents == 0) {
		int64_t left = until - runtime_now_ms();
		if (left <= 0) {
			break;
		}
		notify_alive();
		(void)poll(wait, 2, notify_wait_ms(left));
	}
	return runtime_stopping();
}

bool runtime_sleep(int64_t milliseconds)
{
	return sleep_for(milliseconds, -1);
}

/* ---- reloading */

int runtime_reload_fd(void)
{
	return reload_fd;
}

bool runtime_reload_take(void)
{
	bool is_taken = drain(reload_fd);

	atomic_fetch_add(&reloads, is_taken);
	return is_taken;
}

int runtime_reloads(void)
{
	return atomic_load(&reloads);
}

bool runtime_rest(int64_t milliseconds)
{
	return sleep_for(milliseconds, reload_fd);
}

bool runtime_go_on(void)
{
	atomic_store(&stopping, false);
	(void)drain(stop_fd);
	/* Checked last: a signal from before the drain has been counted by now. */
	if (atomic_load(&signals) > 0) {
		runtime_stop();
	}
	return !runtime_stopping();
}

/* ---- readiness */

void runtime_job(int change)
{
	atomic_fetch_add(&jobs, change);
	if (change > 0) {
		notify_work_begin();
	} else {
		notify_work_end();
	}
}

/* To the service manager, too; but nothing of jobs that end on request. */
static void tell_ready(void)
{
	const char *reason = runtime_unready();

	if (atomic_load(&jobs) == 0) {
		return; /* the console's connections */
	}
	if (reason == NULL) {
		notify_ready("at work");
	} else if (!runtime_stopping()) {
		notify_status(reason);
	}
}

void runtime_database(int change)
{
	atomic_fetch_add(&databases, change);
	tell_ready();
}

void runtime_stalled(int change)
{
	atomic_fetch_add(&stalls, change);
	tell_ready();
}

void runtime_tried(void)
{
	const char *reason = runtime_unready();

	if (atomic_load(&jobs) > 0 && reason != NULL && !runtime_stopping()) {
		notify_ready(reason);
	}
}

const char *runtime_unready(void)
{
	int begun = atomic_load(&jobs);

	return begun == 0 || atomic_load(&databases) < begun ? "no connection to the database\n"
	       : atomic_load(&stalls) > 0 ? "a consumer's source has messages but delivers none: the log names it\n"
	                                  : NULL;
}
