/* SPDX-License-Identifier: PostgreSQL */
/*
 * ngx_http_once_claim.c: asking for the intent, waiting while another attempt runs, and turning the verdict into a step. What
 * to do on each verdict is lib/http's decision (http_decide_claim).
 */
#include "ngx_http_once.h"

enum {
	WAIT_FIRST_MS = 10,
	WAIT_MAX_MS = 250,
	LISTS = 256,
	DOUBT_BYTES = 96
};

/* The attempts of this worker that wait, by intent: a finished one wakes them at once. */
static ngx_queue_t lists[LISTS];
static ngx_uint_t waiting;

static void wait_start(gate_attempt *attempt);

static ngx_queue_t *list_of(const once_intent *intent)
{
	ngx_uint_t hash = ngx_hash_key((u_char *)(uintptr_t)intent->key, ngx_strlen(intent->key));

	return &lists[hash % LISTS];
}

/* ---- deciding ---- */

static const char *detail_of(http_problem problem, const once_error *error)
{
	/* What the server said of its own troubles is no client's business. */
	return error != NULL && http_problem_status(problem) == 400 ? once_error_message(error) : NULL;
}

/* Why it is in doubt, where the service has answered: its status does not tell. */
static const char *detail_of_doubt(http_problem problem, const once_answer *answer, char *text)
{
	int status = once_answer_response_status(answer);

	if (problem != HTTP_PROBLEM_IN_DOUBT || status <= 0) {
		return NULL;
	}
	*ngx_snprintf((u_char *)text, DOUBT_BYTES - 1,
	              "The service answered %d, which does not say whether the effect happened.", status) = '\0';
	return text;
}

void gate_claim_failed(gate_attempt *attempt, const once_error *error, once_code code)
{
	http_problem problem = HTTP_PROBLEM_UNAVAILABLE;
	http_step step = http_decide_claim(&attempt->policy, NULL, code, &problem);

	gate_attempt_log(attempt, "claim_failed", error);
	if (attempt->request == NULL) {
		attempt->stage = GATE_DONE;
		gate_attempt_settle(attempt);
		return;
	}
	if (step == HTTP_PASS) {
		attempt->stage = GATE_DECIDED;
		attempt->step = HTTP_PASS;
		gate_count_step(attempt->intent.scope, HTTP_PASS, problem);
		gate_attempt_log(attempt, "pass", NULL);
	} else {
		problem = step == HTTP_WAIT ? HTTP_PROBLEM_ACTIVE : problem;
		gate_attempt_refuse(attempt, problem, detail_of(problem, error));
	}
	gate_attempt_resume(attempt);
}

static void on_yielded(void *argument, const once_answer *answer, const once_error *error)
{
	gate_attempt *attempt = argument;

	(void)answer;
	attempt->operation = NULL;
	if (error != NULL) {
		gate_attempt_log(attempt, "yield_failed", error);
	}
	gate_wait_wake(&attempt->intent);
	if (attempt->request == NULL) {
		attempt->stage = GATE_DONE;
		gate_attempt_settle(attempt);
		return;
	}
	gate_attempt_refuse(attempt, attempt->problem, NULL);
	gate_attempt_resume(attempt);
}

/* The worker that had this intent is lost, and nobody knows what it has done: the claim is ours only to say so. */
static void yield_doubt(gate_attempt *attempt)
{
	once_outcome outcome = {.error_code = "gateway_lost",
	                        .error_message = "the gateway's worker ended while the upstream worked"};
	once_error *error = NULL;

	attempt->stage = GATE_YIELDING;
	if (once_batcher_fail(gate_batcher(), &attempt->intent, attempt->fence, ONCE_FAILURE_IN_DOUBT, &outcome, on_yielded,
	                      attempt, &attempt->operation, &error) != ONCE_OK) {
		on_yielded(attempt, NULL, error);
		once_error_free(error);
	}
}

static void on_given_back(void *argument, const once_answer *answer, const once_error *error)
{
	gate_attempt *attempt = argument;

	(void)answer;
	attempt->operation = NULL;
	if (error != NULL) {
		gate_attempt_log(attempt, "release_failed", error);
	}
	gate_wait_wake(&attempt->intent);
	gate_attempt_settle(attempt);
}

/* Nothing was sent, and nobody is there to send it for. */
void gate_claim_abandon(gate_attempt *attempt)
{
	once_error *error = NULL;

	attempt->stage = GATE_DONE;
	gate_renew_stop(attempt);
	if (attempt->running) {
		attempt->running = 0;
		gate_count_gauge(-1, 0, 0);
	}
	if (attempt->fence == 0 || gate_batcher() == NULL) {
		return;
	}
	gate_attempt_log(attempt, "abandon", NULL);
	if (once_batcher_release(gate_batcher(), &attempt->intent, attempt->fence, on_given_back, attempt,
	                         &attempt->operation, &error) != ONCE_OK) {
		attempt->operation = NULL;
		gate_attempt_log(attempt, "release_failed", error);
		once_error_free(error);
	}
}

static void decide(gate_attempt *attempt, const once_answer *answer)
{
	http_problem problem = HTTP_PROBLEM_UNAVAILABLE;
	http_step step = http_decide_claim(&attempt->policy, answer, ONCE_OK, &problem);
	char doubt[DOUBT_BYTES];

	attempt->step = step;
	attempt->problem = problem;
	if (step == HTTP_WAIT) {
		wait_start(attempt);
		return;
	}
	if (step != HTTP_REFUSE) {
		gate_count_step(attempt->intent.scope, step, problem);
	}
	gate_attempt_log(attempt, "claim", NULL);
	if (step == HTTP_GIVE_UP) {
		yield_doubt(attempt);
		return;
	}
	attempt->stage = GATE_DECIDED;
	if (step == HTTP_REPLAY && gate_reply_stored(&attempt->reply, answer) != NGX_OK) {
		step = HTTP_REFUSE;
		attempt->problem = HTTP_PROBLEM_NO_ANSWER;
	}
	if (step == HTTP_REFUSE) {
		gate_attempt_refuse(attempt, attempt->problem, detail_of_doubt(attempt->problem, answer, doubt));
	}
	if (step == HTTP_RUN) {
		attempt->running = 1;
		gate_count_gauge(1, 0, 0);
		gate_renew_start(attempt);
	}
	gate_attempt_resume(attempt);
}

/*
 * What is stored with the intent, for who has shown that he sent its request: a mismatch must learn nothing of it. Checked, since it
 * becomes a header and any SQL may have stored it.
 */
static void remember_trace(gate_attempt *attempt, const once_answer *answer)
{
	const char *trace =
	    answer == NULL || once_answer_verdict(answer) == ONCE_MISMATCHED ? NULL : once_answer_traceparent(answer);

	attempt->trace[0] = '\0';
	if (once_traceparent_valid(trace)) {
		ngx_cpystrn((u_char *)attempt->trace, (u_char *)(uintptr_t)trace, sizeof(attempt->trace));
	}
}

static void on_claimed(void *argument, const once_answer *answer, const once_error *error)
{
	gate_attempt *attempt = argument;

	attempt->operation = NULL;
	if (attempt->started != 0) {
		attempt->waited_ms = ngx_current_msec - attempt->started;
	}
	remember_trace(attempt, answer);
	if (error != NULL) {
		gate_claim_failed(attempt, error, once_error_code(error));
		return;
	}
	attempt->verdict = once_answer_verdict(answer);
	attempt->state = once_answer_state(answer);
	attempt->fence = once_answer_may_run(answer) ? once_answer_fence(answer) : 0;
	if (attempt->request != NULL) {
		decide(attempt, answer);
		return;
	}
	attempt->stage = GATE_DONE;
	if (attempt->fence != 0 &&
	    http_decide_claim(&attempt->policy, answer, ONCE_OK, &attempt->problem) == HTTP_GIVE_UP) {
		yield_doubt(attempt);
		return;
	}
	gate_claim_abandon(attempt);
	gate_attempt_settle(attempt);
}

void gate_claim(gate_attempt *attempt)
{
	gate_location *location = attempt->location;
	once_error *error = NULL;
	once_code code;

	if (attempt->started == 0) {
		attempt->started = ngx_current_msec;
	}
	attempt->stage = GATE_CLAIMING;
	attempt->policy.waits = ngx_current_msec - attempt->started < location->wait_ms;
	code = once_batcher_claim(gate_batcher(), &attempt->intent, &attempt->fingerprint, gate_owner(),
	                          (int64_t)location->lease_ms, (int64_t)location->retention_ms, on_claimed, attempt,
	                          &attempt->operation, &error);
	if (code != ONCE_OK) {
		attempt->operation = NULL;
		gate_claim_failed(attempt, error, code);
		once_error_free(error);
	}
}

/* ---- waiting ---- */

void gate_wait_end(gate_attempt *attempt)
{
	if (attempt->queued) {
		ngx_queue_remove(&attempt->queue);
		attempt->queued = 0;
		waiting--;
		gate_count_gauge(0, -1, 0);
	}
	if (attempt->timer.timer_set) {
		ngx_del_timer(&attempt->timer);
	}
}

static void claim_again(gate_attempt *attempt)
{
	gate_wait_end(attempt);
	if (attempt->operation != NULL) {
		once_operation_forget(attempt->operation);
		attempt->operation = NULL;
	}
	gate_claim(attempt);
}

static void pause_wait(gate_attempt *attempt)
{
	ngx_msec_t passed = ngx_current_msec - attempt->started, limit = attempt->location->wait_ms;
	ngx_msec_t left = limit > passed ? limit - passed : 0;

	/* Also at the very end of the wait, so that it ends with a claim and not before. */
	ngx_add_timer(&attempt->timer, ngx_max(1, ngx_min(attempt->wait_step_ms, left)));
	attempt->wait_step_ms = ngx_min(attempt->wait_step_ms * 2, WAIT_MAX_MS);
}

static void on_looked(void *argument, const once_answer *answer, const once_error *error)
{
	gate_attempt *attempt = argument;

	attempt->operation = NULL;
	if (error == NULL && once_answer_verdict(answer) == ONCE_PROCESSING_ACTIVE &&
	    ngx_current_msec - attempt->started < attempt->location->wait_ms) {
		pause_wait(attempt);
		return;
	}
	/* The claim compares the fingerprint again and knows what to do with an error. */
	claim_again(attempt);
}

static void on_wait_timer(ngx_event_t *event)
{
	gate_attempt *attempt = gate_attempt_at(event, timer);

	/* Asked without holding a connection: a look-up among the others of its batch. */
	if (ngx_current_msec - attempt->started >= attempt->location->wait_ms ||
	    once_batcher_peek(gate_batcher(), &attempt->intent, on_looked, attempt, &attempt->operation, NULL) != ONCE_OK) {
		attempt->operation = NULL;
		claim_again(attempt);
	}
}

static void wait_start(gate_attempt *attempt)
{
	static ngx_uint_t ready;

	if (!ready) {
		ready = 1;
		for (ngx_uint_t i = 0; i < LISTS; i++) {
			ngx_queue_init(&lists[i]);
		}
	}
	attempt->stage = GATE_WAITING;
	if (attempt->wait_step_ms == 0) {
		attempt->wait_step_ms = WAIT_FIRST_MS;
	}
	ngx_queue_insert_tail(list_of(&attempt->intent), &attempt->queue);
	attempt->queued = 1;
	waiting++;
	gate_count_gauge(0, 1, 0);
	gate_event_init(&attempt->timer, on_wait_timer);
	pause_wait(attempt);
}

static ngx_uint_t is_same(const once_intent *a, const once_intent *b)
{
	return ngx_strcmp(a->key, b->key) == 0 && ngx_strcmp(a->scope, b->scope) == 0 &&
	       ngx_strcmp(a->tenant, b->tenant) == 0;
}

static gate_attempt *find_waiting(const once_intent *intent)
{
	ngx_queue_t *list = list_of(intent);

	for (ngx_queue_t *at = ngx_queue_head(list); at != ngx_queue_sentinel(list); at = ngx_queue_next(at)) {
		gate_attempt *attempt = ngx_queue_data(at, gate_attempt, queue);

		if (is_same(&attempt->intent, intent)) {
			return attempt;
		}
	}
	return NULL;
}

/* From the head each time: a claim that fails at once ends its request, and the list is another one afterwards. */
void gate_wait_wake(const once_intent *intent)
{
	gate_attempt *attempt;

	while (waiting > 0 && gate_batcher() != NULL && (attempt = find_waiting(intent)) != NULL) {
		claim_again(attempt);
	}
}
