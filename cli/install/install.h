/* SPDX-License-Identifier: PostgreSQL */
/*
 * install.h: the contract in a database: its state, and bringing it up to date. For init, dev,
 * doctor and version.
 */
#pragma once

#include "cli.h"
#include "contract.h"

typedef enum install_status {
	INSTALL_ABSENT,
	INSTALL_CURRENT,
	INSTALL_BEHIND,    /* migrations or functions of this command are missing */
	INSTALL_AHEAD,     /* a newer pgonce installed it */
	INSTALL_TAMPERED,  /* a migration's checksum differs */
	INSTALL_FOREIGN,   /* a schema "once" that is not pgonce's */
	INSTALL_EXTENSION, /* made by CREATE EXTENSION */
	INSTALL_UNREADABLE /* this role may not look */
} install_status;

typedef struct install_state {
	install_status status;
	int contract_version; /* the last migration; 0 if nothing is installed */
	bool code_current;    /* functions and grants are those of this command */
	char release[32];     /* of the pgonce that installed the functions */
	int server_version;   /* 150004 */
	char database[64];
	char role[64];
	char owner[64]; /* of the schema; "" if it is absent */
	/* one sentence, for AHEAD, TAMPERED, FOREIGN, EXTENSION, UNREADABLE, BEHIND */
	char detail[256];
} install_state;

typedef struct install_result {
	install_state before;
	int migrations_run;
	bool code_replaced;
	int days_added;
} install_result;

/* Reads only. CLI_OK, or an exit code after reporting the failure. */
int install_inspect(const cli_invocation *invocation, PGconn *connection, install_state *state);
/* What to do about a state that is not CURRENT. */
const char *install_hint(install_status status);
/*
 * Installs or upgrades, in one transaction. CLI_OK, or an exit code after reporting the reason;
 * then nothing has changed.
 */
int install_contract(const cli_invocation *invocation, PGconn *connection, install_result *result);
/* The script of a new installation, byte for byte what `tools/contract.py install` prints. */
void install_print(FILE *out);
/* The last migration of this command. */
int install_newest_version(void);
