/* SPDX-License-Identifier: PostgreSQL */
/* session.c: see session.h. libpq without blocking, and poll(2). */
#include "session.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pgonce.h"
#include "service.h"

enum {
	CANCEL_MS = 5000, /* how long the server may take to hear of it */
	POLL_MOST_MS = 60000
};

/* ---- problems */

static void set_problem(keeper_session *session, const char *sqlstate, const char *message, const char *detail,
                        const char *hint)
{
	bool has_detail = detail != NULL && detail[0] != '\0';
	bool has_hint = hint != NULL && hint[0] != '\0';

	message = message == NULL ? "out of memory" : strncmp(message, "pgonce: ", 8) == 0 ? message + 8 : message;
	snprintf(session->sqlstate, sizeof session->sqlstate, "%s", sqlstate == NULL ? "" : sqlstate);
	snprintf(session->problem, sizeof session->problem, "%s%s%s%s%s%s", message, has_detail ? " (" : "",
	         has_detail ? detail : "", has_detail ? ")" : "", has_hint ? "; " : "", has_hint ? hint : "");
	size_t length = strlen(session->problem);
	while (length > 0 && (unsigned char)session->problem[length - 1] <= ' ') {
		session->problem[--length] = '\0';
	}
	for (char *at = session->problem; *at != '\0'; at++) {
		*at = (unsigned char)*at < ' ' ? ' ' : *at;
	}
}

/* A server that is not there for us: starting, stopping, full, a standby; not one that refuses what it was asked. */
static bool is_no_server(const char *sqlstate)
{
	static const char *const classes[] = {"08", "57P", "25006", "53300"};

	for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++) {
		if (strncmp(sqlstate, classes[i], strlen(classes[i])) == 0) {
			return true;
		}
	}
	return false;
}

static session_code lost(keeper_session *session)
{
	set_problem(session, NULL, PQerrorMessage(session->connection), NULL, NULL);
	keeper_session_close(session);
	return SESSION_LOST;
}

static session_code failed(keeper_session *session, const PGresult *result)
{
	const char *sqlstate = result == NULL ? NULL : PQresultErrorField(result, PG_DIAG_SQLSTATE);

	if (sqlstate == NULL || PQstatus(session->connection) != CONNECTION_OK || is_no_server(sqlstate)) {
		if (sqlstate == NULL) {
			return lost(session);
		}
		set_problem(session, sqlstate, PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY), NULL, NULL);
		keeper_session_close(session);
		return SESSION_LOST;
	}
	set_problem(session, sqlstate, PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY),
	            PQresultErrorField(result, PG_DIAG_MESSAGE_DETAIL), PQresultErrorField(result, PG_DIAG_MESSAGE_HINT));
	return SESSION_REFUSED;
}

/* ---- waiting */

/* SESSION_OK: the connection's socket is ready, or might be. */
static session_code wait_for(const keeper_session *session, short events, int64_t until_ms)
{
	int64_t left = until_ms - service_now_ms();
	struct pollfd wait[2] = {{.fd = PQsocket(session->connection), .events = events},
	                         {.fd = session->is_last ? -1 : service_stop_fd(), .events = POLLIN}};

	if (service_stopping() && !session->is_last) {
		return SESSION_STOPPED;
	}
	if (left <= 0) {
		return SESSION_LATE;
	}
	(void)poll(wait, 2, left > POLL_MOST_MS ? POLL_MOST_MS : (int)left);
	return SESSION_OK;
}

session_code keeper_session_refused(keeper_session *session)
{
	/* A missing schema, function, table, type or column: no contract, or another one. No right to use it. */
	static const char *const contract[] = {"3F000", "42883", "42P01", "42704", "42703", "42501"};
	size_t used = strlen(session->problem);

	for (size_t i = 0; i < sizeof contract / sizeof contract[0]; i++) {
		if (strcmp(session->sqlstate, contract[i]) == 0) {
			snprintf(session->problem + used, sizeof session->problem - used, "; %s",
			         i + 1 == sizeof contract / sizeof contract[0] ? "grant once_keeper to the role"
			                                                       : "run pgonce init");
			return SESSION_CONTRACT;
		}
	}
	return SESSION_REFUSED;
}

/* ---- connecting */

static void ignore_notice(void *argument, const PGresult *result)
{
	(void)argument;
	(void)result;
}

static session_code connect_until(keeper_session *session, int64_t until_ms)
{
	PostgresPollingStatusType status = PGRES_POLLING_WRITING;

	session->connection = PQconnectStart(session->conninfo);
	if (session->connection == NULL || PQstatus(session->connection) == CONNECTION_BAD) {
		return lost(session);
	}
	while (status != PGRES_POLLING_OK) {
		session_code code = wait_for(session, status == PGRES_POLLING_READING ? POLLIN : POLLOUT, until_ms);
		if (code != SESSION_OK) {
			set_problem(session, NULL, "PostgreSQL did not answer in time", NULL, NULL);
			keeper_session_close(session);
			return code == SESSION_LATE ? SESSION_LOST : code;
		}
		/* poll may have ended for another reason: asked then for what it had to wait for, libpq says so again. */
		struct pollfd ready = {.fd = PQsocket(session->connection),
		                       .events = status == PGRES_POLLING_READING ? POLLIN : POLLOUT};
		if (poll(&ready, 1, 0) <= 0) {
			continue;
		}
		status = PQconnectPoll(session->connection);
		if (status == PGRES_POLLING_FAILED) {
			return lost(session);
		}
	}
	PQsetNoticeReceiver(session->connection, ignore_notice, NULL);
	return SESSION_OK;
}

void keeper_session_close(keeper_session *session)
{
	PQfinish(session->connection);
	session->connection = NULL;
}

/* ---- asking */

/* libpq's way to cancel blocks, for minutes where the network swallows everything: so it has a thread, which is left behind then. */
static void *send_cancel(void *argument)
{
	char ignored[256];
	PGcancel *handle = argument;

	(void)PQcancel(handle, ignored, sizeof ignored);
	PQfreeCancel(handle);
	return NULL;
}

/* False: nobody is told. */
static bool start_cancel(const keeper_session *session)
{
	pthread_attr_t detached;
	pthread_t thread;
	PGcancel *handle = PQgetCancel(session->connection);

	if (handle == NULL || pthread_attr_init(&detached) != 0) {
		PQfreeCancel(handle);
		return false;
	}
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	bool started = pthread_create(&thread, &detached, send_cancel, handle) == 0;
	pthread_attr_destroy(&detached);
	if (!started) {
		PQfreeCancel(handle);
	}
	return started;
}

/* Asks the server to give up, and hears its answer, so that the connection can be used again; else it is closed. */
static void cancel(keeper_session *session)
{
	int64_t until_ms = service_now_ms() + CANCEL_MS;
	bool told = start_cancel(session);

	while (told) {
		while (PQisBusy(session->connection)) {
			struct pollfd wait = {.fd = PQsocket(session->connection), .events = POLLIN};
			int64_t left = until_ms - service_now_ms();
			if (left <= 0 || poll(&wait, 1, (int)left) < 0 || PQconsumeInput(session->connection) == 0) {
				keeper_session_close(session);
				return;
			}
		}
		PGresult *result = PQgetResult(session->connection);
		if (result == NULL) {
			return;
		}
		PQclear(result);
	}
	keeper_session_close(session);
}

/* Everything that comes for what was sent; the first error, or the last answer. */
static session_code collect(keeper_session *session, int64_t timeout_ms, PGresult **answer)
{
	int64_t until_ms = service_now_ms() + timeout_ms;
	bool has_error = false;

	for (;;) {
		while (PQisBusy(session->connection)) {
			session_code code = wait_for(session, POLLIN, until_ms);
			if (code != SESSION_OK) {
				cancel(session);
				set_problem(session, "57014", "it took too long, and was canceled", NULL, NULL);
				return code;
			}
			if (PQconsumeInput(session->connection) == 0) {
				return lost(session);
			}
		}
		PGresult *next = PQgetResult(session->connection);
		if (next == NULL) {
			break;
		}
		if (has_error) {
			PQclear(next);
			continue;
		}
		PQclear(*answer);
		*answer = next;
		has_error = PQresultStatus(next) == PGRES_FATAL_ERROR;
	}
	ExecStatusType status = PQresultStatus(*answer);
	return status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK ? SESSION_OK : failed(session, *answer);
}

static session_code run(keeper_session *session, bool sent, int64_t timeout_ms, PGresult **result)
{
	PGresult *answer = NULL;
	session_code code = sent ? collect(session, timeout_ms, &answer) : lost(session);

	if (code == SESSION_OK && result != NULL) {
		*result = answer;
	} else {
		PQclear(answer);
	}
	return code;
}

session_code keeper_session_ask(keeper_session *session, enum sql_id id, const char *const *values, int value_count,
                                int64_t timeout_ms, PGresult **result)
{
	assert(sql_queries[id].parameter_count == value_count);
	return run(session,
	           PQsendQueryParams(session->connection, sql_queries[id].text, value_count, NULL, values, NULL, NULL, 0) !=
	               0,
	           timeout_ms, result);
}

session_code keeper_session_tell(keeper_session *session, enum sql_id id, const char *const *values, int value_count,
                                 int64_t timeout_ms)
{
	session->is_last = true;
	session_code code = keeper_session_ask(session, id, values, value_count, timeout_ms, NULL);
	session->is_last = false;
	return code;
}

session_code keeper_session_command(keeper_session *session, const char *command, int64_t timeout_ms)
{
	/* The extended protocol takes one statement only. */
	return run(session, PQsendQueryParams(session->connection, command, 0, NULL, NULL, NULL, NULL, 0) != 0, timeout_ms,
	           NULL);
}

/* ---- opening */

/* The contract must be there, and not be older than what this command speaks. */
static session_code check_contract(keeper_session *session, int64_t timeout_ms)
{
	PGresult *result = NULL;
	session_code code = keeper_session_ask(session, SQL_CONTRACT_VERSION, NULL, 0, timeout_ms, &result);

	if (code == SESSION_REFUSED) {
		return keeper_session_refused(session);
	}
	if (code != SESSION_OK) {
		return code == SESSION_LATE ? SESSION_LOST : code;
	}
	int version = atoi(PQgetvalue(result, 0, 0));
	PQclear(result);
	if (version >= once_contract_version()) {
		return SESSION_OK;
	}
	snprintf(session->problem, sizeof session->problem,
	         "the contract in the database has version %d, this command needs version %d; upgrade it: run pgonce init",
	         version, once_contract_version());
	session->sqlstate[0] = '\0';
	return SESSION_CONTRACT;
}

session_code keeper_session_open(keeper_session *session, int64_t timeout_ms)
{
	int64_t until_ms = service_now_ms() + timeout_ms;

	keeper_session_close(session);
	session_code code = connect_until(session, until_ms);
	if (code == SESSION_OK) {
		code = check_contract(session, until_ms - service_now_ms());
	}
	if (code != SESSION_OK) {
		keeper_session_close(session);
	}
	return code;
}
