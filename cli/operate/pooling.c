/* SPDX-License-Identifier: PostgreSQL */
/*
 * pooling.c: see pooling.h. A pooler reports its own process numbers, so the server's own number of
 * the process differs from the connection's. Two open connections that reach the same process can
 * only share it from transaction to transaction; a pooler in statement mode refuses transactions.
 */
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "connect.h"
#include "pooling.h"

enum {
	ROUNDS = 16,
	ANSWER_MS_MAX = 3000
};

static bool works(PGresult *result)
{
	bool good = PQresultStatus(result) == PGRES_TUPLES_OK || PQresultStatus(result) == PGRES_COMMAND_OK;

	PQclear(result);
	return good;
}

/*
 * The server's process, 0 if it did not answer in time: with session pooling, the second may have
 * to wait for the first.
 */
static int process_of(PGconn *connection)
{
	int process = 0;

	if (PQsendQueryParams(connection, sql_queries[SQL_BACKEND_PID].text, 0, NULL, NULL, NULL, NULL, 0) != 1) {
		return 0;
	}
	while (PQisBusy(connection) == 1) {
		struct pollfd answer = {.fd = PQsocket(connection), .events = POLLIN};
		if (poll(&answer, 1, ANSWER_MS_MAX) <= 0 || PQconsumeInput(connection) != 1) {
			return 0;
		}
	}
	for (PGresult *result = PQgetResult(connection); result != NULL; result = PQgetResult(connection)) {
		if (PQresultStatus(result) == PGRES_TUPLES_OK) {
			process = (int)strtol(PQgetvalue(result, 0, 0), NULL, 10);
		}
		PQclear(result);
	}
	return process;
}

/*
 * Whether the two reach one process. A pool hands out the most recently returned connection, or
 * each in turn: so they ask alternately, for a while.
 */
static bool shares(PGconn *first, PGconn *second)
{
	int met[2 * ROUNDS];
	int count = 0;

	for (int round = 0; round < ROUNDS; round++) {
		int mine = process_of(first);
		int theirs = process_of(second);
		if (mine == 0 || theirs == 0) {
			return false;
		}
		met[count++] = mine;
		for (int i = 0; i < count; i++) {
			if (met[i] == theirs) {
				return true;
			}
		}
	}
	return false;
}

pooling_mode pooling_of(PGconn *connection, const char *conninfo)
{
	int process = process_of(connection);
	pooling_mode mode = POOLING_SESSION;

	if (process == PQbackendPID(connection)) {
		return POOLING_NONE;
	}
	if (!works(PQexec(connection, "BEGIN")) || !works(PQexec(connection, "ROLLBACK"))) {
		return POOLING_STATEMENT;
	}
	PGconn *second = PQconnectdb(conninfo);
	if (PQstatus(second) == CONNECTION_OK && shares(connection, second)) {
		mode = POOLING_TRANSACTION;
	}
	PQfinish(second);
	return mode;
}

const char *pooling_text(pooling_mode mode)
{
	switch (mode) {
	case POOLING_NONE:
		return "a direct connection";
	case POOLING_TRANSACTION:
		return "behind a pooler in transaction mode (relays need a direct connection)";
	case POOLING_SESSION:
		return "behind a pooler, apparently in session mode";
	case POOLING_STATEMENT:
		break;
	}
	return "statement pooling: transactions are refused";
}

bool pooling_keeps_prepared(PGconn *connection)
{
	return works(PQprepare(connection, "pgonce_doctor", sql_queries[SQL_BACKEND_PID].text, 0, NULL)) &&
	       works(PQexecPrepared(connection, "pgonce_doctor", 0, NULL, NULL, NULL, 0));
}
