/* SPDX-License-Identifier: PostgreSQL */
/*
 * ngx_http_once_request.c: a request until it can claim: removes headers that a client must not
 * send, finds the key and the tenant, reads and hashes the body. Each refusal here comes before any
 * look-up.
 */
#include "ngx_http_once.h"

/* spec: names */
#define NAME_CHARACTERS_MAX 255
#define TENANT_MALFORMED "The tenant must be valid UTF-8 of at most 255 characters, without control characters."
/* end of spec */

enum {
	TURN_BYTES = 256 * 1024, /* hashed in one turn of the event loop */
	PAGE_BYTES = 64 * 1024,  /* read from a file at once */
	GUARD_MS = 10 * 1000,
	SHORT_NAME = 64,
	LENGTH_BYTES = 8
};

/* ---- headers that a client must not send ---- */

/*
 * FastCGI and uwsgi turn '-' into '_', and applications do more: any other character counts as '-'.
 */
static ngx_uint_t is_reserved(const ngx_str_t *name)
{
	char folded[SHORT_NAME];
	http_text text = {.data = folded, .length = ngx_min(name->len, sizeof(folded))};

	for (size_t i = 0; i < text.length; i++) {
		folded[i] = isalnum(name->data[i]) ? (char)name->data[i] : '-';
	}
	return http_header_reserved(text);
}

/* nginx keeps pointers to the list's elements: they stay, and a new list omits some. */
static ngx_int_t strip(ngx_http_request_t *r)
{
	gate_headers at = {.part = &r->headers_in.headers.part};
	ngx_table_elt_t *header, *copy;
	ngx_list_t kept;

	if (ngx_list_init(&kept, r->pool, 20, sizeof(ngx_table_elt_t)) != NGX_OK) {
		return NGX_HTTP_INTERNAL_SERVER_ERROR;
	}
	while ((header = gate_headers_next(&at)) != NULL) {
		if (is_reserved(&header->key)) {
			ngx_log_error(NGX_LOG_INFO, r->connection->log, 0, "once: event=strip header=%V", &header->key);
			continue;
		}
		copy = ngx_list_push(&kept);
		if (copy == NULL) {
			return NGX_HTTP_INTERNAL_SERVER_ERROR;
		}
		*copy = *header;
	}
	r->headers_in.headers = kept;
	if (kept.last == &kept.part) {
		r->headers_in.headers.last = &r->headers_in.headers.part;
	}
	return NGX_DECLINED;
}

ngx_int_t gate_request_strip(ngx_http_request_t *r)
{
	gate_headers at = {.part = &r->headers_in.headers.part};
	ngx_table_elt_t *header;

	while ((header = gate_headers_next(&at)) != NULL) {
		if (is_reserved(&header->key)) {
			return strip(r);
		}
	}
	return NGX_DECLINED;
}

static const char *terminated(ngx_pool_t *pool, const ngx_str_t *text)
{
	char *copy = ngx_pnalloc(pool, text->len + 1);

	if (copy != NULL) {
		*ngx_cpymem(copy, text->data, text->len) = '\0';
	}
	return copy;
}

/* ---- key, tenant, scope ---- */

/* How many header lines have this name, as $http_name compares names. */
static ngx_uint_t count_lines(ngx_http_request_t *r, const ngx_str_t *name)
{
	gate_headers at = {.part = &r->headers_in.headers.part};
	ngx_table_elt_t *header;
	ngx_uint_t lines = 0;

	while ((header = gate_headers_next(&at)) != NULL) {
		size_t n = 0;

		while (header->key.len == name->len && n < name->len &&
		       (header->key.data[n] == '-' ? '_' : ngx_tolower(header->key.data[n])) == name->data[n]) {
			n++;
		}
		lines += n == name->len;
	}
	return lines;
}

/* As PostgreSQL reads it: nginx's own functions accept bytes that are not UTF-8. */
static ngx_uint_t is_clean(const ngx_str_t *text)
{
	u_char *at = text->data, *end = text->data + text->len;
	size_t characters = 0;

	while (at < end) {
		uint32_t c = *at;

		if (c < 0x80) {
			at++;
		} else {
			c = c >= 0xf8 ? UINT32_MAX : ngx_utf8_decode(&at, (size_t)(end - at));
		}
		if (c < 0x20 || c == 0x7f || (c >= 0xd800 && c <= 0xdfff) || c > 0x10ffff) {
			return 0;
		}
		characters++;
	}
	return characters <= NAME_CHARACTERS_MAX;
}

typedef struct found {
	ngx_str_t scope;
	ngx_str_t tenant;
	char key[ONCE_KEY_BYTES_MAX + 1];
	http_problem problem;
	const char *detail;
} found;

/* Returns like find_names, for the key alone. */
static ngx_int_t find_key(ngx_http_request_t *r, const gate_location *location, const ngx_str_t *value, found *names)
{
	once_error *error = NULL;
	ngx_str_t detail;
	once_code code = once_key_of_header((once_bytes){.data = value->data, .length = value->len}, location->key_strict,
	                                    location->key_length, names->key, &error);

	if (code == ONCE_OK) {
		return NGX_OK;
	}
	detail.data = (u_char *)once_error_detail(error);
	detail.len = ngx_strlen(detail.data);
	names->problem = HTTP_PROBLEM_KEY_MALFORMED;
	names->detail = terminated(r->pool, &detail);
	once_error_free(error);
	return code == ONCE_KEY_MALFORMED && names->detail != NULL ? NGX_ABORT : NGX_ERROR;
}

/* A server's error_page may lead a request here whose certificate was refused. */
static ngx_uint_t is_refused_certificate(ngx_http_request_t *r)
{
	static const ngx_str_t failed = ngx_string("FAILED");
	static ngx_str_t name = ngx_string("ssl_client_verify");
	ngx_http_variable_value_t *value = ngx_http_get_variable(r, &name, ngx_hash_key(name.data, name.len));

	return value != NULL && !value->not_found && value->len >= failed.len &&
	       ngx_strncmp(value->data, failed.data, failed.len) == 0;
}

/* NGX_OK: *names is complete. NGX_DECLINED: no key. NGX_ABORT: refuse it. NGX_ERROR: no memory. */
static ngx_int_t find_names(ngx_http_request_t *r, const gate_location *location, found *names)
{
	ngx_uint_t lines = 1;
	ngx_str_t value;
	ngx_int_t rc;

	if (location->key_header.len > 0) {
		lines = count_lines(r, &location->key_header);
	}
	if (ngx_http_complex_value(r, location->key, &value) != NGX_OK) {
		return NGX_ERROR;
	}
	names->detail = NULL;
	names->scope = location->scope_default;
	if (location->scope != NULL && ngx_http_complex_value(r, location->scope, &names->scope) != NGX_OK) {
		return NGX_ERROR;
	}
	if (names->scope.len == 0 || !is_clean(&names->scope)) {
		ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
		              "once: once_scope gave no valid name: it must be valid UTF-8 of 1 to 255 characters");
		return NGX_ERROR;
	}
	if (lines == 0 || (value.len == 0 && location->key_header.len == 0)) {
		names->problem = HTTP_PROBLEM_KEY_MISSING;
		return location->mode == GATE_REQUIRED ? NGX_ABORT : NGX_DECLINED;
	}
	if (lines > 1) {
		names->problem = HTTP_PROBLEM_KEY_REPEATED;
		return NGX_ABORT;
	}
	rc = find_key(r, location, &value, names);
	if (rc != NGX_OK) {
		return rc;
	}
	ngx_str_set(&names->tenant, "");
	names->problem = HTTP_PROBLEM_TENANT_MISSING;
	if (location->tenant != NULL) {
		if (ngx_http_complex_value(r, location->tenant, &names->tenant) != NGX_OK) {
			return NGX_ERROR;
		}
		if (names->tenant.len == 0 || (location->tenant_verified && is_refused_certificate(r))) {
			return NGX_ABORT;
		}
		/* One may be the client's: nginx would take the first, or both. */
		if (location->tenant_header.len > 0 && count_lines(r, &location->tenant_header) > 1) {
			names->detail = "The header that names the tenant came more than once.";
			return NGX_ABORT;
		}
		if (!is_clean(&names->tenant)) {
			names->detail = TENANT_MALFORMED;
			return NGX_ABORT;
		}
	}
	return NGX_OK;
}

/*
 * W3C Trace Context, section 3.2: several traceparents, or a malformed one, are ignored. NULL:
 * none. The upstream gets them unchanged in any case.
 */
static const ngx_str_t *find_trace(ngx_http_request_t *r)
{
	ngx_uint_t lines;
	const ngx_str_t *value = gate_header_only(&r->headers_in.headers, "traceparent", &lines);

	return value == NULL || value->len != GATE_TRACE_BYTES - 1 ? NULL : value;
}

static const char *put(u_char **at, const void *text, size_t length)
{
	u_char *start = *at;

	*at = ngx_cpymem(start, text, length);
	*(*at)++ = '\0';
	return (const char *)start;
}

/* The attempt's own copies: it may outlive the request. */
static ngx_int_t copy_names(gate_attempt *attempt, const found *names)
{
	const ngx_str_t *trace = find_trace(attempt->r);
	size_t key_length = ngx_strlen(names->key);
	u_char *at = ngx_alloc(names->tenant.len + names->scope.len + key_length + 3 + GATE_TRACE_BYTES, ngx_cycle->log);

	attempt->request.names = at;
	if (at == NULL) {
		return NGX_ERROR;
	}
	attempt->intent = (once_intent){.tenant = put(&at, names->tenant.data, names->tenant.len),
	                                .scope = put(&at, names->scope.data, names->scope.len),
	                                .key = put(&at, names->key, key_length),
	                                .traceparent = trace == NULL ? NULL : put(&at, trace->data, trace->len)};
	return NGX_OK;
}

/* ---- the fingerprint ---- */

static void give_up(gate_attempt *attempt, const once_error *error)
{
	gate_request_stop(attempt);
	gate_step_failed(attempt, error);
	attempt->walk(attempt, GATE_STEP);
}

static size_t chain_bytes(const ngx_chain_t *link)
{
	size_t bytes = 0;

	for (; link != NULL; link = link->next) {
		bytes += (size_t)ngx_buf_size(link->buf);
	}
	return bytes;
}

/* Method, target and type; body and values follow. */
static once_code start_hash(gate_attempt *attempt, size_t body_bytes, once_error **error)
{
	ngx_http_request_t *r = attempt->r;
	gate_request *request = &attempt->request;
	ngx_uint_t print = attempt->location->print;
	const char *method = terminated(r->pool, &r->method_name);
	const char *target = gate_target(r, print);
	const char *type = "";
	unsigned char salt[ONCE_SALT_BYTES];

	if (r->headers_in.content_type != NULL) {
		type = terminated(r->pool, &r->headers_in.content_type->value);
	}
	if (method == NULL || target == NULL || type == NULL || gate_batcher(request->node) == NULL ||
	    !once_batcher_known_salt(gate_batcher(request->node), attempt->intent.tenant, salt)) {
		return ONCE_NO_MEMORY;
	}
	for (ngx_uint_t i = 0; i < request->value_count; i++) {
		body_bytes += request->values[i].len + LENGTH_BYTES;
	}
	return once_hash_start(salt, print & GATE_PRINT_METHOD ? method : "", target, print & GATE_PRINT_TYPE ? type : "",
	                       body_bytes, &request->hash, error);
}

static once_code add(once_hash *hash, const void *data, size_t length, once_error **error)
{
	return once_hash_add(hash, (once_bytes){.data = length == 0 ? "" : data, .length = length}, error);
}

/*
 * Further variables follow the body, each before its length, so that no two requests have the same
 * bytes: read from the end, the lengths tell where each begins.
 */
static once_code add_values(const gate_request *request, once_error **error)
{
	once_code code = ONCE_OK;

	for (ngx_uint_t i = 0; code == ONCE_OK && i < request->value_count; i++) {
		const ngx_str_t *value = &request->values[i];
		unsigned char length[LENGTH_BYTES];

		for (int n = 0; n < LENGTH_BYTES; n++) {
			length[n] = (unsigned char)((uint64_t)value->len >> (56 - 8 * n));
		}
		code = add(request->hash, value->data, value->len, error);
		if (code == ONCE_OK) {
			code = add(request->hash, length, sizeof(length), error);
		}
	}
	return code;
}

/* The collected body in canonical form, if it is JSON. */
static once_code hash_canonical(gate_attempt *attempt, once_error **error)
{
	gate_bytes *whole = &attempt->request.whole_body;
	once_bytes body = {.data = whole->data == NULL ? (const void *)"" : whole->data, .length = whole->length};
	char *canonical = NULL;
	size_t length = 0;
	once_code code = once_json_canonical(body, &canonical, &length, error);

	if (code == ONCE_OK && canonical != NULL) {
		body = (once_bytes){.data = canonical, .length = length};
	}
	if (code == ONCE_OK) {
		code = start_hash(attempt, body.length, error);
	}
	if (code == ONCE_OK) {
		code = once_hash_add(attempt->request.hash, body, error);
	}
	free(canonical);
	gate_bytes_free(whole);
	return code;
}

/* From memory or from the temporary file: to the hash, or first to the canonical form. */
static once_code take_piece(gate_request *request, const ngx_buf_t *buf, size_t length, once_error **error)
{
	static u_char page[PAGE_BYTES]; /* a worker has one thread */
	const u_char *data = page;

	if (ngx_buf_in_memory(buf)) {
		data = buf->pos + request->piece_offset;
	} else if (ngx_read_file(buf->file, page, length, buf->file_pos + request->piece_offset) != (ssize_t)length) {
		return ONCE_NO_MEMORY;
	}
	if (request->hash != NULL) {
		return add(request->hash, data, length, error);
	}
	return gate_bytes_add(&request->whole_body, data, length, ONCE_CANONICAL_BYTES_MAX) == NGX_OK ? ONCE_OK
	                                                                                              : ONCE_NO_MEMORY;
}

/* For one turn of the loop: a large body takes several, and other requests continue in between. */
static once_code hash_pieces(gate_request *request, once_error **error)
{
	size_t budget = TURN_BYTES;
	once_code code = ONCE_OK;

	while (code == ONCE_OK && request->piece != NULL && budget > 0) {
		const ngx_buf_t *buf = request->piece->buf;
		size_t length = (size_t)ngx_min(ngx_buf_size(buf) - request->piece_offset, PAGE_BYTES);

		if (length > 0) {
			code = take_piece(request, buf, length, error);
		}
		request->piece_offset += (off_t)length;
		budget -= ngx_min(length, budget);
		if (request->piece_offset >= ngx_buf_size(buf)) {
			request->piece = request->piece->next;
			request->piece_offset = 0;
		}
	}
	return code;
}

static once_code finish_hash(gate_attempt *attempt, once_error **error)
{
	gate_request *request = &attempt->request;
	once_code code = request->hash == NULL ? hash_canonical(attempt, error) : ONCE_OK;

	if (code == ONCE_OK) {
		code = add_values(request, error);
	}
	return code == ONCE_OK ? once_hash_finish(request->hash, &request->fingerprint, error) : code;
}

static void on_guard(ngx_event_t *event)
{
	ngx_add_timer(event, GUARD_MS);
}

static void hash_turn(gate_attempt *attempt);

static void on_turn(ngx_event_t *event)
{
	hash_turn(gate_attempt_at(event, request.turn));
}

static void hash_turn(gate_attempt *attempt)
{
	gate_request *request = &attempt->request;
	once_error *error = NULL;
	once_code code = hash_pieces(request, &error);

	if (code == ONCE_OK && request->piece != NULL) {
		/* An ending worker waits only for timers: this one shows that a request is at work. */
		if (!request->guard.timer_set) {
			gate_event_init(&request->guard, on_guard);
			ngx_add_timer(&request->guard, GUARD_MS);
		}
		gate_event_init(&request->turn, on_turn);
		ngx_post_event(&request->turn, &ngx_posted_next_events);
		return;
	}
	if (code == ONCE_OK) {
		code = finish_hash(attempt, &error);
	}
	if (code == ONCE_OK) {
		gate_request_stop(attempt);
		attempt->walk(attempt, GATE_HASHED);
	} else {
		give_up(attempt, error);
	}
	once_error_free(error);
}

static ngx_int_t evaluate_values(gate_attempt *attempt)
{
	gate_request *request = &attempt->request;
	ngx_array_t *wanted = attempt->location->print_values;
	ngx_http_complex_value_t *value = wanted == NULL ? NULL : wanted->elts;

	if (value == NULL || wanted->nelts == 0) {
		return NGX_OK;
	}
	request->values = ngx_palloc(attempt->r->pool, wanted->nelts * sizeof(ngx_str_t));
	for (; request->values != NULL && request->value_count < wanted->nelts; request->value_count++) {
		ngx_uint_t i = request->value_count;

		if (ngx_http_complex_value(attempt->r, &value[i], &request->values[i]) != NGX_OK) {
			return NGX_ERROR;
		}
	}
	return request->values == NULL ? NGX_ERROR : NGX_OK;
}

static void hash_start(gate_attempt *attempt)
{
	ngx_http_request_body_t *read = attempt->r->request_body;
	ngx_chain_t *bufs = read == NULL || !(attempt->location->print & GATE_PRINT_BODY) ? NULL : read->bufs;
	size_t bytes = chain_bytes(bufs);
	once_error *error = NULL;
	once_code code = evaluate_values(attempt) == NGX_OK ? ONCE_OK : ONCE_NO_MEMORY;

	attempt->request.piece = bufs;
	attempt->request.piece_offset = 0;
	if (code == ONCE_OK && (!attempt->location->canonical_json || bufs == NULL || bytes > ONCE_CANONICAL_BYTES_MAX)) {
		code = start_hash(attempt, bytes, &error);
	}
	if (code == ONCE_OK) {
		hash_turn(attempt);
	} else {
		give_up(attempt, error);
		once_error_free(error);
	}
}

static void on_salt(void *argument, const once_answer *answer, const once_error *error)
{
	gate_attempt *attempt = argument;

	attempt->request.operation = NULL;
	if (answer == NULL) {
		give_up(attempt, error);
	} else {
		hash_start(attempt);
	}
}

/* Each node knows the salt; the tenant's own is asked, since the claim follows there. */
static void find_salt(gate_attempt *attempt)
{
	unsigned char salt[ONCE_SALT_BYTES];
	once_batcher *batcher;
	once_error *error = NULL;
	int64_t epoch;

	if (gate_node_count() == 0) {
		give_up(attempt, NULL); /* the worker ends, and the look-up with it */
		return;
	}
	if (gate_route_node(attempt, &attempt->request.node, &epoch) != NGX_OK) {
		gate_request_stop(attempt);
		gate_step_unserved(attempt, gate_route_fault(attempt));
		attempt->walk(attempt, GATE_STEP);
		return;
	}
	batcher = gate_batcher(attempt->request.node);
	if (once_batcher_known_salt(batcher, attempt->intent.tenant, salt)) {
		hash_start(attempt);
	} else if (once_batcher_salt(batcher, attempt->intent.tenant, on_salt, attempt, &attempt->request.operation,
	                             &error) != ONCE_OK) {
		on_salt(attempt, NULL, error);
		once_error_free(error);
	}
}

/* ---- the body ---- */

static void on_body(ngx_http_request_t *r)
{
	gate_attempt *attempt = gate_attempt_of(r);

	/* Until the phases continue, only the client's leaving counts. */
	r->write_event_handler = ngx_http_request_empty_handler;
	r->read_event_handler = ngx_http_test_reading;
	attempt->request.reading = 0;
	if (!attempt->request.refused &&
	    chain_bytes(r->request_body == NULL ? NULL : r->request_body->bufs) > attempt->location->body_bytes_max) {
		gate_step_refuse(attempt, HTTP_PROBLEM_BODY_TOO_LARGE, NULL);
		attempt->request.refused = 1;
	}
	if (attempt->request.refused) {
		attempt->walk(attempt, GATE_STEP);
	} else {
		gate_route_find(attempt, find_salt);
	}
}

/*
 * Many HTTP/2 clients treat an answer that overtakes their body as a broken stream. So a body is
 * read even if the request is refused already, within client_max_body_size.
 */
static ngx_uint_t must_read(const gate_attempt *attempt)
{
#if (NGX_HTTP_V2)
	const ngx_http_request_t *r = attempt->r;

	if (r->stream != NULL && !r->stream->in_closed) {
		return 1;
	}
#endif
	return !attempt->request.refused;
}

ngx_int_t gate_request_read(gate_attempt *attempt)
{
	ngx_http_request_t *r = attempt->r;
	ngx_int_t rc;

	if (!must_read(attempt)) {
		return NGX_OK;
	}
	attempt->request.reading = attempt->request.nested = 1;
	rc = ngx_http_read_client_request_body(r, on_body);
	attempt->request.nested = 0;
	if (rc >= NGX_HTTP_SPECIAL_RESPONSE) {
		attempt->request.refusal = rc;
		return rc;
	}
	/* Undoes what the reader counted; it may free the request. */
	ngx_http_finalize_request(r, NGX_DONE);
	return NGX_DONE;
}

/*
 * nginx refused the body, and an error page leads to a protected location; nothing else arrives
 * here while a body is read. The received part of the body is not the request, so nothing may run
 * with it.
 */
ngx_int_t gate_request_refused(gate_attempt *attempt)
{
	ngx_uint_t status = attempt->r->err_status;

	assert(attempt->request.reading);
	if (attempt->request.refusal == 0) {
		/* With "=" before its page, nginx no longer knows the original status. */
		attempt->request.refusal = status >= NGX_HTTP_BAD_REQUEST ? (ngx_int_t)status : NGX_HTTP_BAD_REQUEST;
	}
	return attempt->request.refusal;
}

void gate_request_stop(gate_attempt *attempt)
{
	if (attempt->request.guard.timer_set) {
		ngx_del_timer(&attempt->request.guard);
	}
	if (attempt->request.turn.posted) {
		ngx_delete_posted_event(&attempt->request.turn);
	}
	gate_route_stop(attempt);
	once_operation_forget(attempt->request.operation);
	attempt->request.operation = NULL;
}

void gate_request_free(gate_attempt *attempt)
{
	assert(attempt->request.operation == NULL && !attempt->request.guard.timer_set && !attempt->request.turn.posted);
	once_hash_free(attempt->request.hash);
	gate_bytes_free(&attempt->request.whole_body);
	ngx_free(attempt->request.names);
}

/* ---- a request comes ---- */

ngx_uint_t gate_request_protected(ngx_http_request_t *r, const gate_location *location)
{
	return r == r->main && location->mode != GATE_OFF && (r->method & location->methods) && r->content_handler != NULL;
}

static void refuse(gate_attempt *attempt, http_problem problem, const char *detail)
{
	gate_step_refuse(attempt, problem, detail);
	gate_attempt_log(attempt, "refuse", NULL);
	attempt->request.refused = 1;
}

/*
 * nginx has refused the body, dropped it or read only a part of it, and an error page leads here:
 * the received part is not the request.
 */
static ngx_uint_t body_is_lost(const ngx_http_request_t *r)
{
	const ngx_table_elt_t *length = r->headers_in.content_length;
	off_t announced;

#if (NGX_HTTP_V2)
	if (r->stream != NULL && r->stream->skip_data) {
		return 1;
	}
#endif
	if (r->discard_body || (r->request_body != NULL && r->request_body->rest > 0)) {
		return 1;
	}
	if (r->request_body != NULL || length == NULL) {
		return 0;
	}
	/*
	 * The bytes that came with the header are dropped at once, and no longer counted; or the body
	 * was never read.
	 */
	announced = ngx_atoof(length->value.data, length->value.len);
	return announced != 0 && announced != r->headers_in.content_length_n;
}

ngx_int_t gate_request_open(ngx_http_request_t *r, gate_location *location, gate_walk walk, gate_attempt **attempt)
{
	const char *scope;
	found names;
	ngx_int_t rc;

	/* A server's error_page leads here past the phase that removes headers. */
	if (r->internal && gate_request_strip(r) != NGX_DECLINED) {
		return NGX_HTTP_INTERNAL_SERVER_ERROR;
	}
	if (r->post_action) {
		/* Its client has its answer already, and each retry would add the header again. */
		ngx_log_error(NGX_LOG_ERR, r->connection->log, 0, "once: post_action leads to a protected location: not run");
		return NGX_HTTP_FORBIDDEN;
	}
	rc = find_names(r, location, &names);
	if (rc == NGX_DECLINED) {
		return NGX_DECLINED;
	}
	if (rc == NGX_ERROR || (rc == NGX_OK && gate_node_count() == 0)) {
		return NGX_HTTP_INTERNAL_SERVER_ERROR;
	}
	*attempt = gate_attempt_new(r, location, walk);
	if (*attempt == NULL) {
		return NGX_HTTP_INTERNAL_SERVER_ERROR;
	}
	if (rc == NGX_ABORT) {
		scope = terminated(r->pool, &names.scope);
		(*attempt)->intent.scope = scope == NULL ? "" : scope;
		refuse(*attempt, names.problem, names.detail);
		return NGX_OK;
	}
	if (copy_names(*attempt, &names) != NGX_OK) {
		return NGX_HTTP_INTERNAL_SERVER_ERROR;
	}
	if (r->headers_in.content_length_n > (off_t)location->body_bytes_max || body_is_lost(r)) {
		refuse(*attempt, HTTP_PROBLEM_BODY_TOO_LARGE, NULL);
	}
	return NGX_OK;
}
