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
	bool own_group; /* it leads a process group, and signals go to the whole group */
	/*
	 * the end of a pipe: while it is open and silent, the guard waits for pgonce's death; -1: there
	 * is no guard
	 */
	int life;
} child;

/*
 * The signal state in which pgonce was started, for CMD to start with the same. Filled by
 * child_prepare_signals.
 */
typedef struct child_signals {
	sigset_t mask;
	struct sigaction pipe_action;
	int fd; /* a signalfd for all signals to pass on, and SIGCHLD */
} child_signals;

/* Takes over the signals. 0 or an errno. */
int child_prepare_signals(child_signals *signals);
/*
 * Starts argv, found in PATH; input becomes its standard input. 0, or the errno of the failure,
 * including exec: then nothing runs.
 */
int child_start(child *child, char *const *argv, int input, const child_signals *signals);
void child_signal(const child *child, int signal);
/* It has ended; processes that it left in its group may still run. */
void child_let_go(child *child);
/*
 * Did the terminal send this signal to CMD as well, so that it must not get it twice? `code` is
 * ssi_code.
 */
bool child_has_it_already(const child *child, int code);
