/* SPDX-License-Identifier: PostgreSQL */
/*
 * console_process.h: the web console of pgonce dev: a process in the background. Its file in the
 * server's directory is locked while it runs, and has its address, with the key.
 */
#pragma once

#include "server.h"

/* CLI_OK also if a console runs already. Otherwise no console runs, after an error message. */
int dev_console_start(const server *server);
/* The address of the running console, or NULL. Free it. */
char *dev_console_address(const server *server);
/* Ends the running console, and waits for its end. */
void dev_console_stop(const server *server);
