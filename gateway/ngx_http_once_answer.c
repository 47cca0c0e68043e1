/* SPDX-License-Identifier: PostgreSQL */
/*
 * ngx_http_once_answer.c: the upstream's answer. It is held until it is stored, and only then sent. Called by nginx as content
 * handler, header filter and body filter; each sees every request of the server and lets pass what is no attempt's.
 */
#include "ngx_http_once.h"

enum {
	BUFFERED = 0x08 /* of r->buffered: 1, 2 and 4 are taken by nginx's own filters */
};

static ngx_http_output_header_filter_pt next_header;
static ngx_http_output_body_filter_pt next_body;

/* ---- on the way to the upstream ---- */

/*
 * A header's value cannot begin or end with a space, and few readers agree on what is not ASCII: such bytes are percent-encoded,
 * and so is '%' itself. What most keys are made of stays as it is.
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
	ngx_table_elt_t *header = ngx_list_push(&r->headers_in.headers);
	const char *copy = encode(r->pool, value);

	if (header == NULL || copy == NULL) {
		return NGX_ERROR;
	}
	*header = (ngx_table_elt_t){.key = {.len = ngx_strlen(name), .data = (u_char *)(uintptr_t)name},
	                            .lowcase_key = (u_char *)(uintptr_t)lower,
	                            .value = {.len = ngx_strlen(copy), .data = (u_char *)(uintptr_t)copy}};
	header->hash = ngx_hash_key(header->lowcase_key, header->key.len);
	return NGX_OK;
}

/* With these the upstream can complete the intent in its own transaction. */
static ngx_int_t push_handoff(ngx_http_request_t *r, const gate_attempt *attempt)
{
	char fence[NGX_INT32_LEN + 1];

	*ngx_sprintf((u_char *)fence, "%d", attempt->fence) = '\0';
	if (push_header(r, "Once-Tenant", "once-tenant", attempt->intent.tenant) != NGX_OK ||
	    push_header(r, "Once-Scope", "once-scope", attempt->intent.scope) != NGX_OK ||
	    push_header(r, "Once-Key", "once-key", attempt->intent.key) != NGX_OK ||
	    push_header(r, "Once-Fence", "once-fence", fence) != NGX_OK) {
		return NGX_ERROR;
	}
	/* Of a retry that runs, this is the first attempt's; its own goes on in the header of its own. */
	return attempt->trace[0] == '\0' ? NGX_OK : push_header(r, "Once-Traceparent", "once-traceparent", attempt->trace);
}

/* ---- interim answers ---- */

/*
 * nginx takes the first status for the answer's, also where it is one of 100 to 199 (RFC 9110, section 15.2) and the answer comes after it:
 * the client would get the answer as the body of a 103, and the intent would be in doubt. So each of these is skipped here; but 101,
 * which is final.
 */
static ngx_int_t skip_interim(ngx_http_request_t *r)
{
	gate_attempt *attempt = gate_attempt_of(r);
	ngx_http_upstream_t *u = r->upstream;
	ngx_int_t rc;

	for (;;) {
		/* It sets the one for the next part of the header. */
		u->process_header = attempt->process_header;
		rc = u->process_header(r);
		attempt->process_header = u->process_header;
		u->process_header = skip_interim;
		if (rc != NGX_OK || u->headers_in.status_n < NGX_HTTP_CONTINUE || u->headers_in.status_n >= NGX_HTTP_OK ||
		    u->headers_in.status_n == NGX_HTTP_SWITCHING_PROTOCOLS) {
			return rc;
		}
		/* As nginx begins anew with another server, but for what has been read already. */
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
	ngx_int_t rc = attempt->reinit_request(r);

	attempt->process_header = r->upstream->process_header;
	r->upstream->process_header = skip_interim;
	return rc;
}

/* The content handler has made its upstream and sent the request at best; its answer comes in a later turn of the event loop. */
static void watch_header(gate_attempt *attempt, ngx_http_request_t *r)
{
	static const ngx_str_t proxy = ngx_string("proxy");
	ngx_http_upstream_t *u = r->upstream;

	if (attempt->stage != GATE_RUNNING || u == NULL || u == attempt->left || u->conf->module.len != proxy.len ||
	    ngx_strncmp(u->conf->module.data, proxy.data, proxy.len) != 0) {
		return;
	}
	attempt->process_header = u->process_header;
	attempt->reinit_request = u->reinit_request;
	u->process_header = skip_interim;
	u->reinit_request = reinit_request;
}

/* Here and not earlier, so that a mirror's subrequest does not get the fence. */
ngx_int_t gate_answer_content(ngx_http_request_t *r)
{
	gate_attempt *attempt = gate_attempt_of(r);
	ngx_http_handler_pt content = attempt->content;
	ngx_int_t rc;

	r->content_handler = content;
	if (attempt->stage != GATE_DECIDED) {
		return content(r);
	}
	if (attempt->location->handoff && push_handoff(r, attempt) != NGX_OK) {
		return NGX_HTTP_INTERNAL_SERVER_ERROR;
	}
	attempt->stage = GATE_RUNNING;
	attempt->ran_in = r->loc_conf;
	/*
	 * nginx sends PUT and DELETE again after an error, since they should be idempotent. Here they are sent once: as far as it can
	 * see, this is a PATCH, which no cache can be told to answer, unlike a POST; the name goes on to the upstream.
	 */
	if (!attempt->policy.doubt_retries) {
		r->method = NGX_HTTP_PATCH;
	}
	/* The content handler sets its own; whoever waited for the client to leave must not end the request now. */
	r->read_event_handler = ngx_http_block_reading;
	rc = content(r);
	watch_header(attempt, r);
	return rc;
}

/* Did a byte of the request leave, in any of the tries, or may a script have run it? What fetches a page says nothing of that. */
ngx_uint_t gate_request_sent(const gate_attempt *attempt, const ngx_http_request_t *r)
{
	const ngx_http_upstream_state_t *state = r->upstream_states == NULL ? NULL : r->upstream_states->elts;

	if (attempt->ending.request_sent || attempt->aside) {
		return attempt->ending.request_sent;
	}
	/* No upstream of this location: it has a content handler of its own, as a script's, which is the service. */
	if (r->upstream == NULL || r->upstream == attempt->left || r->upstream->request_sent) {
		return 1;
	}
	for (ngx_uint_t i = 0; state != NULL && i < r->upstream_states->nelts; i++) {
		if (state[i].bytes_sent > 0) {
			return 1;
		}
	}
	return 0;
}

/* What the answer's headers say of the effect. Two lines, or another word than the three, say nothing. */
static http_effect effect_said(ngx_http_request_t *r, ngx_list_t *headers)
{
	static ngx_str_t name = ngx_string(HTTP_EFFECT_HEADER);
	http_effect effect = HTTP_EFFECT_UNSAID;
	ngx_uint_t lines = 0;

	for (ngx_list_part_t *part = &headers->part; part != NULL; part = part->next) {
		ngx_table_elt_t *header = part->elts;

		for (ngx_uint_t i = 0; i < part->nelts; i++) {
			if (header[i].hash == 0 || header[i].key.len != name.len ||
			    ngx_strncasecmp(header[i].key.data, name.data, name.len) != 0) {
				continue;
			}
			effect = http_effect_parse(
			    (http_text){.data = (const char *)header[i].value.data, .length = header[i].value.len});
			if (effect == HTTP_EFFECT_UNSAID || lines++ > 0) {
				ngx_log_error(NGX_LOG_WARN, r->connection->log, 0,
				              "once: the service's header Once-Effect is ignored: it must come once, and say none, "
				              "done or unknown");
				return HTTP_EFFECT_UNSAID;
			}
		}
	}
	return effect;
}

/* The location that had the request has given it up: what it sent is known now, and another one answers. */
static void leave(gate_attempt *attempt, ngx_http_request_t *r)
{
	ngx_http_upstream_t *u = r->upstream;

	attempt->ending.request_sent = gate_request_sent(attempt, r);
	attempt->left = u;
	if (u != NULL && u->headers_in.x_accel_redirect != NULL &&
	    !(u->conf->ignore_headers & NGX_HTTP_UPSTREAM_IGN_XA_REDIRECT)) {
		attempt->accelerated = 1;
		attempt->aside = 1;
		attempt->ending.effect = effect_said(r, &u->headers_in.headers);
		return;
	}
	attempt->redirected = 1;
	/* A fallback without a content handler sends nothing; one that has it gets the request itself, but for a GET. */
	attempt->aside = r->content_handler == NULL || (r->method & (NGX_HTTP_GET | NGX_HTTP_HEAD));
}

/* The phases run again after the content handler did: X-Accel-Redirect, or an error_page. */
ngx_int_t gate_answer_redirected(gate_attempt *attempt)
{
	ngx_http_request_t *r = attempt->request;

	leave(attempt, r);
	if (!attempt->redirected || attempt->aside) {
		return NGX_DECLINED;
	}
	/* A fallback that gets the request itself again could run it a second time. */
	if (attempt->ending.request_sent && !attempt->policy.doubt_retries) {
		ngx_log_error(NGX_LOG_WARN, r->connection->log, 0,
		              "once: error_page would run the request again in \"%V\": answered without it", &r->uri);
		r->content_handler = NULL;
		attempt->ran_in = r->loc_conf;
		return NGX_HTTP_BAD_GATEWAY;
	}
	return NGX_DECLINED;
}

/* ---- the header ---- */

static void classify(gate_attempt *attempt, ngx_http_request_t *r)
{
	http_ending *ending = &attempt->ending;
	ngx_http_upstream_t *u = r->upstream;

	/* A redirect that ends before the phase of this module, as in a `return`, shows only here. */
	if (!attempt->redirected && !attempt->accelerated && r->loc_conf != attempt->ran_in) {
		leave(attempt, r);
	}
	ending->status = (int)r->headers_out.status;
	ending->request_sent = gate_request_sent(attempt, r);
	if (attempt->redirected) {
		ending->from_upstream = false;
	} else if (attempt->accelerated) {
		ending->from_upstream = r->headers_out.status < NGX_HTTP_BAD_REQUEST;
	} else if (u != NULL) {
		ending->from_upstream = u->headers_in.status_n == r->headers_out.status;
	} else {
		ending->from_upstream = true;
	}
	if (!attempt->accelerated) {
		ending->effect = effect_said(r, &r->headers_out.headers);
	}
	attempt->status = ending->status;
}

static ngx_uint_t charset_apart(const ngx_http_headers_out_t *out)
{
	return out->charset.len > 0 && out->content_type_len == out->content_type.len;
}

static void unhold(gate_attempt *attempt)
{
	if (attempt->held) {
		attempt->held = 0;
		gate_count_gauge(0, 0, -1);
	}
}

/* The headers to store. NGX_ERROR: no memory for one of them. */
static ngx_int_t collect_headers(gate_attempt *attempt, ngx_http_request_t *r, ngx_array_t *headers)
{
	ngx_array_t *list = attempt->location->headers;
	const http_text *allowed = list == NULL ? NULL : list->elts;
	http_text type = {.data = "Content-Type", .length = 12};
	http_header *header;

	if (ngx_array_init(headers, r->pool, 16, sizeof(http_header)) != NGX_OK) {
		return NGX_ERROR;
	}
	if (r->headers_out.content_type.len > 0 && http_header_kept(type, allowed, list == NULL ? 0 : list->nelts)) {
		ngx_str_t value = r->headers_out.content_type;

		if (charset_apart(&r->headers_out)) {
			value.data = ngx_pnalloc(r->pool, value.len + r->headers_out.charset.len + sizeof("; charset="));
			if (value.data == NULL) {
				return NGX_ERROR;
			}
			value.len = (size_t)(ngx_sprintf(value.data, "%V; charset=%V", &r->headers_out.content_type,
			                                 &r->headers_out.charset) -
			                     value.data);
		}
		header = ngx_array_push(headers);
		if (header == NULL) {
			return NGX_ERROR;
		}
		*header = (http_header){.name = type, .value = {.data = (const char *)value.data, .length = value.len}};
	}
	/* nginx's own files have only a time, which its header filter writes. */
	if (r->headers_out.last_modified == NULL && r->headers_out.last_modified_time != -1) {
		u_char *time = ngx_pnalloc(r->pool, sizeof("Mon, 28 Sep 1970 06:00:00 GMT"));

		header = time == NULL ? NULL : ngx_array_push(headers);
		if (header == NULL) {
			return NGX_ERROR;
		}
		*header = (http_header){.name = {.data = "Last-Modified", .length = 13}, .value = {.data = (char *)time}};
		header->value.length = (size_t)(ngx_http_time(time, r->headers_out.last_modified_time) - time);
	}
	for (ngx_list_part_t *part = &r->headers_out.headers.part; part != NULL; part = part->next) {
		ngx_table_elt_t *element = part->elts;

		for (ngx_uint_t i = 0; i < part->nelts; i++) {
			http_text name = {.data = (const char *)element[i].key.data, .length = element[i].key.len};

			if (element[i].hash == 0 || !http_header_kept(name, allowed, list == NULL ? 0 : list->nelts)) {
				continue;
			}
			header = ngx_array_push(headers);
			if (header == NULL) {
				return NGX_ERROR;
			}
			*header = (http_header){
			    .name = name, .value = {.data = (const char *)element[i].value.data, .length = element[i].value.len}};
		}
	}
	return NGX_OK;
}

/* As JSON. */
static void encode_headers(gate_attempt *attempt, ngx_http_request_t *r)
{
	ngx_array_t headers;

	if (collect_headers(attempt, r, &headers) != NGX_OK ||
	    !http_headers_encode(headers.elts, headers.nelts, &attempt->headers)) {
		attempt->headers = NULL;
		attempt->ending.too_large = true; /* done, and not to be replayed without them */
	}
}

/* Answers that cannot be replayed as they are: a protocol switch, and what ends in trailers. */
static ngx_uint_t cannot_hold(ngx_http_request_t *r)
{
	return r->headers_out.status == NGX_HTTP_SWITCHING_PROTOCOLS || r->expect_trailers ||
	       (r->upstream != NULL && (r->upstream->upgrade || r->upstream->conf->pass_trailers));
}

/* Only the gateway says that an answer is a replay, and Once-Effect is for it alone. */
static void strip_markers(ngx_http_request_t *r)
{
	for (ngx_list_part_t *part = &r->headers_out.headers.part; part != NULL; part = part->next) {
		ngx_table_elt_t *header = part->elts;

		for (ngx_uint_t i = 0; i < part->nelts; i++) {
			if (http_header_reserved(
			        (http_text){.data = (const char *)header[i].key.data, .length = header[i].key.len})) {
				header[i].hash = 0;
			}
		}
	}
}

static ngx_int_t filter_header(ngx_http_request_t *r)
{
	gate_location *location = ngx_http_get_module_loc_conf(r, ngx_http_once_module);
	gate_attempt *attempt = r == r->main ? gate_attempt_of(r) : NULL;
	ngx_int_t rc;

	/* Before they are stripped. */
	if (attempt != NULL && (attempt->stage == GATE_RUNNING || attempt->stage == GATE_HOLDING)) {
		classify(attempt, r);
	}
	if (attempt != NULL ? attempt->step == HTTP_RUN || attempt->step == HTTP_PASS : location->mode != GATE_OFF) {
		strip_markers(r);
	}
	if (attempt == NULL || (attempt->stage != GATE_RUNNING && attempt->stage != GATE_HOLDING)) {
		return next_header(r);
	}
	if (attempt->stage == GATE_HOLDING) {
		/* nginx gave the held answer up for an error of its own, which has no body of the upstream's. */
		attempt->body.length = 0;
		free(attempt->headers);
		attempt->headers = NULL;
	}
	r->allow_ranges = 0;
	r->filter_need_in_memory = 1;
	if (cannot_hold(r) || r->headers_out.content_length_n > (off_t)attempt->location->response_bytes_max) {
		attempt->ending.too_large = true;
		attempt->stage = GATE_STREAMING;
		attempt->header_sent = 1;
		rc = next_header(r);
		if (rc == NGX_ERROR) {
			/* Also without a client, the end of the answer counts. */
			attempt->client_gone = 1;
			rc = NGX_OK;
		}
		return rc;
	}
	encode_headers(attempt, r);
	attempt->stage = GATE_HOLDING;
	if (!attempt->held) {
		attempt->held = 1;
		gate_count_gauge(0, 0, 1);
	}
	return NGX_OK;
}

/* ---- the body ---- */

/* nginx ends a truncated answer with a flush, after it has let go of the upstream. */
static ngx_uint_t is_truncated(ngx_http_request_t *r, const ngx_buf_t *buf)
{
	return buf->flush && !buf->last_buf && ngx_buf_size(buf) == 0 && r->upstream != NULL &&
	       r->upstream->cleanup == NULL && r->upstream->header_sent;
}

/* What is held goes, and all that follows passes: this answer is too large to keep. */
static ngx_int_t stop_holding(gate_attempt *attempt, ngx_http_request_t *r)
{
	ngx_chain_t out;
	ngx_int_t rc;

	attempt->ending.too_large = true;
	attempt->stage = GATE_STREAMING;
	attempt->header_sent = 1;
	unhold(attempt);
	rc = next_header(r);
	if (rc == NGX_ERROR || rc > NGX_OK || attempt->body.length == 0) {
		return rc;
	}
	if (gate_reply_body(r, &attempt->body, &out) != NGX_OK) {
		return NGX_ERROR;
	}
	out.buf->last_buf = 0;
	out.buf->last_in_chain = 0;
	out.buf->flush = 1;
	return next_body(r, &out);
}

/*
 * nginx takes the end of a FastCGI connection for the end of an answer, though the protocol has a record for that; and it may
 * take less than the announced length.
 */
static bool is_whole(gate_attempt *attempt, ngx_http_request_t *r, off_t bytes)
{
	static const ngx_str_t fastcgi = ngx_string("fastcgi");
	ngx_http_upstream_t *u = r->upstream;

	if (r->headers_out.content_length_n > bytes && r->headers_out.status != NGX_HTTP_NOT_MODIFIED) {
		return false;
	}
	if (u == NULL || attempt->accelerated || attempt->redirected || !attempt->ending.from_upstream ||
	    u->conf->module.len != fastcgi.len || ngx_strncmp(u->conf->module.data, fastcgi.data, fastcgi.len) != 0) {
		return true;
	}
	return u->buffering ? u->pipe != NULL && u->pipe->upstream_done : u->length == 0;
}

/* nginx's own 502, 504 or the like in place of an answer; and no page that an error_page has led to, in the same location or another. */
static ngx_uint_t is_nginx_error(const gate_attempt *attempt, const ngx_http_request_t *r)
{
	ngx_uint_t is_page = attempt->redirected && r->upstream != NULL && r->upstream->header_sent;

	return !attempt->ending.from_upstream && !is_page && r->loc_conf == attempt->ran_in &&
	       attempt->ending.status >= NGX_HTTP_INTERNAL_SERVER_ERROR;
}

/* The service may be behind another gateway, whose own answer is about this attempt and not the request's outcome: it is not stored. */
static void heed_problem(gate_attempt *attempt, ngx_http_request_t *r)
{
	static const ngx_str_t type = ngx_string("application/problem+json");
	http_ending *ending = &attempt->ending;

	if (!ending->complete || !ending->from_upstream || attempt->header_sent || r->upstream == NULL ||
	    ending->effect != HTTP_EFFECT_UNSAID || attempt->body.length > HTTP_PROBLEM_BYTES_MAX ||
	    r->headers_out.content_type.len < type.len ||
	    ngx_strncasecmp(r->headers_out.content_type.data, type.data, type.len) != 0) {
		return;
	}
	ending->effect =
	    http_problem_effect((http_text){.data = (const char *)attempt->body.data, .length = attempt->body.length});
	attempt->behind = ending->effect != HTTP_EFFECT_UNSAID;
	if (ending->effect == HTTP_EFFECT_DONE) {
		ending->too_large = true;
	}
}

static ngx_int_t end_answer(gate_attempt *attempt, ngx_http_request_t *r, bool complete)
{
	http_ending *ending = &attempt->ending;
	ngx_uint_t made_by_nginx = is_nginx_error(attempt, r);

	ending->complete = complete;
	heed_problem(attempt, r);
	/* Nothing of it went out: a whole sentence is better than half an answer, or than a page of nginx. */
	if (!attempt->header_sent && (!complete || made_by_nginx)) {
		http_problem problem = !made_by_nginx         ? HTTP_PROBLEM_NOT_STORED
		                       : ending->request_sent ? HTTP_PROBLEM_UNANSWERED
		                                              : HTTP_PROBLEM_UNREACHED;
		ngx_uint_t status = made_by_nginx ? (ngx_uint_t)ending->status : 0;

		if (gate_reply_problem(attempt, problem, status, NULL) != NGX_OK) {
			return NGX_ERROR;
		}
		attempt->replaced = 1;
	}
	attempt->stage = GATE_REPORTING;
	r->buffered |= BUFFERED;
	gate_report(attempt);
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

/* NGX_BUSY: the answer is too large; *in is what is left of it. */
static ngx_int_t hold(gate_attempt *attempt, ngx_http_request_t *r, ngx_chain_t **in)
{
	for (ngx_chain_t *link = *in; link != NULL; link = link->next) {
		ngx_uint_t truncated = is_truncated(r, link->buf);

		switch (keep(&attempt->body, link->buf, attempt->location->response_bytes_max)) {
		case NGX_OK:
			break;
		case NGX_DECLINED:
			/* Also without a client, the end of the answer counts. */
			attempt->client_gone = stop_holding(attempt, r) == NGX_ERROR;
			*in = link;
			return NGX_BUSY;
		default:
			return NGX_ERROR;
		}
		if (link->buf->last_buf || truncated) {
			return end_answer(attempt, r, !truncated && is_whole(attempt, r, (off_t)attempt->body.length));
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
 * Passes what comes, except for the last part: that waits for the report, as a whole answer would. A client that left changes
 * nothing: the upstream is heard to its end.
 */
static ngx_int_t stream(gate_attempt *attempt, ngx_http_request_t *r, ngx_chain_t *in)
{
	off_t length = r->headers_out.content_length_n;
	ngx_uint_t last = 0, truncated = 0;
	ngx_int_t rc;

	for (ngx_chain_t *link = in; link != NULL; link = link->next) {
		last |= link->buf->last_buf;
		truncated |= is_truncated(r, link->buf);
		attempt->streamed_bytes += ngx_buf_size(link->buf);
	}
	/* Where the length was announced, the last byte of the body is its end for the client. */
	if (!last && (length < 0 || attempt->streamed_bytes < length)) {
		rc = attempt->client_gone ? NGX_ERROR : next_body(r, in);
		if (rc == NGX_ERROR) {
			attempt->client_gone = 1;
			(void)consume(in);
			rc = NGX_OK;
		}
		if (truncated) {
			attempt->stage = GATE_DONE;
			attempt->ending.complete = false;
			gate_report(attempt);
		}
		return rc;
	}
	/* What was sent before may still be on its way from `body`. */
	for (ngx_chain_t *link = in; link != NULL; link = link->next) {
		if (keep(&attempt->tail, link->buf, NGX_MAX_INT_T_VALUE) != NGX_OK) {
			return NGX_ERROR;
		}
	}
	return last ? end_answer(attempt, r, is_whole(attempt, r, attempt->streamed_bytes)) : NGX_OK;
}

/* The report is in: the answer goes, or what takes its place. */
static ngx_int_t release(gate_attempt *attempt, ngx_http_request_t *r)
{
	gate_bytes *body = attempt->replaced      ? &attempt->reply.body
	                   : attempt->header_sent ? &attempt->tail
	                                          : &attempt->body;
	ngx_chain_t out;
	ngx_int_t rc = NGX_OK;

	attempt->stage = GATE_DONE;
	r->buffered &= ~BUFFERED;
	if (attempt->header_sent && attempt->replaced) {
		return NGX_ERROR; /* too late for another answer: end the connection, so that the client sees it is not whole */
	}
	if (!attempt->header_sent) {
		unhold(attempt);
		if (attempt->replaced && gate_reply_head(r, &attempt->reply) != NGX_OK) {
			return NGX_ERROR;
		}
		rc = next_header(r);
		if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
			return rc;
		}
	}
	return gate_reply_body(r, body, &out) == NGX_OK ? next_body(r, &out) : NGX_ERROR;
}

static ngx_int_t filter_body(ngx_http_request_t *r, ngx_chain_t *in)
{
	gate_attempt *attempt = r == r->main ? gate_attempt_of(r) : NULL;
	ngx_int_t rc;

	if (attempt == NULL) {
		return next_body(r, in);
	}
	switch (attempt->stage) {
	case GATE_HOLDING:
		rc = hold(attempt, r, &in);
		return rc == NGX_BUSY ? stream(attempt, r, in) : rc;
	case GATE_STREAMING:
		return stream(attempt, r, in);
	case GATE_REPORTING:
		(void)consume(in);
		return NGX_AGAIN;
	case GATE_REPORTED:
		(void)consume(in);
		return release(attempt, r);
	default:
		return next_body(r, in);
	}
}

void gate_answer_filters(void)
{
	next_header = ngx_http_top_header_filter;
	ngx_http_top_header_filter = filter_header;
	next_body = ngx_http_top_body_filter;
	ngx_http_top_body_filter = filter_body;
}
