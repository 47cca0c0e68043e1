/* SPDX-License-Identifier: PostgreSQL */
/*
 * doubt.c: puts an intent in doubt whose effect has ended its transaction. The intent's lock went
 * with that, so another attempt may hold it, or have finished: it is left alone. execute.c calls
 * it.
 */
#include <stdio.h>

#include "internal.h"

/* spec: ended */
#define REASON_ENDED "transaction_ended"
#define REASON_ENDED_TEXT "the handler has ended the transaction that it was given: what it did may be committed"
/* end of spec */

/* Why the intent is not in doubt: what it is instead. */
static once_code error_of_other(once_error **error, const once_answer *found)
{
	char message[100];
	once_verdict verdict = once_answer_verdict(found);
	snprintf(message, sizeof message, "another transaction holds the intent, or has finished it: %s",
	         once_verdict_name(verdict));
	bool may_pass = verdict != ONCE_REPLAY_SUCCESS && verdict != ONCE_FINAL_FAILURE_STORED;
	return error_make(error, may_pass ? ONCE_ACTIVE : ONCE_ALREADY_FINISHED, NULL, false, message, NULL, NULL);
}

once_code doubt_store(once_session *session, const once_intent *intent, const once_fingerprint *fingerprint,
                      once_error **error)
{
	PGresult *stored;
	once_answer *found = NULL;
	call call;
	call_start(&call, SQL_DOUBT);
	call_add_text(&call, intent->scope);
	call_add_text(&call, intent->key);
	call_add_text(&call, text_or_empty(intent->tenant));
	call_add_fingerprint(&call, fingerprint);
	call_add_trace(&call, intent->traceparent);
	call_add_text(&call, REASON_ENDED);
	call_add_text(&call, REASON_ENDED_TEXT);
	call_add_int(&call, 0, true);
	once_code code = call_run(session, &call, &stored, error);
	if (code != ONCE_OK) {
		return code;
	}
	bool is_stored = !PQgetisnull(stored, 0, 0);
	PQclear(stored);
	if (is_stored) {
		return ONCE_OK;
	}
	code = once_peek(session, intent, &found, error);
	if (code == ONCE_OK && once_answer_verdict(found) != ONCE_IN_DOUBT_STORED) {
		code = error_of_other(error, found);
	}
	once_answer_free(found);
	return code;
}
