/* SPDX-License-Identifier: PostgreSQL */
/*
 * native.h: pgonce_native, the contract's hot functions in C, in a database: its state, and its
 * installation. For init, dev and doctor.
 */
#pragma once

#include "connect.h"

typedef enum native_use {
	NATIVE_SQL,       /* there is none */
	NATIVE_C,         /* it answers */
	NATIVE_OTHER,     /* the server has another version than the database */
	NATIVE_BROKEN,    /* it cannot be loaded */
	NATIVE_UNTRUSTED, /* it leaves calls to SQL: something differs from the contract */
	NATIVE_UNKNOWN    /* this role may not call once.start */
} native_use;

typedef struct native_state {
	native_use use;
	char detail[320]; /* one sentence */
} native_state;

/*
 * Installs or updates it, if the server has it and this role may. Never fails: without it SQL does
 * the same; a problem is a note. True: it is in the database now.
 */
bool native_install(const cli_invocation *invocation, PGconn *connection);
/* Which of the two answers in this database; loads the library into this session. */
void native_inspect(PGconn *connection, native_state *state);
