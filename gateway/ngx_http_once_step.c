/* SPDX-License-Identifier: PostgreSQL */
/*
 * ngx_http_once_step.c: what happens to the request: it runs, waits, passes, gets a stored answer
 * or a problem. Only this file sets an attempt's step and problem. lib/http decides which step a
 * verdict means (http_decide_claim).
 */
#include "ngx_http_once.h"

enum {
	DOUBT_BYTES = 96
};

void gate_step_refuse(gate_attempt *attempt, http_problem problem, const char *detail)
{
	attempt->step = HTTP_REFUSE;
	attempt->problem = problem;
	/* Without memory for the document the reply has no status; gate_reply_send then answers 500. */
	(void)gate_reply_problem(attempt, problem, 0, detail);
	attempt->status = http_problem_status(problem);
	gate_count_step(attempt->intent.scope, HTTP_REFUSE, problem);
}

/* A client must not see the server's message about its own troubles. */
static const char *reason_of(http_problem problem, const once_error *error)
{
	return http_problem_status(problem) == NGX_HTTP_BAD_REQUEST ? once_error_message(error) : NULL;
}

static void fail(gate_attempt *attempt, once_code code, const once_error *error)
{
	http_problem problem = HTTP_PROBLEM_UNAVAILABLE;

	attempt->step = http_decide_claim(&attempt->policy, NULL, code, &problem);
	if (attempt->step == HTTP_PASS && attempt->route.moved) {
		/* A node has closed the slot, and the one that has it now may remember the key. */
		attempt->step = http_decide_claim(&attempt->policy, NULL, ONCE_SLOT_CLOSED, &problem);
	}
	assert(attempt->step == HTTP_PASS || attempt->step == HTTP_WAIT || attempt->step == HTTP_REFUSE);
	if (attempt->r == NULL) {
		return;
	}
	if (attempt->step == HTTP_PASS) {
		gate_count_step(attempt->intent.scope, HTTP_PASS, problem);
		gate_attempt_log(attempt, "pass", NULL);
	} else {
		problem = attempt->step == HTTP_WAIT ? HTTP_PROBLEM_ACTIVE : problem;
		gate_step_refuse(attempt, problem, reason_of(problem, error));
	}
}

void gate_step_failed(gate_attempt *attempt, const once_error *error)
{
	gate_attempt_log(attempt, "claim_failed", error);
	gate_nodes_look(); /* another node may serve the tenant by now */
	fail(attempt, error == NULL ? ONCE_NO_MEMORY : once_error_code(error), error);
}

void gate_step_unserved(gate_attempt *attempt, once_code code)
{
	gate_attempt_log(attempt, "unserved", NULL);
	fail(attempt, code, NULL);
}

/* ---- by the contract's answer ---- */

/* Most libraries draw a new boundary for each body, so a retry is another request by accident. */
static ngx_uint_t is_multipart(const ngx_http_request_t *r)
{
	const ngx_table_elt_t *type = r->headers_in.content_type;

	return type != NULL && type->value.len >= 10 && ngx_strncasecmp(type->value.data, (u_char *)"multipart/", 10) == 0;
}

/* Details that the problem does not give; text has room for DOUBT_BYTES. */
static const char *detail_of(const gate_attempt *attempt, const once_answer *answer, char *text)
{
	int status = answer == NULL ? 0 : once_answer_response_status(answer);

	if (attempt->problem == HTTP_PROBLEM_MISMATCH && is_multipart(attempt->r)) {
		return "A multipart body that is built again has a new boundary, so it is another request: send the same bytes "
		       "as the first time.";
	}
	if (attempt->problem != HTTP_PROBLEM_IN_DOUBT || status <= 0) {
		return NULL;
	}
	*ngx_snprintf((u_char *)text, DOUBT_BYTES - 1,
	              "The service answered %d, which does not say whether the effect happened.", status) = '\0';
	return text;
}

void gate_step_decide(gate_attempt *attempt, const once_answer *answer)
{
	attempt->problem = HTTP_PROBLEM_UNAVAILABLE;
	attempt->step = http_decide_claim(&attempt->policy, answer, ONCE_OK, &attempt->problem);
	/* Nothing runs without a fence. */
	assert(attempt->claim.fence > 0 || attempt->step != HTTP_RUN);
}

static void replay(gate_attempt *attempt, const gate_stored_answer *answer)
{
	ngx_int_t rc = gate_reply_replay(attempt, answer);

	attempt->problem = rc == NGX_BUSY ? HTTP_PROBLEM_BUSY : HTTP_PROBLEM_NO_ANSWER;
	attempt->step = rc == NGX_OK ? HTTP_REPLAY : HTTP_REFUSE;
}

/* answer NULL: it came from the cache. */
static void conclude(gate_attempt *attempt, const once_answer *answer)
{
	char doubt[DOUBT_BYTES];

	if (attempt->step != HTTP_REFUSE) {
		gate_count_step(attempt->intent.scope, attempt->step, attempt->problem);
	}
	gate_attempt_log(attempt, "claim", NULL);
	if (attempt->step == HTTP_REFUSE) {
		gate_step_refuse(attempt, attempt->problem, detail_of(attempt, answer, doubt));
	}
}

void gate_step_finish(gate_attempt *attempt, const once_answer *answer)
{
	assert(attempt->step != HTTP_WAIT);
	if (attempt->step == HTTP_REPLAY) {
		gate_stored_answer stored_answer = gate_stored_answer_of(answer);

		stored_answer.trace = attempt->claim.trace;
		replay(attempt, &stored_answer);
		if (attempt->step == HTTP_REPLAY) {
			gate_cache_keep(attempt, &stored_answer, attempt->claim.asked, once_answer_kept_ms(answer));
		}
	}
	conclude(attempt, answer);
}

void gate_step_cached(gate_attempt *attempt, const gate_stored_answer *answer)
{
	attempt->problem = HTTP_PROBLEM_MISMATCH;
	attempt->step = HTTP_REFUSE;
	if (answer != NULL) {
		replay(attempt, answer);
	}
	conclude(attempt, NULL);
}
