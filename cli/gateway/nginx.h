/* SPDX-License-Identifier: PostgreSQL */
/*
 * nginx.h: an nginx with the module, run by pgonce: its settings, the configuration made of them
 * (gateway.c), and its process (nginx.c). For gateway.c.
 */
#pragma once

#include <limits.h>
#include <stdio.h>
#include <sys/types.h>

#include "cli.h"

/* Zero-initialise it; a zero or NULL takes the module's default,
 * unless a comment says otherwise. */
typedef struct gateway {
	const cli_invocation *invocation;
	const char *listen;   /* "ADDRESS:PORT" or "unix:/PATH" */
	const char *upstream; /* "http://HOST[:PORT]", "https://...", "http://unix:/PATH" */
	const char *scope;    /* NULL: as the module does, the location */
	bool required;
	const char *tenant; /* a variable of nginx, or "none" */
	const char *on_5xx;
	const char *user; /* whom root's workers run as; NULL: not root */
	char *group;      /* NULL: the user's; of whoever has set it */
	uid_t uid;        /* of that user; 0: the workers run as pgonce does */
	gid_t gid;
	const char *access_log;   /* a file; NULL: none */
	char *passfile;           /* of the connection; NULL: none. Of whoever has set it */
	bool json;                /* the access log's lines are JSON */
	char directory[PATH_MAX]; /* private, absolute; holds the configuration and what nginx writes */
	char program[PATH_MAX];
	char module[PATH_MAX];
} gateway;

/* ---- gateway.c ---- */

/* Are the values what they should be, so that none can say more in the configuration than
 * itself? CLI_OK, or CLI_USAGE after saying. */
int gateway_validate(const gateway *gateway);
/* Only reachable from this machine? */
bool gateway_is_local(const gateway *gateway);
/* The configuration, as text. */
void gateway_print(const gateway *gateway, FILE *out);
/* Writes DIRECTORY/nginx.conf and DIRECTORY/database (the connection string, which may hold a
 * password). CLI_OK, or after saying. */
int gateway_write(const gateway *gateway, const char *conninfo);
/* libpq takes a password file of its user's alone, so workers that are not root get a copy of
 * root's as DIRECTORY/passfile. *copied: they need it. CLI_OK, or after saying. */
int gateway_copy_passwords(const gateway *gateway, bool *copied);
/* Removes what of these may hold a password. */
void gateway_forget(const gateway *gateway);
/* Removes what these and nginx made in it, and the directory. */
void gateway_remove(const gateway *gateway);

/* ---- nginx.c ---- */

/* Finds nginx and the module where the names are not given. CLI_OK,
 * or after saying what to install. */
int nginx_find(gateway *gateway, const char *program, const char *module);
/* The same without a word: is all there to run a gateway? */
bool nginx_is_here(gateway *gateway);
/* Is the address free, and nginx -t content? CLI_OK, or after showing what it
 * says, with a remedy where one is known. */
int nginx_test(const gateway *gateway);
/* Becomes nginx, in the foreground; returns only where that fails. */
void nginx_become(const gateway *gateway);
