/* SPDX-License-Identifier: PostgreSQL */
/*
 * worker.c: see worker.h. A service that dies in the middle of a request is back a moment later, as
 * under any supervisor. Its listening socket stays open meanwhile, so callers are not refused.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "worker.h"

enum {
	BACKLOG = 128,
	/* pause before a worker is restarted; doubles if it lived less than a second */
	PAUSE_MS = 20,
	PAUSE_MS_MAX = 1000
};

static int bound(int family, const struct sockaddr *address, socklen_t length, const char *text)
{
	int one = 1;
	int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd >= 0 && family == AF_INET) {
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	}
	if (fd < 0 || bind(fd, address, length) != 0 || listen(fd, BACKLOG) != 0) {
		fprintf(stderr, "cannot listen at %s: %s\n", text, strerror(errno));
		if (fd >= 0) {
			close(fd);
		}
		return -1;
	}
	return fd;
}

static int listen_unix(const char *path, const char *text)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	if (strlen(path) >= sizeof address.sun_path) {
		fprintf(stderr, "cannot listen at %s: the path is too long\n", text);
		return -1;
	}
	memcpy(address.sun_path, path, strlen(path));
	/* Removes the socket of a killed process, but not one with a listener. */
	int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (probe >= 0 && connect(probe, (struct sockaddr *)&address, sizeof address) != 0 && errno == ECONNREFUSED) {
		unlink(path);
	}
	if (probe >= 0) {
		close(probe);
	}
	return bound(AF_UNIX, (struct sockaddr *)&address, sizeof address, text);
}

int worker_listen(const char *text)
{
	struct sockaddr_in address = {.sin_family = AF_INET};
	char host[INET_ADDRSTRLEN];
	const char *colon = strrchr(text, ':');
	char *end = NULL;

	if (strncmp(text, "unix:", 5) == 0) {
		return listen_unix(text + 5, text);
	}
	long port = colon != NULL ? strtol(colon + 1, &end, 10) : 0;
	if (colon == NULL || *end != '\0' || port < 1 || port > 65535 || (size_t)(colon - text) >= sizeof host) {
		fprintf(stderr, "cannot listen at %s: unix:PATH or an IPv4 address and a port\n", text);
		return -1;
	}
	snprintf(host, sizeof host, "%.*s", (int)(colon - text), text);
	address.sin_port = htons((uint16_t)port);
	if (inet_pton(AF_INET, host, &address.sin_addr) != 1) {
		fprintf(stderr, "cannot listen at %s: %s is no IPv4 address\n", text, host);
		return -1;
	}
	return bound(AF_INET, (struct sockaddr *)&address, sizeof address, text);
}

static pid_t start(int (*work)(void *argument), void *argument, pid_t keeper)
{
	pid_t pid = fork();

	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGTERM);
		_exit(getppid() == keeper ? work(argument) : 1);
	}
	if (pid < 0) {
		fprintf(stderr, "cannot start a worker: %s\n", strerror(errno));
	}
	return pid;
}

/* Waits for the worker's end (0) or a signal to end. */
static int watch(const sigset_t *signals, pid_t pid)
{
	siginfo_t info;

	for (;;) {
		if (sigwaitinfo(signals, &info) < 0) {
			continue;
		}
		if (info.si_signo != SIGCHLD) {
			return info.si_signo;
		}
		if (waitpid(pid, NULL, WNOHANG) == pid) {
			return 0;
		}
	}
}

int worker_keep(int (*work)(void *argument), void *argument)
{
	sigset_t signals;
	sigset_t endings;
	pid_t keeper = getpid();
	long pause_ms = PAUSE_MS;

	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	endings = signals;
	sigaddset(&signals, SIGCHLD);
	sigprocmask(SIG_BLOCK, &signals, NULL);
	for (;;) {
		time_t started = time(NULL);
		pid_t pid = start(work, argument, keeper);
		if (pid < 0) {
			return 1;
		}
		if (watch(&signals, pid) != 0) {
			kill(pid, SIGTERM);
			waitpid(pid, NULL, 0);
			return 0;
		}
		pause_ms = time(NULL) - started > 1 ? PAUSE_MS : pause_ms;
		fprintf(stderr, "the worker has ended; starting another\n");
		const struct timespec pause = {.tv_sec = pause_ms / 1000, .tv_nsec = pause_ms % 1000 * 1000000};
		if (sigtimedwait(&endings, NULL, &pause) > 0) {
			return 0;
		}
		pause_ms = pause_ms * 2 > PAUSE_MS_MAX ? PAUSE_MS_MAX : pause_ms * 2;
	}
}
