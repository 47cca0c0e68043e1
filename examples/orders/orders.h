/* SPDX-License-Identifier: PostgreSQL */
/* orders.h: places an order once (orders.c), for the program that plays a file of
 * requests (play.c). */
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
	CRASH_AFTER_COMMIT   /* COMMIT's answer is read, and not passed on */
} crash_point;

once_intent order_intent(const order *order);

/* Runs a statement of sql/ on a connection. The caller clears the result, also of
 * a failure. */
PGresult *order_query(PGconn *connection, enum sql_id id, int parameter_count, const char *const *parameters);

/* Places an order with once_execute and a callback: for every request. wait_ms:
 * for another attempt that is running. */
ONCE_MUST_CHECK once_code order_place(once_session *session, const order *order, int64_t wait_ms, once_answer **answer,
                                      once_error **error);

/* The same in one round trip, if the order can be described beforehand; else like
 * order_place. */
ONCE_MUST_CHECK once_code order_place_pipelined(once_session *session, const order *order, int64_t wait_ms,
                                                once_answer **answer, once_error **error);

/*
 * Places an order step by step up to `point`, and returns with the transaction as it
 * is then: for a client that is about to be killed. *answer is set if there was nothing
 * to do (a replay), else NULL.
 */
ONCE_MUST_CHECK once_code order_place_until(once_session *session, const order *order, crash_point point,
                                            once_answer **answer, once_error **error);
