/* SPDX-License-Identifier: PostgreSQL */
/* worker.h: keeps a worker process running (worker.c), on a socket that outlives
 * it. For service.c. */
#pragma once

/* A listening socket at "unix:PATH" or "IPv4:PORT"; -1 after saying why not. */
int worker_listen(const char *address);
/*
 * Runs work(argument) in a process, and restarts it when it ends, until SIGTERM or SIGINT. Then the
 * worker gets SIGTERM, and also when this process is killed; both signals are blocked in it, for
 * sigwait. Returns an exit status.
 */
int worker_keep(int (*work)(void *argument), void *argument);
