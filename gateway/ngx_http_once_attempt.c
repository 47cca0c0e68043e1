/* SPDX-License-Identifier: PostgreSQL */
/*
 * ngx_http_once_attempt.c: the life of an attempt: made with a request, found again after internal redirects, detached when
 * the request goes, freed when nobody knows it. All other files work on attempts.
 */
#include "ngx_http_once.h"

#include <openssl/sha.h>

static void detach(void *data);

gate_attempt *gate_attempt_new(ngx_http_request_t *r, gate_location *location)
{
	ngx_pool_cleanup_t *cleanup = ngx_pool_cleanup_add(r->pool, 0);
	gate_attempt *attempt = cleanup == NULL ? NULL : ngx_calloc(sizeof(*attempt), r->connection->log);

	if (attempt == NULL) {
		return NULL;
	}
	attempt->request = r;
	attempt->location = location;
	attempt->intent = (once_intent){.tenant = "", .scope = "", .key = ""};
	attempt->policy = (http_policy){.doubt_retries = location->doubt_retries,
	                                .waits = location->wait_ms > 0,
	                                .fails_open = location->fails_open,
	                                .stored = (uint32_t)(location->stored >> 1),
	                                .server_errors = (http_effect)location->server_errors,
	                                .response_bytes_max = location->response_bytes_max};
	cleanup->handler = detach;
	cleanup->data = attempt;
	ngx_http_set_ctx(r, attempt, ngx_http_once_module);
	return attempt;
}

/* Internal redirects clear a request's contexts, but not its pool's cleanups. */
gate_attempt *gate_attempt_of(ngx_http_request_t *r)
{
	gate_attempt *attempt = ngx_http_get_module_ctx(r, ngx_http_once_module);

	if (attempt != NULL || (!r->internal && !r->filter_finalize)) {
		return attempt;
	}
	for (ngx_pool_cleanup_t *cleanup = r->pool->cleanup; cleanup != NULL; cleanup = cleanup->next) {
		if (cleanup->handler == detach) {
			ngx_http_set_ctx(r, cleanup->data, ngx_http_once_module);
			return cleanup->data;
		}
	}
	return NULL;
}

void gate_bytes_free(gate_bytes *bytes)
{
	ngx_free(bytes->data);
	*bytes = (gate_bytes){0};
}

ngx_int_t gate_bytes_add(gate_bytes *bytes, const u_char *data, size_t length, size_t length_max)
{
	if (length > length_max || bytes->length > length_max - length) {
		return NGX_DECLINED;
	}
	if (bytes->length + length > bytes->room) {
		size_t room = ngx_max(bytes->length + length, ngx_min(bytes->room * 2, length_max));
		u_char *larger;

		room = ngx_max(room, 256);
		larger = realloc(bytes->data, room);
		if (larger == NULL) {
			return NGX_ERROR;
		}
		bytes->data = larger;
		bytes->room = room;
	}
	if (length > 0) {
		ngx_memcpy(bytes->data + bytes->length, data, length);
		bytes->length += length;
	}
	return NGX_OK;
}

/* nginx still uses the pool of an attempt that has a request: then detach comes later. */
void gate_attempt_settle(gate_attempt *attempt)
{
	if (attempt->request != NULL || attempt->operation != NULL || attempt->timer.timer_set) {
		return;
	}
	gate_wait_end(attempt);
	gate_renew_stop(attempt);
	if (attempt->post.posted) {
		ngx_delete_posted_event(&attempt->post);
	}
	once_hash_free(attempt->hash);
	gate_bytes_free(&attempt->whole_body);
	gate_bytes_free(&attempt->body);
	gate_bytes_free(&attempt->tail);
	gate_reply_free(&attempt->reply);
	free(attempt->headers);
	ngx_free(attempt->names);
	ngx_free(attempt);
}

/* The request's pool goes: with the request's end, or because its client left. */
static void detach(void *data)
{
	gate_attempt *attempt = data;
	ngx_http_request_t *r = attempt->request;

	attempt->request = NULL;
	if (attempt->held) {
		attempt->held = 0;
		gate_count_gauge(0, 0, -1);
	}
	attempt->piece = NULL;
	attempt->print_values = NULL;
	switch (attempt->stage) {
	case GATE_HASHING:
		if (attempt->timer.timer_set) {
			ngx_del_timer(&attempt->timer);
		}
		break;
	case GATE_READING:
	case GATE_REPORTED:
	case GATE_DONE:
		break;
	case GATE_SALTING:
	case GATE_WAITING:
		gate_wait_end(attempt);
		if (attempt->operation != NULL) {
			once_operation_forget(attempt->operation);
			attempt->operation = NULL;
		}
		break;
	case GATE_CLAIMING: /* its answer decides what has to be given back */
	case GATE_YIELDING:
	case GATE_REPORTING:
		break;
	case GATE_DECIDED:
		gate_claim_abandon(attempt);
		break;
	case GATE_RUNNING:
	case GATE_HOLDING:
	case GATE_STREAMING:
		attempt->ending.request_sent = gate_request_sent(attempt, r);
		gate_report(attempt);
		break;
	}
	gate_attempt_settle(attempt);
}

void gate_attempt_resume(gate_attempt *attempt)
{
	ngx_http_request_t *r = attempt->request;
	ngx_connection_t *c = r->connection;
	ngx_uint_t nested = attempt->reading;

	ngx_http_set_log_request(c->log, r);
	r->read_event_handler = ngx_http_block_reading;
	r->write_event_handler = ngx_http_core_run_phases;
	ngx_http_core_run_phases(r);
	/* One that is terminated is freed there; a phase on the stack still has it, and nginx does this after that. */
	if (!nested) {
		ngx_http_run_posted_requests(c);
	}
}

void gate_attempt_refuse(gate_attempt *attempt, http_problem problem, const char *detail)
{
	attempt->stage = GATE_DECIDED;
	attempt->step = HTTP_REFUSE;
	attempt->problem = problem;
	/* Without memory for the document the reply has no status; gate_reply_send then answers 500. */
	(void)gate_reply_problem(attempt, problem, 0, detail);
	attempt->status = http_problem_status(problem);
	gate_count_problem(attempt->intent.scope, problem);
}

void gate_event_init(ngx_event_t *event, ngx_event_handler_pt handler)
{
	static ngx_connection_t nobody = {.fd = (ngx_socket_t)-1};

	event->handler = handler;
	event->log = ngx_cycle->log;
	event->data = &nobody; /* nginx's debug messages look for a descriptor there */
}

size_t gate_key_shown(const gate_location *location, const char *text, u_char *out)
{
	u_char digest[SHA256_DIGEST_LENGTH];
	size_t length = ngx_strlen(text);

	if (location->log_clear) {
		length = ngx_min(length, ONCE_KEY_BYTES_MAX);
		ngx_memcpy(out, text, length);
		return length;
	}
	if (length == 0) {
		return 0;
	}
	SHA256((const u_char *)text, length, digest);
	return (size_t)(ngx_hex_dump(out, digest, 8) - out);
}

/* Control characters would forge lines of the log. */
static void clean(u_char *text, size_t length)
{
	for (size_t i = 0; i < length; i++) {
		if (text[i] < 0x21 || text[i] == 0x7f || text[i] == '"') {
			text[i] = '_';
		}
	}
	text[length] = '\0';
}

/* A refusal by its problem, which says more. */
static const char *step_name(const gate_attempt *attempt)
{
	return attempt->step == HTTP_REFUSE ? http_problem_slug(attempt->problem) : http_step_name(attempt->step);
}

/* One line per decision. Never a body, nor an error's detail, which names the intent; keys and tenants as once_log_keys says. */
void gate_attempt_log(gate_attempt *attempt, const char *event, const once_error *error)
{
	ngx_log_t *log = attempt->request != NULL ? attempt->request->connection->log : ngx_cycle->log;
	ngx_uint_t level = error == NULL ? NGX_LOG_INFO : NGX_LOG_WARN;
	ngx_uint_t decision;
	u_char key[ONCE_KEY_BYTES_MAX + 1], tenant[ONCE_KEY_BYTES_MAX + 1], scope[ONCE_KEY_BYTES_MAX + 1];

	if (log->log_level < level) {
		return;
	}
	decision = ngx_strcmp(event, "claim") == 0 || ngx_strcmp(event, "refuse") == 0 || ngx_strcmp(event, "pass") == 0;
	clean(key, gate_key_shown(attempt->location, attempt->intent.key, key));
	clean(tenant, gate_key_shown(attempt->location, attempt->intent.tenant, tenant));
	ngx_memzero(scope, sizeof(scope));
	clean(scope, (size_t)(ngx_cpystrn(scope, (u_char *)(uintptr_t)attempt->intent.scope, sizeof(scope)) - scope));
	if (error != NULL) {
		ngx_log_error(level, log, 0,
		              "once: event=%s scope=%s tenant=%s key=%s fence=%d code=%s sqlstate=%s error=\"%s\" hint=\"%s\"",
		              event, scope, tenant, key, attempt->fence, once_code_name(once_error_code(error)),
		              once_error_sqlstate(error), once_error_message(error), once_error_hint(error));
		return;
	}
	if (decision) {
		ngx_log_error(level, log, 0,
		              "once: event=%s scope=%s tenant=%s key=%s verdict=%s step=%s fence=%d status=%d wait_ms=%M",
		              event, scope, tenant, key, once_verdict_name(attempt->verdict), step_name(attempt),
		              attempt->fence, attempt->status, attempt->waited_ms);
		return;
	}
	ngx_log_error(level, log, 0, "once: event=%s scope=%s tenant=%s key=%s fence=%d status=%d report_ms=%M", event,
	              scope, tenant, key, attempt->fence, attempt->status,
	              attempt->reported ? ngx_current_msec - attempt->report_started : 0);
}
