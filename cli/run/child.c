/* SPDX-License-Identifier: PostgreSQL */
/* child.c: see child.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "child.h"

enum {
	GRACE_TENTHS = 100 /* tenths of a second between SIGTERM and SIGKILL */
};

static const int passed_on[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

int child_prepare_signals(child_signals *signals)
{
	sigset_t taken;
	struct sigaction ignore = {.sa_handler = SIG_IGN};
	struct sigaction standard = {.sa_handler = SIG_DFL};

	sigemptyset(&taken);
	sigaddset(&taken, SIGCHLD);
	for (size_t i = 0; i < sizeof passed_on / sizeof passed_on[0]; i++) {
		sigaddset(&taken, passed_on[i]);
	}
	/* An inherited SIG_IGN would make the kernel reap CMD and lose its exit status. */
	if (sigaction(SIGCHLD, &standard, NULL) != 0 || sigaction(SIGPIPE, &ignore, &signals->pipe_action) != 0 ||
	    sigprocmask(SIG_BLOCK, &taken, &signals->mask) != 0) {
		return errno;
	}
	signals->fd = signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK);
	return signals->fd < 0 ? errno : 0;
}

/* In the foreground of a terminal CMD stays in pgonce's process group: it may then read from
 * the terminal, and Ctrl-C reaches both. */
static bool in_foreground(void)
{
	int terminal = open("/dev/tty", O_RDWR | O_CLOEXEC | O_NOCTTY);

	if (terminal < 0) {
		return false;
	}
	bool foreground = tcgetpgrp(terminal) == getpgrp();
	close(terminal);
	return foreground;
}

/*
 * If pgonce is killed, the lease is no longer renewed. The kernel signals CMD. This guard process
 * signals CMD's children, and does nothing else: the group gets SIGTERM, and SIGKILL if it has not
 * ended by then. A first message on the pipe gives the group.
 */
static _Noreturn void guard(int life)
{
	static const struct timespec pause = {.tv_nsec = 100 * 1000 * 1000};
	pid_t group = 0;
	char word;

	setsid();
	/* No descriptor of pgonce stays open here: its output's reader waits for the end. */
	if (dup2(life, STDIN_FILENO) < 0) {
		_exit(1);
	}
	closefrom(STDIN_FILENO + 1);
	if (read(STDIN_FILENO, &group, sizeof group) != sizeof group || read(STDIN_FILENO, &word, 1) > 0) {
		_exit(0);
	}
	kill(-group, SIGTERM);
	for (int i = 0; i < GRACE_TENTHS && kill(-group, 0) == 0; i++) {
		nanosleep(&pause, NULL);
	}
	kill(-group, SIGKILL);
	_exit(0);
}

/* Before CMD: without a guard nothing is started. 0 or an errno. */
static int guard_start(child *child)
{
	int ends[2];

	child->life = -1;
	if (!child->own_group) {
		return 0;
	}
	if (pipe2(ends, O_CLOEXEC) != 0) {
		return errno;
	}
	pid_t pid = fork();
	int problem = errno;
	if (pid == 0) {
		close(ends[1]);
		guard(ends[0]);
	}
	close(ends[0]);
	if (pid < 0) {
		close(ends[1]);
		return problem;
	}
	child->life = ends[1];
	return 0;
}

void child_let_go(child *child)
{
	if (child->life >= 0) {
		ssize_t written = write(child->life, "e", 1);
		(void)written; /* if it is gone, this does no harm */
		close(child->life);
		child->life = -1;
	}
}

static _Noreturn void become(const child *child, char *const *argv, int input, int out, int err, int report,
                             const child_signals *signals, pid_t parent)
{
	bool good = true;

	/*
	 * If pgonce is killed, the lease is no longer renewed: CMD gets SIGTERM, as when the lease is
	 * lost.
	 */
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	good = getppid() == parent;
	if (child->own_group) {
		setpgid(0, 0);
	}
	good = good && dup2(input, STDIN_FILENO) >= 0 && dup2(out, STDOUT_FILENO) >= 0 && dup2(err, STDERR_FILENO) >= 0;
	if (good) {
		sigaction(SIGPIPE, &signals->pipe_action, NULL);
		sigprocmask(SIG_SETMASK, &signals->mask, NULL);
		execvp(argv[0], argv);
	}
	int problem = errno;
	ssize_t written = write(report, &problem, sizeof problem);
	(void)written; /* no reader is left */
	_exit(127);
}

static void close_both(int ends[2])
{
	for (int i = 0; i < 2; i++) {
		if (ends[i] >= 0) {
			close(ends[i]);
		}
		ends[i] = -1;
	}
}

int child_start(child *child, char *const *argv, int input, const child_signals *signals)
{
	int out[2] = {-1, -1};
	int err[2] = {-1, -1};
	int report[2] = {-1, -1};
	int problem = 0;
	pid_t parent = getpid();

	child->own_group = !in_foreground();
	problem = guard_start(child);
	if (problem != 0) {
		return problem;
	}
	if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0 || pipe2(report, O_CLOEXEC) != 0) {
		problem = errno;
		goto failed;
	}
	child->pid = fork();
	if (child->pid < 0) {
		problem = errno;
		goto failed;
	}
	if (child->pid == 0) {
		become(child, argv, input, out[1], err[1], report[1], signals, parent);
	}
	if (child->life >= 0) {
		ssize_t told = write(child->life, &child->pid, sizeof child->pid);
		(void)told; /* the guard is pgonce's own child, and reads this first */
	}
	close(out[1]);
	close(err[1]);
	close(report[1]);
	out[1] = err[1] = report[1] = -1;
	/* exec closes the pipe; before that it may contain the reason for a failure. */
	ssize_t got;
	do {
		got = read(report[0], &problem, sizeof problem);
	} while (got < 0 && errno == EINTR);
	if (got > 0) {
		waitpid(child->pid, NULL, 0);
		goto failed;
	}
	close(report[0]);
	child->out = out[0];
	child->err = err[0];
	return 0;

failed:
	child_let_go(child);
	close_both(out);
	close_both(err);
	close_both(report);
	return problem == 0 ? ECHILD : problem;
}

void child_signal(const child *child, int signal)
{
	kill(child->own_group ? -child->pid : child->pid, signal);
}

bool child_has_it_already(const child *child, int code)
{
	return code == SI_KERNEL && !child->own_group;
}
