/* SPDX-License-Identifier: PostgreSQL */
/*
 * session.h: a keeper's connection, inside keeper/: the process's wish to stop and a time limit end every wait, so that neither a lock nor
 * a network holds the process. Nothing is kept in the session: it works behind a pooler in transaction mode.
 */
#pragma once

#include <libpq-fe.h>
#include <stdbool.h>
#include <stdint.h>

#include "sql.h"

typedef enum session_code {
	SESSION_OK,
	SESSION_REFUSED,  /* the server has answered with an error: sqlstate, problem */
	SESSION_LATE,     /* its time was up; it is canceled: sqlstate is 57014 */
	SESSION_LOST,     /* no connection, or a server that takes no work */
	SESSION_CONTRACT, /* the contract is missing, of another version, or the role may not use it */
	SESSION_STOPPED   /* by service_stop; what was asked is canceled */
} session_code;

#define SESSION_PROBLEM_BYTES 1000

typedef struct keeper_session {
	const char *conninfo;
	PGconn *connection;                  /* NULL: none */
	bool is_last;                        /* what is asked is answered although the process is to stop */
	char sqlstate[6];                    /* "" where there is none */
	char problem[SESSION_PROBLEM_BYTES]; /* one line: message, detail, hint */
} keeper_session;

/* Connects, and checks the contract's version. */
session_code keeper_session_open(keeper_session *session, int64_t timeout_ms);
void keeper_session_close(keeper_session *session);
/* One of sql/, in a transaction of its own; values in text. *result (NULL allowed: not wanted) for the caller to clear. */
session_code keeper_session_ask(keeper_session *session, enum sql_id id, const char *const *values, int value_count,
                                int64_t timeout_ms, PGresult **result);
/* The same for a last word: the wish to stop does not end it. */
session_code keeper_session_tell(keeper_session *session, enum sql_id id, const char *const *values, int value_count,
                                 int64_t timeout_ms);
/* After SESSION_REFUSED of what every contract has: SESSION_CONTRACT, with a hint, where it is missing or the role may not use it. */
session_code keeper_session_refused(keeper_session *session);
/* A statement that the contract gave, which must not be in a transaction. */
session_code keeper_session_command(keeper_session *session, const char *command, int64_t timeout_ms);
