/* SPDX-License-Identifier: PostgreSQL */
/*
 * database.h: a job's session with PostgreSQL, for relays, consumers and keepers alike: one way to
 * connect, to ask, to wait and to fail. A wait ends by a time limit and by the process's wish to
 * stop, and feeds who must not go quiet meanwhile. Above it stand the jobs' own statements (their
 * sql/); one thread uses a session.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "parameters.h"
#include "pgonce.h"
#include "runtime.h"

struct sql_query; /* of a job's own sql.h, which tools/embed_sql.py makes */

#define FAILURE_TEXT_BYTES 2048

typedef enum failure_kind {
	FAILURE_NONE,
	FAILURE_FAULT,      /* what was asked cannot be done: theirs whose code ran, or the message's */
	FAILURE_CANCELED,   /* 57014: took too long, or somebody canceled it */
	FAILURE_PASSING,    /* the server's state (full, locked, a race): nobody's fault */
	FAILURE_CONNECTION, /* none, or a server that takes no work (starting, stopping, a standby) */
	FAILURE_CONTRACT,   /* missing, too old, or denied to the role: somebody has to act */
	FAILURE_STOPPED     /* the process is to stop: what was asked is canceled */
} failure_kind;

typedef struct failure {
	failure_kind kind;
	bool is_theirs;                /* raised by code of others: the text may hold a payload */
	char sqlstate[6];              /* "" where there is none */
	char text[FAILURE_TEXT_BYTES]; /* message, detail, hint, of code of others its context; UTF-8 */
} failure;

#define DATABASE_QUERIES_MAX 32
#define DATABASE_PATIENT (-1)

/* What the job says is above the line; the rest is the room's. Zero-initialise. */
typedef struct database {
	const char *conninfo;
	const char *role;                /* what it must be member of: for the hint of who is not */
	const struct sql_query *queries; /* the job's statements, by their numbers */
	int theirs;                      /* 1 + the number of the one that runs others' code; 0: none */
	bool prepares;                   /* prepare once per connection; not through a pooler */
	const char *begin;               /* how its transactions begin; NULL: "BEGIN" */
	bool is_jobs;                    /* counts as a job's database: runtime_database */
	int64_t connect_ms;              /* most time; 0: libpq's connect_timeout, for each host */
	int64_t answer_ms;               /* most time for an answer, then it is canceled; 0: no limit */
	int64_t stop_ms;                 /* what the wish to stop leaves it, or DATABASE_PATIENT */
	void (*alive)(void *argument);   /* called four times a second in every wait */
	void *argument;
	/* ---- */
	PGconn *connection; /* NULL: none */
	once_session *session;
	bool prepared[DATABASE_QUERIES_MAX];
	bool in_transaction;
	bool is_counted;
	int64_t asked_ms;    /* when what was asked last was sent */
	int64_t answered_ms; /* asked_ms of what was answered last: the session was there */
} database;

/*
 * Connects anew, whatever was before, and checks the contract's version, and that the role may use
 * it.
 */
bool database_connect(database *database, failure *failure);
void database_disconnect(database *database);
/*
 * Runs a statement with its parameters, which are freed; rows in binary. NULL: *failure. The caller
 * clears what it gets.
 */
PGresult *database_query(database *database, int query, parameters *parameters, failure *failure);
/* The same where nothing is expected. parameters NULL: none. */
bool database_run(database *database, int query, parameters *parameters, failure *failure);
/*
 * The same row by row, none kept: `take` gets each; once it says false, the statement is canceled,
 * and what is on its way dropped.
 */
typedef bool database_taker(void *argument, const PGresult *row);
bool database_stream(database *database, int query, parameters *parameters, database_taker *take, void *argument,
                     failure *failure);
/* A command without parameters, never prepared: of a transaction, or one that the contract gave. */
bool database_command(database *database, const char *command, failure *failure);

bool database_begin(database *database, failure *failure);
/*
 * A COMMIT that the server answers with ROLLBACK is a failure too. FAILURE_CONNECTION: nobody
 * knows.
 */
bool database_commit(database *database, failure *failure);
/* Ends the transaction, if there is one; a connection on which that fails is given up. */
void database_rollback(database *database);

/* What a SQLSTATE means to a job. NULL or "": no server has spoken. */
failure_kind failure_kind_of(const char *sqlstate);
void failure_of_error(const once_error *error, failure *failure);
__attribute__((format(printf, 3, 4))) void failure_set(failure *failure, failure_kind kind, const char *format, ...);
/*
 * The failure in the log, event=database: the first of those in a row, and then ever more rarely.
 */
void failure_log(const failure *failure, const speaker *speaker, int failures);

/* Values of rows; 0, false where they are NULL. */
int32_t result_integer(const PGresult *result, int row, int column);
int64_t result_bigint(const PGresult *result, int row, int column);
bool result_is_true(const PGresult *result, int row, int column);
char *result_text(const PGresult *result, int row, int column); /* a copy; NULL for NULL */
