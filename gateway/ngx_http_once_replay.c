/* SPDX-License-Identifier: PostgreSQL */
/*
 * ngx_http_once_replay.c: answers that are not the upstream's: stored ones and problem documents. Called from the phases, and by
 * the filters where another answer takes the place of a held one.
 */
#include "ngx_http_once.h"

enum {
	RETRY_ACTIVE_S = 1,
	RETRY_UNAVAILABLE_S = 5
};

void gate_reply_free(gate_reply *reply)
{
	free(reply->headers);
	gate_bytes_free(&reply->body);
	*reply = (gate_reply){0};
}

ngx_int_t gate_reply_stored(gate_reply *reply, const once_answer *answer)
{
	once_bytes body = once_answer_response_body(answer);
	int status = once_answer_response_status(answer);

	if (status < 200 || status > 599) {
		return NGX_DECLINED;
	}
	*reply = (gate_reply){.status = (ngx_uint_t)status, .replayed = 1};
	if (!http_headers_decode(once_answer_response_headers(answer), &reply->headers, &reply->header_count) ||
	    gate_bytes_add(&reply->body, body.data, body.length, NGX_MAX_INT_T_VALUE) != NGX_OK) {
		gate_reply_free(reply);
		return NGX_DECLINED;
	}
	return NGX_OK;
}

static ngx_uint_t retry_after(http_problem problem)
{
	if (!http_problem_retryable(problem)) {
		return 0;
	}
	return problem == HTTP_PROBLEM_ACTIVE ? RETRY_ACTIVE_S : RETRY_UNAVAILABLE_S;
}

ngx_int_t gate_reply_problem(gate_attempt *attempt, http_problem problem, ngx_uint_t status, const char *detail)
{
	const gate_location *location = attempt->location;
	gate_reply *reply = &attempt->reply;
	http_occurrence occurrence = {
	    .type_base = location->problem_base.len == 0 ? NULL : (const char *)location->problem_base.data,
	    .status = (int)status,
	    .detail = detail,
	    .request = gate_request_id(attempt->request)};
	char text[HTTP_PROBLEM_BYTES_MAX];
	size_t length = http_problem_write(problem, &occurrence, text, sizeof(text));

	gate_reply_free(reply);
	*reply = (gate_reply){.status = status != 0 ? status : (ngx_uint_t)http_problem_status(problem),
	                      .problem = 1,
	                      .retry_after = retry_after(problem)};
	return gate_bytes_add(&reply->body, (const u_char *)text, length, sizeof(text));
}

static ngx_table_elt_t *push(ngx_http_request_t *r, http_text name, http_text value)
{
	ngx_table_elt_t *header = ngx_list_push(&r->headers_out.headers);

	if (header != NULL) {
		*header = (ngx_table_elt_t){.hash = 1,
		                            .key = {.len = name.length, .data = (u_char *)(uintptr_t)name.data},
		                            .value = {.len = value.length, .data = (u_char *)(uintptr_t)value.data}};
	}
	return header;
}

static ngx_uint_t is_named(http_text name, const char *text)
{
	return name.length == ngx_strlen(text) &&
	       ngx_strncasecmp((u_char *)(uintptr_t)name.data, (u_char *)(uintptr_t)text, name.length) == 0;
}

/* As nginx reads an upstream's: filters such as charset look at the parts. */
static void set_type(ngx_http_request_t *r, http_text value)
{
	u_char *text = (u_char *)(uintptr_t)value.data, *end = text + value.length, *at;

	r->headers_out.content_type.data = text;
	r->headers_out.content_type.len = value.length;
	r->headers_out.content_type_len = value.length;
	r->headers_out.content_type_lowcase = NULL;
	for (u_char *p = text; (p = ngx_strlchr(p, end, ';')) != NULL; p++) {
		for (at = p + 1; at < end && *at == ' '; at++) {
			/* up to the parameter */
		}
		if (end - at < 8 || ngx_strncasecmp(at, (u_char *)"charset=", 8) != 0) {
			continue;
		}
		at += 8;
		r->headers_out.content_type_len = (size_t)(p - text);
		at += at < end && *at == '"';
		r->headers_out.charset.data = at;
		r->headers_out.charset.len = (size_t)(end - at - (end > at && end[-1] == '"'));
		return;
	}
}

/* There may be several: an array in older versions of nginx, a list of its own since 1.23. */
static ngx_int_t add_cache_control(ngx_http_request_t *r, ngx_table_elt_t *element)
{
#if (nginx_version >= 1023000)
	ngx_table_elt_t **last = &r->headers_out.cache_control;

	while (*last != NULL) {
		last = &(*last)->next;
	}
	*last = element;
#else
	ngx_array_t *all = &r->headers_out.cache_control;
	ngx_table_elt_t **slot;

	if (all->elts == NULL && ngx_array_init(all, r->pool, 1, sizeof(ngx_table_elt_t *)) != NGX_OK) {
		return NGX_ERROR;
	}
	slot = ngx_array_push(all);
	if (slot == NULL) {
		return NGX_ERROR;
	}
	*slot = element;
#endif
	return NGX_OK;
}

/* Some headers have a second place, where nginx's own filters look: gzip must see that a body is compressed. */
static ngx_int_t set_header(ngx_http_request_t *r, const http_header *header)
{
	ngx_table_elt_t *element;

	if (http_header_never(header->name)) {
		return NGX_OK;
	}
	if (is_named(header->name, "content-type")) {
		set_type(r, header->value);
		return NGX_OK;
	}
	element = push(r, header->name, header->value);
	if (element == NULL) {
		return NGX_ERROR;
	}
	if (is_named(header->name, "content-encoding")) {
		r->headers_out.content_encoding = element;
	} else if (is_named(header->name, "etag")) {
		r->headers_out.etag = element;
	} else if (is_named(header->name, "last-modified")) {
		r->headers_out.last_modified = element;
		r->headers_out.last_modified_time = ngx_parse_http_time(element->value.data, element->value.len);
	} else if (is_named(header->name, "expires")) {
		r->headers_out.expires = element;
	} else if (is_named(header->name, "cache-control")) {
		return add_cache_control(r, element);
	}
	return NGX_OK;
}

static ngx_int_t set_number(ngx_http_request_t *r, const char *name, ngx_uint_t number)
{
	u_char *text = ngx_pnalloc(r->pool, NGX_INT_T_LEN);
	http_text key = {.data = name, .length = ngx_strlen(name)}, value;

	if (text == NULL) {
		return NGX_ERROR;
	}
	value = (http_text){.data = (const char *)text, .length = (size_t)(ngx_sprintf(text, "%ui", number) - text)};
	return push(r, key, value) == NULL ? NGX_ERROR : NGX_OK;
}

/* Statuses that this nginx has no phrase for (RFC 9110 section 15, and the registry). */
static void set_status(ngx_http_request_t *r, ngx_uint_t status)
{
	static const struct {
		ngx_uint_t status;
		ngx_str_t line;
	} lines[] = {{203, ngx_string("203 Non-Authoritative Information")},
	             {205, ngx_string("205 Reset Content")},
	             {207, ngx_string("207 Multi-Status")},
	             {208, ngx_string("208 Already Reported")},
	             {226, ngx_string("226 IM Used")},
	             {300, ngx_string("300 Multiple Choices")},
	             {417, ngx_string("417 Expectation Failed")},
	             {418, ngx_string("418 I'm a teapot")},
	             {422, ngx_string("422 Unprocessable Content")},
	             {423, ngx_string("423 Locked")},
	             {424, ngx_string("424 Failed Dependency")},
	             {426, ngx_string("426 Upgrade Required")},
	             {428, ngx_string("428 Precondition Required")},
	             {431, ngx_string("431 Request Header Fields Too Large")},
	             {451, ngx_string("451 Unavailable For Legal Reasons")},
	             {506, ngx_string("506 Variant Also Negotiates")},
	             {508, ngx_string("508 Loop Detected")},
	             {511, ngx_string("511 Network Authentication Required")}};

	r->headers_out.status = status;
	ngx_str_null(&r->headers_out.status_line);
	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
		if (lines[i].status == status) {
			r->headers_out.status_line = lines[i].line;
		}
	}
}

/* With whose trace the effect is found that this answer is about. */
static ngx_int_t push_trace(ngx_http_request_t *r)
{
	static const http_text name = {.data = "Idempotency-Traceparent", .length = 23};
	const gate_attempt *attempt = gate_attempt_of(r);
	http_text value;

	if (attempt == NULL || attempt->trace[0] == '\0') {
		return NGX_OK;
	}
	value = (http_text){.data = attempt->trace, .length = ngx_strlen(attempt->trace)};
	return push(r, name, value) == NULL ? NGX_ERROR : NGX_OK;
}

ngx_int_t gate_reply_head(ngx_http_request_t *r, gate_reply *reply)
{
	static const http_text marker = {.data = "Idempotency-Replayed", .length = 20}, yes = {.data = "true", .length = 4};
	static const http_text cache = {.data = "Cache-Control", .length = 13}, never = {.data = "no-store", .length = 8};

	if (reply->status == 0) {
		return NGX_ERROR;
	}
	ngx_http_clean_header(r);
	ngx_memzero(&r->headers_out.cache_control, sizeof(r->headers_out.cache_control)); /* which that leaves */
	r->err_status = 0;
	r->allow_ranges = 0;
	r->disable_not_modified = 1;
	set_status(r, reply->status);
	r->headers_out.content_length_n = (off_t)reply->body.length;
	if (reply->status == NGX_HTTP_NO_CONTENT || reply->status == NGX_HTTP_NOT_MODIFIED) {
		r->headers_out.content_length_n = -1;
	}
	if (reply->problem) {
		set_type(r, (http_text){.data = "application/problem+json", .length = 24});
	}
	for (size_t i = 0; i < reply->header_count; i++) {
		if (set_header(r, &reply->headers[i]) != NGX_OK) {
			return NGX_ERROR;
		}
	}
	if ((reply->replayed && push(r, marker, yes) == NULL) || (reply->problem && push(r, cache, never) == NULL)) {
		return NGX_ERROR;
	}
	if ((reply->replayed || reply->problem) && push_trace(r) != NGX_OK) {
		return NGX_ERROR;
	}
	return reply->retry_after == 0 ? NGX_OK : set_number(r, "Retry-After", reply->retry_after);
}

ngx_int_t gate_reply_body(ngx_http_request_t *r, gate_bytes *body, ngx_chain_t *out)
{
	ngx_buf_t *buf = ngx_calloc_buf(r->pool);

	if (buf == NULL) {
		return NGX_ERROR;
	}
	if (body->length > 0) {
		buf->pos = buf->start = body->data;
		buf->last = buf->end = body->data + body->length;
		buf->memory = 1;
	}
	buf->last_buf = 1;
	buf->last_in_chain = 1;
	*out = (ngx_chain_t){.buf = buf};
	return NGX_OK;
}

ngx_int_t gate_reply_send(ngx_http_request_t *r, gate_reply *reply)
{
	ngx_chain_t out;
	ngx_int_t rc = ngx_http_discard_request_body(r);

	if (rc != NGX_OK) {
		return rc;
	}
	if (gate_reply_head(r, reply) != NGX_OK) {
		return NGX_HTTP_INTERNAL_SERVER_ERROR;
	}
	rc = ngx_http_send_header(r);
	if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
		return rc;
	}
	return gate_reply_body(r, &reply->body, &out) == NGX_OK ? ngx_http_output_filter(r, &out) : NGX_ERROR;
}
