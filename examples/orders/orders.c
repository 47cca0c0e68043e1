/* SPDX-License-Identifier: PostgreSQL */
/*
 * orders.c: an order, placed once, through libpgonce: the order, its event and its answer
 * are committed together or not at all. It does what orders.place does in orders.sql,
 * with the same keys and fingerprints, so an order may be attempted here and retried
 * there. order_place is the one to copy.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include <jansson.h>

#include "orders.h"

enum {
	DEADLINE_MS = 20000
};

/* The effect's data, to which its outcome points: it must live until once_execute
 * returns. */
typedef struct placing {
	const order *order;
	PGresult *placed; /* order id and description */
	PGresult *problem;
	char *rejection;
} placing;

once_intent order_intent(const order *order)
{
	return (once_intent){.tenant = "", .scope = "orders", .key = order->key};
}

PGresult *order_query(PGconn *connection, enum sql_id id, int parameter_count, const char *const *parameters)
{
	const sql_query *query = &sql_queries[id];
	if (query->parameter_count != parameter_count) {
		return NULL;
	}
	return PQexecParams(connection, query->text, parameter_count, NULL, parameters, NULL, NULL, 0);
}

/* ---- The effect, as a callback ---- */

static void forget(placing *placing)
{
	PQclear(placing->placed);
	PQclear(placing->problem);
	free(placing->rejection);
	*placing = (struct placing){.order = placing->order};
}

/* A request that can never become an order: its answer is stored like
 * any other, as a final failure. */
static once_effect_result reject(placing *placing, once_outcome *outcome)
{
	const char *problem = PQgetvalue(placing->problem, 0, 0);
	json_t *body = json_pack("{s:s}", "error", problem);
	placing->rejection = body == NULL ? NULL : json_dumps(body, 0);
	json_decref(body);
	if (placing->rejection == NULL) {
		return ONCE_EFFECT_ABORT;
	}
	outcome->response_status = 422;
	outcome->response_body = (once_bytes){.data = placing->rejection, .length = strlen(placing->rejection)};
	outcome->error_code = "invalid_order";
	outcome->error_message = problem;
	return ONCE_EFFECT_FAILED;
}

/* The library judges a failed statement: it runs the effect again, or reports the error. */
static once_effect_result hand_over(PGresult **result, PGresult **failed)
{
	*failed = *result;
	*result = NULL;
	return ONCE_EFFECT_RETRY;
}

/* Runs in the transaction, between start and finish. */
static once_effect_result place(PGconn *connection, void *argument, once_outcome *outcome, PGresult **failed)
{
	placing *placing = argument;
	const char *request[] = {placing->order->request};

	forget(placing);
	placing->problem = order_query(connection, SQL_FIND_PROBLEM, 1, request);
	if (PQresultStatus(placing->problem) != PGRES_TUPLES_OK) {
		return hand_over(&placing->problem, failed);
	}
	if (!PQgetisnull(placing->problem, 0, 0)) {
		return reject(placing, outcome);
	}

	outcome->response_status = 201;
	placing->placed = order_query(connection, SQL_INSERT_ORDER, 1, request);
	if (PQresultStatus(placing->placed) == PGRES_TUPLES_OK && PQntuples(placing->placed) == 0) {
		/* The cart was ordered before, under another key: that order
		 * is the answer to this intent too. */
		outcome->response_status = 200;
		PQclear(placing->placed);
		placing->placed = order_query(connection, SQL_FIND_ORDER, 1, request);
	}
	if (PQresultStatus(placing->placed) != PGRES_TUPLES_OK || PQntuples(placing->placed) != 1) {
		return hand_over(&placing->placed, failed);
	}

	const char *order_id = PQgetvalue(placing->placed, 0, 0);
	const char *description = PQgetvalue(placing->placed, 0, 1);
	if (outcome->response_status == 201) {
		const char *event[] = {description, order_id, placing->order->key};
		PGresult *emitted = order_query(connection, SQL_EMIT_PLACED, 3, event);
		if (PQresultStatus(emitted) != PGRES_TUPLES_OK) {
			return hand_over(&emitted, failed);
		}
		PQclear(emitted);
	}
	outcome->response_body = (once_bytes){.data = description, .length = strlen(description)};
	outcome->result_type = "order";
	outcome->result_id = order_id;
	return ONCE_EFFECT_DONE;
}

once_code order_place(once_session *session, const order *order, int64_t wait_ms, once_answer **answer,
                      once_error **error)
{
	once_intent intent = order_intent(order);
	once_fingerprint fingerprint;
	once_options options = {.deadline_ms = DEADLINE_MS, .wait_ms = wait_ms};
	placing placing = {.order = order};

	once_code code = once_fingerprint_json(session, intent.tenant, order->request, &fingerprint, error);
	if (code == ONCE_OK) {
		code = once_execute(session, &intent, &fingerprint, place, &placing, &options, answer, error);
	}
	forget(&placing);
	return code;
}

/* ---- The effect, as a list of statements ---- */

/* A random UUID (RFC 9562, version 4). */
static bool make_uuid(char text[37])
{
	static const char digits[] = "0123456789abcdef";
	unsigned char bytes[16];

	if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes) {
		return false;
	}
	bytes[6] = (unsigned char)(0x40 | (bytes[6] & 0x0f));
	bytes[8] = (unsigned char)(0x80 | (bytes[8] & 0x3f));
	char *to = text;
	for (int i = 0; i < 16; i++) {
		if (i == 4 || i == 6 || i == 8 || i == 10) {
			*to++ = '-';
		}
		*to++ = digits[bytes[i] >> 4];
		*to++ = digits[bytes[i] & 15];
	}
	*to = '\0';
	return true;
}

/*
 * The order as it will be, so that its answer is known before it is placed. NULL: the request is
 * not a JSON object. Freed by the caller.
 */
static char *describe(const char *request, const char *order_id)
{
	char *text = NULL;
	json_t *description = json_loads(request, JSON_REJECT_DUPLICATES, NULL);
	if (json_is_object(description) && json_object_set_new(description, "order", json_string(order_id)) == 0) {
		text = json_dumps(description, JSON_SORT_KEYS | JSON_REAL_PRECISION(15));
	}
	json_decref(description);
	return text;
}

once_code order_place_pipelined(once_session *session, const order *order, int64_t wait_ms, once_answer **answer,
                                once_error **error)
{
	once_intent intent = order_intent(order);
	once_fingerprint fingerprint;
	once_options options = {.deadline_ms = DEADLINE_MS, .wait_ms = wait_ms};
	once_error *refused = NULL;
	char order_id[37];

	char *description = make_uuid(order_id) ? describe(order->request, order_id) : NULL;
	if (description == NULL) {
		return order_place(session, order, wait_ms, answer, error);
	}
	const char *insert[] = {order_id, order->request};
	const char *event[] = {description, order_id, order->key};
	const once_statement effect[] = {
	    {.sql = sql_queries[SQL_INSERT_ORDER_AS].text, .parameter_count = 2, .parameters = insert},
	    {.sql = sql_queries[SQL_EMIT_PLACED].text, .parameter_count = 3, .parameters = event},
	};
	const once_outcome outcome = {
	    .response_status = 201,
	    .response_body = {.data = description, .length = strlen(description)},
	    .result_type = "order",
	    .result_id = order_id,
	};

	once_code code = once_fingerprint_json(session, intent.tenant, order->request, &fingerprint, &refused);
	if (code == ONCE_OK) {
		code = once_execute_statements(session, &intent, &fingerprint, sizeof effect / sizeof effect[0], effect,
		                               &outcome, &options, answer, &refused);
	}
	free(description);
	if (code == ONCE_DATABASE && strncmp(once_error_sqlstate(refused), "23", 2) == 0) {
		/* A constraint failed, and everything was rolled back: the cart was ordered
		 * before, or the request is not an order. */
		once_error_free(refused);
		return order_place(session, order, wait_ms, answer, error);
	}
	if (error != NULL) {
		*error = refused;
	} else {
		once_error_free(refused);
	}
	return code;
}

/* ---- The same by hand, for a client that is killed before the end ---- */

once_code order_place_until(once_session *session, const order *order, crash_point point, once_answer **answer,
                            once_error **error)
{
	PGconn *connection = once_session_connection(session);
	once_intent intent = order_intent(order);
	once_fingerprint fingerprint;
	once_outcome outcome = {0};
	placing placing = {.order = order};
	PGresult *failed = NULL;

	once_code code = once_fingerprint_json(session, intent.tenant, order->request, &fingerprint, error);
	if (code != ONCE_OK) {
		return code;
	}
	PQclear(PQexec(connection, "BEGIN"));
	code = once_start(session, &intent, &fingerprint, answer, error);
	if (code != ONCE_OK || once_answer_verdict(*answer) == ONCE_REPLAY_SUCCESS) {
		PQclear(PQexec(connection, "ROLLBACK"));
		return code;
	}
	once_answer_free(*answer);
	*answer = NULL;
	if (place(connection, &placing, &outcome, &failed) == ONCE_EFFECT_DONE && point != CRASH_MID_EFFECT) {
		code = once_finish(session, &intent, &fingerprint, ONCE_STATE_SUCCEEDED, &outcome, error);
	}
	if (code == ONCE_OK && point == CRASH_DURING_COMMIT) {
		PQsendQuery(connection, "COMMIT");
	} else if (code == ONCE_OK && point == CRASH_AFTER_COMMIT) {
		PQclear(PQexec(connection, "COMMIT"));
	}
	PQclear(failed);
	forget(&placing);
	return code;
}
