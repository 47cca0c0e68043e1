/* SPDX-License-Identifier: PostgreSQL */
/* ngx_http_once_claim.c: claiming the intent, and waiting while another attempt runs. */
#include "ngx_http_once.h"

enum {
	WAIT_FIRST_MS = 10,
	WAIT_MAX_MS = 250,
	LISTS = 256
};

/* The waiting attempts of this worker, by intent: a finished one wakes them at once. */
static ngx_queue_t lists[LISTS];
static ngx_uint_t waiting;

static void wait_start(gate_attempt *attempt);
static void submit_claim(gate_attempt *attempt);
static void submit_release(gate_attempt *attempt);

static ngx_queue_t *list_of(const once_intent *intent)
{
	ngx_queue_t *list = &lists[ngx_hash_key((u_char *)(uintptr_t)intent->key, ngx_strlen(intent->key)) % LISTS];

	if (list->next == NULL) {
		ngx_queue_init(list);
	}
	return list;
}

/* ---- the claim ---- */

static void on_released(void *argument, const once_answer *answer, const once_error *error)
{
	gate_attempt *attempt = argument;

	attempt->claim.operation = NULL;
	if (answer == NULL && gate_route_moved(attempt, error)) {
		gate_count_rerouted();
		gate_route_ask(attempt, submit_release);
		return;
	}
	if (answer == NULL) {
		gate_attempt_log(attempt, "release_failed", error);
	}
	attempt->walk(attempt, GATE_RELEASED);
}

static void submit_release(gate_attempt *attempt)
{
	once_batcher *batcher = gate_batcher_of(attempt);
	once_error *error = NULL;

	if (batcher == NULL) {
		attempt->walk(attempt, GATE_RELEASED);
		return;
	}
	if (once_batcher_release(batcher, &attempt->intent, attempt->claim.fence, on_released, attempt,
	                         &attempt->claim.operation, &error) != ONCE_OK) {
		on_released(attempt, NULL, error);
		once_error_free(error);
	}
}

void gate_claim_release(gate_attempt *attempt)
{
	assert(attempt->claim.fence > 0 && attempt->claim.operation == NULL);
	if (gate_node_count() > 0) {
		gate_attempt_log(attempt, "abandon", NULL);
	}
	attempt->route.moved = 0;
	gate_route_find(attempt, submit_release);
}

/*
 * The trace that is stored with the intent, for callers whose fingerprint matches: a mismatch must
 * not learn it. Checked, since it becomes a header and any SQL may have stored it.
 */
static void remember_trace(gate_attempt *attempt, const once_answer *answer)
{
	const char *trace =
	    answer == NULL || once_answer_verdict(answer) == ONCE_MISMATCHED ? NULL : once_answer_traceparent(answer);

	attempt->claim.trace[0] = '\0';
	if (once_traceparent_valid(trace)) {
		ngx_cpystrn((u_char *)attempt->claim.trace, (u_char *)(uintptr_t)trace, sizeof(attempt->claim.trace));
	}
}

static void on_claimed(void *argument, const once_answer *answer, const once_error *error)
{
	gate_attempt *attempt = argument;

	attempt->claim.operation = NULL;
	/* A request whose client has left is not worth another claim. */
	if (answer == NULL && attempt->r != NULL && gate_route_moved(attempt, error)) {
		gate_count_rerouted();
		gate_route_ask(attempt, submit_claim);
		return;
	}
	attempt->claim.waited_ms = ngx_current_msec - attempt->claim.started;
	remember_trace(attempt, answer);
	if (answer == NULL) {
		gate_step_failed(attempt, error);
		attempt->walk(attempt, GATE_STEP);
		return;
	}
	attempt->route.moved = 0;
	attempt->claim.verdict = once_answer_verdict(answer);
	attempt->claim.state = once_answer_state(answer);
	attempt->claim.fence = once_answer_may_run(answer) ? once_answer_fence(answer) : 0;
	gate_step_decide(attempt, answer);
	if (attempt->r != NULL && attempt->step == HTTP_WAIT) {
		wait_start(attempt);
		return;
	}
	if (attempt->r != NULL) {
		gate_step_finish(attempt, answer);
	}
	attempt->walk(attempt, GATE_STEP);
}

/*
 * The database's answer, from the cache: the same request gets the stored answer, and another one
 * is a mismatch. 0: ask the database.
 */
static ngx_uint_t claim_cached(gate_attempt *attempt)
{
	gate_stored_answer answer;
	ngx_int_t rc = gate_cache_find(attempt, &answer);

	if (rc == NGX_DECLINED) {
		return 0;
	}
	attempt->claim.waited_ms = ngx_current_msec - attempt->claim.started;
	attempt->claim.verdict = ONCE_MISMATCHED;
	attempt->claim.state = ONCE_STATE_NONE;
	attempt->claim.trace[0] = '\0';
	if (rc == NGX_OK) {
		attempt->claim.verdict = answer.verdict;
		attempt->claim.state = answer.state;
		ngx_cpystrn((u_char *)attempt->claim.trace, (u_char *)(uintptr_t)answer.trace, sizeof(attempt->claim.trace));
	}
	gate_step_cached(attempt, rc == NGX_OK ? &answer : NULL);
	attempt->walk(attempt, GATE_STEP);
	return 1;
}

static void claim_unserved(gate_attempt *attempt)
{
	attempt->claim.waited_ms = ngx_current_msec - attempt->claim.started;
	remember_trace(attempt, NULL);
	gate_step_unserved(attempt, gate_route_fault(attempt));
	attempt->walk(attempt, GATE_STEP);
}

static void submit_claim(gate_attempt *attempt)
{
	gate_location *location = attempt->location;
	once_batcher *batcher = gate_batcher_of(attempt);
	once_error *error = NULL;

	if (batcher == NULL && gate_node_count() > 0) {
		claim_unserved(attempt);
		return;
	}
	attempt->policy.waits = ngx_current_msec - attempt->claim.started < location->wait_ms;
	attempt->intent.on_stale = attempt->policy.doubt_retries ? ONCE_ON_STALE_TAKEOVER : ONCE_ON_STALE_IN_DOUBT;
	if (once_batcher_claim(batcher, &attempt->intent, &attempt->request.fingerprint, gate_owner(),
	                       (int64_t)location->lease_ms, (int64_t)location->retention_ms, on_claimed, attempt,
	                       &attempt->claim.operation, &error) != ONCE_OK) {
		on_claimed(attempt, NULL, error);
		once_error_free(error);
	}
}

static void claim(gate_attempt *attempt)
{
	attempt->claim.asked = ngx_current_msec;
	if (!claim_cached(attempt)) {
		submit_claim(attempt);
	}
}

void gate_claim_start(gate_attempt *attempt)
{
	assert(attempt->claim.operation == NULL && !attempt->claim.queued);
	if (attempt->claim.started == 0) {
		attempt->claim.started = ngx_current_msec;
	}
	gate_route_find(attempt, claim);
}

/* ---- waiting ---- */

static void wait_end(gate_attempt *attempt)
{
	assert(attempt->claim.queued);
	ngx_queue_remove(&attempt->claim.queue);
	attempt->claim.queued = 0;
	waiting--;
	gate_count_gauge(0, -1, 0);
	if (attempt->claim.timer.timer_set) {
		ngx_del_timer(&attempt->claim.timer);
	}
	once_operation_forget(attempt->claim.operation);
	attempt->claim.operation = NULL;
}

void gate_claim_stop(gate_attempt *attempt)
{
	gate_route_stop(attempt);
	if (attempt->claim.queued) {
		wait_end(attempt);
	}
}

static void claim_again(gate_attempt *attempt)
{
	wait_end(attempt);
	gate_claim_start(attempt);
}

static void pause_wait(gate_attempt *attempt)
{
	ngx_msec_t passed = ngx_current_msec - attempt->claim.started, limit = attempt->location->wait_ms;
	ngx_msec_t left = limit > passed ? limit - passed : 0;

	/* Also at the end of the wait, so that it ends with a claim and not before. */
	ngx_add_timer(&attempt->claim.timer, ngx_max(1, ngx_min(attempt->claim.wait_step_ms, left)));
	attempt->claim.wait_step_ms = ngx_min(attempt->claim.wait_step_ms * 2, WAIT_MAX_MS);
}

static void on_looked(void *argument, const once_answer *answer, const once_error *error)
{
	gate_attempt *attempt = argument;

	(void)error;
	attempt->claim.operation = NULL;
	if (answer != NULL && once_answer_verdict(answer) == ONCE_PROCESSING_ACTIVE &&
	    ngx_current_msec - attempt->claim.started < attempt->location->wait_ms) {
		pause_wait(attempt);
		return;
	}
	/* The claim compares the fingerprint again and handles an error. */
	claim_again(attempt);
}

static void on_wait_timer(ngx_event_t *event)
{
	gate_attempt *attempt = gate_attempt_at(event, claim.timer);
	once_batcher *batcher = gate_batcher_of(attempt);

	/* Does not hold a connection: it is a look-up among others in a batch. */
	if (ngx_current_msec - attempt->claim.started >= attempt->location->wait_ms ||
	    once_batcher_peek(batcher, &attempt->intent, on_looked, attempt, &attempt->claim.operation, NULL) != ONCE_OK) {
		on_looked(attempt, NULL, NULL);
	}
}

static void wait_start(gate_attempt *attempt)
{
	if (attempt->claim.wait_step_ms == 0) {
		attempt->claim.wait_step_ms = WAIT_FIRST_MS;
	}
	ngx_queue_insert_tail(list_of(&attempt->intent), &attempt->claim.queue);
	attempt->claim.queued = 1;
	waiting++;
	gate_count_gauge(0, 1, 0);
	gate_event_init(&attempt->claim.timer, on_wait_timer);
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
		gate_attempt *attempt = ngx_queue_data(at, gate_attempt, claim.queue);

		if (is_same(&attempt->intent, intent)) {
			return attempt;
		}
	}
	return NULL;
}

/* From the head each time: a claim that fails at once changes the list. */
void gate_claim_wake(const once_intent *intent)
{
	gate_attempt *attempt;

	while (waiting > 0 && gate_node_count() > 0 && (attempt = find_waiting(intent)) != NULL) {
		claim_again(attempt);
	}
}
