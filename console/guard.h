/* SPDX-License-Identifier: PostgreSQL */
/*
 * guard.h: which requests the console takes: the Host (against DNS rebinding), the origin of a form
 * and its token (against cross-site requests), the person that a proxy names, and the rate.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

enum {
	GUARD_COOKIE_BYTES = 33, /* 32 hexadecimal digits, and a NUL */
	GUARD_TOKEN_BYTES = 65,  /* 64 of them */
	GUARD_PERSON_BYTES = 201
};

typedef struct guard guard;

/* Both by commas, or NULL. NULL: *problem (free it). */
guard *guard_new(const char *trusted_addresses, const char *public_hosts, char **problem);
void guard_free(guard *guard);

/* False: too many. */
bool guard_admits(guard *guard);
/* localhost, a public host, or the very address that the request has come to, with any port. */
bool guard_knows_host(const guard *guard, const char *host, const struct sockaddr *arrived);
/* The address may name the person. */
bool guard_trusts(const guard *guard, const struct sockaddr *peer);
/* One that can be stored and logged: UTF-8 without control characters, not empty, not too long. */
bool guard_is_person(const char *person);
/*
 * A form of the console itself: as Sec-Fetch-Site says, which a page cannot set, or else Origin.
 * All may be NULL but host.
 */
bool guard_is_own_origin(const char *site, const char *origin, const char *host);
void guard_new_cookie(char cookie[GUARD_COOKIE_BYTES]);
/* The value of our cookie in the header Cookie (may be NULL). False: it is not there. */
bool guard_find_cookie(const char *header, char cookie[GUARD_COOKIE_BYTES]);
/* The cookie of a browser that has come with the key; its name is the key's own. Free it. */
char *guard_access_cookie(const char *access);
bool guard_has_access(const char *access, const char *cookies);
bool guard_is_access(const char *access, const char *given);
/* What a form must send with that cookie, for that person. */
void guard_token(const guard *guard, const char *cookie, const char *person, char token[GUARD_TOKEN_BYTES]);
bool guard_is_token(const guard *guard, const char *cookie, const char *person, const char *token);
extern const char guard_cookie_name[];
