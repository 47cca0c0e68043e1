/* SPDX-License-Identifier: PostgreSQL */
/*
 * support.h: what the C tests share: cmocka, and a session on the server that PGONCE_TEST_DSN
 * names.
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "pgonce.h"

static inline once_bytes bytes_of(const char *text)
{
	return (once_bytes){.data = text, .length = strlen(text)};
}

static inline void check_ok(once_code code, const once_error *error)
{
	if (code != ONCE_OK) {
		fail_msg("%s %s: %s (%s) %s", once_code_name(code), once_error_sqlstate(error), once_error_message(error),
		         once_error_detail(error), once_error_hint(error));
	}
	assert_null(error);
}

static inline void check_code(once_code expected, once_code code, once_error **error)
{
	if (code != expected) {
		fail_msg("expected %s, got %s: %s", once_code_name(expected), once_code_name(code), once_error_message(*error));
	}
	assert_int_equal(once_error_code(*error), expected);
	once_error_free(*error);
	*error = NULL;
}

/*
 * Macros, because the call has to be made before `error` is looked at. assert_code takes the
 * expected error away.
 */
#define assert_ok(call, error)                                                                                         \
	do {                                                                                                               \
		once_code code_of_call = (call);                                                                               \
		check_ok(code_of_call, error);                                                                                 \
	} while (0)
#define assert_code(expected, call, error)                                                                             \
	do {                                                                                                               \
		once_code code_of_call = (call);                                                                               \
		check_code(expected, code_of_call, &(error));                                                                  \
	} while (0)

static inline once_session *open_session(void)
{
	once_session *session = NULL;
	once_error *error = NULL;
	assert_ok(once_session_open(getenv("PGONCE_TEST_DSN"), &session, &error), error);
	return session;
}

static inline void run_sql(once_session *session, const char *sql)
{
	PGresult *result = PQexec(once_session_connection(session), sql);
	ExecStatusType status = PQresultStatus(result);
	if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK) {
		fail_msg("%s: %s", sql, PQerrorMessage(once_session_connection(session)));
	}
	PQclear(result);
}

static inline int query_int(once_session *session, const char *sql)
{
	PGresult *result = PQexec(once_session_connection(session), sql);
	assert_int_equal(PQresultStatus(result), PGRES_TUPLES_OK);
	int number = atoi(PQgetvalue(result, 0, 0));
	PQclear(result);
	return number;
}
