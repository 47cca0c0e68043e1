/* SPDX-License-Identifier: PostgreSQL */
/*
 * batch.c: the contract's functions for many intents: C arrays become PostgreSQL arrays,
 * one statement, one answer per element.
 */
#include <limits.h>

#include "internal.h"

/* One array of a batch: element i of the caller's array. */
#define ELEMENT(name, type, expression)                                                                                \
	static once_bytes name(const void *context, size_t index, unsigned char scratch[8])                                \
	{                                                                                                                  \
		const type *at = (const type *)context + index;                                                                \
		(void)scratch;                                                                                                 \
		return expression;                                                                                             \
	}

ELEMENT(scope_at, once_intent, bytes_of_text(at->scope))
ELEMENT(key_at, once_intent, bytes_of_text(at->key))
ELEMENT(trace_at, once_intent, bytes_of_text(traceparent_or_null(at->traceparent)))
ELEMENT(fingerprint_at, once_fingerprint, ((once_bytes){.data = at->bytes, .length = ONCE_FINGERPRINT_BYTES}))
ELEMENT(fence_at, int, bytes_of_int(*at, false, scratch))
ELEMENT(status_at, once_outcome, bytes_of_int(at->response_status, at->response_status == 0, scratch))
ELEMENT(body_at, once_outcome, at->response_body)
ELEMENT(headers_at, once_outcome, bytes_of_text(at->response_headers))
ELEMENT(result_type_at, once_outcome, bytes_of_text(at->result_type))
ELEMENT(result_id_at, once_outcome, bytes_of_text(at->result_id))
ELEMENT(error_code_at, once_outcome, bytes_of_text(at->error_code))
ELEMENT(error_message_at, once_outcome, bytes_of_text(at->error_message))

ELEMENT(redirect_at, once_outcome, bytes_of_redirect(at))

static once_bytes failure_at(const void *context, size_t index, unsigned char scratch[8])
{
	return bytes_of_failure(((const once_failure *)context)[index], scratch);
}

static once_code check_batch(const once_session *session, size_t count, const void *intents, const void *others,
                             once_error **error)
{
	if (session == NULL || (count > 0 && (intents == NULL || others == NULL))) {
		return error_usage(error, "session and the arrays of a batch must not be NULL");
	}
	if (count > INT_MAX) {
		return error_usage(error, "a batch has too many elements");
	}
	return ONCE_OK;
}

static void start_for_intents(call *call, enum sql_id id, size_t count, const once_intent *intents)
{
	call_start(call, id);
	call_add_array(call, TYPE_TEXT, count, scope_at, intents);
	call_add_array(call, TYPE_TEXT, count, key_at, intents);
}

static once_code run_for_answers(once_session *session, call *call, size_t count, once_answers **answers,
                                 once_error **error)
{
	PGresult *result;
	if (answers == NULL) {
		call_free(call);
		return error_usage(error, "answers must not be NULL");
	}
	once_code code = call_run(session, call, &result, error);
	return code == ONCE_OK ? answers_of_result(result, count, answers, error) : code;
}

once_code once_claim_many(once_session *session, const char *tenant, size_t count, const once_intent *intents,
                          const once_fingerprint *fingerprints, const char *owner, int64_t lease_ms,
                          int64_t retention_ms, once_answers **answers, once_error **error)
{
	once_code code = check_batch(session, count, intents, fingerprints, error);
	if (code != ONCE_OK) {
		return code;
	}
	for (size_t i = 1; i < count; i++) {
		if (intents[i].on_stale != intents[0].on_stale) {
			return error_usage(error, "the intents of claim_many have the same on_stale");
		}
	}
	call call;
	start_for_intents(&call, SQL_CLAIM_MANY, count, intents);
	call_add_array(&call, TYPE_BYTEA, count, fingerprint_at, fingerprints);
	call_add_text(&call, owner);
	call_add_bigint(&call, lease_ms, lease_ms == 0);
	call_add_bigint(&call, retention_ms, retention_ms == 0);
	call_add_text(&call, text_or_empty(tenant));
	call_add_array(&call, TYPE_TEXT, count, trace_at, intents);
	call_add_on_stale(&call, count == 0 ? ONCE_ON_STALE_POLICY : intents[0].on_stale);
	return run_for_answers(session, &call, count, answers, error);
}

once_code once_complete_many(once_session *session, const char *tenant, size_t count, const once_intent *intents,
                             const int *fences, const once_outcome *outcomes, once_answers **answers,
                             once_error **error)
{
	once_code code = check_batch(session, count, intents, fences, error);
	if (code == ONCE_OK) {
		code = check_batch(session, count, intents, outcomes, error);
	}
	if (code != ONCE_OK) {
		return code;
	}
	call call;
	start_for_intents(&call, SQL_COMPLETE_MANY, count, intents);
	call_add_array(&call, TYPE_INT4, count, fence_at, fences);
	call_add_array(&call, TYPE_INT4, count, status_at, outcomes);
	call_add_array(&call, TYPE_BYTEA, count, body_at, outcomes);
	call_add_array(&call, TYPE_TEXT, count, headers_at, outcomes);
	call_add_array(&call, TYPE_TEXT, count, result_type_at, outcomes);
	call_add_array(&call, TYPE_TEXT, count, result_id_at, outcomes);
	call_add_text(&call, text_or_empty(tenant));
	return run_for_answers(session, &call, count, answers, error);
}

once_code once_fail_many(once_session *session, const char *tenant, size_t count, const once_intent *intents,
                         const int *fences, const once_failure *failures, const once_outcome *outcomes,
                         once_answers **answers, once_error **error)
{
	once_code code = check_batch(session, count, intents, fences, error);
	if (code == ONCE_OK && outcomes != NULL) {
		code = check_batch(session, count, failures, outcomes, error);
	} else if (code == ONCE_OK && count > 0) {
		code = error_usage(error, "fail_many takes an outcome for each element");
	}
	if (code != ONCE_OK) {
		return code;
	}
	call call;
	start_for_intents(&call, SQL_FAIL_MANY, count, intents);
	call_add_array(&call, TYPE_INT4, count, fence_at, fences);
	call_add_array(&call, TYPE_BOOL, count, failure_at, failures);
	call_add_array(&call, TYPE_TEXT, count, error_code_at, outcomes);
	call_add_array(&call, TYPE_TEXT, count, error_message_at, outcomes);
	call_add_array(&call, TYPE_INT4, count, status_at, outcomes);
	call_add_array(&call, TYPE_BYTEA, count, body_at, outcomes);
	call_add_array(&call, TYPE_TEXT, count, headers_at, outcomes);
	call_add_text(&call, text_or_empty(tenant));
	call_add_array(&call, TYPE_BYTEA, count, redirect_at, outcomes);
	return run_for_answers(session, &call, count, answers, error);
}

once_code once_renew_many(once_session *session, const char *tenant, size_t count, const once_intent *intents,
                          const int *fences, int64_t lease_ms, bool *held, once_error **error)
{
	once_code code = check_batch(session, count, intents, fences, error);
	if (code == ONCE_OK) {
		code = check_batch(session, count, intents, held, error);
	}
	if (code != ONCE_OK) {
		return code;
	}
	call call;
	PGresult *result;
	start_for_intents(&call, SQL_RENEW_MANY, count, intents);
	call_add_array(&call, TYPE_INT4, count, fence_at, fences);
	call_add_bigint(&call, lease_ms, lease_ms == 0);
	call_add_text(&call, text_or_empty(tenant));
	code = call_run(session, &call, &result, error);
	if (code != ONCE_OK) {
		return code;
	}
	for (size_t i = 0; i < count; i++) {
		held[i] = (int)i < PQntuples(result) && result_bool(result, (int)i, 0);
	}
	PQclear(result);
	return ONCE_OK;
}
