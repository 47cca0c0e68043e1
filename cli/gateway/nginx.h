/* SPDX-License-Identifier: PostgreSQL */
/*
 * nginx.h: an nginx with the module, run by pgonce: its settings, the configuration written from
 * them (nginx_conf.c), and its process (nginx.c). For gateway.c.
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
	const char *scope;    /* NULL: the module's default, the location */
	bool required;
	const char *tenant; /* a variable of nginx, or "none" */
	const char *on_5xx;
	const char *user; /* the user of root's workers; NULL: not root */
	char *group;      /* NULL: the user's; owned by the caller */
	uid_t uid;        /* of that user; 0: the workers run as pgonce does */
	gid_t gid;
	const char *access_log;   /* a file; NULL: none */
	char *passfile;           /* of the connection; NULL: none. Owned by the caller */
	bool json;                /* the access log's lines are JSON */
	char directory[PATH_MAX]; /* private, absolute; has the configuration and nginx's files */
	char program[PATH_MAX];
	char module[PATH_MAX];
} gateway;

/* ---- nginx_conf.c ---- */

/*
 * Are the values valid, so that none can mean more in the configuration than a value? CLI_OK, or
 * CLI_USAGE after an error message.
 */
int gateway_validate(const gateway *gateway);
/* Only reachable from this machine? */
bool gateway_is_local(const gateway *gateway);
/* The configuration, as text. */
void gateway_print(const gateway *gateway, FILE *out);
/*
 * Writes DIRECTORY/nginx.conf and DIRECTORY/database (the connection string, which may contain a
 * password). CLI_OK, or a code after an error message.
 */
int gateway_write(const gateway *gateway, const char *conninfo);
/*
 * libpq accepts a password file only if it is private to its user, so workers that are not root get
 * a copy of root's as DIRECTORY/passfile. *copied: they need it. CLI_OK, or a code after an error
 * message.
 */
int gateway_copy_passwords(const gateway *gateway, bool *copied);
/* Removes those files that may contain a password. */
void gateway_forget(const gateway *gateway);
/* Removes all files of these functions and nginx in it, and the directory. */
void gateway_remove(const gateway *gateway);

/* ---- nginx.c ---- */

/*
 * Finds nginx and the module if their paths are not given. CLI_OK, or a code after naming what to
 * install.
 */
int nginx_find(gateway *gateway, const char *program, const char *module);
/* The same without a message: is everything there to run a gateway? */
bool nginx_is_here(gateway *gateway);
/*
 * Is the address free, and does nginx -t succeed? CLI_OK, or a code after showing its output, with
 * a remedy if one is known.
 */
int nginx_test(const gateway *gateway);
/* Becomes nginx, in the foreground; returns only if that fails. */
void nginx_become(const gateway *gateway);
