/* SPDX-License-Identifier: PostgreSQL */
/*
 * ngx_http_once_report.c: reporting to the contract how an attempt ended, and renewing its lease
 * until then. The answer is held until it is stored; if its client leaves, the report continues
 * without it. lib/http decides what to report (http_decide_ending).
 */
#include "ngx_http_once.h"
#include "reasons.h"

enum {
	RETRY_MS = 250,
	LIMIT_MS = 300 * 1000, /* how long a report is retried: the fence makes it safe */
	LIMIT_EXITING_MS = 30 * 1000
};

static void send_report(gate_attempt *attempt);

/* Sends an operation again, once, to the node that serves the slot by now. 0: it stays failed. */
static ngx_uint_t send_elsewhere(gate_attempt *attempt, const once_error *error, gate_then send)
{
	if (!gate_route_moved(attempt, error)) {
		return 0;
	}
	gate_count_rerouted();
	gate_route_ask(attempt, send);
	return 1;
}

/* ---- the lease ---- */

static void renew(gate_attempt *attempt);

static void on_renewed(void *argument, const once_answer *answer, const once_error *error)
{
	gate_attempt *attempt = argument;

	attempt->report.renewal = NULL;
	if (answer == NULL && send_elsewhere(attempt, error, renew)) {
		return;
	}
	attempt->route.moved = 0;
	if (answer == NULL) {
		gate_attempt_log(attempt, "renew_failed", error);
		gate_nodes_look();
	} else if (once_answer_verdict(answer) == ONCE_REPORT_REFUSED) {
		attempt->report.lease_lost = 1;
		gate_attempt_log(attempt, "lease_lost", NULL);
		return;
	}
	ngx_add_timer(&attempt->report.renew_timer, attempt->location->lease_ms / 3);
}

static void renew(gate_attempt *attempt)
{
	once_batcher *batcher = gate_batcher_of(attempt);
	once_error *error = NULL;

	if (batcher == NULL) {
		on_renewed(attempt, NULL, NULL); /* no node serves it at the moment */
	} else if (once_batcher_renew(batcher, &attempt->intent, attempt->claim.fence, (int64_t)attempt->location->lease_ms,
	                              on_renewed, attempt, &attempt->report.renewal, &error) != ONCE_OK) {
		on_renewed(attempt, NULL, error);
		once_error_free(error);
	}
}

static void on_renew_timer(ngx_event_t *event)
{
	gate_route_find(gate_attempt_at(event, report.renew_timer), renew);
}

void gate_lease_start(gate_attempt *attempt)
{
	assert(attempt->claim.fence > 0 && !attempt->report.leased);
	attempt->report.leased = 1;
	gate_count_gauge(1, 0, 0);
	gate_event_init(&attempt->report.renew_timer, on_renew_timer);
	ngx_add_timer(&attempt->report.renew_timer, attempt->location->lease_ms / 3);
}

void gate_lease_stop(gate_attempt *attempt)
{
	if (attempt->report.leased) {
		attempt->report.leased = 0;
		gate_count_gauge(-1, 0, 0);
	}
	if (attempt->report.renew_timer.timer_set) {
		ngx_del_timer(&attempt->report.renew_timer);
	}
	gate_route_stop(attempt);
	once_operation_forget(attempt->report.renewal);
	attempt->report.renewal = NULL;
}

/* ---- the end ---- */

/* Is the answer itself stored? */
static ngx_uint_t keeps_answer(const gate_attempt *attempt)
{
	return attempt->report.kind == HTTP_REPORT_COMPLETE || attempt->report.kind == HTTP_REPORT_FINAL;
}

static ngx_uint_t is_for_good(const gate_attempt *attempt)
{
	return keeps_answer(attempt) || attempt->report.kind == HTTP_REPORT_TOO_LARGE;
}

/*
 * A final answer that is not stored is not sent, unless the location passes requests without a
 * database.
 */
static void replace_unstored(gate_attempt *attempt)
{
	if (!is_for_good(attempt) || attempt->policy.fails_open) {
		return;
	}
	(void)gate_reply_problem(attempt, HTTP_PROBLEM_NOT_STORED, 0, NULL);
	attempt->replaced = 1;
	gate_count_step(attempt->intent.scope, HTTP_REFUSE, HTTP_PROBLEM_NOT_STORED);
}

static ngx_uint_t has_answered(const gate_attempt *attempt)
{
	return attempt->answer.ending.from_upstream && attempt->answer.ending.complete;
}

static ngx_uint_t is_too_large(const once_answer *answer)
{
	const char *type = once_answer_result_type(answer);

	return type != NULL && ngx_strcmp(type, HTTP_RESULT_TOO_LARGE) == 0;
}

/*
 * The report was refused, so the stored outcome is the answer: the service may have completed it.
 */
static void take_answer(gate_attempt *attempt, const once_answer *answer)
{
	once_verdict verdict = answer == NULL ? ONCE_VERDICT_NONE : once_answer_verdict(answer);
	ngx_uint_t is_stored = verdict == ONCE_REPLAY_SUCCESS || verdict == ONCE_FINAL_FAILURE_STORED;
	gate_reply reply;

	if (!attempt->report.awaited) {
		return;
	}
	if (is_stored && attempt->answer.header_sent && attempt->answer.ending.complete) {
		return; /* too large to hold, and nearly all is sent: it ends as it began */
	}
	if (is_stored && is_too_large(answer)) {
		/* The service stored no answer: this attempt has its own, but not another's. */
		if (once_answer_fence(answer) != attempt->claim.fence || !has_answered(attempt)) {
			(void)gate_reply_problem(attempt, HTTP_PROBLEM_TOO_LARGE, 0, NULL);
			attempt->replaced = 1;
			gate_count_step(attempt->intent.scope, HTTP_REFUSE, HTTP_PROBLEM_TOO_LARGE);
		}
		return;
	}
	if (is_stored && gate_reply_own(&reply, answer) == NGX_OK) {
		gate_reply_free(&attempt->reply);
		attempt->reply = reply; /* not as a replay: this attempt's own effect */
		attempt->status = (int)attempt->reply.status;
		attempt->replaced = 1;
	} else {
		replace_unstored(attempt);
	}
}

static void ask(gate_attempt *attempt);

static void on_asked(void *argument, const once_answer *answer, const once_error *error)
{
	gate_attempt *attempt = argument;

	attempt->report.operation = NULL;
	if (answer == NULL && send_elsewhere(attempt, error, ask)) {
		return;
	}
	if (answer == NULL) {
		gate_attempt_log(attempt, "ask_failed", error);
	}
	take_answer(attempt, answer);
	attempt->walk(attempt, GATE_REPORTED);
}

static void on_unasked(ngx_event_t *event)
{
	gate_attempt *attempt = gate_attempt_at(event, report.timer);

	take_answer(attempt, NULL);
	attempt->walk(attempt, GATE_REPORTED);
}

static void ask(gate_attempt *attempt)
{
	once_error *error = NULL;

	if (!attempt->report.awaited || gate_node_count() == 0) {
		attempt->walk(attempt, GATE_REPORTED);
		return;
	}
	if (once_batcher_peek(gate_batcher_of(attempt), &attempt->intent, on_asked, attempt, &attempt->report.operation,
	                      &error) != ONCE_OK) {
		/* In a separate turn of the loop: a filter may be on the stack. */
		attempt->report.operation = NULL;
		gate_attempt_log(attempt, "ask_failed", error);
		gate_event_init(&attempt->report.timer, on_unasked);
		ngx_add_timer(&attempt->report.timer, 1);
		once_error_free(error);
	}
}

/* ---- trying again ---- */

static ngx_uint_t is_late(const gate_attempt *attempt)
{
	return ngx_current_msec - attempt->report.started > (ngx_uint_t)(ngx_exiting ? LIMIT_EXITING_MS : LIMIT_MS);
}

static void on_retry(ngx_event_t *event)
{
	gate_attempt *attempt = gate_attempt_at(event, report.timer);

	/* The client waits for the first try only. The timer keeps the attempt. */
	if (attempt->report.awaited) {
		replace_unstored(attempt);
		attempt->report.awaited = 0;
		ngx_add_timer(&attempt->report.timer, 1);
		attempt->walk(attempt, GATE_UNSTORED);
		return;
	}
	if (attempt->report.lost || is_late(attempt)) {
		gate_attempt_log(attempt, "report_given_up", NULL);
		attempt->walk(attempt, GATE_REPORTED);
		return;
	}
	attempt->route.moved = 0;
	gate_route_find(attempt, send_report);
}

static void try_again(gate_attempt *attempt, const once_error *error)
{
	if (!attempt->report.tried) {
		gate_attempt_log(attempt, "report_failed", error);
		gate_count_trouble(0);
	}
	gate_nodes_look();
	/* In a separate turn of the loop: a filter may be on the stack. */
	attempt->report.lost = error != NULL && !once_error_retriable(error) && once_error_code(error) != ONCE_DEADLINE &&
	                       !once_error_outcome_unknown(error);
	gate_event_init(&attempt->report.timer, on_retry);
	ngx_add_timer(&attempt->report.timer, attempt->report.tried ? RETRY_MS : 1);
	attempt->report.tried = 1;
}

/*
 * 0: none. With a doubt it means that the work has ended, so that a verify function is asked at
 * once. An answer that may be a proxy's (502, 503, 504), or is another gateway's, does not mean
 * that: the service may still be working.
 */
static int status_of(const gate_attempt *attempt)
{
	int status = attempt->answer.ending.status;
	ngx_uint_t goes_on = attempt->report.kind == HTTP_REPORT_IN_DOUBT &&
	                     (attempt->answer.behind ||
	                      (attempt->answer.ending.effect == HTTP_EFFECT_UNSAID && http_status_gives_up(status)));

	return has_answered(attempt) && !goes_on && status >= 200 && status <= 599 ? status : 0;
}

/*
 * Only for a first attempt is it certain that its fingerprint is the only one and its retention
 * that of the location or the scope.
 */
static void cache_answer(const gate_attempt *attempt)
{
	const gate_location *location = attempt->location;
	const gate_bytes *body = &attempt->answer.body;
	ngx_uint_t failed = attempt->report.kind == HTTP_REPORT_FINAL;
	gate_stored_answer answer = {
	    .verdict = failed ? ONCE_FINAL_FAILURE_STORED : ONCE_REPLAY_SUCCESS,
	    .state = failed ? ONCE_STATE_FAILED_FINAL : ONCE_STATE_SUCCEEDED,
	    .status = (ngx_uint_t)status_of(attempt),
	    .headers = attempt->answer.headers == NULL ? "{}" : attempt->answer.headers,
	    .body = {.data = body->data == NULL ? (const u_char *)"" : body->data, .length = body->length},
	    .trace = attempt->claim.trace};

	if (keeps_answer(attempt) && attempt->claim.verdict == ONCE_NEW_CLAIM) {
		gate_cache_keep(attempt, &answer, attempt->report.started,
		                location->retention_ms > 0 ? (int64_t)location->retention_ms : gate_cache_kept_ms(attempt));
	}
}

static void on_reported(void *argument, const once_answer *answer, const once_error *error)
{
	gate_attempt *attempt = argument;
	once_code code = error == NULL ? ONCE_OK : once_error_code(error);

	attempt->report.operation = NULL;
	if (code == ONCE_TOO_LARGE && keeps_answer(attempt)) {
		/* The scope's own limit is lower than the location's. */
		attempt->report.kind = HTTP_REPORT_TOO_LARGE;
		send_report(attempt);
		return;
	}
	if (code == ONCE_COMPLETION_REFUSED || code == ONCE_FAILURE_REFUSED ||
	    (error == NULL && once_answer_verdict(answer) == ONCE_REPORT_REFUSED)) {
		gate_count_trouble(1);
		gate_attempt_log(attempt, "report_refused", NULL);
		ask(attempt);
		return;
	}
	if (error != NULL) {
		if (!send_elsewhere(attempt, error, send_report)) {
			try_again(attempt, error);
		}
		return;
	}
	attempt->route.moved = 0;
	cache_answer(attempt);
	gate_count_report(attempt->report.kind);
	gate_attempt_log(attempt, http_report_name(attempt->report.kind), NULL);
	attempt->walk(attempt, GATE_REPORTED);
}

static void describe(const gate_attempt *attempt, once_outcome *outcome)
{
	ngx_uint_t answered = has_answered(attempt);

	switch (attempt->report.kind) {
	case HTTP_REPORT_FINAL:
		outcome->error_code = HTTP_REASON_REFUSED;
		outcome->error_message = HTTP_REASON_REFUSED_TEXT;
		/* fall through */
	case HTTP_REPORT_COMPLETE:
		outcome->response_headers = attempt->answer.headers;
		outcome->response_body.data =
		    attempt->answer.body.data == NULL ? (const u_char *)"" : attempt->answer.body.data;
		outcome->response_body.length = attempt->answer.body.length;
		break;
	case HTTP_REPORT_TOO_LARGE:
		outcome->result_type = HTTP_RESULT_TOO_LARGE;
		break;
	default:
		outcome->error_code = answered ? HTTP_REASON_UNCLEAR : HTTP_REASON_NO_ANSWER;
		outcome->error_message = !answered                                      ? HTTP_REASON_NO_ANSWER_TEXT
		                         : attempt->report.kind == HTTP_REPORT_IN_DOUBT ? HTTP_REASON_UNCLEAR_TEXT
		                                                                        : HTTP_REASON_AGAIN_TEXT;
		outcome->redirect = attempt->answer.redirects && attempt->report.kind == HTTP_REPORT_RETRYABLE
		                        ? &attempt->answer.redirect
		                        : NULL;
		break;
	}
	outcome->response_status = status_of(attempt);
}

static once_code submit(gate_attempt *attempt, once_batcher *batcher, once_error **error)
{
	once_outcome outcome = {0};

	describe(attempt, &outcome);
	switch (attempt->report.kind) {
	case HTTP_REPORT_COMPLETE:
	case HTTP_REPORT_TOO_LARGE:
		return once_batcher_complete(batcher, &attempt->intent, attempt->claim.fence, &outcome, on_reported, attempt,
		                             &attempt->report.operation, error);
	case HTTP_REPORT_RELEASE:
		return once_batcher_release(batcher, &attempt->intent, attempt->claim.fence, on_reported, attempt,
		                            &attempt->report.operation, error);
	case HTTP_REPORT_FINAL:
		return once_batcher_fail(batcher, &attempt->intent, attempt->claim.fence, ONCE_FAILURE_FINAL, &outcome,
		                         on_reported, attempt, &attempt->report.operation, error);
	case HTTP_REPORT_RETRYABLE:
		return once_batcher_fail(batcher, &attempt->intent, attempt->claim.fence, ONCE_FAILURE_RETRYABLE, &outcome,
		                         on_reported, attempt, &attempt->report.operation, error);
	default:
		return once_batcher_fail(batcher, &attempt->intent, attempt->claim.fence, ONCE_FAILURE_IN_DOUBT, &outcome,
		                         on_reported, attempt, &attempt->report.operation, error);
	}
}

static void send_report(gate_attempt *attempt)
{
	once_batcher *batcher = gate_batcher_of(attempt);
	once_error *error = NULL;

	if (gate_node_count() == 0) {
		attempt->walk(attempt, GATE_REPORTED);
		return;
	}
	if (batcher == NULL) {
		try_again(attempt, NULL); /* no node serves it at the moment */
		return;
	}
	if (submit(attempt, batcher, &error) != ONCE_OK) {
		on_reported(attempt, NULL, error);
		once_error_free(error);
	}
}

void gate_report_leave(gate_attempt *attempt)
{
	attempt->report.awaited = 0;
}

void gate_report_start(gate_attempt *attempt)
{
	http_ending ending = attempt->answer.ending;

	assert(attempt->claim.fence > 0 && !attempt->report.leased && !attempt->report.decided);
	attempt->report.awaited = attempt->answer.state == GATE_WHOLE;
	ending.lease_lost = attempt->report.lease_lost;
	attempt->report.kind = http_decide_ending(&attempt->policy, &ending);
	attempt->report.decided = 1;
	attempt->report.started = ngx_current_msec;
	attempt->route.moved = 0;
	if (attempt->report.kind == HTTP_REPORT_NOTHING) {
		gate_count_report(attempt->report.kind);
		gate_attempt_log(attempt, "nothing", NULL);
		ask(attempt);
		return;
	}
	gate_route_find(attempt, send_report);
}
