/* SPDX-License-Identifier: PostgreSQL */
/* supervise.h: the work of pgonce run while CMD runs. */
#pragma once

#include "capture.h"
#include "child.h"
#include "cli.h"
#include "heartbeat.h"

typedef struct supervision {
	const cli_invocation *invocation;
	child *child;
	const child_signals *signals;
	heartbeat *heartbeat;
	capture *capture;
	bool lease_lost; /* result */
	int wait_status; /* result: of waitpid */
	/*
	 * result: the errno with which output could not be passed on; 0: all was, or its reader has
	 * gone
	 */
	int write_error;
} supervision;

/*
 * Until CMD has ended: passes its output on and captures it, passes signals on, and sends it
 * SIGTERM if the lease is lost. It waits at most one second for output that CMD's children still
 * write after its end. 0, or an errno.
 */
int supervise(supervision *supervision);
