/* SPDX-License-Identifier: PostgreSQL */
/* orders.h: placing an order once (orders.c), as the program that plays
 * a file of requests (play.c) sees it. */
#pragma once

#include <pgonce.h>

#include "sql.h"

/* One order to place: the intent's key, and the request as JSON text. Both are borrowed. */
typedef struct order {
	const char *key;
	const char *request;
} order;

/* How far an attempt gets before its client is killed. */
typedef enum crash_point {
	CRASH_NEVER,
	CRASH_MID_EFFECT,    /* the order is inserted, nothing is finished */
	CRASH_BEFORE_COMMIT, /* everything is done but COMMIT */
	CRASH_DURING_COMMIT, /* COMMIT is sent, its answer is not read */
	CRASH_AFTER_COMMIT   /* the answer of COMMIT is read, and passed on to nobody */
} crash_point;

once_intent order_intent(const order *order);

/* Runs one of the statements in sql/ on a connection. The caller
 * clears the result, whatever it says. */
PGresult *order_query(PGconn *connection, enum sql_id id, int parameter_count, const char *const *parameters);

/* Places an order with once_execute and a callback: for every request. wait_ms:
 * for another attempt that is running. */
ONCE_MUST_CHECK once_code order_place(once_session *session, const order *order, int64_t wait_ms, once_answer **answer,
                                      once_error **error);

/* The same in one round trip, where the order can be described
 * beforehand; order_place where it cannot. */
ONCE_MUST_CHECK once_code order_place_pipelined(once_session *session, const order *order, int64_t wait_ms,
                                                once_answer **answer, once_error **error);

/*
 * Places an order step by step, as far as `point`, and returns with the transaction
 * as it is then: for a client that is about to be killed. *answer is set where there
 * was nothing to do (a replay), else NULL.
 */
ONCE_MUST_CHECK once_code order_place_until(once_session *session, const order *order, crash_point point,
                                            once_answer **answer, once_error **error);
