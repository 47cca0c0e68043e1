/* SPDX-License-Identifier: PostgreSQL */
/*
 * console.h: the command's interface to the web console: pages about the intents, events and
 * messages of one database, for people who do not live in a terminal. SQL decides what a page says;
 * the console checks requests, asks the database, and writes HTML or JSON.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>

typedef struct console_call {
	const char *conninfo;
	const char *listen; /* "127.0.0.1:9480"; port 0: a free one */
	int listen_fd;      /* a socket that listens there; 0: the console opens it */
	/*
	 * Only a browser that has come with it once, as "/?access=...", gets a page. Hexadecimal
	 * digits, at least 16. NULL: all get one.
	 */
	const char *access;
	bool allow_decisions;
	const char *user_header;       /* the header that names the person; NULL: none */
	const char *trusted_addresses; /* that may send it: addresses, ranges, by commas; NULL: none */
	const char *public_hosts;      /* further names in Host, by commas; NULL: none */
	const char *prometheus;        /* has the figures of the last hours; NULL: only in memory */
	const char *prometheus_job;    /* the job that scrapes this database's keeper; NULL: any */
	/*
	 * The answer of pgonce doctor, as its --json, for the overview; NULL: it could not look. The
	 * console calls it at most once a minute, in a separate thread.
	 */
	json_t *(*doctor)(void *argument);
	void *argument;
} console_call;

/* NULL: good; else the first mistake (free it). */
char *console_mistake(const console_call *call);
/*
 * Serves until runtime_stop. True: stopped on request; else *problem (free it) says why it could
 * not start. Blocks; call runtime_stop_install before.
 */
bool console_run(const console_call *call, char **problem);
