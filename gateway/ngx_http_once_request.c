/* SPDX-License-Identifier: PostgreSQL */
/*
 * ngx_http_once_request.c: a request until it can claim: headers that a client must not send are taken out, the key and the
 * tenant are found, the body is read and hashed. Runs in nginx's phases; each refusal here came before any look-up.
 */
#include "ngx_http_once.h"

enum {
	TURN_BYTES = 256 * 1024, /* hashed in one turn of the event loop */
	PAGE_BYTES = 64 * 1024,  /* read from a file at once */
	NAME_CHARACTERS_MAX = 255,
	GUARD_MS = 10 * 1000,
	SHORT_NAME = 64
};

/* ---- headers that a client must not send ---- */

/*
 * FastCGI and uwsgi turn '-' into '_', and applications fold more than that: so every other character counts as '-'.
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

/* nginx keeps pointers to the elements of the list, so they stay where they are, and the list is made anew without some. */
static ngx_int_t strip(ngx_http_request_t *r)
{
	ngx_list_t kept;

	if (ngx_list_init(&kept, r->pool, 20, sizeof(ngx_table_elt_t)) != NGX_OK) {
		return NGX_ERROR;
	}
	for (ngx_list_part_t *part = &r->headers_in.headers.part; part != NULL; part = part->next) {
		ngx_table_elt_t *header = part->elts;

		for (ngx_uint_t i = 0; i < part->nelts; i++) {
			ngx_table_elt_t *copy;

			if (is_reserved(&header[i].key)) {
				ngx_log_error(NGX_LOG_INFO, r->connection->log, 0, "once: event=strip header=%V", &header[i].key);
				continue;
			}
			copy = ngx_list_push(&kept);
			if (copy == NULL) {
				return NGX_ERROR;
			}
			*copy = header[i];
		}
	}
	r->headers_in.headers = kept;
	if (kept.last == &kept.part) {
		r->headers_in.headers.last = &r->headers_in.headers.part;
	}
	return NGX_OK;
}

ngx_int_t gate_request_strip(ngx_http_request_t *r)
{
	for (ngx_list_part_t *part = &r->headers_in.headers.part; part != NULL; part = part->next) {
		ngx_table_elt_t *header = part->elts;

		for (ngx_uint_t i = 0; i < part->nelts; i++) {
			if (is_reserved(&header[i].key)) {
				return strip(r) == NGX_OK ? NGX_DECLINED : NGX_HTTP_INTERNAL_SERVER_ERROR;
			}
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

/* How many header lines bear the key's name, as $http_name compares names. */
static ngx_uint_t count_lines(ngx_http_request_t *r, const ngx_str_t *name)
{
	ngx_uint_t lines = 0;

	for (ngx_list_part_t *part = &r->headers_in.headers.part; part != NULL; part = part->next) {
		ngx_table_elt_t *header = part->elts;

		for (ngx_uint_t i = 0; i < part->nelts; i++) {
			size_t n = 0;

			if (header[i].key.len != name->len) {
				continue;
			}
			while (n < name->len &&
			       (header[i].key.data[n] == '-' ? '_' : ngx_tolower(header[i].key.data[n])) == name->data[n]) {
				n++;
			}
			lines += n == name->len;
		}
	}
	return lines;
}

/* What PostgreSQL takes as well: ngx_utf8_length counts bytes where a text is not UTF-8, and nginx's decoder takes surrogates. */
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

/* As find_names says of the key alone. */
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

/* NGX_OK: *names has all three. NGX_DECLINED: no key was sent. NGX_ABORT: refuse with its problem. NGX_ERROR: no memory. */
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
		if (names->tenant.len == 0) {
			return NGX_ABORT;
		}
		if (!is_clean(&names->tenant)) {
			names->detail = "The tenant must be valid UTF-8 of at most 255 characters, without control characters.";
			return NGX_ABORT;
		}
	}
	return NGX_OK;
}

/*
 * W3C Trace Context, section 3.2: a request has one traceparent; of several, or of a malformed one, nothing is taken. NULL: none. It goes on
 * to the upstream as it is, whatever it is.
 */
static const ngx_str_t *find_trace(ngx_http_request_t *r)
{
	static const ngx_str_t name = ngx_string("traceparent");
	const ngx_str_t *line_value = NULL;

	for (ngx_list_part_t *part = &r->headers_in.headers.part; part != NULL; part = part->next) {
		ngx_table_elt_t *header = part->elts;

		for (ngx_uint_t i = 0; i < part->nelts; i++) {
			if (header[i].key.len != name.len || ngx_strncasecmp(header[i].key.data, name.data, name.len) != 0) {
				continue;
			}
			if (line_value != NULL) {
				return NULL;
			}
			line_value = &header[i].value;
		}
	}
	return line_value == NULL || line_value->len != GATE_TRACE_BYTES - 1 ? NULL : line_value;
}

/* The attempt's own copies: it may outlive the request. */
static gate_attempt *open_attempt(ngx_http_request_t *r, gate_location *location, const found *names)
{
	gate_attempt *attempt = gate_attempt_new(r, location);
	const ngx_str_t *trace = find_trace(r);
	size_t key_length = ngx_strlen(names->key);
	u_char *p;

	if (attempt == NULL) {
		return NULL;
	}
	attempt->stage = GATE_DONE;
	attempt->names =
	    ngx_alloc(names->tenant.len + names->scope.len + key_length + 3 + GATE_TRACE_BYTES, r->connection->log);
	if (attempt->names == NULL) {
		return NULL;
	}
	p = attempt->names;
	attempt->intent.tenant = (const char *)p;
	p = ngx_cpymem(p, names->tenant.data, names->tenant.len);
	*p++ = '\0';
	attempt->intent.scope = (const char *)p;
	p = ngx_cpymem(p, names->scope.data, names->scope.len);
	*p++ = '\0';
	attempt->intent.key = (const char *)p;
	p = ngx_cpymem(p, names->key, key_length);
	*p++ = '\0';
	if (trace != NULL) {
		attempt->intent.traceparent = (const char *)p;
		*ngx_cpymem(p, trace->data, trace->len) = '\0';
	}
	return attempt;
}

/* ---- the fingerprint ---- */

static void give_up(gate_attempt *attempt, const once_error *error)
{
	gate_claim_failed(attempt, error, error == NULL ? ONCE_NO_MEMORY : once_error_code(error));
}

/* Method, target and type; the rest of the parts comes as body_bytes of "body". */
static once_code start_hash(gate_attempt *attempt, uint64_t body_bytes, once_error **error)
{
	ngx_http_request_t *r = attempt->request;
	ngx_uint_t print = attempt->location->print;
	const char *method = terminated(r->pool, &r->method_name);
	const char *target = terminated(r->pool, &r->unparsed_uri);
	const char *type = "";
	unsigned char salt[ONCE_SALT_BYTES];

	if (r->headers_in.content_type != NULL) {
		type = terminated(r->pool, &r->headers_in.content_type->value);
	}
	if (method == NULL || target == NULL || type == NULL || gate_batcher() == NULL ||
	    !once_batcher_known_salt(gate_batcher(), attempt->intent.tenant, salt)) {
		return ONCE_NO_MEMORY;
	}
	return once_hash_start(salt, print & GATE_PRINT_METHOD ? method : "", print & GATE_PRINT_TARGET ? target : "",
	                       print & GATE_PRINT_TYPE ? type : "", body_bytes, &attempt->hash, error);
}

/*
 * Further variables follow the body, each before its length, so that no two requests run together: read from the end, the
 * lengths say where each begins.
 */
static once_code add_values(gate_attempt *attempt, once_error **error)
{
	ngx_str_t *value = attempt->print_values == NULL ? NULL : attempt->print_values->elts;
	once_code code = ONCE_OK;

	for (ngx_uint_t i = 0; value != NULL && code == ONCE_OK && i < attempt->print_values->nelts; i++) {
		unsigned char length[8];

		for (int n = 0; n < 8; n++) {
			length[n] = (unsigned char)((uint64_t)value[i].len >> (56 - 8 * n));
		}
		code = once_hash_add(
		    attempt->hash,
		    (once_bytes){.data = value[i].len == 0 ? (const void *)"" : value[i].data, .length = value[i].len}, error);
		if (code == ONCE_OK) {
			code = once_hash_add(attempt->hash, (once_bytes){.data = length, .length = sizeof(length)}, error);
		}
	}
	return code;
}

static uint64_t value_bytes(const gate_attempt *attempt)
{
	ngx_str_t *value = attempt->print_values == NULL ? NULL : attempt->print_values->elts;
	uint64_t bytes = 0;

	for (ngx_uint_t i = 0; value != NULL && i < attempt->print_values->nelts; i++) {
		bytes += value[i].len + 8;
	}
	return bytes;
}

/* The collected body in canonical form, where it is JSON. */
static once_code hash_canonical(gate_attempt *attempt, once_error **error)
{
	once_bytes body = {.data = attempt->whole_body.data == NULL ? (const void *)"" : attempt->whole_body.data,
	                   .length = attempt->whole_body.length};
	char *canonical = NULL;
	size_t length = 0;
	once_code code = once_json_canonical(body, &canonical, &length, error);

	if (code == ONCE_OK && canonical != NULL) {
		body = (once_bytes){.data = canonical, .length = length};
	}
	if (code == ONCE_OK) {
		code = start_hash(attempt, body.length + value_bytes(attempt), error);
	}
	if (code == ONCE_OK) {
		code = once_hash_add(attempt->hash, body, error);
	}
	free(canonical);
	gate_bytes_free(&attempt->whole_body);
	return code;
}

static once_code add_piece(gate_attempt *attempt, const u_char *data, size_t length, once_error **error)
{
	if (attempt->hash != NULL) {
		return once_hash_add(attempt->hash, (once_bytes){.data = data, .length = length}, error);
	}
	return gate_bytes_add(&attempt->whole_body, data, length, ONCE_CANONICAL_BYTES_MAX) == NGX_OK ? ONCE_OK
	                                                                                              : ONCE_NO_MEMORY;
}

/* One piece of one buffer, from memory or from the temporary file. Returns the bytes that it took; 0 on failure. */
static size_t take_piece(gate_attempt *attempt, ngx_buf_t *buf, once_error **error)
{
	static u_char page[PAGE_BYTES]; /* a worker has one thread */
	size_t length = (size_t)ngx_min(ngx_buf_size(buf) - attempt->piece_offset, PAGE_BYTES);
	const u_char *data = page;

	if (ngx_buf_in_memory(buf)) {
		data = buf->pos + attempt->piece_offset;
	} else if (ngx_read_file(buf->file, page, length, buf->file_pos + attempt->piece_offset) != (ssize_t)length) {
		return 0;
	}
	return add_piece(attempt, data, length, error) == ONCE_OK ? length : 0;
}

static void finish_hash(gate_attempt *attempt)
{
	once_error *error = NULL;
	once_code code = ONCE_OK;

	if (attempt->hash == NULL) {
		code = hash_canonical(attempt, &error);
	}
	if (code == ONCE_OK) {
		code = add_values(attempt, &error);
	}
	if (code == ONCE_OK) {
		code = once_hash_finish(attempt->hash, &attempt->fingerprint, &error);
	}
	once_hash_free(attempt->hash);
	attempt->hash = NULL;
	if (code == ONCE_OK) {
		gate_claim(attempt);
	} else {
		give_up(attempt, error);
	}
	once_error_free(error);
}

static void on_turn(ngx_event_t *event);
static void on_guard(ngx_event_t *event);

/* Hashes for one turn of the loop; a large body takes several, and other requests go on in between. */
static void hash_turn(gate_attempt *attempt)
{
	once_error *error = NULL;
	size_t budget = TURN_BYTES;

	while (attempt->piece != NULL && budget > 0) {
		ngx_buf_t *buf = attempt->piece->buf;
		size_t taken = 0;

		if (ngx_buf_size(buf) > attempt->piece_offset) {
			taken = take_piece(attempt, buf, &error);
			if (taken == 0) {
				give_up(attempt, error);
				once_error_free(error);
				return;
			}
		}
		attempt->piece_offset += (off_t)taken;
		budget -= ngx_min(taken, budget);
		if (attempt->piece_offset >= ngx_buf_size(buf)) {
			attempt->piece = attempt->piece->next;
			attempt->piece_offset = 0;
		}
	}
	if (attempt->piece != NULL) {
		/* A worker that ends looks at timers only: this one says that a request is at work. */
		if (!attempt->timer.timer_set) {
			gate_event_init(&attempt->timer, on_guard);
			ngx_add_timer(&attempt->timer, GUARD_MS);
		}
		gate_event_init(&attempt->post, on_turn);
		ngx_post_event(&attempt->post, &ngx_posted_next_events);
		return;
	}
	if (attempt->timer.timer_set) {
		ngx_del_timer(&attempt->timer);
	}
	finish_hash(attempt);
}

static void on_guard(ngx_event_t *event)
{
	ngx_add_timer(event, GUARD_MS);
}

static void on_turn(ngx_event_t *event)
{
	hash_turn(gate_attempt_at(event, post));
}

static ngx_int_t evaluate_values(gate_attempt *attempt)
{
	ngx_array_t *wanted = attempt->location->print_values;
	ngx_http_complex_value_t *value = wanted == NULL ? NULL : wanted->elts;

	if (value == NULL || wanted->nelts == 0) {
		return NGX_OK;
	}
	attempt->print_values = ngx_array_create(attempt->request->pool, wanted->nelts, sizeof(ngx_str_t));
	for (ngx_uint_t i = 0; attempt->print_values != NULL && i < wanted->nelts; i++) {
		ngx_str_t *slot = ngx_array_push(attempt->print_values);

		if (slot == NULL || ngx_http_complex_value(attempt->request, &value[i], slot) != NGX_OK) {
			return NGX_ERROR;
		}
	}
	return attempt->print_values == NULL ? NGX_ERROR : NGX_OK;
}

static void hash_start(gate_attempt *attempt)
{
	ngx_http_request_t *r = attempt->request;
	ngx_chain_t *bufs =
	    r->request_body == NULL || !(attempt->location->print & GATE_PRINT_BODY) ? NULL : r->request_body->bufs;
	once_error *error = NULL;
	uint64_t bytes = 0;
	once_code code = ONCE_OK;

	attempt->stage = GATE_HASHING;
	attempt->piece = bufs;
	attempt->piece_offset = 0;
	for (ngx_chain_t *link = bufs; link != NULL; link = link->next) {
		bytes += (uint64_t)ngx_buf_size(link->buf);
	}
	if (evaluate_values(attempt) != NGX_OK) {
		give_up(attempt, NULL);
		return;
	}
	if (!attempt->location->canonical_json || bufs == NULL || bytes > ONCE_CANONICAL_BYTES_MAX) {
		code = start_hash(attempt, bytes + value_bytes(attempt), &error);
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

	(void)answer;
	attempt->operation = NULL;
	if (error != NULL) {
		give_up(attempt, error);
	} else {
		hash_start(attempt);
	}
}

static void find_salt(gate_attempt *attempt)
{
	unsigned char salt[ONCE_SALT_BYTES];
	once_error *error = NULL;

	if (gate_batcher() == NULL) {
		give_up(attempt, NULL); /* the worker ends, and with it what the look-up asked */
		return;
	}
	if (once_batcher_known_salt(gate_batcher(), attempt->intent.tenant, salt)) {
		hash_start(attempt);
		return;
	}
	attempt->stage = GATE_SALTING;
	if (once_batcher_salt(gate_batcher(), attempt->intent.tenant, on_salt, attempt, &attempt->operation, &error) !=
	    ONCE_OK) {
		attempt->operation = NULL;
		give_up(attempt, error);
		once_error_free(error);
	}
}

/* ---- the body ---- */

static ngx_int_t send_decided(ngx_http_request_t *r, gate_attempt *attempt)
{
	attempt->stage = GATE_DONE;
	ngx_http_finalize_request(r, gate_reply_send(r, &attempt->reply));
	return NGX_DONE;
}

/*
 * nginx refused the body, and an error page leads to a protected location; nothing else comes here while a body is read. What there
 * is of the body is not the request, so nothing may run with it.
 */
static ngx_int_t body_refused(ngx_http_request_t *r, gate_attempt *attempt)
{
	if (attempt->status == 0) {
		/* With "=" before its page, nginx forgets which status it was. */
		attempt->status = r->err_status >= NGX_HTTP_BAD_REQUEST ? (int)r->err_status : NGX_HTTP_BAD_REQUEST;
	}
	return attempt->status;
}

static void on_unwanted_body(ngx_http_request_t *r)
{
	r->write_event_handler = ngx_http_request_empty_handler;
	(void)send_decided(r, gate_attempt_of(r));
}

/*
 * Refused before its body was read. Many HTTP/2 clients take an answer that overtakes their body for a broken stream, so that is
 * read first, within client_max_body_size.
 */
static ngx_int_t refuse_early(ngx_http_request_t *r, gate_attempt *attempt, http_problem problem, const char *detail)
{
	gate_attempt_refuse(attempt, problem, detail);
	gate_attempt_log(attempt, "refuse", NULL);
#if (NGX_HTTP_V2)
	if (r->stream != NULL && !r->stream->in_closed) {
		ngx_int_t rc;

		attempt->stage = GATE_READING;
		rc = ngx_http_read_client_request_body(r, on_unwanted_body);
		if (rc >= NGX_HTTP_SPECIAL_RESPONSE) {
			return rc;
		}
		ngx_http_finalize_request(r, NGX_DONE);
		return NGX_DONE;
	}
#endif
	return send_decided(r, attempt);
}

static off_t body_bytes(ngx_http_request_t *r)
{
	off_t bytes = 0;

	for (ngx_chain_t *link = r->request_body == NULL ? NULL : r->request_body->bufs; link != NULL; link = link->next) {
		bytes += ngx_buf_size(link->buf);
	}
	return bytes;
}

static void on_body(ngx_http_request_t *r)
{
	gate_attempt *attempt = gate_attempt_of(r);

	/* Until the phases go on, only the client's leaving counts. */
	r->write_event_handler = ngx_http_request_empty_handler;
	r->read_event_handler = ngx_http_test_reading;
	if (body_bytes(r) > (off_t)attempt->location->body_bytes_max) {
		gate_attempt_refuse(attempt, HTTP_PROBLEM_BODY_TOO_LARGE, NULL);
		gate_attempt_resume(attempt);
		return;
	}
	find_salt(attempt);
}

static ngx_int_t read_body(ngx_http_request_t *r, gate_attempt *attempt)
{
	ngx_int_t rc;

	if (r->headers_in.content_length_n > (off_t)attempt->location->body_bytes_max) {
		return refuse_early(r, attempt, HTTP_PROBLEM_BODY_TOO_LARGE, NULL);
	}
	attempt->stage = GATE_READING;
	attempt->reading = 1;
	rc = ngx_http_read_client_request_body(r, on_body);
	attempt->reading = 0;
	if (rc >= NGX_HTTP_SPECIAL_RESPONSE) {
		attempt->status = (int)rc;
		return rc;
	}
	/* Undoes what the reader counted; it may free the request. */
	ngx_http_finalize_request(r, NGX_DONE);
	return NGX_DONE;
}

/* ---- phases ---- */

static ngx_uint_t is_protected(ngx_http_request_t *r, const gate_location *location)
{
	return r == r->main && location->mode != GATE_OFF && (r->method & location->methods) && r->content_handler != NULL;
}

static ngx_int_t first_entry(ngx_http_request_t *r, gate_location *location)
{
	gate_attempt *attempt;
	found names;

	if (!is_protected(r, location)) {
		return NGX_DECLINED;
	}
	switch (find_names(r, location, &names)) {
	case NGX_OK:
		break;
	case NGX_DECLINED:
		return NGX_DECLINED;
	case NGX_ABORT:
		attempt = gate_attempt_new(r, location);
		if (attempt == NULL) {
			return NGX_HTTP_INTERNAL_SERVER_ERROR;
		}
		attempt->intent.scope = terminated(r->pool, &names.scope);
		if (attempt->intent.scope == NULL) {
			attempt->intent.scope = "";
		}
		return refuse_early(r, attempt, names.problem, names.detail);
	default:
		return NGX_HTTP_INTERNAL_SERVER_ERROR;
	}
	attempt = gate_batcher() == NULL ? NULL : open_attempt(r, location, &names);
	if (attempt == NULL) {
		return NGX_HTTP_INTERNAL_SERVER_ERROR;
	}
	return read_body(r, attempt);
}

/* What was decided happens now, in the phase: the access phase has let the request pass. */
static ngx_int_t decided(ngx_http_request_t *r, gate_attempt *attempt)
{
	switch (attempt->step) {
	case HTTP_RUN:
		attempt->content = r->content_handler;
		r->content_handler = gate_answer_content;
		return NGX_DECLINED;
	case HTTP_PASS:
		attempt->stage = GATE_DONE;
		return NGX_DECLINED;
	default:
		return send_decided(r, attempt);
	}
}

ngx_int_t gate_request_handler(ngx_http_request_t *r)
{
	gate_location *location = ngx_http_get_module_loc_conf(r, ngx_http_once_module);
	gate_attempt *attempt = r == r->main ? gate_attempt_of(r) : NULL;

	if (r != r->main) {
		return NGX_DECLINED;
	}
	if (attempt == NULL) {
		return first_entry(r, location);
	}
	switch (attempt->stage) {
	case GATE_READING:
		return is_protected(r, location) ? body_refused(r, attempt) : NGX_DECLINED;
	case GATE_DECIDED:
		if (attempt->step == HTTP_RUN && r->content_handler == NULL) {
			return NGX_DECLINED; /* on the way, as by try_files, to a location that has one */
		}
		return decided(r, attempt);
	case GATE_RUNNING:
		return gate_answer_redirected(attempt);
	case GATE_HOLDING:
	case GATE_STREAMING:
	case GATE_REPORTING:
	case GATE_REPORTED:
	case GATE_DONE:
		return NGX_DECLINED;
	default:
		return NGX_AGAIN; /* a stray event: what is under way goes on */
	}
}
