/* SPDX-License-Identifier: PostgreSQL */
/*
 * contract.c: the functions of the contract for one intent, one C function each. It makes no
 * decision.
 */
#include <assert.h>
#include <stdlib.h>

#include "internal.h"
#include "names.h"

/* Runs a call that answers with one row about the intent. */
static once_code run_for_answer(once_session *session, call *call, once_answer **answer, once_error **error)
{
	PGresult *result;
	if (answer == NULL) {
		return error_usage(error, "answer must not be NULL");
	}
	once_code code = call_run(session, call, &result, error);
	if (code == ONCE_OK) {
		code =
		    call->id == SQL_START ? answer_of_started(result, answer, error) : answer_of_result(result, answer, error);
	}
	assert(code != ONCE_OK || *answer != NULL);
	return code;
}

/* Runs a call whose one value is a boolean; happened NULL if it does not matter. */
static once_code run_for_bool(once_session *session, call *call, bool *happened, once_error **error)
{
	PGresult *result;
	once_code code = call_run(session, call, &result, error);
	if (code != ONCE_OK) {
		return code;
	}
	if (happened != NULL) {
		*happened = PQntuples(result) == 1 && result_bool(result, 0, 0);
	}
	PQclear(result);
	return ONCE_OK;
}

/*
 * A guard that lasts until the transaction ends guards nothing if each statement is its own
 * transaction. A lost connection has no state: then the call itself fails.
 */
static once_code check_transaction(const once_session *session, once_error **error)
{
	if (PQtransactionStatus(session->connection) == PQTRANS_IDLE) {
		return error_make(error, ONCE_USAGE, NULL, false, "this call belongs in a transaction, and none is open", NULL,
		                  "Send BEGIN before it, and COMMIT after the effect.");
	}
	return ONCE_OK;
}

static void start_for_intent(call *call, enum sql_id id, const once_intent *intent)
{
	call_start(call, id);
	call_add_text(call, intent->scope);
	call_add_text(call, intent->key);
}

static void add_tenant(call *call, const char *tenant)
{
	call_add_text(call, text_or_empty(tenant));
}

void start_fill(call *call, const once_intent *intent, const once_fingerprint *fingerprint)
{
	start_for_intent(call, SQL_START, intent);
	call_add_fingerprint(call, fingerprint);
	add_tenant(call, intent->tenant);
	call_add_trace(call, intent->traceparent);
}

once_code once_start(once_session *session, const once_intent *intent, const once_fingerprint *fingerprint,
                     once_answer **answer, once_error **error)
{
	once_code code = check_intent(session, intent, error);
	if (code == ONCE_OK) {
		code = check_transaction(session, error);
	}
	if (code != ONCE_OK) {
		return code;
	}
	call call;
	start_fill(&call, intent, fingerprint);
	return run_for_answer(session, &call, answer, error);
}

void finish_fill(call *call, const once_intent *intent, const once_fingerprint *fingerprint, once_state state,
                 const once_outcome *outcome)
{
	assert(outcome != NULL && state != ONCE_STATE_NONE && state != ONCE_STATE_PROCESSING);
	start_for_intent(call, SQL_FINISH, intent);
	call_add_fingerprint(call, fingerprint);
	call_add_int(call, outcome->response_status, outcome->response_status == 0);
	call_add_bytes(call, outcome->response_body);
	call_add_text(call, outcome->response_headers);
	call_add_text(call, outcome->result_type);
	call_add_text(call, outcome->result_id);
	call_add_text(call, once_state_name(state));
	call_add_text(call, outcome->error_code);
	call_add_text(call, outcome->error_message);
	add_tenant(call, intent->tenant);
	call_add_trace(call, intent->traceparent);
}

once_code once_finish(once_session *session, const once_intent *intent, const once_fingerprint *fingerprint,
                      once_state state, const once_outcome *outcome, once_error **error)
{
	once_code code = check_intent(session, intent, error);
	if (code != ONCE_OK) {
		return code;
	}
	if (outcome == NULL ||
	    (state != ONCE_STATE_SUCCEEDED && state != ONCE_STATE_FAILED_FINAL && state != ONCE_STATE_FAILED_RETRYABLE)) {
		return error_usage(error,
		                   "finish takes an outcome and one of the states succeeded, failed_final, failed_retryable");
	}
	call call;
	finish_fill(&call, intent, fingerprint, state, outcome);
	return run_for_bool(session, &call, NULL, error);
}

once_code once_claim(once_session *session, const once_intent *intent, const once_fingerprint *fingerprint,
                     const char *owner, int64_t lease_ms, int64_t retention_ms, once_answer **answer,
                     once_error **error)
{
	once_code code = check_intent(session, intent, error);
	if (code != ONCE_OK) {
		return code;
	}
	call call;
	start_for_intent(&call, SQL_CLAIM, intent);
	call_add_fingerprint(&call, fingerprint);
	call_add_text(&call, owner);
	call_add_bigint(&call, lease_ms, lease_ms == 0);
	call_add_bigint(&call, retention_ms, retention_ms == 0);
	add_tenant(&call, intent->tenant);
	call_add_trace(&call, intent->traceparent);
	call_add_on_stale(&call, intent->on_stale);
	return run_for_answer(session, &call, answer, error);
}

once_code once_complete(once_session *session, const once_intent *intent, int fence, const once_outcome *outcome,
                        once_error **error)
{
	once_code code = check_intent(session, intent, error);
	if (code != ONCE_OK) {
		return code;
	}
	if (outcome == NULL) {
		return error_usage(error, "complete takes an outcome");
	}
	call call;
	start_for_intent(&call, SQL_COMPLETE, intent);
	call_add_int(&call, fence, false);
	call_add_int(&call, outcome->response_status, outcome->response_status == 0);
	call_add_bytes(&call, outcome->response_body);
	call_add_text(&call, outcome->response_headers);
	call_add_text(&call, outcome->result_type);
	call_add_text(&call, outcome->result_id);
	add_tenant(&call, intent->tenant);
	return run_for_bool(session, &call, NULL, error);
}

once_code once_fail(once_session *session, const once_intent *intent, int fence, once_failure failure,
                    const once_outcome *outcome, once_error **error)
{
	static const once_outcome nothing = {0};
	once_code code = check_intent(session, intent, error);
	if (code != ONCE_OK) {
		return code;
	}
	if (failure < ONCE_FAILURE_RETRYABLE || failure > ONCE_FAILURE_IN_DOUBT) {
		return error_usage(error, "fail takes retryable, final or in doubt");
	}
	outcome = outcome == NULL ? &nothing : outcome;
	call call;
	start_for_intent(&call, SQL_FAIL, intent);
	call_add_int(&call, fence, false);
	call_add_bool(&call, failure == ONCE_FAILURE_RETRYABLE, failure == ONCE_FAILURE_IN_DOUBT);
	call_add_text(&call, outcome->error_code);
	call_add_text(&call, outcome->error_message);
	call_add_int(&call, outcome->response_status, outcome->response_status == 0);
	call_add_bytes(&call, outcome->response_body);
	call_add_text(&call, outcome->response_headers);
	add_tenant(&call, intent->tenant);
	call_add_bytes(&call, bytes_of_redirect(outcome));
	return run_for_bool(session, &call, NULL, error);
}

once_code once_renew(once_session *session, const once_intent *intent, int fence, int64_t lease_ms, bool *held,
                     once_error **error)
{
	once_code code = check_intent(session, intent, error);
	if (code != ONCE_OK) {
		return code;
	}
	call call;
	start_for_intent(&call, SQL_RENEW, intent);
	call_add_int(&call, fence, false);
	call_add_bigint(&call, lease_ms, lease_ms == 0);
	add_tenant(&call, intent->tenant);
	return run_for_bool(session, &call, held, error);
}

once_code once_release(once_session *session, const once_intent *intent, int fence, bool *held, once_error **error)
{
	once_code code = check_intent(session, intent, error);
	if (code != ONCE_OK) {
		return code;
	}
	call call;
	start_for_intent(&call, SQL_RELEASE, intent);
	call_add_int(&call, fence, false);
	add_tenant(&call, intent->tenant);
	return run_for_bool(session, &call, held, error);
}

once_code once_peek(once_session *session, const once_intent *intent, once_answer **answer, once_error **error)
{
	once_code code = check_intent(session, intent, error);
	if (code != ONCE_OK) {
		return code;
	}
	call call;
	start_for_intent(&call, SQL_PEEK, intent);
	add_tenant(&call, intent->tenant);
	return run_for_answer(session, &call, answer, error);
}

/* The columns that all events have. */
static void add_event(call *call, const char *tenant, const once_intent *cause, const once_event *event)
{
	call_add_text(call, event->aggregate_type);
	call_add_text(call, event->aggregate_id);
	call_add_text(call, event->event_type);
	call_add_text(call, cause == NULL ? NULL : cause->scope);
	call_add_text(call, cause == NULL ? NULL : cause->key);
	call_add_text(call, event->headers);
	add_tenant(call, tenant);
	call_add_trace(call, event->traceparent);
}

static once_code run_for_event_id(once_session *session, call *call, char event_id[37], once_error **error)
{
	PGresult *result;
	once_code code = call_run(session, call, &result, error);
	if (code != ONCE_OK) {
		return code;
	}
	if (PQntuples(result) != 1 || PQgetlength(result, 0, 0) != 36) {
		PQclear(result);
		return error_make(error, ONCE_CONTRACT, NULL, false, "emit answered in an unknown form", NULL,
		                  "Run pgonce doctor.");
	}
	memcpy(event_id, PQgetvalue(result, 0, 0), 37);
	PQclear(result);
	return ONCE_OK;
}

once_code once_emit(once_session *session, const char *tenant, const once_intent *cause, const once_event *event,
                    char event_id[37], once_error **error)
{
	if (session == NULL || event == NULL || event_id == NULL) {
		return error_usage(error, "session, event and event_id must not be NULL");
	}
	call call;
	call_start(&call, event->not_before == NULL ? SQL_EMIT : SQL_EMIT_LATER);
	call_add_text(&call, event->topic);
	call_add_text(&call, event->payload);
	add_event(&call, tenant, cause, event);
	if (event->not_before != NULL) {
		call_add_text(&call, event->not_before);
	}
	return run_for_event_id(session, &call, event_id, error);
}

once_code once_emit_bytes(once_session *session, const char *tenant, const once_intent *cause, const once_event *event,
                          once_bytes payload, const char *content_type, char event_id[37], once_error **error)
{
	if (session == NULL || event == NULL || event_id == NULL) {
		return error_usage(error, "session, event and event_id must not be NULL");
	}
	if (event->payload != NULL || event->not_before != NULL) {
		return error_usage(error, "payload and not_before of an event of bytes must be NULL");
	}
	call call;
	call_start(&call, SQL_EMIT_BYTES);
	call_add_text(&call, event->topic);
	call_add_bytes(&call, payload);
	add_event(&call, tenant, cause, event);
	call_add_text(&call, content_type);
	return run_for_event_id(session, &call, event_id, error);
}

once_code once_resolve(once_session *session, const once_intent *intent, once_state as_state, const char *reason,
                       const once_outcome *outcome, once_state *before, once_error **error)
{
	static const once_outcome nothing = {0};
	once_code code = check_intent(session, intent, error);
	if (code != ONCE_OK) {
		return code;
	}
	outcome = outcome == NULL ? &nothing : outcome;
	call call;
	PGresult *result;
	start_for_intent(&call, SQL_RESOLVE, intent);
	call_add_text(&call, once_state_name(as_state));
	call_add_text(&call, reason);
	call_add_int(&call, outcome->response_status, outcome->response_status == 0);
	call_add_bytes(&call, outcome->response_body);
	call_add_text(&call, outcome->response_headers);
	call_add_text(&call, outcome->result_type);
	call_add_text(&call, outcome->result_id);
	call_add_text(&call, outcome->error_code);
	call_add_text(&call, outcome->error_message);
	add_tenant(&call, intent->tenant);
	code = call_run(session, &call, &result, error);
	if (code != ONCE_OK) {
		return code;
	}
	if (before != NULL) {
		*before = state_of_name(PQgetvalue(result, 0, 0));
	}
	PQclear(result);
	return ONCE_OK;
}
