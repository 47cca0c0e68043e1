/* SPDX-License-Identifier: PostgreSQL */
/* worker.h: keeps one worker process running (worker.c), on a socket
 * that outlives it. For service.c. */
#pragma once

/* A listening socket at "unix:PATH" or "IPv4:PORT"; -1 after saying why not. */
int worker_listen(const char *address);
/*
 * Runs work(argument) in a process, again whenever it ends by itself, until SIGTERM or SIGINT.
 * The worker gets SIGTERM then, and also when this process is killed; both signals are blocked in
 * it, for sigwait. Returns an exit status.
 */
int worker_keep(int (*work)(void *argument), void *argument);
