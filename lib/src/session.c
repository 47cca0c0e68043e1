/* SPDX-License-Identifier: PostgreSQL */
/*
 * session.c: a session is a connection, its caller's or its own, and the little state kept with it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

#include "internal.h"

const char *once_version(void)
{
	return PGONCE_RELEASE;
}

int once_contract_version(void)
{
	return CONTRACT_VERSION;
}

static once_session *session_new(PGconn *connection, bool owns)
{
	once_session *session = calloc(1, sizeof *session);
	if (session == NULL) {
		return NULL;
	}
	session->connection = connection;
	session->owns_connection = owns;
	session->random_state = random_seed(session);
	return session;
}

/*
 * The SQLSTATE in a message of libpq with raised verbosity, in any language: "FATAL: 3D000". False:
 * there is none.
 */
static bool find_sqlstate(const char *message, char sqlstate[6])
{
	/* Of several tried servers the last one counts. */
	for (const char *at = strstr(message, ":  "); at != NULL; at = strstr(at + 1, ":  ")) {
		if (strspn(at + 3, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") == 5) {
			memcpy(sqlstate, at + 3, 5);
			sqlstate[5] = '\0';
		}
	}
	return sqlstate[0] != '\0';
}

/*
 * Why there is no connection. libpq tells the SQLSTATE of a refusal only if that was requested
 * before it connected, and PQconnectdb leaves no time for that: so a server that has answered is
 * tried again. That may succeed.
 */
static once_code reconsider(PGconn *connection, once_error **error)
{
	char sqlstate[6] = "";
	char *said = strdup(PQerrorMessage(connection));

	if (said == NULL) {
		return error_no_memory(error);
	}
	once_code code = ONCE_OK;
	if (strstr(said, ":  ") == NULL) { /* no message from a server */
		code = error_of_connection(error, connection);
	} else {
		PQsetErrorVerbosity(connection, PQERRORS_SQLSTATE);
		PQreset(connection);
		if (PQstatus(connection) != CONNECTION_OK) {
			code = find_sqlstate(PQerrorMessage(connection), sqlstate) ? error_of_refusal(error, sqlstate, said)
			                                                           : error_of_connection(error, connection);
		}
		PQsetErrorVerbosity(connection, PQERRORS_DEFAULT);
	}
	free(said);
	return code;
}

once_code once_session_open(const char *conninfo, once_session **session, once_error **error)
{
	if (session == NULL) {
		return error_usage(error, "session must not be NULL");
	}
	once_code readable = error_of_conninfo(error, text_or_empty(conninfo));
	if (readable != ONCE_OK) {
		return readable;
	}
	PGconn *connection = PQconnectdb(text_or_empty(conninfo));
	if (PQstatus(connection) != CONNECTION_OK) {
		once_code code = connection == NULL ? error_no_memory(error) : reconsider(connection, error);
		if (code != ONCE_OK) {
			PQfinish(connection);
			return code;
		}
	}
	once_session *opened = session_new(connection, true);
	if (opened == NULL) {
		PQfinish(connection);
		return error_no_memory(error);
	}
	once_code code = once_session_check(opened, error);
	if (code != ONCE_OK) {
		once_session_close(opened);
		return code;
	}
	*session = opened;
	return ONCE_OK;
}

once_code once_session_attach(PGconn *connection, once_session **session, once_error **error)
{
	if (connection == NULL || session == NULL) {
		return error_usage(error, "connection and session must not be NULL");
	}
	if (PQisnonblocking(connection) || PQpipelineStatus(connection) != PQ_PIPELINE_OFF) {
		return error_usage(error, "the connection must be in blocking mode and not in pipeline mode");
	}
	once_session *attached = session_new(connection, false);
	if (attached == NULL) {
		return error_no_memory(error);
	}
	*session = attached;
	return ONCE_OK;
}

void once_session_close(once_session *session)
{
	if (session == NULL) {
		return;
	}
	if (session->owns_connection) {
		PQfinish(session->connection);
	}
	prepared_free(session);
	free(session);
}

PGconn *once_session_connection(const once_session *session)
{
	return session->connection;
}

void once_session_prepare(once_session *session, bool prepare)
{
	session->prepares = prepare;
	session->misses = 0;
}

bool contract_version_fits(int version, once_error **error)
{
	/*
	 * A newer contract keeps every function of this one: so upgrade it first, and its clients when
	 * there is time.
	 */
	if (version >= CONTRACT_VERSION) {
		return true;
	}
	char message[160];
	snprintf(message, sizeof message, "the contract in the database has version %d, this library needs version %d",
	         version, CONTRACT_VERSION);
	error_make(error, ONCE_CONTRACT, NULL, false, message, NULL, "Upgrade it: run pgonce init.");
	return false;
}

once_code once_session_check(once_session *session, once_error **error)
{
	if (session == NULL) {
		return error_usage(error, "session must not be NULL");
	}
	call call;
	PGresult *result;
	call_start(&call, SQL_CONTRACT_VERSION);
	once_code code = call_run(session, &call, &result, error);
	if (code != ONCE_OK) {
		return code;
	}
	int version = result_int(result, 0, 0);
	PQclear(result);
	return contract_version_fits(version, error) ? ONCE_OK : ONCE_CONTRACT;
}

once_code session_reconnect(once_session *session, once_error **error)
{
	PQreset(session->connection);
	prepared_forget(session);
	return PQstatus(session->connection) == CONNECTION_OK ? ONCE_OK : error_of_connection(error, session->connection);
}

uint64_t random_seed(const void *address)
{
	uint64_t seed;
	/* For jitter, not secrecy: without entropy yet, an address and the time suffice. */
	if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != sizeof seed) {
		seed = (uint64_t)(uintptr_t)address ^ (uint64_t)now_us() << 20;
	}
	return seed | 1;
}

int64_t session_random(once_session *session, int64_t limit)
{
	return random_below(&session->random_state, limit);
}

int64_t random_below(uint64_t *state, int64_t limit)
{
	/* xorshift64* (Vigna, "An experimental exploration of Marsaglia's xorshift generators"). */
	uint64_t x = *state;
	x ^= x >> 12;
	x ^= x << 25;
	x ^= x >> 27;
	*state = x;
	return limit <= 0 ? 0 : (int64_t)((x * UINT64_C(2685821657736338717) >> 1) % (uint64_t)limit);
}
