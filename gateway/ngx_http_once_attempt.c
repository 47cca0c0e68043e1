/* SPDX-License-Identifier: PostgreSQL */
/*
 * ngx_http_once_attempt.c: an attempt as a whole: created with a request, found again after
 * internal redirects, logged.
 */
#include "ngx_http_once.h"

#include <openssl/sha.h>

/* The request's pool is freed: at the request's end, or because its client left. */
static void detach(void *data)
{
	gate_attempt *attempt = data;

	attempt->walk(attempt, GATE_LEFT);
}

gate_attempt *gate_attempt_new(ngx_http_request_t *r, gate_location *location, gate_walk walk)
{
	ngx_pool_cleanup_t *cleanup = ngx_pool_cleanup_add(r->pool, 0);
	gate_attempt *attempt = cleanup == NULL ? NULL : ngx_calloc(sizeof(*attempt), r->connection->log);

	if (attempt == NULL) {
		return NULL;
	}
	attempt->r = r;
	attempt->location = location;
	attempt->walk = walk;
	attempt->stage = GATE_DONE; /* until it walks */
	attempt->route.slot = GATE_NO_SLOT;
	attempt->intent = (once_intent){.tenant = "", .scope = "", .key = ""};
	attempt->policy = (http_policy){.doubt_retries = location->doubt_retries,
	                                .waits = location->wait_ms > 0,
	                                .fails_open = location->fails_open,
	                                .stored = (uint32_t)(location->stored >> 1),
	                                .server_errors = (http_effect)location->server_errors,
	                                .released = location->released,
	                                .asking_ignored = location->asking_ignored == 1,
	                                .response_bytes_max = location->response_bytes_max};
	cleanup->handler = detach;
	cleanup->data = attempt;
	ngx_http_set_ctx(r, attempt, ngx_http_once_module);
	return attempt;
}

/* Internal redirects clear a request's contexts, but not the cleanups of its pool. */
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

void gate_attempt_free(gate_attempt *attempt)
{
	gate_reply_free(&attempt->reply);
	ngx_free(attempt);
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

/* A refusal is logged by its problem, which says more. */
static const char *step_name(const gate_attempt *attempt)
{
	return attempt->step == HTTP_REFUSE ? http_problem_slug(attempt->problem) : http_step_name(attempt->step);
}

/* One line per decision. Never a body or an error's detail, which names the intent. */
void gate_attempt_log(gate_attempt *attempt, const char *event, const once_error *error)
{
	ngx_log_t *log = attempt->r != NULL ? attempt->r->connection->log : ngx_cycle->log;
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
		              event, scope, tenant, key, attempt->claim.fence, once_code_name(once_error_code(error)),
		              once_error_sqlstate(error), once_error_message(error), once_error_hint(error));
		return;
	}
	if (decision) {
		ngx_log_error(level, log, 0,
		              "once: event=%s scope=%s tenant=%s key=%s verdict=%s step=%s fence=%d status=%d wait_ms=%M",
		              event, scope, tenant, key, once_verdict_name(attempt->claim.verdict), step_name(attempt),
		              attempt->claim.fence, attempt->status, attempt->claim.waited_ms);
		return;
	}
	ngx_log_error(level, log, 0, "once: event=%s scope=%s tenant=%s key=%s fence=%d status=%d report_ms=%M", event,
	              scope, tenant, key, attempt->claim.fence, attempt->status,
	              attempt->report.decided ? ngx_current_msec - attempt->report.started : 0);
}
