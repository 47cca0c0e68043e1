/* SPDX-License-Identifier: PostgreSQL */
/* notify.c: see notify.h. */
#include "notify.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "runtime.h"

enum {
	MESSAGE_BYTES = 512,
	STATUS_BYTES = 256,
	/* The manager is told this often in its limit; a thread may be silent for half of it. */
	FEEDS = 4,
	SILENT = 2,
	WAIT_MOST_MS = 60000
};

typedef struct worker {
	struct worker *next;
	_Atomic int64_t alive_at_ms;
	bool is_working;
} worker;

static int to = -1;
static struct sockaddr_un address;
static socklen_t address_bytes;
static atomic_bool is_stopping = false;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool is_ready;
static char shown[STATUS_BYTES];
static int64_t limit_ms; /* of the watchdog; 0: none */
static int64_t fed_at_ms;
static worker *workers;
static _Thread_local worker self;

static void tell(const char *message, size_t length)
{
	if (to >= 0) {
		/* A manager that takes nothing now is no reason to wait. */
		ssize_t sent =
		    sendto(to, message, length, MSG_DONTWAIT | MSG_NOSIGNAL, (struct sockaddr *)&address, address_bytes);
		(void)sent;
	}
}

/* A number without anything after it; else 0. */
static int64_t number_in(const char *name)
{
	const char *text = getenv(name);
	char *end = NULL;

	errno = 0;
	long long number = text == NULL ? 0 : strtoll(text, &end, 10);
	return text == NULL || end == text || *end != '\0' || errno != 0 || number < 0 ? 0 : number;
}

/* "/path", or "@name": abstract, whose length counts. */
static bool set_address(const char *name)
{
	size_t length = name == NULL ? 0 : strlen(name);

	if (length < 2 || length >= sizeof address.sun_path || (name[0] != '/' && name[0] != '@')) {
		return false;
	}
	address.sun_family = AF_UNIX;
	memcpy(address.sun_path, name, length + 1);
	address_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length + (name[0] == '/'));
	if (name[0] == '@') {
		address.sun_path[0] = '\0';
	}
	return true;
}

void notify_start(void)
{
	int64_t watchdog_pid = number_in("WATCHDOG_PID");

	limit_ms = 0;
	if (to >= 0) {
		close(to);
		to = -1;
	}
	if (set_address(getenv("NOTIFY_SOCKET"))) {
		to = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	}
	if (to >= 0 && (watchdog_pid == 0 || watchdog_pid == getpid())) {
		limit_ms = number_in("WATCHDOG_USEC") / 1000;
	}
	unsetenv("NOTIFY_SOCKET");
	unsetenv("WATCHDOG_USEC");
	unsetenv("WATCHDOG_PID");
}

/* ---- states */

static void show(bool makes_ready, const char *status)
{
	char message[MESSAGE_BYTES];

	pthread_mutex_lock(&lock);
	if (!atomic_load(&is_stopping) && (is_ready ? strcmp(shown, status) != 0 : makes_ready)) {
		is_ready = true;
		snprintf(shown, sizeof shown, "%s", status);
		int length = snprintf(message, sizeof message, "%sSTATUS=%.*s\n", makes_ready ? "READY=1\n" : "",
		                      (int)strcspn(shown, "\n"), shown);
		tell(message, (size_t)length);
	}
	pthread_mutex_unlock(&lock);
}

void notify_ready(const char *status)
{
	show(true, status);
}

void notify_status(const char *status)
{
	show(false, status);
}

void notify_reloading(void)
{
	char message[MESSAGE_BYTES];
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	pthread_mutex_lock(&lock);
	is_ready = false;
	int length = snprintf(message, sizeof message, "RELOADING=1\nMONOTONIC_USEC=%lld\n",
	                      (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000);
	tell(message, (size_t)length);
	pthread_mutex_unlock(&lock);
}

void notify_stopping(void)
{
	static const char message[] = "STOPPING=1\n";
	int saved = errno;

	if (!atomic_exchange(&is_stopping, true)) {
		tell(message, sizeof message - 1);
	}
	errno = saved;
}

/* ---- the watchdog */

bool notify_is_watched(void)
{
	return limit_ms > 0;
}

int notify_wait_ms(int64_t milliseconds)
{
	int64_t most_ms = limit_ms > 0 && limit_ms / FEEDS < WAIT_MOST_MS ? limit_ms / FEEDS : WAIT_MOST_MS;

	return (int)(milliseconds < most_ms ? milliseconds : most_ms);
}

/* Under the lock. */
static bool are_alive(int64_t now_ms)
{
	for (const worker *each = workers; each != NULL; each = each->next) {
		if (now_ms - atomic_load(&each->alive_at_ms) > limit_ms / SILENT) {
			return false;
		}
	}
	return true;
}

void notify_work_begin(void)
{
	pthread_mutex_lock(&lock);
	atomic_store(&self.alive_at_ms, runtime_now_ms());
	self.is_working = true;
	self.next = workers;
	workers = &self;
	pthread_mutex_unlock(&lock);
}

void notify_work_end(void)
{
	pthread_mutex_lock(&lock);
	for (worker **at = &workers; *at != NULL; at = &(*at)->next) {
		if (*at == &self) {
			*at = self.next;
			break;
		}
	}
	self.is_working = false;
	pthread_mutex_unlock(&lock);
}

void notify_alive(void)
{
	static const char message[] = "WATCHDOG=1\n";

	if (limit_ms == 0 || !self.is_working) {
		return;
	}
	int64_t now_ms = runtime_now_ms();
	atomic_store(&self.alive_at_ms, now_ms);
	pthread_mutex_lock(&lock);
	if (now_ms - fed_at_ms >= limit_ms / FEEDS && are_alive(now_ms)) {
		fed_at_ms = now_ms;
		tell(message, sizeof message - 1);
	}
	pthread_mutex_unlock(&lock);
}
