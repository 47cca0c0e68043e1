/* SPDX-License-Identifier: PostgreSQL */
/*
 * ngx_http_once_variables.c: variables of an attempt for logs, traces and maps. Empty without an
 * attempt.
 */
#include "ngx_http_once.h"

static ngx_int_t set_text(ngx_http_request_t *r, ngx_http_variable_value_t *v, const char *text, size_t length)
{
	u_char *copy = ngx_pnalloc(r->pool, length + 1);

	if (copy == NULL) {
		return NGX_ERROR;
	}
	ngx_memcpy(copy, text, length);
	v->data = copy;
	v->len = (unsigned)length & ((1U << 28) - 1);
	v->valid = 1;
	v->no_cacheable = 1;
	v->not_found = 0;
	return NGX_OK;
}

typedef enum which {
	VERDICT,
	KEY,
	FENCE,
	REPLAY,
	SCOPE,
	STATE,
	STEP,
	REPORT,
	TRACE,
	CACHE
} which;

static const char *name_of(const gate_attempt *attempt, uintptr_t data)
{
	switch ((which)data) {
	case VERDICT:
		return once_verdict_name(attempt->claim.verdict);
	case SCOPE:
		return attempt->intent.scope;
	case STATE:
		return once_state_name(attempt->claim.state);
	case STEP:
		return attempt->stage >= GATE_DECIDED ? http_step_name(attempt->step) : "";
	case TRACE:
		return attempt->claim.trace;
	case CACHE:
		return attempt->claim.cached == GATE_CACHE_HIT ? "hit" : attempt->claim.cached == GATE_CACHE_MISS ? "miss" : "";
	case REPORT:
		return attempt->report.decided ? http_report_name(attempt->report.kind) : "";
	default:
		return attempt->stage >= GATE_DECIDED && attempt->step == HTTP_REPLAY && attempt->claim.verdict != 0 ? "1" : "";
	}
}

static ngx_int_t get(ngx_http_request_t *r, ngx_http_variable_value_t *v, uintptr_t data)
{
	gate_attempt *attempt = gate_attempt_of(r->main);
	u_char text[ONCE_KEY_BYTES_MAX + 1];

	if (attempt == NULL) {
		return set_text(r, v, "", 0);
	}
	if (data == KEY) {
		return set_text(r, v, (char *)text, gate_key_shown(attempt->location, attempt->intent.key, text));
	}
	if (data == FENCE) {
		return attempt->claim.fence == 0
		           ? set_text(r, v, "", 0)
		           : set_text(r, v, (char *)text, (size_t)(ngx_sprintf(text, "%d", attempt->claim.fence) - text));
	}
	return set_text(r, v, name_of(attempt, data), ngx_strlen(name_of(attempt, data)));
}

ngx_int_t gate_variables_add(ngx_conf_t *cf)
{
	static const struct {
		ngx_str_t name;
		which data;
	} variables[] = {{ngx_string("once_verdict"), VERDICT},   {ngx_string("once_key"), KEY},
	                 {ngx_string("once_fence"), FENCE},       {ngx_string("once_replay"), REPLAY},
	                 {ngx_string("once_scope"), SCOPE},       {ngx_string("once_state"), STATE},
	                 {ngx_string("once_step"), STEP},         {ngx_string("once_report"), REPORT},
	                 {ngx_string("once_traceparent"), TRACE}, {ngx_string("once_cache"), CACHE}};

	if (gate_reply_variables(cf) != NGX_OK) {
		return NGX_ERROR;
	}
	for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++) {
		ngx_str_t name = variables[i].name;
		ngx_http_variable_t *variable = ngx_http_add_variable(cf, &name, NGX_HTTP_VAR_NOCACHEABLE);

		if (variable == NULL) {
			return NGX_ERROR;
		}
		variable->get_handler = get;
		variable->data = variables[i].data;
	}
	return NGX_OK;
}
