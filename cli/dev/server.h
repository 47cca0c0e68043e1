/* SPDX-License-Identifier: PostgreSQL */
/*
 * server.h: the private PostgreSQL of pgonce dev: finds its programs, creates its directories and
 * cluster, starts and stops it. As root, every access to the cluster happens in a process with the
 * rights of another user, since PostgreSQL refuses root.
 */
#pragma once

#include <limits.h>
#include <sys/types.h>

#include "cli.h"

#define SERVER_DATABASE "app"

typedef struct server {
	const cli_invocation *invocation;
	char directory[PATH_MAX]; /* as given, made absolute */
	char home[PATH_MAX];      /* where data and log are: the directory, or one in /var/tmp */
	char data[PATH_MAX];
	char log[PATH_MAX];
	char socket[PATH_MAX]; /* the directory of the socket */
	char bindir[PATH_MAX];
	uid_t user; /* who runs the server */
	gid_t group;
	int lock; /* an open file: one start or stop at a time */
} server;

/*
 * Finds out all paths, and creates DIR (create) or only looks (not create). CLI_OK or an exit code
 * after an error message.
 */
int server_locate(server *server, const cli_invocation *invocation, const char *directory, bool create);
void server_release(server *server);
/*
 * The lock is held after locating: one start or stop at a time. It is released while the server
 * runs.
 */
void server_unlock(server *server);
void server_lock(server *server);
/*
 * Is it running? From the server's own lock file, so also a server that an earlier pgonce dev left
 * behind.
 */
bool server_is_running(const server *server, pid_t *pid);
/*
 * Creates the cluster if there is none, and starts it. CLI_OK when it accepts connections. *reused:
 * it was running already.
 */
int server_start(server *server, bool *reused);
/* Stops it fast: sessions are ended, data is flushed. CLI_OK also if it does not run. */
int server_stop(server *server);
/* For a process that accesses the server: it gets the rights of the server's user. */
void server_become_user(const server *server);
/* The connection string of a database in it. Free it. */
char *server_dsn(const server *server, const char *database);
