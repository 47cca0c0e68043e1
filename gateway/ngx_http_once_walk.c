/* SPDX-License-Identifier: PostgreSQL */
/*
 * ngx_http_once_walk.c: the walk of an attempt from its request to its end. Only this file changes
 * the stage and knows all the parts. nginx enters by the phase and the content handler; the parts
 * report how they ended (gate_event).
 */
#include "ngx_http_once.h"

static void walk(gate_attempt *attempt, gate_event event);

static void move(gate_attempt *attempt, gate_stage from, gate_stage to)
{
	assert(attempt->stage == from);
	attempt->stage = to;
}

/* ---- in nginx's phase: a request arrives, and later the decision is carried out ---- */

static ngx_int_t run(ngx_http_request_t *r)
{
	gate_attempt *attempt = gate_attempt_of(r);

	r->content_handler = attempt->content;
	if (attempt->stage != GATE_DECIDED) {
		return r->content_handler(r);
	}
	assert(attempt->step == HTTP_RUN && attempt->claim.fence > 0);
	if (gate_answer_prepare(attempt) != NGX_OK) {
		return NGX_HTTP_INTERNAL_SERVER_ERROR;
	}
	move(attempt, GATE_DECIDED, GATE_ANSWER);
	return gate_answer_start(attempt);
}

/* The access phase has let the request pass. */
static ngx_int_t carry_out(ngx_http_request_t *r, gate_attempt *attempt)
{
	switch (attempt->step) {
	case HTTP_RUN:
		if (r->content_handler != NULL) { /* else try_files or similar leads to one */
			attempt->content = r->content_handler;
			r->content_handler = run;
		}
		return NGX_DECLINED;
	case HTTP_PASS:
		move(attempt, GATE_DECIDED, GATE_DONE);
		return NGX_DECLINED;
	default:
		assert(attempt->step == HTTP_REPLAY || attempt->step == HTTP_REFUSE);
		move(attempt, GATE_DECIDED, GATE_DONE);
		ngx_http_finalize_request(r, gate_reply_send(r, &attempt->reply));
		return NGX_DONE;
	}
}

static ngx_int_t begin(ngx_http_request_t *r, gate_location *location)
{
	gate_attempt *attempt;
	ngx_int_t rc = gate_request_open(r, location, walk, &attempt);

	if (rc != NGX_OK) {
		return rc;
	}
	attempt->stage = GATE_REQUEST;
	rc = gate_request_read(attempt);
	if (rc != NGX_OK) {
		return rc;
	}
	move(attempt, GATE_REQUEST, GATE_DECIDED);
	return carry_out(r, attempt);
}

/* Entered again by each internal redirect, and by resume. */
ngx_int_t gate_walk_phase(ngx_http_request_t *r)
{
	gate_location *location = ngx_http_get_module_loc_conf(r, ngx_http_once_module);
	gate_attempt *attempt = r == r->main ? gate_attempt_of(r) : NULL;

	if (attempt == NULL) {
		return gate_request_protected(r, location) ? begin(r, location) : NGX_DECLINED;
	}
	switch (attempt->stage) {
	case GATE_REQUEST:
		if (attempt->request.reading) {
			return gate_request_protected(r, location) ? gate_request_refused(attempt) : NGX_DECLINED;
		}
		return NGX_AGAIN;
	case GATE_CLAIM:
		return NGX_AGAIN; /* a stray event: continue */
	case GATE_DECIDED:
		return carry_out(r, attempt);
	case GATE_ANSWER:
		return gate_answer_redirected(attempt);
	default:
		return NGX_DECLINED;
	}
}

/* ---- between the parts ---- */

/* Runs the phases again. */
static void resume(gate_attempt *attempt)
{
	ngx_http_request_t *r = attempt->r;
	ngx_connection_t *c = r->connection;
	ngx_uint_t nested = attempt->request.nested;

	ngx_http_set_log_request(c->log, r);
	r->read_event_handler = ngx_http_block_reading;
	r->write_event_handler = ngx_http_core_run_phases;
	ngx_http_core_run_phases(r);
	/* A terminated request is freed there, but not while a phase on the stack uses it. */
	if (!nested) {
		ngx_http_run_posted_requests(c);
	}
}

/* Frees it if nothing refers to it. */
static void settle(gate_attempt *attempt)
{
	if (attempt->r != NULL || attempt->claim.operation != NULL || attempt->report.operation != NULL ||
	    attempt->report.timer.timer_set || attempt->route.queued || attempt->route.operation != NULL) {
		return;
	}
	assert(!attempt->claim.queued && !attempt->report.leased);
	gate_request_free(attempt);
	gate_answer_free(attempt);
	gate_attempt_free(attempt);
}

/* A decision without a waiting request. */
static void drop(gate_attempt *attempt)
{
	attempt->stage = GATE_DONE;
	gate_lease_stop(attempt);
	if (attempt->step == HTTP_RUN) {
		gate_claim_release(attempt);
	} else {
		settle(attempt);
	}
}

/*
 * nginx frees the request: it is over, or its client left. An outcome of a sent request is reported
 * without it.
 */
static void leave(gate_attempt *attempt)
{
	gate_answer_stop(attempt, attempt->r);
	attempt->r = NULL;
	switch (attempt->stage) {
	case GATE_REQUEST:
		gate_request_stop(attempt);
		break;
	case GATE_CLAIM:
		gate_claim_stop(attempt);
		break;
	case GATE_DECIDED:
		drop(attempt);
		return;
	case GATE_ANSWER:
		walk(attempt, GATE_ENDED);
		return;
	case GATE_REPORT:
		gate_report_leave(attempt);
		break;
	case GATE_DONE:
		break;
	}
	settle(attempt);
}

/* Each event in the order of an attempt's life: request, claim, step, answer, report, end. */
static void walk(gate_attempt *attempt, gate_event event)
{
	switch (event) {
	case GATE_HASHED:
		move(attempt, GATE_REQUEST, GATE_CLAIM);
		gate_claim_start(attempt);
		return;
	case GATE_STEP:
		if (attempt->r == NULL) {
			drop(attempt);
			return;
		}
		assert(attempt->stage == GATE_REQUEST || attempt->stage == GATE_CLAIM);
		attempt->stage = GATE_DECIDED;
		if (attempt->step == HTTP_RUN) {
			gate_lease_start(attempt);
		}
		resume(attempt); /* to carry_out */
		return;
	case GATE_RELEASED:
		gate_claim_wake(&attempt->intent);
		settle(attempt);
		return;
	case GATE_ENDED:
		move(attempt, GATE_ANSWER, GATE_REPORT);
		gate_lease_stop(attempt);
		gate_report_start(attempt);
		return;
	case GATE_UNSTORED:
		assert(attempt->stage == GATE_REPORT);
		gate_answer_send(attempt);
		return;
	case GATE_REPORTED:
		move(attempt, GATE_REPORT, GATE_DONE);
		gate_claim_wake(&attempt->intent);
		if (attempt->report.awaited) {
			gate_answer_send(attempt);
		} else {
			settle(attempt);
		}
		return;
	case GATE_LEFT:
		leave(attempt);
		return;
	}
}
