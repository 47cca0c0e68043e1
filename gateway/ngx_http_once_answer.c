/* SPDX-License-Identifier: PostgreSQL */
/*
 * ngx_http_once_answer.c: the upstream's answer. It is held until it is stored, and only then sent.
 * nginx calls its header filter and its body filter for every request of the server; they pass
 * everything that belongs to no attempt.
 */
#include "ngx_http_once.h"

enum {
	BUFFERED = 0x08 /* a bit of r->buffered: nginx's own filters use 1, 2 and 4 */
};

static ngx_http_output_header_filter_pt next_header;
static ngx_http_output_body_filter_pt next_body;

/* ---- on the way to the upstream ---- */

/*
 * A header's value cannot begin or end with a space, and readers disagree on bytes beyond ASCII:
 * such bytes are percent-encoded, and so is '%' itself. Most keys stay as they are.
 */
static const char *encode(ngx_pool_t *pool, const char *text)
{
	size_t length = ngx_strlen(text);
	u_char *out = ngx_pnalloc(pool, 3 * length + 1), *p = out;

	for (size_t i = 0; out != NULL && i < length; i++) {
		u_char c = (u_char)text[i];

		if (c < 0x20 || c >= 0x7f || c == '%' || (c == ' ' && (i == 0 || i + 1 == length))) {
			p = ngx_sprintf(p, "%%%02Xi", (ngx_int_t)c);
		} else {
			*p++ = c;
		}
	}
	if (out != NULL) {
		*p = '\0';
	}
	return (const char *)out;
}

static ngx_int_t push_header(ngx_http_request_t *r, const char *name, const char *lower, const char *value)
{
	const char *encoded = encode(r->pool, value);
	ngx_table_elt_t *header = NULL;

	if (encoded != NULL) {
		header = gate_header_push(&r->headers_in.headers, (http_text){.data = name, .length = ngx_strlen(name)},
		                          (http_text){.data = encoded, .length = ngx_strlen(encoded)});
	}
	if (header == NULL) {
		return NGX_ERROR;
	}
	header->lowcase_key = (u_char *)(uintptr_t)lower;
	header->hash = ngx_hash_key(header->lowcase_key, header->key.len);
	return NGX_OK;
}

/* With these headers the upstream can complete the intent in its own transaction. */
static ngx_int_t push_handoff(ngx_http_request_t *r, const gate_attempt *attempt)
{
	char fence[NGX_INT32_LEN + 1];

	*ngx_sprintf((u_char *)fence, "%d", attempt->claim.fence) = '\0';
	if (push_header(r, "Once-Tenant", "once-tenant", attempt->intent.tenant) != NGX_OK ||
	    push_header(r, "Once-Scope", "once-scope", attempt->intent.scope) != NGX_OK ||
	    push_header(r, "Once-Key", "once-key", attempt->intent.key) != NGX_OK ||
	    push_header(r, "Once-Fence", "once-fence", fence) != NGX_OK) {
		return NGX_ERROR;
	}
	/* A retry's own trace continues in its own header; this is the first attempt's. */
	return attempt->claim.trace[0] == '\0'
	           ? NGX_OK
	           : push_header(r, "Once-Traceparent", "once-traceparent", attempt->claim.trace);
}

/* ---- interim answers ---- */

/*
 * Does the request, as sent to the service, ask for another protocol? Its headers are in the first
 * buffer.
 */
static ngx_uint_t asks_to_switch(const ngx_http_upstream_t *u)
{
	static const u_char name[] = "\nupgrade:";
	/* After the first character: nginx compares this many bytes, past the end of its argument. */
	const size_t more = sizeof(name) - 2;
	const ngx_buf_t *head = u->request_bufs == NULL ? NULL : u->request_bufs->buf;

	return head != NULL && head->start != NULL && (size_t)(head->last - head->start) > more &&
	       ngx_strlcasestrn(head->start, head->last - more, (u_char *)(uintptr_t)name, more) != NULL;
}

/*
 * nginx treats an interim status (100 to 199; RFC 9110, section 15.2) as the answer's: the client
 * would get the answer as the body of a 103, and the intent would be in doubt. So each is skipped
 * here, except 101, which is final. If the service was not asked to switch, 101 is not an answer
 * (section 15.2.2), and the following bytes must not pass: nginx would join both connections.
 */
static ngx_int_t skip_interim(ngx_http_request_t *r)
{
	gate_attempt *attempt = gate_attempt_of(r);
	ngx_http_upstream_t *u = r->upstream;
	ngx_int_t rc;

	for (;;) {
		/* It sets the handler for the next part of the header. */
		u->process_header = attempt->answer.process_header;
		rc = u->process_header(r);
		attempt->answer.process_header = u->process_header;
		u->process_header = skip_interim;
		if (rc == NGX_OK && u->headers_in.status_n == NGX_HTTP_SWITCHING_PROTOCOLS && !asks_to_switch(u)) {
			ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
			              "once: the service answered 101 to a request that asks for no other protocol");
			u->upgrade = 0; /* nginx checks only the client's request */
			return NGX_HTTP_UPSTREAM_INVALID_HEADER;
		}
		if (rc != NGX_OK || u->headers_in.status_n < NGX_HTTP_CONTINUE || u->headers_in.status_n >= NGX_HTTP_OK ||
		    u->headers_in.status_n == NGX_HTTP_SWITCHING_PROTOCOLS) {
			return rc;
		}
		/* As nginx begins again with another server, except for the part already read. */
		rc = u->reinit_request(r);
		u->keepalive = 0;
		ngx_memzero(&u->headers_in, sizeof(u->headers_in));
		u->headers_in.content_length_n = -1;
		u->headers_in.last_modified_time = -1;
		if (u->state != NULL) {
			u->state->status = 0;
		}
		if (rc != NGX_OK || ngx_list_init(&u->headers_in.headers, r->pool, 8, sizeof(ngx_table_elt_t)) != NGX_OK ||
		    ngx_list_init(&u->headers_in.trailers, r->pool, 2, sizeof(ngx_table_elt_t)) != NGX_OK) {
			return NGX_ERROR;
		}
	}
}

static ngx_int_t reinit_request(ngx_http_request_t *r)
{
	gate_attempt *attempt = gate_attempt_of(r);
	ngx_int_t rc = attempt->answer.reinit_request(r);

	attempt->answer.process_header = r->upstream->process_header;
	r->upstream->process_header = skip_interim;
	return rc;
}

/* No other server is tried now, and a redirect (X-Accel-Redirect) may check the method. */
static void finalize_request(ngx_http_request_t *r, ngx_int_t rc)
{
	gate_attempt *attempt = gate_attempt_of(r);

	r->method = attempt->answer.method;
	attempt->answer.finalize_request(r, rc);
}

/* The request may have been sent, not more: its answer comes in a later turn of the loop. */
static void watch(gate_attempt *attempt, ngx_http_request_t *r)
{
	ngx_http_upstream_t *u = r->upstream;

	if (attempt->answer.state != GATE_RUNNING || u == NULL || u == attempt->answer.left) {
		return;
	}
	attempt->answer.finalize_request = u->finalize_request;
	u->finalize_request = finalize_request;
	if (!gate_text_is(gate_text(u->conf->module), "proxy")) {
		return;
	}
	attempt->answer.process_header = u->process_header;
	attempt->answer.reinit_request = u->reinit_request;
	u->process_header = skip_interim;
	u->reinit_request = reinit_request;
}

/*
 * nginx sends PUT and DELETE again after an error, since they should be idempotent. Here they are
 * sent once: nginx sees a PATCH, which no cache answers, unlike a POST; the upstream gets the name.
 */
static void hide_method(const gate_attempt *attempt, ngx_http_request_t *r)
{
	if (!attempt->policy.doubt_retries && (r->method & (NGX_HTTP_PUT | NGX_HTTP_DELETE))) {
		r->method = NGX_HTTP_PATCH;
	}
}

/* Here and not earlier, so that a mirror's subrequest does not get the fence. */
ngx_int_t gate_answer_prepare(gate_attempt *attempt)
{
	return attempt->location->handoff ? push_handoff(attempt->r, attempt) : NGX_OK;
}

ngx_int_t gate_answer_start(gate_attempt *attempt)
{
	ngx_http_request_t *r = attempt->r;
	ngx_int_t rc;

	assert(attempt->answer.state == GATE_NO_ANSWER);
	attempt->answer.state = GATE_RUNNING;
	attempt->answer.ran_in = r->loc_conf;
	attempt->answer.method = r->method;
	hide_method(attempt, r);
	/* The content handler sets its own; nothing may end the request if the client leaves. */
	r->read_event_handler = ngx_http_block_reading;
	rc = attempt->content(r);
	watch(attempt, r);
	return rc;
}

/* Was a byte of the request sent in any of the tries, or may a script have run it? */
static ngx_uint_t is_sent(const gate_attempt *attempt, const ngx_http_request_t *r)
{
	const ngx_http_upstream_state_t *state = r->upstream_states == NULL ? NULL : r->upstream_states->elts;

	if (attempt->answer.ending.request_sent || attempt->answer.aside) {
		return attempt->answer.ending.request_sent;
	}
	/* No upstream of this location: its own content handler, such as a script's, is the service. */
	if (r->upstream == NULL || r->upstream == attempt->answer.left || r->upstream->request_sent) {
		return 1;
	}
	for (ngx_uint_t i = 0; state != NULL && i < r->upstream_states->nelts; i++) {
		if (state[i].bytes_sent > 0) {
			return 1;
		}
	}
	return 0;
}

/* What the answer's headers say about the effect. Two lines, or any other word, say nothing. */
static http_effect effect_said(ngx_http_request_t *r, ngx_list_t *headers)
{
	ngx_uint_t lines;
	const ngx_str_t *value = gate_header_only(headers, HTTP_EFFECT_HEADER, &lines);
	http_effect effect = value == NULL ? HTTP_EFFECT_UNSAID : http_effect_parse(gate_text(*value));

	if (lines > 0 && effect == HTTP_EFFECT_UNSAID) {
		ngx_log_error(
		    NGX_LOG_WARN, r->connection->log, 0,
		    "once: the service's header Once-Effect is ignored: it must come once, and say none, done or unknown");
	}
	return effect;
}

/* Does one of the answer's headers ask for the same request again? */
static bool is_asking(ngx_http_request_t *r)
{
	gate_headers at = {.part = &r->headers_out.headers.part};
	ngx_table_elt_t *header;

	if (r->headers_out.status < NGX_HTTP_SPECIAL_RESPONSE) {
		return false;
	}
	while ((header = gate_headers_next(&at)) != NULL) {
		if (header->hash != 0 && http_header_asks((int)r->headers_out.status, gate_text(header->key))) {
			return true;
		}
	}
	return false;
}

/* The location gave up the request: it is known now what it sent, and another location answers. */
static void leave(gate_attempt *attempt, ngx_http_request_t *r)
{
	ngx_http_upstream_t *u = r->upstream;

	attempt->answer.ending.request_sent = is_sent(attempt, r);
	attempt->answer.left = u;
	if (u != NULL && u->headers_in.x_accel_redirect != NULL &&
	    !(u->conf->ignore_headers & NGX_HTTP_UPSTREAM_IGN_XA_REDIRECT)) {
		attempt->answer.accelerated = 1;
		attempt->answer.aside = 1;
		attempt->answer.ending.effect = effect_said(r, &u->headers_in.headers);
		return;
	}
	attempt->answer.redirected = 1;
	/* A fallback with a content handler gets the request itself, unless the method is GET. */
	attempt->answer.aside = r->content_handler == NULL || (r->method & (NGX_HTTP_GET | NGX_HTTP_HEAD));
}

/* The phases run again after the content handler: X-Accel-Redirect, or an error_page. */
ngx_int_t gate_answer_redirected(gate_attempt *attempt)
{
	ngx_http_request_t *r = attempt->r;

	if (attempt->answer.state != GATE_RUNNING) {
		return NGX_DECLINED;
	}
	leave(attempt, r);
	if (r->content_handler != NULL) { /* only an upstream sends twice */
		hide_method(attempt, r);
	}
	/* A fallback that gets the request itself again could run it a second time. */
	if (attempt->answer.redirected && !attempt->answer.aside && attempt->answer.ending.request_sent &&
	    !attempt->policy.doubt_retries) {
		ngx_log_error(NGX_LOG_WARN, r->connection->log, 0,
		              "once: error_page would run the request again in \"%V\": answered without it", &r->uri);
		r->content_handler = NULL;
		attempt->answer.ran_in = r->loc_conf;
		return NGX_HTTP_BAD_GATEWAY;
	}
	return NGX_DECLINED;
}

/* ---- the header ---- */

static void classify(gate_attempt *attempt, ngx_http_request_t *r)
{
	http_ending *ending = &attempt->answer.ending;
	ngx_http_upstream_t *u = r->upstream;

	/* A redirect that ends before this module's phase, as in a `return`, is only seen here. */
	if (!attempt->answer.redirected && !attempt->answer.accelerated && r->loc_conf != attempt->answer.ran_in) {
		leave(attempt, r);
	}
	ending->status = (int)r->headers_out.status;
	ending->request_sent = is_sent(attempt, r);
	if (attempt->answer.redirected) {
		ending->from_upstream = false;
	} else if (attempt->answer.accelerated) {
		ending->from_upstream = r->headers_out.status < NGX_HTTP_BAD_REQUEST;
	} else if (u != NULL) {
		ending->from_upstream = u->headers_in.status_n == r->headers_out.status;
	} else {
		ending->from_upstream = true;
	}
	if (!attempt->answer.accelerated) { /* else these are not the service's headers */
		ending->effect = effect_said(r, &r->headers_out.headers);
		ending->asks = is_asking(r);
	}
	attempt->status = ending->status;
}

static void unhold(gate_attempt *attempt)
{
	if (attempt->answer.held) {
		attempt->answer.held = 0;
		gate_count_gauge(0, 0, -1);
	}
}

static void encode_headers(gate_attempt *attempt, ngx_http_request_t *r)
{
	if (gate_headers_store(r, attempt->location->headers, &attempt->answer.headers) != NGX_OK) {
		ngx_log_error(NGX_LOG_WARN, r->connection->log, 0,
		              "once: the answer cannot be stored: it has more than %d headers, or memory is short",
		              HTTP_HEADERS_MAX);
		attempt->answer.ending.too_large = true; /* done, and not to be replayed without them */
	}
}

/* Answers that cannot be replayed as they are: a protocol switch, and answers with trailers. */
static ngx_uint_t cannot_hold(ngx_http_request_t *r)
{
	return r->headers_out.status == NGX_HTTP_SWITCHING_PROTOCOLS || r->expect_trailers ||
	       (r->upstream != NULL && (r->upstream->upgrade || r->upstream->conf->pass_trailers));
}

/* A reader of events needs each event when it is written, not at the end. */
static ngx_uint_t is_event_stream(ngx_http_request_t *r)
{
	static const ngx_str_t events = ngx_string("text/event-stream");
	const ngx_str_t *type = &r->headers_out.content_type;

	return type->len >= events.len && ngx_strncasecmp(type->data, events.data, events.len) == 0 &&
	       (type->len == events.len || ngx_strchr("; \t", type->data[events.len]) != NULL);
}

/*
 * The same as X-Accel-Buffering: no in the answer, which nginx checks after the header's filters.
 */
static void pass_at_once(ngx_http_request_t *r)
{
	if (r->upstream != NULL && r->upstream->conf->change_buffering && !r->upstream->store) {
		r->upstream->buffering = 0;
	}
}

/* Only the gateway says that an answer is a replay, and Once-Effect is for it alone. */
static void strip_markers(ngx_http_request_t *r)
{
	gate_headers at = {.part = &r->headers_out.headers.part};
	ngx_table_elt_t *header;

	while ((header = gate_headers_next(&at)) != NULL) {
		if (http_header_reserved(gate_text(header->key))) {
			header->hash = 0;
		}
	}
}

/* From here on it passes; only its end is held back. */
static ngx_int_t start_streaming(gate_attempt *attempt, ngx_http_request_t *r)
{
	attempt->answer.ending.too_large = true;
	attempt->answer.state = GATE_STREAMING;
	attempt->answer.header_sent = 1;
	unhold(attempt);
	return next_header(r);
}

static ngx_int_t start_holding(gate_attempt *attempt, ngx_http_request_t *r)
{
	encode_headers(attempt, r);
	attempt->answer.state = GATE_HOLDING;
	if (!attempt->answer.held) {
		attempt->answer.held = 1;
		gate_count_gauge(0, 0, 1);
	}
	return NGX_OK;
}

static ngx_int_t filter_header(ngx_http_request_t *r)
{
	gate_location *location = ngx_http_get_module_loc_conf(r, ngx_http_once_module);
	gate_attempt *attempt = r == r->main ? gate_attempt_of(r) : NULL;
	gate_answer_state state = attempt == NULL ? GATE_NO_ANSWER : attempt->answer.state;
	ngx_uint_t comes = state == GATE_RUNNING || state == GATE_HOLDING;
	ngx_uint_t events;

	if (comes) { /* before its headers are stripped */
		classify(attempt, r);
	}
	if (attempt != NULL ? attempt->step == HTTP_RUN || attempt->step == HTTP_PASS : location->mode != GATE_OFF) {
		strip_markers(r);
	}
	if (!comes) {
		return next_header(r);
	}
	if (state == GATE_HOLDING) {
		/* nginx replaces the held answer by an error of its own, without its body. */
		attempt->answer.body.length = 0;
		free(attempt->answer.headers);
		attempt->answer.headers = NULL;
	}
	r->allow_ranges = 0;
	r->filter_need_in_memory = 1;
	events = is_event_stream(r);
	if (events) {
		pass_at_once(r);
	}
	if (events || cannot_hold(r) || r->headers_out.content_length_n > (off_t)attempt->location->response_bytes_max) {
		ngx_int_t rc = start_streaming(attempt, r);

		/* The answer's end counts even if the client has left. */
		attempt->answer.client_gone = rc == NGX_ERROR;
		return rc == NGX_ERROR ? NGX_OK : rc;
	}
	return start_holding(attempt, r);
}

/* ---- the body ---- */

/* nginx ends a truncated answer with a flush, after it has released the upstream. */
static ngx_uint_t is_truncated(ngx_http_request_t *r, const ngx_buf_t *buf)
{
	return buf->flush && !buf->last_buf && ngx_buf_size(buf) == 0 && r->upstream != NULL &&
	       r->upstream->cleanup == NULL && r->upstream->header_sent;
}

/* The held part is sent, and the rest passes: this answer is too large to keep. */
static ngx_int_t stop_holding(gate_attempt *attempt, ngx_http_request_t *r)
{
	ngx_chain_t out;
	ngx_int_t rc = start_streaming(attempt, r);

	if (rc == NGX_ERROR || rc > NGX_OK || attempt->answer.body.length == 0) {
		return rc;
	}
	if (gate_bytes_chain(r, &attempt->answer.body, &out) != NGX_OK) {
		return NGX_ERROR;
	}
	out.buf->last_buf = 0;
	out.buf->last_in_chain = 0;
	out.buf->flush = 1;
	return next_body(r, &out);
}

/*
 * nginx treats the end of a FastCGI connection as an answer's end, although the protocol has a
 * record for that; and it may accept less than the announced length.
 */
static bool is_whole(gate_attempt *attempt, ngx_http_request_t *r, off_t bytes)
{
	ngx_http_upstream_t *u = r->upstream;

	if (r->headers_out.content_length_n > bytes && r->headers_out.status != NGX_HTTP_NOT_MODIFIED) {
		return false;
	}
	if (u == NULL || attempt->answer.accelerated || attempt->answer.redirected ||
	    !attempt->answer.ending.from_upstream || !gate_text_is(gate_text(u->conf->module), "fastcgi")) {
		return true;
	}
	return u->buffering ? u->pipe != NULL && u->pipe->upstream_done : u->length == 0;
}

/* nginx's own 502, 504 or similar replaces an answer; it is not a page of error_page. */
static ngx_uint_t is_nginx_error(const gate_attempt *attempt, const ngx_http_request_t *r)
{
	ngx_uint_t is_page = attempt->answer.redirected && r->upstream != NULL && r->upstream->header_sent;

	return !attempt->answer.ending.from_upstream && !is_page && r->loc_conf == attempt->answer.ran_in &&
	       attempt->answer.ending.status >= NGX_HTTP_INTERNAL_SERVER_ERROR;
}

/*
 * A service that protects this very key itself finds this gateway's claim, each time: its client
 * would get "active", or a mismatch, for ever.
 */
static void warn_of_own_claim(const gate_attempt *attempt, ngx_http_request_t *r)
{
	int status = attempt->answer.ending.status;

	if (attempt->answer.ending.effect == HTTP_EFFECT_NONE && (status == NGX_HTTP_CONFLICT || status == 422)) {
		ngx_log_error(
		    NGX_LOG_WARN, r->connection->log, 0,
		    "once: the service answered %d (%s) about a key that this gateway holds, scope=%s: if it protects "
		    "the same scope itself, see \"In front of a client's middleware\" in docs/reference/gateway.md",
		    status, status == 422 ? "mismatch" : "active", attempt->intent.scope);
	}
}

/* Another gateway may be in between: its own answer is about this attempt, so it is not stored. */
static void heed_problem(gate_attempt *attempt, ngx_http_request_t *r)
{
	static const ngx_str_t type = ngx_string("application/problem+json");
	http_ending *ending = &attempt->answer.ending;

	if (!ending->complete || !ending->from_upstream || attempt->answer.header_sent || r->upstream == NULL ||
	    ending->effect != HTTP_EFFECT_UNSAID || attempt->answer.body.length > HTTP_PROBLEM_BYTES_MAX ||
	    r->headers_out.content_type.len < type.len ||
	    ngx_strncasecmp(r->headers_out.content_type.data, type.data, type.len) != 0) {
		return;
	}
	ending->effect = http_problem_effect(
	    (http_text){.data = (const char *)attempt->answer.body.data, .length = attempt->answer.body.length});
	attempt->answer.behind = ending->effect != HTTP_EFFECT_UNSAID;
	if (ending->effect == HTTP_EFFECT_DONE) {
		ending->too_large = true;
	}
	warn_of_own_claim(attempt, r);
}

static ngx_int_t end_answer(gate_attempt *attempt, ngx_http_request_t *r, bool complete)
{
	http_ending *ending = &attempt->answer.ending;
	ngx_uint_t made_by_nginx = is_nginx_error(attempt, r);

	ending->complete = complete;
	heed_problem(attempt, r);
	if (complete && ending->from_upstream && (ending->status == 307 || ending->status == 308)) {
		gate_target_redirected(attempt, r);
	}
	/* Nothing was sent yet: a problem document is better than half an answer or nginx's page. */
	if (!attempt->answer.header_sent && (!complete || made_by_nginx)) {
		http_problem problem = !made_by_nginx         ? HTTP_PROBLEM_NOT_STORED
		                       : ending->request_sent ? HTTP_PROBLEM_UNANSWERED
		                                              : HTTP_PROBLEM_UNREACHED;
		ngx_uint_t status = made_by_nginx ? (ngx_uint_t)ending->status : 0;

		if (gate_reply_problem(attempt, problem, status, NULL) != NGX_OK) {
			return NGX_ERROR;
		}
		attempt->replaced = 1;
	}
	attempt->answer.state = GATE_WHOLE;
	r->buffered |= BUFFERED;
	attempt->walk(attempt, GATE_ENDED);
	return NGX_AGAIN;
}

static ngx_int_t keep(gate_bytes *bytes, ngx_buf_t *buf, size_t length_max)
{
	size_t length = ngx_buf_in_memory(buf) ? (size_t)(buf->last - buf->pos) : 0;
	ngx_int_t rc;

	if (ngx_buf_in_memory(buf) == 0 && ngx_buf_size(buf) > 0) {
		return NGX_ERROR; /* filter_need_in_memory was asked for */
	}
	rc = gate_bytes_add(bytes, buf->pos, length, length_max);
	if (rc == NGX_OK) {
		buf->pos = buf->last;
		buf->file_pos = buf->file_last;
	}
	return rc;
}

/* NGX_BUSY: the answer is too large; *in is the rest of it. */
static ngx_int_t hold(gate_attempt *attempt, ngx_http_request_t *r, ngx_chain_t **in)
{
	for (ngx_chain_t *link = *in; link != NULL; link = link->next) {
		ngx_uint_t truncated = is_truncated(r, link->buf);

		switch (keep(&attempt->answer.body, link->buf, attempt->location->response_bytes_max)) {
		case NGX_OK:
			break;
		case NGX_DECLINED:
			attempt->answer.client_gone = stop_holding(attempt, r) == NGX_ERROR;
			*in = link;
			return NGX_BUSY;
		default:
			return NGX_ERROR;
		}
		if (link->buf->last_buf || truncated) {
			return end_answer(attempt, r, !truncated && is_whole(attempt, r, (off_t)attempt->answer.body.length));
		}
	}
	return NGX_OK;
}

static ngx_int_t consume(ngx_chain_t *in)
{
	for (ngx_chain_t *link = in; link != NULL; link = link->next) {
		link->buf->pos = link->buf->last;
		link->buf->file_pos = link->buf->file_last;
	}
	return NGX_OK;
}

/*
 * Nothing more is sent to a client that has left. Data that nginx was sending counts as sent:
 * otherwise it would wait for that before it reads more from the upstream.
 */
static void give_up_client(gate_attempt *attempt, ngx_http_request_t *r)
{
	attempt->answer.client_gone = 1;
	r->connection->error = 1;
	if (r->upstream != NULL) {
		(void)consume(r->upstream->busy_bufs);
		(void)consume(r->upstream->pipe == NULL ? NULL : r->upstream->pipe->busy);
	}
}

/*
 * Passes everything except the last part, which waits for the report, as a whole answer would. If
 * the client leaves, the upstream is still read to its end.
 */
static ngx_int_t stream(gate_attempt *attempt, ngx_http_request_t *r, ngx_chain_t *in)
{
	off_t length = r->headers_out.content_length_n;
	ngx_uint_t last = 0, truncated = 0;
	ngx_int_t rc;

	for (ngx_chain_t *link = in; link != NULL; link = link->next) {
		last |= link->buf->last_buf;
		truncated |= is_truncated(r, link->buf);
		attempt->answer.streamed_bytes += ngx_buf_size(link->buf);
	}
	/* If the length was announced, the last byte of the body is its end for the client. */
	if (!last && (length < 0 || attempt->answer.streamed_bytes < length)) {
		rc = attempt->answer.client_gone ? NGX_ERROR : next_body(r, in);
		if (rc == NGX_ERROR) {
			give_up_client(attempt, r);
			(void)consume(in);
			rc = NGX_OK;
		}
		if (truncated) {
			attempt->answer.state = GATE_PASSED;
			attempt->answer.ending.complete = false;
			attempt->walk(attempt, GATE_ENDED);
		}
		return rc;
	}
	/* Earlier parts may still be being sent from `body`. */
	for (ngx_chain_t *link = in; link != NULL; link = link->next) {
		if (keep(&attempt->answer.tail, link->buf, NGX_MAX_INT_T_VALUE) != NGX_OK) {
			return NGX_ERROR;
		}
	}
	return last ? end_answer(attempt, r, is_whole(attempt, r, attempt->answer.streamed_bytes)) : NGX_OK;
}

/* The report is stored: sends the answer, or its replacement. */
static ngx_int_t release(gate_attempt *attempt, ngx_http_request_t *r)
{
	gate_bytes *body = attempt->replaced             ? &attempt->reply.body
	                   : attempt->answer.header_sent ? &attempt->answer.tail
	                                                 : &attempt->answer.body;
	ngx_chain_t out;
	ngx_int_t rc = NGX_OK;

	attempt->answer.state = GATE_PASSED;
	r->buffered &= ~BUFFERED;
	if (attempt->answer.header_sent && attempt->replaced) {
		return NGX_ERROR; /* too late for another: the client must see the broken end */
	}
	if (!attempt->answer.header_sent) {
		assert(attempt->answer.ending.complete || attempt->replaced);
		unhold(attempt);
		if (attempt->replaced && gate_reply_head(r, &attempt->reply) != NGX_OK) {
			return NGX_ERROR;
		}
		rc = next_header(r);
		if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
			return rc;
		}
	}
	return gate_bytes_chain(r, body, &out) == NGX_OK ? next_body(r, &out) : NGX_ERROR;
}

static ngx_int_t filter_body(ngx_http_request_t *r, ngx_chain_t *in)
{
	gate_attempt *attempt = r == r->main ? gate_attempt_of(r) : NULL;
	ngx_int_t rc;

	if (attempt == NULL) {
		return next_body(r, in);
	}
	switch (attempt->answer.state) {
	case GATE_HOLDING:
		rc = hold(attempt, r, &in);
		return rc == NGX_BUSY ? stream(attempt, r, in) : rc;
	case GATE_STREAMING:
		return stream(attempt, r, in);
	case GATE_WHOLE:
		(void)consume(in);
		return NGX_AGAIN;
	case GATE_SENDABLE:
		(void)consume(in);
		return release(attempt, r);
	default:
		return next_body(r, in);
	}
}

/* ---- functions for the walk ---- */

void gate_answer_send(gate_attempt *attempt)
{
	ngx_http_request_t *r = attempt->r;
	ngx_connection_t *c = r->connection;

	assert(attempt->answer.state == GATE_WHOLE);
	attempt->answer.state = GATE_SENDABLE;
	ngx_http_set_log_request(c->log, r);
	r->write_event_handler(r); /* to filter_body */
	ngx_http_run_posted_requests(c);
}

void gate_answer_stop(gate_attempt *attempt, ngx_http_request_t *r)
{
	gate_answer_state state = attempt->answer.state;

	unhold(attempt);
	if (state == GATE_RUNNING || state == GATE_HOLDING || state == GATE_STREAMING) {
		attempt->answer.ending.request_sent = is_sent(attempt, r);
	}
	attempt->answer.state = GATE_PASSED;
}

void gate_answer_free(gate_attempt *attempt)
{
	assert(!attempt->answer.held);
	gate_bytes_free(&attempt->answer.body);
	gate_bytes_free(&attempt->answer.tail);
	free(attempt->answer.headers);
}

void gate_answer_filters(void)
{
	next_header = ngx_http_top_header_filter;
	ngx_http_top_header_filter = filter_header;
	next_body = ngx_http_top_body_filter;
	ngx_http_top_body_filter = filter_body;
}
