/* SPDX-License-Identifier: PostgreSQL */
/*
 * database.h: a job's session with PostgreSQL, for relays, consumers and keepers: one way to
 * connect, ask, wait and fail. A wait ends at a time limit or when the process is asked to stop,
 * and calls `alive` meanwhile. The jobs' own statements (their sql/) build on it; one thread uses a
 * session.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "parameters.h"
#include "pgonce.h"
#include "runtime.h"

struct sql_query; /* of a job's own sql.h, which tools/embed_sql.py generates */

#define FAILURE_TEXT_BYTES 2048

typedef enum failure_kind {
	FAILURE_NONE,
	FAILURE_FAULT,    /* the request cannot succeed: the fault of user code or of a message */
	FAILURE_CANCELED, /* 57014: took too long, or was canceled from outside */
	FAILURE_PASSING,  /* the server's state (full, locked, a race) */
	/* no connection, or a server that accepts no work (starting, stopping, a standby) */
	FAILURE_CONNECTION,
	FAILURE_CONTRACT, /* missing, too old, or denied to the role: an operator must act */
	FAILURE_STOPPED   /* the process is asked to stop: the request was canceled */
} failure_kind;

typedef struct failure {
	failure_kind kind;
	bool is_theirs;   /* raised by user code: the text may contain a payload */
	char sqlstate[6]; /* "": unknown */
	/* message, detail, hint, and the context if user code raised it; UTF-8 */
	char text[FAILURE_TEXT_BYTES];
} failure;

#define DATABASE_QUERIES_MAX 32
#define DATABASE_PATIENT (-1)

/* The job sets the fields above the line; the others are private. Zero-initialise. */
typedef struct database {
	const char *conninfo;
	const char *role;                /* the role to be member of, for the hint */
	const struct sql_query *queries; /* the job's statements, by their numbers */
	/* 1 + the number of the statement that runs user code; 0: none */
	int theirs;
	bool prepares;      /* prepare once per connection; not through a pooler */
	const char *begin;  /* the statement that begins a transaction; NULL: "BEGIN" */
	bool is_jobs;       /* counts as a job's database: runtime_database */
	int64_t connect_ms; /* time limit; 0: libpq's connect_timeout, for each host */
	/* time limit for an answer, then it is canceled; 0: no limit */
	int64_t answer_ms;
	/* time left to it after a request to stop, or DATABASE_PATIENT */
	int64_t stop_ms;
	void (*alive)(void *argument); /* called four times a second in every wait */
	void *argument;
	/* ---- */
	PGconn *connection; /* NULL: none */
	once_session *session;
	bool prepared[DATABASE_QUERIES_MAX];
	bool in_transaction;
	bool is_counted;
	int64_t asked_ms;    /* when the last request was sent */
	int64_t answered_ms; /* asked_ms of the last answered request: the session existed */
} database;

/*
 * Connects again, closing any earlier connection, and checks the contract's version and that the
 * role may use it.
 */
bool database_connect(database *database, failure *failure);
void database_disconnect(database *database);
/*
 * Runs a statement with its parameters, which are freed; rows are binary. NULL: *failure. The
 * caller clears the result.
 */
PGresult *database_query(database *database, int query, parameters *parameters, failure *failure);
/* The same for a statement without a result. parameters NULL: no parameters. */
bool database_run(database *database, int query, parameters *parameters, failure *failure);
/*
 * The same row by row, keeping none: `take` gets each row; once it returns false, the statement is
 * canceled, and rows on their way are dropped.
 */
typedef bool database_taker(void *argument, const PGresult *row);
bool database_stream(database *database, int query, parameters *parameters, database_taker *take, void *argument,
                     failure *failure);
/* A command without parameters, never prepared: a transaction's, or one provided by the
 * contract. */
bool database_command(database *database, const char *command, failure *failure);

bool database_begin(database *database, failure *failure);
/*
 * A COMMIT that the server answers with ROLLBACK is a failure too. FAILURE_CONNECTION: the result
 * is unknown.
 */
bool database_commit(database *database, failure *failure);
/* Ends the transaction, if one is open; if that fails, the connection is closed. */
void database_rollback(database *database);

/* A SQLSTATE's meaning to a job. NULL or "": the server sent none. */
failure_kind failure_kind_of(const char *sqlstate);
void failure_of_error(const once_error *error, failure *failure);
__attribute__((format(printf, 3, 4))) void failure_set(failure *failure, failure_kind kind, const char *format, ...);
/*
 * FAILURE_FAULT: a pooler is between the job and the server, so there is no session to hold its
 * lock. job: "relay", "consumer". otherwise: after the hint to connect directly, or "".
 */
void failure_set_pooler(failure *failure, const char *job, const char *otherwise);
/* Logs the failure, event=database: the first ones in a row, then more and more rarely. */
void failure_log(const failure *failure, const speaker *speaker, int failures);

/* Values of rows; 0 or false if NULL. */
int32_t result_integer(const PGresult *result, int row, int column);
int64_t result_bigint(const PGresult *result, int row, int column);
bool result_is_true(const PGresult *result, int row, int column);
char *result_text(const PGresult *result, int row, int column); /* a copy; NULL for NULL */
