/* SPDX-License-Identifier: PostgreSQL */
/*
 * ngx_http_once_report.c: telling the contract how an attempt ended, and renewing its lease until then. The answer is held
 * meanwhile; where its client is gone, the report goes on alone. What to report is lib/http's decision (http_decide_ending).
 */
#include "ngx_http_once.h"

enum {
	RETRY_MS = 250,
	LIMIT_MS = 300 * 1000, /* a report that does not get through is repeated for so long: the fence makes it safe */
	LIMIT_EXITING_MS = 30 * 1000
};

static void send_report(gate_attempt *attempt);

/* ---- the lease ---- */

static void on_renewed(void *argument, const once_answer *answer, const once_error *error)
{
	gate_attempt *attempt = argument;

	attempt->renewal = NULL;
	if (error != NULL) {
		gate_attempt_log(attempt, "renew_failed", error);
	} else if (once_answer_verdict(answer) == ONCE_REPORT_REFUSED) {
		attempt->ending.lease_lost = true;
		gate_attempt_log(attempt, "lease_lost", NULL);
		return;
	}
	ngx_add_timer(&attempt->timer, attempt->location->lease_ms / 3);
}

static void on_renew_timer(ngx_event_t *event)
{
	gate_attempt *attempt = gate_attempt_at(event, timer);
	once_error *error = NULL;

	if (once_batcher_renew(gate_batcher(), &attempt->intent, attempt->fence, (int64_t)attempt->location->lease_ms,
	                       on_renewed, attempt, &attempt->renewal, &error) != ONCE_OK) {
		on_renewed(attempt, NULL, error);
		once_error_free(error);
	}
}

void gate_renew_start(gate_attempt *attempt)
{
	gate_event_init(&attempt->timer, on_renew_timer);
	ngx_add_timer(&attempt->timer, attempt->location->lease_ms / 3);
}

void gate_renew_stop(gate_attempt *attempt)
{
	if (attempt->timer.timer_set) {
		ngx_del_timer(&attempt->timer);
	}
	if (attempt->renewal != NULL) {
		once_operation_forget(attempt->renewal);
		attempt->renewal = NULL;
	}
}

/* ---- the end ---- */

void gate_report_ready(gate_attempt *attempt)
{
	ngx_http_request_t *r = attempt->request;
	ngx_connection_t *c = r->connection;

	attempt->stage = GATE_REPORTED;
	ngx_http_set_log_request(c->log, r);
	r->write_event_handler(r);
	ngx_http_run_posted_requests(c);
}

/* Nothing more is to be told. */
static void finish(gate_attempt *attempt)
{
	gate_wait_wake(&attempt->intent);
	if (attempt->request != NULL && attempt->stage == GATE_REPORTING) {
		gate_report_ready(attempt);
		return;
	}
	if (attempt->request == NULL) {
		attempt->stage = GATE_DONE;
	}
	gate_attempt_settle(attempt);
}

static ngx_uint_t claims_success(const gate_attempt *attempt)
{
	return attempt->report == HTTP_REPORT_COMPLETE || attempt->report == HTTP_REPORT_TOO_LARGE;
}

/* No success may be told that is not stored. Where the location passes without a database anyway, it may. */
static void replace_success(gate_attempt *attempt)
{
	if (attempt->request == NULL || !claims_success(attempt) || attempt->policy.fails_open) {
		return;
	}
	(void)gate_reply_problem(attempt, HTTP_PROBLEM_NOT_STORED, 0, NULL);
	attempt->replaced = 1;
	gate_count_problem(attempt->intent.scope, HTTP_PROBLEM_NOT_STORED);
}

/* The report was refused: what is stored is the answer. A service that completed its own intent has put it there. */
static void take_stored(gate_attempt *attempt, const once_answer *answer)
{
	once_verdict verdict = answer == NULL ? ONCE_VERDICT_NONE : once_answer_verdict(answer);

	if (attempt->request != NULL && attempt->stage == GATE_REPORTING) {
		ngx_uint_t stored = verdict == ONCE_REPLAY_SUCCESS || verdict == ONCE_FINAL_FAILURE_STORED;
		gate_reply found;

		if (stored && attempt->header_sent && attempt->ending.complete) {
			/* Too large to hold, and nearly all of it has gone: it ends as it began, for the intent is known to be done. */
			finish(attempt);
			return;
		}
		if (stored && gate_reply_stored(&found, answer) == NGX_OK) {
			gate_reply_free(&attempt->reply);
			attempt->reply = found;
			attempt->reply.replayed = 0; /* this attempt's own effect */
			attempt->status = (int)attempt->reply.status;
			attempt->replaced = 1;
		} else {
			replace_success(attempt);
		}
	}
	finish(attempt);
}

static void on_asked(void *argument, const once_answer *answer, const once_error *error)
{
	gate_attempt *attempt = argument;

	attempt->operation = NULL;
	if (error != NULL) {
		gate_attempt_log(attempt, "ask_failed", error);
	}
	take_stored(attempt, error == NULL ? answer : NULL);
}

static void on_unasked(ngx_event_t *event)
{
	take_stored(gate_attempt_at(event, timer), NULL);
}

static void ask(gate_attempt *attempt)
{
	once_error *error = NULL;

	if (attempt->request == NULL || gate_batcher() == NULL) {
		finish(attempt);
		return;
	}
	if (once_batcher_peek(gate_batcher(), &attempt->intent, on_asked, attempt, &attempt->operation, &error) !=
	    ONCE_OK) {
		/* In a turn of its own: a filter may be on the stack. */
		attempt->operation = NULL;
		gate_attempt_log(attempt, "ask_failed", error);
		gate_event_init(&attempt->timer, on_unasked);
		ngx_add_timer(&attempt->timer, 1);
		once_error_free(error);
	}
}

/* ---- trying again ---- */

static ngx_uint_t is_late(const gate_attempt *attempt)
{
	return ngx_current_msec - attempt->report_started > (ngx_uint_t)(ngx_exiting ? LIMIT_EXITING_MS : LIMIT_MS);
}

static void on_retry(ngx_event_t *event)
{
	gate_attempt *attempt = gate_attempt_at(event, timer);

	/* The client waits for the first try only. Its request may end here, and an attempt that has no timer would be freed with it. */
	if (attempt->request != NULL && attempt->stage == GATE_REPORTING) {
		replace_success(attempt);
		attempt->report_tries++;
		ngx_add_timer(&attempt->timer, 1);
		gate_report_ready(attempt);
		return;
	}
	if (attempt->report_lost || is_late(attempt)) {
		gate_attempt_log(attempt, "report_given_up", NULL);
		finish(attempt);
		return;
	}
	send_report(attempt);
}

static void try_again(gate_attempt *attempt, const once_error *error)
{
	if (attempt->report_tries == 0) {
		gate_attempt_log(attempt, "report_failed", error);
		gate_count_unstored();
	}
	/* In a turn of its own: a filter may be on the stack. */
	attempt->report_lost = error != NULL && !once_error_retriable(error) && once_error_code(error) != ONCE_DEADLINE &&
	                       !once_error_outcome_unknown(error);
	gate_event_init(&attempt->timer, on_retry);
	ngx_add_timer(&attempt->timer, attempt->report_tries == 0 ? 1 : RETRY_MS);
	if (attempt->report_tries < 1000000) {
		attempt->report_tries++;
	}
}

static void on_reported(void *argument, const once_answer *answer, const once_error *error)
{
	gate_attempt *attempt = argument;
	once_code code = error == NULL ? ONCE_OK : once_error_code(error);

	attempt->operation = NULL;
	if (code == ONCE_TOO_LARGE && attempt->report == HTTP_REPORT_COMPLETE) {
		/* The scope's own limit is lower than the location's. */
		attempt->report = HTTP_REPORT_TOO_LARGE;
		send_report(attempt);
		return;
	}
	if (code == ONCE_COMPLETION_REFUSED || code == ONCE_FAILURE_REFUSED ||
	    (error == NULL && once_answer_verdict(answer) == ONCE_REPORT_REFUSED)) {
		gate_count_refused();
		gate_attempt_log(attempt, "report_refused", NULL);
		ask(attempt);
		return;
	}
	if (error != NULL) {
		try_again(attempt, error);
		return;
	}
	gate_count_report(attempt);
	gate_attempt_log(attempt, http_report_name(attempt->report), NULL);
	finish(attempt);
}

static ngx_uint_t has_answered(const gate_attempt *attempt)
{
	return attempt->ending.from_upstream && attempt->ending.complete;
}

/*
 * 0: none. With a doubt it says that the work has ended, so that a verify function is asked at once. A proxy's 502 or 504, or what
 * another gateway says, does not say that: the service behind it may be at it still.
 */
static int status_of(const gate_attempt *attempt)
{
	int status = attempt->ending.status;
	ngx_uint_t goes_on = attempt->report == HTTP_REPORT_IN_DOUBT &&
	                     (attempt->behind || status == NGX_HTTP_BAD_GATEWAY || status == NGX_HTTP_GATEWAY_TIME_OUT);

	return has_answered(attempt) && !goes_on && status >= 200 && status <= 599 ? status : 0;
}

static void describe(const gate_attempt *attempt, once_outcome *outcome)
{
	ngx_uint_t answered = has_answered(attempt);

	switch (attempt->report) {
	case HTTP_REPORT_COMPLETE:
		outcome->response_headers = attempt->headers;
		outcome->response_body.data = attempt->body.data == NULL ? (const u_char *)"" : attempt->body.data;
		outcome->response_body.length = attempt->body.length;
		break;
	case HTTP_REPORT_TOO_LARGE:
		outcome->result_type = HTTP_RESULT_TOO_LARGE;
		break;
	default:
		outcome->error_code = answered ? "upstream_status" : "no_answer";
		outcome->error_message = !answered ? "the request was sent, and no whole answer of the upstream came"
		                         : attempt->report == HTTP_REPORT_IN_DOUBT
		                             ? "the upstream's answer does not say whether the effect happened"
		                             : "the upstream's answer is one that is not stored";
		break;
	}
	outcome->response_status = status_of(attempt);
}

static once_code submit(gate_attempt *attempt, once_error **error)
{
	once_batcher *batcher = gate_batcher();
	once_outcome outcome = {0};

	describe(attempt, &outcome);
	switch (attempt->report) {
	case HTTP_REPORT_COMPLETE:
	case HTTP_REPORT_TOO_LARGE:
		return once_batcher_complete(batcher, &attempt->intent, attempt->fence, &outcome, on_reported, attempt,
		                             &attempt->operation, error);
	case HTTP_REPORT_RELEASE:
		return once_batcher_release(batcher, &attempt->intent, attempt->fence, on_reported, attempt,
		                            &attempt->operation, error);
	case HTTP_REPORT_RETRYABLE:
		return once_batcher_fail(batcher, &attempt->intent, attempt->fence, ONCE_FAILURE_RETRYABLE, &outcome,
		                         on_reported, attempt, &attempt->operation, error);
	default:
		return once_batcher_fail(batcher, &attempt->intent, attempt->fence, ONCE_FAILURE_IN_DOUBT, &outcome,
		                         on_reported, attempt, &attempt->operation, error);
	}
}

static void send_report(gate_attempt *attempt)
{
	once_error *error = NULL;

	if (gate_batcher() == NULL) {
		finish(attempt);
		return;
	}
	if (submit(attempt, &error) != ONCE_OK) {
		attempt->operation = NULL;
		try_again(attempt, error);
		once_error_free(error);
	}
}

void gate_report(gate_attempt *attempt)
{
	gate_renew_stop(attempt);
	if (attempt->running) {
		attempt->running = 0;
		gate_count_gauge(-1, 0, 0);
	}
	attempt->report = http_decide_ending(&attempt->policy, &attempt->ending);
	attempt->reported = 1;
	attempt->report_started = ngx_current_msec;
	if (attempt->report == HTTP_REPORT_NOTHING) {
		gate_count_report(attempt);
		gate_attempt_log(attempt, "nothing", NULL);
		ask(attempt);
		return;
	}
	send_report(attempt);
}
