/* SPDX-License-Identifier: PostgreSQL */
/*
 * database.h: a consumer's connection: its statements (sql/), its transactions, and what a failure means. Waits for answers without going
 * deaf: while PostgreSQL works, `alive` is called four times a second, so that the broker does not take us for dead.
 */
#pragma once

#include <stdbool.h>

#include "parameters.h"
#include "pgonce.h"
#include "service.h"
#include "sql.h"

#define FAILURE_TEXT_BYTES 2048

typedef enum failure_kind {
	FAILURE_NONE,
	FAILURE_FAULT, /* what was asked cannot be done: where a handler was called, the message's or the handler's fault */
	FAILURE_CANCELED,  /* 57014: took too long, or somebody canceled it */
	FAILURE_PASSING,   /* the server's state (full, locked, a race, an internal error): nobody's fault */
	FAILURE_CONNECTION /* no connection, or a server that takes no work (starting, stopping, a standby) */
} failure_kind;

typedef struct failure {
	failure_kind kind;
	char sqlstate[6];              /* "" where there is none */
	char text[FAILURE_TEXT_BYTES]; /* message, detail, hint, context; UTF-8 */
} failure;

typedef struct database {
	const service *service;
	const char *conninfo;
	bool prepares; /* prepare statements once per connection */
	void (*alive)(void *argument);
	void *argument;
	PGconn *connection; /* NULL: none */
	once_session *session;
	bool prepared[SQL_COUNT];
	bool in_transaction;
	bool is_there;     /* counted as a database of this process: service_database */
	char *handle_text; /* sql/handle.sql with the handler's name; NULL: none */
} database;

/* A failure from what libpq says of `result`; NULL: of the connection. */
void failure_of_result(const database *database, const PGresult *result, failure *failure);
void failure_of_error(const once_error *error, failure *failure);
__attribute__((format(printf, 3, 4))) void failure_set(failure *failure, failure_kind kind, const char *format, ...);
failure_kind failure_kind_of(const char *sqlstate);

/* Connects anew, whatever was before. */
bool database_connect(database *database, failure *failure);
void database_disconnect(database *database);
/* Runs a statement with its parameters, which are freed; rows in binary. NULL: *failure. The caller clears what it gets. */
PGresult *database_query(database *database, enum sql_id id, parameters *parameters, failure *failure);
/* The same where nothing is expected. */
bool database_run(database *database, enum sql_id id, parameters *parameters, failure *failure);
bool database_begin(database *database, failure *failure);
/* A COMMIT that the server answers with ROLLBACK is a failure too. FAILURE_CONNECTION: nobody knows. */
bool database_commit(database *database, failure *failure);
/* Ends the transaction, if there is one; a connection on which that fails is given up. */
void database_rollback(database *database);
/* Looks the handler up, and says what is wrong with it (free it); NULL: all is well, handle_text is set. *failure where it could not be asked. */
char *database_find_handler(database *database, const char *handler, failure *failure);

int32_t result_integer(const PGresult *result, int row, int column);
int64_t result_bigint(const PGresult *result, int row, int column);
bool result_is_true(const PGresult *result, int row, int column);
