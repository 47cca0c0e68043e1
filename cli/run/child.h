/* SPDX-License-Identifier: PostgreSQL */
/* child.h: starting CMD and passing signals on to it. For supervise.c and run.c. */
#pragma once

#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>

typedef struct child {
	pid_t pid;
	int out;        /* read end of its standard output */
	int err;        /* and error */
	bool own_group; /* it leads a process group, and signals go to all of that */
	/* the end of a pipe: while it is open and silent, its guard waits
	 * for our death; -1: it has none */
	int life;
} child;

/* How pgonce was started, for CMD to start the same way. Filled by child_prepare_signals. */
typedef struct child_signals {
	sigset_t mask;
	struct sigaction pipe_action;
	int fd; /* a signalfd of everything that is passed on, and SIGCHLD */
} child_signals;

/* Takes over the signals. 0 or an errno. */
int child_prepare_signals(child_signals *signals);
/* Starts argv, found in PATH; input becomes its standard input. 0, or the errno of what
 * failed, exec included: then nothing runs. */
int child_start(child *child, char *const *argv, int input, const child_signals *signals);
void child_signal(const child *child, int signal);
/* It has ended: what it has left in its group may live on. */
void child_let_go(child *child);
/* Did the terminal send this to CMD as well, so that it must not get
 * it twice? `code` is ssi_code. */
bool child_has_it_already(const child *child, int code);
